"""Whether the tasks that wait in a join are siblings of one fork, as far as rates and routes of classes say it.

Siblings that come one by one, by independent arrivals or by the toss of a coin, wait for ever longer: the numbers of
two of them differ by a null recurrent walk. A row of the routing matrix cannot tell a coin from a fork, so a fluid
model names the fork of each join; the rest is checked here, exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from queuetheory_llm.model.fluid_model import FluidModel


def fork_faults(model: FluidModel) -> Iterator[str]:
    """What is wrong with the joins of a model whose columns are known to fit together.

    From the fork on, every branch keeps exactly one task for each that is forked: nothing enters it but by the fork,
    every class in it sends each task on, to the branch alone, and it ends in the class of its sibling alone. A fork in
    a branch is joined in it. That a task gets to that end at all is for the traffic equations.
    """
    names = model.classes
    if len(model.forks) != len(model.joins):
        yield "forks needs one entry a join: the class that forks, and the class in which each branch begins"
        return
    waiting = [k for siblings, _ in model.joins for k in siblings]
    if len(set(waiting)) < len(waiting):
        yield f"{names[next(k for k in waiting if waiting.count(k) > 1)]} waits in more than one place of the joins"
    pairs = list(zip(model.joins, model.forks, strict=True))
    few = [names[to] for (siblings, to), (_, starts) in pairs if not len(starts) == len(siblings) > 1]
    if few:
        yield f"the join into {few[0]} needs two siblings or more, and a branch of the fork for each"
        return
    ways = _Ways(model=model)
    for (siblings, to), (fork, starts) in pairs:
        yield from ways.ends(siblings, to)
        yield from ways.shares(fork, starts)
    for (siblings, _), (fork, starts) in pairs:
        yield from ways.branches(siblings, fork, starts)


@attrs.frozen(kw_only=True)
class _Ways:
    """Where tasks go, and how many of them."""

    model: FluidModel

    @cached_property
    def waits(self) -> dict[int, tuple[int, ...]]:
        """The siblings with which a class waits."""
        return {k: siblings for siblings, _ in self.model.joins for k in siblings}

    @cached_property
    def moves(self) -> list[Fraction]:
        """How many tasks follow one of a class on average, those of a fork that is joined counted as one."""
        found = [sum((p for _, p in row), Fraction(0)) for row in self.model.routing]
        for fork, starts in self.model.forks:
            found[fork] -= (len(starts) - 1) * self.share(fork, starts[0])
        return found

    def share(self, source: int, to: int) -> Fraction:
        """P of a route."""
        return sum((p for target, p in self.model.routing[source] if target == to), Fraction(0))

    def ends(self, siblings: Sequence[int], to: int) -> Iterator[str]:
        """One task enters for n that wait."""
        for k in siblings:
            if self.model.routing[k] != ((to, Fraction(1, len(siblings))),):
                name, count = self.model.classes[k], len(siblings)
                yield f"{name} waits in a join of {count}; it sends 1/{count} of a task to it and nothing elsewhere"

    def shares(self, fork: int, starts: Sequence[int]) -> Iterator[str]:
        """A fork sends one task to each of its branches, with one probability."""
        if len({self.share(fork, start) for start in starts}) > 1 or not 0 < self.share(fork, starts[0]) <= 1:
            names = ", ".join(self.model.classes[start] for start in starts)
            yield f"{self.model.classes[fork]} does not fork into {names}: it sends there with several probabilities"

    def branches(self, siblings: Sequence[int], fork: int, starts: Sequence[int]) -> Iterator[str]:
        """Each branch of a fork keeps its task to the end, where it waits for those of the others."""
        names, inside = self.model.classes, set[int]()
        for start, last in zip(starts, siblings, strict=True):
            branch = self.branch(start, siblings)
            if branch.intersection(siblings) != {last}:
                yield f"the branch from {names[start]} does not end in {names[last]} alone"
            if not inside.isdisjoint(branch):
                yield f"the branches of {names[fork]} meet at {names[min(inside & branch)]}"
            inside |= branch
            for k in sorted(branch):
                if self.is_entered(k, branch, fork if k == start else None):
                    yield f"{names[k]} is in a branch of {names[fork]}, and tasks enter it from elsewhere"
                if k != last and not self.is_kept(k, branch):
                    yield f"{names[k]} is in a branch of {names[fork]}, and a task may leave there or become several"

    def branch(self, start: int, siblings: Collection[int]) -> set[int]:
        """Classes that a task may be in from the start of a branch until it waits."""
        reached, stack = {start}, [start]
        while stack:
            k = stack.pop()
            fresh = () if k in siblings else {to for to, _ in self.model.routing[k]} - reached
            reached.update(fresh)
            stack.extend(fresh)
        return reached

    def is_entered(self, k: int, branch: Collection[int], fork: int | None) -> bool:
        """Whether tasks come to a class of a branch from outside it, not counting those from the fork."""
        return self.model.arrival[k] > 0 or any(
            source not in branch and source != fork for source, _ in self.model.predecessors[k]
        )

    def is_kept(self, k: int, branch: set[int]) -> bool:
        """Whether a task of a class becomes one task in the branch, after a join of its own siblings at the latest."""
        return branch.issuperset(self.waits[k]) if k in self.waits else self.moves[k] == 1
