"""Limits in print: what is proved of a number must stay true of its digits."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

from queuetheory_llm.exact.numbers import Real

_DIGITS = 6
_SMALL = 1e-4  # below it a value is written with its power of ten
_MOST = 15  # a decimal of as many digits is a float of its own

_LEAST = Fraction(1, 10**300)  # errors that floats no longer tell from 0 are printed as this


def short_fraction(value: Real) -> Fraction:
    """A fraction near a positive number, to four digits or more, on which exact arithmetic stays cheap; never 0.

    >>> short_fraction(0.1), short_fraction(2e-9)
    (Fraction(1, 10), Fraction(1, 500000000))
    """
    small = max(0, -math.floor(math.log10(value)) - 3)
    return Fraction(value).limit_denominator(10 ** (7 + small))


def lower_limit(value: Real, digits: int = _DIGITS) -> str:
    """A rate below which something holds, rounded down.

    >>> lower_limit(Fraction(12800000, 922789)), upper_limit(Fraction(12800000, 922789))
    ('13.8709', '13.871')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def upper_limit(value: Real, digits: int = _DIGITS) -> str:
    """A rate above which something holds, rounded up."""
    return _rounded(value, digits, ROUND_CEILING)


def told_apart(value: Real, limit: Real) -> tuple[str, str]:
    """A value and a limit with as many digits as show which is larger; the limit is rounded towards the value.

    >>> told_apart(Fraction("13.871"), Fraction(12800000, 922789))
    ('13.871', '13.870994')
    """
    towards = lower_limit if value < limit else upper_limit
    for digits in range(_DIGITS, _MOST + 1):
        texts = _rounded(value, digits, ROUND_HALF_EVEN), towards(limit, digits)
        shown = tuple(map(Fraction, texts))
        if value != limit and (shown[0] < shown[1], shown[0] > shown[1]) == (value < limit, value > limit):
            return texts
    return _rounded(value, _DIGITS, ROUND_HALF_EVEN), _rounded(limit, _DIGITS, ROUND_HALF_EVEN)


def with_bound(value: float, bound: float, digits: int = 10) -> tuple[str, str]:
    """A value with the digits that its error bound leaves, and the bound: of what is printed, rounded up.

    >>> with_bound(34.5821349, 3.4e-5), with_bound(123456.7, 50)
    (('34.58213', '4e-05'), ('123460', '60'))
    """
    last = (math.floor(math.log10(abs(value))) if value else 0) - digits + 1
    if bound > 0:
        last = max(last, math.floor(math.log10(bound)))
    shown = round(Decimal(value), -last)
    small = 0 < abs(value) < _SMALL
    text = f"{float(shown):.{len(shown.as_tuple().digits) - 1}e}" if small else f"{shown:f}"
    off = Fraction(bound) + abs(Fraction(text) - Fraction(value))
    return text, f"{float(upper_limit(max(off, _LEAST), 1)):g}" if off else "0"


def load_text(load: Real, digits: int = _DIGITS) -> str:
    """A load to ``digits``, to more where it would read 1 without being 1.

    >>> load_text(1 + Fraction(1, 10**8)), load_text(Fraction(2, 3), 4)
    ('1.00000001', '0.6667')
    """
    texts = (f"{float(load):.{more}g}" for more in range(digits, _MOST + 1))
    return next((text for text in texts if load == 1 or float(text) != 1), "1")


def _rounded(value: Real, digits: int, way: str) -> str:
    """To ``digits`` significant ones; a float counts as the shortest decimal that prints it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value:g}"
    exact = Fraction(str(float(value))) if isinstance(value, float) else value
    shown = Context(prec=digits, rounding=way).divide(Decimal(exact.numerator), Decimal(exact.denominator))
    return f"{float(shown):.{digits}g}"
