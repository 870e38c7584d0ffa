"""Laws of numbers under the stationary law: of requests, of the token backlog, of the tokens of a batch."""

from __future__ import annotations

from collections import Counter
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.model.arrivals import SlottedArrivals
from queuetheory_llm.model.chances import DecodeKind, RequestLaw
from queuetheory_llm.schedulers.state import State

#: Most entries of a law of the token backlog.
LONGEST = 2**20
_WORK = 2_000  # terms added up for each entry that a law may have: about a minute for the longest law
_CORE_WORK = 1_000  # terms that reading a core takes as long as
# A sum of n geometric lengths of mean m exceeds 3 n m + 40 m with a chance below 1e-16, whatever n (Chernoff's bound).
_MEANS, _MEANS_MORE = 3, 40


def requests_at_boundaries(rewards: Rewards, weight: Floats) -> Floats:
    """P(n requests at a boundary), n = 0, 1, ..."""
    return np.asarray(np.bincount(rewards.space.requests(), weights=weight), dtype=np.float64)


def requests_over_time(rewards: Rewards, weight: Floats) -> Floats:
    """P(n requests at an instant), n = 0, 1, ...: each state weighs its duration, with the arrivals so far.

    At a uniform instant of a batch of t seconds j requests have arrived with probability P(Poisson(r t) > j)/(r t).
    """
    if isinstance(rewards.arrivals, SlottedArrivals):
        return requests_at_boundaries(rewards, weight)
    durations = rewards.space.durations
    started = rewards.operator.started(weight)
    total = np.zeros(started.shape[1] + max(each.arrivals.size for each in durations))
    for each, row in zip(durations[:-1], started[:-1], strict=True):
        beyond = np.cumsum(each.arrivals[::-1])[::-1][1:]  # P(more than j arrive)
        part = np.convolve(row, beyond / beyond.sum()) if beyond.size else row
        total[: part.size] += float(each.seconds) * part
    total[0] += float(durations[-1].seconds) * started[-1, 0]  # the idle engine
    return np.trim_zeros(total / total.sum(), "b")


def batch_tokens(rewards: Rewards, weight: Floats) -> Floats:
    """P(a batch has b tokens), b = 0, 1, ...; of the batches alone, so entry 0 is 0."""
    moves = rewards.space.moves
    law = np.bincount(moves.tokens, weights=rewards.operator.flow(weight))
    law[0] = 0.0
    return np.asarray(law / law.sum())


def backlog_at_boundaries(rewards: Rewards, weight: Floats, longest: int = LONGEST) -> Floats:
    """P(n tokens left at a boundary), n = 0, 1, ..., lengths that are not drawn yet included.

    Unseen requests and decode lengths of a kind are independent of the state, so the law is a mixture of convolutions.
    They are summed by transform: an entry is right to about 1e-15, not to a share of itself.

    Parameters
    ----------
    rewards : Rewards
    weight : float64 array of shape (states,)
    longest : int
        Most entries that the law may have; the time it may take is in proportion.

    Raises
    ------
    NotConverged
        If the law is too long to be written down.
    """
    space, law = rewards.space, rewards.law
    if _CORE_WORK * len(space.cores) > _WORK * longest:
        raise NotConverged(f"the law of the token backlog is one of {len(space.cores)} cores; its mean is known")
    parts = [_parts(core) for core in space.cores]
    alike: dict[tuple[int, ...], list[int]] = {}
    for core, (_, kinds) in enumerate(parts):
        alike.setdefault(kinds, []).append(core)
    size = _length(rewards, parts, len(alike), longest)
    z = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    ends = [_of_kind(kind, z) for kind in law.kinds]
    fresh = _of_request(law, z, ends)
    total = np.zeros(z.size, dtype=np.complex128)
    for kinds, cores in alike.items():
        table = np.zeros((int(space.room[cores].max()) + 1, max(parts[core][0] for core in cores) + 1))
        for core in cores:
            line = weight[space.first[core] : space.first[core + 1]]
            table[: line.size, parts[core][0]] += line
        part = np.zeros(z.size, dtype=np.complex128)
        for row in table[::-1]:  # Horner in the number of unseen requests
            part = part * fresh + np.fft.rfft(row, size)
        for end, times in zip(ends, kinds, strict=False):
            part *= end**times
        total += part
    return np.maximum(np.fft.irfft(total, size), 0.0)


def _parts(core: State) -> tuple[int, tuple[int, ...]]:
    """Tokens of the core that are known, and how many decode lengths of each kind it has."""
    kinds = Counter(-1 - decode for _, decode in core.left if decode < 0)
    tokens = sum(prefill + max(decode, 0) for prefill, decode in core.left)
    return tokens, tuple(kinds[kind] for kind in range(max(kinds, default=-1) + 1))


def _of_kind(kind: DecodeKind, z: NDArray[np.complex128]) -> Any:
    """The transform of a decode length."""
    if kind.memoryless:
        return z / (float(kind.mean) - (float(kind.mean) - 1) * z)
    return sum(chance * z**value for value, chance in zip(kind.values, kind.chances, strict=True))


def _of_request(law: RequestLaw, z: NDArray[np.complex128], ends: list[NDArray[np.complex128]]) -> Any:
    """The transform of the tokens of an unseen request."""
    pairs = zip(law.prefill.tolist(), law.decode.tolist(), law.chance.tolist(), strict=True)
    return sum(
        chance * z**prefill * (z**decode if decode >= 0 else ends[-1 - decode]) for prefill, decode, chance in pairs
    )


def _length(rewards: Rewards, parts: list[tuple[int, tuple[int, ...]]], groups: int, longest: int) -> int:
    """A power of 2 beyond which next to nothing lies."""
    space, law = rewards.space, rewards.law
    bounds = [kind.bound for kind in law.kinds]
    seen = max(tokens + sum(map(mul, bounds, times)) for tokens, times in parts)
    one = float((law.prefill + np.maximum(law.decode, 0)).max()) + sum(bounds)
    most = seen + max(one, space.mean) * int(space.room.max())
    memoryless = [float(kind.mean) for kind in law.kinds if kind.memoryless]
    if memoryless:
        most = _MEANS * most + _MEANS_MORE * max(memoryless)
    size = 1 << int(most).bit_length()
    if size > longest or groups * (int(space.room.max()) + 1) * size > _WORK * longest:
        raise NotConverged(f"the law of the token backlog has {size} entries; its mean is known")
    return size
