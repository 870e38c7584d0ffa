"""``qt-llm region``: where the system stands in its stability region."""

from __future__ import annotations

from typing import Annotated

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
    read_question,
    read_schedulers,
)
from queuetheory_llm.cli.output import (
    Certificate,
    Json,
    load,
    number,
    print_json,
    print_notes,
    print_table,
    print_written,
    scheduler_flag,
)
from queuetheory_llm.cli.searches import Seed, Width, read_width, searching
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.cli.words import engine_words, workload_words
from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.files.certificates import check_certificate_target, write_certificate
from queuetheory_llm.stability.answers import OperatingPoint, RegionAnswer, stability_region
from queuetheory_llm.stability.engine_certificates import region_certificate

#: Drawn when no --scheduler is given: the work-conserving rules share one region, the two others are smaller.
_SHOWN = ("sarathi", "vllm-vanilla", "fastertransformer")


def region(
    model: str = DEFAULT_MODEL,
    *,
    scheduler: Annotated[list[str] | None, scheduler_flag(", ".join(_SHOWN))] = None,
    trace: TraceFlag = None,
    prefill: Prefill = None,
    decode: Decode = None,
    rate: Rate = None,
    simulate: Annotated[
        bool,
        Parameter(negative=(), help="Measure each scheduler's region by simulation where theory has bounds only."),
    ] = False,
    width: Width = None,
    seed: Seed = None,
    first_token: FirstTokenFlag = None,
    strict: Strict = False,
    output: Output = None,
    certificate: Certificate = None,
    json: Json = False,
) -> None:
    """Draw the stability region of one engine: vertices and their batches, schedulers, operating point, margin.

    Parameters
    ----------
    model
        A model file or the name of a packaged model.
    """
    figure_format(output)
    check_certificate_target(certificate, {"-o": output}, {"the model": model, "--trace": trace})
    policies = read_schedulers(scheduler, _SHOWN)
    question = read_question(
        model, trace=trace, prefill=prefill, decode=decode, rate=rate, first_token=first_token, strict=strict
    )
    system = question.system
    with searching("simulate" if simulate else "auto", width, seed, ask="--simulate") as solver:
        answer = stability_region(
            system.engine,
            system.workload,
            schedulers=policies,
            optional=scheduler is None,
            solver=solver,
            width=None if solver is None else read_width(width),
            title=f"{system.name}: {engine_words(system.engine)}",
        )
    if output is not None:
        from queuetheory_llm.plots.region import render_region

        write_figure(output, lambda kind: render_region(answer, kind))
    if certificate is not None:
        write_certificate(certificate, region_certificate(system.engine, system.require_workload()))
    if json:
        print_json("region", {**answer.to_dict(), "notes": [*question.notes, *answer.notes]})
        return
    print_notes([*question.notes, *answer.notes])
    _print(answer)
    print_written(output, certificate)


def _print(answer: RegionAnswer) -> None:
    capacity = answer.capacity
    say(answer.title)
    say(f"workload: {workload_words(answer.workload)}")
    say(
        f"capacity C = {number(capacity.tokens_per_s, 7)} tokens/s, by batches of {capacity.batch_tokens} tokens; "
        f"full batches serve F = {number(capacity.full_batches_tokens_per_s, 7)}"
    )
    print_table(
        ["vertex", "prefill tokens/s", "decode tokens/s", "batch (prefill, decode)", "lasts"],
        [
            [
                v.label,
                number(v.prefill, 7),
                number(v.decode, 7),
                f"({v.batch.prefill}, {v.batch.decode})",
                f"{float(v.batch.seconds) * 1000:.7g} ms",
            ]
            for v in answer.outer.vertices
        ],
        title="outer region: unstable under every scheduler outside it",
    )
    if answer.operating_point is None:
        say("no operating point: the workload has no rate; give --rate R" if answer.workload else "no workload given")
        return
    _print_point(answer.operating_point)
    print_table(
        ["scheduler", "verdict", "load", "margin", "stable below", "unstable above"],
        [
            [
                name,
                judgement.verdict.value,
                load(judgement.load, 4),
                number(judgement.margin, 4),
                lower_limit(limit.low),
                upper_limit(limit.high),
            ]
            for name, limit, judgement in answer.judgements
        ],
        title=f"at {number(answer.operating_point.rate)} requests/s; limits in requests/s, rounded to the safe side",
    )
    for name, limit, _ in answer.judgements:
        say(f"{name}: {limit.method}")


def _print_point(point: OperatingPoint) -> None:
    where = {True: "inside", False: "outside"}[point.load < 1] if point.load != 1 else "on the boundary of"
    say(
        f"operating point: {number(point.rate)} requests/s = {number(point.prefill)} prefill + {number(point.decode)} "
        f"decode tokens/s, {where} the outer region R: load {load(point.load, 5)}, "
        f"margin to R {number(point.margin, 4)}"
    )
    shares = ", ".join(
        f"{float(weight):.4g} x {vertex.label} ({vertex.batch.prefill}, {vertex.batch.decode})"
        for vertex, weight in point.place.weights
    )
    p, d, bound = point.place.line
    if point.load <= 1:
        say(f"  proof: these shares of time serve it: {shares or 'idle'}")
    else:
        say(
            f"  proof: every batch keeps {float(p / bound):.6g} x prefill + {float(d / bound):.6g} x decode tokens/s "
            f"<= 1, the point has {load(point.load)}"
        )
