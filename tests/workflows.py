"""Workflows for tests: random orders and random workflows, and what brute force says of them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import attrs
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.model.lengths import Geometric, Uniform
from queuetheory_llm.model.workflow import Retry, Stage, Workflow
from queuetheory_llm.model.workflow_plan import Plan, order_plan


def stage(name, **fields):
    """A stage of calls of 10 + 5 tokens."""
    return Stage(**{"name": name, "prefill": 10, "decode": 5, **fields})


def chain(names, *retries, **fields):
    """One stage after another, retries (from, to, probability), and fields of stages by their names."""
    return Workflow(
        stages=[stage(name, **fields.get(name, {})) for name in names],
        retries=[Retry(source=source, to=to, probability=again) for source, to, again in retries],
    )


def closure(before):
    """All pairs (x, y) with x before y, by Warshall's algorithm."""
    order = {(i, j) for j, row in enumerate(before) for i in row}
    for k, i, j in itertools.product(range(len(before)), repeat=3):
        if {(i, k), (k, j)} <= order:
            order.add((i, j))
    return order


def plan_order(plan: Plan):
    """All pairs (x, y) that a plan says are one after the other, in a single pass of its loops."""
    order = set().union(*(plan_order(part) for part in plan.parts))
    if plan.kind == "series":
        for first, second in itertools.combinations(plan.parts, 2):
            order |= set(itertools.product(first.stages(), second.stages()))
    return order


@st.composite
def orders(draw, most=7):
    """Partial orders: for each element, some of those before it in a list."""
    count = draw(st.integers(1, most))
    rows = (draw(st.sets(st.integers(0, j - 1), max_size=3)) if j else () for j in range(count))
    return tuple(tuple(sorted(row)) for row in rows)


chances = st.sampled_from([Fraction(1), Fraction(1), Fraction(1, 2), Fraction(9, 10)])
_agains = st.sampled_from([Fraction(1, 4), Fraction(1, 2)])


@st.composite
def workflows(draw, most=6):
    """Workflows with parallel stages and calls, stages left out, and as many retries as nest."""
    before = draw(orders(most).filter(lambda rows: isinstance(order_plan(rows), Plan)))
    flow = Workflow(
        stages=[
            stage(
                str(j),
                after=tuple(map(str, row)),
                chance=draw(chances),
                prefill=draw(st.sampled_from([0, 7, Uniform(low=1, high=5)])),
                decode=draw(st.sampled_from([3, Geometric(mean=4)])),
                calls=draw(st.sampled_from([1, 1, 2, Uniform(low=1, high=3)])),
            )
            for j, row in enumerate(before)
        ]
    )
    names = st.sampled_from([each.name for each in flow.stages])
    for source, to, again in draw(st.lists(st.tuples(names, names, _agains), max_size=4)):
        try:
            flow = attrs.evolve(flow, retries=[*flow.retries, Retry(source=source, to=to, probability=again)])
        except InvalidModel:
            continue
    return flow
