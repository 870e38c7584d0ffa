"""What every result offers: plain data and a figure, whatever layer it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Result(ABC):
    """A frozen answer.

    Its figure lives in `plots`, above every layer that makes results; it is looked up by name when it is drawn, so
    that no analysis imports matplotlib.
    """

    #: "module:function" of the function that draws the result on axes.
    figure: ClassVar[str]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the result on ``ax``, or on a new figure; returns the axes."""
        module, _, function = self.figure.partition(":")
        axes: Axes = getattr(import_module(module), function)(self, ax)
        return axes

    def _repr_html_(self) -> str:
        """The scalar entries of `to_dict` as a table, for notebooks; a subclass may have a better one."""
        return html_table((), ((key, _text(value)) for key, value in self.to_dict().items() if _is_scalar(value)))


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """An HTML table of plain texts; the head is left out when it is empty."""
    titles = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{body}</table>"


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (str, bool, int, float))


def _text(value: object) -> str:
    """A value for a person: yes or no, six digits, none."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
