"""Writing a model as the TOML file that `load_model` reads back equal."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import duration_text, plain
from queuetheory_llm.files.atomic import write_atomically
from queuetheory_llm.model.arrivals import (
    Arrivals,
    DeterministicArrivals,
    IntervalLaw,
    PoissonArrivals,
    RenewalArrivals,
    SlottedArrivals,
)
from queuetheory_llm.model.lengths import Constant, IndependentLengths, LengthLaw, RequestLengths
from queuetheory_llm.model.system import System
from queuetheory_llm.model.trace import TraceArrivals
from queuetheory_llm.model.workload import RequestClass, Workload

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_model(system: System, path: str | Path) -> None:
    """Write a model file, whole or not at all; `load_model` reads an equal system back (but for its name).

    Raises
    ------
    InvalidInput
        If the file cannot be written, or the lengths are no law that a model file can hold (those of a trace that is
        not replayed).
    """
    write_atomically(path, model_text(system, Path(path).parent).encode())


def model_text(system: System, folder: Path) -> str:
    """The text of the model file of a system, for a file that is to stand in ``folder``."""
    engine = system.engine.to_dict()
    batch_time = engine.pop("batch_time")
    if system.engine.name != "engine":
        engine["name"] = system.engine.name
    lines = [*_table("source", system.source)] if system.source else []
    lines += [*_table("engine", engine), *_table("engine.batch_time", batch_time)]
    if system.workload is not None:
        lines += _workload(system.workload, folder)
    return "\n".join(lines)


def _workload(workload: Workload, folder: Path) -> Iterator[str]:
    arrivals = workload.arrivals
    process = {} if arrivals is None else {"arrivals": arrivals.kind, **_process(arrivals, folder)}
    only = workload.classes[0] if len(workload.classes) == 1 else None
    if isinstance(arrivals, TraceArrivals):
        yield from _table("workload", process)
    elif only is not None and only == RequestClass(lengths=only.lengths):
        yield from _table("workload", {**process, **_lengths(only.lengths)})
    else:
        yield from _table("workload", process)
        for each in workload.classes:
            weight = {"name": each.name, "weight": plain(each.weight)}
            yield from _table("workload.class", {**weight, **_lengths(each.lengths)}, array=True)


def _lengths(lengths: RequestLengths) -> dict[str, Any]:
    if not isinstance(lengths, IndependentLengths):
        raise InvalidInput("these lengths are no pair of laws; a model file can hold them only as arrivals = trace")
    return {"prefill": _law(lengths.prefill), "decode": _law(lengths.decode)}


def _law(law: LengthLaw) -> Any:
    return law.value if isinstance(law, Constant) else law.to_dict()


def _process(arrivals: Arrivals, folder: Path) -> dict[str, Any]:
    """The keys of an arrival process beside ``arrivals``."""
    match arrivals:
        case PoissonArrivals():
            return {"rate": plain(arrivals.rate)}
        case DeterministicArrivals():
            return {"interval": duration_text(arrivals.interval)}
        case RenewalArrivals():
            return {"interval": _interval(arrivals.interval)}
        case SlottedArrivals():
            return {"slot": duration_text(arrivals.slot), "per_slot": arrivals.per_slot.to_dict()}
        case TraceArrivals(trace=trace):
            convention = {} if trace.first_token == "as given" else {"first_token": trace.first_token}
            return {"trace": os.path.relpath(trace.source, folder), **convention}
    raise InvalidInput(f"arrivals: {arrivals.kind} cannot be written to a model file")


def _interval(law: IntervalLaw) -> dict[str, Any]:
    table: dict[str, Any] = {"law": law.law}
    for field in attrs.fields(cast("type[attrs.AttrsInstance]", type(law))):
        value = getattr(law, field.name)
        table[field.name] = plain(value) if field.name == "cv" else duration_text(value)
    return table


def _table(name: str, content: Mapping[str, Any], *, array: bool = False) -> Iterator[str]:
    yield f"[[{name}]]" if array else f"[{name}]"
    yield from (f"{_key(key)} = {_value(value)}" for key, value in content.items())
    yield ""


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    """A TOML value; a JSON string is a TOML string once DEL is escaped."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
