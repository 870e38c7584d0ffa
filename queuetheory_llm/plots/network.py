"""The figure of a verdict on a network: its drawing with the words around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.exact.rounding import load_text
from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.plots.network_drawing import FILL, NetworkDrawing, violated_stations
from queuetheory_llm.plots.style import (
    EDGE,
    INK,
    POINT,
    TEXT,
    TITLE,
    figure_bytes,
    figure_of,
    framed_axes,
    make_room,
    plain_axes,
)
from queuetheory_llm.stability.networks import NetworkAnswer
from queuetheory_llm.verdict import Basis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: More stations are not drawn as a network.
MOST_DRAWN = 24
_LEAST = 5.6  # width of a figure in inches
_GROUNDS = {Basis.FLUID: "the fluid model"}  # where the word of the verdict is no noun
_NO_AXIS = 0.45  # what framed axes leave for ticks and a label below


def render_network(answer: NetworkAnswer, format: str) -> bytes:
    """The figure of `draw_network` as a file, the same for the same answer.

    Parameters
    ----------
    answer : NetworkAnswer
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_network(answer)), format)


def draw_network(answer: NetworkAnswer, ax: Axes | None = None) -> Axes:
    """The network: a box for each station, its classes in order of priority, their loads as bars, routes as arrows.

    Of many classes neither names nor single routes are drawn, of very many stations only the highest loads.

    Parameters
    ----------
    answer : NetworkAnswer
    ax : Axes, optional
        By default those of a new figure with title and caption, as large as the drawing asks for.

    Returns
    -------
    Axes
        Without ticks; both axes are inches of the drawing.
    """
    if len(answer.model.stations) > MOST_DRAWN:
        return _draw_loads(answer, ax)
    drawing = NetworkDrawing(answer)
    if ax is None:
        ax = _frame(answer, (drawing.width, drawing.height), drawing.signs)
    else:
        ax.set_title(_title(answer), fontsize=TITLE, color=INK, loc="left")
    ax.set_axis_off()
    ax.set_xlim(0, drawing.width)
    ax.set_ylim(0, drawing.height)
    ax.set_aspect("equal", anchor="NW")
    drawing.draw(ax)
    return ax


def _frame(answer: NetworkAnswer, size: tuple[float, float], signs: str) -> Axes:
    """Axes of a new figure in which a drawing of this size, in inches, is not scaled."""
    width, height = max(_LEAST, size[0] + 2 * EDGE), size[1] + 1.0
    texts = {"title": _title(answer), "subtitle": _subtitle(answer), "caption": _caption(answer, signs)}
    around = height * (1 - framed_axes(width, height, **texts).get_position().height)  # texts, and room for an axis
    height = size[1] + around - _NO_AXIS
    ax = framed_axes(width, height, **texts)
    place = ax.get_position()
    ax.set_position((EDGE / width, place.y0 - _NO_AXIS / height, size[0] / width, size[1] / height))
    return ax


def _draw_loads(answer: NetworkAnswer, ax: Axes | None) -> Axes:
    """The highest loads as bars, where the stations are too many to be drawn with their routes."""
    model, loads = answer.model, answer.traffic.loads
    shown = sorted(range(len(loads)), key=lambda s: (-loads[s], s))[:MOST_DRAWN]
    if ax is None:
        signs = (
            f"the {len(shown)} highest loads of {len(loads)} stations, which are too many to be drawn with their routes"
        )
        ax = framed_axes(_LEAST, 5.2, title=_title(answer), subtitle=_subtitle(answer), caption=_caption(answer, signs))
    else:
        ax.set_title(_title(answer), fontsize=TITLE, color=INK, loc="left")
    heights = np.array([float(loads[s]) for s in shown])
    ax.barh([model.stations[s] for s in shown], heights, color=[POINT if h > 1 else FILL for h in heights], height=0.7)
    ax.axvline(1, color=INK, linewidth=0.8)
    ax.invert_yaxis()
    plain_axes(ax)
    ax.set_xlabel("load", fontsize=TEXT)
    make_room(ax)
    return ax


def _title(answer: NetworkAnswer) -> str:
    judgement = answer.judgement
    ground = "" if judgement.basis is None else f" by {_GROUNDS.get(judgement.basis, judgement.basis.value)}"
    return f"{answer.title}: {judgement.verdict.value}{ground} {answer.scope}"


def _subtitle(answer: NetworkAnswer) -> str:
    model, loads = answer.model, answer.traffic.loads
    worst = max(range(len(loads)), key=lambda s: loads[s])
    counts = f"{len(model.classes)} classes on {len(model.stations)} stations"
    lines = [
        f"{answer.topology.kind.value}; {counts}; highest load {load_text(loads[worst], 4)} at {model.stations[worst]}"
    ]
    lines += [
        f"hatched: virtual station of classes {_names(each.classes)}, load {load_text(each.load, 4)}"
        for each in violated_stations(answer)[:2]
    ]
    return "\n".join(lines)


def _names(classes: Sequence[str]) -> str:
    shown = list(classes) if len(classes) <= 6 else [*classes[:5], f"{len(classes) - 5} more"]
    return enumeration(shown)


def _caption(answer: NetworkAnswer, signs: str) -> str:
    reason = answer.judgement.reason
    if not reason.startswith(answer.model.stations):  # a name is not respelt
        reason = f"{reason[0].upper()}{reason[1:]}"
    return f"{reason}. {signs[0].upper()}{signs[1:]}."
