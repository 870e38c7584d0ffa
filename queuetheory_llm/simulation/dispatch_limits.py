"""The largest stable rate of a dispatch rule and a queue order on a cluster, by simulation with confidence.

`rate_search` does the search; here is what it needs of a cluster: runs through phases of rates of one's choice, and the
drift of the backlog in each (`cluster_phases`). A limit is where large backlogs stop falling. Above it a rule may seem
stable from empty for as long as no burst comes, and below it be far from empty: near its limit the first cluster of
HEXGEN-FLOW holds thousands of calls. Where a rule does not look, its own split over an overload tells where to begin.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, ClassVar

import attrs

from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import whole_fault
from queuetheory_llm.exact.rounding import lower_limit
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.simulation.cluster_arguments import check_arguments, number_faults
from queuetheory_llm.simulation.cluster_bounds import capacity_of, memory_notes, with_split
from queuetheory_llm.simulation.cluster_phases import ClusterPhases
from queuetheory_llm.simulation.cluster_rule import ClusterRule, to_cluster_rule
from queuetheory_llm.simulation.rate_search import RateInterval, Report, check_search, search_phases
from queuetheory_llm.simulation.statistics import TokenDrift

_BEYOND = 1.02  # of the capacity: certainly unstable
_MOST_CALLS = 100_000_000


@attrs.frozen(kw_only=True)
class DispatchLimit(Result):
    """The largest stable rate of a rule, known to an interval.

    Attributes
    ----------
    rule : str
        As it was written, "hexgen-paper+alpha=0.2/fcfs".
    low, high : Fraction
        Queries/s: the largest rate shown stable, 0 if none; the smallest shown unstable, that of ``capacity`` if none.
    falling, growing : TokenDrift or None
        Of the backlog, in seconds of work a second, at the two ends; None where nothing was shown, or where the end is
        ``capacity``, a bound of theory.
    confidence : float
        That both ends are right, see `rate_search.RateInterval`.
    met : bool
        Whether the interval is as narrow as was asked for.
    capacity : Fraction
        Queries/s that no rule exceeds that knows calls by their stage; see `stability.cluster_capacity`.
    queries : int
        Queries run.
    method : str
        "simulation", or what theory's limit rests on; ``low`` and ``high`` are then equal up to rounding.
    reason : str
        Of a limit by theory.
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.dispatch:draw_limit"
    rule: str
    low: Fraction
    high: Fraction
    falling: TokenDrift | None
    growing: TokenDrift | None
    confidence: float
    met: bool
    capacity: Fraction
    queries: int
    method: str = "simulation"
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """The middle of the interval, queries/s."""
        return float(self.low + self.high) / 2

    @property
    def share(self) -> float:
        """``rate`` in the capacity of the cluster."""
        return self.rate / float(self.capacity)

    @property
    def shown(self) -> bool:
        """Whether a rate is known to be stable; else ``rate`` and ``share`` are of an interval that begins at 0."""
        return self.low > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values; rates in queries/s; no rate, share, confidence where the runs showed none."""
        return {
            "rule": self.rule,
            "rate": self.rate if self.shown else None,
            "low": float(self.low),
            "high": float(self.high),
            "confidence": self.confidence if self.shown or self.growing is not None else None,
            "met": self.met,
            "capacity": float(self.capacity),
            "share": self.share if self.shown else None,
            "drift_at_low": None if self.falling is None else self.falling.to_dict(),
            "drift_at_high": None if self.growing is None else self.growing.to_dict(),
            "queries": self.queries,
            "method": self.method,
            "reason": self.reason,
            "notes": list(self.notes),
        }


def simulated_limit(
    system: WorkflowSystem,
    rule: ClusterRule | Dispatcher | str,
    *,
    order: QueueOrder | str = "fcfs",
    width: float = 0.01,
    confidence: float = 0.99,
    seed: int = 0,
    max_queries: int | None = None,
    workers: int | None = None,
    report: Report | None = None,
) -> DispatchLimit:
    """The largest stable rate of a rule, by simulation.

    Parameters
    ----------
    system : WorkflowSystem
        Its arrivals are scaled to each rate that is tried.
    rule : rule
        Written "hexgen-paper+alpha=0.2/urgency", or as objects; ``order`` is that of a rule that names none.
    width : float
        Of the interval, relative to the rate.
    confidence : float
        That both ends are right.
    seed : int
        The same seed gives the same interval, whatever the number of workers.
    max_queries : int, optional
        No further run starts once this many have been run; by default as many as make 100 million calls.
    workers : int, optional
        Threads; by default one a core.
    report : callable, optional
        Told what has been found so far, in words.

    Raises
    ------
    InvalidInput
        If an argument is out of range.
    AssumptionViolated
        If no call takes up anything, so that there is no limit.
    """
    check_arguments(system, progress=report)
    check_limit(width=width, confidence=confidence, seed=seed, max_queries=max_queries)
    named = with_split(to_cluster_rule(rule, order), system)
    capacity = capacity_of(system)
    calls = float(sum(system.workflow.visits))
    runs = ClusterPhases(system=system, rule=named, seed=seed, workers=workers)
    overload = float(capacity) * _BEYOND
    start = runs.overload(overload)
    found = search_phases(
        runs,
        overload=overload,
        start=start,
        width=width,
        confidence=confidence,
        budget=math.ceil(_MOST_CALLS / calls) if max_queries is None else max_queries,
        report=report,
        words=("queries", "s of work"),
    )
    return _beside(named, capacity, found, memory_notes(system))


def check_limit(*, width: float, confidence: float, seed: int, max_queries: int | None) -> None:
    """Refuse arguments of `simulated_limit` that are out of range.

    Raises
    ------
    InvalidInput
    """
    if faults := number_faults(width=width, confidence=confidence):
        raise InvalidInput(faults)
    check_search(width=width, confidence=confidence, seed=seed)
    if max_queries is not None and (fault := whole_fault("max_queries", max_queries, 1, "a number of queries")):
        raise InvalidInput(fault)


def _beside(rule: ClusterRule, capacity: Fraction, found: RateInterval, also: tuple[str, ...]) -> DispatchLimit:
    """The interval measured, cut to the bound of every rule; a contradiction is reported as such."""
    notes = [*found.notes, *also]
    if found.low > capacity:
        notes.append(f"contradiction: no rule carries more than {lower_limit(capacity)} queries/s; please report this")
    high = capacity if found.high is None else max(min(found.high, capacity), found.low)
    return DispatchLimit(
        rule=rule.name,
        low=found.low,
        high=high,
        falling=found.falling,
        growing=found.growing if high == found.high else None,
        confidence=found.confidence,
        met=found.met,
        capacity=capacity,
        queries=found.requests,
        notes=tuple(notes),
    )
