"""The largest stable rate by simulation, where theory has no closed form.

In overload the backlog grows at a drift that is a smooth function of the rate, D(r) = r m - S(r), with m the work of a
request and S the work served per second; the threshold is its root. What is run, and what its work is, the search does
not need to know: tokens of an engine, seconds of a cluster (`dispatch_limits`). The rate is not bisected:

1. *Search.* Runs from empty in overload measure D, and a secant step leads from two of them to the root.
2. *Exploration.* A run from empty is overloaded until its backlog is large, goes on at the upper end of an interval
   about the root, then at the lower end. Where both drifts do not have their signs the interval moves to the root
   between them, or the runs get longer, until they are precise enough to place a last interval.
3. *Confirmation.* The same run with fresh random numbers, of a length fixed before it starts. The upper end is shown
   unstable when the backlog grows there, the lower end stable when it falls there (Foster's condition, on a sample),
   each beyond its confidence interval. Nothing else counts: exploration stops when it looks good, so its own intervals
   err far more often than they say.

The chance of an error is spent over the confirmations, since one that fails is followed by another: with confidence
1 - alpha the intervals of the first have level 1 - alpha/2, those of the second 1 - alpha/4, and so on. Each end is one
side of such an interval and independent of what led to it, so the chance that either end of any confirmation is wrong
is at most alpha/2 + alpha/4 + ... = alpha, whatever the search did (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, to_fraction, whole_fault
from queuetheory_llm.exact.rounding import short_fraction
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.simulation.phases import Phase, PhasedRuns, Replay, stream_of
from queuetheory_llm.simulation.statistics import TokenDrift

MOST_REQUESTS = 20_000_000
_REPETITIONS = 60  # of a trace, where that is more
#: Requests of a replication in each phase, of the search and of the first exploration, at a width of 1 %; fewer for
#: wider intervals, down to a tenth.
_SEARCH_REQUESTS, _EXPLORE_REQUESTS = 1_500, 4_000
_EXCESSES = (0.10, 0.04, 0.02)  # of the rates of the search above the root expected
_OVERLOAD = 0.05  # while the backlog is made
_ROUNDS = 24
_STUCK = 2  # times that runs four times as long have hardly narrowed an interval
_EXPLORING = 0.99  # level of the intervals of the search, which lead it and show nothing
_CLEAR = 0.45  # half-width at that level of the drifts of a confirmation, relative to their expected mean
_INSIDE = 0.45  # half of the interval that is tried, relative to the width asked for: a little is left for rounding

#: Told what has been found so far, in words.
Report = Callable[[str], None]


class Supply(Protocol):
    """What arrives in the runs of a search."""

    @property
    def work(self) -> float:
        """Mean work of a request, in units of the backlog."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say of it."""

    def shortfall(self, expected: float) -> float:
        """Mean requests by which the work of some phases may fall below that of the ``expected`` number, for a time."""


class Grown(Protocol):
    """What is known of a phase."""

    @property
    def total(self) -> TokenDrift:
        """Drift of the backlog."""


class PhaseRunner(Protocol):
    """A system that runs through phases at given rates, in replications, and measures its backlog in each.

    Runs of one ``draw`` share their random numbers; those of another are independent of them.
    """

    @property
    def stream(self) -> Supply:
        """What arrives."""

    @property
    def requests(self) -> int:
        """Requests run so far."""

    def sized(self, requests: int, rate: float) -> int:
        """Requests of a phase at ``rate`` that is to have at least so many, and to last long enough to be measured."""

    def drifts(self, phases: Sequence[Phase], /, *, confidence: float, draw: int = 0) -> Sequence[Grown]:
        """Drift in each phase of a run from empty, with intervals of that level over the replications."""


@attrs.frozen(kw_only=True)
class RateInterval:
    """An interval of rates about a threshold.

    Attributes
    ----------
    low, high : Fraction
        Requests/s: the largest rate shown stable, 0 if none; the smallest shown unstable, None if none.
    falling, growing : TokenDrift or None
        Of the backlog a second, from a large backlog on, at ``low`` and at ``high``; the level of their
        intervals is that of their confirmation, above ``confidence``.
    confidence : float
        That both ends are right, the backlog falling at ``low`` and growing at ``high``: over repetitions of the whole
        search, at most a share 1 - ``confidence`` returns an end that is not. As far as means over replications are
        normal; of a trace nothing is drawn, and it says how alike the repetitions are.
    met : bool
        Whether the interval is as narrow as was asked for.
    requests : int
        Requests run.
    notes : tuple of str
    """

    low: Fraction
    high: Fraction | None
    falling: TokenDrift | None
    growing: TokenDrift | None
    confidence: float
    met: bool
    requests: int
    notes: tuple[str, ...] = ()


