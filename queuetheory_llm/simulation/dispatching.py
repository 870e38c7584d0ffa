"""The dispatch rules of stations and of equal engines, compiled, behind one switch.

The functions are those of `dispatch`; nothing is written twice. Kernels that call `choose` are kept on disk as `CODE`
too.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.dispatch.registry import DISPATCH_RULES, to_dispatcher
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.kept import entry, inlined
from queuetheory_llm.model.dispatch import LEAST_OUTSTANDING, STATION_RULES

RULES = tuple(DISPATCH_RULES[name] for name in STATION_RULES)
#: The number of each rule in the switch.
NUMBERS = {rule.name: number for number, rule in enumerate(RULES)}

#: The parameters that all of them get: their defaults, the ties of the fewest calls to the first.
PARAMETERS = to_dispatcher(LEAST_OUTSTANDING).parameters

_first, _second, _third, _fourth = (inlined(rule.choose) for rule in RULES)


@inlined
def choose(number: int, view: DispatchView, parameters: Floats) -> int:
    """What a rule chooses."""
    if number == 0:
        return _first(view, parameters)
    if number == 1:
        return _second(view, parameters)
    if number == 2:
        return _third(view, parameters)
    return _fourth(view, parameters)


#: What is compiled into kernels that choose, see `kept`.
CODE = (DispatchView, choose)


class Engines(NamedTuple):
    """M engines of which nothing is known but their queues, for the views of rules.

    ``outstanding`` and ``tokens`` are for the caller to write.
    """

    seconds: Floats
    nothing: Floats
    outstanding: Ints
    tokens: Floats
    shares: Floats


def engines(count: int) -> Engines:
    """Arrays of ``count`` engines."""
    return Engines(
        seconds=np.ones(count),
        nothing=np.zeros(count),
        outstanding=np.zeros(count, dtype=np.int64),
        tokens=np.zeros(count),
        shares=np.full(count, 1 / count),
    )


@inlined
def view_of(seen: Engines, turn: int, chance: float) -> DispatchView:
    """What a rule sees."""
    return DispatchView(
        0, seen.seconds, seen.nothing, seen.outstanding, seen.tokens, seen.nothing, turn, seen.shares, chance
    )


@partial(entry, of=CODE)
def deal(number: int, usual: Floats, seen: Engines, chances: Floats, engine_of: Ints) -> None:
    """Send requests one after another by a rule that need not know what becomes of them."""
    for request in range(engine_of.size):
        engine_of[request] = choose(number, view_of(seen, request, chances[request]), usual)


def sent(dispatch: str, count: int, chances: Floats) -> Ints:
    """The engine of each request by an oblivious rule; ``chances`` has a uniform number for each."""
    engine_of = np.zeros(chances.size, dtype=np.int64)
    deal(NUMBERS[dispatch], PARAMETERS, engines(count), chances, engine_of)
    return engine_of
