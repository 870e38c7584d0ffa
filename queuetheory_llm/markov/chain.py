"""The exact chain of a system, solved: its laws, means, tail and drift, and how far each number can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Number, require_whole, to_bytes, to_fraction
from queuetheory_llm.markov.admission import require_independent, require_stable
from queuetheory_llm.markov.components import Recurrence
from queuetheory_llm.markov.drift import DriftTable, drift_table
from queuetheory_llm.markov.laws import (
    backlog_at_boundaries,
    batch_tokens,
    requests_at_boundaries,
    requests_over_time,
)
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.space import Space
from queuetheory_llm.markov.transient import Transient
from queuetheory_llm.markov.truncation import Cut, Means, Question, Tail, Told, Truncation
from queuetheory_llm.model.arrivals import SlottedArrivals
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import scheduler_for
from queuetheory_llm.verdict import Judgement, Verdict

#: Default error bound of a mean, as a share of it.
TOLERANCE = 1e-6
MEMORY = "2 GB"
_MOST_LENGTHS = 4_000  # values of the law of one request
_NEGLIGIBLE = 1e-15  # chance that is not written at the end of a law: its entries are right to about that much
_LONGEST_WRITTEN = 2**14  # entries of a law of the token backlog that JSON may hold: about 300 KB
MOST_STEPS = 10**6
_MOST_REQUESTS = 10**8  # that a level holds
_FEW, _NEAR = 4, 0.8  # requests that the first level holds, and loads beyond which it holds no more

#: What a mean over time counts, by whether arrivals are slotted.
COUNTED_AT = {True: "slot start, after arrivals", False: "time"}
BOUNDARY = {True: "slot start, after arrivals", False: "batch end or end of an idle time, after arrivals"}


@attrs.frozen(kw_only=True, eq=False)
class ExactChain(Result):
    """The stationary law of a batch-service engine, without sampling error.

    Attributes
    ----------
    engine : Engine
    scheduler : str
    workload : Workload
    judgement : Judgement
        Of theory; never UNSTABLE or CRITICAL.
    means : Means
        Averages over time.
    truncation : Truncation
        Where the chain is cut, and bounds on what that does to the means.
    cut : Cut
        The chain itself: states, operator, law at boundaries.
    notes : tuple of str
    title : str
        For the figure.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.markov:draw_chain"
    engine: Engine
    scheduler: str
    workload: Workload
    judgement: Judgement
    means: Means
    truncation: Truncation
    cut: Cut
    notes: tuple[str, ...]
    title: str = ""

    @property
    def space(self) -> Space:
        """The states and their moves."""
        return self.cut.rewards.space

    @property
    def law(self) -> Floats:
        """pi, the stationary law at boundaries; shape (states,)."""
        law: Floats = self.cut.stationary.law
        return law

    @property
    def recurrence(self) -> Recurrence:
        """The closed class, the transient states and the period of the cut chain."""
        return self.cut.stationary.recurrence

    @property
    def period(self) -> int:
        """1, or the period of a chain that never forgets at which step it began; the law is then a long-run average."""
        return self.recurrence.periods[0]

    @property
    def slotted(self) -> bool:
        """Whether a step is a slot, so that the laws at boundaries and over time are one."""
        return isinstance(self.cut.rewards.arrivals, SlottedArrivals)

    @property
    def counted_at(self) -> str:
        """Where the means and `requests_law` are counted: over time, or at slot starts after arrivals."""
        return COUNTED_AT[self.slotted]

    @property
    def boundary(self) -> str:
        """What the laws at boundaries are of."""
        return BOUNDARY[self.slotted]

    @property
    def rate(self) -> float:
        """Requests per second."""
        return float(self.cut.rewards.arrivals.rate)

    @property
    def utilisation(self) -> float:
        """Share of the time that the engine runs a batch."""
        return 1.0 - self.means.idle

    @property
    def mean_sojourn(self) -> float:
        """Mean seconds from arrival to the last token, by Little's law."""
        return self.means.requests / self.rate

    @property
    def mean_prompt_time(self) -> float:
        """Mean seconds from arrival to the end of the prompt, by Little's law; over all requests."""
        return self.means.prompts / self.rate

    @property
    def mean_decode_time(self) -> float:
        """Mean seconds from the end of the prompt to the last token, by Little's law."""
        return self.mean_sojourn - self.mean_prompt_time

    @cached_property
    def requests_law(self) -> Floats:
        """P(n requests present), n = 0, 1, ..., over time (slotted: at slot starts, after arrivals)."""
        return requests_over_time(self.cut.rewards, self.law)

    @cached_property
    def boundary_requests_law(self) -> Floats:
        """P(n requests present at a boundary), n = 0, 1, ..."""
        return requests_at_boundaries(self.cut.rewards, self.law)

    @cached_property
    def batch_law(self) -> Floats:
        """P(b tokens in a batch), b = 0, 1, ..."""
        return batch_tokens(self.cut.rewards, self.law)

    @cached_property
    def backlog_law(self) -> Floats:
        """P(n tokens left at a boundary), n = 0, 1, ...

        Raises
        ------
        NotConverged
            If it is too long to be written down; its mean is in `means`.
        """
        return backlog_at_boundaries(self.cut.rewards, self.law)

    @property
    def tail(self) -> Tail | None:
        """How the law of the requests present falls far out; None where that is not known."""
        return self.truncation.decay

    @cached_property
    def drift(self) -> DriftTable:
        """The drift of the token backlog in each state."""
        return drift_table(self.cut.rewards, self.law)

    @property
    def mean_batch_tokens(self) -> float:
        """Mean tokens of a batch."""
        return float(self.batch_law @ np.arange(self.batch_law.size))

    def quantile(self, share: float) -> int:
        """The least n with P(N <= n) >= ``share``, N the requests present."""
        if not 0 <= share < 1:
            raise InvalidInput(f"share: {share:g} is outside 0 <= share < 1")
        return int(np.searchsorted(np.cumsum(self.requests_law), share))

    def after(self, batches: int, start: Floats | None = None) -> Floats:
        """The law at boundaries after a number of steps; shape (states,).

        A step is a batch with its arrivals, or an idle time; under slotted arrivals a slot.

        Parameters
        ----------
        batches : int
            At least 0.
        start : float64 array of shape (states,), optional
            The law to begin with; by default the empty engine.
        """
        batches = require_whole("batches", batches, 0, "the number of steps")
        if batches > MOST_STEPS:
            raise InvalidInput(f"batches: {batches} is above {MOST_STEPS}; the stationary law is reached long before")
        weight = np.zeros(len(self.space)) if start is None else np.array(start, dtype=np.float64)
        if start is None:
            weight[0] = 1.0
        if weight.shape != (len(self.space),) or (weight < 0).any() or not np.isclose(weight.sum(), 1.0, atol=1e-9):
            raise InvalidInput(f"start: no law on the {len(self.space)} states; give chances that sum to 1")
        for _ in range(batches):
            weight = self.cut.operator.push(weight)
        return weight

    def transient(self, steps: int) -> Transient:
        """What the law of `after` so many steps from the empty engine comes to."""
        return Transient.of(self.space, self.after(steps), self.law, steps)

    def to_dict(self) -> dict[str, Any]:
        """The content of ``markov --json``; seconds, tokens and numbers of requests."""
        judgement = self.judgement
        return {
            "title": self.title,
            "scheduler": self.scheduler,
            "verdict": judgement.verdict.value,
            "basis": None if judgement.basis is None else judgement.basis.value,
            "reason": judgement.reason,
            "load": None if judgement.load is None else float(judgement.load),
            "rate": self.rate,
            "counted_at": self.counted_at,
            "mean_requests": self.means.requests,
            "mean_backlog_tokens": self.means.backlog,
            "mean_sojourn_s": self.mean_sojourn,
            "mean_prompt_time_s": self.mean_prompt_time,
            "mean_decode_time_s": self.mean_decode_time,
            "p_idle": self.means.idle,
            "utilisation": self.utilisation,
            "mean_batch_tokens": self.mean_batch_tokens,
            "tail_decay": None if self.tail is None else self.tail.decay,
            "tail_range": None if self.tail is None else [self.tail.start, self.tail.end],
            "requests_law": _trimmed(self.requests_law),
            "batch_tokens_law": _trimmed(self.batch_law),
            "boundary": {
                "counted_at": self.boundary,
                "mean_requests": float(self.law @ self.space.requests()),
                "mean_backlog_tokens": float(self.law @ self.space.backlog()),
                "p_empty": float(self.law[0]),
                "mean_seconds_between": self.means.seconds,
                "requests_law": _trimmed(self.boundary_requests_law),
                "backlog_law": self._short_backlog_law(),
            },
            "truncation": self.truncation.to_dict(),
            "recurrence": {"transient_states": self.recurrence.transient, "period": self.period},
            "drift": self.drift.to_dict(),
            "notes": list(self.notes),
        }

    def _short_backlog_law(self) -> list[float] | None:
        """The law of the token backlog at boundaries for JSON; None where it is long, or long to compute."""
        try:
            return _trimmed(backlog_at_boundaries(self.cut.rewards, self.law, longest=_LONGEST_WRITTEN))
        except NotConverged:
            return None


