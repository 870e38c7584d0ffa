"""Restarted GMRES with the preconditioner on the right, for vectors so long that each of them counts.

Saad, Iterative methods for sparse linear systems, 2nd ed., section 9.3.2. The loops over the basis are compiled: they
read it in one go, and are not shared among threads, which costs more than it gains where cores are shared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from queuetheory_llm.kept import F, kept
from queuetheory_llm.markov.space import Floats

Map = Callable[[Floats], Floats]

_STRIP = 2048  # entries of a vector that stay in the cache while the basis is read
_LOST = 0.05  # of the norm: where less is left after projection, it is done a second time


def _fast(function: F) -> F:
    """Compile a loop of sums, in any order."""
    return kept(function, error_model="numpy", fastmath=True)


@_fast
def _norm(vector: Floats) -> float:
    """Euclidean norm."""
    total = 0.0
    for entry in vector:
        total += entry * entry
    return float(np.sqrt(total))


@_fast
def _project(basis: Floats, size: int, vector: Floats, out: Floats) -> None:
    """Take from ``vector`` its parts along the first ``size`` vectors; they are added to ``out``."""
    parts = np.zeros(size)
    for begin in range(0, vector.size, _STRIP):
        end = min(begin + _STRIP, vector.size)
        for each in range(size):
            total = 0.0
            for entry in range(begin, end):
                total += basis[each, entry] * vector[entry]
            parts[each] += total
    for begin in range(0, vector.size, _STRIP):
        end = min(begin + _STRIP, vector.size)
        for each in range(size):
            part = parts[each]
            for entry in range(begin, end):
                vector[entry] -= part * basis[each, entry]
    out[:size] += parts


@_fast
def _combine(basis: Floats, weights: Floats) -> Floats:
    """The sum of the first vectors with ``weights``."""
    out = np.zeros(basis.shape[1])
    for begin in range(0, out.size, _STRIP):
        end = min(begin + _STRIP, out.size)
        for each in range(weights.size):
            for entry in range(begin, end):
                out[entry] += weights[each] * basis[each, entry]
    return out


def cycle(apply: Map, precondition: Map, start: Floats, basis: Floats, goal: float) -> tuple[Floats, int]:
    """One cycle of GMRES for ``apply(y) = start``, from y = 0.

    Parameters
    ----------
    apply, precondition : callable
        Linear maps; the second is near the inverse of the first.
    start : float64 array of shape (n,)
    basis : float64 array of shape (k + 1, n)
        Room for k steps; its content does not matter.
    goal : float
        Euclidean norm of the rest at which to stop early.

    Returns
    -------
    array, int
        y, and the number of steps.
    """
    size = _norm(start)
    if size == 0.0:
        return np.zeros_like(start), 0
    most = len(basis) - 1
    matrix = np.zeros((most + 1, most))
    basis[0] = start / size
    step = 0
    weights: Floats = np.zeros(0)
    while step < most:
        vector = apply(precondition(basis[step]))
        before = _norm(vector)
        if not np.isfinite(before):  # the preconditioner is singular to all digits: what there is must do
            break
        _project(basis, step + 1, vector, matrix[:, step])
        left = _norm(vector)
        if left < _LOST * before:
            _project(basis, step + 1, vector, matrix[:, step])
            left = _norm(vector)
        matrix[step + 1, step] = left
        step += 1
        right = np.zeros(step + 1)
        right[0] = size
        weights = np.asarray(np.linalg.lstsq(matrix[: step + 1, :step], right, rcond=None)[0], dtype=np.float64)
        rest = float(np.linalg.norm(right - matrix[: step + 1, :step] @ weights))
        if rest <= goal or left <= 1e-14 * before:
            break
        basis[step] = vector / left
    return precondition(_combine(basis, weights)) if weights.size else np.zeros_like(start), step
