"""What kind of rule a scheduler is, found from the batches it forms and never from its name.

*Work-conserving*: every batch has b = min(b_max, D) tokens (Dai et al. 2025, eqs. 8-9). *K-FCFS*: per phase and over
its whole stay, a request is overtaken by at most K later ones of that phase; it is overtaken in a batch that gives a
later request a token of the phase in which it is ready and gets none.

Both are checked on every state that small requests can reach on small engines; a failure comes with its witness.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise, product
from typing import Any, ClassVar

import attrs

from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Batch, Policy, Scheduler
from queuetheory_llm.schedulers.registry import to_scheduler
from queuetheory_llm.schedulers.state import Left, State

_PRESENT = 3  # most requests present in an explored state
_BUDGETS = (1, 2, 3)
_SIZES: tuple[Left, ...] = ((1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (1, 2), (3, 1))


@attrs.frozen(kw_only=True)
class Witness:
    """A reachable state whose batch breaks a property.

    Attributes
    ----------
    b_max : int
    left : tuple of (prefill, decode)
        Tokens left of the requests present, oldest first.
    batch : Batch
        What the rule forms.
    demand : int
        D of the state; the batch could hold min(b_max, D).
    """

    b_max: int
    left: tuple[Left, ...]
    batch: Batch
    demand: int

    def __str__(self) -> str:
        state = ", ".join(f"{p}+{d}" for p, d in self.left)
        return (
            f"b_max {self.b_max}, requests with {state} tokens left (prefill+decode): the batch serves "
            f"{self.batch.prefill_tokens} prefill and {len(self.batch.decode)} decode tokens, demand is {self.demand}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "b_max": self.b_max,
            "state": [list(tokens) for tokens in self.left],
            "batch": {"prefill": [list(p) for p in self.batch.prefill], "decode": list(self.batch.decode)},
            "demand": self.demand,
        }


@attrs.frozen(kw_only=True)
class GrowthWitness:
    """A periodic arrival pattern below capacity under which the backlog grows for ever.

    Every batch lasts one slot. ``pattern`` requests of ``size`` arrive at the slots of a period; ``load`` tokens a
    slot arrive while full batches serve b_max > load. ``growth`` tokens are added in ``period`` slots, each time the
    pattern of batches repeats.
    """

    b_max: int
    size: Left
    pattern: tuple[int, ...]
    growth: int
    period: int

    @property
    def load(self) -> float:
        """Arriving tokens per slot over b_max."""
        return sum(self.pattern) * sum(self.size) / len(self.pattern) / self.b_max

    def __str__(self) -> str:
        numbers, rate = ", ".join(map(str, self.pattern)), Fraction(self.growth, self.period)
        return (
            f"b_max {self.b_max}, one batch a slot: {numbers} requests of {self.size[0]}+{self.size[1]} tokens in "
            f"successive slots are a load of {self.load:.3g}, yet the backlog grows by {rate.numerator} "
            f"tokens every {rate.denominator} slots"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "b_max": self.b_max,
            "size": list(self.size),
            "pattern": list(self.pattern),
            "load": self.load,
            "growth": self.growth,
            "period": self.period,
        }


@attrs.frozen(kw_only=True)
class Classification(Result):
    """What the batches of a rule show.

    Attributes
    ----------
    scheduler : str
    work_conserving : bool
    overtaken : int or None
        K of K-FCFS within the search; None when a request can be overtaken without end.
    fills : bool
        Whether every batch is full once b_max requests are present, which is what stability up to F needs.
    states : int
        States explored.
    idle_witness, overtaking_witness : Witness or None
        A state that breaks work conservation; one that overtakes for ever.
    growth_witness : GrowthWitness or None
        A load below capacity that the rule does not carry; looked for only where no theorem applies.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.classification:draw_classification"
    scheduler: str
    work_conserving: bool
    overtaken: int | None
    fills: bool
    states: int
    idle_witness: Witness | None = None
    overtaking_witness: Witness | None = None
    growth_witness: GrowthWitness | None = None

    @property
    def throughput_optimal(self) -> bool | None:
        """On one engine without k_max; None when neither a theorem nor a counterexample was found."""
        if self.fills and self.overtaken is not None:
            return True
        return False if self.growth_witness is not None else None

    @property
    def reason(self) -> str:
        """The ground of `throughput_optimal`, one sentence."""
        if self.throughput_optimal and self.work_conserving:
            return f"work-conserving and {self.overtaken}-FCFS: Theorem 2 of arXiv 2504.07347"
        if self.throughput_optimal:
            return (
                f"{self.overtaken}-FCFS, and every batch is full once b_max requests are present: drift of the backlog"
            )
        if self.growth_witness is not None:
            return str(self.growth_witness)
        return "neither a theorem applies nor was a growing backlog found"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        witnesses = {
            "work_conserving": self.idle_witness,
            "k_fcfs": self.overtaking_witness,
            "throughput_optimal": self.growth_witness,
        }
        return {
            "scheduler": self.scheduler,
            "work_conserving": self.work_conserving,
            "k_fcfs": self.overtaken,
            "throughput_optimal": self.throughput_optimal,
            "reason": self.reason,
            "states": self.states,
            "witnesses": {key: w.to_dict() for key, w in witnesses.items() if w is not None},
        }


