"""Alpha tuned online: when a tuning is triggered, what is replayed and chosen, and that the future is not used."""

import math

import attrs
import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Uniform
from queuetheory_llm.model.workflow import Stage, Tenant, Workflow
from queuetheory_llm.simulation.alpha_tuning import PeriodP95, TuningPolicy, chosen_alpha, replay_p95, tune_alpha
from queuetheory_llm.simulation.cluster_rule import run_rule, to_cluster_rule
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.cluster_runner import ClusterProcess
from queuetheory_llm.simulation.query_source import Draw, queries_of, taken, without_first
from queuetheory_llm.simulation.query_statistics import quantile
from queuetheory_llm.simulation.run import NEVER

#: alpha = 1 sends all to the fast server, of speed 2: right at a low load, ruinous above 2.
RULE = "hexgen-paper+alpha=1"
PROFILE = [(600, "0.5"), (600, "2.5"), (600, "0.5")]
POLICY = TuningPolicy(window=120, check=20, rest=80, factor=2, alphas=(0, 0.5, 1))


def servers(rate=1, slo=None, speed=2):
    call = Stage(name="call", work=ExponentialInterval(mean=1))
    each = [Instance(name="fast", speed=speed), Instance(name="slow", speed=1)]
    workflow = Workflow(stages=[call], tenants=[Tenant(name="all", slo=slo)])
    return WorkflowSystem(workflow=workflow, instances=each, arrivals=PoissonArrivals(rate=rate))


def tuned(**options):
    return tune_alpha(servers(), RULE, **{"profile": PROFILE, "policy": POLICY, **options})


@pytest.fixture(scope="module")
def answer():
    return tuned()


class TestLoadChange:
    def test_the_high_load_makes_alpha_fall(self, answer):
        first = next(each for each in answer.decisions if each.after != each.before)
        assert 600 < first.at < 800
        assert (first.trigger, first.before) == ("degraded", 1)
        assert first.after < 1
        assert answer.alphas[:2] == ((0, 1), (first.at, first.after))

    def test_it_is_worth_it(self, answer):
        assert answer.tuned.overall < answer.fixed.overall / 3
        assert len(answer.edges) == len(answer.tuned.p95) + 1 == 16
        assert (answer.edges[0], answer.edges[-1]) == pytest.approx((0, 1800))
        assert answer.tuned.p95[:4] == answer.fixed.p95[:4]  # until then it is the same run

    def test_a_trigger_is_a_factor_above_the_best_since_the_last_tuning(self, answer):
        degraded = [each for each in answer.decisions if each.trigger == "degraded"]
        assert degraded
        for each in degraded:
            assert each.watched >= each.low > POLICY.factor * each.best
            assert f"above {each.low:.4g} s, is above 2 times {each.best:.4g} s" in each.reason
        apart = np.diff([each.at for each in answer.decisions])
        assert (apart >= POLICY.rest - 1e-9).all()

    def test_what_is_chosen_is_the_best_of_the_replay_or_what_it_was(self, answer):
        for each in answer.decisions:
            kept = each.p95[each.alphas.index(each.before)]
            taken = each.p95[each.alphas.index(each.after)]
            if each.after == each.before:
                assert min(each.p95) >= (1 - POLICY.margin) * kept
            else:
                assert taken == min(each.p95) < (1 - POLICY.margin) * kept

    def test_threads_change_nothing(self, answer):
        assert tuned(workers=1) == tuned(workers=3) == answer

    def test_the_future_is_not_used(self, answer):
        """What is decided before the load falls does not depend on how it falls."""
        other = tuned(profile=[*PROFILE[:2], (600, "0.1")])
        before = [each for each in answer.decisions if each.at < 1_200]
        assert before == [each for each in other.decisions if each.at < 1_200]
        assert before

    def test_queries_that_have_not_ended_are_stood_in_for(self, answer):
        late = max(answer.decisions, key=lambda each: each.unknown)
        assert 0 < late.unknown < late.replayed
        assert all(math.isfinite(p95) for p95 in late.p95)

    def test_plain_values(self, answer):
        row = answer.to_dict()
        assert row["decisions"][0]["alphas"] == [0, 0.5, 1]
        assert row["profile"][1] == {"seconds": 600, "rate": 2.5}


def test_a_missed_deadline_is_a_trigger_of_its_own():
    patient = attrs.evolve(POLICY, factor=1_000)
    answer = tune_alpha(servers(slo=4), RULE, profile=PROFILE, policy=patient)
    assert answer.decisions[0].trigger == "slo"
    blind = tune_alpha(servers(slo=4), RULE, profile=PROFILE, policy=attrs.evolve(patient, slo=False))
    assert {each.trigger for each in blind.decisions} == {"growing"}
    assert blind.decisions[0].at > answer.decisions[0].at


