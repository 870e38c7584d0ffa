"""Outer regions that know the workload: a request fills its slot with its own prompt only.

`outer_region` lets one slot carry any number of prefill tokens. A request has v_p of them, so under k_max a workload
is bounded more tightly: exactly for constant prompts, by a linear program over (tokens, slots) for random ones.
Both still bound every rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import attrs
import numpy as np

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.exact.hull import upper_right
from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.stability.region import (
    StabilityRegion,
    law_ticks,
    ordered_labels,
    outer_region,
    region_from_batches,
)

#: A batch as the linear program sees it: prefill tokens, slots in prefill, decode tokens.
SlotBatch = tuple[int, int, int]


@attrs.frozen(kw_only=True)
class RateBound:
    """Requests/s that no rule exceeds, and how it was found.

    Attributes
    ----------
    requests_per_s : Fraction or float
        Exact except for the linear program.
    method : str
    limits : frozenset of {"b_max", "k_max"}
        Limits that every batch of the optimal mixture exhausts; empty when the batch time alone binds.
    """

    requests_per_s: Real
    method: str
    limits: frozenset[str]

    @property
    def binding(self) -> str:
        """The limits in words."""
        return " and ".join(sorted(self.limits)) or "batch time"


@lru_cache(maxsize=16)
def constant_prompt_region(engine: Engine, prompt: int) -> StabilityRegion:
    """Hull of (x, y)/t(x + y) over batches with y + ceil(x/prompt) <= k_max; exact.

    Parameters
    ----------
    engine : Engine
    prompt : int
        Tokens of every prompt; 0 leaves decode batches only.
    """
    return region_from_batches(engine, _constant_prompt_batches(engine, prompt), ordered_labels)


def _constant_prompt_batches(engine: Engine, prompt: int) -> Iterator[tuple[int, int]]:
    """Ends of the feasible segment x + y = b, for the b that can be extreme.

    y + ceil((b - y)/prompt) does not decrease in y, so the segment is y = 0 .. y_max with
    y_max = floor((k_max prompt - b)/(prompt - 1)), from y (prompt - 1) <= k_max prompt - b. The b of one y_max are an
    interval, and on it the corners of the batch-time law suffice.
    """
    law, seats = engine.batch_time, engine.slots
    yield from ((0, b) for b in law.corners(1, seats))
    if prompt == 0:
        return
    longest = min(engine.b_max, seats * prompt)
    yield from ((b, 0) for b in law.corners(1, longest))
    for decode in range(1, seats):
        low = max(decode + 1, seats * prompt - (decode + 1) * (prompt - 1) + 1)
        high = min(longest, seats * prompt - decode * (prompt - 1))
        if low <= high:
            yield from ((b - decode, decode) for b in law.corners(low, high))


@lru_cache(maxsize=16)
def slot_batches(engine: Engine) -> tuple[SlotBatch, ...]:
    """Columns of the linear program for random prompts.

    With b tokens and y decodes, min(k_max - y, b - y) slots can be in prefill: linear in y between the ends listed
    here, so no other batch is ever needed. Each of the four families lies in a plane, where only the corners of the
    batch-time law, and of those only the upper right hull, can be optimal.
    """
    law, seats, b_max = engine.batch_time, engine.slots, engine.b_max
    few, many = law.corners(1, seats), law.corners(seats, b_max)
    ticks = law_ticks(engine, {*few, *many})
    found: list[SlotBatch] = [*((b, b, 0) for b in few), *((0, 0, b) for b in few)]
    found += [(many[i], seats, 0) for i in upper_right([(b, seats, ticks[b]) for b in many])]
    mixed = [(b - seats + 1, seats - 1, ticks[b]) for b in many]
    found += [(mixed[i][0], 1, seats - 1) for i in upper_right(mixed)]
    return tuple(found)


def random_prompt_bound(engine: Engine, lengths: RequestLengths) -> RateBound:
    """Largest rate with prefill, decode and slot rates all met by a mixture of batches (linear program, HiGHS).

    maximise r subject to sum w_i x_i >= r m_p, sum w_i y_i >= r m_d, sum w_i s_i >= r P(v_p >= 1),
    sum w_i t_i = 1, w >= 0. What is returned is recomputed from the dual prices q >= 0, which bound the rate
    whatever the solver's tolerance: r (q . needs) <= max over batches of q . (x, s, y)/t.
    """
    from scipy.optimize import linprog

    batches = np.array(slot_batches(engine), dtype=float)
    seconds = engine.batch_time.seconds_array((batches[:, 0] + batches[:, 2]).astype(np.int64))
    needs = np.array([float(n) for n in (lengths.mean_prefill, lengths.prefill_probability, lengths.mean_decode)])
    # Column i is the share of time spent in batch i; the last is r, scaled so that all entries are near 1.
    scale = engine.b_max / seconds.min()
    rates = batches.T / seconds / scale
    solution = linprog(
        c=np.append(np.zeros(len(batches)), -1.0),
        A_ub=np.column_stack([-rates, needs]),
        b_ub=np.zeros(3),
        A_eq=np.append(np.ones(len(batches)), 0.0)[None, :],
        b_eq=[1.0],
        method="highs",
    )
    if solution.status != 0:
        raise NotConverged(f"the linear program for random prompts did not solve: {solution.message}")
    prices = np.maximum(-solution.ineqlin.marginals, 0.0)
    used = [tuple(int(v) for v in batches[i]) for i in np.flatnonzero(solution.x[:-1] > 1e-9)]
    return RateBound(
        requests_per_s=float(np.max(prices @ rates) / (prices @ needs) * scale),
        method="linear program over batches and slots",
        limits=_common_limits(engine, [(x, s, y) for x, s, y in used]),
    )


def _common_limits(engine: Engine, batches: list[SlotBatch]) -> frozenset[str]:
    """The limits that every one of the batches exhausts."""
    tokens = all(x + y == engine.b_max for x, _, y in batches)
    seats = engine.k_max is not None and all(s + y == engine.k_max for _, s, y in batches)
    return frozenset(name for name, full in (("b_max", tokens), ("k_max", seats)) if full)


def _bound_of(region: StabilityRegion, lengths: RequestLengths, prompt: int, method: str) -> RateBound:
    """Largest rate along the workload's ray in a polygon, and the limits of the batches on the face it meets.

    ``prompt`` is the number of prefill tokens a slot can carry.
    """
    place = region.membership(Fraction(lengths.mean_prefill), Fraction(lengths.mean_decode))
    batches = [vertex.batch for vertex, _ in place.weights]
    limits = _common_limits(region.engine, [(b.prefill, -(-b.prefill // prompt), b.decode) for b in batches])
    return RateBound(requests_per_s=1 / place.load, method=method, limits=limits)


def outer_bound(engine: Engine, lengths: RequestLengths) -> RateBound:
    """The bound of R (Theorem 10): one slot carries any number of prefill tokens."""
    region = outer_region(engine)
    return _bound_of(region, lengths, engine.b_max, "outer region, Theorem 10 of arXiv 2504.07347")


def workload_bound(engine: Engine, lengths: RequestLengths) -> RateBound:
    """The tightest bound known for the workload under every rule."""
    prompt = lengths.constant_prompt
    if engine.slots == engine.b_max:  # each slot brings at least one token: k_max never binds
        return outer_bound(engine, lengths)
    if prompt is None:
        return random_prompt_bound(engine, lengths)
    region = constant_prompt_region(engine, prompt)
    return _bound_of(region, lengths, max(prompt, 1), "outer region for constant prompts")
