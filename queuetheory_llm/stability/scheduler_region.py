"""A scheduler's own region: how far each ray of the plane of token rates stays stable under it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import (
    Counts,
    Floats,
    Geometric,
    IndependentLengths,
    RequestLengths,
)
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.stability.thresholds import Threshold, threshold
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
class SchedulerRegion:
    """Boundary points of a scheduler's region along the rays of `ANGLES`.

    Attributes
    ----------
    scheduler : str
    points : tuple of RayPoint
        Where it is known exactly; empty when only bounds are.
    inner : tuple of RayPoint
        Rates proved stable, where the boundary is not known.
    method : str
    """

    scheduler: str
    points: tuple[RayPoint, ...]
    inner: tuple[RayPoint, ...]
    method: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "points": [point.to_dict() for point in self.points],
            "inner": [point.to_dict() for point in self.inner],
            "method": self.method,
        }


@attrs.frozen
class _Ray(RequestLengths):
    """The prompts of a workload with a constant number of decode tokens, whole or not."""

    prompts: RequestLengths
    decode: Fraction

    @property
    def mean_prefill(self) -> Any:
        return self.prompts.mean_prefill

    @property
    def mean_decode(self) -> Fraction:
        return self.decode

    @property
    def prefill_probability(self) -> Any:
        return self.prompts.prefill_probability

    @property
    def constant_prompt(self) -> int | None:
        return self.prompts.constant_prompt

    @property
    def longest_prompt(self) -> int | None:
        return self.prompts.longest_prompt

    @property
    def constant_decode(self) -> Fraction:
        return self.decode

    def decode_survival(self, counts: Counts) -> Floats:
        raise NotImplementedError("a ray is solved by its constant decode length")

    def decode_cutoff(self) -> int:
        return math.ceil(self.decode)

    def sample(self, rng: Any, size: int) -> tuple[Counts, Counts]:
        raise NotImplementedError("a ray is not sampled")


def on_ray(workload: Workload, angle: float) -> Workload:
    """The workload with its prompts held and mean decode length m_p tan(angle).

    Decode lengths stay geometric where the workload's are; otherwise they are constant.
    """
    slope = math.tan(math.radians(angle))
    decode = Fraction(float(workload.mean_prefill) * slope).limit_denominator(10**9)
    only = workload.classes[0].lengths
    lengths: RequestLengths = _Ray(workload, decode)
    if len(workload.classes) == 1 and isinstance(only, IndependentLengths) and isinstance(only.decode, Geometric):
        lengths = IndependentLengths(only.prefill, Geometric(mean=decode)) if decode >= 1 else lengths
    return Workload(classes=(RequestClass(lengths=lengths),), arrivals=workload.arrivals)


def _rays(workload: Workload) -> list[tuple[float, Workload]]:
    if workload.mean_prefill == 0:
        return [(90.0, workload)]
    return [(angle, on_ray(workload, angle)) for angle in ANGLES]


def _point(angle: float, ray: Workload, rate: Any) -> RayPoint:
    return RayPoint(
        angle=angle,
        prefill=float(rate * ray.mean_prefill),
        decode=float(rate * ray.mean_decode),
        requests_per_s=float(rate),
    )


def scheduler_region(engine: Engine, policy: Policy, workload: Workload) -> SchedulerRegion:
    """Boundary of the region of ``policy``, prompts of ``workload`` held.

    Raises
    ------
    InfeasibleRequest
        If the rule can never run some prompt.
    """
    found: list[tuple[float, Workload, Threshold]] = [
        (angle, ray, threshold(engine, policy, ray)) for angle, ray in _rays(workload)
    ]
    exact = all(limit.exact for _, _, limit in found)
    lows = tuple(_point(angle, ray, limit.low) for angle, ray, limit in found)
    return SchedulerRegion(
        scheduler=policy.name,
        points=lows if exact else (),
        inner=() if exact else lows,
        method=found[len(found) // 2][2].method,
    )


def workload_outer_region(engine: Engine, workload: Workload) -> tuple[tuple[RayPoint, ...], str]:
    """The bound of every rule along the same rays, the workload's prompts known to fill one slot each."""
    found: list[tuple[float, Workload, RateBound]] = [
        (angle, ray, workload_bound(engine, ray)) for angle, ray in _rays(workload)
    ]
    points = tuple(_point(angle, ray, bound.requests_per_s) for angle, ray, bound in found)
    return points, found[-1][2].method
