"""What every result offers: plain data and a figure, whatever layer it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
