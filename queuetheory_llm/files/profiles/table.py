"""Reading rows and turning repeated measurements into points."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_count, to_fraction
from queuetheory_llm.files.paths import check_regular, unreadable

MILLISECOND, MICROSECOND, NANOSECOND = (Fraction(1, 10**power) for power in (3, 6, 9))

#: Times of one batch size, in seconds, in file order.
Samples = dict[int, list[Fraction]]

_SHOWN = 10  # faults listed before the rest are only counted
_HEAD = 64 * 2**10  # bytes read to recognise a file; no header of a profile is longer
_JSON_LIMIT = 64 * 2**20  # bytes; the known JSON profiles hold a few kilobytes


@attrs.frozen(kw_only=True)
class Head:
    """What a file starts with, enough to recognise its format.

    Attributes
    ----------
    path : Path
    columns : tuple of str
        Names of the columns of a CSV or parquet file; empty for JSON.
    document : object or None
        The content of a JSON file.
    parquet : bool
    """

    path: Path
    columns: tuple[str, ...] = ()
    document: Any = None
    parquet: bool = False


def read_head(path: Path) -> Head:
    """Open a profile far enough to recognise it.

    Raises
    ------
    InvalidInput
        If it is missing, a directory, empty, binary, or no text of a known kind.
    """
    start = _first_bytes(path)
    if start[:4] == b"PAR1":
        return Head(path=path, columns=tuple(parquet_file(path).schema_arrow.names), parquet=True)
    if not start.strip():
        raise InvalidInput("line 1: the file is empty; give a profile with a header and rows", source=str(path))
    if b"\0" in start:
        raise InvalidInput("line 1: a binary file; give a CSV, JSON or parquet profile", source=str(path))
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return Head(path=path, document=_read_json(path))
    if len(start) == _HEAD and b"\n" not in start:
        raise InvalidInput("line 1: longer than 64 KiB, so no header of a profile; give another file", source=str(path))
    with _text(path) as stream:
        reader = csv.reader(stream, strict=True)
        header = _decoded(path, reader, [])
    return Head(path=path, columns=tuple(name.strip() for name in header))


def _first_bytes(path: Path) -> bytes:
    try:
        check_regular(path, "a file in it")
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=str(path)) from None
    try:
        with path.open("rb") as stream:
            return stream.read(_HEAD)
    except OSError as error:
        raise unreadable(error, str(path)) from None


def _text(path: Path) -> Any:
    return path.open(encoding="utf-8-sig", newline="")


def _decoded(path: Path, reader: Any, end: Any) -> Any:
    """The next row; ``end`` after the last."""
    try:
        return next(reader, end)
    except UnicodeDecodeError:
        raise InvalidInput("not UTF-8 text with comma-separated values; re-save it so", source=str(path)) from None
    except csv.Error as error:  # a quote that is not closed, among others
        what = f"line {reader.line_num}: no comma-separated values ({error}); mend the quotes there or before"
        raise InvalidInput(what, source=str(path)) from None


def _read_json(path: Path) -> Any:
    if path.stat().st_size > _JSON_LIMIT:
        raise InvalidInput("JSON beyond 64 MiB is no profile of a known format; give a CSV", source=str(path))
    try:
        # Numbers stay text until they are read exactly.
        return json.loads(path.read_text(encoding="utf-8-sig"), parse_float=str)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"line {error.lineno}: not JSON ({error.msg}); mend it there", source=str(path)) from None
    except (UnicodeDecodeError, RecursionError):
        raise InvalidInput("not UTF-8 JSON of a sane depth; re-save it so", source=str(path)) from None
    except ValueError:
        raise InvalidInput("holds a number of thousands of digits; round it", source=str(path)) from None


def parquet_file(path: Path) -> Any:
    """The open parquet file.

    Raises
    ------
    InvalidInput
        If the ``parquet`` extra is not installed, or the file is damaged.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InvalidInput(
            "parquet files need pyarrow; run: pip install 'queuetheory-llm[parquet]'", source=str(path)
        ) from None
    try:
        return ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise InvalidInput(f"damaged parquet file ({error}); fetch it again", source=str(path)) from None


class RowFault(Exception):
    """One field of one row cannot be used; `each_row` adds the line."""


