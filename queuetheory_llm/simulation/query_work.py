"""How much work a query is, and how much of it is left: what the drift of a backlog is measured in.

A call has as its weight the seconds that it takes from an instance that is saturated, averaged over the instances that
serve it; they are those of the linear program of the cluster (`stability.call_work`). A part of them is *exclusive*: at
a classical server work/speed; at a batch engine the prompt, each token its part of a full batch; at an isolated-latency
instance the prompt, max(0, T - v_d step) seconds. The rest is *shared* with the calls that decode beside it: a decode
token takes its part of a batch or of a step, and nothing of a step that any number of calls can share.

Any positive weights tell a backlog that grows from one that does not. By these an instance that is saturated serves one
second of weight a second, whatever the mix of the calls at that time, so the drift settles fast and has little noise.
Decode steps that cost no capacity must not count: in overload they are starved for long and then made for thousands of
calls at once. For the same reason the exclusive part of a call counts as served when the call is begun and only the
shared part when it ends (`served`); the difference is bounded by the calls at work.
"""

from __future__ import annotations

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.model.workflow import Stage
from queuetheory_llm.simulation.cluster_bounds import mean_prompt_seconds
from queuetheory_llm.simulation.cluster_run import ClusterRun
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import NEVER


def stage_of_calls(queries: Queries) -> Ints:
    """The stage of each call, shape (C,)."""
    return np.repeat(queries.stage, np.diff(queries.first_call))


def calls_before(queries: Queries) -> Ints:
    """Number of calls of the queries before each, and of all; shape (Q + 1,)."""
    return np.asarray(queries.first_call[queries.first_step], dtype=np.int64)


@attrs.frozen(kw_only=True, eq=False)
class QueryWork:
    """Weights of the calls of a system.

    Attributes
    ----------
    system : WorkflowSystem
    mean : float
        Of a query, exact but for the sums of `stability.call_work`.
    """

    system: WorkflowSystem
    mean: float

    @classmethod
    def of(cls, system: WorkflowSystem) -> QueryWork:
        """The weights at the head of the module."""
        pairs = zip(system.workflow.visits, system.workflow.stages, strict=True)
        return cls(system=system, mean=sum(float(visits) * _mean(stage, system.instances) for visits, stage in pairs))

    def of_calls(self, queries: Queries) -> Floats:
        """Of each call, shape (C,)."""
        return np.asarray(self.parts(queries).sum(axis=0))

    def parts(self, queries: Queries) -> Floats:
        """The exclusive and the shared part of each call, shape (2, C)."""
        found, at = np.zeros((2, queries.calls)), stage_of_calls(queries)
        for j, stage in enumerate(self.system.workflow.stages):
            own = np.flatnonzero(at == j)
            tokens = queries.prefill[own], queries.decode[own], queries.work[own]
            able = [each for each in self.system.instances if each.serves(stage)]
            parts = [np.stack(_parts(each, stage, *tokens)) for each in able]
            found[:, own] = np.average(parts, axis=0, weights=[each.count for each in able])
        return found


def _parts(each: Instance, stage: Stage, prefill: Ints, decode: Ints, work: Floats) -> tuple[Floats, Floats]:
    """Exclusive and shared seconds of calls of a stage at an instance."""
    if each.speed is not None:
        return np.asarray(work / float(each.speed)), np.zeros(work.size)
    token, base, beyond = _prompt(each, stage)
    exclusive = np.maximum(base + token * prefill + beyond * decode, 0.0)
    return exclusive, np.asarray(_decode_seconds(each) * decode, dtype=np.float64)


def _prompt(each: Instance, stage: Stage) -> tuple[float, float, float]:
    """Exclusive seconds of a prompt token, of a call, of a decode token."""
    if each.engine is not None:
        most = each.engine.b_max
        return float(each.engine.batch_time.seconds(most) / most), 0.0, 0.0
    law = each.law(stage)
    return float(law.per_prefill), float(law.base), float(law.per_decode - each.decode_step)


def _decode_seconds(each: Instance) -> float:
    """Shared seconds of a decode token at a saturated instance."""
    if each.engine is not None:
        sizes = each.engine.b_max, min(each.engine.slots, each.engine.b_max)
        return max(float(each.engine.batch_time.seconds(size) / size) for size in sizes)
    return float(each.decode_step / each.seats) if each.seats else 0.0


def _mean(stage: Stage, instances: tuple[Instance, ...]) -> float:
    """Weight of a call of a stage, expected."""
    able = [each for each in instances if each.serves(stage)]
    return float(np.average([_mean_at(each, stage) for each in able], weights=[each.count for each in able]))


def _mean_at(each: Instance, stage: Stage) -> float:
    if stage.work is not None:
        assert each.speed is not None
        return float(stage.work.mean / each.speed)
    assert stage.prefill is not None
    assert stage.decode is not None
    shared = _decode_seconds(each) * float(stage.decode.mean)
    if each.engine is None:
        return mean_prompt_seconds(each, stage) + shared
    return _prompt(each, stage)[0] * float(stage.prefill.mean) + shared


def come(queries: Queries, weights: Floats, edges: Ticks) -> tuple[Ints, Floats]:
    """Queries that have come by each tick of ``edges``, and the weight of all their calls."""
    count = np.searchsorted(queries.arrival, edges, side="right")
    return count, _totals(weights)[calls_before(queries)[count]]


def ended(run: ClusterRun, weights: Floats, edges: Ticks) -> Floats:
    """Weight of the calls that have ended by each tick of ``edges``."""
    done = run.ended != NEVER
    return _passed(run.ended[done], weights[done], edges)


def served(run: ClusterRun, parts: Floats, edges: Ticks) -> Floats:
    """What has been served by each tick of ``edges`` of `QueryWork.parts`, as the head of the module says."""
    begun = run.began != NEVER
    return _passed(run.began[begun], parts[0, begun], edges) + ended(run, parts[1], edges)


def overdue(run: ClusterRun, weights: Floats, edges: Ticks) -> Floats:
    """Weight of the calls that are at an instance for longer than they would take alone, at each tick of ``edges``.

    What is left of the backlog without the part that the same calls would make if each were alone, mean lengths
    supposed: that part fills up from empty and moves with every long call at every load.
    """
    units = np.array([[float(row[kind] or 0) for kind in run.system.units] for row in run.system.mean_seconds])
    there = run.came != NEVER
    alone = units[stage_of_calls(run.queries)[there], run.instance[there]] * run.clock.rate
    due = run.came[there] + np.rint(alone).astype(np.int64)
    return _passed(due, weights[there], edges) - ended(run, weights, edges)


def _passed(ticks: Ticks, weights: Floats, edges: Ticks) -> Floats:
    """Weight of what has its tick at or before each edge."""
    place = np.searchsorted(edges, ticks)
    sums = np.bincount(place, weights, minlength=edges.size + 1)[: edges.size]
    return np.asarray(np.cumsum(sums), dtype=np.float64)


def _totals(weights: Floats) -> Floats:
    return np.concatenate([np.zeros(1), np.cumsum(weights)])
