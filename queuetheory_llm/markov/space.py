"""The states of a chain, numbered, and how they move: lines of states that a batch shifts as a whole.

The states of one core stand on a *line*: 0, 1, ..., W requests unseen behind it, with consecutive numbers. A batch that
does not look at the last unseen request does the same whatever stands behind it, so a few *moves* of whole ranges hold
all that batches do, and an arrival is a step along a line. Nothing is kept for each transition.

The lines are cut at a level N of the *size*: every request counted with the tokens left of it, but with no more than
the mean m of all requests, and with m while it is unseen. A batch never raises the size, an arrival raises it by m, so
the states within N are closed but for the arrivals that do not fit: those are refused. Where all requests are alike the
size is the token backlog; a memoryless length counts with its mean, which stays the same while it lasts. Any other
decode length that is not drawn yet counts with its largest value, for the expected tokens left may rise when it is
drawn, and a size must not. V, the expected token backlog, has its mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.model.chances import RequestLaw
from queuetheory_llm.schedulers.state import ENDLESS, Left, State

Small = NDArray[np.int32]  # what there are many of

_FINEST = 10**6  # parts of a token that sizes are counted in


@attrs.frozen(kw_only=True)
class Sizes:
    """How much of the level a request takes, in whole parts of a token.

    Parameters
    ----------
    law : RequestLaw
    most : int, optional
        Requests that can stand unseen behind a core at most, where all are seen at every boundary.
    """

    law: RequestLaw
    most: int = 2**31 - 1
    parts: int = attrs.field(init=False)
    whole: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """The parts that make the means whole where they are simple fractions."""
        exact = [Fraction(mean) for mean in (self.law.mean_tokens, *(kind.bound for kind in self.law.kinds))]
        means = [mean.limit_denominator(_FINEST) for mean in exact]
        parts = lcm(*(mean.denominator for mean in means))
        object.__setattr__(self, "parts", parts if parts <= _FINEST else _FINEST)
        object.__setattr__(self, "whole", max(1, round(self.law.mean_tokens * self.parts)))

    def tokens(self, left: Left) -> float:
        """Expected tokens left of a request looked at; an endless decode, the same in every state, counts for none."""
        prefill, decode = left
        if decode == ENDLESS:
            return float(prefill)
        return prefill + (decode if decode >= 0 else float(self.law.kinds[-1 - decode].mean))

    def size(self, left: Left) -> int:
        """Size of a request looked at, in parts: no less than whatever may become of it."""
        prefill, decode = left
        most = prefill + (decode if decode >= 0 else self.law.kinds[-1 - decode].bound)
        return min(self.whole, round(most * self.parts))

    def room(self, core: State, level: float) -> int:
        """W: unseen requests that fit behind the core; below 0 where the core itself does not fit."""
        return min(self.most, (round(level * self.parts) - sum(map(self.size, core.left))) // self.whole)


@attrs.frozen(kw_only=True, eq=False)
class Duration:
    """What takes one time.

    Attributes
    ----------
    seconds : Fraction
    arrivals : float64 array
        P(j requests arrive meanwhile), j = 0, 1, ...
    """

    seconds: Fraction
    arrivals: Floats


@attrs.frozen(kw_only=True, eq=False)
class Moves:
    """What batches do to the states, before the arrivals; arrays of one shape, sorted by duration.

    Move i takes core ``source`` with w = ``low``..``high`` unseen to core ``target`` with w - ``taken``, with
    probability ``chance``. The moves of one state have chances that sum to 1.

    Attributes
    ----------
    source, target, low, high, taken : int32 arrays of shape (moves,)
    chance : float64 array of shape (moves,)
    tokens : int32 array of shape (moves,)
        Tokens of the batch; 0 where the engine is idle.
    duration : int32 array of shape (moves,)
        Index of the duration, ascending.
    """

    source: Small
    target: Small
    low: Small
    high: Small
    taken: Small
    chance: Floats
    tokens: Small
    duration: Small

    def __len__(self) -> int:
        """Number of moves."""
        return int(self.source.size)


@attrs.frozen(kw_only=True, eq=False)
class Space:
    """The states of a chain and their moves.

    Attributes
    ----------
    cores : sequence of State
        Core 0 is the one explored from: the empty one, whose first state is the empty engine, where requests arrive.
    first : int64 array of shape (cores + 1,)
        Number of the first state of each core; the last entry is the number of states.
    known : int64 array of shape (cores,)
        Requests in each core.
    tokens : float64 array of shape (cores,)
        Expected tokens left of them.
    mean : float
        m, the expected tokens of an unseen request.
    level : float
        N, in tokens; infinite where the lines are cut otherwise.
    moves : Moves
    durations : tuple of Duration
    """

    cores: Sequence[State]
    first: Ints
    known: Ints
    tokens: Floats
    mean: float
    level: float
    moves: Moves
    durations: tuple[Duration, ...]

    def __len__(self) -> int:
        """Number of states."""
        return int(self.first[-1])

    @property
    def room(self) -> Ints:
        """W of each core; shape (cores,)."""
        return np.diff(self.first) - 1

    def unseen(self) -> Ints:
        """w of each state; shape (states,)."""
        return np.arange(len(self)) - np.repeat(self.first[:-1], np.diff(self.first))

    def requests(self) -> Ints:
        """Requests present in each state; shape (states,)."""
        return np.repeat(self.known, np.diff(self.first)) + self.unseen()

    def backlog(self) -> Floats:
        """V, the expected token backlog of each state; shape (states,)."""
        return np.repeat(self.tokens, np.diff(self.first)) + self.mean * self.unseen()

    def states(self) -> Iterator[tuple[State, int]]:
        """(core, unseen) of each state, in their order."""
        for core, room in zip(self.cores, self.room.tolist(), strict=True):
            yield from ((core, unseen) for unseen in range(room + 1))

    @cached_property
    def transitions(self) -> int:
        """Number of transitions, counted move by move and arrival by arrival."""
        moves = self.moves
        arrivals = np.array([each.arrivals.size for each in self.durations])
        return int(((moves.high - moves.low + 1).astype(np.int64) * arrivals[moves.duration]).sum())

    def matrix(self) -> Any:
        """P as a `scipy.sparse.csr_array`, for chains that are small enough to be written out."""
        from scipy.sparse import coo_array

        moves, size, begin = self.moves, self.transitions, 0
        rows, columns, chances = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size)
        parts = np.searchsorted(moves.duration, np.arange(len(self.durations) + 1))
        for lasting, (start, stop) in zip(self.durations, pairwise(parts.tolist()), strict=True):
            width = (moves.high - moves.low + 1)[start:stop]
            move = start + np.repeat(np.arange(stop - start), width)
            unseen = moves.low[move] + np.arange(move.size) - np.repeat(np.cumsum(width) - width, width)
            come = self.first[moves.source[move]] + unseen
            go, last = (
                self.first[moves.target[move]] - moves.taken[move] + unseen,
                self.first[moves.target[move] + 1] - 1,
            )
            for count, share in enumerate(lasting.arrivals.tolist()):
                part = slice(begin, begin := begin + move.size)
                rows[part], columns[part] = come, np.minimum(go + count, last)
                chances[part] = moves.chance[move] * share
        return coo_array((chances, (rows, columns)), shape=(len(self), len(self))).tocsr()
