"""The requests of one run, on the ticks of its clock: sampled from a workload or taken from a trace."""

from __future__ import annotations

from fractions import Fraction
from functools import singledispatch

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InfeasibleRequest, InvalidInput
from queuetheory_llm.model.arrivals import (
    Arrivals,
    ConstantInterval,
    DeterministicArrivals,
    ExponentialInterval,
    IntervalLaw,
    PoissonArrivals,
    RenewalArrivals,
    SlottedArrivals,
)
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.trace import Trace
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.simulation.clock import LAST_TICK, Clock

Ticks = NDArray[np.int64]

#: Most requests of one run; they take about 100 bytes each.
MOST_REQUESTS = 50_000_000
_CHUNK = 4096  # intervals drawn at a time


def read_only(values: object) -> Ticks:
    """``values`` as an array that nobody can write to: a copy, or the array itself if it has been `sealed`."""
    if (
        isinstance(values, np.ndarray)
        and values.dtype == np.int64
        and values.base is None
        and not values.flags.writeable
    ):
        return values
    return sealed(np.array(values, dtype=np.int64))


def sealed(array: Ticks) -> Ticks:
    """The array itself, written for the last time: runs of millions of requests are handed on without a copy."""
    array.setflags(write=False)
    return array


@attrs.frozen(kw_only=True, eq=False)
class Requests:
    """Requests in order of arrival; request i is entry i of every array.

    Attributes
    ----------
    arrival : int64 array of shape (n,)
        Ticks, non-decreasing, at least 0.
    prefill, decode : int64 arrays of shape (n,)
        Tokens v_p and v_d, not both 0.
    source : str
        Where they come from, for messages.
    """

    arrival: Ticks = attrs.field(converter=read_only)
    prefill: Ticks = attrs.field(converter=read_only)
    decode: Ticks = attrs.field(converter=read_only)
    source: str = "workload"

    def __attrs_post_init__(self) -> None:
        """Check shapes, signs and order."""
        if not self.arrival.shape == self.prefill.shape == self.decode.shape or self.arrival.ndim != 1:
            raise InvalidInput("arrival, prefill, decode: need three arrays of one length", source=self.source)
        empty = np.flatnonzero((self.prefill < 0) | (self.decode < 0) | (self.prefill + self.decode == 0))
        if empty.size:
            raise InvalidInput(
                f"request {empty[0]}: token counts must be non-negative and not both 0", source=self.source
            )
        if len(self) and (self.arrival[0] < 0 or bool((np.diff(self.arrival) < 0).any())):
            raise InvalidInput("arrival: times must be non-negative and sorted", source=self.source)

    def __len__(self) -> int:
        return int(self.arrival.size)

    def take(self, rows: NDArray[np.int64]) -> Requests:
        """The requests of some rows, in increasing order."""
        return Requests(
            arrival=self.arrival[rows], prefill=self.prefill[rows], decode=self.decode[rows], source=self.source
        )

    @property
    def work(self) -> Ticks:
        """Tokens of each request, v_p + v_d."""
        return self.prefill + self.decode

    def require_feasible(self, scheduler: Scheduler, engine: Engine) -> None:
        """Refuse a prompt that the rule can never serve.

        Raises
        ------
        InfeasibleRequest
            If the rule takes prompts whole and one is beyond its budget; the first such request is named.
        """
        longest = scheduler.longest_prompt(engine.b_max) if isinstance(scheduler, Policy) else None
        if longest is None:
            return
        beyond = np.flatnonzero(self.prefill > longest)
        if beyond.size:
            first = int(beyond[0])
            limit = f"b_max = {engine.b_max}" if longest == engine.b_max else f"the rule's budget of {longest}"
            more = f" (and {beyond.size - 1} more like it)" if beyond.size > 1 else ""
            raise InfeasibleRequest(
                f"request {first}: prompt of {self.prefill[first]} tokens never fits a batch of {scheduler.name} "
                f"with {limit}{more}; use {scheduler.name}+chunk or raise b_max",
                source=self.source,
            )


@singledispatch
def fixed_times(arrivals: Arrivals) -> set[Fraction]:
    """Seconds whose whole multiples are the times of a process that are not random."""
    del arrivals
    return set()


@fixed_times.register
def _fixed_interval(arrivals: DeterministicArrivals) -> set[Fraction]:
    return {arrivals.interval}


@fixed_times.register
def _fixed_renewal(arrivals: RenewalArrivals) -> set[Fraction]:
    return {arrivals.interval.mean} if isinstance(arrivals.interval, ConstantInterval) else set()


@fixed_times.register
def _fixed_slots(arrivals: SlottedArrivals) -> set[Fraction]:
    return {arrivals.slot}


