"""One cycle of GMRES with its preconditioner on the right."""

import numpy as np
import pytest

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.iteration import cycle, steps_for


def system(size):
    rng = np.random.default_rng(size)
    matrix = np.eye(size) + 0.4 * rng.normal(size=(size, size)) / np.sqrt(size)
    return matrix, rng.normal(size=size), np.linalg.inv(matrix + 0.01 * np.eye(size))


@pytest.mark.parametrize("size", [1, 2, 20, 200])
@pytest.mark.parametrize("goal", [1e-3, 1e-10])
def test_a_system_is_solved_to_its_goal(size, goal):
    matrix, rest, near = system(size)
    found, products = cycle(lambda x: matrix @ x, lambda x: near @ x, rest, goal)
    assert np.linalg.norm(rest - matrix @ found) <= 1.01 * goal
    assert 1 <= products <= steps_for(size) + 1


def test_a_good_preconditioner_saves_products():
    matrix, rest, near = system(200)
    with_it, without = (cycle(lambda x: matrix @ x, side, rest, 1e-9)[1] for side in (lambda x: near @ x, np.copy))
    assert with_it < without / 2


def test_a_cycle_ends_with_what_it_has():
    """A shift along a line moves what is left by one place a step: nothing is gained before it has gone round."""
    found, products = cycle(lambda x: np.roll(x, 1), np.copy, np.eye(1000)[0], 1e-9)
    assert np.abs(found).max() <= 1e-12
    assert products == steps_for(1000) + 1


def test_nothing_is_left_to_do():
    found, products = cycle(np.copy, np.copy, np.zeros(5), 1e-9)
    assert found.tolist() == [0.0] * 5
    assert products == 0


@pytest.mark.parametrize("factor", [1e17, 1e200, np.inf, np.nan])
def test_a_singular_preconditioner_is_refused(factor):
    with pytest.raises(NotConverged, match="hardly ever exchange"):
        cycle(np.copy, lambda x: np.full_like(x, factor), np.ones(5), 1e-9)


def test_the_basis_of_a_large_chain_is_kept_small():
    assert steps_for(1000) == 30
    assert steps_for(2 * 10**6) == 12
    assert steps_for(10**9) == 6
