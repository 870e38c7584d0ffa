"""Formats that are one JSON object a line."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar, NoReturn

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.traces.csv import aligned
from queuetheory_llm.files.traces.format import Parser, RowFormat, Rows
from queuetheory_llm.files.traces.lines import Block
from queuetheory_llm.files.traces.numbers import Time


@attrs.frozen
class Request:
    """One row: when, how many tokens, and what was done to read it ("" = nothing)."""

    time: Time
    prefill: int
    tokens: int
    mended: str = ""


@attrs.frozen
class LeftOut:
    """A row that says too little to be a request, and why."""

    why: str


class JsonlFormat(RowFormat):
    """Objects that hold at least ``keys``."""

    keys: ClassVar[tuple[str, ...]]
    has_header: ClassVar[bool] = False

    @abstractmethod
    def request(self, row: Mapping[str, Any]) -> Request | LeftOut:
        """The request of one object, in which every one of ``keys`` is present; numbers are int or Decimal.

        Raises
        ------
        InvalidInput
            ``KEY: WHAT``.
        """

    def recognises(self, first_line: str) -> bool:
        """See `TraceFormat.recognises`."""
        if not first_line.startswith("{"):
            return False
        return set(self.keys) <= set(_parse(first_line.encode(), 1))

    def parser(self, first_line: str) -> Parser:  # noqa: ARG002 - the objects name their own fields
        """See `RowFormat.parser`."""
        return self._rows

    def _rows(self, block: Block) -> Rows:
        kept: list[tuple[int, Request]] = []
        mended: dict[str, list[int]] = {}
        for number, line in enumerate(block.lines, block.first):
            found = self._request(line, number)
            if isinstance(found, Request):
                kept.append((number, found))
            remark = found.mended if isinstance(found, Request) else found.why
            if remark:
                mended.setdefault(remark, []).append(number)
        times, digits = aligned([request.time for _, request in kept])
        return Rows(
            lines=[number for number, _ in kept],
            prefill=np.array([request.prefill for _, request in kept], dtype=np.int64),
            tokens=np.array([request.tokens for _, request in kept], dtype=np.int64),
            times=times,
            digits=digits,
            mended=mended,
        )

    def _request(self, line: bytes, number: int) -> Request | LeftOut:
        row = _parse(line, number)
        missing = [key for key in self.keys if key not in row]
        if missing:
            raise InvalidInput(f"line {number}: has no {', '.join(missing)}; complete the row or delete it")
        try:
            return self.request(row)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error}") from None


def _parse(line: bytes, number: int) -> Mapping[str, Any]:
    try:
        row = json.loads(line, parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(f"line {number}: is no JSON object: {_what(error)}") from None
    if not isinstance(row, dict):
        raise InvalidInput(f"line {number}: is JSON but no object; write one {{...}} a line")
    return row


def _what(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, _NotFinite):
        return str(error)
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits; round it"


class _NotFinite(ValueError):
    """NaN or Infinity, which JSON does not have."""


def _no_constant(text: str) -> NoReturn:
    raise _NotFinite(f"{text} is not a finite number")
