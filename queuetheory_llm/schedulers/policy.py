"""How a batch is formed: what a rule sees, what it returns, and the policy space the known rules live in.

A rule is *data*: the order of its passes over the requests and a few switches. `Policy.form` is the only place that
turns the data into a batch; the runner, the classifier and every analysis call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Protocol

import attrs

from queuetheory_llm.errors import InvalidInput


@attrs.define(slots=True)
class Batch:
    """Tokens to serve in one batch.

    Attributes
    ----------
    prefill : list of (request, tokens)
        Prompt tokens, in serving order.
    decode : list of request
        One token each, in serving order.
    """

    prefill: list[tuple[int, int]] = attrs.field(factory=list)
    decode: list[int] = attrs.field(factory=list)

    @property
    def prefill_tokens(self) -> int:
        """x, the number of prefill tokens."""
        return sum(tokens for _, tokens in self.prefill)

    @property
    def tokens(self) -> int:
        """b = x + y."""
        return self.prefill_tokens + len(self.decode)

    @property
    def requests(self) -> int:
        """Number of requests served, the slots the batch takes."""
        return len(self.prefill) + len(self.decode)


@attrs.define(slots=True)
class View:
    """What a rule may look at when a batch ends. Rules read it and never write it.

    Requests are numbered by arrival. Every unfinished request is in exactly one of ``prefilling`` and ``decoding``,
    and in exactly one of ``waiting`` and ``running``.

    Attributes
    ----------
    b_max : int
        Token budget.
    k_max : int or None
        Most requests in a batch; None is no limit.
    prefilling, decoding : sequence of request
        By phase, in order of arrival.
    waiting, running : sequence of request
        Not yet served at all, in order of arrival; served at least once, in order of first service (by arrival
        within a batch).
    prefill_left : indexable by request
        Prompt tokens still to serve.
    """

    b_max: int
    k_max: int | None
    prefilling: Sequence[int]
    decoding: Sequence[int]
    waiting: Sequence[int]
    running: Sequence[int]
    prefill_left: Sequence[int]

    @property
    def demand(self) -> int:
        """D: the most tokens one batch without limits could serve (Dai et al. 2025, eq. 8)."""
        left = self.prefill_left
        return sum(left[request] for request in self.prefilling) + len(self.decoding)

    @property
    def present(self) -> int:
        """Unfinished requests."""
        return len(self.prefilling) + len(self.decoding)


class Scheduler(Protocol):
    """Any rule: a `Policy`, or a hashable object of the user's own. It has no memory between batches."""

    @property
    def name(self) -> str:
        """How reports call the rule."""

    def __hash__(self) -> int:
        """Rules are values: analyses remember what they found of them."""

    def form(self, view: View) -> Batch:
        """The batch to run now; empty only when the rule has nothing it may serve."""


class Pass(Enum):
    """One sweep over the requests; a rule is a sequence of sweeps."""

    PREFILL = "prefill"
    """Prompts, oldest request first."""
    DECODE = "decode"
    """One token for every request past its prompt, oldest first."""
    RUNNING = "running"
    """Requests that hold a seat, in the order they took it: a decode token or the next piece of the prompt."""
    WAITING = "waiting"
    """Requests without a seat, oldest first."""


#: The orders of passes a rule may have.
_ORDERS = (
    (Pass.PREFILL, Pass.DECODE),
    (Pass.DECODE, Pass.PREFILL),
    # Whoever runs is served before anyone is admitted, so k_max caps those who run, not only those in the batch.
    (Pass.RUNNING, Pass.WAITING),
)


@attrs.frozen(kw_only=True)
class Policy:
    """A point of the policy space; also a `Scheduler`.

    Parameters
    ----------
    name : str
    rule : str
        The rule in one sentence.
    source : str
        The system and where its rule is described.
    passes : tuple of Pass
        Order in which requests are considered.
    mixed : bool
        Whether a batch may go on to the next pass after one that served something.
    chunks : bool
        Whether a prompt may be split to fill what is left of the budget. If not, prompts are taken whole and the
        first that does not fit ends the pass.
    target : int, optional
        The rule's own token budget below ``b_max``.
    threshold : int, optional
        Most prompt tokens of one request in one batch.
    """

    name: str
    rule: str
    source: str
    passes: tuple[Pass, ...]
    mixed: bool
    chunks: bool
    target: int | None = None
    threshold: int | None = None

    def __attrs_post_init__(self) -> None:
        """The passes know every request; a threshold splits prompts, so a rule that takes them whole has none."""
        if self.passes not in _ORDERS:
            raise InvalidInput(f"{self.name}: passes must be PREFILL and DECODE in either order, or RUNNING, WAITING")
        if self.threshold is not None and not self.chunks:
            raise InvalidInput(f"{self.name}: a threshold splits prompts; drop it or add +chunk")

    def budget(self, b_max: int) -> int:
        """Tokens the rule fills a batch to."""
        return b_max if self.target is None else min(b_max, self.target)

    def longest_prompt(self, b_max: int) -> int | None:
        """Longest prompt the rule can ever serve; None when it splits prompts."""
        return None if self.chunks else self.budget(b_max)

    def form(self, view: View) -> Batch:
        """Form the batch; see `Scheduler.form`."""
        room = _Room(self.budget(view.b_max), view.k_max)
        batch = Batch()
        for sweep in self.passes:
            _SWEEPS[sweep](self, view, room, batch)
            if not self.mixed and room.used:
                break
        return batch


class _Room:
    """What is left of a batch while it is formed."""

    __slots__ = ("seats", "tokens", "used")

    def __init__(self, tokens: int, seats: int | None) -> None:
        self.tokens = tokens
        self.seats = tokens if seats is None else min(seats, tokens)
        self.used = 0

    def take(self, tokens: int, requests: int = 1) -> None:
        self.tokens -= tokens
        self.seats -= requests
        self.used += tokens


def _sweep_decode(policy: Policy, view: View, room: _Room, batch: Batch) -> None:  # noqa: ARG001 - one signature
    served = list(islice(view.decoding, min(room.tokens, room.seats)))
    batch.decode.extend(served)
    room.take(len(served), len(served))


def _sweep_prefill(policy: Policy, view: View, room: _Room, batch: Batch) -> None:
    _serve(policy, view.prefilling, view, room, batch)


def _sweep_running(policy: Policy, view: View, room: _Room, batch: Batch) -> None:
    _serve(policy, view.running, view, room, batch)


def _sweep_waiting(policy: Policy, view: View, room: _Room, batch: Batch) -> None:
    _serve(policy, view.waiting, view, room, batch)


def _serve(policy: Policy, candidates: Iterable[int], view: View, room: _Room, batch: Batch) -> None:
    """Serve the candidates in turn: what each needs, as far as the room goes."""
    left, threshold = view.prefill_left, policy.threshold
    for request in candidates:
        if room.tokens <= 0 or room.seats <= 0:
            break
        need = left[request]
        if need == 0:
            batch.decode.append(request)
            room.take(1)
            continue
        if threshold is not None and need > threshold:
            need = threshold
        if need > room.tokens:
            if not policy.chunks:
                break
            need = room.tokens
        batch.prefill.append((request, need))
        room.take(need)


_SWEEPS: dict[Pass, Callable[[Policy, View, _Room, Batch], None]] = {
    Pass.PREFILL: _sweep_prefill,
    Pass.DECODE: _sweep_decode,
    Pass.RUNNING: _sweep_running,
    Pass.WAITING: _sweep_waiting,
}
