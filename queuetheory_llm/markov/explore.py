"""The states of a chain by exploring them from the empty engine: with the rule's own `form`, or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.outcomes import Outcome, Outcomes
from queuetheory_llm.markov.space import Duration, Moves, Sizes, Space
from queuetheory_llm.model.arrivals import Arrivals, SlottedArrivals
from queuetheory_llm.model.chances import arrivals_law
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.schedulers.state import State

Progress = Callable[[int], None]
Step = tuple[int, int, Outcome]
Row = tuple[int, int, int, int, int, int, float]

_MOST_OUTCOMES = 2_000_000  # that plain Python looks at, in a minute or so
_REPORT_EVERY = 256  # cores between two reports of progress


@attrs.frozen
class Limits:
    """What an exploration may take.

    Attributes
    ----------
    states : int
    moves : int
    """

    states: int
    moves: int

    def check(self, states: int, moves: int, level: float) -> None:
        """Raises
        ------
        NotConverged
            If there are more.
        """
        if states > self.states or moves > self.moves:
            raise NotConverged(
                f"the chain up to {level:g} tokens has more than {min(states, self.states)} states and "
                f"{min(moves, self.moves)} moves, beyond the memory allowed; give more --memory or a lower --level"
            )


def explore(
    outcomes: Outcomes, arrivals: Arrivals, level: float, limits: Limits, progress: Progress | None = None
) -> Space:
    """The states reached from the empty engine within ``level`` tokens, and their moves.

    Compiled for the policy space, plain Python for any other rule.

    Parameters
    ----------
    outcomes : Outcomes
        The engine, the rule and the lengths.
    arrivals : Arrivals
        Poisson or slotted.
    level : float
        N, tokens; see `space`.
    limits : Limits
    progress : callable, optional
        Called now and then with the number of states.

    Raises
    ------
    NotConverged
        If the states or the moves are too many.
    """
    if isinstance(outcomes.scheduler, Policy):
        from queuetheory_llm.markov.policy_space import explore_policy  # loads numba

        return explore_policy(outcomes, arrivals, level, limits, progress)
    return explore_plainly(outcomes, arrivals, level, limits, progress)


def explore_plainly(
    outcomes: Outcomes, arrivals: Arrivals, level: float, limits: Limits, progress: Progress | None = None
) -> Space:
    """`explore` in plain Python with the rule's own `form`: any rule, and the reference of the compiled way."""
    sizes = sizes_of(outcomes, arrivals)
    rooms: list[int] = []
    states = looked = 0

    def count() -> None:
        nonlocal looked
        looked += 1
        if looked > _MOST_OUTCOMES:
            raise NotConverged(
                f"the batches of {outcomes.scheduler.name} up to {level:g} tokens have more than {_MOST_OUTCOMES} "
                "outcomes, more than plain Python gets through; give a lower --level, laws of fewer values, or simulate"
            )

    counted = attrs.evolve(outcomes, count=count)

    def line(core: State) -> Iterator[Step]:
        return ranges(counted, core, sizes.room(core, level))

    def found(cores: Sequence[State], rows: Sequence[Row], done: int) -> None:
        nonlocal states
        for core in cores[len(rooms) :]:
            rooms.append(sizes.room(core, level))
            states += rooms[-1] + 1
        limits.check(states, len(rows), level)
        if progress is not None and done % _REPORT_EVERY == 0:
            progress(states)

    cores, columns = search([State()], line, found)
    return space_of(outcomes, arrivals, level, cores, [np.array(rooms), *counts_of(sizes, cores)], columns)


def search(
    starts: Iterable[State],
    line: Callable[[State], Iterable[Step]],
    found: Callable[[Sequence[State], Sequence[Row], int], None],
) -> tuple[list[State], list[Any]]:
    """The cores reached from some, and what leads from one to another.

    Parameters
    ----------
    starts : iterable of State
    line : callable
        The outcomes of a core, each with the least and the largest number of unseen requests for which there is one.
    found : callable
        Called after each core with all cores and rows so far, and the number of cores done.

    Returns
    -------
    cores : list of State
    columns : list of arrays of shape (rows,)
        source, target, low, high, taken, tokens, chance; see `Moves`.
    """
    cores = list(dict.fromkeys(starts))
    number = {core: index for index, core in enumerate(cores)}
    rows: list[Row] = []
    for done, core in enumerate(cores):  # which grow meanwhile
        for low, high, outcome in line(core):
            if outcome.core not in number:
                number[outcome.core] = len(cores)
                cores.append(outcome.core)
            rows.append((done, number[outcome.core], low, high, low - outcome.unseen, outcome.tokens, outcome.chance))
        found(cores, rows, done)
    columns = [np.array(column) for column in zip(*rows, strict=True)] if rows else [np.zeros(0, np.int32)] * 7
    return cores, columns


def counts_of(sizes: Sizes, cores: Sequence[State]) -> tuple[Ints, Floats]:
    """Requests and expected tokens of each core; arrays of shape (cores,)."""
    known = np.array([len(core.left) for core in cores], dtype=np.int64)
    return known, np.array([sum(map(sizes.tokens, core.left)) for core in cores], dtype=np.float64)


