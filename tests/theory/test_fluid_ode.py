"""Fluid paths by integration: known paths, first come, first served, rates that change, joins."""

from __future__ import annotations

from fractions import Fraction as F

import attrs
import numpy as np
import pytest
from fcfs_tasks import simulated_states
from fluid_networks import random_lines, random_start

from queuetheory_llm.errors import AssumptionViolated, InvalidInput, InvalidModel, NotConverged
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.stability import fluid_integration
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.fluid_ode import OdePath, ode_path
from queuetheory_llm.stability.fluid_path import fluid_path

RS = load_network("rybko-stolyar").fluid_model
LU_KUMAR = load_network("lu-kumar").fluid_model
FCFS = (None, None)
BUMP = RateProfile(times=[0, 1, 2, 4], values=[1, 3, 0, 1])
WAVE = attrs.evolve(BUMP, shape="linear")


def line(*stations: int, means: tuple[str, ...], rate: str = "1") -> FluidModel:
    """One route through stations, first come, first served."""
    size = len(stations)
    return FluidModel(
        stations=tuple(f"s{s}" for s in range(max(stations) + 1)),
        classes=tuple(str(k + 1) for k in range(size)),
        station=stations,
        arrival=(F(rate),) + (F(0),) * (size - 1),
        service=tuple(map(F, means)),
        routing=(*(((k + 1, F(1)),) for k in range(size - 1)), ()),
        priority=(None,) * (max(stations) + 1),
        preemptive=(False,) * (max(stations) + 1),
    )


def two_classes(rates: tuple[str, str] = ("1", "1"), priority: tuple[int, ...] | None = None) -> FluidModel:
    """One station, mean services 1/2 and 1/4 s."""
    return FluidModel(
        stations=("s",), classes=("a", "b"), station=(0, 0), arrival=tuple(map(F, rates)),
        service=(F(1, 2), F(1, 4)), routing=((), ()), priority=(priority,), preemptive=(False,),
    )  # fmt: skip


def served_by(path: OdePath, time: float) -> np.ndarray:
    """D at a time, tasks that each class has put out."""
    index = min(int(np.searchsorted(path.times, time, side="right")), len(path.times) - 1) - 1
    return path.solutions[index](time)[len(path.model.classes) :]


class TestPriorities:
    def test_rybko_stolyar_grows_by_three_halves_each_half_cycle(self):
        path = ode_path(RS, (1, 0, 0, 0), F(57, 8))
        for time, state in (
            (F(3, 2), (0, 0, F(3, 2), 0)),
            (F(15, 4), (F(9, 4), 0, 0, 0)),
            (F(57, 8), (0, 0, F(27, 8), 0)),
        ):
            np.testing.assert_allclose(path.at(float(time)), [float(each) for each in state], atol=1e-6)
            assert np.abs(path.times - float(time)).min() < 1e-6  # an event, found
        assert (path.end, path.emptying_time) == (FluidEnd.HORIZON, None)

    def test_infinitely_many_shrinking_cycles_end_at_their_limit(self):
        """m2 = 2/5: empty at t = 2, the sum of a geometric series."""
        path = ode_path(attrs.evolve(RS, service=tuple(map(F, ("1/10", "2/5", "1/10", "2/5")))), (1, 0, 0, 0), 5)
        assert path.emptying_time == pytest.approx(2, abs=1e-6)
        assert path.end is FluidEnd.EMPTY
        assert path.totals[-1] < 1e-8

    def test_lu_kumar_blocks_itself(self):
        """A cycle of length 3 from one task in class 1 ends with three halves (Lu and Kumar 1991)."""
        path = ode_path(LU_KUMAR, {"1": 1}, 3)
        np.testing.assert_allclose(path.at(3), [1.5, 0, 0, 0], atol=1e-6)

    @pytest.mark.parametrize("seed", range(12))
    def test_it_agrees_with_the_exact_path(self, seed):
        model = random_lines(seed, stations=2 + seed % 2, lengths=((4,), (3, 2), (2, 2, 2))[seed % 3])
        exact = fluid_path(model, random_start(seed, model), horizon=12, most_events=60)
        if not exact.unique:
            pytest.skip("several paths")
        path = ode_path(model, random_start(seed, model), max(exact.seconds, F(1)))
        for point in exact.breakpoints:
            np.testing.assert_allclose(path.at(float(point.time)), [float(q) for q in point.state], atol=1e-6)

    def test_a_path_without_unique_flows_still_obeys_them(self):
        """From empty, Rybko and Stolyar's network stays empty: that is a solution."""
        assert ode_path(RS, {}, 10).emptying_time == 0


