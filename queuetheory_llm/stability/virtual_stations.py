"""Virtual stations: classes at two stations that priorities never let be served together (Dai, Vande Vate 2000).

Let V_s be classes at station s and V_t classes at t, none of them with external arrivals, such that a task enters V_s
only from V_s itself or from a class at t that is below all of V_t, and the other way round. While V_t has tasks, what
feeds V_s waits. So from an empty network on the two sets are never present at once, and one unit of time serves at most
one unit of their work: a load above 1 of the two together is too much, although both stations may have spare time.

With preemptive priorities at classical stations that is a proof of instability. A batch is not interrupted, so at
engines the sets may be present together for a batch now and then; there it is a statement on the fluid model.

Under given priorities the sets are greatest fixpoints, one for each pair of depths in the two lists. Over all
priorities the heaviest sets solve a minimum cut: with A = V_s and B = the classes at t outside V_t every condition says
that a member implies another (Picard 1976).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction
from itertools import combinations, product
from typing import TYPE_CHECKING

import attrs

from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.exact.numbers import Vector, common_denominator, plain
from queuetheory_llm.exact.rounding import load_text
from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.lyapunov import LyapunovPolicy, require_policy
from queuetheory_llm.stability.traffic import Traffic

if TYPE_CHECKING:
    from networkx import DiGraph

#: V_s and V_t.
Sets = tuple[tuple[int, ...], tuple[int, ...]]


@attrs.frozen(kw_only=True)
class VirtualStation:
    """Two sets of classes that are never served together.

    Attributes
    ----------
    model : FluidModel
        The network under the priorities that make it one: its own, or the worst.
    traffic : Traffic
    stations : (int, int)
    sets : two tuples of int
        Its classes at either station; neither is empty.
    load : Fraction
        Seconds of service they need together each second.
    given : bool
        Whether the priorities are those of the network, not the worst.
    """

    model: FluidModel = attrs.field(repr=False)
    traffic: Traffic = attrs.field(repr=False)
    stations: tuple[int, int]
    sets: Sets
    load: Fraction
    given: bool

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of its classes, those at the first station first."""
        return tuple(self.model.classes[k] for group in self.sets for k in group)

    @property
    def station_names(self) -> tuple[str, str]:
        """Names of its stations."""
        first, second = self.stations
        return self.model.stations[first], self.model.stations[second]

    @property
    def priority(self) -> tuple[tuple[str, ...], ...]:
        """The order of the classes at either station, high to low, that makes it a virtual station."""
        orders = (self.model.priority[s] for s in self.stations)
        return tuple(tuple(self.model.classes[k] for k in order or ()) for order in orders)

    @property
    def is_proof(self) -> bool:
        """Whether a load above 1 proves instability of the network itself, not only of its fluid model.

        Services that end at one instant on both sides could let both in. They do not where those of the feeders of one
        side have densities.
        """
        interrupted = all(self.model.preemptive[s] for s in self.stations)
        return interrupted and self._apart() and not self.model.joins and self.traffic.exact

    def _apart(self) -> bool:
        number = {name: k for k, name in enumerate(self.model.classes)}
        return any(all(self.model.density[number[name]] for name in self.feeders(side)) for side in (0, 1))

    @property
    def text(self) -> str:
        """What it is, for a person."""
        places = [
            f"{_named(self.model, group)} at {name}" for group, name in zip(self.sets, self.station_names, strict=True)
        ]
        first, second = (_named(self.model, group) for group in self.sets)
        fed = enumeration(self.feeders(1))
        feeds, waits = ("feeds", "waits") if len(self.feeders(1)) == 1 else ("feed", "wait")
        which = "" if self.given else f"with priority to {first} and to {second}, "
        kind = "" if self.is_proof else " (in the fluid model)"
        return (
            f"{which}{places[0]} and {places[1]} are never served together{kind}: while {first} "
            f"{'is' if len(self.sets[0]) == 1 else 'are'} there {fed}, which {feeds} {second}, {waits}, and the other "
            f"way round; together they need {load_text(self.load)} seconds a second"
        )

    def feeders(self, side: int) -> tuple[str, ...]:
        """Names of the classes at the other station from which tasks enter V at this one."""
        sources = {source for k in self.sets[side] for source, _ in self.model.predecessors[k]}
        return tuple(self.model.classes[k] for k in sorted(sources - set(self.sets[side])))

    def of_whole(self, whole: FluidModel, solved: Traffic) -> VirtualStation:
        """The same classes in a network of which `model` is a part: nothing from outside the part enters them."""
        number = {name: k for k, name in enumerate(whole.classes)}
        first, second = (whole.stations.index(name) for name in self.station_names)
        orders = list(whole.priority)
        for s, order in zip((first, second), self.priority, strict=True):
            orders[s] = tuple(number[name] for name in order)
        one, other = (tuple(number[self.model.classes[k]] for k in group) for group in self.sets)
        return attrs.evolve(
            self, model=whole.with_priority(orders), traffic=solved, stations=(first, second), sets=(one, other)
        )

    def certificate(self) -> Certificate | None:
        """The proof that the network is unstable; None where the load is not above 1, or `is_proof` is false."""
        if self.load <= 1 or not self.is_proof:
            return None
        proof = {
            "rates": [plain(rate) for rate in self.traffic.rates],
            "visits": [plain(count) for count in self.traffic.visits],
            "stations": list(self.station_names),
            "classes": list(self.classes),
            "load": plain(self.load),
        }
        return certify("virtual-station", self.model.to_dict(), proof)


