"""Runs against closed forms of queueing theory, within four standard errors of batch means."""

import math
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.model.arrivals import PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import fixed_times, sample
from queuetheory_llm.simulation.run import NEVER

MEANS = 30


def run_of(engine, rule, workload, horizon, seed):
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), horizon)
    requests = sample(workload, clock, horizon, np.random.default_rng(seed))
    return run(engine, parse_scheduler(rule), requests, clock, until=clock.bound(horizon))


def assert_mean(values, expected):
    """The mean of a stationary sequence, its first tenth left out."""
    kept = values[values.size // 10 :]
    parts = kept[: kept.size // MEANS * MEANS].reshape(MEANS, -1).mean(axis=1)
    error = parts.std(ddof=1) / math.sqrt(MEANS)
    assert abs(parts.mean() - expected) < 4 * error
    assert 4 * error < 0.1 * expected  # the test has the power to see a tenth


def sojourns(done):
    finished = done.finish != NEVER
    return (done.finish[finished] - done.requests.arrival[finished]) / done.clock.rate


def present_at(done, ticks):
    """Requests present at the ticks, those that arrive then included."""
    come = np.searchsorted(done.requests.arrival, ticks, side="right")
    gone = np.searchsorted(np.sort(done.finish[done.finish != NEVER]), ticks, side="right")
    return come - gone


@pytest.mark.parametrize(("prefill", "decode"), [(1, 0), (0, 1)])
@pytest.mark.parametrize("rule", ["sarathi", "vllm-vanilla"])
def test_one_token_at_a_time_is_m_d_1(prefill, decode, rule):
    """Pollaczek-Khinchine: E[sojourn] = 1 + rho/(2(1 - rho)) services."""
    load = Fraction(7, 10)
    engine = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1)
    workload = Workload.of(prefill=prefill, decode=decode, arrivals=PoissonArrivals(rate=load))
    done = run_of(engine, rule, workload, Fraction(100_000), seed=7)
    assert_mean(sojourns(done), 1 + float(load / (2 * (1 - load))))


def test_little_s_law_holds_on_the_path():
    """Time average of the number present = rate * mean sojourn, exactly, over a run that ends empty."""
    engine = Engine(batch_time=Staircase(c="10 ms", a="30 ms", b0=8), b_max=32, k_max=6)
    workload = Workload.of(prefill=20, decode=6, arrivals=PoissonArrivals(rate=10))
    clock = Clock.fit(generators(engine.batch_time, engine.b_max), Fraction(100))
    requests = sample(workload, clock, Fraction(100), np.random.default_rng(3))
    done = run(engine, parse_scheduler("orca"), requests, clock)
    instants = np.unique(np.concatenate([requests.arrival, done.finish]))
    area = int((present_at(done, instants[:-1]) * np.diff(instants)).sum())
    assert area == int((done.finish - requests.arrival).sum())
    assert done.finished == len(requests) > 500


def test_batches_that_take_all():
    """Inoue 2021: t(b) = alpha b + tau0, every batch takes all; mean sojourn at lambda alpha = 1/2."""
    law = Hinge(c="1.8874 ms", a="0.1438 ms", b0=0)
    engine = Engine(batch_time=law, b_max=100_000)
    workload = Workload.of(prefill=1, decode=0, arrivals=PoissonArrivals(rate=1 / (2 * law.a)))
    done = run_of(engine, "sarathi", workload, Fraction(60), seed=5)
    assert_mean(sojourns(done) * 1000, 5.9018645689)


@pytest.mark.parametrize(
    ("rule", "lengths", "p", "mean"),
    [
        ("sarathi", (1, 1), "0.5", 1.0),
        ("vllm-vanilla", (1, 1), "0.5", 2.1180339887),
        ("fastertransformer", (1, 1), "0.5", 1.2),
        ("sarathi", (2, 1), "0.45", 1.3006450141),
        ("orca", (2, 1), "0.45", 1.5937551539),
        ("vllm-vanilla", (2, 1), "0.45", 1.5937551539),
        ("fastertransformer", (2, 1), "0.45", 2.925),
    ],
)
def test_slotted_chains(rule, lengths, p, mean):
    """Mean number at slot starts after arrivals: Bernoulli(p) requests a slot, two tokens a batch, exact chains."""
    slots = 400_000 if mean > 2.5 else 60_000  # the heavier the load, the longer the memory
    engine = Engine(batch_time=Table(tokens=[2], seconds_at=[1]), b_max=2)
    arrivals = SlottedArrivals(slot=1, law="bernoulli", mean=p)
    workload = Workload.of(prefill=lengths[0], decode=lengths[1], arrivals=arrivals)
    done = run_of(engine, rule, workload, Fraction(slots), seed=11)
    assert_mean(present_at(done, np.arange(slots) * done.clock.rate), mean)


@pytest.mark.parametrize(("m", "b_max", "mean"), [("0.8", 1, 2.4), ("3", 4, 3.8008834798)])
def test_bulk_service(m, b_max, mean):
    """Bailey 1954: Poisson(m) one-token requests a slot, up to b_max served."""
    slots = 60_000
    engine = Engine(batch_time=Table(tokens=[b_max], seconds_at=[1]), b_max=b_max)
    arrivals = SlottedArrivals(slot=1, law="poisson", mean=m)
    workload = Workload.of(prefill=1, decode=0, arrivals=arrivals)
    done = run_of(engine, "orca", workload, Fraction(slots), seed=12)
    assert_mean(present_at(done, np.arange(slots) * done.clock.rate), mean)
