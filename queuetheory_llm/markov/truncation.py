"""How far the cut chain is from the whole one: levels are doubled until an error bound says that it does not matter.

With Q the chain cut at N and P the one cut at 2N, let h solve (I - P) h = f - f* T, f* the mean of P over time. Then,
exactly, the mean of Q differs from f* by the sum over the transitions that Q refuses of pi(s) p (h(where it was put) -
h(where it led)), over the mean time between boundaries; taking absolute values gives a bound. What P itself refuses is
estimated with the slope of h below it. A small residual of pi is no small error of a mean: it is weighed by h.
The bounds are honest, not rigorous: h is that of P, and what lies beyond 2N is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.explore import Limits, explore
from queuetheory_llm.markov.laws import requests_at_boundaries
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.poisson_equation import Embedding, PoissonEquation
from queuetheory_llm.markov.reach import reached
from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.markov.space import Floats
from queuetheory_llm.markov.stationary import Stationary, stationary
from queuetheory_llm.model.arrivals import Arrivals

#: Called with a sentence about what is going on.
Told = Callable[[str], None]

#: Bytes that building and solving take at most, for each state and each move.
STATE_BYTES, MOVE_BYTES = 400, 160
_MOST_LEVELS = 40
_TAIL = (1e-2, 1e-9)  # between these the tail is geometric
_SPARE = 1e-2  # of the tolerance: share of the requests refused where the bounds are likely to meet it
_UNBENT = 1e4  # times the refused share: of such a tail the ratio is off by about 1e-4 at most
_BEYOND = 4  # times the steepest slope of h below a level: the slope that a request refused there is charged with
_LOOSEST = 1e-6  # residual of h, as a share of the largest cost
_LEAST_TAIL = 4  # numbers of requests in between
_STEADY = 1e-2  # relative change of the ratio where the tail counts as geometric


@attrs.frozen(kw_only=True)
class Means:
    """Averages over time.

    Attributes
    ----------
    requests, backlog, prompts : float
        Requests present, tokens left of them, requests with prompt tokens left.
    idle : float
        Share of the time without a request.
    seconds : float
        Mean time between boundaries.
    """

    requests: float
    backlog: float
    prompts: float
    idle: float
    seconds: float

    @classmethod
    def of(cls, rewards: Rewards, weight: Floats) -> Means:
        """Under the law ``weight`` at boundaries."""
        seconds = float(weight @ rewards.seconds)
        parts = {name: float(weight @ getattr(rewards, name)) / seconds for name in MEANS}
        return cls(**parts, seconds=seconds)


#: The averages over time, by the names of their integrals in `Rewards`.
MEANS = ("requests", "backlog", "prompts", "idle")


@attrs.frozen(kw_only=True, eq=False)
class Cut:
    """A chain cut at a level, solved.

    Attributes
    ----------
    rewards : Rewards
        With the operator and its states.
    stationary : Stationary
    means : Means
    mass : float
        Share of the boundaries at which a request is refused.
    lost : float
        Requests refused at a boundary on average.
    """

    rewards: Rewards
    stationary: Stationary
    means: Means
    mass: float
    lost: float

    @property
    def operator(self) -> Operator:
        """P."""
        return self.rewards.operator

    @property
    def level(self) -> float:
        """N, tokens."""
        return self.rewards.space.level

    @property
    def lost_share(self) -> float:
        """Share of the requests that is refused."""
        return self.lost / (self.means.seconds * float(self.rewards.arrivals.rate))


@attrs.frozen(kw_only=True)
class Truncation:
    """Where the chain is cut and what that does.

    Attributes
    ----------
    level : float
        N, tokens.
    states, moves, transitions : int
    mass : float
        Share of the boundaries at which a request is refused.
    bounds : dict of str to float
        Bound on the error of each mean of `MEANS`.
    checked_at : float
        Level of the chain that the bounds come from, tokens.
    residual : float
        ||pi - pi P||_1.
    method : str
        How pi was solved for.
    """

    level: float
    states: int
    moves: int
    transitions: int
    mass: float
    bounds: dict[str, float]
    checked_at: float
    residual: float
    method: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``bound`` is that of the mean number of requests."""
        return {**attrs.asdict(self), "bound": self.bounds["requests"]}


