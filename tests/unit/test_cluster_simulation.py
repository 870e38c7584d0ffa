"""Rules for a cluster side by side: what is counted, against M/M/1; pairs; the rate within deadlines; curves."""

import math
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import ConstantInterval, ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Uniform
from queuetheory_llm.model.workflow import Retry, Stage, Tenant, Workflow
from queuetheory_llm.simulation.alpha_tuning import tune_alpha
from queuetheory_llm.simulation.burst_recovery import LEVEL, Burst
from queuetheory_llm.simulation.cluster_rule import run_rule, to_cluster_rule
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.cluster_simulation import Bench, simulate_cluster
from queuetheory_llm.simulation.dispatch_judge import dispatch_limit, judge_rules
from queuetheory_llm.simulation.dispatch_limits import DispatchLimit, simulated_limit
from queuetheory_llm.simulation.query_source import Draw, queries_of, taken
from queuetheory_llm.simulation.query_statistics import Interval, quantile
from queuetheory_llm.simulation.query_work import QueryWork, come, ended, overdue, served
from queuetheory_llm.simulation.slo_throughput import alpha_curve, rate_curves, scale_curves, slo_throughput
from queuetheory_llm.verdict import Verdict

TIMES_95 = 2.262  # standard errors in half of an interval of 10 replications at 95 %


def servers(*speeds, rate=1, slo=None):
    call = Stage(name="call", work=ExponentialInterval(mean=1))
    each = [Instance(name=f"server{i}", speed=speed) for i, speed in enumerate(speeds)]
    workflow = Workflow(stages=[call], tenants=[Tenant(name="all", slo=slo)])
    return WorkflowSystem(workflow=workflow, instances=each, arrivals=PoissonArrivals(rate=rate))


def agents(rate=Fraction(1, 10), scale=2):
    """Three stages with a retry on two unlike isolated-latency instances, two tenants."""
    stages = [
        Stage(name="plan", prefill=Uniform(low=100, high=300), decode=Uniform(low=1, high=40)),
        Stage(name="try", prefill=200, decode=Uniform(low=1, high=40), calls=Uniform(low=1, high=3)),
        Stage(name="judge", prefill=400, decode=4, chance="1/2"),
    ]
    tenants = [Tenant(name="free"), Tenant(name="paid", share=2, slo_scale=scale)]
    return WorkflowSystem(
        workflow=Workflow(stages=stages, retries=[Retry(source="try", to="try", probability="1/4")], tenants=tenants),
        instances=[
            Instance(name="fast", latency=LatencyLaw(per_prefill="100 us", per_decode="40 ms"), seats=4),
            Instance(name="slow", latency=LatencyLaw(per_prefill="200 us", per_decode="60 ms"), seats=4, count=2),
        ],
        arrivals=PoissonArrivals(rate=rate),
    )


def near(interval, value):
    """Within four standard errors."""
    return abs(interval.mean - value) <= 4 * (interval.high - interval.mean) / TIMES_95


@pytest.fixture(scope="module")
def outcome():
    return simulate_cluster(servers(2, slo=2), ["fastest"], queries=4_000).rules[0]


class TestAgainstOneServer:
    """M/M/1 with lambda = 1, mu = 2: responses are exponential of rate 1."""

    def test_the_mean_and_the_quantiles(self, outcome):
        assert near(outcome.mean, 1)
        for name, share in {"p50": 0.5, "p95": 0.95, "p99": 0.99}.items():
            assert near(getattr(outcome, name), -math.log(1 - share))

    def test_attainment_throughput_and_load(self, outcome):
        assert near(outcome.attainment, 1 - math.exp(-2))
        assert near(outcome.throughput, 1)
        assert near(outcome.loads[0], 0.5)
        assert outcome.tenants[0].attainment == outcome.attainment
        assert outcome.tenants[0].slo == 2
        assert outcome.call_shares == (1,)
        assert outcome.unfinished == 0

    def test_it_comes_back(self, outcome):
        assert outcome.verdict is Verdict.STABLE
        assert outcome.growth.low < 0 < outcome.growth.high


