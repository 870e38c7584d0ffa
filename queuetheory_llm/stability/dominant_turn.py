"""Turns of a fluid path whose ratio of size is no rational number: growth and accumulation by an invariant cone.

With three or more stations a turn has several degrees of freedom, and the turns approach the dominant eigenvector of
their linear map L without ever being exact multiples of one another. What is shown here is exact all the same. In the
terms of `self_similar`, let z_n = x_{n+1} - x_n be the changes from turn to turn, and F the linear map from the start
of a turn to all durations and states in it. The last turns tell the recurrence z_{n+d} = c_0 z_n + ... exactly, hence L
and F on the span of the changes, and a rational vector e near the dominant eigenvector. Take g_1 ... g_d around e.

* Growth. If L^k g_j is a nonnegative combination of the g_i, F(L^i g_j) >= 0 for i < k, and z_n is a nonnegative
  combination, then all later changes are states from which the turn is a path; C + C is in C, so the turns go on for
  ever. The total duration is multiplied in k turns by something between its least and largest factor on the g_j.
* Accumulation. The limit x* = x_n + (1 - L)^{-1} z_n, and its time, are rational. If every duration vanishes at x*, the
  L^k g_j are in the convex hull P of 0 and the g_i, x_n - x* is in P, and F(x* + L^i g_j) >= 0 for i < k, then all
  later turns start in x* + P or an image of it, where the turn is a path, and x_n tends to x*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import attrs
import numpy as np

from queuetheory_llm.exact.linear import Singular, solve_exactly
from queuetheory_llm.exact.numbers import Vector
from queuetheory_llm.stability.self_similar import Breakpoint, RepeatedLegs, same_leg

#: Numbers of turns with the same legs at which this is tried, and turns that are then looked at.
_TRIED_AT = (6, 9, 12, 18, 24, 36, 48)
_LOOKED_AT = 9
#: Degrees of freedom of a turn and turns taken together, at most.
_MOST_DEGREES = 4
_MOST_POWER = 32
_SPREADS = tuple(Fraction(1, 4**power) for power in range(1, 9))

#: Vectors that span a cone.
Cone = Sequence[Vector]


@attrs.frozen(kw_only=True)
class DominantTurn(RepeatedLegs):
    """A stretch whose legs are repeated for ever, without a common ratio; copies that grow have no apex.

    Attributes
    ----------
    factor : float
        Of durations, from each turn to the next, in the long run.
    low, high : float
        Bounds on it that are proved.
    """

    factor: float
    low: float
    high: float


def dominant_turn(points: Sequence[Breakpoint]) -> DominantTurn | None:
    """The turn that the last legs repeat, if it is proved to grow, or to shrink to a limit, for ever."""
    length = _period(points)
    if length is None or _repetitions(points, length, _TRIED_AT[-1] + 1) not in _TRIED_AT:
        return None
    turns = _Turns(points, length)
    if not turns.recurrence:
        return None
    return turns.growth() if turns.factor > 1 else turns.accumulation()


def _period(points: Sequence[Breakpoint]) -> int | None:
    """The shortest turn that the last legs run through often enough."""
    for length in range(2, (len(points) - 1) // _TRIED_AT[0] + 1):
        begin = points[-1 - length]
        joined = points[-1].rates == begin.rates and begin.closing is None
        if joined and _repetitions(points, length, _TRIED_AT[0]) == _TRIED_AT[0]:
            return length
    return None


def _repetitions(points: Sequence[Breakpoint], length: int, most: int) -> int:
    """How often the last ``length`` legs were run through in a row, counted up to ``most``."""
    leg, last = len(points) - 2, len(points) - 2 - length * (most - 1)
    while leg - length >= 0 and leg > last and same_leg(points, leg, leg - length):
        leg -= 1
    return (len(points) - 2 - leg) // length + 1


class _Turns:
    """The last turns of a path: their recurrence, and the linear functions of a turn in its terms.

    A vector of the space of changes is written in coordinates, as a combination of the first d changes.
    """

    def __init__(self, points: Sequence[Breakpoint], length: int) -> None:
        self.first, self.last = len(points) - 1 - length, len(points) - 1
        self.length = length
        self.end = points[-1]
        count = _repetitions(points, length, _LOOKED_AT)
        starts = range(len(points) - 1 - length * count, len(points) - 1, length)
        turns = [_functions(points[start : start + length + 1]) for start in starts]
        self.latest = turns[-1]
        self.changes = [_difference(after, before) for before, after in pairwise(turns)]
        self.recurrence = self._recurrence()
        roots = np.roots([1.0, *(-float(c) for c in reversed(self.recurrence))])
        self.factor = float(np.abs(roots).max(initial=0))

    def _recurrence(self) -> Vector:
        """c with z_{n+d} = c_0 z_n + ... + c_{d-1} z_{n+d-1} and the least d; empty if the turns do not show one."""
        for degree in range(1, min(_MOST_DEGREES, len(self.changes) - 1) + 1):
            basis, target = self.changes[:degree], self.changes[degree]
            durations = [change[: self.length] for change in basis]
            products = [{j: _dot(a, b) for j, b in enumerate(durations)} for a in durations]
            found = solve_exactly(products, [_dot(a, target[: self.length]) for a in durations])
            if not isinstance(found, Singular) and _combined(found, basis) == target:
                return found
        return ()

    def growth(self) -> DominantTurn | None:
        """The turn, if it is proved to grow for ever."""
        nothing = (Fraction(0),) * len(self.latest)
        change = self._coordinates()
        for cone in self._cones():
            share = _shares(cone, change)
            if share is None or min(share) < 0:
                continue
            power = self._invariant(cone, nothing, bounded=False)
            if power is not None and min(self._ratios(cone, power)) > 1:
                return self._turn(cone, power)
        return None

    def accumulation(self) -> DominantTurn | None:
        """The turn, if it is proved to shrink to a limit."""
        ahead = self._resolved(self._coordinates())  # of the last turn: the sum of all changes to come
        limit = _sum(self.latest, self._function(ahead))
        if any(limit[: self.length]) or min(limit) < 0:
            return None
        offset = tuple(-value for value in self._step(ahead))  # x_n - x* at the last breakpoint
        for cone in self._cones():
            share = _shares(cone, offset)
            if share is None or min(share) < 0:
                continue
            scaled = [tuple(sum(share) * value for value in each) for each in cone]
            power = self._invariant(scaled, limit, bounded=True)
            if power is not None:
                left = self._seconds(self._resolved(offset))
                apex = limit[self.length : self.length + len(self.end.state)]
                return attrs.evolve(self._turn(cone, power), apex_time=self.end.time + left, apex=apex)
        return None

    def _turn(self, cone: Cone, power: int) -> DominantTurn:
        ratios = self._ratios(cone, power)
        low, high = (float(ratio) ** (1 / power) for ratio in (min(ratios), max(ratios)))
        return DominantTurn(first=self.first, last=self.last, factor=self.factor, low=low, high=high)

    def _coordinates(self) -> Vector:
        """Of the change that follows the last one that was seen."""
        degree = len(self.recurrence)
        found: Vector = tuple(Fraction(i == 0) for i in range(degree))
        for _ in self.changes:
            found = self._step(found)
        return found

    def _step(self, coordinates: Vector) -> Vector:
        """L."""
        last = coordinates[-1]
        return tuple(a + last * c for a, c in zip((Fraction(0), *coordinates[:-1]), self.recurrence, strict=True))

    def _resolved(self, coordinates: Vector) -> Vector:
        """(1 - L)^{-1}."""
        degree = len(coordinates)
        columns = [self._step(tuple(Fraction(i == j) for i in range(degree))) for j in range(degree)]
        rows = [{j: (i == j) - columns[j][i] for j in range(degree)} for i in range(degree)]
        found = solve_exactly(rows, coordinates)
        assert not isinstance(found, Singular)  # no root is 1: all are below it in modulus
        return found

    def _function(self, coordinates: Vector) -> Vector:
        """F: durations of the legs, states at their starts, state at the end."""
        return _combined(coordinates, self.changes[: len(coordinates)])

    def _seconds(self, coordinates: Vector) -> Fraction:
        return sum(self._function(coordinates)[: self.length], Fraction(0))

    def _cones(self) -> Iterator[Cone]:
        """Vectors around the dominant eigenvector, in rational approximation, closer and closer to it.

        Where no positive root dominates there is no such eigenvector, and no power of L keeps what is given then.
        """
        degree = len(self.recurrence)
        quotient = [Fraction(1)]  # the characteristic polynomial over (t - factor), highest power first
        for c in self.recurrence[:0:-1]:
            quotient.append(Fraction(self.factor) * quotient[-1] - c)
        centre = tuple(reversed(quotient))
        size = self._seconds(centre)
        if not size:
            return
        centre = tuple(value / size for value in centre)
        sizes = [sum(map(abs, change[: self.length])) for change in self.changes[:degree]]
        for spread in _SPREADS:
            around = [tuple(spread / sizes[j] * (i == j) for i in range(degree)) for j in range(degree - 1)]
            around.append(tuple(-sum((each[i] for each in around), Fraction(0)) for i in range(degree)))
            yield [_sum(centre, each) for each in around]

    def _invariant(self, cone: Cone, base: Vector, *, bounded: bool) -> int | None:
        """k for which L^k maps the cone (if bounded: its hull with 0) into itself, with F + base >= 0 on the way."""
        images, power = cone, 0
        while power < _MOST_POWER:
            if any(min(_sum(base, self._function(image))) < 0 for image in images):
                return None
            images, power = [self._step(image) for image in images], power + 1
            shares = [_shares(cone, image) for image in images]
            if all(share is not None and min(share) >= 0 and (not bounded or sum(share) <= 1) for share in shares):
                return power
        return None

    def _ratios(self, cone: Cone, power: int) -> list[Fraction]:
        """By which the total duration of each vector of the cone is multiplied in ``power`` turns."""
        images = cone
        for _ in range(power):
            images = [self._step(image) for image in images]
        return [self._seconds(after) / self._seconds(before) for after, before in zip(images, cone, strict=True)]


def _functions(points: Sequence[Breakpoint]) -> Vector:
    """Durations of the legs of a turn, states at their starts, state at the end."""
    durations = [after.time - before.time for before, after in pairwise(points)]
    return (*durations, *(q for point in points for q in point.state))


def _shares(cone: Cone, vector: Vector) -> Vector | None:
    """The combination of the vectors of a cone that a vector is."""
    rows = [{j: each[i] for j, each in enumerate(cone)} for i in range(len(vector))]
    found = solve_exactly(rows, vector)
    return None if isinstance(found, Singular) else found


def _combined(coefficients: Vector, vectors: Sequence[Vector]) -> Vector:
    return tuple(_dot(coefficients, column) for column in zip(*vectors, strict=True))


def _dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True) if x and y), Fraction(0))


def _sum(a: Vector, b: Vector) -> Vector:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _difference(a: Vector, b: Vector) -> Vector:
    return tuple(x - y for x, y in zip(a, b, strict=True))
