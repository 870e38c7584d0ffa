"""The transition operator of a chain, applied in factors: what batches do to the lines, then the arrivals.

P is never stored. For each duration the moves shift ranges of states, and the arrivals are one convolution along the
parts of the lines that were reached. A product costs time in proportion to the transitions, memory to the moves.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.kept import F, kept
from queuetheory_llm.markov.space import Small, Space


class Factors(NamedTuple):
    """The arrays of a `Space` as the compiled loops read them.

    ``moves`` and ``parts`` hold where the moves, and the parts of lines that they reach, of each duration start;
    ``laws`` where its arrivals start in ``law``.
    """

    first: Ints
    source: Small
    target: Small
    low: Small
    high: Small
    taken: Small
    chance: Floats
    moves: Ints
    parts: Ints
    line: Ints
    begin: Ints
    end: Ints
    laws: Ints
    law: Floats


def entry(function: F) -> F:
    """Compile what Python calls."""
    return kept(function, error_model="numpy", fastmath={"contract"})


@entry
def push(factors: Factors, weight: Floats, out: Floats, work: Floats) -> None:
    """``out`` = ``weight`` P. ``work`` is zero before and after; all of shape (states,)."""
    f = factors
    out[:] = 0.0
    for lasting in range(f.moves.size - 1):
        for move in range(f.moves[lasting], f.moves[lasting + 1]):
            come, go = f.first[f.source[move]], f.first[f.target[move]] - f.taken[move]
            chance = f.chance[move]
            for unseen in range(f.low[move], f.high[move] + 1):
                work[go + unseen] += chance * weight[come + unseen]
        law = f.law[f.laws[lasting] : f.laws[lasting + 1]]
        for part in range(f.parts[lasting], f.parts[lasting + 1]):
            start, last = f.first[f.line[part]], f.first[f.line[part] + 1] - 1
            begin, end = start + f.begin[part], start + f.end[part]
            for count in range(law.size):
                fits = min(end, last - count)
                for state in range(begin, fits + 1):
                    out[state + count] += law[count] * work[state]
                for state in range(max(begin, fits + 1), end + 1):
                    out[last] += law[count] * work[state]
            work[begin : end + 1] = 0.0


@entry
def pull(factors: Factors, values: Floats, out: Floats, work: Floats) -> None:
    """``out`` = P ``values``. ``work`` is of any content; all of shape (states,)."""
    f = factors
    out[:] = 0.0
    for lasting in range(f.moves.size - 1):
        law = f.law[f.laws[lasting] : f.laws[lasting + 1]]
        for part in range(f.parts[lasting], f.parts[lasting + 1]):
            start, last = f.first[f.line[part]], f.first[f.line[part] + 1] - 1
            begin, end = start + f.begin[part], start + f.end[part]
            work[begin : end + 1] = 0.0
            for count in range(law.size):
                fits = min(end, last - count)
                for state in range(begin, fits + 1):
                    work[state] += law[count] * values[state + count]
                for state in range(max(begin, fits + 1), end + 1):
                    work[state] += law[count] * values[last]
        for move in range(f.moves[lasting], f.moves[lasting + 1]):
            come, go = f.first[f.source[move]], f.first[f.target[move]] - f.taken[move]
            chance = f.chance[move]
            for unseen in range(f.low[move], f.high[move] + 1):
                out[come + unseen] += chance * work[go + unseen]


@entry
def served(factors: Factors, weight: Floats, out: Floats) -> None:
    """``out`` = the weight that goes through each move; shape (moves,)."""
    f = factors
    for move in range(f.source.size):
        come = f.first[f.source[move]]
        total = 0.0
        for unseen in range(f.low[move], f.high[move] + 1):
            total += weight[come + unseen]
        out[move] = f.chance[move] * total


@entry
def spread(factors: Factors, value: Floats, out: Floats) -> None:
    """``out`` = the mean over each state's moves of a ``value`` of shape (moves,); shape (states,)."""
    f = factors
    out[:] = 0.0
    for move in range(f.source.size):
        come = f.first[f.source[move]]
        for unseen in range(f.low[move], f.high[move] + 1):
            out[come + unseen] += f.chance[move] * value[move]


@entry
def count(factors: Factors, known: Ints, weight: Floats, out: Floats) -> None:
    """``out[i, n]`` = the weight that goes through duration i from states with n requests; shape (durations, most)."""
    f = factors
    for lasting in range(f.moves.size - 1):
        for move in range(f.moves[lasting], f.moves[lasting + 1]):
            core = f.source[move]
            for unseen in range(f.low[move], f.high[move] + 1):
                out[lasting, known[core] + unseen] += f.chance[move] * weight[f.first[core] + unseen]


