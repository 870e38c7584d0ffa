"""Several engines behind a dispatcher: the rules by which it sends requests, and how many engines there may be."""

from __future__ import annotations

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import require_whole

#: Where a request goes when it arrives: to an engine at random, to the next in turn, to the one with fewest tokens.
DISPATCH_RULES = ("random", "round-robin", "token-queue")

MOST_ENGINES = 10_000


def require_dispatch(rule: str) -> None:
    """Refuse what is none of `DISPATCH_RULES`.

    Raises
    ------
    InvalidInput
    """
    if rule not in DISPATCH_RULES:
        raise InvalidInput(f"--dispatch: {rule!r} is not a dispatch rule; known: {', '.join(DISPATCH_RULES)}")


def require_engines(count: int, where: str = "engines") -> int:
    """A number of equal engines, 1 to `MOST_ENGINES`.

    Raises
    ------
    InvalidInput
        Naming ``where``, if it is no whole number or out of range.
    """
    number = require_whole(where, count, 1, "the number of equal engines")
    if number > MOST_ENGINES:
        raise InvalidInput(f"{where}: {number} is above {MOST_ENGINES}; equal engines carry N times one")
    return number
