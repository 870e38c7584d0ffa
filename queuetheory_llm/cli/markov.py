"""``qt-llm markov``: the stationary law of one engine, without sampling error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import numpy as np
from cyclopts import Parameter

from queuetheory_llm.cli.compiling import compile_note
from queuetheory_llm.cli.figures import Output, figure_format, write_figure
from queuetheory_llm.cli.inputs import (
    Decode,
    Prefill,
    Rate,
    count_flag,
    flag_seconds,
    positive_flag,
    read_question,
    read_rules,
)
from queuetheory_llm.cli.output import (
    Json,
    Schedulers,
    load,
    number,
    print_json,
    print_notes,
    print_table,
    print_written,
)
from queuetheory_llm.cli.words import engine_words, workload_words
from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import to_bytes
from queuetheory_llm.exact.rounding import upper_limit, with_bound
from queuetheory_llm.files.atomic import check_apart
from queuetheory_llm.files.prism import check_export
from queuetheory_llm.files.prism import export as export_chain
from queuetheory_llm.markov.admission import require_stable
from queuetheory_llm.markov.chain import MEMORY, TOLERANCE, ExactChain, exact_chain
from queuetheory_llm.markov.drift import DriftRow
from queuetheory_llm.markov.space import Floats
from queuetheory_llm.model.system import System
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import name_of, scheduler_for
from queuetheory_llm.simulation.present import AGREES, REPLICATIONS, Present, requests_present, settled_horizon

#: Small enough to be solved at once, with schedulers that differ.
DEFAULT_MODEL = "two-token-slots"
DEFAULT_SEED = "0"

_SHARES = (0.5, 0.95, 0.99, 0.999)
_ENDINGS = {"prism": ".prism", "storm": ".tra"}
_DRIFT_LINES = 5
_MOST_STEPS = 10**6

_Told = Callable[[str], None]


def markov(
    model: str = DEFAULT_MODEL,
    *,
    scheduler: Schedulers = None,
    rate: Rate = None,
    prefill: Prefill = None,
    decode: Decode = None,
    level: Annotated[
        str | None,
        Parameter(metavar="TOKENS", help="Cut the chain at this token backlog. Default: doubled until it is enough."),
    ] = None,
    tolerance: Annotated[
        str, Parameter(metavar="NUMBER", help="Largest error of a mean, as a share of it; of P(idle) as it is.")
    ] = f"{TOLERANCE:g}",
    cut: Annotated[
        str | None,
        Parameter(
            metavar="PROBABILITY",
            help="Cut an unbounded length law where this much of it is left, such as 1e-12. Geometric decode lengths "
            "need no cut.",
        ),
    ] = None,
    memory: Annotated[str, Parameter(metavar="SIZE", help="Most memory to take, in KB, MB or GB.")] = MEMORY,
    after: Annotated[
        str | None,
        Parameter(metavar="INT", help="Also the law after so many batches from the empty engine (slotted: slots)."),
    ] = None,
    simulate: Annotated[
        bool | None,
        Parameter(help=f"Set {REPLICATIONS} simulated runs beside the exact law. Default: for a figure only."),
    ] = None,
    horizon: Annotated[
        str | None, Parameter(metavar="SECONDS", help="Of a simulated run. Default: until its start is forgotten.")
    ] = None,
    seed: Annotated[
        str | None,
        Parameter(metavar="INT", help=f"Whole number; the same seed gives the same runs. Default: {DEFAULT_SEED}."),
    ] = None,
    export: Annotated[
        Literal["prism", "storm"] | None,
        Parameter(help="Write the chain for a model checker: in the PRISM language, or as Storm's explicit files."),
    ] = None,
    to: Annotated[
        str | None,
        Parameter(metavar="FILE", help="Where --export writes. Default: MODEL-SCHEDULER in this folder."),
    ] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Exact stationary law of an engine under a scheduler: means with error bounds, tail, drift; no sampling error.

    The chain of batch boundaries is built by the scheduler itself, cut at a token backlog, and solved. With one
    --scheduler (default: sarathi) --json prints the object of its chain; with several, their objects are a list under
    "results".

    Parameters
    ----------
    model
        A model file or the name of a packaged model, with poisson or slotted arrivals.
    """
    rules = read_rules(scheduler)
    target = _target(export, to, model, rules)
    figure_format(output)
    check_apart({"-o": output, "--to": target}, {"the model": model})
    _refuse_several(rules, {"-o": output, "--export": export})
    wanted = simulate if simulate is not None else output is not None
    asked = _Asked(
        level=None if level is None else positive_flag("--level", level),
        tolerance=_probability("--tolerance", tolerance),
        cut=None if cut is None else _probability("--cut", cut),
        memory=_memory(memory),
        after=None if after is None else _steps(after),
        simulated=_simulated(wanted, horizon, seed),
    )
    question = read_question(model, prefill=prefill, decode=decode, rate=rate)
    system = question.system
    system.require_workload()
    with _telling() as told:
        if len(rules) > 1:  # one that has no answer is found before the others are solved
            _require_stable(system, rules)
        answers = [_answer(system, rule, asked, told) for rule in rules]
    written = _write(answers[0], system, target, output)
    for answer in answers:
        answer.warn()
    if json:
        found = [answer.to_dict() for answer in answers]
        print_json("markov", found[0] if len(found) == 1 else {"results": found})
        return
    print_notes(dict.fromkeys([*question.notes, *(note for answer in answers for note in answer.chain.notes)]))
    _print(system, answers)
    for path in written:
        print_written(path)


