"""Network files: stations, classes, arrivals, routes and joins as TOML, read exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import to_count
from queuetheory_llm.files.model_file import (
    Document,
    EngineTable,
    IntervalTable,
    LengthTable,
    SourceTable,
    TextTable,
    read_document,
)
from queuetheory_llm.files.schema import Faults, Table, build, field_of, path_text, read_table, reading
from queuetheory_llm.model.arrivals import (
    Arrivals,
    DeterministicArrivals,
    IntervalLaw,
    PoissonArrivals,
    RenewalArrivals,
)
from queuetheory_llm.model.dispatch import require_engines
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.network import ExternalArrivals, Join, Network, Route, Station, TaskClass
from queuetheory_llm.stability.traffic import require_open

T = TypeVar("T")


def load_network(ref: str | Path) -> Network:
    """Read a network file.

    Parameters
    ----------
    ref : str or path
        A path, or the name of a packaged model (see ``qt-llm models``).

    Returns
    -------
    Network
        Its numbers are exact: decimals are read as written, "400/187" is a fraction.

    Raises
    ------
    InvalidModel
        One line a fault, ``FILE: KEY PATH: WHAT, and how to mend it``; all the faults there are. Whether tasks leave
        is asked once the rest is right.

    Examples
    --------
    >>> network = load_network("rybko-stolyar")
    >>> [str(mean) for mean in network.fluid_model.service]
    ['1/10', '3/5', '1/10', '3/5']
    """
    document = read_document(ref)
    try:
        network = network_of(document)
        require_open(network.fluid_model)
    except InvalidModel as error:
        raise InvalidModel(error.faults, source=document.path) from None
    return network


def network_of(document: Document) -> Network:
    """The network that a document describes.

    Raises
    ------
    InvalidModel
        One line a fault, ``KEY PATH: WHAT, and how to mend it``.
    """
    if not document.is_network and "engine" in document.content:
        raise InvalidModel("station: missing; this file describes one engine, a network has [[station]] tables")
    try:
        root = read_table(_Root, document.content)
    except Faults as error:
        raise InvalidModel(f"{path_text(where)}: {what}" for where, what in error.found) from None
    return Network(
        stations=root.station,
        classes=root.classes,
        arrivals=root.arrival,
        routes=root.route,
        joins=root.join,
        source=root.source,
        name=document.name,
    )


def _each(read: Callable[[object], T], key: str, raw: object) -> tuple[T, ...]:
    """The tables of ``[[key]]``, all their faults collected."""
    if not isinstance(raw, list):
        raise InvalidInput(f"write [[{key}]] in double brackets, once for each")
    found, faults = [], []
    for index, item in enumerate(raw):
        try:
            found.append(read(item))
        except Faults as error:
            faults += [((index, *where), what) for where, what in error.found]
    if faults:
        raise Faults(faults)
    return tuple(found)


def _names(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise InvalidInput('is no list of names; write ["a", "b"]')
    return tuple(raw)


def _targets(raw: object) -> tuple[str, ...]:
    return (raw,) if isinstance(raw, str) else _names(raw)


def _count(raw: Any) -> int:
    try:
        return require_engines(to_count(raw), "count")
    except InvalidInput as error:
        raise InvalidInput([fault.removeprefix("count: ") for fault in error.faults]) from None


class _Station(Table):
    name: TextTable = Field(description="name every station")
    priority: Annotated[tuple[str, ...] | None, reading(_names)] = None
    engine: EngineTable | None = None
    engines: Annotated[
        tuple[Engine, ...],
        reading(partial(_each, lambda raw: _entry(_One, "engine", raw), "station.engines")),
    ] = ()
    count: Annotated[int, reading(_count)] = 1
    dispatch: TextTable = "token-queue"
    scheduler: TextTable = "sarathi"


class _One(Table):
    engine: EngineTable


def _station(raw: object) -> Station:
    table = read_table(_Station, raw)
    if table.engine is not None and table.engines:
        raise Faults([(("engines",), "is given beside engine; leave one of them out")])
    engines = table.engines if table.engine is None else (table.engine,)
    given = table.model_fields_set
    if "engines" in given and not engines:
        raise Faults([(("engines",), "is empty; list engines, or leave it out for a classical server")])
    if not engines:
        unused = [key for key in ("count", "dispatch", "scheduler") if key in given]
        if unused:
            raise Faults([((key,), "says nothing of a station without engines; add an engine") for key in unused])
    if table.count > 1 and table.engine is None:
        raise Faults([(("count",), "goes with engine; list different engines in engines")])
    return build(
        lambda: Station(
            name=table.name,
            engines=engines * table.count,
            dispatch=table.dispatch,
            scheduler=table.scheduler,
            priority=table.priority,
        )
    )


class _Class(Table):
    name: TextTable = Field(description="name every class")
    station: TextTable = Field(description="name the station that serves the class")
    prefill: LengthTable | None = None
    decode: LengthTable | None = None
    service: IntervalTable | None = None


def _class(raw: object) -> TaskClass:
    table = read_table(_Class, raw)
    return build(lambda: TaskClass(**dict(table)))


def _interval_or_duration(raw: object) -> IntervalLaw | Any:
    return _entry(_Interval if isinstance(raw, Mapping) else _Regular, "interval", raw)


def _entry(model: type[Table], key: str, raw: object) -> Any:
    """What a table reads under its only key; the key path of a fault begins below it."""
    try:
        return getattr(read_table(model, {key: raw}), key)
    except Faults as error:
        raise Faults([(where[1:], what) for where, what in error.found]) from None


class _Interval(Table):
    interval: IntervalTable


class _Regular(Table):
    interval: Annotated[Any, field_of(DeterministicArrivals, "interval")]


class _Arrival(Table):
    task_class: TextTable = Field(alias="class", description="name the class that the tasks enter")
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


def _arrival(raw: object) -> ExternalArrivals:
    table = read_table(_Arrival, raw)
    return ExternalArrivals(task_class=table.task_class, arrivals=table.process())


class _Route(Table):
    source: TextTable = Field(alias="from", description="name the class that is left")
    to: Annotated[tuple[str, ...], reading(_targets)] = Field(description="name a class, or a list of them for a fork")
    probability: Annotated[Any, field_of(Route, "probability")] = 1


def _route(raw: object) -> Route:
    table = read_table(_Route, raw)
    return build(lambda: Route(**dict(table)))


class _Join(Table):
    classes: Annotated[tuple[str, ...], reading(_names)] = Field(description="list the classes of the siblings")
    to: TextTable = Field(description="name the class that the joined task enters")


def _join(raw: object) -> Join:
    table = read_table(_Join, raw)
    return Join(**dict(table))


class _Root(Table):
    source: SourceTable = Field(default_factory=dict)
    station: Annotated[tuple[Station, ...], reading(partial(_each, _station, "station"))] = Field(
        description="add a [[station]] with its name"
    )
    classes: Annotated[tuple[TaskClass, ...], reading(partial(_each, _class, "class"))] = Field(
        alias="class", description="add a [[class]] with its name and station"
    )
    arrival: Annotated[tuple[ExternalArrivals, ...], reading(partial(_each, _arrival, "arrival"))] = Field(
        description="add an [[arrival]] with class and rate"
    )
    route: Annotated[tuple[Route, ...], reading(partial(_each, _route, "route"))] = ()
    join: Annotated[tuple[Join, ...], reading(partial(_each, _join, "join"))] = ()
