"""Exact linear programs: optimal by duality, whatever HiGHS says in floats."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.exact.linear import Singular, solve_system
from queuetheory_llm.exact.program import Program

F = Fraction


def test_thirds_come_out_exactly() -> None:
    """x + y = 1, 2x <= rho, y <= rho: rho = 2/3."""
    program = Program(
        cost=[F(0), F(0), F(1)],
        equal=[{0: F(1), 1: F(1)}],
        equal_right=[F(1)],
        below=[{0: F(2), 2: F(-1)}, {1: F(1), 2: F(-1)}],
        below_right=[F(0), F(0)],
    )
    found = program.solve()
    assert found.x == (F(1, 3), F(2, 3), F(2, 3))
    assert found.below_prices == (F(-1, 3), F(-2, 3))
    assert found.equal_prices == (F(2, 3),)


@pytest.mark.parametrize(("right", "message"), [(F(2), "infeasible"), (None, "nbounded")])
def test_without_an_optimum_nothing_is_returned(right: Fraction | None, message: str) -> None:
    below = [] if right is None else [{0: F(1)}]
    program = Program(
        cost=[F(-1)],
        equal=[] if right is None else [{0: F(1)}],
        equal_right=[] if right is None else [right],
        below=below,
        below_right=[F(1)] * len(below),
    )
    with pytest.raises(NotConverged, match=message):
        program.solve()


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=2), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=2, max_size=2),
)
@settings(max_examples=40, deadline=None)
def test_the_optimum_is_the_best_vertex(rows: list[list[int]], gain: list[int]) -> None:
    """Two variables: every vertex is the crossing of two of the lines."""
    lines = [({0: F(a), 1: F(b)}, F(7)) for a, b in rows] + [({0: F(1)}, F(0)), ({1: F(1)}, F(0))]
    crossings = [
        solve_system([first[0], second[0]], [first[1], second[1]], 2) for first, second in combinations(lines, 2)
    ]
    feasible = [
        point
        for point in crossings
        if not isinstance(point, Singular)
        and min(point) >= 0
        and all(a * point[0] + b * point[1] <= 7 for a, b in rows)
    ]
    best = max(gain[0] * x + gain[1] * y for x, y in feasible)
    below = [line for line, _ in lines[: len(rows)]]
    found = Program(
        cost=[F(-gain[0]), F(-gain[1])], equal=[], equal_right=[], below=below, below_right=[F(7)] * len(rows)
    ).solve()
    assert gain[0] * found.x[0] + gain[1] * found.x[1] == best


def test_systems_that_have_no_one_solution_say_so() -> None:
    assert solve_system([{0: F(1)}, {0: F(1)}], [F(1), F(2)], 1) is Singular.NONE
    assert solve_system([{0: F(1), 1: F(1)}], [F(1)], 2) is Singular.MANY
    assert solve_system([], [], 0) == ()
