"""Thresholds and drifts by simulation, side by side with what theory knows of them.

A door between two layers: the bounds of `stability` bracket the search, and what is measured is given in its terms.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.errors import AssumptionViolated, InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Number, Real, to_fraction
from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.trace import TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.schedulers.registry import scheduler_for
from queuetheory_llm.simulation.phases import Backlog, Phase, PhasedRuns, stream_of
from queuetheory_llm.simulation.rate_search import RateInterval, Report, check_search, search_rate
from queuetheory_llm.simulation.statistics import TokenDrift
from queuetheory_llm.stability.induced import DriftBounds, InducedDrifts, induced_threshold
from queuetheory_llm.stability.thresholds import Solver, Threshold, threshold
from queuetheory_llm.stability.workload_region import workload_bound
from queuetheory_llm.verdict import Basis, Judgement, Verdict

_BEYOND = Fraction(51, 50)  # of the bound of every rule: certainly unstable
_PHASE_REQUESTS = 4_000  # of a replication, where drifts are measured


@attrs.frozen(kw_only=True)
class SimulatedThreshold(Threshold):
    """A threshold known to an interval: runs fall back below ``low`` and grow above ``high``.

    Attributes
    ----------
    confidence : float or None
        That both ends are right, see `RateInterval`; None where neither is shown, and they are the bounds of theory.
    falling, growing : TokenDrift or None
        Drift of the token backlog from a large backlog on, tokens/s, at the two ends; None where an end is a bound of
        theory.
    """

    confidence: float | None = None
    falling: TokenDrift | None = None
    growing: TokenDrift | None = None

    def judge(self, rate: Number) -> Judgement:
        """Verdict at a rate in requests/s: by simulation outside the interval, UNDECIDED within it."""
        asked = to_fraction(rate)
        interval = f"{lower_limit(self.low)} .. {upper_limit(self.high)} requests/s"
        if asked < self.low:
            reason = f"below {interval}: {self.method}"
            return Judgement(
                verdict=Verdict.STABLE, basis=self._basis(self.falling), reason=reason, load=asked / self.low
            )
        if asked > self.high:
            reason = f"above {interval}: {self.method}"
            return Judgement(
                verdict=Verdict.UNSTABLE, basis=self._basis(self.growing), reason=reason, load=asked / self.high
            )
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=f"within {interval}: {self.method}")

    def _basis(self, measured: TokenDrift | None) -> Basis:
        return Basis.THEOREM if measured is None else Basis.SIMULATION

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``capacity --json``; drifts in tokens/s."""
        return {
            **super().to_dict(),
            "confidence": self.confidence,
            "drift_at_low": None if self.falling is None else self.falling.to_dict(),
            "drift_at_high": None if self.growing is None else self.growing.to_dict(),
        }


def simulated_threshold(
    engine: Engine,
    scheduler: Scheduler | str,
    workload: Workload,
    *,
    width: float = 0.01,
    confidence: float = 0.99,
    seed: int = 0,
    max_requests: int | None = None,
    report: Report | None = None,
) -> SimulatedThreshold:
    """The largest stable rate of a rule from an empty engine, by simulation.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler or str
        Any rule, or the name of one, adaptive ones too.
    workload : Workload
        Arrivals are taken as Poisson when it has no process; a trace is replayed with scaled gaps.
    width, confidence, seed, max_requests, report
        See `search_rate`.

    Returns
    -------
    SimulatedThreshold
        Where a run shows nothing, the bound of theory.

    Raises
    ------
    InvalidInput
        If an argument is out of range.
    InfeasibleRequest
        If the rule can never run some prompt.
    """
    rule = scheduler_for(scheduler, engine, workload) if isinstance(scheduler, str) else scheduler
    bounds = _bounds(engine, rule, workload)
    found = search_rate(
        engine,
        rule,
        workload,
        overload=to_fraction(bounds.high) * _BEYOND,
        width=width,
        confidence=confidence,
        seed=seed,
        max_requests=max_requests,
        report=report,
    )
    return _with_scale(_beside(bounds, found), workload)


def _with_scale(found: SimulatedThreshold, workload: Workload) -> SimulatedThreshold:
    """The interval of a trace in multiples of its recorded rate too."""
    if not isinstance(workload.arrivals, TraceArrivals):
        return found
    low, high = (float(end / workload.arrivals.rate) for end in (found.low, found.high))
    return attrs.evolve(found, notes=(*found.notes, f"that is {low:.4g} .. {high:.4g} times the rate of the trace"))


def _bounds(engine: Engine, rule: Scheduler, workload: Workload) -> Threshold:
    """What theory knows: of a policy its threshold or bounds, of another rule the bound of every rule."""
    if isinstance(rule, Policy):
        return threshold(engine, rule, workload)
    bound = workload_bound(engine, workload)
    return Threshold(
        scheduler=rule.name, low=Fraction(0), high=bound.requests_per_s, method=bound.method, binding=bound.binding
    )


