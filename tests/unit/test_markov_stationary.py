"""The stationary law: three methods, closed forms, and chains that have none."""

from fractions import Fraction

import numpy as np
import pytest
from operators import chain, law_of, random_matrix, slotted, systems, timed, written

import queuetheory_llm as qt
from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.markov import stationary as module
from queuetheory_llm.markov.classes import recurrence
from queuetheory_llm.markov.stationary import Method, method_for, passages, stationary

every = pytest.mark.parametrize("method", list(Method))


def checked(operator, method):
    """The law, after all that is promised of it."""
    found = stationary(operator, method=method)
    assert found.method is method
    assert (found.law >= 0).all()
    assert found.law.sum() == pytest.approx(1, abs=1e-14)
    matrix = operator.matrix().toarray()
    assert found.residual == pytest.approx(np.abs(found.law - found.law @ matrix).sum(), abs=1e-14)
    assert found.residual <= 1e-12
    return found.law


# ------------------------------------------------------------------------------------------------------ closed forms


@every
@pytest.mark.parametrize(
    ("rule", "b_max", "workload", "level", "mean"),
    [
        ("sarathi", 2, slotted(1, 1, "0.5"), 60, 1.0),
        ("vllm-vanilla", 2, slotted(1, 1, "0.5"), 60, 2.118033988749895),  # p + r/(1 - r)
        ("fastertransformer", 2, slotted(1, 1, "0.5"), 60, 1.2),
        ("sarathi", 1, slotted(0, 1, "0.8", "poisson"), 200, 2.4),  # Bailey 1954
        ("sarathi", 4, slotted(0, 1, 3, "poisson"), 200, 3.8008834797805955),
        ("sarathi", 1, slotted(0, qt.Geometric(mean=2), "0.3"), 200, 1.05),  # Geo/Geo/1
    ],
)
def test_mean_requests_of_closed_forms(method, rule, b_max, workload, level, mean):
    operator = chain(rule, b_max, workload, level)
    assert checked(operator, method) @ operator.space.requests() == pytest.approx(mean, abs=1e-9)


@every
def test_md1(method):
    load = 0.9
    operator = chain("sarathi", 1, timed(0, 1, load), 600)
    law = checked(operator, method)
    # Seen at starts of service and while idle: batches of one request and idle times alternate as in M/D/1.
    time = np.where(operator.space.requests() == 0, 1 / load, 1.0)
    assert law[0] * time[0] / (law @ time) == pytest.approx(1 - load, abs=1e-9)


@every
def test_small_probabilities_keep_their_digits(method):
    """A birth and death chain whose law is a power, counted after arrivals, down to 1e-300."""
    up, size = 0.01, 152
    operator = chain("sarathi", 1, slotted(0, qt.Geometric(mean=2), "0.01"), 2 * size)
    law = checked(operator, method)
    assert operator.space.known.tolist() == [0]
    np.testing.assert_allclose(law[2:] / law[1:-1], up / (1 - up), rtol=1e-10)
    assert 0 < law[-1] < 1e-300


# --------------------------------------------------------------------------------------------------- methods compared


def test_methods_agree_on_random_systems():
    for operator, _ in systems(seed=7, number=25):
        laws = [checked(operator, method) for method in Method]
        assert np.abs(laws[1] - laws[0]).sum() < 1e-11
        assert np.abs(laws[2] - laws[0]).sum() < 1e-10


@pytest.mark.parametrize("seed", range(6))
def test_methods_agree_on_chains_without_structure(seed):
    rng = np.random.default_rng(seed)
    operator = written(random_matrix(rng, 300), known=rng.integers(0, 7, 300))
    laws = [checked(operator, method) for method in Method]
    assert np.abs(laws[1] - laws[0]).sum() < 1e-12
    assert np.abs(laws[2] - laws[0]).sum() < 1e-9


def nearly_decomposable(weak):
    """Two groups of states that hardly ever exchange, in fractions."""
    rng = np.random.default_rng(3)
    size = 8
    weight = [[Fraction(int(rng.integers(1, 20))) for _ in range(size)] for _ in range(size)]
    for i in range(size):
        for j in range(size):
            if (i < 4) != (j < 4):
                weight[i][j] *= weak
    return [[entry / sum(row) for entry in row] for row in weight]


@pytest.mark.parametrize("digits", [6, 12, 20])
def test_elimination_keeps_every_digit_of_nearly_decomposable_chains(digits):
    """I - P in floating point is singular to all digits."""
    exact = nearly_decomposable(Fraction(1, 10**digits))
    law = stationary(written(np.array(exact, dtype=float)), method=Method.GTH).law
    np.testing.assert_allclose(law, np.array(law_of(exact), dtype=float), rtol=1e-13)


@pytest.mark.parametrize("method", [Method.DIRECT, Method.ITERATIVE])
def test_the_other_methods_lose_as_many_digits_or_refuse(method):
    for digits in range(1, 8):
        exact = nearly_decomposable(Fraction(1, 10**digits))
        found = stationary(written(np.array(exact, dtype=float), known=[0] * 4 + [1] * 4), method=method)
        np.testing.assert_allclose(found.law, np.array(law_of(exact), dtype=float), rtol=10.0 ** (digits - 14))
    for digits in (12, 16, 20, 200):
        exact = nearly_decomposable(Fraction(1, 10**digits))
        with pytest.raises(NotConverged, match="hardly ever exchange"):
            stationary(written(np.array(exact, dtype=float), known=[0] * 4 + [1] * 4), method=method)


