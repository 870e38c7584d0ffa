"""The compiled runner of clusters is the plain one, call for call."""

import attrs
import numpy as np
import pytest
from clusters import (
    LAW,
    batch_engine,
    queries_of,
    single_calls,
    some_dispatcher,
    some_queries,
    some_system,
    token_stage,
    work_stage,
)

from queuetheory_llm.dispatch.registry import DISPATCH_RULES
from queuetheory_llm.dispatch.view import READINGS, DispatchRule
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import ExponentialInterval
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Uniform
from queuetheory_llm.model.workflow import Stage, Workflow
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.schedulers.queue_orders import QUEUE_ORDERS
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation import cluster_kernel, kernel
from queuetheory_llm.simulation.clock import LAST_TICK
from queuetheory_llm.simulation.cluster_reference import run_reference
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.cluster_runner import ClusterProcess, run_cluster
from queuetheory_llm.simulation.requests import Requests


def both(system, queries, dispatcher, order, *, seed=0, **options):
    return [
        run(system, queries, dispatcher, order, rng=np.random.default_rng(seed), **options)
        for run in (run_reference, run_cluster)
    ]


def assert_same(one, other):
    for field in attrs.fields(type(one)):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "work":
            assert np.allclose(left, right, rtol=1e-9, atol=1e-9)
        elif isinstance(left, np.ndarray):
            assert np.array_equal(left, right), field.name
    assert one.until == other.until


def of_one_stage(*instances, stage=None):
    return WorkflowSystem(workflow=Workflow(stages=[stage or token_stage("call")]), instances=instances)


