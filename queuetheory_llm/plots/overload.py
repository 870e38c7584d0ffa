"""An overload: the load over time, and below it the backlog that is left, of an engine or of stations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    LINES,
    PALETTE,
    TEXT,
    TINY,
    TITLE,
    figure_bytes,
    figure_of,
    framed_axes,
    legend_above,
    make_room,
    number_text,
    paler,
    plain_axes,
    short,
)
from queuetheory_llm.stability.overload import NetworkOverload, Overload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMED = 7  # stations with a line of their own, those with most work


def render_overload(overload: Overload | NetworkOverload, format: str) -> bytes:
    """The figure of `draw_overload` as a file, the same for the same overload.

    Parameters
    ----------
    overload : Overload or NetworkOverload
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_overload(overload)), format)


def draw_overload(overload: Overload | NetworkOverload, ax: Axes | None = None) -> Axes:
    """The load over time, shaded where it is above capacity, and below it the backlog that it leaves.

    Parameters
    ----------
    overload : Overload or NetworkOverload
        Of a network the backlog of each station is drawn, in seconds of work.
    ax : Axes, optional
        By default the lower axes of a new figure with title and caption, below axes with the load.

    Returns
    -------
    Axes
        Horizontal seconds, vertical the backlog.
    """
    series = _series(overload)
    if ax is not None:
        ax.set_title(_title(overload), fontsize=TITLE, color=INK, loc="left")
        _draw_backlogs(ax, overload, series)
        return ax
    lower = framed_axes(
        6.5, 4.9, title=_title(overload), subtitle=_subtitle(overload),
        caption=_caption(overload),
    )  # fmt: skip
    place = lower.get_position()
    upper = figure_of(lower).add_axes(
        (place.x0, place.y0 + 0.60 * place.height, place.width, 0.40 * place.height), facecolor="white"
    )
    lower.set_position((place.x0, place.y0, place.width, 0.54 * place.height))
    _draw_backlogs(lower, overload, series)
    _draw_loads(upper, overload, series)
    upper.set_xlim(lower.get_xlim())
    upper.tick_params(labelbottom=False)
    if len(series) > 1:
        legend_above(upper, *upper.get_legend_handles_labels())
    make_room(upper, lower)
    return lower


@attrs.frozen
class _Series:
    """Load and backlog of an engine or a station over time; the load in multiples of ``capacity`` where that is 1."""

    name: str
    load: RateProfile
    capacity: float
    times: Floats
    backlog: Floats
    deepest: tuple[float, float] | None


def _series(overload: Overload | NetworkOverload) -> list[_Series]:
    if isinstance(overload, Overload):
        end = _end_of(overload)
        corners = [float(arc.start) for arc in overload.arcs] + [end]
        times = np.union1d(np.linspace(0, end, 600), [each for each in corners if each <= end])
        backlog = np.array([_backlog_at(overload, time) for time in times])
        deepest = None if overload.deepest is None else (float(overload.deepest[0]), float(overload.deepest[1]))
        return [_Series("load", overload.load, float(overload.capacity), times, backlog, deepest)]
    path = overload.path
    times, states = path.sampled()
    found = []
    for s, name in enumerate(path.model.stations):
        work = sum((float(path.model.service[k]) * states[:, k] for k in path.model.at(s)), np.zeros(len(times)))
        found.append(_Series(name, overload.loads[s], 1.0, times, work, overload.depths[s]))
    kept = sorted(found, key=lambda each: -float(each.backlog.max()))[:_NAMED]
    return [each for each in found if each in kept]


def _end_of(overload: Overload) -> float:
    """Until the backlog is gone, or the profile is over, and a while longer."""
    last = float(overload.load.times[-1])
    drained = overload.drained
    return 1.08 * max(last, float(drained) if drained is not None else 1.5 * last) or 1.0


def _backlog_at(overload: Overload, time: float) -> float:
    arc = next(arc for arc in reversed(overload.arcs) if float(arc.start) <= time)
    passed = time - float(arc.start)
    return max(0.0, float(arc.level) + passed * (float(arc.excess) + passed * float(arc.slope) / 2))


def _load_line(each: _Series, end: float) -> tuple[Floats, Floats]:
    """Corners of the load over time."""
    times, values = [], []
    for ramp in each.load.ramps():
        until = end if ramp.end is None else float(ramp.end)
        times += [float(ramp.start), until]
        values += [float(ramp.value), float(ramp.value) + float(ramp.slope) * (until - float(ramp.start))]
    return np.array(times), np.array(values)


