"""Fits of batch-time laws: recovery of known laws, the 10 % rule, weighting, tile steps."""

from __future__ import annotations

from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.fitting import Fit, fit_profile, tile_steps
from queuetheory_llm.fitting.laws import fit_affine, fit_hinge, fit_staircase
from queuetheory_llm.model.batch_time import BatchTime, Hinge, Staircase, Table
from queuetheory_llm.model.profile import Profile

GRID = (1, 2, 4, *range(8, 1025, 8))


def profile(tokens, seconds) -> Profile:
    return Profile(
        tokens=tuple(tokens),
        seconds=tuple(Fraction(t).limit_denominator(10**12) for t in seconds),
        source="made.csv",
        format="plain",
        includes="everything",
        statistic="single",
    )


def sampled(law: BatchTime, tokens=GRID) -> Profile:
    return profile(tokens, [law.seconds(b) for b in tokens])


def noisy(law: BatchTime, size: float, seed: int = 7, tokens=GRID) -> Profile:
    rng = np.random.default_rng(seed)
    factors = 1 + rng.uniform(-size, size, len(tokens))
    return profile(tokens, [float(law.seconds(b)) * f for b, f in zip(tokens, factors, strict=True)])


@pytest.mark.parametrize("b0", [16, 64, 96, 128, 200])
def test_staircase_is_recovered(b0):
    law = Staircase(c="11.28 ms", a="35.47 ms", b0=b0)
    found = fit_staircase(sampled(law))
    assert found.law == law
    assert found.max_relative_error == 0
    assert found.r2 == 1


@pytest.mark.parametrize("b0", [8, 64, 100, 333])
def test_hinge_is_recovered(b0):
    law = Hinge(c="20 ms", a="0.05 ms", b0=b0)
    found = fit_hinge(sampled(law))
    assert found.max_relative_error < 1e-6
    assert found.law.b0 == b0
    assert float(found.law.a) == pytest.approx(5e-5, rel=1e-5)


def test_affine_is_recovered_and_preferred_to_laws_that_contain_it():
    law = Hinge(c="5.7527 ms", a="0.01725 ms", b0=0)
    fit = fit_profile(sampled(law))
    assert fit.chosen.name == "affine"
    assert fit.chosen.law == law


@settings(max_examples=15, deadline=None)
@given(
    c=st.integers(0, 50_000),
    a=st.integers(1_000, 50_000),
    b0=st.sampled_from([32, 48, 64, 128, 256]),
    size=st.floats(0, 0.05),
)
def test_noise_bounds_the_error(c, a, b0, size):
    """The true law is a candidate with error <= noise/(1 - noise), so the best law cannot be worse."""
    law = Staircase(c=Fraction(c, 10**6), a=Fraction(a, 10**6), b0=b0)
    found = fit_staircase(noisy(law, size))
    assert found.max_relative_error <= 1.02 * size / (1 - size) + 1e-5


def test_noise_leaves_the_block_length():
    found = fit_staircase(noisy(Staircase(c="11.28 ms", a="35.47 ms", b0=128), 0.02))
    assert found.law.b0 == 128
    assert float(found.law.a) == pytest.approx(0.03547, rel=0.03)


def test_minimax_equalises_the_extreme_errors():
    """Optimality of a best uniform fit: the largest error is attained with both signs (Chebyshev)."""
    made = profile([1, 10, 100, 1000], [0.01, 0.03, 0.02, 0.2])
    law = fit_affine(made).law
    relative = law.seconds_array(made.token_array) / made.second_array - 1
    assert relative.max() == pytest.approx(-relative.min(), rel=1e-3)


