"""The experiment of Dai et al. 2025, section 6.2: load exactly at vertex C, where filling every batch fails.

CodeLlama-34B on one A100, at most 100 requests in a batch, one request of 290 + 990 tokens every 467.5 ms.
"""

from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.statistics import measure
from queuetheory_llm.verdict import Verdict

LAW = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
INTERVAL = Fraction(4675, 10_000)
HORIZON = Fraction(1400)


def replayed(name, b_max, *, log=False):
    clock = Clock.fit(generators(LAW, b_max) | {INTERVAL}, HORIZON)
    count = -(-HORIZON // INTERVAL)
    requests = Requests(arrival=np.arange(count) * clock.ticks(INTERVAL), prefill=[290] * count, decode=[990] * count)
    engine = Engine(batch_time=LAW, b_max=b_max, k_max=100)
    return run(engine, parse_scheduler(name), requests, clock, until=clock.ticks(HORIZON), log=log)


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
    done = replayed(name, b_max)
    slope = done.series.since(done.until // 2).slope * done.clock.rate
    assert slope / 1000 == pytest.approx(tokens_per_ms, rel=0.002)
    measured = measure(done)
    assert measured.verdict is Verdict.UNSTABLE
    assert measured.drift.mean == pytest.approx(slope)
    assert measured.drift.low <= slope <= measured.drift.high


def test_sarathi_within_one_stair_stays_bounded():
    done = replayed("sarathi", 128, log=True)
    late = done.log.ends >= done.clock.ticks(HORIZON / 2)
    backlog = done.backlog(done.log.ends[late])
    assert backlog.max() < 130 * 1280
    assert abs(done.series.since(done.until // 2).slope * done.clock.rate) < 2
    assert measure(done).verdict is Verdict.STABLE
    shapes = {(batch.prefill_tokens, len(batch.decode)) for batch in list(done.log)[-500:]}
    assert shapes == {(29, 99)}


@pytest.mark.parametrize("rate", [7000, 7100, 7200])
def test_between_full_batches_and_capacity_filling_fails(rate):
    """b_max = 513 and b0 = 64: F = 6840 < load < C = 7314.29 tokens/s; a rule that fills grows at load - F."""
    law = Staircase(c="30 ms", a="5 ms", b0=64)
    interval = Fraction(200, rate)
    horizon = Fraction(1000)
    slopes = {}
    for b_max in (512, 513):
        clock = Clock.fit(generators(law, b_max) | {interval}, horizon)
        count = horizon // interval
        requests = Requests(
            arrival=[clock.ticks(index * interval) for index in range(count)],
            prefill=[100] * count,
            decode=[100] * count,
        )
        engine = Engine(batch_time=law, b_max=b_max)
        done = run(engine, parse_scheduler("sarathi"), requests, clock, until=clock.bound(horizon))
        slopes[b_max] = done.series.since(done.until // 2).slope * clock.rate
    assert abs(slopes[512]) < 2
    assert slopes[513] == pytest.approx(rate - 6840, rel=0.02)