def _beside(bounds: Threshold, found: RateInterval) -> SimulatedThreshold:
    """The interval measured, cut to the bounds of theory; a contradiction is reported as such."""
    low: Real = found.low if found.falling is not None else bounds.low
    high: Real = found.high if found.high is not None else bounds.high
    notes = list(found.notes)
    if found.high is not None and (found.high < bounds.low or found.low > bounds.high):
        notes.append(
            f"contradiction: theory has the threshold at {lower_limit(bounds.low)} .. {upper_limit(bounds.high)} "
            f"requests/s ({bounds.method}); please report this"
        )
    elif not bounds.exact:
        low, high = max(low, bounds.low), min(high, bounds.high)
    else:
        notes.append(f"theory: stable below {lower_limit(bounds.low)} requests/s ({bounds.method})")
    shown = found.falling is not None or found.growing is not None
    return SimulatedThreshold(
        scheduler=bounds.scheduler,
        low=low,
        high=high,
        method="simulation" if shown else f"simulation shows nothing; {bounds.method}",
        binding=bounds.binding,
        notes=tuple(notes),
        confidence=found.confidence if shown else None,
        falling=found.falling if low == found.low else None,
        growing=found.growing if high == found.high else None,
    )


def solver_of(method: str, *, width: float = 0.01, seed: int = 0, report: Report | None = None) -> Solver | None:
    """The way to a threshold that goes by a name.

    Parameters
    ----------
    method : {"auto", "theorem", "induced", "simulate"}
        "auto" and "theorem" are what theory proves, None here; "induced" is induced chains where they apply, else
        simulation with a note why.
    width, seed, report
        See `search_rate`.

    Raises
    ------
    InvalidInput
        If the name is unknown.
    """
    if method not in METHODS:
        raise InvalidInput(f"--method: {method!r} is not known; use {', '.join(METHODS)}")

    def simulate(engine: Engine, rule: Scheduler, workload: Workload) -> Threshold:
        own = None if report is None else lambda words: report(f"{rule.name}: {words}")
        return simulated_threshold(engine, rule, workload, width=width, seed=seed, report=own)

    def induce(engine: Engine, rule: Scheduler, workload: Workload) -> Threshold:
        try:
            return induced_threshold(engine, rule, workload)
        except (AssumptionViolated, NotConverged) as error:
            found = simulate(engine, rule, workload)
            return attrs.evolve(found, notes=(f"by simulation: {error}", *found.notes))

    return {"induced": induce, "simulate": simulate}.get(method)


#: Names of `solver_of`.
METHODS = ("auto", "theorem", "induced", "simulate")


def simulated_drifts(
    engine: Engine,
    scheduler: Scheduler | str,
    workload: Workload,
    rate: Number,
    *,
    confidence: float = 0.99,
    seed: int = 0,
    requests: int = _PHASE_REQUESTS,
) -> InducedDrifts:
    """The drifts of `stability.induced` by runs of the ordinary runner from a saturated start; any rule, any lengths.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler or str
    workload : Workload
    rate : number
        Requests/s; the workload's own process is scaled to it.
    confidence : float
        Of each interval.
    seed : int
    requests : int
        Requests that arrive in a replication, more where it would be too short; ten replications.

    Raises
    ------
    InvalidInput
        If an argument is out of range.
    InfeasibleRequest
        If the rule can never serve one of the requests.
    """
    check_search(confidence=confidence, seed=seed, requests=requests)
    asked = to_fraction(rate)
    rule = scheduler_for(scheduler, engine, workload) if isinstance(scheduler, str) else scheduler
    if asked <= 0:
        raise InvalidInput(f"rate: {float(asked):g} is not positive; give requests per second")
    if workload.mean_prefill == 0 or workload.mean_decode == 0:
        raise InvalidInput("workload: one phase alone has no second backlog; judge it by its threshold")
    stream = stream_of(workload)
    runs = PhasedRuns(engine=engine, scheduler=rule, stream=stream, seed=seed)
    phase = Phase(rate=asked, requests=runs.sized(requests, float(asked)))
    endless = _endless(engine, workload, phase)
    inside = runs.drifts([phase], endless, confidence=confidence)[0]
    prompts = decodes = None
    share = float(workload.mean_prefill / workload.mean_tokens)
    if not inside.decode.low > 0:  # decodes are then in balance, and what grows is whole requests
        total = runs.drifts([phase], attrs.evolve(endless, decodes=0), confidence=confidence)[0].total
        prompts = DriftBounds(low=share * total.low, high=share * total.high)
    if not inside.prefill.low > 0:
        total = runs.drifts([phase], attrs.evolve(endless, prompts=0), confidence=confidence)[0].total
        decodes = DriftBounds(low=total.low, high=total.high)
    return InducedDrifts(
        scheduler=rule.name,
        rate=asked,
        interior=(_drift(inside.prefill), _drift(inside.decode)),
        prompts=prompts,
        decodes=decodes,
        method="simulation",
        confidence=confidence,
        notes=(*stream.notes, *(_UNMIXED if workload.constant_decode and engine.slots < engine.b_max else ())),
    )


_UNMIXED = (
    "constant decode lengths under k_max never mix the ages of the decodes in progress: the drift with prompts large "
    "depends on the start, which is here an empty engine before many prompts",
)


def _endless(engine: Engine, workload: Workload, phase: Phase) -> Backlog:
    """More of both than any rule serves in a phase."""
    seconds = float(phase.requests / phase.rate)
    fastest = max(float(b / engine.batch_time.seconds(b)) for b in engine.batch_time.corners(1, engine.b_max))
    most = 1.2 * seconds * fastest
    return Backlog(
        decodes=math.ceil(most / float(workload.mean_decode)) + 2 * engine.slots,
        prompts=math.ceil(most / float(workload.mean_prefill)) + 2 * engine.slots,
    )


def _drift(measured: TokenDrift) -> DriftBounds:
    return DriftBounds(low=measured.low, high=measured.high)