def test_the_mean_responses_of_rules_at_two_servers():
    """mu = (2, 1), lambda = 2.4: split in proportion 10/3 of M/M/1 at each; by delay less."""
    answer = simulate_cluster(
        servers(2, 1, rate="2.4"), ["random-proportional", "shortest-expected-delay"], queries=10_000
    )
    split, delay = answer.rules
    assert near(split.mean, 10 / 3)
    assert delay.ratios["mean"].high < 1
    assert split.ratios["p95"] == Interval(mean=1, low=1, high=1)
    assert near(split.loads[0], 0.8)
    assert split.call_shares[0] == pytest.approx(2 / 3, abs=0.01)


def test_an_overload_grows_has_no_mean_and_counts_what_has_not_ended():
    outcome = simulate_cluster(servers(1, rate=3, slo=10), ["fastest"], queries=2_000, replications=3).rules[0]
    assert outcome.verdict is Verdict.UNSTABLE
    assert outcome.mean is None
    assert outcome.growth.mean == pytest.approx(2, abs=0.3)
    assert outcome.unfinished > 2_000
    assert outcome.p95.mean == math.inf
    assert outcome.to_dict(("one",))["p95"]["mean"] is None


def test_no_mean_without_a_stable_verdict():
    for rate, verdict in (("0.8", Verdict.STABLE), (1, Verdict.UNDECIDED)):
        outcome = simulate_cluster(servers(1, rate=rate), ["fastest"], queries=600).rules[0]
        assert outcome.verdict is verdict
        assert (outcome.mean is None) == (outcome.ratios["mean"] is None) == (verdict is not Verdict.STABLE)


def test_what_has_come_by_the_end_is_let_end():
    """At load 0.9 queries wait for tens of services at times: the last counted ones too."""
    outcome = simulate_cluster(servers(1, rate="0.9"), ["fastest"], queries=400, replications=20).rules[0]
    assert outcome.unfinished == 0
    assert math.isfinite(outcome.p99.mean)


def test_warm_up_and_cool_down_are_as_many_as_come_at_the_capacity_at_most():
    """A call takes 50 s, the capacity is 1 a second: 4 bare queries follow one another while 200 come."""
    system = WorkflowSystem(
        workflow=Workflow(stages=[Stage(name="call", prefill=1000, decode=49)]),
        instances=[Instance(name="one", latency=LatencyLaw(per_prefill="1 ms", per_decode=1))],
    )
    for rate, around in ((Fraction(1, 2), 100), (1, 200), (100, 200)):
        assert Bench.of(system.with_rate(Fraction(rate)), queries=10, replications=1, seed=0).around == around


class TestBurst:
    def test_recovery_shows_stability_where_runs_from_empty_are_too_short(self):
        outcome = simulate_cluster(servers(1, 1, rate="1.6"), ["round-robin"], queries=600).rules[0]
        assert outcome.verdict is Verdict.STABLE
        assert "is worked off within the run in 10 of 10 runs" in outcome.reason

    def test_a_burst_that_only_one_of_two_servers_forgets_is_not_worked_off(self):
        """The slow server gets 1.1 times what it serves, the fast one a quarter: in total there is room to spare."""
        system = servers(2, 8, rate="4.4")
        outcome = simulate_cluster(system, ["random"], queries=300).rules[0]
        assert outcome.verdict is not Verdict.STABLE

    @pytest.mark.parametrize("replications", [1, 2, 10])
    def test_all_runs_together_would_tell(self, replications):
        burst = Burst.of(servers(1), 1_000, replications)
        left = np.zeros(replications)
        assert burst.chance**replications <= LEVEL
        assert burst.judge(left)[0] is Verdict.STABLE
        assert burst.judge(left + burst.size * burst.work.mean)[0] is Verdict.UNDECIDED

    def test_the_chance_at_the_limit(self):
        """Of Lindley's reflected walk at load 1, with half the variance that is allowed for: below the chance."""
        burst, rng = Burst.of(servers(1), 1_000, 10), np.random.default_rng(1)
        steps = rng.exponential(size=(400, 1_000)) - rng.exponential(size=(400, 1_000))
        free = np.cumsum(steps, axis=1)
        taken_up = np.maximum(-free.min(axis=1), 0)
        recovered = float(np.mean(burst.size - taken_up <= 0.1 * burst.size))
        assert recovered <= burst.chance + 4 * math.sqrt(burst.chance / 400)


