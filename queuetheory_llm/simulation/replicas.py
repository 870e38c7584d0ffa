"""Equal engines behind a dispatcher that sends each request, when it arrives, to one of them for good.

The rules are those of `dispatch` that look at queues alone. A token is present until the batch that serves it ends, a
request until that of its last token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.dispatch.registry import DISPATCH_RULES, require_dispatch
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.dispatch import require_engines
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.requests import Requests, Ticks
from queuetheory_llm.simulation.run import NEVER, Progress, Run, Series, watched
from queuetheory_llm.simulation.runner import run

#: Told the number of an engine and its run.
Told = Callable[[int, Run], None]

_SUMMED = ("backlog", "waiting", "decoding")
_CLOCKS = ("batches", "busy")  # a request sees the batches of one engine
_PER_REQUEST = ("begin", "first_decode", "last_prefill", "finish", "longest_gap")


def _sent(
    dispatch: str,
    engine: Engine,
    scheduler: Scheduler,
    requests: Requests,
    clock: Clock,
    count: int,
    rng: np.random.Generator,
) -> Ticks:
    """The engine, by number from 0, of each request."""
    rule = DISPATCH_RULES[dispatch]
    chances = rng.random(len(requests)) if rule.tosses else np.zeros(len(requests))
    if rule.oblivious:
        from queuetheory_llm.simulation import dispatching  # loads numba

        return dispatching.sent(dispatch, count, chances)
    if not isinstance(scheduler, Policy):
        raise InvalidInput(f"dispatch: {dispatch} knows the rules of the policy space only, not {scheduler.name}")
    from queuetheory_llm.simulation import kernel  # loads numba

    return kernel.join_queues(engine, scheduler, requests, clock, count, dispatch, chances)


@attrs.frozen(kw_only=True, eq=False)
class Replicas:
    """A run of several engines.

    Attributes
    ----------
    engine_of : int64 array of shape (n,)
        The engine of each request, from 0.
    total : Run
        Of all requests together: times in order of arrival, totals and series summed over engines (batches and busy
        ticks of the series are means over engines, rounded down), without a log.
    """

    engine_of: Ticks
    total: Run


def run_replicas(
    engine: Engine,
    scheduler: Scheduler,
    requests: Requests,
    clock: Clock,
    *,
    count: int,
    dispatch: str,
    rng: np.random.Generator,
    until: int | None = None,
    log: bool = False,
    watch: Ticks | None = None,
    progress: Progress | None = None,
    told: Told | None = None,
) -> Replicas:
    """Run ``count`` equal engines under one rule behind a dispatcher.

    Parameters
    ----------
    engine, scheduler, requests, clock, until, log, watch, progress
        As in `reference.run`.
    count : int
        Number of engines, 1 to `MOST_ENGINES`.
    dispatch : {"random", "round-robin", "token-queue", "least-outstanding"}
    rng : numpy.random.Generator
        Used by dispatch rules that toss.
    told : callable, optional
        Told the number, from 0, and the run of each engine when it has finished, with its own requests; runs are not
        kept, so that thousands of engines need no memory of their own.

    Raises
    ------
    InvalidInput
        If the number of engines is out of range, the dispatcher is unknown or cannot see into the rule; and as
        `reference.run`.
    """
    require_engines(count)
    require_dispatch(dispatch)
    requests.require_feasible(scheduler, engine)
    if count == 1:
        alone = run(engine, scheduler, requests, clock, until=until, log=log, watch=watch, progress=progress)
        if told is not None:
            told(0, alone)
        return Replicas(engine_of=np.zeros(len(requests), dtype=np.int64), total=alone)
    engine_of = _sent(dispatch, engine, scheduler, requests, clock, count, rng)
    ticks = watched(requests, until) if watch is None else watch
    total = _Total(requests, clock, until, ticks, count)
    order = np.argsort(engine_of, kind="stable")
    ends = np.searchsorted(engine_of[order], np.arange(count), side="right")
    for number, own in enumerate(np.split(order, ends[:-1])):
        share = None if progress is None else partial(_share, progress, number, count)
        one = run(engine, scheduler, requests.take(own), clock, until=until, log=log, watch=ticks, progress=share)
        total.add(own, one)
        if told is not None:
            told(number, one)
    return Replicas(engine_of=engine_of, total=total.run())


def _share(progress: Progress, number: int, count: int, done: float) -> None:
    progress((number + done) / count)


class _Total:
    """The sums over the engines so far."""

    def __init__(self, requests: Requests, clock: Clock, until: int | None, ticks: Ticks, count: int) -> None:
        self.requests, self.clock, self.until, self.ticks, self.count = requests, clock, until, ticks, count
        self.times: dict[str, Any] = {field: np.full(len(requests), NEVER, dtype=np.int64) for field in _PER_REQUEST}
        self.series = {field: np.zeros(ticks.size, dtype=np.int64) for field in (*_SUMMED, *_CLOCKS)}
        self.batches = self.tokens = self.busy = self.last = 0

    def add(self, own: Ticks, one: Run) -> None:
        """The run of one engine with the requests at the places ``own``."""
        for field, values in self.times.items():
            values[own] = getattr(one, field)
        for field, values in self.series.items():
            values += getattr(one.series, field)
        self.batches += one.batches
        self.tokens += one.tokens
        self.busy += one.busy
        self.last = max(self.last, one.last)

    def run(self) -> Run:
        series = self.series | {field: self.series[field] // self.count for field in _CLOCKS}
        return Run(
            clock=self.clock,
            requests=self.requests,
            until=self.until,
            **self.times,
            series=Series(ticks=self.ticks, **series),
            batches=self.batches,
            tokens=self.tokens,
            busy=self.busy,
            last=self.last,
        )
