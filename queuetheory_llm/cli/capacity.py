"""``qt-llm capacity``: the largest stable requests/s per scheduler, and what moves it."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from cyclopts import Parameter

from queuetheory_llm.certificates.certificate import Certificate as Certified
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
    positive_flag,
    read_question,
    read_rules,
)
from queuetheory_llm.cli.output import (
    Certificate,
    Json,
    Schedulers,
    number,
    print_json,
    print_notes,
    print_table,
    print_written,
)
from queuetheory_llm.cli.searches import Seed, Width, searching
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.cli.words import engine_words, workload_words
from queuetheory_llm.dispatch.registry import require_dispatch
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.files.certificates import check_certificate_target, write_certificate
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.model.dispatch import require_engines
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.stability import answers
from queuetheory_llm.stability.answers import CapacityAnswer
from queuetheory_llm.stability.engine_certificates import rate_certificate
from queuetheory_llm.stability.thresholds import Threshold
from queuetheory_llm.verdict import Verdict


def capacity(
    *models: str,
    scheduler: Schedulers = None,
    trace: TraceFlag = None,
    prefill: Prefill = None,
    decode: Decode = None,
    rate: Rate = None,
    engines: Annotated[
        str | None, Parameter(metavar="INT", help="Number of equal engines behind a dispatcher.")
    ] = None,
    dispatch: Annotated[
        str | None,
        Parameter(help="random, round-robin, token-queue (fewest tokens) or least-outstanding (fewest requests)."),
    ] = None,
    split: Annotated[str | None, Parameter(help="Probabilities of the random dispatch, as in 0.5,0.3,0.2.")] = None,
    require: Annotated[
        str | None,
        Parameter(
            metavar="NUMBER",
            help="Exit with 1 unless every scheduler is shown stable at this many requests/s: proved, or as "
            "--method shows it; the answer names the basis.",
        ),
    ] = None,
    method: Annotated[
        str,
        Parameter(
            help="auto or theorem (exact, else bounds), induced (drifts of the two backlogs, by chains where they are "
            "small, else by runs) or simulate (an interval)."
        ),
    ] = "auto",
    width: Width = None,
    seed: Seed = None,
    first_token: FirstTokenFlag = None,
    strict: Strict = False,
    output: Output = None,
    certificate: Certificate = None,
    json: Json = False,
) -> int:
    """Largest stable requests per second of each scheduler, the method, and the limit that binds.

    Parameters
    ----------
    models
        A model file or the name of a packaged model; several are engines behind a dispatcher, and the first one
        brings the workload.
    """
    figure_format(output)
    check_certificate_target(certificate, {"-o": output}, {"the model": (models or (None,))[0], "--trace": trace})
    rules = read_rules(scheduler)
    needed = None if require is None else positive_flag("--require", require)
    names = models or (DEFAULT_MODEL,)
    question = read_question(
        names[0], trace=trace, prefill=prefill, decode=decode, rate=rate, first_token=first_token, strict=strict
    )
    system = question.system
    machines = _engines(system.engine, names[1:], engines)
    _check_dispatch(machines, dispatch, split)
    with searching(method, width, seed, ask="--method simulate") as solver:
        answer = answers.capacity(
            machines,
            system.require_workload(),
            schedulers=rules,
            dispatch=dispatch,
            split=None if split is None else [_share(text) for text in split.split(",")],
            solver=solver,
            title=_title(names, machines),
        )
    if certificate is not None:
        write_certificate(certificate, _certificate(machines, rules[0], system.require_workload()))
    if output is not None:
        from queuetheory_llm.plots.capacity import render_capacity

        write_figure(output, lambda kind: render_capacity(answer, kind))
    shown = {} if needed is None else {limit.scheduler: _basis(limit, needed) for limit in answer.results}
    met = None if needed is None else all(shown.values())
    if json:
        asked = {} if needed is None else {"require": float(needed), "met": met, "met_by": shown}
        print_json("capacity", {**answer.to_dict(), **asked, "notes": [*question.notes, *answer.notes]})
    else:
        print_notes([*question.notes, *answer.notes])
        _print(answer, needed)
        print_written(output, certificate)
    return 1 if met is False else 0


def _certificate(machines: list[Engine], rule: Scheduler | str, workload: Workload) -> Certified:
    if len(machines) > 1 or not isinstance(rule, Policy | str):
        raise InvalidInput("--certificate: is for one engine and a scheduler of the list; leave the others out")
    return rate_certificate(machines[0], rule, workload)


def _basis(limit: Threshold, needed: Fraction) -> str | None:
    """On what ground a scheduler is stable at a rate; None if it is not shown to be."""
    judged = limit.judge(needed)
    return judged.basis.value if judged.verdict is Verdict.STABLE and judged.basis is not None else None


def _engines(first: Engine, others: tuple[str, ...], count: str | None) -> list[Engine]:
    if others and count is not None:
        raise InvalidInput("--engines: several model files are the engines already; leave it out")
    if count is not None:
        return [first] * require_engines(count_flag("--engines", count, least=1), "--engines")
    return [first, *(load_model(name).engine for name in others)]


def _check_dispatch(machines: list[Engine], dispatch: str | None, split: str | None) -> None:
    if dispatch is not None:
        require_dispatch(dispatch)
    if len(machines) == 1 and (dispatch is not None or split is not None):
        raise InvalidInput("--dispatch, --split: there is one engine only; give --engines N or several model files")


def _share(text: str) -> Fraction:
    try:
        return to_fraction(text)
    except InvalidInput as error:
        raise InvalidInput(f"--split: {error}") from None


def _title(names: tuple[str, ...], machines: list[Engine]) -> str:
    if len(names) == 1 and len(machines) == 1:
        return f"{names[0]}: {engine_words(machines[0])}"
    if len(names) == 1:
        return f"{len(machines)} engines {names[0]}: {engine_words(machines[0])}"
    return " + ".join(names)


def _range(limit: Threshold) -> str:
    return lower_limit(limit.low) if limit.exact else f"{lower_limit(limit.low)} .. {upper_limit(limit.high)}"


def _print(answer: CapacityAnswer, needed: Fraction | None) -> None:
    say(answer.title)
    workload = answer.workload
    say(f"workload: {workload_words(workload)}")
    if len(workload.classes) > 1:
        say(f"mean {number(workload.mean_prefill)} prefill + {number(workload.mean_decode)} decode tokens a request")
    if answer.dispatch is not None:
        say(f"dispatch: {answer.dispatch} over {len(answer.engines)} engines")
    print_table(
        ["scheduler", "stable below", "unstable above", "limit"],
        [[limit.scheduler, lower_limit(limit.low), upper_limit(limit.high), limit.binding] for limit in answer.results],
        title="requests/s, rounded to the safe side",
    )
    for limit in answer.results:
        say(f"{limit.scheduler}: {limit.method}")
    between = any(not limit.exact and type(limit) is Threshold for limit in answer.results)
    if between and len(answer.engines) == 1:
        say("between bounds: --method induced or --method simulate finds the threshold itself")
    for limit, levers in zip(answer.results, answer.levers, strict=True):
        for lever in levers:
            say(f"{limit.scheduler}: {lever.change} moves it to {_range(lever.after)} requests/s")
    _print_verdicts(answer, needed)


def _print_verdicts(answer: CapacityAnswer, needed: Fraction | None) -> None:
    if answer.workload.rate is not None:
        for limit in answer.results:
            judgement = limit.judge(answer.workload.rate)
            say(f"{limit.scheduler}: {judgement.verdict.value}: {judgement.reason}")
    if needed is not None:
        for limit in answer.results:
            basis = _basis(limit, needed)
            met = "NOT met" if basis is None else f"met ({basis})"
            say(f"{limit.scheduler}: required {number(needed, 12)} requests/s: {met}")
