from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.errors import InfeasibleRequest, InvalidInput
from queuetheory_llm.model.arrivals import (
    BatchCount,
    ConstantInterval,
    DeterministicArrivals,
    ExponentialInterval,
    GammaInterval,
    PoissonArrivals,
    RenewalArrivals,
    SlottedArrivals,
    UniformInterval,
)
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric, ObservedLengths
from queuetheory_llm.model.trace import Trace
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import MOST_REQUESTS, Requests, arrival_ticks, fixed_times, replay, sample

PROCESSES = [
    PoissonArrivals(rate=3),
    DeterministicArrivals(interval="1/3 s"),
    RenewalArrivals(interval=UniformInterval(low="0.1 s", high="0.5 s")),
    RenewalArrivals(interval=GammaInterval(mean="0.25 s", cv=2)),
    RenewalArrivals(interval=ConstantInterval(mean="0.25 s")),
    SlottedArrivals(slot="0.5 s", law="poisson", mean=2),
    SlottedArrivals(slot="0.5 s", law="bernoulli", mean="0.25"),
    SlottedArrivals(slot="0.5 s", per_slot=BatchCount(values=[0, 1, 4], weights=["1/2", "1/4", "1/4"])),
]


def ticks_of(arrivals, horizon, seed=0):
    horizon = Fraction(horizon)
    clock = Clock.fit(fixed_times(arrivals), horizon)
    return clock, arrival_ticks(arrivals, clock, horizon, np.random.default_rng(seed))


@pytest.mark.parametrize("arrivals", PROCESSES, ids=lambda each: f"{each.kind}")
def test_arrivals_have_their_rate_and_stay_before_the_horizon(arrivals):
    clock, ticks = ticks_of(arrivals, 20_000)
    assert ticks.dtype == np.int64
    assert (np.diff(ticks) >= 0).all()
    assert ticks[0] >= 0
    assert ticks[-1] < 20_000 * clock.rate
    counts = np.histogram(ticks, bins=40, range=(0, 20_000 * clock.rate))[0] / 500
    error = counts.std(ddof=1) / 40**0.5 + 1e-3  # a regular process has no spread
    assert abs(counts.mean() - float(arrivals.rate)) < 4 * error


