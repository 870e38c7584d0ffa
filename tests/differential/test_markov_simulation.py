"""Exact chains against the runner: two forms of one model that share nothing but the rules."""

import random
from fractions import Fraction

import numpy as np
import pytest
from chains import some_solved_chain

from queuetheory_llm.simulation.present import requests_present

RUNS, BATCHES = 24, 5_000


@pytest.mark.parametrize("seed", range(50))
def test_simulation_agrees_on_random_small_systems(seed):
    """The mean number of requests over time and the share of it without a request, within four standard errors."""
    (engine, rule, workload), chain = some_solved_chain(random.Random(seed), 1e-4, memory="10 MB")
    horizon = Fraction(chain.means.seconds).limit_denominator(10**6) * BATCHES
    runs = requests_present(engine, rule, workload, horizon=horizon, seed=seed, replications=RUNS)
    bounds = chain.truncation.bounds
    assert abs(runs.mean - chain.means.requests) <= 4 * runs.error + bounds["requests"]
    assert runs.error < 0.05 * chain.means.requests  # or the test says nothing
    idle = runs.laws[:, 0]
    error = idle.std(ddof=1) / np.sqrt(RUNS)
    assert abs(idle.mean() - chain.means.idle) <= 4 * error + bounds["idle"]
    assert error < 0.02
