"""The stationary law of a chain: without subtractions when it is small, directly or by iteration when it is large."""

from __future__ import annotations

from enum import Enum
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.markov.aggregation import Coarse, blocks_of, coarse
from queuetheory_llm.markov.classes import recurrence
from queuetheory_llm.markov.components import Recurrence
from queuetheory_llm.markov.direct import DENSE, direct_law, require_mixing
from queuetheory_llm.markov.iteration import CYCLES, Report, cycle
from queuetheory_llm.markov.operator import Operator, entry
from queuetheory_llm.markov.space import Floats

DIRECT = (
    1_200_000  # transitions up to which I - P is factorised: a second where few lead out of a state, else up to six
)
_WORSE = 3.0  # times the residual: an aggregation may raise it, for it mends what is slow, but no more than this
_SETTLE = 5  # batches before the first aggregation


class Method(Enum):
    """How the equations of a chain are solved; the value is the word used in JSON."""

    GTH = "gth"
    DIRECT = "direct"
    ITERATIVE = "iterative"

    @property
    def meaning(self) -> str:
        """One sentence for a person."""
        return _MEANING[self]


_MEANING = {
    Method.GTH: "elimination without subtractions (Grassmann, Taksar, Heyman 1985): every probability has its digits",
    Method.DIRECT: "sparse factorisation of I - P",
    Method.ITERATIVE: "aggregation over room and known requests (Koury, McAllister, Stewart 1984) within GMRES",
}


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
    return Method.DIRECT if transitions <= DIRECT else Method.ITERATIVE


def stationary(
    operator: Operator, *, method: Method | None = None, tolerance: float = 1e-12, progress: Report | None = None
) -> Stationary:
    """The stationary law of a chain.

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
        If the residual does not come down to ``tolerance``.
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
    rest = _size(law - operator.push(law))
    if not rest <= tolerance:
        raise NotConverged(
            f"the stationary law of {len(operator)} states is only known to a residual of {rest:.2g}, not "
            f"{tolerance:g}, after {iterations} products; allow a larger tolerance or a lower --level"
        )
    return Stationary(law=law, residual=rest, method=method, iterations=iterations, recurrence=found)


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
    for _ in range(_SETTLE):
        law = operator.push(law)
    rest = operator.push(law) - law
    iterations, passage = _SETTLE + 1, 0.0
    for turn in range(CYCLES):
        level = coarse(blocks, law, law)
        tried = _cleaned(operator.push(level.law()), states)
        left = operator.push(tried) - tried
        if turn == 0 or _size(left) < _WORSE * _size(rest):
            law, rest, level = tried, left, coarse(blocks, tried, tried)
        iterations, passage = iterations + 2, level.passage
        if progress is not None:
            progress(iterations, _size(rest))
        if _size(rest) <= tolerance / 2:
            break
        step, products = _corrected(operator, level, rest, tolerance)
        law = _cleaned(operator.push(law + step), states)
        rest = operator.push(law) - law
        iterations += products + 2
    require_mixing(passage)
    return law, iterations


def _size(rest: Floats) -> float:
    """Sum of the absolute values."""
    return float(np.abs(rest).sum())


def _corrected(operator: Operator, level: Coarse, rest: Floats, tolerance: float) -> tuple[Floats, int]:
    """One cycle of GMRES for what is missing: (I - P' + u 1') x = ``rest``."""

    def apply(vector: Floats) -> Floats:
        return np.asarray(vector - operator.push(vector) + level.anchor * vector.sum(), dtype=np.float64)

    return cycle(apply, level.forward, rest, tolerance / (4 * np.sqrt(rest.size)))
