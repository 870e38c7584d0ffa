"""Figure of a run: the token backlog over time and the drift measured from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuetheory_llm.plots.style import (
    GREY,
    INK,
    PALETTE,
    SMALL,
    TEXT,
    TITLE,
    figure_bytes,
    figure_of,
    framed_axes,
    make_room,
    number_text,
    plain_axes,
)
from queuetheory_llm.simulation.judge import Simulation
from queuetheory_llm.simulation.run import Run
from queuetheory_llm.simulation.statistics import Drift, second_half

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """The token backlog over the span of arrivals, and the measured drift over the second half with its 99 % interval.

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
    level = run.series.backlog
    ax.plot(
        run.series.ticks / run.clock.rate,
        level,
        drawstyle="steps-post",
        color=_BACKLOG,
        linewidth=0.8,
        label="token backlog",
    )
    top = max(1.0, float(level.max()))
    if simulation.measured.drift is not None:
        top = max(top, min(_ROOM * top, _draw_drift(ax, run, simulation.measured.drift)))
    ax.set_xlim(0, run.clock.seconds(max(int(run.series.ticks[-1]), 1)))
    ax.set_ylim(0, 1.25 * top)  # the legend stands above the curve
    plain_axes(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_xlabel("simulated time (s)", fontsize=TEXT)
    ax.set_ylabel("token backlog (tokens)", fontsize=TEXT)
    ax.legend(loc="upper left", fontsize=SMALL, frameon=False, ncols=3, borderaxespad=0.2)
    if new:
        make_room(ax)
    return ax


def _draw_drift(ax: Axes, run: Run, drift: Drift) -> float:
    """The drift as a line from the backlog at the middle, its interval as a wedge; the highest point of both."""
    begin, end = (run.clock.seconds(tick) for tick in second_half(run))
    start = float(run.series.since(second_half(run)[0]).backlog[0])
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
