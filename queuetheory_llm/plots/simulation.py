"""Figure of a run: the token backlog with the drift measured from it, and the requests by how far they are."""

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
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import Run
from queuetheory_llm.simulation.statistics import TokenDrift, second_half

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TOP = 1.3  # the axis relative to the largest value: the legend stands above the curves
_BACKLOG, _DRIFT, _WAITING, _DECODING = PALETTE[0], PALETTE[1], PALETTE[3], PALETTE[2]
_LOWER, _GAP = 0.36, 0.06  # of the height: the panel of requests, and what is kept free above it


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

    Of several runs the backlog of the first is drawn, the drift is that of all.

    Parameters
    ----------
    simulation : Simulation
    ax : Axes, optional
        By default the upper axes of a new figure with title and caption, above axes with the requests not started and
        those past their prompt. Its limits are set to the backlog, whatever the interval of the drift.

    Returns
    -------
    Axes
        Horizontal simulated seconds, vertical tokens.
    """
    if ax is not None:
        ax.set_title(_title(simulation), fontsize=TITLE, color=INK, loc="left")
        _draw_backlog(ax, simulation)
        ax.set_xlabel("simulated time (s)", fontsize=TEXT)
        return ax
    upper = framed_axes(
        6.5, 4.9, title=_title(simulation), subtitle=_subtitle(simulation), caption=_caption(simulation)
    )
    place = upper.get_position()
    lower = figure_of(upper).add_axes((place.x0, place.y0, place.width, _LOWER * place.height), facecolor="white")
    rest = (1 - _LOWER - _GAP) * place.height
    upper.set_position((place.x0, place.y1 - rest, place.width, rest))
    _draw_backlog(upper, simulation)
    upper.tick_params(labelbottom=False)
    _draw_requests(lower, simulation.run)
    lower.set_xlim(upper.get_xlim())
    lower.set_xlabel("simulated time (s)", fontsize=TEXT)
    make_room(upper, lower)
    return upper


def _draw_backlog(ax: Axes, simulation: Simulation) -> None:
    run = simulation.run
    level = run.series.backlog
    _draw_steps(ax, run, level, _BACKLOG, "token backlog")
    top = max(1.0, float(level.max()))
    if simulation.measured.drift is not None:
        _draw_drift(ax, run, simulation.measured.drift)
    _finish(ax, run, top, "token backlog (tokens)")


def _draw_requests(ax: Axes, run: Run) -> None:
    """Requests that no batch has served yet, and requests past their prompt."""
    _draw_steps(ax, run, run.series.waiting, _WAITING, "not started")
    _draw_steps(ax, run, run.series.decoding, _DECODING, "past the prompt")
    _finish(ax, run, max(1.0, float(run.series.waiting.max()), float(run.series.decoding.max())), "requests")


def _draw_steps(ax: Axes, run: Run, values: Ticks, color: str, label: str) -> None:
    seconds = run.series.ticks / run.clock.rate
    ax.plot(seconds, values, drawstyle="steps-post", color=color, linewidth=0.8, label=label)


def _finish(ax: Axes, run: Run, top: float, label: str) -> None:
    ax.set_xlim(0, run.clock.seconds(max(int(run.series.ticks[-1]), 1)))
    ax.set_ylim(0, _TOP * top)
    plain_axes(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_ylabel(label, fontsize=TEXT)
    ax.legend(loc="upper left", fontsize=SMALL, frameon=False, ncols=4, borderaxespad=0.2)


def _draw_drift(ax: Axes, run: Run, drift: TokenDrift) -> None:
    """The drift as a line from the backlog at the middle, its interval as a wedge."""
    begin, end = (run.clock.seconds(tick) for tick in second_half(run))
    start = float(run.series.since(second_half(run)[0]).backlog[0])
    low, mean, high = (start + slope * (end - begin) for slope in (drift.low, drift.mean, drift.high))
    ax.fill_between(
        [begin, end], [start, low], [start, high], color=_DRIFT, alpha=0.15, linewidth=0, label="99 % interval"
    )
    ax.plot([begin, end], [start, mean], color=_DRIFT, linewidth=1.6, label="measured drift")
    ax.axvline(begin, color=GREY, linewidth=0.6, linestyle=(0, (2, 2)), label="second half")


def _title(simulation: Simulation) -> str:
    judgement = simulation.judgement
    ground = "" if judgement.basis is None else f" by {judgement.basis.value}"
    return f"{simulation.scheduler}: {judgement.verdict.value}{ground}"


def _caption(simulation: Simulation) -> str:
    parts = [simulation.judgement.reason]
    if simulation.contradiction is not None:
        parts.insert(0, f"CONTRADICTION: {simulation.contradiction}")
    if len(simulation.runs) > 1:
        parts.append(f"curves of the first of {len(simulation.runs)} runs")
    return "; ".join(parts)


def _subtitle(simulation: Simulation) -> str:
    return "\n".join(filter(None, [simulation.title, _measured(simulation)]))


def _measured(simulation: Simulation) -> str:
    drift = simulation.measured.drift
    slope = (
        "no drift"
        if drift is None
        else f"drift {drift.mean:.4g} tokens/s, 99 % interval {drift.low:.4g} to {drift.high:.4g}"
    )
    return f"measured {simulation.measured.verdict.value}: {slope}"
