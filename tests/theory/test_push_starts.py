"""Push starts: what loads and virtual stations leave open with two stations (Dai, Vande Vate 2000)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from fluid_models import fluid_model, lu_kumar, random_lines, rybko_stolyar, tenths
from lyapunov_programs import piecewise_linear

from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.fluid_path import growing_path
from queuetheory_llm.stability.frontier import frontier
from queuetheory_llm.stability.push_starts import has_more_starts, push_start
from queuetheory_llm.stability.traffic import traffic
from queuetheory_llm.stability.virtual_stations import virtual_stations

NEAR = Fraction(1, 10**6)


def without_push_starts(model: FluidModel) -> Fraction:
    """The scale that loads and virtual stations allow."""
    solved = traffic(model)
    return 1 / max(*solved.loads, *(each.load for each in virtual_stations(model, solved, "any")))


def long_line() -> FluidModel:
    """A line s0, s0, s1, s1, s0: Lu-Kumar with a step of .2 s before it, at its first station."""
    service = tenths(2, 1, 5, 1, 4)
    return fluid_model([0, 0, 1, 1, 0], [1, 0, 0, 0, 0], service, [(k, k + 1, 1) for k in range(4)])


def test_the_scale_in_closed_form() -> None:
    # F is the first step, V the third and the last: .5 x + .4 x/(1 - .2 x) = 1 at the root of x^2 - 11 x + 10, x = 1.
    model = long_line()
    assert without_push_starts(model) == Fraction(10, 9)
    found = push_start(model, traffic(model), Fraction(10, 9))
    assert found is not None
    assert found.pushed == (0,)
    assert found.sets == ((4,), (2,))
    assert abs(found.scale - 1) < Fraction(1, 10**9)
    assert found.text.startswith("with priority first to k0 (a push start), then to k4 at s0 and k2 at s1")
    assert piecewise_linear(model.scaled(1 - NEAR), policy="any") is not None
    assert piecewise_linear(model.scaled(1 + NEAR), policy="any") is None


@pytest.mark.parametrize("seed", [13, 32, 34, 38])
def test_above_it_the_fluid_model_grows_and_below_it_does_not(seed: int) -> None:
    model = random_lines(seed)
    high = without_push_starts(model)
    found = push_start(model, traffic(model), high)
    assert found is not None
    pushed = model.with_priority(found.priority)
    assert growing_path(pushed.scaled(((found.scale + high) / 2).limit_denominator(1000))) is not None
    assert growing_path(pushed.scaled((found.scale * Fraction(99, 100)).limit_denominator(1000))) is None


def test_whether_all_sets_of_first_steps_are_tried() -> None:
    """Two routes of n steps have up to (n + 1)^2 - 1 of them."""
    assert not has_more_starts(random_lines(0))
    assert has_more_starts(random_lines(0, classes=40))


def test_two_stations_leave_no_gap() -> None:
    pushed = 0
    for seed in range(12, 40):
        found = frontier(random_lines(seed), policy="any")
        assert found.gap is not None
        assert found.gap < Fraction(1, 10**7)
        pushed += "push start" in found.unstable.reason
    assert pushed >= 3


@pytest.mark.parametrize("model", [rybko_stolyar(tenths(1, 6, 1, 6)), lu_kumar(tenths(1, 6, 1, 6))])
def test_the_textbook_networks_have_none(model: FluidModel) -> None:
    assert push_start(model, traffic(model), without_push_starts(model)) is None