def search_rate(
    engine: Engine,
    scheduler: Scheduler,
    workload: Workload,
    *,
    overload: Number,
    width: float = 0.01,
    confidence: float = 0.99,
    seed: int = 0,
    max_requests: int | None = None,
    report: Report | None = None,
) -> RateInterval:
    """Find the largest stable rate of a rule from empty.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler
    workload : Workload
        Arrivals of any kind, scaled to each rate that is tried; Poisson where it has none. A trace is repeated.
    overload : number
        A rate in requests/s that is certainly unstable, where the search starts.
    width : float
        Of the interval, relative to the rate.
    confidence : float
        That both ends are right, see `RateInterval`.
    seed : int
        The same seed gives the same interval.
    max_requests : int, optional
        No further run starts once this many requests have been run. By default `MOST_REQUESTS`, or 60 repetitions of
        a trace where that is more.
    report : callable, optional
        Told what has been found so far.

    Raises
    ------
    InvalidInput
        If an argument is out of range.
    InfeasibleRequest
        If the rule can never serve one of the requests.
    """
    check_search(width=width, confidence=confidence, seed=seed, max_requests=max_requests)
    start = to_fraction(overload)
    if start <= 0:
        raise InvalidInput(f"overload: {float(start):g} is not positive; give a rate that is certainly unstable")
    stream = stream_of(workload)
    runs = PhasedRuns(engine=engine, scheduler=scheduler, stream=stream, seed=seed)
    if max_requests is None:
        max_requests = max(MOST_REQUESTS, _REPETITIONS * stream.shape.size if isinstance(stream, Replay) else 0)
    return search_phases(
        runs, overload=float(start), width=width, confidence=confidence, budget=max_requests, report=report
    )


def search_phases(
    runs: PhaseRunner,
    *,
    overload: float,
    width: float,
    confidence: float,
    budget: int,
    report: Report | None = None,
    words: tuple[str, str] = ("requests", "tokens"),
    start: float | None = None,
) -> RateInterval:
    """Find the largest stable rate of whatever runs through phases.

    Parameters
    ----------
    runs : PhaseRunner
    overload : float
        A rate that is certainly unstable.
    width, confidence
        See `search_rate`; `check_search` has seen them.
    budget : int
        No further run starts once this many requests have been run.
    report : callable, optional
        Told what has been found so far.
    words : tuple of str
        What comes, and what its work is counted in, for reports.
    start : float, optional
        About where the threshold is, if that is known: exploration begins there, without a search.
    """
    told = report or (lambda _: None)
    search = _Search(runs=runs, width=width, confidence=confidence, budget=budget, report=told, words=words)
    return search.result(search.root(overload) if start is None else start)


def check_search(*, confidence: float, seed: int, width: float = 0.01, **requests: int | None) -> None:
    """The arguments of a search or of a measurement of drifts; ``requests`` by the names of theirs.

    Raises
    ------
    InvalidInput
        One fault for each that is out of range.
    """
    whole = [whole_fault("seed", seed, 0, "the same for the same run")]
    whole += [
        whole_fault(name, number, 1, "a number of requests") for name, number in requests.items() if number is not None
    ]
    faults = [fault for fault in whole if fault is not None]
    if not 1e-4 <= width <= 0.5:
        faults.append(f"width: {width:g} is outside 0.0001 .. 0.5; it is relative to the rate")
    if not 0.5 <= confidence < 1:
        faults.append(f"confidence: {confidence:g} is outside 0.5 .. 1")
    if faults:
        raise InvalidInput(faults)


