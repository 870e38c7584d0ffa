"""Exact chains against the runner: two forms of one model that share nothing but the rules."""

import random
from fractions import Fraction

import numpy as np
import pytest
from chains import some_solved_chain

from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import fixed_times, sample
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.runner import run

RUNS, BATCHES, WARM = 24, 6_000, 600


def present(engine, rule, workload, seconds, seed):
    """Mean number present and share of time without a request, in each of the runs, after a warm-up."""
    horizon = Fraction(seconds) * BATCHES
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), horizon)
    until = clock.bound(horizon)
    found = []
    for child in np.random.SeedSequence(seed).spawn(RUNS):
        requests = sample(workload, clock, horizon, np.random.default_rng(child))
        done = run(engine, rule, requests, clock, until=until)
        begin = until * WARM // BATCHES
        gone = np.where(done.finish == NEVER, until, np.minimum(done.finish, until))
        inside = np.maximum(gone, begin) - np.clip(requests.arrival, begin, until)
        found.append(inside.sum() / (until - begin))
    return np.array(found)


@pytest.mark.parametrize("seed", range(50))
def test_simulation_agrees_on_random_small_systems(seed):
    """The mean number of requests over time, within four standard errors."""
    (engine, rule, workload), chain = some_solved_chain(random.Random(seed), 1e-4, memory="40 MB")
    runs = present(engine, rule, workload, Fraction(chain.means.seconds).limit_denominator(10**6), seed)
    error = runs.std(ddof=1) / np.sqrt(RUNS)
    assert abs(runs.mean() - chain.means.requests) <= 4 * error + chain.truncation.bounds["requests"]
    assert error < 0.1 * chain.means.requests  # or the test says nothing
