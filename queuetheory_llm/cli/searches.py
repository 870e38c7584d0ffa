"""Flags of the commands that search a threshold, and what they say while they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from queuetheory_llm.cli.compiling import compile_note
from queuetheory_llm.cli.inputs import DEFAULT_SEED, positive_flag, seed_flag
from queuetheory_llm.cli.terminal import progress
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.simulation.thresholds import solver_of
from queuetheory_llm.stability.thresholds import Solver

DEFAULT_WIDTH = "0.01"

Width = Annotated[
    str | None,
    Parameter(metavar="NUMBER", help=f"Of a simulated interval, relative to the rate. Default: {DEFAULT_WIDTH}."),
]
Seed = Annotated[
    str | None,
    Parameter(
        metavar="INT", help=f"Whole number; the same seed gives the same simulated interval. Default: {DEFAULT_SEED}."
    ),
]


def read_width(text: str | None) -> float:
    """The value of --width, or its default."""
    return float(positive_flag("--width", DEFAULT_WIDTH if text is None else text))


@contextmanager
def searching(method: str, width: str | None, seed: str | None, *, ask: str) -> Iterator[Solver | None]:
    """The way to a threshold that the flags ask for, None for what theory proves.

    While it searches, a line on stderr shows what has been found so far; none where stderr is no terminal.

    Parameters
    ----------
    method : str
        See `solver_of`.
    width, seed : str or None
        Of the flags; None where they are not given.
    ask : str
        The flag that asks for simulation.

    Raises
    ------
    InvalidInput
        If a flag is out of range, or is of a simulation that is not asked for.
    """
    share = read_width(width)
    start = seed_flag(seed)
    solver = solver_of(method, width=share, seed=start)
    unused = [flag for flag, text in (("--width", width), ("--seed", seed)) if text is not None]
    if solver is None and unused:
        raise InvalidInput([f"{flag}: nothing is simulated; leave it out, or give {ask}" for flag in unused])
    if solver is None:
        yield solver
        return
    with compile_note(), progress(f"{method} ...") as report:
        yield solver if report is None else solver_of(method, width=share, seed=start, report=report)
