"""Capacity of clusters: works against independent sums, the static split against another solver, its duality."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.certificates.certificate import check_certificate
from queuetheory_llm.errors import AssumptionViolated
from queuetheory_llm.exact.program import Program
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Empirical, Geometric, LengthLaw, Poisson, Uniform
from queuetheory_llm.model.workflow import Stage, Workflow
from queuetheory_llm.stability.call_work import busy_seconds, call_work, prompt_seconds
from queuetheory_llm.stability.cluster_capacity import MOST_SOLVED, cluster_capacity, price_ranges, prices_are_unique
from queuetheory_llm.stability.region import outer_region

F = Fraction
A100 = LatencyLaw(base="-0.032 s", per_prefill="0.02585 ms", per_decode="39.08 ms")


def cluster(stages: list[Stage], instances: list[Instance], rate: Any = 1) -> WorkflowSystem:
    return WorkflowSystem(workflow=Workflow(stages=stages), instances=instances, arrivals=PoissonArrivals(rate=F(rate)))


def servers(works: list[Any], speeds: list[tuple[Any, int]], rate: Any = 1) -> WorkflowSystem:
    stages = [Stage(name=f"s{j}", work=ExponentialInterval(mean=F(work))) for j, work in enumerate(works)]
    return cluster(stages, [Instance(name=f"m{m}", speed=F(s), count=n) for m, (s, n) in enumerate(speeds)], rate)


def test_two_servers_carry_the_sum_of_their_speeds() -> None:
    found = cluster_capacity(servers([1], [(2, 1), (1, 1)], rate=2))
    assert found.rate_limit == 3
    assert found.load == F(2, 3)
    assert found.shares == ((F(2, 3), F(1, 3)),)
    assert found.planned.prices == ((F(2, 3),), (F(1, 3),))
    assert found.one_more == (2, 1)
    assert found.derivative == (2, 1)


def test_instances_that_are_full_together_help_only_together() -> None:
    """a on x alone, b on y alone, equal loads: both bind, one more of either adds nothing, one less takes half away."""
    stages = [Stage(name=name, work=ExponentialInterval(mean=1)) for name in "ab"]
    instances = [Instance(name=name, speed=1, count=2, stages=(at,)) for name, at in (("x", "a"), ("y", "b"))]
    found = cluster_capacity(cluster(stages, instances))
    assert found.rate_limit == 2
    assert found.binding == ("x", "y")
    assert found.derivative == found.one_more == (0, 0)
    assert found.price_ranges == ((0, F(1, 2)), (0, F(1, 2)))


def test_many_types_are_priced_without_a_program_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal types are solved once; unlike ones up to a number, and beyond it the slope bounds what one more adds."""
    solved: list[int] = []
    solve = Program.solve
    monkeypatch.setattr(Program, "solve", lambda program: solved.append(1) or solve(program))
    equal = cluster_capacity(servers([1, 1], [(1, 1)] * 40))
    assert set(equal.one_more) == set(equal.derivative) == {F(1, 2)}
    assert len(solved) <= 4
    unlike = cluster_capacity(servers([1, 3], [(1 + F(m, 100), 1) for m in range(MOST_SOLVED + 1)]))
    assert unlike.derivative == tuple((1 + F(m, 100)) / 4 for m in range(MOST_SOLVED + 1))
    assert set(unlike.one_more) == {None}
    assert unlike.to_dict()["types"][0]["derivative"] == 0.25
    assert len(solved) <= 6


def test_prices_that_equations_fix_are_those_of_the_programs() -> None:
    found = cluster_capacity(load_workflow("hexgen-cluster-1"))
    visits = found.system.workflow.visits
    assert prices_are_unique(found.types, visits, found.planned)
    assert price_ranges(found.types, visits, found.planned.load) == found.price_ranges


def test_a_type_that_is_not_full_does_not_bind() -> None:
    stages = [Stage(name=name, work=ExponentialInterval(mean=1)) for name in "ab"]
    instances = [Instance(name="x", speed=1, stages=("a",)), Instance(name="y", speed=2, stages=("b",))]
    found = cluster_capacity(cluster(stages, instances))
    assert (found.binding, found.derivative, found.one_more) == (("x",), (1, 0), (1, 0))


