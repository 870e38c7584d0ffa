"""The Poisson equation, and what it says of refused requests."""

import numpy as np
import pytest
from operators import chain, random_matrix, slotted, systems, timed, written

import queuetheory_llm as qt
from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.markov import poisson_equation as module
from queuetheory_llm.markov.poisson_equation import Embedding, PoissonEquation
from queuetheory_llm.markov.stationary import Method, stationary

every = pytest.mark.parametrize("method", list(Method))


def centred(law, cost):
    return cost - law @ cost


def solved(operator, law, cost, method=None, tolerance=1e-9):
    given = {} if method is None else {"method": method}
    return PoissonEquation(operator, law, **given).solve(cost, tolerance=tolerance)


@every
def test_the_bias_is_the_sum_of_what_is_expected(method):
    rng = np.random.default_rng(1)
    matrix = random_matrix(rng, 40)
    operator = written(matrix, known=rng.integers(0, 3, 40))
    law = stationary(operator, method=Method.GTH).law
    cost = centred(law, rng.normal(size=40))
    found = solved(operator, law, cost, method=method, tolerance=1e-12)
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
    found = solved(operator, law, cost, method=method)
    rest = cost - found.mean - found.values + operator.matrix() @ found.values
    np.testing.assert_allclose(found.rest, rest, atol=1e-9)
    assert found.residual == np.abs(found.rest).max()
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
    found = solved(operator, blurred, cost, method=method)
    assert found.mean == pytest.approx(law @ cost, abs=1e-11)
    assert abs(found.mean) > 1e-9


@every
def test_any_cost_has_its_mean(method):
    operator = chain("sarathi", 2, slotted(2, 1, "0.45"), 60)
    law = stationary(operator, method=Method.GTH).law
    cost = operator.space.backlog()
    found, other = solved(operator, law, cost, method), solved(operator, law, centred(law, cost), method)
    assert found.mean == pytest.approx(law @ cost, rel=1e-9)
    np.testing.assert_allclose(found.values, other.values, atol=1e-7)


@every
def test_a_cost_that_is_hardly_ever_met_is_solved_for(method):
    """Light load: taking the idle share, nearly 1, off an idle engine leaves little but rounding."""
    operator = chain("sarathi", 2, slotted(1, 1, "0.000000001"), 8)
    law = stationary(operator, method=Method.GTH).law
    idle = (operator.space.requests() == 0).astype(float)
    found = solved(operator, law, centred(law, idle), method)
    assert abs(found.mean) <= 1e-15
    alone = np.flatnonzero(operator.space.requests() == 1)
    slots = operator.space.backlog()[alone]  # until the request has left: one token in each
    np.testing.assert_allclose(found.values[0] - found.values[alone], slots, rtol=1e-6)


def test_what_is_left_of_a_loose_solution_makes_up_the_difference():
    """x (cost - mean) = x (Q - P) h + (x - x Q) h + x rest, for an x that is no law of Q and an h that is not exact."""
    small, large = (chain("sarathi", 4, timed(2, qt.Geometric(mean=5), "0.3"), level) for level in (90, 180))
    found = solved(large, stationary(large).law, large.space.backlog(), Method.ITERATIVE, tolerance=1e-2)
    inside = Embedding(small, large)
    law = np.random.default_rng(5).dirichlet(np.ones(len(small)))
    refused = inside.refusal_error(law, found.values)[1]
    moving = (law - small.push(law)) @ inside.restricted(found.values)
    left = law @ inside.restricted(found.rest)
    whole = law @ inside.restricted(large.space.backlog()) - found.mean
    assert refused + moving + left == pytest.approx(whole, abs=1e-9)
    assert abs(left) > 1e-4  # so that it counts


def test_no_bias_without_its_tolerance(monkeypatch):
    operator = chain("sarathi", 4, timed(2, qt.Geometric(mean=5), "0.3"), 120)
    law = stationary(operator, method=Method.GTH).law
    monkeypatch.setattr(module, "CYCLES", 0)
    with pytest.raises(NotConverged, match="residual of"):
        solved(operator, law, centred(law, operator.space.backlog()), method=Method.ITERATIVE)


@every
def test_refused_requests_are_the_whole_difference_of_two_levels(method):
    """x (Q - P) h = x cost - mean, on random systems; the absolute sum bounds it."""
    refused = 0
    for small, large in systems(seed=11, number=20):
        law, other = stationary(small, method=method), stationary(large, method=Method.GTH)
        for cost in (large.space.backlog(), (large.space.requests() == 0).astype(float)):
            g = centred(other.law, cost)
            h = solved(large, other.law, g, method=method, tolerance=1e-12)
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
