"""The measured verdict: its two kinds of error, and the latencies by convention."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import DeterministicArrivals, GammaInterval, PoissonArrivals, RenewalArrivals
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import LogNormal
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import Requests, fixed_times, sample
from queuetheory_llm.simulation.runner import run
from queuetheory_llm.simulation.statistics import (
    LATENCIES,
    Summary,
    effective_number,
    estimate_mean,
    latency,
    lifetime,
    measure,
    student,
)
from queuetheory_llm.verdict import Verdict

ONE = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1)
SECOND = Clock(rate=10**9)


def measured(engine, workload, horizon, seed, rule="sarathi"):
    horizon = Fraction(horizon)
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), horizon)
    requests = sample(workload, clock, horizon, np.random.default_rng(seed))
    return measure(run(engine, parse_scheduler(rule), requests, clock, until=clock.bound(horizon)))


def verdicts(load, horizon, seeds):
    workload = Workload.of(prefill=1, decode=0, arrivals=PoissonArrivals(rate=load))
    return Counter(measured(ONE, workload, horizon, seed).verdict for seed in range(seeds))


def test_clear_cases_are_clear():
    assert verdicts("0.02", 20_000, 10) == {Verdict.STABLE: 10}
    assert verdicts("0.8", 10_000, 20) == {Verdict.STABLE: 20}
    assert verdicts("1.2", 4_000, 20) == {Verdict.UNSTABLE: 20}


def test_at_load_one_there_is_no_verdict():
    """Either is wrong in less than one run in a million, whatever its length."""
    for horizon, seeds in ((3_000, 60), (30_000, 20)):
        assert verdicts(1, horizon, seeds) == {Verdict.UNDECIDED: seeds}


def test_near_the_edge_the_answer_is_the_run_length_that_would_decide():
    workload = Workload.of(prefill=1, decode=0, arrivals=PoissonArrivals(rate="0.97"))
    short = measured(ONE, workload, 3_000, 1)
    assert short.verdict is Verdict.UNDECIDED
    assert "would decide" in short.reason
    assert measured(ONE, workload, 400_000, 1).verdict is Verdict.STABLE


@pytest.mark.parametrize("seed", range(6))
def test_a_heavy_tail_at_load_four_fifths_is_not_instability(seed):
    engine = Engine(batch_time=Staircase(c=0, a="1 ms", b0=1), b_max=1)
    workload = Workload.of(
        prefill=LogNormal(scale_mean=20, cv=12),
        decode=0,
        arrivals=PoissonArrivals(rate=Fraction(800) / Fraction("20.5")),
    )
    assert measured(engine, workload, 100, seed).verdict is not Verdict.UNSTABLE


@pytest.mark.parametrize("seed", range(4))
def test_bursts_at_load_four_fifths_are_not_instability(seed):
    arrivals = RenewalArrivals(interval=GammaInterval(mean="1.25 s", cv=5))
    workload = Workload.of(prefill=1, decode=0, arrivals=arrivals)
    assert measured(ONE, workload, 20_000, seed).verdict is not Verdict.UNSTABLE


def test_filling_an_empty_engine_is_not_growth():
    """Every request stays 1000 batches: for 1000 s the backlog grows whatever the load."""
    engine = Engine(batch_time=Staircase(c=0, a="1 s", b0=512), b_max=512)
    workload = Workload.of(prefill=1, decode=1000, arrivals=DeterministicArrivals(interval="4 s"))
    short = measured(engine, workload, 900, 0)
    assert short.drift.low > 0
    assert short.verdict is Verdict.UNDECIDED
    assert "filling up" in short.reason
    random = Workload.of(prefill=1, decode=1000, arrivals=PoissonArrivals(rate="0.25"))
    assert measured(engine, random, 60_000, 0).verdict is Verdict.STABLE


def test_the_drift_of_a_deterministic_overload_is_exact():
    workload = Workload.of(prefill=3, decode=0, arrivals=DeterministicArrivals(interval="2 s"))
    found = measured(ONE, workload, 4_000, 0)
    assert found.drift.mean == pytest.approx(0.5, abs=0.01)
    assert found.drift.low <= 0.5 <= found.drift.high
    assert found.verdict is Verdict.UNSTABLE


def test_one_instant_has_no_drift():
    requests = Requests(arrival=[0, 0], prefill=[1, 1], decode=[0, 0])
    found = measure(run(ONE, parse_scheduler("orca"), requests, SECOND))
    assert found.verdict is Verdict.UNDECIDED
    assert found.reason == "all requests arrive at one instant: there is no drift"
    watch = np.arange(0, 10**10, 10**6)
    chosen = measure(run(ONE, parse_scheduler("orca"), requests, SECOND, until=10**10, watch=watch))
    assert chosen.reason.startswith("the time series is of chosen ticks, a verdict takes the default one")
    short = measure(run(ONE, parse_scheduler("orca"), requests, SECOND, until=100))
    assert short.reason == "the run is shorter than its clock can divide: there is no drift"
    empty = Requests(arrival=[], prefill=[], decode=[])
    assert "nothing is served" in measure(run(ONE, parse_scheduler("orca"), empty, SECOND, until=10**9)).reason
    assert found.to_dict()["token_drift"] == {"mean": None, "low": None, "high": None}


@pytest.fixture
def small_run():
    """Batches of a second: 2 prompt tokens each of request 0, then decodes; v_p = 0 and v_d = 0 are there too."""
    requests = Requests(arrival=[0, 0, 0, 0], prefill=[4, 0, 2, 1], decode=[3, 2, 0, 1])
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
    return run(engine, parse_scheduler("sarathi"), requests, SECOND, log=True)


def test_first_tokens_of_the_paper_and_of_the_engine(small_run):
    # 1d 0p3 | 1d 0p1 2p2 | 0d 3p1 | 0d 3d | 0d
    assert [line["seconds"] for line in small_run.log_lines()] == [1.0] * 5
    assert [(line["prefill"], line["decode"]) for line in small_run.log_lines()] == [
        ([[0, 3]], [1]),
        ([[0, 1], [2, 2]], [1]),
        ([[3, 1]], [0]),
        ([], [0, 3]),
        ([], [0]),
    ]
    paper = {name: latency(small_run, name, "paper").tolist() for name in LATENCIES}
    assert paper == {
        "queueing": [0, 0, 1, 2], "ttft": [3, 1, 4], "tpot": [1, 1], "max_tbt": [1, 1], "e2e": [5, 2, 2, 4]
    }  # fmt: skip
    engine = {name: latency(small_run, name, "engine").tolist() for name in LATENCIES}
    assert engine == {
        "queueing": [0, 0, 1, 2], "ttft": [2, 1, 2, 3], "tpot": [1, 1, 1], "max_tbt": [1, 1, 1], "e2e": [5, 2, 2, 4]
    }  # fmt: skip
    with pytest.raises(InvalidInput, match="first-token"):
        latency(small_run, "ttft", "last")


def test_the_worst_gap_is_the_longest_wait_of_a_decoding_request():
    """Request 1 brings a prompt of two batches while request 0 decodes; the rule serves prompts first."""
    requests = Requests(arrival=[0, 10**9], prefill=[1, 8], decode=[3, 1])
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
    done = run(engine, parse_scheduler("vllm-vanilla+chunk"), requests, SECOND, log=True)
    # 0p1 | 1p4 | 1p4 | 0d 1d | 0d | 0d: under the engine's convention 0 emits at 1 s and not again before 4 s
    assert latency(done, "max_tbt", "paper").tolist() == [1]
    assert latency(done, "max_tbt", "engine").tolist() == [3, 1]
    assert latency(done, "tpot", "engine").tolist() == [5 / 3, 1]


def test_unfinished_requests_have_no_latency():
    requests = Requests(arrival=[0, 0], prefill=[1, 1], decode=[0, 0])
    done = run(ONE, parse_scheduler("orca"), requests, SECOND, until=10**9, log=True)
    assert done.finished == 1
    assert latency(done, "e2e", "paper").tolist() == [1.0]
    assert done.backlog(np.array([0, 10**9 - 1, 10**9])).tolist() == [2, 2, 1]


def test_a_summary_of_nothing_is_empty():
    assert Summary.of([], []).to_dict() == {
        "count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "steady": None
    }  # fmt: skip


def autoregressive(rng, count, start=0.0):
    """Correlation .9 from one value to the next, mean 10, variance 1."""
    noise = rng.standard_normal(count) * np.sqrt(1 - 0.81)
    values, state = np.empty(count), start
    for index in range(count):
        state = 0.9 * state + noise[index]
        values[index] = 10 + state
    return values


def test_intervals_of_a_stationary_mean_cover_it():
    rng = np.random.default_rng(5)
    for samples, count in ((1, 5_000), (6, 500)):
        inside = [0, 0]
        for _ in range(150):
            found = estimate_mean([autoregressive(rng, count) for _ in range(samples)])
            assert found.method == ("batch means" if samples == 1 else "replications")
            inside[0] += found.low95 <= 10 <= found.high95
            inside[1] += found.low99 <= 10 <= found.high99
        assert inside[0] >= 150 * (0.95 - 4 * (0.95 * 0.05 / 150) ** 0.5)
        assert inside[1] >= 150 * (0.99 - 4 * (0.99 * 0.01 / 150) ** 0.5)


def test_the_mean_of_a_queue_is_inside_its_interval():
    """M/D/1 at load .8: a mean wait of rho/(2 (1 - rho)) = 2 services (Pollaczek and Khinchine)."""
    workload = Workload.of(prefill=1, decode=0, arrivals=PoissonArrivals(rate="0.8"))
    clock = Clock(rate=10**9)
    done = []
    for seed in range(5):
        requests = sample(workload, clock, Fraction(20_000), np.random.default_rng(seed))
        done.append(latency(run(ONE, parse_scheduler("orca"), requests, clock), "queueing", "paper"))
    for samples in (done[:1], done):
        found = Summary.of(samples, samples)
        assert found.steady.low99 <= 2 <= found.steady.high99
        assert found.steady.high99 - found.steady.low99 < 1
        assert found.mean == pytest.approx(np.concatenate(samples).mean())
        assert found.p90 == pytest.approx(np.percentile(np.concatenate(samples), 90))


def test_late_requests_count_in_the_stationary_mean_whether_they_are_long_or_short():
    """Nobody waits: stays of 1 or 401 batches of a second in turn, mean 201; of the last 400 s only the short end."""
    engine = Engine(batch_time=Table(tokens=[4096], seconds_at=[1]), b_max=4096)
    count = 4_000
    requests = Requests(arrival=np.arange(count) * 10**9, prefill=[1] * count, decode=np.arange(count) % 2 * 400)
    done = run(engine, parse_scheduler("sarathi"), requests, SECOND, until=count * 10**9)
    found = Summary.of_runs([done], "e2e", "paper")
    assert found.count == done.finished == count - 200
    assert found.mean < 192
    assert found.steady.mean == pytest.approx(201, abs=1.5)
    assert found.steady.low95 <= 201 <= found.steady.high95
    assert latency(done, "e2e", "paper", settled=True).size == 3601  # request 3601 is the oldest unfinished


def test_a_warm_up_is_left_out():
    rng = np.random.default_rng(1)
    biased = autoregressive(rng, 4_000)
    biased[:400] -= 8
    found = estimate_mean([biased])
    assert found.warm_up == 400
    assert found.low99 <= 10 <= found.high99


def waits(rng, paths, length, load):
    """Waiting times of the first ``length`` customers of M/D/1 from empty, by Lindley's recursion."""
    gaps = rng.exponential(1 / load, (length, paths))
    wait = np.zeros((length, paths))
    for n in range(1, length):
        wait[n] = np.maximum(wait[n - 1] + 1 - gaps[n], 0)
    return wait.T


