"""The error that a chain reports of its cut against the error it has: the same chain at four times the level."""

import random

import pytest
from chains import some_solved_chain

from queuetheory_llm.markov.chain import exact_chain
from queuetheory_llm.markov.truncation import MEANS

ROUNDING = 1e-10


@pytest.mark.parametrize("seed", range(100))
def test_the_bound_holds(seed):
    """On random systems, at tolerances from rough to fine; the bound is not idly large either."""
    rng = random.Random(1000 + seed)
    tolerance = rng.choice([0.2, 1e-2, 1e-3, 1e-4])
    (engine, rule, workload), chain = some_solved_chain(rng, tolerance, memory="60 MB")
    level = 4 * chain.truncation.level
    far = exact_chain(engine, rule, workload, level=level, tolerance=0.999, memory="2 GB")
    for name in MEANS:
        bound, truth = chain.truncation.bounds[name], getattr(far.means, name)
        error = abs(getattr(chain.means, name) - truth)
        assert error <= bound + ROUNDING * (1 + truth), (name, error, bound)