def classify(rule: Scheduler | str) -> Classification:
    """Explore the small states of a rule (hashable, without memory; or its name) and classify it.

    Returns
    -------
    Classification
        ``work_conserving`` and ``overtaken`` hold on every explored state; a witness shows where they fail, and
        a growing backlog shows a rule that is not throughput-optimal.
    """
    scheduler = to_scheduler(rule)
    found = properties(scheduler)
    if found.throughput_optimal:
        return found
    return attrs.evolve(found, growth_witness=_growth(scheduler))


@lru_cache(maxsize=256)
def properties(scheduler: Scheduler) -> Classification:
    """The part of `classify` that thresholds rest on: no search for a growing backlog."""
    idle: list[Witness] = []
    fills, states, overtakings = True, 0, []
    for b_max, sizes in _grids(scheduler):
        for state, batch, demand in _reachable(scheduler, b_max, sizes):
            states += 1
            if batch.tokens < min(b_max, demand):
                idle.append(Witness(b_max=b_max, left=state.left, batch=batch, demand=demand))
                fills = fills and len(state.left) < b_max
            if _overtaken(state, batch):
                overtakings.append(Witness(b_max=b_max, left=state.left, batch=batch, demand=demand))
        fills = fills and all(scheduler.form(state.view(b_max)).tokens == b_max for state in _saturated(b_max, sizes))
    bound, endless = _overtaking_bound(scheduler) if overtakings else (0, None)
    return Classification(
        scheduler=scheduler.name,
        work_conserving=not idle,
        overtaken=bound,
        fills=fills,
        states=states,
        idle_witness=min(idle, key=_smallness, default=None),
        overtaking_witness=endless,
    )


def _saturated(b_max: int, sizes: Sequence[Left]) -> Iterator[State]:
    """States of b_max requests: all alike, half prompts and half decodes, and the other way round."""
    half = b_max // 2
    for prefill, _ in sizes:
        prompts, decodes = [(prefill, 1)] * half, [(0, 1)] * (b_max - half)
        yield State(tuple([(prefill, 1)] * b_max))
        yield State((*prompts, *decodes), tuple(range(half, b_max)))
        yield State((*decodes, *prompts), tuple(range(b_max - half)))


def _smallness(witness: Witness) -> tuple[int, int, int]:
    return len(witness.left), sum(p + d for p, d in witness.left), witness.b_max


def _grids(scheduler: Scheduler) -> Iterator[tuple[int, tuple[Left, ...]]]:
    """Engines and request sizes to explore; a rule with a token constant of its own also at that scale."""
    for b_max in _BUDGETS:
        yield b_max, _feasible(scheduler, b_max, _SIZES)
    if isinstance(scheduler, Policy):
        for own in (scheduler.target, scheduler.threshold):
            if own is not None:
                yield 2 * own, _feasible(scheduler, 2 * own, ((1, 1), (2 * own, 0), (2 * own, 1)))


def _feasible(scheduler: Scheduler, b_max: int, sizes: Sequence[Left]) -> tuple[Left, ...]:
    longest = scheduler.longest_prompt(b_max) if isinstance(scheduler, Policy) else None
    return tuple(size for size in sizes if longest is None or size[0] <= longest)


def _arrivals(sizes: Sequence[Left], room: int) -> Iterator[tuple[Left, ...]]:
    for count in range(room + 1):
        yield from product(sizes, repeat=count)


def _reachable(scheduler: Scheduler, b_max: int, sizes: Sequence[Left]) -> Iterator[tuple[State, Batch, int]]:
    """Every state reachable with at most `_PRESENT` requests present, whatever arrives, with its batch and demand."""
    queue = deque(State().joined(new) for new in _arrivals(sizes, _PRESENT) if new)
    seen = set(queue)
    while queue:
        state = queue.popleft()
        view = state.view(b_max)
        batch = scheduler.form(view)
        yield state, batch, view.demand
        rest = state.after(batch)
        for new in _arrivals(sizes, _PRESENT - len(rest.left)):
            following = rest.joined(new)
            if following.left and following not in seen:
                seen.add(following)
                queue.append(following)


