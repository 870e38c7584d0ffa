"""A run with its judgement: by a theorem where one applies, else by what the run shows.

Theory, from `stability`, and measurement meet here and are reported apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.dispatch.registry import DISPATCH_RULES, require_dispatch
from queuetheory_llm.errors import InfeasibleRequest, InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Number, exact_text, require_whole, to_seconds
from queuetheory_llm.model.arrivals import PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.dispatch import RANDOM, require_engines
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.model.trace import FirstToken, Trace, TraceArrivals
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.schedulers.registry import scheduler_for
from queuetheory_llm.simulation.clock import LAST_TICK, Clock, generators
from queuetheory_llm.simulation.evidence import Evidence
from queuetheory_llm.simulation.invariants import CHECKED, FILLS, check_run
from queuetheory_llm.simulation.replicas import run_replicas
from queuetheory_llm.simulation.requests import Requests, fixed_times, replay, sample
from queuetheory_llm.simulation.run import Progress, Run
from queuetheory_llm.simulation.statistics import LATENCIES, Doubt, Measured, Summary, measure, score
from queuetheory_llm.stability.classify import properties
from queuetheory_llm.stability.parallel import parallel_threshold
from queuetheory_llm.verdict import Basis, Judgement, Verdict


def _read_only(summaries: Mapping[str, Summary]) -> Mapping[str, Summary]:
    return MappingProxyType(dict(summaries))


@attrs.frozen(kw_only=True, eq=False)
class Simulation(Result):
    """One run, or independent runs of one system, and what is said of it.

    Attributes
    ----------
    scheduler : str
    runs : tuple of Run
    judgement : Judgement
        Of the system, by theory where it applies.
    measured : Measured
        Of the runs alone.
    contradiction : str or None
        In words, where theory and measurement exclude each other.
    engines, dispatch, seed : int, str, int
        Number of equal engines, how requests are spread over them, and the seed of what is random.
    first_token : {"paper", "engine"}
        Convention of ttft and tpot, see `statistics.latency`.
    latency : read-only mapping of str to Summary
        "queueing", "ttft", "tpot", "max_tbt", "e2e" of the finished requests of all runs, seconds.
    means_refused : str or None
        Why the latencies carry no means; None when they do.
    notes : tuple of str
        What was rounded or derived.
    title : str
        What was run, for the figure.
    checked : tuple of str
        The invariants that `invariants.check_run` recounted; none when it was not asked for.
    violations : tuple of str or None
        What it found; None when it was not asked for.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.simulation:draw_simulation"
    scheduler: str
    runs: tuple[Run, ...]
    judgement: Judgement
    measured: Measured
    contradiction: str | None
    engines: int
    dispatch: str
    seed: int
    first_token: FirstToken
    latency: Mapping[str, Summary] = attrs.field(converter=_read_only)
    means_refused: str | None
    notes: tuple[str, ...]
    title: str = ""
    checked: tuple[str, ...] = ()
    violations: tuple[str, ...] | None = None

    @property
    def run(self) -> Run:
        """The first run."""
        return self.runs[0]

    @property
    def requests(self) -> dict[str, int]:
        """Number ``arrived``, ``finished`` and ``present`` at the end, over all runs."""
        arrived, finished = sum(len(run.requests) for run in self.runs), sum(run.finished for run in self.runs)
        return {"arrived": arrived, "finished": finished, "present": arrived - finished}

    def require_means(self) -> None:
        """Refuse to give mean latencies that do not exist.

        Raises
        ------
        InvalidInput
            If `means_refused`: unless the verdict is STABLE and nothing contradicts it, or the run is a whole trace.
        """
        if self.means_refused:
            raise InvalidInput(
                f"--latency: {self.scheduler}: {self.means_refused} ({self.judgement.reason}); "
                "lower the rate, or run longer where the run is to decide"
            )

    def to_dict(self) -> dict[str, Any]:
        """The object ``qt-llm simulate --json`` prints, without its schema; times in seconds."""
        judgement = self.judgement
        return {
            "scheduler": self.scheduler,
            "verdict": judgement.verdict.value,
            "basis": None if judgement.basis is None else judgement.basis.value,
            "reason": judgement.reason,
            "load": None if judgement.load is None else float(judgement.load),
            "load_exact": None if judgement.load is None else exact_text(judgement.load),
            "margin": None if judgement.margin is None else float(judgement.margin),
            "measured": self.measured.to_dict(),
            "contradiction": self.contradiction,
            "replications": len(self.runs),
            "engines": self.engines,
            "dispatch": self.dispatch,
            "seed": self.seed,
            "requests": self.requests,
            "batches": sum(run.batches for run in self.runs),
            "horizon": None if self.run.until is None else self.run.clock.seconds(self.run.until),
            "seconds": self.run.clock.seconds(self.run.end),
            "first_token": self.first_token,
            "latency": {name: summary.to_dict() for name, summary in self.latency.items()},
            "means_refused": self.means_refused,
            "notes": list(self.notes),
            "violations": None if self.violations is None else list(self.violations),
        }


