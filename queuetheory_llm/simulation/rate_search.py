"""The largest stable rate by simulation, where theory has no closed form.

In overload the token backlog grows at a drift that is a smooth function of the rate, D(r) = r m - S(r), with m the
tokens of a request and S the tokens served per second; the threshold is its root. So the rate is not bisected:

1. *Search.* Runs from empty in overload measure D, and a secant step leads from two of them to the root. The runs share
   their random numbers, so that D(r) - D(r') has little noise.
2. *Confirmation.* A run from empty is overloaded until its backlog is large, goes on at the upper end of an interval
   about the root, then at the lower end. The upper end is shown unstable when the backlog grows there, the lower end
   stable when it falls there (Foster's condition, on a sample), each beyond its confidence interval. Otherwise the
   interval moves to the root between the two drifts, or the runs get longer.

The drift of a window is regressed on what arrived in it beyond its mean, which is known exactly: most of the noise of
a backlog is that of the arrivals. Under a rule that starts requests in order of arrival, so are the tokens of the
requests started, beyond the mean of as many (Wald). Intervals are Student's, over independent replications; over
repetitions of the trace where a trace is replayed with scaled gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, to_fraction
from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.trace import Trace, TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import Requests, Ticks, sample
from queuetheory_llm.simulation.statistics import Drift

Floats = NDArray[np.float64]

REPLICATIONS = 10
WINDOWS = 12  # of a phase, the first three of which are left out while the batches settle to a new rate
MOST_REQUESTS = 20_000_000
_SETTLE = 3
_SEARCH_REQUESTS = 1_500  # of a replication in a run of the search
_CONFIRM_REQUESTS = 4_000  # of a replication in each phase of the first confirmation
_EXCESSES = (0.10, 0.04, 0.02)  # of the rates of the search above the root expected
_OVERLOAD = 0.05  # while the backlog is made
_ROUNDS = 24
_LIFETIMES = 20  # of a request that never waits, in a phase
_INSIDE = 0.45  # half of the interval that is tried, relative to the width asked for: a little is left for rounding
_CENTRAL = 0.2  # an interval that is shown is moved once more if the root is further than this off its middle
_COPIES = 5  # repetitions of a trace in a phase, the first of which is left out

#: Told what has been found so far, in words.
Report = Callable[[str], None]


@attrs.frozen(kw_only=True)
class RateInterval:
    """An interval of rates about a threshold.

    Attributes
    ----------
    low, high : Fraction
        Requests/s: the largest rate shown stable, 0 if none; the smallest shown unstable, None if none.
    falling, growing : Drift or None
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
    falling: Drift | None
    growing: Drift | None
    confidence: float
    met: bool
    requests: int
    notes: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Phase:
    """A stretch of a run at one rate, with a number of requests to expect; ``measured`` or only passed through."""

    rate: Fraction
    requests: int
    measured: bool = True


