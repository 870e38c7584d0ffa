"""Workflows as networks: the traffic equations give the visits, loads and verdicts are those of the split."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.model.arrivals import DeterministicArrivals, ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.batch_time import Hinge
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Empirical, Geometric, Uniform
from queuetheory_llm.model.network import Network
from queuetheory_llm.model.workflow import Retry, Stage, Workflow
from queuetheory_llm.model.workflow_network import workflow_network
from queuetheory_llm.stability.call_work import call_work
from queuetheory_llm.stability.cluster_capacity import cluster_capacity, unit_loads
from queuetheory_llm.stability.networks import verify_stability
from queuetheory_llm.stability.traffic import traffic

F = Fraction


def work(name: str, mean: Any = "1/10", **more: Any) -> Stage:
    return Stage(name=name, work=ExponentialInterval(mean=F(mean)), **more)


def system(stages: list[Stage], speeds: list[int], *loops: tuple[str, str, Any], rate: Any = 1) -> WorkflowSystem:
    retries = [Retry(source=source, to=to, probability=F(p)) for source, to, p in loops]
    return WorkflowSystem(
        workflow=Workflow(stages=stages, retries=retries),
        instances=[Instance(name=f"m{m}", speed=speed) for m, speed in enumerate(speeds)],
        arrivals=PoissonArrivals(rate=F(rate)),
    )


def calls_per_s(network: Network, base: WorkflowSystem) -> list[list[Fraction]]:
    """Rates of the classes of each stage at each instance, added up; the stage is what the name begins with."""
    rates = traffic(network).rates
    found = [[F(0)] * len(base.units) for _ in base.workflow.stages]
    for each, rate in zip(network.classes, rates, strict=True):
        if " @ " in each.name:
            stage = next(
                j for j, s in enumerate(base.workflow.stages) if each.name.split(" @ ")[0].split()[0] == s.name
            )
            found[stage][base.unit_names.index(each.station)] += rate
    return found


def text_to_sql(rate: Any = "1/2") -> WorkflowSystem:
    """Keywords; retrieval, skipped at times; two branches, one with a loop; parallel evaluations; all again."""
    stages = [
        work("keywords"),
        work("retrieve", calls=3, chance="2/3"),
        work("generate", after=("retrieve",)),
        work("revise", chance="1/2"),
        work("probe", after=("retrieve",), calls=Empirical(values=[1, 2, 4], weights=[1, 2, 1])),
        work("evaluate", after=("revise", "probe"), calls=Uniform(low=2, high=4)),
    ]
    return system(stages, [1, 2, 4], ("revise", "revise", "1/4"), ("evaluate", "keywords", "1/5"), rate=rate)


@pytest.mark.parametrize("shares", [None, ["1/2", "1/3", "1/6"], [0, 1, 0], ["1/4", "3/4", 0]])
def test_the_traffic_equations_give_the_visits(shares: list[Any] | None) -> None:
    base = text_to_sql()
    split = None if shares is None else [shares] * 6
    network = workflow_network(base, split)
    row = [F(1, 3)] * 3 if shares is None else [F(share) for share in shares]
    expected = [[F(1, 2) * n * share for share in row] for n in base.workflow.visits]
    assert calls_per_s(network, base) == expected
    loads = dict(zip((s.name for s in network.stations), traffic(network).loads, strict=True))
    assert max(load for name, load in loads.items() if name not in base.unit_names) < F(1, 10**4)
    for unit, (name, speed) in enumerate(zip(base.unit_names, (1, 2, 4), strict=True)):
        if row[unit]:
            assert loads[name] == sum(rates[unit] for rates in expected) / 10 / speed


@st.composite
def workflows(draw: st.DrawFn) -> WorkflowSystem:
    """A random series and parallel plan: each stage after the one before it, or beside it."""
    count = draw(st.integers(1, 5))
    stages: list[Stage] = []
    ends: list[str] = []
    for j in range(count):
        beside = len(stages) > 0 and draw(st.booleans())
        after = stages[-1].after if beside else tuple(ends)
        chance = draw(st.sampled_from([F(1), F(1), F(1, 3)]))
        stages.append(work(f"s{j}", after=after, chance=chance, calls=draw(st.integers(1, 3))))
        ends = [*ends, f"s{j}"] if beside else [f"s{j}"]
    loops = [
        (each.name, each.name, draw(st.sampled_from([F(1, 2), F(1, 5)]))) for each in stages if draw(st.booleans())
    ]
    return system(stages, draw(st.sampled_from([[1], [2, 1]])), *loops, rate=draw(st.integers(1, 3)))


@given(workflows())
@settings(max_examples=40, deadline=None)
def test_any_plan_becomes_a_network_with_its_visits(base: WorkflowSystem) -> None:
    network = workflow_network(base)
    found = calls_per_s(network, base)
    rate = base.arrivals.rate
    assert [sum(row) for row in found] == [rate * n for n in base.workflow.visits]
    assert network.fluid_model.to_dict() == type(network.fluid_model).from_dict(network.fluid_model.to_dict()).to_dict()


def test_loads_of_engines_are_those_of_their_full_batches_under_the_best_split() -> None:
    laws = {"a100": ("39.08 ms", "25.85 us", 1512), "a6000": ("60.49 ms", "36.77 us", 1645)}
    instances = [
        Instance(name=name, count=2, engine=Engine(batch_time=Hinge(c=c, a=a, b0=b0), b_max=8192))
        for name, (c, a, b0) in laws.items()
    ]
    stages = [
        Stage(name="generate", prefill=Geometric(mean=11912), decode=Geometric(mean=601)),
        Stage(name="revise", prefill=Geometric(mean=8072), decode=Geometric(mean=298)),
    ]
    workflow = Workflow(stages=stages, retries=[Retry(source="revise", to="revise", probability="0.4")])
    base = WorkflowSystem(workflow=workflow, instances=instances, arrivals=PoissonArrivals(rate="1/2"))
    best = cluster_capacity(base, filling=True)
    network = workflow_network(base, best.shares)
    loads = unit_loads(base, call_work(base, filling=True), best.shares)
    expected = [base.arrivals.rate * load for (load,) in loads]
    assert traffic(network).loads[: len(expected)] == tuple(expected)
    assert max(expected) == best.load


def test_each_stage_on_its_own_server_is_a_line_and_stable_by_theorem() -> None:
    stages = [work("a", 1), work("b", 2), work("c", "1/2")]
    base = system(stages, [1, 4, 1], ("b", "b", "1/3"), rate="9/10")
    split = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    answer = verify_stability(workflow_network(base, split))
    assert answer.judgement.verdict.value == "STABLE"
    assert answer.judgement.load == F(9, 10)
    over = verify_stability(workflow_network(base, split, rate="11/10"))
    assert over.judgement.verdict.value == "UNSTABLE"


def test_regular_queries_come_through_a_hop_where_they_are_split() -> None:
    stages = [work("a"), work("b")]
    base = WorkflowSystem(
        workflow=Workflow(stages=stages),
        instances=[Instance(name="m0", speed=1), Instance(name="m1", speed=2)],
        arrivals=DeterministicArrivals(interval="1 s"),
    )
    network = workflow_network(base)
    assert [come.task_class for come in network.arrivals] == ["arrivals"]
    assert network.arrivals[0].arrivals == base.arrivals
    assert calls_per_s(network, base) == [[F(1, 2)] * 2] * 2
    whole = workflow_network(base, [[1, 0], [0, 1]])
    assert [come.task_class for come in whole.arrivals] == ["a @ m0"]


def test_isolated_latency_instances_are_stations_with_one_seat_and_constant_lengths() -> None:
    law = LatencyLaw(base="-0.032 s", per_prefill="0.02585 ms", per_decode="39.08 ms")
    stages = [Stage(name="a", prefill=2000, decode=10), Stage(name="b", prefill=100, decode=10)]

    def made(**more: Any) -> Network:
        return workflow_network(
            WorkflowSystem(workflow=Workflow(stages=stages), instances=[Instance(name="m", latency=law, **more)])
        )

    seconds = [made(seats=1).mean_service(each) for each in made(seats=1).classes]
    # 100 prompt tokens take no time: the law's 0.3614 s is less than ten steps.
    assert seconds == [F("0.4105"), F("0.3908")]
    for seats in (None, 2):
        with pytest.raises(InvalidModel, match="several calls at once"):
            made(seats=seats)
    stages[0] = Stage(name="a", prefill=Geometric(mean=9), decode=10)
    with pytest.raises(InvalidModel, match="constant lengths"):
        made(seats=1)


def test_what_has_no_place_in_a_network_is_refused() -> None:
    with pytest.raises(InvalidModel, match="fewer calls at once"):
        workflow_network(system([work("a", calls=Uniform(low=1, high=200))], [1, 1]))


@pytest.mark.parametrize(
    ("split", "match"),
    [
        ([[1]], "no table of 2 rows"),
        ([[1, 0], ["1/2", "1/4"]], "sum to 0.75"),
        ([[2, -1], [1, 0]], "from 0 on"),
        ([["1/2", "1/2"], [1, 0]], "'m1' does not serve 'a'"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(split: Any, match: str) -> None:
    base = WorkflowSystem(
        workflow=Workflow(stages=[work("a"), work("b")]),
        instances=[Instance(name="m0", speed=1), Instance(name="m1", speed=1, stages=("b",))],
    )
    with pytest.raises(InvalidInput, match=match):
        workflow_network(base, split)
