"""Traffic equations between proved bounds, where exact elimination is too much work: floats, verified in integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import attrs

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.model.fluid_model import FluidModel, Row

_ONE = 2**128  # enclosures are computed in integers, as multiples of 1/_ONE
_PARTS = 2**64
_NEARLY_ENDLESS = (
    "traffic equations: the routes have too many cycles for exact elimination, and so few tasks leave them that floats "
    "do not tell whether any do; let more tasks out, or merge classes"
)


@attrs.frozen(kw_only=True)
class Enclosure:
    """Rates lambda = alpha + P' lambda of all classes: floats, and proved bounds; w >= 1 + P w bounds the visits."""

    rates: tuple[Fraction, ...]
    low: tuple[Fraction, ...]
    high: tuple[Fraction, ...]
    visits: tuple[Fraction, ...]


def enclose(model: FluidModel) -> Enclosure:
    """Solve in floats and prove bounds in integers that are rounded the safe way.

    (I - P')^-1 >= 0, so x >= alpha + P'x bounds lambda from above and x <= alpha + P'x from below. A float solution
    fails both by its rounding; adding and subtracting a small multiple of y > 0 with y - P'y > 0 mends it. That there
    is such a y proves that the spectral radius is below 1.

    Raises
    ------
    NotConverged
        If floats show no such y: the spectral radius may be 1 or more.
    """
    middle, slack, visits = _float_solutions(model)
    nothing = [Fraction(0)] * len(model.classes)
    spare, _ = _defects(slack, model.predecessors, nothing)
    room, _ = _defects(visits, model.routing, nothing)
    if min(*slack, *visits, *spare, *room) <= 0:
        raise NotConverged(_NEARLY_ENDLESS)
    owed, most_owed = _defects(middle, model.predecessors, model.arrival)
    up = _parts(Fraction(-gap, left) for gap, left in zip(owed, spare, strict=True))
    down = _parts(Fraction(gap, left) for gap, left in zip(most_owed, spare, strict=True))
    low = tuple(_value(max(0, x * _PARTS - down * y)) for x, y in zip(middle, slack, strict=True))
    high = tuple(_value(x * _PARTS + up * y) for x, y in zip(middle, slack, strict=True))
    stretch = _parts([Fraction(_ONE, min(room))])
    return Enclosure(
        rates=tuple(_value(x * _PARTS) for x in middle),
        low=low,
        high=high,
        visits=tuple(_value(stretch * count) for count in visits),
    )


def _float_solutions(model: FluidModel) -> tuple[list[int], ...]:
    """Floats near (I - P')^-1 alpha, (I - P')^-1 1 and (I - P)^-1 1, in units of 1/_ONE."""
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import splu

    count = len(model.classes)
    entries = [(k, k, 1.0) for k in range(count)]
    entries += [(k, to, -float(share)) for k, row in enumerate(model.routing) for to, share in row]
    rows, columns, values = zip(*entries, strict=True)
    try:
        factors = splu(coo_array((values, (rows, columns)), shape=(count, count)).tocsc())
    except RuntimeError:  # exactly singular
        raise NotConverged(_NEARLY_ENDLESS) from None
    ones, rates = np.ones(count), np.array(list(map(float, model.arrival)))
    found = (factors.solve(rates, "T"), factors.solve(ones, "T"), factors.solve(ones))
    if not all(np.isfinite(each).all() for each in found):
        raise NotConverged(_NEARLY_ENDLESS)
    return tuple([int(value * float(_ONE)) for value in each.tolist()] for each in found)


def _defects(x: Sequence[int], rows: Sequence[Row], given: Sequence[Fraction]) -> tuple[list[int], list[int]]:
    """x - A x - given in units of 1/_ONE, each entry between two integers."""
    low, high = [], []
    for k, row in enumerate(rows):
        terms = [(given[k].numerator * _ONE, given[k].denominator)]
        terms += [(share.numerator * x[other], share.denominator) for other, share in row]
        low.append(x[k] + sum(-a // b for a, b in terms))
        high.append(x[k] - sum(a // b for a, b in terms))
    return low, high


def _value(parts: int) -> Fraction:
    return Fraction(parts, _ONE * _PARTS)


def _parts(needed: Iterable[Fraction]) -> int:
    """The largest of the numbers, or 0, rounded up to a multiple of 1/_PARTS: a factor that multiplies exactly."""
    return max(0, math.ceil(max(needed) * _PARTS))
