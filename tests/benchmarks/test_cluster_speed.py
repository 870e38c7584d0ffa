"""What a run of a cluster costs: queries of agents on eight instances of each kind, and a tuning replay."""

import time

import numpy as np
import pytest
from clusters import queries_of, single_calls, work_stage

from queuetheory_llm.dispatch.registry import parse_dispatcher
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Uniform
from queuetheory_llm.model.workflow import Stage, Tenant, Workflow
from queuetheory_llm.schedulers.queue_orders import QUEUE_ORDERS
from queuetheory_llm.simulation.alpha_tuning import replay_p95
from queuetheory_llm.simulation.cluster_reference import run_reference
from queuetheory_llm.simulation.cluster_rule import to_cluster_rule
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.cluster_runner import run_cluster
from queuetheory_llm.simulation.slo_throughput import TENTHS

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="clusters")

CALLS = 20  # of a query, two in parallel in each of ten steps
SECONDS, REPLAY_SECONDS = 0.2, 5.0  # for 1 000 queries; for 11 replays of 10 000 queries on two threads
TIMES_SIMPY = 20


def latency(base, prefill, decode):
    """A law of HEXGEN-FLOW's instances (arXiv 2505.05286)."""
    return LatencyLaw(base=f"{base} ms", per_prefill=f"{prefill} us", per_decode=f"{decode} ms")


def engine(fixed, step):
    return Engine(batch_time=Staircase(c=f"{fixed} ms", a=f"{step} ms", b0=64), b_max=512)


#: Pairs of types, four instances each, and rates at which the eight are busy: queries a second.
KINDS = {
    "isolated-latency": ({"latency": latency(-32, 25.85, 39.08)}, {"latency": latency(-104, 36.77, 60.49)}, 0.4),
    "seats": (
        {"latency": latency(-32, 25.85, 39.08), "seats": 16},
        {"latency": latency(-104, 36.77, 60.49), "seats": 16},
        0.4,
    ),
    "batch engine": ({"engine": engine(30, 10)}, {"engine": engine(45, 15)}, 0.2),
    "classical": ({"speed": 2}, {"speed": 1}, 0.5),
}


def cluster(kind):
    fast, slow, _ = KINDS[kind]
    names = [f"s{j}" for j in range(5)]
    stages = [Stage(name=name, prefill=Uniform(low=200, high=3000), decode=Uniform(low=10, high=400)) for name in names]
    if kind == "classical":
        stages = [work_stage(name, mean=1) for name in names]
    return WorkflowSystem(
        workflow=Workflow(stages=stages, tenants=[Tenant(name="a", slo=200), Tenant(name="b", slo=100)]),
        instances=[Instance(name="fast", count=4, **fast), Instance(name="slow", count=4, **slow)],
    )