class TestFirstComeFirstServed:
    def test_a_queue_of_two_classes(self):
        """W = 5/4 falls at 1 - rho = 1/4; the mixture at the start leaves first, then that of the arrivals."""
        path = ode_path(two_classes(), (2, 1), 8)
        assert path.emptying_time == pytest.approx(5, abs=1e-9)
        assert served_by(path, 0.5) == pytest.approx([0.8, 0.4], abs=1e-9)
        assert served_by(path, 1.25) == pytest.approx([2, 1], abs=1e-9)
        # What came by tau = 1.2 leaves by 1.25 + 3/4 tau.
        assert served_by(path, 1.25 + 0.9) == pytest.approx([2 + 1.2, 1 + 1.2], abs=1e-9)
        assert path.at(2) == pytest.approx([2 + 2 - 3, 1 + 2 - 2], abs=1e-9)  # tau = 1

    def test_an_overloaded_queue_puts_out_the_mixture_that_comes_in(self):
        path = ode_path(two_classes(("2", "4")), (0, 0), 10)
        assert served_by(path, 10) == pytest.approx([10, 20], abs=1e-7)
        assert path.at(10) == pytest.approx([10, 20], abs=1e-7)
        assert path.growth == pytest.approx(3)

    def test_a_burst_of_another_class_leaves_a_waiting_time_later(self):
        """b comes from 1 to 2, with a: W(1) = 1 and W(2) = 3, so that 4 tasks of each leave from 2 to 5."""
        only_b = RateProfile(times=[0, 1, 2, 3], values=[0, 1, 0, 0], classes=["b"])
        path = ode_path(two_classes(("4", "4")), (0, 0), 6, profile=only_b)
        assert served_by(path, 2) == pytest.approx([4, 0], abs=1e-7)
        assert served_by(path, 3.5) == pytest.approx([6, 2], abs=1e-7)
        assert served_by(path, 5) == pytest.approx([4 + 4, 4], abs=1e-6)

    @pytest.mark.parametrize(("profile", "tolerance"), [(None, 1e-9), (BUMP, 1e-9), (WAVE, 1e-7)])
    def test_what_comes_leaves_after_the_work_found(self, profile, tolerance):
        """D_k(t + W(t)) = Q_k(t) + D_k(t): Q_k(t) + D_k(t) came by t, an initial queue included."""
        for model, start in ((LU_KUMAR, (1, 0, 0, 0)), (RS, (0, 1, 0.5, 0))):
            path = ode_path(model.with_priority(FCFS), start, 3, profile=profile, tolerance=tolerance)
            for time in np.linspace(0.1, 2.9, 12):
                state, served = path.at(time), served_by(path, time)
                for s, station in enumerate(model.stations):
                    classes = list(model.at(s))
                    work = sum(float(model.service[k]) * state[k] for k in classes)
                    if time + work <= path.horizon:
                        later = served_by(path, time + work)
                        assert later[classes] == pytest.approx((state + served)[classes], abs=1e4 * tolerance), station

    @pytest.mark.parametrize("profile", [None, BUMP, WAVE])
    def test_fluid_is_conserved(self, profile):
        for model in (LU_KUMAR.with_priority(FCFS), LU_KUMAR.with_priority((None, (1, 2)))):
            path = ode_path(model, (1, 0, 0, 0), 3, profile=profile, tolerance=1e-7)
            area = [float(time) if profile is None else float(profile.area(F(time))) for time in path.times]
            for when, state, served in zip(area, path.states, path.served, strict=True):
                come = np.array([float(rate) * when for rate in model.arrival])
                for k, row in enumerate(model.routing):
                    for to, share in row:
                        come[to] += float(share) * served[k]
                np.testing.assert_allclose(state, np.array([1, 0, 0, 0]) + come - served, atol=2e-5)

    @pytest.mark.parametrize(
        ("model", "start", "profile"),
        [
            (LU_KUMAR, [1, 0, 0, 0], None),
            (LU_KUMAR, [0.5, 0.3, 0.2, 0.7], BUMP),
            (RS, [1, 0, 0, 0], WAVE),
            (line(0, 1, means=("1/2", "2/3")), [2, 0], WAVE),
        ],
    )
    def test_many_small_tasks_follow_it(self, model, start, profile):
        model = model.with_priority((None,) * len(model.stations))
        times = np.linspace(0, 3, 16)[1:]
        path = ode_path(model, start, 3, profile=profile, tolerance=1e-7)
        fluid = np.array([path.at(time) for time in times])
        errors = [np.abs(simulated_states(model, start, times, n, profile) - fluid).max() for n in (100, 1600)]
        assert errors[1] < 5e-3
        assert errors[1] < errors[0] / 4

    @pytest.mark.parametrize("model", [RS, LU_KUMAR])
    def test_it_drains_where_service_does_not_depend_on_the_class(self, model):
        """Bramson (1996): FCFS networks of Kelly type are stable below load 1."""
        kelly = attrs.evolve(model, service=(F(9, 20),) * 4, priority=FCFS)
        path = ode_path(kelly, (1, 0, 0, 2), 60, tolerance=1e-6)
        assert path.emptying_time is not None
        assert path.totals[-1] < 1e-4

    def test_first_come_first_served_can_be_unstable(self):
        """Bramson's construction (Annals of Applied Probability 4, 1994): slow and quick stages, all loads below 1.

        One quick stage before and one slow after a slow and five quick ones elsewhere: loads .801 and .805. Each cycle
        ends on the same shape, larger by one factor, and simulated tasks do the same.
        """
        quick, slow = "1/1000", "4/5"
        model = line(0, *(1,) * 6, 0, means=(quick, slow, *(quick,) * 5, slow))
        assert max(sum(model.service[k] for k in model.at(s)) for s in (0, 1)) < F(81, 100)
        path = ode_path(model, [1] + [0] * 7, 120, tolerance=1e-8)
        windows = [(path.times > low) & (path.times < high) for low, high in ((5, 20), (20, 60), (60, 120))]
        first, second, third = (path.totals[window].max() for window in windows)
        assert second / first > 2.6
        assert third / second == pytest.approx(second / first, rel=1e-3)
        times = np.array([20.0, 40.0, 60.0])
        tasks = simulated_states(model, [1] + [0] * 7, times, 200)
        np.testing.assert_allclose(tasks.sum(axis=1), [path.at(time).sum() for time in times], rtol=0.01)


