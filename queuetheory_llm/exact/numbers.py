"""Exact numbers in and out: ``"11.28 ms"`` is ``Fraction(141, 12500)`` seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral, Rational
from typing import Any

import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.words import shown

#: A number as a user writes it. Floats are read as the shortest decimal that prints them: 0.1 is 1/10.
Number = Fraction | Decimal | int | float | str
#: A value that is exact where the mathematics is rational and a float where it is not.
Real = Fraction | float
#: Exact numbers in a row, and such rows.
Vector = Sequence[Fraction]
Matrix = Sequence[Vector]

UNITS: dict[str, Fraction] = {"s": Fraction(1), "ms": Fraction(1, 1000), "us": Fraction(1, 10**6)}

_LONGEST = 200  # characters of a number
_MAGNITUDE = 30  # powers of ten either side of 1; beyond it a decimal is a slip, and exact arithmetic a trap
_TIME = re.compile(r"\s*(?P<number>[^\sa-zA-Z]+(?:[eE][+-]?\d+)?)\s*(?P<unit>[a-zA-Zµ]*)\s*\Z")


def to_fraction(value: Number) -> Fraction:
    """Read a number exactly.

    Parameters
    ----------
    value : Fraction, Decimal, int, float or str
        Strings hold a decimal ("12.5", "1e-3") or a quotient of integers ("400/187").

    Raises
    ------
    InvalidInput
        If it is no number, not finite, or beyond 1e-30 .. 1e30.

    Examples
    --------
    >>> to_fraction("400/187"), to_fraction(0.1)
    (Fraction(400, 187), Fraction(1, 10))
    """
    if isinstance(value, bool) or not isinstance(value, Rational | Decimal | float | str | np.floating):
        raise InvalidInput(f"{shown(value)} is not a number; write a decimal or a quotient such as 400/187")
    if isinstance(value, Fraction):  # a result of ours: the limits are for what people write
        return value
    if isinstance(value, Rational):
        return _sized(Fraction(int(value.numerator), int(value.denominator)))  # numpy integers overflow inside it
    text = value.strip() if isinstance(value, str) else str(value)
    if len(text) > _LONGEST:
        raise InvalidInput(f"a number of {len(text)} characters is no quantity; write at most {_LONGEST}")
    if not text.isascii() or "_" in text:  # Python reads 1_0 as ten, and digits of every script
        raise InvalidInput(f"{text!r} is not a number; write it with the digits 0 to 9 alone, without underscores")
    return _quotient(text) if "/" in text else _decimal(text)


def _quotient(text: str) -> Fraction:
    try:
        value = Fraction(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a number; write a decimal or a quotient such as 400/187") from None
    except ZeroDivisionError:
        raise InvalidInput(f"{text!r} divides by zero") from None
    return _sized(value)


def _decimal(text: str) -> Fraction:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise InvalidInput(f"{text!r} is not a number; write a decimal or a quotient such as 400/187") from None
    if not value.is_finite():
        raise InvalidInput(f"{text} is not finite; write an ordinary number")
    if value and abs(value.adjusted()) > _MAGNITUDE:  # before the exponent becomes an integer
        raise InvalidInput(f"{text} is outside 1e-{_MAGNITUDE} .. 1e{_MAGNITUDE}; check its unit")
    return Fraction(value)


def _sized(value: Fraction) -> Fraction:
    """Refuse what no quantity of a serving system is, before floats and arrays overflow on it."""
    if value and not Fraction(1, 10 ** (_MAGNITUDE + 1)) < abs(value) < 10 ** (_MAGNITUDE + 1):
        raise InvalidInput(f"a value outside 1e-{_MAGNITUDE} .. 1e{_MAGNITUDE}; check its unit")
    return value


def to_seconds(value: Number) -> Fraction:
    """Read a duration: a string carries a unit (s, ms, us), a bare number is in seconds.

    >>> to_seconds("467.5 ms")
    Fraction(187, 400)
    """
    if not isinstance(value, str):
        return to_fraction(value)
    match = _TIME.match(value)
    if match is None:
        raise InvalidInput(f'{value!r} is not a duration; write a number and a unit, such as "35 ms"')
    unit = match["unit"]
    if unit not in UNITS:
        what = "has no unit" if not unit else f"has the unknown unit {unit!r}"
        raise InvalidInput(f'{value!r} {what}; write s, ms or us, such as "{match["number"]} ms"')
    return to_fraction(match["number"]) * UNITS[unit]


def optional_seconds(value: Number | None) -> Fraction | None:
    """See `to_seconds`; None is None."""
    return None if value is None else to_seconds(value)


SIZES: dict[str, int] = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(?P<number>[^\sa-zA-Z]+(?:[eE][+-]?\d+)?)\s*(?P<unit>[kKmMgG][bB])\s*\Z")


def to_bytes(value: Number) -> int:
    """Read an amount of memory: a string carries a unit (KB, MB, GB), a bare number counts bytes; at least 1 MB.

    >>> to_bytes("1.5 GB")
    1500000000
    """
    match = _SIZE.match(value) if isinstance(value, str) else None
    if isinstance(value, str) and match is None:
        raise InvalidInput(f'{value!r} is no amount of memory; write a number and KB, MB or GB, such as "2 GB"')
    number = to_fraction(value) if match is None else to_fraction(match["number"]) * SIZES[match["unit"].upper()]
    if not SIZES["MB"] <= number <= SIZES["GB"] * 10**6:
        raise InvalidInput(f"{value} is outside 1 MB .. 1000000 GB of memory")
    return int(number)


#: Largest number of tokens, requests or seats a model speaks of; sums of millions of them fit 64 bits.
MOST = 2**31 - 1


def to_count(value: Number) -> int:
    """Read a whole number up to `MOST`; 3, "3" and 3.0 are the same, 3.5 is an error."""
    if type(value) is int and abs(value) <= MOST:
        return value
    fraction = to_fraction(value)
    if fraction.denominator != 1:
        raise InvalidInput(f"{value} is not a whole number")
    if abs(fraction) > MOST:
        raise InvalidInput(f"{value} is beyond {MOST}; check its unit")
    return fraction.numerator


def to_counts(values: Iterable[Number]) -> tuple[int, ...]:
    """Read whole numbers; see `to_count`."""
    return tuple(to_count(value) for value in values)


def to_fractions(values: Iterable[Number]) -> tuple[Fraction, ...]:
    """Read numbers exactly; see `to_fraction`."""
    return tuple(to_fraction(value) for value in values)


def whole_fault(where: str, value: object, least: int, what: str) -> str | None:
    """What is wrong with a whole number, see `require_whole`; None where nothing is."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        return f"{where}: {value!r} is no whole number from {least} on; give one, {what}"
    return None


