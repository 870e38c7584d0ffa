"""What kind of network it is, and the theorem that says when such a network is stable.

What matters is whether routes lead back: a network without cycles through two or more stations is stable whenever
every load is below 1, and one with such a cycle need not be (Rybko, Stolyar 1992; Lu, Kumar 1991). Retries at the same
station are no such cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

import attrs

from queuetheory_llm.exact.words import arrows
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.traffic import components, cyclic_joins, hops

#: Cycles of stations that are listed; there may be exponentially many.
MOST_CYCLES = 20

SINGLE_THEOREM = (
    "one station: stable in every order of service that fills its batches iff its load is below 1 "
    "(Dai 1995; Dai et al., arXiv 2504.07347, Theorem 2)"
)
FEED_FORWARD_THEOREM = (
    "stable under every non-idling policy iff every load is below 1: without a cycle, stations are stable one after "
    "another (Dai 1995; rules that fill batches, forks and joins: Dai et al., arXiv 2504.07347)"
)
JACKSON_THEOREM = (
    "one class a station: stable under every non-idling policy iff every load is below 1, cycles or not "
    "(generalised Jackson networks; Dai 1995, section 5)"
)
KELLY_THEOREM = (
    "first come, first served with the same mean service time for all classes of a station: stable iff every load is "
    "below 1 (networks of Kelly type; Bramson 1996)"
)
FIRST_BUFFER_THEOREM = (
    "re-entrant line, earlier steps first at every station: stable iff every load is below 1 "
    "(first buffer first served; Lu, Kumar 1991; Dai 1995, section 6)"
)
LAST_BUFFER_THEOREM = (
    "re-entrant line, later steps first at every station: stable iff every load is below 1 "
    "(last buffer first served; Kumar, Kumar 1994; Dai, Weiss 1996)"
)
NO_THEOREM = (
    "loads below 1 are necessary and not sufficient: a cycle through two or more stations, one of which serves "
    "several classes, can be unstable (Rybko, Stolyar 1992); a certificate has to decide"
)


class Kind(Enum):
    """Kinds of networks; the value is the word used in JSON and reports."""

    SINGLE = "single station"
    FEED_FORWARD = "feed-forward"
    FORK_JOIN = "fork-join"
    JACKSON = "generalised Jackson"
    RE_ENTRANT = "re-entrant line"
    RYBKO_STOLYAR = "Rybko-Stolyar pattern"
    CYCLIC = "cyclic"

    @property
    def meaning(self) -> str:
        """One sentence for a person."""
        return _MEANING[self]


_MEANING = {
    Kind.SINGLE: "all tasks are served at one station",
    Kind.FEED_FORWARD: "no route leads back to a station that has been left (DAG)",
    Kind.FORK_JOIN: "no route leads back, and branches of forks are joined again",
    Kind.JACKSON: "routes lead back, only among stations that serve one class each",
    Kind.RE_ENTRANT: "one route, which comes back to a station after it has been at another",
    Kind.RYBKO_STOLYAR: "two routes pass the same stations in opposite order",
    Kind.CYCLIC: "routes lead back to a station that has been left, and several classes share stations there",
}


@attrs.frozen(kw_only=True)
class NetworkTopology:
    """Kind of a network and its theorem.

    Attributes
    ----------
    kind : Kind
    theorem : str
        What is known of such a network, with its source.
    loads_decide : bool
        Whether, by that theorem, the network is stable as soon as every load is below 1.
    groups : tuple of tuple of str
        Stations that routes connect both ways, sources first; see `stability.traffic.components`.
    cycles : tuple of tuple of str
        Cycles through two or more stations, each from its first station on and once around; at most `MOST_CYCLES`.
    complete : bool
        Whether these are all the cycles.
    joins_in_cycles : int
        Joins inside a cycle; with any, no theorem here and no fluid model applies.
    """

    kind: Kind
    theorem: str
    loads_decide: bool
    groups: tuple[tuple[str, ...], ...]
    cycles: tuple[tuple[str, ...], ...]
    complete: bool
    joins_in_cycles: int

    @property
    def sentence(self) -> str:
        """What it is, for a person, the first cycle named."""
        if not self.cycles:
            return f"{self.kind.value}: {self.kind.meaning}"
        return f"{self.kind.value}: {self.kind.meaning}; {arrows(self.cycles[0])}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": self.kind.value,
            "sentence": self.sentence,
            "theorem": self.theorem,
            "loads_decide": self.loads_decide,
            "groups": [list(group) for group in self.groups],
            "cycles": [list(cycle) for cycle in self.cycles],
            "cycles_complete": self.complete,
            "joins_in_cycles": self.joins_in_cycles,
        }


def network_topology(model: FluidModel, *, in_order: bool = True) -> NetworkTopology:
    """Recognise a network.

    Parameters
    ----------
    model : FluidModel
    in_order : bool
        Whether a station without priorities serves whole tasks in order of arrival, as a classical server does. A batch
        engine does not: it serves the phases of many tasks at once, and the theorem on first come, first served is
        not claimed for it.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> print(network_topology(load_network("lu-kumar").fluid_model).sentence)
    re-entrant line: one route, which comes back to a station after it has been at another; s1 -> s2 -> s1
    """
    groups = components(model)
    cyclic = [group for group in groups if len(group) > 1]
    joins = len(cyclic_joins(model))
    routes = _routes(model)
    theorems = _theorems(model, cyclic, routes, in_order) if not joins else [NO_THEOREM]
    found = list(islice(_cycles(model), MOST_CYCLES + 1))
    return NetworkTopology(
        kind=_kind(model, cyclic, routes),
        theorem="; ".join(dict.fromkeys(theorems)),
        loads_decide=NO_THEOREM not in theorems,
        groups=tuple(tuple(model.stations[s] for s in group) for group in groups),
        cycles=tuple(tuple(model.stations[s] for s in cycle) for cycle in found[:MOST_CYCLES]),
        complete=len(found) <= MOST_CYCLES,
        joins_in_cycles=joins,
    )


def _kind(model: FluidModel, cyclic: Sequence[tuple[int, ...]], routes: Sequence[tuple[int, ...]] | None) -> Kind:
    if not cyclic:
        if model.joins:
            return Kind.FORK_JOIN
        return Kind.SINGLE if len(set(model.station)) == 1 else Kind.FEED_FORWARD
    if not any(needs_proof(model, group) for group in cyclic):
        return Kind.JACKSON
    if routes is not None and len(routes) == 1:
        return Kind.RE_ENTRANT
    if routes is not None and len(routes) == 2 and _opposite(model, *routes):
        return Kind.RYBKO_STOLYAR
    return Kind.CYCLIC


def _theorems(
    model: FluidModel,
    cyclic: Sequence[tuple[int, ...]],
    routes: Sequence[tuple[int, ...]] | None,
    in_order: bool,
) -> list[str]:
    """The theorem of each group of several stations; groups are stable one after another."""
    if not cyclic:
        return [SINGLE_THEOREM if len(set(model.station)) == 1 else FEED_FORWARD_THEOREM]
    line = _buffer_priorities(model, routes)
    if line is not None:
        return [line]
    return [_theorem(model, group, in_order) for group in cyclic]


def _theorem(model: FluidModel, group: tuple[int, ...], in_order: bool) -> str:
    if not needs_proof(model, group):
        return JACKSON_THEOREM
    kelly = all(model.priority[s] is None and len({model.service[k] for k in model.at(s)}) == 1 for s in group)
    forks = any(_sum(model, k) > 1 for s in group for k in model.at(s))
    return KELLY_THEOREM if in_order and kelly and not forks else NO_THEOREM


def _sum(model: FluidModel, k: int) -> Fraction:
    return sum((share for _, share in model.routing[k]), Fraction(0))


def needs_proof(model: FluidModel, group: Sequence[int]) -> bool:
    """Whether loads below 1 do not make a group of stations stable by themselves: several, one with several classes."""
    return len(group) > 1 and any(len(model.at(s)) > 1 for s in group)


def _routes(model: FluidModel) -> list[tuple[int, ...]] | None:
    """The classes of each route in order, if tasks enter at its first class, pass all and leave after the last.

    None where routes branch, merge, fork, or are entered or left on the way. Retries (a class back to itself) do not
    count.
    """
    follow = [[to for to, _ in row if to != k] for k, row in enumerate(model.routing)]
    before = [[source for source, _ in row if source != k] for k, row in enumerate(model.predecessors)]
    if model.joins or any(len(each) > 1 for each in (*follow, *before)):
        return None
    routes = []
    for k in range(len(model.classes)):
        if before[k]:
            continue
        route = [k]
        while follow[route[-1]]:
            route.append(follow[route[-1]][0])
        if any(_sum(model, k) != 1 for k in route[:-1]) or any(model.arrival[k] for k in route[1:]):
            return None
        routes.append(tuple(route))
    return routes if sum(map(len, routes)) == len(model.classes) else None


def _opposite(model: FluidModel, first: Sequence[int], second: Sequence[int]) -> bool:
    there, back = ([model.station[k] for k in route] for route in (first, second))
    return there == back[::-1] and len(set(there)) == len(there)


def _buffer_priorities(model: FluidModel, routes: Sequence[tuple[int, ...]] | None) -> str | None:
    """The theorem on a deterministic re-entrant line served earlier, or later, steps first throughout."""
    if routes is None or len(routes) != 1:
        return None
    route = routes[0]
    if any(model.routing[k] != ((to, Fraction(1)),) for k, to in pairwise(route)) or model.routing[route[-1]]:
        return None  # retries
    orders = [(model.priority[s], [k for k in route if model.station[k] == s]) for s in range(len(model.stations))]
    shared = [(order, visits) for order, visits in orders if len(visits) > 1]
    if all(order == tuple(visits) for order, visits in shared):
        return FIRST_BUFFER_THEOREM
    if all(order == tuple(visits[::-1]) for order, visits in shared):
        return LAST_BUFFER_THEOREM
    return None


def _cycles(model: FluidModel) -> Iterator[tuple[int, ...]]:
    """Simple cycles of stations, retries left out, each from its first station on."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(model.stations)))
    links = {(model.station[k], model.station[to]) for k, to in hops(model)}
    graph.add_edges_from(sorted(link for link in links if link[0] != link[1]))
    for cycle in nx.simple_cycles(graph):
        start = cycle.index(min(cycle))
        yield (*cycle[start:], *cycle[:start])
