"""Workflow files: stages, retries, tenants, instances and arrivals as TOML, read exactly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from queuetheory_llm.errors import InvalidModel
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
    read_name_or_names,
    read_names,
    read_table,
    reading,
    table_of,
)
from queuetheory_llm.files.schema import Path as KeyPath
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.workflow import Retry, Stage, Tenant, Workflow


def load_workflow(ref: str | Path) -> WorkflowSystem:
    """Read a workflow file.

    Parameters
    ----------
    ref : str or path
        A path, or the name of a packaged model (see ``qt-llm models``).

    Returns
    -------
    WorkflowSystem
        Its numbers are exact: decimals are read as written, "400/187" is a fraction.

    Raises
    ------
    InvalidModel
        One line a fault, ``FILE: KEY PATH: WHAT, and how to mend it``; all the faults of the tables by themselves, then
        those of the workflow, then those of the instances that are to serve it.

    Examples
    --------
    >>> load_workflow("two-servers").unit_names
    ('fast', 'slow')
    """
    document = read_document(ref)
    try:
        return workflow_of(document)
    except InvalidModel as error:
        raise InvalidModel(error.faults, source=document.path) from None


def workflow_of(document: Document) -> WorkflowSystem:
    """The workflow on its cluster that a document describes.

    Raises
    ------
    InvalidModel
        One line a fault, ``KEY PATH: WHAT, and how to mend it``.
    """
    if document.is_network:
        raise InvalidModel("station: this is a network; use qt-llm network or load_network for it")
    if not document.is_workflow and "engine" in document.content:
        raise InvalidModel("stage: missing; this file describes one engine, a workflow has [[stage]] tables")
    try:
        root = read_table(_Root, document.content)
    except Faults as error:
        raise InvalidModel(f"{path_text(where)}: {what}" for where, what in error.found) from None
    workflow = Workflow(
        stages=root.stage,
        retries=root.retry,
        tenants=root.tenant,
        source=root.source,
        name=document.name,
    )
    return WorkflowSystem(
        workflow=workflow, instances=root.instance, arrivals=root.arrivals, source=root.source, name=document.name
    )


class _Stage(Table):
    name: TextTable = Field(description="name every stage")
    prefill: LengthTable | None = None
    decode: LengthTable | None = None
    work: IntervalTable | None = None
    calls: LengthTable | None = None
    chance: Annotated[Any, field_of(Stage, "chance")] = 1
    after: Annotated[tuple[str, ...] | None, reading(read_name_or_names)] = None


def _given(table: Table) -> dict[str, Any]:
    """The keys that a table has, by the names of its fields."""
    return {key: getattr(table, key) for key in type(table).model_fields if key in table.model_fields_set}


def _stage(raw: object) -> Stage:
    table = read_table(_Stage, raw)
    return build(lambda: Stage(**_given(table)))


class _Retry(Table):
    source: TextTable = Field(alias="from", description="name the stage after which the query may go back")
    to: TextTable = Field(description="name the stage that it goes back to, which may be the same")
    probability: Annotated[Any, field_of(Retry, "probability")] = Field(description="give that of one more pass")


def _retry(raw: object) -> Retry:
    table = read_table(_Retry, raw)
    return build(lambda: Retry(**_given(table)))


class _Tenant(Table):
    name: TextTable = Field(description="name every tenant")
    share: Annotated[Any, field_of(Tenant, "share")] = 1
    slo: Annotated[Any, field_of(Tenant, "slo")] = None
    slo_scale: Annotated[Any, field_of(Tenant, "slo_scale")] = None


def _tenant(raw: object) -> Tenant:
    table = read_table(_Tenant, raw)
    return build(lambda: Tenant(**_given(table)))


def _law(raw: object) -> LatencyLaw:
    table = read_table(table_of(LatencyLaw), raw)
    return build(lambda: LatencyLaw(**_given(table)))


def _latency(raw: object) -> LatencyLaw | dict[str, LatencyLaw]:
    """A law, or a table whose entries are all tables: the laws of stages by name."""
    if not isinstance(raw, Mapping) or not raw or not all(isinstance(each, Mapping) for each in raw.values()):
        return _law(raw)
    laws: dict[str, LatencyLaw] = {}
    faults: list[tuple[KeyPath, str]] = []
    for stage, each in raw.items():
        try:
            laws[stage] = _law(each)
        except Faults as error:
            faults += [((stage, *where), what) for where, what in error.found]
    if faults:
        raise Faults(faults)
    return laws


class _Instance(Table):
    name: TextTable = Field(description="name every type of instance")
    count: Annotated[Any, field_of(Instance, "count")] = 1
    engine: EngineTable | None = None
    latency: Annotated[Any, reading(_latency)] = None
    step: Annotated[Any, field_of(Instance, "step")] = None
    seats: Annotated[Any, field_of(Instance, "seats")] = None
    speed: Annotated[Any, field_of(Instance, "speed")] = None
    stages: Annotated[tuple[str, ...] | None, reading(read_names)] = None


def _instance(raw: object) -> Instance:
    table = read_table(_Instance, raw)
    return build(lambda: Instance(**_given(table)))


def _arrivals(raw: object) -> Arrivals:
    return read_table(ProcessTable, raw).process()


class _Root(Table):
    source: SourceTable = Field(default_factory=dict)
    stage: Annotated[tuple[Stage, ...], reading(partial(read_each, _stage, "stage"))] = Field(
        description="add a [[stage]] with its name and what a call of it takes"
    )
    retry: Annotated[tuple[Retry, ...], reading(partial(read_each, _retry, "retry"))] = ()
    tenant: Annotated[tuple[Tenant, ...], reading(partial(read_each, _tenant, "tenant"))] = (Tenant(name="all"),)
    instance: Annotated[tuple[Instance, ...], reading(partial(read_each, _instance, "instance"))] = Field(
        description="add an [[instance]] with engine, latency or speed"
    )
    arrivals: Annotated[Arrivals, reading(_arrivals)] = Field(
        description="add [arrivals] with rate, queries per second"
    )
