"""Closed classes, transient states and periods."""

import numpy as np
import pytest
from operators import chain, random_matrix, slotted, systems, written

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov import classes
from queuetheory_llm.markov.classes import recurrence


def block_matrix(*blocks):
    size = sum(map(len, blocks))
    out, at = np.zeros((size, size)), 0
    for block in blocks:
        out[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return out


def cyclic(rng, period, size):
    """A chain whose states fall into ``period`` sets visited in turn."""
    matrix = np.zeros((period * size, period * size))
    for turn in range(period):
        after = (turn + 1) % period
        matrix[turn * size : (turn + 1) * size, after * size : (after + 1) * size] = rng.dirichlet(np.ones(size), size)
    return matrix


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_the_period_of_a_cyclic_chain(period):
    found = recurrence(written(cyclic(np.random.default_rng(period), period, 5)))
    assert found.periods == (period,)
    assert found.classes[0].tolist() == list(range(5 * period))
    assert found.transient == 0


def test_the_period_is_the_divisor_of_all_cycles():
    matrix = np.roll(np.eye(6), 1, axis=1)
    matrix[2] = [0.5, 0, 0, 0.5, 0, 0]  # a cycle of 3 beside that of 6
    assert recurrence(written(matrix)).periods == (3,)
    matrix[1] = [0.5, 0, 0.5, 0, 0, 0]  # and one of 2
    assert recurrence(written(matrix)).periods == (1,)


def test_closed_classes_are_told_from_transient_states():
    rng = np.random.default_rng(1)
    matrix = block_matrix(random_matrix(rng, 4), cyclic(rng, 2, 2), np.eye(1), np.zeros((3, 3)))
    matrix[9, [0, 10]] = 0.5
    matrix[10, [11, 4]] = 0.5
    matrix[11, [10, 8]] = 0.5
    order = rng.permutation(12)
    found = recurrence(written(matrix[np.ix_(order, order)]))
    classes = {
        frozenset(order[states].tolist()): period for states, period in zip(found.classes, found.periods, strict=True)
    }
    assert classes == {frozenset(range(4)): 1, frozenset(range(4, 8)): 2, frozenset([8]): 1}
    assert found.transient == 3


def test_a_search_from_the_empty_engine_finds_what_the_written_graph_has():
    searched = 0
    for operator, _ in systems(seed=5, number=40):
        found, graph = recurrence(operator), classes._by_components(operator)
        searched += classes._empties(operator)
        assert found.periods == graph.periods
        assert found.transient == graph.transient
        for mine, other in zip(found.classes, graph.classes, strict=True):
            assert mine.tolist() == other.tolist()
    assert searched == 40


def test_an_engine_that_always_gets_a_request_never_empties():
    operator = chain("sarathi", 3, slotted(1, 1, 1), 12)
    assert not classes._empties(operator)
    found = recurrence(operator)
    assert 0 not in found.classes[0]


def test_too_large_a_search_is_refused(monkeypatch):
    monkeypatch.setattr(classes, "_WRITTEN_OUT", 3)
    with pytest.raises(NotConverged, match="transitions"):
        recurrence(written(np.full((2, 2), 0.5)))