def search_rate(
    engine: Engine,
    scheduler: Scheduler,
    workload: Workload,
    *,
    overload: Number,
    width: float = 0.01,
    confidence: float = 0.99,
    seed: int = 0,
    max_requests: int = MOST_REQUESTS,
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
    max_requests : int
        No further run starts once this many requests have been run.
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
    stream = _stream(workload)
    runs = _Runs(engine=engine, scheduler=scheduler, stream=stream, seed=seed, confidence=confidence)
    search = _Search(runs=runs, width=width, budget=max_requests, report=report or (lambda _: None))
    return search.result(search.root(float(start)))


def _check(width: float, confidence: float, seed: int, max_requests: int) -> None:
    faults = []
    if not 1e-4 <= width <= 0.5:
        faults.append(f"width: {width:g} is outside 0.0001 .. 0.5; it is relative to the rate")
    if not 0.5 <= confidence < 1:
        faults.append(f"confidence: {confidence:g} is outside 0.5 .. 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        faults.append(f"seed: {seed!r} is no whole number from 0 on; give one, the same for the same run")
    if max_requests < 1:
        faults.append(f"max_requests: {max_requests} is below 1")
    if faults:
        raise InvalidInput(faults)


# ----------------------------------------------------------------------------------------------------- what arrives


class _Stream:
    """Requests at a rate of one's choice, from a law: every run is another sample."""

    replications = REPLICATIONS
    windows, settle = WINDOWS, _SETTLE
    notes: tuple[str, ...] = ()

    def __init__(self, workload: Workload) -> None:
        arrivals = PoissonArrivals(rate=1) if workload.arrivals is None else workload.arrivals
        self.workload, self.arrivals = workload, arrivals
        self.means = np.array([1.0, float(workload.mean_prefill), float(workload.mean_decode)])
        self.tokens = float(workload.mean_tokens)

    def sized(self, requests: int) -> int:
        """Requests of a phase that is to have about that many."""
        return requests

    def loading(self, expected: float) -> float:
        """Requests by which a phase may fall below its mean number beyond ``expected``."""
        return 6 * math.sqrt(expected)

    def phase(self, phase: Phase, clock: Clock, rng: np.random.Generator) -> tuple[Requests, int]:
        """Its requests and how many ticks it lasts."""
        seconds = Fraction(phase.requests) / phase.rate
        workload = self.workload.with_arrivals(self.arrivals.with_rate(phase.rate))
        return sample(workload, clock, seconds, rng), clock.bound(seconds)


class _Replay(_Stream):
    """A trace, its gaps scaled to the rate, over and over; one repetition is one window."""

    replications = 1
    windows, settle = _COPIES, 1

    def __init__(self, workload: Workload, trace: Trace) -> None:
        super().__init__(workload)
        rows, times = trace.require_rows(), trace.require_arrivals()
        self.source = trace.source
        self.prefill, self.decode = rows.prefill, rows.decode
        gaps = (times - times[0]).astype(np.float64)
        #: Arrivals as a share of a repetition, which ends one mean gap after the last of them.
        self.shape = gaps / gaps[-1] * ((len(trace) - 1) / len(trace))
        self.swing = float(np.ptp(np.arange(len(trace)) - self.shape * len(trace)))
        self.notes = (
            f"{trace.source}: its {len(trace)} requests are repeated end to end, a mean gap apart, their gaps scaled; "
            f"the threshold is that of this periodic stream",
        )

    def sized(self, requests: int) -> int:
        del requests
        return int(self.shape.size) * _COPIES

    def loading(self, expected: float) -> float:
        del expected
        return 2 * self.swing + 10

    def phase(self, phase: Phase, clock: Clock, rng: np.random.Generator) -> tuple[Requests, int]:
        del rng
        each = self.shape.size
        copies = -(-phase.requests // each)
        period = clock.ticks(Fraction(each) / phase.rate)
        ticks = np.rint(self.shape * period).astype(np.int64)
        arrival = (np.arange(copies, dtype=np.int64)[:, None] * period + ticks[None, :]).ravel()
        requests = Requests(
            arrival=arrival,
            prefill=np.tile(self.prefill, copies),
            decode=np.tile(self.decode, copies),
            source=self.source,
        )
        return requests, copies * period


def _stream(workload: Workload) -> _Stream:
    arrivals = workload.arrivals
    return _Replay(workload, arrivals.trace) if isinstance(arrivals, TraceArrivals) else _Stream(workload)


# ------------------------------------------------------------------------------------------------------ what is run


@attrs.define(kw_only=True)
class _Runs:
    """Runs through phases, and the drift in each."""

    engine: Engine
    scheduler: Scheduler
    stream: _Stream
    seed: int
    confidence: float
    requests: int = 0

    def drifts(self, phases: Sequence[Phase]) -> list[Drift]:
        """Drift of the token backlog in each measured phase, tokens/s, over all replications."""
        rows = [self._replication(phases, index) for index in range(self.stream.replications)]
        return [self._estimate(np.stack(each)) for each in zip(*rows, strict=True)]

    def _replication(self, phases: Sequence[Phase], index: int) -> list[Floats]:
        """For each measured phase, by window: growth of the backlog, then what it is regressed on, all per second."""
        spans = Fraction(sum(phase.requests for phase in phases)) / min(phase.rate for phase in phases)
        clock = Clock.fit(generators(self.engine.batch_time, self.engine.b_max), 2 * spans)
        rng = np.random.default_rng([self.seed, index])
        parts, edges, now = [], [], 0
        for phase, own in zip(phases, rng.spawn(len(phases)), strict=True):
            requests, ticks = self.stream.phase(phase, clock, own)
            parts.append((requests, now))
            edges.append(now + ticks * np.arange(self.stream.windows + 1, dtype=np.int64) // self.stream.windows)
            now += ticks
        whole = _joined(parts)
        done = run(self.engine, self.scheduler, whole, clock, until=now, watch=np.unique(np.concatenate(edges)))
        self.requests += len(whole)
        series = done.series
        found = []
        for phase, edge in zip(phases, edges, strict=True):
            if phase.measured:
                at = np.searchsorted(series.ticks, edge)
                found.append(self._windows(phase, whole, clock, edge, series.backlog[at], series.waiting[at]))
        return found

    def _windows(
        self, phase: Phase, requests: Requests, clock: Clock, edge: Ticks, backlog: Ticks, waiting: Ticks
    ) -> Floats:
        means = self.stream.means
        totals = [np.concatenate([[0], np.cumsum(each)]) for each in (requests.prefill, requests.decode)]
        come = np.searchsorted(requests.arrival, edge, side="right")
        seconds = np.diff(edge) / clock.rate
        arrived = np.stack([np.diff(each) for each in (come, *(total[come] for total in totals))]) / seconds
        parts = [np.diff(backlog)[None, :] / seconds, arrived - float(phase.rate) * means[:, None]]
        if isinstance(self.scheduler, Policy):  # every policy starts requests in order of arrival
            begun = come - waiting
            started = np.stack([np.diff(total[begun]) for total in totals])
            parts.append((started - means[1:, None] * np.diff(begun)) / seconds)
        return np.vstack(parts)[:, self.stream.settle :]

    def _estimate(self, rows: Floats) -> Drift:
        """From rows of shape (replications, 1 + what is regressed on, windows)."""
        from scipy.stats import t

        growth, excess = rows[:, 0], rows[:, 1:]
        if len(rows) > 1:
            centred = excess - excess.mean(axis=2, keepdims=True)
            slopes, *_ = np.linalg.lstsq(
                centred.transpose(0, 2, 1).reshape(-1, excess.shape[1]),
                (growth - growth.mean(axis=1, keepdims=True)).ravel(),
                rcond=1e-8,
            )
            values = growth.mean(axis=1) - excess.mean(axis=2) @ slopes
        else:  # repetitions of one trace bring the same
            values = growth[0]
        mean = float(values.mean())
        reach = float(t.ppf((1 + self.confidence) / 2, len(values) - 1)) * float(values.std(ddof=1))
        return Drift(mean=mean, low=mean - reach / math.sqrt(len(values)), high=mean + reach / math.sqrt(len(values)))


def _joined(parts: Sequence[tuple[Requests, int]]) -> Requests:
    """The requests of successive phases, each shifted to its start."""
    return Requests(
        arrival=np.concatenate([requests.arrival + start for requests, start in parts]),
        prefill=np.concatenate([requests.prefill for requests, _ in parts]),
        decode=np.concatenate([requests.decode for requests, _ in parts]),
        source=parts[0][0].source,
    )


# ----------------------------------------------------------------------------------------------------------- search


@attrs.define(kw_only=True)
class _Search:
    runs: _Runs
    width: float
    budget: int
    report: Report
    low: Fraction = Fraction(0)
    high: Fraction | None = None
    falling: Drift | None = None
    growing: Drift | None = None

    @property
    def tokens(self) -> float:
        return self.runs.stream.tokens

    def _sized(self, requests: int, rate: float) -> int:
        """Requests of a phase, at least so many that it lasts some lifetimes."""
        engine = self.runs.engine
        longest = float(engine.batch_time.seconds(engine.slots)) * (self.runs.stream.means[2] + 1)
        return self.runs.stream.sized(max(requests, math.ceil(_LIFETIMES * longest * rate)))

    def _overloaded(self, rate: float) -> Drift:
        """Drift from empty, measured over the second half."""
        requests = self._sized(_SEARCH_REQUESTS, rate)
        exact = _rounded(rate)
        first = Phase(rate=exact, requests=requests, measured=False)
        return self.runs.drifts([first, Phase(rate=exact, requests=requests)])[0]

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
        requests, met, moved = _CONFIRM_REQUESTS, False, False
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
            if not met:
                requests = self._longer(root, growing, falling, requests)
        notes = self.runs.stream.notes
        if self.high is not None and self.low >= self.high:
            self.low, self.high = self.high, self.low
            notes = (*notes, "between the two rates some runs grew and others fell: it depends on the start")
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

    def _confirm(self, low: Fraction, high: Fraction, requests: int) -> list[Drift]:
        """Drifts while a backlog is made, then at ``high``, then at ``low``."""
        requests = self._sized(requests, float(high))
        needed = self.width * requests + self.runs.stream.loading(2 * requests)
        load = Phase(rate=_rounded(float(high) * (1 + _OVERLOAD)), requests=math.ceil(needed / _OVERLOAD))
        return self.runs.drifts([load, Phase(rate=high, requests=requests), Phase(rate=low, requests=requests)])

    def _note(self, low: Fraction, high: Fraction, growing: Drift, falling: Drift) -> None:
        """Keep the narrowest ends that were shown."""
        if falling.high < 0 and low > self.low:
            self.low, self.falling = low, falling
        if growing.low > 0 and (self.high is None or high < self.high):
            self.high, self.growing = high, growing

    def _step(self, low: float, high: float, growing: Drift, falling: Drift) -> float:
        """From the middle of the interval to the root between the two drifts."""
        slope = (growing.mean - falling.mean) / (high - low)
        return -(growing.mean + falling.mean) / 2 / self._plausible(slope)

    def _longer(self, root: float, growing: Drift, falling: Drift, requests: int) -> int:
        """Requests of a phase for the two drifts to be told from 0, were the root in the middle."""
        reach = max(each.high - each.mean for each in (growing, falling))
        wanted = 0.6 * _INSIDE * self.width * root * self.tokens
        return requests if reach <= wanted else math.ceil(requests * min(max((reach / wanted) ** 2, 1.5), 8.0))


def _rounded(rate: float) -> Fraction:
    """A rate of few digits: exact arithmetic on it stays cheap."""
    return Fraction(rate).limit_denominator(10**7)
