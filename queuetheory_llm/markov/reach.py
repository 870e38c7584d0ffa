"""The part of a space that the empty engine can get to.

Cores are explored with any number of unseen requests behind them, as if any could have come. Where few requests arrive
in a step, long lines and what follows from them are never reached, and would only be transient states to solve for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Ints
from queuetheory_llm.markov.operator import entry
from queuetheory_llm.markov.space import Moves, Small, Space
from queuetheory_llm.schedulers.state import State


@entry
def _climb(room: Ints, source: Small, target: Small, low: Small, high: Small, gained: Ints, top: Ints) -> None:
    """Raise ``top``, the most unseen requests reached on each line, until no move leads beyond it."""
    risen = True
    while risen:
        risen = False
        for move in range(source.size):
            most = min(high[move], top[source[move]])
            if most >= low[move]:
                reached = min(room[target[move]], most + gained[move])
                if reached > top[target[move]]:
                    top[target[move]] = reached
                    risen = True


class _Chosen(Sequence[State]):
    """Some of a sequence of cores."""

    def __init__(self, cores: Sequence[State], which: Ints) -> None:
        self._cores, self._which = cores, which

    def __len__(self) -> int:
        return self._which.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._cores[core] for core in self._which[index].tolist()]
        return self._cores[int(self._which[index])]


def reached(space: Space) -> Space:
    """The space without lines, and ends of lines, that no path from the empty engine leads to.

    A line is kept up to the most unseen requests that can stand there, so what is kept is closed: no request is refused
    that was not refused before.
    """
    moves = space.moves
    most = np.array([np.flatnonzero(each.arrivals)[-1] for each in space.durations])
    top = np.full(space.known.size, -1, dtype=np.int64)
    top[0] = 0
    gained = (most[moves.duration] - moves.taken).astype(np.int64)
    _climb(space.room, moves.source, moves.target, moves.low, moves.high, gained, top)
    if (top == space.room).all():
        return space
    kept = np.flatnonzero(top >= 0)
    number = np.cumsum(top >= 0) - 1
    live = moves.low <= top[moves.source]
    return attrs.evolve(
        space,
        cores=_Chosen(space.cores, kept),
        first=np.concatenate([[0], np.cumsum(top[kept] + 1, dtype=np.int64)]),
        known=space.known[kept],
        tokens=space.tokens[kept],
        moves=Moves(
            source=number[moves.source[live]].astype(np.int32),
            target=number[moves.target[live]].astype(np.int32),
            low=moves.low[live],
            high=np.minimum(moves.high, top[moves.source])[live].astype(np.int32),
            taken=moves.taken[live],
            chance=moves.chance[live],
            tokens=moves.tokens[live],
            duration=moves.duration[live],
        ),
    )
