"""What several commands read: numbers from flags, and the system a command line describes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Annotated, TypeVar

import attrs
from cyclopts import Parameter

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import MOST, to_count, to_fraction, to_seconds
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.traces.reader import read_trace
from queuetheory_llm.model.arrivals import Arrivals, PoissonArrivals
from queuetheory_llm.model.lengths import IndependentLengths, RequestLengths
from queuetheory_llm.model.system import System
from queuetheory_llm.model.trace import FirstToken, TraceArrivals
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.schedulers.registry import parse_scheduler, to_rule

DEFAULT_MODEL = "codellama-34b-a100"
DEFAULT_SEED = 0

FirstTokenFlag = Annotated[
    FirstToken | None,
    Parameter(
        help="The first output comes with the first decode token (paper; default for models) or with the last "
        "prefill chunk (engine; default for traces)."
    ),
]
Strict = Annotated[bool, Parameter(negative=(), help="Refuse an unsorted trace instead of sorting it.")]
TraceFlag = Annotated[
    str | None, Parameter(metavar="FILE", help="Take the requests from this trace, in place of the model's workload.")
]
Prefill = Annotated[
    str | None, Parameter(metavar="INT", help="Prompt tokens of every request, in place of the model's workload.")
]
Decode = Annotated[str | None, Parameter(metavar="INT", help="Decode tokens of every request.")]
Rate = Annotated[
    str | None, Parameter(metavar="NUMBER", help="Requests per second, in place of the model's or the trace's.")
]

_Value = TypeVar("_Value", int, Fraction)


def _read(flag: str, text: str, read: Callable[[str], _Value], least: int, what: str) -> _Value:
    try:
        value = read(text)
    except InvalidInput as error:
        raise InvalidInput(f"{flag}: {fault}" for fault in error.faults) from None
    if value < least:
        raise InvalidInput(f"{flag}: {text} is below {least}; give {what}")
    return value


@contextmanager
def said_of_flags(*names: str) -> Iterator[None]:
    """What the package says of arguments with these names, and of their entries, is said of the flags."""
    try:
        yield
    except InvalidInput as error:
        faults = [f"--{fault}" if re.split(r"[.:\[]", fault)[0] in names else fault for fault in error.faults]
        raise InvalidInput(faults) from None


def count_flag(flag: str, text: str, *, least: int = 0) -> int:
    """A whole number from a flag."""
    return _read(flag, text, to_count, least, f"a whole number, at least {least}")


def seed_flag(text: str | None) -> int:
    """The value of --seed, or its default."""
    try:
        return DEFAULT_SEED if text is None else count_flag("--seed", text)
    except InvalidInput:
        raise InvalidInput(f"--seed: {text!r} is no whole number from 0 to {MOST}; give one") from None


def positive_flag(flag: str, text: str, read: Callable[[str], Fraction] = to_fraction) -> Fraction:
    """A number above 0 from a flag."""
    value = _read(flag, text, read, 0, "a number above 0")
    if value == 0:
        raise InvalidInput(f"{flag}: {text} is not positive; give a number above 0")
    return value


def flag_seconds(text: str) -> Fraction:
    """A bare number counts seconds, as everywhere on the command line."""
    return to_seconds(text) if text[-1:].isalpha() else to_fraction(text)


def read_schedulers(names: Sequence[str] | None, default: Sequence[str] = ("sarathi",)) -> list[Policy]:
    """The rules asked for, once each."""
    return list(dict.fromkeys(parse_scheduler(name) for name in names or default))


def read_rules(names: Sequence[str] | None) -> list[Scheduler | str]:
    """The rules asked for, once each; see `to_rule`."""
    return list(dict.fromkeys(to_rule(name) for name in names or ("sarathi",)))


def at_rate(workload: Workload, rate: str | None) -> Workload:
    """The workload at the rate of a flag: its own process rescaled, Poisson where it has none."""
    if rate is None:
        return workload
    value = positive_flag("--rate", rate)
    arrivals: Arrivals | None = workload.arrivals
    return workload.with_arrivals(PoissonArrivals(rate=value) if arrivals is None else arrivals.with_rate(value))


@attrs.frozen(kw_only=True)
class Question:
    """A system as the flags describe it, and what reading it changed."""

    system: System
    notes: tuple[str, ...] = ()


def read_question(
    model: str,
    *,
    trace: str | None = None,
    prefill: str | None = None,
    decode: str | None = None,
    rate: str | None = None,
    first_token: FirstToken | None = None,
    strict: bool = False,
) -> Question:
    """The engine of a model file with the workload of the file, of a trace or of two numbers.

    Raises
    ------
    InvalidInput
        If the flags contradict each other or a file is bad.
    """
    system = load_model(model, first_token=first_token)
    lengths = _flag_lengths(prefill, decode)
    if trace is not None:
        return _with_trace(system, trace, lengths, rate, first_token, strict)
    if lengths is not None:
        arrivals = None if system.workload is None else system.workload.arrivals
        if isinstance(arrivals, TraceArrivals):
            arrivals = PoissonArrivals(rate=arrivals.rate)
        system = attrs.evolve(system, workload=_one_class(lengths).with_arrivals(arrivals))
    if system.workload is None:
        if rate is not None:
            raise InvalidInput("--rate: there is no workload to come at this rate; give --prefill N --decode N")
        return Question(system=system)
    return Question(system=attrs.evolve(system, workload=at_rate(system.workload, rate)))


def _flag_lengths(prefill: str | None, decode: str | None) -> RequestLengths | None:
    if prefill is None and decode is None:
        return None
    if prefill is None or decode is None:
        missing = "--prefill" if prefill is None else "--decode"
        raise InvalidInput(f"{missing}: missing; --prefill and --decode go together")
    return IndependentLengths(count_flag("--prefill", prefill), count_flag("--decode", decode))


def _one_class(lengths: RequestLengths) -> Workload:
    return Workload(classes=(RequestClass(lengths=lengths),))


def _with_trace(
    system: System,
    path: str,
    lengths: RequestLengths | None,
    rate: str | None,
    first_token: FirstToken | None,
    strict: bool,
) -> Question:
    trace = read_trace(path, first_token=first_token, strict=strict, progress=True, lengths=lengths)
    workload = _one_class(trace.lengths)
    if trace.arrivals is not None and trace.rate is not None:
        workload = workload.with_arrivals(TraceArrivals(trace=trace))
    elif trace.rate is not None:
        workload = workload.with_arrivals(PoissonArrivals(rate=trace.rate))
    convention = f"{trace.source}: {trace.format} format, first token: {trace.first_token}"
    return Question(system=attrs.evolve(system, workload=at_rate(workload, rate)), notes=(convention, *trace.notes))
