"""Rules for a cluster side by side: a dispatch rule and a queue order each, all on the same queries.

Every replication draws its queries once and gives them to every rule (common random numbers), so that a ratio of two
rules has far less noise than either. Quantiles and deadlines are of the queries that came after the warm-up and before
the cool-down. When the last query has come the run goes on, without arrivals, for half as long again at most: a query
that has not ended by then counts as infinitely late. So a rule that starves some queries does not look good by leaving
them out.

Whether a rule is stable at the rate is said from the runs alone: growth and return by the tests of `evidence` on the
work of calls that are overdue, and where they leave it open by recovery from a burst (`burst_recovery`). Errors are
counted for one queue; of instances that are critical at once and queue apart the sum is less regular, and growth and
return claim nothing there. `dispatch_limits` and theory (`stability.dispatch_verdicts`) say more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, require_whole
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.simulation.burst_recovery import Burst, arrived, late_backlog
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.cluster_arguments import check_arguments, numbers_of
from queuetheory_llm.simulation.cluster_bounds import limit_of, memory_notes, with_split
from queuetheory_llm.simulation.cluster_rule import ClusterRule, process_of, to_cluster_rules
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.evidence import (
    BATCHES_A_WINDOW,
    GROWTH_AT_CRITICAL,
    WINDOWS,
    Evidence,
    grows,
    growth_needed,
    mean_growth,
    pooled_ratio,
    ratio_needed,
    returns,
)
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.query_source import Draw, queries_of
from queuetheory_llm.simulation.query_statistics import LEVEL, Interval, maybe, quantile
from queuetheory_llm.simulation.query_work import QueryWork, overdue
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import INTERVALS, NEVER
from queuetheory_llm.simulation.threads import in_threads
from queuetheory_llm.verdict import Verdict

if TYPE_CHECKING:
    from queuetheory_llm.simulation.cluster_runner import ClusterProcess

#: The quantiles of the seconds of a query that are reported, by name.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@attrs.frozen(kw_only=True)
class TenantOutcome:
    """What a tenant sees.

    Attributes
    ----------
    name : str
    slo : float or None
        Its deadline, seconds.
    p95 : Interval
        Seconds of its queries.
    attainment : Interval or None
        Share of its queries that end within the SLO; None without one.
    """

    name: str
    slo: float | None
    p95: Interval | None
    attainment: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "slo": self.slo,
            "p95": maybe(self.p95),
            "attainment": maybe(self.attainment),
        }


@attrs.frozen(kw_only=True, eq=False)
class RuleOutcome:
    """What the runs of one rule show.

    Attributes
    ----------
    rule : str
        As it was written, "hexgen-paper+alpha=0.2/urgency".
    mean, p50, p95, p99 : Interval
        Seconds from arrival to end of a query. ``mean`` is None unless ``verdict`` is STABLE: elsewhere there may be
        none, and the quantiles are those of this stretch of the run. They are infinite where so many have not ended.
    attainment : Interval or None
        Share of the queries with an SLO that end within it; None where no tenant has one. Intervals of shares are cut
        to 0 .. 1.
    tenants : tuple of TenantOutcome
    throughput : Interval
        Queries/s that end between the warm-up and the cool-down.
    loads : tuple of Interval
        Share of the time in which each single instance works.
    call_shares : tuple of float
        Share of the calls sent to each single instance.
    ratios : mapping of str to Interval or None
        "mean", "p50", "p95", "p99" in multiples of the baseline's, geometric mean over pairs; that of the mean is None
        where either rule is not STABLE.
    verdict : Verdict
        STABLE, UNSTABLE or UNDECIDED: whether the work in the cluster grows, by the runs alone.
    reason : str
        One sentence.
    growth : Interval
        Slope of the work of overdue calls (`query_work.overdue`) over the second half of the runs, seconds of work a
        second.
    unfinished : int
        Queries among those counted that had not ended when the runs did, their time without arrivals included.
    responses : tuple of float arrays
        Of each replication the seconds of the queries counted, inf where one had not ended.
    deadlines : tuple of float arrays
        Their SLOs, inf without.
    """

    rule: str
    mean: Interval | None
    p50: Interval
    p95: Interval
    p99: Interval
    attainment: Interval | None
    tenants: tuple[TenantOutcome, ...]
    throughput: Interval
    loads: tuple[Interval, ...]
    call_shares: tuple[float, ...]
    ratios: Mapping[str, Interval | None]
    verdict: Verdict
    reason: str
    growth: Interval
    unfinished: int
    responses: tuple[Floats, ...] = attrs.field(repr=False)
    deadlines: tuple[Floats, ...] = attrs.field(repr=False)

    @property
    def sample_mean(self) -> Interval:
        """The mean of the runs whatever they show, for a rule that theory shows to be stable."""
        return Interval.of(np.array([each.mean() for each in self.responses]))

    def to_dict(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Plain values, times in seconds; ``names`` are those of the single instances."""
        return {
            "rule": self.rule,
            "verdict": self.verdict.value,
            "basis": "simulation",
            "reason": self.reason,
            "growth": self.growth.to_dict(),
            "mean": maybe(self.mean),
            **{name: getattr(self, name).to_dict() for name in QUANTILES},
            "attainment": maybe(self.attainment),
            "tenants": [each.to_dict() for each in self.tenants],
            "throughput": self.throughput.to_dict(),
            "instances": [
                {"name": name, "busy": load.to_dict(), "share": share}
                for name, load, share in zip(names, self.loads, self.call_shares, strict=True)
            ],
            "ratios": {name: maybe(ratio) for name, ratio in self.ratios.items()},
            "unfinished": self.unfinished,
        }


