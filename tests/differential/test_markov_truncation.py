"""The error that a chain reports of its cut against the error it has: the same chain at four times the level."""

import random
from functools import cache

import numpy as np
import pytest
from chains import some_solved_chain

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.truncation import MEANS, Question

ROUNDING, SYSTEMS = 1e-10, 100


def far_means(engine, rule, chain):
    """The means of the chain cut at four times the level."""
    rewards = chain.cut.rewards
    outcomes = Outcomes(engine=engine, scheduler=rule, law=rewards.law)
    question = Question(outcomes=outcomes, arrivals=rewards.arrivals, tolerance=0.5, memory=2 * 10**7)
    return question.cut(4 * chain.truncation.level).means


@cache
def errors(seed):
    """(error, bound, truth) of each mean of a random chain: the first that is small enough up to four times its level.

    Tolerances are from rough to fine.
    """
    rng = random.Random(1000 + seed)
    tolerance = rng.choice([0.2, 1e-2, 1e-3, 1e-4])
    while True:
        (engine, rule, _), chain = some_solved_chain(rng, tolerance, memory="2 MB")
        try:
            far = far_means(engine, rule, chain)
        except NotConverged:
            continue
        bounds, means = chain.truncation.bounds, chain.means
        truths = {name: getattr(far, name) for name in MEANS}
        return {name: (abs(getattr(means, name) - truth), bounds[name], truth) for name, truth in truths.items()}


@pytest.mark.parametrize("seed", range(SYSTEMS))
def test_the_bound_holds(seed):
    for name, (error, bound, truth) in errors(seed).items():
        assert error <= bound + ROUNDING * (1 + truth), (name, error, bound)


@pytest.mark.parametrize("name", MEANS)
def test_the_bound_is_not_idly_large(name):
    """Half of the errors that rounding does not hide are more than half of their bounds; nine in ten a tenth."""
    found = [errors(seed)[name] for seed in range(SYSTEMS)]
    shares = [error / bound for error, bound, truth in found if error > 10 * ROUNDING * (1 + truth)]
    assert len(shares) > SYSTEMS / 2
    assert np.median(shares) > 0.5
    assert np.quantile(shares, 0.1) > 0.1
