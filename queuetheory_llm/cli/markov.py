"""``qt-llm markov``: the stationary law of one engine, without sampling error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter

from queuetheory_llm.cli.chains import Answer, WithoutLaw, print_answers
from queuetheory_llm.cli.compiling import compile_note
from queuetheory_llm.cli.figures import Output, figure_format, write_figure
from queuetheory_llm.cli.inputs import (
    DEFAULT_SEED,
    Decode,
    Prefill,
    Rate,
    count_flag,
    flag_seconds,
    positive_flag,
    read_question,
    read_rules,
    seed_flag,
)
from queuetheory_llm.cli.output import (
    Json,
    Schedulers,
    print_json,
    print_notes,
    print_written,
)
from queuetheory_llm.cli.terminal import progress
from queuetheory_llm.cli.words import engine_words, workload_words
from queuetheory_llm.errors import AssumptionViolated, InvalidInput, NotConverged, QueueTheoryError
from queuetheory_llm.exact.numbers import to_bytes
from queuetheory_llm.files.atomic import check_apart
from queuetheory_llm.files.prism import ENDINGS, check_export, export_files
from queuetheory_llm.files.prism import export as export_chain
from queuetheory_llm.markov.admission import NO_LAW, judge_stability
from queuetheory_llm.markov.chain import MEMORY, MOST_STEPS, TOLERANCE, ExactChain, exact_chain
from queuetheory_llm.model.chances import memoryless_decode
from queuetheory_llm.model.system import System
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import name_of, scheduler_for
from queuetheory_llm.simulation.present import REPLICATIONS, Present, requests_present, settled_horizon

#: Small enough to be solved at once, with schedulers that differ.
DEFAULT_MODEL = "two-token-slots"

#: The flag that sets an argument of `exact_chain` or `requests_present`.
_FLAGS = {
    "level": "--level",
    "tolerance": "--tolerance",
    "tail": "--cut",
    "memory": "--memory",
    "horizon": "--horizon",
}

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
    "results", where one that is UNSTABLE or CRITICAL has its verdict and no means.

    Parameters
    ----------
    model
        A model file or the name of a packaged model, with poisson or slotted arrivals.
    """
    rules = read_rules(scheduler)
    target = _target(export, to, model, rules)
    figure_format(output)
    written_as = () if target is None else export_files(target)
    check_apart({"-o": output, **{f"--to ({path.name})": path for path in written_as}}, {"the model": model})
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
    _require_arrivals(system)
    with _telling() as told:
        # Before any is solved: what theory says of each, and what is wrong with one.
        known = [_without_law(system, rule) if len(rules) > 1 else None for rule in rules]
        found = [each or _answer(system, rule, asked, told) for each, rule in zip(known, rules, strict=True)]
    answers = [each for each in found if isinstance(each, Answer)]
    written = _write(answers[0], system, target, output) if answers else []
    for answer in answers:
        answer.warn()
    if json:
        results = [each.to_dict() for each in found]
        print_json("markov", results[0] if len(results) == 1 else {"results": results})
        return
    print_notes(dict.fromkeys([*question.notes, *(note for answer in answers for note in answer.chain.notes)]))
    print_answers(system, found)
    print_written(*written)


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
    if count > MOST_STEPS:
        raise InvalidInput(f"--after: {count} is above {MOST_STEPS}; the stationary law is reached long before")
    return count


def _simulated(wanted: bool, horizon: str | None, seed: str | None) -> _Runs | None:
    seconds = None if horizon is None else positive_flag("--horizon", horizon, flag_seconds)
    start = seed_flag(seed)
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
    endings = [f".{ending}" for ending in ENDINGS[export]]
    path = name if name.lower().endswith(tuple(endings)) else name + endings[0]
    try:
        check_export(path)
    except InvalidInput as error:
        raise InvalidInput(f"--to: {fault}" for fault in error.faults) from None
    return path


# ----------------------------------------------------------------------------------------------------------------- work


@contextmanager
def _telling() -> Iterator[_Told | None]:
    """A line on stderr with what is going on; none where stderr is no terminal."""
    with compile_note(), progress("markov ...") as report:
        yield report


def _require_arrivals(system: System) -> None:
    if system.workload is None:
        raise InvalidInput(
            f"{system.name}: workload: missing; add a [workload] table, or give --prefill N --decode N --rate R"
        )
    if system.workload.arrivals is None:
        raise InvalidInput(f"{system.name}: workload.rate: missing; give the workload a rate, or --rate R")


@contextmanager
def _faults_of(system: System, name: str) -> Iterator[None]:
    """Say of what is refused in which file, under which flag or scheduler it is."""
    try:
        yield
    except InvalidInput as error:
        raise _placed(error, system) from None
    except AssumptionViolated as error:
        raise AssumptionViolated(f"{system.name}: {_named(error, name)}") from None
    except NotConverged as error:
        raise NotConverged(f"{system.name}: {_named(error, name)}{_fewer_states(error, system)}") from None


def _without_law(system: System, rule: Scheduler | str) -> WithoutLaw | None:
    """Why there is no stationary law beside the others; None where theory is not against one."""
    workload, name = system.require_workload(), name_of(rule)
    with _faults_of(system, name):
        made = scheduler_for(rule, system.engine, workload) if isinstance(rule, str) else rule
        judgement = judge_stability(system.engine, made, workload)
    return WithoutLaw(scheduler=name, judgement=judgement) if judgement.verdict in NO_LAW else None


def _answer(system: System, rule: Scheduler | str, asked: _Asked, told: _Told | None) -> Answer:
    name = name_of(rule)
    with _faults_of(system, name):
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
    chain = attrs.evolve(chain, title=f"{system.name}: {workload_words(system.workload)}")
    later = None if asked.after is None else chain.transient(asked.after)
    with _faults_of(system, name):
        present = None if asked.simulated is None else _present(chain, rule, asked.simulated, told)
    return Answer(chain=chain, later=later, present=present)


def _placed(error: InvalidInput, system: System) -> InvalidInput:
    """The faults with the flag, or the file, that each is in."""
    if error.source is not None:
        return error
    argument = re.compile(rf"({'|'.join(_FLAGS)}): ")
    return type(error)(
        argument.sub(lambda found: f"{_FLAGS[found[1]]}: ", fault, count=1)
        if argument.match(fault)
        else f"{system.name}: {fault}"
        for fault in error.faults
    )


def _named(error: QueueTheoryError, scheduler: str) -> str:
    """What is wrong, with the scheduler unless the place is told already."""
    text = str(error)
    return text if text.startswith((f"{scheduler}: ", "workload: ")) else f"{scheduler}: {text}"


def _fewer_states(error: NotConverged, system: System) -> str:
    """What makes chains small, where it is their size that fails and it is not done already."""
    if "--memory" not in str(error) or memoryless_decode(system.require_workload()) is not None:
        return ""
    return "; a chain has far fewer states where decode lengths are geometric: they have no age to carry"


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


def _write(answer: Answer, system: System, target: str | None, output: str | None) -> list[Path | str]:
    """Write the files asked for, each whole or not at all; their names."""
    written: list[Path | str] = []
    if target is not None:
        chain = answer.chain
        title = f"{chain.title}; {engine_words(system.engine)}; {chain.scheduler}"
        written += export_chain(target, chain.cut.rewards, title=title, notes=chain.notes, period=chain.period)
    if output is not None:
        from queuetheory_llm.plots.markov import render_chain

        write_figure(output, lambda kind: render_chain(answer.chain, kind, present=answer.present))
        written.append(output)
    return written
