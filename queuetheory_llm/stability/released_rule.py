"""Which share of the calls the released rule of HEXGEN-FLOW sends to each instance, and how much that carries.

The rule sends a call to the largest score alpha t_b/t_m - (1 - alpha) W_m/W_b, where t_m is its t_comp at instance m, b
the base instance and W_m the sum of t_comp of all calls ever sent to m, which never falls. So it sees no queue: it is a
split, and its limit is where the first instance of that split is full.

*One kind of call.* Write x_m = W_m/W_b and, for alpha < 1,

    w_m = max(0, 1 + alpha/(1 - alpha) (t_b/t_m - 1)),  w_b = 1.

The score of m exceeds that of the base by (1 - alpha)(u_m - x_m), u_m the same without the max: the call goes to the
instance with the largest u_m - x_m, which is 0 for the base itself. Then x_m converges to w_m, for every start:

* The base is chosen again and again, so W_b grows without bound: while it is not chosen, each call raises some x_m by
  t_m/W_b, and after finitely many all of them are at u_m or above.
* Whenever the base is chosen, x_m >= u_m for all m, and x_m >= 0 anyway: x_m >= w_m.
* m is chosen only at x_m <= u_m, which needs u_m >= 0; just after it x_m <= w_m + t_m/W_b. Between, x_m only falls. An
  instance that starts above w_m is not chosen until growing W_b has brought it down.

So x_m - w_m is at most t_m/W_b above 0 in the long run, and at most w_m t_b/W_b below it: it vanishes like one over
the number of calls.

*Stability.* W grows for ever, so no state that holds it is recurrent. But a call goes to the largest of
D_m = u_m W_b - W_m, D_b = 0, which moves by u_m t_b when the base is chosen and by -t_m when m is: D alone decides. By
the above D_m is in a bounded set in the long run for u_m >= 0, and for u_m < 0 it falls for ever and m is never chosen
again. So the rule is a deterministic routing by a state in a bounded set that sees no queue, and of n calls it sends
f_m n to m up to a bounded number. Beside the queues D adds a bounded factor to the state, the fluid model is that of
the split, and what is proved of that holds (Dai 1995). Turns are the same with the counter of turns as state, and never
more than one call off.

Who can be in equilibrium are the instances with u_m > 0. One with u_m < 0, so slow that its score is
below that of the base even unused, is *never* chosen, however long the queues of the others: that is what clamping at 0
means. At u_m = 0 it is chosen by ties alone, and gets a vanishing share. As W_m is t_m times the number of calls sent
to m, the shares are f_m proportional to w_m/t_m. With work t_m a call, instance m is full at the rate 1/(f_m t_m), the
cluster at 1/max_m f_m t_m. At alpha = 1 the score is t_b/t_m: all calls go to the fastest.

*Several kinds of calls with proportional times*, t_jm = a_j t_m: t_b/t_m is the same for all, and the same argument
holds with steps a_j t_m. So the x_m are the same, and so is the division of the seconds; the share of every kind is
not, it depends on their order. Where the works of the kinds at a resource are in the proportions a_j too, as at
classical servers, the loads follow from the seconds and are known. Whether loads below 1 are enough is then a question
about a network whose shares are not.

*Otherwise* the loads themselves depend on the order of the calls. Two equal instances have equal scores whenever their
W are equal, whatever the kind, and at alpha = 0 all instances are indifferent at once: a prompt and a decode that
alternate are sent to one instance each for ever, where calls in random order are mixed. How W grows is fixed by
frequencies, of which calls it is made is not. So there is no limit of the rule without the order of its calls, and
none is given here (`rule_limits`); `released_shares` has the shares of one order, that of independent stages. That
these converge, and to one limit from every start, is assumed there and not proved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Number, exact_text, require_whole, to_fraction
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.cluster import WorkflowSystem, require_cluster
from queuetheory_llm.result import Result
from queuetheory_llm.stability.call_work import TypeWork, binding_work
from queuetheory_llm.stability.cluster_capacity import unit_loads

_CONFIDENCE = 0.99
_MOST_CALLS = 10**6  # of a sequence
_LEAST_CALLS = 100  # of a stage, in the half of a sequence that counts


@attrs.frozen(kw_only=True)
class ReleasedSplit:
    """What the rule does with one kind of call.

    Attributes
    ----------
    ratios : tuple of Fraction
        w_m, the limit of W_m/W_base; at alpha = 1 that of W_m/W_fastest.
    shares : tuple of Fraction
        f_m, sum 1.
    limit : Fraction
        Calls per second at which the first instance is full.
    """

    ratios: tuple[Fraction, ...]
    shares: tuple[Fraction, ...]
    limit: Fraction


def released_split(times: Sequence[Number], alpha: Number, base: int = 0) -> ReleasedSplit:
    """Shares and limit of the released rule for one kind of call, in closed form.

    Parameters
    ----------
    times : sequence of numbers
        t_m > 0: seconds of a call at each instance, its work as well as what the rule sees.
    alpha : number
        0 to 1.
    base : int
        The base instance, from 0.

    Raises
    ------
    InvalidInput

    Examples
    --------
    >>> split = released_split([Fraction(1, 2), 1], Fraction(1, 2))
    >>> [str(ratio) for ratio in split.ratios], [str(share) for share in split.shares], str(split.limit)
    (['1', '1/2'], ['4/5', '1/5'], '5/2')
    """
    if isinstance(times, str) or not isinstance(times, Iterable):
        raise InvalidInput(f"times: {shown(times)} is no list of numbers; give the seconds of a call at each instance")
    seconds = [to_fraction(each) for each in times]
    weight = _alpha(alpha)
    if not seconds or min(seconds) <= 0:
        raise InvalidInput("times: give the seconds of a call at each instance, all positive")
    if require_whole("base", base, 0, "the number of an instance") >= len(seconds):
        raise InvalidInput(f"base: {base} is no instance; they are 0 to {len(seconds) - 1}")
    if weight == 1:
        fastest = seconds.index(min(seconds))
        ratios = [Fraction(m == fastest) for m in range(len(seconds))]
    else:
        pull = weight / (1 - weight)
        ratios = [max(Fraction(0), 1 + pull * (seconds[base] / each - 1)) for each in seconds]
    calls = [ratio / each for ratio, each in zip(ratios, seconds, strict=True)]
    shares = [each / sum(calls) for each in calls]
    most = max(share * each for share, each in zip(shares, seconds, strict=True))
    return ReleasedSplit(ratios=tuple(ratios), shares=tuple(shares), limit=1 / most)


def released_limit(times: Sequence[Number], alpha: Number, base: int = 0) -> Fraction:
    """Largest rate of one kind of call that the released rule carries; see `released_split`.

    Examples
    --------
    >>> [str(released_limit(["1/2", 1], alpha, base=1)) for alpha in (0, "3/10", "1/2", "3/5", "7/10")]
    ['3', '27/10', '5/2', '12/5', '23/10']
    """
    return released_split(times, alpha, base).limit


def _alpha(alpha: Number) -> Fraction:
    weight = to_fraction(alpha)
    if not 0 <= weight <= 1:
        raise InvalidInput(f"alpha: {float(weight):g} is outside 0 .. 1; it weighs speed against balance")
    return weight


@attrs.frozen(kw_only=True)
class ReleasedShares(Result):
    """The split that the released rule makes of the calls of a workflow, and its limit.

    Attributes
    ----------
    system : WorkflowSystem
    alpha : Fraction
    shares : float array of shape (J, M)
        Of each stage's calls, to each single instance; rows sum to 1. Of several stages, where calls come in
        independent order.
    loads : float array of shape (M,)
        Load of each instance at one query a second.
    limit, low, high : Fraction or float
        Queries/s at which the first instance is full; all equal and exact where there is a closed form. Elsewhere it is
        that of calls in independent order, with an interval of 99 % for it, and no limit of the rule in a cluster. inf
        where no call takes up anything.
    method : str
    split : tuple of Fraction or None
        The exact shares where there is one stage.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.cluster_capacity:draw_released_shares"
    system: WorkflowSystem
    alpha: Fraction
    shares: Floats = attrs.field(eq=False)
    loads: Floats = attrs.field(eq=False)
    limit: Fraction | float
    low: Fraction | float
    high: Fraction | float
    method: str
    split: tuple[Fraction, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "title": self.system.name,
            "alpha": float(self.alpha),
            "instances": list(self.system.unit_names),
            "stages": [stage.name for stage in self.system.workflow.stages],
            "shares": self.shares.tolist(),
            "loads_per_query_per_s": self.loads.tolist(),
            "limit": _finite(self.limit),
            "low": _finite(self.low),
            "high": _finite(self.high),
            "exact": exact_text(self.limit),
            "method": self.method,
        }


