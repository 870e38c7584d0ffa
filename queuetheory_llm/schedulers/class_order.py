"""Which class goes first at a station of a network: what a rule sees, what it returns, and the rules by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, get_args

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.network import Network
from queuetheory_llm.schedulers.back_pressure import BackPressure
from queuetheory_llm.schedulers.class_priority import ClassPriority

#: Who is served in a network that runs: what each station of the model says, or back-pressure everywhere.
RunPolicy = Literal["file", "back-pressure"]
POLICIES: tuple[RunPolicy, ...] = get_args(RunPolicy)


class ClassOrder(Protocol):
    """A rule that orders the classes of one station; it has no memory and writes nothing."""

    def order(self, classes: Sequence[int], present: Sequence[int]) -> Sequence[int]:
        """The classes that may be served now, the first to be served first.

        Parameters
        ----------
        classes : sequence of int
            Classes of the station, in the order of the model.
        present : sequence of int
            Tasks at every class of the network, those in service included.
        """


@attrs.frozen
class NetworkPolicy:
    """One rule a station; None is first come, first served, whatever the class."""

    rules: tuple[ClassOrder | None, ...]


def network_policy(
    network: Network, policy: str = "file", priority: Mapping[str, Sequence[str]] | None = None
) -> NetworkPolicy:
    """The rule of each station.

    Parameters
    ----------
    network : Network
    policy : {"file", "back-pressure"}
    priority : mapping of station name to class names, optional
        Orders from high to low, in the place of those of the model.

    Raises
    ------
    InvalidInput
        One line a fault.
    """
    if policy not in POLICIES:
        raise InvalidInput(f"policy: {policy!r} is not known; write one of {', '.join(POLICIES)}")
    given = _orders({} if priority is None else priority)
    if policy == "back-pressure":
        if given:
            raise InvalidInput("priority: back-pressure orders the classes of every station itself; leave priority out")
        return NetworkPolicy((BackPressure.of(network.fluid_model),) * len(network.stations))
    names = [each.name for each in network.classes]
    if faults := list(_faults(network, given)):
        raise InvalidInput(faults)
    orders = [given.get(station.name, station.priority) for station in network.stations]
    return NetworkPolicy(
        tuple(None if order is None else ClassPriority(tuple(names.index(name) for name in order)) for order in orders)
    )


def _orders(priority: object) -> dict[str, list[str]]:
    """The orders by station; a text is one name, not the list of its letters."""
    if not isinstance(priority, Mapping):
        raise InvalidInput(f"priority: {priority!r:.80} is no mapping; give lists of classes by the name of a station")
    for name, order in priority.items():
        listed = isinstance(order, Sequence) and not isinstance(order, str)
        if not listed or not all(isinstance(each, str) for each in order):
            raise InvalidInput(f"priority.{name}: {order!r:.80} is no list; list the classes from high to low")
    return {name: list(order) for name, order in priority.items()}


def _faults(network: Network, given: Mapping[str, Sequence[str]]) -> list[str]:
    """What is wrong with orders that were given beside the model."""
    model = network.fluid_model
    here = {name: [model.classes[k] for k in model.at(s)] for s, name in enumerate(model.stations)}
    unknown = [f"priority: {name!r} is no station; known: {', '.join(here)}" for name in given if name not in here]
    return unknown + [
        f"priority.{name}: list each of {', '.join(here[name])} once, from high to low"
        for name, order in given.items()
        if name in here and sorted(order) != sorted(here[name])
    ]
