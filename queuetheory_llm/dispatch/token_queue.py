"""The fewest tokens: join the shortest queue, counted in work."""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import DispatchRule, DispatchView
from queuetheory_llm.model import dispatch as names


def choose(view: DispatchView, parameters: Floats) -> int:  # noqa: ARG001 - it has none
    """The instance with the fewest tokens still to be served; the first of equal ones."""
    best = -1
    for m in range(view.seconds.size):
        if view.seconds[m] < np.inf and (best < 0 or view.tokens[m] < view.tokens[best]):
            best = m
    return best


TOKEN_QUEUE = DispatchRule(
    name=names.TOKEN_QUEUE,
    choose=choose,
    rule="the fewest tokens still to be served",
    source="Dai, Deng, Li, Peng, arXiv 2504.07347, section 5.1",
)
