"""Figure of a run: the token backlog over time and the drift measured from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.plots.style import (
    EDGE,
    GREY,
    INK,
    PALETTE,
    SMALL,
    TEXT,
    TITLE,
    figure_bytes,
    figure_of,
    framed_axes,
    number_text,
    plain_axes,
    renderer_of,
)
from queuetheory_llm.simulation.judge import Simulation
from queuetheory_llm.simulation.reference import Run
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.statistics import Drift, second_half

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 1000  # of each, four points are drawn at most
_ROOM = 2.0  # how far above the backlog the interval of the drift may stretch the axis
_BACKLOG, _DRIFT = PALETTE[0], PALETTE[1]


def render_simulation(simulation: Simulation, format: str) -> bytes:
    """The figure of `draw_simulation` as a file, the same for the same run.

    Parameters
    ----------
    simulation : Simulation
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_simulation(simulation)), format)


def draw_simulation(simulation: Simulation, ax: Axes | None = None) -> Axes:
    """The token backlog at batch boundaries, and the measured drift over the second half with its 99 % interval.

    Parameters
    ----------
    simulation : Simulation
    ax : Axes, optional
        By default the only axes of a new figure with title and caption. Its limits are set.

    Returns
    -------
    Axes
        Horizontal simulated seconds, vertical tokens.
    """
    new = ax is None
    if ax is None:
        ax = framed_axes(
            6.5, 3.6, title=_title(simulation), subtitle=_measured(simulation), caption=simulation.judgement.reason
        )
    else:
        ax.set_title(_title(simulation), fontsize=TITLE, color=INK, loc="left")
    run = simulation.run
    ticks = boundaries(run)
    level = run.backlog(ticks)
    shown = decimate(ticks, level, _BINS)
    seconds = ticks / run.clock.rate
    ax.plot(
        seconds[shown],
        level[shown],
        drawstyle="steps-post",
        color=_BACKLOG,
        linewidth=0.8,
        label="token backlog",
    )
    top = max(1.0, float(level.max()))
    if simulation.measured.drift is not None:
        top = max(top, min(_ROOM * top, _draw_drift(ax, run, simulation.measured.drift)))
    ax.set_xlim(0, max(float(seconds[-1]), 1 / run.clock.rate))
    ax.set_ylim(0, 1.25 * top)  # the legend stands above the curve
    plain_axes(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_xlabel("simulated time (s)", fontsize=TEXT)
    ax.set_ylabel("token backlog (tokens)", fontsize=TEXT)
    ax.legend(loc="upper left", fontsize=SMALL, frameon=False, ncols=3, borderaxespad=0.2)
    if new:
        _make_room(ax)
    return ax


def _make_room(ax: Axes) -> None:
    """Move the left side of the axes until its texts are on the figure."""
    figure, place = figure_of(ax), ax.get_position()
    texts = ax.yaxis.get_tightbbox(renderer_of(figure))
    if texts is not None:
        missing = max(0.0, EDGE - texts.x0 / figure.dpi) / figure.get_size_inches()[0]
        ax.set_position((place.x0 + missing, place.y0, place.width - missing, place.height))


def boundaries(run: Run) -> Ticks:
    """Ticks at which the backlog that a rule sees changes: starts and ends of batches, and both ends of the run."""
    return np.unique(np.concatenate([[0, run.end], run.starts, run.ends]))


def decimate(ticks: Ticks, level: Ticks, bins: int) -> Ticks:
    """Indices of the points to draw: first, last, lowest and highest of each of ``bins`` equal times.

    At the width of a bin the curve through them covers what the whole curve covers; nothing is averaged.

    Parameters
    ----------
    ticks, level : int64 arrays of shape (n,)
        Times, increasing, and values.
    bins : int

    Returns
    -------
    int64 array of at most 4 * bins indices, increasing; all of them when there are no more than that.
    """
    if ticks.size <= 4 * bins:
        return np.arange(ticks.size)
    edges = np.linspace(ticks[0], ticks[-1], bins, endpoint=False)
    place = np.searchsorted(edges, ticks, side="right")
    begins = np.flatnonzero(np.diff(place, prepend=0))
    ends = np.append(begins[1:], ticks.size) - 1
    by_level = np.lexsort((level, place))  # bins stay where they are, the values of each in order
    return np.unique(np.concatenate([begins, ends, by_level[begins], by_level[ends]]))


def _draw_drift(ax: Axes, run: Run, drift: Drift) -> float:
    """The drift as a line from the backlog at the middle, its interval as a wedge; the highest point of both."""
    begin, end = (run.clock.seconds(tick) for tick in second_half(run))
    start = float(run.backlog(np.array(second_half(run)[:1]))[0])
    low, mean, high = (start + slope * (end - begin) for slope in (drift.low, drift.mean, drift.high))
    ax.fill_between(
        [begin, end], [start, low], [start, high], color=_DRIFT, alpha=0.22, linewidth=0, label="99 % interval"
    )
    ax.plot([begin, end], [start, mean], color=_DRIFT, linewidth=1.6, label="measured drift")
    ax.axvline(begin, color=GREY, linewidth=0.6, linestyle=(0, (2, 2)), label="_middle")
    return float(max(start, high))


def _title(simulation: Simulation) -> str:
    judgement = simulation.judgement
    ground = "" if judgement.basis is None else f" by {judgement.basis.value}"
    return f"{simulation.scheduler}: {judgement.verdict.value}{ground}"


def _measured(simulation: Simulation) -> str:
    drift = simulation.measured.drift
    slope = (
        "no drift"
        if drift is None
        else f"drift {drift.mean:.4g} tokens/s, 99 % interval {drift.low:.4g} to {drift.high:.4g}"
    )
    return f"measured {simulation.measured.verdict.value}: {slope}"
