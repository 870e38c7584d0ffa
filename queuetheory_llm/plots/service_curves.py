"""P95 and deadlines met against the rate, the SLO scale, or alpha; the rates that a rule carries for each alpha."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.plots.cluster_marks import (
    MARKERS,
    draw_capacity,
    draw_one,
    finish,
    reach,
    scale_seconds,
    stacked,
)
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    LINES,
    PALETTE,
    SMALL,
    TINY,
    figure_bytes,
    figure_of,
    legend_above,
    make_room,
    number_text,
    on_axes,
    paler,
    short,
)
from queuetheory_llm.simulation.query_statistics import Interval
from queuetheory_llm.simulation.slo_throughput import Curve, ServiceCurves, SloThroughput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALONG = {
    "rate": "queries/s",
    "slo_scale": "SLO in multiples of the seconds of an average query",
    "alpha": "alpha, the weight of the seconds of the call itself",
}
_INTERVALS = "Bars: 95 % intervals over the runs."
_DOTTED = (0, (1.2, 1.6))


def render_curves(curves: ServiceCurves, format: str) -> bytes:
    """The figure of `draw_curves` as a file, the same for the same curves.

    Parameters
    ----------
    curves : ServiceCurves
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_curves(curves)), format)


def draw_curves(curves: ServiceCurves, ax: Axes | None = None) -> Axes:
    """P95 above, deadlines met in the middle, and against alpha the rates that the rule carries below.

    The region that a rule keeps stable is shaded below its limits: all the pairs of an alpha and a rate in it.

    Parameters
    ----------
    curves : ServiceCurves
    ax : Axes, optional
        By default the upper axes of a new figure with title and caption. On axes of one's own only P95 is drawn, or
        the deadlines met where it is the SLO that varies.

    Returns
    -------
    Axes
        Of the uppermost panel.
    """
    draw = [] if curves.along == "slo_scale" else [_draw_p95]  # how long queries take does not hang on the SLO
    if any(point.attainment is not None for curve in curves.curves for point in curve.points):
        draw.append(_draw_attainment)
    if curves.limits:
        draw.append(_draw_limits)
    if ax is not None:
        return draw_one(ax, _title(curves), lambda own: draw[0](own, curves), _ALONG[curves.along])
    height, subtitle = 1.6 + 1.55 * max(len(draw), 1.5), _subtitle(curves)
    ax = on_axes(None, 6.5, height, title=_title(curves), subtitle=subtitle, caption=_caption(curves))
    panels = stacked(ax, [1.0] * len(draw))
    for panel, each in zip(panels, draw, strict=True):
        each(panel, curves)
    ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    finish(ax, x=_ALONG[curves.along])
    if len(curves.curves) > 1:
        legend_above(panels[0], *panels[0].get_legend_handles_labels())
    if curves.along == "rate":
        for panel in panels:
            draw_capacity(panel, curves.capacity, named=panel is panels[-1])
    make_room(*panels)
    return panels[0]


def _draw_p95(ax: Axes, curves: ServiceCurves) -> None:
    values = []
    for number, curve in enumerate(curves.curves):
        shown = [each for each in curve.points if np.isfinite(each.p95.mean)]
        intervals = [each.p95 for each in shown]
        values += [each.mean for each in intervals] + [each.high for each in intervals if each.high is not None]
        _draw_line(ax, number, curve.rule, [each.at for each in shown], intervals, 1.0)
        grows = [(each.at, each.p95.mean) for each in shown if each.unstable]
        if grows:
            ax.plot(
                *zip(*grows, strict=True), color=PALETTE[number % len(PALETTE)], marker=MARKERS[number % len(MARKERS)],
                markersize=4, markerfacecolor="white", linestyle="none", zorder=3,
            )  # fmt: skip
    scale_seconds(ax, values)
    finish(ax, y="P95 (s)")


def _draw_attainment(ax: Axes, curves: ServiceCurves) -> None:
    for number, curve in enumerate(curves.curves):
        pairs = [(each.at, each.attainment) for each in curve.points if each.attainment is not None]
        _draw_line(ax, number, curve.rule, [at for at, _ in pairs], [share for _, share in pairs], 100.0)
    ax.set_ylim(-3, 105)
    ax.set_yticks([0, 25, 50, 75, 100])
    finish(ax, y="within SLO (%)")


def _draw_line(
    ax: Axes, number: int, rule: str, places: Sequence[float], intervals: Sequence[Interval], factor: float
) -> None:
    colour = PALETTE[number % len(PALETTE)]
    ax.errorbar(
        places, [factor * each.mean for each in intervals], yerr=factor * reach(*intervals), color=colour,
        linestyle=LINES[number % len(LINES)], marker=MARKERS[number % len(MARKERS)], markersize=4, linewidth=1.3,
        capsize=2, elinewidth=0.9, label=rule, clip_on=True,
    )  # fmt: skip


