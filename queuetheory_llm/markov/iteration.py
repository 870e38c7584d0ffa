"""The equations of a large chain by GMRES in short cycles, preconditioned on the right by the chain of blocks.

Saad, Iterative methods for sparse linear systems, 2nd ed., section 9.3.2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.direct import ROUNDING

Map = Callable[[Floats], Floats]

#: Called now and then with the number of products with P and the residual.
Report = Callable[[int, float], None]

CYCLES = 60  # after so many a residual has come down or never will
_BASIS = 25 * 10**6  # entries of all vectors of a basis
_STEPS = range(6, 31)  # of one cycle


def steps_for(states: int) -> int:
    """Steps of one cycle of GMRES, by what the basis takes."""
    return min(max(_BASIS // states, _STEPS[0]), _STEPS[-1])


def cycle(apply: Map, precondition: Map, rest: Floats, goal: float) -> tuple[Floats, int]:
    """One cycle of GMRES for ``apply(x) = rest``, from x = 0.

    Parameters
    ----------
    apply, precondition : callable
        Linear maps; the second is near the inverse of the first.
    rest : float64 array of shape (n,)
    goal : float
        Euclidean norm of what is left at which to stop early.

    Returns
    -------
    array of shape (n,), int
        x, and how often ``apply`` was called.

    Raises
    ------
    NotConverged
        If the preconditioner is singular to all digits.
    """
    from scipy.sparse.linalg import LinearOperator, gmres

    products = 0

    def applied(vector: Floats) -> Floats:
        nonlocal products
        near = precondition(vector)
        if not ROUNDING * np.abs(near).max() <= np.abs(vector).max():
            raise NotConverged(
                f"the equations of {rest.size} states are singular to all digits: parts of the chain hardly ever "
                "exchange"
            )
        products += 1
        return apply(near)

    # Preconditioned by composition: the routine itself would do it on the left, where its residual is another one.
    system = LinearOperator((rest.size, rest.size), matvec=applied, dtype=np.float64)
    found, _ = gmres(system, rest, rtol=0.0, atol=goal, restart=steps_for(rest.size), maxiter=1)
    return precondition(found), products
