"""Fluid paths of networks: the fluid of each class over time, one path or several beside one another."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.plots.labels import chain, crossings
from queuetheory_llm.plots.style import (
    EDGE,
    GREY,
    INK,
    LINES,
    PALETTE,
    SMALL,
    TEXT,
    TINY,
    TITLE,
    figure_bytes,
    figure_of,
    fit_width,
    framed_axes,
    legend_above,
    make_room,
    number_text,
    plain_axes,
    renderer_of,
    short,
)
from queuetheory_llm.stability.dominant_turn import DominantTurn
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.fluid_ode import OdePath
from queuetheory_llm.stability.fluid_path import FluidPath
from queuetheory_llm.stability.fluid_walk import Accumulation
from queuetheory_llm.stability.self_similar import Turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

_SIZE = (6.5, 4.3)  # inches
_PANEL = (3.9, 2.9)  # of each path where there are several
_MARGINS = (0.66, 0.48, 0.10, 0.40)  # inches within a panel: left, below, right, above
_MOST_PANELS = 4
_SEEN = 1 / 1500  # of the width or the height of the axes: turns below it are one point to the eye
_MOST_TURNS = 4000
_NAMED = 7  # classes with a line of their own; more are drawn together
_POINTS = 400  # of an integrated path, beside the ends of its intervals
_AFTER = 0.08  # of the time: what is shown after a path has come to rest
_LONGEST = 60  # characters of an exact sum
_MOST_MARKS = 12  # peaks, or ends of turns, with their numbers
_TOP = 1.12  # the axis relative to the largest value
_LIMIT = "limit of infinitely many turns"

_PARTS = {1: "every cycle", 2: "every half cycle", 3: "every third of a cycle", 4: "every quarter of a cycle"}


@attrs.frozen(eq=False)
class FluidCurve:
    """A path as the eye sees it: straight lines between points.

    Attributes
    ----------
    times : float array of length n
        Seconds.
    states : float array of shape (n, K)
        Tasks.
    """

    times: Floats
    states: Floats

    @property
    def totals(self) -> Floats:
        """Tasks of all classes."""
        return np.asarray(self.states.sum(axis=1))


def render_fluid_path(path: FluidPath | OdePath, format: str) -> bytes:
    """The figure of `draw_fluid_path` as a file, the same for the same path.

    Parameters
    ----------
    path : FluidPath or OdePath
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_fluid_path(path)), format)