def simulate(
    engine: Engine,
    scheduler: Scheduler | str,
    workload: Workload,
    *,
    engines: int = 1,
    dispatch: str = RANDOM,
    horizon: Number | None = None,
    seed: int = 0,
    replications: int = 1,
    first_token: FirstToken | None = None,
    log: bool = False,
    check: bool = False,
    progress: Progress | None = None,
) -> Simulation:
    """Run a workload from an empty engine, once or several times, and judge it.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler or str
        A rule or its name with flags.
    workload : Workload
        With an arrival process; the replay of a trace is that of `simulate_trace`.
    engines : int
        Number of equal engines, at least 1.
    dispatch : {"random", "round-robin", "token-queue", "least-outstanding"}
        How requests are spread over several engines, see `replicas`.
    horizon : number or duration, optional
        Seconds; requests arrive, and batches start, strictly before it. See `default_horizon`.
    seed : int
        At least 0; the same seed gives the same runs.
    replications : int
        Number of independent runs, at least 1; with several, each draws from a stream of its own spawned from the
        seed, and intervals are those of Student's t over the runs.
    first_token : {"paper", "engine"}, optional
        Convention of ttft and tpot; "paper" by default, of a trace see `Trace.convention`.
    log : bool
        Keep the contents of every batch.
    check : bool
        Recount every invariant from the contents of the batches.
    progress : callable, optional
        Told the share of the runs that is done.

    Raises
    ------
    InvalidInput
        If an argument is out of range, the workload has no rate, or slots and batches differ in length.
    InfeasibleRequest
        If the rule can never serve one of the requests.
    """
    if isinstance(workload.arrivals, TraceArrivals):
        if replications != 1:
            raise InvalidInput("replications: a replayed trace is one run; leave it out")
        return simulate_trace(
            engine,
            scheduler,
            workload.arrivals.trace,
            engines=engines,
            dispatch=dispatch,
            horizon=horizon,
            seed=seed,
            first_token=workload.arrivals.trace.convention(first_token),
            log=log,
            check=check,
            progress=progress,
        )
    rule = _rule(scheduler, engine, workload)
    cluster = _Cluster(engine, engines, dispatch)
    seed = _require_seed(seed)
    replications = require_whole("replications", replications, 1, "the number of independent runs")
    if workload.arrivals is None:
        raise InvalidInput("workload: rate: missing; give the workload a rate, or --rate R")
    if isinstance(workload.arrivals, SlottedArrivals):
        workload.arrivals.require_slot_batches(engine.batch_time, engine.b_max)
    notes = workload.notes
    if horizon is None:
        end = default_horizon(engine, workload, workload.arrivals.rate)
        notes = (*notes, f"horizon: {float(end):g} s by default, 20 000 full batches or more; --horizon changes it")
    else:
        end = _positive_seconds(horizon)
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), end)
    # Marks at random split a Poisson process into independent ones.
    independent = isinstance(workload.arrivals, PoissonArrivals)
    runner = _Runner(cluster, rule, clock, clock.bound(end), seed, log, check, replications, progress, independent)
    for rng in _streams(seed, replications):
        runner.add(sample(workload, clock, end, rng), rng)
    measured = measure(runner.runs, scores=runner.scores)
    judgement = judge(cluster, rule, workload, measured)
    return _report(runner, judgement, measured, first_token or "paper", notes, whole_trace=False)


def simulate_trace(
    engine: Engine,
    scheduler: Scheduler | str,
    trace: Trace,
    *,
    engines: int = 1,
    dispatch: str = RANDOM,
    horizon: Number | None = None,
    seed: int = 0,
    first_token: FirstToken = "engine",
    log: bool = False,
    check: bool = False,
    progress: Progress | None = None,
) -> Simulation:
    """Replay a trace at its recorded times, until every request is finished unless a horizon stops it.

    The judgement is that of a stationary stream with the rate and the lengths of the trace. Parameters and errors are
    those of `simulate`; the seed is that of the random dispatch.
    """
    rule, seed = _rule(scheduler, engine, trace.lengths), _require_seed(seed)
    cluster = _Cluster(engine, engines, dispatch)
    end = None if horizon is None else _positive_seconds(horizon)
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | {trace.tick}, _longest(engine, trace, end))
    requests = replay(trace, clock, end)
    until = None if end is None else clock.bound(end)
    runner = _Runner(cluster, rule, clock, until, seed, log, check, 1, progress)
    runner.add(requests, np.random.default_rng(seed))
    measured = measure(runner.runs, scores=runner.scores)
    judgement = _judge_trace(cluster, rule, trace, measured)
    whole = runner.runs[0].finished == len(trace)
    return _report(runner, judgement, measured, first_token, trace.notes, whole_trace=whole)


