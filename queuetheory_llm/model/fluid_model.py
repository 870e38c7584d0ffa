"""What the stability of a multiclass network depends on: rates, mean service times, routes, stations, priorities.

The fluid model of a network (Dai 1995; Stolyar 1995) reads only these; so do traffic equations, Lyapunov programs and
the checker of their certificates. All numbers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact import reading
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.model.columns import column, entries, exact, flag, name, place, places
from queuetheory_llm.model.forks import fork_faults

#: Successors of a class with the mean number of tasks that one service sends there: ((class, P), ...).
Row = tuple[tuple[int, Fraction], ...]
#: Classes whose tasks wait for their siblings, and the class that the joined task enters.
FluidJoin = tuple[tuple[int, ...], int]
#: The class whose tasks are forked, and the class in which the branch of each sibling begins.
FluidFork = tuple[int, tuple[int, ...]]

_WHERE = "fluid model"


def _row(value: Any) -> Row:
    hops = (entries(hop, 2) for hop in entries(value))
    return tuple((place(to), exact(p)) for to, p in hops)


def _order(value: Any) -> tuple[int, ...] | None:
    return None if value is None else places(value)


def _join(value: Any) -> FluidJoin:
    siblings, to = entries(value, 2)
    return places(siblings), place(to)


def _fork(value: Any) -> FluidFork:
    source, starts = entries(value, 2)
    return place(source), places(starts)


#: How an entry of each column is read.
_COLUMNS: Mapping[str, Callable[[Any], Any]] = {
    "stations": name,
    "classes": name,
    "station": place,
    "arrival": exact,
    "service": exact,
    "routing": _row,
    "priority": _order,
    "preemptive": flag,
    "density": flag,
    "joins": _join,
    "forks": _fork,
}


@attrs.frozen(kw_only=True)
class FluidModel:
    """First-order data of a network of K classes on S stations, each station working at unit rate.

    Attributes
    ----------
    stations : tuple of str, length S
    classes : tuple of str, length K
    station : tuple of int, length K
        s(k), the station that serves class k.
    arrival : tuple of Fraction, length K
        alpha_k, external tasks per second.
    service : tuple of Fraction, length K
        m_k > 0, mean seconds of its station that a task of class k takes; mu_k = 1/m_k.
    routing : tuple of Row, length K
        P_kl, the mean number of class l tasks that follow a class k task; a row sums to at most 1 without forks, to
        the number of branches with one. A class that ends in a join of n sends 1/n of a task.
    priority : tuple of (tuple of int, or None), length S
        Classes of a station from high to low; None is first come, first served.
    preemptive : tuple of bool, length S
        Whether it is a single server at which a higher class interrupts a lower one, which is resumed later.
    density : tuple of bool, length K
        Whether the service time of the class has a density, so that its end meets no other event; absent: of none.
    joins : tuple of (tuple of int, int)
        Classes whose tasks wait for their siblings, and the class that the joined task enters.
    forks : tuple of (int, tuple of int), as many as joins
        The class whose fork the siblings of each join are of, and the class in which the branch of each begins.

    Raises
    ------
    InvalidModel
        ``fluid model: WHAT``, if an entry is of another type, or the columns do not fit together.
    """

    stations: tuple[str, ...]
    classes: tuple[str, ...]
    station: tuple[int, ...]
    arrival: tuple[Fraction, ...]
    service: tuple[Fraction, ...]
    routing: tuple[Row, ...]
    priority: tuple[tuple[int, ...] | None, ...]
    preemptive: tuple[bool, ...]
    density: tuple[bool, ...] = ()
    joins: tuple[FluidJoin, ...] = ()
    forks: tuple[FluidFork, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Read the columns, check shapes and ranges; a network from a file has been checked key by key before."""
        for key, read in _COLUMNS.items():
            object.__setattr__(self, key, column(f"{_WHERE}: {key}", read, getattr(self, key)))
        if not self.density:
            object.__setattr__(self, "density", (False,) * len(self.classes))
        for what, wrong in self._faults():
            if wrong:
                raise InvalidModel(f"{_WHERE}: {what}")
        for what in fork_faults(self):
            raise InvalidModel(f"{_WHERE}: {what}")

    def _faults(self) -> list[tuple[str, bool]]:
        classes, stations = range(len(self.classes)), range(len(self.stations))
        columns = (self.station, self.arrival, self.service, self.routing, self.density)
        if any(len(column) != len(classes) for column in columns) or any(s not in stations for s in self.station):
            return [("station, arrival, service, routing and density need one valid entry a class", True)]
        if len(self.priority) != len(stations) or len(self.preemptive) != len(stations):
            return [("priority and preemptive need one entry a station", True)]
        orders = [(sorted(order), list(self.at(s))) for s, order in enumerate(self.priority) if order is not None]
        targets = [hop for row in self.routing for hop in row]
        ends = [k for siblings, to in self.joins for k in (*siblings, to)]
        ends += [k for source, starts in self.forks for k in (source, *starts)]
        return [
            ("an external rate is negative", any(rate < 0 for rate in self.arrival)),
            ("a mean service time is not positive", any(mean <= 0 for mean in self.service)),
            ("a route leads to no class or has a probability that is not positive",
             any(to not in classes or p <= 0 for to, p in targets)),
            ("a priority list does not hold every class of its station once", any(a != b for a, b in orders)),
            ("a join or its fork names no class", any(k not in classes for k in ends)),
            ("names repeat", len(set(self.classes)) < len(classes) or len(set(self.stations)) < len(stations)),
        ]  # fmt: skip

    def at(self, station: int) -> tuple[int, ...]:
        """Classes served at a station, in the order of the model."""
        return self._at[station]

    @cached_property
    def _at(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.stations]
        for k, s in enumerate(self.station):
            found[s].append(k)
        return tuple(map(tuple, found))

    def not_below(self, k: int) -> tuple[int, ...]:
        """Classes that the station of k may serve while k has fluid: all of them where there are no priorities."""
        order = self.priority[self.station[k]]
        return self.at(self.station[k]) if order is None else order[: order.index(k) + 1]

    @cached_property
    def predecessors(self) -> tuple[Row, ...]:
        """For each class l the pairs (k, P_kl) with P_kl > 0."""
        found: list[list[tuple[int, Fraction]]] = [[] for _ in self.classes]
        for k, row in enumerate(self.routing):
            for to, p in row:
                found[to].append((k, p))
        return tuple(map(tuple, found))

    def scaled(self, factor: Fraction) -> FluidModel:
        """The model with every external rate times ``factor`` >= 0."""
        return attrs.evolve(self, arrival=tuple(rate * factor for rate in self.arrival))

    @property
    def is_ordered(self) -> bool:
        """Whether every station that serves several classes has an order of priority."""
        return all(order is not None or len(self.at(s)) < 2 for s, order in enumerate(self.priority))

    def without_priorities(self) -> FluidModel:
        """The model without orders of service."""
        return attrs.evolve(self, priority=(None,) * len(self.stations))

    def with_priority(self, priority: Sequence[tuple[int, ...] | None]) -> FluidModel:
        """The model under other orders of service."""
        return attrs.evolve(self, priority=tuple(priority))

    def restricted(self, stations: Sequence[int], rates: Sequence[Fraction]) -> FluidModel:
        """Some stations alone: what comes from the others, at rates ``rates``, is external there; joins are left out.

        Parameters
        ----------
        stations : sequence of int
        rates : sequence of Fraction, length K
            lambda_k, tasks of class k per second.
        """
        kept = [k for k, s in enumerate(self.station) if s in stations]
        number = {k: index for index, k in enumerate(kept)}
        inflow = [
            self.arrival[k]
            + sum((rates[source] * p for source, p in self.predecessors[k] if source not in number), Fraction(0))
            for k in kept
        ]
        orders = [self.priority[s] for s in stations]
        return FluidModel(
            stations=tuple(self.stations[s] for s in stations),
            classes=tuple(self.classes[k] for k in kept),
            station=tuple(list(stations).index(self.station[k]) for k in kept),
            arrival=tuple(inflow),
            service=tuple(self.service[k] for k in kept),
            routing=tuple(tuple((number[to], p) for to, p in self.routing[k] if to in number) for k in kept),
            priority=tuple(None if order is None else tuple(number[k] for k in order) for order in orders),
            preemptive=tuple(self.preemptive[s] for s in stations),
            density=tuple(self.density[k] for k in kept),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, names instead of numbers; `from_dict` reads them back."""
        names = self.classes
        return {
            "stations": [
                {
                    "name": name,
                    "priority": None if order is None else [names[k] for k in order],
                    "preemptive": preemptive,
                }
                for name, order, preemptive in zip(self.stations, self.priority, self.preemptive, strict=True)
            ],
            "classes": [
                {
                    "name": name,
                    "station": self.stations[self.station[k]],
                    "rate": plain(self.arrival[k]),
                    "seconds": plain(self.service[k]),
                    "density": self.density[k],
                    "routes": [[names[to], plain(p)] for to, p in self.routing[k]],
                }
                for k, name in enumerate(names)
            ],
            "joins": [
                {
                    "classes": [names[k] for k in siblings],
                    "to": names[to],
                    "fork": names[fork],
                    "branches": [names[k] for k in starts],
                }
                for (siblings, to), (fork, starts) in zip(self.joins, self.forks, strict=True)
            ],
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> FluidModel:
        """The model in plain values, exactly those of `to_dict`.

        Raises
        ------
        InvalidModel
            ``fluid model: WHAT``, if something is missing, unknown or contradictory.
        """
        try:
            return cls._read(table)
        except InvalidInput as error:
            raise InvalidModel([fault.removeprefix(f"{_WHERE}: ") for fault in error.faults], source=_WHERE) from None

    @classmethod
    def _read(cls, table: Any) -> FluidModel:
        table = reading.keys("model", table, "stations", "classes", "joins")
        stations = _tables("stations", table["stations"], "name", "priority", "preemptive")
        classes = _tables("classes", table["classes"], "name", "station", "rate", "seconds", "density", "routes")
        joins = _tables("joins", table["joins"], "classes", "to", "fork", "branches")
        halls = column("stations", name, (entry["name"] for entry in stations))
        names = column("classes", name, (entry["name"] for entry in classes))

        def numbers(where: str, listed: Any) -> tuple[int, ...]:
            return tuple(reading.places(where, listed, names))

        def number(where: str, listed: Any) -> int:
            return numbers(where, [listed])[0]

        def row(where: str, listed: Any) -> Row:
            hops = [reading.entries(where, hop, 2) for hop in reading.entries(where, listed)]
            return tuple((number(where, to), reading.number(where, p)) for to, p in hops)

        return cls(
            stations=halls,
            classes=names,
            station=tuple(reading.places("station", [entry["station"]], halls)[0] for entry in classes),
            arrival=tuple(reading.number("rate", entry["rate"]) for entry in classes),
            service=tuple(reading.number("seconds", entry["seconds"]) for entry in classes),
            routing=tuple(row("routes", entry["routes"]) for entry in classes),
            priority=tuple(
                None if entry["priority"] is None else numbers("priority", entry["priority"]) for entry in stations
            ),
            preemptive=tuple(entry["preemptive"] for entry in stations),
            density=tuple(entry["density"] for entry in classes),
            joins=tuple((numbers("joins", join["classes"]), number("joins", join["to"])) for join in joins),
            forks=tuple((number("joins", join["fork"]), numbers("joins", join["branches"])) for join in joins),
        )


def _tables(where: str, listed: Any, *keys: str) -> list[dict[str, Any]]:
    return [reading.keys(f"{where}[{i}]", entry, *keys) for i, entry in enumerate(reading.entries(where, listed))]
