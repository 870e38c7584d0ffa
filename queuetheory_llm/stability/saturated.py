"""An engine one or both of whose backlogs never end: what it serves per second, by an exact chain.

Three chains describe a rule in overload. Where prompts and decodes are both plentiful a batch depends on the prompts in
progress alone. Where only one kind is plentiful the other one is a chain of its own, the *induced chain*: the decodes
in progress beside endless prompts, or the prompts waiting beside endless decodes. Their states are explored with the
rule's own `form`; lengths are drawn when the rule first looks at them, and a geometric decode length is one state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import groupby, product
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import AssumptionViolated, InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.chances import arrivals_law, binomial_law, memoryless_decode, request_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import IndependentLengths, ObservedLengths, RequestLengths
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Batch, Policy, Scheduler
from queuetheory_llm.schedulers.state import Left, State

#: Probability that a law of unbounded lengths is cut off at, for each request.
TAIL = 1e-13
_MOST_STATES = 60_000
_MOST_BRANCHES = 300_000  # some seconds; beyond it a simulation answers sooner
_FIRST_WAITING = 16  # prompts waiting in the first cut of the chain beside endless decodes
_AGREE = 1e-11  # relative change of a rate when the cut is doubled
_DIRECT = 4_000  # states up to which a stationary law is solved for directly
_MOST_SWEEPS = 200_000
_STATIONARY = 1e-14

Floats = NDArray[np.float64]


class Plenty(Enum):
    """Which backlog never ends."""

    PROMPTS = "prompts"
    DECODES = "decodes"
    BOTH = "prompts and decodes"


@attrs.frozen(kw_only=True)
class Rates:
    """What is served per second in the long run.

    Attributes
    ----------
    prefill, decode : Fraction or float
        Tokens per second.
    prompts : Fraction or float
        Prompts completed per second.
    """

    prefill: Real
    decode: Real
    prompts: Real


@attrs.frozen
class Branch:
    """One outcome of a batch: its chance, duration and tokens, the requests in progress after it, prompts unseen."""

    chance: float
    seconds: Fraction
    prefill: int
    prompts: int
    decode: int
    state: State
    unseen: int


class _Unseen(Exception):
    """The rule looks at a prompt whose length is not drawn yet."""


class _Lengths:
    """``prefill_left`` of a view whose last requests are not drawn yet."""

    def __init__(self, known: Sequence[int], unseen: int) -> None:
        self._known, self._shown = known, len(known) - unseen

    def __getitem__(self, request: int) -> int:
        if request >= self._shown:
            raise _Unseen
        return self._known[request]


@attrs.frozen(kw_only=True, eq=False)
class SaturatedEngine:
    """A rule on an engine with endless backlogs.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler
    lengths : RequestLengths
        Every request has a prompt.
    plenty : Plenty

    Raises
    ------
    AssumptionViolated
        If some requests have no prompt: they would not wait behind the others.
    NotConverged
        If a length law has too many values.
    """

    engine: Engine
    scheduler: Scheduler
    lengths: RequestLengths
    plenty: Plenty

    def __attrs_post_init__(self) -> None:
        """Two queues, and every request goes through both in turn."""
        if self.lengths.prefill_probability != 1:
            raise AssumptionViolated("requests without a prompt skip a queue; measure their threshold by simulation")

    @cached_property
    def _memoryless(self) -> Fraction | None:
        """Mean of geometric decode lengths that one state can stand for."""
        return None if self.plenty is not Plenty.PROMPTS else memoryless_decode(self.lengths)

    @cached_property
    def _law(self) -> tuple[tuple[Left, float], ...]:
        """Lengths of a request as far as the chain needs them, with their probabilities."""
        decodes = self.plenty is Plenty.PROMPTS and self._memoryless is None
        return length_law(self.lengths, decodes=decodes)

    @property
    def _endless_decodes(self) -> int:
        return 0 if self.plenty is Plenty.PROMPTS else self.engine.slots

    @cached_property
    def _in_reach(self) -> int:
        """Fresh prompts that stand for endless ones: a policy completes all it touches but the last."""
        if not isinstance(self.scheduler, Policy):
            return self.engine.slots
        least = min(left[0] for left, _ in self._law)
        if self.scheduler.threshold is not None:
            least = min(least, self.scheduler.threshold)
        return min(self.engine.slots, self.engine.b_max // least + 2)

    def branches(self, state: State, unseen: int) -> Iterator[Branch]:
        """Every outcome of the batch formed with ``state`` in progress and ``unseen`` prompts behind it."""
        pending = [(state, unseen, 1.0)]
        while pending:
            state, unseen, chance = pending.pop()
            try:
                whole, batch = self._form(state, unseen)
            except _Unseen:
                pending.extend((state.joined([left]), unseen - 1, chance * share) for left, share in self._law)
                continue
            yield from self._after(whole, unseen, batch, chance)

    def _form(self, state: State, unseen: int, copies: int = 1) -> tuple[State, Batch]:
        """The state with its endless backlogs as far as a batch can reach, and the batch."""
        old = self._endless_decodes * copies
        fresh = self._law[0][0]
        whole = State(
            (*((0, 2),) * old, *state.left, *(fresh,) * unseen),
            (*range(old), *(old + position for position in state.running)),
        )
        view = whole.view(self.engine.b_max, self.engine.k_max)
        if len(self._law) > 1:
            view.prefill_left = _Lengths(view.prefill_left, unseen)  # type: ignore[assignment]
        batch = self.scheduler.form(view)
        if not batch.requests:
            raise InvalidInput(f"scheduler {self.scheduler.name}: it serves nothing although requests are present")
        if copies == 1 and not isinstance(self.scheduler, Policy):
            self._require_blind(state, unseen, batch)
        return whole, batch

    def _require_blind(self, state: State, unseen: int, batch: Batch) -> None:
        """A rule that weighs its backlogs has no drift of its own: it differs from place to place.

        A heuristic: one backlog twice as long is compared, so a rule that heeds a longer one alone is not found out.
        """
        more = unseen if self.plenty is Plenty.DECODES else 2 * unseen
        old = self._endless_decodes
        _, other = self._form(state, more, copies=2)
        moved = [(position - old, tokens) for position, tokens in other.prefill]
        if moved != batch.prefill or len(other.decode) != len(batch.decode):
            raise AssumptionViolated(
                f"{self.scheduler.name} forms its batches by how long the backlogs are, so its drift differs from "
                "place to place; measure its threshold by simulation"
            )

    def _after(self, whole: State, unseen: int, batch: Batch, chance: float) -> Iterator[Branch]:
        completed = sum(tokens == whole.left[position][0] for position, tokens in batch.prefill)
        left = list(whole.left)
        if self._memoryless is not None:
            for position in batch.decode:
                left[position] = (0, 2)  # one token is credited, and who finishes is drawn below
        after = State(tuple(left), whole.running).after(batch)
        last = max((position for position, _ in batch.prefill), default=-1)
        untouched = min(unseen, len(whole.left) - 1 - last)
        seconds = self.engine.batch_time.seconds(batch.tokens)
        for share, finished in self._finishes(after, batch):
            inside = range(self._endless_decodes, len(after.left) - untouched)
            kept = [i for i in inside if i not in finished and (after.left[i][0] or self.plenty is Plenty.PROMPTS)]
            yield Branch(
                chance * share,
                seconds,
                batch.prefill_tokens,
                completed,
                len(batch.decode),
                _part(after, kept),
                untouched,
            )

    def _finishes(self, after: State, batch: Batch) -> Iterator[tuple[float, frozenset[int]]]:
        """Who of the decodes with geometric lengths finishes; decodes that nothing tells apart are only counted."""
        if self._memoryless is None or not batch.decode:
            yield 1.0, frozenset()
            return
        rank = {position: index for index, position in enumerate(after.running)}
        served = sorted(batch.decode)
        alike = groupby(enumerate(served), lambda each: (each[1] - each[0], rank[each[1]] - each[0]))
        blocks = [[position for _, position in block] for _, block in alike]
        laws = [binomial_law(len(block), 1 / float(self._memoryless)) for block in blocks]
        for counts in product(*(range(len(law)) for law in laws)):
            share = float(np.prod([law[count] for law, count in zip(laws, counts, strict=True)]))
            gone = [position for block, count in zip(blocks, counts, strict=True) for position in block[:count]]
            yield share, frozenset(gone)

    # ------------------------------------------------------------------------------------------- endless prompts

    def classes(self, starts: Iterable[State] = (State(),)) -> tuple[Rates, ...]:
        """Rates in each closed class of states reached from ``starts``; prompts are endless.

        Exact fractions where the class is a cycle of certain steps. Several classes mean that the long run depends on
        the start.

        Raises
        ------
        NotConverged
            If the states are too many.
        """
        from scipy.sparse.csgraph import connected_components

        found = self._explored(starts)
        sources = np.repeat(np.arange(len(found)), [len(each) for each in found])
        targets = np.array([target for each in found for _, target in each])
        moves = _sparse(sources, targets, np.ones(len(targets)), len(found))
        _, component = connected_components(moves, connection="strong")
        leaving = np.unique(component[sources[component[sources] != component[targets]]])
        closed = sorted(set(component.tolist()).difference(leaving.tolist()))
        return tuple(_class_rates(found, np.flatnonzero(component == each)) for each in closed)

    def _explored(self, starts: Iterable[State]) -> list[list[tuple[Branch, int]]]:
        number: dict[State, int] = {}
        queue: list[State] = []

        def numbered(state: State) -> int:
            if state not in number:
                number[state] = len(queue)
                queue.append(state)
            return number[state]

        for start in starts:
            numbered(start)
        found: list[list[tuple[Branch, int]]] = []
        count = 0
        while len(found) < len(queue):
            each = [(branch, numbered(branch.state)) for branch in self.branches(queue[len(found)], self._in_reach)]
            count += len(each)
            if len(queue) > _MOST_STATES or count > _MOST_BRANCHES:
                raise NotConverged(f"the chain beside endless {self.plenty.value} has more than {len(queue)} states")
            found.append(each)
        return found

    # ------------------------------------------------------------------------------------------- endless decodes

    def beside_decodes(self, rate: float, arrivals: Arrivals | None = None) -> Rates:
        """Rates with decodes endless and prompts arriving at ``rate`` requests/s, Poisson or slotted.

        The prompts waiting are cut at a number that is doubled until nothing moves.

        Raises
        ------
        NotConverged
            If that takes too many states.
        """
        waiting = _FIRST_WAITING
        before = self._queue.rates(rate, waiting, arrivals)
        while True:
            waiting *= 2
            value = self._queue.rates(rate, waiting, arrivals)
            if abs(float(value.decode) - float(before.decode)) <= _AGREE * float(value.decode):
                return value
            before = value

    @cached_property
    def _queue(self) -> _Queue:
        return _Queue(self)


class _Queue:
    """The chain of the prompts in progress and waiting beside endless decodes; explored once for all rates."""

    def __init__(self, saturated: SaturatedEngine) -> None:
        self._saturated = saturated
        self._number: dict[State, int] = {State(): 0}
        self._states = [State()]
        self._steps: dict[tuple[int, int], list[tuple[Branch, int]]] = {}
        self._branches = 0

    def _explore(self, waiting: int) -> None:
        """Every state in progress with 0..waiting prompts behind it."""
        done = 0
        while done < len(self._states):
            for unseen in range(waiting + 1):
                if (done, unseen) not in self._steps:
                    self._steps[done, unseen] = self._step(self._states[done], unseen)
                    self._branches += len(self._steps[done, unseen])
            if (waiting + 1) * len(self._states) > _MOST_STATES or self._branches > _MOST_BRANCHES:
                raise NotConverged(
                    f"the chain of {waiting} waiting prompts has more than {(waiting + 1) * len(self._states)} states"
                )
            done += 1

    def _step(self, state: State, unseen: int) -> list[tuple[Branch, int]]:
        found = []
        for branch in self._saturated.branches(state, unseen):
            if branch.state not in self._number:
                self._number[branch.state] = len(self._states)
                self._states.append(branch.state)
            found.append((branch, self._number[branch.state]))
        return found

    def rates(self, rate: float, waiting: int, arrivals: Arrivals | None) -> Rates:
        """Rates of the chain with at most ``waiting`` prompts behind those in progress."""
        self._explore(waiting)
        width = waiting + 1
        rows = [
            (state * width + unseen, branch, target)
            for (state, unseen), step in self._steps.items()
            if unseen <= waiting
            for branch, target in step
        ]
        source = np.array([row for row, _, _ in rows])
        first = np.array([target * width + branch.unseen for _, branch, target in rows])
        room = waiting - np.array([branch.unseen for _, branch, _ in rows])
        chance = np.array([branch.chance for _, branch, _ in rows])
        seconds = [branch.seconds for _, branch, _ in rows]
        where: list[Any] = [[], [], []]
        for duration in set(seconds):
            law = arrivals_law(arrivals, duration, rate)
            which = np.flatnonzero([each == duration for each in seconds])
            come = np.minimum(np.arange(len(law))[None, :], room[which, None])
            where[0].append(np.repeat(source[which], len(law)))
            where[1].append((first[which, None] + come).ravel())
            where[2].append((chance[which, None] * law[None, :]).ravel())
        states = len(self._states) * width
        moves = _sparse(np.concatenate(where[0]), np.concatenate(where[1]), np.concatenate(where[2]), states)
        weight = _stationary(moves)[source] * chance
        return _averages(weight, [branch for _, branch, _ in rows])


# ---------------------------------------------------------------------------------------------------------- the laws


def length_law(lengths: RequestLengths, *, decodes: bool) -> tuple[tuple[Left, float], ...]:
    """(prefill, decode) with probabilities; without ``decodes`` every decode length is written 1.

    Every request has a prompt. Unbounded laws are cut where less than `TAIL` is left.
    """
    law = request_law(lengths if decodes else _prompts_alone(lengths), memoryless=False, tail=TAIL)
    return tuple(zip(zip(law.prefill.tolist(), law.decode.tolist(), strict=True), law.chance.tolist(), strict=True))


def _prompts_alone(lengths: RequestLengths) -> RequestLengths:
    """The same prompts, each with one decode token."""
    if isinstance(lengths, Workload):
        return attrs.evolve(
            lengths,
            classes=tuple(attrs.evolve(each, lengths=_prompts_alone(each.lengths)) for each in lengths.classes),
        )
    if isinstance(lengths, IndependentLengths):
        return IndependentLengths(lengths.prefill, 1)
    if isinstance(lengths, ObservedLengths):
        return ObservedLengths(lengths.prefill, np.ones_like(lengths.decode))
    return lengths


# ------------------------------------------------------------------------------------------------ states and solving


def _part(state: State, kept: Sequence[int]) -> State:
    """The state without the requests that are not ``kept``."""
    moved = {old: new for new, old in enumerate(kept)}
    return State(
        tuple(state.left[position] for position in kept),
        tuple(moved[position] for position in state.running if position in moved),
    )


def _sparse(rows: Any, columns: Any, values: Any, size: int) -> Any:
    from scipy.sparse import csr_array

    return csr_array((values, (rows, columns)), shape=(size, size))


def _class_rates(found: list[list[tuple[Branch, int]]], members: NDArray[np.int64]) -> Rates:
    """Rates in one closed class."""
    steps = [found[member] for member in members.tolist()]
    if all(len(step) == 1 for step in steps):  # a cycle
        branches = [step[0][0] for step in steps]
        seconds = sum((branch.seconds for branch in branches), Fraction(0))
        return Rates(
            prefill=sum(branch.prefill for branch in branches) / seconds,
            decode=sum(branch.decode for branch in branches) / seconds,
            prompts=sum(branch.prompts for branch in branches) / seconds,
        )
    place = {member: index for index, member in enumerate(members.tolist())}
    rows = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    columns = np.array([place[target] for step in steps for _, target in step])
    branches = [branch for step in steps for branch, _ in step]
    chance = np.array([branch.chance for branch in branches])
    weight = _stationary(_sparse(rows, columns, chance, len(steps)))[rows] * chance
    return _averages(weight, branches)


def _averages(weight: Floats, branches: Sequence[Branch]) -> Rates:
    """Expected tokens over expected seconds."""
    served = np.array([(branch.prefill, branch.decode, branch.prompts) for branch in branches], dtype=float)
    seconds = np.array([float(branch.seconds) for branch in branches])
    prefill, decode, prompts = (weight @ served / (weight @ seconds)).tolist()
    return Rates(prefill=prefill, decode=decode, prompts=prompts)


def _stationary(moves: Any) -> Floats:
    """The stationary law of a chain with one closed class.

    Directly for small chains, else by sweeps of the lazy chain (I + P)/2 until they stand still.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import spsolve

    size = moves.shape[0]
    if size <= _DIRECT:
        balance = (moves.T - eye_array(size)).tolil()
        balance[0, :] = 1.0
        aim = np.zeros(size)
        aim[0] = 1.0
        law = np.maximum(spsolve(balance.tocsc(), aim), 0.0)
        return np.asarray(law / law.sum())
    flow = moves.T.tocsr()
    law = np.full(size, 1 / size)
    for sweep in range(_MOST_SWEEPS):
        following = (law + flow @ law) / 2
        if sweep % 50 == 0 and float(np.abs(following - law).sum()) < _STATIONARY:
            return np.asarray(following / following.sum())
        law = following
    raise NotConverged(f"the stationary law of {size} states did not settle in {_MOST_SWEEPS} sweeps")
