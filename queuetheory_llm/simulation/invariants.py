"""What every run must satisfy, recounted from its log of batches and compared with everything else it reports.

The log is taken as the evidence: which tokens were served in which batch, from when to when. From it alone follow the
times of every request, the state at every tick, and whether the model was kept. Nothing of the runner is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.simulation.clock import BatchTicks
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import NEVER, BatchLog, Run

Flags = NDArray[np.bool_]

_PAGE = 2**20  # entries of the log at a time

#: What is checked, in the order of the checks.
CHECKED = (
    "limits: 1 to b_max tokens from at most k_max requests in a batch, each request once in a phase",
    "clock: a batch lasts t(b), batches do not overlap, none starts at or after the horizon",
    "causality: no token before the arrival, no decode token before the batch after the last prompt token",
    "conservation: no request gets more tokens than it has, and it is finished exactly when it has all",
    "work conservation: the engine is idle only when nobody is present, and starts at the next arrival",
    "capacity: tokens served by t are at most C t",
    "times: begin, first decode, last prefill, finish and longest gap of every request are those of the log",
    "totals and series: batches, tokens, busy time, backlog, waiting, decoding are those of the log",
    "Little's law: the times present of all requests add up to the integral of the number present",
)
FILLS = "full batches: min(budget, demand) tokens in every batch, or all k_max seats taken"


def check_run(run: Run, engine: Engine, scheduler: Scheduler, *, fills: bool = False) -> list[str]:
    """Every invariant that the run breaks, with the first place where it does; empty for a sound run.

    Parameters
    ----------
    run : Run
        With its log of batches.
    engine : Engine
    scheduler : Scheduler
        For the budget of a `Policy`.
    fills : bool
        Whether the rule claims that every batch has min(budget, demand) tokens unless all k_max seats are taken; its
        classification tells.

    Raises
    ------
    InvalidInput
        If the run kept no log.
    """
    log = run.require_log()
    shape = list(_shape(run, log))
    if shape:  # what follows indexes with these numbers
        return shape
    facts = _Facts(run, log, engine, scheduler.budget(engine.b_max) if isinstance(scheduler, Policy) else engine.b_max)
    checks: list[Callable[[_Facts], Iterator[str]]] = [
        _limits, _clock, _causality, _conservation, _idleness, _capacity, _times, _totals, _series, _little,
    ]  # fmt: skip
    if fills:
        checks.append(_full)
    return [fault for check in checks for fault in check(facts)]


def _shape(run: Run, log: BatchLog) -> Iterator[str]:
    """Whether the arrays of the log fit one another and name requests of the run."""
    count = len(log)
    if not log.durations.size == log.piece_end.size == log.decode_end.size == count:
        yield "log: starts, durations, piece_end and decode_end differ in length"
        return
    for name, ends, entries in (
        ("piece", log.piece_end, log.piece_request.size),
        ("decode", log.decode_end, log.decode_request.size),
    ):
        if bool((np.diff(ends, prepend=0) < 0).any()) or (int(ends[-1]) if count else 0) != entries:
            yield f"log: {name}_end does not divide the {entries} entries"
    if log.piece_request.size != log.piece_tokens.size:
        yield "log: piece_request and piece_tokens differ in length"
    for name, requests in (("piece", log.piece_request), ("decode", log.decode_request)):
        if bool(((requests < 0) | (requests >= len(run.requests))).any()):
            yield f"log: {name}_request names a request that is not there"
    for name in ("begin", "first_decode", "last_prefill", "finish", "longest_gap"):
        if getattr(run, name).shape != run.requests.arrival.shape:
            yield f"times: {name} does not have one entry a request"


@attrs.frozen(eq=False)
class _Phase:
    """The entries of one phase by request, in arrays of shape (n,).

    Attributes
    ----------
    first, last : int64 array
        Batches of the first and the last entry of each request; NEVER without one.
    count : int64 array
        Entries.
    longest : int64 array
        Most ticks from the end of the batch of an entry to that of the next one; 0 with fewer than two.
    twice : bool array
        Whether two entries are in one batch.
    """

    first: Ticks
    last: Ticks
    count: Ticks
    longest: Ticks
    twice: Flags

    @classmethod
    def of(cls, requests: Ticks, ends: Ticks, clock: Ticks, count: int) -> _Phase:
        """From the requests of the entries, where the entries of each batch end, and the ticks of the batch ends.

        Batches are taken in pages of about `_PAGE` entries, so that a log of any length needs little memory.
        """
        found = cls(
            np.full(count, NEVER, np.int64),
            np.full(count, NEVER, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros(count, np.bool_),
        )
        start = 0
        while start < ends.size:
            entry = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, entry + _PAGE, side="right")))
            found._add(requests[entry : int(ends[stop - 1])], ends[start:stop] - entry, start, clock)
            start = stop
        return found

    def _add(self, requests: Ticks, ends: Ticks, first_batch: int, clock: Ticks) -> None:
        """One page more: a counting sort of its entries by request, so linear."""
        if not requests.size:
            return
        from scipy.sparse import csr_array

        low = int(requests.min())
        shape = (ends.size, int(requests.max()) - low + 1)
        entries = np.ones(requests.size, np.int8)
        columns = csr_array((entries, requests - low, np.append(0, ends)), shape=shape).tocsc()
        own = np.flatnonzero(np.diff(columns.indptr))
        starts = columns.indptr[own]
        batch = columns.indices.astype(np.int64) + first_batch
        who = own + low
        before = np.empty_like(batch)  # the batch of the entry before it
        before[1:] = batch[:-1]
        before[starts] = np.where(self.last[who] == NEVER, batch[starts], self.last[who])
        gaps = clock[batch] - clock[before]
        again = batch == before
        again[starts] &= self.last[who] != NEVER
        self.longest[who] = np.maximum(self.longest[who], np.maximum.reduceat(gaps, starts))
        self.twice[who] |= np.logical_or.reduceat(again, starts)
        self.first[who] = np.where(self.first[who] == NEVER, batch[starts], self.first[who])
        self.last[who] = batch[np.append(starts[1:], batch.size) - 1]
        self.count[who] += np.diff(np.append(starts, batch.size))


@attrs.frozen(eq=False, slots=False)
class _Facts:
    """What the log says, computed once."""

    run: Run
    log: BatchLog
    engine: Engine
    budget: int

    @cached_property
    def ends(self) -> Ticks:
        return self.log.ends

    @cached_property
    def tokens(self) -> Ticks:
        return self.log.tokens

    @cached_property
    def pieces(self) -> _Phase:
        return _Phase.of(self.log.piece_request, self.log.piece_end, self.ends, len(self.run.requests))

    @cached_property
    def decodes(self) -> _Phase:
        return _Phase.of(self.log.decode_request, self.log.decode_end, self.ends, len(self.run.requests))

    @cached_property
    def prompt_served(self) -> Ticks:
        """Prompt tokens of each request in the log."""
        served = np.bincount(self.log.piece_request, self.log.piece_tokens, len(self.run.requests))
        return np.rint(served).astype(np.int64)

    @cached_property
    def decode_served(self) -> Ticks:
        return self.decodes.count

    @cached_property
    def last_piece(self) -> Ticks:
        return self.pieces.last

    @cached_property
    def first_token(self) -> Ticks:
        """Batch of the first decode token."""
        return self.decodes.first

    @cached_property
    def first_batch(self) -> Ticks:
        """Batch of the first token of any kind; NEVER without one."""
        one, other = self.pieces.first, self.first_token
        return np.where(one == NEVER, other, np.where(other == NEVER, one, np.minimum(one, other)))

    @cached_property
    def prompted(self) -> Flags:
        """Requests whose whole prompt is in the log; those without a prompt count."""
        return self.prompt_served >= self.run.requests.prefill

    @cached_property
    def complete(self) -> Flags:
        """Requests all of whose tokens are in the log."""
        return self.prompted & (self.decode_served >= self.run.requests.decode)

    @cached_property
    def finish(self) -> Ticks:
        """Tick of the last token of each complete request."""
        last = np.maximum(self.last_piece, self.decodes.last)
        return self.tick_of_end(np.where(self.complete, last, NEVER))

    def tick_of_end(self, batch: Ticks) -> Ticks:
        """Ends of batches, NEVER where the batch is NEVER."""
        return np.where(batch == NEVER, NEVER, self.ends[batch]) if len(self.log) else np.full_like(batch, NEVER)

    def present(self, ticks: Ticks) -> Ticks:
        """Requests that have arrived and are unfinished at each tick, arrivals and credits of the tick counted."""
        finished = np.sort(self.finish[self.finish != NEVER])
        come = np.searchsorted(self.run.requests.arrival, ticks, side="right")
        return np.asarray(come - np.searchsorted(finished, ticks, side="right"), dtype=np.int64)

    def decoding(self, ticks: Ticks) -> Ticks:
        """Requests past their prompt and unfinished at boundaries at these ticks."""
        requests = self.run.requests
        some = requests.decode > 0
        own = np.where(requests.prefill > 0, self.tick_of_end(np.where(self.prompted, self.last_piece, NEVER)), NEVER)
        ready = np.sort(np.concatenate([own[some & (own != NEVER)], requests.arrival[some & (requests.prefill == 0)]]))
        gone = np.sort(self.finish[some & (self.finish != NEVER)])
        return np.asarray(
            np.searchsorted(ready, ticks, side="right") - np.searchsorted(gone, ticks, side="right"), dtype=np.int64
        )


def _where(broken: Flags, text: str, what: str = "batch") -> Iterator[str]:
    """One fault that names the first place and the number of places."""
    places = np.flatnonzero(broken)
    if places.size:
        more = f" (and {places.size - 1} more)" if places.size > 1 else ""
        yield f"{text}: {what} {places[0]}{more}"


def _limits(facts: _Facts) -> Iterator[str]:
    log, engine = facts.log, facts.engine
    yield from _where((facts.tokens < 1) | (facts.tokens > engine.b_max), f"limits: not 1 to {engine.b_max} tokens")
    seats = np.diff(log.piece_end, prepend=0) + np.diff(log.decode_end, prepend=0)
    if engine.k_max is not None:
        yield from _where(seats > engine.k_max, f"limits: more than k_max = {engine.k_max} requests")
    yield from _where(log.piece_tokens < 1, "limits: no token", "prompt piece")
    for name, phase in (("prompt pieces", facts.pieces), ("decode tokens", facts.decodes)):
        yield from _where(phase.twice, f"limits: two {name} of one request in one batch", "request")


def _clock(facts: _Facts) -> Iterator[str]:
    run, log = facts.run, facts.log
    law = BatchTicks(facts.engine.batch_time, run.clock)
    sizes, which = np.unique(facts.tokens, return_inverse=True)
    known = (sizes >= 1) & (sizes <= facts.engine.b_max)
    lasts = np.array([law[int(size)] if fine else 0 for size, fine in zip(sizes, known, strict=True)], dtype=np.int64)
    if len(log):
        yield from _where(known[which] & (log.durations != lasts[which]), "clock: the batch does not last t(b)")
    yield from _where(np.diff(log.starts) < log.durations[:-1], "clock: the next batch starts before the end of")
    if run.until is not None:
        yield from _where(log.starts >= run.until, "clock: the batch starts at or after the horizon")


def _causality(facts: _Facts) -> Iterator[str]:
    first, arrival = facts.first_batch, facts.run.requests.arrival
    starts = np.where(first == NEVER, arrival, facts.log.starts[first]) if len(facts.log) else arrival
    yield from _where(starts < arrival, "causality: a token before the arrival", "request")
    decoded = facts.first_token != NEVER
    early = decoded & (~facts.prompted | ((facts.last_piece != NEVER) & (facts.first_token <= facts.last_piece)))
    yield from _where(early, "causality: a decode token before the end of the prompt", "request")


def _conservation(facts: _Facts) -> Iterator[str]:
    run, requests = facts.run, facts.run.requests
    for name, served, wanted in (
        ("prompt", facts.prompt_served, requests.prefill),
        ("decode", facts.decode_served, requests.decode),
    ):
        yield from _where(served > wanted, f"conservation: more {name} tokens than it has", "request")
    finished = run.finish != NEVER
    yield from _where(finished & ~facts.complete, "conservation: finished before all its tokens are served", "request")
    yield from _where(~finished & facts.complete, "conservation: all tokens served and not finished", "request")
    if run.until is None:
        yield from _where(~facts.complete, "conservation: the run ends with an unfinished request", "request")


def _idleness(facts: _Facts) -> Iterator[str]:
    run, log, arrival = facts.run, facts.log, facts.run.requests.arrival
    free = np.concatenate([[0], facts.ends])  # the engine is free from here until the next start
    following = np.concatenate([log.starts, [facts.run.end]])
    idle = following > free
    left = facts.present(free) > 0
    next_arrival = np.append(arrival, np.iinfo(np.int64).max)[np.searchsorted(arrival, free, side="right")]
    broken = idle & (left | (next_arrival < following))
    yield from _where(broken, "work conservation: idle while a request is present before", "batch")
    late = idle[:-1] & (next_arrival[:-1] != log.starts)
    yield from _where(late & ~broken[:-1], "work conservation: starts without an arrival after an idle time:", "batch")
    if run.until is not None:
        yield from _where(arrival >= run.until, "clock: arrives at or after the horizon", "request")


def _capacity(facts: _Facts) -> Iterator[str]:
    """Served tokens against C t in whole numbers, at the batch end where their ratio is largest."""
    if not len(facts.log):
        return
    law, b_max = BatchTicks(facts.engine.batch_time, facts.run.clock), facts.engine.b_max
    sizes = {1, b_max, *facts.engine.batch_time.corners(1, b_max), *np.unique(facts.tokens).tolist()}
    best = max(Fraction(size, law[size]) for size in sizes if 1 <= size <= b_max)
    served = np.cumsum(facts.tokens)
    worst = int(np.argmax(served / np.maximum(facts.ends, 1)))
    if int(served[worst]) > best * int(facts.ends[worst]):
        yield f"capacity: {served[worst]} tokens served by the end of batch {worst}, above C t"


def _times(facts: _Facts) -> Iterator[str]:
    run, requests = facts.run, facts.run.requests
    starts = facts.log.starts
    first = facts.first_batch
    begin = np.where(first == NEVER, NEVER, starts[first]) if len(facts.log) else first
    prompt = np.where(facts.prompted & (requests.prefill > 0), facts.last_piece, NEVER)
    for name, found in (
        ("begin", begin),
        ("first_decode", facts.tick_of_end(facts.first_token)),
        ("last_prefill", facts.tick_of_end(prompt)),
        ("finish", facts.finish),
        ("longest_gap", _longest_gap(facts)),
    ):
        yield from _where(getattr(run, name) != found, f"times: {name} is not that of the log", "request")


def _longest_gap(facts: _Facts) -> Ticks:
    return np.where(facts.complete, facts.decodes.longest, 0)


def _totals(facts: _Facts) -> Iterator[str]:
    run, log = facts.run, facts.log
    for name, found in (
        ("batches", len(log)),
        ("tokens", int(facts.tokens.sum())),
        ("busy", int(log.durations.sum())),
        ("last", int(facts.ends[-1]) if len(log) else 0),
    ):
        if getattr(run, name) != found:
            yield f"totals: {name} is {getattr(run, name)}, the log has {found}"


def _series(facts: _Facts) -> Iterator[str]:
    run, log, series = facts.run, facts.log, facts.run.series
    ticks = series.ticks
    ended = np.searchsorted(facts.ends, ticks, side="right")
    running = np.searchsorted(log.starts, ticks, side="right") > ended  # a batch that has started and not ended
    last_end, start = np.concatenate([[0], facts.ends])[ended], np.append(log.starts, 0)[ended]
    busy = np.concatenate([[0], np.cumsum(log.durations)])[ended] + np.where(running, ticks - start, 0)
    served = facts.first_batch[facts.first_batch != NEVER]
    seen = np.searchsorted(np.sort(facts.ends[served]), ticks, side="right")
    come = np.searchsorted(run.requests.arrival, ticks, side="right")
    for name, found in (
        ("batches", ended),
        ("busy", busy),
        ("backlog", run.backlog(ticks)),
        ("waiting", come - seen),
        ("decoding", facts.decoding(np.where(running, start, last_end))),
    ):
        yield from _where(getattr(series, name) != found, f"series: {name} is not that of the log", "point")


def _little(facts: _Facts) -> Iterator[str]:
    """Sum of the times present = integral of the number present, in whole ticks, up to the end of the run."""
    run = facts.run
    left = np.where(run.finish == NEVER, run.end, run.finish)
    times = _total(left - run.requests.arrival)
    ticks = np.unique(np.concatenate([run.requests.arrival, facts.finish[facts.finish != NEVER], [run.end]]))
    number = facts.present(ticks)[:-1]
    lasting = np.diff(ticks)
    area = 0  # exact, beyond 64 bits too
    for start in range(0, number.size, _PAGE // 16):
        part = slice(start, start + _PAGE // 16)
        area += int(np.dot(number[part].astype(object), lasting[part].astype(object)))
    if times != area:
        yield f"Little's law: the times present add up to {times} ticks, the number present to {area}"


def _total(values: Ticks) -> int:
    """Exact sum, beyond 64 bits too."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _full(facts: _Facts) -> Iterator[str]:
    """Demand at a start: prompt tokens left of those present, and one token of each that decodes."""
    log, requests = facts.log, facts.run.requests
    come = np.searchsorted(requests.arrival, log.starts, side="right")
    prompts = np.concatenate([[0], np.cumsum(requests.prefill)])[come]
    pieces = np.concatenate([[0], np.cumsum(log.piece_tokens)])[np.concatenate([[0], log.piece_end[:-1]])]
    demand = prompts - pieces[: len(log)] + facts.decoding(log.starts)
    full = np.minimum(facts.budget, demand)
    seats = np.diff(log.piece_end, prepend=0) + np.diff(log.decode_end, prepend=0)
    limit = facts.engine.b_max if facts.engine.k_max is None else facts.engine.k_max
    broken = (facts.tokens > full) | ((facts.tokens < full) & (seats < limit))
    yield from _where(broken, "full batches: fewer than min(budget, demand) tokens with a seat free")
