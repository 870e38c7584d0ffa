"""The two tests behind a measured verdict: their laws under the critical load, and what they must never say.

At the critical load the backlog is a reflected Brownian motion, in law the absolute value of a Brownian motion, which
is drawn here exactly at the edges of the windows.
"""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

from queuetheory_llm.model.arrivals import DeterministicArrivals, GammaInterval, PoissonArrivals, RenewalArrivals
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import LogNormal
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.evidence import (
    GROWTH_AT_CRITICAL,
    RATE,
    RETURN_LEVEL,
    WINDOWS,
    Evidence,
    excess,
    grows,
    growth_needed,
    growth_score,
    ratio_needed,
    return_ratio,
)
from queuetheory_llm.simulation.requests import Requests, fixed_times, sample
from queuetheory_llm.simulation.runner import run
from queuetheory_llm.simulation.statistics import measure
from queuetheory_llm.verdict import Verdict

PATHS = 30_000
CODELLAMA = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128), b_max=512)
FULL = Fraction(512) / (Fraction("0.01128") + 4 * Fraction("0.03547"))  # F = C, tokens/s


@pytest.fixture(scope="module")
def scores():
    """z and v of independent reflected Brownian motions over the last three quarters of [0, 1]."""
    rng = np.random.default_rng(11)
    found = np.empty((PATHS, 2))
    for path in range(PATHS):
        level = np.abs(np.cumsum(rng.standard_normal(WINDOWS * 4 // 3 + 1)))[-WINDOWS - 1 :]
        found[path] = growth_score(level, level), return_ratio(level)
    return found


@pytest.mark.parametrize(("ratio", "share"), [(0.0836, 0.5), (0.0306, 0.1), (0.0151, 0.01), (0.0097, 0.001)])
def test_the_law_of_the_ratio_at_the_critical_load(scores, ratio, share):
    seen = np.mean(scores[:, 1] <= ratio)
    error = 4 * math.sqrt(share * (1 - share) / PATHS)
    assert abs(seen - share) < error + 0.02 * share
    assert seen <= math.exp(-RATE / ratio) + error


@pytest.mark.parametrize(("score", "share"), [(0.366, 0.5), (1.403, 0.1), (2.403, 0.01), (3.211, 0.001)])
def test_the_law_of_the_growth_score_at_the_critical_load(scores, score, share):
    seen = np.mean(scores[:, 0] >= score)
    assert abs(seen - share) < 4 * math.sqrt(share * (1 - share) / PATHS) + 0.02 * share


def test_pooled_scores_at_the_critical_load(scores):
    """Fisher's bound of the harmonic mean, and no drift of the pooled growth score with the number of runs."""
    assert scores[:, 0].mean() == pytest.approx(GROWTH_AT_CRITICAL, abs=4 * 0.7 / math.sqrt(PATHS) + 0.01)
    for count in (1, 3, 30):
        ratios = scores[: PATHS // count * count, 1].reshape(-1, count)
        statistic = 2 * RATE * np.sum(1 / ratios, axis=1)
        for share in (0.5, 0.05, 0.01):
            seen = np.mean(statistic >= chi2.ppf(1 - share, 2 * count))
            assert seen <= share + 4 * math.sqrt(share / statistic.size)
    assert ratio_needed(1) == pytest.approx(RATE / -math.log(RETURN_LEVEL))


def test_the_scores_have_no_unit(scores):
    del scores
    level = np.abs(np.cumsum(np.random.default_rng(0).standard_normal(WINDOWS + 1)))
    assert growth_score(1e6 * level + 5, 1e6 * level) == pytest.approx(growth_score(level, level))
    assert return_ratio(1e6 * level + 5) == pytest.approx(return_ratio(level))


def test_a_ramp_has_no_noise():
    ramp, flat = np.arange(WINDOWS + 1.0), np.zeros(WINDOWS + 1)
    assert growth_score(ramp, ramp) == math.inf
    assert growth_score(flat, flat) == 0
    assert return_ratio(np.zeros(WINDOWS + 1)) == 0


def evidence(**changed):
    plain = {
        "seconds": 1.0, "batches": 10**5, "growth": 9.0, "increment": 9.0,
        "least_third": 2.0, "idle": False, "ratio": 1.0, "bounded": False, "light": False, "pressed": False,
    }  # fmt: skip
    return Evidence(**{**plain, **changed})


def test_growth_must_last_and_keep_the_engine_busy():
    assert grows([evidence()])
    assert not grows([evidence(growth=5.4)])
    assert not grows([evidence(least_third=0.9)])
    assert not grows([evidence(idle=True)])
    assert not grows([evidence(bounded=True)])
    assert not grows([evidence(increment=-9.0, least_third=-9.0, growth=-9.0)])
    assert grows([evidence(growth=2.0)] * 16)  # what one run leaves open
    assert not grows([evidence(growth=1.7)] * 15)
    assert not grows([evidence(growth=1.9)] * 1000)  # a start-up effect is the same in all of them


def test_engines_that_depend_on_one_another_count_as_one():
    """Copies of one engine are no more evidence than it is; all together must return too."""
    one = evidence(growth=5.4, ratio=0.004)
    for engines in ([one], [one] * 64):
        assert Evidence.together(engines, one).growth == pytest.approx(5.4)
        assert Evidence.together(engines, one).ratio == pytest.approx(0.004)
    assert Evidence.together([one] * 64, evidence(ratio=0.1)).ratio == 0.1
    assert Evidence.together([one, evidence(idle=True)], one).idle
    assert not Evidence.together([evidence(bounded=True), one], one).bounded


def test_more_runs_need_less_of_each_down_to_a_bound():
    growth = [growth_needed(count) for count in (1, 2, 5, 20, 1000)]
    ratio = [ratio_needed(count) for count in (1, 2, 5, 20, 1000)]
    assert growth == sorted(growth, reverse=True)
    assert growth[0] == 5.5
    assert growth[-1] == 2
    assert ratio == sorted(ratio)
    assert ratio[-1] == 0.012


def simulated(engine, rule, workload, batches, seed):
    horizon = Fraction(batches) * engine.batch_time.seconds(engine.b_max)
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), horizon)
    requests = sample(workload, clock, horizon, np.random.default_rng(seed))
    return run(engine, parse_scheduler(rule), requests, clock, until=clock.bound(horizon))


def test_the_excess_of_requests_that_never_wait_is_nothing():
    """One request at a time, each alone in its batches: the backlog is theirs, the excess stays below one batch."""
    engine = Engine(batch_time=Table(tokens=[8], seconds_at=[1]), b_max=8)
    workload = Workload.of(prefill=7, decode=20, arrivals=DeterministicArrivals(interval="40 s"))
    done = simulated(engine, "sarathi", workload, 8_000, 0)
    assert done.series.backlog.max() == 27
    assert np.abs(excess(done)).max() <= 8


def test_filling_and_long_requests_are_no_excess():
    """Decodes of 2000 batches beside a budget of 512: the backlog takes 2000 batches to fill, and nobody waits."""
    engine = Engine(batch_time=Table(tokens=[512], seconds_at=[1]), b_max=512)
    requests = Requests(arrival=np.arange(400) * 10 * 10**9, prefill=[1] * 400, decode=[2000] * 400)
    done = run(engine, parse_scheduler("sarathi"), requests, Clock(rate=10**9), until=4000 * 10**9)
    assert done.series.backlog[2000] > 150_000
    assert np.abs(excess(done)).max() <= 512


def test_the_excess_of_an_overload_grows_like_the_backlog():
    engine = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1)
    workload = Workload.of(prefill=3, decode=0, arrivals=DeterministicArrivals(interval="2 s"))
    done = simulated(engine, "sarathi", workload, 4_000, 0)
    assert excess(done)[-1] == pytest.approx(2000, abs=10)


CASES = {
    "10.4 of 10.497 requests/s": ("vllm-vanilla", Workload.of(prefill=129, decode=112), Fraction("10.4")),
    "rho = 1": ("sarathi", Workload.of(prefill=129, decode=112), FULL / 241),
    "rho = .8, cv 3": (
        "sarathi",
        workload := Workload.of(prefill=LogNormal(scale_mean=129, cv=3), decode=LogNormal(scale_mean=112, cv=3)),
        Fraction("0.8") * FULL / Fraction(workload.mean_tokens),
    ),
}
FORBIDDEN = {
    "10.4 of 10.497 requests/s": Verdict.UNSTABLE,
    "rho = 1": Verdict.STABLE,
    "rho = .8, cv 3": Verdict.UNSTABLE,
}


@pytest.mark.parametrize("batches", [3_000, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_what_a_run_must_never_say(name, batches):
    """All horizons from 10^4 to 10^7 batches and 20 seeds each: tests/benchmarks/verdicts.py."""
    rule, workload, rate = CASES[name]
    workload = workload.with_arrivals(PoissonArrivals(rate=rate))
    found = Counter(measure(simulated(CODELLAMA, rule, workload, batches, seed)).verdict for seed in range(2))
    assert not found[FORBIDDEN[name]]


@pytest.mark.parametrize(("load", "verdict"), [("0.8", Verdict.STABLE), ("1.2", Verdict.UNSTABLE)])
def test_clear_cases_are_decided_at_ten_thousand_batches(load, verdict):
    workload = Workload.of(prefill=129, decode=112, arrivals=PoissonArrivals(rate=Fraction(load) * FULL / 241))
    for seed in range(2):
        assert measure(simulated(CODELLAMA, "sarathi", workload, 8_000, seed)).verdict is verdict


def test_an_engine_that_is_mostly_idle_is_stable_and_bursts_at_the_critical_load_are_not():
    engine = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1)
    workload = Workload.of(prefill=1, decode=0, arrivals=PoissonArrivals(rate="0.1"))
    for seed in range(5):
        done = simulated(engine, "sarathi", workload, 4_000, seed)
        assert Evidence.of(done).light
        assert measure(done).verdict is Verdict.STABLE
    bursts = Workload.of(prefill=1, decode=0, arrivals=RenewalArrivals(interval=GammaInterval(mean="1 s", cv=5)))
    for seed in range(20):
        done = simulated(engine, "sarathi", bursts, 1_000, seed)
        assert not Evidence.of(done).light
        assert measure(done).verdict is not Verdict.STABLE


def test_independent_runs_decide_together_what_one_leaves_open():
    engine = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1)
    for load, verdict in (("0.9", Verdict.STABLE), ("1.06", Verdict.UNSTABLE)):
        workload = Workload.of(prefill=1, decode=0, arrivals=PoissonArrivals(rate=load))
        runs = [simulated(engine, "sarathi", workload, 4_000, seed) for seed in range(16)]
        assert Counter(measure(done).verdict for done in runs)[Verdict.UNDECIDED] > 8
        together = measure(runs)
        assert together.verdict is verdict
        assert together.method == "replications"
        assert together.drift.low <= together.drift.mean <= together.drift.high
