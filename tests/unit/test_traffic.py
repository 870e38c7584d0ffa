"""Traffic equations: published numbers, large networks, enclosures and what they are refused for."""

import random
from fractions import Fraction

import attrs
import pytest

from queuetheory_llm.errors import AssumptionViolated, CertificateRejected, InvalidModel, NotConverged
from queuetheory_llm.exact.elimination import NotPositive, solve
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability import traffic as equations
from queuetheory_llm.stability.traffic import components, cyclic_joins, load_certificate, require_open, traffic
from queuetheory_llm.verdict import Verdict


def network(rows, station=None, joins=(), arrival=None):
    """Classes k0, k1, ... with rows of (class, P); one task a second into k0; each class at its own station."""
    count = len(rows)
    station = list(range(count)) if station is None else station
    stations = max(station) + 1
    return FluidModel(
        stations=tuple(f"s{s}" for s in range(stations)),
        classes=tuple(f"k{k}" for k in range(count)),
        station=tuple(station),
        arrival=tuple(arrival or [Fraction(1)] + [Fraction(0)] * (count - 1)),
        service=(Fraction(1, 10),) * count,
        routing=tuple(tuple((to, Fraction(p)) for to, p in row) for row in rows),
        priority=(None,) * stations,
        preemptive=(False,) * stations,
        joins=tuple(joins),
        forks=((0, (1, 2)),) * len(joins),
    )


def right_side(model, rates):
    return tuple(
        alpha + sum(p * rates[source] for source, p in row)
        for alpha, row in zip(model.arrival, model.predecessors, strict=True)
    )


class TestPublishedNumbers:
    def test_the_jackson_loop(self):
        model = load_network("jackson-loop").fluid_model
        found = traffic(model)
        assert found.rates == (Fraction(15, 14), Fraction(10, 7), Fraction(10, 7))
        assert found.loads == (Fraction(15, 28), Fraction(5, 7), Fraction(5, 14))
        assert components(model) == ((0, 1, 2),)
        assert load_certificate(model, found).verdict is Verdict.STABLE
        # The mean number in a Jackson network is the sum of rho/(1 - rho) (Jackson 1957).
        assert float(sum(rho / (1 - rho) for rho in found.loads)) == pytest.approx(4.2094017, abs=5e-8)

    def test_a_fork_gives_each_branch_the_rate_and_its_join_gives_it_back(self):
        model = load_network("fork-join").fluid_model
        found = traffic(model)
        assert found.rates == (Fraction(1, 2),) * 4
        assert cyclic_joins(model) == ()
        assert [model.stations[s] for (s,) in components(model)] == ["splitter", "left", "right", "merger"]
        assert load_certificate(model, found).verdict is Verdict.STABLE

    def test_rybko_stolyar_has_low_loads_and_they_decide_nothing(self):
        model = load_network("rybko-stolyar").fluid_model
        found = traffic(model)
        assert found.loads == (Fraction(7, 10),) * 2
        assert components(model) == ((0, 1),)
        with pytest.raises(CertificateRejected):
            load_certificate(model, found)
        over = model.scaled(Fraction(10, 7) + Fraction(1, 1000))
        assert load_certificate(over, traffic(over)).verdict is Verdict.UNSTABLE

    def test_the_llm_form(self):
        """608 tokens a round trip, 768 a second: Dai et al., arXiv 2504.07347, section 5.4, at loads of 0.9."""
        model = load_network("rybko-stolyar-llm").fluid_model
        assert traffic(model).loads == (Fraction(9, 10),) * 2


class TestCycles:
    def test_retries(self):
        found = traffic(network([[(0, "2/3"), (1, "1/3")], []]))
        assert found.rates == (3, 1)
        assert found.visits == (4, 1)

    def test_a_fork_in_a_cycle_with_rows_above_and_below_1(self):
        """k0 forks to k1 and k2, each of which comes back with probability p: rates 1/(1 - 2p), up to p = 1/2."""
        for p in (Fraction(1, 4), Fraction(49, 100)):
            model = network([[(1, 1), (2, 1)], [(0, p)], [(0, p)]])
            assert traffic(model).rates == (1 / (1 - 2 * p),) * 3
        for p in (Fraction(1, 2), Fraction(51, 100), Fraction(1)):
            with pytest.raises(InvalidModel, match="the fork after 'k0' is in the cycle k0 -> k1 -> k0"):
                traffic(network([[(1, 1), (2, 1)], [(0, p)], [(0, p)]]))

    def test_a_class_named_twice_in_a_row_counts_twice(self):
        assert traffic(network([[(0, "1/4"), (0, "1/4")]])).rates == (2,)
        with pytest.raises(InvalidModel, match="no task ever leaves the cycle k0 -> k0"):
            require_open(network([[(0, "1/2"), (0, "1/2")]]))

    def test_a_trap_that_nothing_enters_is_one(self):
        with pytest.raises(InvalidModel, match="no task ever leaves the cycle k1 -> k2 -> k1"):
            traffic(network([[], [(2, 1)], [(1, 1)]]))

    def test_many_classes_of_a_trap_are_not_all_named(self):
        rows = [[(k + 1, "1/2"), (0, "1/2")] for k in range(99)] + [[(0, 1)]]
        with pytest.raises(InvalidModel) as refused:
            traffic(network(rows))
        (line,) = refused.value.faults
        assert "the classes k0, k1, k2, k3 and 96 more" in line
        assert len(line) < 200


