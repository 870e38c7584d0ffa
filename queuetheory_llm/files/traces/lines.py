"""Lines of a text file in blocks: bounded memory, whatever the size of the file or of its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.paths import check_regular, unreadable

_BLOCK = 1 << 18
_LONGEST_LINE = 1 << 20


@attrs.frozen
class Block:
    """Consecutive lines without their ends; ``first`` is the number of the first one, counted from 1."""

    first: int
    lines: list[bytes]


def blocks(path: str | Path, *, progress: bool = False) -> Iterator[Block]:
    """The lines of a file, in order, no block empty.

    Blank lines at the end of the file are left out; CRLF and LF end a line.

    Raises
    ------
    InvalidInput
        One line that names the line, for a file that cannot be opened, is no regular file or no UTF-8 text, has a
        blank line before its last row or a line above 1 MiB.
    """
    check_regular(path, "one trace file")
    try:
        with Path(path).open("rb") as file, _progress(path, progress) as advance:
            yield from _without_blank_ends(_split(_chunks(file.read, advance)))
    except OSError as error:
        raise unreadable(error) from None


def _chunks(read: Callable[[int], bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    while chunk := read(_BLOCK):
        advance(len(chunk))
        yield chunk


def _split(chunks: Iterator[bytes]) -> Iterator[Block]:
    """Cut at line ends; what follows the last end of a chunk waits for the next chunk."""
    number, rest = 1, b""
    for chunk in chunks:
        whole, end, tail = chunk.rpartition(b"\n")
        if end:
            lines = _text(rest + whole, number).split(b"\n")
            yield Block(number, lines)
            number, rest = number + len(lines), tail
        else:
            rest += tail
        if len(rest) > _LONGEST_LINE:
            raise InvalidInput(f"line {number}: is longer than 1 MiB; a trace has one request a line")
    if rest:
        yield Block(number, [_text(rest, number).removesuffix(b"\r")])


def _text(raw: bytes, number: int) -> bytes:
    """The bytes, once they are known to be text, with plain line ends."""
    if b"\0" in raw:
        line = number + raw.count(b"\n", 0, raw.index(b"\0"))
        raise InvalidInput(f"line {line}: holds a zero byte; this is a binary file, not a trace")
    if not raw.isascii():
        raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            line = number + raw.count(b"\n", 0, error.start)
            raise InvalidInput(f"line {line}: is not UTF-8 text; save the file as UTF-8") from None
    if b"\r" not in raw:
        return raw
    return raw.replace(b"\r\n", b"\n").removesuffix(b"\r")


def _without_blank_ends(stream: Iterator[Block]) -> Iterator[Block]:
    blank = 0
    for block in stream:
        lines = block.lines
        if blank or b"" in lines:
            kept = len(lines)
            while kept and not lines[kept - 1]:
                kept -= 1
            first_blank = blank or (block.first + lines.index(b""))
            if kept and first_blank < block.first + kept:
                raise InvalidInput(f"line {first_blank}: is blank; delete it, or what follows it")
            blank, lines = first_blank, lines[:kept]
        if lines:
            yield Block(block.first, lines)


@contextmanager
def _progress(path: str | Path, wanted: bool) -> Iterator[Callable[[int], None]]:
    import sys

    if not (wanted and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {Path(path).name}", total=Path(path).stat().st_size)
        yield lambda size: bar.advance(task, size)
