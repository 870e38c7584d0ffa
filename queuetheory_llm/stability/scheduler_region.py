"""A scheduler's own region: how far each ray of the plane of token rates stays stable under it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.stability.thresholds import Solver, Threshold, threshold
from queuetheory_llm.stability.workload_region import RateBound, workload_bound

#: Degrees of the rays m_d = m_p tan(angle). The prompts are held, so the decode axis itself is only approached.
ANGLES: tuple[float, ...] = (*(3.0 * i for i in range(30)), 88.5, 89.9)


@attrs.frozen(kw_only=True)
class RayPoint:
    """The boundary on one ray: token rates per second and the request rate they stand for."""

    angle: float
    prefill: float
    decode: float
    requests_per_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class RayInterval(RayPoint):
    """The boundary on one ray known to an interval, in requests/s; the point is its middle."""

    low: float
    high: float


@attrs.frozen(kw_only=True)
class SchedulerRegion:
    """Boundary points of a scheduler's region along the rays of `ANGLES`.

    Attributes
    ----------
    scheduler : str
    points : tuple of RayPoint
        Where it is known, exactly or to an interval; empty when only bounds are.
    inner : tuple of RayPoint
        Rates proved stable, where the boundary is not known.
    method : str
    """

    scheduler: str
    points: tuple[RayPoint, ...]
    inner: tuple[RayPoint, ...]
    method: str

    def measured(self, width: float | None) -> str:
        """How closely a simulated boundary is known, in words; empty where none is simulated.

        Parameters
        ----------
        width : float or None
            Asked of each interval, relative to its middle.
        """
        spans = [(each.high - each.low) / each.requests_per_s for each in self.points if isinstance(each, RayInterval)]
        if not spans:
            return ""
        widest, wider = f"widest {100 * max(spans):.3g} %", sum(span > (width or math.inf) for span in spans)
        if width is None:
            return f"known in {len(spans)} directions ({widest})"
        if not wider:
            return f"all {len(spans)} directions decided to {100 * width:.3g} %"
        return f"{wider} of {len(spans)} directions not decided to {100 * width:.3g} % ({widest})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "points": [point.to_dict() for point in self.points],
            "inner": [point.to_dict() for point in self.inner],
            "method": self.method,
        }


def rays(workload: Workload) -> tuple[Workload, ...]:
    """The workload with its prompts held and its decode lengths scaled, one a ray.

    Lengths are whole tokens: each ray is that of the means it really has, and rays that coincide are one.
    """
    if workload.mean_prefill == 0:
        return (workload,)
    found: dict[Real, Workload] = {}
    for angle in ANGLES:
        mean = Fraction(float(workload.mean_prefill) * math.tan(math.radians(angle))).limit_denominator(10**6)
        ray = workload.with_mean_decode(mean)
        found.setdefault(ray.mean_decode, ray)
    return tuple(found.values())


def _point(ray: Workload, rate: Real) -> RayPoint:
    prefill, decode = float(rate * ray.mean_prefill), float(rate * ray.mean_decode)
    return RayPoint(
        angle=math.degrees(math.atan2(float(ray.mean_decode), float(ray.mean_prefill))),
        prefill=prefill,
        decode=decode,
        requests_per_s=float(rate),
    )


def _interval(ray: Workload, limit: Threshold) -> RayInterval:
    return RayInterval(
        **attrs.asdict(_point(ray, (limit.low + limit.high) / 2)), low=float(limit.low), high=float(limit.high)
    )


def scheduler_region(
    engine: Engine, policy: Policy, along: Sequence[Workload], solver: Solver | None = None
) -> SchedulerRegion:
    """Boundary of the region of ``policy`` along `rays` of a workload.

    Where theory has bounds only, they are returned; with a ``solver`` its threshold on every such ray is.

    Raises
    ------
    InfeasibleRequest
        If the rule can never run some prompt.
    """
    found: list[tuple[Workload, Threshold]] = [(ray, threshold(engine, policy, ray)) for ray in along]
    exact = all(limit.exact for _, limit in found)
    lows = tuple(_point(ray, limit.low) for ray, limit in found)
    if not exact and solver is not None:
        solved = [limit if limit.exact else solver(engine, policy, ray) for ray, limit in found]
        return SchedulerRegion(
            scheduler=policy.name,
            points=tuple(_interval(ray, limit) for (ray, _), limit in zip(found, solved, strict=True)),
            inner=lows,
            method=next(limit.method for limit, (_, known) in zip(solved, found, strict=True) if limit is not known),
        )
    return SchedulerRegion(
        scheduler=policy.name,
        points=lows if exact else (),
        inner=() if exact else lows,
        method=found[len(found) // 2][1].method,
    )


def workload_outer_region(engine: Engine, along: Sequence[Workload]) -> tuple[tuple[RayPoint, ...], str]:
    """The bound of every rule along the same rays, the workload's prompts known to fill one slot each."""
    found: list[tuple[Workload, RateBound]] = [(ray, workload_bound(engine, ray)) for ray in along]
    return tuple(_point(ray, bound.requests_per_s) for ray, bound in found), found[-1][1].method
