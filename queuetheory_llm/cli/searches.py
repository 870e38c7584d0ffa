"""Flags of the commands that search a threshold, and what they say while they do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from queuetheory_llm.cli.inputs import count_flag, positive_flag
from queuetheory_llm.simulation.thresholds import solver_of
from queuetheory_llm.stability.thresholds import Solver

Width = Annotated[str, Parameter(help="Of a simulated interval, relative to the rate.")]
Seed = Annotated[str, Parameter(help="Whole number; the same seed gives the same simulated interval.")]


@contextmanager
def searching(method: str, width: str, seed: str) -> Iterator[Solver | None]:
    """The way to a threshold that the flags ask for, None for what theory proves.

    While it searches, a line on stderr shows what has been found so far; none where stderr is no terminal.
    """
    share, start = float(positive_flag("--width", width)), count_flag("--seed", seed)
    solver = solver_of(method, width=share, seed=start)
    if solver is None or not sys.stderr.isatty():
        yield solver
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{method} ...") as status:
        yield solver_of(method, width=share, seed=start, report=status.update)
