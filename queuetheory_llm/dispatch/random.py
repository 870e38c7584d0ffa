"""At random by a fixed split: the rules that have no need to see anything."""

from __future__ import annotations

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import DispatchRule, DispatchView
from queuetheory_llm.model import dispatch as names


def choose(view: DispatchView, parameters: Floats) -> int:  # noqa: ARG001 - it has none
    """An instance with the probability that ``view.shares`` gives it.

    One without a share is never taken, even where rounding leaves the shares a little below 1 in sum.
    """
    below, last = 0.0, -1
    for m in range(view.shares.size):
        if view.shares[m] > 0:
            last = m
            below += view.shares[m]
            if view.chance < below:
                break
    return last


RANDOM = DispatchRule(
    name=names.RANDOM,
    choose=choose,
    rule="each instance that serves the stage with equal probability",
    source="the split of a Poisson stream at random",
    tosses=True,
    split="uniform",
    oblivious=True,
)
RANDOM_PROPORTIONAL = DispatchRule(
    name="random-proportional",
    choose=choose,
    rule="each instance with a probability proportional to its speed for the stage, 1/t_comp",
    source="the split of a Poisson stream at random, all loads equal where there is one stage",
    tosses=True,
    split="proportional",
    oblivious=True,
)
RANDOM_LP = DispatchRule(
    name="random-lp",
    choose=choose,
    rule="each instance with the probability of the static split that carries most, by linear programming",
    source="static planning problem: Harrison and Lopez, Queueing Systems 33 (1999)",
    tosses=True,
    split="lp",
    oblivious=True,
)
