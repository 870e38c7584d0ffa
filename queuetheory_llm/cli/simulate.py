"""``qt-llm simulate``: run one system, say whether it is stable and how long requests take."""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import IO, Annotated

import attrs
from cyclopts import Parameter

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
    read_schedulers,
)
from queuetheory_llm.cli.output import Json, Schedulers, number, print_json, print_notes, print_table, print_written
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_target, write_atomically
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.traces.reader import read_trace
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.system import System
from queuetheory_llm.model.trace import FirstToken, Trace, TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.simulation.judge import Simulation, simulate_trace
from queuetheory_llm.simulation.judge import simulate as simulate_workload
from queuetheory_llm.simulation.run import Progress, Run

_QUIET_SECONDS = 2.0  # a run shorter than this shows no progress bar


def simulate(
    model: str = DEFAULT_MODEL,
    *,
    scheduler: Schedulers = None,
    rate: Rate = None,
    prefill: Prefill = None,
    decode: Decode = None,
    trace: TraceFlag = None,
    horizon: Annotated[
        str | None,
        Parameter(help="Simulated seconds. Default: 20 000 full batches or more; a trace runs until all are finished."),
    ] = None,
    seed: Annotated[str, Parameter(help="Whole number; the same seed gives the same run.")] = "0",
    batch_log: Annotated[str | None, Parameter(help="Write every batch to this file, one JSON object a line.")] = None,
    first_token: FirstTokenFlag = None,
    strict: Strict = False,
    latency: Annotated[
        bool, Parameter(negative=(), help="Insist on mean latencies: an error where the system is UNSTABLE.")
    ] = False,
    output: Output = None,
    json: Json = False,
) -> None:
    """Run one engine from empty: verdict, token drift with its 99 % interval, latencies.

    With one --scheduler (default: sarathi) --json prints the object of its run; with several, their objects are a
    list under "results".

    Parameters
    ----------
    model
        A model file or the name of a packaged model.
    """
    rules = read_schedulers(scheduler)
    _check_files(output, batch_log, runs=len(rules))
    if trace is not None:
        _refuse_beside_trace(rate=rate, prefill=prefill, decode=decode)
    start = count_flag("--seed", seed)
    seconds = None if horizon is None else positive_flag("--horizon", horizon, flag_seconds)
    if trace is not None:
        engine = load_model(model, first_token=first_token).engine
        recorded = read_trace(trace, first_token=first_token, strict=strict)
        plan = _trace_plan(engine, recorded, seconds, first_token)
    else:
        question = read_question(model, prefill=prefill, decode=decode, rate=rate, first_token=first_token)
        plan = _workload_plan(question.system, seconds, start, first_token)
    results = [plan.run(rule, log=batch_log is not None) for rule in rules]
    if latency:
        for result in results:
            result.require_means()
    _write_files(results[0], output, batch_log)
    if json:
        runs = [{**result.to_dict(), "seed": plan.seed} for result in results]
        print_json("simulate", runs[0] if len(runs) == 1 else {"results": runs})
    else:
        _print(plan, results)
        for path in (output, batch_log):
            if path is not None:
                print_written(path)


def _check_files(output: str | None, batch_log: str | None, *, runs: int) -> None:
    """Refuse files that cannot be written, or that hold one run where several were asked for."""
    figure_format(output)
    if batch_log is not None:
        check_target(batch_log)
    if runs > 1 and output is not None:
        raise InvalidInput("-o: one figure shows one run; give one --scheduler")
    if runs > 1 and batch_log is not None:
        raise InvalidInput("--batch-log: one log holds one run; give one --scheduler")


def _write_files(result: Simulation, output: str | None, batch_log: str | None) -> None:
    if batch_log is not None:
        write_atomically(batch_log, lambda file: _write_log(result.run, file))
    if output is not None:
        from queuetheory_llm.plots.simulation import render_simulation

        write_figure(output, lambda kind: render_simulation(result, kind))


def _refuse_beside_trace(**flags: str | None) -> None:
    """A replayed trace has its own times and lengths."""
    faults = [
        f"--{flag}: a trace has its own {'rate' if flag == 'rate' else 'lengths'}; leave out --{flag} or --trace"
        for flag, value in flags.items()
        if value is not None
    ]
    if faults:
        raise InvalidInput(faults)


