"""The stages of a workflow as a series-parallel plan with loops.

The precedence of the stages is a partial order. It is series-parallel exactly when it can be taken apart again and
again: its comparability graph falls into components (they run in parallel), or the complement of that graph does (they
run one after the other); otherwise it contains an N, four stages a < c, b < c, b < d without other order among them
(Valdes, Tarjan, Lawler 1982). A retry wraps consecutive parts of a series in a loop. Series-parallel plans are what
forks and joins of a network can say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from queuetheory_llm.model.workflow import Workflow


@attrs.frozen
class Plan:
    """A part of a plan: a stage, parts in series or in parallel, or a part that is repeated.

    Attributes
    ----------
    kind : {"stage", "series", "parallel", "loop"}
    parts : tuple of Plan
        One of a loop, none of a stage.
    stage : int or None
        Of a stage, its number.
    again : Fraction
        Of a loop, the probability of one more pass.
    retry : int or None
        Of a loop, the number of its retry.
    chance : Fraction
        Probability that a stage is run when the query comes to it; of a loop around a single stage, that it is entered,
        and the stage in it then has chance 1. Every other part has chance 1.
    """

    kind: str
    parts: tuple[Plan, ...] = ()
    stage: int | None = None
    again: Fraction = Fraction(0)
    retry: int | None = None
    chance: Fraction = Fraction(1)

    def stages(self) -> Iterator[int]:
        """The stages in it, in an order in which they can run."""
        if self.stage is not None:
            yield self.stage
        for part in self.parts:
            yield from part.stages()

    @property
    def depth(self) -> int:
        """Levels of parts within parts; 0 of a stage. Not found recursively: it says whether the rest can be."""
        levels, level = 0, self.parts
        while level:
            levels, level = levels + 1, tuple(inner for part in level for inner in part.parts)
        return levels

    def runs(self, count: int) -> list[Fraction]:
        """Expected number of times that each of ``count`` stages is run in a query.

        A loop is passed 1/(1 - again) times when it is entered; all chances are independent.
        """
        found = [Fraction(0)] * count
        self._add_runs(found, Fraction(1))
        return found

    def _add_runs(self, found: list[Fraction], times: Fraction) -> None:
        inside = times * self.chance / (1 - self.again)
        if self.stage is not None:
            found[self.stage] += inside
        for part in self.parts:
            part._add_runs(found, inside)

    def length(self, seconds: Sequence[Fraction]) -> Fraction:
        """Expected seconds of the part, ``seconds`` a run of each stage.

        Of parallel parts it takes the longest expectation, which is at most the expectation of the longest: exact where
        nothing random is in parallel, a lower bound elsewhere.
        """
        if self.stage is not None:
            return self.chance * seconds[self.stage]
        lengths = [part.length(seconds) for part in self.parts]
        total = max(lengths) if self.kind == "parallel" else sum(lengths, Fraction(0))
        return self.chance * total / (1 - self.again)

    def seconds_after(self, seconds: Sequence[Fraction]) -> list[Fraction]:
        """Expected seconds from the end of a run of each stage to that of the query, ``seconds`` a run of each stage.

        Of parallel parts still to come the longest expectation, as in `length`; parallel parts that are under way
        beside the stage are not waited for. A loop counts the passes still to be expected.
        """
        found = [Fraction(0)] * len(seconds)
        self._add_after(seconds, Fraction(0), found)
        return found

    def _add_after(self, seconds: Sequence[Fraction], rest: Fraction, found: list[Fraction]) -> None:
        if self.stage is not None:
            found[self.stage] = rest
        if self.kind == "loop":  # once it is entered, its chance is past
            rest = rest + self.again * self.length(seconds) / self.chance
        for part in reversed(self.parts):
            part._add_after(seconds, rest, found)
            if self.kind == "series":
                rest += part.length(seconds)


@attrs.frozen
class Crossing:
    """Four stages of an N, by number: a < c, b < c and b < d, and no other order among them."""

    a: int
    b: int
    c: int
    d: int


def plan_of(workflow: Workflow) -> Plan:
    """The plan of a workflow without faults."""
    plan = order_plan(workflow.before)
    assert isinstance(plan, Plan)
    segments, _ = segments_of(plan, _ends(workflow))
    chances = [each.chance for each in workflow.stages]
    return _Wrapping(segments, [each.probability for each in workflow.retries], chances).of(plan, ())


def plan_faults(workflow: Workflow) -> Iterator[tuple[str, str]]:
    """(key path, what) of an order that is not series-parallel, or of retries that are no loops of the plan."""
    names = [each.name for each in workflow.stages]
    plan = order_plan(workflow.before)
    if isinstance(plan, Crossing):
        a, b, c, d = (names[number] for number in (plan.a, plan.b, plan.c, plan.d))
        yield (
            f"stage[{plan.c}].after",
            f"{c!r} comes after {a!r} and {b!r}, and {d!r} after {b!r} without {a!r}: no series and parallel parts "
            f"make this; let {d!r} come after {a!r} too, or {c!r} not after one of the two",
        )
        return
    segments, faults = segments_of(plan, _ends(workflow))
    yield from ((f"retry[{number}]", what) for number, what in faults)
    yield from ((f"retry[{number}]", what) for number, what in _crossed(segments))


@lru_cache(maxsize=128)
def order_plan(before: tuple[tuple[int, ...], ...]) -> Plan | Crossing:
    """The plan of a partial order, without loops; a `Crossing` if it is not series-parallel.

    Kept: a sweep makes many workflows of one order.

    Parameters
    ----------
    before : tuple of tuples of int
        The stages that each stage comes after, all of smaller number; at least one stage.
    """
    import networkx as nx

    order: Any = nx.DiGraph()
    order.add_nodes_from(range(len(before)))
    order.add_edges_from((i, j) for j, row in enumerate(before) for i in row)
    return _taken_apart(nx.transitive_closure_dag(order).to_undirected())


def _taken_apart(graph: Any) -> Plan | Crossing:
    """The plan of a comparability graph whose vertices are numbered along the order."""
    if len(graph) == 1:
        return Plan("stage", stage=next(iter(graph)))
    import networkx as nx

    for kind, split in (("parallel", graph), ("series", nx.complement(graph))):
        groups = sorted(nx.connected_components(split), key=min)  # of a series: along the order
        if len(groups) == 1:
            continue
        parts = []
        for group in groups:
            part = _taken_apart(graph.subgraph(group).copy())
            if isinstance(part, Crossing):
                return part
            parts.append(part)
        return Plan(kind, tuple(parts))
    return _crossing(graph)


def _crossing(graph: Any) -> Crossing:
    """The first N of a graph that does not fall apart.

    Such a graph has an induced path of four vertices (Seinsche 1974), a - c - b - d say, with b < c in the middle; then
    a < c, for a > c would be above b, and likewise d > b.
    """
    for b, c in sorted(tuple(sorted(edge)) for edge in graph.edges):
        near_b, near_c = set(graph[b]), set(graph[c])
        for a in sorted(near_c - near_b - {b}):
            for d in sorted(near_b - near_c - set(graph[a]) - {c}):
                return Crossing(a, b, c, d)
    raise AssertionError("a graph that does not fall apart has an induced path of four vertices")


_Path = tuple[int, ...]


@attrs.frozen
class Segment:
    """What a retry repeats: parts ``first`` to ``last`` of the series at ``path``, or the single stage there (0, 0)."""

    retry: int
    path: _Path
    first: int
    last: int

    def holds(self, other: Segment) -> bool:
        """Whether the other, of the same series, lies in it."""
        return self.first <= other.first and other.last <= self.last


def _ends(workflow: Workflow) -> list[tuple[int, int]]:
    """(to, source) of each retry, by number."""
    number = {each.name: j for j, each in enumerate(workflow.stages)}
    return [(number[each.to], number[each.source]) for each in workflow.retries]


def segments_of(plan: Plan, ends: Sequence[tuple[int, int]]) -> tuple[list[Segment], list[tuple[int, str]]]:
    """The segments that retries (to, source) repeat, and (retry, why not) of those that repeat none."""
    home = dict(_homes(plan, ()))
    found, faults = [], []
    for retry, (to, source) in enumerate(ends):
        (path, first), (other, last) = home[to], home[source]
        if path != other:
            faults.append(
                (
                    retry,
                    "the stages from one to the other are no part of one series; go back to a stage of "
                    "the same branch, or before the fork from behind the join",
                )
            )
        elif first > last:
            faults.append((retry, "goes forward; a retry goes back to an earlier stage, swap from and to"))
        else:
            found.append(Segment(retry, path, first, last))
    return found, faults


def _homes(plan: Plan, path: _Path) -> Iterator[tuple[int, tuple[_Path, int]]]:
    """Each stage with the series that it is a part of and its place there; a stage in no series is one by itself."""
    if plan.stage is not None:
        yield plan.stage, (path, 0)
    for place, part in enumerate(plan.parts):
        if plan.kind == "series" and part.stage is not None:
            yield part.stage, (path, place)
        else:
            yield from _homes(part, (*path, place))


def _crossed(segments: Sequence[Segment]) -> Iterator[tuple[int, str]]:
    """(retry, what) of segments that are equal to an earlier one, or overlap it without nesting."""
    for place, each in enumerate(segments):
        for other in segments[:place]:
            if each.path != other.path or each.last < other.first or other.last < each.first:
                continue
            if each.holds(other) and other.holds(each):
                yield each.retry, f"repeats the same stages as retry[{other.retry}]; make one of the two"
            elif not each.holds(other) and not other.holds(each):
                yield (
                    each.retry,
                    f"overlaps retry[{other.retry}] in part; let one of them hold the other, or keep apart",
                )


@attrs.frozen
class _Wrapping:
    """Loops put around parts of a plan, and the chances of its stages into it."""

    segments: Sequence[Segment]
    again: Sequence[Fraction]
    chances: Sequence[Fraction]

    def of(self, plan: Plan, path: _Path) -> Plan:
        """The part at ``path`` with its loops."""
        here = [each for each in self.segments if each.path == path]
        if plan.stage is not None:
            return self._joined(self._nested([self._stage(plan)], 0, here))
        parts = [
            self._stage(part) if plan.kind == "series" and part.stage is not None else self.of(part, (*path, place))
            for place, part in enumerate(plan.parts)
        ]
        return self._joined(self._nested(parts, 0, here)) if plan.kind == "series" else Plan(plan.kind, tuple(parts))

    def _stage(self, plan: Plan) -> Plan:
        assert plan.stage is not None
        return attrs.evolve(plan, chance=self.chances[plan.stage])

    def _nested(self, parts: list[Plan], offset: int, segments: Sequence[Segment]) -> list[Plan]:
        """Consecutive parts of a series, the first at place ``offset`` there, with the loops of these segments."""
        found: list[Plan] = []
        place = offset
        while place < offset + len(parts):
            outer = max((each for each in segments if each.first == place), key=lambda each: each.last, default=None)
            if outer is None:
                found.append(parts[place - offset])
                place += 1
                continue
            inner = [each for each in segments if each is not outer and outer.holds(each)]
            body = self._nested(parts[place - offset : outer.last + 1 - offset], place, inner)
            found.append(self._loop(self._joined(body), outer.retry))
            place = outer.last + 1
        return found

    def _loop(self, body: Plan, retry: int) -> Plan:
        """A loop; the chance of a single stage is that of entering it."""
        inside = attrs.evolve(body, chance=Fraction(1)) if body.stage is not None else body
        return Plan("loop", (inside,), again=self.again[retry], retry=retry, chance=body.chance)

    @staticmethod
    def _joined(parts: list[Plan]) -> Plan:
        return parts[0] if len(parts) == 1 else Plan("series", tuple(parts))
