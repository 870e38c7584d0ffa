"""What theory tells the runs of a cluster: the rate that no rule carries, its split, and mean works."""

from __future__ import annotations

from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.arrays import Ints
from queuetheory_llm.errors import AssumptionViolated
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.model.workflow import Stage
from queuetheory_llm.simulation.cluster_rule import ClusterRule
from queuetheory_llm.stability.call_work import call_work, prompt_seconds
from queuetheory_llm.stability.cluster_capacity import cluster_capacity, lp_shares


def capacity_of(system: WorkflowSystem) -> Fraction:
    """Queries/s above which no dispatch rule is stable; see `stability.cluster_capacity`.

    Raises
    ------
    AssumptionViolated
        If there is no such rate.
    """
    limit = limit_of(system)
    if limit is None:
        raise AssumptionViolated("instances: no call takes up anything of them, so there is no limit to search for")
    return limit


def limit_of(system: WorkflowSystem) -> Fraction | None:
    """As `capacity_of`; None where there is no such rate."""
    return cluster_capacity(system).rate_limit


def with_split(rule: ClusterRule, system: WorkflowSystem) -> ClusterRule:
    """The rule with the split of the linear program, where it asks for that and has none of its own.

    That is the best split under rules that fill their batches, as instances do.
    """
    dispatcher = rule.dispatcher
    if dispatcher.rule.split != "lp" or dispatcher.shares is not None:
        return rule
    shares = tuple(tuple(float(share) for share in row) for row in lp_shares(system))
    return attrs.evolve(rule, dispatcher=attrs.evolve(dispatcher, shares=shares, text=dispatcher.name))


def memory_notes(system: WorkflowSystem) -> tuple[str, ...]:
    """Say so where the KV memory of an engine plays no part in the runs."""
    return tuple(
        f"instance {each.name}: kv_tokens = {each.engine.kv_tokens} plays no part here: KV memory may bind before "
        "b_max and k_max do"
        for each in system.instances
        if each.engine is not None and each.engine.kv_tokens is not None
    )


def mean_prompt_seconds(instance: Instance, stage: Stage) -> float:
    """E[max(0, T - v_d step)] of a call at an isolated-latency instance; see `stability.call_work`."""
    return float(prompt_seconds(instance, stage)[0])


def rate_of_split(system: WorkflowSystem, sent: Ints) -> float:
    """Queries/s at which the first instance is loaded fully when the calls go where ``sent`` did, shape (J, M)."""
    calls = np.array([float(each) for each in system.workflow.visits])[:, None] * sent
    rates = np.divide(calls, sent.sum(axis=1, keepdims=True), out=np.zeros(sent.shape), where=calls > 0)
    types = call_work(system)
    works = [
        (m, [float(work or 0) for work in resource.work])
        for m, kind in enumerate(system.units)
        for resource in types[kind].resources
    ]
    return float(1 / max(rates[:, m] @ work for m, work in works))