@pytest.mark.parametrize("name", ["hinge", "staircase"])
def test_no_block_length_is_much_better(name):
    """Against all block lengths tried one by one with the linear program."""
    from queuetheory_llm.fitting import laws

    made = noisy(Hinge(c="20 ms", a="0.06 ms", b0=90), 0.04, tokens=(1, 2, 4, *range(8, 257, 8)))
    found = laws.FITS[name](made)
    tokens, seconds = made.token_array, made.second_array
    best = np.inf
    for b0 in range(2, 129):
        c, a = laws._minimax(laws._feature(name, tokens, b0), seconds)
        values = c + a * laws._feature(name, tokens, b0)
        best = min(best, np.abs(values / seconds - 1).max())
    assert found.max_relative_error <= 1.025 * best + 1e-5


def test_small_batches_weigh_as_much_as_large_ones():
    """A fit in seconds would leave decode batches 60 % off for the sake of the last points."""
    tokens = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096])
    seconds = 0.02 + 5e-5 * tokens + 2e-8 * tokens**2.0
    made = profile(tokens.tolist(), seconds)
    found = fit_affine(made)
    slope, fixed = np.polyfit(tokens, seconds, 1)
    in_seconds = np.abs((fixed + slope * tokens) / seconds - 1).max()
    assert found.max_relative_error < in_seconds / 2


def test_ten_percent_rule():
    law = Staircase(c="10 ms", a="30 ms", b0=128)
    assert fit_profile(sampled(law)).chosen.name == "staircase"
    assert "table" not in {c.name for c in fit_profile(sampled(law)).candidates}
    broken = [float(law.seconds(b)) * (1.35 if 512 < b <= 560 else 1) for b in GRID]
    fit = fit_profile(profile(GRID, broken))
    assert fit.chosen.name == "table"
    assert fit.chosen.law.tokens == GRID
    assert any("the table is offered" in note for note in fit.notes)
    assert any("not monotone" in note for note in fit.notes)
    staircase = next(c for c in fit.candidates if c.name == "staircase")
    assert staircase.max_relative_error > 0.10


def test_closer_of_two_equally_simple_laws():
    fit = fit_profile(sampled(Hinge(c="20 ms", a="0.2 ms", b0=256)))
    assert fit.chosen.name == "hinge"
    errors = {c.name: c.max_relative_error for c in fit.candidates}
    assert errors["affine"] > 0.10


def test_errors_are_those_of_the_rounded_law():
    fit = fit_profile(noisy(Hinge(c="3.3333333 ms", a="0.0123456789 ms", b0=0), 0.01))
    law, made = fit.chosen.law, fit.profile
    assert (law.c * 10**9).denominator == 1
    assert (law.a * 10**12).denominator == 1
    exact = max(abs(law.seconds(b) / t - 1) for b, t in zip(made.tokens, made.seconds, strict=True))
    assert fit.chosen.max_relative_error == pytest.approx(float(exact), rel=1e-9)
    worst = made.tokens.index(fit.chosen.at_tokens)
    assert abs(law.seconds(fit.chosen.at_tokens) / made.seconds[worst] - 1) == exact


def test_asked_law_is_taken_whatever_its_error():
    made = sampled(Staircase(c="10 ms", a="30 ms", b0=128))
    fit = fit_profile(made, law="affine")
    assert (fit.chosen.name, fit.reason) == ("affine", "as asked")
    assert fit_profile(made, law="table").chosen.law.tokens == GRID


@pytest.mark.parametrize("points", [1, 2])
def test_too_few_points_leave_the_table(points):
    fit = fit_profile(profile(range(1, points + 1), [0.01] * points))
    assert fit.chosen.name == "table"
    assert any("not fitted" in note for note in fit.notes)
    with pytest.raises(InvalidInput, match="--law: no affine law"):
        fit_profile(fit.profile, law="affine")


def test_constant_time_has_no_slope_and_no_r2():
    fit = fit_profile(profile([1, 2, 4, 8, 16, 32], [0.01] * 6))
    assert fit.chosen.name == "table"
    assert fit.chosen.r2 is None


def test_unknown_law():
    with pytest.raises(InvalidInput, match="--law: 'cubic' is unknown"):
        fit_profile(sampled(Hinge(c="1 ms", a="1 ms", b0=0)), law="cubic")