def require_whole(where: str, value: Any, least: int, what: str) -> int:
    """An argument that must be a whole number from ``least`` on, numpy's too; not a bool.

    Raises
    ------
    InvalidInput
        ``WHERE: VALUE is no whole number from LEAST on; give one, WHAT``.
    """
    fault = whole_fault(where, value, least, what)
    if fault is not None:
        raise InvalidInput(fault)
    return int(value)


def exact_text(value: Real) -> str | None:
    """The value as ``"p/q"`` (or ``"p"``), None for a float: a float has no exact text."""
    return str(value) if isinstance(value, Rational) else None


def plain(value: Fraction) -> int | str:
    """A fraction as a model file holds it: an integer, or the text ``"p/q"``."""
    return value.numerator if value.denominator == 1 else str(value)


def common_denominator(values: list[Fraction]) -> int:
    """Least common denominator, the scale that turns all the values into integers."""
    return math.lcm(*(value.denominator for value in values)) if values else 1


def duration_text(seconds: Real) -> str:
    """A duration for a person, and for a model file where it is a finite decimal: ``"11.28 ms"``."""
    milli = Fraction(seconds) * 1000
    if milli.denominator == 1 or _is_decimal(milli.denominator):
        return f"{_decimal_text(milli)} ms"
    return f"{Fraction(seconds)} s"


def _is_decimal(denominator: int) -> bool:
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _decimal_text(value: Fraction) -> str:
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    return f"{Decimal(f'{int(value * 10**digits)}e-{digits}'):f}"  # from text: arithmetic would round to 28 digits