class TestJoinsInCycles:
    def test_a_repeated_fork_join(self):
        """k0 forks to k1 and k2, joined as k3, which starts again or leaves."""
        rows = [[(1, 1), (2, 1)], [(3, "1/2")], [(3, "1/2")], [(0, "1/2")]]
        repeated = network(rows, joins=[((1, 2), 3)])
        assert cyclic_joins(repeated) == (0,)
        assert traffic(repeated).rates == (2, 2, 2, 2)
        assert cyclic_joins(network([*rows[:3], []], joins=[((1, 2), 3)])) == ()

    def test_stations_may_close_the_cycle(self):
        """No class comes back, but the joined task goes to a station that feeds the fork."""
        rows = [[(1, 1), (2, 1)], [(3, "1/2")], [(3, "1/2")], []]
        assert cyclic_joins(network(rows, station=[0, 1, 2, 0], joins=[((1, 2), 3)])) == (0,)
        assert cyclic_joins(network(rows, station=[0, 0, 1, 1], joins=[((1, 2), 3)])) == ()


class TestLargeNetworks:
    def test_ten_thousand_classes_in_small_cycles_and_a_big_one(self):
        """Pairs of classes, retried with probability 3/10; half of what reaches the end begins again.

        Each pair passes on what enters it, F = 1 + (5/7) F, and serves F/(7/10) of each class.
        """
        count = 10_000
        rows = [[(k + 1, 1)] if k % 2 == 0 else [(k - 1, "3/10"), (k + 1, "7/10")] for k in range(count - 1)]
        found = traffic(network([*rows, [(count - 2, "3/10"), (0, "1/2")]], station=[k % 100 for k in range(count)]))
        assert found.exact
        assert found.rates == (5,) * count
        assert found.loads == (50,) * 100

    def test_a_walk_of_three_hundred_steps(self):
        """Each class comes back to the one before it with probability 1/3: net flows are 1, denominators 2^300."""
        count = 300
        rows = [[(k - 1, "1/3"), (k + 1, "2/3")] if k else [(1, 1)] for k in range(count - 1)]
        found = traffic(network([*rows, [(count - 2, "1/3")]]))
        assert found.exact
        forward = [found.rates[0], *(Fraction(2, 3) * rate for rate in found.rates[1:])]
        back = [Fraction(1, 3) * rate for rate in found.rates[1:]]
        assert all(a - b == 1 for a, b in zip(forward[:-1], back, strict=True))
        assert forward[-1] == 1

    def test_too_much_work_is_enclosed(self):
        """A long row of classes, each with two ways on and a leak: the exact rates have hundreds of digits."""
        draw = random.Random(7)
        rows = [[(k + 1, Fraction(draw.randint(300, 499), 1009)), (k + 2, "1/2")] for k in range(1998)] + [[], []]
        model = network(rows, station=[k % 10 for k in range(2000)])
        found = traffic(model)
        assert not found.exact
        below, above = right_side(model, found.low), right_side(model, found.high)
        assert all(low <= bound for low, bound in zip(found.low, below, strict=True))
        assert all(high >= bound for high, bound in zip(found.high, above, strict=True))
        assert all(b - a < Fraction(1, 10**9) for a, b in zip(found.loads_low, found.loads_high, strict=True))
        with pytest.raises(AssumptionViolated, match="enclosed, not solved"):
            load_certificate(model, found)

    @pytest.mark.parametrize("leak", [0, Fraction(1, 10**18)])
    def test_what_floats_cannot_tell_is_not_answered(self, monkeypatch, leak):
        model = network([[(1, 1), (2, 1)], [(0, "1/2")], [(0, Fraction(1, 2) - leak)]])
        monkeypatch.setattr(equations, "MOST_WORK", 0)
        with pytest.raises(NotConverged, match="floats do not tell"):
            traffic(model)
        monkeypatch.undo()
        if leak:
            assert traffic(model).rates[0] == 1 / leak


@pytest.mark.parametrize("name", ["lu-kumar", "jackson-loop", "fork-join", "text-to-sql-loop", "rybko-stolyar-llm"])
def test_the_work_that_a_task_brings(name):
    """w = m + P w, and the loads of all stations together are the work that comes: alpha.w = lambda.m."""
    model = load_network(name).fluid_model
    work = solve(model.routing, model.service)
    through = [
        sum((p * work[to] for to, p in row), mean) for mean, row in zip(model.service, model.routing, strict=True)
    ]
    assert list(work) == through
    assert sum(rate * each for rate, each in zip(model.arrival, work, strict=True)) == sum(traffic(model).loads)


def test_the_work_of_tasks_that_never_leave_is_infinite():
    for rows in ([[(1, 1)], [(0, 1)]], [[(1, 1), (2, 1)], [(0, "1/2")], [(0, "1/2")]], [[(0, 2)]]):
        model = network(rows)
        with pytest.raises(NotPositive):
            solve(model.routing, model.service)


def test_a_station_without_classes_is_idle():
    model = load_network("tandem").fluid_model
    alone = attrs.evolve(model, stations=(*model.stations, "spare"), priority=(None,) * 3, preemptive=(False,) * 3)
    assert traffic(alone).loads[2] == 0
    assert traffic(alone.restricted([2], traffic(alone).rates)).loads == (0,)


def test_any_routes_among_forty_classes_are_solved_exactly():
    """Every class leads to every other, with probabilities of six digits."""
    draw = random.Random(3)
    rows = [[(to, Fraction(draw.randint(7000, 24000), 10**6)) for to in range(40)] for _ in range(40)]
    found = traffic(network(rows))
    assert found.exact
    assert right_side(network(rows), found.rates) == found.rates


def test_plain_values():
    found = traffic(load_network("jackson-loop").fluid_model).to_dict()
    assert found["rates"] == found["low"] == ["15/14", "10/7", "10/7"]
    assert found["exact"] is True
