"""The Poisson equation (I - P) h = cost - mean: what a start is worth, and what a refused request costs."""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.markov.aggregation import Coarse, aggregated, blocks_of
from queuetheory_llm.markov.direct import ROUNDING, factorised
from queuetheory_llm.markov.iteration import CYCLES, Map, Report, cycle
from queuetheory_llm.markov.operator import Factors, Operator, entry
from queuetheory_llm.markov.stationary import Method, method_for

_REFINED = 2  # times that a direct solution is improved by its own residual
_ROUNDING = 16 * ROUNDING  # of P h, relative to h


@attrs.frozen(eq=False)
class Bias:
    """h of the Poisson equation: how much more a start in each state costs in the long run than a start by the law.

    Attributes
    ----------
    values : float64 array of shape (states,)
        h, with mean 0 under the law; in units of the cost.
    mean : float
        Mean of the cost under the chain's own law, the second unknown of the equation. From the mean under the law
        given it differs by the error of that law.
    rest : float64 array of shape (states,)
        cost - mean - h + P h. Under any law x of any chain Q, x (cost - mean) = x (Q - P) h + (x - x Q) h + x ``rest``.
    method : Method
    iterations : int
        Products with P; 0 where P was written out.
    """

    values: Floats
    mean: float
    rest: Floats
    method: Method
    iterations: int

    @property
    def residual(self) -> float:
        """Largest abs(``rest``)."""
        return float(np.abs(self.rest).max())


@attrs.frozen(eq=False)
class PoissonEquation:
    """The Poisson equation of a chain with one closed class, for any number of costs: what they share is made once.

    Parameters
    ----------
    operator : Operator
    law : float64 array of shape (states,)
        The stationary law.
    method : Method, optional
        By default chosen by the size of the chain.
    """

    operator: Operator
    law: Floats
    method: Method = attrs.field()

    @method.default
    def _by_size(self) -> Method:
        return method_for(len(self.operator), self.operator.transitions)

    def solve(self, cost: Floats, *, tolerance: float = 1e-9, progress: Report | None = None) -> Bias:
        """h and the mean of one cost.

        Parameters
        ----------
        cost : float64 array of shape (states,)
        tolerance : float
            Of the residual, relative to the largest abs(cost); no less than rounding allows at the size of h.
        progress : callable, optional
            Called now and then with the number of products with P and the residual.

        Raises
        ------
        NotConverged
            If the residual does not come down to the tolerance.
        """
        law, cost = self.law, np.asarray(cost, dtype=np.float64)
        goal = tolerance * float(np.abs(cost).max())
        centre = float(law @ cost)
        values, iterations = self._values(cost - centre, goal, progress)
        # What is solved is (I - P) h + law'h = cost - centre.
        beside = float(law @ values)
        values, mean = values - beside, centre + beside
        rest = cost - mean - values + self.operator.pull(values)
        found = Bias(values=values, mean=mean, rest=rest, method=self.method, iterations=iterations)
        if not found.residual <= max(goal, _ROUNDING * float(np.abs(values).max())):
            raise NotConverged(
                f"the Poisson equation of {len(law)} states is only solved to a residual of {found.residual:.2g}, not "
                f"{goal:.2g}, after {iterations} products; allow a larger tolerance or a lower --level"
            )
        return found

    def _values(self, cost: Floats, goal: float, progress: Report | None) -> tuple[Floats, int]:
        """h - P h + 1 (law'h) = cost, and the products with P it took."""
        if self.method is Method.ITERATIVE:
            return self._iterated(cost, goal, progress)
        approximate = self._dense if self.method is Method.GTH else self._factorised
        values = approximate(cost)
        for _ in range(_REFINED):
            values += approximate(cost - self._applied(values))
        return values, 0

    def _applied(self, values: Floats) -> Floats:
        """h - P h + 1 (law'h)."""
        return np.asarray(values - self.operator.pull(values) + float(self.law @ values), dtype=np.float64)

    @cached_property
    def _dense(self) -> Map:
        """The solution by the factors of a full matrix."""
        from scipy.linalg import lu_factor, lu_solve

        factors = lu_factor(np.eye(len(self.law)) - self.operator.matrix().toarray() + self.law)
        return lambda cost: np.asarray(lu_solve(factors, cost), dtype=np.float64)

    @cached_property
    def _factorised(self) -> Map:
        """The solution by sparse factors."""
        chain = factorised(self.operator.matrix())
        return lambda cost: chain.backward(cost, self.law)

    @cached_property
    def _coarse(self) -> Coarse:
        return aggregated(blocks_of(self.operator.space), self.law)

    def _iterated(self, cost: Floats, goal: float, progress: Report | None) -> tuple[Floats, int]:
        """The solution by GMRES with the chain of blocks."""
        coarse = self._coarse
        values = coarse.backward(cost)
        iterations = 0
        for _ in range(CYCLES):
            rest = cost - self._applied(values)
            iterations += 1
            residual = float(np.abs(rest).max())
            if progress is not None:
                progress(iterations, residual)
            if residual <= max(goal / 2, _ROUNDING / 2 * float(np.abs(values).max())):
                break
            step, products = cycle(self._applied, coarse.backward, rest, goal / 4)
            values += step
            iterations += products
        return values, iterations


