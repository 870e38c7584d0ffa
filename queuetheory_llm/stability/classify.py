"""What kind of rule a scheduler is, found from the batches it forms and never from its name.

*Work-conserving*: every batch has b = min(b_max, D) tokens (Dai et al. 2025, eqs. 8-9). *K-FCFS*: per phase and over
its whole stay, a request is overtaken by at most K later ones of that phase; it is overtaken in a batch that gives a
later request a token of the phase in which it is ready and gets none.

Both are checked on every state that small requests can reach on small engines, and a failure comes with its witness.
A search proves nothing for larger systems. For a `Policy` the switches do:

    Lemma. Let a policy be mixed, split prompts, and let its passes visit every request, each pass in order of arrival.
    Then a visited request takes all it needs (or its threshold) unless tokens or seats run out, and from then on no
    request gets any. So b = min(b_max, D) without a threshold and with seats enough, the batch is full once b_max
    requests are present, and no request is overtaken: K = 0.

Only with the lemma does a theorem follow; for a user's own rule the search is reported for what it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Pass, Policy, Scheduler
from queuetheory_llm.schedulers.registry import to_scheduler
from queuetheory_llm.stability.exploration import BOUNDS, Witness, explored_form, grids, saturated, visit_of, visits
from queuetheory_llm.stability.growth import GrowthWitness, find_growth
from queuetheory_llm.stability.overtaking import overtaken, overtaking_bound

LEMMA = "a mixed rule of split prompts passes over a request only when the batch is full"


@attrs.frozen(kw_only=True)
class Classification(Result):
    """What the batches of a rule show.

    Attributes
    ----------
    scheduler : str
    explored_as : str
        The rule explored: token constants of a policy made small.
    work_conserving : bool
        On every explored state.
    overtaken : int or None
        K of K-FCFS on the explored states; None when a request can be overtaken without end.
    fills : bool
        Whether every batch is full once b_max requests are present, which is what stability up to F needs.
    states : int
        States explored.
    lemma : str or None
        Why what the search found holds at every size; None for a rule outside the policy space.
    idle_witness, overtaking_witness : Witness or None
        A state that breaks work conservation; one that overtakes for ever.
    growth_witness : GrowthWitness or None
        A load below capacity that the rule does not carry; looked for only where no theorem applies.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.classification:draw_classification"
    scheduler: str
    explored_as: str
    work_conserving: bool
    overtaken: int | None
    fills: bool
    states: int
    lemma: str | None = None
    idle_witness: Witness | None = None
    overtaking_witness: Witness | None = None
    growth_witness: GrowthWitness | None = None

    @property
    def proved_to_fill(self) -> bool:
        """Whether full batches and K-FCFS hold at every size, by the lemma."""
        return self.lemma is not None and self.fills and self.overtaken is not None

    @property
    def throughput_optimal(self) -> bool | None:
        """On one engine without k_max; None when neither a theorem nor a counterexample was found."""
        if self.proved_to_fill:
            return True
        return False if self.growth_witness is not None else None

    @property
    def reason(self) -> str:
        """The ground of `throughput_optimal`, one sentence."""
        if self.proved_to_fill and self.work_conserving:
            return f"{self.lemma}: work-conserving and {self.overtaken}-FCFS, Theorem 2 of arXiv 2504.07347"
        if self.proved_to_fill:
            return (
                f"{self.lemma}: {self.overtaken}-FCFS, and full once b_max requests are present, drift of the backlog"
            )
        if self.growth_witness is not None:
            return str(self.growth_witness)
        if self.work_conserving and self.overtaken is not None:
            return f"no violation in {self.states} states ({BOUNDS}), which proves nothing beyond them"
        return "neither a theorem applies nor was a growing backlog found"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        witnesses = {
            "work_conserving": self.idle_witness,
            "k_fcfs": self.overtaking_witness,
            "throughput_optimal": self.growth_witness,
        }
        return {
            "scheduler": self.scheduler,
            "explored_as": self.explored_as,
            "work_conserving": self.work_conserving,
            "k_fcfs": self.overtaken,
            "throughput_optimal": self.throughput_optimal,
            "reason": self.reason,
            "fills": self.fills,
            "states": self.states,
            "bounds": BOUNDS,
            "witnesses": {key: w.to_dict() for key, w in witnesses.items() if w is not None},
        }


def classify(scheduler: Scheduler | str) -> Classification:
    """Explore the small states of a rule and classify it.

    Parameters
    ----------
    scheduler : Scheduler or str
        A rule without memory between batches, or the name of one.

    Returns
    -------
    Classification
        ``work_conserving`` and ``overtaken`` hold on every explored state; a witness shows where they fail, and
        a growing backlog shows a rule that is not throughput-optimal.

    Raises
    ------
    InvalidInput
        If the rule forms something that is no batch.
    """
    rule = to_scheduler(scheduler)
    found = properties(rule)
    if found.throughput_optimal:
        return found
    return attrs.evolve(found, growth_witness=find_growth(explored_form(rule)))


def properties(scheduler: Scheduler) -> Classification:
    """The part of `classify` that thresholds rest on: no search for a growing backlog; policies are remembered."""
    if isinstance(scheduler, Policy):
        return _remembered(scheduler)
    if not (hasattr(scheduler, "name") and hasattr(scheduler, "form")):
        raise InvalidInput(f"scheduler: {scheduler!r} is no rule; it needs a name and form(view) -> Batch")
    return _explored(scheduler)


@lru_cache(maxsize=256)
def _remembered(policy: Policy) -> Classification:
    return _explored(policy)


def _explored(scheduler: Scheduler) -> Classification:
    rule = explored_form(scheduler)
    idle: list[Witness] = []
    fills, states, overtakes = True, 0, False
    for b_max, sizes in grids(rule):
        for visit in visits(rule, b_max, sizes):
            states += 1
            if visit.batch.tokens < min(b_max, visit.demand):
                idle.append(visit.witness())
                fills = fills and len(visit.state.left) < b_max
            overtakes = overtakes or bool(overtaken(visit.state, visit.batch))
        fills = fills and all(visit_of(rule, b_max, state).batch.tokens == b_max for state in saturated(b_max, sizes))
    bound, endless = overtaking_bound(rule) if overtakes else (0, None)
    return Classification(
        scheduler=scheduler.name,
        explored_as=rule.name,
        work_conserving=not idle,
        overtaken=bound,
        fills=fills,
        states=states,
        lemma=LEMMA if isinstance(scheduler, Policy) and _lemma_holds(scheduler) else None,
        idle_witness=min(idle, key=_smallness, default=None),
        overtaking_witness=endless,
    )


def _lemma_holds(policy: Policy) -> bool:
    visits_all = ({Pass.PREFILL, Pass.DECODE}, {Pass.RUNNING, Pass.WAITING})
    return policy.mixed and policy.chunks and set(policy.passes) in visits_all


def _smallness(witness: Witness) -> tuple[int, int, int]:
    return len(witness.left), sum(p + d for p, d in witness.left), witness.b_max
