"""Departure rates of the fluid model at an instant, under static priorities, exactly.

Sources: Dai (1995), Annals of Applied Probability 5; Stolyar (1995), Markov Processes and Related Fields 1; Chen and
Mandelbaum (1991), Mathematics of Operations Research 16, for the bottleneck of a station.

Let q be the state and q' = alpha + P^T d - d its slope, d_k the departures of class k. On a piece of a path on which q
is linear, look at one station and at its highest class b that is not empty inside the piece, its *bottleneck*. The
classes above b are empty all along, so they pass all that comes, d = a with a = alpha + P^T d. Since b is not empty the
station works fully for b and the classes above it, m_b d_b = 1 - sum m_j d_j over these, and nothing is left for the
classes below. A station without bottleneck is empty all along and passes everything. Given the bottlenecks, d solves a
square linear system. A solution is the start of a path exactly if

* no class above a bottleneck, and none at a station without one, has fluid;
* what the classes above leave is not negative (at a station without bottleneck: sum m_j d_j <= 1);
* an empty bottleneck does not fall below 0: a_b >= d_b. With a_b = d_b it stays empty, at a station that is exactly
  full and has nothing left for the classes below: a solution too, the boundary between two choices, which other
  choices may give once more. Equal rates are one solution.

The solutions are the fixed points of d -> F(alpha + P^T d), F_k(a) = (what is left)/m_k for a class with fluid, the
smaller of that and a_k for an empty one; F is continuous and bounded, so there is one (Brouwer), but there may be many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.exact.linear import Equation, Singular, solve_exactly
from queuetheory_llm.exact.numbers import Vector
from queuetheory_llm.model.fluid_model import FluidModel

#: Choices of bottlenecks that are looked at, at most, before uniqueness is left open.
MOST_CHOICES = 512
#: Sweeps of the fixed point that says which choice to try first, and of the bounds on the rates.
_SWEEPS = 50
_BOUND_SWEEPS = 12
#: Classes from which on a linear system is solved in floats before it is solved exactly.
_FLOATS_FROM = 12

#: For each station the place of its bottleneck in the order of service; the number of its classes if it has none.
Choice = tuple[int, ...]


@attrs.frozen(kw_only=True)
class FluidRates:
    """One solution.

    Attributes
    ----------
    departures : tuple of Fraction, length K
        d_k, tasks per second.
    slopes : tuple of Fraction, length K
        q'_k, tasks per second.
    efforts : tuple of Fraction, length K
        u_k = m_k d_k, the fraction of its station that class k gets.
    """

    departures: Vector
    slopes: Vector
    efforts: Vector


@attrs.frozen(kw_only=True)
class RateSolutions:
    """All solutions that were found at a state.

    Attributes
    ----------
    solutions : tuple of FluidRates
        At least one; first those with the bottlenecks lowest in the order of service, where most fluid passes.
    unique : bool or None
        Whether it is the only one; None where there were too many choices of bottlenecks to look at them all.
    continuum : bool
        Some choice leaves a rate free, so that besides those listed there may be a continuum of solutions.
    """

    solutions: tuple[FluidRates, ...]
    unique: bool | None
    continuum: bool


def require_priorities(model: FluidModel) -> None:
    """Refuse what has no exact path here.

    Raises
    ------
    AssumptionViolated
    """
    if not model.is_ordered:
        mixed = next(s for s, order in enumerate(model.priority) if order is None and len(model.at(s)) > 1)
        raise AssumptionViolated(
            f"station {model.stations[mixed]} serves several classes first come, first served; exact paths need a "
            "priority order there: give it one, or follow the path numerically, as a differential equation"
        )
    if model.joins:
        names = ", ".join(model.classes[k] for k in model.joins[0][0])
        raise AssumptionViolated(
            f"the siblings {names} wait for one another in a join; exact paths are followed in networks without joins"
        )


def service_orders(model: FluidModel) -> tuple[tuple[int, ...], ...]:
    """The classes of each station from high to low."""
    return tuple(model.at(s) if order is None else order for s, order in enumerate(model.priority))


def fluid_rates(model: FluidModel, empty: tuple[bool, ...], *, most_choices: int = MOST_CHOICES) -> RateSolutions:
    """Rates at which the classes of a priority network can leave; they depend only on which classes are empty.

    Parameters
    ----------
    model : FluidModel
        One that `require_priorities` accepts.
    empty : tuple of bool, length K
    most_choices : int
        Cap on the choices of bottlenecks that are looked at.

    Raises
    ------
    NotConverged
        If no solution is among the choices that were looked at.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> found = fluid_rates(load_network("rybko-stolyar").fluid_model, (False, True, True, True))
    >>> [str(rate) for rate in found.solutions[0].slopes], found.unique
    (['-9', '25/3', '1', '0'], True)
    """
    search = _Search(model, empty, most_choices)
    found: dict[FluidRates, Choice] = {}
    continuum = False
    for choice in search.choices():
        rates = _rates_of(model, search.orders, empty, choice)
        if isinstance(rates, FluidRates):
            found[rates] = max(choice, found.get(rates, choice))
        continuum = continuum or rates is Singular.MANY
    if not found:
        raise NotConverged(
            f"no rates were found among the {search.looked} choices of bottlenecks that were looked at; "
            "raise most_choices"
        )
    unique = False if len(found) > 1 else (None if search.capped or continuum else True)
    ordered = sorted(found, key=found.__getitem__, reverse=True)
    return RateSolutions(solutions=tuple(ordered), unique=unique, continuum=continuum)


def _rates_of(
    model: FluidModel, orders: tuple[tuple[int, ...], ...], empty: tuple[bool, ...], choice: Choice
) -> FluidRates | Singular | None:
    """The rates under a choice of bottlenecks; None where they contradict it."""
    departures = _departures(model, orders, choice)
    if isinstance(departures, Singular) or min(departures) < 0:
        return departures if isinstance(departures, Singular) else None
    efforts = tuple(m * d for m, d in zip(model.service, departures, strict=True))
    slopes = _slopes(model, departures)
    for order, place in zip(orders, choice, strict=True):
        if place == len(order) and sum(efforts[k] for k in order) > 1:
            return None
        if place < len(order) and empty[order[place]] and slopes[order[place]] < 0:
            return None
    return FluidRates(departures=departures, slopes=slopes, efforts=efforts)


def _departures(model: FluidModel, orders: tuple[tuple[int, ...], ...], choice: Choice) -> Vector | Singular:
    """d of the linear system of a choice: passing classes d = a, bottlenecks the rest of their station, others 0."""
    served = [k for order, place in zip(orders, choice, strict=True) for k in order[: place + 1]]
    unknown = {k: i for i, k in enumerate(served)}
    equations: list[Equation] = []
    right = []
    for order, place in zip(orders, choice, strict=True):
        for k in order[:place]:
            row = {unknown[k]: Fraction(1)}
            for source, p in model.predecessors[k]:
                if source in unknown:
                    row[unknown[source]] = row.get(unknown[source], Fraction(0)) - p
            equations.append(row)
            right.append(model.arrival[k])
        if place < len(order):
            equations.append({unknown[k]: model.service[k] for k in order[: place + 1]})
            right.append(Fraction(1))
    solution = solve_exactly(equations, right)
    if isinstance(solution, Singular):
        return solution
    return tuple(solution[unknown[k]] if k in unknown else Fraction(0) for k in range(len(model.classes)))


def _slopes(model: FluidModel, departures: Vector) -> Vector:
    """q' = alpha + P^T d - d."""
    slopes = [rate - gone for rate, gone in zip(model.arrival, departures, strict=True)]
    for source, row in enumerate(model.routing):
        if departures[source]:
            for to, p in row:
                slopes[to] += p * departures[source]
    return tuple(slopes)


