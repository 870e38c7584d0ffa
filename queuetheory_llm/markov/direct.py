"""The equations of a chain with one closed class, by one sparse factorisation of I - P without a likely state.

What is left is an M-matrix. With its diagonal taken as the sum of the other chances, and pivots on it, the law comes
out of positive numbers alone but for the diagonal, so that small probabilities keep most of their digits.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.markov.space import Floats

_SETTLE = 5  # batches after which a state counts as likely


@attrs.frozen(eq=False)
class Factorised:
    """I - P, factorised.

    Attributes
    ----------
    law : float64 array of shape (n,)
        The stationary law.
    slowest : float
        Largest expected number of steps to the likely state: errors of the equations grow by up to about this factor.
    """

    law: Floats
    slowest: float
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
    """Factorise the equations of a sparse stochastic ``matrix``."""
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import splu

    back = csr_array(matrix.T)
    size = back.shape[0]
    law = np.full(size, 1 / size)
    for _ in range(_SETTLE):
        law = back @ law
    likely = int(law.argmax())
    others = np.delete(np.arange(size), likely)
    law[:] = 0.0
    law[likely] = 1.0
    solver, slowest = None, 0.0
    if size > 1:
        leaves = back - diags_array(back.diagonal(), format="csr")
        system = (diags_array(np.asarray(leaves.sum(axis=0)), format="csr") - leaves)[others][:, others].tocsc()
        options = {"SymmetricMode": True}
        solver = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
        law[others] = solver.solve(back[others][:, [likely]].toarray().ravel())
        slowest = float(np.abs(solver.solve(np.ones(size - 1), "T")).max())
    return Factorised(law=law / law.sum(), slowest=slowest, others=others, solver=solver)
