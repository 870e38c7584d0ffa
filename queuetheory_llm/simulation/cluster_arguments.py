"""What every function that runs a cluster asks of its arguments, so that a slip is one line and no traceback."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.simulation.queries import Queries


def check_arguments(system: object, *, log: object = None, progress: object = None) -> None:
    """Refuse what is no system, no queries, no function.

    Raises
    ------
    InvalidInput
        One line a fault.
    """
    faults = []
    if not isinstance(system, WorkflowSystem):
        faults.append(f"system: {shown(system)} is no WorkflowSystem; give one, such as load_workflow(FILE)")
    if log is not None and not isinstance(log, Queries):
        faults.append(f"log: {shown(log)} is no Queries; give those of queries_of_log, or leave it out")
    if progress is not None and not callable(progress):
        faults.append(f"progress: {shown(progress)} is no function; give one of a share from 0 to 1, or leave it out")
    if faults:
        raise InvalidInput(faults)


def number_faults(**values: object) -> list[str]:
    """A line for each value that is no finite number, by the name of its argument."""
    return [
        f"{name}: {shown(value)} is no finite number; give one"
        for name, value in values.items()
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value)
    ]


def numbers_of(where: str, values: Any) -> list[Any]:
    """The values of an argument as exact numbers.

    Raises
    ------
    InvalidInput
        If it holds no numbers in a row.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(f"{where}: {shown(values)} is no row of numbers; give a list of them")
    try:
        return [to_fraction(value) for value in values]
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {fault}" for fault in error.faults) from None
