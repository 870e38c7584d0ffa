"""`explore` for the rules of the policy space: the arrays of the compiled kernel made, grown and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.compiled import (
    CORES,
    CORES_FULL,
    DESK_FULL,
    FINISHED,
    MOVES,
    MOVES_FULL,
    PAUSED,
    RUN,
    STATES,
    TOO_MANY,
    WORDS,
    Desk,
    Found,
    Lengths,
    Rows,
    Rule,
    Search,
    advance,
    rehash,
)
from queuetheory_llm.markov.explore import Limits, Progress, sizes_of, space_of
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.space import Sizes, Small, Space
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.chances import DecodeKind, binomial_law
from queuetheory_llm.schedulers.policy import Pass, Policy
from queuetheory_llm.schedulers.state import State

_NO_LEVEL = 2.0**40  # tokens
PAUSE = 1 << 20  # outcomes of batches between two reports of progress
FIRST_CORES, FIRST_MOVES, FIRST_RUNS = 1 << 12, 1 << 14, 1 << 6  # that there is room for at first


class Cores(Sequence[State]):
    """Cores as states, made when they are asked for.

    Parameters
    ----------
    words : int32 array
        Runs of equal requests; see `Found`.
    begin : int64 array of shape (cores + 1,)
    """

    def __init__(self, words: Small, begin: Ints) -> None:
        self._words, self._begin = words, begin

    def __len__(self) -> int:
        """Number of cores."""
        return self._begin.size - 1

    def __getitem__(self, core: Any) -> Any:
        """One core, or a list of those of a slice."""
        if isinstance(core, slice):
            return [self[each] for each in range(*core.indices(len(self)))]
        core = range(len(self))[core]
        runs = self._words[self._begin[core] : self._begin[core + 1]].reshape(-1, RUN).tolist()
        left = [(prefill, decode) for prefill, decode, _, count in runs for _ in range(count)]
        return State(tuple(left), tuple(range(sum(count for *_, seat, count in runs if seat))))


def explore_policy(
    outcomes: Outcomes, arrivals: Arrivals, level: float, limits: Limits, progress: Progress | None = None
) -> Space:
    """The space of `explore.explore_plainly` for a `Policy`; parameters are those of `explore.explore`.

    Raises
    ------
    NotConverged
        If the states or the moves are too many, or the outcomes of one batch.
    """
    search = _search(outcomes, sizes_of(outcomes, arrivals), level, endless=False)
    found, columns = _finished(search, level, limits, progress)
    del search  # and with it what was kept for the search
    cores, counts = _cores(found), [found.room, found.known, found.tokens]
    del found
    return space_of(outcomes, arrivals, level, cores, counts, columns)


def explore_endless(
    outcomes: Outcomes, unseen: int, limits: Limits, progress: Progress | None = None
) -> tuple[Cores, Ints, Floats, list[Any]]:
    """The cores of a `Policy` reached from the empty one with ``unseen`` requests behind each, whatever it took.

    Returns
    -------
    cores : Cores
    known, tokens : arrays of shape (cores,)
        See `Space`.
    columns : list of arrays of shape (rows,)
        Those of `explore.search`.

    Raises
    ------
    NotConverged
        If the states or the moves are too many, or the outcomes of one batch.
    """
    search = _search(outcomes, Sizes(law=outcomes.law, most=unseen), _NO_LEVEL, endless=True)
    lines = Limits(limits.states * (unseen + 1), limits.moves)  # whole lines are counted
    found, columns = _finished(search, _NO_LEVEL, lines, progress)
    return _cores(found), found.known.astype(np.int64), found.tokens, columns


def _search(outcomes: Outcomes, sizes: Sizes, level: float, *, endless: bool) -> Search:
    # Every request within the level has a token left: a batch of more of them is never formed.
    rule = _rule(outcomes, endless, outcomes.engine.slots if endless else int(level) + 1)
    return Search(
        rule=rule,
        lengths=_lengths(outcomes, sizes, level),
        found=_found(FIRST_CORES),
        rows=_rows(FIRST_MOVES),
        desk=_desk(FIRST_RUNS, rule.slots),
        at=np.zeros(6, np.int64),
    )


def _finished(search: Search, level: float, limits: Limits, progress: Progress | None) -> tuple[Found, list[Any]]:
    """What is found when all cores are done, without the room that is left, and the columns of the moves."""
    at, most = search.at, (limits.states, limits.moves)
    while (code := advance(search, most, PAUSE)) != FINISHED:
        limits.check(int(at[STATES]), int(at[MOVES]), level)
        if code == PAUSED and progress is not None:
            progress(int(at[STATES]))
        search = _roomier(search, code, level, limits)
    columns: list[Any] = list(search.rows)
    _resize(columns, at[MOVES])
    found = search.found
    return found._replace(
        words=found.words[: at[WORDS]].copy(),
        begin=found.begin[: at[CORES] + 1].copy(),
        **{name: getattr(found, name)[: at[CORES]].copy() for name in ("room", "known", "tokens")},
    ), columns


def _cores(found: Found) -> Cores:
    return Cores(found.words, found.begin)


def _roomier(search: Search, code: int, level: float, limits: Limits) -> Search:
    """Twice the room where ``code`` says that there is none left."""
    if code == TOO_MANY:
        raise NotConverged(
            f"up to {level:g} tokens there are batches with more than {limits.moves} outcomes, of the lengths of new "
            "requests and of those that end; give laws of fewer values, more --memory or a lower --level"
        )
    if code == MOVES_FULL:
        moves = search.rows.source.size
        limits.check(int(search.at[STATES]), moves + 1, level)
        _resize(search.rows, min(2 * moves, limits.moves + 1))
    elif code == CORES_FULL:
        search = search._replace(found=_grown(search.found, search.at))
    elif code == DESK_FULL:
        search = search._replace(desk=_desk(2 * search.desk.run.shape[0], search.rule.slots))
    return search


def _rule(outcomes: Outcomes, endless: bool, requests: int) -> Rule:
    policy, engine = outcomes.scheduler, outcomes.engine
    if not isinstance(policy, Policy):
        raise TypeError(f"{policy.name} is no Policy")
    budget = policy.budget(engine.b_max)
    in_prompt = int(outcomes.law.prefill[0] > 0)
    return Rule(
        seated=outcomes.seated,
        first=int(policy.passes[0] in (Pass.PREFILL, Pass.RUNNING)),
        fresh=0 if outcomes.seated else in_prompt,
        mixed=policy.mixed,
        chunks=policy.chunks,
        budget=budget,
        slots=min(engine.slots, budget, requests),
        threshold=2**62 if policy.threshold is None else policy.threshold,
        hidden=outcomes.hidden,
        alike=outcomes.phased and outcomes.alike,
        endless=endless,
    )


def _lengths(outcomes: Outcomes, sizes: Sizes, level: float) -> Lengths:
    law = outcomes.law
    parts = round(level * sizes.parts)
    least = min((sizes.size((0, -1 - i)) for i, kind in enumerate(law.kinds) if kind.memoryless), default=1)
    most = max(1, min(outcomes.engine.slots, parts // least))  # decodes of one memoryless kind in a batch
    laws = [_laws(kind, most) for kind in law.kinds]
    ends = np.cumsum([0, *(each.size for row in laws for each in row)])
    begin = np.array([ends[i * (most + 1) : (i + 1) * (most + 1) + 1] for i in range(len(laws))], dtype=np.int64)
    left = np.zeros(ends[-1], np.int64)
    for i, kind in enumerate(law.kinds):
        if not kind.memoryless:
            left[begin[i, 1] : begin[i, 2]] = np.array(kind.values) - 1
    return Lengths(
        prefill=law.prefill,
        decode=law.decode,
        chance=law.chance,
        parts=sizes.parts,
        whole=sizes.whole,
        level=parts,
        most=sizes.most,
        means=np.array([float(kind.mean) for kind in law.kinds]),
        bounds=np.array([kind.bound for kind in law.kinds]),
        memoryless=np.array([kind.memoryless for kind in law.kinds], dtype=np.bool_),
        begin=begin.reshape(len(laws), most + 2),
        law=np.concatenate([np.zeros(0), *(each for row in laws for each in row)]),
        left=left,
    )


def _laws(kind: DecodeKind, most: int) -> list[Floats]:
    """The laws of what is drawn about n = 0..most decodes of a kind; see `Lengths`."""
    if kind.memoryless:
        return [binomial_law(count, 1 / float(kind.mean)) for count in range(most + 1)]
    return [np.zeros(0), np.array(kind.chances), *(np.zeros(0) for _ in range(most - 1))]


def _found(cores: int) -> Found:
    return Found(
        words=np.zeros(4 * RUN * cores, np.int32),
        begin=np.zeros(cores + 1, np.int64),
        latest=np.full(cores, -1, np.int32),
        room=np.zeros(cores, np.int32),
        known=np.zeros(cores, np.int32),
        tokens=np.zeros(cores),
        table=np.full(2 * cores, -1, np.int32),
    )


def _grown(found: Found, at: Ints) -> Found:
    """Room for twice as many cores, or for twice as many words."""
    if at[CORES] < found.room.size:
        _resize((found.words,), 2 * found.words.size)
        return found
    cores = 2 * found.room.size
    _resize((found.begin,), cores + 1)
    _resize((found.latest, found.room, found.known, found.tokens), cores)
    found = found._replace(table=np.full(2 * cores, -1, np.int32))
    rehash(found, int(at[CORES]))
    return found


def _rows(moves: int) -> Rows:
    return Rows(
        source=np.zeros(moves, np.int32),
        target=np.zeros(moves, np.int32),
        low=np.zeros(moves, np.int32),
        high=np.zeros(moves, np.int32),
        taken=np.zeros(moves, np.int32),
        tokens=np.zeros(moves, np.int32),
        chance=np.zeros(moves),
    )


def _resize(arrays: Sequence[NDArray[Any]], size: int) -> None:
    """Let the system move the arrays, so that not even for a moment two copies are held."""
    for array in arrays:
        array.resize(size, refcheck=False)


def _desk(runs: int, slots: int) -> Desk:
    """For cores and drawn requests of ``runs`` runs together, and batches that serve ``slots`` requests.

    A batch splits a run in three at most, and the decodes that get a length into single ones.
    """
    split = 3 * runs + slots
    return Desk(
        run=np.zeros((runs, 5), np.int64),
        need=np.zeros(runs, np.int64),
        served=np.zeros(runs, np.int64),
        rest=np.zeros(runs, np.int64),
        after=np.zeros((split, 5), np.int64),
        gone=np.zeros(split, np.int64),
        key=np.zeros(split * RUN, np.int32),
        drawn=np.zeros(runs, np.int64),
        path=np.zeros(runs + 1),
    )
