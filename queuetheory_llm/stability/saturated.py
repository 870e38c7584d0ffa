"""An engine one or both of whose backlogs never end: what it serves per second, by an exact chain.

Three chains describe a rule in overload. Where prompts and decodes are both plentiful a batch depends on the prompts in
progress alone. Where only one kind is plentiful the other one is a chain of its own, the *induced chain*: the decodes
in progress beside endless prompts, or the prompts waiting beside endless decodes. They are the chain of `markov` with
other ends: endless prompts are as many unseen requests as a batch can reach, whatever it took; endless decodes are a
full batch of requests that never finish.

In the long run as many prompts are finished as are begun, so that the rates follow from the tokens of the batches, the
requests looked at and the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.errors import AssumptionViolated, NotConverged
from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.markov.components import recurrence_of
from queuetheory_llm.markov.direct import direct_law
from queuetheory_llm.markov.explore import Limits, Step, counts_of, gathered, ranges, search, space_of
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.space import Moves, Sizes, Small, Space
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.chances import arrivals_law, request_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.schedulers.state import ENDLESS, State

#: Probability that a law of unbounded lengths is cut off at, for each request.
TAIL = 1e-13
_PLAIN = Limits(60_000, 300_000)  # some seconds
_COLD = Limits(60_000, 20_000)  # a second; machine code does more, but may have to be made first
_COMPILED = Limits(1_000_000, 5_000_000)  # some seconds; beyond it a simulation answers sooner
_PAUSES = 50  # of about a million outcomes each, a few seconds
_FIRST_WAITING = 16  # prompts waiting in the first cut of the chain beside endless decodes
_AGREE = 1e-11  # relative change of a rate when the cut is doubled
_DIRECT = 4_000  # states up to which a chain is written out and factorised
_RESIDUAL = 1e-12  # sum over the states of abs(law - law P)


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


@attrs.frozen(eq=False)
class _Chain:
    """A chain without an idle engine: its space, and the prompts that each move begins."""

    space: Space
    begun: Small

    def within(self, cores: NDArray[np.integer]) -> _Chain:
        """The chain on one closed class of lines of one state."""
        moves, space = self.space.moves, self.space
        place = np.full(len(space.cores), -1)
        place[cores] = np.arange(cores.size)
        kept = np.flatnonzero(place[moves.source] >= 0)
        columns = {name: getattr(moves, name)[kept] for name in attrs.fields_dict(Moves)}
        columns.update({name: place[columns[name]].astype(np.int32) for name in ("source", "target")})
        inner = attrs.evolve(
            space,
            cores=[space.cores[core] for core in cores.tolist()],
            first=np.arange(cores.size + 1),
            known=space.known[cores],
            tokens=space.tokens[cores],
            moves=Moves(**columns),
        )
        return _Chain(inner, self.begun[kept])

    def rates(self, mean_prefill: Real) -> Rates:
        """Rates in the long run: exact fractions where the chain is a cycle of certain steps."""
        space, moves = self.space, self.space.moves
        tokens: Real
        if len(moves) == len(space):  # each state has one move
            times = np.bincount(moves.duration, minlength=len(space.durations)).tolist()
            seconds = sum(
                (each.seconds * count for each, count in zip(space.durations, times, strict=True)), Fraction()
            )
            prompts, tokens = int(self.begun.sum()) / seconds, int(moves.tokens.sum()) / seconds
        else:
            below = np.concatenate([[0.0], np.cumsum(_law(space))])
            come = space.first[moves.source]
            weight = moves.chance * (below[come + moves.high + 1] - below[come + moves.low])
            lasting = np.array([float(each.seconds) for each in space.durations])[moves.duration]
            prompts, tokens = (float(weight @ each / (weight @ lasting)) for each in (self.begun, moves.tokens))
        prefill = prompts * mean_prefill
        return Rates(prefill=prefill, decode=tokens - prefill, prompts=prompts)


def _at_most(most: int, beyond: NotConverged) -> Callable[[], None]:
    """What may be called so often, and raises then."""
    calls = count(1)

    def call() -> None:
        if next(calls) > most:
            raise beyond

    return call


def _law(space: Space) -> Floats:
    """The stationary law; small chains need no compiled code.

    Raises
    ------
    AssumptionViolated
        If there are several closed classes.
    NotConverged
        If its residual is above 1e-12.
    """
    if len(space) > _DIRECT:
        from queuetheory_llm.markov.operator import Operator
        from queuetheory_llm.markov.stationary import Method, stationary

        return stationary(Operator(space), method=Method.ITERATIVE, tolerance=_RESIDUAL).law
    matrix = space.matrix()
    classes = recurrence_of(matrix).classes
    if len(classes) > 1:
        raise AssumptionViolated("the induced chain has several closed classes; measure by simulation")
    law = np.zeros(len(space))
    law[classes[0]] = direct_law(matrix[classes[0]][:, classes[0]])
    rest = float(np.abs(law - matrix.T @ law).sum())
    if not rest <= _RESIDUAL:
        raise NotConverged(f"the law of an induced chain has a residual of {rest:.2g}; measure by simulation")
    return law


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
    def _outcomes(self) -> Outcomes:
        """Beside endless decodes requests end with their prompts."""
        if self.plenty is Plenty.PROMPTS:
            law = request_law(self.lengths, memoryless=True, tail=TAIL)
        else:
            law = request_law(self.lengths.with_mean_decode(0), memoryless=False, tail=TAIL)
        return Outcomes(engine=self.engine, scheduler=self.scheduler, law=law)

    @cached_property
    def _start(self) -> State:
        """The endless decodes."""
        decodes = 0 if self.plenty is Plenty.PROMPTS else self.engine.slots
        return self._outcomes.canonical(State(((0, ENDLESS),) * decodes, tuple(range(decodes))), 0)[0]

    @cached_property
    def _in_reach(self) -> int:
        """Fresh prompts that stand for endless ones: a policy completes all it touches but the last."""
        if not isinstance(self.scheduler, Policy):
            return self.engine.slots
        least = int(self._outcomes.law.prefill.min())
        if self.scheduler.threshold is not None:
            least = min(least, self.scheduler.threshold)
        return min(self.engine.slots, self.engine.b_max // least + 2)

    def _require_blind(self, core: State, unseen: int) -> None:
        """A rule that weighs its backlogs has no drift of its own: it differs from place to place.

        A heuristic: one backlog twice as long is compared, so a rule that heeds a longer one alone is not found out.
        """
        if isinstance(self.scheduler, Policy):
            return
        fresh, old = self._outcomes.lengths[0][0], len(self._start.left)
        more = 0 if self.plenty is Plenty.DECODES else unseen
        for _, known, behind, batch in self._outcomes.batches(core, unseen):
            longer = State(
                (*self._start.left, *known.left), (*range(old), *(old + position for position in known.running))
            )
            if len(self._outcomes.lengths) == 1:
                longer, behind = longer.joined([fresh] * more), 0
            other = self._outcomes.formed(longer, behind + more)
            if (
                other is None
                or [(position - old, tokens) for position, tokens in other.prefill] != batch.prefill
                or len(other.decode) != len(batch.decode)
            ):
                raise AssumptionViolated(
                    f"{self.scheduler.name} forms its batches by how long the backlogs are, so its drift differs from "
                    "place to place; measure its threshold by simulation"
                )

    def _too_large(self, limits: Limits) -> NotConverged:
        return NotConverged(
            f"the chain beside endless {self.plenty.value} has more than {limits.states} states, or its batches more "
            f"than {limits.moves} outcomes; measure by simulation"
        )

    def _explored(self, starts: Iterable[State], waiting: int, limits: Limits = _PLAIN) -> _Chain:
        """The chain with up to ``waiting`` unseen prompts on each line; they are endless where that is 0."""
        outcomes = attrs.evolve(self._outcomes, count=_at_most(limits.moves, self._too_large(limits)))

        def line(core: State) -> Iterator[Step]:
            if waiting:
                for unseen in range(waiting + 1):
                    self._require_blind(core, unseen)
                yield from ranges(outcomes, core, waiting)
            else:
                self._require_blind(core, self._in_reach)
                for outcome in gathered(outcomes.of(core, self._in_reach)):
                    yield self._in_reach, self._in_reach, outcome

        def found(cores: Sequence[State], rows: Sequence[Any], done: int) -> None:  # noqa: ARG001 - one signature
            if len(cores) * (waiting + 1) > limits.states:
                raise self._too_large(limits)

        cores, columns = search(starts, line, found)
        return self._chain(cores, *counts_of(Sizes(law=outcomes.law), cores), columns, waiting)

    def _explored_compiled(self) -> _Chain:
        """The chain of the decodes in progress from none on; prompts are endless."""
        from queuetheory_llm.markov.policy_space import explore_endless

        pauses = _at_most(_PAUSES, self._too_large(_COMPILED))
        try:
            found = explore_endless(self._outcomes, self._in_reach, _COMPILED, lambda _: pauses())
        except NotConverged:
            raise self._too_large(_COMPILED) from None
        return self._chain(*found, 0)

    def _chain(self, cores: Sequence[State], known: Ints, tokens: Floats, columns: list[Any], waiting: int) -> _Chain:
        counts = [np.full(len(cores), waiting), known, tokens]
        space = space_of(self._outcomes, None, math.inf, cores, counts, columns)
        begun = space.moves.taken
        if not waiting:  # as many stand behind the core after the batch as before
            none = np.zeros_like(begun)
            space = attrs.evolve(space, moves=attrs.evolve(space.moves, low=none, high=none, taken=none))
        return _Chain(space, begun)

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
        if self.plenty is not Plenty.PROMPTS:
            starts = [self._start]
        canonical = [self._outcomes.canonical(start, 0)[0] for start in starts]
        chain = self._beside_prompts(canonical)
        found = recurrence_of(chain.space.matrix()).classes
        return tuple(chain.within(states).rates(self.lengths.mean_prefill) for states in found)

    def _beside_prompts(self, starts: Sequence[State]) -> _Chain:
        """The chain with endless prompts; compiled where it is large, may be, and starts without decodes."""
        if not isinstance(self.scheduler, Policy) or self.plenty is not Plenty.PROMPTS or starts != [State()]:
            return self._explored(starts, 0)
        try:
            return self._explored(starts, 0, _COLD)
        except NotConverged:
            return self._explored_compiled()

    # ------------------------------------------------------------------------------------------- endless decodes

    def beside_decodes(self, rate: float, arrivals: Arrivals | None = None) -> Rates:
        """Rates with decodes endless and prompts arriving at ``rate`` requests/s, Poisson or slotted.

        The prompts waiting are cut at a number that is doubled until nothing moves.

        Raises
        ------
        NotConverged
            If that takes too many states.
        """
        waiting, before = _FIRST_WAITING, None
        while True:
            value = self._queue(waiting, rate, arrivals).rates(self.lengths.mean_prefill)
            if before is not None and abs(float(value.decode) - float(before.decode)) <= _AGREE * float(value.decode):
                return value
            waiting, before = 2 * waiting, value

    def _queue(self, waiting: int, rate: float, arrivals: Arrivals | None) -> _Chain:
        """The chain of the prompts in progress and waiting, explored once for all rates."""
        if waiting not in self._queues:
            self._queues[waiting] = self._explored([self._start], waiting)
        chain = self._queues[waiting]
        durations = tuple(
            attrs.evolve(each, arrivals=arrivals_law(arrivals, each.seconds, rate)) for each in chain.space.durations
        )
        return attrs.evolve(chain, space=attrs.evolve(chain.space, durations=durations))

    @cached_property
    def _queues(self) -> dict[int, _Chain]:
        return {}