@entry
def overflow(factors: Factors, weight: Floats) -> tuple[float, float]:
    """How likely a step refuses a request, and how many it refuses on average, under ``weight``."""
    f = factors
    any_refused, refused = 0.0, 0.0
    for lasting in range(f.moves.size - 1):
        law = f.law[f.laws[lasting] : f.laws[lasting + 1]]
        beyond = np.zeros(law.size + 1)  # P(more than j arrive)
        excess = np.zeros(law.size + 1)  # E[(arrivals - j)+]
        for count in range(law.size - 2, -1, -1):
            beyond[count] = beyond[count + 1] + law[count + 1]
            excess[count] = excess[count + 1] + beyond[count]
        for move in range(f.moves[lasting], f.moves[lasting + 1]):
            come = f.first[f.source[move]]
            room = f.first[f.target[move] + 1] - 1 - f.first[f.target[move]] + f.taken[move]
            for unseen in range(max(f.low[move], room - law.size + 2), f.high[move] + 1):
                share = f.chance[move] * weight[come + unseen]
                any_refused += share * beyond[room - unseen]
                refused += share * excess[room - unseen]
    return any_refused, refused


@attrs.frozen(eq=False)
class Operator:
    """P of a space.

    Parameters
    ----------
    space : Space
    """

    space: Space
    _work: Floats = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Room for one product."""
        object.__setattr__(self, "_work", np.zeros(len(self.space)))

    def __len__(self) -> int:
        """Number of states."""
        return len(self.space)

    @cached_property
    def factors(self) -> Factors:
        """The space as the compiled loops read it."""
        space, moves = self.space, self.space.moves
        lasting = len(space.durations)
        cores = space.first.size - 1
        line = moves.duration.astype(np.int64) * cores + moves.target
        order = np.argsort(line, kind="stable")
        begun, where = np.unique(line[order], return_index=True)
        laws = [each.arrivals for each in space.durations]
        bounds = np.arange(lasting + 1)
        return Factors(
            first=space.first,
            source=moves.source,
            target=moves.target,
            low=moves.low,
            high=moves.high,
            taken=moves.taken,
            chance=moves.chance,
            moves=np.searchsorted(moves.duration, bounds).astype(np.int64),
            parts=np.searchsorted(begun // cores, bounds).astype(np.int64),
            line=begun % cores,
            begin=np.minimum.reduceat((moves.low - moves.taken)[order], where).astype(np.int64),
            end=np.maximum.reduceat((moves.high - moves.taken)[order], where).astype(np.int64),
            laws=np.concatenate([[0], np.cumsum([law.size for law in laws])]).astype(np.int64),
            law=np.concatenate(laws),
        )

    def push(self, weight: Floats) -> Floats:
        """``weight`` P: the law one batch later; shape (states,)."""
        out = np.empty(len(self))
        push(self.factors, np.ascontiguousarray(weight, dtype=np.float64), out, self._work)
        return out

    def pull(self, values: Floats) -> Floats:
        """P ``values``: what is expected one batch later; shape (states,)."""
        out = np.empty(len(self))
        pull(self.factors, np.ascontiguousarray(values, dtype=np.float64), out, self._work)
        self._work[:] = 0.0
        return out

    def flow(self, weight: Floats) -> Floats:
        """The weight that goes through each move; shape (moves,)."""
        out = np.empty(len(self.space.moves))
        served(self.factors, weight, out)
        return out

    def started(self, weight: Floats) -> Floats:
        """The weight that each duration gets from states with n requests; shape (durations, most requests + 1)."""
        space = self.space
        out = np.zeros((len(space.durations), int((space.known + space.room).max()) + 1))
        count(self.factors, space.known, weight, out)
        return out

    def refused(self, weight: Floats) -> tuple[float, float]:
        """Chance that a request is refused until the next boundary, and the number of those on average."""
        chance, mean = overflow(self.factors, np.ascontiguousarray(weight, dtype=np.float64))
        return float(chance), float(mean)

    def expected(self, value: Floats) -> Floats:
        """The mean of a ``value`` of the moves in each state; shape (states,)."""
        out = np.empty(len(self))
        spread(self.factors, np.ascontiguousarray(value, dtype=np.float64), out)
        return out

    @property
    def transitions(self) -> int:
        """See `Space.transitions`."""
        return self.space.transitions

    def matrix(self) -> Any:
        """See `Space.matrix`."""
        return self.space.matrix()
