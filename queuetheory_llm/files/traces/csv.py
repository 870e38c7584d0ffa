"""Formats that are comma-separated columns under a header line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import MOST
from queuetheory_llm.files.traces.format import Parser, RowFormat, Rows
from queuetheory_llm.files.traces.lines import Block
from queuetheory_llm.files.traces.numbers import MOST_DIGITS, Time, read_count, read_seconds
from queuetheory_llm.model.lengths import Counts

Column = Sequence[bytes]


class _Irregular(ValueError):
    """A block that is not plain digits throughout: it is read again row by row, which finds the fault if any."""


class CsvFormat(RowFormat):
    """Named columns, in any order and among others.

    ``arrival`` is None where the file has no times.
    """

    arrival: ClassVar[str | None]
    prefill: ClassVar[str]
    tokens: ClassVar[str]

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The columns a file of this format has."""
        return (cls.prefill, cls.tokens) if cls.arrival is None else (cls.arrival, cls.prefill, cls.tokens)

    def recognises(self, first_line: str) -> bool:
        """See `TraceFormat.recognises`."""
        return set(self.columns()) <= set(header_columns(first_line))

    def parser(self, first_line: str) -> Parser:
        """See `RowFormat.parser`."""
        names = header_columns(first_line)
        arrival = None if self.arrival is None else names.index(self.arrival)
        return _CsvParser(self, len(names), arrival, names.index(self.prefill), names.index(self.tokens)).parse

    def times(self, column: Column) -> tuple[list[int], int]:
        """(mantissas, digits) of a column of plain decimals; ValueError when it holds anything else."""
        if b"" in column or b"." in column:
            raise _Irregular  # padded with zeros, they would pass for 0
        places = [len(text) - 1 - text.find(b".") if b"." in text else 0 for text in column]
        digits = max(places)
        if digits > MOST_DIGITS:
            raise _Irregular
        zeros = [b"0" * missing for missing in range(digits, -1, -1)]
        padded = [text.replace(b".", b"", 1) + zeros[own] for text, own in zip(column, places, strict=True)]
        return plain_integers(padded), digits

    def time(self, text: str) -> Time:
        """One time, or the fault in it."""
        return read_seconds(text, str(self.arrival))


def header_columns(line: str) -> list[str]:
    """The names in a header line."""
    return [name.strip() for name in line.split(",")]


@attrs.frozen
class _CsvParser:
    form: CsvFormat
    width: int
    arrival: int | None
    prefill: int
    tokens: int

    def parse(self, block: Block) -> Rows:
        """The rows of a block: whole columns at once, or row by row where that meets something unusual."""
        try:
            return self._by_columns(block)
        except (ValueError, OverflowError):
            return self._by_rows(block)

    def _by_columns(self, block: Block) -> Rows:
        if any(line.count(b",") != self.width - 1 for line in block.lines):
            raise _Irregular
        flat = b",".join(block.lines).split(b",")  # one list: a list a row costs a third of the time, in the collector
        columns = [flat[index :: self.width] for index in range(self.width)]
        times, digits = (None, 0) if self.arrival is None else self.form.times(columns[self.arrival])
        return Rows(
            lines=range(block.first, block.first + len(block.lines)),
            prefill=_plain_counts(columns[self.prefill]),
            tokens=_plain_counts(columns[self.tokens]),
            times=times,
            digits=digits,
        )

    def _by_rows(self, block: Block) -> Rows:
        lines = range(block.first, block.first + len(block.lines))
        rows = [self._row(line, number) for number, line in zip(lines, block.lines, strict=True)]
        times, digits = aligned([time for time, _, _ in rows])
        return Rows(
            lines=lines,
            prefill=np.array([prefill for _, prefill, _ in rows], dtype=np.int64),
            tokens=np.array([tokens for _, _, tokens in rows], dtype=np.int64),
            times=None if self.arrival is None else times,
            digits=digits,
        )

    def _row(self, line: bytes, number: int) -> tuple[Time, int, int]:
        fields = line.decode().split(",")
        if len(fields) != self.width:
            raise InvalidInput(
                f"line {number}: has {len(fields)} fields, the header has {self.width}; complete the row"
            )
        try:
            time = (0, 0) if self.arrival is None else self.form.time(fields[self.arrival])
            prefill = read_count(fields[self.prefill], self.form.prefill)
            return time, prefill, read_count(fields[self.tokens], self.form.tokens)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error}") from None


def _plain_counts(column: Column) -> Counts:
    counts = np.array(plain_integers(column), dtype=np.int64)
    if counts.max() > MOST:
        raise _Irregular
    return counts


def plain_integers(column: Sequence[bytes]) -> list[int]:
    """The integers of a column that holds nothing but digits; ValueError otherwise."""
    if not all(map(bytes.isdigit, column)):
        raise _Irregular
    return list(map(int, column))


def aligned(times: Sequence[Time]) -> tuple[list[int], int]:
    """Times at the number of digits of the finest: (mantissas, digits)."""
    digits = max((own for _, own in times), default=0)
    return [mantissa * 10 ** (digits - own) for mantissa, own in times], digits
