"""Following paths of the fluid model of a static-priority network, event by event, in exact arithmetic.

A walk takes rates (`fluid_rates`), follows them until a class with fluid is empty, and takes new ones. Where its turns
repeat themselves on another scale (`self_similar`, `dominant_turn`) it ends, if they grow, or goes on from their limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, Vector, plain, require_whole
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.arguments import Start, read_horizon, read_state
from queuetheory_llm.stability.automorphisms import automorphisms
from queuetheory_llm.stability.dominant_turn import DominantTurn, dominant_turn
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.fluid_rates import FluidRates, RateSolutions, fluid_rates, require_priorities
from queuetheory_llm.stability.self_similar import Breakpoint, Turn, repeated_turn, scaled_return

#: Events of one walk, and turns of a growing path that are listed when no horizon is given.
MOST_EVENTS = 500
TURNS = 3
#: Classes up to which paths are followed: each set of rates is an exact linear system in all of them, whose cost grows
#: with the third power of their number and more. It is a tenth of a second here, and seconds with three times as many.
MOST_CLASSES = 100

#: Rates by the set of empty classes.
KnownRates = dict[tuple[bool, ...], RateSolutions]


@attrs.frozen(kw_only=True)
class Accumulation:
    """Infinitely many events in finite time.

    The turn of the path from breakpoint ``turn.first`` to ``turn.last`` repeats itself on smaller and smaller scales;
    its first copy begins at ``turn.last``, and the breakpoint after that is the limit. The limit time is exact; for a
    `Turn` it is the sum of a geometric series, ``turn.start + turn.seconds (1 + r + r^2 + ...)`` with r =
    ``turn.factor``.
    """

    turn: Turn | DominantTurn

    @property
    def limit_time(self) -> Fraction:
        """Seconds, exact."""
        assert self.turn.apex_time is not None
        return self.turn.apex_time

    @property
    def text(self) -> str:
        """The sum in words of mathematics: ``1/2 + 3/4 (1 + r + r^2 + ...) = 2 s with r = 1/2``."""
        turn = self.turn
        if isinstance(turn, DominantTurn):
            return f"turns that in the long run shrink by {turn.factor:.6g} each end at {self.limit_time} s"
        lead = f"{turn.start} + " if turn.start else ""
        return f"{lead}{turn.seconds} (1 + r + r^2 + ...) = {self.limit_time} s with r = {turn.factor}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        turn = self.turn
        return {
            "after": turn.last,
            "start": plain(turn.start) if isinstance(turn, Turn) else None,
            "first_term": plain(turn.seconds) if isinstance(turn, Turn) else None,
            "ratio": float(turn.factor),
            "ratio_exact": plain(turn.factor) if isinstance(turn, Turn) else None,
            "limit": plain(self.limit_time),
        }


@attrs.frozen(kw_only=True)
class EndedWalk:
    """A walk that is over; the attributes are those of `FluidPath`."""

    breakpoints: tuple[Breakpoint, ...]
    accumulations: tuple[Accumulation, ...]
    end: FluidEnd
    turn: Turn | DominantTurn | None = None
    slope: Vector | None = None


@attrs.define
class Walk:
    """A path that is being followed."""

    points: list[Breakpoint]
    accumulations: list[Accumulation] = attrs.field(factory=list)
    growth: DominantTurn | None = None


def require_followed(model: FluidModel) -> None:
    """Refuse a network that is too large for exact paths.

    Raises
    ------
    InvalidInput
    """
    if len(model.classes) > MOST_CLASSES:
        raise InvalidInput(
            f"model: {len(model.classes)} classes; exact paths are followed up to {MOST_CLASSES}, for each event takes "
            "equations in all of them: follow a part of it, or simulate it"
        )


class Walker:
    """Follows the paths of one model from one start; rates are found once for each set of empty classes.

    ``open`` says whether there may be paths that are not among those it follows, ``events`` counts breakpoints, and
    ``known`` are the rates that walks from other starts have found.
    """

    def __init__(
        self,
        model: FluidModel,
        start: Start,
        horizon: Number | None,
        most_events: int,
        known: KnownRates | None = None,
    ) -> None:
        require_priorities(model)
        require_followed(model)
        require_whole("most_events", most_events, 1, "how many events to follow")
        self.model = model
        self.start = read_state(model, start)
        self.horizon = None if horizon is None else read_horizon(horizon)
        self.most = most_events
        self.known: KnownRates = {} if known is None else known
        self.events = 0
        self.symmetries = automorphisms(model)
        self.open = False

    def starts(self) -> Iterator[Walk]:
        """One walk for each solution at the start."""
        return (Walk([point]) for point in self.points_at(Fraction(0), self.start))

    def points_at(self, time: Fraction, state: Vector) -> list[Breakpoint]:
        """The breakpoint with each of its solutions."""
        self.events += 1
        found = self.rates(tuple(not q for q in state))
        self.open = self.open or found.unique is None or found.continuum
        return [
            Breakpoint(
                time=time,
                state=state,
                rates=rates,
                solutions=len(found.solutions),
                unique=found.unique and self.stays_unique(state, rates),
            )
            for rates in found.solutions
        ]

    def rates(self, empty: tuple[bool, ...]) -> RateSolutions:
        """The solutions where these classes are empty."""
        if empty not in self.known:
            self.known[empty] = fluid_rates(self.model, empty)
        return self.known[empty]

    def stays_unique(self, state: Vector, rates: FluidRates) -> bool | None:
        """Whether the only solution at a breakpoint is the only one after it too, when more classes have fluid."""
        unique = self.rates(tuple(not q and slope <= 0 for q, slope in zip(state, rates.slopes, strict=True))).unique
        self.open = self.open or unique is not True
        return unique

    def finish(self, walk: Walk, forks: deque[Walk] | None = None) -> EndedWalk:
        """Follow a walk to its end; what branches off is put on ``forks``."""
        for _ in range(self.most):
            over = self._ended(walk) or self._turned(walk, forks) or self._next(walk, forks)
            if over is not None:
                return over
        return self._over(walk, FluidEnd.UNRESOLVED)

    def _ended(self, walk: Walk) -> EndedWalk | None:
        """What it was, if its last breakpoint is its end."""
        point = walk.points[-1]
        if min(point.rates.slopes) < 0:
            return None
        if any(point.rates.slopes):
            self._cut(walk)
            return self._over(walk, FluidEnd.DIVERGING, slope=point.rates.slopes)
        return self._over(walk, FluidEnd.CONSTANT if any(point.state) else FluidEnd.EMPTY)

    def _turned(self, walk: Walk, forks: deque[Walk] | None) -> EndedWalk | None:
        """Where a turn is complete: the path of turns that never end; the limit of turns that shrink is gone to."""
        points = walk.points
        if walk.growth is not None:
            return None
        turn = scaled_return(points, self.symmetries) or repeated_turn(points) or dominant_turn(points)
        if turn is None:
            return None
        if isinstance(turn, DominantTurn) and turn.apex is None:
            walk.growth = turn
            return self._over(walk, FluidEnd.GROWING) if self.horizon is None else None
        if isinstance(turn, Turn) and turn.factor >= 1:
            return self._for_ever(walk, turn)
        assert turn.apex_time is not None
        assert turn.apex is not None
        if self.horizon is None or turn.apex_time <= self.horizon:
            points[-1] = attrs.evolve(points[-1], closing=turn.factor)
            walk.accumulations.append(Accumulation(turn=turn))
            self._append(walk, turn.apex_time, turn.apex, forks)
        return None

    def _next(self, walk: Walk, forks: deque[Walk] | None) -> EndedWalk | None:
        """Go on to the next event, or end at the horizon."""
        point = walk.points[-1]
        falling = [k for k, slope in enumerate(point.rates.slopes) if slope < 0]
        if not falling:  # the limit of an accumulation
            return None
        seconds = min(-point.state[k] / point.rates.slopes[k] for k in falling)
        if self.horizon is not None and point.time + seconds > self.horizon:
            self._cut(walk)
            return self._over(walk, FluidEnd.HORIZON)
        self._append(walk, point.time + seconds, point.along(point.time + seconds), forks)
        return None

    def _append(self, walk: Walk, time: Fraction, state: Vector, forks: deque[Walk] | None) -> None:
        """Add a breakpoint; its other solutions branch off, unless the state is a multiple of an earlier one.

        The solutions from a multiple are multiples of those from the earlier state, which have branched off there.
        """
        first, *others = self.points_at(time, state)
        for point in (first, *others) if others else ():
            if scaled_return([*walk.points, point], self.symmetries) is not None:
                walk.points.append(point)
                return
        if forks is not None:
            for other in others:
                forks.append(Walk([*walk.points, other], list(walk.accumulations)))
        walk.points.append(first)

    def _for_ever(self, walk: Walk, turn: Turn) -> EndedWalk:
        """The path of turns that never end, with copies of the turn up to the horizon."""
        length = turn.last - turn.first
        inner = [each for each in walk.accumulations if each.turn.last >= turn.first]
        more = TURNS - 1 if self.horizon is None else (self.most - len(walk.points)) // length
        for _ in range(more):
            if self.horizon is not None and walk.points[-1].time >= self.horizon:
                break
            walk.points += [turn.copy_point(point) for point in walk.points[-length:]]
            inner = [Accumulation(turn=each.turn.moved(turn)) for each in inner]
            walk.accumulations += inner
        self._cut(walk)
        if turn.factor > 1:
            return self._over(walk, FluidEnd.GROWING, turn=turn)
        if turn.apex is not None:
            return self._over(walk, FluidEnd.PERIODIC, turn=turn)
        slope = tuple(by / turn.seconds for by in turn.change)
        return self._over(walk, FluidEnd.DIVERGING, turn=turn, slope=slope)

    def _cut(self, walk: Walk) -> None:
        """End the walk at the horizon, if there is one; before it, where it falls amid infinitely many turns."""
        if self.horizon is None:
            return
        while walk.points[-1].time > self.horizon:
            walk.points.pop()
        walk.accumulations = [each for each in walk.accumulations if each.turn.last < len(walk.points) - 1]
        last = walk.points[-1]
        if last.closing is not None:
            walk.points[-1] = attrs.evolve(last, closing=None)
        elif last.time < self.horizon:
            walk.points.append(
                attrs.evolve(last, time=self.horizon, state=last.along(self.horizon), solutions=1, unique=True)
            )

    def _over(self, walk: Walk, end: FluidEnd, *, turn: Turn | None = None, slope: Vector | None = None) -> EndedWalk:
        return EndedWalk(
            breakpoints=tuple(walk.points),
            accumulations=tuple(walk.accumulations),
            end=end if walk.growth is None else FluidEnd.GROWING,
            turn=turn or walk.growth,
            slope=slope,
        )
