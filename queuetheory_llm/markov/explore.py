"""The states of a chain by exploring them from the empty engine, with the rule's own `form`: plain Python, any rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.outcomes import Outcome, Outcomes
from queuetheory_llm.markov.space import Duration, Moves, Sizes, Space
from queuetheory_llm.model.arrivals import Arrivals, SlottedArrivals
from queuetheory_llm.model.chances import arrivals_law
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.schedulers.state import State

Progress = Callable[[int], None]

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
                f"the chain up to {level:g} tokens has more than {states} states and {moves} moves; give more --memory "
                "or a lower --level"
            )


def explore(
    outcomes: Outcomes, arrivals: Arrivals, level: float, limits: Limits, progress: Progress | None = None
) -> Space:
    """The states reached from the empty engine within ``level`` tokens, and their moves.

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
    sizes = Sizes(law=outcomes.law)
    number: dict[State, int] = {State(): 0}
    cores = [State()]
    rooms = [sizes.room(State(), level)]
    rows: list[tuple[int, int, int, int, int, float, int]] = []
    states = rooms[0] + 1
    done = 0
    while done < len(cores):
        for low, high, outcome in _line(outcomes, cores[done], rooms[done]):
            if outcome.core not in number:
                number[outcome.core] = len(cores)
                cores.append(outcome.core)
                rooms.append(sizes.room(outcome.core, level))
                states += rooms[-1] + 1
            rows.append((done, number[outcome.core], low, high, low - outcome.unseen, outcome.chance, outcome.tokens))
        limits.check(states, len(rows), level)
        if progress is not None and done % _REPORT_EVERY == 0:
            progress(states)
        done += 1
    columns = [np.array(column) for column in zip(*rows, strict=True)] if rows else [np.zeros(0)] * 7
    return space_of(outcomes, arrivals, level, cores, np.array(rooms), columns)


def _line(outcomes: Outcomes, core: State, room: int) -> Iterator[tuple[int, int, Outcome]]:
    """The outcomes on the line of a core, for ranges of unseen requests that fare alike.

    A policy scans the requests in a fixed order and stops: when one more unseen request makes no difference to it,
    none ever does. A rule outside the policy space may look at how many there are, so each number is asked for.
    """
    shared = isinstance(outcomes.scheduler, Policy)
    start = 0 if core.left else 1
    found = None
    for unseen in range(start, room + 1):
        more = list(outcomes.of(core, unseen))
        if shared and found is not None and _same(found, more):
            yield from ((unseen, room, outcome) for outcome in more)
            return
        yield from ((unseen, unseen, outcome) for outcome in more)
        found = more


def _same(fewer: list[Outcome], more: list[Outcome]) -> bool:
    """Whether the outcomes differ by one unseen request alone."""
    return len(fewer) == len(more) and all(
        (first.chance, first.tokens, first.core, first.unseen + 1)
        == (second.chance, second.tokens, second.core, second.unseen)
        for first, second in zip(fewer, more, strict=True)
    )


def space_of(
    outcomes: Outcomes,
    arrivals: Arrivals,
    level: float,
    cores: list[State],
    rooms: np.ndarray,
    columns: list[np.ndarray],
) -> Space:
    """The space of what was explored.

    Parameters
    ----------
    rooms : int array of shape (cores,)
    columns : arrays of shape (moves,)
        source, target, low, high, taken, chance, tokens: the batches; the idle engine is added here.
    """
    source, target, low, high, taken, chance, tokens = columns
    sizes = Sizes(law=outcomes.law)
    slot = arrivals.slot if isinstance(arrivals, SlottedArrivals) else None
    idle = 1 / arrivals.rate if slot is None else slot
    seconds = {int(count): outcomes.engine.batch_time.seconds(int(count)) for count in np.unique(tokens)}
    lasting = sorted(set(seconds.values()))
    durations = [Duration(seconds=each, arrivals=arrivals_law(arrivals, each)) for each in lasting]
    # The idle engine waits for a request, or under slotted arrivals for the next slot.
    comes = np.array([0.0, 1.0]) if slot is None else arrivals_law(arrivals, idle)
    durations.append(Duration(seconds=idle, arrivals=comes))
    index = {count: lasting.index(each) for count, each in seconds.items()}
    duration = np.array([index[count] for count in tokens.tolist()] + [len(lasting)])
    one = np.zeros(1)
    columns = [
        np.concatenate(pair)
        for pair in zip(
            (source, target, low, high, taken, chance, tokens),
            (one, one, one, one, one, one + 1, one),
            strict=True,
        )
    ]
    order = np.lexsort((columns[2], columns[0], columns[6], duration))
    whole = [column[order].astype(np.int32) for column in (*columns[:5], columns[6], duration)]
    return Space(
        cores=cores,
        first=np.concatenate([[0], np.cumsum(rooms + 1)]).astype(np.int64),
        known=np.array([len(core.left) for core in cores], dtype=np.int64),
        tokens=np.array([sum(map(sizes.tokens, core.left)) for core in cores], dtype=np.float64),
        mean=float(outcomes.law.mean_tokens),
        level=level,
        moves=Moves(
            source=whole[0],
            target=whole[1],
            low=whole[2],
            high=whole[3],
            taken=whole[4],
            chance=columns[5][order].astype(np.float64),
            tokens=whole[5],
            duration=whole[6],
        ),
        durations=tuple(durations),
    )
