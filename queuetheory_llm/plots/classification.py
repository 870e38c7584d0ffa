"""Figure of a classification: a small table of what the batches of a rule show, the reason, and what follows where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuetheory_llm.plots.style import (
    EDGE,
    GREY,
    INK,
    PALETTE,
    SMALL,
    SPACING,
    TEXT,
    TITLE,
    figure_bytes,
    figure_of,
    fit_width,
    renderer_of,
)
from queuetheory_llm.stability.classify import Classification
from queuetheory_llm.stability.topologies import TOPOLOGIES, judge_topologies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 6.5  # inches
_ROW = 18.0  # points from row to row
_COLUMNS = (0.0, 108.0, 172.0)  # points: property, answer, question
_COLOURS = {True: PALETTE[2], False: PALETTE[1], None: GREY}
_WORDS = {True: "yes", False: "no", None: "unknown"}


def render_classification(found: Classification, format: str) -> bytes:
    """The figure of `draw_classification` as a file, the same for the same answer.

    Parameters
    ----------
    found : Classification
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_classification(found)), format)


def draw_classification(found: Classification, ax: Axes | None = None) -> Axes:
    """One row a property with its answer as a word on a colour, one row a topology, and below them the reason.

    Parameters
    ----------
    found : Classification
    ax : Axes, optional
        By default the only axes of a new figure as high as the table. Only its frame is used: it has no scales.
    """
    new = ax is None
    if ax is None:
        ax = _new_axes()
    ax.set_axis_off()
    top = 0.0
    _write(
        ax, _COLUMNS[0], top, f"{found.scheduler}: {found.states:,} small states explored", fontsize=TITLE, color=INK
    )
    for name, answer, question in (*_rows(found), *_topologies(found)):
        top -= _ROW
        _write(ax, _COLUMNS[0], top, name, fontsize=TEXT, color=INK)
        box = {"facecolor": _COLOURS[answer], "edgecolor": "none", "boxstyle": "round,pad=0.22"}
        _write(ax, _COLUMNS[1], top, _WORDS[answer], fontsize=TEXT, color="white", weight="bold", bbox=box)
        _write(ax, _COLUMNS[2], top, question, fontsize=SMALL, color=GREY)
    reason = _write(ax, _COLUMNS[0], top - _ROW, found.reason, fontsize=SMALL, color=INK, linespacing=SPACING)
    fit_width(reason, ax.get_window_extent().width)
    if new:
        _fit_height(figure_of(ax), ax, reason)
    return ax


def _rows(found: Classification) -> list[tuple[str, bool | None, str]]:
    """Property, answer and the question it answers."""
    most = "" if found.overtaken is None else f" K = {found.overtaken}"
    return [
        ("work-conserving", found.work_conserving, "does every batch hold min(b_max, demand) tokens?"),
        ("K-FCFS", found.overtaken is not None, f"is overtaking, per phase, bounded?{most}"),
        ("fills", found.fills, "is every batch full once b_max requests are present?"),
        (
            "throughput-optimal",
            found.throughput_optimal,
            "is one engine without k_max stable up to the rate of full batches?",
        ),
    ]


def _topologies(found: Classification) -> list[tuple[str, bool | None, str]]:
    """The same for each way to connect engines but the first, which is one engine."""
    return [
        (f"  {topology.heading}", verdict.optimal, ", ".join(filter(None, (topology.name, verdict.proviso))))
        for topology, verdict in zip(TOPOLOGIES[1:], judge_topologies(found)[1:], strict=True)
    ]


def _write(ax: Axes, x: float, y: float, text: str, **style: Any) -> Any:
    """Write at (x, y) points from the upper left corner of the axes."""
    return ax.annotate(
        text, (0, 1), (x, y), xycoords="axes fraction", textcoords="offset points", va="top", ha="left", **style
    )


def _new_axes() -> Axes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, 2.0))
    return _framed(figure, figure.add_axes((0, 0, 1, 1)))


def _framed(figure: Figure, ax: Axes) -> Axes:
    width, height = figure.get_size_inches()
    ax.set_position((EDGE / width, EDGE / height, 1 - 2 * EDGE / width, 1 - 2 * EDGE / height))
    return ax


def _fit_height(figure: Figure, ax: Axes, lowest: Any) -> None:
    """Make the figure as high as its texts, which hang from the top."""
    width, height = figure.get_size_inches()
    bottom = lowest.get_window_extent(renderer_of(figure)).y0 / figure.dpi
    figure.set_size_inches(width, height - bottom + EDGE)
    _framed(figure, ax)
