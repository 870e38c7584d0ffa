"""Axes of a sweep: keys of a model file with the values each takes, as written on a command line or in Python."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction

#: Most points of one sweep; beyond it the answer is a better question.
MOST_POINTS = 100_000

#: A value in a table.
Cell = int | float | str | bool | None

_AMOUNT = re.compile(r"\s*(?P<number>[^\sa-zA-Z]+(?:[eE][+-]?\d+)?)\s*(?P<unit>[a-zA-Zµ]*)\s*")
_DEEPER = {"[": 1, "{": 1, "]": -1, "}": -1}


@attrs.frozen
class Axis:
    """A key of the model file and the values it takes.

    Attributes
    ----------
    key : str
        Dotted: ``engine.b_max``, ``workload.class.chat.weight``, ``workload.class.0.weight``.
    values : tuple
        As a TOML file would hold them: int, Decimal, bool, str, list or dict. At least one, all different.
    """

    key: str
    values: tuple[Any, ...]

    def __attrs_post_init__(self) -> None:
        """At least one value, and none twice."""
        if not self.values:
            raise InvalidInput(f"--grid: {self.key}: has no values; give at least one")
        require_points(len(self.values), f"--grid: {self.key}")
        seen = set()
        for value in self.cells:
            if value in seen:
                raise InvalidInput(f"--grid: {self.key}: {value} is given twice; leave one out")
            seen.add(value)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The values as a table shows them."""
        return tuple(cell(value) for value in self.values)

    @classmethod
    def parse(cls, text: str) -> Axis:
        """From a command line.

        Parameters
        ----------
        text : str
            ``KEY=VALUES``: values, and ranges ``START:STOP:STEP`` that include STOP, separated by commas. A value is
            written as in a model file; the quotes around a text may be left out.

        Raises
        ------
        InvalidInput
            If the key or the values are missing, or a range is empty or has no positive step.

        Examples
        --------
        >>> Axis.parse("engine.b_max=128,256,512").values
        (128, 256, 512)
        >>> Axis.parse("engine.batch_time.c=10:20:5 ms").values
        ('10 ms', '15 ms', '20 ms')
        """
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise InvalidInput(f"--grid: {text!r} is no KEY=VALUES; write for instance engine.b_max=128,256,512")
        return cls(key, tuple(_values(values, f"--grid: {key}")))

    @classmethod
    def of(cls, key: str, values: str | Sequence[Any]) -> Axis:
        """From Python: a text as on the command line, or a sequence of values.

        >>> Axis.of("workload.rate", [8, 9.5]).values
        (8, Decimal('9.5'))
        """
        if isinstance(values, str):
            return cls.parse(f"{key}={values}")
        return cls(key, tuple(_toml_value(value, f"--grid: {key}") for value in values))


def cell(value: Any) -> Cell:
    """A value in a table: a number, truth value or text as it is, a list or a law as JSON."""
    if isinstance(value, Decimal):
        near = float(value)
        return near if Decimal(repr(near)) == value else str(value)
    return value if isinstance(value, int | str) else json.dumps(value, default=cell)


def amount(text: str) -> tuple[str, str] | None:
    """The number and the unit of a quantity as they are written; None where the text is none.

    Examples
    --------
    >>> amount("11.28 ms"), amount("400/187"), amount("poisson")
    (('11.28', 'ms'), ('400/187', ''), None)
    """
    match = _AMOUNT.fullmatch(text)
    return None if match is None else (match["number"], match["unit"])


def require_points(count: int, where: str) -> None:
    """Refuse a sweep, or an axis, of more than `MOST_POINTS`."""
    if count > MOST_POINTS:
        raise InvalidInput(f"{where}: makes {count} points, more than the {MOST_POINTS} of one sweep; make it coarser")


def _toml_value(value: Any, where: str) -> Any:
    """A value of Python as a TOML file would hold it."""
    if isinstance(value, str | bool | Decimal | Mapping | list):
        return value
    try:
        exact = to_fraction(value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    return _decimal(exact) if not isinstance(value, Rational) else _whole(exact)


def _whole(value: Fraction) -> int | str:
    return value.numerator if value.denominator == 1 else str(value)


def _decimal(value: Fraction) -> Decimal | str:
    """The value as a decimal where it is a short one, else as ``p/q``."""
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return decimal if Fraction(decimal) == value else str(value)


def _values(text: str, where: str) -> Iterator[Any]:
    for item in _split(text, ","):
        parts = _split(item, ":")
        if len(parts) == 1:
            yield _value(item.strip(), where)
        elif len(parts) == 3:
            yield from _range(parts, f"{where}={item.strip()}")
        else:
            raise InvalidInput(
                f"{where}: {item.strip()!r} is no range START:STOP:STEP; write three numbers, or put a text that has "
                "colons in double quotes"
            )


def _split(text: str, mark: str) -> list[str]:
    """The parts of a text between the marks that stand outside quotes and brackets."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else _DEEPER.get(letter, 0)
        if letter == mark and not quoted and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _value(text: str, where: str) -> Any:
    """A TOML value, or the text itself where it is none, as in ``11.28 ms``."""
    if not text:
        raise InvalidInput(f"{where}: has an empty value; leave out the comma")
    try:
        table = tomllib.loads(f"value = {text}", parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError):
        return text
    plain = len(table) == 1 and isinstance(table["value"], int | Decimal | str | list | dict)
    return table["value"] if plain else text


def _range(parts: Sequence[str], where: str) -> list[Any]:
    """START, START + STEP, ... up to STOP, exact; their unit may stand at the last part alone."""
    amounts = [found for part in parts if (found := amount(part)) is not None]
    units = sorted({unit for _, unit in amounts} - {""})
    if len(amounts) < len(parts) or len(units) > 1:
        raise InvalidInput(f"{where}: is no range START:STOP:STEP; write three numbers, with one unit or none")
    try:
        start, stop, step = (to_fraction(number) for number, _ in amounts)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    if step <= 0:
        raise InvalidInput(f"{where}: the step is not positive; give a STEP above 0")
    if stop < start:
        raise InvalidInput(f"{where}: the range is empty, it stops below its start; exchange START and STOP")
    count = (stop - start) // step + 1
    require_points(count, where)
    values = [start + index * step for index in range(count)]
    if units:
        return [f"{_decimal(value)} {units[0]}" for value in values]
    whole = start.denominator == step.denominator == 1
    return [_whole(value) if whole else _decimal(value) for value in values]
