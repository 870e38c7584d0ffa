"""The same work here and in simulators from PyPI, in one run: seconds of CPU time, ours the kernel's call alone.

Each is skipped where the peer is not installed; ``make bench`` installs them where it can.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from speed import Load, timed

from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation import kernel
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import Run, watched

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="peers")
Figure = Callable[[str], None]
PEER_SECONDS = 2.0  # at least this much of a peer's own running


def measured(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = run()
    return result, time.process_time() - start


def machine(engine: Engine, requests: Requests, clock: Clock, until: int | None) -> kernel._Machine:
    return kernel._Machine(engine, parse_scheduler("sarathi"), requests, clock, until, watched(requests, until))


def mean_response(run: Run) -> float:
    done = run.finish >= 0
    return float((run.finish - run.requests.arrival)[done].mean()) / run.clock.rate


# --- pyserq -----------------------------------------------------------------------------------------------------------

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
INTERVAL = Fraction(4675, 10_000)
ENGINE_OF_SERQ = """
let bmax = 128;
let c = 1128;
let a = 3547;
let b0 = 128;
fn main() {
device gpu { }
engine llm on gpu {
  tokens cap bmax;
  scheduler { advance running; }
  worker { forward (c + a * ceil(batch.tokens / b0)); }
}
server { llm (290, 990); }
}
"""
WORKLOAD_OF_SERQ = """
workload {
  arrive renewal(46750);
  init { set t0 = now; }
  session { turn; observe response = now - t0; end; }
}
"""
SERQ_RATE = 100_000  # its unit is 10 us, in which every time is whole


def vertex_c(seconds: int) -> tuple[Engine, Requests, Clock, int]:
    """One request of 290 + 990 tokens every 467.5 ms, exactly what batches of 29 + 99 tokens carry (Dai et al. 6.2)."""
    horizon = Fraction(seconds)
    clock = Clock.fit(generators(CODELLAMA, 128) | {INTERVAL}, horizon)
    count = -(-horizon // INTERVAL)
    requests = Requests(
        arrival=np.arange(count) * clock.ticks(INTERVAL), prefill=np.full(count, 290), decode=np.full(count, 990)
    )
    return Engine(batch_time=CODELLAMA, b_max=128, k_max=100), requests, clock, clock.ticks(horizon)


def whole_run(seconds: int) -> Run:
    engine, requests, clock, until = vertex_c(seconds)
    return kernel.run(engine, parse_scheduler("sarathi"), requests, clock, until=until)


def test_vertex_c_beside_pyserq(benchmark: BenchmarkFixture, figure: Figure) -> None:
    """Ours over a million seconds, theirs until it has run for two; over the same horizon both see the same run."""
    pyserq = pytest.importorskip("pyserq")
    seconds, theirs, cost = 700, {}, 0.0
    while cost < PEER_SECONDS:
        seconds *= 2
        program = pyserq.compile(
            source=ENGINE_OF_SERQ, workload_source=WORKLOAD_OF_SERQ, seed=1, horizon=seconds * SERQ_RATE
        )
        report, cost = measured(lambda program=program: pyserq.run(program))
        theirs = json.loads(report.json())
    same = whole_run(seconds)
    # Theirs shows an arrival at a batch's end to the next batch but one, and emits a token with the last of a prompt.
    assert abs(theirs["arrivals"] - len(same.requests)) <= 1
    assert theirs["ended"] == pytest.approx(same.finished, rel=0.005)
    assert theirs["observes"]["response"]["mean"] / SERQ_RATE == pytest.approx(mean_response(same), rel=0.02)
    assert theirs["events"] - theirs["arrivals"] == pytest.approx(same.batches, rel=0.01)

    long = vertex_c(1_000_000)
    found = timed(benchmark, lambda: machine(*long), rounds=5)
    ours, peer = len(long[1]) / found.cpu, theirs["arrivals"] / cost
    _, whole = measured(lambda: mean_response(whole_run(1_000_000)))
    figure(
        f"vertex C beside pyserq {pyserq.__version__}: {ours:.3g} against {peer:.3g} requests/s "
        f"({found.run.batches / found.cpu:.3g} against {same.batches / cost:.3g} batches/s), {ours / peer:.0f} times; "
        f"with the making of requests and results {len(long[1]) / whole / peer:.0f} times; 300 asked, 1000 aimed at"
    )
    assert ours / peer >= 300


# --- ciw --------------------------------------------------------------------------------------------------------------


def test_m_d_1_beside_ciw(benchmark: BenchmarkFixture, figure: Figure) -> None:
    """One-token requests on an engine of budget 1 are customers of M/D/1: load .8, mean response 3 services."""
    ciw = pytest.importorskip("ciw")
    load, service = 0.8, 1.0
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(load / service)],
        service_distributions=[ciw.dists.Deterministic(service)],
        number_of_servers=[1],
    )
    ciw.seed(1)
    simulation = ciw.Simulation(network)
    _, cost = measured(lambda: simulation.simulate_until_max_time(150_000))
    records = simulation.get_all_records()
    theirs = sum(record.waiting_time + record.service_time for record in records) / len(records)

    engine, clock = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1), Clock(rate=10**9)
    count = 2_000_000
    gaps = np.random.default_rng(1).exponential(service / load, count)
    requests = Requests(arrival=np.rint(np.cumsum(gaps) * clock.rate), prefill=np.ones(count), decode=np.zeros(count))
    found = timed(benchmark, lambda: machine(engine, requests, clock, None), rounds=5)
    exact = service * (1 + load / (2 * (1 - load)))
    assert theirs == pytest.approx(exact, rel=0.1)
    assert mean_response(found.run) == pytest.approx(exact, rel=0.02)
    ours, peer = count / found.cpu, len(records) / cost
    figure(f"M/D/1 beside ciw {ciw.__version__}: {ours:.3g} against {peer:.3g} customers/s, {ours / peer:.0f} times")
    assert ours > peer


# --- simpy ------------------------------------------------------------------------------------------------------------


class SimpySarathi:
    """Decodes first, then pieces of the oldest prompts: the loop a user of SimPy would write."""

    def __init__(self, simpy: Any, load: Load, requests: Requests) -> None:
        self.environment = simpy.Environment()
        self.b_max = load.b_max
        law, clock = load.engine.batch_time, load.clock
        self.ticks = [0, *(clock.ticks(law.seconds(size)) for size in range(1, load.b_max + 1))]
        self.arrival, self.prompt, self.output = (
            array.tolist() for array in (requests.arrival, requests.prefill, requests.decode)
        )
        self.finish = [0] * len(requests)
        self.waiting: deque[int] = deque()
        self.decoding: list[int] = []
        self.bell = self.environment.event()
        self.batches = 0

    def run(self) -> None:
        self.environment.process(self.arrivals())
        self.environment.process(self.server())
        self.environment.run()

    def arrivals(self) -> Iterator[Any]:
        for request, arrival in enumerate(self.arrival):
            yield self.environment.timeout(arrival - self.environment.now)
            self.waiting.append(request)
            if not self.bell.triggered:
                self.bell.succeed()

    def server(self) -> Iterator[Any]:
        while True:
            if not self.waiting and not self.decoding:
                self.bell = self.environment.event()
                yield self.bell
            served = self.decoding[: self.b_max]
            pieces = self.pieces(self.b_max - len(served))
            yield self.environment.timeout(self.ticks[len(served) + sum(tokens for _, tokens in pieces)])
            self.batches += 1
            self.credit(served, pieces)

    def pieces(self, room: int) -> list[tuple[int, int]]:
        pieces = []
        for request in self.waiting:
            if not room:
                break
            tokens = min(room, self.prompt[request])
            pieces.append((request, tokens))
            room -= tokens
        return pieces

    def credit(self, served: list[int], pieces: list[tuple[int, int]]) -> None:
        for request in served:
            self.output[request] -= 1
            if not self.output[request]:
                self.finish[request] = self.environment.now
        self.decoding = [request for request in self.decoding if self.output[request]]
        for request, tokens in pieces:
            self.prompt[request] -= tokens
            if not self.prompt[request]:
                self.decoding.append(self.waiting.popleft())


def test_sarathi_beside_simpy(benchmark: BenchmarkFixture, figure: Figure) -> None:
    """Twenty thousand requests, every one of which must end at the same tick; then a million of ours."""
    simpy = pytest.importorskip("simpy")
    load = Load("sarathi", 512)
    rate = 0.9 * load.threshold()
    few = load.requests(20_000, rate)
    peer_loop = SimpySarathi(simpy, load, few)
    _, cost = measured(peer_loop.run)
    same = kernel.run(load.engine, load.rule, few, load.clock)
    assert peer_loop.batches == same.batches
    np.testing.assert_array_equal(peer_loop.finish, same.finish)
    requests = load.requests(1_000_000, rate)
    found = timed(benchmark, lambda: machine(load.engine, requests, load.clock, None), rounds=5)
    ours, peer = len(requests) / found.cpu, len(few) / cost
    figure(
        f"sarathi beside a loop in simpy {simpy.__version__}: {ours:.3g} against {peer:.3g} requests/s "
        f"({found.run.batches / found.cpu:.3g} against {same.batches / cost:.3g} batches/s), {ours / peer:.0f} times"
    )
    assert ours > peer
