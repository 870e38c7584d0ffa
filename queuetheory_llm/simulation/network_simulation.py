"""Runs of a network and what they show: growth of the work in it, its peaks, and means where it does not grow.

What may grow is the *mean work* to come, V = sum over the classes of Q_k w_k with w = m + P w: seconds of service,
at all stations together, that the tasks present will still take on average. It rises by sum of the loads a second and
falls by one for every station at work. Unlike the tokens present, which rise and fall by half when the burden of an
unstable network swings from one station to the other, V changes little with that: the stations that starve lose it
steadily. The tests are those of `evidence` for the excess of one engine, on V after the first quarter of the run. Their
errors are counted for one queue; a network that is exactly critical at n stations has a V that is a sum of up to n
reflected Brownian motions, and nothing is claimed of it. What theory says of the network is elsewhere
(`stability`); here are measurements alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.exact.elimination import NotPositive, solve
from queuetheory_llm.exact.numbers import Number, require_whole, to_seconds
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.class_order import network_policy
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.evidence import Evidence, grows, returns
from queuetheory_llm.simulation.network_draws import Draws, network_clock
from queuetheory_llm.simulation.network_run import NetworkRun, bin_edges
from queuetheory_llm.simulation.peaks import FALL, peak_ratios, peaks_between_falls
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import INTERVALS
from queuetheory_llm.simulation.statistics import DRIFT_WINDOWS, Estimate, Summary, estimate_mean, student
from queuetheory_llm.verdict import Verdict

#: Most independent runs of one question; each keeps its series.
MOST_REPLICATIONS = 1000

#: Services begun in the last three quarters of a run, below which it cannot speak.
_LEAST_SERVICES = 100


@attrs.frozen(kw_only=True)
class WorkGrowth:
    """Slope of the mean work to come with its 99 % confidence interval, over the second half of the run.

    ``mean``, ``low`` and ``high`` are seconds of service a second.
    """

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """``mean``, ``low``, ``high``."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True, eq=False)
class NetworkSimulation(Result):
    """One run of a network, or independent ones, and what they show.

    Attributes
    ----------
    policy : str
    priority : mapping of station to classes, or None
        Orders given beside the model.
    seed : int
    runs : tuple of NetworkRun
    measured : Verdict
        STABLE, UNSTABLE or UNDECIDED, of the runs alone.
    reason : str
        One sentence.
    growth : WorkGrowth or None
        None where the runs cannot speak.
    present : mapping of class name to Estimate, or None
        Mean number of tasks, by time; None unless ``measured`` is STABLE: elsewhere there may be no mean.
    response : Summary
        Seconds from coming from outside to the last part leaving; without means unless ``measured`` is STABLE.
    notes : tuple of str
        What was rounded.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.network_run:draw_network_run"
    policy: str
    priority: Mapping[str, Sequence[str]] | None
    seed: int
    runs: tuple[NetworkRun, ...]
    measured: Verdict
    reason: str
    growth: WorkGrowth | None
    present: Mapping[str, Estimate] | None
    response: Summary
    notes: tuple[str, ...]

    @property
    def run(self) -> NetworkRun:
        """The first run."""
        return self.runs[0]

    @property
    def network(self) -> Network:
        """What was run."""
        return self.run.network

    @cached_property
    def work(self) -> Floats:
        """Mean work to come at the ticks of the series of the first run, seconds of service, shape (g,)."""
        return mean_work(self.run)

    @property
    def burden(self) -> tuple[str, Ticks | Floats]:
        """What the peaks are of: the tokens present, at their highest since the tick before; else the work to come."""
        if any(not station.classical for station in self.network.stations):
            return "tokens present", self.run.series.highest
        return "work to come", self.work

    def peaks(self, fall: float = FALL) -> list[tuple[float, float]]:
        """(seconds, height) of the peaks of `burden`, see `simulation.peaks.peaks_between_falls`."""
        series, levels = self.run.series, self.burden[1]
        return [
            (self.run.clock.seconds(int(series.ticks[i])), float(levels[i])) for i in peaks_between_falls(levels, fall)
        ]

    def peak_ratios(self, fall: float = FALL) -> Floats:
        """Each peak of `burden` over the one before it."""
        return peak_ratios(self.burden[1], fall)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        run = self.run
        stations = [station.name for station in self.network.stations]
        return {
            "policy": self.policy,
            "priority": None if self.priority is None else {name: list(of) for name, of in self.priority.items()},
            "seed": self.seed,
            "replications": len(self.runs),
            "horizon": run.clock.seconds(run.until),
            "verdict": self.measured.value,
            "basis": "simulation",
            "reason": self.reason,
            "growth": None if self.growth is None else self.growth.to_dict(),
            "hops": sum(one.hops for one in self.runs),
            "classes": [self._class_row(k) for k in range(len(self.network.classes))],
            "stations": [{"name": name, "busy": share} for name, share in zip(stations, self._busy(), strict=True)],
            "response": self.response.to_dict(),
            "peaks": None if self.measured is Verdict.STABLE else self._peaks_row(),
            "notes": list(self.notes),
        }

    def _peaks_row(self) -> dict[str, Any]:
        """Peaks of a network that is not known to come back; else they are noise."""
        return {"of": self.burden[0], "at": self.peaks(), "ratios": self.peak_ratios().tolist()}

    def _class_row(self, k: int) -> dict[str, Any]:
        name = self.network.classes[k].name
        known = None if self.present is None else self.present.get(name)
        served = sum(int(one.served[k]) for one in self.runs)
        stay = sum(float(one.series.stay[k, -1]) for one in self.runs) / self.run.clock.rate
        return {
            "name": name,
            "arrived": sum(int(one.arrived[k]) for one in self.runs),
            "served": served,
            "present": sum(int(one.present[k]) for one in self.runs),
            "mean_present": None if known is None else attrs.asdict(known),
            "mean_sojourn": stay / served if served and self.present is not None else None,
            "sojourn": self.sojourns(name),
        }

    def sojourns(self, name: str) -> dict[str, float | None]:
        """p50, p90, p99 of the seconds from coming to a class to leaving it, to 1/16 of the value."""
        k = [each.name for each in self.network.classes].index(name)
        bins = sum((one.bins[k] for one in self.runs), np.zeros(1, dtype=np.int64))
        below, edges = np.cumsum(bins), bin_edges()
        if not below[-1]:
            return dict.fromkeys(("p50", "p90", "p99"))
        rank = {name: int(np.searchsorted(below, share * below[-1])) for name, share in _SHARES.items()}
        return {name: float(edges[i] + edges[i + 1]) / 2 / self.run.clock.rate for name, i in rank.items()}

    def _busy(self) -> list[float]:
        """Share of the time in which the servers of each station worked, mean over servers and runs."""
        shares = sum((one.busy / one.until for one in self.runs), np.zeros(1)) / len(self.runs)
        sizes = [max(1, len(station.engines)) for station in self.network.stations]
        return [float(part.mean()) for part in np.split(shares, np.cumsum(sizes)[:-1])]


_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def simulate_network(
    network: Network,
    *,
    policy: str = "file",
    priority: Mapping[str, Sequence[str]] | None = None,
    horizon: Number,
    seed: int = 0,
    start: Mapping[str, int] | None = None,
    watch: Sequence[Number] | None = None,
    replications: int = 1,
    log: bool = False,
) -> NetworkSimulation:
    """Run a network, once or several times, and say what it shows.

    Parameters
    ----------
    network : Network
    policy : {"file", "back-pressure"}
        What the stations of the model say, or back-pressure everywhere; see `schedulers.back_pressure`.
    priority : mapping of station name to class names, optional
        Orders of classes from high to low, in the place of those of the model.
    horizon : number or duration
        Seconds; all that happens strictly before it is run.
    seed : int
        At least 0; the same seed gives the same runs.
    start : mapping of class name to number of tasks, optional
        Tasks that are there at time 0, not yet served; the network is empty without it.
    watch : sequence of numbers or durations, optional
        Increasing seconds of the series, none beyond the horizon; by default 4 000 equal parts of the run. There is no
        measured verdict with chosen ones.
    replications : int
        Number of independent runs, from 1 to `MOST_REPLICATIONS`, each with streams of its own spawned from the seed.
    log : bool
        Keep every event.

    Raises
    ------
    InvalidInput
        If an argument is out of range or names nothing of the model.
    AssumptionViolated
        If tasks never leave, multiply without end, or come to a join without siblings.
    """
    from queuetheory_llm.simulation import network_runner  # loads numba

    _check_types(network, log)
    seed = require_whole("seed", seed, 0, "the same for the same run")
    replications = require_whole("replications", replications, 1, "the number of independent runs")
    if replications > MOST_REPLICATIONS:
        raise InvalidInput(f"replications: {replications} are more than {MOST_REPLICATIONS}; give fewer, longer runs")
    seconds = _seconds("horizon", horizon)
    if seconds <= 0:
        raise InvalidInput(f"horizon: {float(seconds):g} s is not positive; give the seconds to simulate")
    rules = network_policy(network, policy, priority)
    work_to_come(network.fluid_model)  # refuses tasks that never leave before they pile up
    clock = network_clock(network, seconds)
    until = clock.bound(seconds)
    ticks = _parts(until) if watch is None else _chosen(watch, clock, until)
    rngs = [np.random.default_rng(seed)]
    if replications > 1:
        rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(replications)]
    runs = tuple(
        network_runner.run(
            network, rules, Draws(network, clock, seconds, rng, start), clock, until=until, watch=ticks, log=log
        )
        for rng in rngs
    )
    measured, reason, growth = _measure(runs, None if watch is None else "the time series is of chosen ticks")
    settled = measured is Verdict.STABLE
    response = Summary.of([run.responses() for run in runs], [run.responses(settled=True) for run in runs])
    return NetworkSimulation(
        policy=policy,
        priority=priority,
        seed=seed,
        runs=runs,
        measured=measured,
        reason=reason,
        growth=growth,
        present=_present(runs) if settled else None,
        response=response if settled else response.without_means(),
        notes=clock.notes,
    )


def _parts(until: int) -> Ticks:
    """The ticks of the default series, equal parts of the run, fewer if ticks lack."""
    whole, rest = divmod(until, INTERVALS)
    steps = np.arange(INTERVALS + 1, dtype=np.int64)
    return np.unique(steps * whole + steps * rest // INTERVALS)


def _check_types(network: object, log: object) -> None:
    if not isinstance(network, Network):
        raise InvalidInput(f"network: {network!r:.80} is no Network; files.network_file.load_network reads one")
    if not isinstance(log, bool):
        raise InvalidInput(f"log: {log!r:.80} is no truth value; give True or False")


def _seconds(where: str, value: Number) -> Fraction:
    """A time that an argument gives, its name before what is wrong with it."""
    try:
        return to_seconds(value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {fault}" for fault in error.faults) from None


def _chosen(watch: Sequence[Number], clock: Clock, until: int) -> Ticks:
    if isinstance(watch, str) or not isinstance(watch, Iterable):
        raise InvalidInput(f"watch: {watch!r:.80} is no sequence; give increasing seconds from 0 to the horizon")
    ticks = [clock.ticks(_seconds(f"watch[{i}]", at)) for i, at in enumerate(watch)]
    if not ticks or ticks[0] < 0 or ticks[-1] > until or any(b <= a for a, b in pairwise(ticks)):
        raise InvalidInput("watch: give increasing seconds from 0 to the horizon, at least one")
    return np.array(ticks, dtype=np.int64)


def work_to_come(model: FluidModel) -> Floats:
    """w = m + P w: mean seconds of service, at all stations, from a task that comes to each class; shape (K,).

    Raises
    ------
    AssumptionViolated
        If it is infinite: tasks that never leave, or multiply without end.
    """
    try:
        work = solve(model.routing, model.service)
    except NotPositive:
        raise AssumptionViolated(
            "route: tasks of some classes never leave, or multiply without end: their work has no mean; let them out"
        ) from None
    return np.array([float(each) for each in work])


def mean_work(run: NetworkRun) -> Floats:
    """Mean work to come at the ticks of the series, seconds of service, shape (g,)."""
    return np.asarray(work_to_come(run.network.fluid_model) @ run.series.present, dtype=np.float64)


def _measure(runs: Sequence[NetworkRun], doubt: str | None) -> tuple[Verdict, str, WorkGrowth | None]:
    """What the runs say of growth, why, and the slope."""
    late = [int(run.started.sum()) for run in runs]
    if doubt is None and (min(late) < _LEAST_SERVICES or runs[0].series.ticks.size <= INTERVALS):
        doubt = f"a run holds {min(late)} services, too few to tell; give a longer horizon"
    if doubt is not None:
        return Verdict.UNDECIDED, f"{doubt}: nothing is measured of growth", None
    growth, found = _slope(runs), [_evidence(run) for run in runs]
    text = f"{growth.mean:.3g} s of service a second ({growth.low:.3g} to {growth.high:.3g})"
    if grows(found):
        return Verdict.UNSTABLE, f"the work in the network grows by {text}", growth
    if returns(found):
        return Verdict.STABLE, f"the work in the network keeps coming back; its slope is {text}", growth
    return Verdict.UNDECIDED, f"neither growth nor return is established; the slope is {text}", growth


def _evidence(run: NetworkRun) -> Evidence:
    """The scores of `evidence` of the mean work."""
    return Evidence.of_level(mean_work(run), seconds=run.clock.seconds(run.until), services=int(run.started.sum()))


def _slope(runs: Sequence[NetworkRun]) -> WorkGrowth:
    """By batch means of one run, by Student's t over several."""
    halves = [mean_work(run)[INTERVALS // 2 :] for run in runs]
    seconds = runs[0].clock.seconds(runs[0].until) / 2
    if len(runs) == 1:
        slopes = np.diff(halves[0][:: INTERVALS // 2 // DRIFT_WINDOWS]) * DRIFT_WINDOWS / seconds
    else:
        slopes = np.array([half[-1] - half[0] for half in halves]) / seconds
    mean, reach = student(slopes, 0.99)
    return WorkGrowth(mean=mean, low=mean - reach, high=mean + reach)


def _present(runs: Sequence[NetworkRun]) -> dict[str, Estimate]:
    """Mean number of tasks of each class, by time."""
    found = {}
    for k, each in enumerate(runs[0].network.classes):
        means = [np.diff(run.series.area[k]) / np.diff(run.series.ticks) for run in runs]
        estimate = estimate_mean(means)
        if estimate is not None:
            found[each.name] = estimate
    return found
