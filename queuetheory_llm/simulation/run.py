"""What happened in a run, whichever runner made it: times per request, a time series, a log of batches on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.policy import Batch
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.requests import Requests, Ticks, read_only

#: Told the share of the run that is done, in [0, 1].
Progress = Callable[[float], None]

#: The tick of what never happened.
NEVER = -1

#: Equal intervals of the time series of a run, unless it is told which ticks to watch.
INTERVALS = 4000


@attrs.frozen(kw_only=True, eq=False)
class Series:
    """The state of the engine at chosen ticks: after the last boundary at or before each, with what has arrived by it.

    Attributes
    ----------
    ticks : int64 array of shape (g,)
        Increasing.
    backlog : int64 array of shape (g,)
        Tokens that have arrived and are not credited.
    waiting : int64 array of shape (g,)
        Requests that have arrived and have not been served at all.
    decoding : int64 array of shape (g,)
        Requests past their prompt at that boundary.
    batches : int64 array of shape (g,)
        Batches that have ended.
    busy : int64 array of shape (g,)
        Ticks of [0, tick] in which a batch ran.
    """

    ticks: Ticks = attrs.field(converter=read_only)
    backlog: Ticks = attrs.field(converter=read_only)
    waiting: Ticks = attrs.field(converter=read_only)
    decoding: Ticks = attrs.field(converter=read_only)
    batches: Ticks = attrs.field(converter=read_only)
    busy: Ticks = attrs.field(converter=read_only)

    @property
    def span(self) -> int:
        """Ticks from the first to the last."""
        return int(self.ticks[-1] - self.ticks[0])

    @property
    def slope(self) -> float:
        """Tokens per tick by which the backlog grows from the first tick to the last."""
        return float(self.backlog[-1] - self.backlog[0]) / self.span

    def since(self, tick: int) -> Series:
        """The part at or after ``tick``."""
        start = int(np.searchsorted(self.ticks, tick))
        return Series(**{field: getattr(self, field)[start:] for field in attrs.fields_dict(Series)})

    @classmethod
    def of(cls, requests: Requests, ticks: Ticks, seen: Ticks) -> Series:
        """From what a runner notes: shape (5, g), rows tokens credited, requests started, decoding, batches, busy."""
        come = np.searchsorted(requests.arrival, ticks, side="right")
        arrived = np.concatenate([[0], np.cumsum(requests.work)])
        return cls(
            ticks=ticks,
            backlog=arrived[come] - seen[0],
            waiting=come - seen[1],
            decoding=seen[2],
            batches=seen[3],
            busy=seen[4],
        )


@attrs.frozen(kw_only=True, eq=False)
class BatchLog:
    """Every batch of a run, in arrays: batch i holds entries ``end[i-1]:end[i]`` of the flat arrays.

    Attributes
    ----------
    starts, durations : int64 arrays of shape (batches,)
        Ticks.
    piece_request, piece_tokens : int64 arrays of shape (pieces,)
        Prompt tokens in serving order.
    piece_end : int64 array of shape (batches,)
    decode_request : int64 array of shape (decode tokens,)
        One token each, in serving order.
    decode_end : int64 array of shape (batches,)
    """

    starts: Ticks = attrs.field(converter=read_only)
    durations: Ticks = attrs.field(converter=read_only)
    piece_request: Ticks = attrs.field(converter=read_only)
    piece_tokens: Ticks = attrs.field(converter=read_only)
    piece_end: Ticks = attrs.field(converter=read_only)
    decode_request: Ticks = attrs.field(converter=read_only)
    decode_end: Ticks = attrs.field(converter=read_only)

    @classmethod
    def of(cls, starts: Sequence[int], durations: Sequence[int], batches: Sequence[Batch]) -> BatchLog:
        """From batches as a rule forms them."""
        pieces = list(chain.from_iterable(batch.prefill for batch in batches))
        return cls(
            starts=starts,
            durations=durations,
            piece_request=[request for request, _ in pieces],
            piece_tokens=[tokens for _, tokens in pieces],
            piece_end=np.cumsum([len(batch.prefill) for batch in batches], dtype=np.int64),
            decode_request=list(chain.from_iterable(batch.decode for batch in batches)),
            decode_end=np.cumsum([len(batch.decode) for batch in batches], dtype=np.int64),
        )

    def __len__(self) -> int:
        return int(self.starts.size)

    def __getitem__(self, index: int) -> Batch:
        """Batch ``index``, counted from 0."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        pieces = slice(int(self.piece_end[index - 1]) if index else 0, int(self.piece_end[index]))
        decodes = slice(int(self.decode_end[index - 1]) if index else 0, int(self.decode_end[index]))
        return Batch(
            list(zip(self.piece_request[pieces].tolist(), self.piece_tokens[pieces].tolist(), strict=True)),
            self.decode_request[decodes].tolist(),
        )

    @property
    def ends(self) -> Ticks:
        """Ticks of the batch boundaries after crediting, shape (batches,)."""
        return self.starts + self.durations

    @property
    def tokens(self) -> Ticks:
        """Tokens of each batch, shape (batches,)."""
        served = np.concatenate([[0], np.cumsum(self.piece_tokens)])[np.concatenate([[0], self.piece_end])]
        return np.asarray(np.diff(served) + np.diff(self.decode_end, prepend=0), dtype=np.int64)


