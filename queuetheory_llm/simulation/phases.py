"""The drift of the backlogs in each phase of a run from a backlog of one's choice, through rates of one's choice.

The drift of a window is regressed on what arrived in it beyond its mean, which is known exactly: most of the noise of
a backlog is that of the arrivals. Under a rule that starts requests in order of arrival, so are the tokens of the
requests started, beyond the mean of as many (Wald). Intervals are Student's, over independent replications; over
repetitions of the trace where a trace is replayed with scaled gaps. The replications of different runs of one draw
share their random numbers, so that the difference of two drifts has little noise; another draw is independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.trace import Trace, TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import Requests, Ticks, sample
from queuetheory_llm.simulation.run import NEVER, Run
from queuetheory_llm.simulation.runner import run
from queuetheory_llm.simulation.statistics import TokenDrift, student

_REPLICATIONS = 10
_WINDOWS, _SETTLE = 12, 3  # windows of a phase, and how many of them are left out while batches settle to a new rate
_COPIES = 5  # repetitions of a trace in a phase, the first of which is left out
_SAMPLE = 10_000  # requests that tell how much the work of requests varies
_LIFETIMES = 20  # of a request that never waits, in a phase


@attrs.frozen(kw_only=True)
class Phase:
    """A stretch of a run at ``rate`` requests/s, long enough for about ``requests`` of them."""

    rate: Fraction
    requests: int


@attrs.frozen(kw_only=True)
class Backlog:
    """What is there at time 0: requests without a prompt, which are decodes, and behind them requests of the law."""

    decodes: int = 0
    prompts: int = 0


@attrs.frozen(kw_only=True)
class PhaseDrifts:
    """Growth in a phase, tokens/s.

    Attributes
    ----------
    total : TokenDrift
        Of the token backlog.
    prefill : TokenDrift
        Of the prompts that are not complete.
    decode : TokenDrift
        Of the decode tokens of requests past their prompts.
    """

    total: TokenDrift
    prefill: TokenDrift
    decode: TokenDrift


class Sampled:
    """What replications of requests from a law have in common, whatever a request is.

    Parameters
    ----------
    work : float
        Mean of a request, in units of the backlog.
    spread : float
        E[w^2]/E[w]^2 of the work w of a request.
    """

    replications = _REPLICATIONS
    windows, settle = _WINDOWS, _SETTLE
    notes: tuple[str, ...] = ()

    def __init__(self, work: float, spread: float) -> None:
        self.work, self.spread = work, spread

    def shortfall(self, expected: float) -> float:
        """Mean requests by which the work of some phases may fall below that of the ``expected`` number, for a time."""
        return 6 * math.sqrt(expected * self.spread)

    def edges(self, ticks: int, rng: np.random.Generator) -> Ticks:
        """Ends of the windows of a phase of ``ticks``; they start at random, to meet cycles of batches anywhere."""
        width = ticks // (self.windows + 1)
        return rng.integers(width) + width * np.arange(self.windows + 1, dtype=np.int64)


class Stream(Sampled):
    """Requests at a rate of one's choice, from a law: every replication is another sample."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.arrivals = PoissonArrivals(rate=1) if workload.arrivals is None else workload.arrivals
        self.means = np.array([1.0, float(workload.mean_prefill), float(workload.mean_decode)])
        work = float(workload.mean_tokens)
        lengths = np.sum(workload.sample(np.random.default_rng(0), _SAMPLE), axis=0)
        super().__init__(work, float(np.mean(lengths**2.0)) / work**2)

    def sized(self, requests: int) -> int:
        """Requests of a phase that is to have at least that many."""
        return requests

    def phase(self, phase: Phase, clock: Clock, rng: np.random.Generator) -> tuple[Requests, int]:
        """Its requests and how many ticks it lasts."""
        rate = whole_ticks(phase.rate, clock)
        seconds = Fraction(phase.requests) / rate
        workload = self.workload.with_arrivals(self.arrivals.with_rate(rate))
        return sample(workload, clock, seconds, rng), clock.bound(seconds)


def whole_ticks(rate: Fraction, clock: Clock) -> Fraction:
    """The nearest rate with a mean interval of whole ticks: regular arrivals have no other."""
    return Fraction(clock.rate, round(clock.rate / rate))


