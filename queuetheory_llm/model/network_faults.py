"""Whether the parts of a network fit together: names, priorities, probabilities, forks and joins.

Traps and cycles that multiply tasks are a matter of the traffic equations (`stability.traffic`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING

from queuetheory_llm.exact.reading import decimal
from queuetheory_llm.exact.words import name_fault
from queuetheory_llm.model.join_faults import join_faults

if TYPE_CHECKING:
    from queuetheory_llm.model.network import Network, Station, TaskClass

_LISTED = 10  # names that a message lists
_COMPARED = 500  # names that a misspelt one is compared with; more take seconds and help nobody


def network_faults(network: Network) -> Iterator[str]:
    """One line a fault, ``KEY PATH: WHAT, and how to mend it``."""
    if not network.stations:
        yield "station: there is none; add a [[station]]"
    if not network.classes:
        yield "class: there is none; add a [[class]] with its station"
    stations, classes = ([each.name for each in entries] for entries in (network.stations, network.classes))
    unreadable = [*_unreadable("station", stations), *_unreadable("class", classes)]
    if unreadable:  # other messages would quote these names
        yield from unreadable
        return
    for key, names in (("station", stations), ("class", classes)):
        for name in _repeated(names):
            yield f"{key}: {name!r} is the name of several; give each its own"
    here: dict[str, list[str]] = {name: [] for name in stations}
    for each in network.classes:
        here.setdefault(each.station, []).append(each.name)
    places, known = dict.fromkeys(stations), dict.fromkeys(classes)
    yield from _classes(network, places)
    for index, station in enumerate(network.stations):
        yield from _priorities(f"station[{index}].priority", station, here[station.name])
    yield from _arrivals(network, known)
    yield from _routes(network, known)
    yield from _joins(network, known)


def _unreadable(key: str, names: list[str]) -> Iterator[str]:
    for index, name in enumerate(names):
        fault = name_fault(name)
        if fault is not None:
            yield f"{key}[{index}].name: {fault}"


def _classes(network: Network, stations: Collection[str]) -> Iterator[str]:
    for index, each in enumerate(network.classes):
        where = f"class[{index}]"
        if each.station not in stations:
            yield f"{where}.station: {each.station!r} is no station; {_nearest(each.station, stations)}"
            continue
        yield from _laws(where, each, network.station_of(each))


def _laws(where: str, each: TaskClass, station: Station) -> Iterator[str]:
    """A class says what its station can serve: tokens at an engine, time at a classical server."""
    tokens = {"prefill": each.prefill, "decode": each.decode}
    if station.classical:
        if each.service is None:
            yield (
                f"{where}.service: missing; {station.name} is a classical server: give a law such as "
                '{ law = "exponential", mean = "0.1 s" }, or give the station an engine'
            )
        yield from (
            f"{where}.{key}: {station.name} has no engine; give service instead" for key in tokens if tokens[key]
        )
        return
    if each.service is not None:
        yield f"{where}.service: {station.name} is an LLM engine; give prefill and decode instead"
    missing = [key for key, law in tokens.items() if law is None]
    yield from (f"{where}.{key}: missing; give a number of tokens or a law" for key in missing)
    if not missing and each.mean_tokens == 0:
        yield f"{where}.decode: every call has 0 + 0 tokens; give one of them a token"


def _priorities(where: str, station: Station, here: list[str]) -> Iterator[str]:
    if station.priority is None:
        return
    known, listed = set(here), set(station.priority)
    for name in dict.fromkeys(station.priority):
        if name not in known:
            yield f"{where}: {name!r} is no class of {station.name}; {_nearest(name, here) if here else 'it has none'}"
    for name in _repeated(list(station.priority)):
        yield f"{where}: {name!r} is listed more than once; list each class once, high to low"
    missing = [name for name in here if name not in listed]
    if missing:
        yield f"{where}: misses {', '.join(missing)}; list every class of {station.name}, high to low"


def _arrivals(network: Network, classes: Collection[str]) -> Iterator[str]:
    if not network.arrivals:
        yield "arrival: nothing comes from outside; add an [[arrival]] with class and rate"
    for index, come in enumerate(network.arrivals):
        yield from _known(f"arrival[{index}].class", come.task_class, classes)


def _known(where: str, name: str, classes: Collection[str]) -> Iterator[str]:
    if name not in classes:
        yield f"{where}: {name!r} is no class; {_nearest(name, classes)}"


def _routes(network: Network, classes: Collection[str]) -> Iterator[str]:
    joined = {name: index for index, join in enumerate(network.joins) for name in join.classes}
    total: dict[str, Fraction] = {}
    for index, route in enumerate(network.routes):
        where = f"route[{index}]"
        yield from _known(f"{where}.from", route.source, classes)
        for name in route.to:
            yield from _known(f"{where}.to", name, classes)
        if not route.to:
            yield f"{where}.to: is empty; name a class, or leave the route out: what is not routed leaves"
        for name in _repeated(list(route.to)):
            yield f"{where}.to: {name!r} is listed more than once; give each branch a class of its own"
        if route.source in joined:
            yield f"{where}.from: {route.source!r} waits in join[{joined[route.source]}]; it has no other way on"
        total[route.source] = total.get(route.source, Fraction(0)) + route.probability
    for name, share in total.items():
        if share > 1:
            yield f"route: the probabilities from {name!r} sum to {decimal(share)}; they may be 1 at most"


def _joins(network: Network, classes: Collection[str]) -> Iterator[str]:
    bad = [
        f"join: {name!r} is listed more than once; a class waits in one join"
        for name in _repeated([name for join in network.joins for name in join.classes])
    ]
    for index, join in enumerate(network.joins):
        where = f"join[{index}]"
        bad += _known(f"{where}.to", join.to, classes)
        for name in join.classes:
            bad += _known(f"{where}.classes", name, classes)
        if len(join.classes) < 2:
            bad.append(f"{where}.classes: a join has at least two siblings; use a route for one")
    yield from bad or join_faults(network)


def _nearest(word: str, known: Collection[str]) -> str:
    """How to mend a name that is not one of ``known``."""
    close = get_close_matches(word, known, n=1) if len(known) <= _COMPARED else []
    if close:
        return f"did you mean {close[0]}?"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"known here: {', '.join(islice(known, _LISTED))}{more}"


def _repeated(names: list[str]) -> list[str]:
    """The names that are given more than once."""
    return [name for name, times in Counter(names).items() if times > 1]
