"""Exact sparse linear systems of any kind, by sympy's domain matrices.

Some have no solution or many, and the answer says which: choices of what a fluid path may do, tests whether vectors
span another. Equations x = b + A x with A >= 0 (rates, visits, work to come) are for `exact.elimination`, which keeps
the sparsity of thousands of unknowns, stops at a budget of work, and shows whether the spectral radius is below 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from fractions import Fraction
from typing import Any

from queuetheory_llm.exact.numbers import Vector

#: One equation: the coefficient of each unknown that it holds.
Equation = Mapping[int, Fraction]


class Singular(Enum):
    """Why a square system has no one solution; the value is a sentence."""

    NONE = "the equations contradict one another"
    MANY = "the equations leave an unknown free"


def solve_exactly(equations: Sequence[Equation], right: Vector) -> tuple[Fraction, ...] | Singular:
    """Solve n equations for n unknowns in rational arithmetic.

    Parameters
    ----------
    equations : sequence of mapping, length n
        Row i as {unknown: coefficient}; what is left out is 0.
    right : sequence of Fraction, length n

    Examples
    --------
    >>> solve_exactly([{0: Fraction(2), 1: Fraction(1)}, {1: Fraction(3)}], [Fraction(1), Fraction(1)])
    (Fraction(1, 3), Fraction(1, 3))
    >>> solve_exactly([{0: Fraction(0)}], [Fraction(1)])
    <Singular.NONE: 'the equations contradict one another'>
    """
    from sympy import QQ
    from sympy.polys.matrices import DomainMatrix
    from sympy.polys.matrices.exceptions import DMNonInvertibleMatrixError

    size = len(equations)
    if not size:
        return ()
    rows = {i: {j: _rational(QQ, value) for j, value in row.items() if value} for i, row in enumerate(equations)}
    column = {i: {0: _rational(QQ, value)} for i, value in enumerate(right) if value}
    matrix = DomainMatrix({i: row for i, row in rows.items() if row}, (size, size), QQ)
    vector = DomainMatrix(column, (size, 1), QQ)
    try:
        numerators, denominator = matrix.solve_den(vector)
    except DMNonInvertibleMatrixError:
        _, pivots = matrix.hstack(vector).rref()
        return Singular.NONE if size in pivots else Singular.MANY
    return tuple(_fraction(QQ.quo(row[0], denominator)) for row in numerators.to_list())


def solve_system(equations: Sequence[Equation], right: Vector, unknowns: int) -> tuple[Fraction, ...] | Singular:
    """Solve any number of equations for ``unknowns`` unknowns in rational arithmetic; see `solve_exactly`.

    Examples
    --------
    >>> solve_system([{0: Fraction(2)}, {0: Fraction(4)}], [Fraction(1), Fraction(2)], 1)
    (Fraction(1, 2),)
    """
    from sympy import QQ
    from sympy.polys.matrices import DomainMatrix

    rows = [{**row, unknowns: value} for row, value in zip(equations, right, strict=True)]
    filled = {i: {j: _rational(QQ, value) for j, value in row.items() if value} for i, row in enumerate(rows)}
    shape = (len(rows), unknowns + 1)
    reduced, pivots = DomainMatrix({i: row for i, row in filled.items() if row}, shape, QQ).rref()
    if unknowns in pivots:
        return Singular.NONE
    if len(pivots) < unknowns:
        return Singular.MANY
    return tuple(_fraction(row[unknowns]) for row in reduced.to_list()[:unknowns])


def _rational(field: Any, value: Fraction) -> Any:
    return field(value.numerator, value.denominator)


def _fraction(value: Any) -> Fraction:
    return Fraction(int(value.numerator), int(value.denominator))
