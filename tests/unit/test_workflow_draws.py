"""Queries drawn from a workflow: who waits for whom, how often a stage is visited, and that a seed says all."""

from collections import Counter
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workflows import chain, closure, stage, workflows

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import ConstantInterval, ExponentialInterval
from queuetheory_llm.model.lengths import Constant, Geometric, Uniform
from queuetheory_llm.model.workflow import Stage, Tenant, Workflow
from queuetheory_llm.model.workflow_log import WorkflowLog
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.query_source import taken
from queuetheory_llm.simulation.workflow_draws import draw_queries, queries_of_log


def _draw(flow, count, seed=1):
    return draw_queries(flow, np.arange(count, dtype=np.int64), np.random.default_rng(seed))


def _arrays(queries):
    return [getattr(queries, field.name) for field in attrs.fields(Queries)]


def _same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(_arrays(one), _arrays(other), strict=True))


def _visits(queries, flow):
    """Calls of each stage in each query, shape (Q, J)."""
    of_step = np.repeat(np.arange(len(queries)), np.diff(queries.first_step))
    found = np.zeros((len(queries), len(flow.stages)), dtype=np.int64)
    np.add.at(found, (of_step, queries.stage), np.diff(queries.first_call))
    return found


def _next(queries, step):
    return queries.next[queries.first_next[step] : queries.first_next[step + 1]].tolist()


def _check_form(queries):
    """What `Queries` says of its arrays."""
    steps, calls = queries.stage.size, queries.calls
    assert queries.first_step[0] == queries.first_call[0] == queries.first_next[0] == 0
    assert (queries.first_step[-1], queries.first_call[-1]) == (steps, calls)
    assert queries.first_next[-1] == queries.next.size
    assert (np.diff(queries.first_call) >= 1).all()
    assert (np.diff(queries.first_step) >= 0).all()
    assert np.array_equal(np.bincount(queries.next, minlength=steps), queries.waits)
    of_step = np.repeat(np.arange(len(queries)), np.diff(queries.first_step))
    for step in range(steps):
        later = _next(queries, step)
        assert len(set(later)) == len(later)
        assert all(other > step and of_step[other] == of_step[step] for other in later)


@settings(max_examples=50)
@given(workflows(), st.integers(0, 10**6))
def test_steps_stand_behind_those_that_they_wait_for(flow, seed):
    queries = _draw(flow, 20, seed)
    _check_form(queries)
    assert ((queries.prefill > 0) | (queries.decode > 0)).all()
    for j, each in enumerate(flow.stages):
        made = np.diff(queries.first_call)[queries.stage == j]
        assert ((made >= 1) & (made <= each.calls.largest)).all()


@settings(max_examples=50)
@given(workflows(), st.integers(0, 10**6))
def test_without_retries_one_step_waits_for_another_exactly_where_its_stage_does(flow, seed):
    """Also past the stages that are left out."""
    flow = attrs.evolve(flow, retries=())
    order = closure(flow.before)
    queries = _draw(flow, 10, seed)
    for query in range(10):
        steps = range(queries.first_step[query], queries.first_step[query + 1])
        number = {step: place for place, step in enumerate(steps)}
        rows = [[] for _ in steps]
        for step in steps:
            for later in _next(queries, step):
                rows[number[later]].append(number[step])
        stages = [int(queries.stage[step]) for step in steps]
        assert len(set(stages)) == len(stages)
        assert {(stages[i], stages[j]) for i, j in closure(rows)} == {(x, y) for x, y in order if {x, y} <= set(stages)}


FLOWS = {
    "nested loops": chain(
        "abcd", ("b", "b", "1/3"), ("c", "b", "1/2"), ("d", "a", "1/4"), c={"calls": Uniform(low=1, high=4)}
    ),
    "left out": chain("abc", ("b", "b", "4/5"), b={"chance": "11/29"}, c={"chance": "1/2", "calls": 3}),
}


@pytest.mark.parametrize("name", FLOWS)
def test_visits_are_those_expected(name):
    flow, count = FLOWS[name], 20_000
    visits = _visits(_draw(flow, count), flow)
    for j, expected in enumerate(flow.visits):
        error = visits[:, j].std() / np.sqrt(count)
        assert abs(visits[:, j].mean() - float(expected)) <= 4 * error


