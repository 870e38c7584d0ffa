"""Rules for a cluster with verdicts and limits: by theory where it speaks, else by what runs show.

Theory, from `stability`, and runs meet here, as in `judge` for one engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import attrs

from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.exact.rounding import upper_limit
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.simulation.cluster_arguments import check_arguments
from queuetheory_llm.simulation.cluster_bounds import capacity_of
from queuetheory_llm.simulation.cluster_rule import ClusterRule, to_cluster_rule, to_cluster_rules
from queuetheory_llm.simulation.cluster_simulation import ClusterComparison, RuleOutcome
from queuetheory_llm.simulation.dispatch_limits import DispatchLimit, check_limit, simulated_limit
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.rate_search import Report
from queuetheory_llm.stability.dispatch_verdicts import dispatch_verdict
from queuetheory_llm.stability.rule_limits import LimitByTheory, rule_limit
from queuetheory_llm.verdict import Basis, Judgement, Verdict


def judge_rules(
    comparison: ClusterComparison,
    rules: Iterable[ClusterRule | Dispatcher | str],
    *,
    order: QueueOrder | str = "fcfs",
    log: Queries | None = None,
    limits: Sequence[DispatchLimit] = (),
) -> tuple[Judgement, ...]:
    """Verdicts on rules that were run: by `dispatch_verdict` where theory decides, else by the runs.

    Parameters
    ----------
    comparison : ClusterComparison
    rules, order, log
        As `simulate_cluster` got them. Of the queries of a log the runs alone speak: theory takes the calls of a query
        as independent, and those of real ones are not.
    limits : sequence of DispatchLimit
        Of the rules, one each in their order, where they have been searched: a rate at which the search saw the backlog
        grow decides what theory and these runs leave open. Of the workflow, so that they say nothing of a log.

    Returns
    -------
    tuple of Judgement
        One a rule, in their order.
    """
    found = [
        _judge(comparison.system, rule, comparison[rule.name], theory=log is None)
        for rule in to_cluster_rules(rules, order)
    ]
    if log is None and limits:
        found = [_beside(judged, limit, comparison.rate) for judged, limit in zip(found, limits, strict=True)]
    return tuple(found)


def _beside(judged: Judgement, limit: DispatchLimit, rate: float) -> Judgement:
    """The verdict, no longer open where the search of the limit has seen the backlog grow at this rate or below it."""
    if judged.verdict is not Verdict.UNDECIDED or limit.growing is None or rate < limit.high:
        return judged
    reason = f"the search of its limit has seen the backlog grow from {upper_limit(limit.high)} queries/s on"
    return Judgement(verdict=Verdict.UNSTABLE, basis=Basis.SIMULATION, reason=reason)


def _judge(system: WorkflowSystem, rule: ClusterRule, outcome: RuleOutcome, *, theory: bool) -> Judgement:
    if theory:
        judged = dispatch_verdict(system, rule.dispatcher, rule.order)
        if judged.verdict is not Verdict.UNDECIDED:
            return judged
    basis = None if outcome.verdict is Verdict.UNDECIDED else Basis.SIMULATION
    return Judgement(verdict=outcome.verdict, basis=basis, reason=outcome.reason)


def dispatch_limit(
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
    """The largest stable rate of a rule: by theory where it has it, else by simulation below what theory excludes.

    Parameters
    ----------
    system, rule, order, width, confidence, seed, max_queries, workers, report
        See `simulated_limit`; of a limit by theory only ``system``, ``rule`` and ``order`` matter.

    Raises
    ------
    InvalidInput
        If an argument is out of range.
    AssumptionViolated
        If no call takes up anything, so that there is no limit.

    Examples
    --------
    >>> from queuetheory_llm.files.workflow_file import load_workflow
    >>> found = dispatch_limit(load_workflow("two-servers"), "round-robin")
    >>> found.low, found.high, found.method
    (Fraction(2, 1), Fraction(2, 1), 'theorem')
    """
    check_arguments(system, progress=report)
    check_limit(width=width, confidence=confidence, seed=seed, max_queries=max_queries)
    named, capacity = to_cluster_rule(rule, order), capacity_of(system)
    theory = rule_limit(system, named.dispatcher, named.order)
    if theory is not None and theory.limit is not None:
        return _by_theory(named, capacity, theory)
    found = simulated_limit(
        system,
        named,
        width=width,
        confidence=confidence,
        seed=seed,
        max_queries=max_queries,
        workers=workers,
        report=report,
    )
    bound = found.high if theory is None else _exact(theory.high, 1 + theory.error)
    return found if not found.low <= bound < found.high else attrs.evolve(found, high=bound, growing=None)


def unstable_above(system: WorkflowSystem, rule: ClusterRule) -> Fraction:
    """Queries/s above which theory has a rule unstable: its own limit where there is one, else that of every rule."""
    theory = rule_limit(system, rule.dispatcher, rule.order)
    return capacity_of(system) if theory is None else _exact(theory.high, 1 + theory.error)


def _by_theory(rule: ClusterRule, capacity: Fraction, theory: LimitByTheory) -> DispatchLimit:
    return DispatchLimit(
        rule=rule.name,
        low=_exact(theory.low, 1 - theory.error),
        high=_exact(theory.high, 1 + theory.error),
        falling=None,
        growing=None,
        confidence=1.0,
        met=True,
        capacity=capacity,
        queries=0,
        method=theory.basis.value,
        reason=theory.reason,
    )


def _exact(rate: Fraction | float, factor: float) -> Fraction:
    return Fraction(rate) * Fraction(factor)
