"""The Poisson equation, and what it says of refused requests."""

import numpy as np
import pytest
from operators import chain, random_matrix, slotted, systems, timed, written

import queuetheory_llm as qt
from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.markov import poisson_equation as module
from queuetheory_llm.markov.poisson_equation import Embedding, bias
from queuetheory_llm.markov.stationary import Method, stationary

every = pytest.mark.parametrize("method", list(Method))


def centred(law, cost):
    return cost - law @ cost


@every
def test_the_bias_is_the_sum_of_what_is_expected(method):
    rng = np.random.default_rng(1)
    matrix = random_matrix(rng, 40)
    operator = written(matrix, known=rng.integers(0, 3, 40))
    law = stationary(operator, method=Method.GTH).law
    cost = centred(law, rng.normal(size=40))
    found = bias(operator, law, cost, method=method, tolerance=1e-12)
    total, power = np.zeros(40), np.eye(40)
    for _ in range(3000):
        total += power @ cost
        power = power @ matrix
    np.testing.assert_allclose(found.values, total, atol=1e-9)
    assert law @ found.values == pytest.approx(0, abs=1e-12)


@every
def test_what_is_left_is_reported(method):
    operator = chain("sarathi", 4, timed(2, qt.Geometric(mean=5), "0.3"), 120)
    law = stationary(operator, method=Method.GTH).law
    cost = centred(law, operator.space.backlog())
    found = bias(operator, law, cost, method=method)
    rest = np.abs(cost - found.mean - found.values + operator.matrix() @ found.values)
    assert found.residual == pytest.approx(rest.max(), abs=1e-9)
    assert found.weighted == pytest.approx(law @ rest, abs=1e-9)
    assert found.residual <= 1e-9 * np.abs(cost).max()
    assert abs(found.mean) < 1e-9


@every
def test_the_mean_that_an_inexact_law_leaves_is_found(method):
    """(I - P) h = cost - mean: the second unknown is the mean under the true law."""
    operator = chain("sarathi", 2, slotted(2, 1, "0.45"), 60)
    law = stationary(operator, method=Method.GTH).law
    blurred = law * (1 + 1e-6 * np.sin(np.arange(law.size)))
    blurred /= blurred.sum()
    cost = centred(blurred, operator.space.backlog())
    found = bias(operator, blurred, cost, method=method)
    assert found.mean == pytest.approx(law @ cost, abs=1e-11)
    assert abs(found.mean) > 1e-9


def test_a_cost_that_is_not_centred_is_refused():
    operator = written(np.full((2, 2), 0.5))
    with pytest.raises(AssumptionViolated, match="take it off"):
        bias(operator, np.array([0.5, 0.5]), np.array([1.0, 2.0]))


def test_no_bias_without_its_tolerance(monkeypatch):
    operator = chain("sarathi", 4, timed(2, qt.Geometric(mean=5), "0.3"), 120)
    law = stationary(operator, method=Method.GTH).law
    monkeypatch.setattr(module, "CYCLES", 0)
    with pytest.raises(NotConverged, match="residual of"):
        bias(operator, law, centred(law, operator.space.backlog()), method=Method.ITERATIVE)


@every
def test_refused_requests_are_the_whole_difference_of_two_levels(method):
    """x (Q - P) h = x cost - mean, on random systems; the absolute sum bounds it."""
    refused = 0
    for small, large in systems(seed=11, number=20):
        law, other = stationary(small, method=method), stationary(large, method=Method.GTH)
        for cost in (large.space.backlog(), (large.space.requests() == 0).astype(float)):
            g = centred(other.law, cost)
            h = bias(large, other.law, g, method=method, tolerance=1e-12)
            absolute, signed = Embedding(small, large).refusal_error(law.law, h.values)
            own = small.space.backlog() if cost[0] == 0 else (small.space.requests() == 0).astype(float)
            error = law.law @ own - other.law @ cost
            assert signed == pytest.approx(error, abs=1e-9 * max(1.0, np.abs(h.values).max()))
            assert abs(signed) <= absolute * (1 + 1e-12)
            refused += absolute > 1e-6
    assert refused > 10


def test_another_system_cannot_judge():
    small = chain("sarathi", 2, slotted(2, 1, "0.45"), 30)
    lower = chain("sarathi", 2, slotted(2, 1, "0.45"), 15)
    with pytest.raises(AssumptionViolated, match="higher level"):
        Embedding(small, lower)
    other = chain("sarathi", 2, slotted(1, 2, "0.3"), 60)
    with pytest.raises(AssumptionViolated, match="higher level"):
        Embedding(small, other)
