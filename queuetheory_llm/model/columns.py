"""Fields of a model that is given in Python: whatever is of another type is named in one line.

Columns are read entry by entry; the validators of attrs fields say ``FIELD: WHAT``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from fractions import Fraction
from numbers import Integral
from typing import Any, TypeVar

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.exact.words import name_fault, shown

T = TypeVar("T")

_BITS = 332  # about 1e100, either side of 1: products of three such numbers are still floats


def column(where: str, read: Callable[[Any], T], values: Any) -> tuple[T, ...]:
    """The entries of a column, each read.

    Raises
    ------
    InvalidModel
        ``WHERE: WHAT``, if it is no sequence (a text is none) or an entry is refused.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidModel(f"{where}: {shown(values)} is no sequence; give a tuple")
    try:
        return tuple(read(value) for value in values)
    except InvalidInput as error:
        raise InvalidModel(f"{where}: {error}") from None


def exact(value: Any) -> Fraction:
    """A number, exactly; floats as the shortest decimals that print them."""
    found = value if type(value) is Fraction else to_fraction(value)
    if found and abs(found.numerator.bit_length() - found.denominator.bit_length()) > _BITS:
        raise InvalidInput("a value outside 1e-100 .. 1e100; check its unit")
    return found


def place(value: Any) -> int:
    """The number of a class or station."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{shown(value)} is no number of a class or station; they are counted from 0")
    return int(value)


def places(value: Any) -> tuple[int, ...]:
    """Numbers of classes."""
    return tuple(map(place, entries(value)))


def flag(value: Any) -> bool:
    """A truth value."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{shown(value)} is neither True nor False")
    return bool(value)


def name(value: Any) -> str:
    """A name that can be printed."""
    fault = name_fault(value)
    if fault is not None:
        raise InvalidInput(fault)
    return str(value)


def entries(value: Any, count: int | None = None) -> tuple[Any, ...]:
    """What a tuple or list holds, ``count`` entries if that is given."""
    if not isinstance(value, tuple | list) or count not in (None, len(value)):
        number = "" if count is None else f" of {count}"
        raise InvalidInput(f"{shown(value)} is no tuple{number}")
    return tuple(value)


def listed(value: Any) -> Any:
    """A list as a tuple; anything else as it is, for a validator to judge."""
    return tuple(value) if isinstance(value, list) else value


def text(_: object, field: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is not text."""
    if not isinstance(value, str):
        raise InvalidModel(f"{field.name}: {shown(value)} is not text; put it in quotes")


def names(_: object, field: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no tuple of texts; one text, whose letters would pass for names, too."""
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise InvalidModel(f"{field.name}: {shown(value)} is no list of names; write ['a', 'b']")


def of_type(*types: type) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """A validator that refuses what is of none of these types."""
    known = " or ".join(each.__name__ for each in types)

    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, types):
            raise InvalidModel(f"{field.name}: {shown(value)} is no {known}; give one")

    return check


def tuple_of(kind: type) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """A validator that refuses what is no tuple of objects of this type."""

    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, tuple):
            raise InvalidModel(f"{field.name}: {shown(value)} is no list; give a list of {kind.__name__}(...)")
        for index, item in enumerate(value):
            if not isinstance(item, kind):
                raise InvalidModel(f"{field.name}[{index}]: {shown(item)} is no {kind.__name__}; make one")

    return check


C = TypeVar("C", bound=type)


def keyed(cls: C) -> C:
    """A frozen attrs class whose converters, too, say ``FIELD: WHAT``, all the faults of its fields at once.

    attrs tells a validator its field, a converter only the value; what a converter refuses is `InvalidInput`. Here it
    becomes `InvalidModel`, one line for each field that is refused.
    """
    make = cls.__init__  # type: ignore[misc]  # of this very class

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make(self, *args, **kwargs)
        except InvalidInput as error:
            raise InvalidModel(list(_refused(cls, kwargs)) or error.faults) from None

    cls.__init__ = init  # type: ignore[misc]
    return cls


def _refused(cls: type, given: dict[str, Any]) -> Iterable[str]:
    """``FIELD: WHAT`` of the values that the converters of an attrs class refuse."""
    for field in attrs.fields(cls):
        if field.name in given and field.converter is not None:
            try:
                field.converter(given[field.name])
            except InvalidInput as error:
                yield from (f"{field.name}: {fault}" for fault in error.faults)
