"""The drift table against hitting times from linear systems, and where theory says what F and eps are."""

import attrs
import numpy as np
import pytest
from exported import chain_of, mixed, slotted, stationary, timed

import queuetheory_llm as qt
from queuetheory_llm.markov.drift import AtLevel, drift_table
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.reach import reached


def table_of(rewards):
    rewards = attrs.evolve(rewards, operator=Operator(reached(rewards.space)))
    return drift_table(rewards, stationary(rewards.operator.matrix().toarray()))


def hitting(table, cost):
    """Mean total cost until F is reached, from each state."""
    matrix = table.rewards.operator.matrix().toarray()
    outside = np.delete(np.arange(len(matrix)), table.exceptional)
    found = np.zeros(len(matrix))
    found[outside] = np.linalg.solve((np.eye(len(matrix)) - matrix)[np.ix_(outside, outside)], cost[outside])
    return found


def changes(table):
    """E[V at the next boundary] - V of the chain explored."""
    matrix = table.rewards.operator.matrix().toarray()
    return matrix @ table.backlog - table.backlog


def check_bounds(table):
    """Both bounds are above the truth, V falls outside F by eps or more, and eps could not be larger there."""
    steps, seconds = table.boundaries_to_exceptional(), table.seconds_to_exceptional()
    assert (hitting(table, np.ones(steps.size)) <= steps + 1e-9).all()
    assert (hitting(table, table.rewards.seconds) <= seconds + 1e-9).all()
    outside = np.delete(np.arange(steps.size), table.exceptional)
    assert outside.size
    fall = -changes(table)[outside]
    assert fall.min() >= table.epsilon - 1e-9
    assert (fall / table.rewards.seconds[outside]).min() >= table.epsilon_per_second - 1e-9