def _finite(value: Fraction | float) -> float | None:
    return float(value) if math.isfinite(value) else None


def released_shares(
    system: WorkflowSystem, alpha: Number, *, calls: int = 10_000, replicas: int = 5, seed: int = 0
) -> ReleasedShares:
    """The rule's own routing of a long sequence of calls whose stages are independent, drawn by their visits.

    Of one stage the answer is the closed form. Of several the shares of a stage depend on the order of the calls where
    two instances are indifferent for several stages at once: equal instances, and all of them at alpha = 0 or with
    proportional times. In a cluster calls do not come in independent order, so that its shares, and where works are not
    proportional to t_comp its loads too, may be others. The second half of each of several independent sequences
    counts; the interval is Student's over them, of the level of all verdicts by simulation. It speaks of chance alone:
    not of another order, not of the last calls' distance from the limit, which is of the order of one over their
    number, and not of another start, for all begin with nothing assigned.

    Parameters
    ----------
    system : WorkflowSystem
    alpha : number
        0 to 1.
    calls, replicas, seed : int
        Of the sequences; 100 to 10^6 calls, at least 2 replicas.

    Raises
    ------
    InvalidInput
        If alpha is outside 0 .. 1, or a number is out of range.
    NotConverged
        If a stage is so rare that its calls in a sequence are too few to count.
    """
    require_cluster(system)
    weight = _alpha(alpha)
    if require_whole("calls", calls, 100, "the length of a sequence") > _MOST_CALLS:
        raise InvalidInput(f"calls: {calls} is above {_MOST_CALLS}, the longest sequence that is followed")
    require_whole("replicas", replicas, 2, "the number of sequences")
    require_whole("seed", seed, 0, "the seed of the random numbers")
    closed = proportional_split(system, weight)
    if closed is not None and len(system.workflow.stages) == 1:
        return _of_one_stage(system, weight, closed)
    _require_calls(system, calls)
    followed = _followed(system, weight, calls, replicas, np.random.default_rng(seed))
    shares, exact = followed.mean(axis=0), proportional_loads(system, weight)
    if exact is not None:
        limit = 1 / max(exact) if max(exact) else math.inf
        return ReleasedShares(
            system=system,
            alpha=weight,
            shares=shares,
            loads=np.array([float(load) for load in exact]),
            limit=limit,
            low=limit,
            high=limit,
            method="closed form of kinds of calls in fixed proportions; the shares for stages in independent order",
        )
    types = binding_work(system)
    most = np.array([_loads(system, each, types).max() for each in followed])
    limits = np.divide(1.0, most, out=np.full(replicas, np.inf), where=most > 0)
    middle, half = float(limits.mean()), _half_width(limits)
    return ReleasedShares(
        system=system,
        alpha=weight,
        shares=shares,
        loads=_loads(system, shares, types),
        limit=middle,
        low=middle - half,
        high=middle + half,
        method=(
            f"its own routing of {replicas} sequences of {calls} calls of stages in independent order, interval of "
            f"{_CONFIDENCE:.0%}"
        ),
    )


