"""The error that a chain reports of its cut against the error it has: the same chain at four times the level."""

import random

import pytest
from chains import some_solved_chain

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.truncation import MEANS, Question

ROUNDING = 1e-10


def far_means(engine, rule, chain):
    """The means of the chain cut at four times the level."""
    rewards = chain.cut.rewards
    outcomes = Outcomes(engine=engine, scheduler=rule, law=rewards.law)
    question = Question(outcomes=outcomes, arrivals=rewards.arrivals, tolerance=0.5, memory=2 * 10**7)
    return question.cut(4 * chain.truncation.level).means


def some_pair(rng, tolerance):
    """A random chain, and the means far beyond its level: the first that are both small enough."""
    while True:
        (engine, rule, _), chain = some_solved_chain(rng, tolerance, memory="2 MB")
        try:
            return chain, far_means(engine, rule, chain)
        except NotConverged:
            continue


@pytest.mark.parametrize("seed", range(100))
def test_the_bound_holds(seed):
    """On random systems, at tolerances from rough to fine."""
    rng = random.Random(1000 + seed)
    chain, far = some_pair(rng, rng.choice([0.2, 1e-2, 1e-3, 1e-4]))
    for name in MEANS:
        bound, truth = chain.truncation.bounds[name], getattr(far, name)
        error = abs(getattr(chain.means, name) - truth)
        assert error <= bound + ROUNDING * (1 + truth), (name, error, bound)