def _trimmed(law: Floats) -> list[float]:
    """The law without what is next to nothing at its end."""
    size = int(np.flatnonzero(law > _NEGLIGIBLE)[-1]) + 1
    return [float(chance) for chance in law[:size]]


def exact_chain(
    engine: Engine,
    scheduler: Scheduler | str,
    workload: Workload,
    *,
    level: Number | None = None,
    tolerance: Number = TOLERANCE,
    tail: Number | None = None,
    memory: Number = MEMORY,
    progress: Told | None = None,
) -> ExactChain:
    """The stationary law of one engine under one rule, by its exact Markov chain.

    The chain is that of batch boundaries (Dai et al. 2025, section 2); it is cut at a token backlog that is doubled
    until the error bounds of the means are within the tolerance.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler or str
        A rule or its name.
    workload : Workload
        With Poisson or slotted arrivals.
    level : number, optional
        Cut at this token backlog and no other, tokens.
    tolerance : number
        Largest error bound of a mean, as a share of it; of the idle time and of P(N > n) as they are. Between 0 and 1.
    tail : number, optional
        Cut an unbounded law of lengths where less than this probability is left; the error bounds do not count that.
        Without it such a law is refused, except for geometric decode lengths, which need no cut.
    memory : number or str
        Most memory to take, in bytes or as "2 GB".
    progress : callable, optional
        Called with a sentence about what is going on.

    Raises
    ------
    InvalidInput
        If an argument is out of range, or the workload has no rate.
    InfeasibleRequest
        If the rule can never serve some request.
    AssumptionViolated
        If the system is unstable or critical, the arrivals remember the past, or the long run depends on the start.
    NotConverged
        If no level within the memory meets the tolerance.

    Examples
    --------
    >>> from queuetheory_llm import Engine, SlottedArrivals, Table, Workload
    >>> engine = Engine(batch_time=Table(tokens=[2], seconds_at=[1]), b_max=2)
    >>> arrivals = SlottedArrivals(slot="1 s", law="bernoulli", mean="0.5")
    >>> chain = exact_chain(engine, "vllm-vanilla", Workload.of(prefill=1, decode=1, arrivals=arrivals))
    >>> round(chain.means.requests, 5)  # 1/2 + r/(1 - r), r the golden ratio less 1
    2.11803
    """
    rule = scheduler_for(scheduler, engine, workload) if isinstance(scheduler, str) else scheduler
    question, first = _question(engine, rule, workload, level, tolerance, tail, memory, progress)
    judgement = require_stable(engine, rule, workload)
    cut, truncation = question.answer(first or _first_level(question, judgement), only=first is not None)
    return ExactChain(
        engine=engine,
        scheduler=rule.name,
        workload=workload,
        judgement=judgement,
        means=cut.means,
        truncation=truncation,
        cut=cut,
        notes=(*workload.notes, *_notes(question, judgement, tail)),
    )


