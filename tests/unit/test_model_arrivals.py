"""Arrival processes and workloads: rates, rescaling, mixtures."""

import math
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.model.arrivals import (
    BatchCount,
    BernoulliCount,
    ConstantInterval,
    DeterministicArrivals,
    ExponentialInterval,
    GammaInterval,
    LogNormalInterval,
    PoissonArrivals,
    PoissonCount,
    RenewalArrivals,
    SlottedArrivals,
    UniformInterval,
    WeibullInterval,
)
from queuetheory_llm.model.chances import count_law
from queuetheory_llm.model.lengths import Constant, Empirical, Geometric, IndependentLengths, ObservedLengths, Uniform
from queuetheory_llm.model.system import System
from queuetheory_llm.model.workload import RequestClass, Workload

# Each with its coefficient of variation.
INTERVALS = [
    (ConstantInterval(mean="20 ms"), 0),
    (ExponentialInterval(mean="20 ms"), 1),
    (UniformInterval(low="10 ms", high="30 ms"), 1 / math.sqrt(12)),
    (GammaInterval(mean="20 ms", cv="0.7"), 0.7),
    (GammaInterval(mean="20 ms", cv=2), 2),
    (LogNormalInterval(mean="20 ms", cv="0.5"), 0.5),
    (WeibullInterval(mean="20 ms", cv="0.5"), 0.5),
    (WeibullInterval(mean="20 ms", cv="1.5"), 1.5),
]
each_interval = pytest.mark.parametrize(("law", "cv"), INTERVALS, ids=lambda value: repr(value)[:40])


@each_interval
def test_intervals_have_their_mean_and_variation(law, cv):
    draws = law.sample(np.random.default_rng(4), 200_000)
    spread = draws.std(ddof=1)
    assert law.mean == Fraction(20, 1000)
    assert abs(draws.mean() - 0.02) <= 4 * spread / math.sqrt(draws.size) + 1e-15
    # The variance is a mean of squares, with a standard error of its own.
    squares = (draws - 0.02) ** 2
    assert abs(squares.mean() - (cv * 0.02) ** 2) <= 4 * squares.std(ddof=1) / math.sqrt(draws.size) + 1e-18


@each_interval
def test_scaling_an_interval_scales_every_draw(law, cv):  # noqa: ARG001
    scaled = law.scaled(Fraction(3, 2))
    assert scaled.mean == Fraction(30, 1000)
    before, after = (each.sample(np.random.default_rng(5), 100) for each in (law, scaled))
    assert after == pytest.approx(1.5 * before)


@pytest.mark.parametrize(
    "arrivals",
    [
        PoissonArrivals(rate="2.5"),
        DeterministicArrivals(interval="400 ms"),
        RenewalArrivals(interval=UniformInterval(low="300 ms", high="500 ms")),
        SlottedArrivals(slot="100 ms", law="poisson", mean="0.25"),
        SlottedArrivals(slot="100 ms", law="bernoulli", mean="0.25"),
        SlottedArrivals(slot="100 ms", per_slot=BatchCount(values=[1, 0, 2], weights=["0.15", "0.8", "0.05"])),
    ],
    ids=repr,
)
def test_a_process_at_another_rate_is_of_the_same_kind(arrivals):
    assert arrivals.rate == Fraction(5, 2)
    faster = arrivals.with_rate(Fraction(5))
    assert faster.rate == 5
    assert faster.kind == arrivals.kind
    assert faster.with_rate(Fraction(5, 2)) == arrivals


def test_slots_are_not_rescaled():
    assert SlottedArrivals(slot="100 ms", law="poisson", mean=1).with_rate(Fraction(50)).slot == Fraction(1, 10)


def test_another_rate_of_batches_scales_every_positive_number_alike():
    arrivals = SlottedArrivals(slot="500 ms", per_slot=BatchCount(values=[0, 1, 4], weights=["1/2", "1/4", "1/4"]))
    assert arrivals.rate == Fraction(5, 2)
    half = arrivals.with_rate(Fraction(5, 4)).per_slot
    assert half.chances == {0: Fraction(3, 4), 1: Fraction(1, 8), 4: Fraction(1, 8)}
    assert arrivals.largest_rate == 5  # two slots a second, each with 1 or 4
    assert arrivals.with_rate(Fraction(5)).per_slot.chances == {0: 0, 1: Fraction(1, 2), 4: Fraction(1, 2)}
    with pytest.raises(InvalidModel, match=r"rate: 6 requests/s is above 5, at which no slot is empty"):
        arrivals.with_rate(Fraction(6))


