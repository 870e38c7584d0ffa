"""Speed of the reference runner: at least 10 000 batches a second of CPU time with 100 requests present."""

import time
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import Requests

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="reference runner")
LAW = Staircase(c="11.28 ms", a="35.47 ms", b0=128)


@pytest.mark.parametrize(
    ("name", "b_max", "backlog"),
    [("sarathi", 128, 0), ("vllm-chunked", 128, 0), ("orca", 1024, 0), ("sarathi", 128, 100_000)],
)
def test_batches_per_second(benchmark, name, b_max, backlog, figure):
    """290 + 990 tokens every 467.5 ms keep 100 requests in the batch; ``backlog`` more wait from the start."""
    interval, horizon = Fraction(4675, 10_000), Fraction(700)
    clock = Clock.fit(generators(LAW, b_max) | {interval}, horizon)
    arrival = np.concatenate([np.zeros(backlog, np.int64), np.arange(horizon // interval) * clock.ticks(interval)])
    requests = Requests(arrival=arrival, prefill=[290] * arrival.size, decode=[990] * arrival.size)
    engine = Engine(batch_time=LAW, b_max=b_max, k_max=100)
    done = benchmark.pedantic(
        run,
        args=(engine, parse_scheduler(name), requests, clock),
        kwargs={"until": clock.ticks(horizon)},
        rounds=3,
        warmup_rounds=1,
    )
    speed = done.batches / benchmark.stats.stats.min
    benchmark.extra_info["batches_per_s"] = round(speed)
    figure(f"reference runner: {name}, b_max {b_max}, backlog {backlog}: {speed:.0f} batches/s, 10000 asked")
    assert speed >= 10_000
