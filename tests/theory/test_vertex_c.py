"""Slopes of the token backlog where a rule fails: Dai et al. 2025, section 6.2, and engines beyond their thresholds.

The experiment of section 6.2 is CodeLlama-34B on one A100, at most 100 requests in a batch, one request of 290 + 990
tokens every 467.5 ms: load exactly at vertex C of the region, where filling every batch fails.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import Requests, sample
from queuetheory_llm.simulation.run import Run
from queuetheory_llm.simulation.runner import run
from queuetheory_llm.simulation.statistics import measure
from queuetheory_llm.stability.prefill_first import PrefillFirst
from queuetheory_llm.verdict import Verdict

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
INTERVAL = Fraction(4675, 10_000)
HORIZON = Fraction(1400)


def regular(engine: Engine, name: str, interval: Fraction, lengths: tuple[int, int], horizon: Fraction, **kept) -> Run:
    """Equal requests, one each interval from time 0 on, at exact times."""
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | {interval}, horizon)
    count = -(-horizon // interval)
    requests = Requests(
        arrival=np.arange(count) * clock.ticks(interval), prefill=[lengths[0]] * count, decode=[lengths[1]] * count
    )
    assert (interval * clock.rate).denominator == 1
    return run(engine, parse_scheduler(name), requests, clock, until=clock.bound(horizon), **kept)


def at_vertex_c(name: str, b_max: int, horizon: Fraction = HORIZON, **kept) -> Run:
    return regular(Engine(batch_time=CODELLAMA, b_max=b_max, k_max=100), name, INTERVAL, (290, 990), horizon, **kept)


def late_slope(done: Run) -> float:
    """(backlog(T) - backlog(T/2))/(T/2) in tokens/ms."""
    return done.series.since(done.until // 2).slope * done.clock.rate / 1000


@pytest.mark.parametrize(
    ("name", "b_max", "tokens_per_ms"),
    [
        ("orca", 128, 0.419),
        ("sarathi", 1024, 0.490),
        ("orca", 1024, 0.467),
        ("vllm-vanilla", 1024, 0.517),
        ("fastertransformer", 1024, 2.655),
        ("vllm-vanilla+chunk", 128, 0.620),
        ("fastertransformer+chunk", 128, 2.710),
    ],
)
def test_rules_that_fill_past_the_first_stair_diverge(name, b_max, tokens_per_ms):
    done = at_vertex_c(name, b_max)
    assert late_slope(done) == pytest.approx(tokens_per_ms, rel=0.002)
    measured = measure(done)
    assert measured.verdict is Verdict.UNSTABLE
    assert measured.drift.mean == pytest.approx(1000 * late_slope(done))
    assert measured.drift.low <= 1000 * late_slope(done) <= measured.drift.high


def test_sarathi_within_one_stair_stays_bounded():
    done = at_vertex_c("sarathi", 128, log=True)
    late = done.log.ends >= done.clock.ticks(HORIZON / 2)
    backlog = done.backlog(done.log.ends[late])
    assert backlog.max() < 130 * 1280
    assert abs(late_slope(done)) < 0.002
    assert measure(done).verdict is Verdict.UNDECIDED  # a regular stream at the limit: bounded, and not below it
    shapes = {(batch.prefill_tokens, len(batch.decode)) for batch in list(done.log)[-500:]}
    assert shapes == {(29, 99)}


@pytest.mark.parametrize("name", ["sarathi", "sarathi+target=128"])
def test_it_stays_bounded_for_a_thousand_times_as_long(name):
    """Two million requests at exactly vertex C, whether the engine or the rule stops at one stair."""
    done = at_vertex_c(name, 128 if name == "sarathi" else 1024, Fraction(1_000_000))
    present = len(done.requests) - done.finished
    assert len(done.requests) > 2_000_000
    assert present <= 101
    assert done.series.backlog.max() < 130 * 1280
    assert done.series.backlog[-2000:].std() < 1280


SECOND = Staircase(c="30 ms", a="5 ms", b0=64)


@pytest.mark.parametrize("rate", [7000, 7100, 7200])
@pytest.mark.parametrize("name", ["sarathi", "vllm-chunked"])
def test_between_full_batches_and_capacity_filling_fails(name, rate):
    """b_max = 513 and b0 = 64: F = 6840 < load < C = 7314.29 tokens/s; a rule that fills grows at load - F."""

    def slope(b_max, rule=name):
        engine = Engine(batch_time=SECOND, b_max=b_max)
        return 1000 * late_slope(regular(engine, rule, Fraction(200, rate), (100, 100), HORIZON))

    assert slope(513) == pytest.approx(rate - 6840, rel=0.02)
    assert abs(slope(512)) < 2
    assert abs(slope(513, f"{name}+target=512")) < 2


def test_a_regular_stream_may_never_meet_the_batches_that_overload_an_engine():
    """From empty, orca settles below full batches at 7000 tokens/s; a burst of 100 requests is never worked off."""
    engine = Engine(batch_time=SECOND, b_max=513)
    interval = Fraction(200, 7000)
    assert abs(late_slope(regular(engine, "orca", interval, (100, 100), HORIZON))) < 0.002
    clock = Clock(rate=7 * 10**9)
    count = int(HORIZON / interval)
    arrival = np.concatenate([np.zeros(100), np.arange(count) * clock.ticks(interval)])
    requests = Requests(arrival=arrival, prefill=[100] * arrival.size, decode=[100] * arrival.size)
    done = run(engine, parse_scheduler("orca"), requests, clock, until=clock.bound(HORIZON))
    assert 1000 * late_slope(done) == pytest.approx(7000 - 6840, rel=0.02)


def poisson(engine: Engine, lengths: tuple[int, int], rate: Fraction, horizon: Fraction, waiting: int = 0) -> Requests:
    """Requests on a clock of nanoseconds, after ``waiting`` more at time 0."""
    workload = Workload.of(prefill=lengths[0], decode=lengths[1], arrivals=PoissonArrivals(rate=rate))
    requests = sample(workload, clock_of(engine, horizon), horizon, np.random.default_rng(1))
    arrival = np.concatenate([np.zeros(waiting), requests.arrival])
    return Requests(arrival=arrival, prefill=[lengths[0]] * arrival.size, decode=[lengths[1]] * arrival.size)


def clock_of(engine: Engine, horizon: Fraction) -> Clock:
    return Clock.fit(generators(engine.batch_time, engine.b_max), horizon)


def random_run(engine: Engine, name: str, requests: Requests, horizon: Fraction) -> Run:
    clock = clock_of(engine, horizon)
    return run(engine, parse_scheduler(name), requests, clock, until=clock.bound(horizon))


@pytest.mark.parametrize("rate", [7000, 7100, 7200])
def test_the_same_drifts_under_poisson_arrivals(rate):
    """Over 1e8 ms within four standard errors, sqrt(rate) 200 tokens a root of a second, and within 15 %."""
    horizon = Fraction(100_000)
    requests = poisson(Engine(batch_time=SECOND, b_max=513), (100, 100), Fraction(rate, 200), horizon)
    error = math.sqrt(rate * 200 / float(horizon / 2))
    for b_max, name, growth in ((512, "sarathi", 0), (513, "sarathi", rate - 6840), (513, "orca", rate - 6840)):
        slope = 1000 * late_slope(random_run(Engine(batch_time=SECOND, b_max=b_max), name, requests, horizon))
        assert abs(slope - growth) < 4 * error
        assert b_max == 512 or slope == pytest.approx(growth, rel=0.15)


@pytest.mark.parametrize(("rate", "waiting"), [("13", 0), ("10.6", 60_000), ("10.4", 60_000)])
def test_vanilla_vllm_around_its_threshold(rate, waiting):
    """129 + 112 tokens, b_max = 512, Poisson: 10.497 requests/s, and 0.664 tokens/ms at 13.

    With decodes always waiting the backlog moves at rate m_d - r(rate), r what decodes get between busy periods of
    prefill. At 10.4 a long backlog falls, although a short run from empty grows.
    """
    engine, horizon = Engine(batch_time=CODELLAMA, b_max=512), Fraction(100_000)
    requests = poisson(engine, (129, 112), Fraction(rate), horizon, waiting)
    done = random_run(engine, "vllm-vanilla", requests, horizon)
    half = done.series.since(done.until // 2)
    assert half.decoding.min() >= 512
    steps = half.backlog[::100]
    increments = np.diff(steps) / (half.span / done.clock.rate / (steps.size - 1))
    error = increments.std(ddof=1) / math.sqrt(increments.size)
    formula = float(rate) * 112 - PrefillFirst(engine, 129, chunks=False).decode_rate(float(rate))
    assert abs(increments.mean() - formula) < 4 * error
    assert abs(formula) > 4 * error
    assert (formula > 0) == (float(rate) > 10.497)
    assert rate != "13" or late_slope(done) == pytest.approx(0.664, rel=0.02)