class TestRatesThatChange:
    def test_an_overload_is_a_parabola(self):
        """Work comes at .3 t a second: from 10/3 s on more than 1, and the backlog is the excess since then."""
        model = line(0, means=("1",))
        ramp = RateProfile(times=[0, 5, 10], values=[0, "1.5", 0], shape="linear")
        path = ode_path(model, (0,), 15, profile=ramp)
        for time in (4, 5, 7):
            begun = F(10, 3)
            backlog = ramp.area(time) - ramp.area(begun) - (time - begun)
            assert path.at(time)[0] == pytest.approx(float(backlog), abs=1e-8)
        drained = path.emptying_time
        assert drained is not None
        assert float(ramp.area(F(drained)) - ramp.area(F(10, 3))) - (drained - 10 / 3) == pytest.approx(0, abs=1e-6)

    def test_rates_and_factors(self):
        model = two_classes(("1", "3"), (0, 1))
        factor = RateProfile(times=[0, 1], values=[2, 1])
        rate = RateProfile(times=[0, 1], values=[8, 4], quantity="rate")
        paths = [ode_path(model, (0, 0), 4, profile=profile) for profile in (factor, rate)]
        np.testing.assert_array_equal(paths[0].states, paths[1].states)
        assert paths[0].at(1) == pytest.approx([0, 6], abs=1e-9)  # a alone fills the station

    def test_named_classes_alone(self):
        path = ode_path(two_classes(("1", "1"), (0, 1)), (0, 0), 2, profile=RateProfile(
            times=[0], values=[3], classes=["b"]))  # fmt: skip
        assert path.at(2) == pytest.approx([0, 2], abs=1e-9)  # b: 3 a second come, 2 are served beside a

    def test_rates_of_nothing_are_refused(self):
        profile = RateProfile(times=[0], values=[3], quantity="rate", classes=["A2"])
        with pytest.raises(InvalidModel, match="without external arrivals"):
            ode_path(RS, {}, 1, profile=profile)
        with pytest.raises(InvalidInput, match="'C' is no class"):
            ode_path(RS, {}, 1, profile=attrs.evolve(profile, classes=["C"]))