@attrs.frozen(kw_only=True, eq=False)
class ClusterComparison(Result):
    """Rules side by side on the same queries.

    Attributes
    ----------
    system : WorkflowSystem
        At the rate that was run.
    rate : float
        Queries/s.
    queries : int
        Counted in a replication.
    around : int
        That came before them, and again after them, in each: the warm-up and the cool-down.
    replications, seed : int
    confidence : float
        Level of the intervals.
    baseline : str
        The rule that `RuleOutcome.ratios` refer to.
    rules : tuple of RuleOutcome
        In the order in which they were asked for.
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.dispatch:draw_comparison"
    system: WorkflowSystem
    rate: float
    queries: int
    around: int
    replications: int
    seed: int
    confidence: float
    baseline: str
    rules: tuple[RuleOutcome, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, rule: str) -> RuleOutcome:
        """The outcome of a rule as it was written."""
        return {each.rule: each for each in self.rules}[rule]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        return {
            "rate": self.rate,
            "queries": self.queries,
            "around": self.around,
            "replications": self.replications,
            "seed": self.seed,
            "confidence": self.confidence,
            "base_seconds": float(self.system.base_seconds),
            "baseline": self.baseline,
            "rules": [each.to_dict(self.system.unit_names) for each in self.rules],
            "notes": list(self.notes),
        }


#: Told the share of the work that is done, 0 to 1.
Progress = Callable[[float], None]

_AROUND = 0.25  # of the queries counted, before and again after them
_ALONE = 4  # average queries that the warm-up and the cool-down each last at least, at the capacity at most
_DRAIN = 0.5  # of the time in which queries come: how long a run goes on without any
_LEAST_CALLS = 400  # in a run that is to show growth or return
MOST_REPLICATIONS = 1000


def simulate_cluster(
    system: WorkflowSystem,
    rules: Iterable[ClusterRule | Dispatcher | str],
    *,
    order: QueueOrder | str = "fcfs",
    rate: Number | None = None,
    queries: int = 2_000,
    replications: int = 10,
    seed: int = 0,
    baseline: str | None = None,
    log: Queries | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ClusterComparison:
    """Run rules on the same queries and compare what the queries see.

    Parameters
    ----------
    system : WorkflowSystem
    rules : iterable of rules
        Written "hexgen-paper+alpha=0.2/urgency", dispatch rule and queue order, or as objects.
    order : QueueOrder or str
        Of rules that name none.
    rate : number, optional
        Queries/s; by default that of the system.
    queries : int
        Counted in a replication; a warm-up and a cool-down of at least a quarter as many each, and of as many as come
        while `_ALONE` average queries, each alone, follow one another, come on top; a rate above the
        capacity counts as that there.
    replications : int
        From 1 to `MOST_REPLICATIONS`; there are intervals from 2 on.
    seed : int
        The same seed gives the same result, whatever the number of workers.
    baseline : str, optional
        The rule that ratios refer to; by default the first.
    log : Queries, optional
        Real queries in the place of those of the workflow: each replication takes from them at random, with
        replacement.
    workers : int, optional
        Threads; by default one a core.
    progress : callable, optional

    Raises
    ------
    InvalidInput
        If an argument is out of range or a rule unknown.
    """
    check_arguments(system, log=log, progress=progress)
    named = [with_split(each, system) for each in to_cluster_rules(rules, order)]
    against = _baseline(named, baseline)
    queries = require_whole("queries", queries, 1, "the queries that are counted in a replication")
    bench = Bench.of(at_rate(system, rate), queries=queries, replications=replications, seed=seed, log=log)
    samples = bench.sample_all(named, workers, progress)
    judged = [_judged(rule, own, bench, workers) for rule, own in zip(named, samples, strict=True)]
    return ClusterComparison(
        system=bench.system,
        rate=float(bench.system.arrivals.rate),
        queries=queries,
        around=bench.around,
        replications=bench.replications,
        seed=seed,
        confidence=LEVEL,
        baseline=named[against].name,
        rules=tuple(
            _outcome(rule, own, samples[against], bench.system, found, judged[against])
            for rule, own, found in zip(named, samples, judged, strict=True)
        ),
        notes=_notes(bench, log),
    )


def _notes(bench: Bench, log: Queries | None) -> tuple[str, ...]:
    notes = list(bench.notes)
    if bench.replications == 1:
        notes.append("one replication has no intervals; give at least 2")
    if log is not None:
        notes.append(f"log: each replication takes queries at random, with replacement, from the {len(log)} of the log")
    return tuple(notes)


def at_rate(system: WorkflowSystem, rate: Number | None) -> WorkflowSystem:
    """The system at a rate in queries/s, its own by default.

    Raises
    ------
    InvalidInput
        If the rate is not positive.
    """
    if rate is None:
        return system
    (exact,) = numbers_of("rate", [rate])
    if exact <= 0:
        raise InvalidInput(f"rate: {float(exact):g} is not positive; give queries per second")
    return system.with_rate(exact)


def _baseline(rules: Sequence[ClusterRule], name: str | None) -> int:
    names = [each.name for each in rules]
    if name is not None and name not in names:
        raise InvalidInput(f"baseline: {name} is not among the rules; name one of {', '.join(names)}")
    return 0 if name is None else names.index(name)


@attrs.frozen(kw_only=True)
class Bench:
    """Replications of the queries of a system, on which rules are run.

    Attributes
    ----------
    system : WorkflowSystem
    clock : Clock
    queries, around : int
        Counted, and before and again after them.
    replications, seed : int
    log : Queries or None
    """

    system: WorkflowSystem
    clock: Clock
    queries: int
    around: int
    replications: int
    seed: int
    log: Queries | None = None

    @classmethod
    def of(
        cls, system: WorkflowSystem, *, queries: int, replications: int, seed: int, log: Queries | None = None
    ) -> Bench:
        """With a warm-up and a cool-down that fit.

        Raises
        ------
        InvalidInput
            If an argument is out of range.
        """
        queries = require_whole("queries", queries, 1, "the queries that are counted in a replication")
        replications = require_whole("replications", replications, 1, "the number of independent runs")
        if replications > MOST_REPLICATIONS:
            raise InvalidInput(
                f"replications: {replications} are more than {MOST_REPLICATIONS}; give fewer, longer runs"
            )
        capacity = limit_of(system)
        rate = system.arrivals.rate if capacity is None else min(system.arrivals.rate, capacity)
        alone = float(system.base_seconds * rate)
        return cls(
            system=system,
            clock=cluster_clock(system),
            queries=queries,
            around=math.ceil(max(_AROUND * queries, _ALONE * alone)),
            replications=replications,
            seed=require_whole("seed", seed, 0, "the same for the same run"),
            log=log,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Of every run: times that are rounded, limits of the engines that play no part."""
        return (*self.clock.notes, *memory_notes(self.system))

    def at(self, system: WorkflowSystem) -> Bench:
        """The same queries at another rate, or for other tenants."""
        return attrs.evolve(self, system=system)

    def draw(self, replication: int) -> Draw:
        """What is random in a replication."""
        return Draw(seeds=(self.seed, replication))

    def queries_of(self, replication: int) -> Queries:
        """The queries of a replication."""
        return queries_of(self.system, self.queries + 2 * self.around, self.draw(replication), self.clock, self.log)

    def process(self, rule: ClusterRule, replication: int, queries: Queries) -> ClusterProcess:
        """A rule on queries, with the tosses of a replication."""
        rng = self.draw(replication).streams()[2]
        return process_of(self.system, queries, rule, rng=rng, clock=self.clock)

    def sample(self, rule: ClusterRule, replication: int) -> Sample:
        """What is kept of a run on the queries of a replication."""
        process = self.process(rule, replication, self.queries_of(replication))
        return Sample.of(process, self.around)

    def sample_all(
        self, rules: Sequence[ClusterRule], workers: int | None, progress: Progress | None = None
    ) -> list[list[Sample]]:
        """Every rule on every replication; rows by rule."""
        tasks = [(rule, i) for rule in rules for i in range(self.replications)]
        found = in_threads(lambda task: self.sample(*task), tasks, workers, progress)
        return [found[k : k + self.replications] for k in range(0, len(found), self.replications)]


