"""Where to write a label so that it covers nothing: a deterministic search over positions around its anchors.

All lengths are pixels. A box is (x0, y0, x1, y1); a segment is (x0, y0, x1, y1) as well, from one end to the other.
"""

from __future__ import annotations

from functools import cache

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats

Box = tuple[float, float, float, float]

#: Directions in degrees, the preferred ones first: a region is down-closed, so up and right of a vertex it is empty.
_DIRECTIONS = np.radians((45, 0, 90, 22, 67, 135, -22, 112, -45, 180, 158, -67, -90, -135, -158, -112))
_TURNS = np.column_stack([np.cos(_DIRECTIONS), np.sin(_DIRECTIONS)])
#: How much of the box lies behind the point where its tie ends, horizontally and vertically: the tie meets the middle
#: of a side in the four main directions and a corner in the others.
_BEHIND = np.where(np.abs(_TURNS) < 0.3, 0.5, np.where(_TURNS > 0, 0.0, 1.0))
#: Distances from the anchor, in points; beyond the second the label is tied to its anchor by a line.
_GAPS = (5.0, 8.0, 14.0, 20.0, 30.0, 44.0, 62.0, 84.0, 110.0)
_TIED = 8.0
_BLOCK = 96  # candidates judged at a time


@attrs.frozen
class Place:
    """A label's box and the anchor it belongs to.

    Attributes
    ----------
    box : Box
    anchor : (float, float)
    nearest : (float, float)
        The point of the box next to the anchor.
    tied : bool
        Whether the two are far enough apart to need a line between them.
    cost : float
        How far the place is from the preferred one, in points.
    """

    box: Box
    anchor: tuple[float, float]
    nearest: tuple[float, float]
    tied: bool
    cost: float


def crossings(boxes: Floats, segments: Floats) -> NDArray[np.bool_]:
    """Which segments meet which boxes, by separating axes.

    Parameters
    ----------
    boxes : float array of shape (m, 4)
    segments : float array of shape (n, 4)

    Returns
    -------
    bool array of shape (m, n)
    """
    centre, half = _centre(boxes)[:, None], _half(boxes)[:, None]
    offset = np.abs(_centre(segments)[None] - centre)
    reach = (segments[:, 2:] - segments[:, :2])[None] / 2
    apart = (offset > half + np.abs(reach)).any(axis=2)
    difference = _centre(segments)[None] - centre
    across = np.abs(difference[..., 0] * reach[..., 1] - difference[..., 1] * reach[..., 0])
    width = half[..., 0] * np.abs(reach[..., 1]) + half[..., 1] * np.abs(reach[..., 0])
    return np.asarray(~(apart | (across > width)))