def fork_join(slow: str, cyclic: bool = False) -> FluidModel:
    """f forks into y (1/4 s) and z, joined into w."""
    return FluidModel(
        stations=("f", "y", "z", "w"), classes=("f", "y", "z", "w"), station=(0, 1, 2, 3),
        arrival=(F(1), F(0), F(0), F(0)), service=(F(1, 10), F(1, 4), F(slow), F(1, 10)),
        routing=(((1, F(1)), (2, F(1))), ((3, F(1, 2)),), ((3, F(1, 2)),), ((0, F(1, 2)),) if cyclic else ()),
        priority=(None,) * 4, preemptive=(False,) * 4, joins=(((1, 2), 3),), forks=((0, (1, 2)),),
    )  # fmt: skip


def test_an_event_is_never_met_twice() -> None:
    """A ramp overfills empty classes a hair at a time; the path goes on, and fluid is conserved."""
    model = attrs.evolve(two_classes(("1", "2"), (0, 1)), service=(F(1, 20), F(1, 3)))
    ramp = RateProfile(times=[0, 1, 2], values=[1, 2, "0.5"], shape="linear")
    path = ode_path(model, (0, 0), 4, profile=ramp)
    assert path.states[-1] + path.served[-1] == pytest.approx([float(ramp.area(4)), 2 * float(ramp.area(4))], abs=1e-7)
    assert len(path.times) < 12


class TestJoins:
    def test_the_joined_task_waits_for_the_slower_sibling(self):
        path = ode_path(fork_join("1/2"), {"y": 2, "z": 2}, 8)
        for time in (1, 2, 3):
            assert served_by(path, time)[3] == pytest.approx(min(served_by(path, time)[1:3]), abs=1e-9)
        assert path.emptying_time == pytest.approx(2, abs=1e-6)  # z: 2 tasks, 1 a second more than come

    def test_another_sibling_may_become_the_last(self):
        """z is behind while it has a queue; y later, when its own queue is longer."""
        model = attrs.evolve(fork_join("1/2"), arrival=(F(3, 2), F(0), F(0), F(0)))
        path = ode_path(model, {"y": 6, "z": 1}, 10)
        for time in np.linspace(0.2, 9.8, 17):
            assert served_by(path, time)[3] == pytest.approx(min(served_by(path, time)[1:3]), abs=1e-6)

    def test_a_join_inside_a_cycle_is_refused(self):
        with pytest.raises(AssumptionViolated, match="the join into w is inside a cycle"):
            ode_path(fork_join("1/2", cyclic=True), {}, 1)


