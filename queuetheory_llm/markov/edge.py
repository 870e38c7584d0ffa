"""Where a chain meets its level: the states whose arrivals may be refused."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.markov.space import Space

Flags = NDArray[np.bool_]


def line_ends(space: Space) -> Flags:
    """Whether no further request fits behind the core, or none can come to stand there; shape (states,)."""
    ends = np.zeros(len(space), dtype=np.bool_)
    ends[space.first[1:] - 1] = True
    return ends


def may_refuse(space: Space) -> Flags:
    """Whether an arrival may be refused until the next boundary; shape (states,)."""
    moves = space.moves
    most = np.array([np.flatnonzero(each.arrivals).max() for each in space.durations])[moves.duration]
    begin = np.maximum(moves.low, space.room[moves.target] + moves.taken - most + 1)
    some = begin <= moves.high
    line = space.first[moves.source][some]
    changes = np.zeros(len(space) + 1, dtype=np.int64)
    np.add.at(changes, line + begin[some], 1)
    np.add.at(changes, line + moves.high[some] + 1, -1)
    return np.asarray(np.cumsum(changes)[:-1] > 0)
