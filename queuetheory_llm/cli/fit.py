"""``qt-llm fit``: a batch-time law from a GPU profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from queuetheory_llm.cli.figures import FORMATS
from queuetheory_llm.cli.inputs import count_flag
from queuetheory_llm.cli.output import Json, number, print_json, print_notes, print_table, print_written
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_target, write_atomically

if TYPE_CHECKING:
    from queuetheory_llm.files.profiles import Gemm
    from queuetheory_llm.fitting import Candidate, Fit
    from queuetheory_llm.model.engine import Engine

_SHOWN = 12  # tile steps printed; --json has all


def fit(
    *profiles: Annotated[Path, Parameter(help="Profile files; several when they complete each other.")],
    layers: Annotated[str | None, Parameter(help="Transformer layers of the model, for per-layer profiles.")] = None,
    tp: Annotated[str | None, Parameter(help="Tensor-parallel degree, where the file holds several.")] = None,
    all_reduce: Annotated[Path | None, Parameter(help="Vidur all_reduce.csv, with mlp.csv and --tp above 1.")] = None,
    model: Annotated[str | None, Parameter(help="Model, where the file holds several.")] = None,
    hardware: Annotated[str | None, Parameter(help="Hardware, where the file holds several.")] = None,
    phase: Annotated[Literal["prefill", "decode"] | None, Parameter(help="Use the times of one phase alone.")] = None,
    context: Annotated[str | None, Parameter(help="Context of a decoding request, tokens (DistServe).")] = None,
    gemm: Annotated[
        list[str] | None,
        Parameter(negative=(), help="N:K of one matrix product of a layer; repeat for each (aiconfigurator)."),
    ] = None,
    dtype: Annotated[str | None, Parameter(help="Number format, where the file holds several.")] = None,
    test: Annotated[str | None, Parameter(help="Which test of the file, from 1 (BLIS).")] = None,
    law: Annotated[
        Literal["auto", "affine", "hinge", "staircase", "table"], Parameter(help="Law to use; auto chooses.")
    ] = "auto",
    b_max: Annotated[str | None, Parameter(help="Token budget; the fit uses the points up to it.")] = None,
    k_max: Annotated[str | None, Parameter(help="Most requests in a batch, for the model file.")] = None,
    output: Annotated[
        list[Path] | None,
        Parameter(name=["--output", "-o"], negative=(), help="MODEL.toml, or a figure .svg .png .pdf; may repeat."),
    ] = None,
    json: Json = False,
) -> int:
    """Fit a batch-time law to a profile; maximum relative error first, R^2 second."""
    from queuetheory_llm.files.profiles import Selection, read_profile
    from queuetheory_llm.fitting import fit_profile

    outputs = _checked_outputs(output or [])
    budget, seats = _count("--b-max", b_max), _count("--k-max", k_max)
    selection = Selection(
        layers=_count("--layers", layers),
        tp=_count("--tp", tp),
        model=model,
        hardware=hardware,
        phase=phase,
        context=_count("--context", context, least=0),
        gemms=tuple(_read_gemm(text) for text in gemm or ()),
        dtype=dtype,
        test=_count("--test", test),
        b_max=budget,
    )
    profile = read_profile([*profiles, *([all_reduce] if all_reduce else [])], selection)
    result = fit_profile(profile if budget is None else profile.up_to(budget), law=law)
    engine = result.engine(b_max=budget, k_max=seats)
    notes = [*result.notes, *_budget_notes(result, engine)]
    model_file = _write(result, engine, outputs)
    if json:
        content = {**result.to_dict(), "notes": notes, "b_max": engine.b_max, "k_max": engine.k_max}
        print_json("fit", {**content, "model_file": model_file})
        return 0
    _print_report(result, engine)
    print_written(*outputs)
    print_notes(notes)
    return 0


def _count(flag: str, text: str | None, *, least: int = 1) -> int | None:
    return None if text is None else count_flag(flag, text, least=least)


def _read_gemm(text: str) -> Gemm:
    from queuetheory_llm.files.profiles import Gemm

    match = re.fullmatch(r"([1-9]\d{0,8}):([1-9]\d{0,8})", text)
    if match is None:
        raise InvalidInput(f"--gemm: {text!r} is not N:K; write columns out and in, such as 4096:14336")
    return Gemm(n=int(match[1]), k=int(match[2]))


def _checked_outputs(outputs: Sequence[Path]) -> list[Path]:
    """The output files, refused before any work is done where one cannot be written or two are model files."""
    faults: list[str] = []
    for path in outputs:
        try:
            check_target(path, ("toml", *FORMATS))
        except InvalidInput as error:
            faults += error.faults
    if sum(path.suffix.lower() == ".toml" for path in outputs) > 1:
        faults.append("-o: more than one .toml; give one model file")
    if faults:
        raise InvalidInput(faults)
    return list(outputs)


def _write(result: Fit, engine: Engine, outputs: Sequence[Path]) -> str | None:
    """Write figures and the model file; every figure is drawn before the first byte is written."""
    if not outputs:
        return None
    from queuetheory_llm.files.model_writer import dump_model
    from queuetheory_llm.model.system import System
    from queuetheory_llm.plots.fit import render_fit

    drawn = {path: render_fit(result, kind) for path in outputs if (kind := path.suffix.lower()[1:]) != "toml"}
    models = [path for path in outputs if path not in drawn]
    for path in models:
        dump_model(System(engine=engine, source=_source(result), name=str(path)), path)
    for path, data in drawn.items():
        write_atomically(path, data)
    return str(models[0]) if models else None


def _source(result: Fit) -> dict[str, str]:
    """The ``[source]`` of a written model: where the times come from and how good the law is."""
    profile = result.profile
    return {
        "title": f"Batch-time law fitted by qt-llm fit to a {profile.format} profile",
        "profile": profile.source,
        "includes": profile.includes,
        "statistic": profile.statistic,
        "fit": result.summary,
    }


def _budget_notes(result: Fit, engine: Engine) -> list[str]:
    from queuetheory_llm.model.batch_time import Staircase

    notes = []
    last = result.profile.tokens[-1]
    if engine.b_max > last:
        notes.append(f"b_max {engine.b_max} is beyond the last point ({last} tokens): the law is extrapolated there")
    if isinstance(engine.batch_time, Staircase) and not engine.whole_blocks:
        notes.append(
            f"b0 = {engine.batch_time.b0} does not divide b_max = {engine.b_max}: full batches waste a part stair"
        )
    return notes


def _print_report(result: Fit, engine: Engine) -> None:
    chosen, profile = result.chosen, result.profile
    say(f"max relative error {_headline(result)}")
    say(f"R^2                {number(chosen.r2)}")
    say(f"law                {chosen.formula} ({result.reason})")
    limit = "" if engine.k_max is None else f", k_max {engine.k_max}"
    say(f"engine             b_max {engine.b_max}{limit}")
    say(
        f"profile            {profile.source}: {profile.format}, {len(profile)} points from {profile.tokens[0]} to "
        f"{profile.tokens[-1]} tokens; {profile.statistic}"
    )
    say(f"includes           {profile.includes}")
    print_table(
        ["law", "max rel. error", "at tokens", "mean rel. error", "R^2", "c (ms)", "a (ms)", "b0", ""],
        [_candidate_row(candidate, candidate is chosen) for candidate in result.candidates],
    )
    _print_steps(result)


def _headline(result: Fit) -> str:
    chosen = result.chosen
    text = f"{_percent(chosen.max_relative_error)} at {chosen.at_tokens} tokens"
    others = [candidate for candidate in result.candidates if candidate.name != "table"]
    if chosen.name != "table" or not others:
        return text
    best = min(others, key=lambda candidate: candidate.max_relative_error)
    return (
        f"{_percent(chosen.max_relative_error)} at the table's own points; the closest simpler law, {best.name}: "
        f"{_percent(best.max_relative_error)} at {best.at_tokens} tokens"
    )


def _candidate_row(candidate: Candidate, is_chosen: bool) -> list[str]:
    values: dict[str, Any] = candidate.to_dict()
    c, a = (None if values[key] is None else 1000 * values[key] for key in ("c", "a"))
    return [
        candidate.name,
        _percent(candidate.max_relative_error),
        str(candidate.at_tokens),
        _percent(candidate.mean_relative_error),
        number(candidate.r2, 5),
        number(c),
        number(a),
        "-" if values["b0"] is None else str(values["b0"]),
        "chosen" if is_chosen else "",
    ]


def _print_steps(result: Fit) -> None:
    steps = result.tile_steps
    if not steps:
        say("tile steps: none found")
        return
    more = "" if len(steps) <= _SHOWN else f"; the first {_SHOWN}, all with --json"
    print_table(
        ["after tokens", "before (ms)", "after (ms)", "change"],
        [
            [
                str(step.after_tokens),
                number(1000 * step.before_seconds),
                number(1000 * step.after_seconds),
                f"{100 * step.change:+.1f} %",
            ]
            for step in steps[:_SHOWN]
        ],
        title=f"tile steps: {len(steps)}{more}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
