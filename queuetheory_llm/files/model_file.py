"""Model files: an engine and its workload as TOML, read exactly."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import attrs
from pydantic import Field

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.words import shown
from queuetheory_llm.files import packaged
from queuetheory_llm.files.paths import as_path
from queuetheory_llm.files.schema import (
    Faults,
    Table,
    build,
    field_of,
    one_of,
    path_text,
    read_entry,
    read_law,
    read_table,
    read_text,
    reading,
)
from queuetheory_llm.model.arrivals import (
    COUNT_LAWS,
    INTERVAL_LAWS,
    Arrivals,
    CountLaw,
    DeterministicArrivals,
    IntervalLaw,
    PoissonArrivals,
    RenewalArrivals,
    SlottedArrivals,
)
from queuetheory_llm.model.batch_time import BATCH_TIME_LAWS, BatchTime
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import LENGTH_LAWS, Constant, IndependentLengths, LengthLaw
from queuetheory_llm.model.system import System
from queuetheory_llm.model.trace import Trace, TraceArrivals
from queuetheory_llm.model.workload import RequestClass, Workload

_LARGEST = 1 << 26  # bytes; the largest table law there is takes one million
_AT = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)


def load_model(ref: str | Path, *, first_token: str | None = None) -> System:
    """Read a model file.

    Parameters
    ----------
    ref : str or path
        A path, or the name of a packaged model (see ``qt-llm models``).
    first_token : {"paper", "engine"}, optional
        For a workload that is a trace; see `read_trace`. Goes before the key of that name in the file.

    Returns
    -------
    System
        Its numbers are exact: decimals are read as written, "400/187" is a fraction.

    Raises
    ------
    InvalidModel
        One line a fault, ``FILE: KEY PATH: WHAT, and how to mend it``; all the faults there are.

    Examples
    --------
    >>> load_model("codellama-34b-a100").engine.batch_time.seconds(128)
    Fraction(187, 4000)
    """
    document = read_document(ref)
    try:
        return document.system(first_token=first_token)
    except InvalidModel as error:
        raise InvalidModel(error.faults, source=document.path) from None


@attrs.frozen(kw_only=True, eq=False)
class Document:
    """The TOML of a model, not yet read as one.

    Attributes
    ----------
    content : mapping
        Tables, lists, texts, whole numbers, decimals and truth values.
    folder : Path
        The place that the paths in it start from.
    name : str
        What reports call the model.
    path : str or None
        The file it comes from.
    """

    content: Mapping[str, Any]
    folder: Path
    name: str
    path: str | None = None

    @property
    def is_network(self) -> bool:
        """Whether it describes a network of stations, which `load_network` reads."""
        return "station" in self.content

    @property
    def is_workflow(self) -> bool:
        """Whether it describes a workflow on a cluster, which `load_workflow` reads."""
        return "stage" in self.content and not self.is_network

    def system(
        self, *, first_token: str | None = None, reader: Callable[[Path, str | None], Trace] | None = None
    ) -> System:
        """The system it describes.

        Parameters
        ----------
        first_token : {"paper", "engine"}, optional
            As in `load_model`.
        reader : callable, optional
            Called with the path of a trace and its convention, in place of `read_trace`.

        Raises
        ------
        InvalidModel
            One line a fault, ``KEY PATH: WHAT, and how to mend it``; all the faults there are.
        """
        if self.is_network:
            raise InvalidModel("station: this is a network; use qt-llm network or load_network for it")
        if self.is_workflow:
            raise InvalidModel("stage: this is a workflow; use qt-llm dispatch or load_workflow for it")
        try:
            root = read_table(_Root, self.content)
            workload = root.workload
            if isinstance(workload, _TraceWorkload):
                workload = _replayed(workload, self.folder, first_token, reader or _read_trace)
            _check_slots(root.engine, workload)
        except Faults as error:
            raise InvalidModel(f"{path_text(where)}: {what}" for where, what in error.found) from None
        return System(engine=root.engine, workload=workload, source=root.source, name=self.name)


def read_document(ref: str | Path) -> Document:
    """The document of a model file or of a packaged model.

    Raises
    ------
    InvalidModel
        If there is no such file or it is no TOML.
    """
    path = _find(ref)
    name = path.stem if str(ref) == path.stem else str(path)
    return Document(content=parse_document(_text(path), str(path)), folder=path.parent, name=name, path=str(path))


def _find(ref: str | Path) -> Path:
    """The file meant: a bare name is a packaged model before it is anything else."""
    try:
        path = as_path(ref)
    except InvalidInput as error:
        raise InvalidModel(f"model: {error}, or the name of a packaged model") from None
    text = str(ref)
    if text in packaged.names():
        return packaged.path(text)
    try:
        found = path.exists()
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{text}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if found:
        return path
    if isinstance(ref, Path) or path.suffix or len(path.parts) > 1:
        raise InvalidModel(f"{text}: no such file; {packaged.suggestion(path.stem)}")
    return packaged.path(text)


def parse_document(text: str, source: str) -> dict[str, Any]:
    """The TOML document in a text, decimals exact; `InvalidModel` with the line otherwise."""
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        match = _AT.fullmatch(str(error))
        what = match["what"] if match else str(error)
        line, column = (match["line"], match["column"]) if match else (None, None)
        where = f"line {line}: " if line else ""
        place = f" at column {column}" if column else ""
        raise InvalidModel(f"{where}TOML: {what}{place}; mend the syntax there", source=source) from None
    except RecursionError:
        raise InvalidModel("TOML: arrays nested thousands deep; a model file has none", source=source) from None
    except (ValueError, ArithmeticError):  # of int and of Decimal
        raise InvalidModel("TOML: a number of thousands of digits; round it", source=source) from None


def _text(path: Path) -> str:
    source = str(path)
    if path.is_dir():
        raise InvalidModel("is a directory; give the TOML file in it", source=source)
    if not path.is_file():
        raise InvalidModel("is not a regular file; give a TOML file", source=source)
    try:
        if path.stat().st_size > _LARGEST:
            raise InvalidModel(f"is larger than {_LARGEST >> 20} MiB; no model file is", source=source)
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidModel(f"cannot be read: {error.strerror or error}", source=source) from None
    if b"\0" in raw:
        raise InvalidModel("holds a zero byte; this is a binary file, give a TOML file", source=source)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + raw.count(b"\n", 0, error.start)
        raise InvalidModel(f"line {line}: is not UTF-8 text; save the file as UTF-8", source=source) from None
    if not text.strip():
        raise InvalidModel(
            "is empty; a model file has [engine], that of a network [[station]] tables, of a workflow [[stage]] tables",
            source=source,
        )
    return text


# The tables of a file, from the innermost out.


def _batch_time(raw: object) -> BatchTime:
    return read_law(BATCH_TIME_LAWS, {"table": (("seconds_at", "seconds"),)}, raw)


def _length(raw: object) -> LengthLaw:
    if isinstance(raw, Mapping):
        return read_law(LENGTH_LAWS, {"lognormal": (("scale_mean", "mean"),)}, raw)
    try:
        return Constant(raw)  # type: ignore[arg-type]  # its converter refuses what is no number
    except InvalidInput as error:
        raise InvalidInput([fault.removeprefix("value: ") for fault in error.faults]) from None


def _interval(raw: object) -> IntervalLaw:
    return read_law(INTERVAL_LAWS, {}, raw)


LengthTable = Annotated[LengthLaw, reading(_length)]
IntervalTable = Annotated[IntervalLaw, reading(_interval)]
TextTable = Annotated[str, reading(read_text)]


def _interval_or_duration(raw: object) -> IntervalLaw | Any:
    return read_entry(_IntervalEntry if isinstance(raw, Mapping) else _DurationEntry, "interval", raw)


class _IntervalEntry(Table):
    interval: IntervalTable


class _DurationEntry(Table):
    interval: Annotated[Any, field_of(DeterministicArrivals, "interval")]


class ProcessTable(Table):
    """When tasks or queries come."""

    rate: Annotated[Any, field_of(PoissonArrivals, "rate")] = None
    interval: Annotated[Any, reading(_interval_or_duration)] = None

    def process(self) -> Arrivals:
        """Poisson with a rate, regular with an interval, renewal with the law of one."""
        if (self.rate is None) == (self.interval is None):
            raise Faults([(("rate",), "give either rate (Poisson, per second) or interval (a duration or a law)")])
        if self.interval is None:
            return PoissonArrivals(rate=self.rate)
        if isinstance(self.interval, IntervalLaw):
            return RenewalArrivals(interval=self.interval)
        return DeterministicArrivals(interval=self.interval)


class _Engine(Table):
    batch_time: Annotated[Any, reading(_batch_time)] = Field(description="add [engine.batch_time] with its law")
    b_max: Annotated[Any, field_of(Engine, "b_max")] = Field(description="give the token budget of a batch")
    k_max: Annotated[Any, field_of(Engine, "k_max")] = None
    kv_tokens: Annotated[Any, field_of(Engine, "kv_tokens")] = None
    name: TextTable = "engine"


def _engine(raw: object) -> Engine:
    table = read_table(_Engine, raw)
    return build(lambda: Engine(**dict(table)))


EngineTable = Annotated[Engine, reading(_engine)]


class _Class(Table):
    name: TextTable = Field(description="name every class")
    weight: Annotated[Any, field_of(RequestClass, "weight")] = 1
    prefill: LengthTable = Field(description="give the prompt tokens of the class")
    decode: LengthTable = Field(description="give the decode tokens of the class")


def _class(raw: object) -> RequestClass:
    table = read_table(_Class, raw)
    lengths = build(lambda: IndependentLengths(table.prefill, table.decode))
    return RequestClass(name=table.name, weight=table.weight, lengths=lengths)


def _classes(raw: object) -> tuple[RequestClass, ...]:
    if not isinstance(raw, list):
        raise InvalidInput("write [[workload.class]] in double brackets, once for each class")
    classes, faults = [], []
    for index, item in enumerate(raw):
        try:
            classes.append(_class(item))
        except Faults as error:
            faults += [((index, *where), what) for where, what in error.found]
    if faults:
        raise Faults(faults)
    return tuple(classes)


class _Lengths(Table):
    """What every workload but a trace says, and all that one without an arrival process says."""

    prefill: LengthTable | None = None
    decode: LengthTable | None = None
    classes: Annotated[tuple[RequestClass, ...], reading(_classes)] = Field((), alias="class")

    def process(self) -> Arrivals | None:
        """The arrival process; None when the file gives no rate."""
        return None

    def workload(self) -> Workload:
        """The workload."""
        prefill, decode = self.prefill, self.decode
        classes = self.classes
        if classes and (prefill is not None or decode is not None):
            raise Faults([(("class",), "goes without prefill and decode in [workload]; move them into a class")])
        if not classes:
            if prefill is None or decode is None:
                missing = [name for name, law in (("prefill", prefill), ("decode", decode)) if law is None]
                raise Faults([((name,), "missing; give a number of tokens or a law") for name in missing])
            classes = (RequestClass(lengths=build(lambda: IndependentLengths(prefill, decode))),)
        return build(lambda: Workload(classes=classes, arrivals=self.process()))


class _Regular(_Lengths):
    """A process with a rate, or the mean interval that is its inverse, or neither yet."""

    arrivals: TextTable
    rate: Annotated[Any, field_of(PoissonArrivals, "rate")] = None
    interval: Annotated[Any, field_of(DeterministicArrivals, "interval")] = None

    def mean_interval(self) -> Fraction | None:
        """Seconds between arrivals, exact."""
        if self.rate is not None and self.interval is not None:
            raise Faults([(("interval",), "is given beside rate; leave one of them out")])
        given: Fraction | None = self.interval if self.rate is None else 1 / self.rate
        return given


class _Poisson(_Regular):
    def process(self) -> Arrivals | None:
        interval = self.mean_interval()
        return None if interval is None else PoissonArrivals(rate=1 / interval)


class _Deterministic(_Regular):
    def process(self) -> Arrivals | None:
        interval = self.mean_interval()
        return None if interval is None else DeterministicArrivals(interval=interval)


class _Renewal(_Lengths):
    arrivals: TextTable
    interval: IntervalTable = Field(description='give a law, such as { law = "gamma", mean = "80 ms", cv = 2 }')

    def process(self) -> Arrivals:
        return RenewalArrivals(interval=self.interval)


def _per_slot(raw: object) -> CountLaw:
    return read_law(COUNT_LAWS, {}, raw)


class _Slotted(_Lengths):
    arrivals: TextTable
    slot: Annotated[Any, field_of(SlottedArrivals, "slot")] = Field(description='give the duration, such as "1 s"')
    per_slot: Annotated[CountLaw, reading(_per_slot)] = Field(
        description='give a law, such as { law = "bernoulli", p = 0.5 }'
    )

    def process(self) -> Arrivals:
        return SlottedArrivals(slot=self.slot, per_slot=self.per_slot)


class _TraceWorkload(Table):
    """The requests of a trace file, which is not read before the rest of the model is known to be good."""

    arrivals: TextTable
    trace: TextTable = Field(description="name the trace file, relative to the model file")
    first_token: Annotated[str | None, reading(partial(one_of, ("paper", "engine")))] = None


_WORKLOADS: Mapping[str, type[_Lengths] | type[_TraceWorkload]] = {
    "poisson": _Poisson,
    "deterministic": _Deterministic,
    "renewal": _Renewal,
    "slotted": _Slotted,
    "trace": _TraceWorkload,
}
_PROCESS_KEYS = ("rate", "interval", "slot", "per_slot", "trace")


def _workload(raw: object) -> Workload | _TraceWorkload:
    if isinstance(raw, Mapping) and "arrivals" not in raw and any(key in raw for key in _PROCESS_KEYS):
        raise Faults([(("arrivals",), f"missing; write one of {', '.join(_WORKLOADS)}")])
    kind = raw.get("arrivals") if isinstance(raw, Mapping) else None
    try:
        model: type[_Lengths] | type[_TraceWorkload] = (
            _Lengths if kind is None else _WORKLOADS[one_of(list(_WORKLOADS), kind)]
        )
    except InvalidInput as error:
        raise Faults([(("arrivals",), str(error))]) from None
    table: _Lengths | _TraceWorkload = read_table(model, raw)
    return table if isinstance(table, _TraceWorkload) else table.workload()


def _source(raw: object) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise InvalidInput("must be a table of texts: title, url, section")
    wrong = [key for key, value in raw.items() if not isinstance(value, str)]
    if wrong:
        raise Faults([((key,), f"{shown(raw[key])} is not text; put it in quotes") for key in wrong])
    return dict(raw)


SourceTable = Annotated[dict[str, str], reading(_source)]


class _Root(Table):
    source: SourceTable = Field(default_factory=dict)
    engine: EngineTable = Field(description="add an [engine] table with b_max and a batch_time")
    workload: Annotated[Workload | _TraceWorkload | None, reading(_workload)] = None


def _read_trace(path: Path, first_token: str | None) -> Trace:
    from queuetheory_llm.files.traces.reader import read_trace

    return read_trace(path, first_token=first_token)


def _replayed(
    table: _TraceWorkload, folder: Path, first_token: str | None, reader: Callable[[Path, str | None], Trace]
) -> Workload:
    if not table.trace:
        raise Faults([(("workload", "trace"), "is empty; name the trace file, relative to the model file")])
    try:
        trace = reader(folder / table.trace, first_token or table.first_token)
    except InvalidInput as error:
        raise Faults([(("workload", "trace"), fault) for fault in error.faults]) from None
    arrivals = None if trace.rate is None else TraceArrivals(trace=trace)
    return Workload(classes=(RequestClass(lengths=trace.lengths),), arrivals=arrivals)


def _check_slots(engine: Engine, workload: Workload | None) -> None:
    arrivals = None if workload is None else workload.arrivals
    if isinstance(arrivals, SlottedArrivals):
        build(lambda: arrivals.require_slot_batches(engine.batch_time, engine.b_max), ("workload",))
