"""What the empty engine can get to, against a plain search of the matrix."""

import random

import numpy as np
import pytest
from chains import some_chain
from scipy.sparse.csgraph import breadth_first_order

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.explore import Limits, explore
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.reach import reached
from queuetheory_llm.model.chances import request_law


def some_space(seed):
    """A space of random lines up to a few requests, before and after what is never reached is left out."""
    rng = random.Random(seed)
    while True:
        engine, rule, workload = some_chain(rng)
        law = request_law(workload, memoryless=True, late=True)
        outcomes = Outcomes(engine=engine, scheduler=rule, law=law)
        try:
            space = explore(outcomes, workload.arrivals, rng.uniform(3, 8) * law.mean_tokens, Limits(3000, 30_000))
        except NotConverged:
            continue
        return space, reached(space)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_what_a_search_finds(seed):
    """Every state that is reached; on its line none beyond the last of them; and between those the same chances."""
    space, kept = some_space(seed)
    number = {state: index for index, state in enumerate(space.states())}
    old = np.array([number[state] for state in kept.states()])
    matrix = space.matrix()
    np.testing.assert_allclose(matrix[old][:, old].toarray(), kept.matrix().toarray(), rtol=0, atol=1e-15)
    found = breadth_first_order(matrix, 0, return_predecessors=False)
    assert np.isin(found, old).all()
    line = np.repeat(np.arange(len(space.cores)), np.diff(space.first))
    assert set(line[found]) == set(line[old])
    last = np.full(len(space.cores), -1)
    np.maximum.at(last, line[found], space.unseen()[found])
    np.testing.assert_array_equal(kept.room, last[last >= 0])


def test_some_spaces_have_states_that_are_never_reached():
    sizes = [tuple(map(len, some_space(seed))) for seed in range(12)]
    assert any(kept < size for size, kept in sizes)
    assert any(kept == size for size, kept in sizes)
