"""``qt-llm simulate``: run one system, say whether it is stable and how long requests take."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import IO, Annotated, Protocol

import attrs
from cyclopts import Parameter

from queuetheory_llm.cli.compiling import compile_note
from queuetheory_llm.cli.figures import Output, figure_format, write_figure
from queuetheory_llm.cli.inputs import (
    DEFAULT_MODEL,
    Decode,
    FirstTokenFlag,
    Prefill,
    Rate,
    Strict,
    TraceFlag,
    count_flag,
    flag_seconds,
    positive_flag,
    read_question,
    read_rules,
    seed_flag,
)
from queuetheory_llm.cli.output import (
    GROWS,
    Json,
    Schedulers,
    growth_mark,
    latency_cell,
    load,
    number,
    print_json,
    print_notes,
    print_table,
    print_written,
)
from queuetheory_llm.cli.terminal import progress_bar, say
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_apart, check_target, write_atomically
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.traces.reader import read_trace
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.dispatch import RANDOM, require_engines
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.system import System
from queuetheory_llm.model.trace import FirstToken, Trace, TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import name_of
from queuetheory_llm.simulation.judge import Simulation, simulate_trace
from queuetheory_llm.simulation.judge import simulate as simulate_workload
from queuetheory_llm.simulation.run import Progress, Run
from queuetheory_llm.simulation.statistics import Estimate

_VIOLATIONS = 10  # as many are printed


def simulate(
    model: str = DEFAULT_MODEL,
    *,
    scheduler: Schedulers = None,
    rate: Rate = None,
    prefill: Prefill = None,
    decode: Decode = None,
    trace: TraceFlag = None,
    engines: Annotated[str, Parameter(metavar="INT", help="Number of equal engines behind a dispatcher.")] = "1",
    dispatch: Annotated[
        str | None,
        Parameter(help="random, round-robin, token-queue (fewest tokens) or least-outstanding (fewest requests)."),
    ] = None,
    horizon: Annotated[
        str | None,
        Parameter(
            metavar="SECONDS",
            help="Simulated seconds. Default: 20 000 full batches or more; a trace runs until all are finished.",
        ),
    ] = None,
    seed: Annotated[str, Parameter(metavar="INT", help="Whole number; the same seed gives the same run.")] = "0",
    replications: Annotated[
        str,
        Parameter(metavar="INT", help="Number of independent runs; with several, intervals are those over the runs."),
    ] = "1",
    check: Annotated[
        bool, Parameter(negative=(), help="Recount every invariant from the batches; exit code 1 if one is broken.")
    ] = False,
    batch_log: Annotated[
        str | None, Parameter(metavar="FILE", help="Write every batch to this file, one JSON object a line.")
    ] = None,
    series: Annotated[
        str | None,
        Parameter(
            metavar="FILE",
            help="Write the time series to this CSV file: seconds, backlog, waiting, decoding, batches, busy.",
        ),
    ] = None,
    first_token: FirstTokenFlag = None,
    strict: Strict = False,
    latency: Annotated[
        bool, Parameter(negative=(), help="Insist on mean latencies: an error where they are not given.")
    ] = False,
    output: Output = None,
    json: Json = False,
) -> int:
    """Run an engine, or equal ones behind a dispatcher, from empty: verdict, token drift, latencies.

    With one --scheduler (default: sarathi) --json prints the object of its run; with several, their objects are a
    list under "results".

    Parameters
    ----------
    model
        A model file or the name of a packaged model.
    """
    rules = read_rules(scheduler)
    count = count_flag("--replications", replications, least=1)
    files = _Files(figure=output, batch_log=batch_log, series=series)
    files.check(rules=len(rules), replications=count)
    check_apart({"--batch-log": batch_log, "--series": series, "-o": output}, {"the model": model, "--trace": trace})
    if trace is not None:
        _refuse_beside_trace(rate=rate, prefill=prefill, decode=decode, replications=None if count == 1 else "many")
    start = seed_flag(seed)
    seconds = None if horizon is None else positive_flag("--horizon", horizon, flag_seconds)
    machines = require_engines(count_flag("--engines", engines, least=1), "--engines")
    if machines == 1 and dispatch is not None:
        raise InvalidInput("--dispatch: there is one engine only; give --engines N")
    asked = _Asked(
        engines=machines,
        dispatch=dispatch or RANDOM,
        horizon=seconds,
        seed=start,
        replications=count,
        first_token=first_token,
    )
    if trace is not None:
        engine = load_model(model, first_token=first_token).engine
        recorded = read_trace(trace, first_token=first_token, strict=strict)
        plan = _trace_plan(engine, recorded, asked)
    else:
        question = read_question(model, prefill=prefill, decode=decode, rate=rate, first_token=first_token)
        plan = _workload_plan(question.system, asked)
    results = [plan.run(rule, log=batch_log is not None, check=check) for rule in rules]
    if latency:
        for result in results:
            result.require_means()
    files.write(results[0])
    for result in results:
        _warn(result)
    if json:
        runs = [result.to_dict() for result in results]
        print_json("simulate", runs[0] if len(runs) == 1 else {"results": runs})
    else:
        _print(plan, results)
        files.say()
    return 1 if any(result.violations for result in results) else 0


@attrs.frozen(kw_only=True)
class _Files:
    """The files asked for, each of one run."""

    figure: str | None
    batch_log: str | None
    series: str | None

    def check(self, *, rules: int, replications: int) -> None:
        """Refuse files that cannot be written, or that hold one run where several were asked for."""
        figure_format(self.figure)
        for path in (self.batch_log, self.series):
            if path is not None:
                check_target(path)
        for flag, path, what in (
            ("-o", self.figure, "figure shows"),
            ("--batch-log", self.batch_log, "log holds"),
            ("--series", self.series, "series holds"),
        ):
            if path is not None and rules > 1:
                raise InvalidInput(f"{flag}: one {what} one run; give one --scheduler")
            if path is not None and replications > 1:
                raise InvalidInput(f"{flag}: one {what} one run; leave out --replications")

    def write(self, result: Simulation) -> None:
        """Write each whole, or not at all."""
        run = result.run
        if self.batch_log is not None:
            write_atomically(self.batch_log, lambda file: _write_log(run, file))
        if self.series is not None:
            write_atomically(self.series, lambda file: _write_series(run, file))
        if self.figure is not None:
            from queuetheory_llm.plots.simulation import render_simulation

            write_figure(self.figure, lambda kind: render_simulation(result, kind))

    def say(self) -> None:
        """Name the files written."""
        print_written(self.figure, self.batch_log, self.series)


def _warn(result: Simulation) -> None:
    """What nobody must overlook, on stderr."""
    if result.contradiction is not None:
        say(f"warning: {result.scheduler}: CONTRADICTION: {result.contradiction}", to=sys.stderr)
    if result.violations:
        more = len(result.violations) - _VIOLATIONS
        for fault in result.violations[:_VIOLATIONS]:
            say(f"warning: {result.scheduler}: CHECK FAILED: {fault}", to=sys.stderr)
        if more > 0:
            say(f"warning: {result.scheduler}: CHECK FAILED: {more} more", to=sys.stderr)


def _refuse_beside_trace(**flags: str | None) -> None:
    """A replayed trace has its own times and lengths, and is one run."""
    own = {"rate": "has its own rate", "replications": "is one run"}
    faults = [
        f"--{flag}: a trace {own.get(flag, 'has its own lengths')}; leave out --{flag} or --trace"
        for flag, value in flags.items()
        if value is not None
    ]
    if faults:
        raise InvalidInput(faults)


@attrs.frozen(kw_only=True)
class _Asked:
    """How to run, whatever the system."""

    engines: int
    dispatch: str
    horizon: Fraction | None
    seed: int
    replications: int
    first_token: FirstToken | None

    @property
    def cluster(self) -> str:
        """Words for a title."""
        return f" over {self.engines} engines ({self.dispatch})" if self.engines > 1 else ""


class _RunRule(Protocol):
    def __call__(self, rule: Scheduler | str, *, log: bool, check: bool, progress: Progress) -> Simulation: ...


@attrs.frozen(kw_only=True)
class _Plan:
    """What to run, whatever the rule."""

    title: str
    run_rule: _RunRule

    def run(self, rule: Scheduler | str, *, log: bool, check: bool) -> Simulation:
        with compile_note(), progress_bar(f"simulate {name_of(rule)}") as progress:
            done = self.run_rule(rule, log=log, check=check, progress=progress)
        return attrs.evolve(done, title=self.title)


def _workload_plan(system: System, asked: _Asked) -> _Plan:
    workload, arrivals = _with_arrivals(system)
    if isinstance(arrivals, TraceArrivals):
        if asked.replications > 1:
            _refuse_beside_trace(replications="many")
        return _trace_plan(system.engine, arrivals.trace, asked)

    def run_rule(rule: Scheduler | str, *, log: bool, check: bool, progress: Progress) -> Simulation:
        return simulate_workload(
            system.engine,
            rule,
            workload,
            engines=asked.engines,
            dispatch=asked.dispatch,
            horizon=asked.horizon,
            seed=asked.seed,
            replications=asked.replications,
            first_token=asked.first_token,
            log=log,
            check=check,
            progress=progress,
        )

    several = f", {asked.replications} runs" if asked.replications > 1 else ""
    title = f"{system.name}: {float(arrivals.rate):g} requests/s{asked.cluster}, seed {asked.seed}{several}"
    return _Plan(title=title, run_rule=run_rule)


def _with_arrivals(system: System) -> tuple[Workload, Arrivals]:
    """The workload and its arrival process."""
    workload = system.require_workload()
    if workload.arrivals is None:
        raise InvalidInput(f"{system.name}: workload.rate: missing; give the workload a rate, or --rate R")
    return workload, workload.arrivals


def _trace_plan(engine: Engine, trace: Trace, asked: _Asked) -> _Plan:
    def run_rule(rule: Scheduler | str, *, log: bool, check: bool, progress: Progress) -> Simulation:
        return simulate_trace(
            engine,
            rule,
            trace,
            engines=asked.engines,
            dispatch=asked.dispatch,
            horizon=asked.horizon,
            seed=asked.seed,
            first_token=trace.convention(asked.first_token),
            log=log,
            check=check,
            progress=progress,
        )

    title = f"{trace.source}: {len(trace)} requests ({trace.format}) replayed{asked.cluster}"
    return _Plan(title=title, run_rule=run_rule)


def _write_log(run: Run, file: IO[bytes]) -> None:
    for line in run.log_lines():
        file.write(json_module.dumps(line).encode() + b"\n")


def _write_series(run: Run, file: IO[bytes]) -> None:
    """One line a tick of the series; busy in seconds."""
    series, rate = run.series, run.clock.rate
    file.write(b"seconds,backlog,waiting,decoding,batches,busy\n")
    columns = (series.ticks / rate, series.backlog, series.waiting, series.decoding, series.batches, series.busy / rate)
    for row in zip(*(column.tolist() for column in columns), strict=True):
        file.write((",".join(map(str, row)) + "\n").encode())


def _print(plan: _Plan, results: Sequence[Simulation]) -> None:
    print_notes(dict.fromkeys(note for result in results for note in result.notes))
    print_table(
        ["scheduler", "verdict", "basis", "load", "measured", "drift tokens/s", "99 % interval", "finished", "present"],
        [_row(result) for result in results],
        title=f"{plan.title}; {results[0].run.clock.seconds(results[0].run.end):g} s, from empty",
    )
    for result in results:
        say(f"{result.scheduler}: {result.judgement.verdict.value}: {result.judgement.reason}")
        say(f"  measured {result.measured.verdict.value}: {result.measured.reason}")
        if result.contradiction is not None:
            say(f"  CONTRADICTION: {result.contradiction}")
    for result in results:
        _print_latency(result)
        _print_check(result)


def _print_check(result: Simulation) -> None:
    if result.violations is None:
        return
    found = "all hold" if not result.violations else f"{len(result.violations)} broken"
    say(f"{result.scheduler}: checked from the log of every batch, {found}:")
    for each in (*result.checked, *(f"BROKEN: {fault}" for fault in result.violations[:_VIOLATIONS])):
        say(f"  {each}")


def _row(result: Simulation) -> list[str]:
    judgement, drift = result.judgement, result.measured.drift
    return [
        result.scheduler,
        judgement.verdict.value,
        "-" if judgement.basis is None else judgement.basis.value,
        load(judgement.load),
        result.measured.verdict.value,
        "-" if drift is None else number(drift.mean, 4),
        "-" if drift is None else f"{drift.low:.4g} .. {drift.high:.4g}",
        str(result.requests["finished"]),
        str(result.requests["present"]),
    ]


def _print_latency(result: Simulation) -> None:
    mark = growth_mark(result.judgement.verdict.value)
    print_table(
        ["seconds", "mean", "p50", "p90", "p95", "p99", "of requests", "stationary mean, 95 % interval"],
        [
            [
                name,
                *(latency_cell(value, mark) for value in (each.mean, each.p50, each.p90, each.p95, each.p99)),
                str(each.count),
                _interval(each.steady),
            ]
            for name, each in result.latency.items()
        ],
        title=f"{result.scheduler}: latency of the {result.requests['finished']} finished requests "
        f"({result.requests['present']} unfinished), first token: {result.first_token}",
    )
    if mark:
        say(GROWS)
    if result.means_refused:
        say(f"no means: {result.means_refused}")
    if result.first_token == "paper":
        say("first token counted with the first decode token; --first-token engine for that of vLLM and its like")


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.mean:.4g} ({estimate.low95:.4g} .. {estimate.high95:.4g})"