def render_fluid_paths(paths: Sequence[FluidPath], format: str) -> bytes:
    """The figure of `draw_fluid_paths` as a file; of a single path that of `draw_fluid_path`.

    Parameters
    ----------
    paths : FluidPaths, or sequence of FluidPath
        At least one.
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_fluid_paths(paths)), format)


def draw_fluid_path(path: FluidPath | OdePath, ax: Axes | None = None) -> Axes:
    """The fluid of each class over time, the total, its peaks and their envelope; limits of infinitely many turns.

    Parameters
    ----------
    path : FluidPath or OdePath
    ax : Axes, optional
        By default those of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal seconds, vertical tasks.
    """
    if ax is not None:
        ax.set_title(_title(path), fontsize=TITLE, color=INK, loc="left")
        _draw_path(ax, path, _named([fluid_curve(path)]))
        ax.legend(fontsize=SMALL, frameon=False, loc="best")
        return ax
    ax = framed_axes(*_SIZE, title=_title(path), subtitle=_subtitle(path), caption=_caption(path))
    _draw_path(ax, path, _named([fluid_curve(path)]))
    legend_above(ax, *ax.get_legend_handles_labels())
    make_room(ax)
    if isinstance(path, FluidPath):
        _label_marks(ax, path)
    return ax


def draw_fluid_paths(paths: Sequence[FluidPath], ax: Axes | None = None) -> Axes:
    """The solutions from one start, a panel each under one legend; a single one as `draw_fluid_path` does.

    Parameters
    ----------
    paths : FluidPaths, or sequence of FluidPath
        At least one; four are drawn, the growing ones first, and the others counted in the caption.
    ax : Axes, optional
        Where the panels stand; by default those of a new figure with title and caption.

    Returns
    -------
    Axes
        Without ticks, behind the panels.
    """
    if len(paths) == 1:
        return draw_fluid_path(paths[0], ax)
    shown = sorted(paths, key=lambda path: not path.end.grows)[:_MOST_PANELS]
    columns = min(2, len(shown))
    shape = (-(-len(shown) // columns), columns)
    own = ax is None
    if ax is None:
        ax = _carrier(paths, shown, shape)
    else:
        ax.set_title(_title_of_several(paths), fontsize=TITLE, color=INK, loc="left")
    ax.set_axis_off()
    panels = [figure_of(ax).add_axes((0, 0, 1, 1), facecolor="white") for _ in shown]
    classes = _named([fluid_curve(path) for path in shown])
    for panel, path in zip(panels, shown, strict=True):
        _draw_path(panel, path, classes)
    if own:
        legend_above(ax, *_united(panels))
    else:
        panels[0].legend(fontsize=TINY, frameon=False, loc="best")
    for number, (panel, path) in enumerate(zip(panels, shown, strict=True)):
        panel.set_position(_cell(ax, divmod(number, columns), shape))
        title = panel.set_title(_title(path).split(":")[0], fontsize=SMALL, color=INK, loc="left")
        fit_width(title, panel.get_window_extent(renderer_of(figure_of(ax))).width)
        _label_marks(panel, path)
    return ax


def _carrier(paths: Sequence[FluidPath], shown: Sequence[FluidPath], shape: tuple[int, int]) -> Axes:
    """Axes of a new figure for panels in rows and columns to stand on."""
    rows, columns = shape
    width, height = columns * _PANEL[0], rows * _PANEL[1] + 1.1
    caption = _caption_of_several(paths, len(shown))
    ax = framed_axes(width, height, title=_title_of_several(paths), subtitle=_subtitle(shown[0]), caption=caption)
    place, room = ax.get_position(), 0.45 / height
    ax.set_position((EDGE / width, place.y0 - room, 1 - 2 * EDGE / width, place.height + room))
    return ax


# ------------------------------------------------------------------------------------------------------------ the curve


def fluid_curve(path: FluidPath | OdePath) -> FluidCurve:
    """The breakpoints of a path, with the turns before an accumulation point down to what the eye tells apart.

    A path that comes to rest or goes off along a line is shown so for a while after its last breakpoint. Of an
    integrated path many points.
    """
    if isinstance(path, OdePath):
        return _integrated(path)
    closing = {each.turn.last: each.turn for each in path.accumulations}
    times, states = [], []
    for number, point in enumerate(path.breakpoints):
        times.append(np.array([float(point.time)]))
        states.append(np.array([point.state], dtype=float))
        if number in closing:
            for at, there in _copies(path, closing[number]):
                times.append(at)
                states.append(there)
    last, rate = path.breakpoints[-1], _slope_for_ever(path)
    if rate is not None:
        span = (_AFTER if not rate.any() else 0.5) * float(last.time) or 1.0
        times.append(times[-1][-1:] + span)
        states.append(states[-1][-1:] + span * rate)
    return FluidCurve(times=np.concatenate(times), states=np.concatenate(states))


def _integrated(path: OdePath) -> FluidCurve:
    """Points of an integrated path, not much beyond where it is empty."""
    empty = path.emptying_time
    end = min(path.horizon, (1 + _AFTER) * empty) if empty else path.horizon
    times = np.union1d(np.linspace(0, end, _POINTS), path.times[path.times <= end])
    return FluidCurve(times=times, states=np.array([path.at(time) for time in times]))


def _slope_for_ever(path: FluidPath) -> Floats | None:
    if path.end in (FluidEnd.EMPTY, FluidEnd.CONSTANT):
        return np.zeros(len(path.model.classes))
    if path.end is FluidEnd.DIVERGING and path.turn is None and path.slope is not None:
        return np.array(path.slope, dtype=float)
    return None


def _copies(path: FluidPath, turn: Turn | DominantTurn) -> list[tuple[Floats, Floats]]:
    """Times and states of the turns that follow ``turn``; their limit is a breakpoint itself.

    Turns without a common ratio are drawn with the one that they tend to.
    """
    assert turn.apex_time is not None
    assert turn.apex is not None
    points = path.breakpoints[turn.first + 1 : turn.last + 1]
    factor, limit, apex = float(turn.factor), float(turn.apex_time), np.array(turn.apex, dtype=float)
    before = np.array([float(point.time) for point in points]) - limit
    away = np.array([point.state for point in points], dtype=float) - apex
    back = np.argsort(turn.relabelling) if isinstance(turn, Turn) else np.arange(len(apex))
    size = max(-before.min() / float(path.seconds), np.abs(away).sum(axis=1).max() / float(max(path.totals)))
    found: list[tuple[Floats, Floats]] = []
    while size > _SEEN and len(found) < _MOST_TURNS:
        before, away, size = factor * before, factor * away[:, back], factor * size
        found.append((limit + before, apex + away))
    return found


# ------------------------------------------------------------------------------------------------------------- the axes


def _named(curves: Sequence[FluidCurve]) -> list[int]:
    """The classes with lines of their own, those with most fluid, in the order of the model."""
    most = np.max([curve.states.max(axis=0) for curve in curves], axis=0)
    filled = [k for k in np.argsort(-most, kind="stable") if most[k] > 0]
    return sorted(map(int, filled if len(filled) <= _NAMED + 1 else filled[:_NAMED]))


def _draw_path(ax: Axes, path: FluidPath | OdePath, classes: Sequence[int]) -> None:
    curve = fluid_curve(path)
    top = float(curve.totals.max()) or 1.0
    _draw_curve(ax, path, curve, classes)
    if isinstance(path, FluidPath):
        _draw_envelope(ax, path, float(curve.times[-1]))
        for each in path.accumulations:
            limit = float(each.limit_time)
            ax.axvline(limit, ymax=1 / _TOP, color=GREY, linewidth=0.8, linestyle=LINES[3], label=_LIMIT)
        marks = np.array(_marks(path), dtype=float).reshape(-1, 2)
        if marks.size:
            ax.plot(*marks.T, "o", color=INK, markersize=3.2, zorder=4, label="_marks", clip_on=False)
    plain_axes(ax)
    ax.set_xlim(0, _shown_until(path, float(curve.times[-1])))
    ax.set_ylim(-0.012 * top, _TOP * top)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_xlabel("time (s)", fontsize=TEXT)
    ax.set_ylabel("fluid (tasks)", fontsize=TEXT)


def _shown_until(path: FluidPath | OdePath, end: float) -> float:
    """Not far beyond the time from which on a network that is fed at constant rates is empty."""
    if isinstance(path, OdePath) and path.profile is None and path.emptying_time:
        return min(end, (1 + _AFTER) * path.emptying_time)
    return end


def _draw_curve(ax: Axes, path: FluidPath | OdePath, curve: FluidCurve, classes: Sequence[int]) -> None:
    line = path.envelope if isinstance(path, FluidPath) and _is_envelope(path) else None
    slope = "" if line is None else f", {_signed(line.slope)} tasks/s"
    ax.plot(curve.times, curve.totals, color=INK, linewidth=2.4, label=f"total{slope}", zorder=2)
    for place, k in enumerate(classes):
        if curve.states[:, k].any():
            ax.plot(
                *where_filled(curve.times, curve.states[:, k]),
                color=PALETTE[place % len(PALETTE)],
                linestyle=LINES[place % len(LINES)],
                linewidth=1.4,
                label=path.model.classes[k],
                zorder=3,
            )
    others = [k for k in range(curve.states.shape[1]) if k not in classes and curve.states[:, k].any()]
    if others:
        together = curve.states[:, others].sum(axis=1)
        label = f"the other {len(others)} classes together"
        ax.plot(*where_filled(curve.times, together), color=GREY, linewidth=1.0, label=label)


def where_filled(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """A line with gaps where it would run along 0: the lines of empty classes cover one another there."""
    gaps = np.flatnonzero((values[:-1] == 0) & (values[1:] == 0)) + 1
    middles = (times[gaps - 1] + times[gaps]) / 2
    return np.insert(times, gaps, middles), np.insert(values, gaps, np.nan)


def _draw_envelope(ax: Axes, path: FluidPath, end: float) -> None:
    """The envelope, where the total does not run along it all the time; then it is named with the total."""
    line = path.envelope
    if line is None or _is_envelope(path):
        return
    time, level, slope = float(line.time), float(line.level), float(line.slope)
    ends = np.array([max(0.0, time), end] if slope > 0 else [0.0, min(time, end)])
    ax.plot(
        ends,
        level + slope * (ends - time),
        color=GREY,
        linewidth=1.0,
        linestyle=LINES[1],
        label=f"envelope, {_signed(line.slope)} tasks/s",
        zorder=1,
    )


def _is_envelope(path: FluidPath) -> bool:
    """Whether the total runs along its envelope."""
    line = path.envelope
    return line is not None and all(
        total == line.level + line.slope * (point.time - line.time)
        for point, total in zip(path.breakpoints, path.totals, strict=True)
    )


def _signed(value: Fraction) -> str:
    return f"{'+' if value > 0 else '−'}{short(abs(value))}"


def _marks(path: FluidPath) -> list[tuple[Fraction, Fraction]]:
    """(time, total) of the peaks; where the total has none, of the ends of turns. Of many, the highest."""
    peaks = [peak for peak in path.peaks if peak[0] > 0]
    found = [point for turn in _turns(path) for point in _ends_of(path, turn)]
    if peaks:
        found = peaks + [
            (turn.copy_time(time, n), sum(turn.copy_state(path.at(time), n), Fraction(0)))
            for turn in _turns(path)
            if turn.factor < 1 and not path.end.grows
            for n in range(1, _MOST_MARKS)
            for time, _ in peaks
            if turn.start < time <= turn.start + turn.seconds
        ]
    kept = sorted({point for point in found if point[0] <= path.seconds})
    return sorted(sorted(kept, key=lambda point: point[1])[-_MOST_MARKS:])


def _turns(path: FluidPath) -> list[Turn]:
    """The turns with one ratio, whose copies are known exactly."""
    found = [*(each.turn for each in path.accumulations), path.turn]
    return [turn for turn in found if isinstance(turn, Turn)]


def _ends_of(path: FluidPath, turn: Turn) -> list[tuple[Fraction, Fraction]]:
    """(time, total) at the start of a turn and of the first copies after it."""
    begin = path.breakpoints[turn.first].state
    return [(turn.copy_time(turn.start, n), sum(turn.copy_state(begin, n), Fraction(0))) for n in range(_MOST_MARKS)]


def _label_marks(ax: Axes, path: FluidPath) -> None:
    """The numbers of the marks, the highest first, where they cover no other; on the side away from the envelope."""
    rising = path.end.grows
    renderer = renderer_of(figure_of(ax))
    taken: list[Bbox] = []
    curve = fluid_curve(path)
    drawn = chain(ax.transData.transform(np.column_stack([curve.times, curve.totals])))
    frame = ax.get_window_extent(renderer)
    for time, total in sorted(_marks(path), key=lambda each: -each[1]):
        point = (float(time), float(total))
        text = ax.annotate(
            short(total), point, (3, 2), textcoords="offset points", va="bottom", fontsize=TINY, color=INK
        )
        for side, across in (("right", -3),) if rising else (("left", 3), ("right", -3)):
            text.set(ha=side, position=(across, 2))
            box = text.get_window_extent(renderer)
            if (
                frame.x0 <= box.x0
                and box.x1 <= frame.x1
                and not (any(box.overlaps(other) for other in taken) or crossings(np.array([box.extents]), drawn).any())
            ):
                taken.append(box)
                break
        else:
            text.remove()


def _united(panels: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Handles and labels of all panels; slopes, which differ, are left out."""
    handles, labels = [], []
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.append(handle)
            labels.append(label.removesuffix(" tasks/s").rsplit(", ", 1)[0] if label.endswith(" tasks/s") else label)
    return handles, labels