# ---------------------------------------------------------------------------------------------------------------- flags


@attrs.frozen(kw_only=True)
class _Runs:
    """Simulated runs asked for."""

    horizon: Fraction | None
    seed: int


@attrs.frozen(kw_only=True)
class _Asked:
    """How to solve, whatever the scheduler."""

    level: Fraction | None
    tolerance: float
    cut: float | None
    memory: int
    after: int | None
    simulated: _Runs | None


def _probability(flag: str, text: str) -> float:
    value = positive_flag(flag, text)
    if value >= 1:
        raise InvalidInput(f"{flag}: {text} is not below 1; give a share, such as 1e-6")
    return float(value)


def _memory(text: str) -> int:
    try:
        return to_bytes(text)
    except InvalidInput as error:
        raise InvalidInput(f"--memory: {error}") from None


def _steps(text: str) -> int:
    count = count_flag("--after", text)
    if count > _MOST_STEPS:
        raise InvalidInput(f"--after: {count} is above {_MOST_STEPS}; the stationary law is reached long before")
    return count


def _simulated(wanted: bool, horizon: str | None, seed: str | None) -> _Runs | None:
    seconds = None if horizon is None else positive_flag("--horizon", horizon, flag_seconds)
    start = count_flag("--seed", DEFAULT_SEED if seed is None else seed)
    unused = [flag for flag, text in (("--horizon", horizon), ("--seed", seed)) if text is not None]
    if not wanted and unused:
        raise InvalidInput([f"{flag}: nothing is simulated; leave it out, or give --simulate" for flag in unused])
    return _Runs(horizon=seconds, seed=start) if wanted else None


def _refuse_several(rules: Sequence[Scheduler | str], flags: dict[str, str | None]) -> None:
    faults = [
        f"{flag}: it holds one chain; give one --scheduler" for flag, value in flags.items() if value and len(rules) > 1
    ]
    if faults:
        raise InvalidInput(faults)


def _target(export: str | None, to: str | None, model: str, rules: Sequence[Scheduler | str]) -> str | None:
    """Where to write the chain, checked before the work."""
    if export is None:
        if to is not None:
            raise InvalidInput("--to: nothing is exported; leave it out, or give --export prism or --export storm")
        return None
    name = f"{Path(model).stem}-{name_of(rules[0])}" if to is None else to
    ending = _ENDINGS[export]
    path = name if name.lower().endswith((ending, ".pm" if export == "prism" else ending)) else name + ending
    check_export(path)
    return path


