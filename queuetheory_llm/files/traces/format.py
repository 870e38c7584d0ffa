"""What a trace format is, and how formats with one request a line are collected into a `Trace`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.traces.clock import Clock
from queuetheory_llm.files.traces.lines import Block
from queuetheory_llm.model.lengths import Counts, ObservedLengths, RequestLengths
from queuetheory_llm.model.trace import Trace


@attrs.frozen(kw_only=True)
class Options:
    """What the caller of `read_trace` decides; see there."""

    source: str
    first_token: str | None = None
    strict: bool = False
    lengths: RequestLengths | None = None


class TraceFormat(ABC):
    """A file format, recognised by its first line."""

    name: ClassVar[str]
    #: What its first line holds, for the list of known formats.
    header: ClassVar[str]
    notes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recognises(self, first_line: str) -> bool:
        """Whether a file that starts so is of this format."""

    @abstractmethod
    def read(self, first_line: str, stream: Iterable[Block], options: Options) -> Trace:
        """Read a file of this format.

        Parameters
        ----------
        first_line : str
            The line the format was recognised by.
        stream : iterable of Block
            All lines, the first included.
        options : Options

        Raises
        ------
        InvalidInput
            ``line N: WHAT``; `read_trace` puts the file before it.
        """


@attrs.frozen(kw_only=True)
class Rows:
    """Some requests of a file: one entry a row in each sequence.

    Attributes
    ----------
    lines : sequence of int
        Line number of each row.
    prefill, tokens : int64 arrays
        Prompt tokens and what the file records for the output; both non-negative.
    times : sequence of int or None
        Mantissas: row i arrives at times[i] / 10^digits seconds.
    digits : int
    mended : mapping of str to list of int
        What was mended or left out -> the lines it happened on.
    """

    lines: Sequence[int]
    prefill: Counts
    tokens: Counts
    times: Sequence[int] | None
    digits: int = 0
    mended: dict[str, list[int]] = attrs.field(factory=dict)


Parser = Callable[[Block], Rows]


class RowFormat(TraceFormat):
    """One request a line.

    ``absolute``: its clock is a calendar or UNIX clock, which is shifted to the first arrival.
    ``outputs``: it records output tokens, of which the first comes with the last prefill chunk; else its counts are
    decode tokens as they are.
    """

    absolute: ClassVar[bool] = False
    outputs: ClassVar[bool] = True
    has_header: ClassVar[bool] = True

    @abstractmethod
    def parser(self, first_line: str) -> Parser:
        """A function from a block of lines to its rows."""

    def read(self, first_line: str, stream: Iterable[Block], options: Options) -> Trace:
        """See `TraceFormat.read`."""
        if options.lengths is not None:
            raise InvalidInput("has its own lengths; leave out the lengths given beside it")
        parse = self.parser(first_line)
        collector = _Collector(self, options)
        for block in _rows_only(stream) if self.has_header else stream:
            collector.add(parse(block))
        return collector.trace()


def _rows_only(stream: Iterable[Block]) -> Iterable[Block]:
    for block in stream:
        if block.first > 1:
            yield block
        elif len(block.lines) > 1:
            yield Block(2, block.lines[1:])


class _Collector:
    """Gathers the rows of one file, about 24 bytes each."""

    def __init__(self, form: RowFormat, options: Options) -> None:
        self._form, self._options = form, options
        self._convention = (options.first_token or "engine") if form.outputs else "as given"
        self._prefill: list[Counts] = []
        self._decode: list[Counts] = []
        self._lines: list[Sequence[int]] = []
        self._clock = Clock(absolute=form.absolute)
        self._timed = True
        self._silent = 0
        self._mended: dict[str, list[int]] = {}

    def add(self, rows: Rows) -> None:
        """Take the rows of one block."""
        for what, lines in rows.mended.items():
            self._mended.setdefault(what, []).extend(lines)
        decode = rows.tokens
        if self._convention == "engine":
            self._silent += int(np.count_nonzero(decode == 0))
            decode = np.maximum(decode - 1, 0)
        self._refuse_empty(rows, decode)
        self._prefill.append(rows.prefill)
        self._decode.append(decode)
        self._lines.append(rows.lines)
        if rows.times is None:
            self._timed = False
        else:
            self._clock.add(rows.times, rows.digits)

    def _refuse_empty(self, rows: Rows, decode: Counts) -> None:
        empty = np.flatnonzero(rows.prefill + decode == 0)
        if not empty.size:
            return
        row = int(empty[0])
        if rows.tokens[row]:
            what = (
                "0 input and 1 output tokens leave nothing to serve when the first token comes with the prefill; "
                "--first-token paper keeps the row"
            )
        else:
            what = "a request of 0 input and 0 output tokens; delete the row"
        raise InvalidInput(f"line {rows.lines[row]}: {what}")

    def trace(self) -> Trace:
        """The trace of all rows added."""
        if not any(part.size for part in self._prefill):
            what = self._mended_notes()
            raise InvalidInput(f"holds no requests{'; ' + '; '.join(what) if what else ''}; give one row a request")
        prefill, decode = _joined(self._prefill), _joined(self._decode)
        if not self._timed:
            return self._trace(prefill, decode, None, [])
        arrivals = self._clock.ticks()
        notes = [*self._clock.notes(arrivals.size), *self._order_notes(arrivals)]
        if (arrivals[1:] < arrivals[:-1]).any():
            order = np.argsort(arrivals, kind="stable")
            prefill, decode, arrivals = prefill[order], decode[order], arrivals[order]
        notes += _tie_notes(arrivals)
        return self._trace(prefill, decode, arrivals, notes)

    def _order_notes(self, arrivals: Counts) -> list[str]:
        late = np.flatnonzero(arrivals < np.maximum.accumulate(arrivals))
        if not late.size:
            return []
        line = self._line(int(late[0]))
        if self._options.strict:
            raise InvalidInput(
                f"line {line}: arrives before an earlier line; sort the file by arrival, or leave out --strict"
            )
        return [
            f"{late.size} of {arrivals.size} rows stood after a later arrival (first: line {line}); sorted, ties kept"
        ]

    def _line(self, row: int) -> int:
        for lines in self._lines:
            if row < len(lines):
                return lines[row]
            row -= len(lines)
        raise IndexError(row)

    def _mended_notes(self) -> list[str]:
        return [f"{what}: {_line_list(lines)}" for what, lines in self._mended.items()]

    def _trace(self, prefill: Counts, decode: Counts, arrivals: Counts | None, notes: list[str]) -> Trace:
        for column in (prefill, decode, arrivals):
            if column is not None:
                column.setflags(write=False)
        if self._silent:
            notes.append(f"{self._silent} rows record 0 output tokens; they count 0 decode tokens, not -1")
        if self._options.first_token and not self._form.outputs:
            notes.append("the decode column is the decode work itself; --first-token does not apply to this format")
        return Trace(
            lengths=ObservedLengths(prefill, decode),
            arrivals=arrivals,
            tick=self._clock.tick,
            source=self._options.source,
            format=self._form.name,
            first_token=self._convention,
            notes=(*self._mended_notes(), *notes, *self._form.notes),
        )


def _joined(parts: list[Counts]) -> Counts:
    whole = np.concatenate(parts)
    parts.clear()  # a column is held twice only while it is joined
    return whole


def _tie_notes(arrivals: Counts) -> list[str]:
    ties = int(np.count_nonzero(arrivals[1:] == arrivals[:-1]))
    return [f"{ties} of {arrivals.size} requests arrive at the same instant as the one before"] if ties else []


def _line_list(lines: Sequence[int], most: int = 10) -> str:
    named = ", ".join(map(str, lines[:most]))
    more = f" and {len(lines) - most} more" if len(lines) > most else ""
    return f"line{'s' if len(lines) > 1 else ''} {named}{more}"