class Replay(Stream):
    """A trace, its gaps scaled to the rate, over and over; in a phase one repetition is one window."""

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
            "the threshold is that of this periodic stream: nothing is drawn, its drifts vary over repetitions alone",
        )

    def sized(self, requests: int) -> int:
        """See `Stream.sized`; whole repetitions."""
        del requests
        return int(self.shape.size) * _COPIES

    def shortfall(self, expected: float) -> float:
        """See `Stream.shortfall`."""
        del expected
        return 2 * self.swing + 10

    def edges(self, ticks: int, rng: np.random.Generator) -> Ticks:
        """See `Stream.edges`; whole repetitions."""
        del rng
        return ticks * np.arange(self.windows + 1, dtype=np.int64) // self.windows

    def phase(self, phase: Phase, clock: Clock, rng: np.random.Generator) -> tuple[Requests, int]:
        """See `Stream.phase`."""
        del rng
        each = self.shape.size
        copies = -(-phase.requests // each)
        period = clock.ticks(Fraction(each) / phase.rate)
        ticks = np.rint(self.shape * period).astype(np.int64)
        requests = Requests(
            arrival=(np.arange(copies, dtype=np.int64)[:, None] * period + ticks[None, :]).ravel(),
            prefill=np.tile(self.prefill, copies),
            decode=np.tile(self.decode, copies),
            source=self.source,
        )
        return requests, copies * period


def stream_of(workload: Workload) -> Stream:
    """The stream of a workload: its own process, Poisson where it has none."""
    arrivals = workload.arrivals
    return Replay(workload, arrivals.trace) if isinstance(arrivals, TraceArrivals) else Stream(workload)


@attrs.define(kw_only=True)
class PhasedRuns:
    """Runs of a rule on an engine through phases.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler
    stream : Stream
    seed : int

    Attributes
    ----------
    requests : int
        Requests run so far.
    """

    engine: Engine
    scheduler: Scheduler
    stream: Stream
    seed: int
    requests: int = attrs.field(default=0, init=False)

    @property
    def _in_order(self) -> bool:
        """Whether requests with a prompt are started in order of arrival: every policy does so."""
        return isinstance(self.scheduler, Policy)

    def sized(self, requests: int, rate: float) -> int:
        """Requests of a phase at ``rate``, at least so many that it lasts some lifetimes of a request."""
        longest = float(self.engine.batch_time.seconds(self.engine.slots)) * (self.stream.means[2] + 1)
        return self.stream.sized(max(requests, math.ceil(_LIFETIMES * longest * rate)))

    def drifts(
        self, phases: Sequence[Phase], backlog: Backlog | None = None, *, confidence: float, draw: int = 0
    ) -> list[PhaseDrifts]:
        """Drifts in each phase with their intervals, over all replications of a draw; from empty or from a backlog."""
        start = backlog or Backlog()
        rows = [self._replication(phases, start, [self.seed, draw, i]) for i in range(self.stream.replications)]
        return [self._estimate(phase, np.stack(each), confidence) for phase, *each in zip(phases, *rows, strict=True)]

    def _replication(self, phases: Sequence[Phase], backlog: Backlog, seeds: list[int]) -> list[Floats]:
        """For each phase, by window: growth of the three backlogs, then what they are regressed on, all per second."""
        span = sum((phase.requests / phase.rate for phase in phases), Fraction(0))
        clock = Clock.fit(generators(self.engine.batch_time, self.engine.b_max), 2 * span + 1000)
        rng = np.random.default_rng(seeds)
        for_backlog, *own = rng.spawn(1 + len(phases))
        parts, edges, now = [(self._waiting(backlog, for_backlog), 0)], [], 0
        for phase, each in zip(phases, own, strict=True):
            requests, ticks = self.stream.phase(phase, clock, each)
            parts.append((requests, now))
            edges.append(now + self.stream.edges(ticks, each))
            now += ticks
        whole = _joined(parts)
        watch = np.unique(np.concatenate(edges))
        done = run(self.engine, self.scheduler, whole, clock, until=now, watch=watch)
        self.requests += len(whole)
        return [self._windows(done, phase, edge) for phase, edge in zip(phases, edges, strict=True)]

    def _waiting(self, backlog: Backlog, rng: np.random.Generator) -> Requests:
        prefill, decode = self.stream.workload.sample(rng, backlog.decodes + backlog.prompts)
        prefill[: backlog.decodes] = 0
        some = prefill + decode > 0
        return Requests(
            arrival=np.zeros(np.count_nonzero(some), dtype=np.int64), prefill=prefill[some], decode=decode[some]
        )

    def _windows(self, done: Run, phase: Phase, edge: Ticks) -> Floats:
        requests, at = done.requests, np.searchsorted(done.series.ticks, edge)
        seconds = np.diff(edge) / done.clock.rate
        totals = [np.concatenate([[0], np.cumsum(each)]) for each in (requests.prefill, requests.decode)]
        come = np.searchsorted(requests.arrival, edge, side="right")
        arrived = np.stack([come, *(total[come] for total in totals)])
        past = _past_prompt(done, edge)
        backlog = done.series.backlog[at]
        prompts, held = arrived[1] - past[0], arrived[2] - past[1]
        rows = [backlog, prompts, backlog - prompts - held]
        excess = [np.diff(arrived) / seconds - float(phase.rate) * self.stream.means[:, None]]
        if self._in_order and requests.prefill.all():
            begun = come - done.series.waiting[at]
            started = np.stack([np.diff(total[begun]) for total in totals])
            excess.append((started - self.stream.means[1:, None] * np.diff(begun)) / seconds)
        return np.vstack([np.diff(np.stack(rows)) / seconds, *excess])[:, self.stream.settle :]

    def _estimate(self, phase: Phase, rows: Floats, confidence: float) -> PhaseDrifts:
        """From rows of shape (replications, 3 + what is regressed on, windows)."""
        excess = rows[:, 3:]
        measured = float(phase.requests / phase.rate) * rows.shape[2] / (self.stream.windows + 1)
        total, prefill, decode = (
            regressed_drift(rows[:, index], excess, self.engine.b_max / measured, confidence) for index in range(3)
        )
        return PhaseDrifts(total=total, prefill=prefill, decode=decode)


def regressed_drift(growth: Floats, excess: Floats, resolution: float, confidence: float) -> TokenDrift:
    """Mean growth of windows, free of what is known to come of the noise of the arrivals.

    Parameters
    ----------
    growth : float array of shape (replications, windows)
        Growth of the backlog per second.
    excess : float array of shape (replications, variables, windows)
        What it is regressed on: known to have mean 0.
    resolution : float
        The interval is no narrower to each side, where all replications agree: one batch over the time measured.
    confidence : float
        Of the interval.
    """
    if len(growth) > 1:
        centred = excess - excess.mean(axis=2, keepdims=True)
        slopes, *_ = np.linalg.lstsq(
            centred.transpose(0, 2, 1).reshape(-1, excess.shape[1]),
            (growth - growth.mean(axis=1, keepdims=True)).ravel(),
            rcond=1e-8,
        )
        values = growth.mean(axis=1) - excess.mean(axis=2) @ slopes
    else:  # repetitions of one trace bring the same
        values = growth[0]
    mean, spread = student(values, confidence)
    reach = max(spread, resolution)
    return TokenDrift(mean=mean, low=mean - reach, high=mean + reach)


def _past_prompt(done: Run, edge: Ticks) -> Ticks:
    """Prompt and decode tokens of the requests past their prompts at each tick of ``edge``; shape (2, edges)."""
    requests = done.requests
    when = np.where(requests.prefill > 0, done.last_prefill, requests.arrival)
    known = np.flatnonzero(when != NEVER)
    order = known[np.argsort(when[known], kind="stable")]
    count = np.searchsorted(when[order], edge, side="right")
    return np.stack(
        [np.concatenate([[0], np.cumsum(each[order])])[count] for each in (requests.prefill, requests.decode)]
    )


def _joined(parts: Sequence[tuple[Requests, int]]) -> Requests:
    """Requests of successive parts, each shifted to its start."""
    return Requests(
        arrival=np.concatenate([requests.arrival + start for requests, start in parts]),
        prefill=np.concatenate([requests.prefill for requests, _ in parts]),
        decode=np.concatenate([requests.decode for requests, _ in parts]),
        source=parts[-1][0].source,
    )
