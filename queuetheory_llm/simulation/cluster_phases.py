"""The drift of the backlog of a cluster in each phase of a run, for the search of its largest stable rate.

The backlog is the work left of all the queries that have come, calls that are yet to be made included
(`query_work`). It is what `phases` measures of one engine: regressed on what arrived beyond its mean, over windows of
independent replications.

*Decode steps without a limit of seats* take the same time for any number of calls: between prompts they are vacations.
With n calls that decode a step sets free a number of calls in proportion to n, whose prompts come next, so the share of
the time that goes into steps falls like 1/n. The fluid model, and with it the drift of large backlogs, has no steps at
all. But n has to be in the thousands before they are rare: at 95 % of its limit the first cluster of HEXGEN-FLOW holds
thousands of calls in turns, and a backlog that is to show a drift would have to be far larger. So such
steps are made `_STEPS_CUT` times shorter, with prompts as long as ever and rules that see what they always see: same
fluid model, backlogs of hundreds. What real steps do to a small backlog they do in any case: they delay.

That holds where all backlogs that a rule looks at are large together: of rules that do not look, and of those that keep
the instances level, which the first run in overload shows (`_is_level`). A rule that lets an instance run nearly empty,
such as HEXGEN-FLOW's with alpha > 0, is steered by how soon the few calls there end, and one that reads the seconds
truly left would read others: for these steps are as long as they are.

Where several instances are full at the same rate (a split of the linear program) they starve one another in turns, in
waves that grow with the backlog; drifts are then noisy for far longer, and a search may end with its bounds alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.exact.rounding import short_fraction
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.cluster_bounds import rate_of_split
from queuetheory_llm.simulation.cluster_rule import ClusterRule, run_rule
from queuetheory_llm.simulation.cluster_run import ClusterRun, cluster_clock
from queuetheory_llm.simulation.phases import Phase, Sampled, regressed_drift, whole_ticks
from queuetheory_llm.simulation.query_work import QueryWork, calls_before, come, served
from queuetheory_llm.simulation.requests import Ticks, arrival_ticks
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.statistics import TokenDrift
from queuetheory_llm.simulation.threads import in_threads
from queuetheory_llm.simulation.workflow_draws import draw_queries

_SAMPLE = 2_000  # queries that tell how much their work varies
_LIFETIMES = 8  # of a query that never waits, in a phase
_STEPS_CUT = 500
_LOOK = 1_000  # queries of the run in overload that shows whether backlogs are level
_LEVEL = 0.25  # of the mean calls at an instance, that each holds at least under a rule that keeps them level


class QueryStream(Sampled):
    """Queries of a workflow at a rate of one's choice."""

    def __init__(self, system: WorkflowSystem) -> None:
        self.system = system
        self.weights = QueryWork.of(system)
        sample = draw_queries(system.workflow, np.zeros(_SAMPLE, dtype=np.int64), np.random.default_rng(0))
        each = np.add.reduceat(np.append(self.weights.of_calls(sample), 0.0), calls_before(sample)[:-1])
        each[np.diff(calls_before(sample)) == 0] = 0.0
        super().__init__(self.weights.mean, float(np.mean(each**2)) / self.weights.mean**2)

    def phase(self, phase: Phase, clock: Clock, rng: np.random.Generator) -> tuple[Ticks, int]:
        """The ticks of its arrivals and how many ticks it lasts."""
        rate = whole_ticks(phase.rate, clock)
        seconds = Fraction(phase.requests) / rate
        return arrival_ticks(self.system.arrivals.with_rate(rate), clock, seconds, rng), clock.bound(seconds)


@attrs.frozen(kw_only=True)
class BacklogDrift:
    """Growth in a phase, seconds of work a second."""

    total: TokenDrift


