"""Round robin: the instances take turns, stage by stage."""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import DispatchRule, DispatchView
from queuetheory_llm.model import dispatch as names


def choose(view: DispatchView, parameters: Floats) -> int:  # noqa: ARG001 - it has none
    """The next of the instances that serve the stage.

    Each stage has turns of its own, and so has each class of a station. One counter for all would deal out calls in a
    pattern: where a short and a long call alternate, one of two instances gets all the long ones, and loads of .6 and
    .6 become 1.2 and 0.
    """
    able = 0
    for m in range(view.seconds.size):
        able += view.seconds[m] < np.inf
    left = view.turn % able
    chosen = 0
    for m in range(view.seconds.size):
        if view.seconds[m] < np.inf:
            if left == 0:
                chosen = m
            left -= 1
    return chosen


ROUND_ROBIN = DispatchRule(
    name=names.ROUND_ROBIN,
    choose=choose,
    rule="the instances that serve the stage take turns, each stage by itself",
    source="the router of vLLM's deployments; baseline of HEXGEN-FLOW, arXiv 2505.05286",
    oblivious=True,
)
