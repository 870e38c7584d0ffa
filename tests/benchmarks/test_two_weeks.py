"""Two weeks in the shape of the Azure conversation trace of 2023, replayed on one large engine and on four equal ones.

The recorded hour is resampled, not repeated: each minute of the fortnight takes the requests, gaps and lengths
together, of a recorded minute drawn among the five nearest to the same minute of the hour, so the hour's rise and fall
of the rate and the mix of lengths stay. Two such streams are thinned and laid over each other to reach the wanted
number. The four engines have the batch times of CodeLlama-34B on an A100 (Dai et al., arXiv 2504.07347, section 2.3);
a stair of the large one holds the tokens of all four. Either way the load is about 0.9, and above 1 in some minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import attrs
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from queuetheory_llm.files.traces.reader import read_trace
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import ObservedLengths
from queuetheory_llm.model.trace import Trace
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.judge import simulate_trace
from queuetheory_llm.simulation.replicas import run_replicas
from queuetheory_llm.simulation.requests import Requests, replay
from queuetheory_llm.simulation.run import Run
from queuetheory_llm.stability.capacity import full_batch_rate

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="two weeks of requests")
ENGINES = 4
SMALL = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128), b_max=512)
LARGE = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128 * ENGINES), b_max=512 * ENGINES)
RULE = parse_scheduler("vllm-chunked")
MINUTES, HOURS, STREAMS = 58, 14 * 24, 2  # the trace lasts 58 whole minutes, which make an hour here
COUNT = 10_200_000


def resampled(trace: Trace, rng: np.random.Generator) -> Trace:
    """About `COUNT` requests over a fortnight of hours of `MINUTES` minutes."""
    minute = int(60 / trace.tick)
    arrival = trace.require_arrivals() - trace.require_arrivals()[0]
    edges = np.searchsorted(arrival, np.arange(MINUTES + 1) * minute)
    places = np.tile(np.arange(HOURS * MINUTES), STREAMS)
    drawn = (places + rng.integers(-2, 3, places.size)) % MINUTES
    sizes = np.diff(edges)[drawn]
    rows = np.repeat(edges[drawn] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    ticks = arrival[rows] + np.repeat((places - drawn) * minute, sizes)
    kept = np.flatnonzero(rng.random(rows.size) < COUNT / rows.size)
    kept = kept[np.argsort(ticks[kept], kind="stable")]
    lengths = trace.require_rows()
    return attrs.evolve(
        trace,
        arrivals=ticks[kept],
        lengths=ObservedLengths(prefill=lengths.prefill[rows[kept]], decode=lengths.decode[rows[kept]]),
    )


@pytest.fixture(scope="module")
def fortnight(shared: Path) -> Trace:
    path = shared / "data" / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
    if not path.is_file():
        pytest.skip(f"no Azure trace: {path} is not there")
    recorded = read_trace(path)
    found = resampled(recorded, np.random.default_rng(1))
    assert len(found) >= 10_000_000
    for ours, theirs in zip(attrs.astuple(found.require_rows()), attrs.astuple(recorded.require_rows()), strict=True):
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.01)
    return found


def title(trace: Trace) -> str:
    tokens = trace.lengths.mean_prefill + trace.lengths.mean_decode
    load = float(trace.rate * tokens / full_batch_rate(LARGE))
    return f"two weeks of the Azure trace's shape, {len(trace)} requests, load {load:.2f}"


def test_one_engine(benchmark: BenchmarkFixture, fortnight: Trace, figure: Callable[[str], None]) -> None:
    """The whole `simulate_trace`: run, measured, latencies summarised."""
    simulate_trace(LARGE, RULE, fortnight, horizon=100)  # compiles
    done = benchmark.pedantic(simulate_trace, args=(LARGE, RULE, fortnight), rounds=1)
    cpu = benchmark.stats.stats.min
    assert done.run.finished == len(fortnight)
    figure(
        f"{title(fortnight)}, one engine: {cpu:.2f} s of CPU time for the whole simulate_trace, 10 allowed; "
        f"{done.run.batches} batches"
    )
    assert cpu < 10


@pytest.mark.parametrize("dispatch", ["round-robin", "token-queue"])
def test_four_engines(
    benchmark: BenchmarkFixture, fortnight: Trace, dispatch: str, figure: Callable[[str], None]
) -> None:
    """Dispatch and runs. The shortest token queue runs the engines once to choose and once more to measure."""
    clock = Clock.fit(generators(SMALL.batch_time, SMALL.b_max) | {fortnight.tick}, Fraction(10**8))
    requests = replay(fortnight, clock)

    def run(requests: Requests) -> Run:
        rng = np.random.default_rng(2)
        return run_replicas(SMALL, RULE, requests, clock, count=ENGINES, dispatch=dispatch, rng=rng).total

    run(requests.take(np.arange(1000)))  # compiles
    done = benchmark.pedantic(run, args=(requests,), rounds=1)
    cpu, response = benchmark.stats.stats.min, (done.finish - requests.arrival).mean() / clock.rate
    assert done.finished == len(requests)
    figure(
        f"{title(fortnight)}, {ENGINES} engines, {dispatch}: {cpu:.2f} s of CPU time, 10 allowed; "
        f"mean response {response:.1f} s"
    )
    assert cpu < 10