@pytest.mark.parametrize(("load", "length"), [(0.5, 6_000), (0.8, 16_000)])
def test_the_intervals_of_a_stationary_mean_cover_it(load, length):
    """M/D/1: E[W] = rho/(2 (1 - rho)). 95 % intervals of one run, and of 20 and 100 runs, which would show a bias."""
    truth = load / (2 * (1 - load))
    paths = waits(np.random.default_rng(7), 400, length, load)
    single = [estimate_mean([path]) for path in paths]
    covered = sum(found.low95 <= truth <= found.high95 for found in single)
    assert covered >= 0.95 * 400 - 4 * (400 * 0.95 * 0.05) ** 0.5
    for count, least in ((20, 16), (100, 3)):  # P(fewer) = 1e-4 and 1e-4 of 20 and 4 intervals
        groups = [estimate_mean(list(paths[start : start + count])) for start in range(0, 400, count)]
        assert sum(found.low99 <= truth <= found.high99 for found in groups) >= least


def test_few_observations_have_no_interval():
    assert estimate_mean([np.ones(100)]) is None
    assert estimate_mean([np.ones(100), np.empty(0)]) is None
    assert estimate_mean([np.ones(100), np.ones(100)]).low99 == 1


def test_students_interval():
    mean, reach = student(np.array([1.0, 2.0, 3.0]), 0.95)
    assert mean == 2
    assert reach == pytest.approx(4.302653 / 3**0.5)  # t with 2 degrees of freedom


