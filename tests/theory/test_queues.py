"""Long runs of the compiled kernel against closed forms, within four standard errors; Little's law exactly in each."""

import math
from fractions import Fraction

import numpy as np
import pytest
from closed_forms import bailey, take_all_sojourn, vanilla
from systems import assert_same

from queuetheory_llm.model.arrivals import BatchCount, BernoulliCount, PoissonArrivals, PoissonCount, SlottedArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.simulation import reference
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import fixed_times, sample
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.runner import run

MEANS = 30


def run_of(engine, rule, workload, horizon, seed, runner=run):
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), horizon)
    requests = sample(workload, clock, horizon, np.random.default_rng(seed))
    done = runner(engine, parse_scheduler(rule), requests, clock, until=clock.bound(horizon))
    assert_little(engine, rule, done, runner)
    return done


def integral(ticks, values):
    """Of a step function that changes at the ticks alone; exact."""
    return int((values[:-1] * np.diff(ticks)).sum())


def assert_little(engine, rule, done, runner):
    """Number decoding, as the runner counted it, over time = sum of the times that requests decode.

    The same for the number waiting where prompts are of one token, so that they wait until its batch ends. Exact.
    """
    requests, end = done.requests, done.end
    instants = np.unique(np.concatenate([[0, end], requests.arrival, done.last_prefill, done.finish]))
    instants = instants[(instants >= 0) & (instants <= end)]
    seen = runner(engine, parse_scheduler(rule), requests, done.clock, until=done.until, watch=instants).series

    def spent(since, until):
        begun = since != NEVER
        return int((np.where(until == NEVER, end, until) - since)[begun].sum())

    if (requests.prefill > 0).all():
        past = np.where(requests.decode > 0, done.last_prefill, NEVER)
        assert integral(instants, seen.decoding) == spent(past, done.finish)
    if (requests.prefill == 1).all():
        assert integral(instants, seen.waiting) == spent(requests.arrival, done.last_prefill)