def load(system, count, rate):
    """Queries of ten steps in series, two calls each."""
    rng = np.random.default_rng(1)
    classical = system.workflow.stages[0].classical
    series = [[step + 1] if step < CALLS // 2 - 1 else [] for step in range(CALLS // 2)]

    def draw(_):
        if classical:
            return 0, 0, rng.exponential(1)
        return rng.integers(200, 3001), rng.integers(10, 401), 0.0

    return queries_of(
        arrival=np.rint(np.cumsum(rng.exponential(1 / rate, count)) * cluster_clock(system).rate),
        tenant=rng.integers(0, 2, count),
        graphs=[series] * count,
        stage=[np.arange(CALLS // 2) % 5] * count,
        calls=[np.full(CALLS // 2, 2)] * count,
        draw=draw,
    )


@pytest.mark.parametrize("order", ["urgency", "vtc"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_queries(benchmark, figure, kind, order):
    system = cluster(kind)
    queries = load(system, 1000, KINDS[kind][2])
    run = benchmark.pedantic(run_cluster, args=(system, queries, "hexgen-paper", order), rounds=5, warmup_rounds=1)
    seconds = benchmark.stats.stats.min
    assert (run.finished >= 0).all()
    figure(
        f"1000 queries of {CALLS} calls on 8 instances, {kind}, hexgen-paper and {order}: {seconds:.3g} s "
        f"({queries.calls / seconds:.3g} calls/s, busy {run.busy.mean() / run.until:.0%}), {SECONDS} s allowed"
    )
    assert seconds < SECONDS


@pytest.mark.benchmark(timer=time.perf_counter)  # of the wall: it is two threads that are timed
@pytest.mark.parametrize("kind", ["isolated-latency", "batch engine"])
def test_a_tuning_replay(benchmark, figure, kind):
    system = cluster(kind)
    queries = load(system, 10_000, KINDS[kind][2])
    rule = to_cluster_rule("hexgen-paper/urgency")
    alphas = [float(alpha) for alpha in TENTHS]
    replay_p95(system, queries, rule, alphas[:1])  # compiles
    begin = time.process_time()
    p95 = benchmark.pedantic(replay_p95, (system, queries, rule, alphas), {"workers": 2}, rounds=2)
    spent, seconds = (time.process_time() - begin) / 2, benchmark.stats.stats.min
    figure(
        f"11 alphas x 10000 queries of {CALLS} calls, {kind}: {seconds:.3g} s on two threads, {spent:.3g} s of the "
        f"processor, {REPLAY_SECONDS} s allowed"
    )
    assert len(p95) == 11
    assert queries.calls == 200_000
    assert np.isfinite(p95).all()
    assert seconds < REPLAY_SECONDS


def test_beside_the_plain_runner(benchmark, figure):
    system = cluster("seats")
    queries = load(system, 20, KINDS["seats"][2])
    rule, order = parse_dispatcher("hexgen-paper"), QUEUE_ORDERS["fcfs"]
    begin = time.process_time()
    plain = run_reference(system, queries, rule, order, rng=np.random.default_rng(0))
    slow = time.process_time() - begin
    fast = benchmark.pedantic(run_cluster, args=(system, queries, rule, order), rounds=20, warmup_rounds=1)
    quick = benchmark.stats.stats.min
    assert np.array_equal(plain.ended, fast.ended)
    figure(f"20 queries of {CALLS} calls, seats: {slow / quick:.0f} times the plain runner")


def simpy_calls_a_second(works, gaps, speeds):
    """The shortest expected delay on classical servers, in SimPy; calls a second of the processor, mean response."""
    simpy = pytest.importorskip("simpy")
    env = simpy.Environment()
    servers = [simpy.Resource(env, capacity=1) for _ in speeds]
    there, stays = [0] * len(speeds), []

    def call(work):
        m = min(range(len(speeds)), key=lambda m: (there[m] + 1) / speeds[m])
        there[m] += 1
        came = env.now
        with servers[m].request() as turn:
            yield turn
            yield env.timeout(work / speeds[m])
        there[m] -= 1
        stays.append(env.now - came)

    def source():
        for work, gap in zip(works, gaps, strict=True):
            yield env.timeout(gap)
            env.process(call(work))

    env.process(source())
    begin = time.process_time()
    env.run()
    return len(works) / (time.process_time() - begin), float(np.mean(stays))


def test_beside_simpy(benchmark, figure):
    speeds = (2, 2, 1, 1)
    system = WorkflowSystem(
        workflow=Workflow(stages=[work_stage("w", mean=1)]),
        instances=[Instance(name=f"s{m}", speed=speed) for m, speed in enumerate(speeds)],
    )
    rng = np.random.default_rng(0)
    count = 20_000
    works, gaps = rng.exponential(1, count), rng.exponential(1 / 4.8, count)
    theirs, their_mean = simpy_calls_a_second(works.tolist(), gaps.tolist(), speeds)
    arrival = np.rint(np.cumsum(gaps) * cluster_clock(system).rate)
    queries = single_calls(arrival, [(0, 0, work) for work in works.tolist()])
    run = benchmark.pedantic(run_cluster, args=(system, queries, "shortest-expected-delay"), rounds=5, warmup_rounds=1)
    ours = count / benchmark.stats.stats.min
    figure(
        f"4 servers, shortest expected delay, beside SimPy: {ours:.3g} against {theirs:.3g} calls/s, "
        f"{ours / theirs:.0f} times"
    )
    assert run.responses.mean() == pytest.approx(their_mean, rel=1e-6)
    assert ours / theirs >= TIMES_SIMPY
