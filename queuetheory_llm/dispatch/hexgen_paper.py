"""HEXGEN-FLOW's dispatch score as its paper has it."""

from __future__ import annotations

import sys

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import POSITIVE, UNIT, DispatchRule, DispatchView

_LARGEST = sys.float_info.max


def choose(view: DispatchView, parameters: Floats) -> int:
    """The largest (1 - alpha) * beta/t_queue - alpha * t_comp.

    Without a queue the first term is infinite for alpha < 1: an idle instance goes before every busy one, however
    short the queue of that, and of several the smallest t_comp is taken. At alpha = 1 the term is not there and the
    score is -t_comp whatever the queues. Equal scores go to the smallest t_comp, then to the first instance.
    """
    alpha, beta = parameters[0], parameters[1]
    best, high = -1, 0.0
    for m in range(view.seconds.size):
        seconds, queued = view.seconds[m], view.queued[m]
        if seconds == np.inf:
            continue
        if alpha == 1:
            score = -seconds
        elif queued <= 0:
            score = np.inf
        else:
            balance = (1 - alpha) * beta
            gain = balance / queued if queued > balance / _LARGEST else _LARGEST  # finite, unlike that of an idle one
            score = gain - alpha * seconds
        if best < 0 or score > high or (score == high and seconds < view.seconds[best]):
            best, high = m, score
    return best


HEXGEN_PAPER = DispatchRule(
    name="hexgen-paper",
    choose=choose,
    rule="the largest (1 - alpha) * beta/t_queue - alpha * t_comp; idle instances first",
    source="HEXGEN-FLOW, arXiv 2505.05286, section 4",
    defaults={"alpha": 0.2, "beta": 1.0},
    domains={"alpha": UNIT, "beta": POSITIVE},
    reads_queued=True,
)
