"""Paths of the fluid model of a static-priority network, event by event, in exact arithmetic.

A path is piecewise linear: it takes rates (`fluid_rates`), follows them until a class with fluid is empty, and takes
new ones. Infinitely many such events may fall into a finite time; `self_similar` closes them, and the path goes on
from their limit. Several solutions at a breakpoint are several paths: `fluid_paths` follows each. (A solution along
which another one stays possible may be left for it at any later time too, and a path may leave 0 in infinitely many
turns that grow; of these continua the paths that branch off at a breakpoint are followed.)

The fluid model is stable if every path empties, and unstable if one grows; that it is unstable is no proof that the
stochastic network is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, overload

import attrs

from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.elimination import NotPositive, Work, solve
from queuetheory_llm.exact.numbers import Number, Vector, plain, require_whole, to_seconds
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.result import Result
from queuetheory_llm.stability.arguments import Start, to_fluid_model
from queuetheory_llm.stability.automorphisms import automorphisms
from queuetheory_llm.stability.dominant_turn import DominantTurn
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.fluid_rates import require_priorities
from queuetheory_llm.stability.fluid_walk import MOST_CLASSES, MOST_EVENTS, Accumulation, EndedWalk, KnownRates, Walker
from queuetheory_llm.stability.self_similar import Breakpoint, Turn

#: Paths from one start that are followed.
MOST_PATHS = 32
#: What all paths from one start may take, and a search for a growing path over all its starts: seconds. An event counts
#: as the square of the number of classes, which is how the time for its rates grows.
PATHS_WORK = 400_000
SEARCH_WORK = 150_000


@attrs.frozen(kw_only=True)
class Envelope:
    """The straight line through the peaks of the total: ``level + slope (t - time)``.

    Attributes
    ----------
    time, level : Fraction
        Where the turns of the path contract to a point: the limit of shrinking ones, where growing ones would begin.
    slope : Fraction
        Tasks per second.
    """

    time: Fraction
    level: Fraction
    slope: Fraction


@attrs.frozen(kw_only=True)
class FluidPath(Result):
    """A path of the fluid model.

    Attributes
    ----------
    model : FluidModel
    breakpoints : tuple of Breakpoint
        Between two of them the state is linear, except between ``turn.last`` of an accumulation and the next one.
    accumulations : tuple of Accumulation
    end : FluidEnd
    turn : Turn, DominantTurn or None
        What repeats itself for ever: of a growing or periodic path, and of one that diverges in turns.
    slope : tuple of Fraction, length K, or None
        Of a diverging path: its slope for ever, the mean over a turn where it diverges in turns; tasks per second.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.fluid:draw_fluid_path"

    model: FluidModel
    breakpoints: tuple[Breakpoint, ...]
    accumulations: tuple[Accumulation, ...]
    end: FluidEnd
    turn: Turn | DominantTurn | None = None
    slope: Vector | None = None

    @property
    def seconds(self) -> Fraction:
        """Time of the last breakpoint; of a path that ends EMPTY, when the network is empty."""
        return self.breakpoints[-1].time

    @property
    def emptying_time(self) -> Fraction | None:
        """Seconds until the network is empty; None for a path that does not empty."""
        return self.seconds if self.end is FluidEnd.EMPTY else None

    @property
    def factor(self) -> Fraction | float | None:
        """By which a growing path grows in each turn, half a cycle where the network is symmetric; else None.

        A float where the ratio is no rational number; ``turn.low`` and ``turn.high`` then bound it.
        """
        return self.turn.factor if self.turn is not None and self.end is FluidEnd.GROWING else None

    @property
    def cycle_factor(self) -> Fraction | float | None:
        """By which a growing path grows until each class is where it was; else None."""
        return self.factor if self.factor is None or not isinstance(self.turn, Turn) else self.factor**self.turn.order

    @property
    def growth(self) -> Fraction | float:
        """Tasks per second by which the fluid of all classes grows where the path ends, negative while it drains.

        For ever where what comes after is known: 0 at rest and in a period; the mean over a turn where it grows in
        turns, a float over the last one that is listed where turns have no common ratio.
        """
        if self.end in (FluidEnd.EMPTY, FluidEnd.CONSTANT, FluidEnd.PERIODIC):
            return Fraction(0)
        turn = self.turn
        if isinstance(turn, Turn):
            return sum(turn.change, Fraction(0)) / turn.seconds
        if turn is not None:
            first, last = self.breakpoints[turn.first], self.breakpoints[turn.last]
            return float((self.totals[turn.last] - self.totals[turn.first]) / (last.time - first.time))
        return sum(self.breakpoints[-1].rates.slopes, Fraction(0))

    @property
    def unique(self) -> bool | None:
        """Whether it is the only path from its start; None where that could not be decided."""
        found = [point.unique for point in self.breakpoints]
        return False if False in found else (None if None in found else True)

    @property
    def forks(self) -> tuple[int, ...]:
        """The breakpoints at which other paths branch off."""
        return tuple(i for i, point in enumerate(self.breakpoints) if point.solutions > 1)

    @cached_property
    def totals(self) -> tuple[Fraction, ...]:
        """Fluid at each breakpoint, tasks."""
        return tuple(sum(point.state, Fraction(0)) for point in self.breakpoints)

    @cached_property
    def work(self) -> tuple[Fraction, ...]:
        """Seconds of service, of all stations together, that the fluid at each breakpoint still needs."""
        needs = _work_per_task(self.model)
        return tuple(
            sum((w * q for w, q in zip(needs, point.state, strict=True)), Fraction(0)) for point in self.breakpoints
        )

    @property
    def peaks(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """(time, total) of the breakpoints at which the total begins to fall."""
        return _local_maxima(self.breakpoints, self.totals)

    @property
    def work_peaks(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """(time, seconds of work) of the breakpoints at which the work begins to fall."""
        return _local_maxima(self.breakpoints, self.work)

    @property
    def envelope(self) -> Envelope | None:
        """The line that the peaks of a growing path, or of one that accumulates at its end, touch; else None."""
        turn = self.turn
        if turn is None and self.end is FluidEnd.EMPTY and self.accumulations:
            turn = self.accumulations[-1].turn
            if turn.apex_time != self.seconds:
                return None
        if not isinstance(turn, Turn) or turn.apex_time is None or turn.apex is None:
            return None
        level, time = sum(turn.apex, Fraction(0)), turn.apex_time
        slopes = [
            (self.totals[i] - level) / (self.breakpoints[i].time - time) for i in range(turn.first, turn.last + 1)
        ]
        return Envelope(time=time, level=level, slope=min(slopes) if turn.factor < 1 else max(slopes))

    def at(self, time: Number) -> Vector:
        """The state at a time within the path, exactly, between the copies of an accumulation too.

        Raises
        ------
        InvalidInput
            Outside ``0 <= time <= seconds``, and between the turns of an accumulation that have no common ratio.
        """
        asked = to_seconds(time)
        if not 0 <= asked <= self.seconds:
            raise InvalidInput(f"time: {asked} s is outside the path; give 0 to {self.seconds} s")
        last = max(i for i, point in enumerate(self.breakpoints) if point.time <= asked)
        closing = next((each.turn for each in self.accumulations if each.turn.last == last), None)
        if closing is None or asked == self.breakpoints[last].time:
            return self.breakpoints[last].along(asked)
        if isinstance(closing, DominantTurn):
            raise InvalidInput(
                f"time: {asked} s is amid infinitely many turns without a common ratio; give a time outside them"
            )
        turns = 0
        while asked > self.breakpoints[last].time:
            asked, turns = closing.copy_time(asked, -1), turns + 1
        return closing.copy_state(self.at(asked), turns)

    def certificate(self) -> Certificate | None:
        """The growing cycle as a proof that the fluid model is unstable.

        None unless the end is GROWING, and for a cycle that finitely many exact numbers do not write down: one with an
        accumulation point inside, one whose factor is no rational number.

        Raises
        ------
        CertificateRejected
            If the checker does not accept it.
        """
        turn = self.turn
        if not isinstance(turn, Turn) or turn.apex is None or self.end is not FluidEnd.GROWING:
            return None
        states, seconds, efforts = [], [], []
        points = self.breakpoints[turn.first : turn.last + 1]
        if any(point.closing is not None for point in points[:-1]):
            return None
        for _ in range(turn.order):
            for point, after in pairwise(points):
                states.append([plain(q - centre) for q, centre in zip(point.state, turn.apex, strict=True)])
                seconds.append(plain(after.time - point.time))
                efforts.append([plain(effort) for effort in point.rates.efforts])
            points = tuple(turn.copy_point(point) for point in points)
        states.append([plain(q - centre) for q, centre in zip(points[0].state, turn.apex, strict=True)])
        proof = {
            "states": states,
            "seconds": seconds,
            "efforts": efforts,
            "factor": plain(turn.factor**turn.order),
        }
        return certify("fluid-cycle", self.model.to_dict(), proof)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; exact numbers are integers or ``"p/q"``."""
        return {
            "method": "exact",
            "classes": list(self.model.classes),
            "end": self.end.value,
            "reason": self.end.meaning,
            "emptying_time": None if self.emptying_time is None else float(self.emptying_time),
            "growth": float(self.growth),
            "seconds": float(self.seconds),
            "seconds_exact": plain(self.seconds),
            "factor": None if self.factor is None else float(self.factor),
            "factor_exact": plain(self.factor) if isinstance(self.factor, Fraction) else None,
            "cycle_factor": None if self.cycle_factor is None else float(self.cycle_factor),
            "slope": None if self.slope is None else [plain(rate) for rate in self.slope],
            "unique": self.unique,
            "breakpoints": [
                {
                    "time": plain(point.time),
                    "state": [plain(q) for q in point.state],
                    "slopes": [plain(rate) for rate in point.rates.slopes],
                    "efforts": [plain(effort) for effort in point.rates.efforts],
                    "solutions": point.solutions,
                    "unique": point.unique,
                }
                for point in self.breakpoints
            ],
            "accumulations": [each.to_dict() for each in self.accumulations],
            "peaks": [[plain(time), plain(total)] for time, total in self.peaks],
            "work_peaks": [[plain(time), plain(work)] for time, work in self.work_peaks],
            "envelope": None
            if self.envelope is None
            else {key: plain(value) for key, value in attrs.asdict(self.envelope).items()},
        }


@attrs.frozen(kw_only=True)
class FluidPaths(Result, Sequence[FluidPath]):
    """The paths from one start.

    Attributes
    ----------
    paths : tuple of FluidPath
        At least one.
    complete : bool
        Whether every branch at a breakpoint was followed.
    left : str or None
        What was left out, in words.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.fluid:draw_fluid_paths"

    paths: tuple[FluidPath, ...]
    complete: bool
    left: str | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> FluidPath: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FluidPath, ...]: ...

    def __getitem__(self, index: int | slice) -> FluidPath | tuple[FluidPath, ...]:
        return self.paths[index]

    @property
    def growing(self) -> FluidPath | None:
        """The first path that grows; None where none does."""
        return next((path for path in self.paths if path.end.grows), None)

    @property
    def worst(self) -> FluidPath:
        """The first path that grows; where none does, the first path."""
        return self.growing or self.paths[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what is asked of every kind of path, of the `worst`; then all of each."""
        worst = self.worst
        return {
            "method": "exact",
            "end": worst.end.value,
            "reason": worst.end.meaning,
            "emptying_time": None if worst.emptying_time is None else float(worst.emptying_time),
            "growth": float(worst.growth),
            "growth_factor": None if worst.factor is None else float(worst.factor),
            "growth_factor_exact": plain(worst.factor) if isinstance(worst.factor, Fraction) else None,
            "cycle_factor": None if worst.cycle_factor is None else float(worst.cycle_factor),
            "complete": self.complete,
            "left": self.left,
            "paths": [path.to_dict() for path in self.paths],
        }


@attrs.frozen(kw_only=True)
class GrowthSearch:
    """What a search for a growing path found.

    Attributes
    ----------
    path : FluidPath or None
    left : str or None
        What was not looked for, in words; None where all starts were followed to their end, or a path was found.
    """

    path: FluidPath | None = None
    left: str | None = None


def fluid_path(
    model: FluidModel | Network,
    start: Start,
    *,
    horizon: Number | None = None,
    most_events: int = MOST_EVENTS,
) -> FluidPath:
    """Follow the fluid from a start; at a breakpoint with several solutions, the first of them.

    Parameters
    ----------
    model : FluidModel or Network
        Every station has a priority order or one class; no joins; constant external rates; at most `MOST_CLASSES`.
    start : sequence or mapping
        q_k >= 0, tasks; a mapping names the classes that are not empty.
    horizon : number or str, optional
        Seconds after which the path is not followed. Without one a path that grows is given for three turns.
    most_events : int
        Cap on the number of breakpoints that are computed.

    Returns
    -------
    FluidPath

    Raises
    ------
    AssumptionViolated
        At a station that serves several classes first come, first served, and for joins.
    InvalidInput
        For a start or a horizon that is none.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> path = fluid_path(load_network("rybko-stolyar").fluid_model, {"A1": 1})
    >>> path.end.name, str(path.factor), str(path.cycle_factor), str(path.seconds), str(path.totals[-1])
    ('GROWING', '3/2', '9/4', '57/8', '27/8')
    """
    model = to_fluid_model(model)
    walker = Walker(model, start, horizon, most_events)
    return _path(model, walker.finish(next(walker.starts())))


def fluid_paths(
    model: FluidModel | Network,
    start: Start,
    *,
    horizon: Number | None = None,
    most_events: int = MOST_EVENTS,
    most_paths: int = MOST_PATHS,
) -> FluidPaths:
    """Follow the fluid from a start along every solution at every breakpoint, those that fork first first.

    Parameters and errors are those of `fluid_path`; ``most_paths`` caps the number of paths, `PATHS_WORK` what they
    take together.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> paths = fluid_paths(load_network("lu-kumar").fluid_model, {"1": 1})
    >>> [path.end.name for path in paths]
    ['EMPTY', 'GROWING']
    """
    require_whole("most_paths", most_paths, 1, "how many paths to follow")
    model = to_fluid_model(model)
    budget = _events_within(PATHS_WORK, model)
    walker = Walker(model, start, horizon, min(most_events, budget))
    waiting = deque(walker.starts())
    found: list[FluidPath] = []
    while waiting and len(found) < most_paths and (not found or walker.events < budget):
        found.append(_path(model, walker.finish(waiting.popleft(), waiting)))
    left = f"{len(waiting)} or more branches beyond the {len(found)} paths that were followed" if waiting else None
    if left is None and walker.open:
        left = "there may be solutions that were not found, or that branch off between two breakpoints"
    return FluidPaths(paths=tuple(found), complete=left is None, left=left)


def growing_path(
    model: FluidModel | Network,
    starts: Sequence[Start] | None = None,
    *,
    most_events: int = MOST_EVENTS,
    most_paths: int = MOST_PATHS,
) -> FluidPath | None:
    """The first path that grows, from any of the starts; None where none was found.

    Parameters
    ----------
    starts : sequence, optional
        By default each class alone with one task; classes that a symmetry of the network exchanges are tried once.

    See Also
    --------
    search_growth : says what was not looked for, too.
    """
    return search_growth(model, starts, most_events=most_events, most_paths=most_paths).path


def search_growth(
    model: FluidModel | Network,
    starts: Sequence[Start] | None = None,
    *,
    most_events: int = MOST_EVENTS,
    most_paths: int = MOST_PATHS,
) -> GrowthSearch:
    """Look for a path that grows, start by start, as long as `SEARCH_WORK` lasts.

    Parameters and errors are those of `growing_path`; a network of too many classes is left out, not refused.
    """
    model = to_fluid_model(model)
    require_priorities(model)
    if len(model.classes) > MOST_CLASSES:
        return GrowthSearch(left=f"growing fluid paths were not looked for beyond {MOST_CLASSES} classes")
    known: KnownRates = {}
    chosen = tuple(_unit_starts(model)) if starts is None else tuple(starts)
    budget = most = _events_within(SEARCH_WORK, model)
    for number, start in enumerate(chosen, 1):
        walker = Walker(model, start, None, min(most_events, budget), known)
        path = _first_growing(walker, most_paths, budget)
        if path is not None:
            return GrowthSearch(path=path)
        budget -= walker.events
        if budget <= 0 and number < len(chosen):
            return GrowthSearch(
                left=f"growing fluid paths were looked for from the first {number} of {len(chosen)} starts alone, "
                f"after which the search had taken {most} events"
            )
    return GrowthSearch()


def _first_growing(walker: Walker, most_paths: int, most_events: int) -> FluidPath | None:
    """The first path from one start that grows, among so many paths and until so many events have been computed."""
    waiting = deque(walker.starts())
    for _ in range(most_paths):
        if not waiting or walker.events >= most_events:
            break
        path = _path(walker.model, walker.finish(waiting.popleft(), waiting))
        if path.end.grows:
            return path
    return None


def _events_within(work: int, model: FluidModel) -> int:
    """Events that may be computed for so much work."""
    return max(1, work // len(model.classes) ** 2) if model.classes else 1


def _path(model: FluidModel, walk: EndedWalk) -> FluidPath:
    return FluidPath(
        model=model,
        breakpoints=walk.breakpoints,
        accumulations=walk.accumulations,
        end=walk.end,
        turn=walk.turn,
        slope=walk.slope,
    )


def _work_per_task(model: FluidModel) -> Vector:
    """w = m + P w: seconds of service, of all stations together, that a task of each class needs until it leaves."""
    try:
        return solve(model.routing, model.service, [range(len(model.classes))], Work(math.inf))
    except NotPositive:
        raise InvalidInput(
            "route: some tasks can never leave the network; give each cycle of routes a way out"
        ) from None


def _unit_starts(model: FluidModel) -> Iterator[Start]:
    symmetries = automorphisms(model)
    for k, name in enumerate(model.classes):
        if all(k <= relabelling[k] for relabelling in symmetries):
            yield {name: 1}


def _local_maxima(points: Sequence[Breakpoint], values: Sequence[Fraction]) -> tuple[tuple[Fraction, Fraction], ...]:
    found = []
    for i, (point, value) in enumerate(zip(points[:-1], values, strict=False)):
        if values[i + 1] < value and (i == 0 or values[i - 1] <= value):
            found.append((point.time, value))
    return tuple(found)