def test_a_stage_that_is_retried_alone_has_no_run_or_a_geometric_number():
    flow, count = FLOWS["left out"], 40_000
    runs = Counter(_visits(_draw(flow, count), flow)[:, 1].tolist())
    chances = {0: 18 / 29} | {n: 11 / 29 * 0.2 * 0.8 ** (n - 1) for n in range(1, 15)}
    for number, chance in chances.items():
        assert abs(runs[number] / count - chance) <= 4 * np.sqrt(chance * (1 - chance) / count)


@pytest.mark.parametrize("name", FLOWS)
def test_seconds_after_a_step_are_those_expected(name):
    """Of steps in series: the seconds of all the later steps of the query, averaged over queries."""
    flow, count = FLOWS[name], 20_000
    queries = _draw(flow, count)
    seconds = np.array([1, 10, 100, 1000])[: len(flow.stages)]
    spent = np.concatenate([[0], np.cumsum(seconds[queries.stage])])
    lengths = spent[queries.first_step[1:]] - spent[queries.first_step[:-1]]
    expected = flow.plan.length([Fraction(int(each)) for each in seconds])
    assert abs(lengths.mean() - float(expected)) <= 4 * lengths.std() / np.sqrt(count)
    of_step = np.repeat(np.arange(count), np.diff(queries.first_step))
    rest = spent[queries.first_step[1:]][of_step] - spent[1:]
    for j, after in enumerate(flow.plan.seconds_after([Fraction(int(each)) for each in seconds])):
        query = of_step[queries.stage == j]
        sums = np.bincount(
            query, rest[queries.stage == j] - float(after), minlength=count
        )  # steps of one query: one term
        assert abs(sums.mean()) <= 4 * sums.std() / np.sqrt(count)


def test_the_same_seed_gives_the_same_queries_and_another_law_moves_nothing_else():
    flow = FLOWS["nested loops"]
    one, other = _draw(flow, 500), _draw(flow, 500)
    assert _same(one, other)
    assert not _same(one, _draw(flow, 500, seed=2))
    longer = attrs.evolve(flow, stages=[attrs.evolve(flow.stages[0], decode=Geometric(mean=99)), *flow.stages[1:]])
    moved = _draw(longer, 500)
    stages = np.repeat(one.stage, np.diff(one.first_call))
    assert np.array_equal(one.decode[stages > 0], moved.decode[stages > 0])
    assert not np.array_equal(one.decode[stages == 0], moved.decode[stages == 0])
    assert np.array_equal(one.next, moved.next)


def test_lengths_and_work_follow_their_laws():
    stages = [
        stage("a", prefill=Geometric(mean=50), decode=Constant(0)),
        Stage(name="b", work=ExponentialInterval(mean="2 s")),
        Stage(name="c", work=ConstantInterval(mean="3 s"), calls=2),
    ]
    queries = _draw(Workflow(stages=stages), 10_000)
    of_call = np.repeat(queries.stage, np.diff(queries.first_call))
    assert abs(queries.prefill[of_call == 0].mean() - 50) <= 4 * np.sqrt(50 * 49 / 10_000)
    assert not queries.decode.any()
    assert not queries.prefill[of_call > 0].any()
    assert abs(queries.work[of_call == 1].mean() - 2) <= 4 * 2 / 100
    assert (queries.work[of_call == 2] == 3).all()
    assert np.count_nonzero(of_call == 2) == 20_000


def test_tenants_by_their_shares():
    tenants = [Tenant(name="a", share=1), Tenant(name="b", share="1/2"), Tenant(name="c", share=".5")]
    queries = _draw(attrs.evolve(chain("a"), tenants=tenants), 10_000)
    for tenant, share in enumerate((0.5, 0.25, 0.25)):
        hits = np.count_nonzero(queries.tenant == tenant) / 10_000
        assert abs(hits - share) <= 4 * np.sqrt(share * (1 - share) / 10_000)


def test_no_queries_and_queries_of_no_step():
    assert len(_draw(FLOWS["left out"], 0)) == 0
    queries = _draw(chain("a", a={"chance": "1/1000"}), 50, seed=3)
    _check_form(queries)
    assert len(queries) == 50
    assert queries.stage.size < 5


