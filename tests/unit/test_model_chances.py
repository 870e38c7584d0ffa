"""The laws of a model as probability vectors: against scipy, exact fractions and the laws' own means."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from queuetheory_llm.errors import AssumptionViolated, InvalidInput, InvalidModel, NotConverged
from queuetheory_llm.model.arrivals import BatchCount, DeterministicArrivals, PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.chances import (
    DecodeKind,
    arrivals_law,
    binomial_law,
    count_law,
    memoryless_decode,
    poisson_law,
    request_law,
)
from queuetheory_llm.model.lengths import (
    Empirical,
    Geometric,
    IndependentLengths,
    LogNormal,
    ObservedLengths,
    Poisson,
    Uniform,
)
from queuetheory_llm.model.workload import RequestClass, Workload


@pytest.mark.parametrize("mean", [0.0, 1e-9, 0.3, 7.0, 900.0, 20_000.0])
def test_poisson_counts(mean):
    law = poisson_law(mean)
    assert law.sum() == pytest.approx(1, abs=1e-13)
    assert law @ np.arange(len(law)) == pytest.approx(mean, rel=1e-12)
    assert law == pytest.approx(stats.poisson.pmf(np.arange(len(law)), mean), rel=1e-10, abs=1e-300)
    assert stats.poisson.sf(len(law) - 1, mean) < 1e-16


class TestBinomial:
    @pytest.mark.parametrize(("trials", "chance"), [(1, 0.5), (7, 0.02), (400, 0.98), (5000, 0.5), (30_000, 0.9)])
    def test_against_scipy_in_the_log(self, trials, chance):
        """Entry j is P(j) at both ends: unlikely small numbers are neither dropped nor moved."""
        law = binomial_law(trials, chance)
        assert law.sum() == pytest.approx(1, abs=1e-13)
        logs = stats.binom.logpmf(np.arange(len(law)), trials, chance)
        seen = logs > -700
        assert np.log(law[seen]) == pytest.approx(logs[seen], abs=1e-9)
        assert (law[~seen] < 1e-300).all()
        assert law @ np.arange(len(law)) == pytest.approx(trials * chance, rel=1e-12)
        assert trials - len(law) < trials * chance  # cut above the mean only

    def test_against_fractions(self):
        p = Fraction(19, 20)
        exact = [math.comb(60, j) * p**j * (1 - p) ** (60 - j) for j in range(61)]
        assert binomial_law(60, 0.95) == pytest.approx([float(each) for each in exact], rel=1e-12, abs=0)

    def test_what_is_certain(self):
        assert binomial_law(3, 1.0).tolist() == [0, 0, 0, 1]
        assert binomial_law(3, 0.0).tolist() == [1]
        assert binomial_law(0, 0.4).tolist() == [1]


class TestArrivals:
    def test_poisson_over_the_batch(self):
        law = arrivals_law(PoissonArrivals(rate=4), Fraction(3, 4))
        assert law == pytest.approx(poisson_law(3.0))
        assert arrivals_law(PoissonArrivals(rate=4), Fraction(3, 4), rate=8) == pytest.approx(poisson_law(6.0))
        assert arrivals_law(None, Fraction(1, 2), rate=Fraction(6)) == pytest.approx(poisson_law(3.0))

    def test_slots(self):
        bernoulli = SlottedArrivals(slot="500 ms", law="bernoulli", mean="1/4")
        assert arrivals_law(bernoulli, Fraction(1, 2)).tolist() == [0.75, 0.25]
        assert arrivals_law(bernoulli, Fraction(1, 2), rate=1.5).tolist() == [0.25, 0.75]
        poisson = SlottedArrivals(slot="500 ms", law="poisson", mean=3)
        assert arrivals_law(poisson, Fraction(1, 2)) == pytest.approx(poisson_law(3.0))

    def test_batches(self):
        count = BatchCount(values=[4, 0, 1, 9], weights=[1, 2, 1, 0])
        assert count_law(count).tolist() == [0.5, 0.25, 0, 0, 0.25]
        arrivals = SlottedArrivals(slot="500 ms", per_slot=count)
        assert arrivals_law(arrivals, Fraction(1, 2)).tolist() == [0.5, 0.25, 0, 0, 0.25]
        assert arrivals_law(arrivals, Fraction(1, 2), rate=1.25).tolist() == [0.75, 0.125, 0, 0, 0.125]
        with pytest.raises(NotConverged, match="2000000 requests may come in one slot"):
            count_law(BatchCount(values=[0, 2_000_000]))

    def test_refusals(self):
        with pytest.raises(AssumptionViolated, match="not deterministic; use qt-llm simulate"):
            arrivals_law(DeterministicArrivals(interval=1), Fraction(1))
        with pytest.raises(AssumptionViolated, match="give rate"):
            arrivals_law(None, Fraction(1))
        with pytest.raises(InvalidModel, match="rate: 2 requests/s is above 1"):
            arrivals_law(SlottedArrivals(slot=1, law="bernoulli", mean="1/4"), Fraction(1), rate=2)


def entries(law):
    pairs = zip(law.prefill.tolist(), law.decode.tolist(), strict=True)
    return dict(zip(pairs, law.chance.tolist(), strict=True))


def mixture(*parts):
    return Workload(
        classes=[RequestClass(lengths=part, name=f"k{i}", weight=i) for i, part in enumerate(parts, start=1)]
    )


class TestRequests:
    @pytest.mark.parametrize(
        "lengths",
        [
            IndependentLengths(129, 112),
            IndependentLengths(Uniform(low=0, high=3), Uniform(low=0, high=2)),
            IndependentLengths(Empirical(values=[5, 100_000, 5], weights=["1/2", "1/3", "1/6"]), 4),
            IndependentLengths(Geometric(mean="5/2"), 3),
            IndependentLengths(2, Poisson(mean="7/2")),
            IndependentLengths(Poisson(mean="1/2"), Poisson(mean="3/2")),
            IndependentLengths(LogNormal(scale_mean=6, cv="1/4"), 1),
            ObservedLengths([5, 6, 5, 0], [1, 1, 0, 2]),
            mixture(
                IndependentLengths(2, Geometric(mean=3)), ObservedLengths([1, 2], [3, 4]), IndependentLengths(2, 3)
            ),
        ],
        ids=lambda each: repr(each)[:60],
    )
    @pytest.mark.parametrize(("memoryless", "late"), [(False, False), (True, False), (True, True)])
    def test_it_is_a_law_with_the_means_of_the_lengths(self, lengths, memoryless, late):
        law = request_law(lengths, memoryless=memoryless, late=late, tail=1e-14)
        assert law.chance.sum() == pytest.approx(1, abs=1e-14)
        assert (law.chance > 0).all()
        assert law.prefill.dtype == law.decode.dtype == np.int64
        pairs = list(zip(law.prefill.tolist(), law.decode.tolist(), strict=True))
        assert pairs == sorted(set(pairs))
        assert (0, 0) not in pairs
        assert law.mean_prefill == pytest.approx(float(lengths.mean_prefill), rel=1e-12)
        assert law.mean_decode == pytest.approx(float(lengths.mean_decode), rel=1e-12)
        assert 0 <= law.cut <= 3e-14

    def test_a_draw_without_tokens_is_drawn_again(self):
        law = request_law(IndependentLengths(Uniform(low=0, high=1), Uniform(low=0, high=2)), memoryless=False)
        assert entries(law) == pytest.approx(dict.fromkeys([(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], 1 / 5))
        assert law.cut == 0

    def test_equal_requests_of_several_classes_are_one_entry(self):
        law = request_law(
            mixture(IndependentLengths(2, 3), IndependentLengths(Uniform(low=1, high=2), 3)), memoryless=True
        )
        assert entries(law) == pytest.approx({(1, 3): 1 / 3, (2, 3): 2 / 3})

    def test_memoryless_lengths_are_one_entry_a_prompt(self):
        half = IndependentLengths(Uniform(low=1, high=2), Geometric(mean=5))
        law = request_law(
            mixture(half, IndependentLengths(2, Geometric(mean=3)), IndependentLengths(2, 7)), memoryless=True
        )
        assert law.kinds == (DecodeKind(mean=Fraction(3)), DecodeKind(mean=Fraction(5)))
        assert entries(law) == pytest.approx({(1, -2): 1 / 12, (2, -2): 1 / 12, (2, -1): 1 / 3, (2, 7): 1 / 2})
        assert law.mean_decode == pytest.approx(5 / 6 + 1 + 7 / 2)
        assert law.cut == 0

    def test_a_geometric_length_of_mean_one_is_constant(self):
        law = request_law(IndependentLengths(2, Geometric(mean=1)), memoryless=True)
        assert (entries(law), law.kinds) == ({(2, 1): 1.0}, ())

    def test_lengths_drawn_late_are_one_kind_for_all_prompts_of_a_pair(self):
        prompts = Empirical(values=[1, 2, 4], weights=["1/3", "1/7", "11/21"])
        lengths = IndependentLengths(prompts, Empirical(values=[0, 1, 2, 5], weights=[1, 1, 3, 1]))
        law = request_law(lengths, memoryless=True, late=True)
        (kind,) = law.kinds
        assert kind.values == (1, 2, 5)
        assert kind.chances == pytest.approx((1 / 5, 3 / 5, 1 / 5))
        assert (kind.mean, kind.bound, kind.memoryless) == (pytest.approx(12 / 5), 5, False)
        parts = {1: 1 / 3, 2: 1 / 7, 4: 11 / 21}
        expected = {(p, code): part * q for p, part in parts.items() for code, q in ((-1, 5 / 6), (0, 1 / 6))}
        assert entries(law) == pytest.approx(expected)

    def test_kinds_are_the_laws_given_the_prompt(self):
        """Two classes with one prompt are one law; one value is known; a memoryless length is not mixed in."""
        law = request_law(
            mixture(IndependentLengths(Uniform(low=1, high=2), 3), IndependentLengths(2, Uniform(low=2, high=5)),
                    IndependentLengths(2, Geometric(mean=5))), memoryless=True, late=True)  # fmt: skip
        assert entries(law) == pytest.approx({(1, 3): 1 / 12, (2, -1): 1 / 2, (2, -2): 5 / 12})
        assert law.kinds[0] == DecodeKind(mean=Fraction(5))
        assert law.kinds[1].values == (2, 3, 4, 5)
        assert law.kinds[1].chances == pytest.approx((1 / 5, 2 / 5, 1 / 5, 1 / 5))

    def test_as_many_kinds_as_values_are_none(self):
        rows = ObservedLengths([1, 1, 2, 2, 3], [1, 3, 1, 2, 1])
        assert request_law(rows, memoryless=True, late=True).kinds == ()
        assert len(entries(request_law(rows, memoryless=True, late=True))) == 5

    def test_kinds_of_observed_lengths(self):
        rows = ObservedLengths([1, 1, 2, 2, 3, 3, 4, 5], [1, 2, 1, 2, 1, 3, 7, 0])
        law = request_law(rows, memoryless=True, late=True)
        assert [kind.values for kind in law.kinds] == [(1, 2), (1, 3)]
        expected = {(1, -1): 1 / 4, (2, -1): 1 / 4, (3, -2): 1 / 4, (4, 7): 1 / 8, (5, 0): 1 / 8}
        assert entries(law) == pytest.approx(expected)

    @pytest.mark.parametrize("tail", [1e-3, 1e-9])
    def test_the_cut_is_at_the_first_value_beyond_which_less_is_left(self, tail):
        law = request_law(IndependentLengths(1, Geometric(mean=4)), memoryless=False, tail=tail)
        last = int(law.decode[-1])
        assert 0.75**last <= tail < 0.75 ** (last - 1)
        assert law.cut == pytest.approx(0.75**last)
        kept = 0.25 * 0.75 ** np.arange(last)
        assert law.chance == pytest.approx(kept / (1 - 0.75**last))

    def test_two_cuts_and_a_redraw(self):
        """A request is whole when neither length is beyond its cut, among those that have a token."""
        law = request_law(IndependentLengths(Poisson(mean=1), Poisson(mean=2)), memoryless=False, tail=1e-2)
        first, second = int(law.prefill.max()), int(law.decode.max())
        drawn = -math.expm1(-3)
        whole = stats.poisson.cdf(first, 1) * stats.poisson.cdf(second, 2) - math.exp(-3)
        assert law.cut == pytest.approx(1 - whole / drawn, rel=1e-9)
        chance = stats.poisson.pmf(2, 1) * stats.poisson.pmf(1, 2) / whole
        assert entries(law)[2, 1] == pytest.approx(chance)

    def test_unbounded_laws_need_a_tail(self):
        with pytest.raises(InvalidModel) as caught:
            request_law(mixture(IndependentLengths(Poisson(mean=3), Geometric(mean=3)), IndependentLengths(1, 1),
                                IndependentLengths(1, LogNormal(scale_mean=3, cv=1))), memoryless=True)  # fmt: skip
        assert [fault.split(";")[0] for fault in caught.value.faults] == [
            "class k1: prefill: a poisson law has no largest value",
            "class k3: decode: a lognormal law has no largest value",
        ]
        with pytest.raises(InvalidModel, match=r"^decode: a geometric law has no largest value; .* --cut 1e-12"):
            request_law(IndependentLengths(1, Geometric(mean=3)), memoryless=False)

    @pytest.mark.parametrize("tail", [0, -1e-9, 1, math.nan])
    def test_a_tail_is_a_probability(self, tail):
        with pytest.raises(InvalidInput, match=r"tail: .* is no probability"):
            request_law(IndependentLengths(1, 1), memoryless=False, tail=tail)

    @pytest.mark.parametrize(
        "lengths",
        [
            IndependentLengths(Uniform(low=1, high=21), Uniform(low=1, high=20)),
            IndependentLengths(Uniform(low=1, high=10**9), 1),
            IndependentLengths(1, LogNormal(scale_mean=1000, cv=2)),
            ObservedLengths(range(1, 402), range(401)),
            mixture(IndependentLengths(Uniform(low=1, high=300), 1), IndependentLengths(Uniform(low=1, high=300), 2)),
        ],
        ids=lambda each: repr(each)[:60],
    )
    def test_too_many_entries(self, lengths):
        with pytest.raises(NotConverged, match=r"too many values|more than 400 values"):
            request_law(lengths, memoryless=False, tail=1e-9)

    def test_as_many_as_allowed(self):
        lengths = IndependentLengths(Uniform(low=0, high=20), Uniform(low=0, high=20))
        assert len(request_law(lengths, memoryless=False, most=440).chance) == 440
        with pytest.raises(NotConverged):
            request_law(lengths, memoryless=False, most=439)

    def test_kinds_count_once_for_all_prompts(self):
        lengths = IndependentLengths(Uniform(low=1, high=20), Uniform(low=1, high=20))
        assert len(request_law(lengths, memoryless=True, late=True, most=20).chance) == 20
        for most in (Uniform(low=1, high=21), 1), (1, Uniform(low=1, high=21)):
            with pytest.raises(NotConverged, match="more than 20 values"):
                request_law(IndependentLengths(*most), memoryless=True, late=True, most=20)


def test_memoryless_means_geometric_of_one_mean():
    geometric, other = IndependentLengths(2, Geometric(mean=3)), IndependentLengths(1, Geometric(mean=4))
    assert memoryless_decode(mixture(geometric, geometric)) == 3
    assert memoryless_decode(mixture(geometric, other)) is None
    assert memoryless_decode(IndependentLengths(2, Geometric(mean=1))) is None
