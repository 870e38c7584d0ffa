"""Whether every join has its fork: each branch of one fork must end, whatever happens, in its own class of the join."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from queuetheory_llm.model.network import Join, Network, Route


def join_faults(network: Network) -> Iterator[str]:
    """One line for each join that no fork feeds; names and numbers of siblings have been checked before."""
    ways = _Ways(network=network)
    forks = [index for index, route in enumerate(network.routes) if route.is_fork]
    for number, join in enumerate(network.joins):
        fitting = [fork for fork in forks if len(network.routes[fork].to) == len(join.classes)]
        if not fitting:
            yield f"join[{number}]: no fork into {len(join.classes)} branches; add a [[route]] whose to lists them"
        elif not any(ways.fits(fork, number) for fork in fitting):
            reason = min((list(ways.mismatches(fork, number)) for fork in fitting), key=len)[0]
            yield f"join[{number}]: {reason}; let every branch of one fork end in a class of its own of this join"


def forks_of_joins(network: Network) -> Iterator[tuple[Route, tuple[str, ...]]]:
    """For each join of a network without faults its fork, and the class in which the branch of each sibling begins."""
    ways = _Ways(network=network)
    for number, join in enumerate(network.joins):
        fork = next(index for index, route in enumerate(network.routes) if route.is_fork and ways.fits(index, number))
        starts = {name: start for start in network.routes[fork].to for name in ways.branch(start, number)}
        yield network.routes[fork], tuple(starts[name] for name in join.classes)


@attrs.frozen(kw_only=True)
class _Ways:
    """Where tasks go in a network, looked up by class."""

    network: Network
    _known: dict[tuple[int, int], bool] = attrs.field(factory=dict)

    @cached_property
    def routes(self) -> dict[str, list[tuple[int, Route]]]:
        """Routes from each class with their numbers."""
        found: dict[str, list[tuple[int, Route]]] = {}
        for index, route in enumerate(self.network.routes):
            found.setdefault(route.source, []).append((index, route))
        return found

    @cached_property
    def waits(self) -> dict[str, int]:
        """The join in which a class waits."""
        return {name: number for number, join in enumerate(self.network.joins) for name in join.classes}

    def fits(self, fork: int, join: int) -> bool:
        """Whether a join is that of a fork; False while that is being asked: branches that run in a circle do not."""
        if (fork, join) not in self._known:
            self._known[fork, join] = False
            self._known[fork, join] = next(self.mismatches(fork, join), None) is None
        return self._known[fork, join]

    def branch(self, start: str, join: int) -> set[str]:
        """Classes a branch can be in up to a join; a join within is passed."""
        reached, stack = {start}, [start]
        while stack:
            name = stack.pop()
            inner = self.waits.get(name)
            if inner == join:
                continue
            follow = [to for _, route in self.routes.get(name, ()) for to in route.to]
            if inner is not None:
                follow = [self.network.joins[inner].to]
            stack += dict.fromkeys(to for to in follow if to not in reached)
            reached |= set(follow)
        return reached

    def mismatches(self, fork: int, join: int) -> Iterator[str]:
        """Why the branches of a fork do not end in the classes of a join, one each, and nowhere else."""
        route, target = self.network.routes[fork], self.network.joins[join]
        ends: list[str] = []
        inside: set[str] = set()
        for start in route.to:
            reached = self.branch(start, join)
            yield from self._strays(start, reached, fork, join)
            found = [name for name in target.classes if name in reached]
            if len(found) != 1:
                yield f"the branch of {start!r} ends in {'several classes' if found else 'no class'} of it"
            if inside & reached:
                yield f"the branches of {route.source!r} meet at {min(inside & reached)!r} before the join"
            inside |= reached
            ends += found
        if sorted(ends) != sorted(target.classes):
            yield f"the branches of {route.source!r} do not end in each of its classes"
        yield from self._intruders(route, target, inside)

    def _strays(self, start: str, reached: set[str], fork: int, join: int) -> Iterator[str]:
        """Where a branch waits for others, leaves or splits before it is joined."""
        passed = [name for name in sorted(reached) if self.waits.get(name) != join]
        for name in passed:
            inner = self.waits.get(name)
            if inner is not None and not reached.issuperset(self.network.joins[inner].classes):
                yield f"the branch of {start!r} waits at {name!r} in join[{inner}] for a task of another branch"
        for name in passed:
            onward = self.routes.get(name, [])
            if name not in self.waits and sum(route.probability for _, route in onward) < 1:
                yield f"the branch of {start!r} can leave at {name!r} without joining"
            for number, route in onward:
                if route.is_fork and (number == fork or not self._closed(number, reached)):
                    yield f"the branch of {start!r} forks at {name!r} and is not joined again"

    def _closed(self, fork: int, reached: set[str]) -> bool:
        """Whether a fork in a branch is joined again in it."""
        waiting = {self.waits[name] for name in reached if name in self.waits}
        return any(
            self.fits(fork, inner) for inner in sorted(waiting) if reached.issuperset(self.network.joins[inner].classes)
        )

    def _intruders(self, fork: Route, target: Join, inside: set[str]) -> Iterator[str]:
        """What comes into a branch other than from its fork."""
        for route in self.network.routes:
            if route is not fork and route.source not in inside and not inside.isdisjoint(route.to):
                yield f"{route.source!r} enters a branch of {fork.source!r} from outside"
        for join in self.network.joins:
            if join.to in inside and (join is target or not inside.issuperset(join.classes)):
                yield f"the joined task enters a branch of {fork.source!r} at {join.to!r} and has no sibling there"
        for come in self.network.arrivals:
            if come.task_class in inside:
                yield f"{come.task_class!r} in a branch of {fork.source!r} has arrivals from outside"