BOUNDED = {
    "slots, sarathi": lambda level: slotted("sarathi", 2, 1, ".45", level=level),
    "slots, Poisson": lambda level: slotted("orca", 0, 1, "3", law="poisson", b_max=4, level=level),
    "slots, random prompts": lambda level: slotted("sarathi", mixed(1, 3), 1, ".4", level=level),
    "time, sarathi": lambda level: timed("sarathi", 1, 2, ".2", k_max=None, level=level),
    "time, geometric": lambda level: timed("vllm-chunked", 2, qt.Geometric(mean=2), ".2", k_max=None, level=level),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_set_below_the_level_is_reached_within_the_bounds(name):
    """And it stays what it is on the chain of a level twice as high, where nothing of the lower level is refused."""
    table, larger = (table_of(BOUNDED[name](level)) for level in (24, 48))
    for each in (table, larger):
        assert each.at_level is AtLevel.BOUNDED
        assert not each.closed
        check_bounds(each)
    assert larger.epsilon == pytest.approx(table.epsilon)
    assert larger.depth == pytest.approx(table.depth)
    assert table.depth < 24
    assert larger.exceptional.size == table.exceptional.size
    low = np.flatnonzero(larger.backlog <= 24)
    true = changes(larger)[low]
    inside = np.isin(low, larger.exceptional)
    assert true[inside].min() > -larger.epsilon
    assert true[~inside].max() == pytest.approx(-larger.epsilon, abs=1e-6)


def test_one_token_a_slot_falls_by_one_less_the_rate():
    """Poisson(.6) requests of a token, one served a slot: F is the empty engine, n/(1 - .6) slots away from n."""
    table = table_of(slotted("sarathi", 0, 1, ".6", law="poisson", b_max=1, level=90))
    assert table.at_level is AtLevel.BOUNDED
    assert table.epsilon == pytest.approx(0.4)
    assert table.exceptional.tolist() == [0]
    assert table.depth == 0
    few = np.arange(21)
    np.testing.assert_array_equal(table.backlog[few], few)
    np.testing.assert_allclose(table.boundaries_to_exceptional()[few], few / 0.4)
    np.testing.assert_allclose(hitting(table, np.ones(91))[few], few / 0.4, rtol=1e-6)


def test_the_busy_period_of_m_d_1():
    """Two seconds a request of one token: from n requests n 2/(1 - rho) seconds until the engine is empty."""
    engine = qt.Engine(batch_time=qt.Table(tokens=[1], seconds_at=["2 s"]), b_max=1)
    workload = qt.Workload.of(prefill=0, decode=1, arrivals=qt.PoissonArrivals(rate=".3"))
    table = table_of(chain_of(engine, "sarathi", workload, 90))
    few = np.arange(21)
    assert table.epsilon_per_second == pytest.approx(0.2)
    np.testing.assert_allclose(table.seconds_to_exceptional()[few], few * 2 / 0.4)
    np.testing.assert_allclose(hitting(table, table.rewards.seconds)[few], few * 2 / 0.4, rtol=1e-6)
    said = table.to_dict()
    law = table.law
    assert said["mean_steps_to_exceptional"] == pytest.approx(law @ table.backlog / 0.4)
    assert said["mean_seconds_to_exceptional"] == pytest.approx(law @ table.backlog / 0.2)
    idle, busy = table.rows
    assert (idle.steps, idle.exceptional, idle.drift) == (0, True, pytest.approx(1))
    assert busy.steps == pytest.approx(90 / 0.4)


@pytest.mark.parametrize("level", [30, 60, 90])
def test_a_rule_that_starves_decodes_has_no_bounded_set(level):
    """A lone prompt goes before any number of decodes: a batch of one token while 1.2 arrive, however many wait."""
    table = table_of(slotted("vllm-vanilla", 1, 1, ".6", level=level))
    assert table.at_level is AtLevel.UNBOUNDED
    assert table.depth == level
    rising = changes(table) > 0.1
    assert table.backlog[rising].max() == level - 1  # at the level itself what is refused lowers it
    assert set(np.flatnonzero(rising)) <= set(table.exceptional)
    assert table.epsilon is table.epsilon_per_second is None
    assert table.boundaries_to_exceptional() is table.seconds_to_exceptional() is None
    said = table.to_dict()
    assert said["exceptional_set"] == "UNBOUNDED"
    assert said["epsilon_tokens"] is said["mean_steps_to_exceptional"] is said["rows"][0]["steps"] is None


def test_a_chain_below_the_level_has_the_set_where_v_does_not_fall():
    """Requests of two tokens, two a slot, at most one comes: four states, nothing refused at any level."""
    table = table_of(slotted("sarathi", 1, 1, ".5"))
    assert table.at_level is AtLevel.NOT_SEEN
    assert table.closed
    assert table.backlog.tolist() == [0, 2, 1, 3]
    assert table.exceptional.tolist() == [0, 1, 2]
    assert table.epsilon == 1
    check_bounds(table)
    assert hitting(table, np.ones(4)).tolist() == [0, 0, 0, 2]  # a slot, and one more for each that brings a request
    assert table.boundaries_to_exceptional().tolist() == [0, 0, 0, 3]


def test_where_v_never_falls_every_state_is_exceptional():
    """A request of two tokens every slot, three tokens a slot, prompts and decodes in turn: the backlog is periodic."""
    table = table_of(slotted("fastertransformer", 1, 1, "1", b_max=3))
    assert table.closed
    assert table.exceptional.size == table.backlog.size
    assert table.epsilon is None
    assert table.to_dict()["mean_steps_to_exceptional"] is None


def test_a_level_with_too_few_requests_for_a_batch_refutes_nothing():
    """Two seconds a batch of 64 decodes or fewer, while 9 tokens come: V falls once ten decodes run, not before."""

    def table_to(level):
        engine = qt.Engine(batch_time=qt.Staircase(c="1 s", a="1 s", b0=64), b_max=64)
        workload = qt.Workload.of(prefill=1, decode=qt.Geometric(mean=8), arrivals=qt.PoissonArrivals(rate=".5"))
        return table_of(chain_of(engine, "sarathi", workload, level))

    low, high = table_to(36), table_to(180)
    assert low.at_level is AtLevel.NOT_SEEN
    assert not low.closed
    assert high.at_level is AtLevel.BOUNDED
    assert high.depth < 180 - 9
    check_bounds(high)