def test_all_rules_get_the_same_queries_and_threads_change_nothing():
    rules = ["round-robin/fcfs", "least-outstanding/urgency", "hexgen-paper+alpha=0.1/vtc"]
    options = {"queries": 150, "replications": 3, "seed": 4}
    answers = [simulate_cluster(agents(), rules, workers=workers, **options).to_dict() for workers in (1, 3)]
    assert answers[0] == answers[1]
    alone = simulate_cluster(agents(), rules[1:2], **options).to_dict()["rules"][0]
    among = answers[0]["rules"][1]
    assert {**alone, "ratios": None} == {**among, "ratios": None}
    assert [each["name"] for each in among["tenants"]] == ["free", "paid"]
    assert among["tenants"][0]["attainment"] is None
    assert among["attainment"] == among["tenants"][1]["attainment"]


def test_one_replication_has_no_intervals_and_says_so():
    answer = simulate_cluster(servers(2), ["fastest"], queries=100, replications=1)
    assert answer.rules[0].p50.low is None
    assert "no intervals" in answer.notes[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rules": []}, "rules: none is given"),
        ({"rules": ["fastest", "fastest/fcfs"]}, "rules: fastest/fcfs comes twice"),
        ({"rules": ["quickest"]}, "quickest' is not a known rule"),
        ({"rules": ["fastest/lifo"]}, "lifo' is not a known queue order"),
        ({"rate": 0}, "rate: 0 is not positive"),
        ({"queries": 0}, "queries: 0 is no whole number from 1 on"),
        ({"replications": 2.5}, "replications: 2.5 is no whole number"),
        ({"replications": 5_000}, "replications: 5000 are more than 1000"),
        ({"seed": -1}, "seed: -1 is no whole number"),
        ({"workers": 0}, "workers: 0 is no whole number"),
        ({"baseline": "random"}, "baseline: random is not among the rules"),
        ({"rules": 5}, "^rules: 5 is no list of rules"),
        ({"rules": None}, "^rules: None is no list of rules"),
        ({"rules": [5]}, "^rule: 5 is no rule"),
        ({"order": 5}, "^order: 5 is no queue order"),
        ({"order": "x"}, "^order: 'x' is not a known queue order"),
        ({"rules": ["hexgen-paper", "hexgen-paper+alpha=0.2"]}, "^rules: .* in other words; give it once"),
        ({"rate": "x"}, "^rate: 'x' is not a number"),
        ({"rate": "1e-9"}, "^rate: .* a 64-bit clock of .* give a higher rate"),
        ({"rate": "1e12"}, "^rate: .* give a lower rate"),
        ({"queries": 60_000_000}, "^queries: .* give fewer"),
        ({"log": 5}, "^log: 5 is no Queries"),
        ({"progress": 5}, "^progress: 5 is no function"),
    ],
)
def test_bad_input(options, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        simulate_cluster(servers(2), **{"rules": ["fastest"], "queries": 10, **options})
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (lambda: simulate_cluster(5, ["random"]), "^system: 5 is no WorkflowSystem"),
        (lambda: dispatch_limit(5, "random"), "^system: 5 is no WorkflowSystem"),
        (lambda: simulated_limit(servers(2), "random", width="x"), "^width: 'x' is no finite number"),
        (lambda: simulated_limit(servers(2), None), "^rule: None is no rule"),
        (lambda: slo_throughput(agents(), "random", share="x"), "^share: 'x' is no finite number"),
        (lambda: slo_throughput(agents(), "random", width=math.nan), "^width: nan is no finite number"),
        (lambda: slo_throughput(agents(), "random", log=5), "^log: 5 is no Queries"),
        (lambda: rate_curves(agents(), ["random"], 5), "^rates: 5 is no row of numbers"),
        (lambda: rate_curves(agents(), ["random"], ["x"]), "^rates: 'x' is not a number"),
        (lambda: scale_curves(5, ["random"], [1]), "^system: 5 is no WorkflowSystem"),
        (lambda: alpha_curve(agents(), alphas="x"), "^alphas: 'x' is no row of numbers"),
        (lambda: tune_alpha(agents(), profile=5), "^profile: 5 holds no pairs"),
        (lambda: tune_alpha(agents(), profile=[(1,)]), "^profile: .* holds no pairs"),
        (lambda: tune_alpha(agents(), profile=[(1, "x")]), "^profile: 'x' is not a number"),
        (lambda: tune_alpha(agents(), profile=[(1, 10**9)]), r"^profile: about 1e\+09 queries .* give shorter"),
        (lambda: tune_alpha(agents(), policy=5), "^policy: 5 is no TuningPolicy"),
        (lambda: tune_alpha(agents(), log=5), "^log: 5 is no Queries"),
    ],
)
def test_an_argument_of_another_kind_is_one_line(asked, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        asked()
    assert len(caught.value.faults) == 1


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_intervals_of_shares_are_those_of_student_cut_to_shares(values):
    whole, cut = Interval.of(np.array(values)), Interval.of_shares(values)
    assert 0 <= cut.low <= cut.mean <= cut.high <= 1
    assert (cut.low, cut.high) == (max(whole.low, 0), min(whole.high, 1))


def test_kv_memory_that_plays_no_part_is_said():
    engine = Engine(batch_time=Staircase(c=1, a=1, b0=3), b_max=5, kv_tokens=50)
    flow = Workflow(stages=[Stage(name="call", prefill=3, decode=1)])
    system = WorkflowSystem(
        workflow=flow, instances=[Instance(name="e", engine=engine)], arrivals=PoissonArrivals(rate="1/10")
    )
    found = simulate_cluster(system, ["random"], queries=5, replications=2)
    assert "instance e: kv_tokens = 50 plays no part here: KV memory may bind before b_max and k_max do" in found.notes


def test_a_search_that_shows_nothing_gives_no_rate():
    shown = DispatchLimit(
        rule="random/fcfs",
        low=Fraction(0),
        high=Fraction(6),
        falling=None,
        growing=None,
        confidence=0.99,
        met=False,
        capacity=Fraction(6),
        queries=10,
    ).to_dict()
    assert [shown[name] for name in ("rate", "share", "confidence", "met")] == [None, None, None, False]


def test_a_rule_is_two_names():
    assert to_cluster_rule("hexgen-paper+alpha=1/2").alpha == 0.5
    assert to_cluster_rule("hexgen-paper+alpha=1/2/vtc", "urgency").name == "hexgen-paper+alpha=1/2/vtc"
    assert to_cluster_rule("fastest", "urgency").name == "fastest/urgency"
    assert to_cluster_rule("hexgen-paper").with_alpha(0.7).name == "hexgen-paper+alpha=0.7/fcfs"
    with pytest.raises(InvalidInput, match="is not a known queue order"):
        to_cluster_rule("fastest/")


class TestQueries:
    def test_times_at_two_rates_are_the_same_but_for_their_scale(self):
        slow, fast = agents(rate=Fraction(1, 10)), agents(rate=Fraction(1, 5))
        one, other = (queries_of(each, 300, Draw(seeds=(1, 2)), cluster_clock(each)) for each in (slow, fast))
        assert np.allclose(one.arrival, 2 * other.arrival, rtol=1e-9, atol=2)
        assert np.array_equal(one.prefill, other.prefill)
        assert len(one) == 300

    @given(rows=st.lists(st.integers(0, 39), max_size=30))
    def test_queries_taken_are_those_that_were_there(self, rows):
        system = agents()
        queries = queries_of(system, 40, Draw(seeds=(7,)), cluster_clock(system))
        some = taken(queries, np.array(rows, dtype=np.int64), np.arange(len(rows), dtype=np.int64))
        assert [shape(some, i) for i in range(len(some))] == [shape(queries, row) for row in rows]

    def test_a_log_is_taken_from_with_replacement(self):
        system = agents()
        log = queries_of(system, 5, Draw(seeds=(7,)), cluster_clock(system))
        drawn = queries_of(system, 60, Draw(seeds=(8,)), cluster_clock(system), log)
        kinds = {str(shape(log, i)) for i in range(5)}
        assert {str(shape(drawn, i)) for i in range(60)} == kinds
        answer = simulate_cluster(system, ["round-robin"], queries=50, replications=2, log=log)
        assert "from the 5 of the log" in answer.notes[-1]


def shape(queries, q):
    """A query alone: its tenant, and of each step the stage, what it waits for, and the calls."""
    steps = range(queries.first_step[q], queries.first_step[q + 1])
    rows = []
    for step in steps:
        calls = slice(queries.first_call[step], queries.first_call[step + 1])
        after = queries.next[queries.first_next[step] : queries.first_next[step + 1]] - queries.first_step[q]
        rows.append(
            (
                int(queries.stage[step]),
                int(queries.waits[step]),
                after.tolist(),
                queries.prefill[calls].tolist(),
                queries.decode[calls].tolist(),
                queries.work[calls].tolist(),
            )
        )
    return int(queries.tenant[q]), rows


class TestWork:
    def test_all_that_comes_ends(self):
        system = agents()
        clock = cluster_clock(system)
        queries = queries_of(system, 200, Draw(seeds=(3,)), clock)
        run = run_rule(
            system, queries, to_cluster_rule("round-robin"), until=None, rng=np.random.default_rng(0), clock=clock
        )
        weights = QueryWork.of(system).of_calls(queries)
        edges = np.linspace(0, run.until, 50).astype(np.int64)
        left = come(queries, weights, edges)[1] - ended(run, weights, edges)
        assert (left >= -1e-9).all()
        assert left[-1] == pytest.approx(0, abs=1e-9)
        late = overdue(run, weights, np.append(edges, run.until * 2))
        assert late[0] == pytest.approx(0, abs=1e-9)
        assert late[-1] == pytest.approx(0, abs=1e-9)
        assert (late <= left.max()).all()

    def test_a_call_counts_as_served_when_it_is_begun_and_its_decodes_when_it_ends(self):
        """A prompt of 1 s, then 3 steps of 1 s, cut to a tenth where they are free: without seats that share them."""
        for seats, shared, seconds in ((4, 3 / 4, 4), (None, 0, 1.3)):
            law = LatencyLaw(per_prefill="1 ms", per_decode=1)
            system = WorkflowSystem(
                workflow=Workflow(stages=[Stage(name="call", prefill=1000, decode=3)]),
                instances=[Instance(name="one", latency=law, seats=seats)],
            )
            clock = cluster_clock(system)
            queries = queries_of(system, 1, Draw(seeds=(3,)), clock)
            rule, rng = to_cluster_rule("round-robin"), np.random.default_rng(0)
            run = run_rule(system, queries, rule, until=None, rng=rng, clock=clock, steps_cut=10)
            assert clock.seconds(int(run.ended[0] - run.came[0])) == seconds
            work = QueryWork.of(system)
            assert work.mean == pytest.approx(1 + shared)
            edges = np.array([run.came[0] - 1, run.came[0], run.ended[0]])
            assert served(run, work.parts(queries), edges) == pytest.approx([0, 1, 1 + shared])

    def test_the_mean_is_that_of_the_queries(self):
        system = agents()
        work = QueryWork.of(system)
        queries = queries_of(system, 20_000, Draw(seeds=(5,)), cluster_clock(system))
        each = np.diff(come(queries, work.of_calls(queries), np.append(-1, queries.arrival))[1])
        assert abs(each.mean() - work.mean) <= 4 * each.std() / math.sqrt(each.size)


class TestDeadlines:
    def test_the_rate_within_them_at_one_server(self):
        """P(response > d) = exp(-(mu - lambda) d) = 0.1 at lambda = mu - log(10)/d."""
        answer = slo_throughput(servers(2, slo=3), "fastest", share=0.9, queries=3_000, width=0.01)
        assert near(answer.rate, 2 - math.log(10) / 3)
        assert answer.capacity == 2
        attained = [point.attainment.mean for point in answer.points]
        assert attained == sorted(attained, reverse=True)

    def test_a_deadline_that_is_hopeless_and_one_that_is_none(self):
        hopeless = slo_throughput(servers(1, slo=1), "fastest", queries=100, replications=2)
        assert hopeless.rate.mean == 0
        easy = slo_throughput(servers(1, slo=1_000_000), "fastest", queries=100, replications=2)
        assert easy.rate.mean == easy.capacity

    def test_bad_input(self):
        with pytest.raises(InvalidInput) as caught:
            slo_throughput(servers(1), "fastest", share=95, width=0)
        assert [fault.partition(":")[0] for fault in caught.value.faults] == ["share", "width", "workflow.tenants"]


class TestCurves:
    options = {"queries": 200, "replications": 3}  # noqa: RUF012

    def test_attainment_falls_with_the_rate_on_the_same_queries(self):
        answer = rate_curves(agents(), ["round-robin", "least-outstanding"], ["0.05", "0.2", "0.4"], **self.options)
        assert [curve.rule for curve in answer.curves] == ["round-robin/fcfs", "least-outstanding/fcfs"]
        for curve in answer.curves:
            p95 = [point.p95.mean for point in curve.points]
            met = [point.attainment.mean for point in curve.points]
            assert p95 == sorted(p95)
            assert met == sorted(met, reverse=True)

    def test_attainment_rises_with_the_scale_and_is_that_of_the_runs(self):
        system = servers(2, slo=2)  # a query alone takes 1/2 s: four times that
        answer = scale_curves(system, ["fastest"], [1, 4, 9], **self.options)
        met = [point.attainment.mean for point in answer.curves[0].points]
        assert met == sorted(met)
        assert met[1] == simulate_cluster(system, ["fastest"], **self.options).rules[0].attainment.mean

    def test_alpha(self):
        answer = alpha_curve(servers(2, 1, rate="2.2"), "hexgen-paper", [0, "1/2", 1], **self.options)
        p95 = [point.p95.mean for point in answer.curves[0].points]
        assert p95[2] > 2 * p95[0]  # all calls to a server that cannot carry them
        assert answer.to_dict()["curves"][0]["points"][1]["at"] == 0.5
        with pytest.raises(InvalidInput, match="alpha: round-robin has none"):
            alpha_curve(servers(1), "round-robin")
        with pytest.raises(InvalidInput, match=r"alpha: 1\.5 is out of range"):
            alpha_curve(servers(1), alphas=["1.5"])

    def test_bad_places(self):
        with pytest.raises(InvalidInput, match="rates: 0 is not positive"):
            rate_curves(servers(1), ["fastest"], [0, 1])
        with pytest.raises(InvalidInput, match="scales: there are none"):
            scale_curves(servers(1), ["fastest"], [])


class TestIntervals:
    def test_quantiles_of_what_has_not_ended(self):
        values = np.array([1, 2, 3, np.inf])
        assert [quantile(values, share) for share in (0.5, 0.75, 0.95)] == [2, 3, np.inf]

    def test_a_ratio_of_pairs_forgets_what_they_share(self):
        base = np.array([1.0, 10.0, 100.0])
        ratio = Interval.of_ratio(2 * base, base)
        assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
        assert Interval.of_ratio(base, np.array([1, 0, 1.0])) is None


def test_a_limit_that_was_searched_decides_what_short_runs_leave_open():
    """Constant work at two servers, where theory has no limit of this rule: between 2, the fast one alone, and 3."""
    stage, rule = Stage(name="call", work=ConstantInterval(mean=1)), "hexgen-paper+alpha=0.9"
    system = attrs.evolve(servers(2, 1, rate="2.95"), workflow=Workflow(stages=[stage]))
    compared = simulate_cluster(system, [rule], queries=100, replications=2)
    (alone,) = judge_rules(compared, [rule])
    limit = simulated_limit(system, rule, width=0.05)
    (beside,) = judge_rules(compared, [rule], limits=[limit])
    assert limit.high < compared.rate
    assert (alone.verdict, beside.verdict) == (Verdict.UNDECIDED, Verdict.UNSTABLE)
    lower = attrs.evolve(compared, rate=float(limit.low))
    assert judge_rules(lower, [rule], limits=[limit])[0].verdict is Verdict.UNDECIDED


def test_points_beyond_the_limit_of_a_rule_are_marked_and_never_the_best():
    """Turns fill the slow of two servers at 2 queries/s; at 2.5 alpha 1, the fast one alone, is unstable too."""
    options = {"queries": 50, "replications": 2}
    (curve,) = rate_curves(servers(2, 1), ["round-robin"], ["1.9", "2.1"], **options).curves
    assert [each.unstable for each in curve.points] == [False, True]
    curves = alpha_curve(servers(2, 1), alphas=[0, 1], rate="2.5", **options)
    assert [each.unstable for each in curves.curves[0].points] == [False, True]
    assert curves.best.at == 0
