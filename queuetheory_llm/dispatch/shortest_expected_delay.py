"""The shortest expected delay by numbers of calls."""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import DispatchRule, DispatchView


def choose(view: DispatchView, parameters: Floats) -> int:  # noqa: ARG001 - it has none
    """The smallest (calls there + 1) * t_comp: when this call would end if all there were like it, one at a time.

    Of equal ones the first.
    """
    best, low = -1, 0.0
    for m in range(view.seconds.size):
        delay = (view.outstanding[m] + 1) * view.seconds[m]
        if delay < np.inf and (best < 0 or delay < low):
            best, low = m, delay
    return best


SHORTEST_EXPECTED_DELAY = DispatchRule(
    name="shortest-expected-delay",
    choose=choose,
    rule="the smallest (calls there + 1) * t_comp",
    source="Banawan and Zahorjan, IEEE INFOCOM (1989)",
)