@attrs.define(kw_only=True)
class _Search:
    runs: PhaseRunner
    width: float
    confidence: float
    budget: int
    report: Report
    words: tuple[str, str] = ("requests", "tokens")
    low: Fraction = Fraction(0)
    high: Fraction | None = None
    falling: TokenDrift | None = None
    growing: TokenDrift | None = None
    before: tuple[float, int] | None = None
    stuck: int = 0
    confirmations: int = 0
    depends: str = ""

    @property
    def work(self) -> float:
        return self.runs.stream.work

    @property
    def rates(self) -> str:
        return f"{self.words[0]}/s"

    def _for_width(self, requests: int) -> int:
        return math.ceil(requests * min(max(0.01 / self.width, 0.1), 1.0))

    def _overloaded(self, rate: float) -> TokenDrift:
        """Drift from empty, measured over the second half."""
        half = Phase(rate=short_fraction(rate), requests=self.runs.sized(self._for_width(_SEARCH_REQUESTS), rate))
        return self.runs.drifts([half, half], confidence=_EXPLORING)[1].total

    def root(self, rate: float) -> float:
        """Where the drift in overload vanishes, by secant steps from above."""
        drift = self._overloaded(rate).mean
        guess = rate - drift / self.work
        for excess in _EXCESSES:
            before, rate = (rate, drift), max(guess, 1e-6 * rate) * (1 + excess)
            drift = self._overloaded(rate).mean
            slope = (drift - before[1]) / (rate - before[0]) if rate != before[0] else self.work
            guess = rate - drift / self._plausible(slope)
            self.report(f"at {rate:.5g} {self.rates} the backlog grows by {drift:.4g} {self.words[1]}/s")
            if self.runs.requests > self.budget:
                break
        return guess

    def result(self, root: float) -> RateInterval:
        """Explore about the root, then confirm an interval."""
        met = self._search(root)
        notes = self.runs.stream.notes
        if self.depends:
            self.low, self.high, self.falling, self.growing = Fraction(0), None, None, None
            notes = (*notes, self.depends)
        if not met:
            done = self.runs.requests
            notes = (
                *notes,
                f"after {done} {self.words[0]} the interval is not confirmed at a width of {self.width:.3g}",
            )
        return RateInterval(
            low=self.low,
            high=self.high,
            falling=self.falling,
            growing=self.growing,
            confidence=self.confidence,
            met=met,
            requests=self.runs.requests,
            notes=notes,
        )

    def _search(self, root: float) -> bool:
        """Whether an interval about the root is confirmed; it may move on the way."""
        requests, ready = self._for_width(_EXPLORE_REQUESTS), False
        for _ in range(_ROUNDS):
            if self.runs.requests > self.budget or root <= 0:  # no rate at which the backlog falls is in reach
                return False
            low, high = (short_fraction(root * (1 + side * _INSIDE * self.width)) for side in (-1, 1))
            loading, growing, falling = self._drifts(low, high, requests, fresh=ready)
            if loading.mean < _OVERLOAD * root * self.work / 4:  # no overload at all, so no backlog to measure
                self.report(f"at {float(high):.6g} {self.rates} no backlog forms")
                root, ready = root * (1 + _OVERLOAD), False
                continue
            if ready and self._confirm(low, high, growing, falling):
                return True
            reach = max(each.high - each.mean for each in (growing, falling))
            if self.depends or (not ready and self._disagree(reach, requests)):
                return False
            half, step = _INSIDE * self.width * root, self._step(float(low), float(high), growing, falling)
            spread = (growing.mean - falling.mean) / 2
            ready = abs(step) < half and spread > reach
            if ready:
                requests = _longer(requests, reach / (_CLEAR * spread), least=1)
            elif growing.high >= 0 >= falling.low and spread <= reach:  # else an end is beyond the root: go there first
                requests = _longer(requests, reach / (half * self.work), least=2)
            root += step
        return False

    def _plausible(self, slope: float) -> float:
        """A slope of the drift in the rate; far from that of a constant service rate it is noise."""
        return min(max(slope, 0.6 * self.work), 4 * self.work)

    @property
    def _level(self) -> float:
        """Of the confirmation under way: what is left of the chance of an error is halved each time."""
        return 1 - (1 - self.confidence) * math.ldexp(1, -self.confirmations)

    def _drifts(self, low: Fraction, high: Fraction, requests: int, *, fresh: bool) -> list[TokenDrift]:
        """Drifts while a backlog is made, then at ``high``, then at ``low``; fresh ones for a confirmation."""
        requests = self.runs.sized(requests, float(high))
        needed = self.width * requests + self.runs.stream.shortfall(2 * requests)
        load = Phase(rate=short_fraction(float(high) * (1 + _OVERLOAD)), requests=math.ceil(needed / _OVERLOAD))
        phases = [load, Phase(rate=high, requests=requests), Phase(rate=low, requests=requests)]
        self.confirmations += fresh
        draw, level = (self.confirmations, self._level) if fresh else (0, _EXPLORING)
        return [found.total for found in self.runs.drifts(phases, confidence=level, draw=draw)]

    def _confirm(self, low: Fraction, high: Fraction, growing: TokenDrift, falling: TokenDrift) -> bool:
        """Whether both ends are shown by fresh runs; the narrowest ends of all confirmations are kept."""
        if falling.high < 0 and low > self.low:
            self.low, self.falling = low, falling
        if growing.low > 0 and (self.high is None or high < self.high):
            self.high, self.growing = high, growing
        met = growing.low > 0 > falling.high
        ends = f"between {float(low):.6g} and {float(high):.6g} {self.rates}"
        self.report(f"{ends}: {'shown' if met else 'not shown'}")
        if self.high is not None and self.low >= self.high:
            self.depends = "the backlog fell at a rate and grew at a lower one: it depends on the start"
        return met and not self.depends

    def _disagree(self, reach: float, requests: int) -> bool:
        """Whether intervals that should halve have hardly narrowed, again and again."""
        if self.before is None or requests >= 4 * self.before[1]:
            if self.before is not None:
                self.stuck = self.stuck + 1 if reach > 0.6 * self.before[0] else 0
            self.before = (reach, requests)
        if self.stuck == _STUCK:
            self.depends = "replications differ however long they run: the drift, and so the edge, depends on the start"
        return bool(self.depends)

    def _step(self, low: float, high: float, growing: TokenDrift, falling: TokenDrift) -> float:
        """From the middle of the interval to the root between the two drifts, or beyond an end that it is beyond."""
        half = (high - low) / 2
        if growing.mean < 0:  # the backlog may be gone before the lower end is tried
            return half - growing.mean / self.work
        if falling.mean > 0:
            return -half - falling.mean / self.work
        slope = (growing.mean - falling.mean) / (high - low)
        return -(growing.mean + falling.mean) / 2 / self._plausible(slope)


def _longer(requests: int, excess: float, *, least: float) -> int:
    """Requests after which intervals ``excess`` times too wide are narrow enough; at most four times as many."""
    return math.ceil(requests * min(max(excess**2, least), 4.0))
