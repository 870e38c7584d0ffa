"""Queries of a workflow: all their chances drawn before a run, so that every rule that is compared gets the same ones.

They are drawn from the laws of a workflow, or are those of a log of real ones. Tenants, the steps that are taken, and
the calls of each stage come from random streams of their own, spawned in this order: another law of one stage moves
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.workflow import Stage, Workflow
from queuetheory_llm.model.workflow_log import Call, WorkflowLog
from queuetheory_llm.model.workflow_plan import Plan
from queuetheory_llm.simulation.queries import Queries, arrivals
from queuetheory_llm.simulation.requests import MOST_REQUESTS, Ticks, sealed

#: Most times that a query may be expected to run its stages by retries; each takes a tenth of a millisecond to draw.
MOST_PASSES = 100_000


def draw_queries(workflow: Workflow, arrival_ticks: Ticks, rng: np.random.Generator) -> Queries:
    """One query for each arrival.

    Parameters
    ----------
    workflow : Workflow
    arrival_ticks : int64 array of shape (Q,)
        Ticks, not decreasing.
    rng : numpy.random.Generator
        Streams are spawned from it; it is not drawn from itself.

    Raises
    ------
    InvalidInput
        If the arrivals are not ticks in order, or more than `MOST_REQUESTS` calls or `MOST_PASSES` passes of one query
        through loops are to be expected.
    """
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput(f"rng: {shown(rng)} is no numpy.random.Generator; give one, such as default_rng(0)")
    arrival_ticks = arrivals(arrival_ticks)
    require_calls(arrival_ticks.size, float(sum(workflow.visits)))
    _require_passes(workflow, arrival_ticks.size)
    for_tenants, for_steps, *for_stages = rng.spawn(2 + len(workflow.stages))
    steps = _Steps(rng=for_steps)
    everyone = np.arange(arrival_ticks.size)
    steps.run(workflow.plan, everyone, _Ends.none())
    query, stage, source, target = steps.listed()
    first_call, calls = _calls(workflow.stages, stage, for_stages)
    order = np.lexsort((target, source))
    return Queries(
        arrival=arrival_ticks,
        tenant=draw_tenants(workflow, arrival_ticks.size, for_tenants),
        first_step=sealed(starts(np.bincount(query, minlength=everyone.size))),
        stage=sealed(stage),
        waits=sealed(np.bincount(target, minlength=stage.size)),
        first_next=sealed(starts(np.bincount(source, minlength=stage.size))),
        next=sealed(target[order]),
        first_call=sealed(first_call),
        prefill=sealed(calls.prefill),
        decode=sealed(calls.decode),
        work=calls.work,
    )


def queries_of_log(
    log: WorkflowLog, workflow: Workflow, arrival_ticks: Ticks, rng: np.random.Generator, *, in_order: bool = False
) -> Queries:
    """One query of a log for each arrival, as it was: its steps one after another, the tokens of each call.

    Parameters
    ----------
    log : WorkflowLog
    workflow : Workflow
        Whose stages, by their names, and tenants the queries have.
    arrival_ticks : int64 array of shape (Q,)
        Ticks, not decreasing.
    rng : numpy.random.Generator
        Streams for the tenants and for the choice of queries are spawned from it, in this order.
    in_order : bool
        Take the queries in the order of the log, again and again; otherwise each is any of them, independently.

    Raises
    ------
    InvalidInput
        If the workflow has no stage of the name of one in the log, the arrivals are not ticks in order, or too many
        calls would be made.
    """
    arrival_ticks = arrivals(arrival_ticks)
    kept = _Kept.of(log, workflow)
    count = arrival_ticks.size
    require_calls(count, kept.prefill.size / len(log))
    for_tenants, for_rows = rng.spawn(2)
    rows = np.arange(count) % len(log) if in_order else for_rows.integers(0, len(log), count)
    require_drawn(kept.first_call[kept.first_step], rows)
    steps, first_step = rows_of(kept.first_step, rows)
    calls, first_call = rows_of(kept.first_call, steps)
    is_first, is_last = np.zeros(steps.size, dtype=np.int64), np.zeros(steps.size, dtype=np.int64)
    is_first[first_step[:-1]] = 1
    is_last[first_step[1:] - 1] = 1
    return Queries(
        arrival=arrival_ticks,
        tenant=draw_tenants(workflow, count, for_tenants),
        first_step=sealed(first_step),
        stage=sealed(kept.stage[steps]),
        waits=sealed(1 - is_first),
        first_next=sealed(starts(1 - is_last)),
        next=sealed(np.flatnonzero(is_first == 0)),
        first_call=sealed(first_call),
        prefill=sealed(kept.prefill[calls]),
        decode=sealed(kept.decode[calls]),
        work=np.zeros(calls.size),
    )


@attrs.frozen(eq=False)
class _Kept:
    """The queries of a log in arrays; each has a step at least."""

    first_step: NDArray[np.int64]
    stage: NDArray[np.int64]
    first_call: NDArray[np.int64]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]

    @classmethod
    def of(cls, log: WorkflowLog, workflow: Workflow) -> _Kept:
        """The log by the stages of a workflow."""
        number = {each.name: j for j, each in enumerate(workflow.stages)}
        used = [stage for stage in log.stages if any(log.counts(stage))]
        unknown = [stage for stage in used if stage not in number or workflow.stages[number[stage]].classical]
        if unknown:
            raise InvalidInput(
                [f"log: {stage!r} is no stage of {workflow.name} that takes tokens; name one so" for stage in unknown],
                source=log.source,
            )
        steps = [[step for stage in used for step in _taken(log, query, stage)] for query in log.queries]
        listed = [step for query in steps for step in query]
        calls = np.array([call for _, made in listed for call in made], dtype=np.int64)
        return cls(
            first_step=starts(np.array([len(query) for query in steps])),
            stage=np.array([number[stage] for stage, _ in listed]),
            first_call=starts(np.array([len(made) for _, made in listed])),
            prefill=calls[:, 0],
            decode=calls[:, 1],
        )


def _taken(
    log: WorkflowLog, query: Mapping[str, tuple[Call, ...]], stage: str
) -> Iterator[tuple[str, tuple[Call, ...]]]:
    """The steps of a stage in a query of a log: one of parallel calls, else one a call."""
    calls = query.get(stage, ())
    if stage in log.parallel and calls:
        yield stage, calls
    else:
        yield from ((stage, (call,)) for call in calls)


def rows_of(first: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries of these rows of a table in one array, and where each row starts in it; a row may come twice."""
    lengths = first[rows + 1] - first[rows]
    begin = starts(lengths)
    return np.arange(begin[-1]) + np.repeat(first[rows] - begin[:-1], lengths), begin


