"""Plans of workflows against brute force: the order they came from, the segments of retries, expected runs."""

import itertools
from fractions import Fraction

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from workflows import chain, closure, orders, plan_order, stage, workflows

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.model.workflow import Retry, Workflow
from queuetheory_llm.model.workflow_plan import Crossing, Plan, order_plan


def _parallel(order, x, y):
    return (x, y) not in order and (y, x) not in order


def _is_crossing(order, a, b, c, d):
    comparable = {(a, c), (b, c), (b, d)} <= order
    return comparable and all(_parallel(order, *pair) for pair in ((a, b), (a, d), (c, d)))


@given(orders())
def test_a_plan_says_the_order_and_a_crossing_is_one(before):
    order, found = closure(before), order_plan(before)
    crossings = [four for four in itertools.permutations(range(len(before)), 4) if _is_crossing(order, *four)]
    if isinstance(found, Crossing):
        assert (found.a, found.b, found.c, found.d) in crossings
    else:
        assert not crossings
        assert plan_order(found) == order
        assert sorted(found.stages()) == list(range(len(before)))


@given(orders())
def test_a_plan_is_canonical(before):
    found = order_plan(before)
    assume(isinstance(found, Plan))
    parts = [found]
    while parts:
        part = parts.pop()
        assert (part.kind == "stage") == (part.stage is not None) == (not part.parts)
        assert len(part.parts) != 1
        assert all(inner.kind != part.kind for inner in part.parts)
        parts += part.parts


def test_the_four_stages_of_a_crossing_are_named():
    with pytest.raises(InvalidModel) as refused:
        Workflow(
            stages=[
                stage("a"),
                stage("b", after=()),
                stage("c", after=("a", "b")),
                stage("d", after=("b",)),
                stage("e"),
            ]
        )
    (fault,) = refused.value.faults
    assert fault.startswith("stage[2].after: 'c' comes after 'a' and 'b', and 'd' after 'b' without 'a'")


def _is_segment(order, count, to, source):
    """Whether what lies between is passed as a whole: all else is before it, after it, or beside it."""
    if to == source:
        return True
    if (to, source) not in order:
        return False
    body = {x for x in range(count) if x in (to, source) or {(to, x), (x, source)} <= order}
    return all(len({((x, y) in order, (y, x) in order) for y in body}) == 1 for x in range(count) if x not in body)


@given(orders(), st.data())
def test_a_retry_is_a_loop_exactly_where_its_stages_are_a_segment(before, data):
    assume(isinstance(order_plan(before), Plan))
    numbers = st.integers(0, len(before) - 1)
    to, source = data.draw(numbers), data.draw(numbers)
    flow = Workflow(stages=[stage(str(j), after=tuple(map(str, row))) for j, row in enumerate(before)])
    retry = Retry(source=str(source), to=str(to), probability="1/3")
    order = closure(before)
    if not _is_segment(order, len(before), to, source):
        with pytest.raises(InvalidModel, match=r"^retry\[0\]: "):
            attrs.evolve(flow, retries=[retry])
        return
    looped = attrs.evolve(flow, retries=[retry])
    body = {x for x in range(len(before)) if x in (to, source) or {(to, x), (x, source)} <= order}
    assert looped.visits == tuple(Fraction(3, 2) if x in body else 1 for x in range(len(before)))
    assert plan_order(looped.plan) == order


@pytest.mark.parametrize(
    ("ends", "fault"),
    [
        ([("c", "a"), ("d", "b")], "retry[1]: overlaps retry[0] in part"),
        ([("c", "a"), ("c", "a")], "retry[1]: repeats the same stages as retry[0]"),
        ([("a", "c")], "retry[0]: goes forward"),
        ([("c", "a"), ("b", "b"), ("d", "a"), ("d", "d"), ("d", "c")], "retry[4]: overlaps retry[0] in part"),
    ],
)
def test_retries_that_do_not_nest(ends, fault):
    with pytest.raises(InvalidModel) as refused:
        chain("abcd", *((source, to, "1/2") for source, to in ends))
    (found,) = refused.value.faults
    assert found.startswith(fault)