@pytest.mark.parametrize("known", [[0] * 8, [0] * 4 + [1] * 4, [0, 1] * 4])
def test_the_iterative_law_is_known_or_refused_however_blocks_lie(known):
    """Where both groups share a block, the chain of blocks mixes at once, and a residual of 1e-16 means nothing."""
    refused = []
    for digits in range(17):
        exact = nearly_decomposable(Fraction(1, 10**digits))
        try:
            found = stationary(written(np.array(exact, dtype=float), known=known), method=Method.ITERATIVE)
        except NotConverged as error:
            refused.append((digits, str(error)))
            continue
        assert np.abs(found.law - np.array(law_of(exact), dtype=float)).sum() < 1e-6
    assert {digits for digits, _ in refused} >= set(range(13, 17))
    assert min(refused)[0] > 7
    assert all("hardly ever exchange" in why or "only known to" in why for _, why in refused)


def test_passages_are_bounds():
    """Against the passage times by linear algebra, under a law that is somewhat wrong."""
    rng = np.random.default_rng(8)
    for operator, _ in systems(seed=23, number=15):
        matrix, states = operator.matrix().toarray(), recurrence(operator).classes[0]
        law = stationary(operator, method=Method.GTH).law * rng.uniform(0.9, 1.1, len(operator))
        law /= law.sum()
        likely = int(law.argmax())
        others = states[states != likely]
        exact = np.zeros(len(operator))
        exact[others] = np.linalg.solve(np.eye(others.size) - matrix[np.ix_(others, others)], np.ones(others.size))
        bounds, _ = passages(operator, law, states)
        assert (bounds[states] >= exact[states] * (1 - 1e-9)).all()
        assert (bounds[states] <= 4 * exact[states].max()).all()


@every
def test_a_periodic_chain_has_a_law_of_long_run_averages(method):
    rng = np.random.default_rng(2)
    matrix = np.zeros((60, 60))
    for turn in range(3):
        rows, columns = slice(20 * turn, 20 * turn + 20), np.arange(20) + 20 * ((turn + 1) % 3)
        matrix[rows, columns] = rng.dirichlet(np.ones(20), 20)
    operator = written(matrix)
    assert recurrence(operator).periods == (3,)
    law = checked(operator, method)
    np.testing.assert_allclose(law.reshape(3, 20).sum(axis=1), 1 / 3, atol=1e-12)
    averages = np.linalg.matrix_power(matrix, 300) + np.linalg.matrix_power(matrix, 301)
    np.testing.assert_allclose(law, (averages + np.linalg.matrix_power(matrix, 302))[0] / 3, atol=1e-10)


@every
def test_transient_states_have_no_weight(method):
    rng = np.random.default_rng(4)
    matrix = np.zeros((50, 50))
    matrix[:30, :30] = random_matrix(rng, 30)
    matrix[30:] = rng.dirichlet(np.ones(50), 20)
    order = rng.permutation(50)
    law = checked(written(matrix[np.ix_(order, order)]), method)
    assert (law[order >= 30] == 0).all()
    assert (law[order < 30] > 0).all()


@every
def test_one_state(method):
    assert stationary(written(np.ones((1, 1))), method=method).law.tolist() == [1.0]


# ------------------------------------------------------------------------------------------------------------ refusals


@every
def test_several_closed_classes_are_refused(method):
    matrix = np.eye(3)
    matrix[2] = 1 / 3
    with pytest.raises(AssumptionViolated, match="2 closed classes, of 1, 1 states: the long run depends on the start"):
        stationary(written(matrix), method=method)


def test_no_law_without_its_tolerance(monkeypatch):
    monkeypatch.setattr(module, "CYCLES", 0)
    operator = chain("sarathi", 4, slotted(2, qt.Geometric(mean=9), "0.25"), 120)
    with pytest.raises(NotConverged, match="residual of"):
        stationary(operator, method=Method.ITERATIVE)
    with pytest.raises(NotConverged, match="residual of"):
        stationary(operator, method=Method.DIRECT, tolerance=0.0)


def test_a_loose_residual_is_no_law():
    """Of 300 states that are left for each other at random, what a residual of 1e-3 hides is more than 1e-6."""
    rng = np.random.default_rng(0)
    operator = written(random_matrix(rng, 300), known=rng.integers(0, 7, 300))
    with pytest.raises(NotConverged, match="the law is only known to"):
        stationary(operator, method=Method.ITERATIVE, tolerance=1e-3)


def test_no_passage_without_its_bound(monkeypatch):
    monkeypatch.setattr(module, "CYCLES", 0)
    operator = chain("sarathi", 4, slotted(2, qt.Geometric(mean=9), "0.25"), 120)
    law = stationary(operator, method=Method.DIRECT).law
    with pytest.raises(NotConverged, match="no bound on the passage"):
        passages(operator, law, np.arange(len(operator)))


def test_the_method_goes_by_size():
    sizes = [(module.DENSE, 10**6), (module.DENSE + 1, module.DIRECT), (10**5, module.DIRECT + 1)]
    assert [method_for(*size) for size in sizes] == list(Method)


def test_progress_is_told():
    seen = []
    operator = chain("sarathi", 4, slotted(2, qt.Geometric(mean=9), "0.25"), 120)
    found = stationary(operator, method=Method.ITERATIVE, progress=lambda products, rest: seen.append((products, rest)))
    assert [products for products, _ in seen] == sorted({products for products, _ in seen})
    assert seen[-1][0] <= found.iterations
    assert seen[-1][1] <= 1e-12