@attrs.define(kw_only=True)
class ClusterPhases:
    """Runs of a rule on a cluster through phases; a `rate_search.PhaseRunner`.

    Parameters
    ----------
    system : WorkflowSystem
    rule : ClusterRule
    seed : int
    workers : int, optional
        Threads; by default one a core.

    Attributes
    ----------
    stream : QueryStream
    requests : int
        Queries run so far.
    """

    system: WorkflowSystem
    rule: ClusterRule
    seed: int
    workers: int | None = None
    stream: QueryStream = attrs.field(init=False)
    clock: Clock = attrs.field(init=False)
    requests: int = attrs.field(default=0, init=False)
    steps_cut: int = attrs.field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        """What does not depend on the phases."""
        self.stream = QueryStream(self.system)
        self.clock = cluster_clock(self.system)
        if self.rule.dispatcher.rule.oblivious:
            self.steps_cut = _STEPS_CUT

    def overload(self, rate: float) -> float | None:
        """Learn from a run in overload from empty whether steps may be cut, and about where the limit is.

        The second only of a rule that does not look: its split is the same at every rate, so the loads tell. None of
        others.
        """
        phase = Phase(rate=short_fraction(rate), requests=self.sized(_LOOK, rate))
        _, done = self._run([phase], [self.seed, 0, 0])
        self.requests += len(done.queries)
        dispatcher = self.rule.dispatcher
        if dispatcher.rule.oblivious:
            return rate_of_split(self.system, done.sent)
        self.steps_cut = _STEPS_CUT if dispatcher.reading != "true" and _is_level(done) else 1
        return None

    def sized(self, requests: int, rate: float) -> int:
        """Requests of a phase at ``rate``, at least so many that it lasts some lifetimes of a query."""
        return max(requests, math.ceil(_LIFETIMES * float(self.system.base_seconds) * rate))

    def drifts(self, phases: Sequence[Phase], *, confidence: float, draw: int = 0) -> list[BacklogDrift]:
        """Drifts in each phase of a run from empty, with their intervals, over all replications of a draw."""
        seeds = [[self.seed, draw, i] for i in range(self.stream.replications)]
        found = in_threads(lambda each: self._replication(phases, each), seeds, self.workers)
        self.requests += sum(count for count, _ in found)
        rows = [windows for _, windows in found]
        return [self._estimate(phase, np.stack(each), confidence) for phase, *each in zip(phases, *rows, strict=True)]

    def _replication(self, phases: Sequence[Phase], seeds: list[int]) -> tuple[int, list[Floats]]:
        """Queries run; for each phase by window, a second: growth of the backlog, then what it is regressed on."""
        edges, done = self._run(phases, seeds)
        parts = self.stream.weights.parts(done.queries)
        return len(done.queries), [
            self._windows(done, parts, phase, edge) for phase, edge in zip(phases, edges, strict=True)
        ]

    def _run(self, phases: Sequence[Phase], seeds: list[int]) -> tuple[list[Ticks], ClusterRun]:
        """The ends of the windows of each phase, and a run from empty through them."""
        for_queries, for_tosses, *own = np.random.default_rng(seeds).spawn(2 + len(phases))
        times, edges, now = [], [], 0
        for phase, rng in zip(phases, own, strict=True):
            arrivals, ticks = self.stream.phase(phase, self.clock, rng)
            times.append(arrivals + now)
            edges.append(now + self.stream.edges(ticks, rng))
            now += ticks
        queries = draw_queries(self.system.workflow, np.concatenate(times), for_queries)
        done = run_rule(
            self.system, queries, self.rule, until=now, rng=for_tosses, clock=self.clock, steps_cut=self.steps_cut
        )
        return edges, done

    def _windows(self, done: ClusterRun, parts: Floats, phase: Phase, edge: Ticks) -> Floats:
        seconds = np.diff(edge) / self.clock.rate
        count, work = come(done.queries, parts.sum(axis=0), edge)
        growth = np.diff(work - served(done, parts, edge)) / seconds
        expected = float(phase.rate) * np.array([[1.0], [self.stream.work]])
        excess = np.diff(np.stack([count, work])) / seconds - expected
        return np.vstack([growth, excess])[:, self.stream.settle :]

    def _estimate(self, phase: Phase, rows: Floats, confidence: float) -> BacklogDrift:
        """From rows of shape (replications, 1 + what is regressed on, windows)."""
        measured = float(phase.requests / phase.rate) * rows.shape[2] / (self.stream.windows + 1)
        found = regressed_drift(rows[:, 0], rows[:, 1:], self.stream.work / measured, confidence)
        return BacklogDrift(total=found)


def _is_level(run: ClusterRun) -> bool:
    """Whether no instance holds far fewer calls than the others over the second half of a run."""
    half = run.until // 2
    there = run.came != NEVER
    begin, end = np.maximum(run.came[there], half), np.minimum(run.ended[there], run.until)
    end = np.where(run.ended[there] == NEVER, run.until, end)
    held = np.bincount(run.instance[there], np.maximum(end - begin, 0), minlength=len(run.system.units))
    return bool(held.min() >= _LEVEL * held.mean())