@pytest.mark.parametrize("seed", range(5))
def test_a_load_that_rises_and_falls(seed):
    """Alpha 1 is overloaded by half as much again for a third of the time; half the way it is merely not the best."""
    policy = TuningPolicy(window=120, check=15, rest=80)
    bad, fair = (
        tune_alpha(servers(), f"hexgen-paper+alpha={alpha}", profile=PROFILE, policy=policy, seed=seed)
        for alpha in (1, 0.5)
    )
    assert bad.tuned.overall < bad.fixed.overall / 10
    assert fair.tuned.overall < fair.fixed.overall


def test_noise_sets_off_few_tunings():
    """A constant load: 20 windows and so up to 20 tunings in each run, of which most should not be."""
    policy = TuningPolicy(window=120, check=15, rest=120)
    tunings = [
        len(
            tune_alpha(
                servers(), f"hexgen-paper+alpha={alpha}", profile=[(2400, rate)], policy=policy, seed=k
            ).decisions
        )
        for rate, alpha in (("0.5", 1), (1, 0.5), (2, 0.5))
        for k in range(3)
    ]
    assert np.mean(tunings) < 20 / 4


@pytest.mark.parametrize("slo", [True, False])
def test_a_cluster_that_ends_next_to_nothing(slo):
    """HEXGEN-FLOW's cluster without memory at its rate, where every alpha but 0 lets the calls under way starve."""
    packaged = load_workflow("hexgen-cluster-1")
    system = attrs.evolve(packaged, instances=[attrs.evolve(each, seats=None) for each in packaged.instances])
    policy = TuningPolicy.of(system, 0.5, slo=slo)
    answer = tune_alpha(system, "hexgen-paper+alpha=0.2/urgency", profile=[(3000, "0.5")], policy=policy, seed=1)
    first = answer.decisions[0]
    assert first.trigger == ("slo" if slo else "growing")
    assert first.at <= (1 if slo else 2) * policy.window
    assert first.ended < first.came / 4
    assert not first.reached
    assert first.after == answer.alphas[-1][1] == 0
    assert answer.tuned.overall < answer.fixed.overall / (3 if slo else 1.5)
    assert answer.tuned.p95[-1] < answer.fixed.p95[-1] / 4


class TestPeriodP95:
    def test_where_all_have_ended_it_is_the_quantile(self):
        ages = np.random.default_rng(0).permutation(np.arange(1.0, 201))
        found = PeriodP95.of(np.zeros(200), ages, np.ones(200, dtype=bool), 0.99)
        assert found.value == quantile(ages, 0.95) == 190
        assert found.reached
        assert 180 < found.low < 190

    def test_where_none_has_it_is_at_least_the_age_of_those_that_wait(self):
        ages = np.arange(40.0)[::-1]
        assert PeriodP95.of(np.zeros(40), ages, np.zeros(40, dtype=bool), 0.99) == PeriodP95(
            value=38, low=38, reached=False
        )

    def test_of_one_query_nothing_is_said(self):
        assert PeriodP95.of(np.zeros(1), np.ones(1), np.ones(1, dtype=bool), 0.99).low == 0

    def test_of_a_window_onto_a_stream_it_is_unbiased(self):
        """Exponential stays, seen for four of their means: half of those that are seen did not come or end within."""
        rng = np.random.default_rng(5)
        values, below = [], 0
        for _ in range(300):
            born, stay = np.sort(rng.uniform(-12, 4, 800)), rng.exponential(1, 800)
            seen = born + stay > 0
            born, stay = born[seen], stay[seen]
            left = np.minimum(stay, 4 - born)
            found = PeriodP95.of(np.maximum(-born, 0), left, born + stay < 4, 0.95)
            values.append(found.value)
            below += found.low <= math.log(20)
        assert np.mean(values) == pytest.approx(math.log(20), rel=0.03)
        assert below / 300 > 0.95 - 4 * math.sqrt(0.95 * 0.05 / 300)

    def test_queries_that_are_late_together_say_less(self):
        apart, together = np.ones(400), np.ones(400)
        apart[::20] = together[:20] = 2
        apart[::40] = together[:10] = 3
        one, other = (PeriodP95.of(np.zeros(400), each, np.ones(400, dtype=bool), 0.9) for each in (apart, together))
        assert one.value == other.value
        assert other.low < one.low or one.low == 1


def token_cluster(kind):
    stages = [Stage(name=f"s{j}", prefill=Uniform(low=10, high=90), decode=Uniform(low=0, high=20)) for j in range(4)]
    law = LatencyLaw(base="-5 ms", per_prefill="1 ms", per_decode="10 ms")
    each = {
        "engine": {"engine": Engine(batch_time=Staircase(c="20 ms", a="5 ms", b0=32), b_max=64)},
        "latency": {"latency": law, "seats": 4},
    }[kind]
    return WorkflowSystem(
        workflow=Workflow(stages=stages, tenants=[Tenant(name="all", slo=20)]),
        instances=[Instance(name="one", count=2, **each)],
        arrivals=PoissonArrivals(rate=10),
    )