@pytest.mark.parametrize("arrivals", PROCESSES, ids=lambda each: f"{each.kind}")
def test_the_same_seed_gives_the_same_bytes(arrivals):
    workload = Workload.of(prefill=Geometric(mean=20), decode=Geometric(mean=5), arrivals=arrivals)
    clock = Clock.fit(fixed_times(arrivals), Fraction(100))
    first, again, other = (sample(workload, clock, Fraction(100), np.random.default_rng(s)) for s in (4, 4, 5))
    for name in ("arrival", "prefill", "decode"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
    assert first.prefill.tobytes() != other.prefill.tobytes()


def test_intervals_of_a_poisson_process_are_exponential():
    clock, ticks = ticks_of(PoissonArrivals(rate=3), 20_000)
    gaps = np.diff(ticks) / clock.rate
    for quantile in (0.1, 0.5, 0.9):
        share = (gaps <= -np.log(1 - quantile) / 3).mean()
        assert abs(share - quantile) < 4 * (quantile * (1 - quantile) / gaps.size) ** 0.5


def test_regular_arrivals_begin_at_zero_and_are_exact():
    clock, ticks = ticks_of(DeterministicArrivals(interval="1/3 s"), 1)
    assert [Fraction(int(tick), clock.rate) for tick in ticks] == [0, Fraction(1, 3), Fraction(2, 3)]
    clock, ticks = ticks_of(RenewalArrivals(interval=ConstantInterval(mean="0.25 s")), 1)
    assert ticks.tolist() == [250_000_000, 500_000_000, 750_000_000]


def test_rounded_arrivals_do_not_drift():
    arrivals = DeterministicArrivals(interval=Fraction(1, 998244353) + Fraction(1, 10**3))
    clock = Clock(rate=10**9)
    ticks = arrival_ticks(arrivals, clock, Fraction(10), np.random.default_rng(0))
    exact = [index * arrivals.interval for index in range(len(ticks))]
    assert max(abs(Fraction(int(t), clock.rate) - e) for t, e in zip(ticks, exact, strict=True)) <= Fraction(
        1, 2 * 10**9
    )


def test_slotted_arrivals_come_at_slot_starts_and_empty_slots_pass():
    arrivals = SlottedArrivals(slot="0.5 s", law="bernoulli", mean="0.25")
    clock, ticks = ticks_of(arrivals, 100)
    assert set(ticks % (clock.rate // 2)) == {0}
    assert (np.diff(ticks) > 0).all()
    engine = Engine(batch_time=Staircase(c=0, a="0.5 s", b0=4), b_max=4)
    requests = Requests(arrival=ticks, prefill=np.full(ticks.size, 1), decode=np.full(ticks.size, 0))
    done = run(engine, parse_scheduler("orca"), requests, clock, log=True)
    assert done.log.starts.tolist() == ticks.tolist()


def test_too_many_requests_are_refused():
    workload = Workload.of(prefill=1, decode=1, arrivals=PoissonArrivals(rate=10**9))
    with pytest.raises(InvalidInput, match=f"more than the {MOST_REQUESTS}"):
        sample(workload, Clock(rate=10**9), Fraction(1000), np.random.default_rng(0))
    bursts = RenewalArrivals(interval=GammaInterval(mean="1 s", cv=10**6))
    with pytest.raises(InvalidInput, match="lower its cv"):
        ticks_of(bursts, 1000)
    with pytest.raises(InvalidInput, match="--rate R"):
        sample(Workload.of(prefill=1, decode=1), Clock(rate=10**9), Fraction(1), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("arrival", "prefill", "decode", "complaint"),
    [
        ([0, 1], [1], [1], "one length"),
        ([0], [-1], [2], "request 0"),
        ([0, 0], [1, 0], [1, 0], "request 1"),
        ([1, 0], [1, 1], [1, 1], "sorted"),
        ([-1, 0], [1, 1], [1, 1], "non-negative"),
    ],
)
def test_requests_that_are_none_are_refused(arrival, prefill, decode, complaint):
    with pytest.raises(InvalidInput, match=f"here: .*{complaint}"):
        Requests(arrival=arrival, prefill=prefill, decode=decode, source="here")


def trace_of(arrivals, tick):
    lengths = ObservedLengths([5] * len(arrivals), [2] * len(arrivals))
    return Trace(
        lengths=lengths, arrivals=np.array(arrivals), tick=tick, source="t.csv", format="plain", first_token="as given"
    )


def test_a_trace_keeps_its_times_exactly():
    trace = trace_of([0, 1, 2, 7], Fraction(1, 3))
    clock = Clock.fit([trace.tick], Fraction(10))
    found = replay(trace, clock)
    assert [Fraction(int(tick), clock.rate) for tick in found.arrival] == [
        0,
        Fraction(1, 3),
        Fraction(2, 3),
        Fraction(7, 3),
    ]
    assert len(replay(trace, clock, Fraction(2, 3))) == 2
    rounded = replay(trace, Clock(rate=10**9))
    assert rounded.arrival.tolist() == [0, 333333333, 666666667, 2333333333]


def test_an_arrival_rounded_to_the_horizon_is_not_before_it():
    arrivals = DeterministicArrivals(interval="1.00000000060000000000001 s")
    clock, ticks = ticks_of(arrivals, "1.0000000007")
    assert clock.notes
    assert ticks.tolist() == [0]
    assert clock.ticks(arrivals.interval) == clock.bound(Fraction("1.0000000007"))


def test_a_trace_beyond_horizon_or_clock_is_refused():
    with pytest.raises(InvalidInput, match=r"t\.csv: no request arrives before the horizon; the first arrives at 5 s"):
        replay(trace_of([5], Fraction(1)), Clock(rate=10**9), Fraction(1))
    with pytest.raises(InvalidInput, match="64-bit clock"):
        replay(trace_of([0, 10**12], Fraction(1)), Clock(rate=10**9))


def test_a_prompt_that_never_fits_is_named_before_the_run():
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=8), b_max=8)
    requests = Requests(arrival=[0, 0, 1], prefill=[8, 9, 12], decode=[1, 1, 1], source="t.csv")
    with pytest.raises(InfeasibleRequest, match=r"t\.csv: request 1: prompt of 9 tokens .*b_max = 8 \(and 1 more"):
        run(engine, parse_scheduler("vllm-vanilla"), requests, Clock(rate=10**9))
    with pytest.raises(InfeasibleRequest, match="budget of 4"):
        run(engine, parse_scheduler("vllm-vanilla+target=4"), requests, Clock(rate=10**9))
    assert run(engine, parse_scheduler("vllm-vanilla+chunk"), requests, Clock(rate=10**9)).finished == 3


def test_a_run_that_outlives_the_clock_is_refused():
    engine = Engine(batch_time=Staircase(c=0, a=4 * 10**9, b0=8), b_max=8)
    requests = Requests(arrival=[0], prefill=[1], decode=[2])
    with pytest.raises(InvalidInput, match="last instant of a 64-bit clock"):
        run(engine, parse_scheduler("orca"), requests, Clock(rate=10**9))


def test_exponential_intervals_are_a_poisson_process():
    renewal = RenewalArrivals(interval=ExponentialInterval(mean="1/3 s"))
    assert ticks_of(renewal, 50)[1].tobytes() == ticks_of(PoissonArrivals(rate=3), 50)[1].tobytes()