def test_batches_without_an_empty_slot_gain_some_at_a_lower_rate():
    full = BatchCount(values=[3])
    assert full.with_mean(Fraction(3)) == full
    assert full.with_mean(Fraction(1)).chances == {0: Fraction(2, 3), 3: Fraction(1, 3)}


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (BernoulliCount(p="0.5"), "bernoulli with mean 0.5 per slot of 500 ms"),
        (BatchCount(values=[0, 1, 4]), "batches of 0, 1, 4 with mean 1.66667 per slot of 500 ms"),
        (BatchCount(values=range(11)), "batches of up to 10 with mean 5 per slot of 500 ms"),
    ],
)
def test_slotted_arrivals_in_words(count, words):
    assert SlottedArrivals(slot="500 ms", per_slot=count).describe() == words


def test_the_name_and_mean_of_a_law_are_short_for_it():
    for law, count in (("bernoulli", BernoulliCount(p="1/3")), ("poisson", PoissonCount(mean="1/3"))):
        assert SlottedArrivals(slot=1, law=law, mean="1/3") == SlottedArrivals(slot=1, per_slot=count)


@pytest.mark.parametrize(
    "count",
    [BernoulliCount(p="0.3"), PoissonCount(mean="2.5"), BatchCount(values=[4, 0, 1], weights=[1, 2, 1]),
     BatchCount(values=[2, 7])],
    ids=repr,
)  # fmt: skip
def test_numbers_per_slot_follow_their_law(count):
    """The share of each number within 4 standard errors of its probability."""
    draws = count.sample(np.random.default_rng(8), 100_000)
    assert draws.dtype == np.int64
    law = count_law(count)
    assert law @ np.arange(len(law)) == pytest.approx(float(count.mean), rel=1e-12)
    for value, chance in enumerate(law):
        assert abs((draws == value).mean() - chance) <= 4 * math.sqrt(chance * (1 - chance) / draws.size)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: PoissonArrivals(rate=0), "rate: 0 is not positive"),
        (lambda: PoissonArrivals(rate="-1"), "rate: -1 is not positive"),
        (lambda: PoissonArrivals(rate=float("inf")), "is not finite"),
        (lambda: DeterministicArrivals(interval="0 s"), "interval: 0 is not positive"),
        (lambda: DeterministicArrivals(interval="5"), "has no unit"),
        (lambda: SlottedArrivals(slot=1, law="bernoulli", mean="1.5"), "p: 1.5 is above 1"),
        (
            lambda: SlottedArrivals(slot=1, law="bernoulli", mean=1).with_rate(Fraction(2)),
            "rate: 2 requests/s is above 1",
        ),
        (lambda: SlottedArrivals(slot=1, law="poisson", mean=1).with_rate(Fraction(0)), "rate: 0 is not positive"),
        (lambda: SlottedArrivals(slot=1, law="batch", mean=1), "law: 'batch' is not bernoulli or poisson"),
        (lambda: SlottedArrivals(slot=1), "per_slot: give the law"),
        (lambda: SlottedArrivals(slot=1, per_slot=PoissonCount(mean=1), mean=1), "per_slot: goes without law"),
        (lambda: BernoulliCount(p=0), "p: 0 is not positive"),
        (lambda: BatchCount(values=[]), "values: the list is empty"),
        (lambda: BatchCount(values=[-1, 2]), "values: -1 is negative"),
        (lambda: BatchCount(values=["1/2", 2]), "1/2 is not a whole number"),
        (lambda: BatchCount(values=[2, 1, 2]), "values: 2 is given 2 times"),
        (lambda: BatchCount(values=[0]), "values: no slot ever brings a request"),
        (lambda: BatchCount(values=[0, 3], weights=[1, 0]), "values: no slot ever brings a request"),
        (lambda: BatchCount(values=[0, 3], weights=[2, "-1/4"]), "weights: -0.25 is negative"),
        (lambda: BatchCount(values=[0, 3], weights=[1]), "weights: 1 weights for 2 values"),
        (lambda: BatchCount(values=[0, 3]).with_mean(Fraction(4)), "mean: 4 is above 3"),
        (lambda: UniformInterval(low=2, high=2), "low: need 0 <= low < high"),
        (lambda: GammaInterval(mean=1, cv=0), "cv: 0 is not positive"),
        (lambda: WeibullInterval(mean=1, cv="0.001"), "cv: 0.001 is outside"),
    ],
)
def test_bad_processes_are_refused(make, complaint):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert complaint in str(caught.value)