def require_calls(queries: int, each: float) -> None:
    """Refuse a run of more calls than there may be.

    Raises
    ------
    InvalidInput
    """
    if queries * each > MOST_REQUESTS:
        raise InvalidInput(
            f"queries: {queries} of about {each:.4g} calls, with those before and after them, make more than the "
            f"{MOST_REQUESTS} calls of one run; give fewer, or fewer retries"
        )


def require_drawn(first_call: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """Refuse rows of a log that together make more calls than there may be; ``first_call`` is of each query of it.

    Raises
    ------
    InvalidInput
    """
    calls = int(np.diff(first_call)[rows].sum())
    if calls > MOST_REQUESTS:
        raise InvalidInput(
            f"queries: the {rows.size} of the log make {calls} calls, more than the {MOST_REQUESTS} of one run; give "
            "fewer, or a log without queries of so many calls"
        )


def _require_passes(workflow: Workflow, queries: int) -> None:
    """Refuse loops that some query would pass so often that drawing them, pass after pass, takes minutes."""
    longest = _passes(workflow.plan, queries)
    if longest > MOST_PASSES + len(workflow.stages):
        again = max(float(each.probability) for each in workflow.retries)
        raise InvalidInput(
            f"retry: the longest of {queries} queries would run its stages about {longest:.3g} times (a retry comes "
            f"with probability up to {again:.9g}), more than {MOST_PASSES}; lower the probability"
        )


def _passes(plan: Plan, queries: int) -> float:
    """About how often the longest of so many queries runs a stage; geometric loops, the maximum of each."""
    if plan.stage is not None:
        return 1.0
    inside = sum(_passes(part, queries) for part in plan.parts)
    return inside * (1 + math.log(max(queries, 1))) / (1 - float(plan.again)) if plan.kind == "loop" else inside


def draw_tenants(workflow: Workflow, count: int, rng: np.random.Generator) -> Ticks:
    """The tenants of ``count`` queries, by number, by their shares."""
    shares = [each.share for each in workflow.tenants]
    total = sum(shares)
    bounds = np.cumsum([float(share / total) for share in shares])
    return sealed(np.minimum(np.searchsorted(bounds, rng.random(count), side="right"), len(shares) - 1))


def starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the rows of these lengths start, and the end of the last."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@attrs.frozen(eq=False)
class _Ends:
    """What must have ended before a query goes on: pairs (query, step), one pair once."""

    query: NDArray[np.int64]
    step: NDArray[np.int64]

    @classmethod
    def none(cls) -> _Ends:
        """Nothing."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    def of(self, queries: NDArray[np.int64]) -> _Ends:
        """The pairs of these queries."""
        keep = np.isin(self.query, queries)
        return _Ends(self.query[keep], self.step[keep])

    @staticmethod
    def together(parts: Sequence[_Ends]) -> _Ends:
        """All the pairs: of the steps before branches that a query left out, one."""
        pairs = np.stack(
            [np.concatenate([part.query for part in parts]), np.concatenate([part.step for part in parts])]
        )
        query, step = np.unique(pairs, axis=1)
        return _Ends(query, step)


@attrs.define(eq=False)
class _Steps:
    """The steps of all queries, made part by part of the plan; of each query in an order in which they can run."""

    rng: np.random.Generator
    count: int = 0
    query: list[NDArray[np.int64]] = attrs.field(factory=list)
    stage: list[NDArray[np.int64]] = attrs.field(factory=list)
    source: list[NDArray[np.int64]] = attrs.field(factory=list)
    target: list[NDArray[np.int64]] = attrs.field(factory=list)

    def run(self, plan: Plan, queries: NDArray[np.int64], ends: _Ends) -> _Ends:
        """Take these queries (numbers, increasing) through a part of the plan; what they wait for after it."""
        if not queries.size:
            return ends
        entering, passing = self._split(queries, float(plan.chance))
        if not passing.size:
            return self._inside(plan, queries, ends)
        return _Ends.together([ends.of(passing), self._inside(plan, entering, ends.of(entering))])

    def _split(self, queries: NDArray[np.int64], chance: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those for which a chance comes true, and the others; no number is drawn for what is certain."""
        if chance == 1:
            return queries, queries[:0]
        hit = self.rng.random(queries.size) < chance
        return queries[hit], queries[~hit]

    def _inside(self, plan: Plan, queries: NDArray[np.int64], ends: _Ends) -> _Ends:
        if not queries.size:
            return ends
        if plan.stage is not None:
            return self._stage(plan.stage, queries, ends)
        if plan.kind == "parallel":
            return _Ends.together([self.run(part, queries, ends) for part in plan.parts])
        if plan.kind == "loop":
            return self._loop(plan, queries, ends)
        for part in plan.parts:
            ends = self.run(part, queries, ends)
        return ends

    def _loop(self, plan: Plan, queries: NDArray[np.int64], ends: _Ends) -> _Ends:
        left = []
        while queries.size:
            ends = self.run(plan.parts[0], queries, ends)
            queries, leaving = self._split(queries, float(plan.again))
            left.append(ends.of(leaving))
            ends = ends.of(queries)
        return _Ends.together(left)

    def _stage(self, stage: int, queries: NDArray[np.int64], ends: _Ends) -> _Ends:
        made = np.arange(self.count, self.count + queries.size)
        self.count += queries.size
        self.query.append(queries)
        self.stage.append(np.full(queries.size, stage))
        self.source.append(ends.step)
        self.target.append(made[np.searchsorted(queries, ends.query)])
        return _Ends(queries, made)

    def listed(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Query and stage of each step, query by query; sources and targets of the dependencies, by these numbers."""
        none = [np.empty(0, dtype=np.int64)]
        query = np.concatenate(self.query or none)
        order = np.argsort(query, kind="stable")
        number = np.empty(query.size, dtype=np.int64)
        number[order] = np.arange(query.size)
        stage = np.concatenate(self.stage or none)
        source, target = np.concatenate(self.source or none), np.concatenate(self.target or none)
        return query[order], stage[order], number[source], number[target]


@attrs.frozen(eq=False)
class _Calls:
    """Tokens and work of calls, see `Queries`."""

    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]
    work: NDArray[np.float64]


def _calls(
    stages: Sequence[Stage], stage: NDArray[np.int64], streams: Sequence[np.random.Generator]
) -> tuple[NDArray[np.int64], _Calls]:
    """Where the calls of each step start, and what each takes."""
    counts = np.ones(stage.size, dtype=np.int64)
    rows = [np.flatnonzero(stage == j) for j in range(len(stages))]
    for each, row, stream in zip(stages, rows, streams, strict=True):
        counts[row] = each.calls.sample(stream, row.size)
    total = int(counts.sum())
    of_stage = np.repeat(stage, counts)
    calls = _Calls(np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64), np.zeros(total))
    for j, (each, stream) in enumerate(zip(stages, streams, strict=True)):
        row = np.flatnonzero(of_stage == j)
        if each.work is not None:
            calls.work[row] = each.work.sample(stream, row.size)
            continue
        assert each.prefill is not None
        assert each.decode is not None
        calls.prefill[row] = each.prefill.sample(stream, row.size)
        calls.decode[row] = each.decode.sample(stream, row.size)
    return starts(counts), calls
