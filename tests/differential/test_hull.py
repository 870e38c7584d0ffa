"""Hulls and bounds against other programs: scipy's ConvexHull, all batches one by one, linear programs over them."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from strategies import engines, workloads

from queuetheory_llm.exact.hull import DownClosedPolygon, upper_right
from queuetheory_llm.model.lengths import IndependentLengths
from queuetheory_llm.stability.region import outer_region
from queuetheory_llm.stability.workload_region import constant_prompt_region, random_prompt_bound, workload_bound

triples = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 12))


def rates(triple):
    x, y, t = triple
    return Fraction(x, t), Fraction(y, t)


def dominated(point, others):
    """Whether some mixture of two of the others, or one of them, is at least the point in both coordinates."""
    for (a, b), (c, d) in product(others, repeat=2):
        # Least and largest share of the first that keeps each coordinate.
        low, high = Fraction(0), Fraction(1)
        for mine, first, second in ((point[0], a, c), (point[1], b, d)):
            if first == second:
                if first < mine:
                    break
            elif first > second:
                low = max(low, (mine - second) / (first - second))
            else:
                high = min(high, (second - mine) / (second - first))
        else:
            if low <= high:
                return True
    return False


@given(st.lists(triples, min_size=1, max_size=12))
def test_corners_are_the_points_that_no_mixture_of_the_others_dominates(points):
    corners = [rates(points[index]) for index in upper_right(points)]
    distinct = {rates(point) for point in points}
    expected = {point for point in distinct if not dominated(point, distinct - {point})}
    assert set(corners) == expected
    assert corners == sorted(corners, reverse=True)
    assert [y for _, y in corners] == sorted(y for _, y in corners)


@given(st.lists(triples.filter(lambda p: p[0] or p[1]), min_size=1, max_size=15))
def test_the_down_closed_polygon_has_the_area_that_qhull_finds(points):
    corners = [rates(points[index]) for index in upper_right(points)]
    extreme = [point for point, _ in DownClosedPolygon(tuple(corners)).extreme_points]
    closed = {(0.0, 0.0)}
    for x, y in map(rates, points):
        closed |= {(float(x), float(y)), (float(x), 0.0), (0.0, float(y))}
    flat = len({x for x, _ in closed}) == 1 or len({y for _, y in closed}) == 1
    area = sum((x * v - u * y) / 2 for (x, y), (u, v) in zip(extreme, [*extreme[1:], extreme[0]], strict=True))
    assert float(area) == pytest.approx(0 if flat else ConvexHull(np.array(sorted(closed))).volume)


def all_batches(engine):
    """Every batch (x, y) of the outer region's definition."""
    k_max = engine.k_max or engine.b_max
    for x, y in product(range(engine.b_max + 1), repeat=2):
        if 0 < x + y <= engine.b_max and y + (x > 0) <= k_max:
            yield x, y


def rate_of(engine, x, y):
    t = engine.batch_time.seconds(x + y)
    return x / t, y / t


def check_region(region, batches):
    """The vertices are batches of the list, and no batch of the list leaves the polygon."""
    engine = region.engine
    found = {rate_of(engine, x, y) for x, y in batches}
    for index, batch in enumerate(region.batches):
        assert (batch.prefill, batch.decode) in batches
        assert rate_of(engine, batch.prefill, batch.decode) == region.polygon.corners[index]
    for face in region.polygon.faces:
        assert max(face.value(point) for point in found) == face.bound


@given(engines())
def test_the_outer_region_is_the_hull_of_all_batches(engine):
    check_region(outer_region(engine), set(all_batches(engine)))


@given(engines(), st.integers(0, 6))
def test_the_region_of_constant_prompts_is_the_hull_of_theirs(engine, prompt):
    slots = engine.slots
    batches = {
        (x, y) for x, y in all_batches(engine) if (x == 0 or prompt > 0) and y + (-(-x // prompt) if x else 0) <= slots
    }
    check_region(constant_prompt_region(engine, prompt), batches)


def slot_program(engine, lengths):
    """Largest rate with every batch (x, s, y) a column: x tokens in s slots, y decodes, s + y <= k_max."""
    k_max = engine.k_max or engine.b_max
    columns = []
    for x, s, y in product(range(engine.b_max + 1), range(k_max + 1), range(k_max + 1)):
        if 0 < x + y <= engine.b_max and s + y <= k_max and s <= x and (s > 0) == (x > 0):
            t = float(engine.batch_time.seconds(x + y))
            columns.append((x / t, s / t, y / t))
    needs = [float(n) for n in (lengths.mean_prefill, lengths.prefill_probability, lengths.mean_decode)]
    served = np.array(columns).T
    done = linprog(
        c=[*np.zeros(len(columns)), -1],
        A_ub=np.column_stack([-served, needs]),
        b_ub=np.zeros(3),
        A_eq=[[*np.ones(len(columns)), 0]],
        b_eq=[1],
    )
    return done.x[-1]


@settings(max_examples=60)
@given(engines(most=6), workloads(longest_prompt=6))
def test_the_slot_program_needs_no_more_batches_than_it_takes(engine, workload):
    assert random_prompt_bound(engine, workload).requests_per_s == pytest.approx(
        slot_program(engine, workload), rel=1e-6
    )


@settings(max_examples=60)
@given(engines(most=8), st.integers(0, 5), st.integers(0, 5))
def test_the_bound_of_constant_prompts_is_a_linear_program_over_their_batches(engine, prefill, decode):
    if prefill + decode == 0:
        return
    columns = [
        rate_of(engine, x, y)
        for x, y in all_batches(engine)
        if x == 0 or (prefill and y + -(-x // prefill) <= engine.slots)
    ]
    done = linprog(
        c=[*np.zeros(len(columns)), -1],
        A_ub=np.column_stack([-np.array(columns, dtype=float).T, [prefill, decode]]),
        b_ub=np.zeros(2),
        A_eq=[[*np.ones(len(columns)), 0]],
        b_eq=[1],
    )
    exact = workload_bound(engine, IndependentLengths(prefill, decode)).requests_per_s
    assert float(exact) == pytest.approx(done.x[-1], rel=1e-7)
