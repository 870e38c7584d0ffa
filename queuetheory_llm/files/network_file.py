"""Network files: stations, classes, arrivals, routes and joins as TOML, read exactly."""

from __future__ import annotations

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
    ProcessTable,
    SourceTable,
    TextTable,
    read_document,
)
from queuetheory_llm.files.schema import (
    Faults,
    Table,
    build,
    field_of,
    path_text,
    read_each,
    read_entry,
    read_name_or_names,
    read_names,
    read_table,
    reading,
)
from queuetheory_llm.files.workflow_file import workflow_of
from queuetheory_llm.model.dispatch import TOKEN_QUEUE, require_engines
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.network import ExternalArrivals, Join, Network, Route, Station, TaskClass
from queuetheory_llm.model.workflow_network import workflow_network
from queuetheory_llm.stability.cluster_capacity import lp_shares
from queuetheory_llm.stability.traffic import require_open

T = TypeVar("T")


def load_network(ref: str | Path) -> Network:
    """Read a network file, or a workflow file as the network that it is under the best static split.

    Of a workflow, calls go at random to the instances in the shares of `stability.lp_shares`, as the dispatch
    rule random-lp sends them; `model.workflow_network` says what stands for what.

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
        network = _split(document) if document.is_workflow else network_of(document)
        require_open(network.fluid_model)
    except InvalidModel as error:
        raise InvalidModel(error.faults, source=document.path) from None
    return network


def _split(document: Document) -> Network:
    """The network of a workflow under the split of the static plan."""
    system = workflow_of(document)
    return workflow_network(system, lp_shares(system))


def network_of(document: Document) -> Network:
    """The network that a document describes.

    Raises
    ------
    InvalidModel
        One line a fault, ``KEY PATH: WHAT, and how to mend it``.
    """
    if document.is_workflow:
        raise InvalidModel("stage: this is a workflow; use qt-llm dispatch or load_workflow for it")
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


def _count(raw: Any) -> int:
    try:
        return require_engines(to_count(raw), "count")
    except InvalidInput as error:
        raise InvalidInput([fault.removeprefix("count: ") for fault in error.faults]) from None


class _Station(Table):
    name: TextTable = Field(description="name every station")
    priority: Annotated[tuple[str, ...] | None, reading(read_names)] = None
    engine: EngineTable | None = None
    engines: Annotated[
        tuple[Engine, ...],
        reading(partial(read_each, lambda raw: read_entry(_One, "engine", raw), "station.engines")),
    ] = ()
    count: Annotated[int, reading(_count)] = 1
    dispatch: TextTable = TOKEN_QUEUE
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


class _Arrival(ProcessTable):
    task_class: TextTable = Field(alias="class", description="name the class that the tasks enter")


def _arrival(raw: object) -> ExternalArrivals:
    table = read_table(_Arrival, raw)
    return ExternalArrivals(task_class=table.task_class, arrivals=table.process())


class _Route(Table):
    source: TextTable = Field(alias="from", description="name the class that is left")
    to: Annotated[tuple[str, ...], reading(read_name_or_names)] = Field(
        description="name a class, or a list of them for a fork"
    )
    probability: Annotated[Any, field_of(Route, "probability")] = 1


def _route(raw: object) -> Route:
    table = read_table(_Route, raw)
    return build(lambda: Route(**dict(table)))


class _Join(Table):
    classes: Annotated[tuple[str, ...], reading(read_names)] = Field(description="list the classes of the siblings")
    to: TextTable = Field(description="name the class that the joined task enters")


def _join(raw: object) -> Join:
    table = read_table(_Join, raw)
    return Join(**dict(table))


class _Root(Table):
    source: SourceTable = Field(default_factory=dict)
    station: Annotated[tuple[Station, ...], reading(partial(read_each, _station, "station"))] = Field(
        description="add a [[station]] with its name"
    )
    classes: Annotated[tuple[TaskClass, ...], reading(partial(read_each, _class, "class"))] = Field(
        alias="class", description="add a [[class]] with its name and station"
    )
    arrival: Annotated[tuple[ExternalArrivals, ...], reading(partial(read_each, _arrival, "arrival"))] = Field(
        description="add an [[arrival]] with class and rate"
    )
    route: Annotated[tuple[Route, ...], reading(partial(read_each, _route, "route"))] = ()
    join: Annotated[tuple[Join, ...], reading(partial(read_each, _join, "join"))] = ()
