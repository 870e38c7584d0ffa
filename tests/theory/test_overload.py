"""Overloads: closed forms, quadrature, the capacity that is enough, a simulated crowd, networks."""

from __future__ import annotations

from fractions import Fraction as F

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import queuetheory_llm as qt
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.stability.backlog_arcs import backlog_arcs, least_capacity, seconds_above
from queuetheory_llm.stability.overload import engine_overload, network_overload

ENGINE = qt.Engine(batch_time=qt.Table(tokens=[100], seconds_at=[1]), b_max=100)  # 100 tokens/s
WORK = qt.Workload.of(prefill=6, decode=4)
CROWD = RateProfile(times=[0, 10, 20], values=[8, 14, 5], quantity="rate")
RS = load_network("rybko-stolyar").fluid_model


def loads(shape: str | None = None):
    """Profiles on even times, with values on both sides of 1, ending below it."""
    values = st.lists(st.fractions(0, 3, max_denominator=8), min_size=1, max_size=6)
    return st.builds(
        lambda values, shape: RateProfile(
            times=range(0, 2 * len(values) + 2, 2), values=[*values, F(1, 2)], shape=shape
        ),
        values,
        st.just(shape) if shape else st.sampled_from(["steps", "linear"]),
    )


def test_a_crowd_in_steps():
    """40 tokens/s too many for 10 s, then 50 too few."""
    found = engine_overload(ENGINE, CROWD, WORK)
    assert found.deepest == (20, 400)
    assert (found.seconds_over, found.drained, found.growth) == (10, 28, 0)
    assert [found.at(time) for time in (5, 15, 24, 30)] == [0, 200, 200, 0]
    data = found.to_dict()
    assert (data["depth"], data["exact"]["drained_at"], data["unit"]) == (400, "28", "tokens")


def test_a_crowd_in_lines():
    """The load is 80 + 6 t, then 140 - 9 (t - 10): above 100 from 10/3 to 130/9."""
    found = engine_overload(ENGINE, attrs.evolve(CROWD, shape="linear"), WORK)
    begin, end = F(10, 3), F(130, 9)
    assert found.deepest == (end, (end - begin) * 40 / 2)  # a triangle
    assert found.seconds_over == end - begin
    # 50 - (140 - 9x - 100) ... after t = 20 the load is 50: what is left then falls at 50.
    left = found.at(20)
    assert left == (end - begin) * 20 - (20 - end) ** 2 * 9 / 2
    assert found.drained == 20 + left / 50


def test_a_backlog_at_the_start():
    found = engine_overload(ENGINE, RateProfile.constant(5, quantity="rate"), WORK, start=200)
    assert (found.depth, found.drained, found.seconds_over) == (200, 4, 0)


def test_for_ever_above_capacity():
    found = engine_overload(ENGINE, RateProfile.constant(11, quantity="rate"), WORK)
    assert (found.depth, found.drained, found.seconds_over, found.growth) == (None, None, None, 10)
    assert engine_overload(ENGINE, RateProfile.constant(10, quantity="rate"), WORK, start=7).drained is None


def test_never_above_capacity():
    found = engine_overload(ENGINE, RateProfile.constant(9, quantity="rate"), WORK)
    assert (found.depth, found.drained, found.seconds_over) == (0, 0, 0)


@given(loads(), st.fractions(0, 3, max_denominator=4))
@settings(max_examples=30)
def test_the_backlog_is_the_reflected_integral(load, start):
    """Against the supremum over a fine grid of X(t) - X(s)."""
    arcs = backlog_arcs(load, F(1), start)
    grid = [F(k, 8) for k in range(8 * (int(load.times[-1]) + 4))]
    excess = [load.area(time) - time for time in grid]
    lowest = -start
    for time, value in zip(grid, excess, strict=True):
        lowest = min(lowest, value)
        arc = max((arc for arc in arcs if arc.start <= time), key=lambda arc: arc.start)
        # Between points of the grid the integral may be lower by at most slope/2 (1/8)^2.
        assert float(value - lowest) - 1e-9 <= float(arc.at(time)) <= float(value - lowest) + 1.5 / 2 / 64 + 1e-9


@given(loads(), st.fractions(F(1, 10), 3, max_denominator=10))
@settings(max_examples=40)
def test_the_least_capacity_is_just_enough(load, depth):
    needed = least_capacity(load, depth)
    deepest = max(arc.top[1] for arc in backlog_arcs(load, needed))
    if load.shape == "steps":
        assert deepest <= depth
        assert needed == load.last or deepest == depth
    else:
        assert float(deepest) <= float(depth) + 1e-9
        assert needed == load.last or float(deepest) == pytest.approx(float(depth), abs=1e-9)


@given(loads("linear"))
@settings(max_examples=20)
def test_seconds_above_by_counting(load):
    points = np.arange(0, float(load.times[-1]), 1 / 32) + 1 / 64
    share = np.mean([load.at(F(time)) > 1 for time in points])
    assert float(seconds_above(load, F(1))) == pytest.approx(share * float(load.times[-1]), abs=len(load.times) / 16)


def test_the_least_capacity_for_steps_is_exact():
    found = engine_overload(ENGINE, CROWD, WORK, keep_below=100)
    assert found.capacity_needed == 130  # 140 - 100/10
    assert engine_overload(ENGINE, CROWD, WORK, keep_below=0).capacity_needed == 140
    with pytest.raises(InvalidInput, match="below the backlog at the start"):
        engine_overload(ENGINE, CROWD, WORK, keep_below=1, start=2)