@attrs.frozen(kw_only=True, eq=False)
class Sample:
    """What is kept of one run.

    Attributes
    ----------
    responses, deadlines : float arrays
        Seconds and SLOs of the queries counted; inf of one that had not ended, and without an SLO.
    tenant : int64 array
        Of the queries counted.
    throughput : float
        Queries/s that end while those that are counted come.
    loads : float array of shape (M,)
        Share of the time in which each instance works.
    sent : int64 array of shape (M,)
        Calls sent to each instance.
    level : float array of shape (INTERVALS + 1,)
        Work of overdue calls, seconds, at equal steps of the time in which queries come.
    backlog : float
        Work left of all queries, calls yet to be made included, over the last tenth of it.
    seconds : float
        In which queries come; so for what follows.
    calls : int
        That ended.
    """

    responses: Floats
    deadlines: Floats
    tenant: Ticks
    throughput: float
    loads: Floats
    sent: Ticks
    level: Floats
    backlog: float
    seconds: float
    calls: int

    @classmethod
    def of(cls, process: ClusterProcess, around: int) -> Sample:
        """From a run that has not begun, with ``around`` queries before and after those that are counted."""
        run = arrived(process)
        counted = slice(around, len(run.queries) - around)
        first, last = run.queries.arrival[[around, len(run.queries) - around]]
        done = np.count_nonzero((run.finished > first) & (run.finished <= last))
        edges = np.linspace(0, run.until, INTERVALS + 1).astype(np.int64)
        work = QueryWork.of(run.system)
        seen = {
            "loads": run.busy / run.until,
            "sent": run.sent.sum(axis=0),
            "level": overdue(run, work.of_calls(run.queries), edges),
            "backlog": late_backlog(run, work),
            "calls": int((run.ended != NEVER).sum()),
        }
        process.advance(run.until + math.ceil(_DRAIN * run.until))
        return cls(
            responses=process.run().responses[counted],
            deadlines=run.deadlines[counted],
            tenant=run.queries.tenant[counted],
            throughput=float(done * run.clock.rate / max(last - first, 1)),
            seconds=run.clock.seconds(run.until),
            **seen,
        )

    @property
    def measures(self) -> dict[str, float]:
        """``mean`` and the `QUANTILES`, seconds."""
        found = {name: quantile(self.responses, share) for name, share in QUANTILES.items()}
        return {"mean": float(self.responses.mean()), **found}

    def attainment(self, tenant: int | None = None) -> float | None:
        """Share of the queries counted, of all tenants or of one, that end within their SLO; None without any."""
        chosen = np.isfinite(self.deadlines)
        if tenant is not None:
            chosen &= self.tenant == tenant
        return float((self.responses <= self.deadlines)[chosen].mean()) if chosen.any() else None


