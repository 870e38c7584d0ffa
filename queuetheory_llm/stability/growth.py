"""A load below capacity that a rule does not carry: periodic arrivals under which the backlog grows."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import attrs

from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.state import Left, State
from queuetheory_llm.stability.exploration import feasible, visit_of

_SIZES: tuple[Left, ...] = ((1, 1), (2, 1), (1, 2), (2, 0), (0, 1), (3, 1))
_BUDGETS = (2, 3, 4)
_CYCLES = 60  # pattern repetitions in each third of a run


@attrs.frozen(kw_only=True)
class GrowthWitness:
    """A periodic arrival pattern below capacity under which the backlog grows.

    Every batch lasts one slot. ``pattern`` requests of ``size`` arrive at the successive slots of a cycle; ``load``
    is their tokens per slot over b_max, which full batches would serve. In the second and the last third of a run of
    ``slots`` slots the rule forms the same sequence of batches, each time with ``growth`` more tokens left.
    """

    b_max: int
    size: Left
    pattern: tuple[int, ...]
    growth: int
    slots: int

    @property
    def load(self) -> float:
        """Arriving tokens per slot over b_max."""
        return sum(self.pattern) * sum(self.size) / len(self.pattern) / self.b_max

    @property
    def period(self) -> int:
        """Slots of a third of the run, in which the backlog gains ``growth``."""
        return self.slots // 3

    @property
    def per_slot(self) -> Fraction:
        """Tokens of backlog gained a slot."""
        return Fraction(self.growth, self.period)

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.pattern))
        return (
            f"b_max {self.b_max}, one batch a slot: {numbers} requests of {self.size[0]}+{self.size[1]} tokens in "
            f"successive slots are a load of {self.load:.3g}, yet the batches repeat and the backlog grows by "
            f"{float(self.per_slot):.3g} tokens a slot"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "b_max": self.b_max,
            "size": list(self.size),
            "pattern": list(self.pattern),
            "load": self.load,
            "growth": self.growth,
            "slots": self.slots,
        }


def find_growth(scheduler: Scheduler) -> GrowthWitness | None:
    """A growing pattern by bounded exhaustive search, shortest cycle first."""
    for length in range(1, 5):
        for b_max in _BUDGETS:
            for size in feasible(scheduler, b_max, _SIZES):
                for pattern in combinations_with_replacement(range(3, -1, -1), length):
                    found = run_pattern(scheduler, b_max, size, pattern)
                    if found is not None:
                        return found
    return None


def run_pattern(scheduler: Scheduler, b_max: int, size: Left, pattern: tuple[int, ...]) -> GrowthWitness | None:
    """Run a pattern of load below 1; a witness when batches repeat and the backlog grows."""
    if sum(pattern) * sum(size) >= b_max * len(pattern) or not any(pattern):
        return None
    third = _CYCLES * len(pattern)
    state, backlog, shapes = State(), [0], []
    for slot in range(3 * third):
        state = state.joined([size] * pattern[slot % len(pattern)])
        batch = visit_of(scheduler, b_max, state).batch if state.left else None
        shapes.append((0, 0) if batch is None else (batch.prefill_tokens, len(batch.decode)))
        state = state if batch is None else state.after(batch)
        if (slot + 1) % third == 0:
            backlog.append(state.tokens)
    growth = backlog[3] - backlog[2]
    repeats = shapes[third : 2 * third] == shapes[2 * third :] and growth == backlog[2] - backlog[1]
    if growth <= 0 or not repeats:
        return None
    return GrowthWitness(b_max=b_max, size=size, pattern=pattern, growth=growth, slots=3 * third)
