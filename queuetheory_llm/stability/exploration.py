"""The states that small requests can reach on small engines, each with the batch a rule forms there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.policy import Batch, Policy, Scheduler
from queuetheory_llm.schedulers.state import Left, State

PRESENT = 3  # most requests present in an explored state
_BUDGETS = (1, 2, 3)
_SIZES: tuple[Left, ...] = ((1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (1, 2), (3, 1))
BOUNDS = f"b_max up to {_BUDGETS[-1]}, at most {PRESENT} requests present, prompts up to 3 tokens"


@attrs.frozen(kw_only=True)
class Witness:
    """A reachable state whose batch breaks a property.

    Attributes
    ----------
    b_max : int
    left : tuple of (prefill, decode)
        Tokens left of the requests present, oldest first.
    running : tuple of int
        Positions of the requests served before, in order of first service.
    prefill : tuple of (position, tokens)
    decode : tuple of position
        What the rule serves.
    demand : int
        D of the state; the batch could hold min(b_max, D).
    """

    b_max: int
    left: tuple[Left, ...]
    running: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...]
    decode: tuple[int, ...]
    demand: int

    @property
    def tokens(self) -> int:
        """b, the tokens of the batch."""
        return sum(tokens for _, tokens in self.prefill) + len(self.decode)

    def __str__(self) -> str:
        state = ", ".join(f"{p}+{d}" for p, d in self.left)
        return (
            f"b_max {self.b_max}, requests with {state} tokens left (prefill+decode): the batch serves "
            f"{self.tokens - len(self.decode)} prefill and {len(self.decode)} decode tokens, "
            f"demand is {self.demand}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "b_max": self.b_max,
            "state": [list(tokens) for tokens in self.left],
            "running": list(self.running),
            "batch": {"prefill": [list(part) for part in self.prefill], "decode": list(self.decode)},
            "demand": self.demand,
        }


@attrs.frozen
class Visit:
    """One explored state and the batch formed there."""

    b_max: int
    state: State
    batch: Batch
    demand: int

    def witness(self) -> Witness:
        """The visit as a witness."""
        return Witness(
            b_max=self.b_max,
            left=self.state.left,
            running=self.state.running,
            prefill=tuple(self.batch.prefill),
            decode=tuple(self.batch.decode),
            demand=self.demand,
        )


def explored_form(scheduler: Scheduler) -> Scheduler:
    """The rule as it is explored: token constants of a policy become 2 and 3, in their order.

    A policy compares tokens with budgets only, so small constants on small engines show what large ones do.
    """
    if not isinstance(scheduler, Policy):
        return scheduler
    own = {"target": scheduler.target, "threshold": scheduler.threshold}
    small = {value: 2 + rank for rank, value in enumerate(sorted({v for v in own.values() if v is not None}))}
    name = scheduler.name
    for field, value in own.items():
        if value is not None:
            flag = f"+{field}={value}"
            name = name.replace(flag, "") + f"+{field}={small[value]}"
    target, threshold = (None if value is None else small[value] for value in own.values())
    return attrs.evolve(scheduler, name=name, target=target, threshold=threshold)


def grids(scheduler: Scheduler) -> Iterator[tuple[int, tuple[Left, ...]]]:
    """Budgets to explore, with the request sizes the rule can run there."""
    constants = isinstance(scheduler, Policy) and (scheduler.target or scheduler.threshold)
    for b_max in (*_BUDGETS, 4) if constants else _BUDGETS:  # above the constants of `explored_form`
        yield b_max, feasible(scheduler, b_max, _SIZES)


def feasible(scheduler: Scheduler, b_max: int, sizes: Sequence[Left]) -> tuple[Left, ...]:
    """The sizes whose prompts the rule can run."""
    longest = scheduler.longest_prompt(b_max) if isinstance(scheduler, Policy) else None
    return tuple(size for size in sizes if longest is None or size[0] <= longest)


def arrivals(sizes: Sequence[Left], room: int) -> Iterator[tuple[Left, ...]]:
    """Every sequence of at most ``room`` requests of the sizes."""
    for count in range(room + 1):
        yield from product(sizes, repeat=count)


def visits(scheduler: Scheduler, b_max: int, sizes: Sequence[Left]) -> Iterator[Visit]:
    """Every state reachable with at most `PRESENT` requests present, whatever arrives."""
    queue = deque(State().joined(new) for new in arrivals(sizes, PRESENT) if new)
    seen = set(queue)
    while queue:
        visit = visit_of(scheduler, b_max, queue.popleft())
        yield visit
        for following in followers(visit, sizes):
            if following.left and following not in seen:
                seen.add(following)
                queue.append(following)


def visit_of(scheduler: Scheduler, b_max: int, state: State) -> Visit:
    """The batch a rule forms in a state.

    Raises
    ------
    InvalidInput
        If it is no batch of the state.
    """
    view = state.view(b_max)
    batch = scheduler.form(view)
    fault = _fault(state, batch, b_max)
    if fault:
        tokens = ", ".join(f"{p}+{d}" for p, d in state.left)
        raise InvalidInput(f"scheduler {scheduler.name}: {fault}; state: b_max {b_max}, requests with {tokens} left")
    return Visit(b_max, state, batch, view.demand)


def _fault(state: State, batch: object, b_max: int) -> str | None:
    """What keeps an answer of a foreign rule from being a batch of the state."""
    if not isinstance(batch, Batch):
        return f"form() returned {batch!r}, not a Batch"
    ready = {position: prefill for position, (prefill, _) in enumerate(state.left)}
    served = [*(position for position, _ in batch.prefill), *batch.decode]
    if len(set(served)) < len(served) or not set(served) <= set(ready):
        return f"it serves requests {served}, of which there are {len(ready)}, each at most once"
    if any(not isinstance(tokens, int) or not 1 <= tokens <= ready[position] for position, tokens in batch.prefill):
        return f"its prompt tokens {batch.prefill} are not between 1 and those left"
    if any(ready[position] for position in batch.decode):
        return f"it decodes {batch.decode}, with a prompt still to serve"
    return f"{batch.tokens} tokens are above the budget" if batch.tokens > b_max else None


def followers(visit: Visit, sizes: Sequence[Left]) -> Iterator[State]:
    """The states after the batch, for all that may arrive."""
    rest = visit.state.after(visit.batch)
    for new in arrivals(sizes, PRESENT - len(rest.left)):
        yield rest.joined(new)


def saturated(b_max: int, sizes: Sequence[Left]) -> Iterator[State]:
    """States of b_max requests: all alike, half prompts and half decodes, and the other way round."""
    half = b_max // 2
    for prefill, _ in sizes:
        prompts, decodes = [(prefill, 1)] * half, [(0, 1)] * (b_max - half)
        yield State(tuple([(prefill, 1)] * b_max))
        yield State((*prompts, *decodes), tuple(range(half, b_max)))
        yield State((*decodes, *prompts), tuple(range(b_max - half)))
