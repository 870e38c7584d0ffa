"""The general runner: rules that are functions on arrays, compiled; what `reference.run` says of them, faster.

A free rule may look at every request present, so a batch costs what the rule costs and the requests it serves; a
backlog that the rule does not look at costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.kept import code_key, surroundings
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.array_rule import ArrayBatch, ArrayRule, is_helper, plain
from queuetheory_llm.schedulers.limits import BrokenLimit, checked_tokens, refusal
from queuetheory_llm.schedulers.policy import View
from queuetheory_llm.simulation import general_kernel as kernel
from queuetheory_llm.simulation.clock import LAST_TICK, BatchTicks, Clock
from queuetheory_llm.simulation.requests import Requests, Ticks
from queuetheory_llm.simulation.run import NEVER, BatchLog, Progress, Run, Series, watched

_OPTIONS: dict[str, Any] = {"boundscheck": True}  # a rule that leaves its arrays is an error
_PACKAGE = __name__.partition(".")[0]
_PAUSE = 16_384  # batches between two reports of progress
_TABLE = 2**20  # durations kept by number of tokens; of longer batches the kernel asks each time
_LOG = 2**16  # batches, pieces and decode tokens between two readings of the log


def run_general(
    engine: Engine,
    rule: ArrayRule,
    requests: Requests,
    clock: Clock,
    *,
    until: int | None = None,
    log: bool = False,
    watch: Ticks | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run one engine under a rule on arrays; parameters, result and errors are those of `reference.run`.

    Raises
    ------
    InvalidInput
        Also if numba cannot compile the rule.
    """
    requests.require_feasible(rule, engine)
    going = _Going(engine, rule, requests, clock, watched(requests, until) if watch is None else watch, log=log)
    limit = LAST_TICK if until is None else until
    while (code := going.drive(limit)) != kernel.DONE:
        going.answer(code)
        if progress is not None and code == kernel.PAUSED:
            now, served = int(going.at[kernel.NOW]), int(going.at[kernel.TOKENS])
            progress(min(1.0, now / until) if until else served / int(requests.work.sum()))
    return going.result(until)


_DRIVERS: dict[tuple[Any, ...], Callable[..., int]] = {}  # by the code of the rule, which a worker gets as a copy


def _driver(rule: ArrayRule) -> Callable[..., int]:
    """`drive` with the rule in it; compiled on its first call, once for all rules of the same code.

    Of the packaged rules it is kept on disk. A user's own rules are compiled in memory.
    """
    function = rule.function
    if not isinstance(plain(function), FunctionType):
        raise InvalidInput(f"scheduler {rule.name}: {function!r} is no plain Python function; write it with def")
    key = code_key(function)
    if key not in _DRIVERS:
        for each in helpers_of(function):
            _make_known(each)
        packaged = function.__module__.startswith(f"{_PACKAGE}.")
        form = function if hasattr(function, "py_func") else numba.njit(**_OPTIONS)(function)
        _DRIVERS[key] = kernel.driver(form, packaged=packaged)
    return _DRIVERS[key]