@attrs.frozen(kw_only=True)
class Row:
    """One row of a CSV file.

    Attributes
    ----------
    line : int
        1-based line in the file.
    """

    line: int
    fields: Mapping[str, str]

    def text(self, column: str) -> str:
        """The field, stripped; it may be empty."""
        return self.fields[column].strip()

    def count(self, column: str, *, least: int = 1) -> int:
        """A whole number of at least ``least``."""
        value = self._read(column, to_count)
        if value < least:
            raise RowFault(f"{column}: {value} is below {least}; mend or drop the row")
        return int(value)

    def time(self, column: str, unit: Fraction) -> Fraction:
        """A positive duration in seconds."""
        value = self._read(column, to_fraction)
        if value <= 0:
            raise RowFault(f"{column}: {self.text(column)} is not a positive time; mend or drop the row")
        return Fraction(value) * unit

    def number(self, column: str) -> Fraction:
        """A number, exact."""
        return Fraction(self._read(column, to_fraction))

    def _read(self, column: str, convert: Callable[[str], Any]) -> Any:
        text = self.text(column)
        if not text:
            raise RowFault(f"{column}: empty; fill it in or drop the row")
        try:
            return convert(text)
        except InvalidInput as error:
            raise RowFault(f"{column}: {error}") from None


def each_row(path: Path, take: Callable[[Row], None]) -> int:
    """Hand every row of a CSV file to ``take``, streaming; the number of rows.

    Raises
    ------
    InvalidInput
        With one line for every row that ``take`` refused with a `RowFault`, or that has too few or too many fields.
    """
    faults: list[str] = []
    rows = 0
    with _text(path) as stream:
        for row in _decoding_rows(path, stream, faults):
            rows += 1
            try:
                take(row)
            except RowFault as fault:
                faults.append(f"line {row.line}: {fault}")
    if len(faults) > _SHOWN:
        faults = [*faults[:_SHOWN], f"{len(faults) - _SHOWN} more rows with faults; mend the first ones"]
    if faults:
        raise InvalidInput(faults, source=str(path))
    if rows == 0:
        raise InvalidInput("line 2: no rows below the header; give a profile with measurements", source=str(path))
    return rows


def _decoding_rows(path: Path, stream: Any, faults: list[str]) -> Iterator[Row]:
    reader = csv.reader(stream, strict=True)
    header = [name.strip() for name in _decoded(path, reader, [])]
    while True:
        values: Sequence[str] | None = _decoded(path, reader, None)
        if values is None:
            return
        if not any(value.strip() for value in values):
            continue  # blank lines, as at the end of a file
        if len(values) != len(header):
            faults.append(f"line {reader.line_num}: {len(values)} fields for {len(header)} columns; mend the row")
            continue
        yield Row(line=reader.line_num, fields=dict(zip(header, values, strict=True)))


def medians(samples: Mapping[int, Sequence[Fraction]]) -> dict[int, Fraction]:
    """Exact median of the samples at each batch size, in increasing order of size."""
    return {count: Fraction(median(samples[count])) for count in sorted(samples)}


def repetition_note(samples: Mapping[int, Sequence[Fraction]]) -> list[str]:
    """A remark on batch sizes that were measured more than once; empty when none was."""
    repeated = [count for count in sorted(samples) if len(samples[count]) > 1]
    if not repeated:
        return []
    shown = ", ".join(map(str, repeated[:6])) + (", ..." if len(repeated) > 6 else "")
    return [f"{len(repeated)} token counts are in several rows ({shown}): the median of the rows is kept"]


def join_phases(
    prefill: Mapping[int, Fraction], decode: Mapping[int, Fraction]
) -> tuple[dict[int, Fraction], list[str]]:
    """One curve from the prefill and the decode points; where both phases have a point, the longer time is kept.

    A law in tokens alone has one value a batch size. The longer one keeps every capacity on the safe side.
    """
    joined = dict(decode)
    notes = []
    for count, time in prefill.items():
        other = decode.get(count)
        if other is not None:
            notes.append(
                f"{count} tokens take {_milli(time)} as prefill and {_milli(other)} as decode: the longer is kept; "
                "--phase prefill or --phase decode uses one phase alone"
            )
        joined[count] = time if other is None else max(time, other)
    return dict(sorted(joined.items())), notes


def _milli(seconds: Fraction) -> str:
    return f"{float(seconds) * 1000:.4g} ms"


def listed(numbers: Sequence[int]) -> str:
    """Line numbers or counts for a note, in runs: ``"3-5, 9"``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
