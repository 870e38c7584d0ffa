"""The reference runner: the engine of Dai et al. 2025, section 2, in plain Python, for any rule.

A batch is formed at a boundary from the requests that have arrived at or before it, lasts t(b) and is not preempted;
its tokens are credited at its end. A request whose last prompt token is in batch n may decode from batch n + 1 on. An
idle engine starts a batch at the next arrival, with all that arrive at that instant. With slotted arrivals, which come
at slot starts and meet batches of one slot, this is the slotted model: an empty slot passes.

Every other form of the model is held to this one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.limits import BrokenLimit, checked_tokens, refusal, require_batch
from queuetheory_llm.schedulers.policy import Batch, Policy, Scheduler, View
from queuetheory_llm.simulation.clock import LAST_TICK, BatchTicks, Clock
from queuetheory_llm.simulation.requests import Requests, Ticks
from queuetheory_llm.simulation.run import NEVER, BatchLog, Progress, Run, Series, watched

_REPORT_EVERY = 1024  # batches between two reports of progress


def run(
    engine: Engine,
    scheduler: Scheduler,
    requests: Requests,
    clock: Clock,
    *,
    until: int | None = None,
    log: bool = False,
    watch: Ticks | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run one engine under one rule.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler
        A `Policy` or any object with ``name`` and ``form(view)``.
    requests : Requests
        On the ticks of ``clock``.
    until : int, optional
        Start no batch at or after this tick; without it the run ends when every request is finished.
    log : bool
        Keep the contents of every batch.
    watch : int64 array, optional
        Increasing ticks of the time series; by default `watched`.
    progress : callable, optional
        Called now and then with the share of the run that is done.

    Raises
    ------
    InfeasibleRequest
        If the rule can never serve one of the requests.
    InvalidInput
        If the rule forms a batch that breaks a limit of the model, or the run outlives the clock.
    """
    requests.require_feasible(scheduler, engine)
    state = _State(engine, scheduler, requests)
    duration = BatchTicks(engine.batch_time, clock)
    record = _Record(watched(requests, until) if watch is None else watch, log)
    now = 0
    while state.advance(now):
        if not state.present:
            record.watch(state, now, state.next_arrival)
            now = state.next_arrival
            continue
        if until is not None and now >= until:
            break
        batch = scheduler.form(state.view)
        try:
            if not isinstance(scheduler, Policy):
                require_batch(batch)
            tokens = checked_tokens(batch, state.view, state.arrived)
        except BrokenLimit as broken:
            raise refusal(scheduler.name, state.view, record.batches, clock.seconds(now), broken) from None
        end = now + duration[tokens]
        if end > LAST_TICK:
            raise clock.overflow()
        record.watch(state, now, end)
        state.credit(batch, now, end)
        record.add(now, end - now, tokens, batch)
        if progress is not None and record.batches % _REPORT_EVERY == 0:
            progress(end / until if until else record.tokens / state.total)
        now = end
    record.watch(state, now, None)
    return Run(clock=clock, requests=requests, until=until, **record.results(requests), **state.arrays())


class _Record:
    """The batches so far."""

    def __init__(self, ticks: Ticks, log: bool) -> None:
        self.ticks: list[int] = ticks.tolist()
        self.seen: list[tuple[int, ...]] = []
        self.batches = self.tokens = self.busy = self.last = 0
        self.log: list[tuple[int, int, Batch]] | None = [] if log else None

    def watch(self, state: _State, now: int, before: int | None) -> None:
        """Note the state that lasts from the boundary ``now`` until ``before``, with a batch if any is present."""
        while len(self.seen) < len(self.ticks) and (before is None or self.ticks[len(self.seen)] < before):
            tick = self.ticks[len(self.seen)]
            running = before is not None and state.present
            busy = self.busy + (tick - now if running else 0)
            self.seen.append((self.tokens, state.started, len(state.decoding), self.batches, busy))

    def add(self, start: int, duration: int, tokens: int, batch: Batch) -> None:
        self.batches += 1
        self.tokens += tokens
        self.busy += duration
        self.last = start + duration
        if self.log is not None:  # a rule may use its lists again
            self.log.append((start, duration, Batch(list(batch.prefill), list(batch.decode))))

    def results(self, requests: Requests) -> dict[str, Any]:
        seen = np.array(self.seen, dtype=np.int64).reshape(-1, 5).T
        starts, durations, batches = zip(*self.log, strict=True) if self.log else ((), (), ())
        return {
            "series": Series.of(requests, np.array(self.ticks, dtype=np.int64), seen),
            "batches": self.batches,
            "tokens": self.tokens,
            "busy": self.busy,
            "last": self.last,
            "log": None if self.log is None else BatchLog.of(starts, durations, batches),
        }


class _Reading(Sequence[int]):
    """What a user's own rule sees of a list or queue: it changes with it and cannot be written to."""

    def __init__(self, of: Sequence[int]) -> None:
        self._of = of

    def __getitem__(self, index: Any) -> Any:
        return self._of[index] if isinstance(index, int) else list(self._of)[index]

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)