def _require_calls(system: WorkflowSystem, calls: int) -> None:
    """Refuse stages of which the counted half of a sequence holds too few calls.

    A rare stage may hold most of the seconds: until it has come often, W is nowhere near its limit and no spread of the
    sequences shows it.
    """
    visits = system.workflow.visits
    j = min(range(len(visits)), key=visits.__getitem__)
    needed = math.ceil(2 * _LEAST_CALLS * sum(visits) / visits[j])
    if needed <= calls:
        return
    mend = f"give calls={needed}" if needed <= _MOST_CALLS else "its shares are for simulation (qt-llm dispatch)"
    raise NotConverged(
        f"released shares: {system.workflow.stages[j].name!r} is {float(visits[j] / sum(visits)):.2g} of the calls, "
        f"too few in {calls} to tell their shares; {mend}"
    )


def _half_width(values: Floats) -> float:
    """Of Student's interval of the mean; 0 where all values are infinite."""
    from scipy.special import stdtrit

    if not np.isfinite(values).all():
        return 0.0
    quantile = float(stdtrit(values.size - 1, (1 + _CONFIDENCE) / 2))
    return quantile * float(values.std(ddof=1)) / math.sqrt(values.size)


def proportional_split(system: WorkflowSystem, alpha: Fraction) -> ReleasedSplit | None:
    """The split of calls of a_j = t_comp at the first instance, where t_jm = a_j t_m; None elsewhere.

    Its shares are those of the one stage there is, or of several the division of sum_j a_j n_j.
    """
    rows = [[seconds for seconds in row if seconds is not None] for row in system.mean_seconds]
    if any(len(row) < len(system.instances) for row in rows):  # not served there
        return None
    times = rows[0]
    if any(row[m] * times[0] != row[0] * times[m] for row in rows for m in range(len(times))):
        return None
    return released_split([times[kind] / times[0] for kind in system.units], alpha)