@attrs.frozen(kw_only=True)
class _Plan:
    """What to run, whatever the rule."""

    title: str
    seed: int | None
    run_rule: Callable[[Policy, bool, Progress], Simulation]

    def run(self, rule: Policy, *, log: bool) -> Simulation:
        with _progress_bar(f"simulate {rule.name}") as progress:
            return self.run_rule(rule, log, progress)


def _workload_plan(system: System, horizon: Fraction | None, seed: int, asked: FirstToken | None) -> _Plan:
    workload, arrivals = _with_arrivals(system)
    if isinstance(arrivals, TraceArrivals):
        return _trace_plan(system.engine, arrivals.trace, horizon, asked)

    def run_rule(rule: Policy, log: bool, progress: Progress) -> Simulation:
        return simulate_workload(
            system.engine,
            rule,
            workload,
            horizon=horizon,
            seed=seed,
            first_token=asked or "paper",
            log=log,
            progress=progress,
        )

    return _Plan(title=f"{system.name}: {float(arrivals.rate):g} requests/s, seed {seed}", seed=seed, run_rule=run_rule)


def _with_arrivals(system: System) -> tuple[Workload, Arrivals]:
    """The workload and its arrival process."""
    workload = system.require_workload()
    if workload.arrivals is None:
        raise InvalidInput(f"{system.name}: workload.rate: missing; give the workload a rate, or --rate R")
    return workload, workload.arrivals


def _trace_plan(engine: Engine, trace: Trace, horizon: Fraction | None, asked: FirstToken | None) -> _Plan:
    # A format that records v_d itself leaves the convention of the latencies to the flag.
    first_token: FirstToken = "paper" if "paper" in (trace.first_token, asked) else "engine"

    def run_rule(rule: Policy, log: bool, progress: Progress) -> Simulation:
        return simulate_trace(engine, rule, trace, horizon=horizon, first_token=first_token, log=log, progress=progress)

    title = f"{trace.source}: {len(trace)} requests ({trace.format}) replayed"
    return _Plan(title=title, seed=None, run_rule=run_rule)


@contextmanager
def _progress_bar(title: str) -> Iterator[Progress]:
    """A bar on stderr, from the moment the run proves to be long; none where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    began = time.monotonic()
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0, visible=False)

        def report(share: float) -> None:
            bar.update(task, completed=share, visible=time.monotonic() - began > _QUIET_SECONDS)

        yield report


def _write_log(run: Run, file: IO[bytes]) -> None:
    for line in run.log_lines():
        file.write(json_module.dumps(line).encode() + b"\n")


def _print(plan: _Plan, results: Sequence[Simulation]) -> None:
    print_notes(dict.fromkeys(note for result in results for note in result.notes))
    print_table(
        ["scheduler", "verdict", "basis", "load", "measured", "drift tokens/s", "99 % interval", "finished", "present"],
        [_row(result) for result in results],
        title=f"{plan.title}; {results[0].run.clock.seconds(results[0].run.end):g} s, from empty",
    )
    for result in results:
        print(f"{result.scheduler}: {result.judgement.verdict.value}: {result.judgement.reason}")
        print(f"  measured {result.measured.verdict.value}: {result.measured.reason}")
    for result in results:
        _print_latency(result)


def _row(result: Simulation) -> list[str]:
    judgement, drift = result.judgement, result.measured.drift
    return [
        result.scheduler,
        judgement.verdict.value,
        "-" if judgement.basis is None else judgement.basis.value,
        number(judgement.load),
        result.measured.verdict.value,
        "-" if drift is None else number(drift.mean, 4),
        "-" if drift is None else f"{drift.low:.4g} .. {drift.high:.4g}",
        str(result.requests["finished"]),
        str(result.requests["present"]),
    ]


def _print_latency(result: Simulation) -> None:
    print_table(
        ["seconds", "mean", "p50", "p90", "p95", "p99", "of requests"],
        [
            [
                name,
                *(number(value, 4) for value in (each.mean, each.p50, each.p90, each.p95, each.p99)),
                str(each.count),
            ]
            for name, each in result.latency.items()
        ],
        title=f"{result.scheduler}: latency of the {result.requests['finished']} finished requests "
        f"({result.requests['present']} unfinished), first token: {result.first_token}",
    )
    if result.means_refused:
        print(f"no means: {result.means_refused}")
