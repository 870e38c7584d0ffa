"""Invariants of every run of a cluster, and the laws that some clusters are known to have."""

import attrs
import numpy as np
import pytest
from clusters import LAW, single_calls, some_dispatcher, some_queries, some_system, work_stage
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.dispatch.registry import DISPATCH_RULES
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.model.workflow import Workflow
from queuetheory_llm.schedulers.queue_orders import QUEUE_ORDERS
from queuetheory_llm.simulation.cluster_invariants import CHECKED, check_cluster_run
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.cluster_runner import ClusterProcess, run_cluster


def run(seed, name="hexgen-paper", order="urgency", until=None):
    system = some_system(seed)
    queries = some_queries(system, 40, seed=seed, mean=1 + seed % 7)
    rate = cluster_clock(system).rate
    watched = np.arange(0, (60 if until is None else until) * rate, rate // 2)
    until = None if until is None else until * rate
    return run_cluster(system, queries, some_dispatcher(system, name), order, until=until, watched=watched, rng=seed)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**9),
    name=st.sampled_from(list(DISPATCH_RULES)),
    order=st.sampled_from(list(QUEUE_ORDERS)),
    until=st.none() | st.integers(0, 60),
)
def test_every_run_keeps_the_invariants(seed, name, order, until):
    assert check_cluster_run(run(seed, name, order, until)) == []


def test_a_run_without_an_end_ends_with_every_query():
    one = run(3)
    assert (one.finished >= one.queries.arrival).all()
    assert (one.ended >= 0).all()
    assert one.until == one.finished.max() + 1


def test_a_run_of_no_queries():
    system = some_system(1)
    one = run_cluster(system, some_queries(system, 0), "fastest", watched=[0, 5])
    assert check_cluster_run(one) == []
    assert (one.until, one.present.sum(), one.busy.sum()) == (0, 0, 0)


SEED = 3  # classical servers beside an instance for tokens


def moved(ticks, by=1):
    ticks = ticks.copy()
    ticks[np.flatnonzero(ticks >= 0)[-1]] += by
    return ticks


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda one: {"began": moved(one.began, -(10**12))}, "clock"),
        (lambda one: {"ended": moved(one.ended, 10**15)}, "clock"),
        (lambda one: {"came": moved(one.came)}, "causality"),
        (lambda one: {"finished": moved(one.finished)}, "causality"),
        (lambda one: {"sent": one.sent + 1}, "conservation"),
        (lambda one: {"present": one.present + 1}, "conservation"),
        (lambda one: {"work": one.work - 1000}, "conservation"),
        (lambda one: {"instance": np.where(one.instance >= 0, -1, 0)}, "conservation"),
        (lambda one: {"busy": one.busy + 1}, "work conservation"),
        (lambda one: {"began": one.came}, "seats"),
        (lambda one: {"began": np.where(one.ended >= 0, one.ended, one.began)}, "service"),
    ],
)
def test_what_is_tampered_with_is_found(change, what):
    one = run(SEED, until=50)
    assert check_cluster_run(one) == []
    assert (one.came < 0).any()
    found = check_cluster_run(attrs.evolve(one, **change(one)))
    assert any(line.startswith(f"{what}: ") for line in found)
    assert any(line.startswith(f"{what}: ") for line in CHECKED)


def poisson(system, rate, count, seed=0):
    """Queries of one classical call each, of mean work 1."""
    rng = np.random.default_rng(seed)
    arrival = np.rint(np.cumsum(rng.exponential(1 / rate, count)) * cluster_clock(system).rate)
    return single_calls(arrival, [(0, 0, work) for work in rng.exponential(1, count).tolist()])


def classical(*speeds):
    instances = [Instance(name=f"s{m}", speed=speed) for m, speed in enumerate(speeds)]
    return WorkflowSystem(workflow=Workflow(stages=[work_stage("w", mean=1)]), instances=instances)


def mean_and_error(values, batches=50):
    means = np.array([batch.mean() for batch in np.array_split(values, batches)])
    return means.mean(), means.std(ddof=1) / np.sqrt(batches)


def test_one_server_is_m_m_1():
    system = classical(2)
    run = run_cluster(system, poisson(system, 1.4, 60_000), "fastest")
    mean, error = mean_and_error(run.responses)
    assert abs(mean - 1 / (2 - 1.4)) < 4 * error
    assert run.busy[0] / run.until == pytest.approx(0.7, abs=0.02)


def test_a_random_split_is_servers_apart():
    """mu = 2 and 1 with proportional shares at rate 2.4: both are M/M/1 of load .8, mean response 2/(3 - 2.4)."""
    system = classical(2, 1)
    run = run_cluster(system, poisson(system, 2.4, 100_000), "random-proportional", rng=7)
    mean, error = mean_and_error(run.responses)
    assert abs(mean - 2 / (3 - 2.4)) < 4 * error


def test_processes_advance_side_by_side():
    """The kernel releases the interpreter: results do not depend on who runs beside."""
    from concurrent.futures import ThreadPoolExecutor

    system = classical(2, 1)
    queries = poisson(system, 2.0, 5_000)
    alone = [run_cluster(system, queries, f"hexgen-paper+alpha=0.{k}").finished for k in range(8)]

    def replay(k):
        process = ClusterProcess(system, queries, f"hexgen-paper+alpha=0.{k}")
        process.advance()
        return process.run().finished

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(replay, range(8)))
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_work_falls_evenly_while_it_is_served():
    system = WorkflowSystem(workflow=Workflow(stages=[work_stage("w")]), instances=[Instance(name="s", speed=1)])
    rate = cluster_clock(system).rate
    ticks = np.arange(0, 5 * rate + 1, rate // 4)
    run = run_cluster(system, single_calls([0], [(0, 0, 4.0)]), "fastest", watched=ticks)
    assert np.allclose(run.work[0], np.maximum(4 - ticks / rate, 0))
    tokens = WorkflowSystem(
        workflow=Workflow(stages=[attrs.evolve(some_system(0).workflow.stages[0], name="t")]),
        instances=[Instance(name="i", latency=LAW)],
    )
    run = run_cluster(tokens, single_calls([0], [(2, 3, 0.0)]), "fastest", watched=ticks)
    assert np.allclose(run.work[0], np.maximum(5 - ticks / rate, 0))
