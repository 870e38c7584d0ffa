"""What theory says of a cluster: prices of its instances, what a retry can bear, where a rule sends calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.certificates.split_proofs import EVERY_RULE
from queuetheory_llm.plots.cluster_marks import finish
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    LINES,
    PALETTE,
    SMALL,
    legend_above,
    make_room,
    number_text,
    on_axes,
    paler,
    short,
)
from queuetheory_llm.stability.cluster_capacity import ClusterCapacity
from queuetheory_llm.stability.critical_retry import CriticalRetry
from queuetheory_llm.stability.released_rule import ReleasedShares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FULL = f"Below a load of 1 no bound excludes the calls; above it the cluster is unstable under {EVERY_RULE}."
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")


def draw_cluster_capacity(found: ClusterCapacity, ax: Axes | None = None) -> Axes:
    """What one more instance of each type would add to the queries/s that the cluster carries.

    Parameters
    ----------
    found : ClusterCapacity
    ax : Axes, optional
        By default those of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal queries/s, a bar a type; where there are too many types, the most that one more can add.
    """
    limit, added = found.rate_limit, found.one_more
    carried = "no limit" if limit is None else f"{short(float(limit))} queries/s"
    title = f"{found.system.name} carries {carried} by the best static split"
    rows = range(len(found.types))
    new = ax is None
    subtitle = f"load {short(float(found.load))} at {short(float(found.system.arrivals.rate))} queries/s"
    caption = "Bars: what one more instance of each type adds. A type that does not bind adds nothing."
    if limit is not None and None in added:
        added, caption = found.derivative, "Bars: the most that one more instance of each type can add."
    ax = on_axes(ax, 6.0, 1.5 + 0.4 * len(rows), title=title, subtitle=subtitle, caption=caption)
    ax.barh(rows, [float(more or 0) for more in added], height=0.6, color=paler(PALETTE[0], 0.6))
    ax.set_yticks(rows, [f"{each.count} {each.name}" for each in found.types])
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    finish(ax, x="one more adds (queries/s)")
    if new:
        make_room(ax)
    return ax


def draw_critical_retry(found: CriticalRetry, ax: Axes | None = None) -> Axes:
    """The load of the cluster against the probability of the retry; it is full where the curve passes 1.

    Parameters
    ----------
    found : CriticalRetry
    ax : Axes, optional
        By default those of a new figure with title and caption.

    Returns
    -------
    Axes
    """
    subtitle = f"{found.system.name} at {short(float(found.system.arrivals.rate))} queries/s"
    title = f"{found.bears[0].upper()}{found.bears[1:]}"
    ax = on_axes(ax, 6.0, 3.3, title=title, subtitle=subtitle, caption=_FULL)
    chances, loads = np.array([(float(p), float(load)) for p, load in found.points]).T
    ax.plot(chances, loads, color=PALETTE[0], linewidth=1.5)
    ax.axhline(1, color=INK, linewidth=1.0, linestyle=LINES[1])
    ax.plot([float(found.probability)], [float(found.load)], "o", color=PALETTE[0], markersize=6)
    ax.annotate(
        "this workflow", (float(found.probability), float(found.load)), (-6, 6), textcoords="offset points",
        ha="right", fontsize=SMALL,
    )  # fmt: skip
    if found.critical is not None:
        ax.axvline(float(found.critical), color=GREY, linewidth=0.9, linestyle=LINES[3])
    ax.set_xlim(0, max(1.02 * float(chances.max()), float(found.probability)))
    ax.set_ylim(0, 1.1 * max(1.0, float(loads.max())))
    finish(ax, x="probability of the retry", y="load")
    return ax


def draw_released_shares(found: ReleasedShares, ax: Axes | None = None) -> Axes:
    """Where the released rule of HEXGEN-FLOW sends the calls of each stage.

    Parameters
    ----------
    found : ReleasedShares
    ax : Axes, optional
        By default those of a new figure with title and caption.

    Returns
    -------
    Axes
        A bar a stage, divided among the single instances; horizontal per cent.
    """
    names = [stage.name for stage in found.system.workflow.stages]
    title = f"The released rule at alpha = {float(found.alpha):g} carries {short(float(found.limit))} queries/s"
    new = ax is None
    height, caption = 1.9 + 0.3 * len(names), f"Shares by {found.method}."
    ax = on_axes(ax, 6.5, height, title=title, subtitle=found.system.name, caption=caption)
    left = np.zeros(len(names))
    for m, unit in enumerate(found.system.unit_names):
        colour = paler(PALETTE[m % len(PALETTE)], 0.55)
        widths = 100 * found.shares[:, m]
        ax.barh(
            range(len(names)), widths, left=left, height=0.7, color=colour, edgecolor="white", linewidth=0.5,
            hatch=_HATCHES[m % len(_HATCHES)], label=unit,
        )  # fmt: skip
        left = left + widths
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    finish(ax, x="share of the calls (%)")
    if new:
        make_room(ax)
        legend_above(ax, *ax.get_legend_handles_labels())
    return ax
