"""Flows of a fluid network at an instant, in floating-point numbers.

Fluid flows into class k at a_k = alpha_k + sum_l P_lk d_l and out at d_k, tasks per second. A station with priorities
serves its classes from high to low: what comes into an empty class passes through as long as the station has room, and
the first class that has a queue, or gets more than the room left, takes all the room; below it nothing is served. A
first come, first served station with a queue puts out what came in a waiting time ago, one second of work per second;
an empty one lets everything pass if it can, and otherwise begins to fill, putting out the mixture that comes in.

Stations feed one another, so flows are a fixed point. It is linear once it is known which class limits each station; a
propagation from standstill finds that, and the flows are then solved for exactly. Fluid models can have several
solutions: the one found is that of a network in which nothing flows yet (Lu and Kumar's network with a queue in class 1
alone begins to block, and does not settle on passing everything at the rate of its slower station).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, product

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.model.fluid_model import FluidModel

#: Output of first come, first served stations by number: tasks per second of each class there.
Outputs = Mapping[int, Floats]

#: How a station is limited: by a class; not at all (None); or, first come, first served, by its queue:
Limit = int | None
#: it puts out what came in a waiting time ago,
STORED = -1
#: or what comes in now, because its queue is about to form.
FRESH = -2

#: A load above 1 by less is taken for 1: the station is exactly full, and nothing gathers.
FULL = 1e-10
#: A station that passed everything is followed until its load is above 1 by this much, so that the excess is seen then.
MARGIN = 100 * FULL
_AGREE = 1e-11  # relative difference of flows that solve the same equations; finer than `MARGIN`
_MOST_CHOICES = 50_000  # tried one by one where propagation does not settle


@attrs.frozen
class Flows:
    """Tasks per second into and out of each class."""

    arrivals: Floats
    departures: Floats


@attrs.frozen(eq=False)
class FlowEquations:
    """The equations of a model.

    Parameters
    ----------
    model : FluidModel
    """

    model: FluidModel

    @cached_property
    def service(self) -> Floats:
        """m_k, seconds."""
        return np.array([float(mean) for mean in self.model.service])

    @cached_property
    def routing(self) -> Floats:
        """P without joins, from row to column."""
        found = np.zeros((len(self.model.classes),) * 2)
        ends = {k for siblings, _ in self.model.joins for k in siblings}
        for k, row in enumerate(self.model.routing):
            if k not in ends:
                for to, share in row:
                    found[k, to] = float(share)
        return found

    @cached_property
    def at(self) -> tuple[NDArray[np.int64], ...]:
        """Classes of each station, from high to low where they have priorities."""
        orders = (order if order is not None else self.model.at(s) for s, order in enumerate(self.model.priority))
        return tuple(np.array(order, dtype=np.int64) for order in orders)

    @cached_property
    def first_come(self) -> tuple[int, ...]:
        """Stations that serve first come, first served."""
        return tuple(s for s, order in enumerate(self.model.priority) if order is None)

    def served(self, arrivals: Floats, filled: NDArray[np.bool_], outputs: Outputs) -> tuple[Floats, list[Limit]]:
        """What every station puts out for what it gets, and what limits it."""
        departures = np.zeros_like(arrivals)
        limits: list[Limit] = []
        for s, classes in enumerate(self.at):
            if self.model.priority[s] is None:
                departures[classes], limit = self._first_come(s, arrivals[classes], filled[classes], outputs)
            else:
                limit = self._by_priority(classes, arrivals, filled, departures)
            limits.append(limit)
        return departures, limits

    def _by_priority(
        self, classes: NDArray[np.int64], arrivals: Floats, filled: NDArray[np.bool_], departures: Floats
    ) -> Limit:
        room = 1.0
        for k in classes.tolist():
            needed = self.service[k] * arrivals[k]
            if filled[k] or needed > room + FULL:
                departures[k] = max(room, 0.0) / self.service[k]
                return int(k)
            departures[k] = arrivals[k]
            room -= needed
        return None

    def _first_come(
        self, station: int, arrivals: Floats, filled: NDArray[np.bool_], outputs: Outputs
    ) -> tuple[Floats, Limit]:
        if station in outputs:
            return outputs[station], STORED
        work = float(self.service[self.at[station]] @ arrivals)
        if filled.any() or work > 1 + FULL:
            return (arrivals / work if work > 0 else arrivals), FRESH
        return arrivals, None

    def regime(
        self, external: Floats, filled: NDArray[np.bool_], outputs: Outputs, open_joins: Sequence[Sequence[int]]
    ) -> Regime:
        """What limits each station, by propagation from standstill; by trying all choices where that oscillates.

        Parameters
        ----------
        external : array, length K
            alpha_k, tasks per second.
        filled : array of bool, length K
            Classes with a queue.
        outputs : mapping
            Of first come, first served stations with a queue whose composition is known.
        open_joins : sequence of sequences of int
            For each join the siblings of which no task waits for another one: the slowest of them is waited for.

        Raises
        ------
        NotConverged
            If no choice is consistent, or there are too many to try.
        """

        def consistent(regime: Regime) -> bool:
            try:
                found = regime.flows(external, outputs)
            except (np.linalg.LinAlgError, NotConverged):
                return False
            again = self.served(found.arrivals, filled, outputs)[0]
            scale = _AGREE * (1 + float(np.abs(found.departures).max(initial=0)))
            in_time = all(
                found.departures[last] <= found.departures[list(siblings)].min() + scale
                for last, siblings in zip(regime.last, open_joins, strict=True)
            )
            return in_time and bool(np.abs(again - found.departures).max(initial=0) <= scale)

        for regime in self._candidates(external, filled, outputs, open_joins):
            if consistent(regime):
                return regime
        for regime in islice(self._choices(filled, outputs, open_joins), _MOST_CHOICES):
            if consistent(regime):
                return regime
        raise NotConverged(
            "the flows of the network have no solution that is found by propagation or by trying what limits each "
            "station; simulate it instead"
        )

    def _candidates(
        self, external: Floats, filled: NDArray[np.bool_], outputs: Outputs, open_joins: Sequence[Sequence[int]]
    ) -> Iterator[Regime]:
        """Choices on which the propagation rests for a while, longer and longer; halved steps damp oscillations."""
        departures, before, rest = np.zeros(len(external)), None, 0
        patience = 2 * len(external) + 2
        for step in range(64 * patience):
            last = [min(siblings, key=lambda k: departures[k]) for siblings in open_joins]
            arrivals = external + self.joined_routing(last).T @ departures
            served, limits = self.served(arrivals, filled, outputs)
            departures = served if step < 8 * patience else (served + departures) / 2
            choice = (tuple(limits), tuple(last))
            rest = rest + 1 if choice == before else 0
            before = choice
            if rest >= patience:
                yield Regime(equations=self, limits=choice[0], last=choice[1], guess=departures)
                patience *= 2

    def _choices(
        self, filled: NDArray[np.bool_], outputs: Outputs, open_joins: Sequence[Sequence[int]]
    ) -> Iterator[Regime]:
        options: list[Sequence[Limit]] = []
        for s, classes in enumerate(self.at):
            queue = bool(filled[classes].any())
            if self.model.priority[s] is None:
                options.append((STORED,) if s in outputs else (FRESH,) if queue else (None, FRESH))
            else:
                top = int(np.argmax(filled[classes])) + 1 if queue else len(classes)
                options.append((*(() if queue else (None,)), *classes[:top].tolist()))
        guess = np.zeros(len(filled))
        for limits in product(*options):
            for last in product(*open_joins):
                yield Regime(equations=self, limits=limits, last=last, guess=guess)

    def joined_routing(self, last: Sequence[int]) -> Floats:
        """P with joins: a joined task follows the sibling that is waited for."""
        if not last:
            return self.routing
        found = self.routing.copy()
        for k, (_, to) in zip(last, self.model.joins, strict=True):
            found[k, to] += 1
        return found


@attrs.frozen(eq=False)
class Regime:
    """What limits each station; as long as it lasts flows are a function of external rates and stored outputs.

    Attributes
    ----------
    equations : FlowEquations
    limits : tuple of Limit, length S
    last : tuple of int
        For each join the sibling that is waited for.
    guess : array, length K
        Departures near the solution, for stations about to fill.
    """

    equations: FlowEquations
    limits: tuple[Limit, ...]
    last: tuple[int, ...]
    guess: Floats

    @cached_property
    def _passing(self) -> tuple[Floats, Floats]:
        """(D, e): departures are D a + e, without what first come, first served queues put out."""
        equations = self.equations
        share, room = np.zeros((len(self.guess),) * 2), np.zeros(len(self.guess))
        for limit, classes in zip(self.limits, equations.at, strict=True):
            if limit in (STORED, FRESH):
                continue
            passing = classes if limit is None else classes[: int(np.flatnonzero(classes == limit)[0])]
            share[passing, passing] = 1
            if limit is not None:
                share[limit, passing] = -equations.service[passing] / equations.service[limit]
                room[limit] = 1 / equations.service[limit]
        return share, room

    @cached_property
    def fresh(self) -> tuple[int, ...]:
        """Stations whose queue is about to form."""
        return tuple(s for s, limit in enumerate(self.limits) if limit == FRESH)

    @cached_property
    def _routing(self) -> Floats:
        return self.equations.joined_routing(self.last)

    @cached_property
    def _inverse(self) -> Floats:
        return self._inverted(self._passing[0])

    def _inverted(self, share: Floats) -> Floats:
        inverse = np.asarray(np.linalg.inv(np.eye(len(share)) - self._routing.T @ share), dtype=np.float64)
        if not np.isfinite(inverse).all():
            raise np.linalg.LinAlgError
        return inverse

    def flows(self, external: Floats, outputs: Outputs) -> Flows:
        """Tasks per second into and out of each class.

        Raises
        ------
        NotConverged
            If the mixture at a station about to fill is not found.
        numpy.linalg.LinAlgError
            If the equations have no unique solution.
        """
        share, room = self._passing
        if outputs:
            room = room.copy()
            for s, flow in outputs.items():
                if self.limits[s] == STORED:
                    room[self.equations.at[s]] = flow
        source = external + self._routing.T @ room
        if not self.fresh:
            arrivals = self._inverse @ source
            return Flows(arrivals, share @ arrivals + room)
        share = self._with_fresh(share, source, external + self._routing.T @ self.guess)
        arrivals = self._inverted(share) @ source
        return Flows(arrivals, share @ arrivals + room)

    def _with_fresh(self, share: Floats, source: Floats, near: Floats) -> Floats:
        """D with the fraction of the inflow that passes each station about to fill: one second of work per second.

        ``near`` are arrivals near the solution.
        """
        from scipy.optimize import root

        at, service = self.equations.at, self.equations.service

        def filled_in(fractions: Floats) -> Floats:
            found = share.copy()
            for s, fraction in zip(self.fresh, fractions, strict=True):
                found[at[s], at[s]] = fraction
            return found

        def excess(fractions: Floats) -> Floats:
            arrivals = self._inverted(filled_in(fractions)) @ source
            work = np.array([service[at[s]] @ arrivals[at[s]] for s in self.fresh])
            return np.asarray(fractions * work - 1)

        start = np.array([1 / max(float(service[at[s]] @ near[at[s]]), 0.5) for s in self.fresh])
        found = root(excess, start, tol=1e-14)
        if float(np.abs(found.fun).max()) > FULL:
            raise NotConverged("the mixture at a station about to fill is not found; simulate the network instead")
        return filled_in(found.x)
