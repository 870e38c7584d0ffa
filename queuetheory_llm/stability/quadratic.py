"""Quadratic Lyapunov functions V(x) = x'Qx, Q symmetric and copositive, of the fluid model (Kumar, Meyn 1995).

Along a path V/2 changes at the rate sum_j x_j (Q x')_j. Where class j has fluid its station is busy with classes that
are not below j, so that (Q x')_j is at most the rate of the functional Q_j (`lyapunov`); the programs ask that it be
-eps or less for every j. Then V' <= -2 eps (sum of x), and V, of the order of the square of that sum, is 0 after a
finite time. Q must be copositive (x'Qx >= 0 for x >= 0), or V could fall for ever and "prove" overloaded networks
stable. Two kinds are: entries q >= 0, a linear program; and Q = S + N with S positive semidefinite and N >= 0, a
semidefinite one, which contains the former. Both are only sufficient.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Matrix, Vector, plain
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.lyapunov import (
    GRID,
    Busy,
    DriftProgram,
    busy_classes,
    decay,
    reach,
    to_grid,
)

QuadraticForm = Literal["nonnegative", "copositive"]

#: Entries of Q stay so far below 1 in the semidefinite program that no rounding takes them past it.
ROOM = 1e-6


@attrs.frozen(kw_only=True)
class Quadratic:
    """The function x'Qx, with the numbers that show Q to be copositive.

    Attributes
    ----------
    busy : tuple of Busy, length K
    q : K x K
    proof : mapping
        The form of Q in plain values, without eps.
    """

    busy: tuple[Busy, ...]
    q: Matrix
    proof: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What it is, for a person."""
        return f"{'copositive ' if self.proof['q'] is None else ''}quadratic Lyapunov function"

    def reach(self, model: FluidModel) -> Fraction | None:
        """Factor on all arrival rates below which it proves stability; None where nothing arrives."""
        return reach(model, self.q, self.busy)

    def certify(self, model: FluidModel) -> Certificate | None:
        """The certificate, accepted by the checker; None where the function need not fall."""
        eps = decay(model, self.q, self.busy)
        if eps <= 0:
            return None
        return certify("quadratic", model.to_dict(), {**self.proof, "eps": plain(eps)})


def quadratic_function(model: FluidModel, *, form: QuadraticForm) -> Quadratic | None:
    """The optimum of the program under the priorities of the model; it need not fall. None where a solver fails.

    Parameters
    ----------
    model : FluidModel
        Without joins: siblings that wait for one another are no fluid of a single class.
    form : {"nonnegative", "copositive"}
        q >= 0 by linear programming (HiGHS), or Q = S + N by semidefinite programming (CLARABEL).

    Raises
    ------
    InvalidInput
        If the form is not known.
    """
    if form == "nonnegative":
        return _nonnegative(model)
    if form == "copositive":
        return _copositive(model)
    raise InvalidInput(f"form: {form!r} is not known; write nonnegative or copositive")


def _program(model: FluidModel) -> DriftProgram:
    size = len(model.classes)
    entries = np.zeros((size, size), dtype=np.int64)
    upper = np.triu_indices(size)
    entries[upper] = np.arange(len(upper[0]))
    return DriftProgram(model=model, busy=busy_classes(model), entries=np.maximum(entries, entries.T), low=0.0)


def _nonnegative(model: FluidModel) -> Quadratic | None:
    program = _program(model)
    solution = program.solve()
    if solution is None:
        return None
    values = [Fraction(value, GRID) for value in to_grid(np.clip(solution, 0.0, 1.0))]
    q = tuple(tuple(values[entry] for entry in row) for row in program.entries)
    return Quadratic(busy=tuple(program.busy), q=q, proof={"q": _table(q), "psd": None, "nonnegative": None})


def _copositive(model: FluidModel) -> Quadratic | None:
    program = _program(model)
    solved = _semidefinite(program)
    if solved is None:
        return None
    psd, nonnegative = solved
    lower, diagonal = _factors(psd)
    n = _rounded(np.maximum(nonnegative, 0.0))
    size = range(len(diagonal))
    q = tuple(
        tuple(n[i][j] + sum((lower[i][m] * diagonal[m] * lower[j][m] for m in size), Fraction(0)) for j in size)
        for i in size
    )
    if any(abs(entry) > 1 for row in q for entry in row):
        return None
    proof = {
        "q": None,
        "psd": {"l": _table(lower), "d": [plain(entry) for entry in diagonal]},
        "nonnegative": _table(n),
    }
    return Quadratic(busy=tuple(program.busy), q=q, proof=proof)


def _semidefinite(program: DriftProgram) -> tuple[Floats, Floats] | None:
    """S and N in floating point; None where CLARABEL finds no optimum."""
    import cvxpy as cp

    size, stations = len(program.model.classes), len(program.model.stations)
    psd = cp.Variable((size, size), PSD=True)
    nonnegative = cp.Variable((size, size), symmetric=True)
    rates = cp.Variable((size, stations))
    eps = cp.Variable()
    q = psd + nonnegative
    free = np.zeros((size, stations), dtype=bool)
    free[np.arange(size), [busy.station for busy in program.busy]] = True
    row, column = np.triu_indices(size)
    x = cp.hstack([q[row, column], cp.vec(rates, order="C"), cp.reshape(eps, (1,), order="C")])
    constraints = [
        program.drift_rows() @ x <= 0,
        nonnegative >= 0,
        cp.abs(q) <= 1 - ROOM,
        rates[~free] >= 0,
    ]
    problem = cp.Problem(cp.Maximize(eps), constraints)
    try:
        with warnings.catch_warnings():  # an inaccurate solution will do: what counts is computed from it exactly
            warnings.simplefilter("ignore")
            problem.solve(solver=cp.CLARABEL)
    except cp.SolverError:
        return None
    if psd.value is None or nonnegative.value is None:
        return None
    return np.asarray(psd.value, dtype=float), np.asarray(nonnegative.value, dtype=float)


def _factors(psd: Floats) -> tuple[Matrix, Vector]:
    """L and d, L unit lower triangular and d >= 0, with L diag(d) L' near a semidefinite matrix."""
    values, vectors = np.linalg.eigh((psd + psd.T) / 2)
    upper = np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T, mode="r")  # S = R'R
    pivots = np.diagonal(upper)
    scale = np.where(pivots == 0.0, 1.0, pivots)
    lower = np.tril((upper / scale[:, None]).T, -1)
    size = len(pivots)
    exact = tuple(
        tuple(Fraction(i == j) if j >= i else Fraction(round(lower[i, j] * GRID), GRID) for j in range(size))
        for i in range(size)
    )
    return exact, tuple(Fraction(entry, GRID) for entry in to_grid(pivots**2))


def _rounded(values: Floats) -> Matrix:
    """A symmetric matrix on the grid."""
    upper = [to_grid(row) for row in (values + values.T) / 2]
    return tuple(
        tuple(Fraction(upper[min(i, j)][max(i, j)], GRID) for j in range(len(upper))) for i in range(len(upper))
    )


def _table(rows: Matrix) -> list[list[int | str]]:
    return [[plain(entry) for entry in row] for row in rows]