def _require_seed(seed: int) -> int:
    return require_whole("seed", seed, 0, "the same for the same run")


def _streams(seed: int, count: int) -> list[np.random.Generator]:
    """One generator a run; a single run draws from the seed itself."""
    if count == 1:
        return [np.random.default_rng(seed)]
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def _rule(scheduler: Scheduler | str, engine: Engine, lengths: RequestLengths) -> Scheduler:
    return scheduler_for(scheduler, engine, lengths) if isinstance(scheduler, str) else scheduler


@attrs.frozen
class _Cluster:
    """Equal engines behind a dispatcher."""

    engine: Engine
    count: int = attrs.field(converter=require_engines)
    dispatch: str = attrs.field(validator=lambda _, __, rule: require_dispatch(rule))

    @property
    def machines(self) -> tuple[Engine, ...]:
        return (self.engine,) * self.count


@attrs.define
class _Runner:
    """Makes the runs of one system, one after the other, and checks each where that is asked for."""

    cluster: _Cluster
    rule: Scheduler
    clock: Clock
    until: int | None
    seed: int
    log: bool
    check: bool
    count: int
    progress: Progress | None
    independent: bool = False  # what is sent to the engines at random
    runs: list[Run] = attrs.field(factory=list)
    scores: list[Evidence | Doubt] = attrs.field(factory=list)
    violations: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.log and self.cluster.count > 1:
            raise InvalidInput("--batch-log: one log holds the batches of one engine; leave out --engines")

    def add(self, requests: Requests, rng: np.random.Generator) -> None:
        """Run these requests; ``rng`` sends them to the engines at random."""
        number, cluster = len(self.runs), self.cluster
        parts: list[Evidence | Doubt] = []

        def finished(engine: int, one: Run) -> None:
            if self.apart:
                parts.append(score(one))
            if self.check:
                self._check(engine, one)

        done = run_replicas(
            cluster.engine,
            self.rule,
            requests,
            self.clock,
            count=cluster.count,
            dispatch=cluster.dispatch,
            rng=rng,
            until=self.until,
            log=self.log or self.check,
            progress=self._share(number),
            told=finished,
        )
        self.scores += self._scores(done.total, parts)
        self.runs.append(done.total if self.log else attrs.evolve(done.total, log=None))

    def _check(self, engine: int, one: Run) -> None:
        place = f"run {len(self.runs)}: " * (self.count > 1) + f"engine {engine}: " * (self.cluster.count > 1)
        found = check_run(one, self.cluster.engine, self.rule, fills=FILLS in self.checked)
        self.violations += [f"{place}{fault}" for fault in found]

    @property
    def apart(self) -> bool:
        """Whether engines are scored one by one; behind a dispatcher that sees their queues they are one queue."""
        return self.cluster.count == 1 or DISPATCH_RULES[self.cluster.dispatch].oblivious

    def _scores(self, total: Run, engines: list[Evidence | Doubt]) -> list[Evidence | Doubt]:
        """The independent scores that one run brings."""
        if self.cluster.count == 1 or (self.independent and self.cluster.dispatch == RANDOM):
            return engines
        whole = score(total)
        return [_together(engines, whole) if engines else whole]

    @property
    def checked(self) -> tuple[str, ...]:
        """What a check recounts."""
        return (*CHECKED, FILLS) if claims_full_batches(self.rule) else CHECKED

    def _share(self, number: int) -> Progress | None:
        told = self.progress
        return None if told is None else lambda share: told((number + share) / self.count)


def _together(engines: list[Evidence | Doubt], whole: Evidence | Doubt) -> Evidence | Doubt:
    """The score of a run whose engines may depend on one another; what one of them cannot say, the run cannot."""
    found = [each for each in engines if isinstance(each, Evidence)]
    if not isinstance(whole, Evidence):
        return whole
    return next((each for each in engines if not isinstance(each, Evidence)), None) or Evidence.together(found, whole)


def judge(cluster: _Cluster, scheduler: Scheduler, workload: Workload, measured: Measured) -> Judgement:
    """Judgement by a theorem where one decides, else by the measurement; the load of theory is kept either way."""
    theory = _theory(cluster, scheduler, workload)
    if theory.verdict is not Verdict.UNDECIDED:
        return theory
    return Judgement(
        verdict=measured.verdict,
        basis=Basis.SIMULATION,
        reason=f"no theorem decides ({theory.reason}); the run: {measured.reason}",
        load=theory.load,
    )


