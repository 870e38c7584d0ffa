"""Clusters, and queries for them, shared by the tests."""

import numpy as np

from queuetheory_llm.dispatch.registry import DISPATCH_RULES
from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.model.arrivals import ExponentialInterval
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Uniform
from queuetheory_llm.model.workflow import Stage, Tenant, Workflow
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.queries import Queries

#: Whole seconds, so that many things happen at one instant.
LAW = LatencyLaw(base=1, per_prefill="500 ms", per_decode=1)


def token_stage(name, **options):
    return Stage(name=name, prefill=Uniform(low=1, high=8), decode=Uniform(low=0, high=5), **options)


def work_stage(name, mean=2, **options):
    return Stage(name=name, work=ExponentialInterval(mean=mean), **options)


def batch_engine(name="engine", *, b_max=5, k_max=None, **options):
    engine = Engine(batch_time=Staircase(c=1, a=1, b0=3), b_max=b_max, k_max=k_max)
    return Instance(name=name, engine=engine, **options)


def some_instance(rng, name):
    """An instance for tokens, all of whose times are whole seconds or nothing."""
    kind = rng.integers(4)
    if kind == 0:
        return batch_engine(name, b_max=int(rng.integers(1, 9)), k_max=[None, 1, 2, 3][rng.integers(4)])
    if kind == 1:
        base, per_decode = (int(x) for x in rng.integers(-1, 3, 2))
        law = LatencyLaw(base=base, per_prefill=int(rng.integers(0, 3)), per_decode=max(per_decode, 0) + 1)
        return Instance(name=name, latency=law, step=int(rng.integers(1, 4)), seats=[None, 1, 2][rng.integers(3)])
    if kind == 2:
        return Instance(name=name, latency=LAW, count=int(rng.integers(1, 3)))
    return batch_engine(name, b_max=int(rng.integers(2, 9)), count=2)


def some_system(seed):
    """Stages of tokens and of classical work, instances of all kinds, two tenants of whom one has a deadline."""
    rng = np.random.default_rng(seed)
    stages = [token_stage(f"t{j}") for j in range(rng.integers(1, 4))]
    instances = [some_instance(rng, f"i{m}") for m in range(rng.integers(1, 4))]
    if len(stages) > 1 and len(instances) > 1:  # one instance does not serve all
        last = instances[-1]
        instances[-1] = Instance(
            name=last.name,
            count=last.count,
            engine=last.engine,
            latency=last.latency,
            step=last.step,
            seats=last.seats,
            stages=("t0",),
        )
    names = [stage.name for stage in stages]
    instances = [each if each.stages else restricted(each, names) for each in instances]
    if rng.integers(2):
        stages.append(work_stage("w"))
        instances += [Instance(name=f"s{speed}", speed=speed, stages=("w",)) for speed in (1, 2)]
    tenants = (Tenant(name="a", slo=int(rng.integers(200, 300))), Tenant(name="b"))
    return WorkflowSystem(workflow=Workflow(stages=stages, tenants=tenants), instances=instances)


def restricted(each, names):
    return Instance(
        name=each.name,
        count=each.count,
        engine=each.engine,
        latency=each.latency,
        step=each.step,
        seats=each.seats,
        stages=tuple(names),
    )


def some_queries(system, count, *, seed=0, mean=3, most=4, zeros=True):
    """Random graphs of steps; whole seconds, so that many things happen at one instant."""
    rng = np.random.default_rng(seed)
    rate = cluster_clock(system).rate
    graphs = [some_graph(rng, int(rng.integers(0 if zeros else 1, most + 1))) for _ in range(count)]
    stages = len(system.workflow.stages)
    return queries_of(
        arrival=np.cumsum(rng.integers(0, 2 * mean + 1, count)) * rate,
        tenant=rng.integers(0, len(system.workflow.tenants), count),
        graphs=graphs,
        stage=[rng.integers(0, stages, len(graph)) for graph in graphs],
        calls=[rng.integers(1, 4, len(graph)) for graph in graphs],
        draw=lambda stage: some_call(rng, system.workflow.stages[stage].classical),
    )


def some_call(rng, classical):
    if classical:
        return 0, 0, float(rng.integers(0, 5))
    return int(rng.integers(0, 9)), int(rng.integers(0, 6)), 0.0


def some_graph(rng, steps):
    """For each step, the steps behind it that wait for it."""
    return [[after for after in range(step + 1, steps) if rng.random() < 0.5] for step in range(steps)]


def queries_of(arrival, tenant, graphs, stage, calls, draw):
    """Queries from rows a query; ``draw`` gives prompt, decode and work of a call of a stage."""
    first_step = np.cumsum([0, *map(len, graphs)])
    after = [[int(first) + to for to in row] for first, graph in zip(first_step, graphs, strict=False) for row in graph]
    stages = np.concatenate([np.zeros(0, dtype=np.int64), *stage])
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *calls])
    drawn = [draw(j) for j, n in zip(stages, counts, strict=True) for _ in range(n)]
    flat = [to for row in after for to in row]
    return Queries(
        arrival=arrival,
        tenant=tenant,
        first_step=first_step,
        stage=stages,
        waits=np.bincount(np.array(flat, dtype=np.int64), minlength=stages.size),
        first_next=np.cumsum([0, *map(len, after)]),
        next=flat,
        first_call=np.cumsum([0, *counts]),
        prefill=[prompt for prompt, _, _ in drawn],
        decode=[decode for _, decode, _ in drawn],
        work=np.array([work for _, _, work in drawn], dtype=np.float64),
    )


def single_calls(arrival, calls):
    """Queries of one call each: ticks, and (prompt, decode, work)."""
    rows, one = iter(calls), [np.ones(1, dtype=np.int64)] * len(arrival)
    return queries_of(
        arrival, np.zeros(len(arrival)), [[[]]] * len(arrival), [n - 1 for n in one], one, lambda _: next(rows)
    )


def some_dispatcher(system, name, *, reading="estimated", **values):
    """A rule of the registry; one that splits by the linear program gets shares that are uniform."""
    rule = DISPATCH_RULES[name]
    shares = None
    if rule.split == "lp":
        able = np.array([[row[kind] is not None for kind in system.units] for row in system.mean_seconds])
        shares = tuple(map(tuple, able / able.sum(axis=1, keepdims=True)))
    return Dispatcher(rule=rule, values=values, reading=reading, shares=shares)
