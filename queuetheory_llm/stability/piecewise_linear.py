"""Piecewise-linear Lyapunov functions V(x) = max_j v_j.x, v_j >= 0 (Dai, Weiss 1996; Down, Meyn 1997).

A piece belongs to a station (then V proves stability under every non-idling policy) or to a class (then under the
priorities of the model). Call a piece empty where its station, or class, has no fluid. A piece that is not empty makes
its station busy (`lyapunov.Busy`), and the program asks that v_j.x then falls at a rate eps > 0. An empty piece need
not fall, but must not be needed: with W stochastic, without diagonal and irreducible, the cone condition

    v_jk <= sum_q W_jq v_qk    for every class k that is not of piece j

gives v_j.x <= sum_q W_jq v_q.x <= V where piece j is empty. If such a piece attains the maximum V, so does every q with
W_jq > 0. If all that attain it were empty, irreducibility would carry this to all pieces, all of them empty: x = 0. So
where x is not 0 a piece that is not empty attains the maximum; at a time at which V and all v_j.x are differentiable,
those that attain it have the derivative of V, and V' <= -eps. (V = 0 with x not 0 is excluded in the same way: every
piece then is at its minimum 0, and one that is not empty would have to fall.) The argument is the same for pieces of
stations and of classes: while class j has fluid, its station spends no effort below j.

With two stations the program is sharp (Bertsimas, Gamarnik, Tsitsiklis 1996: it decides stability under every
non-idling policy); with three or more, and for given priorities, a program without solution proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations
from math import gcd
from typing import TYPE_CHECKING, Literal

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.lyapunov import (
    GRID,
    Busy,
    DriftProgram,
    busy_classes,
    busy_stations,
    decay,
    reach,
    to_grid,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Pieces = Literal["stations", "classes"]

#: Up to so many pieces all Hamiltonian cycles are tried as W beside the uniform one.
ALL_CYCLES = 5
#: Up to so many, the cycles of constant step (0, n, 2n, ... modulo the pieces); beyond, the uniform W alone.
CIRCULANT_CYCLES = 12


@attrs.frozen
class Weights:
    """The matrix W of the cone condition: a Hamiltonian cycle of the pieces, or 1/(J-1) off the diagonal.

    Attributes
    ----------
    pieces : int
    cycle : tuple of int, or None
        The pieces in the order of the cycle: W_jq = 1 where q follows j. None: uniform.
    """

    pieces: int
    cycle: tuple[int, ...] | None = None

    def matrix(self) -> list[list[Fraction]]:
        """W, stochastic, zero on the diagonal, irreducible; no rows for a single piece, which has no condition."""
        if self.pieces == 1:
            return []
        if self.cycle is None:
            share = Fraction(1, self.pieces - 1)
            return [[share * (j != q) for q in range(self.pieces)] for j in range(self.pieces)]
        after = self._after()
        return [[Fraction(after[j] == q) for q in range(self.pieces)] for j in range(self.pieces)]

    def _after(self) -> dict[int, int]:
        assert self.cycle is not None
        return dict(zip(self.cycle, (*self.cycle[1:], self.cycle[0]), strict=True))

    def lift(self, column: list[int], own: int) -> None:
        """Raise entries of a column v_1k .. v_Jk until the cone condition holds exactly; ``own`` is the piece of k.

        Nothing bounds v_own,k by the condition: raising it mends the uniform case, and along the cycle a running
        maximum ends there.
        """
        if self.pieces == 1:
            return
        if self.cycle is None:  # J v_jk <= sum of the column
            others = sum(column) - column[own]
            most = max(value for j, value in enumerate(column) if j != own)
            column[own] = max(column[own], self.pieces * most - others)
            return
        after = self._after()
        here = after[own]
        while here != own:
            column[after[here]] = max(column[after[here]], column[here])
            here = after[here]

    def cone_rows(self, owner: Sequence[int], first: int) -> csr_array:
        """Rows A x <= 0 of the cone condition; v_jk is variable j*K + k, their sum over j is variable first + k."""
        from scipy.sparse import coo_array

        classes, pieces = len(owner), self.pieces
        piece, k = (each.ravel() for each in np.indices((pieces, classes)))
        bound = piece != np.asarray(owner)[k]
        piece, k = piece[bound], k[bound]
        row, one = np.arange(len(piece)), np.ones(len(piece))
        if self.cycle is not None:
            after = self._after()
            next_piece = np.array([after[j] for j in range(pieces)])[piece]
            cells = [(row, piece * classes + k, one), (row, next_piece * classes + k, -one)]
            width = first
        else:
            # The sums are variables of their own, or W would fill the matrix: v_jk J - sum_k <= 0, sum_k <= sum_j v_jk.
            total = len(row) + np.arange(classes)
            every, column = (each.ravel() for each in np.indices((pieces, classes)))
            cells = [
                (row, piece * classes + k, pieces * one),
                (row, first + k, -one),
                (total, first + np.arange(classes), np.ones(classes)),
                (total[column], every * classes + column, -np.ones(pieces * classes)),
            ]
            width = first + classes
        rows, columns, values = (np.concatenate(each) for each in zip(*cells, strict=True))
        return coo_array((values, (rows, columns)), shape=(int(rows.max()) + 1, width)).tocsr()


def weights(pieces: int) -> Iterator[Weights]:
    """The matrices W that are tried: uniform and Hamiltonian cycles; for two pieces both are the swap."""
    yield Weights(pieces)
    if 2 < pieces <= ALL_CYCLES:
        yield from (Weights(pieces, (0, *rest)) for rest in permutations(range(1, pieces)))
    elif ALL_CYCLES < pieces <= CIRCULANT_CYCLES:
        steps = (step for step in range(1, pieces) if gcd(step, pieces) == 1)
        yield from (Weights(pieces, tuple(step * n % pieces for n in range(pieces))) for step in steps)


@attrs.frozen(kw_only=True)
class PiecewiseLinear:
    """The function max_j v_j.x, exactly on its cone.

    Attributes
    ----------
    pieces : {"stations", "classes"}
    busy : tuple of Busy, length J
        What is known while a piece is not empty.
    v : tuple of J vectors of length K
    w : Weights
    """

    pieces: Pieces
    busy: tuple[Busy, ...]
    v: tuple[tuple[Fraction, ...], ...]
    w: Weights

    @property
    def kind(self) -> str:
        """What it is, for a person."""
        owner = {"stations": "station", "classes": "class"}[self.pieces]
        return f"piecewise-linear Lyapunov function, a piece for each {owner}"

    def reach(self, model: FluidModel) -> Fraction | None:
        """Factor on all arrival rates below which it proves stability; None where nothing arrives."""
        return reach(model, self.v, self.busy)

    def certify(self, model: FluidModel) -> Certificate | None:
        """The certificate, accepted by the checker; None where the function need not fall."""
        eps = decay(model, self.v, self.busy)
        if eps <= 0:
            return None
        proof = {
            "pieces": self.pieces,
            "v": [[plain(value) for value in row] for row in self.v],
            "w": [[plain(value) for value in row] for row in self.w.matrix()],
            "eps": plain(eps),
        }
        return certify("piecewise-linear", model.to_dict(), proof)


def piecewise_linear_function(model: FluidModel, w: Weights, *, pieces: Pieces) -> PiecewiseLinear | None:
    """The optimum of the program for one W, which need not fall; None where the solver fails.

    Parameters
    ----------
    model : FluidModel
        Without joins: siblings that wait for one another are no fluid of a single class.
    w : Weights
        See `weights`.
    pieces : {"stations", "classes"}
        A function for every non-idling policy, or for the priorities of the model.
    """
    if pieces == "stations":
        busy, owner = busy_stations(model), model.station
    else:
        busy, owner = busy_classes(model), tuple(range(len(model.classes)))
    entries = np.arange(len(busy) * len(owner)).reshape(len(busy), len(owner))
    program = DriftProgram(model=model, busy=busy, entries=entries, low=0.0)
    solution = program.solve(w.cone_rows(owner, program.eps + 1))
    if solution is None:
        return None
    return PiecewiseLinear(pieces=pieces, busy=busy, v=_onto_cone(solution[entries], owner, w), w=w)


def _onto_cone(v: Floats, owner: Sequence[int], w: Weights) -> tuple[tuple[Fraction, ...], ...]:
    columns = []
    for k, own in enumerate(owner):
        column = to_grid(np.maximum(v[:, k], 0.0))
        w.lift(column, own)
        columns.append(column)
    one = max(GRID, *(max(column) for column in columns))  # the lift may have passed 1
    return tuple(tuple(Fraction(column[j], one) for column in columns) for j in range(len(v)))
