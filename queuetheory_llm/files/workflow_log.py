"""Logs of real agent workflows: one query after another, the calls of each in the order in which they were made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import MOST
from queuetheory_llm.exact.words import shown
from queuetheory_llm.files.paths import as_path, check_regular, unreadable
from queuetheory_llm.files.schema import one_of
from queuetheory_llm.model.workflow_log import Call, WorkflowLog

_LARGEST = 2**28  # bytes; a call takes about 100
_SHOWN = 20  # queries whose faults are listed
_KEY = "Text2SQLRequest"


@attrs.frozen
class _Expected:
    """What comes next in a query: calls of one step, between ``least`` and ``most`` of them (None: any number)."""

    stage: str
    step: str
    least: int = 1
    most: int | None = 1
    parallel: bool = False


#: CHESS (Talaei et al., arXiv 2405.16755) as HEXGEN-FLOW logged it. A step that comes several times is several stages.
_CHESS = (
    _Expected("retrieve 1", "Information Retriever"),
    _Expected("extract keywords", "extract_keywords", least=0),
    _Expected("retrieve 2", "Information Retriever"),
    _Expected("retrieve 3", "Information Retriever"),
    _Expected("retrieve 4", "Information Retriever"),
    _Expected("generate candidate", "generate_candidate_llama-agent", most=None, parallel=True),
    _Expected("revise", "revise", least=0, most=None),
    _Expected("unit tester 1", "unit_tester"),
    _Expected("generate unit test", "generate_unit_test", least=0),
    _Expected("unit tester 2", "unit_tester"),
    _Expected("evaluate", "evaluate", least=0, most=None, parallel=True),
    _Expected("unit tester 3", "unit_tester"),
)

FORMATS = {"chess": _CHESS}


def read_workflow_log(path: str | Path, format: str = "chess") -> WorkflowLog:
    """Read a log of queries.

    Parameters
    ----------
    path : str or path
    format : {"chess"}
        A JSON list of ``{"Text2SQLRequest": [{"step": ..., "input_length": ..., "output_length": ...}, ...]}``, one
        entry a query. Each retrieval and each unit test is a stage by its place; candidates and evaluations run in
        parallel, revisions one after another.

    Returns
    -------
    WorkflowLog

    Raises
    ------
    InvalidInput
        ``FILE: query N: WHAT``, queries counted from 0: a step that is not known, another order than that of the
        workflow, a count that is none. One line a query.
    """
    source = str(path)
    if not source.strip():
        raise InvalidInput("path: is empty; name a log file")
    try:
        order = FORMATS[one_of(tuple(FORMATS), format)]
    except InvalidInput as error:
        raise InvalidInput(f"format: {error}") from None
    try:
        found = list(_queries(_content(as_path(path)), order))
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None
    return WorkflowLog(
        stages=tuple(each.stage for each in order),
        parallel=frozenset(each.stage for each in order if each.parallel),
        queries=tuple(found),
        source=source,
    )


def _content(path: Path) -> list[Any]:
    check_regular(path, "a log file")
    try:
        if path.stat().st_size > _LARGEST:
            raise InvalidInput(f"is larger than {_LARGEST >> 20} MiB; split it")
        content = json.loads(path.read_bytes().decode())
    except OSError as error:
        raise unreadable(error) from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"line {error.lineno}, column {error.colno}: no JSON: {error.msg}; mend it there") from None
    except UnicodeError:
        raise InvalidInput("is no text in UTF-8; give a JSON file") from None
    except RecursionError:
        raise InvalidInput("lists nested thousands deep; a log has none") from None
    except ValueError:  # of int
        raise InvalidInput("a whole number of thousands of digits; a log has none") from None
    if not isinstance(content, list) or not content:
        raise InvalidInput(f'is no list of queries; give [{{"{_KEY}": [...]}}, ...]')
    return content


def _queries(content: list[Any], order: Sequence[_Expected]) -> Iterator[dict[str, tuple[Call, ...]]]:
    found, faults = [], []
    for number, raw in enumerate(content):
        try:
            found.append(_query(raw, order))
        except InvalidInput as error:
            faults.append(f"query {number}: {error}")
    if faults:
        more = [f"and {len(faults) - _SHOWN} more queries like these"] if len(faults) > _SHOWN else []
        raise InvalidInput([*faults[:_SHOWN], *more])
    yield from found


def _query(raw: Any, order: Sequence[_Expected]) -> dict[str, tuple[Call, ...]]:
    """The calls of a query by stage."""
    calls = raw.get(_KEY) if isinstance(raw, dict) else None
    if not isinstance(calls, list) or not calls:
        raise InvalidInput(f'has no list of calls; write {{"{_KEY}": [{{"step": ...}}, ...]}}')
    known = list(dict.fromkeys(each.step for each in order))
    made = [_call(f"call {place}", each, known) for place, each in enumerate(calls)]
    stages: dict[str, tuple[Call, ...]] = {}
    place = 0
    for expected in order:
        run = _run(made, place, expected)
        if len(run) < expected.least:
            raise InvalidInput(_missing(made, place, expected))
        if run:
            stages[expected.stage] = run
        place += len(run)
    if place < len(made):
        raise InvalidInput(f"call {place}: {made[place][0]!r} comes after the end; the last is {order[-1].stage!r}")
    return stages


def _run(made: Sequence[tuple[str, Call]], place: int, expected: _Expected) -> tuple[Call, ...]:
    """The calls from ``place`` on that belong to what is expected."""
    found: list[Call] = []
    for step, call in made[place:]:
        if step != expected.step or len(found) == expected.most:
            break
        found.append(call)
    return tuple(found)


def _missing(made: Sequence[tuple[str, Call]], place: int, expected: _Expected) -> str:
    what = f"{expected.step!r} is expected ({expected.stage})"
    if place == len(made):
        return f"ends after {place} calls, where {what}"
    return f"call {place}: {made[place][0]!r}, where {what}; the order of the log is not that of the workflow"


def _call(where: str, raw: Any, known: Sequence[str]) -> tuple[str, Call]:
    if not isinstance(raw, dict):
        raise InvalidInput(f"{where}: {shown(raw)} is no call; give step, input_length and output_length")
    try:
        step = one_of(known, raw.get("step"))
    except InvalidInput as error:
        listed = "" if all(each in str(error) for each in known) else f"; known steps: {', '.join(known)}"
        raise InvalidInput(f"{where}: step {error}{listed}") from None
    prefill, decode = (_tokens(where, raw, key) for key in ("input_length", "output_length"))
    if prefill + decode == 0:
        raise InvalidInput(f"{where}: has 0 + 0 tokens; a call has at least one")
    return step, (prefill, decode)


def _tokens(where: str, raw: dict[str, Any], key: str) -> int:
    value = raw.get(key)
    if type(value) is not int or not 0 <= value <= MOST:
        raise InvalidInput(
            f"{where}.{key}: {shown(value)} is no number of tokens; give a whole number from 0 to {MOST}"
        )
    return value