def _cell(frame: Axes, cell: tuple[int, int], shape: tuple[int, int]) -> tuple[float, float, float, float]:
    """The place of the axes in a row and a column of the frame."""
    (row, column), (rows, columns) = cell, shape
    place = frame.get_position()
    width, height = figure_of(frame).get_size_inches()
    left, below, right, above = _MARGINS
    step = (place.width / columns, place.height / rows)
    return (
        place.x0 + column * step[0] + left / width,
        place.y1 - (row + 1) * step[1] + below / height,
        step[0] - (left + right) / width,
        step[1] - (below + above) / height,
    )


# ------------------------------------------------------------------------------------------------------------ the words


def _title(path: FluidPath | OdePath) -> str:
    if isinstance(path, OdePath):
        return _title_of_integrated(path)
    turn, left = path.turn, short(path.totals[-1])
    if path.end is FluidEnd.GROWING and turn is not None:
        part = (
            _PARTS.get(turn.order, f"{turn.order} times a cycle")
            if isinstance(turn, Turn)
            else "a turn in the long run"
        )
        return f"Fluid grows by the factor {short(turn.factor)} {part}: the fluid model is unstable"
    if path.end is FluidEnd.EMPTY:
        closing = path.accumulations and path.accumulations[-1].limit_time == path.seconds
        turns = ", at the limit of infinitely many turns" if closing else ""
        return (
            f"All fluid is gone after {short(path.seconds)} s{turns}" if path.seconds else "What is empty stays empty"
        )
    if path.end is FluidEnd.DIVERGING and path.slope is not None:
        grown = sum((rate for rate in path.slope if rate > 0), Fraction(0))
        return f"Fluid grows by {short(grown)} tasks/s for ever: the fluid model is unstable"
    if path.end is FluidEnd.PERIODIC and isinstance(turn, Turn):
        return f"Fluid neither grows nor goes: the path repeats itself every {short(turn.seconds * turn.order)} s"
    if path.end is FluidEnd.CONSTANT:
        return f"Fluid comes to rest after {short(path.seconds)} s with {left} tasks left"
    return f"Fluid of {left} tasks after {short(path.seconds)} s; what comes then is not known"


