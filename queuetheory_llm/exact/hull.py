"""Down-closed convex polygons in the positive quadrant, in exact arithmetic.

Points come as integer triples (x, y, t), t > 0, that stand for (x/t, y/t): rates of a batch of x and y tokens that
lasts t. Orientation is then the sign of a 3 x 3 integer determinant, and no fraction is ever reduced on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import attrs

Triple = tuple[int, int, int]
Point = tuple[Fraction, Fraction]


def upper_right(points: Sequence[Triple]) -> list[int]:
    """Extreme points of the upper right boundary of the convex hull.

    Parameters
    ----------
    points : sequence of (x, y, t), integers, t > 0

    Returns
    -------
    list of int
        Indices into ``points`` by decreasing x/t, from the largest x/t to the largest y/t. No three are collinear,
        and of equal points the last one given is kept.
    """
    chain: list[int] = []
    for index in _undominated(points):
        while len(chain) > 1 and _turn(points[chain[-2]], points[chain[-1]], points[index]) <= 0:
            chain.pop()
        chain.append(index)
    return chain


def lower_left(points: Sequence[Triple]) -> list[int]:
    """Extreme points of the lower left boundary: where some x and y weights, not negative, are least.

    As `upper_right`, by increasing x/t.
    """
    return upper_right([(-x, -y, t) for x, y, t in points])


def _undominated(points: Sequence[Triple]) -> list[int]:
    """Indices of the Pareto maxima by decreasing x/t.

    Two different fractions with denominators below 2^L are at least 2^-2L apart, so floor(2^(2L+1) x/t) orders
    them exactly, as integers.
    """
    shift = 2 * max((t for _, _, t in points), default=1).bit_length() + 1
    ranked = [((x << shift) // t, (y << shift) // t, index) for index, (x, y, t) in enumerate(points)]
    ranked.sort(reverse=True)
    kept: list[int] = []
    highest = None
    for _, height, index in ranked:
        if highest is None or height > highest:
            kept.append(index)
            highest = height
    return kept


def _turn(p: Triple, q: Triple, r: Triple) -> int:
    """Positive when p, q, r turn left: the determinant of the three homogeneous points."""
    return p[0] * (q[1] * r[2] - q[2] * r[1]) - p[1] * (q[0] * r[2] - q[2] * r[0]) + p[2] * (q[0] * r[1] - q[1] * r[0])


@attrs.frozen
class Face:
    """The half plane ``prefill*x + decode*y <= bound`` of an edge, all three non-negative.

    ``ends`` are the indices of the polygon's corners on the edge; both are the same corner on a face parallel to an
    axis, which holds because the polygon is down-closed.
    """

    prefill: Fraction
    decode: Fraction
    bound: Fraction
    ends: tuple[int, int]

    def value(self, point: Point) -> Fraction:
        """The left side at ``point``."""
        return self.prefill * point[0] + self.decode * point[1]


@attrs.frozen
class DownClosedPolygon:
    """All (x, y) >= 0 that some convex combination of the corners dominates.

    Attributes
    ----------
    corners : tuple of (Fraction, Fraction)
        Upper right extreme points by decreasing x and increasing y, as `upper_right` gives them; at least one.
    """

    corners: tuple[Point, ...]

    @property
    def faces(self) -> tuple[Face, ...]:
        """The faces off the axes, from the x axis to the y axis."""
        zero, one = Fraction(0), Fraction(1)
        found = []
        single = len(self.corners) == 1
        if self.corners[0][1] > 0 or single:
            found.append(Face(one, zero, self.corners[0][0], (0, 0)))
        for index, ((x, y), (u, v)) in enumerate(zip(self.corners, self.corners[1:], strict=False)):
            found.append(Face(v - y, x - u, (v - y) * x + (x - u) * y, (index, index + 1)))
        last = len(self.corners) - 1
        if self.corners[last][0] > 0 or single:
            found.append(Face(zero, one, self.corners[last][1], (last, last)))
        return tuple(found)

    @property
    def extreme_points(self) -> tuple[tuple[Point, int | None], ...]:
        """Every extreme point with the index of a corner that dominates it; the origin first, dominated by none."""
        zero = Fraction(0)
        points: list[tuple[Point, int | None]] = [((zero, zero), None)]
        first, last = self.corners[0], self.corners[-1]
        if first[1] > 0 and first[0] > 0:
            points.append(((first[0], zero), 0))
        points.extend((corner, index) for index, corner in enumerate(self.corners))
        if last[0] > 0 and last[1] > 0:
            points.append(((zero, last[1]), len(self.corners) - 1))
        return tuple(points)

    def binding_face(self, point: Point) -> tuple[Face, Fraction]:
        """The face a point presses on hardest, and its load there: value/bound, infinite loads as an error.

        The load is 1/(largest s with s*point inside): below 1 inside, 1 on the boundary, above 1 outside.

        Raises
        ------
        ZeroDivisionError
            If the polygon has no extent in the point's direction.
        """
        return max(((face, face.value(point) / face.bound) for face in self.faces if face.value(point)), key=_load)

    def weights(self, point: Point) -> dict[int, Fraction]:
        """Weights of at most two corners whose combination dominates ``point``; they sum to its load."""
        if not any(point):
            return {}
        face, load = self.binding_face(point)
        first, second = face.ends
        if first == second:
            return {first: load}
        (x, y), (u, v) = self.corners[first], self.corners[second]
        # Where the ray through the point crosses the edge: the share of the second corner.
        share = (y * point[0] - x * point[1]) / ((u - x) * point[1] - (v - y) * point[0])
        return {index: load * w for index, w in ((first, 1 - share), (second, share)) if w}


def _load(pair: tuple[Face, Fraction]) -> Fraction:
    return pair[1]
