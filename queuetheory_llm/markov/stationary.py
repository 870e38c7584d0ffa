"""The stationary law of a chain: without subtractions when it is small, directly or by iteration when it is large."""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.markov.aggregation import Coarse, aggregated, blocks_of
from queuetheory_llm.markov.classes import recurrence
from queuetheory_llm.markov.components import Recurrence
from queuetheory_llm.markov.direct import DENSE, LOST, ROUNDING, direct_law, require_mixing
from queuetheory_llm.markov.iteration import CYCLES, Report, cycle
from queuetheory_llm.markov.operator import Operator, entry

DIRECT = (
    1_200_000  # transitions up to which I - P is factorised: a second where few lead out of a state, else up to six
)
_FALL = 0.5  # least fall of v in a step, where the passage itself falls by 1
_WORSE = 3.0  # times the residual: an aggregation may raise it, for it mends what is slow, but no more than this
_FIRST = 5  # batches before the first aggregation

DIRECT_STATES = 8_000  # factors of more states, with cores of many lengths, may fill up


class Method(Enum):
    """How the equations of a chain are solved; the value is the word used in JSON.

    GTH : elimination without subtractions (Grassmann, Taksar, Heyman 1985): every probability has its digits.
    DIRECT : sparse factorisation of I - P.
    ITERATIVE : aggregation over room and known requests (Koury, McAllister, Stewart 1984) in turn with GMRES.
    """

    GTH = "gth"
    DIRECT = "direct"
    ITERATIVE = "iterative"


@attrs.frozen(eq=False)
class Stationary:
    """The stationary law of the one closed class of a chain; where the chain is periodic, its long-run averages.

    Attributes
    ----------
    law : float64 array of shape (states,)
        Not negative, with sum 1; 0 on transient states.
    residual : float
        Sum over the states of abs(law - law P).
    method : Method
    iterations : int
        Products with P; 0 where P was written out.
    recurrence : Recurrence
    """

    law: Floats
    residual: float
    method: Method
    iterations: int
    recurrence: Recurrence


def method_for(states: int, transitions: int) -> Method:
    """The method for a chain of this size."""
    if states <= DENSE:
        return Method.GTH
    small = states <= DIRECT_STATES and transitions <= DIRECT
    return Method.DIRECT if small else Method.ITERATIVE


def stationary(
    operator: Operator, *, method: Method | None = None, tolerance: float = 1e-12, progress: Report | None = None
) -> Stationary:
    """The stationary law of a chain.

    A small residual alone says little of the law: what it does not see is multiplied by the time that the chain takes
    to forget. So each method vouches for the law in its way.

    - ``GTH``: guaranteed, a relative error of each probability of about n times the rounding unit, however slowly the
      chain mixes.
    - ``DIRECT``: estimated, rounding times the passage to a likely state, which the factors themselves give.
    - ``ITERATIVE``: guaranteed, the sum of all errors is at most 1e-6, by a bound on the passage from every state to a
      likely one (see `passages`). Only the rounding of the residual and of P is estimated, at one unit each step.

    Parameters
    ----------
    operator : Operator
    method : Method, optional
        By default chosen by the number of states.
    tolerance : float
        Of the residual.
    progress : callable, optional
        Called now and then with the number of products with P and the residual.

    Raises
    ------
    AssumptionViolated
        If the chain has several closed classes.
    NotConverged
        If the residual does not come down to ``tolerance``, or the chain mixes so slowly that the law is not known
        all the same.
    """
    found = recurrence(operator)
    if len(found.classes) > 1:
        raise AssumptionViolated(_several(found))
    method = method or method_for(len(operator), operator.transitions)
    states = found.classes[0]
    iterations = 0
    if method is Method.ITERATIVE:
        law, iterations = _iterated(operator, states, tolerance, progress)
    else:
        law = np.zeros(len(operator))
        law[states] = _small_law(operator.matrix()[states][:, states], method)
    law = _cleaned(law, states)
    rest = law - operator.push(law)
    residual = _size(rest)
    if not residual <= tolerance:
        raise NotConverged(
            f"the stationary law of {len(operator)} states is only known to a residual of {residual:.2g}, not "
            f"{tolerance:g}, after {iterations} products; allow a larger tolerance or a lower --level"
        )
    if method is Method.ITERATIVE:
        iterations += _require_known(operator, law, rest, states)
    return Stationary(law=law, residual=residual, method=method, iterations=iterations, recurrence=found)


def _several(found: Recurrence) -> str:
    """What to say of a chain with several closed classes."""
    sizes = sorted(map(len, found.classes), reverse=True)
    shown = ", ".join(map(str, sizes[:5])) + (", ..." if len(sizes) > 5 else "")
    return (
        f"the chain has {len(sizes)} closed classes, of {shown} states: the long run depends on the start, so there is "
        "no one stationary law; give lengths or arrivals that vary"
    )


def _cleaned(law: Floats, states: NDArray[np.integer]) -> Floats:
    """The law with what rounding left below 0 or outside the closed class set to 0, and with sum 1."""
    out = np.zeros_like(law)
    out[states] = np.maximum(law[states], 0.0)
    out /= out.sum()
    return out


# ---------------------------------------------------------------------------------------------- chains written out


