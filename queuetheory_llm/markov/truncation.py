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

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov.explore import Limits, explore
from queuetheory_llm.markov.laws import requests_at_boundaries, requests_over_time
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.poisson_equation import Embedding, PoissonEquation
from queuetheory_llm.markov.reach import reached
from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.markov.space import Space
from queuetheory_llm.markov.stationary import Method, Stationary, method_for, stationary
from queuetheory_llm.model.arrivals import Arrivals

#: Called with a sentence about what is going on.
Told = Callable[[str], None]

#: Bytes that an answer takes for each state and each move of the larger chain, the smaller one included (measured).
STATE_BYTES, MOVE_BYTES = 650, 150
STEP_BYTES = 120  # for each number of arrivals from each room: the chain of blocks is written out
_ROUGHLY = 1.5  # times the memory: chains that seem larger are not built to find out
_SMALLER = (16, 8)  # parts of an only level at which states are counted first
_MOST_LEVELS = 40
_TAIL = (1e-2, 1e-9)  # between these the tail is geometric
_SPARE = 1e-2  # of the tolerance: share of the requests refused where the bounds are likely to meet it
_UNBENT = 1e-3  # relative change of P(N > n) at the level of the check where the cut does not bend it
_BEYOND = 4  # times the steepest slope of h below a level: the slope that a request refused there is charged with
_LOOSEST = 1e-6  # residual of h, as a share of the largest cost
_LEAST_TAIL = 4  # numbers of requests in between
_STEADY = 1e-2  # of 1 - decay: changes of the ratio up to it count as none


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
    tail : float
        Largest change of P(more than n requests at a boundary) at the level of the check.
    decay : Tail or None
        How P(more than n requests) falls far out; None where that is not known.
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
    tail: float
    decay: Tail | None
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
        Largest error bound of a mean, as a share of it; of the idle time and the tail as they are.
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
        steps = self._smaller(first) if only else []
        cut = self.cut(first, steps)
        steps.append(_Step.of(cut))
        for _ in range(_MOST_LEVELS):
            larger = self._larger(cut, steps)
            # A share of the requests that is refused changes the means by about that share, at the very least.
            if cut.lost_share <= self.tolerance:
                bounds, rounding = self._bounds(cut, larger)
                tail = tail_change(cut, larger)
                if max(tail, *self._relative(bounds, cut.means)) <= self.tolerance:
                    return cut, _truncation(cut, larger, bounds, tail)
                least = max(self._relative(rounding, cut.means))
                if least > self.tolerance:  # which no level mends
                    raise NotConverged(
                        f"rounding alone leaves the means known to {least:.1g} of themselves; give a --tolerance of "
                        f"{10 * least:.0e} or more"
                    )
            cut = larger
            steps.append(_Step.of(cut))
            if only:
                break
        raise NotConverged(
            f"cut at {first:g} tokens the means and the tail are not known to {self.tolerance:g}; {self._needed(steps)}"
        )

    def _larger(self, cut: Cut, steps: Sequence[_Step]) -> Cut:
        """The chain up to twice the level; where that is too large, up to half as much again, which may check it too.

        Raises
        ------
        NotConverged
            If that is too large as well, or the cut is too rough to be the answer.
        """
        try:
            return self.cut(2 * cut.level, steps)
        except NotConverged as error:
            try:
                if cut.lost_share <= self.tolerance:
                    return self.cut(1.5 * cut.level, steps)
            except NotConverged:
                pass
            raise NotConverged(f"{error}; {self._needed(steps)}") from None

    def _smaller(self, level: float) -> list[_Step]:
        """Sizes of smaller chains, to tell what the chain up to the only ``level`` takes before it is built."""
        parts = [level / part for part in _SMALLER if level / part >= self.mean]
        return [_Step(level=part, states=len(self._explored(part)), lost_share=None) for part in parts]

    def _explored(self, level: float) -> Space:
        """The states up to ``level``, or NotConverged where they are more than the memory holds."""
        limits = Limits(states=self.memory // STATE_BYTES, moves=self.memory // MOVE_BYTES)
        space = explore(
            self.outcomes,
            self.arrivals,
            level,
            limits,
            lambda states: self.tell(f"exploring the states up to {level:g} tokens: {states} so far"),
        )
        iterative = method_for(len(space), space.transitions) is Method.ITERATIVE
        self._require_memory(level, len(space), len(space.moves), _stepped(space) if iterative else 0)
        return space

    def cut(self, level: float, before: Sequence[_Step] = ()) -> Cut:
        """The chain cut at ``level`` and solved; refused unbuilt where those ``before`` show that it is too large."""
        if before:
            self._require_room(level, before)
        self.tell(f"exploring the states up to {level:g} tokens")
        space = reached(self._explored(level))
        what = f"solving for {len(space)} states up to {level:g} tokens"
        self.tell(what)
        outcomes = self.outcomes
        rewards = Rewards(operator=Operator(space), arrivals=self.arrivals, law=outcomes.law, seated=outcomes.seated)
        law = stationary(rewards.operator, progress=lambda _, rest: self.tell(f"{what}: residual {rest:.0e}"))
        mass, lost = rewards.operator.refused(law.law)
        return Cut(rewards=rewards, stationary=law, means=Means.of(rewards, law.law), mass=mass, lost=lost)

    def _require_room(self, level: float, before: Sequence[_Step]) -> None:
        """Refuse what is beyond the memory by far; states grow like a power of the level."""
        last = before[-1]
        growth = 2.0
        if len(before) > 1:
            growth = (last.states / before[-2].states) ** (1 / np.log2(last.level / before[-2].level))
        states = last.states * growth ** np.log2(level / last.level)
        if states * STATE_BYTES > _ROUGHLY * self.memory:
            self._require_memory(level, float(f"{states:.2g}"), 0)

    def _require_memory(self, level: float, states: float, moves: int, steps: int = 0) -> None:
        """Refuse a chain that takes more than the memory."""
        needed = states * STATE_BYTES + moves * MOVE_BYTES + steps * STEP_BYTES
        if needed > self.memory:
            raise NotConverged(
                f"the chain up to {level:g} tokens has about {states:.3g} states and takes {needed / 1e9:.2g} GB, more "
                f"than the {self.memory / 1e9:.2g} GB of --memory"
            )

    def _bounds(self, cut: Cut, larger: Cut) -> tuple[dict[str, float], dict[str, float]]:
        """A bound on the error of each mean: refused requests and rounding; and the part that is rounding.

        Rounding is what the residuals of both laws and of h let the mean be wrong by.
        """
        self.tell(f"bounding the error of the cut at {cut.level:g} tokens")
        equation = PoissonEquation(larger.operator, larger.stationary.law)
        inside = Embedding(cut.operator, larger.operator)
        law = cut.stationary.law
        residual = np.abs(law - cut.operator.push(law))
        bounds, parts = {}, {}
        for name in MEANS:
            cost = getattr(larger.rewards, name) - getattr(larger.means, name) * larger.rewards.seconds
            h = equation.solve(cost, tolerance=min(_LOOSEST, _SPARE * self.tolerance))
            refused = inside.refusal_error(law, h.values)[0]
            # h is about a square in the backlog, and flattened towards the level: beyond it, it is steeper than below.
            refused += _BEYOND * steepest(larger.operator, h.values) * larger.lost
            rounding = float(residual @ np.abs(inside.restricted(h.values)) + law @ inside.restricted(np.abs(h.rest)))
            parts[name] = (rounding + abs(h.mean)) / cut.means.seconds
            bounds[name] = refused / cut.means.seconds + parts[name]
        return bounds, parts

    def _relative(self, bounds: dict[str, float], means: Means) -> list[float]:
        """The bounds as shares of their means; that of the idle time as it is."""
        return [bound / (1.0 if name == "idle" else getattr(means, name) or 1.0) for name, bound in bounds.items()]

    def _needed(self, steps: Sequence[_Step]) -> str:
        """The level that would do, from how the refused share falls with the level."""
        solved = [step for step in steps if step.lost_share is not None]
        if not solved:
            return "give more, or a lower --level"
        last, share = solved[-1], solved[-1].lost_share or 0.0
        if share <= self.tolerance * _SPARE:
            return f"it would check the one up to {last.level:g} tokens, which refuses {share:.1g} of the requests"
        if len(solved) > 1:
            level, refused = solved[-2].level, solved[-2].lost_share or 0.0
        else:
            smaller = self.cut(max(self.mean, last.level / 2))
            level, refused = smaller.level, smaller.lost_share
        if refused <= share or level == last.level:
            return (
                f"{share:.2g} of the requests is refused at {last.level:g} tokens, no less than at {level:g}: the "
                "system may be unstable, or too near its edge for levels like these"
            )
        rate = float(np.log(refused / share)) / (last.level - level)
        needed = last.level + float(np.log(share / (self.tolerance * _SPARE))) / rate
        return f"a level of about {needed:.2g} tokens would do, and one twice as high to check it"


@attrs.frozen
class _Step:
    """What is kept of a smaller chain: its level, its states and, where it was solved, the share it refuses."""

    level: float
    states: int
    lost_share: float | None

    @classmethod
    def of(cls, cut: Cut) -> _Step:
        """Of a solved chain."""
        return cls(level=cut.level, states=len(cut.operator), lost_share=cut.lost_share)


def tail_change(cut: Cut, larger: Cut) -> float:
    """Largest difference of P(N > n), N the requests at boundaries, between two levels."""
    laws = [requests_at_boundaries(each.rewards, each.stationary.law) for each in (cut, larger)]
    laws[0] = np.append(laws[0], np.zeros(laws[1].size - laws[0].size))
    return float(np.abs(np.cumsum(laws[0] - laws[1])).max())


def _stepped(space: Space) -> int:
    """Transitions of the arrivals alone, along the longest line."""
    return (int(space.room.max()) + 1) * sum(each.arrivals.size for each in space.durations)


def steepest(operator: Operator, values: Floats) -> float:
    """Largest change of a function of the states by one request more behind a core."""
    change = np.abs(np.diff(values))
    change[operator.space.first[1:-1] - 1] = 0.0  # from one line to the next
    return float(change.max(initial=0.0))


def told_tail(cut: Cut, larger: Cut) -> Tail | None:
    """How the law of the requests present falls far out; None where it is too short, not geometric, or bent by the cut.

    The ratio is steady over the range it is read from, and the chain cut twice as far has the same.
    """
    laws = [requests_over_time(each.rewards, each.stationary.law) for each in (cut, larger)]
    near, far = (np.cumsum(law[::-1])[::-1][1:] for law in laws)
    known = np.flatnonzero((near < _TAIL[0]) & (near > _TAIL[1]))
    known = known[known < far.size]
    known = known[np.abs(near[known] - far[known]) <= _UNBENT * far[known]]
    if known.size < _LEAST_TAIL:
        return None
    start, middle, end = (int(known[place]) for place in (known.size // 2 - 1, (3 * known.size) // 4 - 1, -1))

    def ratio(beyond: Floats, low: int, high: int) -> float:
        return float((beyond[high] / beyond[low]) ** (1 / (high - low)))

    decay = ratio(near, start, end)
    others = (ratio(near, start, middle), ratio(near, middle, end), ratio(far, start, end))
    steady = all(abs(each - decay) <= _STEADY * (1 - decay) for each in others)
    return Tail(decay, start, end) if steady else None


def _truncation(cut: Cut, larger: Cut, bounds: dict[str, float], tail: float) -> Truncation:
    return Truncation(
        level=cut.level,
        decay=told_tail(cut, larger),
        states=len(cut.operator),
        moves=len(cut.operator.space.moves),
        transitions=cut.operator.transitions,
        mass=cut.mass,
        bounds=bounds,
        checked_at=larger.level,
        tail=tail,
        residual=cut.stationary.residual,
        method=cut.stationary.method.value,
    )