def helpers_of(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions marked with `helper` that a function calls, and that those call."""
    found: dict[int, Callable[..., Any]] = {}
    ahead = [function]
    while ahead:
        for value in surroundings(plain(ahead.pop())).values():
            if is_helper(value) and id(value) not in found:
                found[id(value)] = value
                ahead.append(value)
    return list(found.values())


@cache
def _make_known(function: Callable[..., Any]) -> None:
    """Let numba compile a helper into what calls it, its indices checked as well."""
    register_jitable(**_OPTIONS)(function)


def _queue(capacity: int, first: int = 0) -> kernel.Queue:
    return kernel.Queue(np.zeros(capacity, np.int64), np.array([first, first], np.int64))


def _state(engine: Engine, requests: Requests) -> kernel.State:
    count = len(requests)
    most = int(min(engine.b_max, requests.work.sum()))
    of = np.full((count, 8), NEVER, np.int64)
    of[:, kernel.DECODE_LEFT] = requests.decode
    of[:, kernel.LONGEST_GAP] = 0
    return kernel.State(
        arrival=requests.arrival.copy(),
        of=of,
        prefill_left=requests.prefill.copy(),
        prefilling=_queue(count),
        decoding=_queue(2 * count + 1, count),  # grows at both ends, at most once a request
        waiting=_queue(count),
        running=_queue(count),
        ticks=np.zeros(min(most, _TABLE) + 1, np.int64),
        at=np.zeros(16, np.int64),
    )


class _Going:
    """A run under way: the kernel's arrays, and what it asks for."""

    def __init__(
        self, engine: Engine, rule: ArrayRule, requests: Requests, clock: Clock, ticks: Ticks, *, log: bool
    ) -> None:
        self.engine, self.rule, self.requests, self.clock = engine, rule, requests, clock
        self.state = _state(engine, requests)
        self.at = self.state.at
        self.batch = ArrayBatch.empty(len(requests), len(requests))
        self.watch = kernel.Watch(np.array(ticks, np.int64), np.zeros((5, len(ticks)), np.int64))
        self.log = _log(_LOG if log else 0)
        self.pages: list[kernel.Log] = []
        self.duration = BatchTicks(engine.batch_time, clock)
        self.values = rule.values

    def drive(self, until: int) -> int:
        """Let the kernel run; compiles the rule first."""
        from numba.core.errors import NumbaError

        limits = (self.engine.b_max, self.engine.b_max if self.engine.k_max is None else self.engine.k_max, until)
        try:
            code = _driver(self.rule)(self.values, self.state, self.batch, self.watch, self.log, limits, _PAUSE)
        except NumbaError as error:
            raise InvalidInput(
                f"scheduler {self.rule.name}: numba cannot compile the rule ({_gist(error)}); write it in the Python "
                "that numba knows, and mark what it calls with helper"
            ) from None
        except IndexError:
            raise self.rule.beyond() from None
        if code == kernel.DONE:
            kernel.close(self.state, self.watch)
        return int(code)

    def answer(self, code: int) -> None:
        """Give what the kernel asks for, or refuse."""
        if code == kernel.BROKEN:
            raise self._refusal()
        if code == kernel.OVERFLOW:
            raise self.clock.overflow()
        if code == kernel.LOG_FULL:
            self._turn_page()
        if code == kernel.NEED_DURATION:
            tokens = int(self.at[kernel.BATCH_TOKENS])
            ticks = self.at[kernel.BATCH_TICKS] = min(self.duration[tokens], LAST_TICK)
            if tokens < self.state.ticks.size:
                self.state.ticks[tokens] = ticks

    def _refusal(self) -> InvalidInput:
        """The error of the reference runner, by the same checks on the same state."""
        counts = int(self.at[kernel.PIECES]), int(self.at[kernel.DECODES])
        batch = self.batch.read(self.rule.name, counts)
        phases = (self.state.prefilling, self.state.decoding, self.state.waiting, self.state.running)
        prefilling, decoding, waiting, running = (
            queue.items[queue.ends[0] : queue.ends[1]].tolist() for queue in phases
        )
        view = View(
            b_max=self.engine.b_max,
            k_max=self.engine.k_max,
            prefilling=prefilling,
            decoding=decoding,
            waiting=waiting,
            running=running,
            prefill_left=self.state.prefill_left.tolist(),
        )
        try:
            checked_tokens(batch, view, int(self.at[kernel.ARRIVED]))
        except BrokenLimit as broken:
            now = self.clock.seconds(int(self.at[kernel.NOW]))
            return refusal(self.rule.name, view, int(self.at[kernel.BATCHES]), now, broken)
        raise AssertionError("the compiled check and the plain one disagree")  # pragma: no cover

    def _turn_page(self) -> None:
        """Keep what the log holds; the next one has room for the batch that did not fit."""
        at = self.at
        filled = (*[at[kernel.LOGGED]] * 4, *[at[kernel.LOGGED_PIECES]] * 2, at[kernel.LOGGED_DECODES])
        self.pages.append(kernel.Log(*(part[:size].copy() for part, size in zip(self.log, filled, strict=True))))
        at[[kernel.LOGGED, kernel.LOGGED_PIECES, kernel.LOGGED_DECODES]] = 0
        most = int(max(at[kernel.PIECES], at[kernel.DECODES]))
        if most > self.log.decode_request.size:
            self.log = _log(most)

    def result(self, until: int | None) -> Run:
        """What happened."""
        of, at = self.state.of.T, [int(value) for value in self.at]
        return Run(
            clock=self.clock,
            requests=self.requests,
            until=until,
            begin=of[kernel.BEGIN],
            first_decode=of[kernel.FIRST_DECODE],
            last_prefill=of[kernel.LAST_PREFILL],
            finish=of[kernel.FINISH],
            longest_gap=np.where(of[kernel.FINISH] == NEVER, 0, of[kernel.LONGEST_GAP]),
            series=Series.of(self.requests, self.watch.ticks, self.watch.seen),
            batches=at[kernel.BATCHES],
            tokens=at[kernel.TOKENS],
            busy=at[kernel.BUSY],
            last=at[kernel.LAST],
            log=self._batch_log() if self.log.starts.size else None,
        )

    def _batch_log(self) -> BatchLog:
        self._turn_page()
        whole = {name: np.concatenate([getattr(page, name) for page in self.pages]) for name in kernel.Log._fields}
        for ends, flat in (("piece_end", "piece_request"), ("decode_end", "decode_request")):
            sizes = [getattr(page, flat).size for page in self.pages]
            before = np.cumsum([0, *sizes[:-1]])
            whole[ends] += np.repeat(before, [page.starts.size for page in self.pages])
        return BatchLog(**whole)


def _log(size: int) -> kernel.Log:
    return kernel.Log(*(np.zeros(size, np.int64) for _ in kernel.Log._fields))


def _gist(error: Exception) -> str:
    """What numba says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Failed in", "File", "Traceback"))]
    return (telling or lines or [type(error).__name__])[0]
