"""Push starts: virtual stations of what is left when the first steps of some routes always go first.

Let F be classes that only F itself and the outside feed, first at every station; as long as they keep up they take the
share f_s of each station s, pass their tasks on as they come, and leave a network that is entered after them and whose
stations work at the rates 1 - f_s. A virtual station V_s, V_t of that network is too much for it if

    (work of V_s)/(1 - f_s) + (work of V_t)/(1 - f_t) > 1,

which may happen at rates at which every load and every virtual station of the whole network has room (Dai, Vande Vate
2000: for two stations and tasks that follow fixed routes, loads, virtual stations and push starts together are all that
can make a non-idling policy unstable). It speaks of the fluid model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice, product

import attrs

from queuetheory_llm.exact.numbers import Vector
from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.traffic import Traffic
from queuetheory_llm.stability.virtual_stations import Sets, linked_pairs, worst_sets

#: Sets F that are tried.
MOST_STARTS = 200
#: Scales are found on a grid of so many points.
POINTS = 10**10


@attrs.frozen(kw_only=True)
class PushStart:
    """Steps that go first, and two sets of later ones that are then never served together.

    Attributes
    ----------
    model : FluidModel
    pushed : tuple of int
        F.
    stations : (int, int)
    sets : two tuples of int
        The classes of the virtual station at either station.
    scale : Fraction
        Factor on all arrival rates at which they need more than there is, rounded up to the grid.
    """

    model: FluidModel = attrs.field(repr=False)
    pushed: tuple[int, ...]
    stations: tuple[int, int]
    sets: Sets
    scale: Fraction

    @property
    def priority(self) -> tuple[tuple[int, ...] | None, ...]:
        """Orders of all stations, high to low, under which the fluid model is unstable above the scale."""
        first = (*self.pushed, *(k for group in self.sets for k in group))
        orders = (self.model.at(s) for s in range(len(self.model.stations)))
        return tuple((*(k for k in first if k in order), *(k for k in order if k not in first)) for order in orders)

    @property
    def text(self) -> str:
        """What it is, for a person."""
        places = " and ".join(
            f"{self._named(group)} at {self.model.stations[s]}"
            for s, group in zip(self.stations, self.sets, strict=True)
        )
        return (
            f"with priority first to {self._named(self.pushed)} (a push start), then to {places}, the latter "
            "are never served together in the fluid model, and need more than the former leave them"
        )

    def _named(self, classes: Sequence[int]) -> str:
        return enumeration([self.model.classes[k] for k in classes])


def push_start(model: FluidModel, solved: Traffic, high: Fraction) -> PushStart | None:
    """The push start that is full at the smallest scale of the rates below ``high``; None where none is found.

    At most `MOST_STARTS` sets F are tried.

    Parameters
    ----------
    model : FluidModel
        Its priorities do not matter.
    solved : Traffic
    high : Fraction
        At most 1/(largest load).
    """
    best = None
    for pushed, pair in product(islice(_starts(model), MOST_STARTS), linked_pairs(model)):
        found = _Remainder(model=model, work=solved.class_loads, pushed=pushed, pair=pair).full(high)
        if found is not None:
            high, sets = found
            best = PushStart(model=model, pushed=pushed, stations=pair, sets=sets, scale=high)
    return best


def has_more_starts(model: FluidModel) -> bool:
    """Whether there are more sets F than `push_start` tries."""
    return next(islice(_starts(model), MOST_STARTS, None), None) is not None


def _starts(model: FluidModel) -> Iterator[tuple[int, ...]]:
    """Sets F: of each route an initial part, as long as it neither branches nor is joined; not all of them empty."""
    routes = []
    for entry in (k for k, rate in enumerate(model.arrival) if rate):
        route = [entry]
        while len(row := model.routing[route[-1]]) == 1 and len(model.predecessors[row[0][0]]) == 1:
            if row[0][0] in route:
                break
            route.append(row[0][0])
        routes.append([tuple(route[:length]) for length in range(len(route) + 1)])
    for chosen in product(*routes):
        pushed = tuple(sorted({k for part in chosen for k in part}))
        if pushed and all(source in pushed for k in pushed for source, _ in model.predecessors[k]):
            yield pushed


@attrs.frozen(kw_only=True)
class _Remainder:
    """The network without F, at two stations."""

    model: FluidModel
    work: Vector
    pushed: tuple[int, ...]
    pair: tuple[int, int]

    def full(self, high: Fraction) -> tuple[Fraction, Sets] | None:
        """The smallest scale on the grid below ``high`` at which some sets need more than there is, and the sets."""
        step, found = high / POINTS, None
        points = POINTS - 1
        while (sets := self._heaviest(points * step)) and self._need(sets, points * step) > 1:
            lowest = self._first_full(sets, points, step)
            found = lowest * step, sets
            points = lowest - 1
        return found

    def _first_full(self, sets: Sets, points: int, step: Fraction) -> int:
        """The first point of the grid at which the sets need more than there is; they do at ``points``."""
        return bisect_left(range(points), True, key=lambda n: self._need(sets, n * step) > 1)

    def _left(self, scale: Fraction) -> dict[int, Fraction]:
        """1 - f_s of both stations."""
        return {
            s: 1 - scale * sum((self.work[k] for k in self.pushed if self.model.station[k] == s), Fraction(0))
            for s in self.pair
        }

    def _need(self, sets: Sets, scale: Fraction) -> Fraction:
        left = self._left(scale)
        return sum(
            (scale * self.work[k] / left[s] for s, group in zip(self.pair, sets, strict=True) for k in group),
            Fraction(0),
        )

    def _heaviest(self, scale: Fraction) -> Sets | None:
        """The sets that need most at a scale; None where F fills a station, or there are none."""
        left = self._left(scale)
        if min(left.values()) <= 0:
            return None
        outside = {*self.pushed, *(to for k in self.pushed for to, _ in self.model.routing[k])}
        weights = [
            work / left[s] if s in left and k not in self.pushed else Fraction(0)
            for k, (work, s) in enumerate(zip(self.work, self.model.station, strict=True))
        ]
        return worst_sets(self.model, weights, self.pair, outside)