def _draw_limits(ax: Axes, curves: ServiceCurves) -> None:
    (curve,) = curves.curves
    alphas = [each.at for each in curve.points]
    low, high = (np.array([float(getattr(each, end)) for each in curves.limits]) for end in ("low", "high"))
    ax.fill_between(alphas, 0, low, color=paler(PALETTE[0], 0.35), linewidth=0)
    ax.fill_between(alphas, low, high, color=paler(PALETTE[0], 0.9), linewidth=0)
    ax.plot(alphas, low, color=PALETTE[0], linewidth=0.8, marker="_", markersize=7)
    ax.plot(alphas, high, color=PALETTE[0], linewidth=0.8, marker="_", markersize=7)
    draw_capacity(ax, curves.capacity, upright=False)
    ax.text(0.5, 0.3, "stable", transform=ax.transAxes, fontsize=SMALL, color=INK, ha="center")
    if curves.rate is not None:
        ax.axhline(curves.rate, color=GREY, linewidth=1.0, linestyle=_DOTTED)
        ax.text(
            0.005, curves.rate, "this rate", transform=ax.get_yaxis_transform(), fontsize=TINY, color=INK, va="bottom"
        )
    ax.set_ylim(0, 1.2 * max(curves.capacity, float(high.max()), curves.rate or 0))
    finish(ax, y="queries/s")


def _title(curves: ServiceCurves) -> str:
    if curves.along == "alpha":
        best = curves.best
        rule = curves.curves[0].rule
        return rule if best is None else f"{rule}: least P95, {short(best.p95.mean)} s, at alpha = {best.at:g}"
    return f"{'P95 and deadlines met' if curves.along == 'rate' else 'Deadlines met'} against the {_word(curves.along)}"


def _word(along: str) -> str:
    return {"rate": "rate of queries", "slo_scale": "SLO"}.get(along, along)


def _subtitle(curves: ServiceCurves) -> str:
    rate = [] if curves.rate is None else [f"{short(curves.rate)} queries/s"]
    runs = f"{curves.replications} runs" if curves.replications > 1 else "one run"
    parts = [
        *rate,
        f"capacity {short(curves.capacity)} queries/s",
        f"an average query takes {short(curves.base_seconds)} s alone",
        f"{runs} of {curves.queries:,} queries a point, the same for all",
        f"seed {curves.seed}",
    ]
    return ", ".join(parts)


def _caption(curves: ServiceCurves) -> str:
    parts = [_INTERVALS] * (curves.replications > 1)
    if any(each.unstable for curve in curves.curves for each in curve.points):
        parts.append("Open marks: unstable there by theory, so that P95 grows with the runs.")
    if any(_endless(curve) for curve in curves.curves) and curves.along != "slo_scale":
        parts.append("P95 is left out where 1 query in 20 had not ended.")
    if curves.limits:
        searched = [each for each in curves.limits if each.queries]
        parts.append("Pale: rates below the limit.")
        if searched:
            confidence = 100 * min(each.confidence for each in searched)
            parts.append(f"Dark: where runs leave open on which side of it they are, at {confidence:.3g} %.")
    return " ".join(parts)


def _endless(curve: Curve) -> bool:
    return not all(np.isfinite(each.p95.mean) for each in curve.points)


def draw_slo_throughput(found: SloThroughput, ax: Axes | None = None) -> Axes:
    """The share of deadlines met at each rate that was run, and the rate at which it passes the one asked for.

    Parameters
    ----------
    found : SloThroughput
    ax : Axes, optional
        By default those of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal queries/s, vertical per cent.
    """
    share = 100 * found.share
    title = f"{found.rule}: {share:.3g} % of the queries meet their SLO up to {short(found.rate.mean)} queries/s"
    runs = f"{found.replications} runs" if found.replications > 1 else "one run"
    subtitle = f"{runs} of {found.queries:,} queries a rate, seed {found.seed}"
    ax = on_axes(ax, 6.0, 3.3, title=title, subtitle=subtitle, caption=_INTERVALS)
    pairs = [(each.at, each.attainment) for each in found.points if each.attainment is not None]
    _draw_line(ax, 0, found.rule, [at for at, _ in pairs], [met for _, met in pairs], 100.0)
    ax.axhline(share, color=GREY, linewidth=0.9, linestyle=_DOTTED)
    if np.isfinite(found.rate.mean):
        ax.errorbar(
            [found.rate.mean], [share], xerr=reach(found.rate), color=PALETTE[1], marker="D", markersize=5, capsize=3
        )
    draw_capacity(ax, found.capacity)
    ax.set_xlim(0, 1.1 * max(found.capacity, *(at for at, _ in pairs)))
    ax.set_ylim(-3, 105)
    ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    finish(ax, x="queries/s", y="within SLO (%)")
    return ax
