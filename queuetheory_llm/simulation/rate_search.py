"""The largest stable rate by simulation, where theory has no closed form.

In overload the token backlog grows at a drift that is a smooth function of the rate, D(r) = r m - S(r), with m the
tokens of a request and S the tokens served per second; the threshold is its root. So the rate is not bisected:

1. *Search.* Runs from empty in overload measure D, and a secant step leads from two of them to the root.
2. *Confirmation.* A run from empty is overloaded until its backlog is large, goes on at the upper end of an interval
   about the root, then at the lower end. The upper end is shown unstable when the backlog grows there, the lower end
   stable when it falls there (Foster's condition, on a sample), each beyond its confidence interval. Otherwise the
   interval moves to the root between the two drifts, or the runs get longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, to_fraction, whole_fault
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.simulation.phases import Phase, PhasedRuns, Replay, stream_of
from queuetheory_llm.simulation.statistics import TokenDrift

MOST_REQUESTS = 20_000_000
_REPETITIONS = 60  # of a trace, where that is more
#: Requests of a replication in each phase, of the search and of the first confirmation, at a width of 1 %; fewer for
#: wider intervals, down to a tenth.
_SEARCH_REQUESTS, _CONFIRM_REQUESTS = 1_500, 4_000
_EXCESSES = (0.10, 0.04, 0.02)  # of the rates of the search above the root expected
_OVERLOAD = 0.05  # while the backlog is made
_ROUNDS = 24
_STUCK = 2  # times that runs four times as long have hardly narrowed an interval
_INSIDE = 0.45  # half of the interval that is tried, relative to the width asked for: a little is left for rounding
_CENTRAL = 0.2  # an interval that is shown is moved once more if the root is further than this off its middle

#: Told what has been found so far, in words.
Report = Callable[[str], None]


@attrs.frozen(kw_only=True)
class RateInterval:
    """An interval of rates about a threshold.

    Attributes
    ----------
    low, high : Fraction
        Requests/s: the largest rate shown stable, 0 if none; the smallest shown unstable, None if none.
    falling, growing : TokenDrift or None
        Of the token backlog in tokens/s, from a large backlog on, at ``low`` and at ``high``.
    confidence : float
        Of each of the two.
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
        With which the lower end is shown stable, and the upper end unstable.
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
    _check(width, confidence, seed, max_requests)
    start = to_fraction(overload)
    if start <= 0:
        raise InvalidInput(f"overload: {float(start):g} is not positive; give a rate that is certainly unstable")
    stream = stream_of(workload)
    runs = PhasedRuns(engine=engine, scheduler=scheduler, stream=stream, seed=seed, confidence=confidence)
    if max_requests is None:
        max_requests = max(MOST_REQUESTS, _REPETITIONS * stream.shape.size if isinstance(stream, Replay) else 0)
    search = _Search(runs=runs, width=width, budget=max_requests, report=report or (lambda _: None))
    return search.result(search.root(float(start)))