def test_comparative_advantage_by_hand() -> None:
    """a takes 1 s at p and 4 s at q, b takes 2 s at p and 1 s at q; one of each a query: each to its own, load 1."""
    stages = [Stage(name="a", prefill=1, decode=0), Stage(name="b", prefill=1, decode=0)]
    seconds = {"p": (1, 2), "q": (4, 1)}
    instances = [
        Instance(
            name=name,
            latency={
                s.name: LatencyLaw(base=F(t), per_prefill=0, per_decode=0) for s, t in zip(stages, row, strict=True)
            },
        )
        for name, row in seconds.items()
    ]
    found = cluster_capacity(cluster(stages, instances))
    assert found.rate_limit == 1
    assert found.shares == ((1, 0), (0, 1))
    # Two p: y of b stays at q, y = (1 + 2 (1 - y))/2 = 3/4. Two q: z of a goes there, 1 - z = (1 + 4 z)/2 = 5/6.
    assert found.one_more == (F(1, 3), F(1, 5))


@pytest.mark.parametrize(
    ("prefill", "decode", "step"),
    [
        (Geometric(mean=900), Constant(40), "39.08 ms"),
        (Poisson(mean=1200), Geometric(mean=8), "39.08 ms"),
        (Geometric(mean=900), Geometric(mean=8), "45 ms"),
        (Uniform(low=0, high=3000), Constant(3), "39.08 ms"),
        (Empirical(values=[100, 2000], weights=[1, 3]), Empirical(values=[0, 30]), "40 ms"),
        (Constant(300), Geometric(mean=5), "20 ms"),
        (Geometric(mean=20000), Uniform(low=1, high=9), "30 ms"),
    ],
)
def test_prompt_seconds_against_the_sum_over_all_pairs(prefill: LengthLaw, decode: LengthLaw, step: str) -> None:
    """E max(0, base + p v_p + (d - step) v_d): short prompts take nothing, by the negative base of the fitted law."""
    stage = Stage(name="s", prefill=prefill, decode=decode)
    instance = Instance(name="m", latency=A100, step=step)
    found, error = prompt_seconds(instance, stage)
    chances = []
    for law in (prefill, decode):
        lengths = np.arange(law.cutoff(1e-13) + 2)
        chances.append(law.survival(lengths) - law.survival(lengths + 1))
    v, w = np.arange(chances[0].size)[:, None], np.arange(chances[1].size)[None, :]
    per_decode = float(A100.per_decode - instance.decode_step)
    seconds = np.maximum(0, -0.032 + 2.585e-5 * v + per_decode * w)
    assert float(found) == pytest.approx(float(chances[0] @ seconds @ chances[1]), rel=1e-8)
    assert error == 0 or None in (prefill.largest, decode.largest)


def test_seats_divide_the_decode_steps_and_none_take_them_away() -> None:
    stage = Stage(name="s", prefill=2000, decode=100)
    prompt = F("-0.032") + 2000 * F("0.00002585")
    for seats, steps in ((None, F(0)), (1, 100 * F("0.03908")), (4, 25 * F("0.03908"))):
        instance = Instance(name="m", latency=A100, seats=seats)
        assert busy_seconds(instance, stage) == (prompt + steps, 0)
    alone = Instance(name="m", latency=A100, seats=1)
    assert busy_seconds(alone, stage)[0] == alone.mean_seconds(stage)


def test_an_engine_with_a_batch_size_has_the_faces_of_its_region() -> None:
    """One type alone: the static plan is the membership of the outer region, whatever the mix of stages."""
    engine = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128), b_max=1024, k_max=100)
    stages = [Stage(name="long", prefill=290, decode=990), Stage(name="short", prefill=700, decode=3)]
    found = cluster_capacity(cluster(stages, [Instance(name="gpu", engine=engine)]))
    assert found.load == outer_region(engine).membership(990, 993).load
    single = cluster_capacity(cluster(stages[:1], [Instance(name="gpu", engine=engine)]))
    assert float(single.rate_limit or 0) == pytest.approx(2.13904, abs=1e-5)  # the vertex C of Dai et al.


def test_full_batches_that_are_not_the_best_count_when_asked() -> None:
    engine = Engine(batch_time=Staircase(c="30 ms", a="5 ms", b0=64), b_max=513)
    system = cluster([Stage(name="s", prefill=100, decode=100)], [Instance(name="gpu", engine=engine, count=3)])
    assert cluster_capacity(system).rate_limit == 3 * F(512, 1) / F("0.07") / 200
    assert cluster_capacity(system).carried == cluster_capacity(system, filling=True).rate_limit == 3 * F(6840) / 200


