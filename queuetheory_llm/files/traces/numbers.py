"""Numbers of a trace as it writes them: token counts, decimal seconds, calendar times; all exact.

A time is a pair (mantissa, digits) of integers: mantissa / 10^digits seconds.
"""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import MOST, to_fraction

Time = tuple[int, int]

MOST_DIGITS = 30
_LONGEST = 60  # characters of a number; exact arithmetic on hundreds of thousands of digits takes minutes
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SECOND = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)
_CALENDAR = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d+))?\s*(Z|UTC|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)


def read_number(value: object, name: str) -> Fraction:
    """A finite number from the text of a field, or from JSON (int or Decimal).

    Raises
    ------
    InvalidInput
        ``name: WHAT`` when it is none; the caller knows the line.
    """
    if value is None or value == "":
        raise InvalidInput(f"{name}: is {'null' if value is None else 'empty'}; give a number or leave the row out")
    if isinstance(value, int | Decimal | str) and len(str(value).strip()) > _LONGEST:
        raise InvalidInput(f"{name}: {_short(value)} has more than {_LONGEST} characters; round it")
    if isinstance(value, str) and not _PLAIN.fullmatch(value.strip()):
        raise InvalidInput(f"{name}: {_short(value)} is not a finite number")
    if not isinstance(value, int | Decimal | str):
        raise InvalidInput(f"{name}: {_short(value)} is not a number")
    try:
        return to_fraction(value)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None


def read_count(value: object, name: str) -> int:
    """A number of tokens: whole, 0 .. 2^31 - 1; "374" and "374.0" are the same."""
    number = read_number(value, name)
    if number.denominator != 1:
        raise InvalidInput(f"{name}: {_short(value)} is not a whole number of tokens")
    if not 0 <= number <= MOST:
        what = "is negative" if number < 0 else "is above 2147483647"
        raise InvalidInput(f"{name}: {_short(value)} {what}; it counts tokens")
    return number.numerator


def read_seconds(value: object, name: str) -> Time:
    """A decimal number of seconds, at least 0."""
    number = read_number(value, name)
    if number < 0:
        raise InvalidInput(f"{name}: {_short(value)} is negative; times start at 0")
    exponent = Decimal(str(value).strip()).as_tuple().exponent
    digits = max(0, -int(exponent))
    if digits > MOST_DIGITS:
        raise InvalidInput(f"{name}: {_short(value)} has more than {MOST_DIGITS} decimals; round it")
    return int(number * 10**digits), digits


def read_calendar(value: object, name: str) -> Time:
    """``YYYY-MM-DD HH:MM:SS.fffffff``, with up to 30 fractional digits, as seconds since 1970; UTC unless it says."""
    match = _CALENDAR.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InvalidInput(f"{name}: {_short(value)} is not a time such as 2023-11-16 18:15:46.6805900")
    day, clock, fraction, zone = match.groups()
    if fraction is not None and len(fraction) > MOST_DIGITS:
        raise InvalidInput(f"{name}: {_short(value)} has more than {MOST_DIGITS} decimals; round it")
    zone = "+00:00" if zone is None or zone[0] not in "+-" else zone
    try:
        whole = whole_seconds(f"{day} {clock}", zone)
    except ValueError as error:
        raise InvalidInput(f"{name}: {_short(value)}: {error}") from None
    fraction = fraction or ""
    return int(f"{whole}{fraction}"), len(fraction)


def whole_seconds(text: str, zone: str = "+00:00") -> int:
    """Seconds since 1970 of ``YYYY-MM-DD HH:MM:SS``; ValueError when there is no such time."""
    if not _SECOND.fullmatch(text):
        raise ValueError("is not YYYY-MM-DD HH:MM:SS")
    seconds = int(datetime.fromisoformat(text + zone).timestamp())
    if seconds < 0:
        raise ValueError("is before 1970")
    return seconds


def _short(value: object) -> str:
    text = str(value) if isinstance(value, int | Decimal) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