def two(first, second, weights=(1, 1)):
    return Workload(
        classes=[
            RequestClass(lengths=first, weight=weights[0], name="a"),
            RequestClass(lengths=second, weight=weights[1], name="b"),
        ],
        arrivals=PoissonArrivals(rate=3),
    )


class TestWorkload:
    mixed = two(IndependentLengths(129, 112), IndependentLengths(1000, Geometric(mean=20)), weights=(1, 3))

    def test_means_are_weighted_exactly(self):
        assert self.mixed.shares == (Fraction(1, 4), Fraction(3, 4))
        assert self.mixed.mean_prefill == Fraction(129 + 3 * 1000, 4)
        assert self.mixed.mean_decode == 43
        assert self.mixed.mean_tokens == Fraction(129 + 3000, 4) + 43
        assert self.mixed.rate == 3

    def test_laws_are_mixed(self):
        counts = np.array([0, 1, 2, 112, 113])
        expected = [1, 1, *(0.25 * (k <= 112) + 0.75 * 0.95 ** (k - 1) for k in (2, 112, 113))]
        assert self.mixed.decode_survival(counts) == pytest.approx(expected)
        assert self.mixed.decode_survival(np.array([self.mixed.decode_cutoff() + 1]))[0] < 1e-14

    def test_samples_keep_classes_apart(self):
        prefill, decode = self.mixed.sample(np.random.default_rng(6), 20_000)
        assert set(prefill.tolist()) == {129, 1000}
        assert set(decode[prefill == 129].tolist()) == {112}
        assert abs((prefill == 129).mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 20_000)

    def test_constants_hold_only_when_the_classes_agree(self):
        assert self.mixed.constant_prompt is None
        assert self.mixed.constant_decode is None
        assert self.mixed.longest_prompt == 1000
        same = two(IndependentLengths(9, 4), IndependentLengths(Constant(9), Uniform(low=4, high=4)))
        assert (same.constant_prompt, same.constant_decode) == (9, 4)
        assert two(IndependentLengths(9, 4), IndependentLengths(Geometric(mean=9), 4)).longest_prompt is None

    def test_prompts_that_some_requests_do_not_have(self):
        shares = two(IndependentLengths(0, 4), IndependentLengths(Empirical(values=[0, 8]), 4), weights=(1, 1))
        assert shares.prefill_probability == Fraction(1, 4)

    def test_notes_name_the_class(self):
        assert self.mixed.notes == ()
        redrawn = two(IndependentLengths(1, 1), IndependentLengths(Uniform(low=0, high=1), Uniform(low=0, high=1)))
        assert redrawn.notes[0].startswith("class b: 0 + 0 tokens has probability 0.25")

    def test_a_workload_without_rate(self):
        assert Workload.of(prefill=1, decode=1).rate is None
        assert self.mixed.with_arrivals(None).rate is None
        assert self.mixed.with_arrivals(None).classes == self.mixed.classes

    def test_bad_classes(self):
        with pytest.raises(InvalidModel, match="at least one class"):
            Workload(classes=())
        with pytest.raises(InvalidModel, match="weight: 0 is not positive"):
            RequestClass(lengths=IndependentLengths(1, 1), weight=0)
        with pytest.raises(InvalidModel, match="'x' is used twice"):
            Workload(classes=[RequestClass(lengths=IndependentLengths(1, 1), name="x")] * 2)


def test_classes_of_rows_are_drawn_by_row():
    workload = two(ObservedLengths([5, 6], [1, 2]), IndependentLengths(9, 9))
    prefill, decode = workload.sample(np.random.default_rng(7), 2000)
    assert set(zip(prefill.tolist(), decode.tolist(), strict=True)) == {(5, 1), (6, 2), (9, 9)}


def test_a_system_without_workload_says_how_to_give_one():
    with pytest.raises(InvalidInput, match=r"m\.toml: workload: missing; .*--trace"):
        System(engine=None, name="m.toml").require_workload()