# ----------------------------------------------------------------------------------------------------------------- work


@attrs.frozen(kw_only=True)
class _Later:
    """The law after some steps from the empty engine."""

    steps: int
    requests: float
    backlog: float
    distance: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "steps": self.steps,
            "mean_requests": self.requests,
            "mean_backlog_tokens": self.backlog,
            "total_variation": self.distance,
        }


@attrs.frozen(kw_only=True)
class _Answer:
    """A chain and what was asked for beside it."""

    chain: ExactChain
    later: _Later | None
    present: Present | None

    @property
    def apart(self) -> float:
        """Standard errors between the simulated mean and the exact one."""
        chain, present = self.chain, self.present
        return 0.0 if present is None else present.apart(chain.means.requests, chain.truncation.bounds["requests"])

    def warn(self) -> None:
        """What nobody must overlook, on stderr."""
        if self.apart > AGREES:
            print(
                f"warning: {self.chain.scheduler}: the simulated mean is {self.apart:.3g} standard errors from the "
                "exact one: run longer, with another seed; if it stays, one of the two is wrong",
                file=sys.stderr,
            )

    def to_dict(self) -> dict[str, Any]:
        """The object of --json."""
        found = self.chain.to_dict()
        if self.later is not None:
            found["after"] = self.later.to_dict()
        if self.present is not None:
            found["simulated"] = {**self.present.to_dict(), "standard_errors_apart": min(self.apart, 1e300)}
        return found