def test_too_many_calls_are_refused():
    flow = chain("a", ("a", "a", "0.9999"), a={"calls": 10_000})
    with pytest.raises(InvalidInput, match=r"queries: 1 of about 1e\+08 calls"):
        _draw(flow, 1)


LOG = WorkflowLog(
    stages=("a", "b", "c"),
    parallel=frozenset({"b"}),
    queries=(
        {"a": ((1, 2),), "b": ((3, 4), (5, 6))},
        {"a": ((7, 8),), "c": ((9, 10), (11, 12), (13, 14))},
        {"b": ((15, 16),), "c": ((17, 0),)},
    ),
)


def test_queries_of_a_log_are_as_they_were():
    flow = LOG.workflow()
    queries = queries_of_log(LOG, flow, np.arange(4, dtype=np.int64), np.random.default_rng(1), in_order=True)
    _check_form(queries)
    assert queries.first_step.tolist() == [0, 2, 6, 8, 10]
    assert queries.stage.tolist() == [0, 1, 0, 2, 2, 2, 1, 2, 0, 1]
    assert queries.waits.tolist() == [0, 1, 0, 1, 1, 1, 0, 1, 0, 1]
    assert queries.next.tolist() == [1, 3, 4, 5, 7, 9]
    assert np.diff(queries.first_call).tolist() == [1, 2, 1, 1, 1, 1, 1, 1, 1, 2]
    assert queries.prefill.tolist() == [1, 3, 5, 7, 9, 11, 13, 15, 17, 1, 3, 5]
    assert queries.decode.tolist() == [2, 4, 6, 8, 10, 12, 14, 16, 0, 2, 4, 6]


def test_queries_of_a_log_are_drawn_alike():
    flow, count = attrs.evolve(LOG.workflow(), stages=LOG.workflow().stages[::-1]), 3000
    queries = queries_of_log(LOG, flow, np.arange(count, dtype=np.int64), np.random.default_rng(1))
    _check_form(queries)
    first = Counter(queries.prefill[queries.first_call[queries.first_step[:-1]]].tolist())
    assert set(first) == {1, 7, 15}
    assert all(abs(hits / count - 1 / 3) <= 4 * np.sqrt(2 / 9 / count) for hits in first.values())
    assert (queries.stage == 2).sum() == first[1] + first[7]  # by name, whatever its place


def test_a_log_of_other_stages_is_refused():
    with pytest.raises(InvalidInput, match=r"log: 'c' is no stage of workflow"):
        queries_of_log(LOG, chain("ab"), np.arange(3, dtype=np.int64), np.random.default_rng(1))


@pytest.mark.parametrize("ticks", [[2, 1], [-1, 0], [0.5], [[0, 1]], ["x"]])
def test_arrivals_are_ticks_in_order(ticks):
    with pytest.raises(InvalidInput, match=r"^arrival_ticks: "):
        draw_queries(chain("a"), np.array(ticks), np.random.default_rng(0))


def test_arrivals_may_be_a_list_and_the_generator_is_one():
    assert len(draw_queries(chain("a"), [0, 1], np.random.default_rng(0))) == 2
    with pytest.raises(InvalidInput, match=r"^rng: 5 is no"):
        draw_queries(chain("a"), [0], 5)


def test_loops_that_would_be_passed_for_minutes_are_refused_before_drawing():
    flow = chain("a", ("a", "a", "0.999999"))
    with pytest.raises(InvalidInput, match=r"^retry: the longest of 30 queries .* lower the probability$"):
        draw_queries(flow, np.arange(30), np.random.default_rng(0))


def test_a_log_whose_queries_make_too_many_calls_is_refused(monkeypatch):
    monkeypatch.setattr("queuetheory_llm.simulation.workflow_draws.MOST_REQUESTS", 5)
    log = _draw(chain("a", a={"calls": 3}), 1)
    with pytest.raises(InvalidInput, match=r"^queries: the 2 of the log make 6 calls"):
        taken(log, np.zeros(2, dtype=np.int64), np.arange(2))