@attrs.frozen(kw_only=True, eq=False)
class Question:
    """A chain and how exactly it is wanted.

    Parameters
    ----------
    outcomes : Outcomes
    arrivals : Arrivals
    tolerance : float
        Largest error bound of a mean, as a share of it; of the idle time as it is.
    memory : int
        Bytes.
    told : callable, optional
    """

    outcomes: Outcomes
    arrivals: Arrivals
    tolerance: float
    memory: int
    told: Told | None = None

    @property
    def mean(self) -> float:
        """m, tokens."""
        return self.outcomes.law.mean_tokens

    def tell(self, text: str) -> None:
        """Report progress."""
        if self.told is not None:
            self.told(text)

    @property
    def limits(self) -> Limits:
        """Half the memory for each of states and moves."""
        return Limits(states=self.memory // (2 * STATE_BYTES), moves=self.memory // (2 * MOVE_BYTES))

    def answer(self, first: float, *, only: bool = False) -> tuple[Cut, Truncation]:
        """The chain cut where the bounds are within the tolerance: levels from ``first`` tokens on, doubled until then.

        Parameters
        ----------
        first : float
        only : bool
            Do not raise the level.

        Raises
        ------
        NotConverged
            If no level within the memory does it; says which one would.
        """
        found = [self.cut(first, None)]
        for _ in range(_MOST_LEVELS):
            cut = found[-1]
            try:
                larger = self.cut(2 * cut.level, found)
            except NotConverged as error:
                raise NotConverged(f"{error}; {self._needed(found)}") from None
            # A share of the requests that is refused changes the means by about that share, at the very least.
            if cut.lost_share <= self.tolerance:
                bounds = self._bounds(cut, larger)
                if self._within(bounds, cut.means):
                    return cut, _truncation(cut, larger, bounds)
            found.append(larger)
            if only:
                break
        raise NotConverged(
            f"cut at {found[0].level:g} tokens the means are not known to {self.tolerance:g} of themselves; "
            f"{self._needed(found)}"
        )

    def cut(self, level: float, before: Sequence[Cut] | None) -> Cut:
        """The chain cut at ``level`` and solved; refused unbuilt where those ``before`` show that it is too large."""
        limits = self.limits
        if before:
            self._require_room(level, before, limits)
        self.tell(f"exploring the states up to {level:g} tokens")
        space = reached(explore(self.outcomes, self.arrivals, level, limits))
        self.tell(f"solving for {len(space)} states")
        rewards = Rewards(operator=Operator(space), arrivals=self.arrivals, law=self.outcomes.law)
        law = stationary(rewards.operator)
        mass, lost = rewards.operator.refused(law.law)
        return Cut(rewards=rewards, stationary=law, means=Means.of(rewards, law.law), mass=mass, lost=lost)

    def _require_room(self, level: float, before: Sequence[Cut], limits: Limits) -> None:
        """States grow like a power of the level."""
        sizes = [len(cut.operator) for cut in before]
        growth = sizes[-1] / sizes[-2] if len(sizes) > 1 else 2.0
        states = sizes[-1] * growth ** np.log2(level / before[-1].level)
        if states > 1.5 * limits.states:
            raise NotConverged(
                f"the chain up to {level:g} tokens has about {states:.2g} states, {states * STATE_BYTES / 1e9:.2g} GB, "
                f"and half of --memory, {self.memory / 2e9:.2g} GB, is for them; give more"
            )

    def _bounds(self, cut: Cut, larger: Cut) -> dict[str, float]:
        """A bound on the error of each mean: refused requests, the residuals of both laws, and the error of h."""
        self.tell(f"bounding the error of the cut at {cut.level:g} tokens")
        equation = PoissonEquation(larger.operator, larger.stationary.law)
        inside = Embedding(cut.operator, larger.operator)
        law = cut.stationary.law
        residual = np.abs(law - cut.operator.push(law))
        bounds = {}
        for name in MEANS:
            cost = getattr(larger.rewards, name) - getattr(larger.means, name) * larger.rewards.seconds
            h = equation.solve(cost, tolerance=min(_LOOSEST, self.tolerance / 100))
            refused = inside.refusal_error(law, h.values)[0]
            # h is about a square in the backlog, and flattened towards the level: beyond it, it is steeper than below.
            refused += _BEYOND * steepest(larger.operator, h.values) * larger.lost
            rounding = float(residual @ np.abs(inside.restricted(h.values))) + abs(h.mean) + h.weighted
            bounds[name] = (refused + rounding) / cut.means.seconds
        return bounds

    def _within(self, bounds: dict[str, float], means: Means) -> bool:
        """Whether every bound is within the tolerance: of its mean, the idle time absolutely."""
        return all(
            bound <= self.tolerance * (1.0 if name == "idle" else getattr(means, name))
            for name, bound in bounds.items()
        )

    def _needed(self, found: Sequence[Cut]) -> str:
        """The level that would do, from how the refused share falls with the level."""
        last = found[-1]
        if last.lost_share <= self.tolerance * _SPARE:
            share = f"{last.lost_share:.1g} of the requests"
            return f"it would check the one up to {last.level:g} tokens, which refuses {share}"
        if len(found) > 1 and found[-2].lost_share > 0:
            rate = np.log(found[-2].lost_share / last.lost_share) / (last.level - found[-2].level)
        else:
            law = requests_at_boundaries(last.rewards, last.stationary.law)
            tail = tail_of(law, last.mass)
            rate = 0.0 if tail is None else -np.log(tail.decay) / self.mean
        if rate <= 0:
            return (
                f"{last.lost_share:.2g} of the requests is refused there, and it does not fall with the level: the "
                "system may be unstable, or too near its edge"
            )
        level = last.level + float(np.log(last.lost_share / (self.tolerance * _SPARE))) / rate
        return f"a level of about {level:.2g} tokens would do, and one twice as high to check it"


def steepest(operator: Operator, values: Floats) -> float:
    """Largest change of a function of the states by one request more behind a core."""
    change = np.abs(np.diff(values))
    change[operator.space.first[1:-1] - 1] = 0.0  # from one line to the next
    return float(change.max(initial=0.0))


@attrs.frozen
class Tail:
    """How a law falls far out.

    Attributes
    ----------
    decay : float
        P(N > n + 1)/P(N > n), from ``start`` to ``end``.
    start, end : int
        Numbers it was read between; what it tends to beyond them may be a little less or more.
    """

    decay: float
    start: int
    end: int


def tail_of(law: Floats, mass: float = 0.0) -> Tail | None:
    """The geometric tail of a law; None where the law is too short, or its ratio not steady.

    Refusing a share ``mass`` of the arrivals bends the tail where it is not much larger than that.
    """
    beyond = np.cumsum(law[::-1])[::-1][1:]
    far = np.flatnonzero((beyond < _TAIL[0]) & (beyond > max(_TAIL[1], _UNBENT * mass)))
    if far.size < _LEAST_TAIL:
        return None
    start, middle, end = far[far.size // 2 - 1], far[(3 * far.size) // 4 - 1], far[-1]
    first, second = (
        float((beyond[high] / beyond[low]) ** (1 / (high - low))) for low, high in ((start, middle), (middle, end))
    )
    return Tail(second, int(middle), int(end)) if abs(first - second) <= _STEADY * second else None


def _truncation(cut: Cut, larger: Cut, bounds: dict[str, float]) -> Truncation:
    return Truncation(
        level=cut.level,
        states=len(cut.operator),
        moves=len(cut.operator.space.moves),
        transitions=cut.operator.transitions,
        mass=cut.mass,
        bounds=bounds,
        checked_at=larger.level,
        residual=cut.stationary.residual,
        method=cut.stationary.method.value,
    )