@contextmanager
def _telling() -> Iterator[_Told | None]:
    """A line on stderr with what is going on; none where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with compile_note(), Console(stderr=True).status("markov ...") as status:
        yield status.update


def _require_stable(system: System, rules: Sequence[Scheduler | str]) -> None:
    workload = system.require_workload()
    for rule in rules:
        made = scheduler_for(rule, system.engine, workload) if isinstance(rule, str) else rule
        require_stable(system.engine, made, workload)


def _answer(system: System, rule: Scheduler | str, asked: _Asked, told: _Told | None) -> _Answer:
    name = name_of(rule)
    try:
        chain = exact_chain(
            system.engine,
            rule,
            system.require_workload(),
            level=asked.level,
            tolerance=asked.tolerance,
            tail=asked.cut,
            memory=asked.memory,
            progress=None if told is None else lambda text: told(f"{name}: {text}"),
        )
    except InvalidModel as error:  # of the workload
        raise InvalidModel(error.faults, source=error.source or system.name) from None
    chain = attrs.evolve(chain, title=f"{system.name}: {workload_words(system.workload)}")
    later = None if asked.after is None else _later(chain, asked.after)
    present = None if asked.simulated is None else _present(chain, rule, asked.simulated, told)
    return _Answer(chain=chain, later=later, present=present)


def _later(chain: ExactChain, steps: int) -> _Later:
    law: Floats = chain.after(steps)
    return _Later(
        steps=steps,
        requests=float(law @ chain.space.requests()),
        backlog=float(law @ chain.space.backlog()),
        distance=float(np.abs(law - chain.law).sum()) / 2,
    )


def _present(chain: ExactChain, rule: Scheduler | str, runs: _Runs, told: _Told | None) -> Present:
    known = chain.judgement.load
    horizon = runs.horizon or settled_horizon(
        chain.engine, chain.workload, backlog=chain.means.backlog, load=None if known is None else float(known)
    )
    return requests_present(
        chain.engine,
        rule,
        chain.workload,
        horizon=horizon,
        seed=runs.seed,
        progress=None if told is None else lambda share: told(f"{chain.scheduler}: simulating, {share:.0%} done"),
    )


def _write(answer: _Answer, system: System, target: str | None, output: str | None) -> list[Path | str]:
    """Write the files asked for, each whole or not at all; their names."""
    written: list[Path | str] = []
    if target is not None:
        chain = answer.chain
        title = f"{chain.title}; {engine_words(system.engine)}; {chain.scheduler}"
        written += export_chain(target, chain.space, title=title, notes=chain.notes)
    if output is not None:
        from queuetheory_llm.plots.markov import render_chain

        write_figure(output, lambda kind: render_chain(answer.chain, kind, present=answer.present))
        written.append(output)
    return written


# ---------------------------------------------------------------------------------------------------------------- print


def _print(system: System, answers: Sequence[_Answer]) -> None:
    print(f"{system.name}: {engine_words(system.engine)}")
    print(f"workload: {workload_words(system.workload)}")
    if len(answers) > 1:
        _print_side_by_side([answer.chain for answer in answers])
    for answer in answers:
        judgement = answer.chain.judgement
        print(f"{answer.chain.scheduler}: {judgement.verdict.value}: {judgement.reason}")
        if len(answers) == 1:
            _print_chain(answer.chain)
        _print_beside(answer)


def _print_side_by_side(chains: Sequence[ExactChain]) -> None:
    print_table(
        ["scheduler", "verdict", "load", "requests", "backlog", "sojourn s", "P(idle)", "p99", "one more", "level"],
        [
            [
                chain.scheduler,
                chain.judgement.verdict.value,
                load(chain.judgement.load, 4),
                *(text for text, _ in list(_means(chain).values())[:3]),
                _means(chain)["P(idle)"][0],
                _quantile(chain, 0.99),
                number(chain.tail_decay, 4),
                number(chain.truncation.level, 4),
            ]
            for chain in chains
        ],
        title=f"counted {_where(chains[0])}: requests present, their tokens left; p99: requests present at most, 99 % "
        "of the time; one more: how much less likely far out; level: tokens at which the chain is cut",
    )


def _where(chain: ExactChain) -> str:
    return f"at {chain.counted_at}" if chain.slotted else f"over {chain.counted_at}"


def _means(chain: ExactChain) -> dict[str, tuple[str, str]]:
    """What is known of each mean, with its bound: both as text."""
    means, bounds, rate = chain.means, chain.truncation.bounds, chain.rate
    both = bounds["requests"] + bounds["prompts"]
    return {
        name: with_bound(value, bound)
        for name, value, bound in (
            ("requests present", means.requests, bounds["requests"]),
            ("token backlog", means.backlog, bounds["backlog"]),
            ("sojourn, s", chain.mean_sojourn, bounds["requests"] / rate),
            ("  until the prompt is done, s", chain.mean_prompt_time, bounds["prompts"] / rate),
            ("  from there to the last token, s", chain.mean_decode_time, both / rate),
            ("P(idle)", means.idle, bounds["idle"]),
            ("utilisation", chain.utilisation, bounds["idle"]),
        )
    }


def _quantile(chain: ExactChain, share: float) -> str:
    """A quantile of the requests present; none where what is refused could move it."""
    return "-" if chain.truncation.mass > (1 - share) / 10 else str(chain.quantile(share))


def _print_chain(chain: ExactChain) -> None:
    print_table(
        [f"counted {_where(chain)}", "mean", "error at most"],
        [[name, *texts] for name, texts in _means(chain).items()],
    )
    quantiles = [f"{_quantile(chain, share)} ({100 * share:g} %)" for share in _SHARES]
    print(f"requests present, at most, so much of the time: {', '.join(quantiles)}")
    print(f"tail: {_tail(chain)}")
    print(f"batches: {chain.mean_batch_tokens:.4g} tokens on average")
    if not chain.slotted:
        at = chain.law @ chain.space.requests(), chain.law @ chain.space.backlog(), chain.law[0]
        print(
            f"at {chain.boundary} (another law): {at[0]:.6g} requests, {at[1]:.6g} tokens, empty with probability "
            f"{at[2]:.4g}"
        )
    for line in (*_cut_lines(chain), *_drift_lines(chain)):
        print(line)


def _tail(chain: ExactChain) -> str:
    decay = chain.tail_decay
    if decay is None:
        return "too few numbers of requests are likely to tell how it falls"
    return f"far out, each further request is {decay:.4g} times as likely as the one before"


def _cut_lines(chain: ExactChain) -> Iterator[str]:
    found, recurrence = chain.truncation, chain.recurrence
    yield (
        f"chain: {found.states} states and {found.transitions} transitions, cut at {found.level:.6g} tokens, where a "
        f"request is refused at {upper_limit(found.mass, 2)} of the boundaries; solved by {found.method} to a residual "
        f"of {found.residual:.1g}"
    )
    yield f"errors: from the chain cut at {found.checked_at:.6g} tokens, by what the refused requests would have cost"
    if recurrence.transient:
        yield f"recurrence: {recurrence.transient} of the states are transient: none of them is seen in the long run"
    period = chain.period
    if period > 1:
        yield f"recurrence: period {period}: the law after n batches keeps depending on n; the means are long-run ones"


def _drift_lines(chain: ExactChain) -> Iterator[str]:
    table = chain.drift
    one, many = ("slot", "slots") if chain.slotted else ("batch", "batches")
    if table.bounded:
        yield (
            f"drift: V = token backlog falls by eps = {table.epsilon:.4g} tokens a {one} on average, or more, outside "
            f"F, the {table.exceptional.size} states with V up to {table.reach:.6g} where it does not; from V tokens F "
            f"is reached within V/eps {many} on average"
        )
    else:
        yield (
            "drift: V = token backlog is no Lyapunov function of this scheduler: in some states, with any amount of "
            "work, it does not fall on average; that says nothing against its stability"
        )
    for group in _groups(table.rows):
        yield f"  {_drift_line(group)}"


def _groups(rows: Sequence[DriftRow]) -> list[Sequence[DriftRow]]:
    """The rows by tokens of the batch, in a few groups of about as many; the idle engine and full batches alone."""
    if len(rows) <= _DRIFT_LINES:
        return [[row] for row in rows]
    cuts = np.linspace(1, len(rows) - 1, _DRIFT_LINES - 1).round().astype(int).tolist()
    edges = [0, *cuts, len(rows)]
    return [rows[low:high] for low, high in pairwise(edges) if high > low]


def _drift_line(rows: Sequence[DriftRow]) -> str:
    first, last = rows[0].tokens, rows[-1].tokens
    chance = sum(row.chance for row in rows)
    drift = sum(row.chance * row.drift for row in rows) / chance if chance else float(np.mean([r.drift for r in rows]))
    what = "engine idle" if last == 0 else f"batch of {first:.4g}" + (f" to {last:.4g}" if last > first else "")
    inside = {row.exceptional for row in rows}
    place = "partly in F" if len(inside) > 1 else "in F" if True in inside else "outside F"
    return f"{what}: V changes by {drift:+.4g} tokens on average; {100 * chance:.3g} % of the boundaries, {place}"


def _print_beside(answer: _Answer) -> None:
    """What was asked for beside the chain."""
    chain, later, present = answer.chain, answer.later, answer.present
    if later is not None:
        steps = "slots" if chain.slotted else "batches or idle times"
        print(
            f"after {later.steps} {steps} from the empty engine: {later.requests:.5g} requests and {later.backlog:.5g} "
            f"tokens at {chain.boundary}; distance to the stationary law {later.distance:.2g} (total variation)"
        )
    if present is not None:
        low, high = present.interval(0.95)
        print(
            f"simulation {'agrees' if answer.apart <= AGREES else 'DISAGREES'}: {present.mean:.5g} requests present, "
            f"95 % interval {low:.5g} .. {high:.5g}, against {with_bound(*_requests(chain))[0]}; {present.runs} runs "
            f"of {present.seconds:g} s, the first {present.warm_up:g} s of each left out, seed {present.seed}"
        )


def _requests(chain: ExactChain) -> tuple[float, float]:
    return chain.means.requests, chain.truncation.bounds["requests"]
