"""What holds in every run of a cluster, recounted from the times of its calls: nothing of the runners is used again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from queuetheory_llm.model.cluster import Instance
from queuetheory_llm.simulation.cluster_run import ClusterRun, law_ticks
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import NEVER

#: What is checked, in the order of the checks.
CHECKED = (
    "clock: a call comes, begins and ends in that order, before the end of the run",
    "causality: the calls of a step come when all it waits for has ended, and no others come; a query ends with them",
    "conservation: calls sent and calls present are those that came and have not ended, where they can be served",
    "work conservation: an instance works exactly while a call is there",
    "seats: no more calls are begun and not ended than an instance has seats",
    "service: no call is served in less time than it takes alone; at a classical server in no more",
)

_LATER = 2**62  # the tick of what has not happened by the end


def check_cluster_run(run: ClusterRun) -> list[str]:
    """What is violated, a line each; nothing in a right run."""
    checks = (_clock, _causality, _conservation, _work, _seats, _service)
    return [line for check in checks for line in check(run)]


def _later(ticks: Ticks) -> Ticks:
    return np.where(ticks == NEVER, _LATER, ticks)


def _clock(run: ClusterRun) -> Iterator[str]:
    came, began, ended = _later(run.came), _later(run.began), _later(run.ended)
    if (came > began).any() or (began > ended).any() or run.came.max(initial=NEVER) >= run.until:
        yield "clock: a call begins before it comes or ends before it begins, or comes after the end of the run"
    if max(run.began.max(initial=NEVER), run.ended.max(initial=NEVER)) >= run.until:
        yield "clock: a call begins or ends after the end of the run"


def _causality(run: ClusterRun) -> Iterator[str]:
    queries, ended = run.queries, _later(run.ended)
    steps, count = queries.stage.size, np.diff(queries.first_call)
    ends = np.maximum.reduceat(ended, queries.first_call[:-1]) if steps else np.zeros(0, dtype=np.int64)
    release = np.repeat(queries.arrival, np.diff(queries.first_step))
    np.maximum.at(release, queries.next, np.repeat(ends, np.diff(queries.first_next)))
    release = np.where(release < run.until, release, _LATER)
    if not np.array_equal(_later(run.came), np.repeat(release, count)):
        yield "causality: a call does not come when all that its step waits for has ended"
    finished = np.where(queries.arrival < run.until, queries.arrival, _LATER)
    np.maximum.at(finished, np.repeat(np.arange(len(queries)), np.diff(queries.first_step)), ends)
    if not np.array_equal(_later(run.finished), finished):
        yield "causality: a query does not end with the last of its calls"


def _conservation(run: ClusterRun) -> Iterator[str]:
    units, stages = len(run.system.units), len(run.system.workflow.stages)
    here = run.instance >= 0
    if not np.array_equal(here, run.came != NEVER):
        yield "conservation: a call that came is nowhere, or one that did not come is somewhere"
        return
    stage = np.repeat(run.queries.stage, np.diff(run.queries.first_call))
    sent = np.bincount(stage[here] * units + run.instance[here], minlength=stages * units).reshape(stages, units)
    if not np.array_equal(sent, run.sent):
        yield f"conservation: {sent.tolist()} calls went to the instances, {run.sent.tolist()} are counted"
    served = [[seconds is not None for seconds in row] for row in run.system.unit_seconds]
    if sent[~np.array(served)].any():
        yield "conservation: a call is at an instance that does not serve its stage"
    for m in range(units):
        own = run.instance == m
        came, ended = np.sort(run.came[own]), np.sort(_later(run.ended)[own])
        present = np.searchsorted(came, run.watched, "right") - np.searchsorted(ended, run.watched, "right")
        if not np.array_equal(present, run.present[m]):
            yield f"conservation: instance {m}: {present.tolist()} calls are present, {run.present[m].tolist()} counted"
        if (run.work[m] < 0).any() or run.work[m][present == 0].any():
            yield f"conservation: instance {m}: work is negative, or is left where nobody is"


def _work(run: ClusterRun) -> Iterator[str]:
    for m, busy in enumerate(run.busy.tolist()):
        own = np.flatnonzero(run.instance == m)
        own = own[np.argsort(run.came[own], kind="stable")]
        came, ended = run.came[own], np.minimum(_later(run.ended[own]), run.until)
        before = np.concatenate([[0], np.maximum.accumulate(ended)[:-1]]) if own.size else ended
        there = int(np.maximum(ended - np.maximum(came, before), 0).sum())
        if there != busy:
            yield f"work conservation: instance {m}: it has worked {busy} ticks, calls were there for {there}"


def _seats(run: ClusterRun) -> Iterator[str]:
    for m, kind in enumerate(run.system.units):
        own = (run.instance == m) & (run.began != NEVER)
        lasts = own & (run.ended != run.began)
        ticks = np.concatenate([_later(run.ended[lasts]), run.began[lasts]])
        steps = np.repeat([-1, 1], lasts.sum())
        most = np.cumsum(steps[np.argsort(ticks, kind="stable")]).max(initial=0)
        if most > _most(run.system.instances[kind]):
            yield f"seats: instance {m}: it has begun {most} calls and not ended them"


def _most(each: Instance) -> float:
    if each.speed is not None:
        return 1
    limit = each.seats if each.engine is None else each.engine.slots
    return np.inf if limit is None else limit


def _service(run: ClusterRun) -> Iterator[str]:
    stage = np.repeat(run.queries.stage, np.diff(run.queries.first_call))
    for m, kind in enumerate(run.system.units):
        own = (run.instance == m) & (run.ended != NEVER)
        least = _least(run, run.system.instances[kind], own, stage[own])
        took = (run.ended - run.began)[own]
        short = took < least
        if run.system.instances[kind].speed is not None:
            short = took != least
        if short.any():
            yield f"service: instance {m}: it serves call {np.flatnonzero(own)[short][0]} in a time that cannot be"


def _least(run: ClusterRun, each: Instance, own: Ticks, stage: Ticks) -> Ticks:
    """The least ticks of some calls from begin to end."""
    clock, prefill, decode = run.clock, run.queries.prefill[own], run.queries.decode[own]
    if each.speed is not None:
        return np.asarray(np.rint(run.queries.work[own] * float(clock.rate / each.speed)), dtype=np.int64)
    if each.engine is not None:
        shortest = min(clock.ticks(each.engine.batch_time.seconds(b)) for b in range(1, each.engine.b_max + 1))
        return np.asarray((-(-prefill // each.engine.b_max) + decode) * shortest)
    stages = run.system.workflow.stages
    law = np.array([law_ticks(each.law(s), clock) if each.serves(s) else (0, 0, 0) for s in stages], dtype=np.int64)
    base, per_prefill, per_decode = law[stage].T
    steps = clock.ticks(each.decode_step) * decode
    return np.asarray(steps + np.maximum(0, base + per_prefill * prefill + per_decode * decode - steps))
