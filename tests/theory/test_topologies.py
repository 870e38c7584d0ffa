"""Kinds of networks and the theorems on them, on the networks of the papers that named them."""

from fractions import Fraction

import attrs
import pytest

from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.network_topology import (
    FEED_FORWARD_THEOREM,
    FIRST_BUFFER_THEOREM,
    JACKSON_THEOREM,
    KELLY_THEOREM,
    LAST_BUFFER_THEOREM,
    MOST_CYCLES,
    NO_THEOREM,
    SINGLE_THEOREM,
    Kind,
    network_topology,
)


def network(rows, station, joins=(), service=None, priority=None):
    count, stations = len(rows), max(station) + 1
    return FluidModel(
        stations=tuple(f"s{s}" for s in range(stations)),
        classes=tuple(f"k{k}" for k in range(count)),
        station=tuple(station),
        arrival=(Fraction(1), *[Fraction(0)] * (count - 1)),
        service=tuple(service or [Fraction(1, 100)] * count),
        routing=tuple(tuple((to, Fraction(p)) for to, p in row) for row in rows),
        priority=tuple(priority or [None] * stations),
        preemptive=(False,) * stations,
        joins=tuple(joins),
        forks=((0, (1, 2)),) * len(joins),
    )


def line(station, **options):
    """One route through the stations."""
    return network([[(k + 1, 1)] for k in range(len(station) - 1)] + [[]], station, **options)


@pytest.mark.parametrize(
    ("name", "kind", "theorem"),
    [
        ("tandem", Kind.FEED_FORWARD, FEED_FORWARD_THEOREM),
        ("prefill-decode-disaggregated", Kind.FEED_FORWARD, FEED_FORWARD_THEOREM),
        ("fork-join", Kind.FORK_JOIN, FEED_FORWARD_THEOREM),
        ("jackson-loop", Kind.JACKSON, JACKSON_THEOREM),
        ("lu-kumar", Kind.RE_ENTRANT, NO_THEOREM),
        ("rybko-stolyar", Kind.RYBKO_STOLYAR, NO_THEOREM),
        ("rybko-stolyar-llm", Kind.RYBKO_STOLYAR, NO_THEOREM),
    ],
)
def test_packaged_networks(name, kind, theorem):
    found = network_topology(load_network(name).fluid_model)
    assert (found.kind, found.theorem, found.loads_decide) == (kind, theorem, theorem != NO_THEOREM)
    assert found.to_dict()["kind"] == kind.value
    assert found.complete


def test_retries_at_the_same_station_void_nothing():
    one = network_topology(network([[(0, "1/2"), (1, "1/2")], [(0, "1/4")]], [0, 0]))
    assert (one.kind, one.theorem, one.loads_decide, one.cycles) == (Kind.SINGLE, SINGLE_THEOREM, True, ())
    two = network_topology(network([[(0, "1/2"), (1, "1/2")], [(1, "1/4")]], [0, 1]))
    assert (two.kind, two.loads_decide, two.cycles) == (Kind.FEED_FORWARD, True, ())


def test_longer_opposite_routes():
    rows = [[(1, 1)], [(2, 1)], [], [(4, 1)], [(5, 1)], []]
    assert network_topology(network(rows, [0, 1, 2, 2, 1, 0])).kind is Kind.RYBKO_STOLYAR
    assert network_topology(network(rows, [0, 1, 2, 2, 0, 1])).kind is Kind.CYCLIC


def test_a_line_comes_back_only_after_another_station():
    assert network_topology(line([0, 0, 1])).kind is Kind.FEED_FORWARD
    found = network_topology(line([0, 0, 1, 0]))
    assert found.kind is Kind.RE_ENTRANT
    assert found.cycles == (("s0", "s1"),)
    assert found.sentence.endswith("s0 -> s1 -> s0")


def test_buffer_priorities_of_a_re_entrant_line():
    """Lu, Kumar 1991: of the orders of their network only the mixed ones can fail."""
    model = load_network("lu-kumar").fluid_model  # k1 (s1) -> k2 (s2) -> k3 (s2) -> k4 (s1)
    expected = {
        ((0, 3), (1, 2)): FIRST_BUFFER_THEOREM,
        ((3, 0), (2, 1)): LAST_BUFFER_THEOREM,
        ((3, 0), (1, 2)): NO_THEOREM,
        ((0, 3), (2, 1)): NO_THEOREM,
    }
    for order, theorem in expected.items():
        assert network_topology(model.with_priority(order)).theorem == theorem
    rerouted = attrs.evolve(model.with_priority(((0, 3), (1, 2))), arrival=(Fraction(1), *[Fraction(1)] * 3))
    leaking = attrs.evolve(model.with_priority(((0, 3), (1, 2))), routing=(((1, Fraction(1, 2)),), *model.routing[1:]))
    for each in (rerouted, leaking):
        found = network_topology(each)
        assert (found.kind, found.theorem) == (Kind.CYCLIC, NO_THEOREM)
    retried = attrs.evolve(model, routing=(((0, Fraction(1, 2)), (1, Fraction(1, 2))), *model.routing[1:]))
    assert network_topology(retried).kind is Kind.RE_ENTRANT


def test_first_come_first_served_needs_one_mean_a_station():
    """Bramson 1996; with means that differ, first come, first served can be unstable (Bramson 1994)."""
    same = line([0, 1, 0], service=[Fraction(1, 5), Fraction(1, 3), Fraction(1, 5)])
    assert network_topology(same).theorem == KELLY_THEOREM
    assert network_topology(same, in_order=False).theorem == NO_THEOREM
    assert network_topology(line([0, 1, 0], service=[Fraction(1, 5), Fraction(1, 3), Fraction(1, 4)])).theorem == (
        NO_THEOREM
    )
    # Under a priority that is neither first nor last buffer first throughout, equal means help nothing.
    mixed = line([0, 1, 1, 0], priority=[(3, 0), (1, 2)])
    assert network_topology(mixed).theorem == NO_THEOREM


def test_groups_are_judged_one_by_one():
    """A Jackson loop before a loop of shared stations."""
    rows = [[(1, 1)], [(0, "1/2"), (2, "1/2")], [(3, 1)], [(4, 1)], []]
    found = network_topology(network(rows, [0, 1, 2, 3, 2], priority=[None, None, (4, 2), None]))
    assert found.groups == (("s0", "s1"), ("s2", "s3"))
    assert found.theorem == f"{JACKSON_THEOREM}; {NO_THEOREM}"
    assert not found.loads_decide
    assert set(found.cycles) == {("s0", "s1"), ("s2", "s3")}


def test_a_join_in_a_cycle_is_beyond_the_theorems():
    rows = [[(1, 1), (2, 1)], [(3, "1/2")], [(3, "1/2")], [(0, "1/2")]]
    found = network_topology(network(rows, [0, 1, 2, 3], joins=[((1, 2), 3)]))
    assert found.joins_in_cycles == 1
    assert not found.loads_decide


def test_cycles_are_counted_to_a_limit():
    """Seven stations with routes between all of them have over a thousand cycles."""
    rows = [[(to, "1/7") for to in range(7) if to != k] for k in range(7)]
    found = network_topology(network(rows, list(range(7))))
    assert len(found.cycles) == MOST_CYCLES
    assert not found.complete
    ring = network_topology(network([[((k + 1) % 1000, "1/2")] for k in range(1000)], list(range(1000))))
    assert ring.sentence.endswith("s0 -> s1 -> s2 -> ... -> s0 (1000 in all)")
    assert len(ring.cycles[0]) == 1000
