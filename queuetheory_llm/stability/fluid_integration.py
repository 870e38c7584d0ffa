"""Integration of a fluid path by scipy's ``solve_ivp``, from event to event.

Between two events nothing changes but external rates and what lies at the head of the queues, and flows are a function
of time (`fluid_flows`). Events that ``solve_ivp`` finds are: a queue empties, an empty one begins to fill, another
sibling of a join is waited for. Known beforehand are the breakpoints of the rates and when another mixture reaches the
head of a first come, first served queue (`fluid_fifo`). There an interval ends at the latest when what came
at its start is served, so that what is served has always been recorded (the method of steps for delay equations).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.polynomial.chebyshev import chebpts2
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput, NotConverged
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.rate_profile import Ramp, RateProfile
from queuetheory_llm.stability.fluid_fifo import Belt, Inflow, Stretch, recorded
from queuetheory_llm.stability.fluid_flows import FRESH, MARGIN, STORED, FlowEquations, Flows, Outputs, Regime

_MOST_INTERVALS = 50_000
_RESOLUTION = 10_000  # in negligible queues: work of a queue that may be out of place
_LATE = 1e-3  # of the time passed: work that is as small as the tolerance beside it counts as none
_DEGREE = 6  # of the polynomials that record what comes into a first come, first served queue
_LEAST_WORK = 0.5  # seconds of work per second below which a short queue is followed to its end


@attrs.frozen(eq=False)
class External:
    """External rates on one stretch of a profile: ``rates + slopes (t - start)``."""

    rates: Floats
    slopes: Floats
    start: float
    end: float

    def at(self, time: float) -> Floats:
        """Tasks per second of each class."""
        return np.maximum(self.rates + self.slopes * (time - self.start), 0.0)

    @property
    def constant(self) -> bool:
        """Whether they do not change."""
        return not self.slopes.any()


def externals_of(model: FluidModel, profile: RateProfile | None, horizon: float) -> Iterator[External]:
    """External rates of a model, stretch by stretch.

    Raises
    ------
    InvalidInput, InvalidModel
        If the profile is about other classes, or gives rates to classes without any.
    """
    base = np.array([float(rate) for rate in model.arrival])
    if profile is None:
        yield External(base, np.zeros_like(base), 0.0, horizon)
        return
    members = profile_members(model, profile)
    own = sum((model.arrival[k] for k in members), Fraction(0))
    chosen = np.zeros(len(base), dtype=bool)
    chosen[members] = True
    for ramp in profile.relative_to(own).ramps():
        yield _external(base, chosen, ramp, horizon)


def _external(base: Floats, chosen: NDArray[np.bool_], ramp: Ramp, horizon: float) -> External:
    end = horizon if ramp.end is None else float(ramp.end)
    rates = np.where(chosen, base * float(ramp.value), base)
    return External(rates, np.where(chosen, base * float(ramp.slope), 0.0), float(ramp.start), end)


def _first_scale(profile: RateProfile | None, horizon: float) -> float:
    """Seconds that a path from empty is about at first: a thousandth of its profile, which it may outlast by far."""
    length = horizon if profile is None else min(horizon, float(profile.times[-1]) or horizon)
    return length * _LATE


def profile_members(model: FluidModel, profile: RateProfile) -> list[int]:
    """Classes whose external rates a profile changes.

    Raises
    ------
    InvalidInput
        If it names a class that the model does not have.
    """
    if profile.classes is None:
        return list(range(len(model.classes)))
    unknown = [name for name in profile.classes if name not in model.classes]
    if unknown:
        known = ", ".join(model.classes[:10])
        raise InvalidInput([f"profile: {name!r} is no class of the model; known: {known}" for name in unknown])
    return [model.classes.index(name) for name in profile.classes]


@attrs.frozen
class _Event:
    """A function of time and (Q, D) that ends the interval when it falls through 0."""

    value: Callable[[float, Floats], float]
    terminal: ClassVar[bool] = True
    direction: ClassVar[float] = -1.0

    def __call__(self, time: float, state: Floats) -> float:
        return self.value(time, state)


@attrs.frozen(eq=False)
class _Interval:
    """A stretch of time on which flows are smooth: their regime, what puts out stored work, and the time they end."""

    regime: Regime
    external: External
    stored: Mapping[int, tuple[float, Stretch]]  # by station, what lies at the head of its queue, and from which place
    start: float

    @cached_property
    def constant(self) -> bool:
        """Whether flows do not change at all."""
        return self.external.constant and all(stretch.constant for _, stretch in self.stored.values())

    @cached_property
    def first(self) -> Flows:
        """Flows at the start."""
        return self._flows(self.start)

    def flows(self, time: float) -> Flows:
        """Flows at a time of the interval."""
        return self.first if self.constant else self._flows(time)

    def _flows(self, time: float) -> Flows:
        return self.regime.flows(self.external.at(time), self.outputs(time))

    def outputs(self, time: float) -> Outputs:
        """Tasks per second that come out of the queues whose composition is known."""
        return {s: stretch.at(place + time - self.start) for s, (place, stretch) in self.stored.items()}


@attrs.define(eq=False)
class FluidIntegration:
    """A path so far, and the next step of it.

    Attributes
    ----------
    equations : FlowEquations
    externals : list of External
        By time.
    horizon, tolerance : float
    scale : float
        Seconds of work or of time that the path is about at first.
    queues, served : array, length K
        Q and D now, tasks.
    belts : dict
        The queue of each first come, first served station.
    time : float
        Now, seconds.
    drift : array, length K
        dQ/dt now.
    times, states, counted, solutions : list
        Ends of the intervals, (Q, D) and `negligible` there, and (Q, D) as a function of time on each interval.
    """

    equations: FlowEquations
    externals: list[External]
    horizon: float
    tolerance: float
    scale: float
    queues: Floats
    served: Floats
    belts: dict[int, Belt]
    time: float = 0.0
    drift: Floats = attrs.field(factory=lambda: np.zeros(0))
    times: list[float] = attrs.field(factory=lambda: [0.0])
    states: list[tuple[Floats, Floats]] = attrs.field(factory=list)
    counted: list[float] = attrs.field(factory=list)
    solutions: list[Callable[[float], Floats]] = attrs.field(factory=list)

    @classmethod
    def begin(
        cls, model: FluidModel, start: Floats, horizon: float, profile: RateProfile | None, tolerance: float
    ) -> FluidIntegration:
        """At time 0, with initial queues mixed."""
        equations = FlowEquations(model)
        run = cls(
            equations=equations,
            externals=list(externals_of(model, profile, horizon)),
            horizon=horizon,
            tolerance=tolerance,
            scale=float(equations.service @ start) or _first_scale(profile, horizon),
            queues=start.copy(),
            served=np.zeros_like(start),
            belts={},
        )
        run.belts = {
            s: Belt(equations.service[equations.at[s]], _RESOLUTION * run.negligible) for s in equations.first_come
        }
        for s, belt in run.belts.items():
            work = run.work_at(s)
            if work > run.negligible:
                belt.put(work, Inflow(run.queues[equations.at[s]] / work))
        run.states.append((run.queues.copy(), run.served.copy()))
        run.counted.append(run.negligible)
        return run

    @property
    def negligible(self) -> float:
        """Seconds of work that count as none: more of them late on a path than early, as rounding has it."""
        return self.tolerance * max(self.scale, self.time * _LATE)

    def work_at(self, station: int) -> float:
        """Seconds of work waiting at a station."""
        classes = self.equations.at[station]
        return float(self.equations.service[classes] @ self.queues[classes])

    @property
    def displaced(self) -> float:
        """Seconds of work that may be out of place after an interval."""
        return _RESOLUTION / 10 * self.negligible

    @property
    def short(self) -> float:
        """Work of a queue so short that the time spent in it may be neglected while rates change: its square is."""
        return self.negligible / math.sqrt(self.tolerance)

    @property
    def filled(self) -> NDArray[np.bool_]:
        """Classes with a queue; at a first come, first served station they have one together."""
        found = self.equations.service * self.queues > self.negligible
        for s, belt in self.belts.items():
            found[self.equations.at[s]] = bool(belt.stretches)
        return found

    # ------------------------------------------------------------------------------------------------ one interval

    def advance(self) -> None:
        """Follow the path to the next event."""
        if len(self.times) > _MOST_INTERVALS:
            raise NotConverged(
                f"{_MOST_INTERVALS} events up to {self.time:g} s of {self.horizon:g} s; follow a shorter path, or "
                "raise the tolerance"
            )
        interval = self._interval()
        end = self._known_end(interval)
        self._record(interval, self._integrate(interval, end))

    def _interval(self) -> _Interval:
        external = next(each for each in reversed(self.externals) if each.start <= self.time)
        stored = {s: (belt.place, belt.stretches[0]) for s, belt in self.belts.items() if belt.stretches}
        found = self._in_regime(external, stored)
        if found.constant:
            return found
        # While rates change, what comes into a short queue is what leaves it.
        brief = [s for s in stored if self.work_at(s) < self.short and self._work_rate(found, s) >= _LEAST_WORK]
        return found if not brief else self._in_regime(external, {s: v for s, v in stored.items() if s not in brief})

    def _in_regime(self, external: External, stored: Mapping[int, tuple[float, Stretch]]) -> _Interval:
        outputs = {s: stretch.at(place) for s, (place, stretch) in stored.items()}
        regime = self.equations.regime(external.at(self.time), self.filled, outputs, self._open_joins())
        return _Interval(regime, external, stored, self.time)

    def _work_rate(self, interval: _Interval, station: int) -> float:
        """Seconds of work that come into a station per second."""
        classes = self.equations.at[station]
        return float(self.equations.service[classes] @ interval.first.arrivals[classes])

    def _open_joins(self) -> list[list[int]]:
        """For each join the siblings of which none waits for another."""
        slack = self.negligible / self.equations.service
        return [
            [k for k in siblings if self.served[k] <= self.served[list(siblings)].min() + slack[k]]
            for siblings, _ in self.equations.model.joins
        ]

    def _known_end(self, interval: _Interval) -> float:
        """When rates change, or another mixture reaches the head of a queue."""
        ends = [self.horizon, interval.external.end]
        for s, (place, stretch) in interval.stored.items():
            belt, classes = self.belts[s], self.equations.at[s]
            if len(belt.stretches) > 1 or (len(classes) > 1 and not self._goes_on(interval, s, stretch)):
                ends.append(self.time + stretch.end - place)
        return min(end for end in ends if end > self.time)

    def _goes_on(self, interval: _Interval, station: int, stretch: Stretch) -> bool:
        """Whether what comes in is what lies at the head already."""
        if not interval.constant:
            return False
        work = self._work_rate(interval, station)
        return work == 0 or stretch.is_like(interval.first.arrivals[self.equations.at[station]] / work)

    def _integrate(self, interval: _Interval, end: float) -> dict[int, Inflow]:
        """Step to the end or the first event, in halves until what comes into queues is recorded well; that record."""
        from scipy.integrate import solve_ivp

        def rates(time: float, _: Floats) -> Floats:
            flows = interval.flows(time)
            return np.concatenate([flows.arrivals - flows.departures, flows.departures])

        events = list(self._events(interval))
        while True:
            found = solve_ivp(
                rates,
                (self.time, end),
                np.concatenate([self.queues, self.served]),
                method="DOP853",
                rtol=max(self.tolerance / 10, 1e-12),
                atol=self.negligible / 10,
                dense_output=True,
                events=[event for event, _ in events],
                first_step=end - self.time if interval.constant else None,
            )
            if not found.success:
                raise NotConverged(f"the fluid path is not integrated beyond {self.time:g} s: {found.message}")
            reached = float(found.t[-1])
            came = self._came(interval, reached)
            if came is not None:
                break
            end = (self.time + reached) / 2
        self._step_to(found, reached, [emptied for (_, emptied), times in zip(events, found.t_events, strict=True)
                                       if len(times)])  # fmt: skip
        return came

    def _step_to(self, found: Any, reached: float, emptied: Sequence[NDArray[np.int64] | None]) -> None:
        count = len(self.queues)
        self.queues, self.served = np.maximum(found.y[:count, -1], 0.0), found.y[count:, -1]
        for classes in emptied:
            if classes is not None:
                self.queues[classes] = 0
        self.solutions.append(found.sol)
        self.time = self.horizon if self.horizon - reached <= 1e-15 * self.horizon else reached

    # ----------------------------------------------------------------------------------------------------- events

    def _events(self, interval: _Interval) -> Iterator[tuple[_Event, NDArray[np.int64] | None]]:
        """Functions that fall through 0 at an event, and the classes that are empty then."""
        for s, limit in enumerate(interval.regime.limits):
            classes = self.equations.at[s]
            if self.equations.model.priority[s] is None:
                yield from self._queue_events(interval, s, limit)
            elif limit is not None:
                yield self._emptied(np.array([limit])), np.array([limit])
                classes = classes[: int(np.flatnonzero(classes == limit)[0])]
            if limit not in (STORED, FRESH) and len(classes) and not interval.constant:
                yield self._overflow(interval, classes), None
        for last, (siblings, _) in zip(interval.regime.last, self.equations.model.joins, strict=True):
            for k in siblings:
                if k != last:
                    yield self._caught_up(k, last), None

    def _queue_events(
        self, interval: _Interval, station: int, limit: int | None
    ) -> Iterator[tuple[_Event, NDArray[np.int64] | None]]:
        classes = self.equations.at[station]
        if limit is not None:
            yield self._emptied(classes), classes
        if limit == FRESH and not interval.constant:
            service, short = self.equations.service[classes], self.short
            yield _Event(lambda _, state: 2 * short - float(service @ state[classes])), None

    def _emptied(self, classes: NDArray[np.int64]) -> _Event:
        """The work of classes together; one that begins at 0 may first be a rounding error below it."""
        service = self.equations.service[classes]
        slack = 0.0 if service @ self.queues[classes] > self.negligible else 2 * self.negligible
        return _Event(lambda _, state: float(service @ state[classes]) + slack)

    def _overflow(self, interval: _Interval, classes: NDArray[np.int64]) -> _Event:
        """The room that empty classes leave; with a margin above that of `fluid_flows`, which then sees them fill."""
        service = self.equations.service[classes]
        return _Event(lambda time, _: 1 + MARGIN - float(service @ interval.flows(time).arrivals[classes]))

    def _caught_up(self, sibling: int, last: int) -> _Event:
        """Joinable tasks of a sibling that wait for the one that is last."""
        place, other = len(self.queues) + sibling, len(self.queues) + last
        waiting = self.served[sibling] > self.served[last] + self.negligible / self.equations.service[sibling]
        slack = 0.0 if waiting else 2 * self.negligible / self.equations.service[sibling]
        return _Event(lambda _, state: float(state[place] - state[other]) + slack)

    # ------------------------------------------------------------------------------------------- recording queues

    def _record(self, interval: _Interval, came: Mapping[int, Inflow]) -> None:
        """Note the state, and what came into the queues."""
        spent = self.time - interval.start
        for s, belt in self.belts.items():
            belt.resolution = _RESOLUTION * self.negligible
            if interval.regime.limits[s] is None:
                continue
            belt.put(belt.place + spent + self.work_at(s), came[s])
            belt.move(belt.place + spent, self.negligible / 1000)
            if self.work_at(s) <= self.negligible:
                self.queues[self.equations.at[s]] = 0
                belt.clear()
        flows = interval.flows(self.time)
        self.drift = flows.arrivals - flows.departures
        self.times.append(self.time)
        self.states.append((self.queues.copy(), self.served.copy()))
        self.counted.append(self.negligible)

    def _came(self, interval: _Interval, end: float) -> dict[int, Inflow] | None:
        """What comes into first come, first served queues up to ``end``; None where that is too long to tell."""
        queues = [s for s in self.belts if interval.regime.limits[s] is not None]
        found = {s: self._steady(interval, s) for s in queues if self._is_steady(interval, s)}
        rest = [s for s in queues if s not in found]
        if not rest:
            return found
        times = self.time + (end - self.time) * (chebpts2(2 * _DEGREE + 1) + 1) / 2
        arrivals = np.array([interval.flows(time).arrivals for time in times])
        for s in rest:
            classes = self.equations.at[s]
            inflow = recorded(times, arrivals[:, classes], self.equations.service[classes], self.displaced)
            if inflow is None:
                return None
            found[s] = inflow
        return found

    def _is_steady(self, interval: _Interval, station: int) -> bool:
        return interval.constant or len(self.equations.at[station]) == 1

    def _steady(self, interval: _Interval, station: int) -> Inflow:
        """One mixture throughout; of one class there is only one."""
        classes = self.equations.at[station]
        if len(classes) == 1:
            return Inflow(1 / self.equations.service[classes])
        work = self._work_rate(interval, station)
        return Inflow(interval.first.arrivals[classes] / max(work, np.finfo(float).tiny))