def proportional_loads(system: WorkflowSystem, alpha: Fraction) -> tuple[Fraction, ...] | None:
    """Load of each single instance at one query a second, the largest of its resources; None where it is not exact.

    It is where t_comp and the works at every resource are all in the same proportions a_j from stage to stage. Then A_m
    = f_m sum_j visits_j a_j is sent to instance m, and a resource there has the load c A_m, c its work over a_j.
    """
    closed = proportional_split(system, alpha)
    if closed is None:
        return None
    sizes = [row[0] or Fraction(0) for row in system.mean_seconds]
    most: list[Fraction] = []
    for each in binding_work(system):
        needs = [[need / size for need in each.needs(j)] for j, size in enumerate(sizes)]
        if each.error or any(row != needs[0] for row in needs):
            return None
        most.append(max(needs[0]))
    sent = sum((n * size for n, size in zip(system.workflow.visits, sizes, strict=True)), Fraction(0))
    return tuple(share * sent * most[kind] for share, kind in zip(closed.shares, system.units, strict=True))


def _of_one_stage(system: WorkflowSystem, alpha: Fraction, closed: ReleasedSplit) -> ReleasedShares:
    loads = [max(row) for row in unit_loads(system, binding_work(system), [closed.shares])]
    limit = 1 / max(loads) if max(loads) else math.inf
    return ReleasedShares(
        system=system,
        alpha=alpha,
        shares=np.array([[float(share) for share in closed.shares]]),
        loads=np.array([float(load) for load in loads]),
        limit=limit,
        low=limit,
        high=limit,
        method="closed form of one kind of call",
        split=closed.shares,
    )


def _followed(system: WorkflowSystem, alpha: Fraction, calls: int, replicas: int, rng: np.random.Generator) -> Floats:
    """Shares (replicas, J, M) of the second halves of sequences, by the choices of `HEXGEN_RELEASED`."""
    seconds = np.array([[np.inf if each is None else float(each) for each in row] for row in system.unit_seconds])
    visits = np.array([float(each) for each in system.workflow.visits])
    bases, weight = np.isfinite(seconds).argmax(axis=1), float(alpha)
    speeds = weight * seconds[np.arange(visits.size), bases, np.newaxis] / seconds
    speeds[np.isinf(seconds)] = -np.inf
    stages = rng.choice(visits.size, (calls, replicas), p=visits / visits.sum())
    assigned, sent = np.zeros((replicas, seconds.shape[1])), np.zeros((replicas, *seconds.shape))
    each = np.arange(replicas)
    for number, stage in enumerate(stages):
        base = bases[stage]
        weighed = assigned[each, base]
        scores = speeds[stage] - (1 - weight) * assigned / np.where(weighed > 0, weighed, 1)[:, np.newaxis]
        chosen = np.where(weighed > 0, scores.argmax(axis=1), base)
        assigned[each, chosen] += seconds[stage, chosen]
        if 2 * number >= calls:
            sent[each, stage, chosen] += 1
    totals = sent.sum(axis=2, keepdims=True)
    alone = np.isfinite(seconds) / np.isfinite(seconds).sum(axis=1, keepdims=True)  # of a stage that never came
    return np.asarray(np.divide(sent, totals, out=np.tile(alone, (replicas, 1, 1)), where=totals > 0), dtype=float)


def _loads(system: WorkflowSystem, shares: Floats, types: Sequence[TypeWork]) -> Floats:
    """Load of each single instance at one query a second under shares (J, M), the largest of its resources."""
    return np.array([float(max(row)) for row in unit_loads(system, types, shares.tolist())])
