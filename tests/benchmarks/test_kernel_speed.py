"""Speed of the compiled kernel on one core, its call alone: every rule at .9 of its own threshold, and overloaded.

c = 30 ms, a = 10 ms, b0 = 64, b_max = 512; a million Poisson requests of geometric lengths, 512 + 200 tokens; times per
request kept. Rules that take prompts whole also run with b_max = 8192.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import attrs
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from speed import LOADS, OUTPUT, PROMPT, Load, machine, timed

from queuetheory_llm.model.lengths import Geometric, IndependentLengths
from queuetheory_llm.schedulers.registry import ADAPTIVE, scheduler_for
from queuetheory_llm.simulation import reference
from queuetheory_llm.simulation.run import NEVER, Run
from queuetheory_llm.simulation.runner import run

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="kernel")
COUNT = 1_000_000
every_rule = pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.name}-{load.b_max}")


@cache
def threshold(load: Load) -> float:
    return load.threshold()


@every_rule
def test_requests_per_second(benchmark: BenchmarkFixture, load: Load, figure: Callable[[str], None]) -> None:
    rate = 0.9 * threshold(load)
    requests = load.requests(COUNT, rate)
    found = timed(benchmark, lambda: machine(load, requests), rounds=7)
    speed, least = COUNT / found.cpu / 1e6, 5 if load.name == "sarathi" else 2
    assert found.run.finished == COUNT
    figure(
        f"kernel: {load.name}, b_max {load.b_max}, {rate:.3f} requests/s: {speed:.2f} M requests/s of CPU time "
        f"({COUNT / found.wall / 1e6:.2f} by the wall clock), {speed / least:.1f} times the {least} M asked; "
        f"{found.cpu / found.run.batches * 1e9:.0f} ns/batch"
    )
    assert speed >= least


@every_rule
def test_cost_per_batch_with_a_backlog(benchmark: BenchmarkFixture, load: Load, figure: Callable[[str], None]) -> None:
    """A million requests at the start and another at 1.1 times the threshold, until half a million are left or so.

    Against stable runs from empty. Fuller batches start and finish more requests, each at a cost of its own: at .99 of
    the threshold batches are about as full, and where they are not, as many times the cost is allowed.
    """
    limit = threshold(load)
    requests = load.requests(COUNT, 1.1 * limit, waiting=COUNT)
    until = round(1.5 * COUNT / limit * load.clock.rate)
    found = timed(benchmark, lambda: machine(load, requests, until), rounds=5)
    assert 2 * COUNT - found.run.finished > COUNT / 5
    unstable = PerBatch.of(found.run, found.cpu)
    for share in (0.9, 0.99):
        stable = stable_cost(load, share * limit)
        ratio, fuller = unstable.seconds / stable.seconds, unstable.requests / stable.requests
        figure(
            f"backlog of a million: {load.name}, b_max {load.b_max}: {unstable} against {stable} at {share} of the "
            f"threshold: {ratio:.2f} times at {fuller:.2f} times the requests"
        )
        assert ratio <= 1.5 * max(1.0, fuller)
        assert load.b_max > 512 or ratio <= 1.5


@attrs.frozen
class PerBatch:
    """What a batch costs, and the requests that start (or finish, which are as many in the long run) in it."""

    seconds: float
    requests: float

    @classmethod
    def of(cls, run: Run, seconds: float) -> PerBatch:
        changes = run.finished + np.count_nonzero(run.begin != NEVER)
        return cls(seconds / run.batches, changes / 2 / run.batches)

    def __str__(self) -> str:
        return f"{self.seconds * 1e9:.1f} ns and {self.requests:.3f} requests a batch"


def stable_cost(load: Load, rate: float) -> PerBatch:
    requests, seconds = load.requests(COUNT, rate), []
    for _ in range(4):
        prepared = machine(load, requests)
        start = time.process_time()
        prepared.advance(log=False, progress=None)
        seconds.append(time.process_time() - start)
    return PerBatch.of(prepared.result([]), min(seconds))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_rules(benchmark: BenchmarkFixture, name: str, figure: Callable[[str], None]) -> None:
    """Rules on arrays look at every batch they might form, in the compiled general runner; beside plain Python."""
    load = Load("sarathi", 512)
    rule = scheduler_for(name, load.engine, IndependentLengths(Geometric(mean=PROMPT), Geometric(mean=OUTPUT)))
    rate = 0.9 * threshold(load)
    many, few = load.requests(100_000, rate), load.requests(1000, rate)
    done = benchmark.pedantic(run, args=(load.engine, rule, many, load.clock), rounds=3, warmup_rounds=1)
    start = time.process_time()
    plain = reference.run(load.engine, rule, few, load.clock)
    theirs = plain.batches / (time.process_time() - start)
    cpu = benchmark.stats.stats.min
    ours = done.batches / cpu
    figure(
        f"general runner: {name}: {len(many) / cpu / 1e6:.2f} M requests/s, {ours:.3g} batches/s, "
        f"{ours / theirs:.0f} times the reference runner"
    )
    assert ours > theirs
