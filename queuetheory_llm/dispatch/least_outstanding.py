"""The fewest calls: join the shortest queue."""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import DispatchRule, DispatchView
from queuetheory_llm.model import dispatch as names

FIRST, TOSSED, FAST, SLOW = 0, 1, 2, 3


def choose(view: DispatchView, parameters: Floats) -> int:
    """The instance with the fewest calls, those in service included.

    Of several: the first, one at random, the fastest for the call (smallest t_comp) or the slowest.
    """
    ties = parameters[0]
    best, tied = -1, 0
    for m in range(view.seconds.size):
        if view.seconds[m] == np.inf:
            continue
        if best < 0 or view.outstanding[m] < view.outstanding[best]:
            best, tied = m, 1
        elif view.outstanding[m] == view.outstanding[best]:
            tied += 1
            faster, slower = view.seconds[m] < view.seconds[best], view.seconds[m] > view.seconds[best]
            if (ties == FAST and faster) or (ties == SLOW and slower):
                best = m
    if ties != TOSSED or tied == 1:
        return best
    left = int(view.chance * tied)
    for m in range(best, view.seconds.size):
        if view.seconds[m] < np.inf and view.outstanding[m] == view.outstanding[best]:
            if left == 0:
                return m
            left -= 1
    return best


LEAST_OUTSTANDING = DispatchRule(
    name=names.LEAST_OUTSTANDING,
    choose=choose,
    rule="the fewest calls, those in service included",
    source="join the shortest queue: Winston, Journal of Applied Probability 14 (1977); routers of Ray Serve and vLLM",
    defaults={"ties": FIRST},
    words={"ties": {"first": FIRST, "random": TOSSED, "fast": FAST, "slow": SLOW}},
    tosses=True,
)
