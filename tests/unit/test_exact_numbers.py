"""Numbers as users write them: read exactly or refused in one line."""

from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import (
    common_denominator,
    duration_text,
    exact_text,
    require_whole,
    to_bytes,
    to_count,
    to_fraction,
    to_seconds,
)


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (0.1, Fraction(1, 10)),
        (1e-3, Fraction(1, 1000)),
        ("12.50", Fraction(25, 2)),
        (" 7 ", Fraction(7)),
        ("1e-3", Fraction(1, 1000)),
        ("400/187", Fraction(400, 187)),
        ("-3/6", Fraction(-1, 2)),
        (Decimal("0.10"), Fraction(1, 10)),
        (Fraction(2, 6), Fraction(1, 3)),
        (10**30, Fraction(10**30)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.float32(0.1), Fraction(1, 10)),
        ("1e30", Fraction(10**30)),
        ("1e-30", Fraction(1, 10**30)),
        ("0e5000", Fraction(0)),
    ],
)
def test_a_number_is_read_exactly(value, exact):
    assert to_fraction(value) == exact


def test_a_numpy_integer_does_not_overflow_inside_a_fraction():
    assert to_fraction(np.int64(2**62)) * 4 == 2**64
    assert to_count(np.int32(2**30)) * 4 == 2**32


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("", "is not a number"),
        ("12abc", "is not a number"),
        ("0x10", "is not a number"),
        ("1,5", "is not a number"),
        ("1_0", "without underscores"),
        ("1/1_0", "without underscores"),
        ("\uff11\uff10", "write it with the digits 0 to 9 alone"),
        ("\u0661/\u0662", "write it with the digits 0 to 9 alone"),
        (date(1979, 5, 27), "1979-05-27 is not a number"),
        ({"law": "poisson"}, "a table is not a number"),
        ("1/2/3", "is not a number"),
        ("1/2.5", "is not a number"),
        ("1/0", "divides by zero"),
        ("9" * 5000 + "/2", "a number of 5002 characters is no quantity"),
        (10**400, "outside 1e-30 .. 1e30"),
        ("1" * 100 + "/7", "a value outside 1e-30 .. 1e30"),
        ("nan", "is not finite"),
        ("-inf", "is not finite"),
        (float("nan"), "is not finite"),
        (float("inf"), "is not finite"),
        ("1e400", "outside 1e-30 .. 1e30"),
        ("1e-31", "outside 1e-30 .. 1e30"),
        (True, "is not a number"),
        (None, "is not a number"),
        (1j, "is not a number"),
        ([1], "is not a number"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(value, complaint):
    with pytest.raises(InvalidInput) as caught:
        to_fraction(value)
    assert complaint in str(caught.value)
    assert len(caught.value.faults) == 1
    assert "\n" not in caught.value.faults[0]


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        ("11.28 ms", Fraction(1128, 100_000)),
        ("467.5ms", Fraction(187, 400)),
        ("35 us", Fraction(35, 10**6)),
        ("1e-3 s", Fraction(1, 1000)),
        (" 2/3 ms ", Fraction(2, 3000)),
        ("-5 ms", Fraction(-5, 1000)),
        (0.25, Fraction(1, 4)),
        (3, Fraction(3)),
    ],
)
def test_a_duration_is_read_exactly(value, exact):
    assert to_seconds(value) == exact


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("35", 'has no unit; write s, ms or us, such as "35 ms"'),
        ("1e3", "has no unit"),
        ("35 min", "has the unknown unit 'min'"),
        ("35 S", "has the unknown unit 'S'"),
        ("35 µs", "has the unknown unit 'µs'"),
        ("ms", "is not a duration"),
        ("", "is not a duration"),
        ("nan ms", "is not a duration"),
        ("3 ms 4", "is not a duration"),
        ("1..2 ms", "is not a number"),
        ("1e99 s", "outside 1e-30 .. 1e30"),
        (float("nan"), "is not finite"),
    ],
)
def test_a_bad_duration_says_what_to_write(value, complaint):
    with pytest.raises(InvalidInput) as caught:
        to_seconds(value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("value", [3, "3", 3.0, "3.0", Fraction(6, 2), np.int64(3)])
def test_a_count(value):
    assert to_count(value) == 3
    assert type(to_count(value)) is int


@pytest.mark.parametrize("value", [3.5, "7/2"])
def test_half_a_token_is_no_count(value):
    with pytest.raises(InvalidInput, match="is not a whole number"):
        to_count(value)


def test_exact_text_is_for_rationals_only():
    assert exact_text(Fraction(12_800_000, 3829)) == "12800000/3829"
    assert exact_text(Fraction(4)) == "4"
    assert exact_text(0.5) is None


@given(st.lists(st.fractions(max_denominator=10**6), max_size=5))
def test_the_common_denominator_is_the_least_that_clears_all(values):
    scale = common_denominator(values)
    assert all((value * scale).denominator == 1 for value in values)
    primes = {d for d in range(2, scale + 1) if scale % d == 0} if scale < 500 else {2, 3, 5}
    smaller = [scale // p for p in primes if scale % p == 0]
    assert all(any((value * s).denominator > 1 for value in values) for s in smaller)


@given(st.fractions(min_value=0, max_value=10**6, max_denominator=10**12))
def test_a_duration_survives_its_text(value):
    assert to_seconds(duration_text(value)) == value


@given(st.integers(0, 10**30), st.integers(0, 12))
def test_a_decimal_duration_is_printed_as_a_decimal(number, digits):
    value = Fraction(number, 10**digits)
    text = duration_text(value / 1000)
    assert text.endswith(" ms")
    assert "/" not in text
    assert Fraction(text.removesuffix(" ms")) == value


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)], ids=repr)
def test_whole_numbers_of_any_kind(value):
    found = require_whole("count", value, 3, "the number of them")
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize("value", [2, True, np.True_, 3.0, "3", None, [3], Fraction(3)], ids=repr)
def test_what_is_no_whole_number_from_3_on(value):
    with pytest.raises(InvalidInput, match=r"^count: .* is no whole number from 3 on; give one, the number of them$"):
        require_whole("count", value, 3, "the number of them")


@pytest.mark.parametrize(
    ("text", "size"), [("2 GB", 2 * 10**9), ("1e3MB", 10**9), ("2.5E-1 gb", 25 * 10**7), ("3/2 GB", 1_500_000_000)]
)
def test_memory_is_read_with_exponents_as_other_numbers_are(text, size):
    assert to_bytes(text) == size


@pytest.mark.parametrize("text", ["1e9 GB", "1e-9 GB", "0 MB", "1e300 GB"])
def test_memory_beyond_its_range_says_the_range(text):
    with pytest.raises(InvalidInput, match=" is outside 1"):
        to_bytes(text)


@pytest.mark.parametrize("text", ["2", "e9 GB", "2 TB", "1e GB", "GB"])
def test_what_is_no_memory_says_what_is(text):
    with pytest.raises(InvalidInput, match="is no amount of memory; write a number and KB, MB or GB"):
        to_bytes(text)
