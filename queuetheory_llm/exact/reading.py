"""Plain data read back exactly: numbers as `plain` writes them, lists and tables of a known shape.

Stricter than what people may write in model files: one number has one text, one table one set of keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Matrix, Vector, plain

_SHORT = 100  # bits of a numerator or denominator that are printed in full; Python prints 4300 digits at most
_QUOTIENT = re.compile(r"-?[0-9]{1,4000}/[1-9][0-9]{0,3999}")  # Python reads 4300 digits at most


def keys(where: str, table: Any, *names: str) -> dict[str, Any]:
    """The table, if it has exactly these keys.

    Raises
    ------
    InvalidInput
        ``WHERE: WHAT``; so do the others here.
    """
    if not isinstance(table, Mapping) or set(table) != set(names):
        raise InvalidInput(f"{where}: is no table with exactly the keys {', '.join(names)}")
    return dict(table)


def entries(where: str, values: Any, count: int | None = None) -> list[Any]:
    """The list, if it has ``count`` entries; any number of them when None."""
    if not isinstance(values, list | tuple):
        raise InvalidInput(f"{where}: is no list")
    if count is not None and len(values) != count:
        raise InvalidInput(f"{where}: has {len(values)} entries instead of {count}")
    return list(values)


def number(where: str, value: Any) -> Fraction:
    """An integer, or the text ``"p/q"`` in lowest terms with q > 1.

    >>> number("load", "6/5")
    Fraction(6, 5)
    """
    if type(value) is int or (isinstance(value, str) and _QUOTIENT.fullmatch(value)):
        found = Fraction(value)
        if plain(found) == value:
            return found
    raise InvalidInput(f'{where}: {value!r:.40} is neither an integer nor a text "p/q" in lowest terms')


def vector(where: str, values: Any, count: int) -> Vector:
    """``count`` exact numbers."""
    return [number(f"{where}[{i}]", value) for i, value in enumerate(entries(where, values, count))]


def matrix(where: str, rows: Any, height: int, width: int) -> Matrix:
    """``height`` rows of ``width`` exact numbers."""
    return [vector(f"{where}[{i}]", row, width) for i, row in enumerate(entries(where, rows, height))]


def places(where: str, names: Any, known: Sequence[str]) -> list[int]:
    """Places in ``known`` of names none of which repeats."""
    listed, place = entries(where, names), {name: i for i, name in enumerate(known)}
    for name in listed:
        if not isinstance(name, str) or name not in place:
            raise InvalidInput(f"{where}: {name!r:.40} is unknown")
    if len(set(listed)) < len(listed):
        raise InvalidInput(f"{where}: a name repeats")
    return [place[name] for name in listed]


def total(terms: Iterable[Fraction]) -> Fraction:
    """Exact sum."""
    return sum(terms, Fraction(0))


def text(value: Fraction) -> str:
    """A number in a sentence: ``p/q``; where that is long, a quotient near it or a bound, which says so."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= _SHORT:
        return str(value)
    if abs(value) < 10**30:
        return f"about {round(value * 10**9)}/{10**9}"
    return f"{'below -' if value < 0 else 'above '}{10**30}"


def decimal(value: Fraction) -> str:
    """A number in a sentence as people write it: all digits of a decimal where few do, else `text`.

    >>> decimal(Fraction(11, 10)), decimal(Fraction(10000001, 10000000)), decimal(Fraction(4, 3))
    ('1.1', '1.0000001', '4/3')
    """
    for written in (f"{float(value):g}", repr(float(value))):
        if Fraction(written) == value:
            return written
    return text(value)
