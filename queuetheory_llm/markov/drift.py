"""The drift of the token backlog, state by state: a proof of stability that can be read off the chain.

V is the expected token backlog. From one boundary to the next it changes on average by what arrives less what is
served, Delta(s). Where Delta(s) <= -eps outside a finite set F, the time to reach F from s is at most V(s)/eps
boundaries on average (Foster 1953; Dynkin's formula), and the chain is positive recurrent.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.markov.space import Floats, Ints


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
        Whether they are in F.
    least, most : float
        Smallest and largest V of the states, tokens.
    """

    tokens: float
    states: int
    seconds: float
    drift: float
    chance: float
    exceptional: bool
    least: float
    most: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True, eq=False)
class DriftTable:
    """The drift of V = token backlog.

    Attributes
    ----------
    rows : tuple of DriftRow
        By tokens of the batch, ascending.
    epsilon : float
        -Delta outside F, at least; tokens a boundary.
    exceptional : int64 array
        F: the numbers of its states.
    reach : float
        Largest V in F, tokens.
    bounded : bool
        Whether F stays below the level: if not, V is no Lyapunov function of this rule, whatever its stability.
    backlog : float64 array of shape (states,)
        V.
    """

    rows: tuple[DriftRow, ...]
    epsilon: float
    exceptional: Ints
    reach: float
    bounded: bool
    backlog: Floats

    def boundaries_to_exceptional(self) -> Floats:
        """Bound on the mean number of boundaries until F is reached, from each state: V/eps, and 0 in F.

        Nothing is proved where F is not ``bounded``.
        """
        bound = self.backlog / self.epsilon
        bound[self.exceptional] = 0.0
        return bound

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "epsilon_tokens": self.epsilon,
            "exceptional_states": int(self.exceptional.size),
            "exceptional_reach_tokens": self.reach,
            "bounded": self.bounded,
            "rows": [row.to_dict() for row in self.rows],
        }


def drift_table(rewards: Rewards, weight: Floats) -> DriftTable:
    """The drift of each state, grouped by the tokens of its batch.

    eps is the drift of the states that are full of work, those within one mean request of the level; F is every state
    with a smaller downward drift. It is bounded when no state of F is that close to the level.

    Parameters
    ----------
    rewards : Rewards
    weight : float64 array of shape (states,)
        The stationary law at boundaries.
    """
    space = rewards.space
    drift, backlog = rewards.drift(), space.backlog()
    deep = backlog > space.level - space.mean
    epsilon = float(-np.max(drift[deep], initial=-np.inf))
    bounded = bool(deep.any()) and epsilon > 0
    if not bounded:
        epsilon = float(-drift.min())
    exceptional = np.flatnonzero(drift > -epsilon * (1 - 1e-9))
    return DriftTable(
        rows=_rows(rewards, weight, drift, exceptional),
        epsilon=epsilon,
        exceptional=exceptional,
        reach=float(backlog[exceptional].max(initial=0.0)),
        bounded=bounded,
        backlog=backlog,
    )


def _rows(rewards: Rewards, weight: Floats, drift: Floats, exceptional: Ints) -> tuple[DriftRow, ...]:
    """One row for each expected number of tokens in a batch."""
    backlog = rewards.space.backlog()
    outside = np.ones(backlog.size, dtype=bool)
    outside[exceptional] = False
    sizes, where = np.unique(np.round(rewards.batch_tokens, 9), return_inverse=True)
    states = np.bincount(where)
    chance = np.bincount(where, weights=weight)
    # States of chance 0, such as those passed once from the empty engine, count alike where all of a row are such.
    even = np.where(chance[where] > 0, weight / np.where(chance[where] > 0, chance[where], 1.0), 1 / states[where])
    least, most = np.full(sizes.size, np.inf), np.zeros(sizes.size)
    np.minimum.at(least, where, backlog)
    np.maximum.at(most, where, backlog)
    seconds, mean = np.bincount(where, weights=even * rewards.seconds), np.bincount(where, weights=even * drift)
    inside = np.bincount(where, weights=~outside) > 0
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
        )
        for row in range(sizes.size)
    )