class TestAnswers:
    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"start": {"C": 1}}, "'C' is no class"),
            ({"start": (1, 2)}, "2 numbers for 4 classes"),
            ({"start": {"A1": -1}}, "'A1' holds -1 tasks"),
            ({"horizon": 0}, "horizon: 0 s is not positive"),
            ({"tolerance": 1}, "tolerance: 1 is outside"),
        ],
    )
    def test_bad_input(self, changes, what):
        arguments = {"start": {}, "horizon": 1, **changes}
        with pytest.raises(InvalidInput, match=what):
            ode_path(RS, arguments.pop("start"), arguments.pop("horizon"), **arguments)

    def test_times_outside_the_path(self):
        with pytest.raises(InvalidInput, match=r"outside 0 \.\. 2 s"):
            ode_path(RS, {}, 2).at(3)

    def test_events_without_end_are_refused(self, monkeypatch):
        monkeypatch.setattr(fluid_integration, "_MOST_INTERVALS", 20)
        with pytest.raises(NotConverged, match="20 events up to"):
            ode_path(LU_KUMAR.with_priority(FCFS), {"1": 1}, 6)

    def test_plain_data(self):
        path = ode_path(RS, {"A1": 1}, "1.5 s", profile=RateProfile.constant())
        assert isinstance(path, OdePath)
        data = path.to_dict()
        assert data["peak"] == {"time": pytest.approx(1.5), "total": pytest.approx(1.5)}
        assert data["station_seconds"][0] == pytest.approx([0.1, 0])
        assert data["first_come_first_served"] == []
        times, states = path.sampled(11)
        assert len(times) == len(states) >= 11


@pytest.mark.parametrize("horizon", [10, 10**8, 10**12, "1e30 s"])
def test_a_path_does_not_depend_on_how_long_it_is_followed(horizon):
    assert ode_path(load_network("fork-join"), {"split": 1}, horizon).emptying_time == pytest.approx(2, rel=1e-8)
    loop = load_network("text-to-sql-loop")
    start = {loop.arrivals[0].task_class: 1}
    soon = ode_path(loop, start, 10).emptying_time
    assert ode_path(loop, start, horizon).emptying_time == pytest.approx(soon, rel=1e-8)


def test_a_path_that_grows_is_right_at_once_and_late():
    exact = fluid_path(RS, {"A1": 1}, horizon=10**6)
    followed = ode_path(RS, {"A1": 1}, 10**12)
    for point in exact.breakpoints:
        assert followed.at(float(point.time)) == pytest.approx(
            [float(q) for q in point.state], rel=1e-6, abs=1e-6 * float(sum(point.state))
        )


@pytest.mark.parametrize(
    ("start", "changes", "what"),
    [
        (None, {}, "start: None holds no tasks"),
        ("A1", {}, "start: 'A1' holds no tasks"),
        ({"A1": float("nan")}, {}, "start: A1: nan is not finite"),
        ({"A1": 1}, {"horizon": float("nan")}, "horizon: nan is not finite"),
        ({"A1": 1}, {"tolerance": "x"}, "tolerance: 'x' is not a number"),
        ({"A1": 1}, {"profile": 3}, "profile: a value of type int is no profile"),
    ],
)
def test_what_is_wrong_is_said_of_the_argument(start, changes, what):
    with pytest.raises(InvalidInput, match=what):
        ode_path(RS, start, **{"horizon": 1, **changes})


def test_many_classes_on_a_cycle_are_refused_at_once():
    """Flows at an instant are searched for among combinations of classes; without a cycle there is one."""
    count = 102
    line = FluidModel(
        stations=tuple(f"s{s}" for s in range(count)),
        classes=tuple(f"k{k}" for k in range(count)),
        station=tuple(range(count)),
        arrival=(F(1),) + (F(0),) * (count - 1),
        service=(F(1, 4),) * count,
        routing=(*(((k + 1, F(1)),) for k in range(count - 1)), ()),
        priority=(None,) * count,
        preemptive=(True,) * count,
    )
    assert ode_path(line, {"k0": 1}, 1).emptying_time == pytest.approx(1 / 3)
    ring = attrs.evolve(line, routing=(*line.routing[:-1], ((0, F(1, 2)),)))
    with pytest.raises(InvalidInput, match="102 classes of stations that feed one another"):
        ode_path(ring, {"k0": 1}, 1)
