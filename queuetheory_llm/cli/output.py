"""How every command prints: answers on stdout, JSON or text; notes and warnings on stderr."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print exactly one JSON object and nothing else.")]


def scheduler_flag(default: str) -> Parameter:
    """``--scheduler``, with the rules a command takes without it."""
    text = f"A rule with its flags, as in vllm-vanilla+chunk; may be repeated. Default: {default}."
    return Parameter(name="--scheduler", negative=(), help=text)


Schedulers = Annotated[list[str] | None, scheduler_flag("sarathi")]


def print_json(command: str, content: Mapping[str, Any]) -> None:
    """One JSON object on stdout, its schema first; NaN and infinities are refused by the encoder."""
    document = {"schema": f"qt-llm/{command}/1", **content}
    print(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))


def print_notes(notes: Iterable[str]) -> None:
    """Warnings and remarks, one a line, on stderr."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table on stdout; columns that hold numbers are aligned right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, header in enumerate(headers):
        numeric = bool(body) and all(row[index][:1].isdigit() or row[index] in ("", "-") for row in body)
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    terminal = sys.stdout.isatty()
    drawn = io.StringIO()  # writing itself, rich would exit with 1 when the reader of our output leaves
    Console(file=drawn, force_terminal=terminal, width=None if terminal else 120, highlight=False).print(table)
    sys.stdout.write(drawn.getvalue())


def print_written(path: str | Path) -> None:
    """Say on stdout that a file was written."""
    print(f"wrote {path}")


def number(value: object, digits: int = 6) -> str:
    """A number for a table; "-" for None."""
    return "-" if value is None else f"{float(value):.{digits}g}"  # type: ignore[arg-type]
