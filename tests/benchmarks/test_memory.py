"""Memory and growth of a whole `simulate`: requests drawn, run, measured and summarised, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

RUN = """
import json, os, re, sys
from pathlib import Path
import queuetheory_llm as qt

def peak():  # getrusage would give the peak of the process that started this one, if that was higher
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

engine = qt.Engine(batch_time=qt.Staircase(c="30 ms", a="10 ms", b0=64), b_max=512)
rate = 5.88
workload = qt.Workload.of(
    prefill=qt.Geometric(mean=512), decode=qt.Geometric(mean=200), arrivals=qt.PoissonArrivals(rate=rate)
)
qt.simulate(engine, "sarathi", workload, horizon=1000)
before, start = peak(), os.times()
done = qt.simulate(engine, "sarathi", workload, horizon=float(sys.argv[1]) / rate)
end, grown = os.times(), peak() - before
user, system = end.user - start.user, end.system - start.system
print(json.dumps({"requests": done.requests["arrived"], "seconds": user, "system": system, "bytes": grown}))
"""


def run(count: int) -> dict[str, float]:
    """Of a process that finds the kernel compiled: the compiler takes memory too."""
    command = [sys.executable, "-c", RUN, str(count)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert found["requests"] == pytest.approx(count, rel=0.2 if count < 10**6 else 0.01)
    return found


def seconds(found: dict[str, float]) -> float:
    return found["seconds"]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peaks of memory are read from /proc")
@pytest.mark.benchmark(group="whole simulate")
def test_ten_million_requests(benchmark: BenchmarkFixture, figure: Callable[[str], None]) -> None:
    """Peak of resident memory above that of a short run; seconds per request, ten million against one.

    Seconds of the program itself. What the system takes to hand out the pages of large arrays is shown beside them: it
    depends on what else the machine holds in memory.
    """
    run(1000)  # compiles
    one = min((run(1_000_000) for _ in range(5)), key=seconds)
    tens: list[dict[str, float]] = []
    benchmark.pedantic(lambda: tens.append(run(10_000_000)), rounds=3)
    ten = min(tens, key=seconds)
    size = ten["bytes"] / ten["requests"]
    growth = (ten["seconds"] / ten["requests"]) / (one["seconds"] / one["requests"])
    figure(
        f"memory of simulate: {size:.0f} bytes per request of ten million (120 allowed), "
        f"{one['bytes'] / one['requests']:.0f} of one million"
    )
    figure(
        f"growth of simulate: {ten['seconds']:.2f} s (and {ten['system']:.2f} s of the system) for {ten['requests']} "
        f"requests, {one['seconds']:.2f} s (and {one['system']:.2f} s) for {one['requests']}: {10 * growth:.1f} times "
        "for ten times as many (11 allowed)"
    )
    assert size < 120
    assert growth <= 1.1
