"""Hops of tasks a second in the compiled runner of networks, alone and beside Ciw; draws of random numbers included.

A hop is one service of one task: it comes to a class, is served there and goes on. Seconds of CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from networks import classical, exponential, poisson
from pytest_benchmark.fixture import BenchmarkFixture

from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.network import Network
from queuetheory_llm.schedulers.class_order import network_policy
from queuetheory_llm.simulation.network_draws import Draws, network_clock
from queuetheory_llm.simulation.network_run import NetworkRun
from queuetheory_llm.simulation.network_runner import NetworkMachine

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="networks")
Figure = Callable[[str], None]
HOPS_PER_S = 2e6
TIMES_CIW = 50


def tandem3() -> Network:
    """Three exponential servers in a row at load 7/9; a tenth of the tasks goes back to the first."""
    return classical(
        {name: (f"at {name}", exponential(1)) for name in ("one", "two", "three")},
        {"one": poisson("0.7")},
        [("one", "two", "1"), ("two", "three", "1"), ("three", "one", "1/10")],
    )


def timed(
    benchmark: BenchmarkFixture,
    network: Network,
    horizon: int,
    *,
    policy: str = "file",
    start: dict[str, int] | None = None,
) -> tuple[NetworkRun, float]:
    """The run and the least CPU seconds of the runner's call, once it is compiled."""
    clock = network_clock(network, Fraction(horizon))
    until = clock.bound(Fraction(horizon))
    watch = np.linspace(0, until, 4001).astype(np.int64)

    def machine() -> NetworkMachine:
        draws = Draws(network, clock, Fraction(horizon), np.random.default_rng(1), start)
        return NetworkMachine(network, network_policy(network, policy), draws, clock, until, watch)

    def advance(one: NetworkMachine) -> NetworkMachine:
        one.advance(log=False)
        return one

    last = benchmark.pedantic(advance, setup=lambda: ((machine(),), {}), rounds=3, warmup_rounds=1)
    return last.result([]), benchmark.stats.stats.min


@pytest.mark.parametrize(
    ("name", "policy"), [("tandem3", "file"), ("rybko-stolyar", "file"), ("rybko-stolyar", "back-pressure")]
)
def test_hops_a_second(benchmark: BenchmarkFixture, figure: Figure, name: str, policy: str) -> None:
    network = tandem3() if name == "tandem3" else load_network(name)
    run, seconds = timed(benchmark, network, 300_000, policy=policy)
    figure(f"network {name}, {policy}: {run.hops / seconds:.3g} hops/s, {HOPS_PER_S:.0g} asked")
    assert run.hops / seconds >= HOPS_PER_S


@pytest.mark.parametrize("waiting", [0, 100_000])
def test_batches_a_second_do_not_depend_on_the_backlog(
    benchmark: BenchmarkFixture, figure: Figure, waiting: int
) -> None:
    run, seconds = timed(benchmark, load_network("rybko-stolyar-llm"), 30_000, start={"A1": waiting, "B1": waiting})
    tokens = int((run.brought - run.left).sum())
    figure(
        f"network rybko-stolyar-llm from {2 * waiting} requests: {run.started.sum() / seconds:.3g} batches/s, "
        f"{tokens / seconds:.3g} tokens/s, {run.hops / seconds:.3g} hops/s"
    )
    assert run.started.sum() / seconds >= 1e5


def test_three_stations_beside_ciw(benchmark: BenchmarkFixture, figure: Figure) -> None:
    ciw = pytest.importorskip("ciw")
    model = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(0.7), None, None],
        service_distributions=[ciw.dists.Exponential(1.0)] * 3,
        number_of_servers=[1, 1, 1],
        routing=[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.1, 0.0, 0.0]],
    )
    ciw.seed(1)
    simulation = ciw.Simulation(model)
    begin = time.process_time()
    simulation.simulate_until_max_time(30_000)
    spent = time.process_time() - begin
    records = simulation.get_all_records()
    theirs = len(records) / spent
    run, seconds = timed(benchmark, tandem3(), 300_000)
    ours = run.hops / seconds
    wait = sum(record.waiting_time + record.service_time for record in records) / len(records)
    own = run.series.stay[:, -1].sum() / run.hops / run.clock.rate
    figure(f"tandem3 beside Ciw {ciw.__version__}: {ours:.3g} against {theirs:.3g} hops/s, {ours / theirs:.0f} times")
    assert own == pytest.approx(1 / (1 - 7 / 9), rel=0.05)
    assert wait == pytest.approx(own, rel=0.2)
    assert ours / theirs >= TIMES_CIW
