"""Figure of a sweep: one column against one key of the grid, a line for each scheduler, a point for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import prod
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    LINES,
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
    renderer_of,
)
from queuetheory_llm.simulation.grid import Cell, amount
from queuetheory_llm.simulation.sweep import SCHEDULER, Row, SweepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The column drawn unless another is named.
DRIFT = "measured.token_drift.mean"
MOST_LINES = 12

_SPREAD = 50  # ratio of two positive values from which the vertical axis is logarithmic
_ONLY = "all"  # the name of a line without a name
_SHARE = 0.085  # of the height of the axes, a row of the legend
_LABELS = {DRIFT: "token drift (tokens/s)"}
_SHIFT = 6.0  # points between neighbouring lines at one place, less where the places are close
_CAPTION = (
    "A point a seed; lines are their means. Filled: STABLE, open: UNSTABLE, cross: neither is established; the verdict "
    "is a theorem's where one decides, the height is {what}."
)
_BESIDE = " Points at one place stand side by side."


@attrs.frozen
class _Scale:
    """Where the values of the horizontal key stand."""

    key: str
    places: dict[Cell, float]
    unit: str
    numeric: bool


def render_sweep(result: SweepResult, format: str, *, x: str | None = None, y: str | None = None) -> bytes:
    """The figure of `draw_sweep` as a file, the same for the same table.

    Parameters
    ----------
    result : SweepResult
    format : {"svg", "png", "pdf"}
    x, y : str, optional
        See `draw_sweep`.
    """
    return figure_bytes(figure_of(draw_sweep(result, x=x, y=y)), format)


def draw_sweep(result: SweepResult, ax: Axes | None = None, *, x: str | None = None, y: str | None = None) -> Axes:
    """A column of the table against a key of the grid; rows that are errors are left out and counted.

    Parameters
    ----------
    result : SweepResult
    ax : Axes, optional
        By default the only axes of a new figure with title and caption. Its limits are set.
    x : str, optional
        Key of the grid; by default the one that takes most numbers, or most values.
    y : str, optional
        Column of numbers; by default the token drift.

    Returns
    -------
    Axes
        Logarithmic vertically where positive values differ by more than a factor of 50.

    Raises
    ------
    InvalidInput
        If there is no such key or column, or more than `MOST_LINES` lines.
    """
    column = y or DRIFT
    grid = result.question["grid"]
    scale = _scale(grid, result.question["schedulers"], x)
    require_drawable(grid, result.question["schedulers"], scale.key)
    _require_numbers(result, column)
    title = f"{result.model}: {_label(column)} against {scale.key}"
    if ax is None:
        ax = framed_axes(6.5, 3.9, title=title, subtitle=_subtitle(result, scale.key), caption=_caption(result, column))
        new = True
    else:
        ax.set_title(title, fontsize=TITLE, color=INK, loc="left")
        new = False
    lines = _lines(result, scale.key)
    for index, (name, rows) in enumerate(lines.items()):
        drawn = [row for row in rows if _is_number(row.get(column))]
        if drawn:
            _draw_line(ax, name, drawn, scale, column, index, shift=_shift(ax, scale, index, len(lines)))
    _finish(ax, scale, column)
    if new:
        make_room(ax)
    return ax


def require_drawable(grid: Mapping[str, Sequence[Any]], schedulers: Sequence[str], x: str | None = None) -> None:
    """Refuse a figure of too many lines; for commands to call before the work.

    Parameters
    ----------
    grid : mapping
        Key to its values.
    schedulers : sequence of str
    x : str, optional
    """
    key = _scale(grid, schedulers, x).key
    count = prod(len(values) for other, values in grid.items() if other != key)
    count *= 1 if key == SCHEDULER else len(schedulers)
    if count > MOST_LINES:
        raise InvalidInput(
            f"-o: the figure would have {count} lines, more than {MOST_LINES}; sweep fewer keys or schedulers with it"
        )


def _scale(grid: Mapping[str, Sequence[Cell]], schedulers: Sequence[str], x: str | None) -> _Scale:
    """The key along the horizontal axis: the one asked for, else the one with most numbers, else with most values."""
    axes: dict[str, Sequence[Cell]] = {**grid, SCHEDULER: schedulers}
    if x is not None and x not in axes:
        near = get_close_matches(x, axes, n=1)
        raise InvalidInput(f"x: {x!r} is no key of the grid; {f'did you mean {near[0]}?' if near else ', '.join(axes)}")
    scales = [_placed(key, values) for key, values in axes.items() if x in (None, key)]
    return max(scales, key=lambda scale: (scale.numeric and len(scale.places) > 1, len(scale.places)))


def _placed(key: str, values: Sequence[Cell]) -> _Scale:
    amounts = [_amount(value) for value in values]
    units = {unit for _, unit in filter(None, amounts)}
    if None in amounts or len(units) > 1:
        return _Scale(key, {value: float(place) for place, value in enumerate(values)}, "", False)
    numbers = [each[0] for each in amounts if each is not None]
    return _Scale(key, dict(zip(values, numbers, strict=True)), units.pop() if units else "", True)


def _amount(value: Cell) -> tuple[float, str] | None:
    """Number and unit of a value of the grid; None where it is neither a number nor a quantity."""
    if isinstance(value, bool) or value is None:
        return None
    if not isinstance(value, str):
        return float(value), ""
    found = amount(value)
    try:
        return None if found is None else (float(to_fraction(found[0])), found[1])
    except InvalidInput:
        return None


def _lines(result: SweepResult, key: str) -> dict[str, list[Row]]:
    """Rows by scheduler and by the values of the other keys that vary."""
    grid = result.question["grid"]
    others = [other for other, values in grid.items() if other != key and len(values) > 1]
    lines: dict[str, list[Row]] = {}
    for row in result.rows:
        words = [f"{other.rpartition('.')[2]} {row[other]}" for other in others]
        name = ", ".join([*([] if key == SCHEDULER else [str(row[SCHEDULER])]), *words])
        lines.setdefault(name or _ONLY, []).append(row)
    return lines


def _shift(ax: Axes, scale: _Scale, index: int, count: int) -> float:
    """Points to the right at which the line ``index`` of ``count`` stands, so that lines do not hide each other."""
    places = sorted(set(scale.places.values()))
    figure = figure_of(ax)
    width = ax.get_position().width * figure.get_size_inches()[0] * 72
    gaps = np.diff(places) / (places[-1] - places[0]) if len(places) > 1 else np.ones(1)
    step: float = min(_SHIFT, 0.5 * width * float(gaps.min()) / count)
    return step * (index - (count - 1) / 2)


def _draw_line(
    ax: Axes, name: str, rows: Sequence[Row], scale: _Scale, column: str, index: int, *, shift: float
) -> None:
    from matplotlib.transforms import ScaledTranslation

    beside = ax.transData + ScaledTranslation(shift / 72, 0, figure_of(ax).dpi_scale_trans)
    colour, dashes = PALETTE[index % len(PALETTE)], LINES[index % len(LINES)]
    seeds: dict[float, list[float]] = {}
    for row in rows:
        place, value = scale.places[row[scale.key]], float(row[column] or 0)
        seeds.setdefault(place, []).append(value)
        style = _mark(row.get("verdict"), colour)
        ax.plot([place], [value], linestyle="none", markersize=4.5, markeredgecolor=colour, transform=beside, **style)
    places = sorted(seeds)
    means = [sum(seeds[place]) / len(seeds[place]) for place in places]
    if scale.numeric:
        ax.plot(places, means, color=colour, linestyle=dashes, linewidth=1.3, label=name, transform=beside)
    else:
        ax.plot(places, means, color=colour, linestyle="none", marker="_", markersize=16, label=name, transform=beside)

    # What is drawn beside its place counts for the limits of the axes by its place.
    ax.update_datalim([(place, value) for place, values in seeds.items() for value in values])


def _mark(verdict: Cell, colour: str) -> dict[str, Any]:
    if verdict == "STABLE":
        return {"marker": "o", "markerfacecolor": colour, "markeredgewidth": 0.8}
    if verdict == "UNSTABLE":
        return {"marker": "o", "markerfacecolor": "white", "markeredgewidth": 1.1}
    return {"marker": "x", "markeredgewidth": 1.1}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require_numbers(result: SweepResult, column: str) -> None:
    if any(_is_number(row.get(column)) for row in result.rows):
        return
    known = [name for name in result.columns if any(_is_number(row.get(name)) for row in result.rows)]
    near = get_close_matches(column, known, n=1)
    raise InvalidInput(
        f"--plot: {column!r} is no column with numbers; did you mean {near[0]}?"
        if near
        else f"--plot: {column!r} is no column with numbers; use one of {', '.join(known)}"
    )


def _finish(ax: Axes, scale: _Scale, column: str) -> None:
    """Scales, labels and a legend above the lines."""
    values: list[float] = [value for line in ax.get_lines() for value in np.asarray(line.get_ydata()).tolist()]
    low, high = min(values), max(values)
    if low > 0 and high > _SPREAD * low:
        ax.set_yscale("log")
    elif low <= 0 <= high:
        ax.axhline(0, color=GREY, linewidth=0.6, zorder=0)
    ax.autoscale_view()
    plain_axes(ax)
    ax.yaxis.set_major_formatter(lambda value, _: number_text(value))
    if scale.numeric:
        ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    else:
        ax.set_xticks(list(scale.places.values()), [str(value) for value in scale.places])
        ax.set_xlim(-0.5, len(scale.places) - 0.5)
    ax.set_xlabel(f"{scale.key} ({scale.unit})" if scale.unit else scale.key, fontsize=TEXT)
    ax.set_ylabel(_label(column), fontsize=TEXT)
    _legend(ax)


def _legend(ax: Axes) -> None:
    """The legend in as many columns as fit, in a strip of its own: the vertical axis is stretched by as much."""
    names = ax.get_legend_handles_labels()[1]
    if names in ([], [_ONLY]):
        return
    width = ax.get_window_extent().width
    for most in (3, 2, 1):
        columns = _even_columns(len(names), most)
        legend = ax.legend(loc="upper left", fontsize=SMALL, frameon=False, ncols=columns, borderaxespad=0.2)
        if legend.get_window_extent(renderer_of(figure_of(ax))).width <= width:
            break
    free = _SHARE * -(-len(names) // columns) + 0.03
    to_share = ax.transScale + ax.transLimits
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, max(top, float(to_share.inverted().transform((0.0, 1.0 / (1.0 - free)))[1])))


def _even_columns(count: int, most: int) -> int:
    """As many columns as fill the rows evenly: four names stand two by two."""
    return -(-count // -(-count // most))


def _label(column: str) -> str:
    """``p95 of e2e (s)``."""
    head, *rest = column.split(".")
    if head == "latency" and len(rest) == 2 and rest[1] != "count":
        return f"{rest[1]} of {rest[0]} (s)"
    return _LABELS.get(column, column)


def _subtitle(result: SweepResult, key: str) -> str:
    seeds, horizon = result.question["seeds"], result.question["horizon"]
    fixed = [
        f"{other} {values[0]}" for other, values in result.question["grid"].items() if len(values) == 1 and other != key
    ]
    length = "default horizon" if horizon is None else f"{horizon:g} s"
    return ", ".join([f"{seeds} seed{'s' * (seeds > 1)}", length, *fixed])


def _caption(result: SweepResult, column: str) -> str:
    words = _CAPTION.format(what="the drift measured" if column == DRIFT else "measured")
    if len(result.question["schedulers"]) > 1:
        words += _BESIDE
    left_out = [
        f"{count} {what}"
        for count, what in ((result.failed, "bad input"), (result.points - len(result.rows), "not finished"))
        if count
    ]
    return words + (f" Points left out: {', '.join(left_out)}." if left_out else "")