def _title_of_integrated(path: OdePath) -> str:
    left = float(path.totals[-1])
    if path.emptying_time is not None:
        return f"All fluid is gone after {short(path.emptying_time)} s"
    way = f"growing by {path.growth:.4g}" if path.growth > 0 else f"draining by {-path.growth:.4g}"
    return f"Fluid of {left:.4g} tasks after {path.horizon:.4g} s, {way} tasks/s"


def _subtitle(path: FluidPath | OdePath) -> str:
    first = path.states[0].tolist() if isinstance(path, OdePath) else path.breakpoints[0].state
    pairs = zip(path.model.classes, first, strict=True)
    held = [short(q) for _, q in pairs if q]
    names = [name for name, q in zip(path.model.classes, first, strict=True) if q]
    said = [f"{q} of class {name}" for q, name in zip(held, names, strict=True)]
    shown = said if len(said) <= 4 else [*said[:3], f"of {len(said) - 3} more classes"]
    start = f"tasks at the start: {enumeration(shown)}" if said else "no task at the start"
    return f"{start}; {len(path.model.classes)} classes on {len(path.model.stations)} stations"


def _caption(path: FluidPath | OdePath) -> str:
    if isinstance(path, OdePath):
        rates = "" if path.profile is None else "; external rates change over time"
        return f"Fluid path, integrated numerically{rates}; what comes after {path.horizon:.4g} s is not known."
    parts = ["Fluid path, exact: straight lines between its events"]
    parts += [f"infinitely many turns end at {_sum(each)}" for each in path.accumulations[:2]]
    if path.unique is not True:
        parts.append("one of several paths from its start" if path.unique is False else "there may be other paths")
    parts.append(path.end.meaning)
    return "; ".join(parts) + "."