@pytest.mark.parametrize("system", [token_cluster("engine"), token_cluster("latency"), servers(4)])
@pytest.mark.parametrize("order", ["urgency", "vtc"])
def test_a_forecast_of_what_comes_is_what_comes(system, order):
    """Told the queries that do come and the steps that are left, it ends them when they do; and leaves no trace."""
    clock = cluster_clock(system)
    queries = queries_of(system, 300, Draw(seeds=(7,)), clock)
    process = ClusterProcess(system, queries, "hexgen-paper", order, clock=clock)
    now = int(queries.arrival[150])
    process.advance(now)
    under_way = np.flatnonzero((queries.arrival < now) & (process.finished == NEVER))
    rest = without_first(taken(queries, under_way, queries.arrival[under_way]), process.begun[under_way])
    come = np.arange(np.searchsorted(queries.arrival, now), 300)
    ahead = taken(queries, come, queries.arrival[come])
    same, other = process.forecast(ahead, rest, [{}, {"alpha": 0.9}], workers=2)
    process.advance()
    assert under_way.size > 10
    assert np.array_equal(same, process.finished)
    assert np.array_equal(other[same < now], same[same < now])
    assert not np.array_equal(other, same) or system.instances[0].speed is None  # alpha is idle on two equal engines


def test_from_an_empty_cluster_another_alpha_would_be_chosen():
    """A load of the fast server's alone, which it serves best by itself, but not behind a backlog that it has."""
    system, clock = servers("8.8", speed=8), cluster_clock(servers(speed=8))
    crowd = queries_of(system, 4_000, Draw(seeds=(3,)), clock)
    few = queries_of(servers(2, speed=8), 600, Draw(seeds=(4,)), clock)
    process = ClusterProcess(system, crowd, RULE, clock=clock)
    now = int(crowd.arrival[-1]) + 1
    process.advance(now)
    under_way = np.flatnonzero(process.finished == NEVER)
    rest = without_first(taken(crowd, under_way, crowd.arrival[under_way]), process.begun[under_way])
    alphas = (0.5, 1)
    ahead = taken(few, np.arange(600), few.arrival + now)
    ends = process.forecast(ahead, rest, [{"alpha": alpha} for alpha in alphas])
    loaded = [quantile((each[-600:] - ahead.arrival) / clock.rate, 0.95) for each in ends]
    empty = replay_p95(servers(speed=8), few, to_cluster_rule("hexgen-paper"), alphas)
    assert empty[1] < 0.8 * empty[0]
    assert loaded[0] < 0.8 * loaded[1]


def test_no_tuning_in_a_window_of_few_queries():
    assert not tuned(policy=attrs.evolve(POLICY, least=10_000)).decisions


def test_hysteresis():
    """4 % better is not worth it, 6 % is; ties go to the nearest, then to the smaller."""
    assert chosen_alpha([0, 0.5, 1], [0.96, 1.5, 1.0], 1, 0.05) == 1
    assert chosen_alpha([0, 0.5, 1], [0.94, 1.5, 1.0], 1, 0.05) == 0
    assert chosen_alpha([0, 0.5, 1], [0.5, 0.5, 1.0], 1, 0.05) == 0.5
    assert chosen_alpha([0, 0.5, 1], [0.5, 1.0, 0.5], 0.5, 0.05) == 0


def test_a_replay_is_an_ordinary_run():
    system, alphas = servers(2), (0.2, 1)
    clock = cluster_clock(system)
    queries = queries_of(system, 500, Draw(seeds=(1,)), clock)
    direct = [
        run_rule(
            system,
            queries,
            to_cluster_rule(f"hexgen-paper+alpha={alpha}"),
            until=None,
            rng=np.random.default_rng(0),
            clock=clock,
        )
        for alpha in alphas
    ]
    expected = tuple(quantile(run.responses, 0.95) for run in direct)
    assert replay_p95(system, queries, to_cluster_rule("hexgen-paper"), alphas) == expected


def test_the_default_profile_doubles_the_load_and_takes_it_back():
    answer = tune_alpha(servers(2), "hexgen-paper", seed=3)
    assert [rate for _, rate in answer.profile] == [1, 2, 1]
    assert answer.queries == pytest.approx(3_000, abs=250)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, "window: 0 is not positive"),
        ({"rest": math.inf}, "rest: inf is not positive and finite"),
        ({"factor": 0.5}, "factor: 0.5 is outside"),
        ({"margin": 1}, "margin: 1 is outside"),
        ({"alphas": (0, 1.5)}, "alphas: .* is no grid"),
        ({"alphas": ()}, "alphas: .* is no grid"),
        ({"least": 0}, "least: 0 is no whole number"),
    ],
)
def test_policies_that_are_none(options, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        TuningPolicy(**{"window": 60, "check": 10, "rest": 40, **options})
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": []}, "profile: give stretches"),
        ({"profile": [(10, -1)]}, "profile: give stretches"),
        ({"profile": [("1 ms", "1/1000")]}, "profile: no query comes"),
        ({"seed": 0.5}, "seed: 0.5 is no whole number"),
    ],
)
def test_bad_input(options, words):
    with pytest.raises(InvalidInput, match=words):
        tuned(**options)


def test_a_rule_without_alpha():
    with pytest.raises(InvalidInput, match="alpha: round-robin has none"):
        tune_alpha(servers(), "round-robin", profile=PROFILE)
