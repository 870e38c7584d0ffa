"""A rate proved stable for rules that fill their batches, when k_max may keep them from filling.

Once k_max requests are present, a batch of such a rule either has b_max tokens, or it holds k_max requests and every
prompt in it is completed by it. With x prefill and y decode tokens and s prompts completed, the function

    V = p * (prefill tokens left) + d * (decode tokens left) + n * (requests still in prefill),   p, d, n >= 0,

changes on average by rate * (p m_p + d m_d + n P(v_p >= 1)) * t(x + y) - (p x + d y + n s) over the batch. Below the
largest rate for which some weights make this negative for every such batch, V has negative drift outside a set with
fewer than k_max requests, and the system is stable (Foster's criterion; fluid limits as in Dai 1995).
"""

from __future__ import annotations

import attrs
import numpy as np

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.exact.hull import lower_left
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.stability.region import law_ticks


@attrs.frozen(kw_only=True)
class LinearDrift:
    """Weights of V and the rate below which its drift is negative.

    Attributes
    ----------
    prefill, decode, requests : float
        p, d (per token) and n (per request in prefill); p m_p + d m_d + n P(v_p >= 1) = m_p + m_d.
    requests_per_s : float
    """

    prefill: float
    decode: float
    requests: float
    requests_per_s: float

    def __str__(self) -> str:
        return (
            f"V = {self.prefill:.3g} x prefill + {self.decode:.3g} x decode tokens "
            f"+ {self.requests:.3g} x requests in prefill"
        )


def crowded_batches(engine: Engine) -> list[tuple[int, int, int]]:
    """(x, s, y) of the batches that can minimise a drift when k_max requests are present.

    Full batches count no completed prompt. In a batch that is not full s prompts and k_max - s decodes fill the
    slots; V is linear in s, so s = 1 and s = k_max suffice, and in b only the troughs of the batch-time law, of those
    again only the lower left hull.
    """
    law, seats, b_max = engine.batch_time, engine.slots, engine.b_max
    full = [(b_max, 0, 0), (b_max - seats + 1, 0, seats - 1)]
    decodes = [(0, 0, seats)]
    if seats == b_max:
        return [*full, *decodes]
    unfilled = law.troughs(seats, b_max - 1)
    ticks = law_ticks(engine, unfilled)
    mixed = lower_left([(b - seats + 1, 1, ticks[b]) for b in unfilled])
    prompts = lower_left([(b, seats, ticks[b]) for b in unfilled])
    return [
        *full,
        *decodes,
        *((unfilled[i] - seats + 1, 1, seats - 1) for i in mixed),
        *((unfilled[i], seats, 0) for i in prompts),
    ]


def linear_drift(engine: Engine, lengths: RequestLengths) -> LinearDrift:
    """The best weights, by linear programming (HiGHS); the rate is then recomputed from them.

    maximise r subject to p x + d y + n s >= r t(x + y) for every batch, p m_p + d m_d + n P(v_p >= 1) = 1.
    """
    from scipy.optimize import linprog

    batches = np.array(crowded_batches(engine), dtype=float)
    served = batches[:, [0, 2, 1]]
    seconds = engine.batch_time.seconds_array((served[:, 0] + served[:, 1]).astype(np.int64))
    means = np.array([float(m) for m in (lengths.mean_prefill, lengths.mean_decode, lengths.prefill_probability)])
    tokens = float(means[0] + means[1])
    scale = engine.b_max / float(engine.batch_time.seconds(engine.b_max)) / tokens
    solution = linprog(
        c=[0.0, 0.0, 0.0, -1.0],
        A_ub=np.column_stack([-served, seconds * scale * tokens]),
        b_ub=np.zeros(len(served)),
        A_eq=[[*means, 0.0]],
        b_eq=[tokens],
        method="highs",
    )
    if solution.status != 0:
        raise NotConverged(f"the linear program for the drift did not solve: {solution.message}")
    weights = np.maximum(solution.x[:3], 0.0)
    rate = float(np.min(served @ weights / seconds) / (weights @ means))
    return LinearDrift(
        prefill=float(weights[0]), decode=float(weights[1]), requests=float(weights[2]), requests_per_s=rate
    )
