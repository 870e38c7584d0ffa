"""Rules for a cluster side by side: seconds of a query, deadlines met, rates carried; a row a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.plots.cluster_marks import draw_capacity, draw_one, finish, reach, scale_seconds
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    PALETTE,
    figure_bytes,
    figure_of,
    legend_above,
    make_room,
    on_axes,
    paler,
    short,
)
from queuetheory_llm.simulation.cluster_simulation import QUANTILES, ClusterComparison, RuleOutcome
from queuetheory_llm.simulation.dispatch_limits import DispatchLimit
from queuetheory_llm.simulation.query_statistics import Interval
from queuetheory_llm.simulation.slo_throughput import SloThroughput
from queuetheory_llm.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = {"p50": ("o", PALETTE[0]), "p95": ("D", PALETTE[1]), "p99": ("s", PALETTE[2])}
_ASIDE = 0.035  # of the width, between marks at the edge
_ROW, _AROUND, _WIDTH = 0.42, 1.9, 7.0  # inches
_GAP = 0.05  # between panels, of the width of the figure
_SHARES = (0.58, 0.42), (0.46, 0.24, 0.30)  # of the width, by number of panels
_DEADLINES = ((0, (1.2, 1.6)), (0, (6, 1.6, 1.2, 1.6)), (0, (3, 2)))
_CARRIED = (PALETTE[0], PALETTE[1])


def render_comparison(
    comparison: ClusterComparison,
    format: str,
    *,
    limits: Sequence[DispatchLimit] = (),
    throughputs: Sequence[SloThroughput] = (),
) -> bytes:
    """The figure of `draw_comparison` as a file, the same for the same comparison.

    Parameters
    ----------
    comparison : ClusterComparison
    format : {"svg", "png", "pdf"}
    limits, throughputs : sequence
        See `draw_comparison`.
    """
    return figure_bytes(figure_of(draw_comparison(comparison, limits=limits, throughputs=throughputs)), format)


def draw_comparison(
    comparison: ClusterComparison,
    ax: Axes | None = None,
    *,
    limits: Sequence[DispatchLimit] = (),
    throughputs: Sequence[SloThroughput] = (),
) -> Axes:
    """P50, P95 and P99 of each rule with their intervals, beside them the share of deadlines met and the rates carried.

    Parameters
    ----------
    comparison : ClusterComparison
    ax : Axes, optional
        By default the left axes of a new figure with title and caption. On axes of one's own only the seconds are
        drawn.
    limits : sequence of DispatchLimit
        Of the rules compared, by name; drawn in a panel of their own, with the capacity of the cluster.
    throughputs : sequence of SloThroughput
        As ``limits``.

    Returns
    -------
    Axes
        Horizontal seconds, logarithmic where they differ much.
    """
    if ax is not None:
        return draw_one(ax, _title(comparison), lambda own: _draw_seconds(own, comparison), "seconds of a query")
    caption = _caption(comparison, bool(limits), [each.share for each in throughputs])
    height = _AROUND + _ROW * len(comparison.rules)
    ax = on_axes(None, _WIDTH, height, title=_title(comparison), subtitle=_subtitle(comparison), caption=caption)
    _draw_seconds(ax, comparison)
    make_room(ax)
    legend_above(ax, *ax.get_legend_handles_labels())
    met = any(each.attainment is not None for each in comparison.rules)
    panels = _split(ax, 1 + met + bool(limits or throughputs))
    if met:
        _draw_attainment(panels[1], comparison)
    if limits or throughputs:
        _draw_rates(panels[-1], comparison, limits, throughputs)
    return ax


def _split(ax: Axes, count: int) -> list[Axes]:
    """Panels in the place of one, the first of them ``ax``; they share its rows."""
    if count == 1:
        return [ax]
    place, figure = ax.get_position(), figure_of(ax)
    panels, left = [ax], place.x0
    for number, share in enumerate(_SHARES[count - 2]):
        width = place.width * share - (_GAP if number else 0)
        box = (left + (_GAP if number else 0), place.y0, width, place.height)
        left += place.width * share
        if number:
            other = figure.add_axes(box, facecolor="white")
            other.set_ylim(ax.get_ylim())
            other.set_yticks(ax.get_yticks(), [""] * len(ax.get_yticks()))
            panels.append(other)
        else:
            ax.set_position(box)
    return panels


def _draw_seconds(ax: Axes, comparison: ClusterComparison) -> None:
    values = [deadline for deadline in map(comparison.system.deadline, range(_tenants(comparison))) if deadline]
    shown = [float(value) for value in values]
    for row, each in enumerate(comparison.rules):
        found = {name: getattr(each, name) for name in QUANTILES}
        means = [interval.mean for interval in found.values() if np.isfinite(interval.mean)]
        shown += means + [interval.high for interval in found.values() if interval.high is not None]
        if means:
            ax.plot([min(means), max(means)], [row, row], color=GREY, linewidth=0.7, zorder=1, label="_span")
        for name, interval in found.items():
            _draw_quantile(ax, row, name, interval, filled=each.verdict is Verdict.STABLE)
    for name, (marker, colour) in _MARKS.items():
        ax.plot([], [], linestyle="none", marker=marker, color=colour, markersize=5, label=name.upper())
    _draw_deadlines(ax, comparison)
    scale_seconds(ax, shown, upright=False)
    _rows(ax, comparison.rules)
    finish(ax, x="seconds of a query")


def _tenants(comparison: ClusterComparison) -> int:
    return len(comparison.system.workflow.tenants)


def _draw_quantile(ax: Axes, row: int, name: str, interval: Interval, *, filled: bool) -> None:
    marker, colour = _MARKS[name]
    style: dict[str, Any] = {
        "marker": marker, "color": colour, "markersize": 5, "markerfacecolor": colour if filled else "white",
        "linestyle": "none", "capsize": 2.5, "elinewidth": 1.2, "zorder": 3, "label": f"_{name}",
    }  # fmt: skip
    if np.isfinite(interval.mean):
        ax.errorbar([interval.mean], [row], xerr=reach(interval), **style)
        return
    place = 1 - _ASIDE * (len(_MARKS) - 1 - list(_MARKS).index(name))  # some never ended: at the edge, side by side
    ax.errorbar([place], [row], **{**style, "marker": ">"}, transform=ax.get_yaxis_transform(), clip_on=False)


def _draw_deadlines(ax: Axes, comparison: ClusterComparison) -> None:
    """The SLO of each tenant, where they are few."""
    system = comparison.system
    found: dict[float, list[str]] = {}
    for tenant, each in enumerate(system.workflow.tenants):
        slo = system.deadline(tenant)
        if slo is not None:
            found.setdefault(float(slo), []).append(each.name)
    if len(found) > len(_DEADLINES):
        return
    for number, (deadline, names) in enumerate(found.items()):
        label = "SLO" if len(found) == 1 else f"SLO of {', '.join(names)}"
        ax.axvline(deadline, color=INK, linewidth=0.9, linestyle=_DEADLINES[number], zorder=0, label=label)


def _draw_attainment(ax: Axes, comparison: ClusterComparison) -> None:
    for row, each in enumerate(comparison.rules):
        if each.attainment is None:
            continue
        filled = each.verdict is Verdict.STABLE
        ax.errorbar(
            [100 * each.attainment.mean], [row], xerr=100 * reach(each.attainment), marker="o", color=INK, markersize=5,
            markerfacecolor=INK if filled else "white", linestyle="none", capsize=2.5, elinewidth=1.2, clip_on=False,
        )  # fmt: skip
    ax.set_xlim(0, 100)
    finish(ax, x="within the SLO (%)")


def _draw_rates(
    ax: Axes, comparison: ClusterComparison, limits: Sequence[DispatchLimit], throughputs: Sequence[SloThroughput]
) -> None:
    row_of = {each.rule: row for row, each in enumerate(comparison.rules)}
    kept = [each for each in limits if each.rule in row_of]
    capacity = float(kept[0].capacity) if kept else throughputs[0].capacity
    for limit in kept:
        low, high = float(limit.low), float(limit.high)
        ax.barh(row_of[limit.rule], low, height=0.34, color=paler(_CARRIED[0], 0.45), linewidth=0, label="_stable")
        ax.plot([low, high], [row_of[limit.rule]] * 2, color=_CARRIED[0], linewidth=4, solid_capstyle="butt")
    for each in throughputs:
        if each.rule in row_of and np.isfinite(each.rate.mean):
            ax.errorbar(
                [each.rate.mean], [row_of[each.rule]], xerr=reach(each.rate), marker="D", color=_CARRIED[1],
                markersize=4.5, linestyle="none", capsize=2.5, elinewidth=1.2,
            )  # fmt: skip
    draw_capacity(ax, capacity, named=False)  # above it may be the legend
    ax.axvline(comparison.rate, color=GREY, linewidth=0.8, linestyle=(0, (1.2, 1.6)), zorder=0)
    ax.set_xlim(0, 1.12 * max(capacity, comparison.rate))
    finish(ax, x="carries (queries/s)")


def _rows(ax: Axes, rules: Sequence[RuleOutcome]) -> None:
    """A row a rule, the first at the top, with its verdict where that is not STABLE."""
    said = [
        each.rule if each.verdict is Verdict.STABLE else f"{each.rule}\n{each.verdict.value} here" for each in rules
    ]
    ax.set_yticks(range(len(rules)), [_broken(text) for text in said])
    ax.set_ylim(len(rules) - 0.4, -0.6)


def _broken(text: str) -> str:
    """A rule of a long name on two lines."""
    return text.replace("/", "\n/", 1) if len(text.split("\n")[0]) > 24 else text


def draw_limit(limit: DispatchLimit, ax: Axes | None = None) -> Axes:
    """What is shown of the largest stable rate of a rule: stable below, unstable above, the capacity beside it.

    Parameters
    ----------
    limit : DispatchLimit
    ax : Axes, optional
        By default those of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal queries/s.
    """
    low, high, capacity = float(limit.low), float(limit.high), float(limit.capacity)
    ends = " to ".join(dict.fromkeys((lower_limit(limit.low), upper_limit(limit.high))))
    title = f"{limit.rule} carries {ends} queries/s"
    confidence = f", {100 * limit.confidence:.3g} % confidence" if limit.queries else ""
    subtitle = f"{100 * limit.share:.3g} % of a capacity of {short(capacity)} queries/s; {limit.method}{confidence}"
    shown = "Shaded: an overload is worked off; hatched: it is known to grow; between them neither is shown."
    caption = " ".join([shown if limit.queries else limit.reason, *limit.notes])
    ax = on_axes(ax, 6.0, 2.0, title=title, subtitle=subtitle, caption=caption)
    right = 1.15 * max(capacity, high)
    ax.axvspan(0, low, color=paler(_CARRIED[0], 0.45), linewidth=0, label="stable")
    ax.axvspan(high, right, facecolor="white", edgecolor=paler(_CARRIED[1], 0.8), hatch="////", linewidth=0)
    for end in {low, high}:
        ax.axvline(end, color=INK, linewidth=1.0)
    draw_capacity(ax, capacity)
    ax.set_xlim(0, right)
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    finish(ax, x="queries/s")
    return ax


# ---------------------------------------------------------------------------------------------------------- the words


def _title(comparison: ClusterComparison) -> str:
    stable = [each for each in comparison.rules if each.verdict is Verdict.STABLE and np.isfinite(each.p95.mean)]
    where = f"{comparison.system.name} at {short(comparison.rate)} queries/s"
    if not stable:
        return f"{where}: no rule is shown stable"
    best = min(stable, key=lambda each: each.p95.mean)
    return f"{where}: least P95, {short(best.p95.mean)} s, by {best.rule}"


def _subtitle(comparison: ClusterComparison) -> str:
    runs = f"{comparison.replications} runs" if comparison.replications > 1 else "one run"
    said = f"{runs} of {comparison.queries:,} queries, with {comparison.around:,} more before and after them"
    return f"{said}, the same for every rule; seed {comparison.seed}"


def _caption(comparison: ClusterComparison, limits: bool, shares: Sequence[float]) -> str:
    parts = [f"Bars: {100 * comparison.confidence:.3g} % intervals over the runs."] * (comparison.replications > 1)
    if any(each.verdict is not Verdict.STABLE for each in comparison.rules):
        parts.append("Open marks: not shown stable; what they show may grow with the length of the runs.")
    if any(not np.isfinite(each.p99.mean) for each in comparison.rules):
        parts.append("Triangles at the edge: more queries than that quantile leaves out had not ended.")
    if limits:
        parts.append("Right, pale: rates at which overloads are worked off; dark: up to where they are known to grow.")
    if shares:
        parts.append(f"Diamonds: the rate at which {100 * shares[0]:.3g} % of the queries meet their SLO.")
    if limits or shares:
        parts.append("Dotted: the rate of these runs; dashed: the capacity.")
    return " ".join(parts)