def _check(width: float, confidence: float, seed: int, max_requests: int | None) -> None:
    most = 1 if max_requests is None else max_requests
    whole = [
        whole_fault("seed", seed, 0, "the same for the same run"),
        whole_fault("max_requests", most, 1, "after which no further run starts"),
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
    runs: PhasedRuns
    width: float
    budget: int
    report: Report
    low: Fraction = Fraction(0)
    high: Fraction | None = None
    falling: TokenDrift | None = None
    growing: TokenDrift | None = None
    before: tuple[float, int] | None = None
    stuck: int = 0

    @property
    def tokens(self) -> float:
        return self.runs.stream.tokens

    def _for_width(self, requests: int) -> int:
        return math.ceil(requests * min(max(0.01 / self.width, 0.1), 1.0))

    def _overloaded(self, rate: float) -> TokenDrift:
        """Drift from empty, measured over the second half."""
        half = Phase(rate=_rounded(rate), requests=self.runs.sized(self._for_width(_SEARCH_REQUESTS), rate))
        return self.runs.drifts([half, half])[1].total

    def root(self, rate: float) -> float:
        """Where the drift in overload vanishes, by secant steps from above."""
        drift = self._overloaded(rate).mean
        guess = rate - drift / self.tokens
        for excess in _EXCESSES:
            before, rate = (rate, drift), max(guess, 1e-6 * rate) * (1 + excess)
            drift = self._overloaded(rate).mean
            slope = (drift - before[1]) / (rate - before[0]) if rate != before[0] else self.tokens
            guess = rate - drift / self._plausible(slope)
            self.report(f"at {rate:.5g} requests/s the backlog grows by {drift:.4g} tokens/s")
            if self.runs.requests > self.budget:
                break
        return guess

    def result(self, root: float) -> RateInterval:
        """Confirm an interval about the root."""
        requests, met, moved = self._for_width(_CONFIRM_REQUESTS), False, False
        for _ in range(_ROUNDS):
            if self.runs.requests > self.budget:
                break
            low, high = (_rounded(root * (1 + side * _INSIDE * self.width)) for side in (-1, 1))
            loading, growing, falling = self._confirm(low, high, requests)
            if loading.mean < _OVERLOAD * root * self.tokens / 4:  # no overload at all, so no backlog to measure
                self.report(f"at {float(high):.6g} requests/s no backlog forms")
                root *= 1 + _OVERLOAD
                continue
            self._note(low, high, growing, falling)
            met = growing.low > 0 and falling.high < 0
            self.report(f"between {float(low):.6g} and {float(high):.6g} requests/s: {'shown' if met else 'not yet'}")
            step = self._step(float(low), float(high), growing, falling)
            if met and (moved or abs(step) < _CENTRAL * self.width * root):
                break
            root, moved = root + step, met
            if self._disagree(max(each.high - each.mean for each in (growing, falling)), requests):
                self.low, self.high, self.falling, self.growing, met = Fraction(0), None, None, None, False
                break
            if growing.high >= 0 >= falling.low:  # neither end is beyond the root
                requests = self._longer(root, growing, falling, requests)
        notes = self.runs.stream.notes
        if self.high is not None and self.low >= self.high:
            self.low, self.high = self.high, self.low
            notes = (*notes, "between the two rates some runs grew and others fell: it depends on the start")
        if self.stuck == _STUCK:
            notes = (
                *notes,
                "replications differ however long they run: the drift, and so the edge, depends on the start",
            )
        if not met:
            done = self.runs.requests
            notes = (*notes, f"after {done} requests the interval is not confirmed at a width of {self.width:.3g}")
        return RateInterval(
            low=self.low,
            high=self.high,
            falling=self.falling,
            growing=self.growing,
            confidence=self.runs.confidence,
            met=met,
            requests=self.runs.requests,
            notes=notes,
        )

    def _plausible(self, slope: float) -> float:
        """A slope of the drift in the rate; far from that of a constant service rate it is noise."""
        return min(max(slope, 0.6 * self.tokens), 4 * self.tokens)

    def _confirm(self, low: Fraction, high: Fraction, requests: int) -> list[TokenDrift]:
        """Drifts while a backlog is made, then at ``high``, then at ``low``."""
        requests = self.runs.sized(requests, float(high))
        needed = self.width * requests + self.runs.stream.shortfall(2 * requests)
        load = Phase(rate=_rounded(float(high) * (1 + _OVERLOAD)), requests=math.ceil(needed / _OVERLOAD))
        phases = [load, Phase(rate=high, requests=requests), Phase(rate=low, requests=requests)]
        return [found.total for found in self.runs.drifts(phases)]

    def _note(self, low: Fraction, high: Fraction, growing: TokenDrift, falling: TokenDrift) -> None:
        """Keep the narrowest ends that were shown."""
        if falling.high < 0 and low > self.low:
            self.low, self.falling = low, falling
        if growing.low > 0 and (self.high is None or high < self.high):
            self.high, self.growing = high, growing

    def _disagree(self, reach: float, requests: int) -> bool:
        """Whether intervals that should halve have hardly narrowed, again and again."""
        before, self.before = self.before, (reach, requests)
        if before is not None and requests >= 4 * before[1]:
            self.stuck = self.stuck + 1 if reach > 0.6 * before[0] else 0
        return self.stuck == _STUCK

    def _step(self, low: float, high: float, growing: TokenDrift, falling: TokenDrift) -> float:
        """From the middle of the interval to the root between the two drifts, or beyond an end that it is beyond."""
        half = (high - low) / 2
        if growing.mean < 0:  # the backlog may be gone before the lower end is tried
            return half - growing.mean / self.tokens
        if falling.mean > 0:
            return -half - falling.mean / self.tokens
        slope = (growing.mean - falling.mean) / (high - low)
        return -(growing.mean + falling.mean) / 2 / self._plausible(slope)

    def _longer(self, root: float, growing: TokenDrift, falling: TokenDrift, requests: int) -> int:
        """Requests of a phase for the two drifts to be told from 0, were the root in the middle."""
        reach = max(each.high - each.mean for each in (growing, falling))
        wanted = 0.6 * _INSIDE * self.width * root * self.tokens
        return math.ceil(requests * min(max((reach / wanted) ** 2, 1.0), 8.0))


def _rounded(rate: float) -> Fraction:
    """A rate of few digits: exact arithmetic on it stays cheap."""
    return Fraction(rate).limit_denominator(10**7)
