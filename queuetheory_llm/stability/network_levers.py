"""What would make a network stable that is not known to be: another order of service, at the same rates."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from queuetheory_llm.model.network import Network, Station
from queuetheory_llm.stability.networks import verify_stability
from queuetheory_llm.verdict import Judgement, Verdict


@attrs.frozen(kw_only=True)
class OrderLever:
    """A change of the orders of service, and the verdict after it.

    Attributes
    ----------
    change : str
        What to do, in words.
    judgement : Judgement
    """

    change: str
    judgement: Judgement

    def to_dict(self) -> dict[str, str | None]:
        """Plain values for JSON."""
        basis = self.judgement.basis
        return {
            "change": self.change,
            "verdict": self.judgement.verdict.value,
            "basis": None if basis is None else basis.value,
        }


def order_levers(network: Network) -> tuple[OrderLever, ...]:
    """Orders of service under which the network is stable at the same rates, of those worth a try.

    Tried are the priorities of each station that has them the other way round, all of them the other way round, and
    back-pressure; where tasks are served in order of arrival there is nothing to turn.

    Parameters
    ----------
    network : Network
        Every load below 1: no order of service helps otherwise.
    """
    found = [OrderLever(change=change, judgement=verify_stability(each).judgement) for change, each in _turned(network)]
    pressed = verify_stability(network, policy="back-pressure").judgement
    found.append(OrderLever(change="serve by back-pressure", judgement=pressed))
    return tuple(lever for lever in found if lever.judgement.verdict is Verdict.STABLE)


def _turned(network: Network) -> Iterator[tuple[str, Network]]:
    """The network with priorities the other way round: at one station, then at all."""
    ordered = [station for station in network.stations if station.priority is not None and len(station.priority) > 1]
    for station in ordered:
        yield _words([station]), _with(network, [station])
    if len(ordered) > 1:
        yield _words(ordered), _with(network, ordered)


def _with(network: Network, turned: list[Station]) -> Network:
    stations = tuple(
        attrs.evolve(each, priority=each.priority[::-1]) if each.priority is not None and each in turned else each
        for each in network.stations
    )
    return attrs.evolve(network, stations=stations)


def _words(turned: list[Station]) -> str:
    orders = [f"{' > '.join(reversed(station.priority or ()))} at {station.name}" for station in turned]
    return f"serve {', and '.join(orders)}"
