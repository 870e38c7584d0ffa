"""The fluid limit of a scheduler on one engine, in the plane of its two backlogs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.plots.style import (
    INK,
    LINES,
    PALETTE,
    TEXT,
    TINY,
    figure_bytes,
    figure_of,
    legend_above,
    make_room,
    number_text,
    on_axes,
    plain_axes,
    renderer_of,
    short,
)
from queuetheory_llm.stability.engine_fluid import EngineFluidPath

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

_SIZE = (6.5, 4.3)  # inches
_PATH_ARROW = {"arrowstyle": "-|>", "color": INK, "linewidth": 0, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 12}


def render_engine_fluid(path: EngineFluidPath, format: str) -> bytes:
    """The figure of `draw_engine_fluid` as a file, the same for the same path.

    Parameters
    ----------
    path : EngineFluidPath
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_engine_fluid(path)), format)


def draw_engine_fluid(path: EngineFluidPath, ax: Axes | None = None) -> Axes:
    """The path of the two token backlogs in their plane, its times, and the drift of each part of the plane.

    Parameters
    ----------
    path : EngineFluidPath
    ax : Axes, optional
        By default those of a new figure with title and caption.

    Returns
    -------
    Axes
        Horizontal prompt tokens waiting, vertical decode tokens of requests past their prompts.
    """
    own = ax is None
    ax = on_axes(ax, *_SIZE, title=_title(path), subtitle=_subtitle(path), caption=_caption(path))
    corners = np.array([(float(point.prefill), float(point.decode)) for point in path.points])
    reach = corners.max(axis=0)
    reach = np.where(reach > 0, reach, float(reach.max()) or 1.0)
    shown = corners
    if path.end.grows and path.slope is not None:
        away = np.array(path.slope, dtype=float)
        step = away * float(min(reach[k] / speed for k, speed in enumerate(np.abs(away)) if speed > 0))
        shown = np.vstack([corners, corners[-1] + step])
        reach = np.maximum(reach, shown.max(axis=0))
    ax.set_xlim(-0.02 * reach[0], 1.25 * reach[0])
    ax.set_ylim(-0.02 * reach[1], 1.25 * reach[1])
    for start, end in pairwise(shown):
        ax.annotate("", tuple(end), tuple(start), arrowprops=dict(_PATH_ARROW), annotation_clip=False)
    ax.plot(*shown.T, color=INK, linewidth=1.8, label="path", zorder=3)
    ax.plot(*corners.T, "o", color=INK, markersize=4, label="_corners", zorder=4, clip_on=False)
    _draw_drifts(ax, path, reach)
    plain_axes(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_xlabel("prefill backlog (tokens)", fontsize=TEXT)
    ax.set_ylabel("decode backlog (tokens)", fontsize=TEXT)
    if own:
        legend_above(ax, *ax.get_legend_handles_labels())
        make_room(ax)
        _label_times(ax, path, corners)
    else:
        ax.legend(fontsize=TINY, frameon=False, loc="best")
    return ax


def _draw_drifts(ax: Axes, path: EngineFluidPath, reach: Floats) -> None:
    """The three drifts as arrows where they hold, in the directions they have on these axes."""
    drifts = path.drifts
    vectors: list[tuple[str, tuple[float, float], tuple[float, float]]] = [
        ("both plentiful", (0.80, 0.80), (drifts.interior[0].mean, drifts.interior[1].mean))
    ]
    if drifts.prompts is not None:
        vectors.append(("only prompts plentiful", (0.80, 0.045), (drifts.prompts.mean, 0.0)))
    if drifts.decodes is not None:
        vectors.append(("only decodes plentiful", (0.03, 0.80), (0.0, drifts.decodes.mean)))
    for number, (name, at, vector) in enumerate(vectors):
        start = np.array(at) * 1.2 * reach
        scaled = np.array(vector) / reach
        size = float(np.linalg.norm(scaled))
        end = start + 0.16 * reach * scaled / size if size else start
        colour = PALETTE[number]
        ax.annotate(
            "", tuple(end), tuple(start), annotation_clip=False, zorder=5,
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.0, "shrinkA": 0, "shrinkB": 0,
                        "linestyle": LINES[number]},
        )  # fmt: skip
        label = f"drift, {name}: ({vector[0]:.4g}, {vector[1]:.4g}) tokens/s"
        ax.plot(*start, "os^"[number], color=colour, markersize=5, label=label, zorder=5)


def _label_times(ax: Axes, path: EngineFluidPath, corners: Floats) -> None:
    """The time at each corner, where it covers no other."""
    renderer = renderer_of(figure_of(ax))
    taken: list[Bbox] = []
    for point, corner in zip(path.points, corners, strict=True):
        text = ax.annotate(
            f"{short(float(point.time))} s", tuple(corner), (6, 4), textcoords="offset points", fontsize=TINY, color=INK
        )
        box = text.get_window_extent(renderer)
        if any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)


def _title(path: EngineFluidPath) -> str:
    if path.emptying_time is not None:
        return f"{path.scheduler}: both backlogs are gone after {short(path.emptying_time)} s"
    if path.end.grows and path.growth is not None:
        return f"{path.scheduler}: the backlog grows by {short(float(path.growth))} tokens/s for ever"
    return f"{path.scheduler}: {path.end.meaning}"


def _subtitle(path: EngineFluidPath) -> str:
    first = path.points[0]
    return (
        f"from {float(first.prefill):,.6g} prompt and {float(first.decode):,.6g} decode tokens; "
        f"{float(path.drifts.rate):.4g} requests/s"
    )


def _caption(path: EngineFluidPath) -> str:
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in path.notes)
    return f"Fluid limit: on the scale of the backlogs the engine moves with the drift of the place where it is.{notes}"
