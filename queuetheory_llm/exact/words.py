"""Names in a sentence: what may be one, an enumeration, a cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal

_NAMED = 4  # names of a cycle that are printed in full
_LONGEST = 100  # characters of a name
_QUOTED = 40  # characters of a value in a message


def shown(value: object) -> str:
    """A value that was given where another belongs, for a message: quoted if it is text, and short.

    >>> shown("x"), shown(Decimal("0.5")), shown({"law": "poisson"}), shown([1])
    ("'x'", '0.5', 'a table', '[1]')
    """
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        quoted = f"[{', '.join(map(shown, value[:_QUOTED]))}]"
    else:
        quoted = str(value) if isinstance(value, Decimal | date | datetime | time) else repr(value)
    return quoted if len(quoted) <= _QUOTED else f"{quoted[:_QUOTED]}..."


def name_fault(name: object) -> str | None:
    """Why a name cannot stand in a line of text; None where it can.

    >>> name_fault("s1"), name_fault(" ")
    (None, "' ' cannot be told in a line; write visible characters")
    """
    if not isinstance(name, str):
        return f"{shown(name)} is not text; put it in quotes"
    if len(name) > _LONGEST:
        return f"{name!r:.20}... has {len(name)} characters; write {_LONGEST} at most"
    if not name.isprintable() or name != name.strip() or not name:
        return f"{name!r} cannot be told in a line; write visible characters"
    return None


def enumeration(names: Sequence[str]) -> str:
    """Names in a row, ``and`` before the last; at least one.

    >>> enumeration(["a"]), enumeration(["a", "b"]), enumeration(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def arrows(names: Sequence[str]) -> str:
    """A cycle, each name once, as a way back to its first; of a long one the first three names and their number.

    >>> arrows(["a"]), arrows(["a", "b"]), arrows(["a", "b", "c", "d", "e"])
    ('a -> a', 'a -> b -> a', 'a -> b -> c -> ... -> a (5 in all)')
    """
    if len(names) > _NAMED:
        return f"{' -> '.join(names[: _NAMED - 1])} -> ... -> {names[0]} ({len(names)} in all)"
    return " -> ".join([*names, names[0]])
