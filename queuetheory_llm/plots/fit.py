"""Figure of a batch-time fit: the measured points, the laws, and how far each law is from the points."""

from __future__ import annotations

import textwrap
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.fitting import Candidate, Fit
from queuetheory_llm.fitting.fit import TOLERANCE
from queuetheory_llm.plots.style import PALETTE, figure_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = dict(zip(("affine", "staircase", "hinge", "table"), PALETTE, strict=False))
_STYLES = {"affine": ":", "hinge": "--", "staircase": "-", "table": "-"}
_POINTS = "#4D4D4D"
_COLUMNS = 88  # letters of the title in the width of the figure


def draw_fit(fit: Fit, ax: Axes | None = None) -> Axes:
    """Measured points and candidate laws over the batch size; both axes logarithmic.

    Parameters
    ----------
    fit : Fit
    ax : Axes, optional
        By default the only axes of a new figure.
    """
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(6.4, 4.0), layout="constrained").subplots()
    tokens = fit.profile.token_array
    grid = _every_size(int(tokens[0]), int(tokens[-1]))
    for candidate in _drawn(fit):
        values = 1000 * candidate.law.seconds_array(grid)
        # A flat piece ends at a size and includes it: the jump comes just after.
        shape = "steps-pre" if candidate.name in ("staircase", "table") else "default"
        ax.plot(grid, values, drawstyle=shape, zorder=2, label=_label(candidate), **_line(candidate, fit))
    dense = len(fit.profile) > 60
    ax.plot(
        tokens,
        1000 * fit.profile.second_array,
        linestyle="",
        marker="o",
        markersize=2.2 if dense else 4.5,
        markerfacecolor="white" if not dense else _POINTS,
        markeredgecolor=_POINTS,
        markeredgewidth=0.8 if not dense else 0,
        zorder=3,
        label="formula" if fit.profile.statistic == "formula" else "measured",
    )
    _logarithmic(ax)
    ax.set_yscale("log")
    _plain_ticks(ax)
    ax.set_ylabel("batch time (ms)")
    ax.set_xlabel("tokens in the batch")
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return ax


def render_fit(fit: Fit, suffix: str) -> bytes:
    """The whole figure, laws above and relative errors below, as a file of the given kind.

    Parameters
    ----------
    fit : Fit
    suffix : {"svg", "png", "pdf"}

    Returns
    -------
    bytes
        The same for the same fit: no date, no random identifiers.
    """
    from matplotlib import rc_context

    with rc_context({"font.size": 9}):
        return figure_bytes(_figure(fit), suffix)


def _figure(fit: Fit) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    draw_fit(fit, upper)
    upper.set_xlabel("")
    upper.set_title(_title(fit), fontsize="medium", loc="left")
    tokens, seconds = fit.profile.token_array, fit.profile.second_array
    lower.axhspan(-100 * TOLERANCE, 100 * TOLERANCE, color="0.92", zorder=0, linewidth=0)
    lower.axhline(0, color="0.6", linewidth=0.6, zorder=1)
    for candidate in _drawn(fit):
        if candidate.name == "table":
            continue  # nothing to see: it goes through its points
        error = 100 * (candidate.law.seconds_array(tokens) / seconds - 1)
        lower.plot(tokens, error, **_line(candidate, fit))
    lower.set_ylabel("relative error (%)")
    lower.set_xlabel("tokens in the batch")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="0.9", linewidth=0.5)
        axes.set_axisbelow(True)
    return figure


def _title(fit: Fit) -> str:
    """The file the times are from, the law chosen and why, broken to the width of the figure."""
    words = f"{PurePath(fit.profile.source).name}: {fit.chosen.name} chosen, {fit.reason}"
    return "\n".join(textwrap.wrap(words, _COLUMNS))


def _every_size(first: int, last: int) -> NDArray[np.int64]:
    """Every size up to a few thousand, geometric beyond: enough for stairs to look like stairs."""
    every = np.arange(first, min(last, 4096) + 1)
    beyond = np.geomspace(max(first, 4096), last, 4096).astype(np.int64) if last > 4096 else every[-1:]
    return np.unique(np.concatenate([every, beyond]))


def _drawn(fit: Fit) -> list[Candidate]:
    """All candidates, the chosen one last and so on top."""
    return sorted(fit.candidates, key=lambda candidate: candidate is fit.chosen)


def _line(candidate: Candidate, fit: Fit) -> dict[str, Any]:
    chosen = candidate is fit.chosen
    return {
        "color": _COLOURS[candidate.name],
        "linestyle": _STYLES[candidate.name],
        "linewidth": 1.6 if chosen else 0.9,
        "alpha": 1.0 if chosen else 0.8,
    }


def _label(candidate: Candidate) -> str:
    if candidate.name == "table":
        return "table (padded to the next point)"
    return f"{candidate.name}, error up to {100 * candidate.max_relative_error:.1f} %"


def _logarithmic(ax: Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{int(value)}" if value >= 1 else "")


def _plain_ticks(ax: Axes) -> None:
    """Milliseconds as ordinary numbers at 1, 2, 5, 10, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{float(Fraction(value).limit_denominator(1000)):g}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_formatter(NullFormatter())
