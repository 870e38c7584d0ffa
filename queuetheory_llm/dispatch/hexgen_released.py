"""HEXGEN-FLOW's dispatch score as the simulator that its authors released has it."""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import UNIT, DispatchRule, DispatchView


def choose(view: DispatchView, parameters: Floats) -> int:
    """The largest alpha * t_base/t_m - (1 - alpha) * W_m/W_base, t = t_comp; the first of equal ones.

    W is what has ever been assigned, in seconds, and never falls: the rule does not see whether an instance is busy. A
    call of one kind makes it a fixed split in the long run, W_m/W_base = max(0, 1 + alpha/(1 - alpha) * (t_base/t_m -
    1)), from which `stability` has its limit in closed form. The base is the first instance that serves the stage, and
    gets the call while nothing has been assigned to it. A call that takes no time at an instance is sent there.

    The released code halves W of the types A6000 and L40S, which is a price that its authors put on them and no part
    of the rule; it is left out.
    """
    alpha = parameters[0]
    base, best, high = -1, -1, 0.0
    for m in range(view.seconds.size):
        if view.seconds[m] == np.inf:
            continue
        if base < 0:
            base = m
            if view.assigned[base] <= 0:
                return base
        if view.seconds[m] <= 0:
            return m
        score = alpha * view.seconds[base] / view.seconds[m] - (1 - alpha) * view.assigned[m] / view.assigned[base]
        if best < 0 or score > high:
            best, high = m, score
    return best


HEXGEN_RELEASED = DispatchRule(
    name="hexgen-released",
    choose=choose,
    rule="the largest alpha * t_base/t_comp - (1 - alpha) * W/W_base, W the seconds ever assigned, the base the first",
    source="the simulator released with HEXGEN-FLOW, arXiv 2505.05286, without its prices for A6000 and L40S",
    defaults={"alpha": 0.2},
    domains={"alpha": UNIT},
    oblivious=True,
)
