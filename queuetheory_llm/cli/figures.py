"""Figures asked for with -o: the format is the suffix, checked before the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from queuetheory_llm.files.atomic import check_target, write_atomically

FORMATS = ("svg", "png", "pdf")

Output = Annotated[
    str | None, Parameter(metavar="FILE", name=("-o", "--output"), help="Draw the figure to FILE.svg, .png or .pdf.")
]


def figure_format(path: str | None) -> str | None:
    """The format named by the suffix of ``path``, which must be a place to write to; None without a path."""
    if path is None:
        return None
    check_target(path, FORMATS)
    return Path(path).suffix.lstrip(".").lower()


def write_figure(path: str | None, render: Callable[[str], bytes]) -> None:
    """Render and write the figure whole, or not at all; nothing without a path."""
    kind = figure_format(path)
    if path is not None and kind is not None:
        write_atomically(path, render(kind))
