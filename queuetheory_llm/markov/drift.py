"""The drift of the token backlog, state by state: a bound on the time to a set of states, read off the explored ones.

V is the expected token backlog. From one boundary to the next it changes on average by what arrives less what is
served, Delta(s). Where Delta(s) <= -eps outside a set F, the time to reach F from s is at most V(s)/eps boundaries on
average (Foster 1953; Dynkin's formula). In seconds it is at most V(s)/eps' where V falls by eps' times the mean time to
the next boundary, or more.

Both hold on the states explored, for refused requests only lower V. For the engine itself the same fall is needed in
the states beyond the level too: then F is finite, and the chain positive recurrent. The level shows whether that is
likely, see `AtLevel`.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.markov.edge import line_ends, may_refuse
from queuetheory_llm.markov.rewards import Rewards

# Tokens, and share of eps, that a drift is off by rounding at most. It is a difference of two sums of about 1e3 tokens,
# each right to 1e-15 of itself or a few times that.
_ROUNDING = 1e-9
_DIGITS = 9  # of the mean tokens of a batch: what differs beyond them differs by rounding


class AtLevel(Enum):
    """What the explored states at the level say of F; the value is the word used in JSON.

    ``BOUNDED``: V falls by eps or more in all of them. ``UNBOUNDED``: in some, where requests wait, V does not fall, so
    F is as deep as the level. ``NOT_SEEN``: neither; there is no such state, or it has too few requests for a batch.
    """

    BOUNDED = "BOUNDED"
    UNBOUNDED = "UNBOUNDED"
    NOT_SEEN = "NOT_SEEN"


@attrs.frozen(kw_only=True)
class DriftRow:
    """The states whose batches have one size.

    Attributes
    ----------
    tokens : float
        Expected tokens of the batch; 0 is the idle engine.
    states : int
    seconds, drift : float
        Mean duration, and mean change of V until the next boundary in tokens, over the states by their chance.
    chance : float
        Share of the boundaries.
    exceptional : bool
        Whether one of them is in F.
    least, most : float
        Smallest and largest V of the states, tokens.
    steps : float or None
        Bound on the mean number of boundaries until F is reached, from whichever state of these is the furthest.
    """

    tokens: float
    states: int
    seconds: float
    drift: float
    chance: float
    exceptional: bool
    least: float
    most: float
    steps: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True, eq=False)
class DriftTable:
    """The drift of V = token backlog.

    Attributes
    ----------
    rewards : Rewards
    law : float64 array of shape (states,)
        The stationary law at boundaries.
    at_level : AtLevel
        What the states at the level say of F.
    closed : bool
        Whether no request is ever refused: then the states explored are all that the engine reaches.
    epsilon : float or None
        V falls outside F by so many tokens a boundary, or more; None where F is unbounded or every state.
    exceptional : int64 array
        F: the numbers of its states.
    """

    rewards: Rewards
    law: Floats
    at_level: AtLevel
    closed: bool
    epsilon: float | None
    exceptional: Ints

    @cached_property
    def backlog(self) -> Floats:
        """V; shape (states,)."""
        return self.rewards.space.backlog()

    @cached_property
    def depth(self) -> float:
        """Largest V in F, tokens."""
        return float(self.backlog[self.exceptional].max(initial=0.0))

    @cached_property
    def epsilon_per_second(self) -> float | None:
        """V falls outside F by so many tokens a second, or more; None where there is no ``epsilon``."""
        if self.epsilon is None:
            return None
        fall = -self.rewards.drift() / self.rewards.seconds
        return float(np.delete(fall, self.exceptional).min())

    def boundaries_to_exceptional(self) -> Floats | None:
        """V/eps, and 0 in F: a bound on the mean number of boundaries until F is reached; shape (states,).

        It holds for the chain of the states explored; see the module. None where there is no ``epsilon``.
        """
        return self._until(self.epsilon)

    def seconds_to_exceptional(self) -> Floats | None:
        """The same in seconds."""
        return self._until(self.epsilon_per_second)

    def _until(self, fall: float | None) -> Floats | None:
        if fall is None:
            return None
        bound = self.backlog / fall
        bound[self.exceptional] = 0.0
        return bound

    @cached_property
    def rows(self) -> tuple[DriftRow, ...]:
        """By tokens of the batch, ascending."""
        return _rows(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the bounds on the way to F are averages over the boundaries."""
        steps, seconds = self.boundaries_to_exceptional(), self.seconds_to_exceptional()
        return {
            "exceptional_set": self.at_level.value,
            "every_state_explored": self.closed,
            "epsilon_tokens": self.epsilon,
            "epsilon_tokens_per_s": self.epsilon_per_second,
            "exceptional_states": int(self.exceptional.size),
            "exceptional_reach_tokens": self.depth,
            "mean_steps_to_exceptional": None if steps is None else float(self.law @ steps),
            "mean_seconds_to_exceptional": None if seconds is None else float(self.law @ seconds),
            "rows": [row.to_dict() for row in self.rows],
        }


