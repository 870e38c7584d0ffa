"""Figure of capacities: the largest stable request rate of each scheduler, or the interval it is known to lie in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queuetheory_llm.plots.style import (
    INK,
    PALETTE,
    SMALL,
    TEXT,
    figure_bytes,
    figure_of,
    framed_axes,
    number_text,
    paler,
    plain_axes,
    text_size,
)
from queuetheory_llm.plots.words import engine_line, workload_line
from queuetheory_llm.stability.answers import CapacityAnswer
from queuetheory_llm.stability.thresholds import Threshold

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = 20  # largest ratio of two rates that bars from zero can show
_STABLE, _UNDECIDED = PALETTE[0], PALETTE[5]
_CAPTION = "Stable below, unstable above; in brackets the limit that binds."


def render_capacity(answer: CapacityAnswer, format: str) -> bytes:
    """The figure of `draw_capacity` as a file, the same for the same answer.

    Parameters
    ----------
    answer : CapacityAnswer
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_capacity(answer)), format)


def draw_capacity(answer: CapacityAnswer, ax: Axes | None = None) -> Axes:
    """One row a scheduler: a bar up to its largest stable rate, hatched where only bounds are known.

    Where the rates spread over more than a factor of 20 the axis is logarithmic, which has no zero for bars to start
    from: rates are then dots and bounds intervals.

    Parameters
    ----------
    answer : CapacityAnswer
    ax : Axes, optional
        By default the only axes of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal requests/s.
    """
    return _draw(_new_axes(answer) if ax is None else ax, answer.results)


def draw_threshold(limit: Threshold, ax: Axes | None = None) -> Axes:
    """The row that `draw_capacity` has for one scheduler.

    Parameters
    ----------
    limit : Threshold
    ax : Axes, optional
        By default the only axes of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal requests/s.
    """
    if ax is None:
        ax = _framed((limit,), title=f"Largest stable rate of {limit.scheduler}", subtitle=limit.method)
    return _draw(ax, (limit,))


def _draw(ax: Axes, results: Sequence[Threshold]) -> Axes:
    logarithmic = spreads(results)
    if logarithmic:
        ax.set_xscale("log")
    floor = min(_positive(results)) / 2 if logarithmic else 0.0
    for row, limit in enumerate(results):
        _draw_row(ax, row, limit, floor)
    plain_axes(ax)
    ax.set_yticks(range(len(results)), [limit.scheduler for limit in results], fontsize=SMALL)
    ax.set_ylim(len(results) - 0.4, -0.6)
    ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_xlabel("requests/s", fontsize=TEXT)
    _write(ax, results, floor)
    return ax


def spreads(results: Sequence[Threshold]) -> bool:
    """Whether bars from zero would make the smallest rate invisible."""
    rates = _positive(results)
    return max(rates) > _SPREAD * min(rates)


def _positive(results: Sequence[Threshold]) -> list[float]:
    return [float(rate) for limit in results for rate in (limit.low, limit.high) if rate > 0]


def _new_axes(answer: CapacityAnswer) -> Axes:
    engines = f"{len(answer.engines)} engines, {answer.dispatch} dispatch" if len(answer.engines) > 1 else ""
    return _framed(
        answer.results,
        title=answer.title or engines or engine_line(answer.engines[0]),
        subtitle=workload_line(answer.workload, arrivals=False),
    )


def _framed(results: Sequence[Threshold], *, title: str, subtitle: str) -> Axes:
    """New axes with room for the names of the schedulers."""
    bounds = any(not limit.exact for limit in results)
    caption = _CAPTION + (" Hatched: between the two ends nothing is decided." if bounds else "")
    ax = framed_axes(6.5, 1.5 + 0.34 * len(results), title=title, subtitle=subtitle, caption=caption)
    figure = figure_of(ax)
    widest = max(text_size(figure, limit.scheduler, fontsize=SMALL)[0] for limit in results)
    place = ax.get_position()
    left = (widest / figure.dpi + 0.3) / 6.5
    ax.set_position((left, place.y0, place.x1 - left, place.height))
    return ax


def _draw_row(ax: Axes, row: int, limit: Threshold, floor: float) -> None:
    low, high = max(float(limit.low), floor), float(limit.high)
    height = 0.56
    if not limit.exact:
        hatched: dict[str, Any] = {"facecolor": paler(_UNDECIDED, 0.25), "edgecolor": _UNDECIDED, "hatch": "////"}
        ax.barh(row, high - low, height, low, linewidth=0.8, **hatched)
    if floor == 0:
        ax.barh(row, low, height, color=_STABLE)
        return
    ax.plot([floor, low], [row, row], color="0.8", linewidth=0.8, zorder=0.5, label="_guide")
    if limit.exact:
        ax.plot([low], [row], color=_STABLE, marker="o", markersize=7, linestyle="", label="_stable")


def _write(ax: Axes, results: Sequence[Threshold], floor: float) -> None:
    """The numbers behind the bars, and an axis long enough for them."""
    figure = figure_of(ax)
    point = figure.dpi / 72
    texts = [_row_text(limit) for limit in results]
    width = ax.get_window_extent().width
    shares = [(text_size(figure, text, fontsize=SMALL)[0] + 10 * point) / width for text in texts]
    ends = [float(limit.high) for limit in results]
    ax.set_xlim(floor, _right(ends, shares, floor))
    for row, (text, end) in enumerate(zip(texts, ends, strict=True)):
        ax.annotate(
            text, (end, row), (6, 0), textcoords="offset points", va="center_baseline", fontsize=SMALL, color=INK
        )


def _row_text(limit: Threshold) -> str:
    rates = f"{float(limit.low):.4g}" if limit.exact else f"{float(limit.low):.4g} to {float(limit.high):.4g}"
    return f"{rates} ({limit.binding})"


def _right(ends: Sequence[float], shares: Sequence[float], floor: float) -> float:
    """The right limit at which each text, a share of the axis wide, fits behind its end."""
    free = [1 - min(share, 0.9) for share in shares]
    if floor == 0:
        return max(end / room for end, room in zip(ends, free, strict=True))
    return floor * max(math.pow(end / floor, 1 / room) for end, room in zip(ends, free, strict=True))
