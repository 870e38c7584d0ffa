"""The piecewise-linear program of 60 classes on 10 stations, and the verdict it is part of, against the 5 s allowed."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from fluid_networks import random_lines
from lyapunov_programs import piecewise_linear_functions
from networks import classical, exponential, poisson
from pytest_benchmark.fixture import BenchmarkFixture

from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.stability.networks import verify_stability
from queuetheory_llm.verdict import Verdict

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="Lyapunov functions")
Figure = Callable[[str], None]
ALLOWED = 5.0  # seconds


def lines(load: str) -> FluidModel:
    """Five random lines of 12 classes through 10 stations, in random orders of service."""
    return random_lines(3, stations=10, lengths=(12,) * 5, load=Fraction(load))


def network_of(model: FluidModel) -> Network:
    """Exponential servers with these first-order data."""
    names = model.classes
    return classical(
        {name: (model.stations[model.station[k]], exponential(model.service[k])) for k, name in enumerate(names)},
        {name: poisson(rate) for name, rate in zip(names, model.arrival, strict=True) if rate},
        [(names[k], names[to], share) for k, row in enumerate(model.routing) for to, share in row],
        priority={
            station: tuple(names[k] for k in order)
            for station, order in zip(model.stations, model.priority, strict=True)
            if order is not None
        },
    )


@pytest.mark.parametrize("pieces", ["stations", "classes"])
def test_the_program(benchmark: BenchmarkFixture, figure: Figure, pieces: str) -> None:
    model = lines("1/10")
    found = benchmark.pedantic(
        lambda: next(piecewise_linear_functions(model, pieces=pieces)), rounds=3, warmup_rounds=1
    )
    seconds = benchmark.stats.stats.min
    times = ALLOWED / seconds
    figure(
        f"piecewise-linear in {pieces}, 60 classes on 10 stations: {seconds:.2f} s, {times:.0f} times as fast as asked"
    )
    assert found.certify(model).verdict is Verdict.STABLE


@pytest.mark.parametrize("load", ["1/10", "9/10"])
def test_the_verdict(benchmark: BenchmarkFixture, figure: Figure, load: str) -> None:
    network = network_of(lines(load))
    answer = benchmark.pedantic(lambda: verify_stability(network), rounds=1, warmup_rounds=0)
    seconds = benchmark.stats.stats.min
    verdict = answer.judgement.verdict
    figure(f"verdict on 60 classes on 10 stations at load {load}: {verdict.value} after {seconds:.2f} s")
    assert verdict in ((Verdict.STABLE,) if load == "1/10" else (Verdict.UNSTABLE, Verdict.UNDECIDED))
