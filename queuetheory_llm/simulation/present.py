"""The requests present over time in independent runs: what an exact stationary law is set against."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import require_whole
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import scheduler_for
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.judge import default_horizon
from queuetheory_llm.simulation.occupancy import occupancy
from queuetheory_llm.simulation.requests import fixed_times, sample
from queuetheory_llm.simulation.run import Progress
from queuetheory_llm.simulation.runner import run
from queuetheory_llm.simulation.statistics import student

REPLICATIONS = 8
#: Standard errors within which a simulated mean agrees with an exact one.
AGREES = 4.0
_NARROW = 0.05  # of the mean: a wider interval agrees with too much
_WARM_UP = Fraction(1, 10)  # of a run
_DRAINS = 100  # times the mean backlog that the spare capacity serves in a run
_LEAST, _MOST = 100_000, 2_000_000  # requests of one run by default


@attrs.frozen(kw_only=True, eq=False)
class Present:
    """The law of the requests present over time, from independent runs.

    Attributes
    ----------
    laws : float64 array of shape (runs, most + 1)
        Share of the time with n requests present, n = 0, 1, ..., in each run after its warm-up.
    seconds, warm_up : float
        Of one run, and what of it is left out at its beginning.
    seed : int
    """

    laws: Floats
    seconds: float
    warm_up: float
    seed: int

    @property
    def runs(self) -> int:
        """Number of runs."""
        return int(self.laws.shape[0])

    @property
    def law(self) -> Floats:
        """Mean over the runs; shape (most + 1,)."""
        return np.asarray(self.laws.mean(axis=0))

    @property
    def beyond(self) -> Floats:
        """P(more than n are present), n = 0, 1, ..., in each run; shape (runs, most + 1)."""
        return np.asarray(np.cumsum(self.laws[:, ::-1], axis=1)[:, ::-1] - self.laws)

    @property
    def means(self) -> Floats:
        """Mean number present in each run; shape (runs,)."""
        return np.asarray(self.laws @ np.arange(self.laws.shape[1]))

    @property
    def mean(self) -> float:
        """Mean number present."""
        return float(self.means.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean over the runs."""
        return float(self.means.std(ddof=1)) / math.sqrt(self.runs)

    def interval(self, level: float) -> tuple[float, float]:
        """Confidence interval of the mean by Student's t over the runs."""
        mean, reach = student(self.means, level)
        return mean - reach, mean + reach

    @property
    def telling(self) -> bool:
        """Whether agreement means anything: the 95 % interval reaches less than 5 % of the mean to either side."""
        mean, reach = student(self.means, 0.95)
        return reach < _NARROW * mean

    def apart(self, exact: float, bound: float) -> float:
        """Standard errors between the mean and an exact one, known to ``bound``."""
        missing = max(0.0, abs(self.mean - exact) - bound)
        if missing == 0:
            return 0.0
        return missing / self.error if self.error else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        low, high = self.interval(0.95)
        return {
            "mean_requests": self.mean,
            "low95": low,
            "high95": high,
            "standard_error": self.error,
            "requests_law": self.law.tolist(),
            "replications": self.runs,
            "horizon": self.seconds,
            "warm_up": self.warm_up,
            "seed": self.seed,
        }


def spread(values: Floats, level: float = 0.95) -> Floats:
    """Half-width of Student's interval of each column; ``values`` of shape (runs, n), the result (n,)."""
    return np.array([student(column, level)[1] for column in values.T])


def settled_horizon(engine: Engine, workload: Workload, *, backlog: float, load: float | None) -> Fraction:
    """Seconds of a run in which a start from empty is forgotten in the first tenth.

    What an engine forgets it forgets in the time that its spare capacity takes to serve the mean backlog, up to a
    factor of 2 (reflected Brownian motion: mean s^2/(2 d), slowest rate d^2/(2 s^2)). A run lasts 100 times that, and
    no less than `default_horizon` and 100 000 requests; 2 000 000 requests at most.

    Parameters
    ----------
    engine, workload : Engine, Workload
    backlog : float
        Stationary mean, tokens.
    load : float or None
        Below 1; None where it is not known.
    """
    rate = workload.rate
    if rate is None:
        raise InvalidInput("workload: rate: missing; give the workload a rate, or --rate R")
    least = max(default_horizon(engine, workload, rate), Fraction(f"{float(_LEAST / rate):.3g}"))
    if load is None:
        return least
    spare = float(rate) * float(workload.mean_prefill + workload.mean_decode) * (1 / load - 1)
    wanted = Fraction(f"{_DRAINS * backlog / spare:.3g}")
    return max(least, min(wanted, Fraction(f"{float(_MOST / rate):.3g}")))


def requests_present(
    engine: Engine,
    scheduler: Scheduler | str,
    workload: Workload,
    *,
    horizon: Fraction,
    seed: int = 0,
    replications: int = REPLICATIONS,
    progress: Progress | None = None,
) -> Present:
    """Run a system several times from empty and count the requests present, the first tenth of each run left out.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler or str
    workload : Workload
        With arrivals.
    horizon : Fraction
        Seconds of a run.
    seed : int
        At least 0; the same seed gives the same runs.
    replications : int
        Number of runs, at least 2.
    progress : callable, optional
        Told the share of the runs that is done.

    Raises
    ------
    InvalidInput
        If an argument is out of range, or there are too many requests.
    InfeasibleRequest
        If the rule can never serve one of the requests.
    """
    rule = scheduler_for(scheduler, engine, workload) if isinstance(scheduler, str) else scheduler
    seed = require_whole("seed", seed, 0, "the same seed gives the same runs")
    replications = require_whole("replications", replications, 2, "the number of independent runs")
    if workload.arrivals is None:
        raise InvalidInput("workload: rate: missing; give the workload a rate, or --rate R")
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), horizon)
    warm_up = _WARM_UP * horizon
    laws = []
    for number, child in enumerate(np.random.SeedSequence(seed).spawn(replications)):
        requests = sample(workload, clock, horizon, np.random.default_rng(child))
        requests.require_feasible(rule, engine)
        done = run(engine, rule, requests, clock, until=clock.bound(horizon))
        laws.append(occupancy(done, warm_up))
        if progress is not None:
            progress((number + 1) / replications)
    widest = max(law.size for law in laws)
    return Present(
        laws=np.array([np.pad(law, (0, widest - law.size)) for law in laws]),
        seconds=float(horizon),
        warm_up=float(warm_up),
        seed=seed,
    )
