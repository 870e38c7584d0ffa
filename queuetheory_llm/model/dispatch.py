"""Several engines behind a dispatcher: what its rules are called, and how many engines there may be.

The rules themselves are in `dispatch`, above the models. What a station can be told is the names of those that look at
queues alone: the others weigh the seconds that a call takes at unlike instances, which a station does not estimate.
"""

from __future__ import annotations

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import require_whole

RANDOM, ROUND_ROBIN, TOKEN_QUEUE, LEAST_OUTSTANDING = "random", "round-robin", "token-queue", "least-outstanding"

#: Rules of equal engines and of stations: at random, by turns, to the fewest tokens, to the fewest calls.
STATION_RULES = (RANDOM, ROUND_ROBIN, TOKEN_QUEUE, LEAST_OUTSTANDING)

MOST_ENGINES = 10_000


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
