"""Length laws: each against its own sum of survival probabilities, and sampled within four standard errors."""

import math
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.lengths import (
    LENGTH_LAWS,
    Constant,
    Empirical,
    Geometric,
    IndependentLengths,
    LogNormal,
    ObservedLengths,
    Poisson,
    Uniform,
    to_law,
)

LAWS = [
    Constant(0),
    Constant(112),
    Geometric(mean=1),
    Geometric(mean="7/2"),
    Geometric(mean=990),
    Poisson(mean="0.3"),
    Poisson(mean=512),
    Uniform(low=0, high=5),
    Uniform(low=7, high=7),
    Uniform(low=3, high=900),
    LogNormal(scale_mean=40, cv="1.5"),
    LogNormal(scale_mean=1000, cv="0.2"),
    Empirical(values=[5, 0, 9, 5], weights=[1, 2, "1/2", 0]),
    Empirical(values=[4, 8]),
]
each_law = pytest.mark.parametrize("law", LAWS, ids=repr)


def survival(law):
    """P(L >= k), k = 0, 1, ..., far into the tail."""
    return law.survival(np.arange(0, law.cutoff(1e-15) + 3))


@each_law
def test_survival_starts_at_one_and_falls_to_nothing(law):
    alive = survival(law)
    assert alive[0] == pytest.approx(1, abs=1e-14)
    assert (np.diff(alive) <= 1e-15).all()
    assert alive[-1] <= 1e-14
    assert alive[1] == pytest.approx(1 - float(law.zero), abs=1e-14)


@each_law
def test_the_mean_is_the_sum_of_survival(law):
    assert float(law.mean) == pytest.approx(float(survival(law)[1:].sum()), rel=1e-9)


@each_law
def test_the_cutoff_leaves_the_tail_asked_for(law):
    for tail in (1e-15, 1e-3):
        assert law.survival(np.array([law.cutoff(tail) + 1]))[0] <= tail * (1 + 1e-6)
    if law.largest is not None:
        assert law.survival(np.array([law.largest]))[0] > 0
        assert law.survival(np.array([law.largest + 1]))[0] == 0


@each_law
def test_samples_follow_the_law(law):
    draws = law.sample(np.random.default_rng(1), 40_000)
    assert draws.dtype == np.int64
    assert draws.min() >= 0
    error = draws.std(ddof=1) / math.sqrt(draws.size)
    assert abs(draws.mean() - float(law.mean)) <= 4 * error
    for k in {1, max(1, round(float(law.mean))), 2 * math.ceil(law.mean) + 1}:
        p = float(law.survival(np.array([k]))[0])
        assert abs((draws >= k).mean() - p) <= 4 * math.sqrt(max(p * (1 - p), 1e-12) / draws.size)
    assert (law.sample(np.random.default_rng(1), 50) == draws[:50]).all() or draws.std() > 0


@each_law
def test_a_law_survives_its_table(law):
    row = law.to_dict()
    name = row.pop("law")
    if name == "lognormal":
        row["scale_mean"] = row.pop("mean")
    assert LENGTH_LAWS[name](**row) == law


@each_law
def test_a_law_is_constant_when_it_has_one_value(law):
    values = set(law.sample(np.random.default_rng(2), 300).tolist())
    assert (law.constant is not None) == (len(values) == 1)
    assert law.constant in (None, *values)


def test_means_are_exact_where_the_law_is_rational():
    assert Geometric(mean="7/2").mean == Fraction(7, 2)
    assert Uniform(low=0, high=5).mean == Fraction(5, 2)
    assert Empirical(values=[5, 0, 9], weights=[1, 2, "1/2"]).mean == Fraction(19, 7)


def test_the_geometric_law_is_memoryless():
    alive = survival(Geometric(mean=20))
    assert alive[31:61] / alive[31] == pytest.approx(alive[1:31])


def test_rounding_up_adds_about_half_a_token():
    law = LogNormal(scale_mean=1000, cv=1)
    assert law.mean == pytest.approx(1000.5, abs=0.01)
    # Nothing is added where X is an integer almost surely: cv near 0.
    assert LogNormal(scale_mean="10.2", cv="1e-9").mean == pytest.approx(11)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Constant(-1), "value: -1 is below 0"),
        (lambda: Constant("1.5"), "is not a whole number"),
        (lambda: Geometric(mean="1/2"), "mean: 0.5 is below 1"),
        (lambda: Poisson(mean=0), "mean: 0 is outside 1e-6"),
        (lambda: Poisson(mean="nan"), "is not finite"),
        (lambda: Uniform(low=-1, high=3), "low: -1 is below 0"),
        (lambda: Uniform(low=4, high=3), "high: 3 is below low = 4"),
        (lambda: LogNormal(scale_mean=-1, cv=1), "scale_mean: -1 is outside 1e-6"),
        (lambda: LogNormal(scale_mean=1, cv=0), "cv: 0 is outside 0 < cv <= 100"),
        (lambda: Empirical(values=[]), "values: the list is empty"),
        (lambda: Empirical(values=[-1]), "values: -1 is negative"),
        (lambda: Empirical(values=[1], weights=[1, 2]), "weights: 2 weights for 1 values"),
        (lambda: Empirical(values=[1, 2], weights=[1, -1]), "weights: must be non-negative"),
        (lambda: Empirical(values=[1, 2], weights=[0, 0]), "with a positive sum"),
        (lambda: IndependentLengths(0, 0), "every request has 0 + 0 tokens"),
        (lambda: IndependentLengths(0, Uniform(low=0, high=0)), "every request has 0 + 0 tokens"),
    ],
)
def test_bad_laws_are_refused(make, complaint):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert complaint in str(caught.value)


