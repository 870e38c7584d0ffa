"""Which states of a chain recur: its closed classes, its transient states, and the period of each class."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Ints
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.components import Recurrence, recurrence_of
from queuetheory_llm.markov.operator import Factors, Operator, entry

_WRITTEN_OUT = 3 * 10**7  # transitions: 12 bytes each while they are searched
_FALLS = 1e-9  # tokens: no fall of the size is as small


def recurrence(operator: Operator) -> Recurrence:
    """The closed classes of a chain.

    Raises
    ------
    NotConverged
        If batches without arrivals need not empty the engine, and the chain has too many transitions to search.
    """
    if _empties(operator):
        return _around_empty(operator)
    if operator.transitions > _WRITTEN_OUT:
        raise NotConverged(
            f"whether the chain of {len(operator)} states has one closed class would take a search of "
            f"{operator.transitions} transitions, more than {_WRITTEN_OUT}; give a lower --level"
        )
    return recurrence_of(operator.matrix())


def _empties(operator: Operator) -> bool:
    """Whether every state but the empty one has a transition that lowers V, with no arrival.

    Then V falls on some path by a fixed amount at every step, and every state leads to the empty one.
    """
    space, moves = operator.space, operator.space.moves
    calm = np.array([each.arrivals[0] > 0 for each in space.durations])[moves.duration]
    gained = space.tokens[moves.target] - space.tokens[moves.source] - moves.taken * space.mean
    falls = calm & (moves.chance > 0) & (gained < -_FALLS)
    come = space.first[moves.source[falls]]
    covered = np.zeros(len(operator) + 1, dtype=np.int32)
    np.add.at(covered, come + moves.low[falls], 1)
    np.add.at(covered, come + moves.high[falls] + 1, -1)
    return bool((np.cumsum(covered)[1:-1] > 0).all())


@attrs.frozen(eq=False)
class _BySource:
    """Moves by source and lowest w; those of core c are ``start[c]``..``start[c + 1]``.

    ``reach`` is the largest ``high`` so far within the core.
    """

    start: Ints
    move: Ints
    reach: Ints


def _by_source(operator: Operator) -> _BySource:
    moves, cores = operator.space.moves, operator.space.first.size - 1
    order = np.lexsort((moves.low, moves.source))
    start = np.searchsorted(moves.source[order], np.arange(cores + 1)).astype(np.int64)
    # One running maximum over all cores: each core lifted above those before it.
    step = int(operator.space.room.max()) + 1
    lifted = moves.high[order] + moves.source[order].astype(np.int64) * step
    reach = np.maximum.accumulate(lifted) - moves.source[order].astype(np.int64) * step
    return _BySource(start=start, move=order.astype(np.int64), reach=reach)


def _around_empty(operator: Operator) -> Recurrence:
    """The one closed class of a chain in which every state leads to the empty one: what the empty one leads to."""
    factors, ordered = operator.factors, _by_source(operator)
    lasting = operator.space.moves.duration
    depth = np.full(len(operator), -1, dtype=np.int32)
    queue = np.empty(len(operator), dtype=np.int32)
    found, period = _search(factors, lasting, ordered.start, ordered.move, ordered.reach, depth, queue)
    return Recurrence(classes=(np.flatnonzero(depth >= 0),), periods=(int(period),), transient=len(operator) - found)


@entry
def _search(
    f: Factors,
    lasting: NDArray[np.int32],
    start: Ints,
    order: Ints,
    reach: Ints,
    depth: NDArray[np.int32],
    queue: NDArray[np.int32],
) -> tuple[int, int]:
    """Breadth first from the empty state: ``depth`` of each state reached; their number, and the period.

    The period is the greatest common divisor of depth(s) + 1 - depth(t) over the transitions s -> t. ``queue`` is room
    to work in; both arrays are of shape (states,).
    """
    depth[0], queue[0] = 0, 0
    head, found, period = 0, 1, 0
    while head < found:
        state = queue[head]
        head += 1
        core = np.searchsorted(f.first, state, side="right") - 1
        unseen = state - f.first[core]
        place = start[core + 1] - 1
        while place >= start[core] and reach[place] >= unseen:
            move = order[place]
            place -= 1
            if f.low[move] > unseen or f.high[move] < unseen or f.chance[move] == 0.0:
                continue
            go, last = f.first[f.target[move]] + unseen - f.taken[move], f.first[f.target[move] + 1] - 1
            for count in range(f.laws[lasting[move]], f.laws[lasting[move] + 1]):
                if f.law[count] == 0.0:
                    continue
                after = min(go + count - f.laws[lasting[move]], last)
                if depth[after] < 0:
                    depth[after] = depth[state] + 1
                    queue[found] = after
                    found += 1
                elif period != 1:
                    period = np.gcd(period, abs(depth[state] + 1 - depth[after]))
    return found, period
