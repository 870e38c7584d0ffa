"""Which of many servers ends next: a tree of minima in one array, compiled into the kernels.

``ends`` has twice as many entries as there are places, a power of 2: the leaves are its second half, and the entry at
node i is the least of those at 2 i and 2 i + 1; the least of all is at 1. What is called at every event is inlined.
"""

from __future__ import annotations

from queuetheory_llm.arrays import Ints
from queuetheory_llm.kept import inlined


@inlined
def set_end(ends: Ints, place: int, tick: int) -> None:
    """Set the next completion at a place; O(log n), and less where the least does not change."""
    node = ends.size // 2 + place
    ends[node] = tick
    node >>= 1
    while node > 0:
        least = min(ends[2 * node], ends[2 * node + 1])
        if ends[node] == least:
            break
        ends[node] = least
        node >>= 1


@inlined
def earliest(ends: Ints) -> int:
    """The first place whose completion is the next."""
    node, width = 1, ends.size // 2
    while node < width:
        node *= 2
        if ends[node] != ends[1]:
            node += 1
    return node - width


@inlined
def end_of(ends: Ints, place: int) -> int:
    """The next completion at a place."""
    return ends[ends.size // 2 + place]
