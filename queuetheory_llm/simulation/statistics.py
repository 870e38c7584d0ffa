"""What runs show: the drift of the token backlog, a verdict of measurement alone, latencies with their intervals.

The drift is measured over the second half of the span of arrivals, the first half being the warm-up, and its mean is
the slope of Dai et al. 2025, section 6.2: (backlog(end) - backlog(middle))/(end - middle). Its 99 % interval comes from
batch means over `DRIFT_WINDOWS` windows of one run, or by Student's t over independent runs.

The interval alone gives no verdict: at the critical load the mean backlog grows like the square root of time, and one
interval in a hundred misses 0. The verdict comes from the two tests of `evidence`, whose errors are below 1e-6 at every
run length. It is UNDECIDED where neither speaks, with the run length that would decide, and where the run cannot speak
at all: a second half of few batches, a run of fewer than `LIFETIMES` lifetimes (it may still be filling up), or one in
which few long requests bring most of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.simulation.evidence import (
    BATCHES_A_WINDOW,
    GROWTH_AT_CRITICAL,
    RETURN_LEVEL,
    WINDOWS,
    Evidence,
    grows,
    growth_needed,
    mean_growth,
    pooled_ratio,
    ratio_needed,
    returns,
    work_between,
)
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import INTERVALS, NEVER, Run, Series, span, watched
from queuetheory_llm.verdict import Verdict

DRIFT_WINDOWS = 20
LIFETIMES = 10
MEAN_WINDOWS = 20
BURST_WINDOWS = 50
_LEAST_BATCHES = 100  # in the second half; below it a window holds no batch
_INDIVISIBLE = "the run is shorter than its clock can divide"
_LEAST_REQUESTS = 100  # of equal length that would spread the work as much


@attrs.frozen(kw_only=True)
class TokenDrift:
    """Slope of a backlog with its confidence interval [low, high], 99 % unless something else is said.

    Of the token backlog of an engine, in tokens/s; of a cluster of instances, in seconds of work a second.
    """

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """``mean``, ``low``, ``high``."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class Measured:
    """What the runs alone say.

    Attributes
    ----------
    verdict : Verdict
        STABLE, UNSTABLE or UNDECIDED; a run never shows CRITICAL.
    drift : TokenDrift or None
        None when all requests arrive at one instant or nothing is served.
    reason : str
        One sentence.
    method : {"batch means", "replications"}
        Where the interval of the drift comes from.
    growth, ratio : float or None
        Scores of the tests of growth and of return, see `evidence`, means over the runs; None where the runs cannot be
        judged.
    decides_in : float or None
        Seconds of a run that would decide; None where the verdict is decided or no length is known.
    """

    verdict: Verdict
    drift: TokenDrift | None
    reason: str
    method: str = "batch means"
    growth: float | None = None
    ratio: float | None = None
    decides_in: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The attributes; ``token_drift`` is {mean, low, high}, an infinite score is null."""
        drift = {"mean": None, "low": None, "high": None} if self.drift is None else self.drift.to_dict()
        finite = self.growth is not None and math.isfinite(self.growth)
        return {
            "verdict": self.verdict.value,
            "token_drift": drift,
            "reason": self.reason,
            "method": self.method,
            "growth_score": self.growth if finite else None,
            "return_ratio": self.ratio,
            "decides_in": self.decides_in,
        }


def second_half(run: Run) -> tuple[int, int]:
    """Ticks between which the drift is measured: the middle and the end of the span of arrivals."""
    first, last = span(run.requests, run.until)
    return (first + last) // 2, last


#: Why a run cannot speak, and the seconds of one that could where that is known.
Doubt = tuple[str, float | None]


def score(run: Run) -> Evidence | Doubt:
    """What the excess of a run shows, or why it cannot speak."""
    if run.series.ticks.size <= INTERVALS:
        return _INDIVISIBLE, None
    return _too_short(run) or Evidence.of(run)


def measure(runs: Run | Sequence[Run], scores: Sequence[Evidence | Doubt] | None = None) -> Measured:
    """Drift and measured verdict of one run, or of independent runs of one system over the same span.

    The span of arrivals is [0, until), or from the first to the last arrival for a run without ``until``.

    Parameters
    ----------
    runs : Run or sequence of Run
    scores : sequence of Evidence or Doubt, optional
        Independent; by default those of the runs. A run of several engines that queue apart has more than one.
    """
    each = [runs] if isinstance(runs, Run) else list(runs)
    nothing = next(filter(None, map(_nothing, each)), None)
    if nothing is not None:
        return Measured(verdict=Verdict.UNDECIDED, drift=None, reason=f"{nothing}: there is no drift")
    method = "batch means" if len(each) == 1 else "replications"
    drift = drift_of(each)
    if scores is None:
        scores = [score(run) for run in each]
    found = [one for one in scores if isinstance(one, Evidence)]
    if doubts := [one for one in scores if not isinstance(one, Evidence)]:
        reason, seconds = max(doubts, key=lambda doubt: doubt[1] or 0)
        return Measured(verdict=Verdict.UNDECIDED, drift=drift, reason=reason, method=method, decides_in=seconds)
    return _decide(drift, found, method)


def _nothing(run: Run) -> str | None:
    """Why the run has no drift at all."""
    if not run.batches:
        return "nothing is served"
    if not run.series.span:
        return "all requests arrive at one instant"
    if not np.array_equal(run.series.ticks, watched(run.requests, run.until)):
        return "the time series is of chosen ticks, a verdict takes the default one"
    return None if run.series.ticks.size > INTERVALS else _INDIVISIBLE


def drift_of(runs: Sequence[Run]) -> TokenDrift:
    """Slope over the second half with its 99 % interval: by batch means of one run, else by Student's t over runs."""
    halves = [run.series.since(second_half(run)[0]) for run in runs]
    if len(runs) == 1:
        increments, parts = np.diff(_levels(halves[0], DRIFT_WINDOWS)), DRIFT_WINDOWS
    else:
        increments, parts = np.array([half.backlog[-1] - half.backlog[0] for half in halves]), 1
    slopes = [float(increment) * parts / runs[0].clock.seconds(halves[0].span) for increment in increments]
    mean, reach = student(np.array(slopes), 0.99)
    return TokenDrift(mean=mean, low=mean - reach, high=mean + reach)