def _question(
    engine: Engine,
    rule: Scheduler,
    workload: Workload,
    level: Number | None,
    tolerance: Number,
    tail: Number | None,
    memory: Number,
    progress: Told | None,
) -> tuple[Question, float | None]:
    """What is asked, checked; with the only level, if one is given."""
    tolerance = _share("tolerance", tolerance)
    tail = None if tail is None else _share("tail", tail)
    arrivals = require_independent(engine, workload)
    law = request_law(workload, memoryless=True, late=True, tail=tail, most=_MOST_LENGTHS)
    first = None if level is None else float(to_fraction(level))
    if first is not None and not law.mean_tokens <= first <= _MOST_REQUESTS * law.mean_tokens:
        raise InvalidInput(
            f"level: {first:g} tokens is outside 1 .. {_MOST_REQUESTS} requests of {law.mean_tokens:.6g} tokens, the "
            "mean; give a level in between"
        )
    outcomes = Outcomes(engine=engine, scheduler=rule, law=law)
    question = Question(
        outcomes=outcomes, arrivals=arrivals, tolerance=tolerance, memory=to_bytes(memory), told=progress
    )
    return question, first


def _share(name: str, value: Number) -> float:
    share = float(to_fraction(value))
    if not 0 < share < 1:
        raise InvalidInput(f"{name}: {share:g} is outside 0 < {name} < 1")
    return share


def _first_level(question: Question, judgement: Judgement) -> float:
    """Tokens to begin with: a few requests, more of them near the edge. Levels are doubled, so little is lost here."""
    load = min(float(judgement.load or 0.0), _NEAR)
    return question.mean * _FEW / (1 - load)


def _notes(question: Question, judgement: Judgement, tail: Number | None) -> Iterator[str]:
    law = question.outcomes.law
    if law.cut:
        yield (
            f"lengths: cut where {law.cut:.3g} of the requests is left, so their mean is {law.mean_tokens:.9g} tokens; "
            "the error bounds are those of the lengths as cut"
        )
    elif tail is not None:
        yield "lengths: none is unbounded, so nothing is cut"
    if judgement.verdict is Verdict.UNDECIDED:
        yield (
            f"stability is not proved ({judgement.reason}); the law is that of the chain cut at the level, whose error "
            "bound holds if the chain has a stationary law"
        )
