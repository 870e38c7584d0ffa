"""The equations of a chain with one closed class, by one sparse factorisation of I - P without a likely state.

What is left is an M-matrix. With its diagonal taken as the sum of the other chances, and pivots on it, the law comes
out of positive numbers alone but for the diagonal, so that small probabilities keep most of their digits.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import NotConverged

ROUNDING = float(np.finfo(np.float64).eps)
DENSE = 800  # states up to which elimination without subtractions is used
LOST = 1e-6  # the largest error by rounding that a law may have
_SETTLE = 30  # steps before the first guess at a likely state
_CHOICES = 5  # of that state, each from the law found with the one before
_LIKELY = 1e-3  # times the largest probability


@attrs.frozen(eq=False)
class Factorised:
    """I - P, factorised.

    Attributes
    ----------
    law : float64 array of shape (n,)
        The stationary law.
    passage : float
        Expected number of steps to a likely state from a start by the law: what rounding in the equations grows by.
    longest : float
        The largest from any state; infinite where rounding has made one negative.
    """

    law: Floats
    passage: float
    longest: float
    _others: NDArray[np.integer]
    _solver: Any

    def forward(self, rest: Floats, anchor: Floats) -> Floats:
        """The solution x of x - P'x + u (1'x) = ``rest``, u a probability vector ``anchor``."""
        whole = float(rest.sum())
        out = np.zeros_like(rest)
        if self._others.size:
            out[self._others] = self._solver.solve((rest - whole * anchor)[self._others])
        return np.asarray(out + (whole - out.sum()) * self.law, dtype=np.float64)

    def backward(self, rest: Floats, anchor: Floats) -> Floats:
        """The solution h of h - P h + 1 (u'h) = ``rest``."""
        mean = float(self.law @ rest)
        out = np.zeros_like(rest)
        if self._others.size:
            out[self._others] = self._solver.solve((rest - mean)[self._others], "T")
        return np.asarray(out + (mean - anchor @ out), dtype=np.float64)


def factorised(matrix: Any) -> Factorised:
    """Factorise the equations of a sparse stochastic ``matrix``.

    Raises
    ------
    NotConverged
        If they are singular to all digits.
    """
    from scipy.sparse import csr_array, diags_array

    back = csr_array(matrix.T)
    size = back.shape[0]
    law = np.full(size, 1 / size)
    for _ in range(_SETTLE):
        law = back @ law
    leaves = back - diags_array(back.diagonal(), format="csr")
    system = csr_array(diags_array(np.asarray(leaves.sum(axis=0)), format="csr") - leaves)
    for _ in range(_CHOICES):
        likely = int(law.argmax())
        found = _without(system, likely)
        law = np.abs(found.law)
        if law[likely] >= _LIKELY * law.max():
            break
    return found


def _without(system: Any, state: int) -> Factorised:
    """Factorise I - P' without one state, which is given the weight 1."""
    from scipy.sparse.linalg import splu

    size = system.shape[0]
    others = np.delete(np.arange(size), state)
    law = np.ones(size)
    if size == 1:
        return Factorised(law=law, passage=0.0, longest=0.0, others=others, solver=None)
    try:
        solver = splu(
            system[others][:, others].tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    except RuntimeError:  # a pivot was lost in rounding
        raise NotConverged(
            f"the equations of a chain of {size} states or blocks are singular to all digits: its parts hardly ever "
            "exchange"
        ) from None
    law[others] = solver.solve(-system[others][:, [state]].toarray().ravel())
    law /= law.sum()
    steps = solver.solve(np.ones(size - 1), "T")
    return Factorised(
        law=law,
        passage=float(np.abs(law[others]) @ np.abs(steps)),
        longest=float(steps.max()) if steps.min() > 0 else math.inf,
        others=others,
        solver=solver,
    )


def direct_law(matrix: Any) -> Floats:
    """The stationary law of an irreducible sparse stochastic ``matrix``.

    Raises
    ------
    NotConverged
        If rounding decides it.
    """
    chain = factorised(matrix)
    require_mixing(max(chain.passage, LOST * chain.longest))
    return chain.law


def require_mixing(passage: float) -> None:
    """A chain that hardly ever leaves some states has no law in floating point, whatever the residual.

    ``passage``: steps to a likely state, expected by the law. From states that have hardly any weight there may be
    more, as long as they are not so many that their number, and with it the weight, is rounding.
    """
    if not ROUNDING * passage <= LOST:
        raise NotConverged(
            f"the chain takes about {passage:.2g} batches to come back to the likely states: its parts hardly ever "
            f"exchange, and rounding decides between them; only elimination without subtractions (up to {DENSE} states "
            "or so) would tell"
        )