def _sum(each: Accumulation) -> str:
    """The series of an accumulation point, in decimals where its fractions are long."""
    turn = each.turn
    if len(each.text) <= _LONGEST:
        return each.text
    if not isinstance(turn, Turn):
        return (
            f"{short(each.limit_time)} s, in the long run each {short(turn.factor)} times the one before, and drawn so"
        )
    series = f"{short(turn.start)} + {short(turn.seconds)} (1 + r + r^2 + ...)"
    return f"{series} = {short(each.limit_time)} s with r = {short(turn.factor)}, rounded"


def _title_of_several(paths: Sequence[FluidPath]) -> str:
    grown = sum(path.end.grows for path in paths)
    empty = sum(path.end is FluidEnd.EMPTY for path in paths)
    counts = [(grown, "grow", "grows"), (empty, "empty", "empties"), (len(paths) - grown - empty, "do", "does neither")]
    said = [f"{count} {many if count > 1 else one}" for count, many, one in counts if count]
    return f"{len(paths)} fluid paths from one start: {enumeration(said)}"


def _caption_of_several(paths: Sequence[FluidPath], shown: int) -> str:
    rest = len(paths) - shown
    more = f"; {rest} more not drawn" if rest else ""
    return (
        f"The fluid model has several solutions from this start; they are drawn side by side, exactly{more}. It is "
        "stable if all of them empty, and unstable if one grows."
    )
