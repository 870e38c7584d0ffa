"""Overloads: what a rate above capacity for a while leaves behind, and when it has been worked off.

As a fluid, the backlog of one engine is that of one server that works at its capacity (`backlog_arcs`). A network is
followed by `ode_path`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Number, Real, exact_text, to_fraction
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import to_policy
from queuetheory_llm.stability.arguments import Start, read_horizon, read_number, require_profile, to_fluid_model
from queuetheory_llm.stability.backlog_arcs import Arc, backlog_arcs, least_capacity, require_kept, seconds_above
from queuetheory_llm.stability.fluid_integration import profile_members
from queuetheory_llm.stability.fluid_ode import OdePath, ode_path
from queuetheory_llm.stability.thresholds import threshold
from queuetheory_llm.stability.traffic import traffic

#: Rows of a profile: fractions are added up row by row, and the capacity that keeps a depth takes pairs of rows; in a
#: network each row is an event of an integration.
_ENGINE_ROWS, _KEPT_ROWS, _NETWORK_ROWS = 100_000, 1000, 2000
_PATH_TOLERANCE = 1e-7  # of a path in a network
_SPEED_TOLERANCE = 1e-4  # of the speed that a network needs
_MOST_SPEED = 1e6
_LONGEST = 1024  # times the length of a profile, after which a network is taken not to drain
_POINTS = 2000  # at which the backlog of a network is looked at


@attrs.frozen(kw_only=True)
class Overload(Result):
    """The backlog of one engine through a profile of rates.

    Attributes
    ----------
    load : RateProfile
        Work per second.
    capacity : Fraction or float
        Work per second that can be done.
    unit : str
        Of work: "tokens" or "seconds of work".
    arcs : tuple of Arc
        The backlog over time.
    keep_below : Fraction or None
        A depth that was asked about.
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.overload:draw_overload"
    load: RateProfile
    capacity: Real
    unit: str
    arcs: tuple[Arc, ...]
    keep_below: Fraction | None = None
    notes: tuple[str, ...] = ()

    def at(self, time: Number) -> Real:
        """The backlog at a time >= 0."""
        asked = to_fraction(time)
        return max((arc for arc in self.arcs if arc.start <= asked), key=lambda arc: arc.start).at(asked)

    @property
    def growth(self) -> Real:
        """Work per second by which the backlog grows for ever in the end; 0 if it does not."""
        return max(self.load.last - self.capacity, Fraction(0))

    @cached_property
    def deepest(self) -> tuple[Real, Real] | None:
        """(time, backlog) where it is largest; None if it grows for ever."""
        if self.growth > 0:
            return None
        return max((arc.top for arc in self.arcs), key=lambda top: (top[1], -top[0]))

    @property
    def depth(self) -> Real | None:
        """The largest backlog; None if it grows for ever."""
        return None if self.deepest is None else self.deepest[1]

    @property
    def drained(self) -> Real | None:
        """Seconds from which on there is no backlog; 0 if there never is, None if one stays for ever."""
        last = self.arcs[-1]
        if last.level != 0 or last.excess != 0:
            return None
        busy = [arc.end for arc in self.arcs if arc.level != 0 or arc.excess != 0 or arc.slope != 0]
        return busy[-1] if busy else Fraction(0)

    @property
    def seconds_over(self) -> Real | None:
        """Seconds during which more work comes than can be done; None if for ever."""
        return None if self.growth > 0 else seconds_above(self.load, self.capacity)

    @cached_property
    def capacity_needed(self) -> Real | None:
        """The least capacity that keeps the backlog at most ``keep_below``, exact for steps; None if not asked."""
        return None if self.keep_below is None else least_capacity(self.load, self.keep_below, self.arcs[0].level)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; work in ``unit``, seconds."""
        numbers: dict[str, Real | None] = {
            "capacity_per_s": self.capacity,
            "largest_load_per_s": self.load.largest,
            "depth": self.depth,
            "deepest_at": None if self.deepest is None else self.deepest[0],
            "seconds_over_capacity": self.seconds_over,
            "drained_at": self.drained,
            "growth_per_s": self.growth,
            "keep_below": self.keep_below,
            "capacity_needed_per_s": self.capacity_needed,
        }
        return {
            "unit": self.unit,
            **{name: None if value is None else float(value) for name, value in numbers.items()},
            "exact": {name: None if value is None else exact_text(value) for name, value in numbers.items()},
            "profile": self.load.to_dict(),
            "notes": list(self.notes),
        }


@attrs.frozen(kw_only=True, eq=False)
class NetworkOverload(Result):
    """The backlogs of a network through a profile of rates, in seconds of work at each station.

    Attributes
    ----------
    path : OdePath
    loads : tuple of RateProfile
        Work per second that comes to each station in equilibrium with the rates of the instant.
    depths : tuple of (time, seconds of work), one a station
        Where each backlog is largest on the path, looked at in 2000 points and at every event.
    keep_below : float or None
    speed_needed : float or None
        Factor by which all stations must be faster for every backlog to stay below ``keep_below``.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.overload:draw_overload"
    path: OdePath
    loads: tuple[RateProfile, ...]
    depths: tuple[tuple[float, float], ...]
    keep_below: float | None = None
    speed_needed: float | None = None

    @property
    def depth(self) -> float:
        """The largest backlog of a station, seconds of work."""
        return max(depth for _, depth in self.depths)

    @property
    def drained(self) -> float | None:
        """Seconds from which on the network is empty; None if it is not at the horizon."""
        return self.path.emptying_time

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; work in seconds."""
        return {
            "unit": "seconds of work",
            "depth": self.depth,
            "stations": [
                {
                    "name": name,
                    "depth": depth,
                    "deepest_at": time,
                    "largest_load": float(load.largest),
                    "seconds_over_capacity": None if load.last > 1 else float(seconds_above(load, Fraction(1))),
                }
                for name, load, (time, depth) in zip(self.path.model.stations, self.loads, self.depths, strict=True)
            ],
            "drained_at": self.drained,
            "horizon": self.path.horizon,
            "growth_per_s": self.path.growth,
            "keep_below": self.keep_below,
            "speed_needed": self.speed_needed,
        }


def _require_short(profile: RateProfile, most: int, where: str) -> None:
    rows = len(require_profile(profile).times)
    if rows > most:
        raise InvalidInput(
            f"profile: {rows} rows; at most {most} are followed through {where}: give longer intervals, or a part of it"
        )


def engine_overload(
    engine: Engine,
    profile: RateProfile,
    workload: Workload,
    *,
    scheduler: Scheduler | str = "sarathi",
    capacity: Number | None = None,
    start: Number = 0,
    keep_below: Number | None = None,
) -> Overload:
    """The token backlog of an engine through a profile of rates.

    Parameters
    ----------
    engine : Engine
    profile : RateProfile
        Requests per second, or factors of the rate of the workload.
    workload : Workload
    scheduler : Scheduler or str
        Its threshold times the mean tokens of a request is the capacity; where only bounds are known, the rate proved
        stable.
    capacity : number, optional
        Tokens per second, instead.
    start : number
        Tokens waiting at time 0.
    keep_below : number, optional
        A depth in tokens; the least capacity that keeps the backlog so small is found.

    Raises
    ------
    InvalidInput
        If numbers make no sense, or factors have no rate to refer to.

    Examples
    --------
    >>> from queuetheory_llm.files.model_file import load_model
    >>> system = load_model("codellama-34b-a100")
    >>> crowd = RateProfile(times=[0, 60, 120], values=[10, 20, 10], quantity="rate")
    >>> found = engine_overload(system.engine, crowd, system.workload)
    >>> round(found.depth), found.deepest[0], round(float(found.drained), 1)
    (88625, Fraction(120, 1), 215.0)
    """
    _require_short(profile, _ENGINE_ROWS, "an engine")
    if profile.classes is not None:
        raise InvalidInput("profile: names classes of a network; the requests of an engine are all one stream")
    if profile.quantity == "factor" and workload.rate is None:
        raise InvalidInput("profile: gives factors, and the workload has no rate; give requests per second")
    notes: tuple[str, ...] = ()
    tokens = Fraction(workload.mean_tokens)
    if capacity is None:
        limit = threshold(engine, to_policy(scheduler), workload)
        able: Real = limit.low * tokens
        if not limit.exact:
            notes = (
                f"the capacity is that proved stable; the limit is below {float(limit.high * tokens):.6g} tokens/s",
            )
    else:
        able = read_number("capacity", capacity)
    if keep_below is not None:
        _require_short(profile, _KEPT_ROWS, "the search for the capacity that keeps a depth")
    requests = profile.rates(workload.rate or 0)
    load = attrs.evolve(requests, values=tuple(value * tokens for value in requests.values))
    return _overload(load, able, "tokens", read_number("start", start), keep_below, notes)


def _overload(
    load: RateProfile, capacity: Real, unit: str, start: Fraction, keep_below: Number | None, notes: tuple[str, ...]
) -> Overload:
    if capacity <= 0:
        raise InvalidInput(f"capacity: {float(capacity):g} is not positive; give {unit} per second")
    if start < 0:
        raise InvalidInput(f"start: {float(start):g} is negative; give at least 0 {unit}")
    kept = None if keep_below is None else read_number("keep_below", keep_below)
    if kept is not None:
        require_kept(kept, start)
    return Overload(
        load=load,
        capacity=capacity,
        unit=unit,
        arcs=backlog_arcs(load, capacity, start),
        keep_below=kept,
        notes=notes,
    )


def network_overload(
    model: FluidModel | Network,
    profile: RateProfile,
    *,
    start: Start | None = None,
    horizon: Number | None = None,
    keep_below: Number | None = None,
) -> NetworkOverload:
    """The backlogs of a network through a profile of rates.

    Parameters
    ----------
    model : FluidModel or Network
    profile : RateProfile
        Factors of its external rates, or tasks per second of all the classes named.
    start : mapping or sequence, optional
        Tasks at time 0; absent: none.
    horizon : number or str, optional
        Seconds; absent: twice the length of the profile, and on until the network is empty, up to 1024 times.
    keep_below : number, optional
        Seconds of work; the factor by which all stations must be faster for no backlog to exceed it is
        found by root search.

    Raises
    ------
    InvalidInput, InvalidModel, AssumptionViolated, NotConverged
        See `ode_path`; and NotConverged if no speed up to 10^6 is enough.
    """
    model = to_fluid_model(model)
    _require_short(profile, _NETWORK_ROWS, "a network")
    seconds = None if horizon is None else read_horizon(horizon)
    kept = None if keep_below is None else float(read_number("keep_below", keep_below))
    if kept is not None and kept <= 0:
        raise InvalidInput(f"keep-below: {kept:g} is not positive; give the seconds of work that may wait")

    def follow(speed: float) -> OdePath:
        faster = attrs.evolve(model, service=tuple(mean / Fraction(speed) for mean in model.service))
        return _followed(faster, {} if start is None else start, profile, seconds)

    path = follow(1.0)
    needed = None
    if kept is not None:
        needed = _speed_needed(lambda speed: max(depth for _, depth in _depths(follow(speed))), kept)
    return NetworkOverload(
        path=path,
        loads=_station_loads(model, profile),
        depths=_depths(path),
        keep_below=kept,
        speed_needed=needed,
    )


def _followed(model: FluidModel, start: Start, profile: RateProfile, horizon: Fraction | None) -> OdePath:
    if horizon is not None:
        return ode_path(model, start, horizon, profile=profile, tolerance=_PATH_TOLERANCE)
    length = max(profile.times[-1], Fraction(1))
    factor = 2
    while True:
        path = ode_path(model, start, factor * length, profile=profile, tolerance=_PATH_TOLERANCE)
        if path.emptying_time is not None or factor >= _LONGEST or path.growth > 0:
            return path
        factor *= 4


def _depths(path: OdePath) -> tuple[tuple[float, float], ...]:
    """(time, seconds of work) of the largest backlog of each station."""
    times, states = path.sampled(_POINTS)
    service = np.array([float(mean) for mean in path.model.service])
    found = []
    for s in range(len(path.model.stations)):
        classes = list(path.model.at(s))
        work = states[:, classes] @ service[classes]
        top = int(np.argmax(work))
        found.append((float(times[top]), float(work[top])))
    return tuple(found)


def _speed_needed(depth: Callable[[float], float], keep_below: float) -> float:
    """The speed at which the depth is what may be; 1 if it is enough."""
    from scipy.optimize import brentq

    high = 1.0
    while depth(high) > keep_below:
        high *= 2
        if high > _MOST_SPEED:
            raise NotConverged(f"keep-below: not kept by stations {_MOST_SPEED:g} times as fast; raise it")
    if high == 1.0:
        return 1.0
    return float(brentq(lambda speed: depth(speed) - keep_below, high / 2, high, rtol=_SPEED_TOLERANCE))


def _station_loads(model: FluidModel, profile: RateProfile) -> tuple[RateProfile, ...]:
    """rho_s over time: a part that does not change and one times the profile; exact where `traffic` is."""
    members = profile_members(model, profile)
    factors = profile.relative_to(sum((model.arrival[k] for k in members), Fraction(0)))
    own = tuple(rate if k in members else Fraction(0) for k, rate in enumerate(model.arrival))
    others = tuple(rate - part for rate, part in zip(model.arrival, own, strict=True))
    chosen, rest = (traffic(attrs.evolve(model, arrival=arrival)).loads for arrival in (own, others))
    return tuple(
        attrs.evolve(
            factors, values=tuple(own + value * part for value in factors.values), quantity="rate", classes=None
        )
        for part, own in zip(chosen, rest, strict=True)
    )
