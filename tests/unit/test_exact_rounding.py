"""Printed limits: the digits never claim more than the number."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuetheory_llm.exact.rounding import load_text, lower_limit, told_apart, upper_limit, with_bound
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.stability.thresholds import threshold
from queuetheory_llm.verdict import Verdict

RATES = st.fractions(min_value=Fraction(1, 10**6), max_value=10**6, max_denominator=10**9)


@given(RATES, st.integers(3, 9))
def test_limits_are_rounded_outwards_by_less_than_a_digit(rate, digits):
    low, high = Fraction(lower_limit(rate, digits)), Fraction(upper_limit(rate, digits))
    assert low <= rate <= high
    assert high - low <= rate / 10 ** (digits - 1)


@given(RATES, st.integers(-(10**9), 10**9))
def test_a_rate_and_a_limit_are_told_apart(limit, steps):
    rate = limit * (1 + Fraction(steps, 10**13))
    shown, bound = map(Fraction, told_apart(rate, limit))
    assert (shown < bound) == (rate < limit)
    assert (shown > bound) == (rate > limit)
    assert bound <= limit if rate < limit else bound >= limit or rate == limit


@pytest.mark.parametrize("value", [13.871, 0.1, 1.9, 2e-7, 123456.0, 1e22])
def test_a_short_decimal_is_left_as_it_is(value):
    assert lower_limit(value) == upper_limit(value) == f"{value:.6g}"


def test_no_limit_and_no_rate():
    assert (upper_limit(float("inf")), lower_limit(Fraction(0))) == ("inf", "0")


@pytest.mark.parametrize("load", [1 + Fraction(1, 10**9), 1 - Fraction(1, 10**9), 1.0000001])
def test_no_load_but_1_reads_1(load):
    assert float(load_text(load, 4)) != 1
    assert (float(load_text(load, 4)) > 1) == (load > 1)


def test_the_load_1_reads_1():
    assert load_text(Fraction(1)) == load_text(1.0) == "1"


def test_a_reason_shows_which_side_of_the_limit_the_rate_is():
    law = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
    limit = threshold(Engine(batch_time=law, b_max=512), "sarathi", Workload.of(prefill=129, decode=112))
    judged = limit.judge("13.871")
    assert judged.verdict is Verdict.UNSTABLE
    assert judged.reason.startswith("13.871 requests/s against a limit of 13.870994: ")
    assert limit.judge("13.8709").reason.startswith("13.8709 requests/s against a limit of 13.87099: ")


@given(value=st.floats(-1e9, 1e9), bound=st.one_of(st.just(0.0), st.floats(1e-18, 1e3)))
def test_what_is_printed_is_as_near_as_it_says(value, bound):
    shown, error = with_bound(value, bound)
    off = Fraction(bound) + abs(Fraction(shown) - Fraction(value))
    assert off <= Fraction(error)
    assert float(error) <= max(3 * bound, 2e-9 * abs(value), 1e-9)
