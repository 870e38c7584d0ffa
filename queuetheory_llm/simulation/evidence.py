"""Is the backlog of a run growing, or does it keep coming back? Two tests whose errors do not depend on the run length.

What is tested is the *excess*: the token backlog less the backlog the same requests would have, over the same batches,
if none of them ever waited. The second is the infinite-server queue of the run (its requests, one decode token a
batch); it fills up from empty and jumps with every long request whatever the load, and it is stable at every load. So
the excess grows if and only if the backlog does, without the filling and without the jumps.

Both tests refer to the critical case, where for work and intervals of finite variance the excess over a run of length
T is sigma sqrt(T) times a reflected Brownian motion W on [0, 1] (Whitt, Stochastic-Process Limits, 2002, chapter 9).
Below the critical load it is stochastically smaller and returns more often, above it it is larger and returns less
often, so the error of each test is largest there. Ratios in which sigma sqrt(T) cancels have one law at the critical
load whatever the engine, the lengths and T: the errors below hold for every run length. They were counted on 5 million
paths of W by experiments/critical_law. The first quarter of the span of arrivals is left out (28 % of the default
series, in whole intervals).

*Growth*: z = increment of the excess / its standard error, the largest from batch means of the excess and of the
backlog over 20 and over 60 windows: over windows shorter than a request stays, a burst of arrivals enters the excess
bit by bit and its batch means are alike. Under W the mean of z is 0.455, P(z > 3.92) = 1e-4, P(z > 4.61) = 1e-5, and
`GROWTH` = 5.5 was exceeded in one. Over independent runs the sum of z - 0.46, divided by the
root of their number, is held to the same bound. The growth must also last: each third of the time must bring at least
a ninth of the increment, and the engine may not have been idle.

*Return*: v = variance of the excess / sum of its squared increments over 480 windows. For a process with relaxation
time tau it falls like tau/T (down to 1/960); under W, P(v <= x) < exp(-`RATE`/x) where that is below .4: 1e-4 at
0.0072, where the bound is 2.3e-4, and 1e-5 at 0.0057 (2.7e-5). By Fisher's method, 2 RATE/v summed over independent
runs is held to chi-square with twice their number of degrees of freedom (RATE/v has mean .95 under W, an exponential
variable 1). For one run the level `RETURN_LEVEL` = 1e-8 asks for v <= 0.00326, about 250 relaxation times: room for
heavy tails, whose sums are slow to become Gaussian. Increments of windows of fewer than `BATCHES_A_WINDOW` batches
would be noise of the batch ends.

*Scope*. One reflected Brownian motion is the limit of one queue with one scarce resource. Several engines that queue
apart, behind a dispatcher that does not look, are as many queues, and the excess of all together is the sum of as many
reflected Brownian motions: its z is larger. So each engine is scored apart, and `Evidence.together` takes the means of
z and of 1/v: the mean of variables of one law is at most each of them in the convex order whatever their dependence,
so P(mean > x) is at most the least E(z - t)+/(x - t): 8e-7 for z at `GROWTH` as counted, and e times the level for
RATE/v, about an exponential variable. Where engines are independent each counts as a run. Behind the shortest token
queue backlogs stay level, and all engines together are one queue (Foschini and Salz 1978; Reiman 1984). Nothing is
claimed of rules outside the policy space under which several queues are critical at once, nor of systems whose state
settles in one of several classes: there a verdict is about the class that the run has reached.

More runs do not make up for short ones: what is left of a start-up effect is the same in each of them. So the mean of
z must reach `LEAST_MEAN_GROWTH`, and the harmonic mean of v may not exceed `MOST_RATIO`, whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import Run

#: Windows of the squared increments; a multiple of those of the batch means.
WINDOWS = 480
BATCH_MEANS = (20, 60)
GROWTH, GROWTH_AT_CRITICAL = 5.5, 0.46
LEAST_THIRD = 1 / 9
RATE, RETURN_LEVEL = 0.06, 1e-8
LEAST_MEAN_GROWTH, MOST_RATIO = 2.0, 0.012
BATCHES_A_WINDOW = 4
_CHUNK = 1_000_000  # requests at a time
_ROUNDING = 0.5  # tokens; sums of the excess over a million requests are exact to a hundredth


def excess(run: Run) -> Floats:
    """Backlog beyond that of requests which never wait, at the ticks of the series, in tokens; shape (g,).

    Request i, arriving while batch n runs, has its whole prompt in batch n + 1 and a decode token in each batch after
    that. Between ticks the batches are taken as evenly spaced.
    """
    level = run.series.backlog.astype(np.float64)
    for start in range(0, len(run.requests), _CHUNK):
        level -= _unhindered(run, slice(start, start + _CHUNK))
    return level


def _unhindered(run: Run, part: slice) -> Floats:
    """Backlog of the requests of ``part`` if none of them waited: constant, then linear in the number of batches."""
    requests, ticks = run.requests, run.series.ticks
    clock = run.series.batches.astype(np.float64)
    arrival, decode = requests.arrival[part], requests.decode[part]
    prompted = np.interp(arrival, ticks, clock) + 1  # number of batches at the end of the prompt, in order of arrival
    finished = prompted + decode
    come = np.searchsorted(arrival, ticks, side="right")
    past = np.searchsorted(prompted, clock, side="right")
    gone = np.searchsorted(clock, finished)
    over = np.cumsum(np.bincount(gone, minlength=ticks.size + 1))[: ticks.size]
    ends = np.cumsum(np.bincount(gone, finished, minlength=ticks.size + 1))[: ticks.size]
    work = np.append(0, np.cumsum(requests.prefill[part] + decode))
    waiting = work[come] - work[past]
    decoding = np.append(0, np.cumsum(finished))[past] - ends - clock * (past - over)
    return np.asarray(waiting + decoding, dtype=np.float64)


@attrs.frozen(kw_only=True)
class Evidence:
    """What the excess of one run shows.

    Attributes
    ----------
    seconds : float
        Span of arrivals.
    batches : int
        Batches of the last three quarters.
    growth : float
        z; infinite for an increment without any noise.
    increment : float
        Tokens by which the excess grows after the first quarter.
    least_third : float
        Smallest increment of a third of that time, tokens.
    idle : bool
        Whether the engine was ever idle then.
    ratio : float
        v; 0 when the excess is constant, 1 when the windows are too short for the test.
    bounded : bool
        Whether the excess stays within one mean request and one mean batch: a run of regular arrivals.
    light : bool
        Whether the engine was idle for half of each of the 20 windows of the batch means, or more.
    pressed : bool
        Whether the engine was always busy with a regular stream: one whose work varies from window to window by no more
        than a mean request. Exactly at its limit it keeps the backlog bounded as well, so nothing shows stability.
    """

    seconds: float
    batches: int
    growth: float
    increment: float
    least_third: float
    idle: bool
    ratio: float
    bounded: bool
    light: bool
    pressed: bool

    @classmethod
    def of(cls, run: Run) -> Evidence:
        """From a run with at least 4/3 * `WINDOWS` intervals in its series."""
        step = 3 * (run.series.ticks.size - 1) // (4 * WINDOWS)
        late = run.series.ticks.size - 1 - step * WINDOWS
        level = excess(run)[late::step]
        batches = int(run.series.batches[-1] - run.series.batches[late])
        increment = float(level[-1] - level[0])
        edges = slice(late, None, step * WINDOWS // BATCH_MEANS[0])
        lasting, busy = np.diff(run.series.ticks[edges]), np.diff(run.series.busy[edges])
        idle = bool((busy < lasting).any())
        return cls(
            seconds=run.clock.seconds(run.series.span),
            batches=batches,
            growth=growth_score(level, run.series.backlog[late::step]),
            increment=increment,
            least_third=float(np.diff(level[:: WINDOWS // 3]).min()),
            idle=idle,
            ratio=1.0 if batches < BATCHES_A_WINDOW * WINDOWS else return_ratio(level),
            bounded=float(np.ptp(level)) <= float(run.requests.work.mean()) + run.tokens / run.batches + _ROUNDING,
            light=bool((2 * busy <= lasting).all()),
            pressed=not idle and _is_regular(run, run.series.ticks[late::step]),
        )

    @classmethod
    def of_level(cls, level: Floats, *, seconds: float, services: int) -> Evidence:
        """From any backlog at equal steps of a whole run, `run.INTERVALS` of them; the flags of one engine are off.

        Parameters
        ----------
        level : float array of shape (INTERVALS + 1,)
        seconds : float
            Of the run.
        services : int
            Services in the run; too few for the windows, and return is not tested.
        """
        step = 3 * (level.size - 1) // (4 * WINDOWS)
        late = level[level.size - 1 - step * WINDOWS :: step]
        return cls(
            seconds=seconds,
            batches=services,
            growth=growth_score(late, late),
            increment=float(late[-1] - late[0]),
            least_third=float(np.diff(late[:: WINDOWS // 3]).min()),
            idle=False,
            ratio=1.0 if services < BATCHES_A_WINDOW * WINDOWS else return_ratio(late),
            bounded=False,
            light=False,
            pressed=False,
        )

    @classmethod
    def together(cls, engines: Sequence[Evidence], whole: Evidence) -> Evidence:
        """Of a run of several engines that queue apart with equal shares, from that of each; see *Scope*.

        Parameters
        ----------
        engines : sequence of Evidence
        whole : Evidence
            Of all together. The larger v counts: in turn an engine gets so regular a stream that its squared
            increments may be those of the batch ends, and all together do not.
        """
        return cls(
            seconds=min(each.seconds for each in engines),
            batches=min(each.batches for each in engines),
            growth=mean_growth(engines),
            increment=sum(each.increment for each in engines),
            least_third=sum(each.least_third for each in engines),
            idle=any(each.idle for each in engines),
            ratio=max(pooled_ratio(engines), whole.ratio),
            bounded=all(each.bounded for each in engines),
            light=all(each.light for each in engines),
            pressed=any(each.pressed for each in engines),
        )


def _is_regular(run: Run, edges: NDArray[np.int64]) -> bool:
    """Whether the work that arrives between two edges varies by no more than a mean request."""
    arrived = work_between(run.requests, edges)
    return bool(arrived.std() <= run.requests.work.mean())


def work_between(requests: Requests, edges: NDArray[np.int64]) -> Floats:
    """Tokens that arrive after each of ``edges`` and by the next one."""
    work = np.append(0, np.cumsum(requests.work))
    return np.diff(work[np.searchsorted(requests.arrival, edges, side="right")]).astype(np.float64)


def growth_score(level: Floats, backlog: NDArray[Any]) -> float:
    """z of the excess, at the `WINDOWS` + 1 edges of the windows; ``backlog`` is the token backlog there."""
    increment = float(level[-1] - level[0])
    error = max(
        math.sqrt(count * np.diff(path[:: WINDOWS // count]).var(ddof=1))
        for count in BATCH_MEANS
        for path in (level, backlog)
    )
    if error <= 1e-9 * abs(increment):
        return math.copysign(math.inf, increment) if increment else 0.0
    return increment / error


def return_ratio(level: Floats) -> float:
    """v of the excess at the `WINDOWS` + 1 edges of the windows; 0 when it is constant."""
    squares = float(np.square(np.diff(level)).sum())
    return float(level.var()) / squares if squares else 0.0


def grows(runs: Sequence[Evidence]) -> bool:
    """Whether independent runs of one system show linear growth, at the level of the head of the module."""
    increments = sum(each.increment for each in runs)
    lasting = sum(each.least_third for each in runs) >= LEAST_THIRD * increments > 0
    visible = mean_growth(runs) >= growth_needed(len(runs))
    return visible and lasting and not any(each.idle or each.bounded for each in runs)


def mean_growth(runs: Sequence[Evidence]) -> float:
    """Mean of z over the runs."""
    return sum(each.growth for each in runs) / len(runs)


def growth_needed(count: int) -> float:
    """Least mean of z over ``count`` runs that shows growth."""
    return max(LEAST_MEAN_GROWTH, GROWTH_AT_CRITICAL + (GROWTH - GROWTH_AT_CRITICAL) / math.sqrt(count))


def returns(runs: Sequence[Evidence]) -> bool:
    """Whether independent runs of one system show that the backlog keeps coming back, at the level `RETURN_LEVEL`."""
    return pooled_ratio(runs) <= ratio_needed(len(runs))


def pooled_ratio(runs: Sequence[Evidence]) -> float:
    """Harmonic mean of v over the runs."""
    if any(each.ratio == 0 for each in runs):
        return 0.0
    return len(runs) / sum(1 / each.ratio for each in runs)


def ratio_needed(count: int) -> float:
    """Largest harmonic mean of v over ``count`` runs that shows return, by Fisher's method."""
    from scipy.special import chdtri

    return min(MOST_RATIO, 2 * count * RATE / float(chdtri(2 * count, RETURN_LEVEL)))
