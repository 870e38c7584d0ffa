"""Sparse linear equations x = b + A x, A >= 0, solved exactly by elimination, as long as that is not too much work.

I - A is then a nonsingular M-matrix exactly when every pivot is positive, in whatever order it is eliminated (Berman,
Plemmons 1994, chapter 6): exactly when the spectral radius of A is below 1. The solution is then the sum of A^n b.

A general solver would miss three things: the order of elimination that keeps thousands of equations sparse, a budget
(fractions grow without bound where cycles fill up), and the sign of the pivots. Systems that may be singular, or have
negative coefficients, are for `exact.linear`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush

from queuetheory_llm.exact.numbers import Vector

_FREE_BITS = 18  # products below 2^18 bit pairs cost what the bookkeeping around them costs

#: Entries of a row that are not zero: ((column, value), ...).
Row = Sequence[tuple[int, Fraction]]


class TooMuchWork(Exception):
    """Exact elimination is given up."""


class NotPositive(Exception):
    """A pivot of an M-matrix is not positive."""


class Work:
    """What is left of the work that exact arithmetic may take; by default there is no limit."""

    def __init__(self, left: float = math.inf) -> None:
        self.left = left

    def times(self, first: Fraction, second: Fraction) -> Fraction:
        """The product, paid by the sizes of what is multiplied and reduced."""
        self._pay(_bits(first) * _bits(second))
        return first * second

    def sum(self, start: Fraction, products: Iterable[tuple[Fraction, Fraction]]) -> Fraction:
        """``start`` and the products of pairs, paid likewise."""
        total = start
        for first, second in products:
            product = self.times(first, second)
            if total:
                self._pay(total.denominator.bit_length() * product.denominator.bit_length())
                product += total
            total = product
        return total

    def _pay(self, bits: int) -> None:
        self.left -= 1 + (bits >> _FREE_BITS)
        if self.left < 0:
            raise TooMuchWork


_NONE = Fraction(0)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def solve(
    rows: Sequence[Row],
    given: Vector,
    groups: Iterable[Sequence[int]] | None = None,
    work: Work | None = None,
) -> tuple[Fraction, ...]:
    """The solution x >= 0 of x = given + A x.

    Parameters
    ----------
    rows : sequence of Row, length n
        A, its entries >= 0: the routing of a network for what follows from a task (visits, work to come), its
        predecessors for what comes (rates).
    given : sequence of Fraction, length n
        Nonnegative.
    groups : iterable of sequence of int, optional
        Unknowns in groups none of which depends on a later one; by default they are one group.
    work : Work, optional
        What it may take; by default, whatever it takes.

    Raises
    ------
    TooMuchWork
    NotPositive
        Where the spectral radius of A is 1 or more.

    Examples
    --------
    Work to come w = m + P w: one second at the first class, half of whose tasks take two more at the second.

    >>> solve([((1, Fraction(1, 2)),), ()], [Fraction(1), Fraction(2)])
    (Fraction(2, 1), Fraction(2, 1))
    """
    x, work = list(given), work or Work()
    for group in [range(len(rows))] if groups is None else groups:
        inside = set(group)
        for k in group:
            x[k] = work.sum(x[k], ((share, x[other]) for other, share in rows[k] if other not in inside))
        table = {k: within(rows[k], inside) for k in group}
        for k, row in reversed(eliminate(table, x, work)):
            x[k] = work.sum(x[k], ((share, x[other]) for other, share in row.items()))
    return tuple(x)


def within(row: Row, inside: set[int]) -> dict[int, Fraction]:
    """The part of a row that stays in a component; a column that is named twice counts twice."""
    part: dict[int, Fraction] = {}
    for other, share in row:
        if other in inside:
            part[other] = part[other] + share if other in part else share
    return part


def eliminate(
    table: dict[int, dict[int, Fraction]], x: list[Fraction], work: Work
) -> list[tuple[int, dict[int, Fraction]]]:
    """Eliminate the unknowns of one component, fewest products first; their rows in terms of later ones, in order.

    ``x`` holds the given side and is changed along. Raises `NotPositive` at a pivot that is not positive.
    """
    users: dict[int, set[int]] = {k: set() for k in table}
    for k, row in table.items():
        for other in row:
            users[other].add(k)
    queue = [(len(table[k]) * len(users[k]), k) for k in table]
    heapify(queue)
    done: list[tuple[int, dict[int, Fraction]]] = []
    while queue:
        products, k = heappop(queue)
        if k not in table or products != len(table[k]) * len(users[k]):
            continue  # eliminated, or entered anew since
        row = table.pop(k)
        _normalise(k, row, x, work)
        for other in row:
            users[other].discard(k)
        users[k].discard(k)
        for user in users[k]:
            _substitute(k, row, user, table[user], x, work)
            for other in row:
                users[other].add(user)
        done.append((k, row))
        for each in {*row, *users[k]}:
            heappush(queue, (len(table[each]) * len(users[each]), each))
    return done


def _normalise(k: int, row: dict[int, Fraction], x: list[Fraction], work: Work) -> None:
    """Solve row k for x_k: what comes back to it directly is divided out."""
    back = row.pop(k, None)
    if back is None:
        return
    if back >= 1:
        raise NotPositive
    factor = 1 / (1 - back)
    x[k] = work.times(factor, x[k])
    for other in row:
        row[other] = work.times(factor, row[other])


def _substitute(
    k: int, row: dict[int, Fraction], user: int, target: dict[int, Fraction], x: list[Fraction], work: Work
) -> None:
    """Put row k, which is solved for x_k, into a row that uses it."""
    share = target.pop(k)
    x[user] = work.sum(x[user], [(share, x[k])])
    for other, through in row.items():
        target[other] = work.sum(target.get(other, _NONE), [(share, through)])
