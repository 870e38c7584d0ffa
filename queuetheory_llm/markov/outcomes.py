"""What a batch can lead to: the model of one engine with lengths that are drawn when the rule first looks at them.

The state at a batch boundary is a *core*, the requests whose lengths the rule has looked at, and the number of requests
behind it whose lengths nobody has looked at yet. Those are independent of all that happened, so they need no place in
the state. No rule looks at a decode length, so one of a kind (see `DecodeKind`) is drawn when its first token is
served, and until then requests of one kind are alike; a memoryless one is never drawn. The chain is the one of Dai et
al. 2025, section 2, lumped; every rule is asked through its own `form`.

With decodes in the core that are `ENDLESS`, the same model has a backlog of decodes that never ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, product
from operator import index
from typing import Any

import attrs

from queuetheory_llm.errors import InfeasibleRequest, InvalidInput
from queuetheory_llm.model.chances import DecodeKind, RequestLaw, binomial_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.array_rule import ArrayRule
from queuetheory_llm.schedulers.limits import BrokenLimit, checked_tokens, refusal, require_batch
from queuetheory_llm.schedulers.policy import Batch, Pass, Policy, Scheduler, View
from queuetheory_llm.schedulers.state import ENDLESS, Left, State


@attrs.frozen
class Outcome:
    """One outcome of a batch, before the requests that arrive meanwhile.

    Attributes
    ----------
    chance : float
    tokens : int
        Tokens of the batch.
    core : State
        The requests looked at that are left, in canonical form.
    unseen : int
        Requests behind them.
    """

    chance: float
    tokens: int
    core: State
    unseen: int


class _Unseen(Exception):
    """The rule looks at a length that is not drawn yet."""


class _Drawn(Sequence[int]):
    """``prefill_left`` of a view whose last requests are not drawn yet."""

    def __init__(self, known: Sequence[int], unseen: int) -> None:
        self._known, self._drawn = known, len(known) - unseen

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, request: Any) -> Any:
        if isinstance(request, slice):
            raise _Unseen
        place = index(request)
        if not -len(self._known) <= place < self._drawn:
            raise _Unseen
        return self._known[place]


@attrs.frozen(kw_only=True, eq=False)
class Outcomes:
    """The outcomes of every batch of a rule.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler
    law : RequestLaw
        Of the lengths of a request.
    count : callable, optional
        Called for each outcome, and may refuse more: they multiply with every length that a batch has to draw.

    Raises
    ------
    InfeasibleRequest
        If the rule takes prompts whole and one is beyond its budget.
    """

    engine: Engine
    scheduler: Scheduler
    law: RequestLaw
    count: Callable[[], None] | None = None

    def __attrs_post_init__(self) -> None:
        """A request that can never be served would leave the rule without a batch."""
        rule = self.scheduler
        limit = rule.longest_prompt(self.engine.b_max) if isinstance(rule, Policy) else None
        if limit is not None and self.law.prefill.max() > limit:
            raise InfeasibleRequest(
                f"workload: a prompt of {self.law.prefill.max()} tokens can never run under {rule.name}, which takes "
                f"prompts whole within {limit} tokens; raise b_max or use a rule that splits prompts (+chunk)"
            )

    @cached_property
    def lengths(self) -> tuple[tuple[Left, float], ...]:
        """The lengths a request can have, with their chances."""
        pairs = zip(self.law.prefill.tolist(), self.law.decode.tolist(), strict=True)
        return tuple(zip(pairs, self.law.chance.tolist(), strict=True))

    @cached_property
    def seated(self) -> bool:
        """Whether the rule asks who holds a seat, and of the others only in order of arrival."""
        return isinstance(self.scheduler, Policy) and Pass.RUNNING in self.scheduler.passes

    @cached_property
    def phased(self) -> bool:
        """Whether the rule asks of a request only its phase, its place in order of arrival and its prompt."""
        return isinstance(self.scheduler, Policy) and not self.seated

    @cached_property
    def hidden(self) -> bool:
        """Whether requests can stay unseen: a phase is seen at once, so it must be the same for all or not asked.

        A rule on arrays is shown all that is left of every prompt.
        """
        phases = {prefill > 0 for (prefill, _), _ in self.lengths}
        return self.seated or len(self.lengths) == 1 or (len(phases) == 1 and not isinstance(self.scheduler, ArrayRule))

    @cached_property
    def alike(self) -> bool:
        """Whether nothing ever tells two decoding requests apart but their order of arrival or service."""
        return {decode for (_, decode), _ in self.lengths} == {-1} and self.law.kinds[0].memoryless

    def of(self, core: State, unseen: int) -> Iterator[Outcome]:
        """Every outcome of the batch formed with ``unseen`` requests behind ``core``; their chances sum to 1."""
        for chance, known, behind, batch in self.batches(core, unseen):
            for share, after in self._finishes(known, batch):
                if self.count is not None:
                    self.count()
                kept, left = self.canonical(after, behind)
                yield Outcome(chance * share, batch.tokens, kept, left)

    def batches(self, core: State, unseen: int) -> Iterator[tuple[float, State, int, Batch]]:
        """Every batch formed with ``unseen`` requests behind ``core``: its chance, and between which requests.

        Those are the requests looked at, the lengths that were drawn for it included, and the number behind them.
        """
        if len(self.lengths) == 1:  # there is nothing to draw
            core, unseen = core.joined([self.lengths[0][0]] * unseen), 0
        pending = [(core, unseen, 1.0)]
        while pending:
            core, unseen, chance = pending.pop()
            batch = self.formed(core, unseen)
            if batch is None:
                pending.extend((core.joined([left]), unseen - 1, chance * share) for left, share in self.lengths)
            else:
                yield chance, core, unseen, batch

    def formed(self, core: State, unseen: int) -> Batch | None:
        """The batch; None when the length of the next request behind ``core`` has to be drawn first."""
        if unseen and not self.hidden:
            return None
        fresh = self.lengths[0][0]
        known = len(core.left)
        view = core.joined([fresh] * unseen).view(self.engine.b_max, self.engine.k_max)
        if unseen:
            view.prefill_left = _Drawn(view.prefill_left, unseen)
        try:
            batch = self._checked(view)
        except _Unseen:
            return None
        served = [request for request, _ in batch.prefill] + batch.decode
        return batch if max(served) < known else None

    def _checked(self, view: View) -> Batch:
        batch = self.scheduler.form(view)
        if isinstance(self.scheduler, Policy):
            return batch
        try:
            require_batch(batch)
            checked_tokens(batch, view, view.present)
        except BrokenLimit as broken:
            raise refusal(self.scheduler.name, view, 0, 0.0, broken) from None
        if self.scheduler.form(view) != batch:
            raise InvalidInput(
                f"scheduler {self.scheduler.name}: it formed two different batches from one state; the chain needs a "
                "rule without memory and without randomness of its own, other rules can be simulated"
            )
        return batch

    def _finishes(self, core: State, batch: Batch) -> Iterator[tuple[float, State]]:
        """What becomes of the decode lengths of a kind that were served, with the state then.

        Served requests of memoryless length that stand next to each other in every order, and decode by one law, are
        only counted. Of the others each gets a length, for a later batch may serve some of them alone.
        """
        after, place = core.followed(batch)
        if not self.law.kinds:
            yield 1.0, after
            return
        served = [place[position] for position in batch.decode if position in place]
        drawn = sorted(position for position in served if ENDLESS < after.left[position][1] < 0)
        rank = {position: index for index, position in enumerate(after.running)}
        blocks = [
            [position for _, position in block]
            for _, block in groupby(
                enumerate(drawn),
                lambda each: (
                    after.left[each[1]],
                    each[1] - each[0],
                    rank[each[1]] - each[0],
                    None if self._kind(after.left[each[1]]).memoryless else each[1],
                ),
            )
        ]
        for each in product(*(self._drawn(block, after) for block in blocks)):
            share = 1.0
            decodes: dict[int, int] = {}
            for chance, left in each:
                share *= chance
                decodes.update(left)
            if share:
                yield share, _decoded(after, decodes)

    def _kind(self, left: Left) -> DecodeKind:
        """The kind of a decode length that is not known."""
        return self.law.kinds[-1 - left[1]]

    def _drawn(self, block: list[int], after: State) -> list[tuple[float, dict[int, int]]]:
        """The ways in which a block of served decodes goes on: the chance, and decode tokens left where they change."""
        kind = self._kind(after.left[block[0]])
        if kind.memoryless:
            law = binomial_law(len(block), 1 / float(kind.mean)).tolist()
            return [(chance, dict.fromkeys(block[:count], 0)) for count, chance in enumerate(law)]
        pairs = zip(kind.values, kind.chances, strict=True)
        return [(chance, dict.fromkeys(block, value - 1)) for value, chance in pairs]

    def canonical(self, state: State, unseen: int) -> tuple[State, int]:
        """The same for every state that the rule and its future cannot tell from this one.

        Where all requests are alike those at the end that were not served are as good as unseen.
        """
        left, running = state.left, state.running
        if self.seated:
            waiting = sorted(set(range(len(left))).difference(running))
            left = tuple(left[position] for position in (*running, *waiting))
            running = tuple(range(len(running)))
        elif self.phased:
            running = ()
            if self.alike:
                left = (*(each for each in left if not each[0]), *(each for each in left if each[0]))
        if len(self.lengths) == 1:
            fresh, end = self.lengths[0][0], len(left)
            while end and left[end - 1] == fresh and end - 1 not in running:
                end -= 1
            left, unseen = left[:end], unseen + len(left) - end
        return State(left, running), unseen


def _decoded(state: State, decodes: dict[int, int]) -> State:
    """The state with other decode tokens left of some decodes; those with none are gone."""
    kept = [position for position in range(len(state.left)) if decodes.get(position) != 0]
    moved = {old: new for new, old in enumerate(kept)}
    return State(
        tuple((0, decodes[position]) if position in decodes else state.left[position] for position in kept),
        tuple(moved[position] for position in state.running if position in moved),
    )