def drift_table(rewards: Rewards, weight: Floats) -> DriftTable:
    """The drift of each state, and the set F outside which V falls.

    The states at the level are those at the ends of lines where an arrival may be refused. Where V falls in all of
    them, eps is the least of these falls and F every state with a smaller one. Otherwise F is where V does not fall; it
    is unbounded if some state of it at the level has more requests than its batch has tokens, so that more requests
    would not make the batch larger just by being there.

    Parameters
    ----------
    rewards : Rewards
    weight : float64 array of shape (states,)
        The stationary law at boundaries.
    """
    fall, space = -rewards.drift(), rewards.space
    refusing = may_refuse(space)
    last = line_ends(space) & refusing
    rising = last & (fall <= _ROUNDING)
    found = AtLevel.NOT_SEEN
    if (space.requests() > rewards.batch_tokens)[rising].any():
        found = AtLevel.UNBOUNDED
    elif last.any() and not rising.any():
        found = AtLevel.BOUNDED
    falling = fall[last] if found is AtLevel.BOUNDED else fall[fall > _ROUNDING]
    epsilon = float(falling.min()) if falling.size else None
    inside = np.full(fall.size, True) if epsilon is None else fall < epsilon * (1 - _ROUNDING)
    return DriftTable(
        rewards=rewards,
        law=weight,
        at_level=found,
        closed=not refusing.any(),
        epsilon=None if found is AtLevel.UNBOUNDED else epsilon,
        exceptional=np.flatnonzero(inside),
    )


def _rows(table: DriftTable) -> tuple[DriftRow, ...]:
    """One row for each expected number of tokens in a batch."""
    rewards, weight, backlog = table.rewards, table.law, table.backlog
    sizes, where = np.unique(np.round(rewards.batch_tokens, _DIGITS), return_inverse=True)
    states = np.bincount(where)
    chance = np.bincount(where, weights=weight)
    # States of chance 0, such as those passed once from the empty engine, count alike where all of a row are such.
    even = np.where(chance[where] > 0, weight / np.where(chance[where] > 0, chance[where], 1.0), 1 / states[where])
    least, most, steps = np.full(sizes.size, np.inf), np.zeros(sizes.size), np.zeros(sizes.size)
    np.minimum.at(least, where, backlog)
    np.maximum.at(most, where, backlog)
    until = table.boundaries_to_exceptional()
    if until is not None:
        np.maximum.at(steps, where, until)
    seconds = np.bincount(where, weights=even * rewards.seconds)
    mean = np.bincount(where, weights=even * rewards.drift())
    inside = np.bincount(where[table.exceptional], minlength=sizes.size) > 0
    return tuple(
        DriftRow(
            tokens=float(sizes[row]),
            states=int(states[row]),
            seconds=float(seconds[row]),
            drift=float(mean[row]),
            chance=float(chance[row]),
            exceptional=bool(inside[row]),
            least=float(least[row]),
            most=float(most[row]),
            steps=None if until is None else float(steps[row]),
        )
        for row in range(sizes.size)
    )