@pytest.mark.parametrize("order", QUEUE_ORDERS)
@pytest.mark.parametrize("name", DISPATCH_RULES)
def test_random_systems(name, order):
    reached = 0
    for seed in range(4):
        system = some_system(seed + 100 * len(name + order))
        queries = some_queries(system, 20, seed=seed, mean=1 + seed)
        rate = cluster_clock(system).rate
        reading = READINGS[seed % 2] if DISPATCH_RULES[name].reads_queued else READINGS[0]
        dispatcher = some_dispatcher(system, name, reading=reading)
        until = [None, 40 * rate, 35 * rate + 1][seed % 3]
        watched = np.arange(0, 35 * rate, rate * 7 // 5)
        plain, fast = both(system, queries, dispatcher, QUEUE_ORDERS[order], seed=seed, until=until, watched=watched)
        assert_same(plain, fast)
        reached += int((plain.came >= 0).sum())
    assert reached > 100


def test_every_rule_and_order_of_the_registries_is_compiled():
    system = of_one_stage(batch_engine())
    for rule in DISPATCH_RULES.values():
        for order in QUEUE_ORDERS.values():
            process = ClusterProcess(system, some_queries(system, 1), some_dispatcher(system, rule.name), order)
            assert process._how.rule != cluster_kernel.NONE
            assert process._how.order != cluster_kernel.NONE


def stubborn(view, parameters):
    """A user's own: the last instance that serves the stage and has less than some calls, else the least work."""
    best = -1
    for m in range(view.seconds.size):
        if view.seconds[m] < np.inf and (best < 0 or view.queued[m] < view.queued[best]):
            best = m
        if view.seconds[m] < np.inf and view.outstanding[m] < parameters[0]:
            best = m
    return best


STUBBORN = DispatchRule(name="stubborn", choose=stubborn, defaults={"calls": 2}, reads_queued=True)
SHORTEST = QueueOrder(name="shortest", key=lambda view: view.seconds - view.budget / 1000, rule="", source="")


@pytest.mark.parametrize(
    ("rule", "order"), [(STUBBORN, "urgency"), ("least-outstanding", SHORTEST), (STUBBORN, SHORTEST)]
)
def test_what_is_not_compiled_is_asked_in_python(rule, order):
    for seed in range(8):
        system = some_system(seed)
        queries = some_queries(system, 20, seed=seed, mean=1)
        dispatcher = some_dispatcher(system, rule) if rule == "least-outstanding" else None
        process = ClusterProcess(system, queries, dispatcher or rule, order, rng=3)
        process.advance()
        plain = run_reference(system, queries, process.dispatcher, process.order, rng=np.random.default_rng(3))
        assert_same(plain, process.run())


def test_asked_in_python_a_rule_of_the_registry_does_what_it_does_compiled():
    rules = {
        name: attrs.evolve(rule, choose=lambda v, p, f=rule.choose: f(v, p)) for name, rule in DISPATCH_RULES.items()
    }
    for seed, name in enumerate(rules):
        system = some_system(seed)
        queries = some_queries(system, 20, seed=seed, mean=1)
        dispatcher = some_dispatcher(system, name)
        slow = attrs.evolve(dispatcher, rule=rules[name])
        assert_same(*(run_cluster(system, queries, each, "urgency", rng=1) for each in (dispatcher, slow)))


@pytest.mark.parametrize("chosen", [-7, -1, 1, 99, 0.0, None])
@pytest.mark.parametrize("run", [run_reference, run_cluster])
def test_an_instance_that_cannot_serve_the_call_is_refused(run, chosen):
    stages = [token_stage("a"), token_stage("b")]
    instances = [Instance(name="x", latency=LAW), Instance(name="y", latency=LAW, stages=("b",))]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    queries = single_calls([0], [(3, 3, 0.0)])
    lost = some_dispatcher(system, "fastest")
    lost = attrs.evolve(lost, rule=DispatchRule(name="lost", choose=lambda *_: chosen))
    with pytest.raises(InvalidInput, match=r"dispatch lost: .* stage a to instance .*: 0$"):
        run(system, queries, lost, QUEUE_ORDERS["fcfs"], rng=np.random.default_rng(0))


@pytest.mark.parametrize("key", [float("nan"), None, "first"])
@pytest.mark.parametrize("run", [run_reference, run_cluster])
def test_a_key_that_is_no_number_is_refused(run, key):
    system = of_one_stage(Instance(name="x", latency=LAW))
    order = QueueOrder(name="odd", key=lambda _: key, rule="", source="")
    with pytest.raises(InvalidInput, match="order odd: its key of a call is"):
        run(
            system,
            single_calls([0], [(3, 3, 0.0)]),
            some_dispatcher(system, "fastest"),
            order,
            rng=np.random.default_rng(0),
        )


@pytest.mark.parametrize("run", [run_reference, run_cluster])
@pytest.mark.parametrize(("first", "began"), [("token", 4), ("work", 6)])
def test_what_comes_at_the_end_of_a_round_is_seen_there(run, first, began):
    """A call that comes after a work of no time, begun at that end, comes when the next round has been decided."""
    instances = [batch_engine(stages=("token",)), Instance(name="s", speed=1, stages=("work",))]
    system = WorkflowSystem(workflow=Workflow(stages=[token_stage("token"), work_stage("work")]), instances=instances)
    rate = cluster_clock(system).rate
    graphs = [[[]], [[]] if first == "token" else [[1], []]]
    stage = [np.array([0]), np.array([0] if first == "token" else [1, 0])]
    queries = queries_of(
        np.array([0, 4]) * rate, [0, 0], graphs, stage, [np.ones_like(one) for one in stage],
        lambda j: (0, 0, 0.0) if j else (1, 9, 0.0),
    )  # fmt: skip
    one = run(system, queries, some_dispatcher(system, "fastest"), QUEUE_ORDERS["fcfs"], rng=np.random.default_rng(0))
    assert one.came[-1] == 4 * rate
    assert one.began[-1] == began * rate


def test_steps_that_take_no_time():
    stage = Stage(name="call", prefill=Uniform(low=1, high=5), decode=Constant(0))
    law = LatencyLaw(base=1, per_prefill=1, per_decode=0)
    system = of_one_stage(Instance(name="i", latency=law, seats=2), Instance(name="j", latency=law), stage=stage)
    for seed in range(10):
        queries = some_queries(system, 20, seed=seed, mean=1)
        plain, fast = both(system, queries, some_dispatcher(system, "token-queue"), QUEUE_ORDERS["fcfs"])
        assert_same(plain, fast)


@pytest.mark.parametrize("every", [1, 7 * 10**9, 10**10 + 1])
def test_a_run_in_pieces_is_the_run(every):
    system = some_system(4)
    queries = some_queries(system, 30, seed=4, mean=2)
    rate = cluster_clock(system).rate
    until = 50 * rate
    watched = np.arange(0, until + 1, rate)
    whole = run_cluster(system, queries, "hexgen-paper", "urgency", until=until, watched=watched)
    process = ClusterProcess(system, queries, "hexgen-paper", "urgency", watched=watched)
    pieces = range(0, until, every) if every > 1 else range(0, until, rate // 2)
    for tick in pieces:
        process.advance(tick)
        part = process.run()
        assert part.until == tick
        assert_same(part, run_cluster(system, queries, "hexgen-paper", "urgency", until=tick, watched=part.watched))
    process.advance(until)
    assert_same(process.run(), whole)


def test_parameters_that_change_while_it_runs():
    system = of_one_stage(Instance(name="fast", latency=LAW), batch_engine(count=2))
    queries = some_queries(system, 60, seed=1, mean=1, most=2)
    middle = int(queries.arrival[30])
    process = ClusterProcess(system, queries, "hexgen-paper+alpha=0")
    process.advance(middle)
    process.set_parameters({"alpha": 1})
    process.advance()
    run = process.run()
    zero, one = (run_cluster(system, queries, f"hexgen-paper+alpha={alpha}") for alpha in (0, 1))
    early = (zero.came < middle) & (zero.came >= 0)
    assert np.array_equal(run.instance[early], zero.instance[early])
    fastest = int(np.argmin([float(s) for s in system.mean_seconds[0]]))
    assert (run.instance[run.came >= middle] == fastest).all()
    assert not np.array_equal(run.instance, one.instance)
    assert process.dispatcher.values == {"alpha": 1, "beta": 1.0}
    assert process.done
    assert np.array_equal(process.finished, run.finished)
    with pytest.raises(InvalidInput, match="alpha: 2 is out of range"):
        process.set_parameters({"alpha": 2})


@pytest.mark.parametrize("k_max", [None, 3])
def test_a_batch_engine_is_the_engine_of_the_other_runner(k_max):
    engine = Engine(batch_time=Staircase(c="300 ms", a="700 ms", b0=4), b_max=11, k_max=k_max)
    system = of_one_stage(Instance(name="engine", engine=engine))
    clock = cluster_clock(system)
    rng = np.random.default_rng(5)
    count = 4000
    arrival = np.cumsum(rng.integers(0, 4 if k_max is None else 9, count)) * clock.rate
    prefill, decode = rng.integers(0, 30, count), rng.integers(0, 9, count)
    decode[prefill == 0] += 1
    requests = Requests(arrival=arrival, prefill=prefill, decode=decode)
    alone = kernel.run(engine, parse_scheduler("vllm-chunked"), requests, clock, until=None)
    queries = single_calls(arrival, zip(prefill, decode, np.zeros(count), strict=True))
    there = run_cluster(system, queries, "round-robin")
    assert np.array_equal(there.ended, alone.finish)
    assert np.array_equal(there.began, alone.begin)
    assert there.busy[0] == alone.busy


def test_one_seat_makes_an_isolated_latency_instance_a_classical_server():
    clock = cluster_clock(of_one_stage(Instance(name="i", latency=LAW, seats=1)))
    rng = np.random.default_rng(2)
    count = 500
    arrival = np.cumsum(rng.integers(0, 16, count)) * clock.rate
    prefill, decode = 2 * rng.integers(0, 5, count), rng.integers(0, 6, count)
    work = 1 + 0.5 * prefill + decode
    single = run_cluster(
        of_one_stage(Instance(name="i", latency=LAW, seats=1)),
        single_calls(arrival, zip(prefill, decode, np.zeros(count), strict=True)),
        "round-robin",
    )
    stage = Stage(name="w", work=ExponentialInterval(mean=5))
    server = run_cluster(
        of_one_stage(Instance(name="s", speed=1), stage=stage),
        single_calls(arrival, zip(0 * prefill, 0 * decode, work, strict=True)),
        "round-robin",
    )
    for name in ("came", "began", "ended", "busy"):
        assert np.array_equal(getattr(single, name), getattr(server, name))


def test_a_run_that_outlives_the_clock_is_refused():
    system = of_one_stage(Instance(name="i", latency=LAW))
    queries = single_calls([2**62 - 10], [(3, 3, 0.0)])
    with pytest.raises(InvalidInput, match="queries: the run passes"):
        run_cluster(system, queries, "round-robin")
    assert LAST_TICK > 2**62


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watched": [3, 3]}, "watched: the ticks must be increasing"),
        ({"watched": [-1]}, "watched: the ticks must be increasing"),
        ({"watched": [3, 9], "until": 8}, "watched: tick 9 is after the end of the run, 8"),
        ({"dispatcher": "random-lp"}, "it splits by a linear program; give its answer as shares"),
        ({"dispatcher": attrs.evolve(some_dispatcher(None, "random"), shares=((1.0,),))}, "need a row a stage"),
        ({"dispatcher": "nothing"}, "is not a known rule"),
        ({"order": "nothing"}, "is not a known queue order"),
    ],
)
def test_bad_input_is_refused(options, message):
    system = of_one_stage(Instance(name="i", latency=LAW, count=2))
    options = {"dispatcher": "fastest", "order": "fcfs", **options}
    with pytest.raises(InvalidInput, match=message):
        run_cluster(system, some_queries(system, 3), options.pop("dispatcher"), options.pop("order"), **options)


@pytest.mark.parametrize(("stage", "tenant", "what"), [(1, 0, "2 stages"), (0, 1, "2 tenants")])
def test_queries_of_another_workflow_are_refused(stage, tenant, what):
    system = of_one_stage(Instance(name="i", latency=LAW))
    one = [np.array([1])]
    queries = queries_of([0], [tenant], [[[]]], [np.array([stage])], one, lambda _: (1, 1, 0.0))
    with pytest.raises(InvalidInput, match=what):
        run_cluster(system, queries, "fastest")
