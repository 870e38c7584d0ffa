"""The compiled parts of the general runner: requests present in order, a batch checked and credited, the time series.

The same model as `reference`, on arrays. `_drive` is compiled anew for each rule; all it calls is kept on disk. Nothing
here is longer than the requests present: queues are slices of arrays, and a request leaves one by moving the shorter
side. Words for what goes wrong are found by the caller, who sees the state as it was before the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from queuetheory_llm.arrays import Ints
from queuetheory_llm.kept import kept
from queuetheory_llm.schedulers.array_rule import ArrayBatch, ArrayView
from queuetheory_llm.simulation.clock import LAST_TICK
from queuetheory_llm.simulation.run import NEVER

# Why a driver came back.
DONE, BROKEN, NEED_DURATION, LOG_FULL, OVERFLOW, PAUSED = range(6)

# Entries of `State.at`: where the run is.
(
    NOW, ARRIVED, STARTED, BATCHES, TOKENS, BUSY, LAST, SEEN,
    FORMED, PIECES, DECODES, BATCH_TOKENS, BATCH_TICKS, LOGGED, LOGGED_PIECES, LOGGED_DECODES,
) = range(16)  # fmt: skip


class Queue(NamedTuple):
    """Requests in order: ``items[ends[0]:ends[1]]``."""

    items: Ints
    ends: Ints


# Columns of `State.of`: what is known of each request.
(
    DECODE_LEFT, BEGIN, FIRST_DECODE, LAST_PREFILL, LAST_DECODE, FINISH, LONGEST_GAP, STAMP,
) = range(8)  # fmt: skip


class State(NamedTuple):
    """A run under way.

    Attributes
    ----------
    arrival : int64 array of shape (n,)
    of : int64 array of shape (n, 8)
        Columns by request as named above; ``STAMP`` is the last batch that named it.
    prefill_left : int64 array of shape (n,)
        Prompt tokens still to serve.
    prefilling, decoding, waiting, running : Queue
    ticks : int64 array
        t(b) by b; 0 where it is not known yet.
    at : int64 array of shape (16,)
        Where the run is.
    """

    arrival: Ints
    of: Ints
    prefill_left: Ints
    prefilling: Queue
    decoding: Queue
    waiting: Queue
    running: Queue
    ticks: Ints
    at: Ints


class Watch(NamedTuple):
    """The time series: ticks, and rows as `Series.of` takes them, shape (5, ticks)."""

    ticks: Ints
    seen: Ints


class Log(NamedTuple):
    """Batches since the log was last emptied, in the arrays of a `BatchLog`; all empty when none is kept."""

    starts: Ints
    durations: Ints
    piece_end: Ints
    decode_end: Ints
    piece_request: Ints
    piece_tokens: Ints
    decode_request: Ints


@kept
def present(queue: Queue) -> Ints:
    """The requests of a queue, in order."""
    return queue.items[queue.ends[0] : queue.ends[1]]


@kept
def _append(queue: Queue, request: int) -> None:
    queue.items[queue.ends[1]] = request
    queue.ends[1] += 1


@kept
def _place(queue: Queue, request: int) -> int:
    """Where a request is, or belongs, in a queue sorted by arrival."""
    low, high = queue.ends[0], queue.ends[1]
    while low < high:
        middle = (low + high) // 2
        if queue.items[middle] < request:
            low = middle + 1
        else:
            high = middle
    return int(low)


@kept
def _insert(queue: Queue, request: int) -> None:
    """Put a request in its place by arrival."""
    items, ends, at = queue.items, queue.ends, _place(queue, request)
    if at - ends[0] < ends[1] - at:
        ends[0] -= 1
        at -= 1
        for i in range(ends[0], at):
            items[i] = items[i + 1]
    else:
        for i in range(ends[1], at, -1):
            items[i] = items[i - 1]
        ends[1] += 1
    items[at] = request


@kept
def _delete(queue: Queue, at: int) -> None:
    items, ends = queue.items, queue.ends
    if at - ends[0] < ends[1] - 1 - at:
        for i in range(at, ends[0], -1):
            items[i] = items[i - 1]
        ends[0] += 1
    else:
        ends[1] -= 1
        for i in range(at, ends[1]):
            items[i] = items[i + 1]


@kept
def _leave(queue: Queue, request: int) -> None:
    """Take a request out of a queue in any order."""
    at = queue.ends[0]
    while queue.items[at] != request:
        at += 1
    _delete(queue, at)


@kept
def _admit(state: State) -> None:
    """Let in what has arrived at or before now."""
    at, request = state.at, state.at[ARRIVED]
    while request < state.arrival.size and state.arrival[request] <= at[NOW]:
        _append(state.waiting, request)
        if state.prefill_left[request] > 0:
            _append(state.prefilling, request)
        else:
            _append(state.decoding, request)
        request += 1
    at[ARRIVED] = request


@kept
def _watch(state: State, watch: Watch, before: int, serves: bool) -> None:
    """Note the state that lasts from now until ``before``, with a batch running if it ``serves``."""
    at = state.at
    while at[SEEN] < watch.ticks.size and watch.ticks[at[SEEN]] < before:
        i = at[SEEN]
        watch.seen[0, i] = at[TOKENS]
        watch.seen[1, i] = at[STARTED]
        watch.seen[2, i] = state.decoding.ends[1] - state.decoding.ends[0]
        watch.seen[3, i] = at[BATCHES]
        watch.seen[4, i] = at[BUSY] + (watch.ticks[i] - at[NOW] if serves else 0)
        at[SEEN] += 1


@kept
def advance(state: State, watch: Watch, until: int) -> bool:
    """Go on to the next batch boundary with somebody present; False when the run is over."""
    at = state.at
    while True:
        _admit(state)
        if state.prefilling.ends[0] < state.prefilling.ends[1] or state.decoding.ends[0] < state.decoding.ends[1]:
            return bool(at[NOW] < until)
        if at[ARRIVED] == state.arrival.size:
            return False
        _watch(state, watch, state.arrival[at[ARRIVED]], False)
        at[NOW] = state.arrival[at[ARRIVED]]


@kept
def close(state: State, watch: Watch) -> None:
    """Note the ticks after the last batch."""
    _watch(state, watch, LAST_TICK, False)
    if state.at[SEEN] < watch.ticks.size:  # the last instant of the clock itself
        watch.ticks[-1] -= 1
        _watch(state, watch, LAST_TICK, False)
        watch.ticks[-1] += 1


@kept
def _youngest(state: State) -> int:
    youngest = -1
    if state.prefilling.ends[0] < state.prefilling.ends[1]:
        youngest = max(youngest, state.prefilling.items[state.prefilling.ends[1] - 1])
    if state.decoding.ends[0] < state.decoding.ends[1]:
        youngest = max(youngest, state.decoding.items[state.decoding.ends[1] - 1])
    return youngest


@kept
def view_of(state: State, b_max: int, k_max: int) -> ArrayView:
    """What the rule sees now."""
    return ArrayView(
        b_max,
        k_max,
        present(state.prefilling),
        present(state.decoding),
        present(state.waiting),
        present(state.running),
        state.prefill_left[: _youngest(state) + 1],
    )


@kept
def _prefill_tokens(state: State, batch: ArrayBatch, pieces: int) -> int:
    """Prompt tokens of the batch; -1 if a piece is not to be served."""
    total, number, arrived = 0, state.at[BATCHES], state.at[ARRIVED]
    of, left = state.of, state.prefill_left
    for i in range(pieces):
        request, tokens = batch.prefill_request[i], batch.prefill_tokens[i]
        if not 0 <= request < arrived or not 1 <= tokens <= left[request] or of[request, STAMP] == number:
            return -1
        of[request, STAMP] = number
        total += tokens
    return total


@kept
def _may_decode(state: State, batch: ArrayBatch, decodes: int) -> bool:
    number, arrived = state.at[BATCHES], state.at[ARRIVED]
    of, left, served = state.of, state.prefill_left, batch.decode_request
    for i in range(decodes):
        request = served[i]
        if not 0 <= request < arrived:
            return False
        if left[request] > 0 or of[request, FINISH] != NEVER or of[request, STAMP] == number:
            return False
        of[request, STAMP] = number
    return True


@kept
def check(state: State, batch: ArrayBatch, b_max: int, k_max: int) -> bool:
    """Whether the batch that was formed keeps to the model; notes its tokens."""
    pieces, decodes = state.at[PIECES], state.at[DECODES]
    if not (0 <= pieces <= batch.prefill_request.size and 0 <= decodes <= batch.decode_request.size):
        return False
    tokens = _prefill_tokens(state, batch, pieces)
    if tokens < 0 or not _may_decode(state, batch, decodes):
        return False
    tokens += decodes
    state.at[BATCH_TOKENS] = tokens
    return bool(0 < tokens <= b_max and pieces + decodes <= k_max)


@kept
def _credit_decodes(state: State, batch: ArrayBatch, end: int, fresh: Ints) -> int:
    """Credit the decode tokens; lists in ``fresh`` whose first token of any kind it is, and returns how many."""
    of, served, count = state.of, batch.decode_request, 0
    for i in range(state.at[DECODES]):
        request = served[i]
        if of[request, FIRST_DECODE] == NEVER:
            of[request, FIRST_DECODE] = end
        elif end - of[request, LAST_DECODE] > of[request, LONGEST_GAP]:
            of[request, LONGEST_GAP] = end - of[request, LAST_DECODE]
        of[request, LAST_DECODE] = end
        of[request, DECODE_LEFT] -= 1
        if of[request, BEGIN] == NEVER:
            fresh[count] = request
            count += 1
        if of[request, DECODE_LEFT] == 0:
            of[request, FINISH] = end
            _delete(state.decoding, _place(state.decoding, request))
    return count


@kept
def _credit_prefills(state: State, batch: ArrayBatch, end: int, fresh: Ints, count: int) -> int:
    """Credit the prompt tokens; goes on with ``fresh`` behind its first ``count``."""
    of, left = state.of, state.prefill_left
    for i in range(state.at[PIECES]):
        request = batch.prefill_request[i]
        left[request] -= batch.prefill_tokens[i]
        if of[request, BEGIN] == NEVER:
            fresh[count] = request
            count += 1
        if left[request] > 0:
            continue
        of[request, LAST_PREFILL] = end
        _delete(state.prefilling, _place(state.prefilling, request))
        if of[request, DECODE_LEFT] > 0:
            _insert(state.decoding, request)
        else:
            of[request, FINISH] = end
    return count


@kept
def _seat(state: State, requests: Ints) -> None:
    """One batch admits them all: those that arrived first come first."""
    for request in np.sort(requests):
        state.of[request, BEGIN] = state.at[NOW]
        _append(state.running, request)
        _delete(state.waiting, _place(state.waiting, request))
    state.at[STARTED] += requests.size


@kept
def _dismiss(state: State, served: Ints, end: int) -> None:
    for request in served:
        if state.of[request, FINISH] == end:
            _leave(state.running, request)


@kept
def credit(state: State, batch: ArrayBatch) -> None:
    """Credit the batch that was formed, and go to its end."""
    at = state.at
    end = at[NOW] + at[BATCH_TICKS]
    fresh = np.empty(at[PIECES] + at[DECODES], np.int64)
    count = _credit_decodes(state, batch, end, fresh)
    count = _credit_prefills(state, batch, end, fresh, count)
    if count:
        _seat(state, fresh[:count])
    _dismiss(state, batch.decode_request[: at[DECODES]], end)
    _dismiss(state, batch.prefill_request[: at[PIECES]], end)
    at[NOW] = at[LAST] = end
    at[BATCHES] += 1
    at[TOKENS] += at[BATCH_TOKENS]
    at[BUSY] += at[BATCH_TICKS]


@kept
def _has_room(log: Log, at: Ints) -> bool:
    if log.starts.size == 0:
        return True
    return bool(
        at[LOGGED] < log.starts.size
        and at[LOGGED_PIECES] + at[PIECES] <= log.piece_request.size
        and at[LOGGED_DECODES] + at[DECODES] <= log.decode_request.size
    )


@kept
def _note(log: Log, batch: ArrayBatch, at: Ints) -> None:
    i, pieces, decodes = at[LOGGED], at[LOGGED_PIECES], at[LOGGED_DECODES]
    at[LOGGED] += 1
    at[LOGGED_PIECES] += at[PIECES]
    at[LOGGED_DECODES] += at[DECODES]
    log.starts[i], log.durations[i] = at[NOW], at[BATCH_TICKS]
    log.piece_end[i], log.decode_end[i] = at[LOGGED_PIECES], at[LOGGED_DECODES]
    log.piece_request[pieces : at[LOGGED_PIECES]] = batch.prefill_request[: at[PIECES]]
    log.piece_tokens[pieces : at[LOGGED_PIECES]] = batch.prefill_tokens[: at[PIECES]]
    log.decode_request[decodes : at[LOGGED_DECODES]] = batch.decode_request[: at[DECODES]]


@kept
def serve(state: State, batch: ArrayBatch, watch: Watch, log: Log) -> int:
    """Run the batch that was formed; a code other than `DONE` if it cannot run yet, or at all."""
    at = state.at
    tokens = at[BATCH_TOKENS]
    if tokens < state.ticks.size and state.ticks[tokens] > 0:
        at[BATCH_TICKS] = state.ticks[tokens]
    if at[BATCH_TICKS] == 0:
        return NEED_DURATION
    if at[BATCH_TICKS] > LAST_TICK - at[NOW]:
        return OVERFLOW
    if not _has_room(log, at):
        return LOG_FULL
    _watch(state, watch, at[NOW] + at[BATCH_TICKS], True)
    if log.starts.size > 0:
        _note(log, batch, at)
    credit(state, batch)
    at[FORMED] = at[BATCH_TICKS] = 0
    return DONE


def _form(view: ArrayView, parameters: NDArray[np.float64], batch: ArrayBatch) -> tuple[int, int]:
    """Stands for the rule in `_drive`; `driver` puts one in its place."""
    raise NotImplementedError


def driver(form: Any, *, packaged: bool) -> Callable[..., int]:
    """`_drive` with a compiled rule in it; that of a packaged one is kept on disk."""
    function = FunctionType(_drive.__code__, {**globals(), "_form": form}, "drive")
    made = kept(function, of=(ArrayView, ArrayBatch, form)) if packaged else njit(function)
    return cast("Callable[..., int]", made)


def _drive(
    parameters: NDArray[np.float64],
    state: State,
    batch: ArrayBatch,
    watch: Watch,
    log: Log,
    limits: tuple[int, int, int],
    pause: int,
) -> int:
    """Run until something is wanted of the caller; ``limits`` = (b_max, k_max, until), at most ``pause`` batches."""
    b_max, k_max, until = limits
    at = state.at
    for _ in range(pause):
        if at[FORMED] == 0:
            if not advance(state, watch, until):
                return DONE
            pieces, decodes = _form(view_of(state, b_max, k_max), parameters, batch)
            at[PIECES], at[DECODES] = pieces | 0, decodes | 0  # floats have no |: counts are whole, or do not compile
            if not check(state, batch, b_max, k_max):
                return BROKEN
            at[FORMED] = 1
        code = serve(state, batch, watch, log)
        if code != DONE:
            return code
    return PAUSED
