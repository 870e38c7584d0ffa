"""Memory and growth of a whole `simulate`: requests drawn, run, measured and summarised, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

RUN = """
import json, resource, sys, time
import queuetheory_llm as qt

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

engine = qt.Engine(batch_time=qt.Staircase(c="30 ms", a="10 ms", b0=64), b_max=512)
rate = 5.88
workload = qt.Workload.of(
    prefill=qt.Geometric(mean=512), decode=qt.Geometric(mean=200), arrivals=qt.PoissonArrivals(rate=rate)
)
qt.simulate(engine, "sarathi", workload, horizon=1000)  # loads and compiles
before, start = peak(), time.process_time()
done = qt.simulate(engine, "sarathi", workload, horizon=float(sys.argv[1]) / rate)
seconds, grown = time.process_time() - start, peak() - before
print(json.dumps({"requests": done.requests["arrived"], "seconds": seconds, "bytes": grown}))
"""


def run(count: int) -> dict[str, float]:
    command = [sys.executable, "-c", RUN, str(count)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert found["requests"] == pytest.approx(count, rel=0.01)
    return found


@pytest.mark.benchmark(group="whole simulate")
def test_ten_million_requests(benchmark: BenchmarkFixture, figure: Callable[[str], None]) -> None:
    """Peak of resident memory above that of a short run; CPU seconds per request, ten million against one."""
    one = min((run(1_000_000) for _ in range(3)), key=lambda found: found["seconds"])
    ten = benchmark.pedantic(run, args=(10_000_000,), rounds=1)
    size = ten["bytes"] / ten["requests"]
    growth = (ten["seconds"] / ten["requests"]) / (one["seconds"] / one["requests"])
    figure(
        f"memory of simulate: {size:.0f} bytes per request of ten million (120 allowed), "
        f"{one['bytes'] / one['requests']:.0f} of one million"
    )
    figure(
        f"growth of simulate: {ten['seconds']:.2f} s for {ten['requests']} requests, {one['seconds']:.2f} s for "
        f"{one['requests']}: {10 * growth:.1f} times for ten times as many (11 allowed)"
    )
    assert size < 120
    assert growth <= 1.1
