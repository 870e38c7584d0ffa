"""Figure of induced drifts: where the two token backlogs move to from each part of the quarter plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from queuetheory_llm.plots.style import GREY, INK, PALETTE, SMALL, TEXT, framed_axes, plain_axes
from queuetheory_llm.stability.induced import DriftBounds, InducedDrifts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (5.2, 4.2)  # inches
_LENGTH = 0.3  # of the longest arrow, in shares of an axis
_LEAST = 0.08  # of one too short to show its direction
_PLACES = {"interior": (0.56, 0.6), "prompts": (0.6, 0.0), "decodes": (0.0, 0.62)}


def draw_drifts(found: InducedDrifts, ax: Axes | None = None) -> Axes:
    """An arrow for each drift: in the interior, and along each axis that it leads to.

    Arrows are as long as their drifts, relative to the longest of them; short ones are drawn longer. Numbers are
    tokens/s.

    Parameters
    ----------
    found : InducedDrifts
    ax : Axes, optional
        By default the only axes of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal prompt tokens waiting, vertical decode tokens of requests past their prompts; no scale.
    """
    if ax is None:
        ax = framed_axes(
            *_SIZE,
            title=f"{found.scheduler} at {float(found.rate):.4g} requests/s: {found.verdict.value}",
            subtitle="drift of the two token backlogs, tokens/s",
            caption="An axis without an arrow is not reached: the backlogs leave it.",
        )
    vectors = {"interior": np.array([drift.mean for drift in found.interior])}
    texts = {"interior": f"({_text(found.interior[0])}, {_text(found.interior[1])})"}
    for name, drift, way in (("prompts", found.prompts, (1, 0)), ("decodes", found.decodes, (0, 1))):
        if drift is not None:
            vectors[name], texts[name] = drift.mean * np.array(way), _text(drift)
    longest = max(float(np.linalg.norm(vector)) for vector in vectors.values()) or 1.0
    for index, (name, vector) in enumerate(vectors.items()):
        _draw_arrow(ax, np.array(_PLACES[name]), vector / longest, texts[name], PALETTE[index])
    plain_axes(ax)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel("prompt tokens waiting", fontsize=TEXT)
    ax.set_ylabel("decode tokens past their prompts", fontsize=TEXT)
    return ax


def _text(drift: DriftBounds) -> str:
    if drift.low == drift.high:
        return f"{drift.mean:.4g}"
    return f"{float(drift.low):.4g} .. {float(drift.high):.4g}"


def _draw_arrow(ax: Axes, start: np.ndarray[Any, Any], share: np.ndarray[Any, Any], text: str, colour: str) -> None:
    size = float(np.linalg.norm(share))
    arrow = share * (max(_LENGTH * size, _LEAST) / size) if size else share
    ax.annotate(
        "",
        tuple(start + arrow),
        tuple(start),
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.0, "shrinkA": 0, "shrinkB": 0},
        annotation_clip=False,
    )
    ax.plot(*start, marker="o", color=colour, markersize=4, clip_on=False, linestyle="")
    ax.annotate(text, tuple(start), (8, 8), textcoords="offset points", fontsize=SMALL, color=INK if size else GREY)
