"""What the figures of clusters share: intervals, axes of seconds, the capacity as a line, panels above one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from queuetheory_llm.plots.style import (
    INK,
    SMALL,
    TEXT,
    TINY,
    figure_of,
    number_text,
    on_axes,
    plain_axes,
)
from queuetheory_llm.simulation.query_statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Ratio of two positive values from which an axis is logarithmic.
SPREAD = 12
#: The third channel beside colours and line styles.
MARKERS = ("o", "s", "D", "^", "v", "P")


def draw_one(ax: Axes, title: str, draw: Callable[[Axes], None], x: str) -> Axes:
    """One panel of a figure of several on given axes, with its legend inside."""
    on_axes(ax, 0, 0, title=title)
    draw(ax)
    finish(ax, x=x)
    ax.legend(fontsize=SMALL, frameon=False)
    return ax


def reach(*intervals: Interval) -> Any:
    """Distances of the ends below and above the means, shape (2, n), for error bars; 0 without an interval."""
    below = [0.0 if each.low is None else each.mean - each.low for each in intervals]
    above = [0.0 if each.high is None else each.high - each.mean for each in intervals]
    return np.array([below, above])


def scale_seconds(ax: Axes, values: Sequence[float], *, upright: bool = True) -> None:
    """An axis that is logarithmic where positive values differ by more than `SPREAD`, else begins at 0; few ticks.

    Parameters
    ----------
    ax : Axes
    values : sequence of float
        What is drawn; infinite ones do not count.
    upright : bool
        Whether it is the vertical one.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    shown = [value for value in values if np.isfinite(value)]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    axis = ax.yaxis if upright else ax.xaxis
    limits = ax.set_ylim if upright else ax.set_xlim
    if low > 0 and high > SPREAD * low:
        (ax.set_yscale if upright else ax.set_xscale)("log")
        limits(low / 1.25, high * 1.35)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    else:
        limits(0, 1.12 * high or 1.0)
    axis.set_major_formatter(lambda value, _: number_text(value))


def draw_capacity(ax: Axes, capacity: float, *, upright: bool = True, named: bool = True) -> None:
    """The rate that no rule exceeds that knows calls by their stage, as a dashed line with its name.

    Parameters
    ----------
    ax : Axes
    capacity : float
        Queries/s.
    upright : bool
        Whether rates are horizontal, and the line vertical with its name above the axes.
    named : bool
    """
    style: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (7, 1.6)), "label": "_capacity"}
    text: dict[str, Any] = {"fontsize": TINY, "color": INK, "va": "bottom"}
    if upright:
        ax.axvline(capacity, **style)
        if named:
            ax.text(capacity, 1.01, "capacity", transform=ax.get_xaxis_transform(), ha="center", **text)
    else:
        ax.axhline(capacity, **style)
        if named:
            ax.text(0.995, capacity, "capacity", transform=ax.get_yaxis_transform(), ha="right", **text)


def stacked(ax: Axes, shares: Sequence[float], gap: float = 0.05) -> list[Axes]:
    """Panels one above the other in the place of ``ax``, which is the lowest; those above have no labels below.

    Parameters
    ----------
    ax : Axes
        The only axes of its figure.
    shares : sequence of float
        Of the height, from the top.
    gap : float
        Between panels, of the height.
    """
    place, free = ax.get_position(), 1 - gap * (len(shares) - 1)
    top, panels = place.y1, []
    for number, share in enumerate(shares):
        height = place.height * free * share / sum(shares)
        box = (place.x0, top - height, place.width, height)
        top -= height + gap * place.height
        if number == len(shares) - 1:
            ax.set_position(box)
            panels.append(ax)
        else:
            panels.append(figure_of(ax).add_axes(box, facecolor="white", sharex=ax))
            panels[-1].tick_params(labelbottom=False)
    return panels


def finish(ax: Axes, *, x: str | None = None, y: str | None = None) -> None:
    """Plain axes with labels."""
    plain_axes(ax)
    if x is not None:
        ax.set_xlabel(x, fontsize=TEXT)
    if y is not None:
        ax.set_ylabel(y, fontsize=TEXT)
