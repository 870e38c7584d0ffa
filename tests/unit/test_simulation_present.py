"""Requests present in independent runs: their law, its intervals, and how long a run has to be."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import queuetheory_llm as qt
from queuetheory_llm.errors import InfeasibleRequest, InvalidInput
from queuetheory_llm.simulation.judge import default_horizon
from queuetheory_llm.simulation.present import Present, requests_present, settled_horizon, spread

ENGINE = qt.Engine(batch_time=qt.Table(tokens=[1], seconds_at=[1]), b_max=1)


def workload(rate, prefill=0, decode=1):
    return qt.Workload.of(prefill=prefill, decode=decode, arrivals=qt.PoissonArrivals(rate=rate))


def test_the_mean_is_that_of_the_queue():
    """One-token requests, one at a time: M/D/1 with rho + rho^2/(2 (1 - rho)) present."""
    found = requests_present(ENGINE, "sarathi", workload("0.7"), horizon=Fraction(40_000), seed=3)
    exact = 0.7 + 0.49 / 0.6
    assert found.error < 0.05
    assert found.apart(exact, 0) < 4
    assert abs(found.law[0] - 0.3) < 4 * found.laws[:, 0].std(ddof=1) / math.sqrt(8)
    np.testing.assert_allclose(found.laws.sum(axis=1), 1)
    assert (found.runs, found.seconds, found.warm_up) == (8, 40_000, 4_000)
    again = requests_present(ENGINE, "sarathi", workload("0.7"), horizon=Fraction(40_000), seed=3)
    np.testing.assert_array_equal(again.laws, found.laws)


def test_mean_interval_and_tail_are_those_of_the_runs():
    laws = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.6, 0.2, 0.2]])
    found = Present(laws=laws, seconds=10, warm_up=1, seed=0)
    means = [0.7, 0.8, 0.6]
    assert found.mean == pytest.approx(0.7)
    assert found.error == pytest.approx(np.std(means, ddof=1) / math.sqrt(3))
    low, high = found.interval(0.95)
    assert (high - low) / 2 == pytest.approx(4.302652730 * found.error)  # Student's t, two degrees of freedom
    np.testing.assert_allclose(found.beyond[0], [0.5, 0.2, 0])
    np.testing.assert_allclose(spread(laws)[2], 0, atol=1e-12)
    assert found.apart(0.7 + 3 * found.error + 0.1, 0.1) == pytest.approx(3)
    assert found.apart(0.65, 0.1) == 0


def test_runs_without_spread_are_infinitely_far_from_another_mean():
    found = Present(laws=np.array([[1.0], [1.0]]), seconds=10, warm_up=1, seed=0)
    assert found.apart(0, 0) == 0
    assert found.apart(0.1, 0) == math.inf


def test_a_run_lasts_long_enough_to_forget_its_start():
    """The spare capacity serves the mean backlog 100 times; by 1 - load that takes (1 - load)^-2 as long."""
    times = {}
    for rate in ("0.9", "0.99", "0.999"):
        load = float(rate)
        backlog = load + load**2 / (2 * (1 - load))
        times[rate] = float(settled_horizon(ENGINE, workload(rate), backlog=backlog, load=load))
    assert times["0.9"] >= 100_000 / 0.9 * 0.99  # at least so many requests
    assert times["0.99"] == pytest.approx(100 * 49.995 / 0.01, rel=0.01)
    assert times["0.999"] == pytest.approx(2e6 / 0.999, rel=0.01)  # at most so many
    assert settled_horizon(ENGINE, workload("0.9"), backlog=5, load=None) >= default_horizon(
        ENGINE, workload("0.9"), Fraction(9, 10)
    )


def test_what_cannot_be_run_is_refused():
    with pytest.raises(InvalidInput, match="seed"):
        requests_present(ENGINE, "sarathi", workload("0.7"), horizon=Fraction(10), seed=-1)
    with pytest.raises(InvalidInput, match="replications"):
        requests_present(ENGINE, "sarathi", workload("0.7"), horizon=Fraction(10), replications=1)
    with pytest.raises(InvalidInput, match="--rate R"):
        requests_present(ENGINE, "sarathi", qt.Workload.of(prefill=0, decode=1), horizon=Fraction(10))
    with pytest.raises(InvalidInput, match="--rate R"):
        settled_horizon(ENGINE, qt.Workload.of(prefill=0, decode=1), backlog=1, load=0.5)
    with pytest.raises(InfeasibleRequest, match="never fits"):
        requests_present(ENGINE, "vllm-vanilla", workload("0.1", prefill=2), horizon=Fraction(100))
