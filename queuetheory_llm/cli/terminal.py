"""Text on its way to a terminal: what a model, a certificate or a flag brings along is shown, never obeyed."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_QUIET_SECONDS = 2.0  # work shorter than this shows no progress bar
_OUTSIDE_ASCII = re.compile(r"[^\n -~]")


def printable(text: str) -> str:
    r"""The text with its control characters as escapes; line ends stay.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return _OUTSIDE_ASCII.sub(lambda found: found[0] if found[0].isprintable() else repr(found[0])[1:-1], text)


def printable_json(text: str) -> str:
    """JSON with the characters that it allows and a terminal obeys as escapes of JSON."""
    return _OUTSIDE_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def say(line: str, *, to: TextIO | None = None) -> None:
    """Print a line, on stdout unless told where, so that a terminal obeys nothing in it and breaks no word of it."""
    stream = sys.stdout if to is None else to
    text = printable(line)
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(textwrap.fill(part, width, break_long_words=False) for part in text.split("\n"))
    print(text, file=stream)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, from the moment the work proves to be long; none where stderr is no terminal.

    What is yielded is told the share of the work that is done.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    began = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(printable(title)), total=1.0, visible=False)

        def report(share: float) -> None:
            bar.update(task, completed=share, visible=time.monotonic() - began > _QUIET_SECONDS)

        yield report


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None] | None]:
    """A line on stderr that says what goes on, and what changes it; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(printable(first))) as status:
        yield lambda line: status.update(Text(printable(line)))
