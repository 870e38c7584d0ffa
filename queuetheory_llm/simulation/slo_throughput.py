"""The rate that a rule carries within the deadlines, and how latency and attainment move with rate, deadline, alpha.

The rate at which a share of the queries meets its SLO is bisected. Every rate gets the same queries, their arrivals
drawn from the same random numbers and scaled, so attainment falls with the rate nearly without noise, and the interval
of the answer is that of the replications: each has a rate of its own at which its attainment passes the share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number
from queuetheory_llm.exact.rounding import short_fraction
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.simulation.cluster_arguments import check_arguments, number_faults, numbers_of
from queuetheory_llm.simulation.cluster_bounds import capacity_of, with_split
from queuetheory_llm.simulation.cluster_rule import ClusterRule, to_cluster_rule, to_cluster_rules
from queuetheory_llm.simulation.cluster_simulation import QUANTILES, Bench, Progress, Sample, at_rate
from queuetheory_llm.simulation.dispatch_judge import dispatch_limit, unstable_above
from queuetheory_llm.simulation.dispatch_limits import DispatchLimit
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.query_statistics import Interval, maybe, quantile


@attrs.frozen(kw_only=True)
class CurvePoint:
    """One rule at one place of a curve.

    Attributes
    ----------
    at : float
        The rate in queries/s, the SLO scale, or alpha.
    p95 : Interval
        Seconds.
    attainment : Interval or None
    unstable : bool
        Whether theory has the rule unstable there: what the runs show then grows with their length. Not asked of a log.
    """

    at: float
    p95: Interval
    attainment: Interval | None
    unstable: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        met = maybe(self.attainment)
        return {"at": self.at, "p95": self.p95.to_dict(), "attainment": met, "unstable": self.unstable}


@attrs.frozen(kw_only=True)
class SloThroughput(Result):
    """The largest rate at which at least ``share`` of the queries meets its SLO.

    Attributes
    ----------
    rule : str
    share : float
    rate : Interval
        Queries/s: where the attainment of each replication passes ``share``, interpolated between the rates run. 0
        where even the lowest rate has less, at most ``capacity``.
    points : tuple of CurvePoint
        What was run on the way, by rate.
    capacity : float
        Queries/s that no rule exceeds that knows calls by their stage; see `stability.cluster_capacity`.
    replications, queries, seed : int
        ``queries`` of a replication at a rate.
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.service_curves:draw_slo_throughput"
    rule: str
    share: float
    rate: Interval
    points: tuple[CurvePoint, ...]
    capacity: float
    replications: int
    queries: int
    seed: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values; rates in queries/s."""
        return {
            "rule": self.rule,
            "share": self.share,
            "rate": self.rate.to_dict(),
            "points": [each.to_dict() for each in self.points],
            "capacity": self.capacity,
            "replications": self.replications,
            "queries": self.queries,
            "seed": self.seed,
            "notes": list(self.notes),
        }


@attrs.frozen(kw_only=True)
class Curve:
    """One rule over the places of a curve."""

    rule: str
    points: tuple[CurvePoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"rule": self.rule, "points": [each.to_dict() for each in self.points]}


@attrs.frozen(kw_only=True)
class ServiceCurves(Result):
    """P95 and attainment of rules against something that is varied.

    Attributes
    ----------
    along : {"rate", "slo_scale", "alpha"}
        Queries/s; multiples of the seconds of an average query, as the deadline of all tenants in proportion; the
        weight of a dispatch score.
    curves : tuple of Curve
        One a rule; where alpha is varied, one a rule that has it.
    limits : tuple of DispatchLimit
        Where alpha is varied and limits were asked for: one a point of the one curve.
    capacity : float
        Queries/s that no rule exceeds that knows calls by their stage; see `stability.cluster_capacity`.
    rate : float or None
        Queries/s, where it is not what is varied.
    base_seconds : float
        Of an average query that is alone.
    replications, queries, seed : int
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.service_curves:draw_curves"
    along: str
    curves: tuple[Curve, ...]
    limits: tuple[DispatchLimit, ...] = ()
    capacity: float
    rate: float | None
    base_seconds: float
    replications: int
    queries: int
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> CurvePoint | None:
        """Of one curve, as against alpha, the point of the least P95; None where none is left.

        Left out are points where theory has the rule unstable and where queries did not end.
        """
        (curve,) = self.curves
        shown = [each for each in curve.points if np.isfinite(each.p95.mean) and not each.unstable]
        return min(shown, key=lambda each: each.p95.mean, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; rates in queries/s, times in seconds."""
        best = self.best if self.along == "alpha" else None
        return {
            "along": self.along,
            "best_alpha": None if best is None else best.at,
            "curves": [each.to_dict() for each in self.curves],
            "limits": [each.to_dict() for each in self.limits],
            "capacity": self.capacity,
            "rate": self.rate,
            "base_seconds": self.base_seconds,
            "replications": self.replications,
            "queries": self.queries,
            "seed": self.seed,
            "notes": list(self.notes),
        }


#: The usual grid of alphas.
TENTHS = tuple(Fraction(step, 10) for step in range(11))
_LOWEST = Fraction(1, 50)  # of the capacity: queries hardly meet


def slo_throughput(
    system: WorkflowSystem,
    rule: ClusterRule | Dispatcher | str,
    *,
    share: float = 0.95,
    order: QueueOrder | str = "fcfs",
    width: float = 0.01,
    queries: int = 2_000,
    replications: int = 10,
    seed: int = 0,
    log: Queries | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> SloThroughput:
    """The largest rate at which at least a share of the queries meets its SLO.

    Parameters
    ----------
    system : WorkflowSystem
        One of its tenants has an SLO at least; the arrivals are scaled.
    rule : rule
        Written "hexgen-paper+alpha=0.2/urgency", or as objects; ``order`` is that of a rule that names none.
    share : float
        Of the queries that have an SLO.
    width : float
        Of the last interval bisected, relative to the rate.
    queries, replications, seed, log, workers, progress
        See `simulate_cluster`.

    Raises
    ------
    InvalidInput
        If an argument is out of range, or no tenant has an SLO.
    """
    check_arguments(system, log=log, progress=progress)
    _check(system, share, width)
    named = with_split(to_cluster_rule(rule, order), system)
    capacity = short_fraction(capacity_of(system))  # exact arithmetic on it stays cheap
    bench = Bench.of(system.with_rate(capacity), queries=queries, replications=replications, seed=seed, log=log)
    found: dict[Fraction, list[Sample]] = {}
    steps = int(np.ceil(np.log2(1 / width))) + 2

    def enough(rate: Fraction) -> bool:
        found[rate] = bench.at(system.with_rate(rate)).sample_all([named], workers)[0]
        if progress is not None:
            progress(min(len(found) / (steps + 1), 1.0))
        return float(np.mean(_attained(found[rate]))) >= share

    low, high = capacity * _LOWEST, capacity
    if enough(low) and not enough(high):
        while high - low > width * high:
            middle = short_fraction((low + high) / 2)
            low, high = (middle, high) if enough(middle) else (low, middle)
    rates = sorted(found)
    attained = np.array([_attained(found[rate]) for rate in rates])
    crossings = [_crossing(np.array(rates, dtype=np.float64), column, share) for column in attained.T]
    return SloThroughput(
        rule=named.name,
        share=share,
        rate=Interval.of(np.array(crossings)),
        points=tuple(_point(float(rate), found[rate]) for rate in rates),
        capacity=float(capacity),
        replications=bench.replications,
        queries=queries,
        seed=seed,
        notes=bench.notes,
    )


def _check(system: WorkflowSystem, share: float, width: float) -> None:
    if faults := number_faults(share=share, width=width):
        raise InvalidInput(faults)
    if not 0 < share < 1:
        faults.append(f"share: {share:g} is outside 0 .. 1, both left out; give a share of the queries such as 0.95")
    if not 1e-4 <= width <= 0.5:
        faults.append(f"width: {width:g} is outside 0.0001 .. 0.5; it is relative to the rate")
    if all(system.deadline(tenant) is None for tenant in range(len(system.workflow.tenants))):
        faults.append("workflow.tenants: none has an SLO; give one of them slo or slo_scale")
    if faults:
        raise InvalidInput(faults)


def _attained(samples: Sequence[Sample]) -> list[float]:
    """Attainment of each replication; none of few queries that have no SLO counts as met."""
    return [1.0 if (met := each.attainment()) is None else met for each in samples]


def _crossing(rates: Floats, attained: Floats, share: float) -> float:
    """The rate at which a replication's attainment, made falling, passes the share; 0 if it never has it."""
    falling = np.minimum.accumulate(attained)
    if falling[0] < share:
        return 0.0
    if falling[-1] >= share:
        return float(rates[-1])
    i = int(np.argmax(falling < share))
    part = (falling[i - 1] - share) / (falling[i - 1] - falling[i])
    return float(rates[i - 1] + part * (rates[i] - rates[i - 1]))


def _point(at: float, samples: Sequence[Sample]) -> CurvePoint:
    p95 = Interval.of(np.array([quantile(each.responses, QUANTILES["p95"]) for each in samples]))
    return CurvePoint(at=at, p95=p95, attainment=Interval.of_shares([each.attainment() for each in samples]))


def _with_edge(points: Iterable[CurvePoint], bench: Bench, rule: ClusterRule) -> tuple[CurvePoint, ...]:
    """Points of a curve against the rate, those beyond the limit of theory marked."""
    if bench.log is not None:
        return tuple(points)
    edge = unstable_above(bench.system, rule)
    return tuple(attrs.evolve(each, unstable=each.at > edge) for each in points)


def rate_curves(
    system: WorkflowSystem,
    rules: Iterable[ClusterRule | Dispatcher | str],
    rates: Iterable[Number],
    *,
    order: QueueOrder | str = "fcfs",
    queries: int = 1_000,
    replications: int = 5,
    seed: int = 0,
    log: Queries | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ServiceCurves:
    """P95 and attainment against the rate, every rule and rate on the same queries.

    Parameters
    ----------
    rates : iterable of numbers
        Queries/s, positive.
    system, rules, order, queries, replications, seed, log, workers, progress
        See `simulate_cluster`.

    Raises
    ------
    InvalidInput
    """
    check_arguments(system, log=log, progress=progress)
    named = [with_split(each, system) for each in to_cluster_rules(rules, order)]
    places = _increasing("rates", rates)
    bench = Bench.of(system.with_rate(places[-1]), queries=queries, replications=replications, seed=seed, log=log)
    rows = []
    for i, rate in enumerate(places):
        part = _part(progress, i, len(places))
        rows.append(bench.at(system.with_rate(rate)).sample_all(named, workers, part))
    curves = tuple(
        Curve(rule=rule.name, points=_with_edge(map(_point, map(float, places), column), bench, rule))
        for rule, column in zip(named, zip(*rows, strict=True), strict=True)
    )
    return _curves("rate", curves, bench, None)


def scale_curves(
    system: WorkflowSystem,
    rules: Iterable[ClusterRule | Dispatcher | str],
    scales: Iterable[Number],
    *,
    rate: Number | None = None,
    order: QueueOrder | str = "fcfs",
    queries: int = 2_000,
    replications: int = 10,
    seed: int = 0,
    log: Queries | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ServiceCurves:
    """Attainment against the SLO scale: the share of queries within that multiple of the seconds of an average query.

    All scales are read off the same runs. An order that looks at deadlines was run with those of the system.

    Parameters
    ----------
    scales : iterable of numbers
        Positive.
    system, rules, rate, order, queries, replications, seed, log, workers, progress
        See `simulate_cluster`.

    Raises
    ------
    InvalidInput
    """
    check_arguments(system, log=log, progress=progress)
    named = [with_split(each, system) for each in to_cluster_rules(rules, order)]
    places = _increasing("scales", scales)
    bench = Bench.of(at_rate(system, rate), queries=queries, replications=replications, seed=seed, log=log)
    base = float(system.base_seconds)

    def point(scale: Fraction, samples: Sequence[Sample]) -> CurvePoint:
        within = [float((each.responses <= float(scale) * base).mean()) for each in samples]
        return attrs.evolve(_point(float(scale), samples), attainment=Interval.of_shares(within))

    curves = tuple(
        Curve(rule=rule.name, points=tuple(point(scale, samples) for scale in places))
        for rule, samples in zip(named, bench.sample_all(named, workers, progress), strict=True)
    )
    return _curves("slo_scale", curves, bench, float(bench.system.arrivals.rate))


def alpha_curve(
    system: WorkflowSystem,
    rule: ClusterRule | Dispatcher | str = "hexgen-paper/fcfs",
    alphas: Iterable[Number] = TENTHS,
    *,
    rate: Number | None = None,
    limits: bool = False,
    width: float = 0.02,
    max_queries: int | None = None,
    order: QueueOrder | str = "fcfs",
    queries: int = 1_000,
    replications: int = 5,
    seed: int = 0,
    log: Queries | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ServiceCurves:
    """P95 and attainment against alpha, and with ``limits`` the largest stable rate of each.

    Parameters
    ----------
    rule : rule
        One that has an alpha.
    alphas : iterable of numbers
        In [0, 1]; those that the rule takes.
    limits : bool
        Whether each alpha's `dispatch_limit` is given too, to ``width`` and with ``max_queries`` at most where it has
        to be searched; that takes far longer than the rest.
    system, rate, order, queries, replications, seed, log, workers, progress
        See `simulate_cluster`.

    Raises
    ------
    InvalidInput
        If the rule has no alpha, or one of them is out of range.
    """
    check_arguments(system, log=log, progress=progress)
    named = to_cluster_rule(rule, order)
    places = _increasing("alphas", alphas, least=Fraction(0))
    rules = [named.with_alpha(float(alpha)) for alpha in places]
    bench = Bench.of(at_rate(system, rate), queries=queries, replications=replications, seed=seed, log=log)
    parts = 1 + len(rules) * limits
    rows = bench.sample_all(rules, workers, _part(progress, 0, parts))
    rate_run = bench.system.arrivals.rate
    points = tuple(
        attrs.evolve(
            _point(float(alpha), samples), unstable=log is None and rate_run > unstable_above(bench.system, each)
        )
        for alpha, each, samples in zip(places, rules, rows, strict=True)
    )
    found = []
    for done, each in enumerate(rules * limits, 2):
        found.append(dispatch_limit(system, each, width=width, seed=seed, max_queries=max_queries, workers=workers))
        if progress is not None:
            progress(done / parts)
    curve = Curve(rule=named.name, points=points)
    return _curves("alpha", (curve,), bench, float(bench.system.arrivals.rate), limits=tuple(found))


def _curves(
    along: str,
    curves: tuple[Curve, ...],
    bench: Bench,
    rate: float | None,
    limits: tuple[DispatchLimit, ...] = (),
) -> ServiceCurves:
    return ServiceCurves(
        along=along,
        curves=curves,
        limits=limits,
        capacity=float(capacity_of(bench.system)),
        rate=rate,
        base_seconds=float(bench.system.base_seconds),
        replications=bench.replications,
        queries=bench.queries,
        seed=bench.seed,
        notes=bench.notes,
    )


def _increasing(where: str, values: Iterable[Number], least: Fraction | None = None) -> list[Fraction]:
    """Places of a curve, in order, each once; positive, or from ``least`` on."""
    places = sorted(set(numbers_of(where, values)))
    if not places:
        raise InvalidInput(f"{where}: there are none; give at least one number")
    if places[0] < (0 if least is None else least) or (least is None and places[0] == 0):
        raise InvalidInput(f"{where}: {float(places[0]):g} is not {'positive' if least is None else 'in range'}")
    return places


def _part(progress: Progress | None, number: int, count: int) -> Callable[[float], None] | None:
    """Progress within one of several equal parts."""
    return None if progress is None else lambda done: progress((number + done) / count)
