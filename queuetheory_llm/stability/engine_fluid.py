"""The fluid limit of a scheduler on one engine: how its two token backlogs drain or grow.

On the scale of the backlogs the engine moves with the drift of the place where it is (Dai 1995; Fayolle, Malyshev and
Menshikov 1995): the interior drift while prompt and decode tokens are both plentiful, and along an axis the drift of
the one that is plentiful, averaged over the other. The path is therefore a chain of straight pieces, see `induced`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Number, Real, exact_text
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import name_of
from queuetheory_llm.stability.arguments import read_horizon, read_number
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.induced import DriftBounds, InducedDrifts, induced_drifts

Pair = tuple[Real, Real]


@attrs.frozen(kw_only=True)
class EnginePoint:
    """A corner of a path.

    Attributes
    ----------
    time : Fraction or float
        Seconds.
    prefill, decode : Fraction or float
        Prompt tokens not yet served; decode tokens of requests past their prompts.
    """

    time: Real
    prefill: Real
    decode: Real


@attrs.frozen(kw_only=True)
class EngineFluidPath(Result):
    """The path of the two token backlogs.

    Attributes
    ----------
    drifts : InducedDrifts
        Of the scheduler at the rate.
    points : tuple of EnginePoint
        Straight lines join them.
    end : FluidEnd
    slope : tuple of two numbers, or None
        Prompt and decode tokens per second where the path ends; for ever, unless that is the horizon. None where a
        drift on its way cannot be told from 0.
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.engine_fluid:draw_engine_fluid"
    drifts: InducedDrifts
    points: tuple[EnginePoint, ...]
    end: FluidEnd
    slope: Pair | None = None
    notes: tuple[str, ...] = ()

    @property
    def scheduler(self) -> str:
        """Name of the rule."""
        return self.drifts.scheduler

    @property
    def emptying_time(self) -> Real | None:
        """Seconds until both backlogs are empty; None if they do not empty on the path."""
        return self.points[-1].time if self.end is FluidEnd.EMPTY else None

    @property
    def growth(self) -> Real | None:
        """Tokens per second by which both backlogs together grow where the path ends; None where that is not known."""
        return None if self.slope is None else self.slope[0] + self.slope[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; tokens, seconds."""
        return {
            "method": "drifts",
            "scheduler": self.scheduler,
            "rate": float(self.drifts.rate),
            "points": [
                {"time": float(point.time), "prefill": float(point.prefill), "decode": float(point.decode)}
                for point in self.points
            ],
            "end": self.end.value,
            "reason": self.end.meaning,
            "emptying_time": None if self.emptying_time is None else float(self.emptying_time),
            "emptying_time_exact": None if self.emptying_time is None else exact_text(self.emptying_time),
            "growth": None if self.growth is None else float(self.growth),
            "slope": None if self.slope is None else {"prefill": float(self.slope[0]), "decode": float(self.slope[1])},
            "drifts": self.drifts.to_dict(),
            "notes": list(self.notes),
        }


def engine_fluid(
    engine: Engine,
    scheduler: Scheduler | str,
    workload: Workload,
    start: Sequence[Number],
    *,
    rate: Number | None = None,
    horizon: Number | None = None,
) -> EngineFluidPath:
    """Follow the token backlogs of a scheduler from a start.

    A drift that depends on the ages of the decodes in progress (constant lengths under k_max) is taken in the middle of
    its range, and a note says so.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler or str
    workload : Workload
    start : (prefill, decode)
        Prompt tokens waiting, and decode tokens of requests past their prompts; at least 0.
    rate : number, optional
        Requests per second; absent: that of the workload.
    horizon : number or str, optional
        Seconds after which the path is not followed; absent: it is followed to its end.

    Raises
    ------
    InvalidInput
        For a start, a rate or a horizon that is none.
    InfeasibleRequest
        If the rule can never run some prompt.
    AssumptionViolated, NotConverged
        Where the chains behind the drifts do not apply, or are too large.

    Examples
    --------
    >>> from queuetheory_llm.files.model_file import load_model
    >>> system = load_model("codellama-34b-a100")
    >>> path = engine_fluid(system.engine, "fastertransformer", system.workload, (129, 1000), rate="0.5")
    >>> path.end.name
    'EMPTY'
    """
    asked = workload.rate if rate is None else read_number("rate", rate)
    if asked is None:
        raise InvalidInput("rate: the workload has none; give requests per second")
    position = _position(start)
    limit = None if horizon is None else read_horizon(horizon)
    try:
        drifts = induced_drifts(engine, scheduler, workload, asked)
    except NotConverged as error:
        name = scheduler if isinstance(scheduler, str) else name_of(scheduler)
        raise NotConverged(
            f"the fluid limit of {name} under this workload: {error}; or take fewer or shorter lengths, or ask how "
            "deep an overload gets (a profile of rates), for which a bound on the capacity is enough"
        ) from None
    return path_of_drifts(drifts, position, limit)


def _position(start: Sequence[Number]) -> Pair:
    if isinstance(start, str) or not hasattr(start, "__len__") or len(start) != 2:
        raise InvalidInput("start: give prefill and decode tokens, two numbers of at least 0")
    prefill, decode = (read_number("start", value) for value in start)
    if min(prefill, decode) < 0:
        raise InvalidInput("start: give prefill and decode tokens, two numbers of at least 0")
    return prefill, decode


def path_of_drifts(drifts: InducedDrifts, start: Pair, horizon: Real | None = None) -> EngineFluidPath:
    """The path from a start under given drifts; see `engine_fluid`."""
    points = [EnginePoint(time=Fraction(0), prefill=start[0], decode=start[1])]
    notes = _notes(drifts)
    while True:
        place = (points[-1].prefill, points[-1].decode)
        slope = _drift_at(drifts, place)
        if slope is None:
            end, notes = FluidEnd.UNRESOLVED, (*notes, f"the drift from {_place_text(place)} on cannot be told from 0")
            break
        if slope == (0, 0):
            end = FluidEnd.EMPTY if place == (0, 0) else FluidEnd.CONSTANT
            break
        seconds, left = _seconds_to_axis(place, slope), None if horizon is None else horizon - points[-1].time
        last = seconds is None or (left is not None and left <= seconds)
        if last:
            end, seconds = FluidEnd.DIVERGING if seconds is None else FluidEnd.HORIZON, left
        if seconds is not None:
            points.append(_moved(points[-1], slope, seconds))
        if last:
            break
    return EngineFluidPath(drifts=drifts, points=tuple(points), end=end, slope=slope, notes=notes)


def _place_text(place: Pair) -> str:
    return f"{float(place[0]):.6g} prompt and {float(place[1]):.6g} decode tokens"


def _drift_at(drifts: InducedDrifts, place: Pair) -> Pair | None:
    """Tokens per second at a place; (0, 0) where it stays; None where signs are not known."""
    interior = (_value(drifts.interior[0]), _value(drifts.interior[1]))
    signs = (drifts.interior[0].sign, drifts.interior[1].sign)
    if place[0] > 0 and place[1] > 0:
        return None if None in signs else interior
    if place == (0, 0):
        return _from_empty(drifts, interior)
    axis = 0 if place[0] > 0 else 1
    other = signs[1 - axis]
    if other is None or other == 0:
        return None
    if other > 0:
        return interior if signs[axis] is not None else None
    return _along(drifts, axis)


def _along(drifts: InducedDrifts, axis: int) -> Pair | None:
    """The drift along an axis that the interior drift leads to."""
    found = (drifts.prompts, drifts.decodes)[axis]
    if found is None or found.sign is None:
        return None
    value = _value(found)
    return (value, Fraction(0)) if axis == 0 else (Fraction(0), value)


def _from_empty(drifts: InducedDrifts, interior: Pair) -> Pair | None:
    """Empty backlogs stay empty unless some way out leads away for ever; then the fastest is taken."""
    signs = [drifts.interior[0].sign, drifts.interior[1].sign]
    if None in signs:
        return None
    if min(signs[0] or 0, signs[1] or 0) >= 0:
        return interior if signs != [0, 0] else None
    ways = [_along(drifts, axis) for axis in (0, 1) if signs[1 - axis] == -1]
    if any(way is None for way in ways):
        return None
    fastest = max((way for way in ways if way is not None), key=lambda way: way[0] + way[1])
    return fastest if fastest[0] + fastest[1] > 0 else (Fraction(0), Fraction(0))


def _seconds_to_axis(place: Pair, drift: Pair) -> Real | None:
    """Seconds until a backlog is empty; None if neither falls."""
    times = [amount / -speed for amount, speed in zip(place, drift, strict=True) if speed < 0 < amount]
    return min(times) if times else None


def _moved(point: EnginePoint, drift: Pair, seconds: Real) -> EnginePoint:
    """The point some seconds later; a backlog that is empty then is exactly 0."""
    prefill, decode = (
        Fraction(0) if speed < 0 < amount and amount / -speed == seconds else amount + speed * seconds
        for amount, speed in zip((point.prefill, point.decode), drift, strict=True)
    )
    return EnginePoint(time=point.time + seconds, prefill=prefill, decode=decode)


def _value(drift: DriftBounds) -> Real:
    return drift.low if drift.low == drift.high else drift.mean


def _notes(drifts: InducedDrifts) -> tuple[str, ...]:
    ranges = [
        f"the drift of {name} is within {float(drift.low):.6g} .. {float(drift.high):.6g} tokens/s; its middle is taken"
        for name, drift in (
            ("prompts with both backlogs large", drifts.interior[0]),
            ("decodes with both backlogs large", drifts.interior[1]),
            ("prompts", drifts.prompts),
            ("decodes", drifts.decodes),
        )
        if drift is not None and drift.low != drift.high
    ]
    return (*drifts.notes, *ranges)
