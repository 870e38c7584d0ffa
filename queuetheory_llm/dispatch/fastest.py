"""The fastest instance only."""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import DispatchRule, DispatchView


def choose(view: DispatchView, parameters: Floats) -> int:  # noqa: ARG001 - it has none
    """The smallest t_comp, whatever the queues; the first of equal ones."""
    best = -1
    for m in range(view.seconds.size):
        if view.seconds[m] < np.inf and (best < 0 or view.seconds[m] < view.seconds[best]):
            best = m
    return best


FASTEST = DispatchRule(
    name="fastest",
    choose=choose,
    rule="the smallest t_comp, whatever the queues",
    source="HEXGEN-FLOW's score at alpha = 1, arXiv 2505.05286, section 4",
    oblivious=True,
)
