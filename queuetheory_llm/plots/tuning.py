"""A run in which alpha is tuned: the rate that changes, the P95 with and without tuning, alpha, all over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.plots.cluster_marks import draw_one, finish, scale_seconds, stacked
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    LINES,
    PALETTE,
    POINT,
    figure_bytes,
    figure_of,
    legend_above,
    make_room,
    number_text,
    on_axes,
    paler,
    short,
)
from queuetheory_llm.simulation.alpha_tuning import TuningRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TUNED, _FIXED = PALETTE[0], PALETTE[1]


def render_tuning(run: TuningRun, format: str) -> bytes:
    """The figure of `draw_tuning` as a file, the same for the same run.

    Parameters
    ----------
    run : TuningRun
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_tuning(run)), format)


def draw_tuning(run: TuningRun, ax: Axes | None = None) -> Axes:
    """The rate of the queries, their P95 with tuning and without, and alpha, one above the other.

    Parameters
    ----------
    run : TuningRun
    ax : Axes, optional
        By default the middle axes of a new figure with title and caption. On axes of one's own only the P95 is drawn.

    Returns
    -------
    Axes
        With the P95; horizontal seconds of the run.
    """
    if ax is not None:
        return draw_one(ax, _title(run), lambda own: _draw_p95(own, run), "time (s)")
    lower = on_axes(None, 6.5, 5.2, title=_title(run), subtitle=_subtitle(run), caption=_caption(run))
    upper, middle, _ = stacked(lower, (0.24, 0.48, 0.28))
    _draw_rate(upper, run)
    _draw_p95(middle, run)
    _draw_alpha(lower, run)
    lower.set_xlim(run.edges[0], run.edges[-1])
    lower.xaxis.set_major_formatter(lambda value, _: number_text(value))
    finish(lower, x="time (s)")
    legend_above(upper, *middle.get_legend_handles_labels())
    make_room(upper, middle, lower)
    return middle


def _draw_rate(ax: Axes, run: TuningRun) -> None:
    times = np.cumsum([0.0, *(seconds for seconds, _ in run.profile)])
    rates = [rate for _, rate in run.profile]
    ax.stairs(rates, times, color=INK, fill=False, linewidth=1.2)
    ax.stairs(rates, times, color=paler(GREY, 0.25), fill=True, linewidth=0)
    ax.set_ylim(0, 1.25 * max(rates))
    finish(ax, y="queries/s")


def _draw_p95(ax: Axes, run: TuningRun) -> None:
    values: list[float] = []
    for watched, colour, line, label in (
        (run.fixed, _FIXED, LINES[1], f"alpha {run.alphas[0][1]:g} throughout"),
        (run.tuned, _TUNED, LINES[0], "tuned"),
    ):
        heights = _plain(watched.p95)
        values += [value for value in heights.tolist() if np.isfinite(value)]
        ax.stairs(heights, run.edges, baseline=None, color=colour, linestyle=line, linewidth=1.5, label=label)
    scale_seconds(ax, values)
    for number, each in enumerate(run.decisions):
        label = "tuning triggered" if number == 0 else "_triggered"
        ax.axvline(each.at, color=GREY, linewidth=0.8, linestyle=LINES[3], zorder=0, label=label)
    finish(ax, y="P95 (s)")


def _plain(values: Sequence[float | None]) -> np.ndarray:
    """What is missing, or infinite, leaves a gap."""
    found = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def _draw_alpha(ax: Axes, run: TuningRun) -> None:
    times = [at for at, _ in run.alphas] + [run.edges[-1]]
    alphas = [alpha for _, alpha in run.alphas]
    ax.stairs(alphas, times, baseline=None, color=_TUNED, linewidth=1.6)
    kept = [each for each in run.decisions if each.after == each.before]
    changed = [each for each in run.decisions if each.after != each.before]
    for decisions, face in ((changed, POINT), (kept, "white")):
        ax.plot(
            [each.at for each in decisions], [each.after for each in decisions], "o", markersize=5,
            markeredgecolor=POINT, markerfacecolor=face, clip_on=False, zorder=3,
        )  # fmt: skip
    ax.set_ylim(-0.04, 1.04)
    ax.set_yticks([0, 0.5, 1])
    finish(ax, y="alpha")


def _title(run: TuningRun) -> str:
    return f"Alpha tuned while queries come: P95 {short(run.tuned.overall)} s, untuned {short(run.fixed.overall)} s"


def _subtitle(run: TuningRun) -> str:
    policy = run.policy
    changes = sum(each.after != each.before for each in run.decisions)
    return (
        f"{run.rule}; {run.queries:,} queries, seed {run.seed}\n"
        f"window {short(policy.window)} s, looked at each {short(policy.check)} s; {len(run.decisions)} tunings, "
        f"{changes} of which changed alpha"
    )


def _caption(run: TuningRun) -> str:
    attained = run.tuned.overall_attainment, run.fixed.overall_attainment
    met = ""
    if attained[0] is not None and attained[1] is not None:
        met = f" Within the SLO: {100 * attained[0]:.3g} % tuned, {100 * attained[1]:.3g} % not."
    return (
        "P95 of the queries that came in each stretch; dotted: the moments at which the P95 had risen or passed the "
        "SLO, or more queries came than ended, and the recent ones were replayed; below, filled: alpha changed, open: "
        f"kept.{met}"
    )
