"""Where things stand in the drawing of a network: stations in columns, arrows between them; all lengths are inches."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.fluid_model import FluidModel

if TYPE_CHECKING:
    from networkx import DiGraph

Curve = Floats  # corners of a cubic Bezier spline, shape (3 n + 1, 2)

#: Stations that feed one another and stand side by side; more stand in layers.
IN_A_ROW = 4
_IN_A_LAYER = 4

#: Height of the head of a box.
HEAD = 0.42
_STUB = 0.30  # arrows from and to the outside


@attrs.frozen(kw_only=True)
class Link:
    """A route, drawn as an arrow.

    Attributes
    ----------
    source, to : int
        Classes; stations where classes are not named.
    share : Fraction
        Mean number of tasks that one service sends along it.
    fork, join : bool
        Whether other tasks of the same service go elsewhere, and whether the task waits for its siblings.
    """

    source: int
    to: int
    share: Fraction
    fork: bool = False
    join: bool = False


@attrs.frozen(kw_only=True)
class Box:
    """Where a station is drawn: lower left corner, size, and the classes from the top on; inches."""

    station: int
    x: float
    y: float
    width: float
    height: float
    cell: float
    classes: tuple[int, ...]

    @property
    def right(self) -> float:
        """Right side."""
        return self.x + self.width

    @property
    def top(self) -> float:
        """Upper side."""
        return self.y + self.height

    def floor(self, k: int) -> float:
        """Lower side of the cell of a class."""
        return self.top - HEAD - (self.classes.index(k) + 1) * self.cell


def station_columns(model: FluidModel) -> tuple[tuple[int, ...], ...]:
    """Stations from left to right: after all that feed them; those that feed one another side by side.

    Returns
    -------
    tuple of tuple of int
        Columns, each from the top on.
    """
    import networkx as nx

    graph = _station_graph(model)
    whole = nx.condensation(graph)
    columns: list[tuple[int, ...]] = []
    for generation in nx.topological_generations(whole):
        groups = [_side_by_side(model, graph.subgraph(whole.nodes[node]["members"])) for node in sorted(generation)]
        for place in range(max(map(len, groups))):
            column = [s for group in groups if place < len(group) for s in group[place]]
            columns.append(_in_line(graph, column, columns))
    return tuple(columns)


def _station_graph(model: FluidModel) -> DiGraph:
    """Stations, and the routes between two of them."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(model.stations)))
    for k, row in enumerate(model.routing):
        for to, _ in row:
            if model.station[k] != model.station[to]:
                graph.add_edge(model.station[k], model.station[to])
    return graph


def _side_by_side(model: FluidModel, group: DiGraph) -> list[list[int]]:
    """Columns of stations that feed one another, in the order in which a task from outside meets them."""
    import networkx as nx

    entered = {model.station[k] for k, rate in enumerate(model.arrival) if rate}
    start = min(group, key=lambda s: (s not in entered, s))
    if len(group) <= IN_A_ROW:
        return [[s] for s in nx.dfs_preorder_nodes(group, start, sort_neighbors=sorted)]
    layers = [sorted(layer) for layer in nx.bfs_layers(group, start)]
    return [layer[at : at + _IN_A_LAYER] for layer in layers for at in range(0, len(layer), _IN_A_LAYER)]


def _in_line(graph: DiGraph, column: Sequence[int], before: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """A column ordered by the mean height of what feeds it."""
    height = {s: place - (len(each) - 1) / 2 for each in before for place, s in enumerate(each)}

    def mean(s: int) -> float:
        feeds = [height[t] for t in graph.predecessors(s) if t in height]
        return sum(feeds) / len(feeds) if feeds else 0.0

    return tuple(sorted(column, key=lambda s: (mean(s), s)))


def links_of(model: FluidModel) -> list[Link]:
    """An arrow for each route and for each sibling of a join.

    A row of routes that sums to more than 1 has a fork: to the classes that share one probability.
    """
    joined = {(k, to) for siblings, to in model.joins for k in siblings}
    found = []
    for k, row in enumerate(model.routing):
        shares = [share for to, share in row if (k, to) not in joined]
        forked = {share for share in shares if shares.count(share) > 1} if sum(shares) > 1 else set()
        for to, share in row:
            join = (k, to) in joined
            found.append(Link(source=k, to=to, share=share, fork=not join and share in forked, join=join))
    return found


@attrs.frozen(kw_only=True, eq=False)
class Stub:
    """An arrow from the outside or to it, and what is written at its free end."""

    curve: Curve
    anchors: Floats
    text: str

    @classmethod
    def into(cls, box: Box, y: float, way: int, text: str) -> Stub:
        """An arrow into the left side of a box, or with ``way`` -1 into the right one."""
        end = box.x if way > 0 else box.right
        return cls(curve=_line(end - way * _STUB, end, y), anchors=_ends(end, end - way * _STUB, y), text=text)

    @classmethod
    def out_of(cls, box: Box, y: float, way: int, text: str) -> Stub:
        """An arrow out of the right side of a box, or with ``way`` -1 out of the left one."""
        start = box.right if way > 0 else box.x
        return cls(curve=_line(start, start + way * _STUB, y), anchors=_ends(start, start + way * _STUB, y), text=text)


def _ends(first: float, last: float, y: float) -> Floats:
    return np.array([[first, y], [last, y]])


def _line(x0: float, x1: float, y: float) -> Curve:
    return np.column_stack([np.linspace(x0, x1, 4), np.full(4, y)])


def spline(x0: float, y0: float, x1: float, y1: float, out: float, into: float) -> Curve:
    """Level at both ends."""
    return np.array([[x0, y0], [out, y0], [into, y1], [x1, y1]])


def sampled(curve: Curve, points: int = 16) -> Floats:
    """Points along a cubic Bezier spline, ``points`` a piece."""
    t = np.linspace(0, 1, points)[:, None]
    pieces = [curve[at : at + 4] for at in range(0, len(curve) - 1, 3)]
    return np.concatenate(
        [(1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d for a, b, c, d in pieces]
    )
