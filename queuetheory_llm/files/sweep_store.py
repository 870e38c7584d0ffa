"""The file that a sweep keeps its finished points in.

JSON lines: a header with the schema, the version of the package and the question, then one line a point with its index
under ``point``. The file is made, or replaced, with the first point that has a result: until then nothing is touched.
Lines are added as points are finished, so a sweep that is killed has lost none; a line cut short at the end is dropped
and its point run again. A finished sweep is sorted by index: its bytes do not depend on the order
in which the points came, nor on how often it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from queuetheory_llm import __version__
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_target, write_atomically
from queuetheory_llm.files.paths import check_regular, unreadable
from queuetheory_llm.simulation.sweep import ERROR, SCHEDULER, SEED, Row, SweepResult

SCHEMA = "qt-llm/sweep/1"
_KIND = SCHEMA.rpartition("/")[0] + "/"
_POINT = "point"
_ANEW = "give another file, or --restart to begin anew"


@attrs.frozen(kw_only=True)
class Header:
    """The first line of the file.

    Attributes
    ----------
    model : str
        Name of the model, for reports.
    model_digest : str
        Of its content.
    points : int
    question : mapping
        See `Plan.question`.
    """

    model: str
    model_digest: str
    points: int
    question: Mapping[str, Any]

    def line(self) -> bytes:
        """The line, with a digest of all that the points depend on."""
        content = {"model_digest": self.model_digest, "points": self.points, "question": dict(self.question)}
        head = {"schema": SCHEMA, "version": __version__, "digest": digest(content), "model": self.model}
        return _line({**head, **content})


def digest(content: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


class SweepStore:
    """A file of finished points, open for more; to be held by `locks.locked` meanwhile.

    Attributes
    ----------
    rows : dict of int to Row
        The finished points by index.
    notes : tuple of str
        What was found in the file.
    """

    def __init__(
        self, path: str | Path, header: Header, expected: Callable[[int], Row], *, restart: bool = False
    ) -> None:
        """Go on with the file where it holds points of the same question; begin it where it is not there.

        A file that is begun, or begun anew, is written with its first result.

        Parameters
        ----------
        path : path
        header : Header
        expected : callable
            The columns that say which point an index is.
        restart : bool
            Begin anew whatever sweep the file holds.

        Raises
        ------
        InvalidInput
            In one line, when the file is no sweep file, is one of another version or question, or cannot be written.
        """
        self._path, self._header = Path(path), header.line()
        self.rows: dict[int, Row] = {}
        self.notes: tuple[str, ...] = ()
        self._begun = False
        check_target(path)
        old = _read(path)
        found = _parse_header(old.split(b"\n", 1)[0], self._path) if old else None
        if old and found and not restart:
            _require_same(found, json.loads(self._header), path)
            self.rows, torn = _rows(old, found, self._path, expected)
            self.notes = _notes(self._path, len(self.rows), torn)
            write_atomically(path, self._content())  # without a torn end, for lines to be added
            self._begun = True

    def _content(self) -> bytes:
        return self._header + b"".join(_line({_POINT: index, **self.rows[index]}) for index in sorted(self.rows))

    def add(self, index: int, row: Row) -> None:
        """Keep a point: its line is handed to the system in one piece."""
        self.rows[index] = row
        if not self._begun:
            if row[ERROR] is None:
                write_atomically(self._path, self._content())
                self._begun = True
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                line = _line({_POINT: index, **row})
                if os.write(file, line) < len(line):
                    raise OSError("no space left")
            finally:
                os.close(file)
        except OSError as error:
            raise InvalidInput(
                f"{self._path}: cannot be written: {error.strerror or error}; make room and run the sweep again, the "
                "points so far are kept"
            ) from None

    def finish(self) -> None:
        """Put the lines in the order of the points; all or nothing."""
        write_atomically(self._path, self._content())


def read_sweep(path: str | Path) -> SweepResult:
    """The table in the file of a sweep, finished or not.

    Parameters
    ----------
    path : path
        A file that ``qt-llm sweep -o FILE.jsonl`` or `sweep` has written.

    Raises
    ------
    InvalidInput
        In one line, when it cannot be read, is no sweep file or one of another schema.
    """
    content = _read(path)
    if content is None:
        raise InvalidInput(f"{path}: no such file; give the .jsonl file of a sweep")
    found = _parse_header(content.split(b"\n", 1)[0], Path(path))
    _require_schema(found, path)
    rows, torn = _rows(content, found, Path(path))
    missing = found["points"] - len(rows)
    notes = [f"{path}: {torn} torn line{'s' * (torn > 1)} left out"] if torn else []
    if missing:
        notes.append(f"{path}: {missing} of {found['points']} points are not finished")
    return SweepResult(
        model=found["model"],
        question=found["question"],
        points=found["points"],
        rows=tuple(rows[index] for index in sorted(rows)),
        notes=tuple(notes),
    )


def _read(path: str | Path) -> bytes | None:
    """The content of a file; None where there is none."""
    file = Path(path)
    if not os.path.lexists(file):
        return None
    try:
        check_regular(file, "the .jsonl file of a sweep")
        return file.read_bytes()
    except OSError as error:
        raise unreadable(error, str(path)) from None
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=str(path)) from None


def _parse_header(line: bytes, path: Path) -> dict[str, Any]:
    """The header, of whatever version."""
    found = _object(line)
    if found is None or not str(found.get("schema", "")).startswith(_KIND):
        raise InvalidInput(f"{path}: line 1: is no header of a sweep; give another file")
    return found


def _refuse_constant(name: str) -> float:
    """NaN and infinities are no JSON."""
    raise ValueError(name)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _require_schema(found: Mapping[str, Any], path: str | Path) -> None:
    if found["schema"] != SCHEMA:
        raise InvalidInput(
            f"{path}: line 1: is a sweep of schema {found['schema']}, this program writes {SCHEMA}; {_ANEW}"
        )
    question, keys = found.get("question"), {"grid", "schedulers", "seeds", "horizon"}
    named = isinstance(found.get("points"), int) and isinstance(found.get("model"), str)
    if not (named and isinstance(question, dict) and question.keys() >= keys and isinstance(question["grid"], dict)):
        raise InvalidInput(f"{path}: line 1: the header of the sweep is damaged; {_ANEW}")


def _require_same(found: Mapping[str, Any], asked: Mapping[str, Any], path: str | Path) -> None:
    """Refuse to add to the points of another version or question, and say what differs."""
    _require_schema(found, path)
    if found.get("version") != __version__:
        raise InvalidInput(
            f"{path}: line 1: its points were made by version {found.get('version')} of queuetheory_llm, this is "
            f"{__version__}; {_ANEW}"
        )
    if found != asked:
        raise InvalidInput(f"{path}: line 1: holds another sweep: {_difference(found, asked)}; {_ANEW}")


def _difference(found: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    there, here = found["question"], asked["question"]
    parts = [
        f"{key} {_short(there.get(key))} there, {_short(here[key])} here" for key in here if there.get(key) != here[key]
    ]
    if found.get("model_digest") != asked["model_digest"]:
        parts.insert(0, f"the model {found['model']} there is not {asked['model']} as it is now")
    return ", ".join(parts) or "its header is damaged"


def _short(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= 100 else f"{text[:60]}...{text[-30:]}"


def _rows(
    content: bytes, header: Mapping[str, Any], path: Path, expected: Callable[[int], Row] | None = None
) -> tuple[dict[int, Row], int]:
    """The points in a file, and the number of torn lines: those cut short when a run was killed."""
    _, *lines, rest = content.split(b"\n") if b"\n" in content else (content, b"")
    columns = {*header["question"]["grid"], SCHEDULER, SEED, ERROR}
    rows: dict[int, Row] = {}
    torn = int(bool(rest))
    for number, line in enumerate(lines, 2):
        found = _object(line)
        if found is None:
            torn += 1
            continue
        index = found.pop(_POINT, None)
        known = type(index) is int and 0 <= index < header["points"] and columns <= found.keys()
        if known and expected is not None:
            known = expected(index).items() <= found.items()
        if not known or not isinstance(found[ERROR], str | None) or rows.get(index, found) != found:
            raise InvalidInput(f"{path}: line {number}: is no point of this sweep; {_ANEW}")
        rows[index] = found
    return rows, torn


def _notes(path: Path, kept: int, torn: int) -> tuple[str, ...]:
    notes = [f"{path}: goes on after {kept} finished points"] if kept else []
    if torn:
        notes.append(f"{path}: {torn} torn line{'s' * (torn > 1)} dropped, run again")
    return tuple(notes)
