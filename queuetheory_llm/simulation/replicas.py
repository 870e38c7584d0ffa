"""Equal engines behind a dispatcher that sends each request, when it arrives, to one of them for good.

*random*: each engine with equal probability. *round-robin*: in turn. *token-queue*: to the engine with the fewest
tokens present (Dai et al. 2025, section 5.1); a token is present until the batch that serves it ends, and the first of
equals is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.requests import Requests, Ticks
from queuetheory_llm.simulation.run import NEVER, Progress, Run, Series, watched
from queuetheory_llm.simulation.runner import run

#: Chooses an engine, by number from 0, for each request.
Dispatcher = Callable[[Engine, Scheduler, Requests, Clock, int, np.random.Generator], Ticks]

_SUMMED = ("backlog", "waiting", "decoding")
_CLOCKS = ("batches", "busy")  # a request sees the batches of one engine
_PER_REQUEST = ("begin", "first_decode", "last_prefill", "finish", "longest_gap")


def _random(
    engine: Engine, scheduler: Scheduler, requests: Requests, clock: Clock, count: int, rng: np.random.Generator
) -> Ticks:
    del engine, scheduler, clock
    return rng.integers(count, size=len(requests))


def _round_robin(
    engine: Engine, scheduler: Scheduler, requests: Requests, clock: Clock, count: int, rng: np.random.Generator
) -> Ticks:
    del engine, scheduler, clock, rng
    return np.arange(len(requests), dtype=np.int64) % count


def _token_queue(
    engine: Engine, scheduler: Scheduler, requests: Requests, clock: Clock, count: int, rng: np.random.Generator
) -> Ticks:
    del rng
    if not isinstance(scheduler, Policy):
        raise InvalidInput(f"dispatch: token-queue knows the rules of the policy space only, not {scheduler.name}")
    from queuetheory_llm.simulation import kernel  # loads numba

    return kernel.join_token_queues(engine, scheduler, requests, clock, count)


#: The dispatchers by name.
DISPATCHERS: dict[str, Dispatcher] = {"random": _random, "round-robin": _round_robin, "token-queue": _token_queue}


@attrs.frozen(kw_only=True, eq=False)
class Replicas:
    """A run of several engines.

    Attributes
    ----------
    engine_of : int64 array of shape (n,)
        The engine of each request, from 0.
    runs : tuple of Run
        Of each engine, with its own requests.
    total : Run
        Of all requests together: times in order of arrival, totals and series summed over engines (batches and busy
        ticks of the series are means over engines, rounded down), without a log.
    """

    engine_of: Ticks
    runs: tuple[Run, ...]
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
) -> Replicas:
    """Run ``count`` equal engines under one rule behind a dispatcher.

    Parameters
    ----------
    engine, scheduler, requests, clock, until, log, watch, progress
        As in `reference.run`.
    count : int
        Number of engines, at least 1.
    dispatch : {"random", "round-robin", "token-queue"}
    rng : numpy.random.Generator
        Used by the random dispatch alone.

    Raises
    ------
    InvalidInput
        If there is no engine, the dispatcher is unknown or cannot see into the rule; and as `reference.run`.
    """
    if count < 1:
        raise InvalidInput(f"engines: {count} is below 1; a system has at least one")
    if dispatch not in DISPATCHERS:
        raise InvalidInput(f"--dispatch: {dispatch!r} is not a dispatch rule; known: {', '.join(DISPATCHERS)}")
    requests.require_feasible(scheduler, engine)
    if count == 1:
        alone = run(engine, scheduler, requests, clock, until=until, log=log, watch=watch, progress=progress)
        return Replicas(engine_of=np.zeros(len(requests), dtype=np.int64), runs=(alone,), total=alone)
    engine_of = DISPATCHERS[dispatch](engine, scheduler, requests, clock, count, rng)
    ticks = watched(requests, until) if watch is None else watch
    parts = [np.flatnonzero(engine_of == number) for number in range(count)]

    def one(number: int) -> Run:
        share = None if progress is None else lambda done: progress((number + done) / count)
        own = requests.take(parts[number])
        return run(engine, scheduler, own, clock, until=until, log=log, watch=ticks, progress=share)

    runs = tuple(one(number) for number in range(count))
    return Replicas(engine_of=engine_of, runs=runs, total=_total(requests, parts, runs))


def _total(requests: Requests, parts: Sequence[Ticks], runs: Sequence[Run]) -> Run:
    times: dict[str, Any] = {field: np.full(len(requests), NEVER, dtype=np.int64) for field in _PER_REQUEST}
    for part, one in zip(parts, runs, strict=True):
        for field, values in times.items():
            values[part] = getattr(one, field)
    series = {field: np.sum([getattr(one.series, field) for one in runs], axis=0) for field in _SUMMED}
    series |= {field: np.sum([getattr(one.series, field) for one in runs], axis=0) // len(runs) for field in _CLOCKS}
    return Run(
        clock=runs[0].clock,
        requests=requests,
        until=runs[0].until,
        **times,
        series=Series(ticks=runs[0].series.ticks, **series),
        batches=sum(one.batches for one in runs),
        tokens=sum(one.tokens for one in runs),
        busy=sum(one.busy for one in runs),
        last=max(one.last for one in runs),
    )