def virtual_stations(
    model: FluidModel, traffic: Traffic, policy: LyapunovPolicy = "file"
) -> tuple[VirtualStation, ...]:
    """The heaviest virtual station of every pair of stations that has one, heaviest first.

    Parameters
    ----------
    model : FluidModel
    traffic : Traffic
        The solution of its traffic equations.
    policy : {"file", "any"}
        The priorities of the model (first come, first served has no virtual stations), or the worst ones; of these,
        those may be left out that need less than one of the two stations by itself.

    Raises
    ------
    InvalidInput
        If the policy is not known.
    """
    require_policy(policy)
    work = traffic.class_loads
    found = []
    for pair in linked_pairs(model):
        sets = _given(model, work, pair) if policy == "file" else worst_sets(model, work, pair)
        if sets is None:
            continue
        subject = model if policy == "file" else _favouring(model, pair, sets)
        found.append(
            VirtualStation(
                model=subject,
                traffic=traffic,
                stations=pair,
                sets=sets,
                load=_weight(work, sets),
                given=policy == "file",
            )
        )
    return tuple(sorted(found, key=lambda each: each.load, reverse=True))


def linked_pairs(model: FluidModel) -> Iterator[tuple[int, int]]:
    """Pairs of stations with routes both ways: what is in neither set feeds each of them across."""
    hops = {(model.station[k], model.station[to]) for k, row in enumerate(model.routing) for to, _ in row}
    yield from ((s, t) for s, t in combinations(range(len(model.stations)), 2) if {(s, t), (t, s)} <= hops)


def _weight(work: Vector, sets: Sets) -> Fraction:
    return sum((work[k] for group in sets for k in group), Fraction(0))


def _given(model: FluidModel, work: Vector, pair: tuple[int, int]) -> Sets | None:
    """The heaviest sets under the priorities of the model."""
    first, second = (_tops(model, here, there) for here, there in (pair, pair[::-1]))
    fixpoints = (_fixpoint(model, tops) for tops in product(first, second))
    return max((sets for sets in fixpoints if _both(work, sets)), key=lambda sets: _weight(work, sets), default=None)


def _both(work: Vector, sets: Sets) -> bool:
    """Whether both stations take part."""
    return all(any(work[k] for k in group) for group in sets)


def _tops(model: FluidModel, here: int, there: int) -> list[tuple[int, ...]]:
    """Heads of the priority list that end just above a class that feeds the other station: other depths give less."""
    order = model.priority[here] or ()
    return [
        order[:depth]
        for depth, k in enumerate(order)
        if depth and any(model.station[to] == there for to, _ in model.routing[k])
    ]


def _fixpoint(model: FluidModel, tops: Sets) -> Sets:
    """The greatest sets within two heads of the lists; what feeds one across is below the head of the other."""
    members = {k for top in tops for k in top if not model.arrival[k]}
    side = {k: number for number, top in enumerate(tops) for k in top}
    stations = [model.station[top[0]] for top in tops]

    def stays(k: int) -> bool:
        other = 1 - side[k]
        return all(
            source in members
            if model.station[source] == stations[side[k]]
            else model.station[source] == stations[other] and source not in tops[other]
            for source, _ in model.predecessors[k]
        )

    while leaving := {k for k in members if not stays(k)}:
        members -= leaving
    first, second = (tuple(k for k in top if k in members) for top in tops)
    return first, second


def worst_sets(model: FluidModel, work: Vector, pair: tuple[int, int], outside: Collection[int] = ()) -> Sets | None:
    """The heaviest sets over all priorities, by a minimum cut: the source side is A and B.

    None where the heaviest are at one station only; any others then need less than that station does.

    Parameters
    ----------
    work : sequence of Fraction, length K
        What a class counts.
    pair : (int, int)
        s and t.
    outside : collection of int
        Classes that may not be in the sets, as if tasks came to them from outside.
    """
    import networkx as nx

    here, there = pair
    scale = common_denominator([work[k] for s in pair for k in model.at(s)])
    graph = nx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    for k in (*model.at(here), *model.at(there)):
        weight = int(work[k] * scale)
        foreign = any(model.station[source] not in pair for source, _ in model.predecessors[k])
        barred = foreign or model.arrival[k] > 0 or k in outside
        if model.station[k] == here:  # A: its work is lost where it is not a member
            graph.add_edge("source", k, capacity=weight)
            if barred:
                graph.add_edge(k, "sink")  # no capacity: infinite
        else:  # B: its work is lost where it is one
            graph.add_edge(k, "sink", capacity=weight)
            if barred:
                graph.add_edge("source", k)
        for source, _ in model.predecessors[k]:
            if model.station[source] in pair:
                _imply(graph, model, source, k, here)
    _, (inside, _) = nx.minimum_cut(graph, "source", "sink")
    first = tuple(k for k in model.at(here) if k in inside)
    second = tuple(k for k in model.at(there) if k not in inside)
    return (first, second) if _both(work, (first, second)) else None


def _imply(graph: DiGraph, model: FluidModel, source: int, k: int, here: int) -> None:
    """A route from ``source`` to k, as an implication between A and B."""
    # Into A, what feeds it is in A, or at t and in B. Into V_t, the same read backwards: k is in B if what feeds it is
    # in B (at t), or in A (at s).
    tail, head = (k, source) if model.station[k] == here else (source, k)
    graph.add_edge(tail, head)


def _favouring(model: FluidModel, pair: tuple[int, int], sets: Sets) -> FluidModel:
    """The model in which the two sets come first at their stations."""
    orders = list(model.priority)
    for s, group in zip(pair, sets, strict=True):
        orders[s] = (*group, *(k for k in model.at(s) if k not in group))
    return model.with_priority(orders)


def _named(model: FluidModel, classes: Collection[int]) -> str:
    return enumeration([model.classes[k] for k in classes])
