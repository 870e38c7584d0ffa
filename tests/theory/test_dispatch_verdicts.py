"""What theory says of dispatch rules: the bound of every rule, loads of the splits, and how far each ground goes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import pytest

from queuetheory_llm.dispatch.registry import DISPATCH_RULES, packaged_name
from queuetheory_llm.dispatch.view import Dispatcher, DispatchRule, DispatchView
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.model.arrivals import ConstantInterval, ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workflow import Retry, Stage, Workflow
from queuetheory_llm.model.workflow_network import workflow_network
from queuetheory_llm.simulation.cluster_bounds import with_split
from queuetheory_llm.simulation.cluster_rule import run_rule, to_cluster_rule
from queuetheory_llm.simulation.cluster_run import cluster_clock, shares_of
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.workflow_draws import draw_queries
from queuetheory_llm.stability.cluster_capacity import cluster_capacity
from queuetheory_llm.stability.critical_retry import critical_retry
from queuetheory_llm.stability.dispatch_verdicts import dispatch_verdict
from queuetheory_llm.stability.paper_score_limit import paper_score_limit
from queuetheory_llm.stability.released_rule import released_limit, released_shares
from queuetheory_llm.stability.rule_limits import long_run_split, rule_limit
from queuetheory_llm.verdict import Basis, Verdict

F = Fraction
S, U, C, N = Verdict.STABLE, Verdict.UNSTABLE, Verdict.CRITICAL, Verdict.UNDECIDED


def two_servers(rate: Any) -> WorkflowSystem:
    """Speeds 2 and 1, calls of 1 s on average."""
    return WorkflowSystem(
        workflow=Workflow(stages=[Stage(name="call", work=ExponentialInterval(mean=1))]),
        instances=[Instance(name="fast", speed=2), Instance(name="slow", speed=1)],
        arrivals=PoissonArrivals(rate=F(rate)),
    )


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        ("random", 2),  # half to the slow one
        ("round-robin", 2),
        ("random-proportional", 3),
        ("random-lp", 3),
        ("fastest", 2),
        ("hexgen-paper+alpha=1", 2),
        ("hexgen-released+alpha=0", 3),
        ("hexgen-released+alpha=0.3", F(39, 14)),
        ("hexgen-released+alpha=0.5", F(5, 2)),
        ("hexgen-released+alpha=0.7", 2),
    ],
)
def test_splits_of_two_servers_are_judged_by_their_own_loads(rule: str, limit: Fraction) -> None:
    """mu = (2, 1): the limit of each, sharp on both sides and critical on it, by theorem."""
    for factor, verdict in ((F(99, 100), S), (F(1), C), (F(101, 100), U)):
        found = dispatch_verdict(two_servers(limit * factor), rule)
        assert (found.verdict, found.basis) == (verdict, Basis.THEOREM), rule
        assert found.load == factor


@pytest.mark.parametrize("rule", sorted(DISPATCH_RULES))
def test_above_the_bound_every_rule_is_unstable(rule: str) -> None:
    found = dispatch_verdict(two_servers("31/10"), rule)
    assert found.verdict is U
    assert found.basis is Basis.THEOREM
    limit = rule_limit(two_servers(1), rule)
    assert limit is not None
    assert found.load == pytest.approx(float(F("3.1") / limit.high))  # the rate over the rule's own limit
    assert "every dispatch rule" in found.reason


@pytest.mark.parametrize(
    ("flags", "limit"),
    [("alpha=0", 3), ("alpha=0.5", 2.9196), ("alpha=0.9", 2.7321), ("alpha=0.5+queue=true", 2.9959)],
)
def test_the_score_of_the_paper_on_two_exponential_servers(flags: str, limit: float) -> None:
    """Below the bound of every rule, 3, and known; a workflow of more than single calls has no such limit."""
    for factor, verdict in ((0.999, S), (1.0001, U)):
        found = dispatch_verdict(two_servers(F(limit * factor).limit_denominator(10**6)), f"hexgen-paper+{flags}")
        assert (found.verdict, found.basis) == (verdict, Basis.THEOREM)
        assert found.load == pytest.approx(factor, rel=1e-4)
    again = Workflow(
        stages=two_servers(1).workflow.stages, retries=[Retry(source="call", to="call", probability="1/4")]
    )
    system = WorkflowSystem(workflow=again, instances=two_servers(1).instances, arrivals=PoissonArrivals(rate="3/2"))
    found = dispatch_verdict(system, f"hexgen-paper+{flags}")
    assert found.verdict is (S if flags == "alpha=0" else N)


QUEUES = ("shortest-expected-delay", "least-outstanding", "token-queue", "hexgen-paper+alpha=0+queue=true")


def coming_back() -> WorkflowSystem:
    """Speeds 2, 2 and 1/2; half of the queries make calls of 1 s, 4 on average: 2 s of work a query."""
    stage = Stage(name="call", work=ConstantInterval(mean=1), chance="1/2")
    workflow = Workflow(stages=[stage], retries=[Retry(source="call", to="call", probability="3/4")])
    instances = [Instance(name="fast", speed=2, count=2), Instance(name="slow", speed="1/2")]
    return WorkflowSystem(workflow=workflow, instances=instances, arrivals=PoissonArrivals(rate=1))


@pytest.mark.parametrize("rule", QUEUES)
@pytest.mark.parametrize("order", ["fcfs", "urgency"])
def test_levelled_queues_of_one_stage_lose_nothing(rule: str, order: str) -> None:
    """Whatever the law of the work, and with calls that come back: the sum of the speeds over the work of a query."""
    system, limit = coming_back(), F(9, 2) / 2
    for factor, verdict in ((F(99, 100), S), (F(1), C), (F(101, 100), U)):
        found = dispatch_verdict(system.with_rate(limit * factor), rule, order)
        assert (found.verdict, found.basis, found.load) == (verdict, Basis.THEOREM, factor)


def test_a_run_of_levelled_queues_grows_above_that_limit_and_not_below() -> None:
    """A fifth above it 0.2 * 9/2 s of work a second are left, 4 s a query that is there: its passes are memoryless.

    The work of a query has the second moment 1/2 * 4 (2 * 4 - 1).
    """
    seconds, growth = 20_000, []
    for factor in (F(97, 100), F(6, 5)):
        system = coming_back().with_rate(F(9, 4) * factor)
        clock, rng = cluster_clock(system), np.random.default_rng(1)
        count = rng.poisson(seconds * float(system.arrivals.rate))
        queries = draw_queries(system.workflow, np.sort(rng.integers(0, seconds * clock.rate, count)), rng)
        rule = to_cluster_rule("shortest-expected-delay")
        run = run_rule(system, queries, rule, until=seconds * clock.rate, rng=rng, clock=clock)
        ended = np.where(run.finished == NEVER, run.until, run.finished)
        present = [(queries.arrival < at).sum() - (ended < at).sum() for at in (run.until // 4, run.until)]
        growth.append((present[1] - present[0]) / (0.75 * seconds))
    assert growth[0] < 0.01
    error = (2.25 * 1.2 * 14 / (0.75 * seconds)) ** 0.5 / 4
    assert abs(growth[1] - 0.2 * 4.5 / 4) < 4 * error


@pytest.mark.parametrize("rule", QUEUES)
def test_elsewhere_theory_leaves_rules_that_look_at_queues_to_simulation(rule: str) -> None:
    """Two stages; a stage that not every server serves; engines."""
    two = [Stage(name=name, work=ExponentialInterval(mean=1)) for name in "ab"]
    system = attrs.evolve(two_servers(1), workflow=Workflow(stages=two))
    found = dispatch_verdict(system, rule)
    assert (found.verdict, found.basis, found.load) == (N, None, None)
    assert "simulation" in found.reason
    exact = dispatch_verdict(system.with_rate(F(3, 2)), rule)
    assert (exact.verdict, exact.basis) == (N, None)  # the bound of every rule need not be that of this one
    assert "not stable" in exact.reason


def test_at_the_bound_of_every_rule_only_its_own_limit_is_critical() -> None:
    """The score at alpha = 0.9 is unstable at the bound of exponential servers; of constant work nothing is known."""
    work = ConstantInterval(mean=1)
    constant = attrs.evolve(two_servers(3), workflow=Workflow(stages=[Stage(name="call", work=work)]))
    assert dispatch_verdict(constant, "hexgen-paper+alpha=0.9").verdict is N
    assert dispatch_verdict(two_servers(3), "hexgen-paper+alpha=0.9").verdict is U
    assert dispatch_verdict(two_servers(3), "random-lp").verdict is C


@pytest.mark.parametrize("rule", sorted(DISPATCH_RULES))
@pytest.mark.parametrize("order", ["fcfs", "urgency", None])
def test_the_limit_of_a_rule_does_not_depend_on_the_rate_it_is_asked_at(rule: str, order: str | None) -> None:
    found = {repr(rule_limit(two_servers(rate), rule, order)) for rate in ("1", "2.4", "3.5")}
    assert len(found) == 1


def test_a_root_is_no_theorem_within_its_error() -> None:
    limit = rule_limit(two_servers(1), "hexgen-paper+alpha=0.9")
    assert limit is not None
    assert float(limit.high) == pytest.approx(1 + 3**0.5, rel=1e-12)
    for factor, verdict in ((1 - 1e-9, S), (1, N), (1 + 1e-14, N), (1 + 1e-9, U)):
        assert dispatch_verdict(two_servers(F(limit.high) * F(factor)), "hexgen-paper+alpha=0.9").verdict is verdict


def test_what_holds_first_come_first_served_alone_is_not_said_of_other_orders() -> None:
    """Kelly type, routes lead back: by Bramson first come, first served; a Lyapunov function or nothing else."""
    stages = [Stage(name=name, work=ExponentialInterval(mean=1)) for name in "abc"]
    system = WorkflowSystem(
        workflow=Workflow(stages=stages),
        instances=[Instance(name="m", count=2, speed=1)],
        arrivals=PoissonArrivals(rate="3/5"),
    )
    fcfs, other = (rule_limit(system, "random", order) for order in ("fcfs", "urgency"))
    assert fcfs is not None
    assert other is not None
    assert (fcfs.limit, other.limit) == (F(2, 3), None)
    assert fcfs.high == other.high == F(2, 3)
    assert dispatch_verdict(system, "random").verdict is S
    assert dispatch_verdict(system, "random", "urgency").basis is not Basis.THEOREM


def test_the_shares_that_are_judged_are_those_that_are_simulated() -> None:
    """Engines whose full batches are not their best: b_max 65 and 512 on stairs of 64."""
    stairs = Staircase(c="30 ms", a="5 ms", b0=64)
    engines = [Instance(name=f"e{b}", engine=Engine(batch_time=stairs, b_max=b)) for b in (65, 512)]
    system = WorkflowSystem(
        workflow=Workflow(stages=[Stage(name="call", prefill=100, decode=100)]),
        instances=engines,
        arrivals=PoissonArrivals(rate=10),
    )
    best = cluster_capacity(system)
    assert best.carried is not None
    assert best.rate_limit is not None
    assert best.carried < best.rate_limit
    rule = to_cluster_rule("random-lp")
    simulated = shares_of(system, with_split(rule, system).dispatcher)
    split = long_run_split(system, rule.dispatcher)
    limit = rule_limit(system, "random-lp")
    assert split is not None
    assert limit is not None
    np.testing.assert_allclose(simulated, [[float(share) for share in row] for row in split.shares], rtol=1e-15)
    assert limit.limit == best.carried
    assert rule_limit(system, with_split(rule, system).dispatcher).high == pytest.approx(float(best.carried))


def test_a_split_of_ones_own() -> None:
    rule = DISPATCH_RULES["random"]
    own = Dispatcher(rule=rule, shares=((0.75, 0.25),))
    assert dispatch_verdict(two_servers("26/10"), own).verdict is S
    assert dispatch_verdict(two_servers("27/10"), own).verdict is U
    with pytest.raises(InvalidInput, match="shares"):
        dispatch_verdict(two_servers(1), Dispatcher(rule=rule, shares=((0.0, 0.0),)))


def test_where_each_stage_has_one_instance_every_rule_is_the_same() -> None:
    """A line of two stations with a loop at the second: loads decide."""
    stages = [Stage(name=name, work=ExponentialInterval(mean=1)) for name in "ab"]
    workflow = Workflow(stages=stages, retries=[Retry(source="b", to="b", probability="1/2")])
    instances = [Instance(name="m0", speed=1, stages=("a",)), Instance(name="m1", speed=4, stages=("b",))]
    for rate, verdict in ((F(9, 10), S), (F(11, 10), U)):
        system = WorkflowSystem(workflow=workflow, instances=instances, arrivals=PoissonArrivals(rate=rate))
        for rule in ("hexgen-paper", "least-outstanding", "round-robin"):
            found = dispatch_verdict(system, rule)
            assert (found.verdict, found.load) == (verdict, rate), rule


def test_queries_that_come_back_to_shared_servers_are_judged_as_a_network() -> None:
    """Two stages over two equal servers, first come, first served, the same mean everywhere: Kelly type, stable."""
    stages = [Stage(name=name, work=ExponentialInterval(mean=1)) for name in "ab"]
    system = WorkflowSystem(
        workflow=Workflow(stages=stages),
        instances=[Instance(name="m", count=2, speed=1)],
        arrivals=PoissonArrivals(rate="9/10"),
    )
    for rule in ("random", "round-robin", "random-lp"):
        found = dispatch_verdict(system, rule)
        assert found.verdict is S, rule
        assert found.basis is not None
        assert found.load in (None, F(9, 10))
    released = dispatch_verdict(system, "hexgen-released")
    assert (released.verdict, released.basis, released.load) == (N, None, F(9, 10))  # the shares of a stage: by order
    assert "order of the calls" in released.reason


@pytest.mark.parametrize("name", sorted(DISPATCH_RULES))
def test_a_rule_of_ones_own_has_no_theorem_by_the_name_of_a_packaged_one(name: str) -> None:
    packaged = DISPATCH_RULES[name]
    own = attrs.evolve(packaged, choose=lambda *_: 0)
    assert packaged_name(packaged) == name
    assert packaged_name(own) is None
    assert packaged_name(DispatchRule(name=name, choose=packaged.choose, defaults={"x": 1})) is None
    shares = None if packaged.split != "lp" else ((0.5, 0.5),)
    found = dispatch_verdict(two_servers("5/2"), Dispatcher(rule=own, shares=shares))
    assert (found.verdict, found.basis, found.load) == (N, None, None)
    assert "long-run shares are not known" in found.reason


def test_a_stage_that_hardly_comes_and_holds_the_work_does_not_hide_from_the_released_rule() -> None:
    """Times 4 to 1: at alpha = 0 the seconds are level, whatever the chances.

    Every query has 0.1 s at the fast one and one in 10^5 has 30 000 s: 0.4 s, of which the slow one gets a fifth.
    """
    rare = Stage(name="rare", prefill=30_000_000, decode=0, chance="1e-5")
    stages = [Stage(name="usual", prefill=100, decode=0), rare]
    instances = [
        Instance(name=name, latency=LatencyLaw(per_prefill=each, per_decode="1 ms"))
        for name, each in (("slow", "4 ms"), ("fast", "1 ms"))
    ]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    limit = rule_limit(system, "hexgen-released+alpha=0")
    assert limit is not None
    assert (limit.low, limit.high) == (0, F(5, 4) / F(2, 5))
    assert dispatch_verdict(system.with_rate(3), "hexgen-released+alpha=0").verdict is N


def test_the_released_rule_has_no_verdict_where_its_loads_depend_on_the_order_of_calls() -> None:
    """Two equal engines: prompts and decodes of the same t_comp that alternate go to one each, for ever."""
    stages = [Stage(name="prompt", prefill=1, decode=0), Stage(name="decode", prefill=0, decode=2)]
    system = WorkflowSystem(
        workflow=Workflow(stages=stages),
        instances=[Instance(name="e", count=2, latency=LatencyLaw(per_prefill=2, per_decode=1), step=1, seats=4)],
        arrivals=PoissonArrivals(rate="4/5"),
    )
    assert len({seconds for row in system.unit_seconds for seconds in row}) == 1
    for rate, verdict in (("1/10", N), ("79/100", N), ("81/100", U)):  # the bound of every rule: 2/(2 + 2/4)
        assert dispatch_verdict(system.with_rate(F(rate)), "hexgen-released").verdict is verdict
    assert rule_limit(system, "hexgen-released") is None
    assigned, sent = np.zeros(2), np.zeros((2, 2), dtype=int)
    rule, nothing = DISPATCH_RULES["hexgen-released"], np.zeros(2)
    for call in range(100):
        view = DispatchView(
            stage=call % 2, seconds=np.full(2, 2.0), queued=nothing, outstanding=nothing.astype(np.int64),
            tokens=nothing, assigned=assigned, turn=call // 2, shares=nothing, chance=0.0,
        )  # fmt: skip
        chosen = rule.choose(view, np.array([0.2]))
        assigned[chosen] += 2
        sent[call % 2, chosen] += 1
    assert sent.tolist() == [[50, 0], [0, 50]]


@pytest.mark.parametrize(
    "asked",
    [
        cluster_capacity,
        critical_retry,
        workflow_network,
        lambda system: released_shares(system, 0),
        lambda system: rule_limit(system, "random"),
        lambda system: dispatch_verdict(system, "random"),
    ],
)
def test_what_is_no_cluster_is_refused_in_a_line(asked: Any) -> None:
    for nothing in (5, None, "two-servers"):
        with pytest.raises(InvalidInput, match=r"\Asystem: .* is no WorkflowSystem; [^\n]*\Z"):
            asked(nothing)


@pytest.mark.parametrize(
    "shares",
    [((2, 3),), ((np.nan, 1),), ((np.inf, 1),), ((1e-300,) * 2,), ((-1, 2),), 5, ("x",), (("x", "y"),), ((),), (5,)],
)
def test_shares_that_are_none_are_refused_before_they_are_used(shares: Any) -> None:
    with pytest.raises(InvalidInput, match=r"\Ashares[^\n]*\Z"):
        Dispatcher(rule=DISPATCH_RULES["random"], shares=shares)


def test_numbers_and_tables_of_another_type_are_refused_in_a_line() -> None:
    system = two_servers(1)
    refused: list[Any] = [
        lambda: released_limit(5, "1/2"),  # type: ignore[arg-type]
        lambda: released_shares(system, 0, seed=-1),
        lambda: released_shares(system, 0, calls=10**9),
        lambda: workflow_network(system, 5),  # type: ignore[arg-type]
        lambda: workflow_network(system, [5]),  # type: ignore[list-item]
        lambda: DispatchRule(name="own", choose=5),  # type: ignore[arg-type]
        lambda: DispatchRule(name="own", choose=max, defaults={"alpha": np.nan}),
        lambda: Dispatcher(rule=5),  # type: ignore[arg-type]
        lambda: Dispatcher(rule=DISPATCH_RULES["hexgen-paper"], values={"alpha": "x"}),  # type: ignore[dict-item]
        lambda: paper_score_limit(None, 1, alpha=0),  # type: ignore[arg-type]
        lambda: dispatch_verdict(system, Dispatcher(rule=DISPATCH_RULES["random"], shares=((1.0,),))),
        lambda: dispatch_verdict(system, 5),  # type: ignore[arg-type]
        lambda: dispatch_verdict(system, "random", 5),  # type: ignore[arg-type]
    ]
    for ask in refused:
        with pytest.raises(InvalidInput, match=r"\A[^\n]*\Z"):
            ask()


def test_instances_that_are_no_stations_are_left_to_simulation() -> None:
    law = LatencyLaw(base="-0.032 s", per_prefill="0.02585 ms", per_decode="39.08 ms")
    system = WorkflowSystem(
        workflow=Workflow(stages=[Stage(name="a", prefill=2000, decode=10)]),
        instances=[Instance(name="m", count=2, latency=law)],
        arrivals=PoissonArrivals(rate=1),
    )
    found = dispatch_verdict(system, "random")
    assert (found.verdict, found.basis) == (N, None)
    assert "simulation" in found.reason


def test_turns_overload_the_fast_type_of_the_released_simulator_where_the_best_split_has_room() -> None:
    """Cluster 1 of HEXGEN-FLOW at 0.5 queries/s, with memory for any number of calls: a prompt takes T - v_d step,
    exclusively.

    T has 39.08, 60.49 and 56.31 ms a token and steps take 35, 58 and 54.5 ms, so that a token takes 4.08, 2.49 and 1.81
    ms of an instance's own time: the A100, which answers first, carries least.
    """
    packaged = load_workflow("hexgen-cluster-1").with_rate(F(1, 2))
    system = attrs.evolve(packaged, instances=[attrs.evolve(each, seats=None) for each in packaged.instances])
    best = cluster_capacity(system)
    assert best.load < F(4, 5)
    more = dict(zip((each.name for each in best.types), best.one_more, strict=True))
    assert (more["A100"] or 0) < (more["A6000"] or 0) < (more["L40S"] or 0)
    turns = dispatch_verdict(system, "round-robin")
    assert (turns.verdict, turns.basis) == (U, Basis.THEOREM)
    assert "A100" in turns.reason
    assert dispatch_verdict(system.with_rate(F(2, 5)), "round-robin").verdict is N