def test_a_whole_number_is_a_constant_law():
    assert to_law(3) == Constant(3)
    assert to_law(Geometric(mean=2)) == Geometric(mean=2)


class TestRedraw:
    """A draw of 0 + 0 tokens is drawn again: both means grow by 1/(1 - P(0, 0))."""

    lengths = IndependentLengths(Uniform(low=0, high=1), Uniform(low=0, high=2))

    def test_exact_moments(self):
        # Five of the six pairs are left.
        assert self.lengths.mean_prefill == Fraction(3, 5)
        assert self.lengths.mean_decode == Fraction(6, 5)
        assert self.lengths.prefill_probability == Fraction(3, 5)
        assert self.lengths.decode_survival(np.arange(4)) == pytest.approx([1, 0.8, 0.4, 0])

    def test_samples(self):
        prefill, decode = self.lengths.sample(np.random.default_rng(3), 30_000)
        assert (prefill + decode).min() == 1
        pairs, counts = np.unique(np.stack([prefill, decode]), axis=1, return_counts=True)
        assert pairs.shape[1] == 5
        assert np.abs(counts / 30_000 - 0.2).max() < 4 * math.sqrt(0.16 / 30_000)

    def test_the_changed_means_are_reported(self):
        (note,) = self.lengths.notes
        assert "probability 0.167" in note
        assert "0.6 prefill, 1.2 decode" in note

    def test_a_float_probability_that_matters(self):
        lengths = IndependentLengths(Poisson(mean=1), Poisson(mean=2))
        empty = math.exp(-3)
        assert lengths.mean_decode == pytest.approx(2 / (1 - empty))
        assert lengths.constant_decode is None

    def test_nothing_to_redraw_changes_nothing(self):
        lengths = IndependentLengths(129, Poisson(mean=112))
        assert lengths.notes == ()
        assert (lengths.mean_prefill, lengths.mean_decode) == (129, 112)
        assert all(isinstance(mean, Fraction) for mean in (lengths.mean_prefill, lengths.mean_decode))

    def test_without_decodes_every_prompt_has_a_token(self):
        assert IndependentLengths(Poisson(mean=1), 0).prefill_probability == pytest.approx(1)


def test_rounding_of_a_lognormal_is_reported():
    notes = IndependentLengths(LogNormal(scale_mean=40, cv=1), 3).notes
    assert notes == ("prefill: rounding up moves the lognormal mean from 40 to 40.5 tokens",)


class TestObserved:
    rows = ObservedLengths([100, 0, 100, 300], [1, 5, 1, 0])

    def test_moments(self):
        assert self.rows.mean_prefill == 125
        assert self.rows.mean_decode == Fraction(7, 4)
        assert self.rows.prefill_probability == Fraction(3, 4)
        assert self.rows.longest_prompt == 300
        assert self.rows.constant_prompt is None
        assert self.rows.constant_decode is None
        assert self.rows.decode_cutoff() == 5
        assert self.rows.decode_survival(np.array([0, 1, 2, 5, 6])).tolist() == [1, 0.75, 0.25, 0.25, 0]

    def test_pairs_stay_together(self):
        prefill, decode = self.rows.sample(np.random.default_rng(0), 1000)
        assert set(zip(prefill.tolist(), decode.tolist(), strict=True)) == {(100, 1), (0, 5), (300, 0)}

    def test_the_arrays_cannot_be_changed_behind_its_back(self):
        with pytest.raises(ValueError, match="read-only"):
            self.rows.prefill[0] = 5

    @pytest.mark.parametrize(
        ("prefill", "decode"), [([], []), ([1], [1, 2]), ([-1], [2]), ([1, 0], [1, 0]), ([[1]], [[1]])]
    )
    def test_bad_rows(self, prefill, decode):
        with pytest.raises(InvalidInput):
            ObservedLengths(prefill, decode)

    def test_one_value(self):
        same = ObservedLengths([7, 7], [2, 2])
        assert (same.constant_prompt, same.constant_decode) == (7, 2)
