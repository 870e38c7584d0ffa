"""Exact linear programs: HiGHS finds which variables and rows bind, rational arithmetic says the numbers.

The optimum is believed for what it is: a feasible point and feasible prices of the same value (strong duality), both
checked exactly. What the floats of the solver say enters nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.exact.linear import Equation, Singular, solve_system
from queuetheory_llm.exact.numbers import Vector

#: How near 0 a float must be to be taken for 0, in the order in which they are tried.
_TOLERANCES = (1e-9, 1e-7, 1e-11, 1e-5)


@attrs.frozen(kw_only=True)
class Program:
    """Minimise cost.x over x >= 0 with equal x = equal_right and below x <= below_right.

    Attributes
    ----------
    cost : sequence of Fraction, length n
        Numbers should be of a size near 1, for HiGHS has absolute tolerances.
    equal, below : sequence of mapping
        Rows as {variable: coefficient}.
    equal_right, below_right : sequence of Fraction
    """

    cost: Vector
    equal: Sequence[Equation]
    equal_right: Vector
    below: Sequence[Equation]
    below_right: Vector

    def solve(self) -> Optimum:
        """The exact optimum.

        Raises
        ------
        NotConverged
            If HiGHS finds none, or what binds cannot be told from its floats.
        """
        floats = self._in_floats()
        for tolerance in _TOLERANCES:
            found = self._exactly(*floats, tolerance)
            if found is not None:
                return found
        raise NotConverged(
            "linear program: floats do not tell which constraints bind; its numbers are too many powers of ten apart"
        )

    def _in_floats(self) -> tuple[Floats, Floats]:
        """A vertex, and prices of the rows below at it."""
        from scipy.optimize import linprog

        found = linprog(
            [float(value) for value in self.cost],
            A_eq=_dense(self.equal, len(self.cost)),
            b_eq=[float(value) for value in self.equal_right],
            A_ub=_dense(self.below, len(self.cost)),
            b_ub=[float(value) for value in self.below_right],
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        if found.x is None or found.status != 0:
            raise NotConverged(f"linear program: {' '.join(str(found.message).split())}")
        return np.asarray(found.x, dtype=float), np.concatenate([found.eqlin.marginals, -found.ineqlin.marginals])

    def _exactly(self, x: Floats, prices: Floats, tolerance: float) -> Optimum | None:
        """The optimum with what binds at a tolerance; None where that is none."""
        size, equations = len(self.cost), len(self.equal)
        slack = np.array([float(value) for value in self.below_right]) - _dense(self.below, size) @ x
        kept = [j for j in range(size) if x[j] > tolerance]
        tight = [i for i, left in enumerate(slack) if left <= tolerance]
        point = _solved(
            [*self.equal, *(self.below[i] for i in tight)],
            [*self.equal_right, *(self.below_right[i] for i in tight)],
            kept,
            size,
        )
        if point is None:
            return None
        columns = self._columns()
        gaps = np.array([float(value) for value in self.cost]) - _dense(columns, prices.size) @ prices
        priced = [*range(equations), *(i for i in range(equations, prices.size) if prices[i] > tolerance)]
        bound = [j for j in range(size) if abs(gaps[j]) <= tolerance]
        dual = _solved([columns[j] for j in bound], [self.cost[j] for j in bound], priced, prices.size)
        if dual is None:
            return None
        found = Optimum(x=point, equal_prices=dual[:equations], below_prices=tuple(-y for y in dual[equations:]))
        return found if self._is_optimal(found) else None

    def _columns(self) -> list[dict[int, Fraction]]:
        """The rows of the dual: below rows with their sign changed, so that their prices are not negative."""
        columns: list[dict[int, Fraction]] = [{} for _ in self.cost]
        for i, row in enumerate(self.equal):
            for j, value in row.items():
                columns[j][i] = value
        for i, row in enumerate(self.below, len(self.equal)):
            for j, value in row.items():
                columns[j][i] = -value
        return columns

    def _is_optimal(self, found: Optimum) -> bool:
        """Feasible, with feasible prices of the same value."""
        x, prices = found.x, [*found.equal_prices, *(-y for y in found.below_prices)]
        feasible = (
            min(x, default=Fraction(0)) >= 0
            and all(_times(row, x) == value for row, value in zip(self.equal, self.equal_right, strict=True))
            and all(_times(row, x) <= value for row, value in zip(self.below, self.below_right, strict=True))
        )
        below = found.below_prices
        bounded = max(below, default=Fraction(0)) <= 0 and all(
            _times(column, prices) <= value for column, value in zip(self._columns(), self.cost, strict=True)
        )
        value = sum((a * b for a, b in zip(self.cost, x, strict=True)), Fraction(0))
        worth = sum((a * b for a, b in zip(self.equal_right, found.equal_prices, strict=True)), Fraction(0))
        worth += sum((a * b for a, b in zip(self.below_right, below, strict=True)), Fraction(0))
        return feasible and bounded and value == worth


@attrs.frozen(kw_only=True)
class Optimum:
    """An optimal point and optimal prices.

    Attributes
    ----------
    x : tuple of Fraction
    equal_prices, below_prices : tuple of Fraction
        How much the least cost rises with each right hand side; of rows below, 0 or less.
    """

    x: tuple[Fraction, ...]
    equal_prices: tuple[Fraction, ...]
    below_prices: tuple[Fraction, ...]


def _dense(rows: Sequence[Equation], width: int) -> Floats:
    found = np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        for j, value in row.items():
            found[i, j] = float(value)
    return found


def _solved(rows: Sequence[Equation], right: Vector, kept: Sequence[int], size: int) -> tuple[Fraction, ...] | None:
    """The one solution with nothing outside ``kept``; None where there is none or several."""
    place = {j: i for i, j in enumerate(kept)}
    shortened = [{place[j]: value for j, value in row.items() if j in place} for row in rows]
    found = solve_system(shortened, right, len(kept))
    if isinstance(found, Singular):
        return None
    full = [Fraction(0)] * size
    for j, value in zip(kept, found, strict=True):
        full[j] = value
    return tuple(full)


def _times(row: Equation, x: Vector) -> Fraction:
    return sum((value * x[j] for j, value in row.items()), Fraction(0))
