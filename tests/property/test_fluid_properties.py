"""What holds for the fluid path of every priority network."""

from fractions import Fraction

from fluid_networks import assert_is_path, random_lines, random_start
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.fluid_path import fluid_path, fluid_paths
from queuetheory_llm.stability.fluid_rates import fluid_rates
from queuetheory_llm.verdict import Verdict

SHAPES = st.sampled_from([(2, (2, 2)), (2, (4,)), (2, (3, 2)), (3, (3, 3)), (3, (4, 5)), (4, (3, 3, 2))])
LOADS = st.sampled_from([Fraction(1, 2), Fraction(9, 10), Fraction(1), Fraction(6, 5)])
SEEDS = st.integers(0, 10**6)


@settings(max_examples=40, deadline=None)
@given(SHAPES, LOADS, SEEDS)
def test_every_path_obeys_the_fluid_equations(shape: tuple, load: Fraction, seed: int) -> None:
    model = random_lines(seed, stations=shape[0], lengths=shape[1], load=load)
    start = random_start(seed, model)
    for path in fluid_paths(model, start, most_events=60, most_paths=4):
        assert path.breakpoints[0].state == start
        assert_is_path(path)
        if load > 1:
            assert path.end.grows or path.end is FluidEnd.UNRESOLVED
        if path.end is FluidEnd.GROWING:
            proof = path.certificate()
            assert proof is None or proof.verdict is Verdict.UNSTABLE
        if path.end is FluidEnd.EMPTY:
            assert not any(path.breakpoints[-1].state)


@settings(max_examples=20, deadline=None)
@given(SHAPES, SEEDS, st.fractions(Fraction(1, 50), 50, max_denominator=60))
def test_a_scaled_start_scales_the_path(shape: tuple, seed: int, scale: Fraction) -> None:
    model = random_lines(seed, stations=shape[0], lengths=shape[1])
    start = random_start(seed, model)
    path = fluid_path(model, start, most_events=40)
    scaled = fluid_path(model, [scale * q for q in start], most_events=40)
    assert scaled.end is path.end
    assert scaled.factor == path.factor
    for small, large in zip(path.breakpoints, scaled.breakpoints, strict=True):
        assert large.time == scale * small.time
        assert large.state == tuple(scale * q for q in small.state)
        assert large.rates == small.rates


@settings(max_examples=25, deadline=None)
@given(SHAPES, LOADS, SEEDS)
def test_a_search_cut_short_finds_one_of_the_solutions_and_does_not_call_it_the_only_one(
    shape: tuple, load: Fraction, seed: int
) -> None:
    model = random_lines(seed, stations=shape[0], lengths=shape[1], load=load)
    empty = tuple(not q for q in random_start(seed, model))
    every = fluid_rates(model, empty)
    first = fluid_rates(model, empty, most_choices=len(model.stations))
    assert set(first.solutions) <= set(every.solutions)
    if len(every.solutions) > 1:
        assert first.unique is not True
