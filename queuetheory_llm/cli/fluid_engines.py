"""Fluid limits of schedulers on one engine for ``qt-llm fluid``, and what an overload leaves behind there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.cli.figures import write_figure
from queuetheory_llm.cli.output import number, print_json, print_notes, print_table, print_written
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.cli.words import engine_words
from queuetheory_llm.errors import InvalidInput, QueueTheoryError
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.model.system import System
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import name_of, scheduler_for
from queuetheory_llm.stability.engine_fluid import EngineFluidPath, engine_fluid
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.overload import Overload, engine_overload

#: Requests that wait at time 0 unless --start says otherwise; the path is the same on every scale.
REQUESTS = 1000
_PHASES = ("prefill", "decode")


@attrs.frozen(kw_only=True)
class EngineQuestion:
    """What is asked of an engine.

    Attributes
    ----------
    system : System
    rules : tuple of Scheduler or str
    start : mapping of "prefill" and "decode" to tokens, or None
    horizon : Fraction or None
        Seconds.
    profile : RateProfile or None
    keep_below : Fraction or None
        Tokens.
    """

    system: System
    rules: tuple[Scheduler | str, ...]
    start: Mapping[str, Fraction] | None = None
    horizon: Fraction | None = None
    profile: RateProfile | None = None
    keep_below: Fraction | None = None

    @property
    def workload(self) -> Workload:
        """What the engine serves."""
        return self.system.require_workload()

    def begin(self) -> tuple[Fraction, Fraction]:
        """Prefill and decode tokens at time 0."""
        if self.start is None:
            return Fraction(REQUESTS * self.workload.mean_prefill), Fraction(0)
        unknown = [name for name in self.start if name not in _PHASES]
        if unknown:
            raise InvalidInput(
                f"--start: {unknown[0]!r} is not known at an engine; write prefill=TOKENS or decode=TOKENS"
            )
        prefill, decode = (self.start.get(phase, Fraction(0)) for phase in _PHASES)
        return prefill, decode


def answer_engine(question: EngineQuestion, output: str | None, json: bool) -> None:
    """Answer, draw and print."""
    if output is not None and len(question.rules) > 1:
        raise InvalidInput("-o: a figure is of one scheduler; give one --scheduler")
    if question.profile is not None:
        _answer_overload(question, question.profile, output, json)
        return
    found = [_path(question, rule) for rule in question.rules]
    if output is not None:
        from queuetheory_llm.plots.engine_fluid import render_engine_fluid

        write_figure(output, lambda kind: render_engine_fluid(found[0], kind))
    print_notes(dict.fromkeys(note for path in found for note in path.notes))
    if json:
        print_json("fluid", _content(question, [path.to_dict() for path in found]))
        return
    say(f"{question.system.name}: {engine_words(question.system.engine)}\n")
    for path in found:
        for line in _told(path):
            say(line)
    print_written(output)


#: What is asked of every kind of path, network or engine.
OF_EVERY_PATH = ("method", "end", "reason", "emptying_time", "growth")


def _content(question: EngineQuestion, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What every answer of the command has, here of the first scheduler; then all of each."""
    first = results[0]
    return {"title": question.system.name, **{key: first[key] for key in OF_EVERY_PATH}, "results": list(results)}


def _path(question: EngineQuestion, rule: Scheduler | str) -> EngineFluidPath:
    engine, workload = question.system.engine, question.workload
    known = scheduler_for(rule, engine, workload) if isinstance(rule, str) else rule
    try:
        return engine_fluid(engine, known, workload, question.begin(), horizon=question.horizon)
    except InvalidInput:
        raise
    except QueueTheoryError as error:
        raise InvalidInput(
            f"{question.system.name}: the fluid limit of {name_of(rule)}: {error}; other lengths "
            "(--prefill N --decode N) may have one, and --profile FILE needs none"
        ) from None


def _told(path: EngineFluidPath) -> Iterator[str]:
    when = "" if path.emptying_time is None else f" at {number(path.emptying_time)} s"
    yield f"{path.scheduler} at {number(path.drifts.rate)} requests/s: {path.end.value}{when}, {path.end.meaning}"
    print_table(
        ["seconds", "prefill tokens", "decode tokens"],
        [[number(point.time), number(point.prefill), number(point.decode)] for point in path.points],
    )
    if path.end.grows and path.slope is not None:
        prefill, decode = map(number, path.slope)
        yield f"from there on it grows by {prefill} prefill and {decode} decode tokens a second\n"


def _answer_overload(question: EngineQuestion, profile: RateProfile, output: str | None, json: bool) -> None:
    found = [_overload(question, profile, rule) for rule in question.rules]
    if output is not None:
        from queuetheory_llm.plots.overload import render_overload

        write_figure(output, lambda kind: render_overload(found[0], kind))
    print_notes(dict.fromkeys(note for each in found for note in each.notes))
    names = [name_of(rule) for rule in question.rules]
    if json:
        results = [{"scheduler": name, **_end(each), **each.to_dict()} for name, each in zip(names, found, strict=True)]
        print_json("fluid", _content(question, results))
        return
    say(f"{question.system.name} through the rates over time\n")
    print_table(
        ["scheduler", "tokens/s", "deepest: tokens", "at second", "seconds over capacity", "worked off at"],
        [[name, *_row(each)] for name, each in zip(names, found, strict=True)],
    )
    for name, each in zip(names, found, strict=True):
        if each.capacity_needed is not None:
            say(f"{name}: {number(each.capacity_needed)} tokens/s would keep it below {number(each.keep_below)} tokens")
        if each.growth:
            say(f"{name}: the last rate is above capacity; the backlog grows by {number(each.growth)} tokens a second")
    print_written(output)


def _end(found: Overload) -> dict[str, Any]:
    """An overload in the words of a path."""
    end = FluidEnd.DIVERGING if found.growth else FluidEnd.CONSTANT if found.drained is None else FluidEnd.EMPTY
    drained = None if found.drained is None else float(found.drained)
    return {
        "method": "exact",
        "end": end.value,
        "reason": end.meaning,
        "emptying_time": drained,
        "growth": float(found.growth),
    }


def _overload(question: EngineQuestion, profile: RateProfile, rule: Scheduler | str) -> Overload:
    start = sum(question.begin(), Fraction(0)) if question.start is not None else Fraction(0)
    return engine_overload(
        question.system.engine,
        profile,
        question.workload,
        scheduler=rule,
        start=start,
        keep_below=question.keep_below,
    )


def _row(found: Overload) -> list[str]:
    values: list[Any] = [
        found.capacity,
        found.depth,
        None if found.deepest is None else found.deepest[0],
        found.seconds_over,
        found.drained,
    ]
    return [number(value) for value in values]