def assert_mean(values, expected, power=0.03):
    """The mean of a stationary sequence, its first tenth left out; the test can see ``power`` times the mean."""
    kept = values[values.size // 10 :]
    parts = kept[: kept.size // MEANS * MEANS].reshape(MEANS, -1).mean(axis=1)
    error = parts.std(ddof=1) / math.sqrt(MEANS)
    assert abs(parts.mean() - expected) < 4 * error
    assert 4 * error < power * abs(expected)


def sojourns(done):
    finished = done.finish != NEVER
    return (done.finish[finished] - done.requests.arrival[finished]) / done.clock.rate


def present_at(done, ticks):
    """Requests present at the ticks, those that arrive then included."""
    come = np.searchsorted(done.requests.arrival, ticks, side="right")
    gone = np.searchsorted(np.sort(done.finish[done.finish != NEVER]), ticks, side="right")
    return come - gone


def m_d_1(load, prefill, decode):
    engine = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1)
    return engine, Workload.of(prefill=prefill, decode=decode, arrivals=PoissonArrivals(rate=load))


@pytest.mark.parametrize("load", ["0.5", "0.9"])
@pytest.mark.parametrize(("prefill", "decode", "rule"), [(1, 0, "sarathi"), (0, 1, "vllm-vanilla"), (1, 0, "orca")])
def test_one_token_at_a_time_is_m_d_1(load, prefill, decode, rule):
    """Pollaczek-Khinchine: E[sojourn] = 1 + rho/(2(1 - rho)) services; idle 1 - rho of the time."""
    engine, workload = m_d_1(load, prefill, decode)
    done = run_of(engine, rule, workload, Fraction(300_000), seed=7)
    rho = float(load)
    assert_mean(sojourns(done), 1 + rho / (2 * (1 - rho)), power=0.2 if rho > 0.8 else 0.03)
    assert_mean(np.diff(done.series.busy) / np.diff(done.series.ticks), rho)


def test_the_reference_runs_the_same_queue():
    engine, workload = m_d_1("0.7", 1, 0)
    assert_same(
        run_of(engine, "sarathi", workload, Fraction(3000), seed=7),
        run_of(engine, "sarathi", workload, Fraction(3000), seed=7, runner=reference.run),
    )


@pytest.mark.parametrize("rule", [name if SCHEDULERS[name].chunks else f"{name}+chunk" for name in SCHEDULERS])
def test_little_s_law_holds_on_the_path_of_every_rule(rule):
    """Over a run that ends empty, and to the tick: for the requests waiting, decoding, present, and for their tokens.

    Numbers present over time, as the runner counts them at every arrival and batch end, against times per request; the
    batch log gives the ends of first batches and when each token was credited.
    """
    engine = Engine(batch_time=Staircase(c="10 ms", a="30 ms", b0=8), b_max=32, k_max=6)
    rate = 2 if SCHEDULERS[rule.partition("+")[0]].mixed else "0.5"
    lengths = {"prefill": Geometric(mean=20), "decode": Geometric(mean=6)}
    workload = Workload.of(**lengths, arrivals=PoissonArrivals(rate=rate))
    clock, horizon = Clock.fit(generators(engine.batch_time, engine.b_max), Fraction(1000)), Fraction(1000)
    requests = sample(workload, clock, horizon, np.random.default_rng(3))
    policy = parse_scheduler(rule)
    done = run(engine, policy, requests, clock, log=True)
    assert done.finished == len(requests) > 400
    log, arrived = done.log, requests.arrival
    ends = log.ends
    ticks = np.unique(np.concatenate([arrived, ends]))
    series = run(engine, policy, requests, clock, watch=ticks).series
    batch_of = np.searchsorted(log.starts, done.begin)
    np.testing.assert_array_equal(log.starts[batch_of], done.begin)
    assert integral(ticks, series.waiting) == int((ends[batch_of] - arrived).sum())
    assert integral(ticks, series.decoding) == int((done.finish - done.last_prefill).sum())
    assert integral(ticks, present_at(done, ticks)) == int((done.finish - arrived).sum())
    assert integral(ticks, series.backlog) == int((ends * log.tokens).sum() - (arrived * requests.work).sum())


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_batches_that_take_all(load):
    """Inoue 2021: t(b) = alpha b + tau0, every batch takes all that wait, load lambda alpha."""
    law = Hinge(c="1.8874 ms", a="0.1438 ms", b0=0)
    engine = Engine(batch_time=law, b_max=1000)  # which no batch comes near
    arrivals = PoissonArrivals(rate=Fraction(str(load)) / law.a)
    done = run_of(engine, "sarathi", Workload.of(prefill=1, decode=0, arrivals=arrivals), Fraction(120), seed=5)
    expected = take_all_sojourn(load, 0.1438, 1.8874)
    if load == 0.5:
        assert expected == pytest.approx(5.9018645689, abs=1e-9)
    assert_mean(sojourns(done) * 1000, expected)
    assert done.series.waiting.max() < 1000


def slotted_run(rule, b_max, lengths, per_slot, slots, seed):
    """One batch a slot of a second."""
    engine = Engine(batch_time=Table(tokens=[b_max], seconds_at=[1]), b_max=b_max)
    arrivals = SlottedArrivals(slot=1, per_slot=per_slot)
    workload = Workload.of(prefill=lengths[0], decode=lengths[1], arrivals=arrivals)
    return run_of(engine, rule, workload, Fraction(slots), seed=seed)


def at_slot_starts(done):
    """Requests present at the start of each slot, after its arrivals."""
    return present_at(done, np.arange(done.until // done.clock.rate) * done.clock.rate)


@pytest.mark.parametrize(
    ("rule", "lengths", "p", "mean"),
    [
        ("sarathi", (1, 1), "0.5", 1.0),
        ("orca", (1, 1), "0.9", 1.8),
        ("vllm-chunked", (1, 1), "0.3", 0.6),
        ("vllm-vanilla", (1, 1), "0.5", 2.1180339887),
        ("vllm-vanilla", (1, 1), "0.3", vanilla(0.3)),
        ("fastertransformer", (1, 1), "0.5", 1.2),
        ("sarathi", (2, 1), "0.45", 1.3006450141),
        ("orca", (2, 1), "0.45", 1.5937551539),
        ("vllm-vanilla", (2, 1), "0.45", 1.5937551539),
        ("fastertransformer", (2, 1), "0.45", 2.925),
    ],
)
def test_slotted_chains(rule, lengths, p, mean):
    """Mean number at slot starts after arrivals: Bernoulli(p) requests a slot, two tokens a batch, exact chains."""
    slots = 600_000 if mean > 2.5 else 150_000  # the heavier the load, the longer the memory
    done = slotted_run(rule, 2, lengths, BernoulliCount(p=p), slots, seed=11)
    assert_mean(at_slot_starts(done), mean, power=0.1)


def test_the_formula_of_vanilla_vllm_at_one_half():
    assert vanilla(0.5) == pytest.approx(2.1180339887, abs=1e-10)


@pytest.mark.parametrize(
    ("rule", "lengths", "growth"),
    [
        ("vllm-vanilla", (1, 1), lambda p: p - 2 * (1 - p)),  # slots without a new prompt decode two
        ("sarathi", (2, 1), lambda p: 3 * p - 2),
        ("orca", (2, 1), lambda p: 3 * p - 2),
        ("vllm-vanilla", (2, 1), lambda p: p - 2 * (1 - p)),
        ("fastertransformer", (2, 1), lambda p: 3 * (p - 1 / 2)),  # two slots a request
    ],
)
def test_slotted_chains_beyond_their_thresholds(rule, lengths, growth):
    """Tokens by which the backlog grows a slot at p = 3/4, beyond 2/3 and 1/2."""
    done = slotted_run(rule, 2, lengths, BernoulliCount(p="0.75"), 400_000, seed=13)
    assert_mean(np.diff(done.series.backlog) / (np.diff(done.series.ticks) / done.clock.rate), growth(0.75), power=0.1)


@pytest.mark.parametrize(("mean", "b_max"), [("0.8", 1), ("3", 4), ("7", 8), ("13.6", 16)])
def test_bulk_service(mean, b_max):
    """Poisson one-token requests a slot, up to b_max served."""
    expected = bailey(float(mean), b_max)
    published = {1: 2.4, 4: 3.8008834798}
    assert expected == pytest.approx(published.get(b_max, expected), abs=1e-9)
    done = slotted_run("orca", b_max, (1, 0), PoissonCount(mean=mean), 150_000, seed=12)
    assert_mean(at_slot_starts(done), expected, power=0.1)


@pytest.mark.parametrize(
    "count", [BatchCount(values=[0, 1, 4], weights=[13, 3, 1]), BatchCount(values=[0, 3], weights=[4, 1])]
)
@pytest.mark.parametrize("rule", ["sarathi", "vllm-vanilla"])
def test_batches_of_requests(rule, count):
    """One-token requests, one served a slot: N' = N - [N > 0] + A, whose square in the mean gives E[N].

    With rho = E[A] = P(N > 0) it is rho + E[A(A - 1)]/(2(1 - rho)), N counted at slot starts after arrivals.
    """
    rho = float(count.mean)
    pairs = sum(float(chance) * value * (value - 1) for value, chance in count.chances.items())
    done = slotted_run(rule, 1, (1, 0), count, 200_000, seed=15)
    assert_mean(at_slot_starts(done), rho + pairs / (2 * (1 - rho)), power=0.1)


@pytest.mark.parametrize("rule", ["sarathi", "vllm-vanilla", "static"])
def test_geo_geo_1(rule):
    """Arrival .3 and service .5 a slot: 1.05 present after arrivals, .75 before."""
    p, s = 0.3, 0.5
    done = slotted_run(rule, 1, (0, Geometric(mean=2)), BernoulliCount(p="0.3"), 300_000, seed=14)
    present = at_slot_starts(done)
    before = p * (1 - p) / (s - p) - p  # mean p(1 - p)/(s - p) after the arrival, of which p has just come
    assert (before, before + p) == (pytest.approx(0.75), pytest.approx(1.05))
    assert_mean(present, before + p, power=0.1)
    starts = np.arange(1, done.until // done.clock.rate) * done.clock.rate
    arrivals = np.searchsorted(done.requests.arrival, starts, "right") - np.searchsorted(done.requests.arrival, starts)
    assert_mean(present[1:] - arrivals, before, power=0.1)