def _draw_loads(ax: Axes, overload: Overload | NetworkOverload, series: Sequence[_Series]) -> None:
    end = float(series[0].times[-1])
    for number, each in enumerate(series):
        times, values = _load_line(each, end)
        colour = PALETTE[number % len(PALETTE)]
        ax.fill_between(
            times, each.capacity, values, where=values >= each.capacity, interpolate=True,
            color=paler(colour, 0.35), linewidth=0,
        )  # fmt: skip
        ax.plot(times, values, color=colour, linestyle=LINES[number % len(LINES)], linewidth=1.5, label=each.name)
    ax.axhline(series[0].capacity, color=INK, linewidth=1.0, linestyle=LINES[1])
    unit = f"{overload.unit}/s" if isinstance(overload, Overload) else "load"
    top = max(float(_load_line(each, end)[1].max()) for each in series)
    ax.set_ylim(0, 1.25 * max(top, series[0].capacity))
    ax.text(
        0.995, series[0].capacity, "capacity", transform=ax.get_yaxis_transform(), ha="right", va="bottom",
        fontsize=TINY, color=INK,
    )  # fmt: skip
    _finish(ax, f"load ({unit})" if unit != "load" else "load")


def _draw_backlogs(ax: Axes, overload: Overload | NetworkOverload, series: Sequence[_Series]) -> None:
    for number, each in enumerate(series):
        colour, line = PALETTE[number % len(PALETTE)], LINES[number % len(LINES)]
        ax.plot(each.times, each.backlog, color=colour, linestyle=line, linewidth=1.6, label=each.name)
    top = max(float(each.backlog.max()) for each in series) or 1.0
    end = float(series[0].times[-1])
    ax.set_xlim(0, end)
    ax.set_ylim(-0.012 * top, 1.3 * top)
    worst = max(series, key=lambda each: float(each.backlog.max()))
    style: dict[str, Any] = {"fontsize": TINY, "color": INK, "textcoords": "offset points"}
    if worst.deepest is not None and worst.deepest[1] > 0:
        time, depth = worst.deepest
        ax.plot(time, depth, "o", color=INK, markersize=4, label="_deepest")
        side, shift = ("left", 4) if time < 0.6 * end else ("right", -4)
        text = f"{short(depth)} at {short(time)} s"
        ax.annotate(text, (time, depth), (shift, 4), ha=side, va="bottom", **style)
    if overload.drained is not None and worst.backlog.any():
        gone = float(overload.drained)
        ax.axvline(gone, ymax=0.97, color=GREY, linewidth=0.8, linestyle=LINES[3], label="_drained")
        ax.annotate(f"gone at {short(gone)} s", (gone, 1.27 * top), (-4, 0), ha="right", va="top", **style)
    _finish(ax, f"backlog ({overload.unit})" if isinstance(overload, Overload) else "backlog (s of work)")
    ax.set_xlabel("time (s)", fontsize=TEXT)


def _finish(ax: Axes, label: str) -> None:
    plain_axes(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_ylabel(label, fontsize=TEXT)


def _title(overload: Overload | NetworkOverload) -> str:
    unit = overload.unit if isinstance(overload, Overload) else "seconds of work"
    depth = overload.depth
    if depth is None or (isinstance(overload, Overload) and overload.growth > 0):
        growth = float(overload.growth) if isinstance(overload, Overload) else 0.0
        return f"The backlog grows by {short(growth)} {unit}/s for ever"
    if not depth:
        return "No backlog: the load never stays above capacity"
    drained = overload.drained
    if drained is None:
        return f"The backlog is up to {short(float(depth))} {unit} deep and not gone at the end"
    return f"The backlog is {short(float(depth))} {unit} deep and gone after {short(float(drained))} s"


def _subtitle(overload: Overload | NetworkOverload) -> str:
    if isinstance(overload, NetworkOverload):
        worst = max(range(len(overload.depths)), key=lambda s: overload.depths[s][1])
        return (
            f"the deepest backlog of {len(overload.depths)} stations is that of {overload.path.model.stations[worst]}"
        )
    over = "" if overload.seconds_over is None else f"; above it for {short(float(overload.seconds_over))} s"
    return f"capacity {float(overload.capacity):,.6g} {overload.unit}/s{over}"


def _caption(overload: Overload | NetworkOverload) -> str:
    notes = overload.notes if isinstance(overload, Overload) else ()
    needed = ""
    if isinstance(overload, Overload) and overload.keep_below is not None and overload.capacity_needed is not None:
        needed = (
            f" A capacity of {float(overload.capacity_needed):,.6g} would keep it at {float(overload.keep_below):,.6g}."
        )
    elif isinstance(overload, NetworkOverload) and overload.speed_needed is not None:
        needed = f" Stations {overload.speed_needed:.4g} times as fast would keep it at {overload.keep_below:,.4g}."
    said = "".join(f" {note[0].upper()}{note[1:]}." for note in notes)
    return f"Fluid: what came beyond capacity, shaded above, has to be worked off.{needed}{said}"