class _Search:
    """Choices of bottlenecks that can be consistent, by branching on stations and bounding the rates in floats.

    A choice is left out only if bounds on d, valid for every solution, break one of its conditions by more than
    rounding can: what is left out is certainly no solution, and what is found is still verified exactly.
    """

    def __init__(self, model: FluidModel, empty: tuple[bool, ...], most: int) -> None:
        self.empty = empty
        self.most = most
        self.looked = 0
        self.capped = False
        self.orders = service_orders(model)
        self.arrival = np.array([float(rate) for rate in model.arrival])
        self.means = [float(mean) for mean in model.service]
        self.service = np.array(self.means)
        self.inflow = np.zeros((len(empty), len(empty)))  # P^T
        for k, row in enumerate(model.predecessors):
            for source, p in row:
                self.inflow[k, source] += float(p)
        spread = max(self.means) / min(self.means)
        self.tolerance = max(1e-9, 1e-13 * len(empty) * spread)
        self.candidates: list[Sequence[int]] = [self._places(order) for order in self.orders]

    def _places(self, order: tuple[int, ...]) -> range:
        """Places a bottleneck can have: down to the highest class with fluid, or nowhere."""
        held = next((place for place, k in enumerate(order) if not self.empty[k]), len(order))
        return range(held, -1, -1)

    def choices(self) -> Iterator[Choice]:
        """The choices to verify, the most promising first when there are many."""
        if prod(map(len, self.candidates)) * len(self.orders) > self.most:
            likely = self._likely()
            self.candidates = [sorted(places, key=likely[s].__ne__) for s, places in enumerate(self.candidates)]
        size = len(self.empty)
        yield from self._branch([], [0.0] * size, [1 / mean for mean in self.means])

    def _branch(self, chosen: list[int], low: list[float], high: list[float]) -> Iterator[Choice]:
        if len(chosen) == len(self.orders):
            if not self._surely_wrong(chosen):
                yield tuple(chosen)
            return
        for place in self.candidates[len(chosen)]:
            if self.looked >= self.most:
                self.capped = True
                return
            self.looked += 1
            lower, upper = list(low), list(high)
            if self._bounds_hold([*chosen, place], lower, upper):
                yield from self._branch([*chosen, place], lower, upper)

    def _bounds_hold(self, chosen: list[int], low: list[float], high: list[float]) -> bool:
        """Tighten the bounds in place; False where no solution is left between them."""
        width = sum(high) - sum(low)
        for _ in range(_BOUND_SWEEPS):
            least, most = (self.inflow @ np.array([low, high]).T + self.arrival[:, None]).T.tolist()
            for s, order in enumerate(self.orders):
                place = chosen[s] if s < len(chosen) else None
                if not self._station_holds(order, place, (least, most), low, high):
                    return False
            before, width = width, sum(high) - sum(low)
            if width > before * 0.9:
                break
        return True

    def _station_holds(
        self,
        order: tuple[int, ...],
        chosen: int | None,
        inflow: tuple[list[float], list[float]],
        low: list[float],
        high: list[float],
    ) -> bool:
        least = most = 1.0  # bounds on what is left of the station
        for place, k in enumerate(order):
            mean, empty = self.means[k], self.empty[k]
            comes, at_most = inflow[0][k], inflow[1][k]
            if chosen is not None and place < chosen:
                lower, upper = comes, min(at_most, most / mean)
            elif place == chosen or not empty:
                lower, upper = least / mean, min(most / mean, at_most) if empty else most / mean
                least = most = 0.0
            elif chosen is None:
                lower, upper = min(comes, least / mean), min(at_most, most / mean)
            else:
                lower = upper = 0.0
            lower, upper = max(lower, low[k]), min(upper, high[k])
            if lower > upper + self.tolerance / mean:
                return False
            low[k], high[k] = lower, max(lower, upper)
            least, most = max(0.0, least - mean * high[k]), max(0.0, most - mean * lower)
        return True

    def _surely_wrong(self, chosen: list[int]) -> bool:
        """Whether the solution of the linear system, in floats, breaks a condition by far more than they can err."""
        size = len(self.empty)
        if size < _FLOATS_FROM:
            return False
        matrix = np.eye(size)  # blocked classes: d = 0
        right = np.zeros(size)
        for order, place in zip(self.orders, chosen, strict=True):
            passing, taking = list(order[:place]), list(order[place : place + 1])
            matrix[passing] -= self.inflow[passing]
            right[passing] = self.arrival[passing]
            matrix[taking] = 0.0
            for k in taking:
                served = [*passing, k]
                matrix[k, served], right[k] = self.service[served], 1.0
        scaled = matrix / self.service  # unknowns are efforts
        if np.linalg.cond(scaled) > 1e9:
            return False
        efforts = np.linalg.solve(scaled, right)
        excess = (self.inflow @ (efforts / self.service) + self.arrival) * self.service - efforts
        return efforts.min() < -1e-5 or any(
            efforts[list(order)].sum() > 1 + 1e-5
            or (place < len(order) and self.empty[order[place]] and excess[order[place]] < -1e-5)
            for order, place in zip(self.orders, chosen, strict=True)
        )

    def _likely(self) -> Choice:
        """A choice that is probably consistent: by damped iterations of d -> F(alpha + P^T d), else by a program."""
        rates: Floats = np.zeros(len(self.empty))
        for _ in range(_SWEEPS):
            filled, places = self._fill(rates)
            change = np.abs(filled - rates) * self.service
            rates = (rates + filled) / 2
            if change.max() < self.tolerance:
                return tuple(places)
        return self._programmed()

    def _programmed(self) -> Choice:
        """The fixed point as a mixed integer program.

        Let y_k = a_k - d_k and r_k be what the classes down to k leave of their station. Both are at least 0 for an
        empty class, and one of them is 0; r_k is 0 for a class with fluid. The binary variable b_k says that r_k is.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        size = len(self.empty)
        arrival, service = self.arrival, self.service
        gained, nothing, unit = self.inflow - np.eye(size), np.zeros((size, size)), np.eye(size)
        taken = np.zeros((size, size))  # of the station, by a class and those above it
        for order in self.orders:
            for place, k in enumerate(order):
                above = list(order[: place + 1])
                taken[k, above] = service[above]
        held = np.logical_not(self.empty)
        most = arrival + self.inflow @ (1 / service)  # of a_k
        result = milp(
            np.zeros(2 * size),
            integrality=np.repeat([0, 1], size),
            options={"presolve": False},  # HiGHS 1.12 prints a line on stdout when it maps a solution back
            bounds=Bounds(np.concatenate([np.zeros(size), held]), np.concatenate([1 / service, np.ones(size)])),
            constraints=[
                LinearConstraint(np.hstack([gained, nothing]), np.where(held, -np.inf, -arrival), np.inf),  # y >= 0
                LinearConstraint(np.hstack([gained, -np.diag(most)]), -np.inf, np.where(held, np.inf, -arrival)),
                LinearConstraint(np.hstack([taken, nothing]), -np.inf, 1.0),  # r >= 0
                LinearConstraint(np.hstack([taken, -unit]), 0.0, np.inf),  # r <= 1 - b
            ],
        )
        if result.x is None:
            raise NotConverged(f"no rates were found by a mixed integer program: {result.message}")
        full = result.x[size:] > 0.5
        return tuple(next((place for place, k in enumerate(order) if full[k]), len(order)) for order in self.orders)

    def _fill(self, rates: Floats) -> tuple[Floats, list[int]]:
        """F of the rates, and where each station is used up."""
        filled = np.zeros_like(rates)
        inflow = self.inflow @ rates + self.arrival
        places = []
        for order in self.orders:
            left, last = 1.0, len(order)
            for place, k in enumerate(order):
                if not self.empty[k] or inflow[k] * self.means[k] > left:
                    filled[k], last = left / self.means[k], place
                    break
                filled[k] = inflow[k]
                left -= inflow[k] * self.means[k]
            places.append(last)
        return filled, places