@attrs.frozen(kw_only=True, eq=False)
class Run:
    """What happened, on the ticks of ``clock``; every array is read-only.

    Attributes
    ----------
    requests : Requests
        Those that arrived, n of them.
    until : int or None
        No batch starts at or after this tick; None when the run went on until every request was finished.
    begin : int64 array of shape (n,)
        Start of the batch with the request's first token of any kind; `NEVER` if there was none.
    first_decode : int64 array of shape (n,)
        Tick at the end of the batch with its first decode token; `NEVER` if there was none.
    last_prefill : int64 array of shape (n,)
        Tick at the end of the batch with its last prompt token; `NEVER` if there was none.
    finish : int64 array of shape (n,)
        Tick at which its last token was credited; `NEVER` if unfinished.
    longest_gap : int64 array of shape (n,)
        Most ticks between two decode tokens of a finished request that follow each other; 0 with fewer than two.
    series : Series
    batches, tokens, busy : int
        Number of batches, tokens served, ticks with a batch running.
    last : int
        End of the last batch; 0 without any.
    log : BatchLog or None
        What was in each batch, when it was asked for.
    """

    clock: Clock
    requests: Requests
    until: int | None
    begin: Ticks = attrs.field(converter=read_only)
    first_decode: Ticks = attrs.field(converter=read_only)
    last_prefill: Ticks = attrs.field(converter=read_only)
    finish: Ticks = attrs.field(converter=read_only)
    longest_gap: Ticks = attrs.field(converter=read_only)
    series: Series
    batches: int
    tokens: int
    busy: int
    last: int
    log: BatchLog | None = None

    @property
    def end(self) -> int:
        """Last tick of the run: the end of the last batch, or ``until`` if that is later."""
        return max(self.last, self.until or 0)

    @property
    def finished(self) -> int:
        """Number of finished requests."""
        return int(np.count_nonzero(self.finish != NEVER))

    @property
    def mean_batch(self) -> float:
        """Mean duration of a batch in ticks; nan without any."""
        return self.busy / self.batches if self.batches else float("nan")

    def require_log(self) -> BatchLog:
        """The log of batches.

        Raises
        ------
        InvalidInput
            If the run kept none.
        """
        if self.log is None:
            raise InvalidInput("batch log: the run kept none; run it with log=True")
        return self.log

    def backlog(self, ticks: Ticks) -> Ticks:
        """Tokens that have arrived and are not credited, at each of ``ticks``; same shape; needs the log of batches.

        Arrivals at the tick count, and so do the credits of a batch that ends there.
        """
        log = self.require_log()
        arrived = np.concatenate([[0], np.cumsum(self.requests.work)])
        served = np.concatenate([[0], np.cumsum(log.tokens)])
        come = np.searchsorted(self.requests.arrival, ticks, side="right")
        done = np.searchsorted(log.ends, ticks, side="right")
        return np.asarray(arrived[come] - served[done], dtype=np.int64)

    def log_lines(self) -> Iterator[dict[str, Any]]:
        """One object a batch: start and seconds, tokens, prefill [[request, tokens], ...], decode [request, ...]."""
        log = self.require_log()
        for index, (start, duration) in enumerate(zip(log.starts.tolist(), log.durations.tolist(), strict=True)):
            batch = log[index]
            yield {
                "start": self.clock.seconds(start),
                "seconds": self.clock.seconds(duration),
                "tokens": batch.tokens,
                "prefill": [list(part) for part in batch.prefill],
                "decode": batch.decode,
            }


def span(requests: Requests, until: int | None) -> tuple[int, int]:
    """Ticks in which requests arrive: [0, until], or from the first to the last arrival without ``until``."""
    if until is not None:
        return 0, until
    arrival = requests.arrival
    return (int(arrival[0]), int(arrival[-1])) if arrival.size else (0, 0)


def watched(requests: Requests, until: int | None) -> Ticks:
    """The ticks of the default time series: `INTERVALS` equal parts of the span of arrivals, fewer if ticks lack."""
    first, last = span(requests, until)
    whole, rest = divmod(last - first, INTERVALS)
    steps = np.arange(INTERVALS + 1, dtype=np.int64)
    return np.unique(first + steps * whole + steps * rest // INTERVALS)
