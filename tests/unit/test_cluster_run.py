"""What both runners of clusters are told: the clock, the static split, what an order sees."""

from fractions import Fraction

import numpy as np
import pytest
from clusters import LAW, some_dispatcher, token_stage, work_stage

from queuetheory_llm.dispatch.registry import to_dispatcher
from queuetheory_llm.dispatch.view import DispatchRule
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import ConstantInterval, DeterministicArrivals, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workflow import Stage, Workflow
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.simulation.cluster_bounds import with_split
from queuetheory_llm.simulation.cluster_rule import to_cluster_rule
from queuetheory_llm.simulation.cluster_run import cluster_clock, order_view, shares_of
from queuetheory_llm.simulation.cluster_runner import run_cluster
from queuetheory_llm.simulation.query_source import first_arrivals
from queuetheory_llm.simulation.workflow_draws import draw_queries
from queuetheory_llm.stability.rule_limits import long_run_split


def of_stages(stages, *instances, **options):
    return WorkflowSystem(workflow=Workflow(stages=stages), instances=instances, **options)


def test_the_clock_shows_every_fixed_time():
    law = LatencyLaw(base="-32 ms", per_prefill="25.85 us", per_decode="39.08 ms")
    engine = Engine(batch_time=Staircase(c="0.0301 s", a="0.0000007 s", b0=64), b_max=512)
    third = Stage(name="third", work=ConstantInterval(mean=1))
    instances = [
        Instance(name="i", latency=law, step="41 ms", stages=("t",)),
        Instance(name="e", engine=engine, stages=("t",)),
        Instance(name="s", speed=3, stages=("third",)),
    ]
    arrivals = DeterministicArrivals(interval="1/7 ms")
    clock = cluster_clock(of_stages([token_stage("t"), third], *instances, arrivals=arrivals))
    times = ("0.032", "0.00002585", "0.03908", "0.041", "0.0301", "0.0000007", "1/3", "1/7000")
    assert all((Fraction(time) * clock.rate).denominator == 1 for time in times)
    assert 10**9 <= clock.rate < 2 * 10**9  # no finer than it must be
    assert clock.notes == ()


def test_the_clock_says_when_times_are_rounded():
    law = LatencyLaw(base=0, per_prefill="0.0000000000001 s", per_decode="1 ms")
    clock = cluster_clock(of_stages([token_stage("t")], Instance(name="i", latency=law)))
    assert clock.rate == 10**9
    assert "rounded to 1 ns" in clock.notes[0]


def test_splits_without_a_program():
    instances = [
        Instance(name="fast", speed=2, count=2, stages=("w",)),
        Instance(name="slow", speed=1, stages=("w",)),
        Instance(name="i", latency=LAW, stages=("t",)),
    ]
    system = of_stages([work_stage("w"), token_stage("t")], *instances)
    uniform = shares_of(system, some_dispatcher(system, "random"))
    assert np.allclose(uniform, [[1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 0, 1]])
    proportional = shares_of(system, some_dispatcher(system, "random-proportional"))
    assert np.allclose(proportional, [[0.4, 0.4, 0.2, 0], [0, 0, 0, 1]])
    judged = long_run_split(system, to_dispatcher("random-proportional")).shares
    assert np.allclose(proportional, [[float(share) for share in row] for row in judged])
    assert not shares_of(system, some_dispatcher(system, "fastest")).any()


def test_the_best_split_is_that_of_rules_that_fill():
    """64 tokens a second in batches of 64, 42.7 in full ones; beside an engine of 64 either way."""
    laws = (Table(tokens=[64, 128], seconds_at=[1, 3]), Table(tokens=[128], seconds_at=[2]))
    instances = [Instance(name=f"e{m}", engine=Engine(batch_time=law, b_max=128)) for m, law in enumerate(laws)]
    system = of_stages([token_stage("t")], *instances)
    assert with_split(to_cluster_rule("random-lp"), system).dispatcher.shares == ((0.4, 0.6),)
    assert long_run_split(system, to_dispatcher("random-lp")).shares == ((Fraction(2, 5), Fraction(3, 5)),)


def seen(slo, average, rest, now=30.0):
    return order_view(now=now, born=10.0, rate=2.0, slo=slo, seconds=2, average=average, rest=rest, prefill=5, decode=3)


def test_the_budget_is_the_share_of_what_is_left_of_the_deadline():
    view = seen(40, 3, 9)
    assert (view.arrived, view.born, view.slo) == (15, 5, 40)
    assert view.budget == (40 - 10) * 3 / (3 + 9)


@pytest.mark.parametrize("average", [0, 3])
def test_without_a_deadline_the_budget_has_no_end(average):
    assert seen(np.inf, average, 9).budget == np.inf


def servers(rate=1):
    return of_stages(
        [work_stage("w")], Instance(name="s", speed=1), arrivals=DeterministicArrivals(interval=1 / Fraction(rate))
    )


def tokens():
    return of_stages([token_stage("t")], Instance(name="l", latency=LAW, step=1), arrivals=PoissonArrivals(rate=1))


def test_queries_of_another_workflow_are_refused():
    drawn = draw_queries(servers().workflow, np.arange(2), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match=r"^queries: a call of stage t brings seconds of work, it takes tokens"):
        run_cluster(tokens(), drawn, "random")
    drawn = draw_queries(tokens().workflow, np.arange(2), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match=r"^queries: a call of stage w brings tokens, it takes seconds of work"):
        run_cluster(servers(), drawn, "random")


@pytest.mark.parametrize("until", [-5, "x", 10**30, 1.5])
def test_a_run_ends_at_a_tick(until):
    drawn = draw_queries(servers().workflow, np.arange(2), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match=r"^until: "):
        run_cluster(servers(), drawn, "random", until=until)


def _fails(*seen):
    raise ValueError(f"{len(seen)}\nlines")


@pytest.mark.parametrize("function", [_fails, lambda: 0])
def test_a_rule_or_an_order_that_fails_is_named_in_one_line(function):
    drawn = draw_queries(servers().workflow, np.arange(2), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match=r"^dispatch mine: its function raised \w+Error: .*; mend its choose") as one:
        run_cluster(servers(), drawn, DispatchRule(name="mine", choose=function))
    with pytest.raises(InvalidInput, match=r"^order own: its function raised \w+Error: .*; mend its key") as other:
        run_cluster(servers(), drawn, "random", QueueOrder(name="own", key=function, rule="", source=""))
    assert "\n" not in str(one.value) + str(other.value)


@pytest.mark.parametrize(("rate", "count"), [(Fraction(1, 10**9), 30), (1, 60_000_000)])
def test_arrivals_that_no_run_can_hold_are_refused(rate, count):
    system = servers(rate)
    with pytest.raises(InvalidInput, match=r"^(rate|queries): .*; give .*"):
        first_arrivals(system, count, np.random.default_rng(0), cluster_clock(system))


def test_times_beyond_the_clock_are_said_of_the_instances():
    system = of_stages(
        [token_stage("t")],
        Instance(name="l", latency=LatencyLaw(base=10**12, per_prefill=1, per_decode=1), step=1),
        arrivals=PoissonArrivals(rate=1),
    )
    with pytest.raises(InvalidInput, match=r"^instances, stages: one takes 1e\+12 s"):
        cluster_clock(system)
