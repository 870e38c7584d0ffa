"""Whether a cluster is stable under a dispatch rule and a queue order at its rate, as far as theory says.

Above the bound of every rule (`cluster_capacity`) all are unstable. Else the limit of the rule itself decides, where
there is one (`rule_limits`): above it the rule is unstable; below it stable, where that is known. Between what is known
from both sides, the network of a split is judged at the very rate. What is left is for simulation (`qt-llm dispatch`).
"""

from __future__ import annotations

import attrs

from queuetheory_llm.certificates.split_proofs import EVERY_RULE
from queuetheory_llm.dispatch.registry import packaged_name, to_dispatcher
from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.exact.rounding import load_text
from queuetheory_llm.model.cluster import WorkflowSystem, require_cluster
from queuetheory_llm.schedulers.fcfs import FCFS
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.schedulers.queue_orders import to_order
from queuetheory_llm.stability.cluster_capacity import ClusterCapacity, cluster_capacity
from queuetheory_llm.stability.rule_limits import LimitByTheory, LongRunSplit, rule_limit, split_answer
from queuetheory_llm.verdict import Basis, Judgement, Verdict


def dispatch_verdict(
    system: WorkflowSystem, dispatcher: Dispatcher | str, order: QueueOrder | str | None = FCFS
) -> Judgement:
    """Whether a cluster is stable under a dispatch rule at the rate of the system, as far as theory says.

    Parameters
    ----------
    system : WorkflowSystem
    dispatcher : Dispatcher or str
        A rule with its parameters, or its name with flags.
    order : QueueOrder, str or None
        Of the queues. Of first come, first served theory knows more; None, and every other order, asks for what holds
        in all orders that do not idle.

    Returns
    -------
    Judgement
        ``load`` is the rate over that above which the rule itself is unstable, `LimitByTheory.high`; None where that is
        not known.

    Raises
    ------
    InvalidInput
        If the system, the rule, its own shares or the order do not fit.

    Examples
    --------
    >>> from queuetheory_llm.files.workflow_file import load_workflow
    >>> system = load_workflow("two-servers")
    >>> rules = ("random-lp", "fastest", "hexgen-released+alpha=0.7")
    >>> [dispatch_verdict(system, rule).verdict.value for rule in rules]
    ['STABLE', 'UNSTABLE', 'UNSTABLE']
    """
    require_cluster(system)
    rule, served = to_dispatcher(dispatcher), None if order is None else to_order(order)
    bound, limit = cluster_capacity(system), rule_limit(system, rule, served)
    judged = None if limit is None else _by_limit(system, limit, served)
    if bound.load * (1 - bound.error) > 1:
        reason = (
            f"work comes at {load_text(bound.load)} times what all instances together can do, however it is divided: "
            f"unstable under {EVERY_RULE}"
        )
        load = None if judged is None else judged.load
        return Judgement(verdict=Verdict.UNSTABLE, basis=Basis.THEOREM, reason=reason, load=load)
    return judged or _unknown(rule, bound)


def _by_limit(system: WorkflowSystem, limit: LimitByTheory, order: QueueOrder | None) -> Judgement:
    """The verdict from the limit of the rule itself; between its two sides, from the network of the split."""
    rate = system.arrivals.rate
    load = rate / limit.high
    said = f"{limit.reason}; the load is {load_text(load)}"
    if load > 1 + limit.error:
        return Judgement(verdict=Verdict.UNSTABLE, basis=limit.basis, reason=f"{said}, above 1", load=load)
    if limit.error and load >= 1 - limit.error:
        reason = f"{said}, which cannot be told from 1 within its error of {limit.error:.2g}"
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason, load=load)
    if load == 1 and limit.limit is None:
        reason = f"{said} exactly: not stable, and whether it is at lower rates is not known"
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason, load=load)
    if load == 1:
        return Judgement(verdict=Verdict.CRITICAL, basis=limit.basis, reason=f"{said} exactly", load=load)
    if rate < limit.low:
        reason = f"{said}, below 1" + f"; {limit.below}" * bool(limit.below)
        return Judgement(verdict=Verdict.STABLE, basis=limit.basis, reason=reason, load=load)
    if limit.split is None:
        reason = (
            f"{said}, below 1; the shares of each stage depend on the order of the calls, so that no theorem says "
            "whether that is enough; simulation decides (qt-llm dispatch)"
        )
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason, load=load)
    return attrs.evolve(_of_network(system, limit.split, order), load=load)


def _of_network(system: WorkflowSystem, split: LongRunSplit, order: QueueOrder | None) -> Judgement:
    """The verdict on the network of a split at the rate."""
    answer = split_answer(system, split, order, system.arrivals.rate)
    if isinstance(answer, str):
        reason = (
            f"{split.words}: every load is below 1, but the cluster is no network that theorems speak of ({answer}); "
            "simulation decides (qt-llm dispatch)"
        )
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)
    return attrs.evolve(answer.judgement, reason=f"{split.words}: {answer.judgement.reason}")


def _unknown(rule: Dispatcher, bound: ClusterCapacity) -> Judgement:
    """Of a rule without a limit of its own, below the bound of every rule."""
    why = "its shares depend on the queues"
    if packaged_name(rule.rule) == "hexgen-released":
        why = "its long-run shares depend on the order in which calls of unlike stages come"
    elif packaged_name(rule.rule) is None or rule.rule.oblivious:
        why = "its long-run shares are not known"
    at = (
        "at the bound of every rule: not stable"
        if bound.load == 1 and not bound.error
        else "below 1 simulation decides"
    )
    reason = (
        f"{rule.name}: {why}, and this package has no limit of its own for it; the load by the bound of every rule is "
        f"{load_text(bound.load)}, {at} (qt-llm dispatch)"
    )
    return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)