# ---------------------------------------------------------------------------------------------------- refused requests


@entry
def _refused(f: Factors, law: Floats, work: Floats, place: Ints, far: Ints, values: Floats) -> tuple[float, float]:
    """Sum over the transitions of refused requests of law p (h where put - h where they belong), absolute and signed.

    ``place`` and ``far``: the first and the last state, in the larger chain, of each core of the smaller one.
    ``work`` is zero before and after.
    """
    absolute, signed = 0.0, 0.0
    for lasting in range(f.moves.size - 1):
        for move in range(f.moves[lasting], f.moves[lasting + 1]):
            come, go = f.first[f.source[move]], f.first[f.target[move]] - f.taken[move]
            for unseen in range(f.low[move], f.high[move] + 1):
                work[go + unseen] += f.chance[move] * law[come + unseen]
        arrivals = f.law[f.laws[lasting] : f.laws[lasting + 1]]
        for part in range(f.parts[lasting], f.parts[lasting + 1]):
            core = f.line[part]
            room = f.first[core + 1] - 1 - f.first[core]
            for unseen in range(f.begin[part], f.end[part] + 1):
                weight = work[f.first[core] + unseen]
                work[f.first[core] + unseen] = 0.0
                for count in range(room - unseen + 1, arrivals.size):
                    belongs = min(place[core] + unseen + count, far[core])
                    change = weight * arrivals[count] * (values[place[core] + room] - values[belongs])
                    absolute += abs(change)
                    signed += change
    return absolute, signed


@attrs.frozen(eq=False)
class Embedding:
    """A chain within the chain of the same system up to a higher level.

    Parameters
    ----------
    small, large : Operator
        Q and P.

    Raises
    ------
    AssumptionViolated
        If ``large`` lacks states of ``small``.
    """

    small: Operator
    large: Operator
    core: Ints = attrs.field(init=False)

    @core.default
    def _found(self) -> Ints:
        """The number in the larger chain of each core of the smaller one."""
        number = {core: place for place, core in enumerate(self.large.space.cores)}
        found = np.array([number.get(core, -1) for core in self.small.space.cores], dtype=np.int64)
        if (found < 0).any() or (self.large.space.room[found] < self.small.space.room).any():
            raise AssumptionViolated(
                "the refused requests of a chain are judged by a larger chain of the same system, and the one given "
                "lacks some of its states; give a higher level"
            )
        return found

    def restricted(self, values: Floats) -> Floats:
        """Values of the larger chain on the states of the smaller one; shape (states of ``small``,)."""
        space = self.small.space
        shift = self.large.space.first[self.core] - space.first[:-1]
        return np.asarray(values[np.arange(len(space)) + np.repeat(shift, np.diff(space.first))])

    def refusal_error(self, law: Floats, values: Floats) -> tuple[float, float]:
        """What refusing requests at the lower level does to a long-run mean.

        With x the law of Q and (I - P) h = cost - mean: x cost - mean = x (Q - P) h, a sum over the requests that Q
        refuses. It is the error of the smaller chain, as seen from the larger one.

        Parameters
        ----------
        law : float64 array of shape (states of ``small``,)
            x.
        values : float64 array of shape (states of ``large``,)
            h.

        Returns
        -------
        float, float
            Sum of the absolute values, which bounds the error; and the sum, which is the error.
        """
        place, far = self.large.space.first[self.core], self.large.space.first[self.core + 1] - 1
        absolute, signed = _refused(self.small.factors, law, np.zeros(len(self.small)), place, far, values)
        return float(absolute), float(signed)
