"""The Poisson equation (I - P) h = cost - mean: what a start is worth, and what a refused request costs."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.markov.aggregation import blocks_of, coarse
from queuetheory_llm.markov.direct import factorised
from queuetheory_llm.markov.krylov import cycle
from queuetheory_llm.markov.operator import Factors, Operator, entry
from queuetheory_llm.markov.space import Floats, Ints
from queuetheory_llm.markov.stationary import Method, Report, Stationary, method_for, steps_for

_CENTRED = 1e-9  # times the mean of abs(cost): the largest mean of a cost that counts as centred
_CYCLES = 60
_REFINED = 2  # times that a direct solution is improved by its own residual
_ROUNDING = 16 * np.finfo(np.float64).eps  # of P h, relative to h


@attrs.frozen(eq=False)
class Bias:
    """h of the Poisson equation: how much more a start in each state costs in the long run than a start by the law.

    Attributes
    ----------
    values : float64 array of shape (states,)
        h, with mean 0 under the law; in units of the cost.
    mean : float
        What the law leaves of the mean of the cost: (I - P) h = cost - mean. It is 0 but for the error of the law.
    residual : float
        Largest abs(cost - mean - h + P h) over the states.
    weighted : float
        Mean of the same under the law.
    method : Method
    iterations : int
        Products with P; 0 where P was written out.
    """

    values: Floats
    mean: float
    residual: float
    weighted: float
    method: Method
    iterations: int


def bias(
    operator: Operator,
    law: Floats,
    cost: Floats,
    *,
    tolerance: float = 1e-9,
    method: Method | None = None,
    progress: Report | None = None,
) -> Bias:
    """Solve the Poisson equation of a chain with one closed class.

    Parameters
    ----------
    operator : Operator
    law : float64 array of shape (states,)
        The stationary law.
    cost : float64 array of shape (states,)
        With mean 0 under ``law``.
    tolerance : float
        Of the residual, relative to the largest abs(cost); no less than rounding allows at the size of h.
    method : Method, optional
        By default chosen by the number of states.
    progress : callable, optional
        Called now and then with the number of products with P and the residual.

    Raises
    ------
    AssumptionViolated
        If the mean of ``cost`` is not 0.
    NotConverged
        If the residual does not come down to the tolerance.
    """
    law, cost = np.asarray(law, dtype=np.float64), np.asarray(cost, dtype=np.float64)
    mean = float(law @ cost)
    if not abs(mean) <= _CENTRED * float(law @ np.abs(cost)):
        raise AssumptionViolated(
            f"the Poisson equation needs a cost of mean 0 under the law, and its mean is {mean:.3g}; take it off first"
        )
    method = method or method_for(len(operator), operator.transitions)
    goal = tolerance * float(np.abs(cost).max())
    iterations = 0
    if method is Method.ITERATIVE:
        values, iterations = _iterated(operator, law, cost, goal, progress)
    else:
        values = _written_out(operator.matrix(), law, cost, method)
    mean = float(law @ values)
    values = values - mean
    rest = np.abs(cost - mean - values + operator.pull(values))
    residual = float(rest.max())
    if not residual <= max(goal, _ROUNDING * float(np.abs(values).max())):
        raise NotConverged(
            f"the Poisson equation of {len(operator)} states is only solved to a residual of {residual:.2g}, not "
            f"{goal:.2g}, after {iterations} products; allow a larger tolerance or a lower --level"
        )
    return Bias(
        values=values,
        mean=mean,
        residual=residual,
        weighted=float(law @ rest),
        method=method,
        iterations=iterations,
    )


def _written_out(matrix: Any, law: Floats, cost: Floats, method: Method) -> Floats:
    """h - P h + 1 (law'h) = cost for a chain written out."""
    if method is Method.DIRECT:
        chain = factorised(matrix)
        values = chain.backward(cost, law)
        for _ in range(_REFINED):
            values += chain.backward(cost - values + matrix @ values - float(law @ values), law)
        return values
    size = len(law)
    return np.asarray(np.linalg.solve(np.eye(size) - matrix.toarray() + law, cost), dtype=np.float64)


def _iterated(
    operator: Operator, law: Floats, cost: Floats, goal: float, progress: Report | None
) -> tuple[Floats, int]:
    """The same by GMRES with the chain of blocks, and the products with P it took."""
    level = coarse(blocks_of(operator.space), law, law)
    basis = np.empty((steps_for(law.size) + 1, law.size))
    values = level.backward(cost)
    iterations = 0

    def apply(vector: Floats) -> Floats:
        return vector - operator.pull(vector) + float(law @ vector)

    for _ in range(_CYCLES):
        rest = cost - apply(values)
        iterations += 1
        residual = float(np.abs(rest).max())
        if progress is not None:
            progress(iterations, residual)
        if residual <= max(goal / 2, _ROUNDING / 2 * float(np.abs(values).max())):
            break
        step, products = cycle(apply, level.backward, rest, basis, goal / 4)
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


def refusal_error(small: Operator, law: Stationary, large: Operator, values: Floats) -> tuple[float, float]:
    """What refusing requests at the lower of two levels does to a long-run mean.

    With P the larger chain, Q the smaller one, x its law, and (I - P) h = cost - mean: x cost - mean = x (Q - P) h,
    a sum over the requests that Q refuses. It is the error of the smaller chain, as seen from the larger one.

    Parameters
    ----------
    small : Operator
    law : Stationary
        Of ``small``.
    large : Operator
        The same system up to a higher level.
    values : float64 array of shape (states of ``large``,)
        h on the larger chain.

    Returns
    -------
    float, float
        Sum of the absolute values, which bounds the error; and the sum, which is the error.

    Raises
    ------
    AssumptionViolated
        If ``large`` lacks states of ``small``.
    """
    core = _cores_in(small, large)
    place, far = large.space.first[core], large.space.first[core + 1] - 1
    absolute, signed = _refused(small.factors, law.law, np.zeros(len(small)), place, far, values)
    return float(absolute), float(signed)


def _cores_in(small: Operator, large: Operator) -> Ints:
    """The number in ``large`` of each core of ``small``."""
    number = {core: place for place, core in enumerate(large.space.cores)}
    found = np.array([number.get(core, -1) for core in small.space.cores], dtype=np.int64)
    if (found < 0).any() or (large.space.room[found] < small.space.room).any():
        raise AssumptionViolated(
            "the refused requests of a chain are judged by a larger chain of the same system, and the one given lacks "
            "some of its states; give a higher level"
        )
    return found