def overlaps(boxes: Floats, others: Floats) -> NDArray[np.bool_]:
    """Which boxes share area with which others; shape (m, n)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray((low < high).all(axis=2))


def _centre(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, :2] + boxes[:, 2:]) / 2)


def _half(boxes: Floats) -> Floats:
    return np.asarray(np.abs(boxes[:, 2:] - boxes[:, :2]) / 2)


def chain(points: Floats) -> Floats:
    """The segments of a polyline of shape (n, 2)."""
    return np.hstack([points[:-1], points[1:]])


class Canvas:
    """What is already on the figure, and a search for free places in it.

    Parameters
    ----------
    frame : Box
        Labels stay inside it.
    point : float
        Pixels per typographic point.
    """

    def __init__(self, frame: Box, point: float) -> None:
        self.frame = frame
        self.point = point
        self.boxes = np.empty((0, 4))
        self.segments = np.empty((0, 4))

    def add_box(self, box: Box) -> None:
        """Keep a box free of labels."""
        self.boxes = np.vstack([self.boxes, box])

    def add_line(self, points: Floats) -> None:
        """Keep a polyline of shape (n, 2) free of labels."""
        self.segments = np.vstack([self.segments, chain(points)])

    def is_free(self, box: Box) -> bool:
        """Whether nothing drawn so far meets the box."""
        one = np.array([box])
        return not (crossings(one, self.segments).any() or overlaps(one, self.boxes).any())

    def place(self, anchors: Floats, size: tuple[float, float]) -> Place | None:
        """The best free box of ``size`` (width, height) near one of the anchors, kept free from then on.

        Anchors, of shape (k, 2), come in order of preference. None when every candidate covers something.
        """
        costs, which, gaps, turns = _candidates(len(anchors))
        ties = np.hstack([anchors[which], anchors[which] + gaps[:, None] * self.point * _TURNS[turns]])
        low = ties[:, 2:] - _BEHIND[turns] * np.array(size)
        boxes = np.hstack([low, low + np.array(size)])
        for start in range(0, len(boxes), _BLOCK):  # a free place is nearly always among the first
            free = self._free(boxes[start : start + _BLOCK], ties[start : start + _BLOCK], gaps[start : start + _BLOCK])
            if free.any():
                return self._take(start + int(np.argmax(free)), boxes, ties, gaps, costs)
        return None

    def _take(self, best: int, boxes: Floats, ties: Floats, gaps: Floats, costs: Floats) -> Place:
        box, tie, tied = _tuple(boxes[best]), ties[best], bool(gaps[best] > _TIED)
        self.add_box(box)
        if tied:
            self.segments = np.vstack([self.segments, tie])
        return Place(box, (float(tie[0]), float(tie[1])), (float(tie[2]), float(tie[3])), tied, float(costs[best]))

    def _free(self, boxes: Floats, ties: Floats, gaps: Floats) -> NDArray[np.bool_]:
        free = self._inside(boxes)
        free &= ~overlaps(_padded(boxes, 4 * self.point), self.boxes).any(axis=1)
        free &= ~crossings(_padded(boxes, 2 * self.point), self.segments).any(axis=1)
        return free & ((gaps <= _TIED) | ~self._tie_blocked(ties, gaps))

    def _inside(self, boxes: Floats) -> NDArray[np.bool_]:
        low, high = self.frame[:2], self.frame[2:]
        return np.asarray((boxes[:, :2] >= low).all(axis=1) & (boxes[:, 2:] <= high).all(axis=1))

    def _tie_blocked(self, ties: Floats, gaps: Floats) -> NDArray[np.bool_]:
        """Whether a tie meets something, but for its first points: it may touch what is at its own anchor."""
        start = ties[:, :2] + (ties[:, 2:] - ties[:, :2]) * np.minimum(1, 7 / gaps)[:, None]
        rest = np.hstack([start, ties[:, 2:]])
        through_box = crossings(self.boxes, rest).any(axis=0) if len(self.boxes) else np.zeros(len(ties), bool)
        return np.asarray(through_box | _meet(rest, self.segments).any(axis=1))


@cache
def _candidates(anchors: int) -> tuple[Floats, NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Cost, anchor, gap in points and direction of every candidate, the cheapest first."""
    which, gap, turn = (grid.ravel() for grid in np.indices((anchors, len(_GAPS), len(_TURNS))))
    gaps = np.array(_GAPS)[gap]
    costs = gaps + 2.0 * turn + 4.0 * which
    order = np.lexsort((turn, gap, which, costs))
    return costs[order], which[order], gaps[order], turn[order]


def _meet(first: Floats, second: Floats) -> NDArray[np.bool_]:
    """Which of m segments cross which of n others; shape (m, n)."""

    def side(line: Floats, x: Floats, y: Floats) -> Floats:
        return np.asarray(
            (line[..., 2] - line[..., 0]) * (y - line[..., 1]) - (line[..., 3] - line[..., 1]) * (x - line[..., 0])
        )

    a, b = first[:, None], second[None]
    return np.asarray(
        (side(a, b[..., 0], b[..., 1]) * side(a, b[..., 2], b[..., 3]) <= 0)
        & (side(b, a[..., 0], a[..., 1]) * side(b, a[..., 2], a[..., 3]) <= 0)
    )


def _padded(boxes: Floats, pad: float) -> Floats:
    return np.asarray(boxes + np.array([-pad, -pad, pad, pad]))


def _tuple(box: Floats) -> Box:
    x0, y0, x1, y1 = (float(value) for value in box)
    return x0, y0, x1, y1
