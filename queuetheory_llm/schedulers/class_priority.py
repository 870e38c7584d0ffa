"""Static class priorities: the classes of a station in one order, always."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class ClassPriority:
    """Serve the highest class that is there.

    A classical server interrupts a lower class and resumes it later; a batch is filled class by class.
    """

    classes: tuple[int, ...]

    def order(self, classes: Sequence[int], present: Sequence[int]) -> Sequence[int]:  # noqa: ARG002 - the state is not looked at
        """See `ClassOrder.order`."""
        return self.classes