def test_a_token_sees_longer_requests_than_a_request_does():
    requests = Requests(arrival=[0, 0], prefill=[1, 1], decode=[1, 99])
    done = run(ONE, parse_scheduler("sarathi"), requests, SECOND)
    assert lifetime(done) == pytest.approx((1 + 99**2) / 100 + 1)
    later = run(ONE, parse_scheduler("sarathi"), requests, SECOND, until=10**12)
    assert effective_number(later) == pytest.approx(102**2 / (2**2 + 100**2))


@pytest.mark.parametrize("cv", [1, 10])
def test_bursts_bring_work_as_few_requests_do(cv):
    """A renewal stream of N equal requests is as uncertain as N/cv^2 of a Poisson stream."""
    arrivals = RenewalArrivals(interval=GammaInterval(mean="1.25 s", cv=cv))
    workload = Workload.of(prefill=1, decode=0, arrivals=arrivals)
    clock = Clock.fit(generators(ONE.batch_time, 1), Fraction(10**6))
    until = clock.bound(Fraction(10**6))
    requests = sample(workload, clock, Fraction(10**6), np.random.default_rng(3))
    done = run(ONE, parse_scheduler("sarathi"), requests, clock, until=until)
    assert effective_number(done) == pytest.approx(800_000 / cv**2, rel=0.8)


def test_few_long_requests_leave_a_run_undecided():
    workload = Workload.of(prefill=LogNormal(scale_mean=20, cv=12), decode=0, arrivals=PoissonArrivals(rate="0.02"))
    found = measured(ONE, workload, 30_000, 0)
    assert found.verdict is Verdict.UNDECIDED
    assert "few long requests" in found.reason
    assert found.decides_in > 30_000


def test_independent_runs_have_students_interval_of_their_slopes():
    workload = Workload.of(prefill=1, decode=0, arrivals=PoissonArrivals(rate="1.2"))
    clock = Clock(rate=10**9)
    horizon = Fraction(4_000)
    done = [
        run(ONE, parse_scheduler("orca"), sample(workload, clock, horizon, np.random.default_rng(seed)), clock,
            until=clock.bound(horizon))
        for seed in range(6)
    ]  # fmt: skip
    found = measure(done)
    slopes = [measure(each).drift.mean for each in done]
    mean, reach = student(np.array(slopes), 0.99)
    assert found.drift.mean == pytest.approx(mean)
    assert found.drift.high == pytest.approx(mean + reach)
    assert found.drift.low < 0.2 < found.drift.high
    assert found.verdict is Verdict.UNSTABLE
