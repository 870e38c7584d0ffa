"""The batch of largest weight per second: what every max-weight rule of the package searches for.

Weights are per prompt token and per decode token. With the s oldest prompts in s slots, a batch of b tokens takes the
heavier kind first, so its weight is concave in b and linear between two bends; on a linear piece only a few b can
attain the largest weight/t(b) (see `BatchTime.corners`), and only those are tried.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.model.batch_time import BatchTime, Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.array_rule import ArrayBatch, ArrayView, helper

#: Largest b_max whose durations are tabulated.
MOST_TOKENS = 2**20


def per_token(mean: Real) -> float:
    """1/m, the share of a request that one token is; 0 where requests have none."""
    return 1 / float(mean) if mean else 0.0


@singledispatch
def _grid(law: BatchTime, b_max: int) -> tuple[bool, list[int]]:
    """Where pieces of t end, and whether t is affine along those ends: then the first and last of them suffice."""
    return False, law.corners(1, b_max)


@_grid.register
def _staircase(law: Staircase, b_max: int) -> tuple[bool, list[int]]:
    return True, list(range(law.b0, b_max + 1, law.b0))


@_grid.register
def _hinge(law: Hinge, b_max: int) -> tuple[bool, list[int]]:
    return False, [law.b0] if 1 <= law.b0 <= b_max else []


@_grid.register
def _table(law: Table, b_max: int) -> tuple[bool, list[int]]:
    return False, [tokens for tokens in law.tokens if tokens <= b_max]


def law_parameters(engine: Engine) -> tuple[float, ...]:
    """The batch-time law as `heaviest` reads it: affine, g, g grid points, then t(0) .. t(b_max) in seconds.

    Raises
    ------
    InvalidInput
        If ``b_max`` is beyond `MOST_TOKENS`.
    """
    if engine.b_max > MOST_TOKENS:
        raise InvalidInput(f"b_max: {engine.b_max} is beyond {MOST_TOKENS}, up to which max-weight tabulates t(b)")
    affine, grid = _grid(engine.batch_time, engine.b_max)
    seconds = engine.batch_time.seconds_array(np.arange(1, engine.b_max + 1))
    return (float(affine), float(len(grid)), *map(float, grid), 0.0, *seconds.tolist())


@helper
def _try(best: Floats, tokens: int, prefill: int, weight: float, seconds: float) -> None:
    """Keep the batch if its weight/t is larger, or equal with fewer tokens; ``best`` = (ratio, tokens, prefill)."""
    ratio = weight / seconds
    if ratio > best[0] or (ratio == best[0] and tokens < best[1]):
        best[0], best[1], best[2] = ratio, tokens, prefill


@helper
def _try_piece(
    best: Floats, law: Floats, ends: tuple[int, int], before: tuple[int, float], weight: float, prefills: bool
) -> None:
    """Try the batches of low + 1 .. high tokens, ``ends`` = (low, high), whose tokens beyond low are of one kind.

    ``before`` = (prompt tokens, weight) of the first low tokens.
    """
    low, high = ends
    size = int(law[1])
    grid, seconds = law[2 : 2 + size], law[2 + size :]
    first = int(np.searchsorted(grid, low, side="right"))
    last = int(np.searchsorted(grid, high, side="right")) - 1
    step = max(1, last - first) if law[0] > 0 else 1
    for i in range(first, last + 1, step):
        tokens = int(grid[i])
        added = tokens - low
        _try(best, tokens, before[0] + (added if prefills else 0), before[1] + weight * added, seconds[tokens])
    added = high - low
    if added > 0:
        _try(best, high, before[0] + (added if prefills else 0), before[1] + weight * added, seconds[high])


@helper
def _try_slots(best: Floats, law: Floats, b_max: int, most: tuple[int, int], weights: tuple[float, float]) -> None:
    """Try all batches of at most ``most`` = (prompt, decode) tokens, the heavier kind first."""
    heavier_prefill = weights[0] > weights[1]
    first = 0 if heavier_prefill else 1
    bend = min(b_max, most[first])
    end = min(b_max, most[0] + most[1])
    _try_piece(best, law, (0, bend), (0, 0.0), weights[first], heavier_prefill)
    # Also where the other kind weighs nothing: a larger batch may be a faster one.
    before = (bend if heavier_prefill else 0, weights[first] * bend)
    _try_piece(best, law, (bend, end), before, weights[1 - first], not heavier_prefill)


@helper
def heaviest(view: ArrayView, law: Floats, weights: tuple[float, float]) -> tuple[int, int]:
    """Prompt and decode tokens (x, y) of the batch that maximises (weights . (x, y))/t(x + y).

    Over all numbers of slots for the oldest prompts, the rest left to decodes; the smaller batch on ties. Where
    nothing present has weight, as with lengths that the means say do not occur, all tokens weigh the same.
    """
    prefill, decode = _search(view, law, weights)
    return (prefill, decode) if prefill + decode > 0 else _search(view, law, (1.0, 1.0))


@helper
def _search(view: ArrayView, law: Floats, weights: tuple[float, float]) -> tuple[int, int]:
    best = np.array([0.0, 0.0, 0.0])
    decoding = view.decoding.size
    tokens = 0
    for slots in range(min(view.k_max, view.prefilling.size) + 1):
        if slots > 0:
            tokens += view.prefill_left[view.prefilling[slots - 1]]
        if slots < view.prefilling.size and slots < view.k_max - decoding and tokens < view.b_max:
            continue  # another slot costs no decode
        _try_slots(best, law, view.b_max, (tokens, min(decoding, view.k_max - slots)), weights)
        if tokens >= view.b_max:
            break
    return int(best[2]), int(best[1] - best[2])


@helper
def serve_oldest(view: ArrayView, prefill: int, decode: int, batch: ArrayBatch) -> tuple[int, int]:
    """Write the batch of ``prefill`` tokens of the oldest prompts and the ``decode`` oldest decodes."""
    pieces = 0
    while prefill > 0:
        request = view.prefilling[pieces]
        tokens = min(prefill, view.prefill_left[request])
        batch.prefill_request[pieces] = request
        batch.prefill_tokens[pieces] = tokens
        prefill -= tokens
        pieces += 1
    batch.decode_request[:decode] = view.decoding[:decode]
    return pieces, decode
