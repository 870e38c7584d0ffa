"""The compiled runner: what `reference` does for a `Policy`, some hundred times faster.

The arrays of `compiled` are made and read here. Loading numba takes half a second and compiling some seconds, once a
machine: the machine code is kept on disk.
"""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.policy import Pass, Policy
from queuetheory_llm.simulation import compiled as core
from queuetheory_llm.simulation import dispatching
from queuetheory_llm.simulation.clock import LAST_TICK, Clock, tick_table
from queuetheory_llm.simulation.requests import Requests, Ticks, sealed
from queuetheory_llm.simulation.run import NEVER, BatchLog, Progress, Run, Series, watched

_STEPS = 2_000_000  # steps between two reports of progress, a tenth of a second
_LOG_BATCHES = 1 << 14  # batches whose contents are held before they are put aside
_WIDTH = 64  # slots of the first tree
_GAPS = 1 << 10
_NONE = 2**62  # a limit that no count reaches


def run(
    engine: Engine,
    scheduler: Policy,
    requests: Requests,
    clock: Clock,
    *,
    until: int | None = None,
    log: bool = False,
    watch: Ticks | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run one engine under a rule of the policy space; see `reference.run`, to which it is equal batch for batch.

    Raises
    ------
    InfeasibleRequest
        If the rule can never serve one of the requests.
    InvalidInput
        If the run outlives the clock.
    """
    requests.require_feasible(scheduler, engine)
    machine = _Machine(engine, scheduler, requests, clock, until, watched(requests, until) if watch is None else watch)
    logs = machine.advance(log, progress)
    return machine.result(logs)


def join_queues(
    engine: Engine, policy: Policy, requests: Requests, clock: Clock, count: int, dispatch: str, chances: Floats
) -> Ticks:
    """The engine, from 0, of each request when a rule of `STATION_RULES` sends it to one of ``count``.

    Parameters
    ----------
    engine, policy, requests, clock, count
        As in `replicas.run_replicas`.
    dispatch : str
    chances : float array of shape (n,)
        A uniform number for each request, for a rule that tosses.

    Returns
    -------
    int64 array of shape (n,)
    """
    rule = _rule(engine, policy, requests, int(requests.work.sum()))
    load = _load(engine, requests, clock, rule)
    engine_of = np.zeros(len(requests), dtype=np.int64)
    sent, tokens = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    number = dispatching.NUMBERS[dispatch]
    seen = dispatching.engines(count)
    watch = core.Watch(np.zeros(0, dtype=np.int64), np.zeros((5, 0), dtype=np.int64))
    room, first = max(16, 2 * len(requests) // count), 0
    queues, times, work = _pool(rule, load, room, count)
    while True:
        status, first = core.join_queues(
            number,
            dispatching.PARAMETERS,
            seen,
            chances,
            rule,
            load,
            queues,
            times,
            work,
            watch,
            _log(rule, 0),
            sent,
            tokens,
            engine_of,
            first,
        )
        if status == core.FINISHED:
            return engine_of
        if status == core.OVERFLOW:
            raise clock.overflow()
        if status == core.GAPS_FULL:
            work = work._replace(gap_round=_doubled(work.gap_round), gap=_doubled(work.gap))
        elif status == core.QUEUE_FULL:
            room *= 2
            larger = _pool(rule, load, room, count)
            _copy_into(larger[0], queues)
            _copy_into(larger[1], times)
            _copy_into(larger[2], work)
            queues, times = larger[:2]
            work = larger[2]._replace(gap_round=work.gap_round, gap=work.gap)
        else:
            raise AssertionError(f"the compiled runner stopped with status {status}")


def _doubled(array: Ticks) -> Ticks:
    """Twice as many columns, the new ones unwritten."""
    return np.concatenate([array, np.empty_like(array)], axis=-1)


def _copy_into(larger: core.Load | core.Times | core.Work, arrays: core.Load | core.Times | core.Work) -> None:
    """Copy the rows of each array into the first places of a larger one; t(b) and the gaps do not grow with them."""
    for name in set(arrays._fields) - {"ticks", "gap", "gap_round"}:
        old = getattr(arrays, name)
        getattr(larger, name)[tuple(map(slice, old.shape))] = old


def _pool(rule: core.Rule, load: core.Load, room: int, engines: int) -> tuple[core.Load, core.Times, core.Work]:
    """The arrays of several engines, in rows, with room for that many requests on each."""
    arrival, prefill, decode = (np.empty((engines, room), dtype=np.int64) for _ in range(3))
    times = core.Times(*(np.empty((engines, room), dtype=np.int64) for _ in core.Times._fields))
    return core.Load(arrival, prefill, decode, load.ticks), times, _work(rule, room, (engines,))


class _Machine:
    """The arrays of one run."""

    def __init__(
        self, engine: Engine, policy: Policy, requests: Requests, clock: Clock, until: int | None, watch: Ticks
    ) -> None:
        self.requests, self.clock, self.until = requests, clock, until
        self.total = int(requests.work.sum())
        self.rule = _rule(engine, policy, requests, self.total)
        self.load = _load(engine, requests, clock, self.rule)
        self.times = _times(len(requests))
        self.watch = core.Watch(watch, np.zeros((5, watch.size), dtype=np.int64))
        self.work = _work(self.rule, len(requests))

    def advance(self, log: bool, progress: Progress | None) -> list[core.Log]:
        """Run to the end; the pieces of the log."""
        logs: list[core.Log] = []
        room = _log(self.rule, len(self.requests) if log else 0)
        end = LAST_TICK if self.until is None else self.until
        while True:
            status = core.advance(
                self.rule, self.load, len(self.requests), self.times, self.work, self.watch, room, end, _STEPS
            )
            if log and status != core.PAUSED:
                logs.append(_cut(room, self.work.s))
            if status in (core.FINISHED, core.STOPPED):
                return logs
            if status == core.OVERFLOW:
                raise self.clock.overflow()
            if status == core.IDLE:  # every rule of the policy space serves somebody whom it can serve at all
                raise AssertionError("the compiled runner idles with requests present")
            if status == core.GAPS_FULL:
                self.work = self.work._replace(gap_round=_doubled(self.work.gap_round), gap=_doubled(self.work.gap))
            if progress is not None:
                progress(self.share_done)

    @property
    def share_done(self) -> float:
        s = self.work.s
        if self.until:
            return float(s[core.NOW]) / self.until
        return float(s[core.SERVED]) / self.total

    def result(self, logs: list[core.Log]) -> Run:
        """The run; what is watched after the last boundary is the last state."""
        s = self.work.s
        decoding = s[core.REACHED] + s[core.FRESH] + s[core.ZEROS]
        last = np.array([s[core.SERVED], s[core.STARTED], decoding, s[core.BATCHES], s[core.BUSY]])
        self.watch.seen[:, s[core.WATCHED] :] = last[:, np.newaxis]
        return Run(
            clock=self.clock,
            requests=self.requests,
            until=self.until,
            **{name: sealed(times) for name, times in self.times._asdict().items()},
            series=Series.of(self.requests, self.watch.ticks, self.watch.seen),
            batches=int(s[core.BATCHES]),
            tokens=int(s[core.SERVED]),
            busy=int(s[core.BUSY]),
            last=int(s[core.LAST]),
            log=_batch_log(logs) if logs else None,
        )


def _load(engine: Engine, requests: Requests, clock: Clock, rule: core.Rule) -> core.Load:
    ticks = tick_table(engine.batch_time, clock, rule.budget)
    return core.Load(requests.arrival, requests.prefill, requests.decode, ticks)


def _times(count: int) -> core.Times:
    begin, first_decode, last_prefill, finish = (np.full(count, NEVER, dtype=np.int64) for _ in range(4))
    return core.Times(begin, first_decode, last_prefill, finish, longest_gap=np.zeros(count, dtype=np.int64))


#: By the first pass.
_ORDERS = {Pass.PREFILL: core.PREFILL_FIRST, Pass.DECODE: core.DECODE_FIRST, Pass.RUNNING: core.SEATS_FIRST}


def _rule(engine: Engine, policy: Policy, requests: Requests, total: int) -> core.Rule:
    zeros = bool((requests.prefill == 0).any())
    order = _ORDERS[policy.passes[0]]
    slots = core.WHEN_REACHED
    if zeros or policy.threshold is not None:  # decodes may start in another order than that of arrival
        slots = core.WHEN_ARRIVED if zeros and order != core.SEATS_FIRST else core.WHEN_STARTED
    return core.Rule(
        order=order,
        mixed=policy.mixed,
        chunks=policy.chunks,
        budget=min(policy.budget(engine.b_max), max(1, total)),
        seats=_NONE if engine.k_max is None else engine.k_max,
        threshold=_NONE if policy.threshold is None else policy.threshold,
        slots=slots,
        zeros=zeros,
    )


def _work(rule: core.Rule, count: int, rows: tuple[int, ...] = ()) -> core.Work:
    """Room for the largest state, once or in rows; pages that are never written to take no memory."""
    early = rule.slots != core.WHEN_REACHED
    at_once = min(rule.budget, rule.seats, count)
    slots = count if early else at_once
    width = _WIDTH
    while width < 2 * (slots + 1):
        width *= 2
    parts = 2 + (count if rule.threshold < _NONE else at_once)

    def room(*shape: int) -> Ticks:
        return np.empty((*rows, *shape), dtype=np.int64)

    work = core.Work(
        s=room(core.STATE_SIZE),
        tree=room(2 * width, 4),
        request_at=room(width),
        first_round=room(width),
        slot_of=room(count if early else 0),
        fresh=room(count if early else 0),
        part_request=room(parts),
        part_left=room(parts),
        piece=room(parts),
        gap_round=room(_GAPS),
        gap=room(_GAPS),
        lag=room(slots + 2, 2),
    )
    work.s[...] = 0
    work.s[..., core.WIDTH] = _WIDTH
    work.tree[..., : 2 * _WIDTH, :] = core.NEVER_DUE, 0, 0, 0
    return work


def _log(rule: core.Rule, count: int) -> core.Log:
    """Room for the contents of some batches; none for no requests."""
    batches = _LOG_BATCHES if count else 0
    most = max(4 * batches, 2 * min(rule.budget, count))
    sizes = (batches, batches, most, most, batches, most, batches)
    return core.Log(*(np.empty(size if count else 0, dtype=np.int64) for size in sizes))


def _cut(log: core.Log, s: Ticks) -> core.Log:
    """A copy of what has been written; the room is free again."""
    batches, pieces, decodes = s[core.LOGGED], s[core.LOGGED_PIECES], s[core.LOGGED_DECODES]
    sizes = (batches, batches, pieces, pieces, batches, decodes, batches)
    s[[core.LOGGED, core.LOGGED_PIECES, core.LOGGED_DECODES]] = 0
    return core.Log(*(array[:size].copy() for array, size in zip(log, sizes, strict=True)))


def _batch_log(logs: list[core.Log]) -> BatchLog:
    """The pieces of a log as one."""
    pieces = np.cumsum([0, *(log.piece_request.size for log in logs)])
    decodes = np.cumsum([0, *(log.decode_request.size for log in logs)])
    shifted = [
        log._replace(piece_end=log.piece_end + before, decode_end=log.decode_end + earlier)
        for log, before, earlier in zip(logs, pieces, decodes, strict=False)
    ]
    return BatchLog(**{field: np.concatenate([getattr(log, field) for log in shifted]) for field in logs[0]._fields})
