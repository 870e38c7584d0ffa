"""Fluid paths by numerical integration: first come, first served stations, and rates that change over time.

Q_k(t) = Q_k(0) + A_k(t) - D_k(t), where A_k counts what comes into class k, from outside and from other classes, and
D_k what it has put out (Dai 1995). At a station with priorities the highest class with fluid has the station; at a
first come, first served station what comes at time t leaves at t + W(t), W the seconds of work there (Bramson 1996).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.exact.numbers import Number
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.result import Result
from queuetheory_llm.stability.arguments import (
    Start,
    read_horizon,
    read_number,
    read_state,
    require_profile,
    to_fluid_model,
)
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.fluid_integration import FluidIntegration
from queuetheory_llm.stability.traffic import components, cyclic_joins

#: Default of the relative error of an integration.
TOLERANCE = 1e-9
#: Classes of stations that feed one another: flows at an instant are searched for among their combinations.
MOST_ON_CYCLES = 100


@attrs.frozen(kw_only=True, eq=False)
class OdePath(Result):
    """A fluid path, computed in floating-point numbers.

    Attributes
    ----------
    model : FluidModel
    profile : RateProfile or None
        How the external rates change.
    times : array, length n + 1
        Ends of the intervals on which flows are smooth, seconds; 0 and the horizon included.
    states : array, n + 1 by K
        Q, tasks of each class at those times.
    served : array, n + 1 by K
        D, tasks that each class has put out since time 0.
    drift : array, length K
        dQ/dt at the end; tasks per second.
    negligible : array, length n + 1
        Work, in seconds, that counts as none at those times.
    solutions : tuple of scipy.integrate.OdeSolution
        (Q, D) as a function of time on each interval.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.fluid:draw_fluid_path"
    model: FluidModel
    profile: RateProfile | None
    times: Floats
    states: Floats
    served: Floats
    drift: Floats
    negligible: Floats
    solutions: tuple[Callable[[float], Floats], ...] = attrs.field(repr=False)

    @property
    def horizon(self) -> float:
        """The last time, seconds."""
        return float(self.times[-1])

    def at(self, time: float) -> Floats:
        """Q at a time, tasks of each class.

        Raises
        ------
        InvalidInput
            If the time is outside 0 .. horizon.
        """
        if not 0 <= time <= self.horizon:
            raise InvalidInput(f"time: {time:g} s is outside 0 .. {self.horizon:g} s; follow the path further")
        index = int(np.searchsorted(self.times, time, side="right")) - 1
        if time == self.times[index]:
            return np.asarray(self.states[index])
        return np.maximum(self.solutions[index](time)[: len(self.model.classes)], 0.0)

    def sampled(self, points: int = 400) -> tuple[Floats, Floats]:
        """Times and states for a drawing: ``points`` even ones and all ends of intervals."""
        times = np.union1d(np.linspace(0, self.horizon, points), self.times)
        return times, np.array([self.at(time) for time in times])

    @cached_property
    def totals(self) -> Floats:
        """Tasks in the network at `times`."""
        return np.asarray(self.states.sum(axis=1))

    @cached_property
    def work(self) -> Floats:
        """Seconds of work waiting at each station at `times`, n + 1 by S."""
        service = np.array([float(mean) for mean in self.model.service])
        found = np.zeros((len(self.times), len(self.model.stations)))
        for k, s in enumerate(self.model.station):
            found[:, s] += service[k] * self.states[:, k]
        return found

    @property
    def emptying_time(self) -> float | None:
        """Seconds from which on the network is empty up to the horizon; None if it is not empty in the end."""
        busy = np.flatnonzero((self.work > self.negligible[:, None]).any(axis=1))
        if busy.size == 0:
            return 0.0
        last = int(busy[-1])
        return None if last == len(self.times) - 1 else float(self.times[last + 1])

    @property
    def end(self) -> FluidEnd:
        """EMPTY, or HORIZON where there is fluid then."""
        return FluidEnd.HORIZON if self.emptying_time is None else FluidEnd.EMPTY

    @property
    def growth(self) -> float:
        """Tasks per second by which the fluid of all classes grows at the end; negative while it drains."""
        return float(self.drift.sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        peak = int(np.argmax(self.totals))
        return {
            "method": "ode",
            "classes": list(self.model.classes),
            "stations": list(self.model.stations),
            "first_come_first_served": [
                name for name, order in zip(self.model.stations, self.model.priority, strict=True) if order is None
            ],
            "profile": None if self.profile is None else self.profile.to_dict(),
            "horizon": self.horizon,
            "end": self.end.value,
            "reason": self.end.meaning,
            "emptying_time": self.emptying_time,
            "growth": self.growth,
            "times": self.times.tolist(),
            "states": self.states.tolist(),
            "served": self.served.tolist(),
            "totals": self.totals.tolist(),
            "station_seconds": self.work.tolist(),
            "peak": {"time": float(self.times[peak]), "total": float(self.totals[peak])},
            "negligible_seconds": float(self.negligible[-1]),
        }


def ode_path(
    model: FluidModel | Network,
    start: Start,
    horizon: Number,
    *,
    profile: RateProfile | None = None,
    tolerance: Number = TOLERANCE,
) -> OdePath:
    """Follow the fluid of a network from a start.

    At a first come, first served station the initial queue is one mixture of its classes, served before all that comes.
    Joins wait for the slowest sibling, and none is half joined at the start. Where the fluid model has several
    solutions this is the one that a network takes in which nothing flows at first; from empty, in particular, the one
    that stays empty if there is one.

    Parameters
    ----------
    model : FluidModel or Network
        With priorities or first come, first served at each station.
    start : mapping of class names to numbers, or sequence of length K
        Q(0), tasks; classes left out of a mapping have none.
    horizon : number or str
        Seconds, > 0.
    profile : RateProfile, optional
        External rates over time, factors or tasks per second of all its classes together; absent: constant.
    tolerance : float
        Relative error of the integration; also the work that counts as none, relative to the work at the start (to a
        thousandth of the time passed where that is more; from empty at first, to one of the profile or the horizon). At
        first come, first served stations with several classes 10^4 times as much may be out of place, for otherwise the
        jumps of their mixtures multiply without end.

    Raises
    ------
    InvalidInput
        If start, horizon or tolerance make no sense.
    InvalidModel
        If the profile gives rates to classes without any.
    AssumptionViolated
        If a join is inside a cycle.
    NotConverged
        If flows are not found, or events follow one another without end.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> model = load_network("rybko-stolyar").fluid_model
    >>> path = ode_path(model, {"A1": 1}, 7.125)
    >>> [round(float(path.at(time).sum()), 6) for time in (1.5, 3.75, 7.125)]
    [1.5, 2.25, 3.375]
    """
    model = to_fluid_model(model)
    if profile is not None:
        require_profile(profile)
    end = read_horizon(horizon)
    error = float(read_number("tolerance", tolerance))
    if not 1e-13 <= error <= 1e-3:
        raise InvalidInput(f"tolerance: {error:g} is outside 1e-13 .. 0.001; leave it at {TOLERANCE:g}")
    for number in cyclic_joins(model):
        raise AssumptionViolated(
            f"the join into {model.classes[model.joins[number][1]]} is inside a cycle; a fluid path needs joins "
            "outside: of a workflow give the stages that a retry repeats one call each and none side by side, or ask "
            "qt-llm dispatch, which runs it as it is"
        )
    _require_searchable(model)
    begin = np.array([float(tasks) for tasks in read_state(model, start)])
    run = FluidIntegration.begin(model, begin, float(end), profile, error)
    while run.time < run.horizon:
        run.advance()
    return OdePath(
        model=model,
        profile=profile,
        times=np.array(run.times),
        states=np.array([queues for queues, _ in run.states]),
        served=np.array([served for _, served in run.states]),
        drift=run.drift,
        negligible=np.array(run.counted),
        solutions=tuple(run.solutions),
    )


def _require_searchable(model: FluidModel) -> None:
    together = max((sum(len(model.at(s)) for s in group) for group in components(model) if len(group) > 1), default=0)
    if together > MOST_ON_CYCLES:
        raise InvalidInput(
            f"model: {together} classes of stations that feed one another; fluid paths are followed up to "
            f"{MOST_ON_CYCLES}: follow a part of the network, or simulate it"
        )
