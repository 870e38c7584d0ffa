"""Which systems have a stationary law: an unstable or critical one is refused with its reason before any solving."""

from __future__ import annotations

from queuetheory_llm.errors import AssumptionViolated, InvalidInput, NotConverged
from queuetheory_llm.model.arrivals import Arrivals, PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.stability.induced import induced_threshold
from queuetheory_llm.stability.thresholds import require_feasible, threshold
from queuetheory_llm.verdict import Judgement, Verdict

#: Verdicts under which no stationary law is promised.
NO_LAW = (Verdict.UNSTABLE, Verdict.CRITICAL)


def require_independent(engine: Engine, workload: Workload) -> Arrivals:
    """The arrivals of a workload that a chain of batches can have: Poisson, or slotted with batches of one slot.

    Raises
    ------
    InvalidInput
        If there are none, or slots and batches differ.
    AssumptionViolated
        If the numbers that arrive during successive batches are not independent.
    """
    arrivals = workload.arrivals
    if arrivals is None:
        raise InvalidInput("workload: rate: missing; give the workload a rate, or --rate R")
    if isinstance(arrivals, SlottedArrivals):
        arrivals.require_slot_batches(engine.batch_time, engine.b_max)
    elif not isinstance(arrivals, PoissonArrivals):
        raise AssumptionViolated(
            f"workload: arrivals: {arrivals.kind} arrivals remember when the last request came, so batch boundaries "
            "are no Markov chain; use poisson or slotted arrivals, or qt-llm simulate"
        )
    return arrivals


def judge_stability(engine: Engine, scheduler: Scheduler, workload: Workload) -> Judgement:
    """The verdict of theory: by a theorem, else by the induced chains; UNDECIDED where neither applies.

    Raises
    ------
    InfeasibleRequest
        If the rule can never serve some request.
    """
    undecided = Judgement(
        verdict=Verdict.UNDECIDED, basis=None, reason=f"{scheduler.name}: a rule outside the known policies"
    )
    if workload.rate is None:
        return undecided
    if isinstance(scheduler, Policy):
        require_feasible(scheduler, engine, workload)
        found = threshold(engine, scheduler, workload).judge(workload.rate)
        if found.verdict is not Verdict.UNDECIDED:
            return found
        undecided = found
    try:
        return induced_threshold(engine, scheduler, workload).judge(workload.rate)
    except (AssumptionViolated, NotConverged):
        return undecided


def require_stable(engine: Engine, scheduler: Scheduler, workload: Workload) -> Judgement:
    """The verdict of theory where it is not against a stationary law.

    Raises
    ------
    AssumptionViolated
        If the system is unstable or critical: it has none.
    InfeasibleRequest
        If the rule can never serve some request.
    """
    judgement = judge_stability(engine, scheduler, workload)
    if judgement.verdict in NO_LAW:
        unstable = judgement.verdict is Verdict.UNSTABLE
        promise = "so there is no stationary law" if unstable else "so no stationary law is promised"
        raise AssumptionViolated(
            f"{scheduler.name}: {judgement.verdict.value}, {promise}: {judgement.reason}; lower the rate"
        )
    return judgement
