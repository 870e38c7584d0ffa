"""Where the fluid model of a network does not describe its engines, and what a verdict must say beside it.

The fluid model serves whole tasks at stations that are one server each. Alone, a station that fills its batches works
off its tokens whatever their order. Among others it matters that tasks leave: prompts first, they gather between
prefill and decode; and engines that each get their share of the tasks are queues of their own, one of which can idle
while another is behind. Where tasks come back to such a station the same holds of its engines among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.model.arrivals import (
    Arrivals,
    ExponentialInterval,
    GammaInterval,
    LogNormalInterval,
    PoissonArrivals,
    RenewalArrivals,
    WeibullInterval,
)
from queuetheory_llm.model.dispatch import LEAST_OUTSTANDING, RANDOM, ROUND_ROBIN, TOKEN_QUEUE
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network, Station
from queuetheory_llm.stability.answers import memory_notes
from queuetheory_llm.stability.capacity import full_batch_rate, token_capacity
from queuetheory_llm.stability.network_answer import Policy

_RARE = 1e-9  # of calls that no run of a lifetime meets, nothing is said
#: Laws that are unbounded and have densities.
_SPREAD_OUT = (ExponentialInterval, GammaInterval, LogNormalInterval, WeibullInterval)

_LIMITED = (
    "k_max may keep its batches from filling, so that its tokens per second are not guaranteed; leave k_max out, or "
    "raise it to b_max"
)
_SHARES = (
    "each of its engines gets a share of the tasks, whatever its queue, so that one may idle while another is behind; "
    "make every engine a station of its own, or dispatch to the fewest tokens"
)
_UNEQUAL = (
    "its engines differ in speed and tasks come back, so that the faster one may idle while the slower works off the "
    "tokens it has been given; make every engine a station of its own, or use equal ones"
)
_COUNTED = (
    "its dispatcher levels the number of tasks and not their tokens, so that one engine may idle while another is "
    "behind; dispatch to the fewest tokens"
)
_PROMPTS_FIRST = (
    "serves prompts first, so that tasks gather between prefill and decode, which the fluid model of whole tasks does "
    "not show; serve decodes first (sarathi)"
)
_JOINED_PRESSURE = "the theorem on back-pressure does not cover joins"


def group_doubt(network: Network, group: Sequence[int], part: FluidModel) -> str | None:
    """Why loads and the fluid model do not speak of stations that feed one another; None where they do.

    Parameters
    ----------
    network : Network
    group : sequence of int
        Its stations, as `traffic.components` has them.
    part : FluidModel
        The group alone, see `FluidModel.restricted`.
    """
    stations = [network.stations[s] for s in group]
    if len(stations) > 1:
        return _among_others(stations)
    (station,), classes = stations, len(part.classes)
    if station.limited:
        return f"{station.name}: {_LIMITED}"
    if _counted(station):
        return f"{station.name}: {_COUNTED}"
    if _unequal(station) and classes > 1 and any(part.routing):
        return f"{station.name}: {_UNEQUAL}"
    # Of a single class that comes back its engines are a generalised Jackson network.
    return f"{station.name}: {_SHARES}" if _shared(station) and classes > 1 and any(part.routing) else None


def fluid_doubt(network: Network, policy: Policy = "file") -> str | None:
    """Why the paths of the fluid model are not those of a network under a policy; None where they are.

    A verdict may stand all the same: one station empties in whatever order its tokens are served.
    """
    if policy == "back-pressure" and network.joins:
        return _JOINED_PRESSURE
    return _among_others(network.stations)


def _unequal(station: Station) -> bool:
    """Whether engines of different speed get their tasks by the fewest tokens.

    They are not one server even from equal queues: the faster empties its own, and the next task decides where it goes
    only when it comes.
    """
    return station.dispatch == TOKEN_QUEUE and len(set(map(full_batch_rate, station.engines))) > 1


def _among_others(stations: Sequence[Station]) -> str | None:
    for station in stations:
        if station.limited:
            return f"{station.name}: {_LIMITED}"
        if station.engines and station.scheduler == "orca":
            return f"{station.name}: {_PROMPTS_FIRST}"
        if _counted(station):
            return f"{station.name}: {_COUNTED}"
        if _shared(station):
            return f"{station.name}: {_SHARES}"
        if _unequal(station):
            return f"{station.name}: {_UNEQUAL}"
    return None


def _shared(station: Station) -> bool:
    """Whether a task goes to one of several engines whatever their queues."""
    return len(station.engines) > 1 and station.dispatch in (RANDOM, ROUND_ROBIN)


def _counted(station: Station) -> bool:
    """Whether a task goes to the one of several engines that has the fewest tasks."""
    return len(station.engines) > 1 and station.dispatch == LEAST_OUTSTANDING


def load_binds(station: Station) -> bool:
    """Whether a load above 1 is too much in every order of service.

    Batches that k_max keeps from filling may serve more tokens a second than full ones, and so may an engine that has
    few tokens because it has many short tasks.
    """
    filled = not station.limited and not _counted(station)
    return filled or all(token_capacity(engine).filling_is_optimal for engine in station.engines)


def taken_as_one(stations: Sequence[Station], part: FluidModel) -> str | None:
    """What a verdict of stability owes to engines that stand for one server; None where it owes nothing.

    Those behind a fewest-tokens dispatcher are one while they are level, and tasks that come back may find them not:
    of a single class the largest of their queues falls all the same, while it has tokens.
    """
    pooled = [station.name for station in stations if len(station.engines) > 1]
    if not pooled or not any(part.routing) or len(part.classes) == 1:
        return None
    said = f"the engines of {enumeration(pooled)} are taken as one, which holds while they are level"
    ordered = [station.name for station in stations if len(station.engines) > 1 and station.priority is not None]
    if not ordered:
        return said
    return f"{said}; each orders its own queue, and may serve a class while a higher one waits at another"


def network_notes(network: Network) -> Iterator[str]:
    """What the means, calls and engines of a network leave to say."""
    for each in network.classes:
        if not each.exact:
            yield f"{each.name}: the mean of its tokens is no fraction; its decimal is taken as exact"
    for each in network.classes:
        empty = 0 if each.prefill is None or each.decode is None else each.prefill.zero * each.decode.zero
        if empty > _RARE:
            yield f"{each.name}: a call has 0 + 0 tokens with probability {float(empty):.3g} and then passes at once"
    for station in network.stations:
        for note in dict.fromkeys(note for engine in station.engines for note in memory_notes(engine)):
            yield f"{station.name}: {note}"


def recurrence_note(network: Network) -> str | None:
    """What is stable where positive recurrence is not proved: it needs unbounded, spread-out interarrival times."""
    bounded = list(dict.fromkeys(come.task_class for come in network.arrivals if not _spread_out(come.arrivals)))
    if not bounded:
        return None
    return (
        f"the interarrival times of {enumeration(bounded)} are not unbounded and spread out, which positive Harris "
        "recurrence needs (Dai 1995): stable means here that departures keep pace with arrivals"
    )


def _spread_out(arrivals: Arrivals) -> bool:
    if isinstance(arrivals, RenewalArrivals):
        return isinstance(arrivals.interval, _SPREAD_OUT)
    return isinstance(arrivals, PoissonArrivals)