def test_the_capacity_is_that_of_the_scheduler():
    slow = engine_overload(ENGINE, CROWD, WORK, scheduler="fastertransformer")
    assert slow.capacity == qt.threshold(ENGINE, "fastertransformer", WORK).low * 10
    assert slow.depth is None or slow.depth > 400
    assert engine_overload(ENGINE, CROWD, WORK, capacity=150).depth == 0


def test_a_simulated_crowd_is_near_the_fluid():
    """A Poisson stream with the intensity of the profile; its workload is summed exactly, 400 times."""
    found = engine_overload(ENGINE, CROWD, WORK)
    rng = np.random.default_rng(5)
    seen = []
    for _ in range(400):
        times = np.sort(np.concatenate([rng.uniform(low, high, rng.poisson(rate * 100 * (high - low)))
                                        for low, high, rate in ((0, 10, 8), (10, 20, 14))]))  # fmt: skip
        # A hundred times the traffic in tokens a hundred times as small: the fluid scale.
        excess = 0.1 * np.arange(1, times.size + 1) - 100 * times
        seen.append(0.1 * times.size - 2000 - min(0.0, excess.min()))
    error = np.std(seen) / 20
    assert abs(np.mean(seen) - float(found.at(20))) < 4 * error + 2  # the bias of reflection is of the order of 1


def test_factors_need_a_rate():
    with pytest.raises(InvalidInput, match="the workload has no rate"):
        engine_overload(ENGINE, RateProfile.constant(1), WORK)
    with pytest.raises(InvalidInput, match="classes of a network"):
        engine_overload(ENGINE, RateProfile(times=[0], values=[1], classes=["a"]), WORK)
    with pytest.raises(InvalidInput, match="capacity: 0 is not positive"):
        engine_overload(ENGINE, CROWD, WORK, capacity=0)
    with pytest.raises(InvalidInput, match="start: -1 is negative"):
        engine_overload(ENGINE, CROWD, WORK, start=-1)
    known = attrs.evolve(WORK, arrivals=qt.PoissonArrivals(rate=8))
    assert engine_overload(ENGINE, RateProfile(times=[0, 10, 20], values=[1, "7/4", "5/8"]), known).depth == 400


class TestNetworks:
    ONE = FluidModel(
        stations=("s",), classes=("a",), station=(0,), arrival=(F(8),), service=(F(1, 10),), routing=((),),
        priority=(None,), preemptive=(False,),
    )  # fmt: skip

    def test_one_station_is_the_closed_form(self):
        found = network_overload(self.ONE, CROWD)
        assert found.depth == pytest.approx(4, abs=1e-6)
        assert found.drained == pytest.approx(28, abs=1e-5)
        data = found.to_dict()["stations"][0]
        assert (data["largest_load"], data["seconds_over_capacity"]) == (1.4, 10)

    def test_the_speed_that_is_enough(self):
        """Work is 1.4 a second at unit speed: (1.4/c - 1) 10 = 2 at c = 7/6."""
        found = network_overload(self.ONE, CROWD, keep_below=2)
        assert found.speed_needed == pytest.approx(7 / 6, rel=2e-4)
        assert network_overload(self.ONE, CROWD, keep_below=5).speed_needed == 1
        with pytest.raises(InvalidInput, match="keep-below: 0 is not positive"):
            network_overload(self.ONE, CROWD, keep_below=0)

    def test_priorities_may_never_recover_from_a_crowd(self):
        """Rybko and Stolyar at loads .7: a burst of A for a second, and the network oscillates ever higher."""
        burst = RateProfile(times=[0, 1], values=[4, 1], classes=["A1"])
        found = network_overload(RS, burst, horizon=60)
        assert found.drained is None
        assert found.depth > 8
        assert network_overload(RS, burst, horizon=120).depth > 1.4 * found.depth
        assert all(load.largest < 4 and load.last < 1 for load in found.loads)
        assert network_overload(RS.with_priority((None, None)), burst, horizon=60).drained is not None


@pytest.mark.parametrize("horizon", [200, 10**10, "1e30 s"])
def test_a_crowd_leaves_the_same_backlog_however_long_it_is_followed(horizon):
    crowd = RateProfile(times=[0, 60], values=[2, "0.3"])
    found = network_overload(load_network("rybko-stolyar"), crowd, horizon=horizon)
    assert found.depth == pytest.approx(64.503394518, rel=1e-8)
    assert found.drained == pytest.approx(191.25, rel=1e-8)


def test_a_profile_of_too_many_rows_is_refused():
    def rows(count):
        return RateProfile(times=range(count), values=[1] * count)

    with pytest.raises(InvalidInput, match="profile: 2001 rows; at most 2000 are followed through a network"):
        network_overload(RS, rows(2001))
    system = qt.load_model("codellama-34b-a100")
    with pytest.raises(InvalidInput, match="profile: 100001 rows; at most 100000 are followed through an engine"):
        engine_overload(system.engine, rows(100_001), system.workload)
    with pytest.raises(InvalidInput, match="profile: 1001 rows; at most 1000"):
        engine_overload(system.engine, rows(1001), system.workload, keep_below=1)


@pytest.mark.parametrize("key", ["start", "capacity", "keep_below"])
def test_a_number_that_is_none_is_said_of_its_argument(key):
    system = qt.load_model("codellama-34b-a100")
    flat = RateProfile.constant(1, quantity="rate")
    with pytest.raises(InvalidInput, match=f"{key}: nan is not finite"):
        engine_overload(system.engine, flat, system.workload, **{key: float("nan")})