def student(values: Floats, level: float) -> tuple[float, float]:
    """Mean of independent values and the half-width of its two-sided interval by Student's t."""
    from scipy.special import stdtrit

    point = float(stdtrit(values.size - 1, (1 + level) / 2))
    return float(values.mean()), point * float(values.std(ddof=1)) / math.sqrt(values.size)


def _levels(half: Series, windows: int) -> Ticks:
    """Backlog at the edges of equal windows."""
    return half.backlog[:: (half.ticks.size - 1) // windows]


def _too_short(run: Run) -> Doubt | None:
    """Why the run cannot speak, and the seconds of one that could."""
    series = run.series
    seconds = run.clock.seconds(series.span)
    batches = int(series.batches[-1] - series.since(second_half(run)[0]).batches[0])
    if batches < _LEAST_BATCHES:
        reason = f"the second half of the run holds {batches} batches, a verdict needs {_LEAST_BATCHES}: "
        return reason + ("the trace is too short" if run.until is None else "give a longer --horizon"), None
    if seconds < LIFETIMES * (life := lifetime(run)):
        needed = LIFETIMES * life
        reason = f"a request in service stays about {life:.3g} s, so the run may still be filling up: "
        return f"{reason}give a --horizon above {needed:.3g} s", needed
    if (effective := effective_number(run)) < _LEAST_REQUESTS:
        needed = seconds * _LEAST_REQUESTS / effective
        reason = f"few long requests or bursts bring most of the work, as uncertain as {effective:.3g} equal requests: "
        return f"{reason}about {needed:.2g} s would hold {_LEAST_REQUESTS}", needed
    return None


def lifetime(run: Run) -> float:
    """Seconds in service of the request a token belongs to, if it never waits: E[v_d^2]/E[v_d] + 1 mean batches."""
    decode = run.requests.decode
    tokens = float(decode.sum())
    longest = float(np.dot(decode.astype(np.float64), decode)) / tokens if tokens else 0.0
    return run.mean_batch / run.clock.rate * (longest + 1)


def effective_number(run: Run) -> float:
    """As many equal requests of a Poisson stream would make the total work as uncertain.

    The lesser of (sum of work)^2/(sum of its squares), which sees long requests, and of the same with the squares of
    what arrives in each of `BURST_WINDOWS` windows about its mean, which sees bursts too.
    """
    work = run.requests.work.astype(np.float64)
    total = float(work.sum())
    alone = total**2 / float(np.dot(work, work))
    arrived = work_between(run.requests, run.series.ticks[:: INTERVALS // BURST_WINDOWS])
    spread = BURST_WINDOWS * float(arrived.var())
    return min(alone, total**2 / spread) if spread else alone


def _decide(drift: TokenDrift, found: list[Evidence], method: str) -> Measured:
    growth, ratio = mean_growth(found), pooled_ratio(found)
    measured = Measured(verdict=Verdict.UNDECIDED, drift=drift, reason="", method=method, growth=growth, ratio=ratio)
    if grows(found):
        errors = f"{growth:.3g} standard errors" if math.isfinite(growth) else "equal steps"
        reason = (
            f"the backlog grows for as long as the run lasts, by {errors}; "
            f"at the critical load fewer than one in a million reaches {growth_needed(len(found)):.2g}"
        )
        return attrs.evolve(measured, verdict=Verdict.UNSTABLE, reason=reason)
    if any(each.pressed for each in found):
        reason = "the stream is regular and the engine never idle: exactly at the limit the backlog stays bounded too, "
        return attrs.evolve(measured, reason=f"{reason}and with a little more it grows too slowly to be seen")
    if all(each.bounded for each in found):
        reason = "the backlog stays within one request and one batch of where it was"
        return attrs.evolve(measured, verdict=Verdict.STABLE, reason=reason)
    if all(each.light for each in found):
        reason = "the engine is idle for more than half of the time, all the time"
        return attrs.evolve(measured, verdict=Verdict.STABLE, reason=reason)
    if returns(found):
        reason = (
            f"the backlog keeps coming back: variance over squared increments {ratio:.2g}, at most "
            f"{ratio_needed(len(found)):.2g} in {RETURN_LEVEL:.0e} of cases at the critical load"
        )
        return attrs.evolve(measured, verdict=Verdict.STABLE, reason=reason)
    return _undecided(measured, found)


def _undecided(measured: Measured, found: list[Evidence]) -> Measured:
    """The run length that would decide: v falls like 1/T in a stable system, z grows like the root of T in another."""
    seconds = min(each.seconds for each in found)
    batches = min(each.batches for each in found)
    least = WINDOWS * BATCHES_A_WINDOW / max(batches, 1)
    stable = max(2.0, least, (measured.ratio or 0.0) / ratio_needed(len(found))) * seconds
    words = f"a run of about {stable:.2g} s would decide if it is stable"
    times = [stable]
    apart = (measured.growth or 0.0) - GROWTH_AT_CRITICAL
    if apart > 0:
        unstable = max(2.0, ((growth_needed(len(found)) - GROWTH_AT_CRITICAL) / apart) ** 2) * seconds
        words += f", one of {unstable:.2g} s if its growth is real"
        times.append(unstable)
    reason = f"over {seconds:.4g} s neither growth nor return of the backlog is established; {words}"
    return attrs.evolve(measured, reason=reason, decides_in=min(times))


@attrs.frozen(kw_only=True)
class Estimate:
    """A stationary mean with its confidence intervals, in seconds.

    Attributes
    ----------
    mean, low95, high95, low99, high99 : float
    method : {"batch means", "replications"}
    warm_up : int
        Requests left out at the beginning of the runs.
    """

    mean: float
    low95: float
    high95: float
    low99: float
    high99: float
    method: str
    warm_up: int


def warm_up(values: Floats) -> int:
    """Observations to leave out, a tenth of them.

    The same of every run: a rule that looks for the quietest rest (MSER) leaves out busy stretches, and more
    replications do not cure that bias.
    """
    return values.size // 10


def estimate_mean(samples: Sequence[Floats]) -> Estimate | None:
    """Mean after the warm-up of each sample: by batch means of one sample, else by Student's t over the samples.

    The error of batch means is widened by sqrt((1 + r)/(1 - r)), r their first autocorrelation where it is positive
    (Tafazzoli, Steiger, Wilson 2011, "N-Skart"). None for a sample of fewer than 10 observations a batch mean, or when
    a sample is empty.
    """
    dropped = [warm_up(values) for values in samples]
    kept = [values[start:] for values, start in zip(samples, dropped, strict=True)]
    if any(values.size < (10 * MEAN_WINDOWS if len(kept) == 1 else 1) for values in kept):
        return None
    widened = 1.0
    if len(kept) == 1:
        length = kept[0].size // MEAN_WINDOWS
        means = kept[0][-length * MEAN_WINDOWS :].reshape(MEAN_WINDOWS, length).mean(axis=1)
        widened = _widening(means)
    else:
        means = np.array([values.mean() for values in kept])
    mean, reach95 = student(means, 0.95)
    _, reach99 = student(means, 0.99)
    return Estimate(
        mean=mean,
        low95=mean - widened * reach95,
        high95=mean + widened * reach95,
        low99=mean - widened * reach99,
        high99=mean + widened * reach99,
        method="batch means" if len(kept) == 1 else "replications",
        warm_up=sum(dropped),
    )


def _widening(means: Floats) -> float:
    centred = means - means.mean()
    squares = float(np.dot(centred, centred))
    first = float(np.dot(centred[1:], centred[:-1])) / squares if squares else 0.0
    first = min(max(first, 0.0), 0.9)
    return math.sqrt((1 + first) / (1 - first))


@attrs.frozen(kw_only=True)
class Summary:
    """Mean and percentiles of one latency, in seconds.

    Attributes
    ----------
    count : int
        Finished requests for which the latency exists.
    mean, p50, p90, p95, p99 : float or None
        Of all of them. None when ``count`` is 0; ``mean`` also where a mean does not exist.
    steady : Estimate or None
        The stationary mean, warm-up removed and what arrives from the oldest unfinished request on: of the requests
        that arrive last only the short ones are finished. None where the run does not show that the backlog keeps
        coming back, and where the requests are too few.
    """

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    steady: Estimate | None = None

    @classmethod
    def of_runs(cls, runs: Sequence[Run], name: str, first_token: str) -> Summary:
        """Summary of one latency of the finished requests of one run, or of independent runs; see `latency`."""
        samples = [latency(run, name, first_token) for run in runs]
        settled = [latency(run, name, first_token, settled=True) for run in runs]
        return cls.of(samples, settled)

    @classmethod
    def of(cls, samples: Sequence[Floats], settled: Sequence[Floats]) -> Summary:
        """Summary of the values of the runs, pooled; percentiles interpolated linearly, ``steady`` from ``settled``."""
        count = sum(values.size for values in samples)
        if not count:
            return cls(count=0, mean=None, p50=None, p90=None, p95=None, p99=None)
        steady = estimate_mean(settled)
        pooled = np.concatenate(samples)
        mean = float(pooled.mean())
        p50, p90, p95, p99 = (float(each) for each in np.percentile(pooled, [50, 90, 95, 99], overwrite_input=True))
        return cls(count=count, mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, steady=steady)

    def without_means(self) -> Summary:
        """The percentiles alone."""
        return attrs.evolve(self, mean=None, steady=None)

    def to_dict(self) -> dict[str, Any]:
        """``mean``, ``p50``, ``p90``, ``p95``, ``p99`` in seconds, ``count``, and ``steady`` {mean, low95, ...}."""
        return attrs.asdict(self)


#: What `latency` measures.
LATENCIES = ("queueing", "ttft", "tpot", "max_tbt", "e2e")


def latency(run: Run, name: str, first_token: str, *, settled: bool = False) -> Floats:
    """One latency of the finished requests in seconds, in order of arrival.

    Parameters
    ----------
    run : Run
    name : str
        One of `LATENCIES`. "queueing": start of the first batch - arrival. "ttft": first output - arrival. "tpot":
        (last output - first)/(outputs - 1). "max_tbt": longest time between two outputs that follow each other. Both
        are left out for fewer than two outputs. "e2e": finish - arrival.
    first_token : {"paper", "engine"}
        "paper" (Dai et al. 2025): a request of v_d decode tokens has v_d outputs, the first at the end of the batch
        with the first decode token; with v_d = 0 it has no output and no ttft. "engine": the last prompt chunk emits
        the first of v_d + 1 outputs; a request without a prompt has no such chunk, and is counted as in the paper.
    settled : bool
        Only of the requests before the first one that is unfinished.

    Raises
    ------
    InvalidInput
        If ``first_token`` is not known.
    """
    if first_token not in ("paper", "engine"):
        raise InvalidInput(f"--first-token: {first_token!r} is not known; use paper or engine")
    outputs, first = run.requests.decode, run.first_decode
    if first_token == "engine":
        emits = run.requests.prefill > 0
        outputs, first = outputs + emits, np.where(emits, run.last_prefill, first)
    finished = run.finish != NEVER
    chosen = finished & (outputs >= _OUTPUTS[name])
    if settled and not finished.all():
        chosen[np.argmin(finished) :] = False
    times = _TIMES[name](run, first, outputs, chosen)
    return np.asarray(times / run.clock.rate, dtype=np.float64)


Flags = NDArray[np.bool_]
#: Outputs without which a latency does not exist.
_OUTPUTS = {"queueing": 0, "ttft": 1, "tpot": 2, "max_tbt": 2, "e2e": 0}
#: Ticks of the chosen requests, from the run, the ticks of the first outputs and the numbers of outputs.
_TIMES: dict[str, Callable[[Run, Ticks, Ticks, Flags], Ticks | Floats]] = {
    "queueing": lambda run, _, __, chosen: (run.begin - run.requests.arrival)[chosen],
    "ttft": lambda run, first, _, chosen: (first - run.requests.arrival)[chosen],
    "tpot": lambda run, first, outputs, chosen: (run.finish - first)[chosen] / (outputs[chosen] - 1),
    "max_tbt": lambda run, first, _, chosen: _longest_between(run, first)[chosen],
    "e2e": lambda run, _, __, chosen: (run.finish - run.requests.arrival)[chosen],
}


def _longest_between(run: Run, first: Ticks) -> Ticks:
    """The longest gap between decode tokens, or from the first output to the first decode token."""
    return np.asarray(np.maximum(run.longest_gap, run.first_decode - first), dtype=np.int64)