@entry
def eliminate(matrix: Floats, law: Floats) -> None:
    """The stationary ``law`` of an irreducible stochastic ``matrix``, which is overwritten; no number is subtracted.

    Each probability has a relative error of about n times the rounding unit, however small it is (O'Cinneide 1993).
    """
    size = law.size
    for last in range(size - 1, 0, -1):
        total = 0.0
        for state in range(last):
            total += matrix[last, state]
        for state in range(last):
            share = matrix[state, last] / total
            matrix[state, last] = share
            if share > 0.0:
                for other in range(last):
                    matrix[state, other] += share * matrix[last, other]
    law[0] = 1.0
    whole = 1.0
    for last in range(1, size):
        weight = 0.0
        for state in range(last):
            weight += law[state] * matrix[state, last]
        law[last] = weight
        whole += weight
    law /= whole


def _small_law(matrix: Any, method: Method) -> Floats:
    """The law of an irreducible chain written out."""
    if method is Method.DIRECT:
        return direct_law(matrix)
    law = np.zeros(matrix.shape[0])
    eliminate(np.ascontiguousarray(matrix.toarray()), law)
    return law


# ------------------------------------------------------------------------------------------------ chains in factors


def _iterated(
    operator: Operator, states: NDArray[np.integer], tolerance: float, progress: Report | None
) -> tuple[Floats, int]:
    """The law by aggregation and GMRES in turn, and the products with P it took."""
    blocks = blocks_of(operator.space)
    law = np.zeros(len(operator))
    law[states] = 1 / states.size
    for _ in range(_FIRST):
        law = operator.push(law)
    rest = operator.push(law) - law
    iterations = _FIRST + 1
    for turn in range(CYCLES):
        coarse = aggregated(blocks, law)
        tried = _cleaned(operator.push(coarse.law()), states)
        left = operator.push(tried) - tried
        if turn == 0 or _size(left) < _WORSE * _size(rest):
            law, rest, coarse = tried, left, aggregated(blocks, tried)
        iterations += 2
        if progress is not None:
            progress(iterations, _size(rest))
        if _size(rest) <= tolerance / 2:
            break
        step, products = _corrected(operator, coarse, rest, tolerance)
        law = _cleaned(operator.push(law + step), states)
        rest = operator.push(law) - law
        iterations += products + 2
    return law, iterations


def _size(rest: Floats) -> float:
    """Sum of the absolute values."""
    return float(np.abs(rest).sum())


def _corrected(operator: Operator, coarse: Coarse, rest: Floats, tolerance: float) -> tuple[Floats, int]:
    """One cycle of GMRES for what is missing: (I - P' + u 1') x = ``rest``."""

    def apply(vector: Floats) -> Floats:
        return np.asarray(vector - operator.push(vector) + coarse.anchor * vector.sum(), dtype=np.float64)

    return cycle(apply, coarse.forward, rest, tolerance / (4 * np.sqrt(rest.size)))


# ------------------------------------------------------------------------------------------- what a residual may hide


def passages(operator: Operator, law: Floats, states: NDArray[np.integer]) -> tuple[Floats, int]:
    """Upper bounds on the expected number of steps to the likeliest state from each of a closed class.

    With v - P v >= d > 0 in all states but that one, s, Dynkin's formula gives E_i[T] <= (v_i - v_s)/d. Any v that does
    it proves the bound; one near h of (I - P) h = 1 - 1_s/pi_s, which is the passage itself, does it with d near 1.
    The equation is therefore solved but roughly, until d is 1/2, and ``law`` need not be exact.

    Parameters
    ----------
    operator : Operator
    law : float64 array of shape (n,)
        About the stationary one.
    states : int array
        The closed class.

    Returns
    -------
    float64 array of shape (n,), int
        The bounds, and the products with P it took.

    Raises
    ------
    NotConverged
        If there is no such v to be found.
    """
    coarse, likely = aggregated(blocks_of(operator.space), law), int(law.argmax())
    others = states[states != likely]
    cost = np.ones_like(law)
    cost[likely] -= 1 / law[likely]

    def apply(values: Floats) -> Floats:
        return np.asarray(values - operator.pull(values) + float(law @ values), dtype=np.float64)

    values = coarse.backward(cost)
    iterations = 0
    for _ in range(CYCLES):
        falls = values - operator.pull(values)
        rounding = 16 * ROUNDING * float(np.abs(values).max())
        slowest = float(falls[others].min(initial=1.0)) - rounding
        iterations += 1
        if slowest >= _FALL:
            return (values - values[likely]) / slowest, iterations
        step, products = cycle(apply, coarse.backward, cost - falls - float(law @ values), _FALL / 2)
        values += step
        iterations += products
    raise NotConverged(
        f"no bound on the passage of the chain of {len(operator)} states to its likeliest one was found in "
        f"{iterations} products: its parts hardly ever exchange, and its law is not known; give a lower --level"
    )


def _require_known(operator: Operator, law: Floats, rest: Floats, states: NDArray[np.integer]) -> int:
    """Bound the error of a law by its residual; returns the products with P it took.

    With r = law - law P and D the deviation matrix, law - pi = r D, and ||D_i - D_s||_1 <= 2 E_i[T] as a start in i is
    one in s from T on: the errors sum to 2 sum_i abs(r_i) E_i[T] at most.
    """
    steps, iterations = passages(operator, law, states)
    require_mixing(float(law[states] @ steps[states]))
    error = 2 * float(np.abs(rest[states]) @ steps[states])
    if not error <= LOST:
        raise NotConverged(
            f"the stationary law of {len(operator)} states has a residual of {_size(rest):.2g}, which the chain "
            f"forgets so slowly that the law is only known to {error:.2g}; give a lower --level"
        )
    return iterations