def test_a_retry_out_of_a_branch():
    stages = [stage("a"), stage("b", after=("a",)), stage("c", after=("a",)), stage("d", after=("b", "c"))]
    with pytest.raises(InvalidModel, match=r"retry\[0\]: .* no part of one series"):
        Workflow(stages=stages, retries=[Retry(source="b", to="a", probability="1/2")])


def test_loops_within_loops_multiply():
    flow = chain("abcd", ("b", "b", "1/2"), ("c", "b", "2/3"), ("c", "a", "3/4"))
    assert flow.visits == (4, 24, 12, 1)
    outer, last = flow.plan.parts
    assert (outer.kind, outer.retry, last.stage) == ("loop", 2, 3)
    (series,) = outer.parts
    inner = series.parts[1]
    assert (inner.kind, inner.retry, inner.parts[0].parts[0].retry) == ("loop", 1, 0)


def test_the_chance_of_a_stage_that_is_retried_is_asked_once():
    """Runs: 0 with probability 3/5, else geometric of mean 4; seconds after a run do not ask for the chance again."""
    flow = chain("abc", ("b", "b", "3/4"), b={"chance": "2/5"})
    assert flow.visits == (1, Fraction(8, 5), 1)
    assert flow.plan.length((5, 10, 1)) == 5 + 16 + 1
    assert flow.plan.seconds_after((5, 10, 1)) == [17, 31, 0]


def test_seconds_of_parallel_parts_and_of_loops():
    """a, then (b, c) beside d, all of that 2 times on average, then e."""
    stages = [
        stage("a"), stage("b"), stage("c"), stage("d", after=("a",)), stage("e", after=("c", "d")), stage("f")
    ]  # fmt: skip
    flow = Workflow(stages=stages, retries=[Retry(source="e", to="a", probability="1/2")])
    seconds = [Fraction(n) for n in (1, 2, 4, 5, 8, 16)]
    one_pass = 1 + max(2 + 4, 5) + 8
    assert flow.plan.length(seconds) == 2 * one_pass + 16
    more = Fraction(1, 2) * 2 * one_pass + 16  # after a pass
    assert flow.plan.seconds_after(seconds) == [14 + more, 12 + more, 8 + more, 8 + more, more, 0]


@settings(max_examples=30)
@given(workflows())
def test_the_time_after_the_first_stages_and_their_own_is_the_length(flow):
    """Of a plan without chances or parallel parts: all that is expected is passed once, whatever loops there are."""
    plain = attrs.evolve(flow, stages=[attrs.evolve(each, chance=1, after=None) for each in flow.stages], retries=())
    looped = attrs.evolve(
        plain, retries=[Retry(source=plain.stages[-1].name, to=plain.stages[0].name, probability=".3")]
    )
    seconds = [Fraction(j + 1) for j in range(len(plain.stages))]
    assert looped.plan.seconds_after(seconds)[0] + seconds[0] == looped.plan.length(seconds)
    assert looped.plan.length(seconds) == plain.plan.length(seconds) / Fraction("0.7")


def test_plans_beyond_reason_are_refused_in_a_line():
    names = [str(number) for number in range(100)]
    chain(names)
    for retries, fault in (
        (
            [(names[-1], name, "1/1000") for name in names[:-1]],
            "stage: series, parallel parts and loops are nested 198 deep",
        ),
        ([("1", "0", "1/2")] * 500, "retry: there are 500; so many do not nest, 199 at most do"),
    ):
        with pytest.raises(InvalidModel) as refused:
            chain(names, *retries)
        (found,) = refused.value.faults
        assert found.startswith(fault)
    with pytest.raises(InvalidModel, match="stage: there are 101; a workflow has 100 at most"):
        chain([*names, "100"])
