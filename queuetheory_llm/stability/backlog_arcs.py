"""The backlog of one server through a profile of rates, exactly, and the capacity that keeps it small.

B(t) = max(B(0) + X(t), max over s <= t of X(t) - X(s)), X(t) = integral of (load - capacity): the excess of what came
over what could be done, reflected at 0. Under rates in steps it is piecewise linear, under rates in lines piecewise
quadratic.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.model.rate_profile import RateProfile


@attrs.frozen(kw_only=True)
class Arc:
    """A stretch on which the backlog is level + excess (t - start) + slope (t - start)^2 / 2.

    Attributes
    ----------
    start : Fraction or float
        Seconds.
    end : Fraction, float or None
        None is for ever.
    level, excess, slope : Fraction or float
        Backlog at the start, load minus capacity there, and how fast that grows; 0, 0, 0 while there is no backlog.
    """

    start: Real
    end: Real | None
    level: Real
    excess: Real
    slope: Real

    def at(self, time: Real) -> Real:
        """The backlog at a time of the arc."""
        passed = time - self.start
        return self.level + passed * (self.excess + passed * self.slope / 2)

    @property
    def top(self) -> tuple[Real, Real]:
        """(time, backlog) where it is largest on the arc; of an endless one, where it begins."""
        times = [self.start] if self.end is None else [self.start, self.end]
        if self.slope < 0 < self.excess:
            crest = self.start - self.excess / self.slope
            if self.end is None or crest < self.end:
                times.append(crest)
        best = max(times, key=self.at)
        return best, self.at(best)


def backlog_arcs(load: RateProfile, capacity: Real, start: Real = Fraction(0)) -> tuple[Arc, ...]:
    """The backlog of one server over time.

    Parameters
    ----------
    load : RateProfile
        Work that comes per second.
    capacity : Fraction or float
        Work that can be done per second.
    start : Fraction or float
        Backlog at time 0.
    """
    arcs: list[Arc] = []
    level = start
    for ramp in load.ramps():
        time: Real = ramp.start
        while ramp.end is None or time < ramp.end:
            arc = _arc(time, ramp.end, level, ramp.value + ramp.slope * (time - ramp.start) - capacity, ramp.slope)
            arcs.append(arc)
            if arc.end is None:
                break
            time, level = arc.end, Fraction(0) if _empties(arc) else max(arc.at(arc.end), Fraction(0))
    return tuple(arcs)


def _arc(time: Real, end: Real | None, level: Real, excess: Real, slope: Real) -> Arc:
    """The next stretch: up to the end, or to where a backlog vanishes or begins.

    Either may be so near that floats do not tell it from ``time``; it is then where it is already.
    """
    if level == 0 and (excess < 0 or (excess == 0 and slope <= 0)):
        begins = time - excess / slope if slope > 0 else None
        if begins is None or begins > time:
            return _idle(time, end if begins is None else _first(end, begins))
        excess = Fraction(0)
    gone = _emptied_after(level, excess, slope)
    if gone is not None and time + gone <= time:
        return _idle(time, end)
    until = end if gone is None else _first(end, time + gone)
    return Arc(start=time, end=until, level=level, excess=excess, slope=slope)


def _idle(start: Real, end: Real | None) -> Arc:
    return Arc(start=start, end=end, level=Fraction(0), excess=Fraction(0), slope=Fraction(0))


def _first(end: Real | None, time: Real) -> Real:
    return time if end is None else min(end, time)


def _emptied_after(level: Real, excess: Real, slope: Real) -> Real | None:
    """The first x > 0 with level + excess x + slope x^2 / 2 = 0; None if there is none."""
    if slope == 0:
        return level / -excess if excess < 0 else None
    if level == 0:
        return -2 * excess / slope if slope < 0 else None
    under = excess * excess - 2 * slope * level
    if under < 0:
        return None
    root = math.sqrt(under)
    # The larger of the roots is divided by, since the smaller one may be a difference of near numbers.
    ends = [2 * level / (-excess + root) if root != excess else -1.0, 2 * level / (-excess - root)
            if root != -excess else -1.0]  # fmt: skip
    later = [float(x) for x in ends if x > 0]
    return min(later) if later else None


def _empties(arc: Arc) -> bool:
    """Whether the backlog is 0 at the end of an arc, up to rounding where that end is no fraction."""
    if arc.end is None or isinstance(arc.end, float):
        return arc.end is not None
    return arc.at(arc.end) == 0


def seconds_above(load: RateProfile, level: Real) -> Real:
    """Seconds during which a profile is above a level; its last value must not be."""
    found: Real = Fraction(0)
    for ramp in load.ramps():
        if ramp.end is not None:
            found += _above(ramp.value - level, ramp.at(ramp.end) - level, ramp.end - ramp.start)
    return found


def _above(first: Real, last: Real, seconds: Fraction) -> Real:
    """How long a line from ``first`` to ``last`` is positive."""
    if first <= 0 and last <= 0:
        return Fraction(0)
    if first >= 0 and last >= 0:
        return seconds
    share: Real = first / (first - last) if first > 0 else last / (last - first)
    return seconds * share


def least_capacity(load: RateProfile, depth: Fraction, start: Real = Fraction(0)) -> Real:
    """The least capacity under which the backlog stays at most ``depth``: exact for steps, a float for lines.

    For steps the backlog at a corner is what came since an earlier corner beyond capacity, so that the capacity is the
    largest of (what came between two corners - depth) / (seconds between them).

    Raises
    ------
    InvalidInput
        If the backlog begins above ``depth``.
    """
    require_kept(depth, start)
    if load.shape == "steps":
        return _least_for_steps(load, depth, start)
    if _deepest(load, load.last, start) <= depth:
        return load.last
    from scipy.optimize import brentq

    low, high = float(load.last), float(load.largest)
    if depth == start:  # nothing may gather
        return load.largest
    return float(brentq(lambda c: float(_deepest(load, c, start)) - float(depth), low, high, xtol=1e-13 * high))


def require_kept(depth: Fraction, start: Real) -> None:
    """Refuse a depth that no capacity can keep.

    Raises
    ------
    InvalidInput
        If the backlog begins above it.
    """
    if depth < start:
        raise InvalidInput(
            f"keep-below: {float(depth):g} is below the backlog at the start, {float(start):g}; raise it"
        )


def _least_for_steps(load: RateProfile, depth: Fraction, start: Real) -> Real:
    corners = load.times
    areas = list(
        accumulate((ramp.area(ramp.end) for ramp in load.ramps() if ramp.end is not None), initial=Fraction(0))
    )
    needed: list[Real] = [load.last]
    for j, end in enumerate(corners[1:], start=1):
        needed += [(areas[j] - areas[i] - depth) / (end - corners[i]) for i in range(j)]
        needed.append((start + areas[j] - depth) / end)
    return max(needed)


def _deepest(load: RateProfile, capacity: Real, start: Real) -> Real:
    """The largest backlog up to the end of the profile."""
    return max(arc.top[1] for arc in backlog_arcs(load, capacity, start))