def _theory(cluster: _Cluster, scheduler: Scheduler, workload: Workload) -> Judgement:
    if not isinstance(scheduler, Policy) or workload.rate is None:
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason="a rule outside the known policies")
    try:
        return parallel_threshold(cluster.machines, scheduler, workload, cluster.dispatch).judge(workload.rate)
    except (InfeasibleRequest, NotConverged) as error:  # a law may allow prompts that no sampled request has
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=str(error))


def _judge_trace(cluster: _Cluster, scheduler: Scheduler, trace: Trace, measured: Measured) -> Judgement:
    if trace.rate is None:
        return Judgement(
            verdict=Verdict.UNDECIDED,
            basis=None,
            reason="all requests arrive at one instant: the trace has no rate to judge",
        )
    workload = Workload(classes=(RequestClass(lengths=trace.lengths),), arrivals=TraceArrivals(trace=trace))
    judged = judge(cluster, scheduler, workload, measured)
    remark = "a finite trace always ends; judged as a stationary stream of its rate and lengths"
    return attrs.evolve(judged, reason=f"{judged.reason} ({remark})")


def _report(
    runner: _Runner,
    judgement: Judgement,
    measured: Measured,
    first_token: FirstToken,
    notes: tuple[str, ...],
    *,
    whole_trace: bool,
) -> Simulation:
    contradiction = find_contradiction(judgement, measured)
    refused = None
    if not whole_trace and judgement.verdict is not Verdict.STABLE:
        refused = (
            f"mean latencies depend on the run length unless the system is STABLE; it is {judgement.verdict.value}"
        )
    elif not whole_trace and contradiction is not None:
        refused = "mean latencies depend on the run length unless the system is STABLE; theory and run contradict"
    summaries = {name: Summary.of_runs(runner.runs, name, first_token) for name in LATENCIES}
    if measured.verdict is not Verdict.STABLE:  # the run is short of the relaxation times that an interval needs
        summaries = {name: attrs.evolve(summary, steady=None) for name, summary in summaries.items()}
    if refused:
        summaries = {name: summary.without_means() for name, summary in summaries.items()}
    return Simulation(
        scheduler=runner.rule.name,
        runs=tuple(runner.runs),
        judgement=judgement,
        measured=measured,
        contradiction=contradiction,
        engines=runner.cluster.count,
        dispatch=runner.cluster.dispatch,
        seed=runner.seed,
        first_token=first_token,
        latency=summaries,
        means_refused=refused,
        notes=(*notes, *runner.clock.notes),
        checked=runner.checked if runner.check else (),
        violations=tuple(runner.violations) if runner.check else None,
    )


def find_contradiction(judgement: Judgement, measured: Measured) -> str | None:
    """What theory and the runs say of one system, when both cannot be true; None when they can."""
    theory, shown = judgement.verdict, measured.verdict
    if judgement.basis in (None, Basis.SIMULATION) or Verdict.UNDECIDED in (theory, shown) or theory is shown:
        return None
    return (
        f"theory says {theory.value} ({judgement.reason}) and the run shows {shown.value} ({measured.reason}); "
        "the run may be short of a slow change of state, its requests no stationary stream, or one of the two wrong: "
        "run longer, with another seed and with --check"
    )


def default_horizon(engine: Engine, workload: Workload, rate: Fraction) -> Fraction:
    """Seconds that settle the measured verdict of most systems within seconds of computing.

    20 000 full batches; at least 50 lifetimes of a request that never waits, and 2 000 requests; at most 500 000.
    """
    batch = engine.batch_time.seconds(engine.b_max)
    lifetime = (Fraction(workload.mean_decode) + 1) * batch
    seconds = min(max(20_000 * batch, 50 * lifetime, 2_000 / rate), 500_000 / rate)
    return Fraction(f"{float(seconds):.3g}")


def _positive_seconds(horizon: Number) -> Fraction:
    seconds = to_seconds(horizon)
    if seconds <= 0:
        raise InvalidInput(f"--horizon: {float(seconds):g} s is not positive; give the seconds to simulate")
    return seconds


def _longest(engine: Engine, trace: Trace, horizon: Fraction | None) -> Fraction:
    """Seconds the run may last, as every batch serves a token; capped at what 1 ns ticks show, which the run checks."""
    if horizon is not None:
        return horizon
    law, lengths = engine.batch_time, trace.require_rows()
    tokens = int(lengths.prefill.sum() + lengths.decode.sum())
    slowest = max(law.seconds(size) for size in {1, engine.b_max, *law.corners(1, engine.b_max)})
    last = int(trace.require_arrivals()[-1]) * trace.tick
    return min(max(last, trace.tick) + tokens * slowest, Fraction(LAST_TICK, 10**9))


def claims_full_batches(scheduler: Scheduler) -> bool:
    """Whether a policy is work-conserving up to its own budget: its batches tell, without its target."""
    return isinstance(scheduler, Policy) and properties(attrs.evolve(scheduler, target=None)).work_conserving
