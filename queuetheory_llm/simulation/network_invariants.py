"""What holds in every run of a network, recounted from its log: conservation, causality, engines, totals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.simulation.clock import tick_table
from queuetheory_llm.simulation.network_run import ENTERS, LEAVES, STARTS, NetworkRun
from queuetheory_llm.simulation.requests import Ticks

_ROUNDING = 1e-9  # of sums in floats


def check_network_run(run: NetworkRun) -> list[str]:
    """What is violated, a line each; nothing in a right run.

    Raises
    ------
    InvalidInput
        If the run kept no log.
    """
    if run.log is None:
        raise InvalidInput("network run: it kept no log; run it with log=True")
    checks = (_clock, _tasks, _order, _ends, _joins, _work, _batches, _series)
    return [line for check in checks for line in check(run, run.log)]


def _clock(run: NetworkRun, log: Ticks) -> Iterator[str]:
    if log.size and (log[0, 0] < 0 or log[-1, 0] >= run.until or (np.diff(log[:, 0]) < 0).any()):
        yield "clock: events are out of order or beyond the horizon"


def _tasks(run: NetworkRun, log: Ticks) -> Iterator[str]:
    """Whoever comes is there or has gone on."""
    for kind, total in ((ENTERS, run.arrived), (LEAVES, run.served)):
        counted = np.bincount(log[log[:, 1] == kind, 2], minlength=total.size)
        if not np.array_equal(counted, total):
            yield f"tasks: {counted.tolist()} events, {total.tolist()} counted"
    if not np.array_equal(run.arrived - run.served, run.present) or (run.present < 0).any():
        yield "tasks: those that came are not those that left and those present"
    if not np.array_equal(run.bins.sum(axis=1), run.served):
        yield "sojourns: they are not as many as the tasks that left"
    sources = np.bincount(run.sources[run.born < run.until], minlength=run.arrived.size)
    if (run.arrived < sources).any():
        yield "tasks: fewer came to a class than from outside"


def _order(run: NetworkRun, log: Ticks) -> Iterator[str]:
    """At every moment no class, and no task from outside in it, has left more often than it has come."""
    moves = log[log[:, 1] != STARTS]
    pair = moves[:, 2] * np.int64(run.born.size + 1) + moves[:, 3]
    by_pair = np.argsort(pair, kind="stable")
    steps = np.where(moves[by_pair, 1] == ENTERS, 1, -1)
    first = np.flatnonzero(np.diff(pair[by_pair], prepend=-1))  # of each pair
    level = np.append(0, np.cumsum(steps))
    before = np.repeat(level[first], np.diff(np.append(first, steps.size)))
    if (level[1:] < before).any():
        yield "causality: a task leaves a class before it has come"


def _ends(run: NetworkRun, log: Ticks) -> Iterator[str]:
    done = run.ended >= 0
    if (run.ended[done] < run.born[done]).any() or (run.ended >= run.until).any():
        yield "causality: a task ends before it has come, or beyond the horizon"
    moves = log[log[:, 1] == LEAVES]
    last = np.full(run.ended.size, -1, dtype=np.int64)
    np.maximum.at(last, moves[:, 3], moves[:, 0])
    if not np.array_equal(last[done], run.ended[done]):
        yield "tasks: one ends at another time than its last move"


def _joins(run: NetworkRun, log: Ticks) -> Iterator[str]:
    """Siblings that came to a join wait there or have gone on together."""
    del log
    number = {each.name: k for k, each in enumerate(run.network.classes)}
    waiting = 0
    for join in run.network.joins:
        through = [int(run.served[number[name]]) for name in join.classes]
        waiting += sum(through) - len(through) * min(through)
    if waiting > run.waiting:
        yield f"joins: at least {waiting} siblings wait, {run.waiting} are counted"


def _work(run: NetworkRun, log: Ticks) -> Iterator[str]:
    """Work that came is served or left: ticks of a classical server, tokens of an engine's batches."""
    server = 0
    for station in run.network.stations:
        if station.classical:
            if run.brought[server] - run.left[server] != run.busy[server]:
                yield f"work: server {server} was not busy for as long as the service it gave"
            server += 1
        for engine in station.engines:
            starts = log[(log[:, 1] == STARTS) & (log[:, 2] == server)]
            ends = starts[:, 0] + tick_table(engine.batch_time, run.clock, engine.b_max)[starts[:, 3]]
            if starts[ends < run.until, 3].sum() != run.brought[server] - run.left[server]:
                yield f"work: the batches of engine {server} do not hold the tokens it served"
            server += 1


def _batches(run: NetworkRun, log: Ticks) -> Iterator[str]:
    """Batches fit their engine and do not overlap."""
    server = 0
    for station in run.network.stations:
        server += station.classical
        for engine in station.engines:
            starts = log[(log[:, 1] == STARTS) & (log[:, 2] == server)]
            tokens = starts[:, 3]
            if ((tokens < 1) | (tokens > engine.b_max)).any():
                yield f"batches: engine {server} has one without tokens or above b_max"
                continue
            lasts = tick_table(engine.batch_time, run.clock, engine.b_max)[tokens]
            if (starts[1:, 0] < (starts[:, 0] + lasts)[:-1]).any():
                yield f"batches: two of engine {server} overlap"
            if starts.shape[0] != run.started[server]:
                yield f"batches: {starts.shape[0]} of engine {server} in the log, {run.started[server]} counted"
            server += 1


def _series(run: NetworkRun, log: Ticks) -> Iterator[str]:
    """The series is what the log says at its ticks, and its integrals are those of the steps in between."""
    series = run.series
    for k in range(run.present.size):
        for kind, seen in ((ENTERS, series.arrived), (LEAVES, series.served)):
            times = log[(log[:, 1] == kind) & (log[:, 2] == k), 0]
            if not np.array_equal(np.searchsorted(times, series.ticks, side="right"), seen[k]):
                yield f"series: class {k} is not what the log says"
        moves = log[(log[:, 1] != STARTS) & (log[:, 2] == k)]
        steps = np.where(moves[:, 1] == ENTERS, 1.0, -1.0)
        area = [float((steps * np.maximum(tick - moves[:, 0], 0)).sum()) for tick in series.ticks]
        if not np.allclose(area, series.area[k], rtol=_ROUNDING, atol=1e-6 * run.until):
            yield f"series: the integral of the tasks of class {k} is wrong"
    if not np.array_equal(series.arrived - series.served, series.present):
        yield "series: tasks present are not those that came and did not leave"
    if (series.highest < series.tokens).any() or (series.work < 0).any():
        yield "series: tokens above their maximum, or work below 0"