def test_where_nothing_takes_time_there_is_no_limit() -> None:
    stage = Stage(name="s", prefill=100, decode=100)
    found = cluster_capacity(cluster([stage], [Instance(name="m", latency=A100)]))
    assert found.rate_limit is None
    assert found.load == 0
    assert found.one_more == (None,)
    assert found.to_dict()["rate_limit"] is None


@st.composite
def clusters(draw: st.DrawFn) -> WorkflowSystem:
    """Stages with any seconds at any types: fixed seconds of isolated-latency instances."""
    j, m = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    stages = [Stage(name=f"s{i}", prefill=1, decode=0, calls=draw(st.integers(1, 3))) for i in range(j)]
    seconds = st.integers(1, 12).map(lambda n: F(n, 7))
    instances = []
    for i in range(m):
        laws = {s.name: LatencyLaw(base=draw(seconds), per_prefill=0, per_decode=0) for s in stages}
        able = [s.name for s in stages if i == 0 or draw(st.booleans())]
        if able:
            instances.append(
                Instance(
                    name=f"m{i}",
                    count=draw(st.integers(1, 3)),
                    latency={n: laws[n] for n in able},
                    stages=tuple(able),
                )
            )
    return cluster(stages, instances, draw(st.integers(1, 9)))


@given(clusters())
@settings(max_examples=30, deadline=None)
def test_split_and_prices_prove_each_other(system: WorkflowSystem) -> None:
    found = cluster_capacity(system)
    types, visits = call_work(system), system.workflow.visits
    assert all(sum(row) == 1 and min(row) >= 0 for row in found.shares)
    loads = [0 * F(1) for _ in types]
    for j, (row, n) in enumerate(zip(found.planned.shares, visits, strict=True)):
        for m, share in enumerate(row):
            if share:
                (work,) = types[m].needs(j)
                loads[m] += n * share * work / types[m].count
    assert max(loads) <= found.planned.load
    prices = [row[0] for row in found.planned.prices]
    assert sum(price * each.count for price, each in zip(prices, types, strict=True)) == 1
    least = [
        min(price * each.needs(j)[0] for price, each in zip(prices, types, strict=True) if each.serves(j))
        for j in range(len(visits))
    ]
    assert sum(n * v for n, v in zip(visits, least, strict=True)) == found.planned.load  # strong duality
    limit = found.rate_limit
    assert limit is not None
    for price, (low, high) in zip(prices, found.price_ranges, strict=True):
        assert 0 <= low <= price <= high
    for more, slope in zip(found.one_more, found.derivative, strict=True):
        assert more is not None
        assert 0 <= more <= slope  # the limit is concave in the counts
    assert set(found.binding) <= {each.name for each, load in zip(types, loads, strict=True) if load == max(loads)}


def test_a_load_within_its_error_of_1_has_no_certificate() -> None:
    """Prompt seconds that are sums in floats, with a negative base of the law."""
    stage = Stage(name="s", prefill=Geometric(mean=900), decode=Geometric(mean=8))
    system = cluster([stage], [Instance(name="m", latency=A100, step="45 ms")])
    limit = cluster_capacity(system).rate_limit
    assert limit is not None
    assert cluster_capacity(system).error > 0
    with pytest.raises(AssumptionViolated, match="within its error"):
        cluster_capacity(system.with_rate(limit * (1 + F(1, 10**12)))).certificate()
    assert cluster_capacity(system.with_rate(limit * (1 + F(1, 10**6)))).certificate().kind == "split"


@given(clusters())
@settings(max_examples=10, deadline=None)
def test_certificates_on_both_sides_of_the_limit(system: WorkflowSystem) -> None:
    limit = cluster_capacity(system).rate_limit
    assert limit is not None
    for factor, verdict in ((F(99, 100), "UNDECIDED"), (F(101, 100), "UNSTABLE")):
        table = cluster_capacity(system.with_rate(limit * factor)).certificate().to_dict()
        assert table["verdict"] == verdict
        assert check_certificate(table).to_dict() == table
    with pytest.raises(AssumptionViolated):
        cluster_capacity(system.with_rate(limit)).certificate()


def test_what_one_more_adds_is_solved_anew() -> None:
    system = servers([1, 3], [(2, 2), (1, 1)])
    found = cluster_capacity(system)
    for m, instance in enumerate(system.instances):
        more = [attrs.evolve(each, count=each.count + (each is instance)) for each in system.instances]
        larger = cluster_capacity(attrs.evolve(system, instances=more))
        assert found.rate_limit is not None
        assert larger.rate_limit == found.rate_limit + (found.one_more[m] or 0)