def sizes_of(outcomes: Outcomes, arrivals: Arrivals) -> Sizes:
    """Sizes, and how many requests can be unseen: only those of one step where a batch looks at all."""
    if outcomes.hidden:
        return Sizes(law=outcomes.law)
    engine = outcomes.engine
    longest = max(engine.batch_time.seconds(tokens) for tokens in range(1, engine.b_max + 1))
    return Sizes(law=outcomes.law, most=max(1, arrivals_law(arrivals, longest).size - 1))


def ranges(outcomes: Outcomes, core: State, room: int) -> Iterator[Step]:
    """The outcomes on the line of a core, for ranges of unseen requests that fare alike.

    A policy scans the requests in a fixed order and stops: when one more unseen request makes no difference to it,
    none ever does. A rule outside the policy space may look at how many there are, so each number is asked for.
    """
    low = 0 if core.left else 1
    found: list[Outcome] | None = None
    for unseen in range(low, room + 1):
        more = gathered(outcomes.of(core, unseen))
        if found is not None and _same(found, more, unseen - low):
            if isinstance(outcomes.scheduler, Policy):
                break
            continue
        if found is not None:
            yield from ((low, unseen - 1, outcome) for outcome in found)
        low, found = unseen, more
    yield from ((low, room, outcome) for outcome in found or ())


def gathered(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome for those that differ in their chance alone."""
    chances: dict[tuple[State, int, int], float] = {}
    for each in outcomes:
        key = each.core, each.unseen, each.tokens
        chances[key] = chances.get(key, 0.0) + each.chance
    return [
        Outcome(chance=chance, tokens=tokens, core=core, unseen=unseen)
        for (core, unseen, tokens), chance in chances.items()
    ]


def _same(fewer: list[Outcome], more: list[Outcome], by: int) -> bool:
    """Whether the outcomes differ by so many unseen requests alone."""
    return len(fewer) == len(more) and all(
        (first.chance, first.tokens, first.core, first.unseen + by)
        == (second.chance, second.tokens, second.core, second.unseen)
        for first, second in zip(fewer, more, strict=True)
    )


def space_of(
    outcomes: Outcomes,
    arrivals: Arrivals | None,
    level: float,
    cores: Sequence[State],
    counts: Sequence[Any],
    columns: list[Any],
) -> Space:
    """The space of what was explored.

    Parameters
    ----------
    arrivals : Arrivals, optional
        Without them the engine is never idle.
    counts : arrays of shape (cores,)
        W, requests and expected tokens of each core.
    columns : list of arrays of shape (moves,)
        source, target, low, high, taken, tokens, chance of the batches, by source and low; the idle engine is added
        here. The list is emptied, so that what is in order need not stand in memory beside what is not.
    """
    room, known, expected = counts
    seconds = {count: outcomes.engine.batch_time.seconds(count) for count in np.unique(columns[5]).tolist()}
    lasting = sorted(set(seconds.values()))
    durations = _durations(arrivals, lasting)
    by_time = sorted(seconds, key=lambda count: (seconds[count], count))
    rank = np.zeros(max(by_time, default=0) + 1, dtype=np.min_scalar_type(len(by_time)))  # small ones sort fastest
    rank[by_time] = np.arange(len(by_time))
    order = np.argsort(rank[columns[5]], kind="stable")
    index = np.array([lasting.index(seconds[count]) for count in by_time], dtype=np.int32)
    columns.append(index[rank[columns[5]]])
    whole: list[Any] = []
    for last, kind in zip((0, 0, 0, 0, 0, 0, 1.0, len(lasting)), (np.int32,) * 6 + (np.float64, np.int32), strict=True):
        column = np.full(order.size + len(durations) - len(lasting), last, dtype=kind)
        column[: order.size] = columns.pop(0)[order]
        whole.append(column)
    return Space(
        cores=cores,
        first=np.concatenate([[0], np.cumsum(room + 1, dtype=np.int64)]),
        known=known.astype(np.int64),
        tokens=expected,
        mean=float(outcomes.law.mean_tokens),
        level=level,
        moves=Moves(
            source=whole[0],
            target=whole[1],
            low=whole[2],
            high=whole[3],
            taken=whole[4],
            tokens=whole[5],
            chance=whole[6],
            duration=whole[7],
        ),
        durations=durations,
    )


def _durations(arrivals: Arrivals | None, lasting: Sequence[Fraction]) -> tuple[Duration, ...]:
    """Those of the batches and, behind them, of the idle engine."""
    if arrivals is None:
        return tuple(Duration(seconds=each, arrivals=np.ones(1)) for each in lasting)
    busy = [Duration(seconds=each, arrivals=arrivals_law(arrivals, each)) for each in lasting]
    # The idle engine waits for a request, or under slotted arrivals for the next slot.
    if isinstance(arrivals, SlottedArrivals):
        return *busy, Duration(seconds=arrivals.slot, arrivals=arrivals_law(arrivals, arrivals.slot))
    return *busy, Duration(seconds=1 / arrivals.rate, arrivals=np.array([0.0, 1.0]))
