"""What a run shows: the drift of the token backlog, a verdict of measurement alone, latencies.

The drift is measured over the second half of the span of arrivals, the first half being the warm-up, and its mean is
the slope of Dai et al. 2025, section 6.2: (backlog(end) - backlog(middle))/(end - middle).

Criterion of the measured verdict, two one-sided tests that fail in opposite directions:

* UNSTABLE when the 99 % interval of the drift, by batch means over `DRIFT_WINDOWS` windows, lies above 0. At a load of
  exactly 1 the backlog is a reflected random walk with nearly unbiased increments, and 0.4 % of runs say this.
* STABLE when the backlog falls from where it is high, the sample form of Foster's condition: over the windows that
  begin above the median, the mean increment is negative by `RETURN_SCORE` standard errors. A random walk crosses its
  own median downwards by construction, which shifts the score to about -0.8; -3.5 is beyond it in 0.2 % of runs at
  load 1. A backlog that never changes, or is 0 half of the time, is STABLE too.
* UNDECIDED otherwise, and when the second half is shorter than `LIFETIMES` lifetimes of a request that never waits,
  because filling an empty engine looks like growth. A heavy tail widens the interval: it delays a verdict and does not
  make one.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import INTERVALS, NEVER, Run, Series, span
from queuetheory_llm.verdict import Verdict

Floats = NDArray[np.float64]

DRIFT_WINDOWS = 20
RETURN_WINDOWS = 500
RETURN_SCORE = 3.5
LIFETIMES = 5
_T_99 = 2.8609  # two-sided 99 % point of Student's t with DRIFT_WINDOWS - 1 degrees of freedom
_LEAST_BATCHES = 100  # in the second half; below it a window holds no batch


@attrs.frozen(kw_only=True)
class Drift:
    """Slope of the token backlog in tokens/s with its 99 % confidence interval [low, high]."""

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """``mean``, ``low``, ``high``."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class Measured:
    """What the run alone says.

    Attributes
    ----------
    verdict : Verdict
        STABLE, UNSTABLE or UNDECIDED; a run never shows CRITICAL.
    drift : Drift or None
        None when all requests arrive at one instant or nothing is served.
    reason : str
    """

    verdict: Verdict
    drift: Drift | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """``verdict``, ``token_drift`` {mean, low, high}, ``reason``."""
        drift = {"mean": None, "low": None, "high": None} if self.drift is None else self.drift.to_dict()
        return {"verdict": self.verdict.value, "token_drift": drift, "reason": self.reason}


def second_half(run: Run) -> tuple[int, int]:
    """Ticks between which the drift is measured: the middle and the end of the span of arrivals."""
    first, last = span(run.requests, run.until)
    return (first + last) // 2, last


def measure(run: Run) -> Measured:
    """Drift and measured verdict of a run; the criterion stands at the head of the module.

    The span of arrivals is [0, until), or from the first to the last arrival for a run without ``until``.
    """
    if not run.batches or run.series.ticks.size <= INTERVALS:
        return Measured(
            verdict=Verdict.UNDECIDED, drift=None, reason="all requests arrive at one instant: there is no drift"
        )
    half = run.series.since(second_half(run)[0])
    drift = _drift(half, run.clock)
    doubt = _too_short(run, half)
    if doubt:
        return Measured(verdict=Verdict.UNDECIDED, drift=drift, reason=doubt)
    return _decide(drift, _return_score(run, half), 2 * run.clock.seconds(half.span))


def _drift(half: Series, clock: Clock) -> Drift:
    """Mean increment per second; the windows are taken as independent, which is safe where increments anticorrelate."""
    increments = np.diff(_levels(half, DRIFT_WINDOWS))
    window = clock.seconds(half.span) / DRIFT_WINDOWS
    mean = float(increments.mean()) / window
    reach = _T_99 * float(increments.std(ddof=1)) / math.sqrt(DRIFT_WINDOWS) / window
    return Drift(mean=mean, low=mean - reach, high=mean + reach)


