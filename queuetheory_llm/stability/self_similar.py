"""Turns of a fluid path that repeat on another scale: accumulation points, growth, periods, drift.

Two grounds are used. Write pi for a relabelling that is a symmetry of the network.

*Scaling.* If the state at breakpoint n is f times the relabelled state at breakpoint m < n, then f pi of the turn from
m to n, run f times as long, is a path from breakpoint n on, because rates depend only on which classes are empty; and
so on for ever.

*Repetition.* Let the last two turns go through the same legs: the same rates and the same classes emptied at the end of
each. The states from which a given sequence of legs is a path (a leg may last no time) form a closed convex cone C:
each leg asks that some classes are empty and the others not negative, at its start and at its end, and the duration of
a leg, x_j/(-slope_j) for the class j that empties, is linear on C, hence so are all states of the turn. Let every leg
of the second turn, from x1, last r times as long as in the first, from x0. Then x2 - x1 = r (x1 - x0) for the state x2
at which it ends, whatever else there is that does not take part in the turn.

* r < 1. Let x* = x0 + (x1 - x0)/(1 - r), where every duration extrapolates to 0. If x* >= 0 it is in C: equalities and
  durations are affine along the line, and with all durations 0 every state of the turn is x* itself. C is convex, so
  the segment from x0 to x* is in it, and with it all x_n = x* - r^n (x* - x0): the turns follow one another for ever,
  the n-th r^n times as long as the first, and end in x* at the finite time t0 + T0/(1 - r). What was checked is equal
  ratios of all durations and x* >= 0.
* r >= 1. If every state of the turn is no smaller in the second turn than in the first, the differences are the states
  of a turn from x1 - x0, which then is in C; C + C is in C, so all x_n = x0 + (1 + ... + r^(n-1)) (x1 - x0) are and the
  turns go on for ever. For r > 1 the path from x1 - x0 returns to r times itself; for r = 1 the path drifts along it.

A turn may hold an accumulation point of smaller turns. The way to it, x0 to x*, is linear on a closed convex cone as
well, and so is its duration, so it counts as one more leg.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Self

import attrs

from queuetheory_llm.exact.numbers import Vector
from queuetheory_llm.stability.automorphisms import Relabelling
from queuetheory_llm.stability.fluid_rates import FluidRates


@attrs.frozen(kw_only=True)
class Breakpoint:
    """A time at which a path takes new rates.

    Attributes
    ----------
    time : Fraction
        Seconds.
    state : tuple of Fraction, length K
        q_k, tasks.
    rates : FluidRates
        From here on.
    solutions : int
        How many solutions there are here, of which the path follows one.
    unique : bool or None
        Whether there is one only, here and until the next breakpoint; None where not all choices could be looked at.
    closing : Fraction, float or None
        None: the path is linear until the next breakpoint. A ratio below 1: the last turn repeats itself from here to
        the next breakpoint, infinitely often, smaller by this ratio each time (in the long run, if it is a float).
    """

    time: Fraction
    state: Vector
    rates: FluidRates
    solutions: int = 1
    unique: bool | None = True
    closing: Fraction | float | None = None

    def along(self, time: Fraction) -> Vector:
        """The state at a later time, up to which the path is linear."""
        return tuple(q + slope * (time - self.time) for q, slope in zip(self.state, self.rates.slopes, strict=True))


@attrs.frozen(kw_only=True)
class RepeatedLegs:
    """A stretch of a path whose legs follow again and again, about a point.

    Attributes
    ----------
    first, last : int
        Numbers of breakpoints: where it begins and ends.
    apex_time : Fraction or None
        The limit in time of the copies, for copies that grow backwards in time; None where there is none.
    apex : tuple of Fraction, or None
        The state there; of a growing path it may have negative entries, and no path goes through it.
    """

    first: int
    last: int
    apex_time: Fraction | None = None
    apex: Vector | None = None

    def moved(self, outer: Turn) -> Self:
        """The stretch that answers to this one, which has an apex, in the next copy of a turn around it."""
        assert self.apex_time is not None
        assert self.apex is not None
        legs = outer.last - outer.first
        return attrs.evolve(
            self,
            first=self.first + legs,
            last=self.last + legs,
            apex_time=outer.copy_time(self.apex_time),
            apex=outer.copy_state(self.apex),
            **self._scaled(outer),
        )

    def _scaled(self, outer: Turn) -> dict[str, Any]:  # noqa: ARG002 - for what a kind of stretch has besides
        return {}


@attrs.frozen(kw_only=True)
class Turn(RepeatedLegs):
    """A stretch whose scaled copies follow for ever; its limit in time is t0 + T0/(1 - factor), none for factor 1.

    Attributes
    ----------
    factor : Fraction
        Of durations, and of states about ``apex``, from each copy to the next.
    relabelling : tuple of int
        Class k of a copy is class pi[k] of the next.
    start : Fraction
        Time of breakpoint ``first``.
    seconds : Fraction
        Duration T0 of the turn.
    change : tuple of Fraction, length K
        State at ``last`` minus state at ``first``.
    """

    factor: Fraction
    relabelling: Relabelling
    start: Fraction
    seconds: Fraction
    change: Vector

    @property
    def order(self) -> int:
        """The number of turns after which every class is itself again."""
        identity = tuple(range(len(self.relabelling)))
        power, times = self.relabelling, 1
        while power != identity:
            power, times = tuple(self.relabelling[k] for k in power), times + 1
        return times

    def copy_time(self, time: Fraction, turns: int = 1) -> Fraction:
        """The time in the copy ``turns`` later (earlier, if negative) that answers to a time of a turn."""
        if self.apex_time is None:
            return time + turns * self.seconds
        return self.apex_time + self.factor**turns * (time - self.apex_time)

    def copy_state(self, state: Vector, turns: int = 1) -> Vector:
        """The state in the copy ``turns`` >= 0 later that answers to a state of a turn."""
        moved = state
        for _ in range(turns % self.order):
            moved = relabelled(moved, self.relabelling)
        if self.apex is None:
            return tuple(q + turns * by for q, by in zip(moved, self.change, strict=True))
        scale = self.factor**turns
        return tuple(centre + scale * (q - centre) for q, centre in zip(moved, self.apex, strict=True))

    def _scaled(self, outer: Turn) -> dict[str, Any]:
        return {
            "start": outer.copy_time(self.start),
            "seconds": outer.factor * self.seconds,
            "change": relabelled(tuple(outer.factor * by for by in self.change), outer.relabelling),
        }

    def copy_point(self, point: Breakpoint) -> Breakpoint:
        """The breakpoint of the next turn that answers to one."""
        rates = FluidRates(
            departures=relabelled(point.rates.departures, self.relabelling),
            slopes=relabelled(point.rates.slopes, self.relabelling),
            efforts=relabelled(point.rates.efforts, self.relabelling),
        )
        return attrs.evolve(point, time=self.copy_time(point.time), state=self.copy_state(point.state), rates=rates)


def relabelled(vector: Vector, relabelling: Relabelling) -> Vector:
    """The vector with the entry of class k at pi[k]."""
    moved = list(vector)
    for value, to in zip(vector, relabelling, strict=True):
        moved[to] = value
    return tuple(moved)


def scaled_return(points: Sequence[Breakpoint], symmetries: Sequence[Relabelling]) -> Turn | None:
    """The shortest turn that ends at the last breakpoint in a relabelled multiple of where it began."""
    end = points[-1]
    total = sum(end.state, Fraction(0))
    if not total:
        return None
    for first in range(len(points) - 2, -1, -1):
        begin = points[first]
        if begin.closing is not None:  # the turn is seen from the limit on
            continue
        for relabelling in symmetries:
            if relabelled(begin.rates.departures, relabelling) == end.rates.departures and any(begin.state):
                factor = total / sum(begin.state, Fraction(0))
                if relabelled(begin.state, relabelling) == tuple(q / factor for q in end.state):
                    return _turn(points, first, factor, relabelling, about_zero=True)
    return None


def repeated_turn(points: Sequence[Breakpoint]) -> Turn | None:
    """The shortest turn, twice run through by the last legs, every leg scaled by one factor, that goes on for ever."""
    for length in range(2, (len(points) - 1) // 2 + 1):
        if points[-1].rates != points[-1 - length].rates or points[-1 - length].closing is not None:
            continue
        turn = _repetition(points, length)
        if turn is not None:
            return turn
    return None


def _repetition(points: Sequence[Breakpoint], length: int) -> Turn | None:
    first, middle = len(points) - 1 - 2 * length, len(points) - 1 - length
    factor = _duration(points, middle) / _duration(points, first)
    for leg in range(length):
        a, b = first + leg, middle + leg
        if not same_leg(points, a, b):
            return None
        if _duration(points, b) != factor * _duration(points, a):
            return None
    turn = _turn(points, middle, factor, tuple(range(len(points[-1].state))), about_zero=False)
    return turn if _goes_on(points, first, middle, turn) else None


def _goes_on(points: Sequence[Breakpoint], first: int, middle: int, turn: Turn) -> bool:
    if turn.factor < 1:
        assert turn.apex is not None
        return min(turn.apex) >= 0
    pairs = zip(points[first:middle], points[middle:], strict=False)
    return all(low <= high for a, b in pairs for low, high in zip(a.state, b.state, strict=True))


def _turn(
    points: Sequence[Breakpoint], first: int, factor: Fraction, relabelling: Relabelling, *, about_zero: bool
) -> Turn:
    begin, end = points[first], points[-1]
    seconds = end.time - begin.time
    change = tuple(after - before for after, before in zip(end.state, begin.state, strict=True))
    apex: Vector | None = None
    if about_zero:
        apex = (Fraction(0),) * len(change)
    elif factor != 1:
        apex = tuple(q + by / (1 - factor) for q, by in zip(begin.state, change, strict=True))
    return Turn(
        first=first,
        last=len(points) - 1,
        factor=factor,
        relabelling=relabelling,
        start=begin.time,
        seconds=seconds,
        change=change,
        apex_time=None if factor == 1 else begin.time + seconds / (1 - factor),
        apex=apex,
    )


def _duration(points: Sequence[Breakpoint], leg: int) -> Fraction:
    return points[leg + 1].time - points[leg].time


def same_leg(points: Sequence[Breakpoint], one: int, other: int) -> bool:
    """Whether two legs have the same rates and end when the same classes are empty; two gaps, the same ratio."""
    a, b = points[one], points[other]
    return a.rates == b.rates and a.closing == b.closing and _emptied(points, one) == _emptied(points, other)


def _emptied(points: Sequence[Breakpoint], leg: int) -> tuple[int, ...]:
    """The classes that run empty at the end of a leg."""
    before, after = points[leg].state, points[leg + 1].state
    return tuple(k for k, (was, now) in enumerate(zip(before, after, strict=True)) if was and not now)
