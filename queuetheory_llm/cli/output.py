"""How every command prints: answers on stdout, JSON or text; notes and warnings on stderr."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from queuetheory_llm.cli.terminal import printable, printable_json, say
from queuetheory_llm.exact.rounding import load_text
from queuetheory_llm.verdict import Verdict

_NUMERIC = re.compile(r"[+-]?\d|-?$")  # how a number begins, or no number
#: What the star of `growth_mark` says.
GROWS = "* of an UNSTABLE system: grows with the horizon, says nothing of a steady state"
_WIDEST = 10_000  # characters of a table; a terminal folds lines, which breaks no word of a file

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print exactly one JSON object and nothing else.")]


def scheduler_flag(default: str) -> Parameter:
    """``--scheduler``, with the rules a command takes without it."""
    text = (
        "A rule with its flags, as in vllm-vanilla+chunk; qt-llm classify lists them; may be repeated. "
        f"Default: {default}."
    )
    return Parameter(name="--scheduler", metavar="NAME", negative=(), help=text)


Schedulers = Annotated[list[str] | None, scheduler_flag("sarathi")]


def print_json(command: str, content: Mapping[str, Any]) -> None:
    """One JSON object on stdout, its schema first; NaN and infinities are refused by the encoder."""
    document = {"schema": f"qt-llm/{command}/1", **content}
    print(printable_json(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)))


def print_notes(notes: Iterable[str]) -> None:
    """Warnings and remarks, one a line, on stderr."""
    for note in notes:
        say(f"note: {note}", to=sys.stderr)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table on stdout at its natural width, no cell broken; columns that hold numbers are aligned right.

    Sentences do not belong into it: they go on lines of their own below.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, header in enumerate(headers):
        numeric = bool(body) and all(_NUMERIC.match(row[index]) for row in body)
        table.add_column(Text(printable(header)), justify="right" if numeric else "left", no_wrap=True)
    for row in body:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if title is not None:
        say(title)
    drawn = io.StringIO()  # writing itself, rich would exit with 1 when the reader of our output leaves
    Console(file=drawn, force_terminal=sys.stdout.isatty(), width=_WIDEST, highlight=False).print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines()) + "\n")


Certificate = Annotated[
    str | None,
    Parameter(name="--certificate", metavar="FILE", help="Write a proof to FILE that qt-llm check verifies."),
]


def print_written(*paths: str | Path | None) -> None:
    """Say on stdout which files were written; None is a file that was not asked for."""
    for path in paths:
        if path is not None:
            say(f"wrote {path}")


def number(value: object, digits: int = 6) -> str:
    """A number for a table; "-" for None."""
    return "-" if value is None else f"{float(value):.{digits}g}"  # type: ignore[arg-type]


def load(value: Fraction | float | None, digits: int = 6) -> str:
    """A load for a table, which reads 1 only where it is; "-" for None."""
    return "-" if value is None else load_text(value, digits)


def growth_mark(verdict: object) -> str:
    """The star behind latencies that say more of the horizon than of the system."""
    return "*" if verdict == Verdict.UNSTABLE.value else ""


def latency_cell(seconds: object, mark: str = "") -> str:
    """A latency for a table with its mark; "-" for None."""
    return "-" if seconds is None else number(seconds, 4) + mark