def _overtaken(state: State, batch: Batch) -> set[int]:
    """Positions that a later request of the same phase overtakes in this batch."""
    prefilled = {position for position, _ in batch.prefill}
    decoded = set(batch.decode)
    found = set()
    for served, ready in (
        (prefilled, [i for i, (prefill, _) in enumerate(state.left) if prefill]),
        (decoded, [i for i, (prefill, _) in enumerate(state.left) if not prefill]),
    ):
        latest = max(served, default=-1)
        found |= {position for position in ready if position < latest and position not in served}
    return found


def _overtaking_bound(scheduler: Scheduler) -> tuple[int | None, Witness | None]:
    """Most overtakings one request can suffer, None with a witness when there is no bound.

    A node is a state with one request marked; an edge weighs 1 when the batch overtakes it. A cycle with a positive
    edge overtakes for ever, since every request brings finitely many tokens; otherwise the heaviest path is the bound.
    """
    import networkx as nx

    bound = 0
    for b_max, sizes in _grids(scheduler):
        graph = nx.DiGraph()
        origin: dict[tuple[State, int], Witness] = {}
        for state, batch, demand in _reachable(scheduler, b_max, sizes):
            late = _overtaken(state, batch)
            for marked, after in _survivors(state, batch):
                origin[state, marked] = Witness(b_max=b_max, left=state.left, batch=batch, demand=demand)
                rest = state.after(batch)
                for new in _arrivals(sizes, _PRESENT - len(rest.left)):
                    graph.add_edge((state, marked), (rest.joined(new), after), weight=int(marked in late))
        components = list(nx.strongly_connected_components(graph))
        member = {node: index for index, nodes in enumerate(components) for node in nodes}
        for before, after, weight in graph.edges.data("weight"):
            if weight and member[before] == member[after]:
                return None, origin[before]
        condensed = nx.DiGraph()
        for before, after, weight in graph.edges.data("weight"):
            if member[before] != member[after]:
                heavier = max(weight, condensed.get_edge_data(member[before], member[after], {"weight": 0})["weight"])
                condensed.add_edge(member[before], member[after], weight=heavier)
        bound = max(bound, nx.dag_longest_path_length(condensed))
    return bound, None


def _survivors(state: State, batch: Batch) -> Iterator[tuple[int, int]]:
    """(position before, position after) of each request that is still unfinished after the batch."""
    given = dict(batch.prefill)
    decoded = set(batch.decode)
    after = 0
    for position, (prefill, decode) in enumerate(state.left):
        if prefill - given.get(position, 0) + decode - (position in decoded) > 0:
            yield position, after
            after += 1


_GROWTH_SIZES: tuple[Left, ...] = ((1, 1), (2, 1), (1, 2), (2, 0), (0, 1), (3, 1))
_PERIODS = 60


def _growth(scheduler: Scheduler) -> GrowthWitness | None:
    """A periodic pattern below capacity under which the backlog grows, by bounded exhaustive search."""
    scales = [(b_max, _GROWTH_SIZES) for b_max in (2, 3)]
    if isinstance(scheduler, Policy) and scheduler.target is not None:
        scales.append((2 * scheduler.target, ((2 * scheduler.target, 0),)))
    for length in range(1, 5):
        for b_max, sizes in scales:
            for size in _feasible(scheduler, b_max, sizes):
                for counts in combinations_with_replacement(range(3, -1, -1), length):
                    found = _grows(scheduler, b_max, size, counts)
                    if found is not None:
                        return found
    return None


def _grows(scheduler: Scheduler, b_max: int, size: Left, counts: tuple[int, ...]) -> GrowthWitness | None:
    """Run the pattern; a backlog that gains the same amount in each of the last thirds is taken as growing."""
    if sum(counts) * sum(size) >= b_max * len(counts) or not any(counts):
        return None
    state, backlog = State(), [0]
    for slot in range(3 * _PERIODS * len(counts)):
        state = state.joined([size] * counts[slot % len(counts)])
        if state.left:
            state = state.after(scheduler.form(state.view(b_max)))
        if (slot + 1) % (_PERIODS * len(counts)) == 0:
            backlog.append(state.tokens)
    gains = [after - before for before, after in pairwise(backlog)]
    if gains[1] == gains[2] > 0:
        return GrowthWitness(b_max=b_max, size=size, pattern=counts, growth=gains[2], period=_PERIODS * len(counts))
    return None
