"""The chain on blocks of states: aggregation by the room on the line, which arrivals move alike whatever the core.

The *room* of a state is the number of further requests that its line holds. j arrivals move room r to max(r - j, 0) in
every core, and a move changes it by one amount wherever it applies, so the chain of blocks is computed from the moves
alone. Blocks are told apart by the number of requests looked at as well, in as many groups as a direct solution bears:
backlog and decodes in progress are what a batch-service engine forgets slowly.

With a law inside each block, aggregation and disaggregation in turn find the law of the chain
(Koury, McAllister, Stewart, SIAM J. Algebraic Discrete Methods 5, 1984); here they also precondition GMRES.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.markov.direct import ROUNDING, Factorised, factorised
from queuetheory_llm.markov.operator import entry
from queuetheory_llm.markov.space import Small, Space

_SUMS = 10**5  # of chances from block to block; more are not told apart by known requests


@entry
def _gather(
    first: Ints, source: Small, low: Small, high: Small, chance: Floats, begin: Ints, inner: Floats, out: Floats
) -> None:
    """Add up the chances of moves that lead from one block to one block; those of a move stand from ``begin`` on."""
    for move in range(source.size):
        come = first[source[move]]
        last = first[source[move] + 1] - 1 - come
        for unseen in range(low[move], high[move] + 1):
            out[begin[move] + last - unseen] += chance[move] * inner[come + unseen]


@entry
def _total(block: Small, weight: Floats, out: Floats) -> None:
    """``out`` = the weight in each block."""
    out[:] = 0.0
    for state in range(block.size):
        out[block[state]] += weight[state]


@entry
def _correct(block: Small, inner: Floats, value: Floats, out: Floats) -> None:
    """``out`` += a value of each block times the law inside it."""
    for state in range(block.size):
        out[state] += value[block[state]] * inner[state]


@entry
def _mean(block: Small, inner: Floats, value: Floats, out: Floats) -> None:
    """``out`` = the mean of ``value`` over each block."""
    out[:] = 0.0
    for state in range(block.size):
        out[block[state]] += inner[state] * value[state]


@attrs.frozen(eq=False)
class Blocks:
    """The blocks of a chain.

    Attributes
    ----------
    block : int32 array of shape (states,)
    count : int
        Number of blocks. Those of one group are consecutive, by room.
    begin : int64 array of shape (moves,)
        Where the chances of each move, by the room it starts from, are added up.
    rows, columns : int64 arrays
        The blocks that each sum leads from and to (before the arrivals).
    lasting : int64 array
        The duration of each sum.
    arrivals : tuple of sparse arrays of shape (count, count)
        What the arrivals of each duration do to the blocks.
    """

    space: Space
    block: Small
    count: int
    begin: Ints
    rows: Ints
    columns: Ints
    lasting: Ints
    arrivals: tuple[Any, ...]


def blocks_of(space: Space, most: int = _SUMS) -> Blocks:
    """The blocks by room, and by known requests in as many groups as leave at most ``most`` sums of chances."""
    values, rank = np.unique(space.known, return_inverse=True)
    groups = values.size
    while True:
        found = _grouped(space, rank * groups // values.size, groups)
        if groups == 1 or found.rows.size <= most:
            return found
        groups = max(1, min(groups - 1, groups * most // found.rows.size))


def _grouped(space: Space, group: Ints, groups: int) -> Blocks:
    """The blocks by room and ``group`` of the cores."""
    room, moves = space.room, space.moves
    size = np.zeros(groups, dtype=np.int64)
    np.maximum.at(size, group, room + 1)
    base = np.concatenate([[0], np.cumsum(size)])
    block = np.repeat((base[group] + room).astype(np.int32), room + 1) - space.unseen().astype(np.int32)
    # One sum for each duration, group before, group after, change of room, and room before.
    gained = room[moves.target] - room[moves.source] + moves.taken
    least, spread = int(gained.min()), int(np.ptp(gained)) + 1
    key = moves.duration.astype(np.int64) * groups + group[moves.source]
    key = (key * groups + group[moves.target]) * spread + (gained - least)
    found, place = np.unique(key, return_inverse=True)
    found, shift = np.divmod(found, spread)
    found, after = np.divmod(found, groups)
    lasting, before = np.divmod(found, groups)
    start = np.concatenate([[0], np.cumsum(size[before])])
    free = np.arange(start[-1]) - np.repeat(start[:-1], size[before])
    # A room that no state of the group before has moves nothing, and may lead to none that the group after has.
    reached = np.minimum(
        np.maximum(free + np.repeat(shift + least, size[before]), 0), np.repeat(size[after], size[before]) - 1
    )
    return Blocks(
        space=space,
        block=block,
        count=int(base[-1]),
        begin=start[place],
        rows=np.repeat(base[before], size[before]) + free,
        columns=np.repeat(base[after], size[before]) + reached,
        lasting=np.repeat(lasting, size[before]),
        arrivals=tuple(_arrivals(each.arrivals, size) for each in space.durations),
    )


def _arrivals(law: Floats, size: Ints) -> Any:
    """The chain of rooms while requests arrive, in each group."""
    from scipy.sparse import block_diag, coo_array

    counts = np.arange(law.size)
    parts = []
    for rooms in size.tolist():
        room = np.arange(rooms)[:, None]
        after = np.maximum(room - counts, 0)
        entries = (
            np.broadcast_to(law, after.shape).ravel(),
            (np.broadcast_to(room, after.shape).ravel(), after.ravel()),
        )
        parts.append(coo_array(entries, shape=(rooms, rooms)))
    return block_diag(parts, format="csr")


@attrs.frozen(eq=False)
class Coarse:
    """The chain of blocks under a law inside each of them, factorised.

    Attributes
    ----------
    blocks : Blocks
    inner : float64 array of shape (states,)
        The law inside each block: sums to 1 over a block.
    anchor : float64 array of shape (states,)
        u, a probability vector: the singular I - P is solved as I - P + 1 u'.
    """

    blocks: Blocks
    inner: Floats
    anchor: Floats
    _chain: Factorised
    _pinned: Floats

    def total(self, weight: Floats) -> Floats:
        """The weight in each block; shape (blocks,)."""
        out = np.empty(self.blocks.count)
        _total(self.blocks.block, weight, out)
        return out

    def law(self) -> Floats:
        """The law of the states whose law of blocks is the stationary one of the chain of blocks."""
        out = np.zeros_like(self.inner)
        _correct(self.blocks.block, self.inner, self._chain.law, out)
        return out

    def forward(self, rest: Floats) -> Floats:
        """Near the solution x of x - P'x + u (1'x) = ``rest``: exact on the blocks, the identity inside them."""
        total = self.total(rest)
        out = rest.copy()
        _correct(self.blocks.block, self.inner, self._chain.forward(total, self._pinned) - total, out)
        return out

    def backward(self, rest: Floats) -> Floats:
        """Near the solution h of h - P h + 1 (u'h) = ``rest``: the transpose of `forward`."""
        mean = np.empty(self.blocks.count)
        _mean(self.blocks.block, self.inner, rest, mean)
        value = self._chain.backward(mean, self._pinned) - mean
        return np.asarray(rest + value[self.blocks.block], dtype=np.float64)


def aggregated(blocks: Blocks, law: Floats) -> Coarse:
    """The chain of blocks whose states share the weight of a block as in ``law``, which is the anchor as well."""
    from scipy.sparse import coo_array, csr_array

    count = blocks.count
    weight = np.empty(count)
    inner = _floored(blocks.space, law)
    _total(blocks.block, inner, weight)
    inner /= weight[blocks.block]
    space, moves = blocks.space, blocks.space.moves
    sums = np.zeros(blocks.rows.size)
    _gather(space.first, moves.source, moves.low, moves.high, moves.chance, blocks.begin, inner, sums)
    chain = csr_array((count, count))
    for lasting, arrivals in enumerate(blocks.arrivals):
        of = (blocks.lasting == lasting) & (sums > 0)
        served = coo_array((sums[of], (blocks.rows[of], blocks.columns[of])), shape=(count, count)).tocsr()
        chain = chain + served @ arrivals
    pinned = np.empty(count)
    _total(blocks.block, law, pinned)
    return Coarse(blocks=blocks, inner=inner, anchor=law, chain=factorised(chain), pinned=pinned)


def _floored(space: Space, law: Floats) -> Floats:
    """The law, and where it is lost in rounding the law of the cores whatever stands behind them.

    Half of it is even, or no way would lead out of a block but from its likely cores.
    """
    lines = np.diff(space.first)
    cores = np.add.reduceat(law, space.first[:-1]) / law.sum()
    return law + ROUNDING * np.repeat(cores + 1 / cores.size, lines)