#: A verdict by the runs, why, and the growth of overdue work.
Judged = tuple[Verdict, str, Interval]


def _outcome(
    rule: ClusterRule,
    own: Sequence[Sample],
    base: Sequence[Sample],
    system: WorkflowSystem,
    judged: Judged,
    reference_judged: Judged,
) -> RuleOutcome:
    """What the runs of a rule show, beside those of the baseline."""
    columns, reference = _columns(own), _columns(base)
    verdict, reason, growth = judged
    ratios = {name: Interval.of_ratio(values, reference[name]) for name, values in columns.items()}
    if {verdict, reference_judged[0]} != {Verdict.STABLE}:
        ratios["mean"] = None
    sent = np.sum([each.sent for each in own], axis=0)
    return RuleOutcome(
        rule=rule.name,
        mean=Interval.of(columns["mean"]) if verdict is Verdict.STABLE else None,
        **{name: Interval.of(columns[name]) for name in QUANTILES},
        attainment=Interval.of_shares([each.attainment() for each in own]),
        tenants=tuple(_tenant(own, tenant, system) for tenant in range(len(system.workflow.tenants))),
        throughput=Interval.of(np.array([each.throughput for each in own])),
        loads=tuple(_load_of(load) for load in np.array([each.loads for each in own]).T),
        call_shares=tuple((sent / max(sent.sum(), 1)).tolist()),
        ratios=ratios,
        verdict=verdict,
        reason=reason,
        growth=growth,
        unfinished=sum(int(np.isinf(each.responses).sum()) for each in own),
        responses=tuple(each.responses for each in own),
        deadlines=tuple(each.deadlines for each in own),
    )


