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
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import Requests, fixed_times, sample
from queuetheory_llm.simulation.statistics import (
    Summary,
    latencies,
    latency,
    measure,
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


def test_at_load_one_neither_verdict_is_likely():
    """Each is wrong in well under 5 % of runs; 4 of 60 would be seen once in 2000 at a rate of 1 %."""
    found = verdicts(1, 3_000, 60)
    assert found[Verdict.STABLE] <= 3
    assert found[Verdict.UNSTABLE] <= 3


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
    assert measured(engine, workload, 20_000, 0).verdict is Verdict.STABLE


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
    paper = {name: values.tolist() for name, values in latencies(small_run, "paper").items()}
    assert paper == {
        "queueing": [0, 0, 1, 2], "ttft": [3, 1, 4], "tpot": [1, 1], "max_tbt": [1, 1], "e2e": [5, 2, 2, 4]
    }  # fmt: skip
    engine = {name: values.tolist() for name, values in latencies(small_run, "engine").items()}
    assert engine == {
        "queueing": [0, 0, 1, 2], "ttft": [2, 1, 2, 3], "tpot": [1, 1, 1], "max_tbt": [1, 1, 1], "e2e": [5, 2, 2, 4]
    }  # fmt: skip
    with pytest.raises(InvalidInput, match="first-token"):
        latencies(small_run, "last")


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
    assert latencies(done, "paper")["e2e"].tolist() == [1.0]
    assert done.backlog(np.array([0, 10**9 - 1, 10**9])).tolist() == [2, 2, 1]


def test_a_summary_of_nothing_is_empty():
    assert Summary.of(np.array([])).to_dict() == {
        "count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "steady": None
    }  # fmt: skip
