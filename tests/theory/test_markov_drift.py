"""The drift of the token backlog against the matrix of the chain: F, eps, and the mean time to reach F."""

import random

import numpy as np
import pytest
from chains import some_solved_chain

import queuetheory_llm as qt
from queuetheory_llm.model.batch_time import Table

ROUNDING = 1e-9


def lost_of(space):
    """Requests refused on average at the boundary that follows each state."""
    lost, moves = np.zeros(len(space)), space.moves
    for move in range(len(moves)):
        law = space.durations[moves.duration[move]].arrivals
        unseen = np.arange(moves.low[move], moves.high[move] + 1)
        room = space.room[moves.target[move]] - (unseen - moves.taken[move])
        beyond = np.maximum(np.arange(law.size) - room[:, None], 0) @ law
        lost[space.first[moves.source[move]] + unseen] += moves.chance[move] * beyond
    return lost


def time_to(goal, matrix):
    """Mean number of boundaries until the chain is in one of the states ``goal``."""
    outside = np.setdiff1d(np.arange(matrix.shape[0]), goal)
    inner = matrix[outside][:, outside].toarray()
    found = np.zeros(matrix.shape[0])
    found[outside] = np.linalg.solve(np.eye(outside.size) - inner, np.ones(outside.size))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_drift_is_that_of_the_matrix_and_bounds_the_time_to_f(seed):
    """V changes by the drift less what is refused, by eps or more outside F; and in the long run not at all."""
    chain = some_solved_chain(random.Random(7100 + seed), 1e-2, memory="1 MB")[1]
    table, space, matrix = chain.drift, chain.space, chain.cut.operator.matrix()
    drift, backlog, lost = chain.cut.rewards.drift(), space.backlog(), lost_of(space)
    change = matrix @ backlog - backlog
    np.testing.assert_allclose(change, drift - space.mean * lost, rtol=0, atol=ROUNDING)
    assert sum(row.states for row in table.rows) == len(space)
    assert sum(row.chance for row in table.rows) == pytest.approx(1)
    total = sum(row.chance * row.drift for row in table.rows)
    assert total == pytest.approx(space.mean * float(chain.law @ lost), abs=ROUNDING)
    bound = table.boundaries_to_exceptional()
    if table.epsilon is None:
        assert bound is None
        return
    outside = np.setdiff1d(np.arange(len(space)), table.exceptional)
    assert (drift[outside] <= -table.epsilon + ROUNDING).all()
    assert (drift[table.exceptional] > -table.epsilon).all()
    assert (bound[table.exceptional] == 0).all()
    assert (time_to(table.exceptional, matrix) <= bound * (1 + ROUNDING)).all()


@pytest.mark.parametrize(("lengths", "mean", "b_max"), [((2, 1), "0.4", 2), ((1, 2), "0.9", 4), ((0, 1), "2.2", 3)])
def test_full_batches_fall_by_b_max_less_what_comes(lengths, mean, b_max):
    """Sarathi fills every batch that it can: eps = b_max - m E[arrivals], F the states with fewer than b_max tokens.

    Then V - eps n is a martingale until F is reached, so the time is (V - E[V in F])/eps: V/eps is too long by no more
    than the largest V in F over eps.
    """
    engine = qt.Engine(batch_time=Table(tokens=[b_max], seconds_at=[1]), b_max=b_max)
    arrivals = qt.SlottedArrivals(slot=1, law="poisson", mean=mean)
    workload = qt.Workload.of(prefill=lengths[0], decode=lengths[1], arrivals=arrivals)
    chain = qt.exact_chain(engine, "sarathi", workload, tolerance=1e-4)
    table, backlog = chain.drift, chain.space.backlog()
    assert table.epsilon == pytest.approx(b_max - sum(lengths) * float(mean))
    np.testing.assert_array_equal(table.exceptional, np.flatnonzero(chain.cut.rewards.batch_tokens < b_max - 0.5))
    time = time_to(table.exceptional, chain.cut.operator.matrix())
    bound = table.boundaries_to_exceptional()
    far = (backlog < chain.truncation.level / 3) & (bound > 0)
    assert far.sum() > 5
    slack = (bound - time)[far]
    assert (slack >= -ROUNDING).all()
    assert (slack <= backlog[table.exceptional].max() / table.epsilon + 0.02).all()
