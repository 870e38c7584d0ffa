"""What a state is worth until the next boundary: seconds, and integrals over them.

A boundary is the end of a batch with its arrivals, or the arrival that ends an idle time. Between two boundaries the
requests present at the first stay (tokens are credited at the end of a batch), and those that arrive come on top. With
Poisson arrivals of rate r during a batch of t seconds their integral is r t^2/2 on average. Slotted arrivals come at
slot starts, where the boundaries are, so nothing comes on top. An average over time is a ratio of two averages over
boundaries: integral over seconds.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.space import Space
from queuetheory_llm.model.arrivals import Arrivals, SlottedArrivals
from queuetheory_llm.model.chances import RequestLaw
from queuetheory_llm.schedulers.state import State


@attrs.frozen(kw_only=True, eq=False)
class Rewards:
    """Expected integrals from a boundary to the next, for each state; all of shape (states,).

    Parameters
    ----------
    operator : Operator
    arrivals : Arrivals
        Poisson or slotted.
    law : RequestLaw
    seated : bool
        Whether the rule gives seats in order of arrival; see `Outcomes.seated`.
    """

    operator: Operator
    arrivals: Arrivals
    law: RequestLaw
    seated: bool = False

    @property
    def space(self) -> Space:
        """The states."""
        return self.operator.space

    @cached_property
    def move_seconds(self) -> Floats:
        """Duration of each move; shape (moves,)."""
        lasting = np.array([float(each.seconds) for each in self.space.durations])
        return np.asarray(lasting[self.space.moves.duration])

    @cached_property
    def seconds(self) -> Floats:
        """Mean time to the next boundary."""
        return self.operator.expected(self.move_seconds)

    @cached_property
    def coming(self) -> Floats:
        """Integral of the number of requests that arrive before the next boundary; 0 in the idle engine."""
        if isinstance(self.arrivals, SlottedArrivals):
            return np.zeros(len(self.space))
        busy = self.space.moves.tokens > 0
        return self.operator.expected(busy * float(self.arrivals.rate) / 2 * self.move_seconds**2)

    @cached_property
    def requests(self) -> Floats:
        """Integral of the requests present."""
        return self.space.requests() * self.seconds + self.coming

    @cached_property
    def backlog(self) -> Floats:
        """Integral of the token backlog.

        The lengths that a batch draws tell both its duration and the backlog it began with, so the two are multiplied
        outcome by outcome: what is left after the batch, and its own tokens.
        """
        space, moves = self.space, self.space.moves
        began = space.tokens[moves.target] - space.mean * moves.taken + moves.tokens
        unseen = space.mean * space.unseen() * self.seconds
        return np.asarray(self.operator.expected(self.move_seconds * began) + unseen + space.mean * self.coming)

    @cached_property
    def prompts(self) -> Floats:
        """Integral of the requests whose prompt is not done.

        Where some requests have no prompt, such a one counts until the first batch that it is there for, or that gives
        it a seat, has ended: whether it has a prompt is not seen before.
        """
        space, share = self.space, float(self.law.chance[self.law.prefill > 0].sum())
        mixed = 0 < share < 1
        inside = np.array([_in_prompt(core, mixed and self.seated) for core in space.cores])
        behind = 1.0 if mixed else share
        present = np.repeat(inside, np.diff(space.first)) + behind * space.unseen()
        return np.asarray(present * self.seconds + behind * self.coming)

    @cached_property
    def idle(self) -> Floats:
        """Time without a request; the empty engine is state 0."""
        value = np.zeros(len(self.space))
        value[0] = self.seconds[0]
        return value

    @cached_property
    def batch_tokens(self) -> Floats:
        """Tokens of the batch; 0 in the idle engine."""
        return self.operator.expected(self.space.moves.tokens.astype(np.float64))

    def drift(self) -> Floats:
        """E[V at the next boundary] - V, tokens: what arrives less what is served, whatever the rule.

        Arrivals beyond the level are counted: this is the drift of the engine, not of the cut chain.
        """
        law = np.array([each.arrivals @ np.arange(each.arrivals.size) for each in self.space.durations])
        come = self.operator.expected(law[self.space.moves.duration])
        return np.asarray(self.law.mean_tokens * come - self.batch_tokens)


def _in_prompt(core: State, waiting: bool) -> int:
    """Requests of the core with prompt tokens left; with ``waiting`` also those without a seat."""
    seats = set(core.running)
    return sum(prefill > 0 or (waiting and place not in seats) for place, (prefill, _) in enumerate(core.left))