def _levels(half: Series, windows: int) -> Ticks:
    """Backlog at the edges of equal windows."""
    return half.backlog[:: (half.ticks.size - 1) // windows]


def _too_short(run: Run, half: Series) -> str | None:
    batches = int(half.batches[-1] - half.batches[0])
    if batches < _LEAST_BATCHES:
        return f"the second half of the run holds {batches} batches, a verdict needs {_LEAST_BATCHES}: " + (
            "the trace is too short" if run.until is None else "give a longer --horizon"
        )
    lifetime = run.mean_batch / run.clock.rate * (float(run.requests.decode.mean()) + 1)
    if run.clock.seconds(half.span) < LIFETIMES * lifetime:
        return (
            f"a request that never waits stays about {lifetime:.3g} s, so the run may still be filling up: "
            f"give a --horizon above {2 * LIFETIMES * lifetime:.3g} s"
        )
    return None


def _return_score(run: Run, half: Series) -> float:
    """Mean increment from above the median over its standard error; -inf when the backlog plainly stays."""
    idle = 1 - float(half.busy[-1] - half.busy[0]) / half.span
    if idle >= 0.5 or _hardly_moves(run, half):
        return -math.inf
    level = _levels(half, RETURN_WINDOWS)
    begin, increments = level[:-1], np.diff(level)
    high = increments[begin > np.median(begin)]
    if high.size < 2 or not high.std():
        return 0.0
    return float(high.mean() / (high.std(ddof=1) / math.sqrt(high.size)))


def _hardly_moves(run: Run, half: Series) -> bool:
    return bool(np.ptp(half.backlog) <= run.requests.work.max() + run.tokens / run.batches)


def _decide(drift: Drift, score: float, seconds: float) -> Measured:
    if drift.low > 0:
        return Measured(
            verdict=Verdict.UNSTABLE, drift=drift, reason="the 99 % interval of the token drift lies above 0"
        )
    if score <= -RETURN_SCORE:
        return Measured(
            verdict=Verdict.STABLE,
            drift=drift,
            reason="the backlog falls from where it is high, and its drift is not above 0",
        )
    return Measured(verdict=Verdict.UNDECIDED, drift=drift, reason=_how_long(drift, score, seconds))


def _how_long(drift: Drift, score: float, seconds: float) -> str:
    """Run length that would decide: both scores grow with the square root of it."""
    factors = []
    if drift.mean > 0:
        factors.append(((drift.high - drift.mean) / drift.mean) ** 2)
    if score < 0:
        factors.append((RETURN_SCORE / score) ** 2)
    length = f"a run of about {max(2.0, min(factors)) * seconds:.2g} s would decide" if factors else "run longer"
    return f"neither growth nor return of the backlog is established over {seconds:.4g} s; {length}"


@attrs.frozen(kw_only=True)
class Summary:
    """Mean and percentiles of one latency, in seconds.

    Attributes
    ----------
    count : int
        Finished requests for which the latency exists.
    mean, p50, p90, p95, p99 : float or None
        None when ``count`` is 0; ``mean`` also where a mean does not exist.
    """

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Floats) -> Summary:
        """Summary of the values, percentiles interpolated linearly."""
        if not values.size:
            return cls(count=0, mean=None, p50=None, p90=None, p95=None, p99=None)
        p50, p90, p95, p99 = (float(value) for value in np.percentile(values, [50, 90, 95, 99]))
        return cls(count=int(values.size), mean=float(values.mean()), p50=p50, p90=p90, p95=p95, p99=p99)

    def to_dict(self) -> dict[str, float | None]:
        """``mean``, ``p50``, ``p90``, ``p95``, ``p99`` in seconds, and ``count``."""
        return attrs.asdict(self)


def latencies(run: Run, first_token: str) -> dict[str, Floats]:
    """Latencies of the finished requests in seconds, in order of arrival.

    Parameters
    ----------
    run : Run
    first_token : {"paper", "engine"}
        "paper" (Dai et al. 2025): a request of v_d decode tokens has v_d outputs, the first at the end of the batch
        with the first decode token; with v_d = 0 it has no output and neither ttft nor tpot. "engine": the last prompt
        chunk emits the first of v_d + 1 outputs; a request without a prompt has no such chunk, and is counted as in
        the paper.

    Returns
    -------
    dict
        "ttft": first output - arrival. "tpot": (last output - first)/(outputs - 1), left out for fewer than two
        outputs. "e2e": finish - arrival.
    """
    if first_token not in ("paper", "engine"):
        raise InvalidInput(f"--first-token: {first_token!r} is not known; use paper or engine")
    done = run.finish != NEVER
    arrival, finish = run.requests.arrival[done], run.finish[done]
    first, outputs = run.first_decode[done], run.requests.decode[done]
    if first_token == "engine":
        emits = run.requests.prefill[done] > 0
        first, outputs = np.where(emits, run.last_prefill[done], first), outputs + emits
    some, several = outputs >= 1, outputs >= 2
    return {
        "ttft": (first - arrival)[some] / run.clock.rate,
        "tpot": (finish - first)[several] / (outputs[several] - 1) / run.clock.rate,
        "e2e": (finish - arrival) / run.clock.rate,
    }