def test_budget_of_the_engine():
    fit: Fit = fit_profile(sampled(Staircase(c="10 ms", a="30 ms", b0=96)))
    assert fit.engine().b_max == 960  # the last end of a stair within 1024
    assert fit.engine().whole_blocks
    assert fit.engine(b_max=100, k_max=7).k_max == 7
    table = fit_profile(fit.profile, law="table")
    assert table.engine().b_max == 1024
    with pytest.raises(InvalidModel, match="b_max: 2000 is beyond the last measured batch"):
        table.engine(b_max=2000)


def test_tile_steps_of_a_staircase_are_its_stairs():
    steps = tile_steps(sampled(Staircase(c="11.28 ms", a="35.47 ms", b0=128)))
    assert [step.after_tokens for step in steps] == list(range(128, 1000, 128))
    assert not any(step.falls for step in steps)
    assert steps[0].change == pytest.approx(35.47 / (11.28 + 35.47))


def test_tile_steps_are_found_under_noise_and_slope():
    values = [0.02 + 4e-5 * b + (0.01 if b > 256 else 0) - (0.012 if b > 640 else 0) for b in GRID]
    rng = np.random.default_rng(3)
    steps = tile_steps(profile(GRID, np.array(values) * (1 + rng.uniform(-0.002, 0.002, len(GRID)))))
    assert [(step.after_tokens, step.falls) for step in steps] == [(256, False), (640, True)]


@pytest.mark.parametrize("b0", [0, 64, 300])
def test_a_bend_is_no_step(b0):
    assert tile_steps(sampled(Hinge(c="20 ms", a="0.5 ms", b0=b0))) == ()


def test_smooth_noise_is_no_step():
    assert tile_steps(noisy(Hinge(c="20 ms", a="0.05 ms", b0=0), 0.01)) == ()


def test_no_steps_on_a_single_point():
    assert tile_steps(profile([5], [0.1])) == ()


def test_plain_data_and_figure():
    fit = fit_profile(sampled(Staircase(c="10 ms", a="30 ms", b0=128)))
    content = fit.to_dict()
    assert content["chosen"] == "staircase"
    chosen = next(c for c in content["candidates"] if c["law"] == "staircase")
    assert (chosen["c"], chosen["a"], chosen["b0"]) == (0.01, 0.03, 128)
    assert fit.summary.startswith(
        "staircase: c = 10 ms, a = 30 ms, b0 = 128; max relative error 0.00 % at 1 tokens, R^2 1"
    )
    assert fit.chosen.formula in fit._repr_html_()
    axes = fit.plot()
    assert axes.get_xlabel() == "tokens in the batch"
    assert len(axes.get_lines()) == len(fit.candidates) + 1


@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figure_bytes_repeat(suffix, magic):
    from queuetheory_llm.plots.fit import render_fit

    fit = fit_profile(profile([1, 10, 100, 5000], [0.01, 0.02, 0.05, 0.9]))
    data = render_fit(fit, suffix)
    assert data.startswith(magic)
    assert data == render_fit(fit, suffix)


def test_the_figure_is_titled_by_the_file():
    from queuetheory_llm.plots.fit import _figure

    fit = fit_profile(profile([1, 10, 100, 5000], [0.01, 0.02, 0.05, 0.9]))
    fit = attrs.evolve(fit, profile=attrs.evolve(fit.profile, source="some/folder/h100.csv"))
    assert _figure(fit).axes[0].get_title(loc="left").startswith(f"h100.csv: {fit.chosen.name} chosen")


def test_table_keeps_the_points_to_a_nanosecond():
    made = profile([1, 3], [Fraction(1, 3), Fraction(1, 7)])
    law = fit_profile(made).chosen.law
    assert isinstance(law, Table)
    assert law.seconds_at == (Fraction(333333333, 10**9), Fraction(142857143, 10**9))