def _same(of: Sequence[int]) -> Sequence[int]:
    return of


class _State:
    """The requests present, kept in the orders a `View` shows.

    Deques where requests leave near the front, so that a long backlog costs nothing; ``decoding`` stays sorted by
    insertion. Only requests that change phase touch these; a decode token costs one decrement.
    """

    def __init__(self, engine: Engine, scheduler: Scheduler, requests: Requests) -> None:
        self.arrival: list[int] = requests.arrival.tolist()
        self.prompt: list[int] = requests.prefill.tolist()
        self.prefill_left: list[int] = self.prompt.copy()
        self.decode_left: list[int] = requests.decode.tolist()
        self.total = int(requests.work.sum())
        self.arrived = 0
        self.prefilling: deque[int] = deque()
        self.decoding: list[int] = []
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.undecoded: set[int] = set()  # past the prompt, without a decode token yet
        self.started = 0
        self.begin, self.first_decode, self.last_prefill, self.last_decode, self.finish = (
            [NEVER] * len(self.arrival) for _ in range(5)
        )
        self.gap = [0] * len(self.arrival)  # longest so far
        self.longest_gap = self.gap.copy()
        shown: Callable[[Sequence[int]], Sequence[int]] = _same if isinstance(scheduler, Policy) else _Reading
        self.view = View(
            b_max=engine.b_max,
            k_max=engine.k_max,
            prefilling=shown(self.prefilling),
            decoding=shown(self.decoding),
            waiting=shown(self.waiting),
            running=shown(self.running),
            prefill_left=shown(self.prefill_left),
        )

    @property
    def present(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def next_arrival(self) -> int:
        return self.arrival[self.arrived]

    def advance(self, now: int) -> bool:
        """Let in what has arrived at or before ``now``; False when nothing is present or to come."""
        arrival, request = self.arrival, self.arrived
        while request < len(arrival) and arrival[request] <= now:
            self.waiting.append(request)
            if self.prefill_left[request]:
                self.prefilling.append(request)
            else:
                self.decoding.append(request)  # the latest arrival comes last
                self.undecoded.add(request)
            request += 1
        self.arrived = request
        return bool(self.prefilling or self.decoding or request < len(arrival))

    def credit(self, batch: Batch, start: int, end: int) -> None:
        """Credit the tokens of a batch that lasts from ``start`` to ``end``."""
        served_first = self._first_decodes(batch, end) if self.undecoded else []
        finished = self._credit_decode(batch.decode, end)
        for request, tokens in batch.prefill:
            if self.prefill_left[request] == self.prompt[request]:
                served_first.append(request)
            self.prefill_left[request] -= tokens
            if not self.prefill_left[request]:
                self._end_prompt(request, end, finished)
        if served_first:
            self._seat(sorted(served_first), start)  # one batch admits them all: those that arrived first come first
        for request in finished:
            self.running.remove(request)
            self.finish[request] = end
            self.longest_gap[request] = self.gap[request]

    def _seat(self, requests: list[int], start: int) -> None:
        self.running.extend(requests)
        self.started += len(requests)
        for request in requests:
            self.begin[request] = start
            _leave(self.waiting, request)

    def _first_decodes(self, batch: Batch, end: int) -> list[int]:
        """Note the first decode tokens; returns the requests without a prompt, which are served for the first time."""
        hit = self.undecoded.intersection(batch.decode)
        self.undecoded -= hit
        for request in hit:
            self.first_decode[request] = self.last_decode[request] = end
        return [request for request in hit if not self.prompt[request]]

    def _credit_decode(self, served: list[int], end: int) -> list[int]:
        """Credit one token each; returns the requests this finishes."""
        left, last, longest = self.decode_left, self.last_decode, self.gap
        finished = []
        for request in served:
            left[request] -= 1
            gap = end - last[request]
            if gap > longest[request]:
                longest[request] = gap
            last[request] = end
            if not left[request]:
                finished.append(request)
        for request in finished:
            del self.decoding[bisect_left(self.decoding, request)]
        return finished

    def _end_prompt(self, request: int, end: int, finished: list[int]) -> None:
        self.last_prefill[request] = end
        _leave(self.prefilling, request)
        if self.decode_left[request]:
            insort(self.decoding, request)
            self.undecoded.add(request)
        else:
            finished.append(request)

    def arrays(self) -> dict[str, Any]:
        return {
            "begin": self.begin,
            "first_decode": self.first_decode,
            "last_prefill": self.last_prefill,
            "finish": self.finish,
            "longest_gap": self.longest_gap,
        }


def _leave(queue: deque[int], request: int) -> None:
    """Take a request out of a queue; cheap at both ends."""
    if queue[0] == request:
        queue.popleft()
    elif queue[-1] == request:
        queue.pop()
    else:
        queue.remove(request)