def _load_of(values: Floats) -> Interval:
    found = Interval.of_shares(values.tolist())
    assert found is not None
    return found


def _columns(samples: Sequence[Sample]) -> dict[str, Floats]:
    """The measures of the replications, by name."""
    rows = [each.measures for each in samples]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _tenant(samples: Sequence[Sample], tenant: int, system: WorkflowSystem) -> TenantOutcome:
    own = [each.responses[each.tenant == tenant] for each in samples]
    deadline = system.deadline(tenant)
    return TenantOutcome(
        name=system.workflow.tenants[tenant].name,
        slo=None if deadline is None else float(deadline),
        p95=Interval.of_known([quantile(responses, QUANTILES["p95"]) if responses.size else None for responses in own]),
        attainment=Interval.of_shares([each.attainment(tenant) for each in samples]),
    )


def _judged(rule: ClusterRule, samples: Sequence[Sample], bench: Bench, workers: int | None) -> Judged:
    """Whether overdue work grows, why, and its slope; recovery from a burst is run only where that leaves it open."""
    half = INTERVALS // 2
    growth = Interval.of(np.array([(each.level[-1] - each.level[half]) * 2 / each.seconds for each in samples]))
    text = f"overdue work grows by {growth.mean:.3g} s a second"
    fewest = min(each.calls for each in samples)
    if fewest < _LEAST_CALLS:
        more = _round_up(bench.queries * _LEAST_CALLS / max(fewest, 1))
        few = f"a run holds {fewest} calls, a verdict needs {_LEAST_CALLS}: give about {more} queries"
        return Verdict.UNDECIDED, few, growth
    found = [Evidence.of_level(each.level, seconds=each.seconds, services=each.calls) for each in samples]
    if grows(found):
        return Verdict.UNSTABLE, f"{text}, for as long as the runs last", growth
    if returns(found):
        return Verdict.STABLE, "the overdue work returns to its level again and again", growth
    burst = Burst.of(bench.system, bench.queries + 2 * bench.around, bench.replications)
    levels = in_threads(lambda i: _backlog_after(burst, rule, bench, i), range(bench.replications), workers)
    verdict, reason = burst.judge(np.array(levels) - [each.backlog for each in samples])
    if verdict is Verdict.UNDECIDED:
        reason = f"{reason}; {_would_decide(found, bench.queries)}"
    return verdict, reason, growth


def _would_decide(runs: Sequence[Evidence], queries: int) -> str:
    """The queries of a run that would decide: v falls like 1/T in a stable system, z grows like the root of T else."""
    least = WINDOWS * BATCHES_A_WINDOW / min(each.batches for each in runs)
    stable = max(2.0, least, pooled_ratio(runs) / ratio_needed(len(runs)))
    words = f"about {_round_up(stable * queries)} queries a run would decide if it is stable"
    apart = mean_growth(runs) - GROWTH_AT_CRITICAL
    if apart > 0:
        unstable = max(2.0, ((growth_needed(len(runs)) - GROWTH_AT_CRITICAL) / apart) ** 2)
        words += f", {_round_up(unstable * queries)} if it grows"
    return words


def _round_up(value: float) -> str:
    """A whole number with two digits that are not 0."""
    step = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step) * step:,}"


def _backlog_after(burst: Burst, rule: ClusterRule, bench: Bench, replication: int) -> float:
    """Backlog at the end of a replication that begins with a burst, as `Sample.backlog`."""
    queries = burst.before(bench.queries_of(replication), bench.draw(replication))
    return late_backlog(arrived(bench.process(rule, replication, queries)), burst.work)