def sample(workload: Workload, clock: Clock, horizon: Fraction, rng: np.random.Generator) -> Requests:
    """The requests that arrive strictly before ``horizon`` seconds.

    Times and lengths are drawn from two streams spawned from ``rng``: the lengths of a law do not move the times.

    Raises
    ------
    InvalidInput
        If the workload has no arrival process, or more than `MOST_REQUESTS` are to be expected.
    """
    if workload.arrivals is None:
        raise InvalidInput("workload: rate: missing; give the workload a rate, or --rate R")
    expected = workload.arrivals.rate * horizon
    if expected > MOST_REQUESTS:
        raise InvalidInput(
            f"horizon: about {float(expected):.3g} requests would arrive, more than the {MOST_REQUESTS} of one run; "
            "give a shorter --horizon or a lower rate"
        )
    for_times, for_lengths = rng.spawn(2)
    arrival = arrival_ticks(workload.arrivals, clock, horizon, for_times)
    prefill, decode = workload.sample(for_lengths, arrival.size)
    return Requests(arrival=sealed(arrival), prefill=sealed(prefill), decode=sealed(decode))


@singledispatch
def arrival_ticks(arrivals: Arrivals, clock: Clock, horizon: Fraction, rng: np.random.Generator) -> Ticks:
    """Ticks of the arrivals strictly before ``horizon`` seconds, in order."""
    del clock, horizon, rng
    raise InvalidInput(f"workload.arrivals: {type(arrivals).__name__} cannot be sampled; use a known process")


@arrival_ticks.register
def _deterministic(arrivals: DeterministicArrivals, clock: Clock, horizon: Fraction, rng: np.random.Generator) -> Ticks:
    del rng
    return _multiples(arrivals.interval, 0, clock, horizon)


@arrival_ticks.register
def _poisson(arrivals: PoissonArrivals, clock: Clock, horizon: Fraction, rng: np.random.Generator) -> Ticks:
    return _renewals(ExponentialInterval(mean=1 / arrivals.rate), clock, horizon, rng)


@arrival_ticks.register
def _renewal(arrivals: RenewalArrivals, clock: Clock, horizon: Fraction, rng: np.random.Generator) -> Ticks:
    if isinstance(arrivals.interval, ConstantInterval):
        return _multiples(arrivals.interval.mean, 1, clock, horizon)
    return _renewals(arrivals.interval, clock, horizon, rng)


@arrival_ticks.register
def _slotted(arrivals: SlottedArrivals, clock: Clock, horizon: Fraction, rng: np.random.Generator) -> Ticks:
    starts = _multiples(arrivals.slot, 0, clock, horizon)
    return np.repeat(starts, arrivals.per_slot.sample(rng, starts.size))


def _multiples(step: Fraction, first: int, clock: Clock, horizon: Fraction) -> Ticks:
    """first*step, (first + 1)*step, ... before the horizon, each rounded by itself: errors do not add up."""
    last = -(-horizon // step)  # multiples below it are below the horizon, but one may be rounded to it
    if (step * clock.rate).denominator == 1:
        return np.arange(first, last, dtype=np.int64) * clock.ticks(step)
    ticks = np.array([clock.ticks(index * step) for index in range(first, last)], dtype=np.int64)
    return ticks[ticks < clock.bound(horizon)]


def _renewals(law: IntervalLaw, clock: Clock, horizon: Fraction, rng: np.random.Generator) -> Ticks:
    """Sums of independent intervals; the first request comes after the first interval."""
    end, now = float(horizon), 0.0
    parts: list[NDArray[np.float64]] = []
    while now < end:
        if len(parts) * _CHUNK > 2 * MOST_REQUESTS:  # bursts far above the mean rate, which was checked
            raise InvalidInput(
                f"workload.interval: more than {MOST_REQUESTS} requests arrive; lower its cv or the horizon"
            )
        times = now + np.cumsum(law.sample(rng, _CHUNK))
        parts.append(times)
        now = float(times[-1])
    times = np.concatenate(parts)
    ticks = np.rint(times[times < end] * clock.rate).astype(np.int64)
    return ticks[ticks < clock.bound(horizon)]


def replay(trace: Trace, clock: Clock, horizon: Fraction | None = None) -> Requests:
    """The requests of a trace at their recorded times, those strictly before ``horizon`` seconds.

    Raises
    ------
    InvalidInput
        If the trace has no requests with times, none before the horizon, or times beyond the clock.
    """
    recorded, lengths = trace.require_arrivals(), trace.require_rows()
    factor = trace.tick * clock.rate
    if int(recorded[-1]) * factor > LAST_TICK:
        raise clock.overflow()
    if factor.denominator == 1:
        arrival = recorded * factor.numerator
    else:
        arrival = np.array([round(int(tick) * factor) for tick in recorded], dtype=np.int64)
    within = len(trace) if horizon is None else int(np.searchsorted(arrival, clock.bound(horizon)))
    if not within:
        raise InvalidInput(
            f"no request arrives before the horizon; the first arrives at {clock.seconds(arrival[0]):g} s",
            source=trace.source,
        )
    return Requests(
        arrival=arrival[:within],
        prefill=lengths.prefill[:within],
        decode=lengths.decode[:within],
        source=trace.source,
    )
