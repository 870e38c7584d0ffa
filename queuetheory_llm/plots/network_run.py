"""The burden of a network in a run, a fluid path over it, and below them the tasks of the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.plots.fluid import fluid_curve, where_filled
from queuetheory_llm.plots.style import (
    INK,
    LINES,
    PALETTE,
    SMALL,
    TEXT,
    TITLE,
    figure_bytes,
    figure_of,
    framed_axes,
    legend_above,
    make_room,
    number_text,
    paler,
    plain_axes,
)
from queuetheory_llm.simulation.network_simulation import NetworkSimulation, work_to_come
from queuetheory_llm.stability.fluid_ode import OdePath
from queuetheory_llm.stability.fluid_path import FluidPath
from queuetheory_llm.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FLUID = PALETTE[1]
_BY_CLASS = 6  # classes with curves of their own
_UNITS = ((1e6, "millions"), (1e3, "thousands"))  # of an axis
_SHADED = 400  # points of the shade below a run, which need not be as fine as its line
_MOST_RATIOS = 4  # peaks with their ratio written at them, the last ones


def render_network_run(run: NetworkSimulation, format: str, *, path: FluidPath | OdePath | None = None) -> bytes:
    """The figure of `draw_network_run` as a file, the same for the same run and path.

    Parameters
    ----------
    run : NetworkSimulation
    format : {"svg", "png", "pdf"}
    path : FluidPath or OdePath, optional
    """
    return figure_bytes(figure_of(draw_network_run(run, path=path)), format)


def draw_network_run(
    run: NetworkSimulation, ax: Axes | None = None, *, path: FluidPath | OdePath | None = None
) -> Axes:
    """The burden of a network over time in a run, the tasks of its classes, and a fluid path over both.

    The burden is the tokens present, or the work to come where no station is a batch engine; the peaks of a run that
    is not stable are marked. Of several runs the first is drawn.

    Parameters
    ----------
    run : NetworkSimulation
    ax : Axes, optional
        By default the upper axes of a new figure with title and caption, above axes with the classes that hold most
        tasks.
    path : FluidPath or OdePath, optional
        Of the same network from the same start; drawn as far as the run goes.

    Returns
    -------
    Axes
        Horizontal simulated seconds, vertical the burden.
    """
    if ax is not None:
        ax.set_title(_title(run), fontsize=TITLE, color=INK, loc="left")
        _draw_burden(ax, run, path)
        ax.legend(fontsize=SMALL, frameon=False, loc="best")
        ax.set_xlabel("simulated time (s)", fontsize=TEXT)
        return ax
    lower = framed_axes(6.5, 5.2, title=_title(run), subtitle=_subtitle(run, path), caption=_caption(run, path))
    place = lower.get_position()
    upper = figure_of(lower).add_axes(
        (place.x0, place.y0 + 0.54 * place.height, place.width, 0.46 * place.height), facecolor="white"
    )
    lower.set_position((place.x0, place.y0, place.width, 0.50 * place.height))
    _draw_burden(upper, run, path)
    _draw_by_class(lower, run, path)
    upper.tick_params(labelbottom=False)
    lower.set_xlabel("simulated time (s)", fontsize=TEXT)
    legend_above(upper, *upper.get_legend_handles_labels())
    legend_above(lower, *lower.get_legend_handles_labels())
    make_room(upper, lower)
    return upper


def _draw_burden(ax: Axes, run: NetworkSimulation, path: FluidPath | OdePath | None) -> None:
    seconds, _ = _present(run)
    name, levels = run.burden
    step = max(1, levels.size // _SHADED)
    ax.fill_between(seconds[::step], levels[::step], color=paler(PALETTE[0], 0.18), linewidth=0)
    ax.plot(seconds, levels, color=PALETTE[0], linewidth=1.2, label="run")
    top = float(levels.max())
    if path is not None:
        curve = fluid_curve(path)
        burden = curve.states @ _burdens(run)
        top = max(top, float(burden.max()))
        ax.plot(curve.times, burden, color=_FLUID, linewidth=1.8, linestyle=LINES[1], label="fluid path")
    _finish(ax, seconds, top, name if name.startswith("tokens") else f"{name} (s)", room=1.25)
    if run.measured is Verdict.UNSTABLE:
        _mark_peaks(ax, run)


def _mark_peaks(ax: Axes, run: NetworkSimulation) -> None:
    """The peaks, and by how much each is above the one before."""
    marks = np.array(run.peaks()).reshape(-1, 2)
    if not marks.size:
        return
    ax.plot(*marks.T, "o", color=INK, markersize=4, label="peaks of the run", zorder=5, clip_on=False)
    ratios = run.peak_ratios()
    for (time, height), ratio in list(zip(marks[1:], ratios, strict=True))[-_MOST_RATIOS:]:
        near_end = time > 0.85 * ax.get_xlim()[1]
        ax.annotate(
            f"× {ratio:.3g}", (time, height), (-6 if near_end else 6, 4), textcoords="offset points",
            ha="right" if near_end else "left", va="bottom", fontsize=SMALL, color=INK,
        )  # fmt: skip


def _burdens(run: NetworkSimulation) -> Floats:
    """What a task of each class adds to the burden, on average."""
    network = run.network
    if not run.burden[0].startswith("tokens"):
        return work_to_come(network.fluid_model)
    return np.array(
        [0.0 if network.station_of(each).classical else float(each.mean_tokens) for each in network.classes]
    )


def _draw_by_class(ax: Axes, run: NetworkSimulation, path: FluidPath | OdePath | None) -> None:
    seconds, present = _present(run)
    most = present.max(axis=1)
    shown = sorted(int(k) for k in np.argsort(-most, kind="stable")[:_BY_CLASS] if most[k] > 0)
    curve = None if path is None else fluid_curve(path)
    top = float(most.max())
    for place, k in enumerate(shown):
        colour, sign = PALETTE[place % len(PALETTE)], "osDv^P"[place % 6]
        times, tasks = where_filled(seconds, present[k])
        ax.plot(
            times, tasks, color=colour, linewidth=1.0, label=run.network.classes[k].name,
            marker=sign, markevery=[int(np.nanargmax(tasks))], markersize=4.5, clip_on=False,
        )  # fmt: skip
        if curve is not None:
            top = max(top, float(curve.states[:, k].max()))
            ax.plot(*where_filled(curve.times, curve.states[:, k]), color=colour, linewidth=1.8, linestyle=LINES[1])
    _finish(ax, seconds, top, "tasks present")


def _present(run: NetworkSimulation) -> tuple[Floats, Floats]:
    """Seconds, and the tasks of each class then."""
    series = run.run.series
    return series.ticks / run.run.clock.rate, np.asarray(series.present, dtype=float)


def _finish(ax: Axes, seconds: Floats, top: float, label: str, *, room: float = 1.1) -> None:
    """Axes and their labels; large numbers in thousands or millions."""
    unit, word = next((each for each in _UNITS if top >= 2 * each[0]), (1.0, ""))
    plain_axes(ax)
    ax.set_xlim(0, float(seconds[-1]))
    ax.set_ylim(-0.012 * top, room * max(top, 1.0))
    ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    ax.yaxis.set_major_formatter(lambda value, _: number_text(value / unit))
    ax.set_ylabel(f"{label} ({word})" if word else label, fontsize=TEXT)


def _title(run: NetworkSimulation) -> str:
    return f"{run.network.name}: {run.measured.value} by simulation"


def _subtitle(run: NetworkSimulation, path: FluidPath | OdePath | None) -> str:
    """How much each peak is above the one before."""
    ratios = [f"{ratio:.3g}" for ratio in run.peak_ratios()] if run.measured is Verdict.UNSTABLE else []
    lines = [run.reason]
    if ratios:
        shown = ratios if len(ratios) <= 6 else [*ratios[:6], "..."]
        factor = path.factor if isinstance(path, FluidPath) else None
        fluid = "" if factor is None else f"; factor of the fluid path {float(factor):.4g}"
        lines.append(f"{run.burden[0]}, each peak over the one before: {', '.join(shown)}{fluid}")
    return "\n".join(lines)


def _caption(run: NetworkSimulation, path: FluidPath | OdePath | None) -> str:
    runs = f"; the first of {len(run.runs)} runs" if len(run.runs) > 1 else ""
    fluid = "" if path is None else " Broken lines: the fluid path from the same start."
    return (
        f"A run with policy {run.policy}, seed {run.seed}{runs}. A symbol marks where a class holds most tasks.{fluid}"
    )
