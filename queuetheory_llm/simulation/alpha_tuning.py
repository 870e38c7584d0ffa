"""Online tuning of alpha: watch the P95, replay the recent queries over a grid, go on with the best (HEXGEN-FLOW).

*Watched* is the P95 of a query that would spend its life under the conditions of the window: the chance to end at an
age is that of the queries that had that age within the window, those under way too (Kaplan and Meier, J. Amer. Stat.
Assoc. 53 (1958), with delayed entry; in demography a period life table). So a query that has not ended counts for as
long as it has lasted, and where hardly any end the P95 is at least the age of those that wait. Its limit of confidence
is Greenwood's, on the logarithm, wider by as much as late queries come in bursts.

*A tuning is triggered* when that limit is above a multiple of the best P95 since the last tuning; when the same limit
of seconds over SLO is above 1; and when more queries came in the window than ended, by more than chance.

*In the replay* the queries that came within the window come once more, at the same distances, to the cluster in the
state in which it is: `ClusterProcess.forecast`, for each alpha of a grid, until all have ended. From an empty cluster
an alpha that cannot clear the present backlog may look as good as one that can. What is compared is the P95 of seconds
from now on, since the age that a query has already is the same for every alpha. The best is taken only if it beats the
present alpha by a margin, and tunings are at least some time apart (hysteresis). The cluster goes on: nothing is moved
or begun anew.

Nothing of the future is used. Of a query that has not ended, the steps that have not begun are unknown; those of one
that has ended, drawn at random from those of no fewer steps than it has begun, stand for them. In an overload those
that have ended may be the shorter ones; that bias is left. Where hardly any has ended, queries are drawn from the
workflow as it is modelled. The tokens of a call that is at an instance count as known,
as they do for dispatch rules that read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, require_whole, to_fraction, to_seconds
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.simulation.clock import LAST_TICK, Clock
from queuetheory_llm.simulation.cluster_arguments import check_arguments
from queuetheory_llm.simulation.cluster_rule import ClusterRule, run_rule, to_cluster_rule
from queuetheory_llm.simulation.cluster_run import ClusterRun, cluster_clock
from queuetheory_llm.simulation.cluster_simulation import QUANTILES
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.query_source import taken, without_first
from queuetheory_llm.simulation.query_statistics import attainment, quantile
from queuetheory_llm.simulation.requests import MOST_REQUESTS, Ticks, arrival_ticks
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.slo_throughput import TENTHS
from queuetheory_llm.simulation.workflow_draws import draw_queries

if TYPE_CHECKING:
    from queuetheory_llm.simulation.cluster_runner import ClusterProcess

_P95 = QUANTILES["p95"]
_BATCHES = 8  # of a window, whose late queries are compared
_MODELLED = 1_000  # queries drawn from the workflow where too few have ended
_SEEN = 2  # fewest queries of an age from which its chance to end is taken


def _positive(_: object, field: attrs.Attribute[float], value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidInput(f"{field.name}: {value:g} is not positive and finite; see TuningPolicy")


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


def _grid(_: object, field: attrs.Attribute[tuple[float, ...]], values: tuple[float, ...]) -> None:
    if not values or not all(0 <= value <= 1 for value in values) or list(values) != sorted(set(values)):
        raise InvalidInput(f"{field.name}: {list(values)} is no grid; give increasing numbers within 0 .. 1")


def _from(least: float, below: float, what: str) -> Any:
    def check(_: object, field: attrs.Attribute[float], value: float) -> None:
        if not least <= value < below:
            raise InvalidInput(f"{field.name}: {value:g} is outside {least:g} .. {below:g}; it is {what}")

    return check


def _whole(_: object, field: attrs.Attribute[int], value: int) -> None:
    require_whole(field.name, value, 1, "the fewest queries that are worth a look")


@attrs.frozen(kw_only=True)
class TuningPolicy:
    """When and how alpha is tuned.

    Parameters
    ----------
    window : float
        Seconds of the sliding window, in which queries are seen, and of those that are replayed.
    check : float
        Seconds between two looks at the window.
    factor : float
        A tuning is triggered by a P95 whose lower limit is above so many times the best since the last tuning.
    slo : bool
        Whether it is also triggered by a P95 of seconds over SLO whose lower limit is above 1.
    margin : float
        An alpha is taken only if its P95 is lower than the present one's by this share of it.
    rest : float
        Least seconds between two tunings.
    alphas : tuple of float
        The grid.
    least : int
        Fewest queries seen in the window, ended or under way, that are worth a look.
    confidence : float
        Of the limit of the P95, and of the test whether more queries come than end, one-sided.

    Raises
    ------
    InvalidInput
    """

    window: float = attrs.field(converter=float, validator=_positive)
    check: float = attrs.field(converter=float, validator=_positive)
    factor: float = attrs.field(default=1.25, validator=_from(1, math.inf, "a multiple of the best P95"))
    slo: bool = True
    margin: float = attrs.field(default=0.05, validator=_from(0, 1, "a share of the present P95"))
    rest: float = attrs.field(converter=float, validator=_positive)
    alphas: tuple[float, ...] = attrs.field(default=tuple(map(float, TENTHS)), converter=_floats, validator=_grid)
    least: int = attrs.field(default=20, validator=_whole)
    confidence: float = attrs.field(default=0.99, validator=_from(0.5, 1, "the level of a one-sided limit"))

    @classmethod
    def of(cls, system: WorkflowSystem, rate: float, **given: Any) -> TuningPolicy:
        """With a window of about 200 queries at ``rate``, at least four average queries long; the others fit it."""
        window = float(given.pop("window", None) or max(200 / rate, 4 * float(system.base_seconds)))
        return cls(**{"window": window, "check": window / 8, "rest": window, **given})

    def to_dict(self) -> dict[str, Any]:
        """The attributes."""
        return {**attrs.asdict(self), "alphas": list(self.alphas)}


@attrs.frozen(kw_only=True)
class Decision:
    """One tuning.

    Attributes
    ----------
    at : float
        Seconds.
    trigger : {"degraded", "slo", "growing"}
    watched : float
        P95 of the window, seconds; see `PeriodP95`.
    low : float
        Its lower limit.
    reached : bool
        False where hardly any query ended: the P95 is then at least ``watched``.
    best : float
        The best P95 since the last tuning, which it was compared with; inf where there was none.
    came, ended : int
        Queries that came and that ended in the window.
    under_way : int
        Queries that had come and not ended.
    replayed, unknown : int
        Queries of the window, which came once more in the replay, and those of them that had not ended, so that
        others stood for them.
    alphas, p95 : tuple of float
        What was replayed, the grid and the present alpha; and under each the P95 of the seconds from then on, of the
        queries under way and those replayed.
    before, after : float
        Alpha; equal where none was better by the margin.
    reason : str
        One sentence.
    """

    at: float
    trigger: str
    watched: float
    low: float
    reached: bool
    best: float
    came: int
    ended: int
    under_way: int
    replayed: int
    unknown: int
    alphas: tuple[float, ...]
    p95: tuple[float, ...]
    before: float
    after: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """The attributes; ``best`` is null where there was none."""
        best = self.best if math.isfinite(self.best) else None
        return {**attrs.asdict(self), "best": best, "alphas": list(self.alphas), "p95": list(self.p95)}


@attrs.frozen(kw_only=True)
class WatchedRun:
    """One run with or without tuning.

    Attributes
    ----------
    p95 : tuple of float or None
        Of the queries that came in each stretch of `TuningRun.edges`, seconds; None of an empty stretch.
    attainment : tuple of float or None
        Share within their SLO.
    overall : float
        P95 of all queries that came after the first window.
    overall_attainment : float or None
        Share of them within their SLO.
    """

    p95: tuple[float | None, ...]
    attainment: tuple[float | None, ...]
    overall: float
    overall_attainment: float | None

    def to_dict(self) -> dict[str, Any]:
        """The attributes."""
        return {**attrs.asdict(self), "p95": list(self.p95), "attainment": list(self.attainment)}


@attrs.frozen(kw_only=True)
class TuningRun(Result):
    """A run in which alpha was tuned, beside the same queries without.

    Attributes
    ----------
    rule : str
        With the alpha it began with.
    policy : TuningPolicy
    profile : tuple of (float, float)
        (seconds, queries/s) of each stretch of the arrivals.
    edges : tuple of float
        Seconds between which the P95 of `WatchedRun` are taken: equal stretches, no longer than the window.
    tuned, fixed : WatchedRun
        With tuning, and with the alpha it began with throughout.
    decisions : tuple of Decision
        Every tuning, those that kept alpha too.
    alphas : tuple of (float, float)
        (seconds from which on, alpha), the first at 0.
    queries, seed : int
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.tuning:draw_tuning"
    rule: str
    policy: TuningPolicy
    profile: tuple[tuple[float, float], ...]
    edges: tuple[float, ...]
    tuned: WatchedRun
    fixed: WatchedRun
    decisions: tuple[Decision, ...]
    alphas: tuple[tuple[float, float], ...]
    queries: int
    seed: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        return {
            "rule": self.rule,
            "policy": self.policy.to_dict(),
            "profile": [{"seconds": seconds, "rate": rate} for seconds, rate in self.profile],
            "edges": list(self.edges),
            "tuned": self.tuned.to_dict(),
            "fixed": self.fixed.to_dict(),
            "decisions": [each.to_dict() for each in self.decisions],
            "alphas": [{"from": at, "alpha": alpha} for at, alpha in self.alphas],
            "queries": self.queries,
            "seed": self.seed,
            "notes": list(self.notes),
        }


def tune_alpha(
    system: WorkflowSystem,
    rule: ClusterRule | Dispatcher | str = "hexgen-paper/urgency",
    *,
    profile: Sequence[tuple[Number, Number]] | None = None,
    policy: TuningPolicy | None = None,
    order: QueueOrder | str = "fcfs",
    seed: int = 0,
    log: Queries | None = None,
    workers: int | None = None,
) -> TuningRun:
    """Run a cluster with alpha tuned online, and the same queries with the alpha it began with.

    Parameters
    ----------
    system : WorkflowSystem
    rule : rule
        One that has an alpha, which is where it begins; ``order`` is that of a rule that names none.
    profile : sequence of (seconds, queries/s), optional
        The arrivals, stretch by stretch; by default 1 000 queries at half the rate of the system, 1 000 at its rate
        and 1 000 at half of it again.
    policy : TuningPolicy, optional
        By default `TuningPolicy.of` the highest rate of the profile.
    seed : int
        The same seed gives the same run, whatever the number of workers.
    log : Queries, optional
        Real queries in the place of those of the workflow, taken at random with replacement.
    workers : int, optional
        Threads of a replay; by default one a core.

    Raises
    ------
    InvalidInput
        If the rule has no alpha or an argument is out of range.
    """
    check_arguments(system, log=log)
    if policy is not None and not isinstance(policy, TuningPolicy):
        raise InvalidInput(f"policy: {shown(policy)} is no TuningPolicy; give one, or leave it out")
    named = to_cluster_rule(rule, order)
    named.require_alpha()
    seed = require_whole("seed", seed, 0, "the same for the same run")
    stretches = _stretches(profile, system.arrivals.rate)
    if policy is None:
        policy = TuningPolicy.of(system, float(max(rate for _, rate in stretches)))
    clock = cluster_clock(system)
    for_times, for_queries, for_replays = np.random.default_rng(seed).spawn(3)
    arrival, end = _arrivals(system, stretches, clock, for_times)
    if log is None:
        queries = draw_queries(system.workflow, arrival, for_queries)
    else:
        queries = taken(log, for_queries.integers(len(log), size=arrival.size), arrival)
    tuner = _Tuner(
        system=system, queries=queries, rule=named, policy=policy, clock=clock, rng=for_replays, workers=workers
    )
    tuned = tuner.run(end)
    fixed = run_rule(system, queries, named, until=None, rng=np.random.default_rng(0), clock=clock)
    edges = np.linspace(0, end, 1 + math.ceil(end / clock.rate / policy.window)).astype(np.int64)
    return TuningRun(
        rule=named.name,
        policy=policy,
        profile=tuple((float(seconds), float(rate)) for seconds, rate in stretches),
        edges=tuple((edges / clock.rate).tolist()),
        tuned=_watched(tuned, edges),
        fixed=_watched(fixed, edges),
        decisions=tuple(tuner.decisions),
        alphas=((0.0, named.alpha), *((each.at, each.after) for each in tuner.decisions if each.after != each.before)),
        queries=len(queries),
        seed=seed,
        notes=clock.notes,
    )


def _stretches(profile: Sequence[tuple[Number, Number]] | None, rate: Fraction) -> list[tuple[Fraction, Fraction]]:
    if profile is None:
        half = rate / 2
        return [(1000 / each, each) for each in (half, rate, half)]
    try:
        found = [(to_seconds(seconds), to_fraction(each)) for seconds, each in profile]
    except (TypeError, ValueError) as error:  # no pairs, or no numbers in them
        said = str(error) if isinstance(error, InvalidInput) else f"{shown(profile)} holds no pairs"
        raise InvalidInput(f"profile: {said}; give stretches of (seconds, queries/s)") from None
    if not found or any(seconds <= 0 or each <= 0 for seconds, each in found):
        raise InvalidInput("profile: give stretches of (seconds, queries/s), at least one, all numbers positive")
    return found


def _arrivals(
    system: WorkflowSystem, stretches: Sequence[tuple[Fraction, Fraction]], clock: Clock, rng: np.random.Generator
) -> tuple[Ticks, int]:
    """Ticks of the arrivals, and where the last stretch ends."""
    expected = float(sum(seconds * rate for seconds, rate in stretches))
    lasting = sum(seconds for seconds, _ in stretches)
    if expected > MOST_REQUESTS or 4 * lasting * clock.rate > LAST_TICK:
        raise InvalidInput(
            f"profile: about {expected:.3g} queries in {float(lasting):.3g} s, more than a run can hold "
            f"({MOST_REQUESTS} queries, {LAST_TICK / clock.rate / 4:.3g} s); give shorter stretches or lower rates"
        )
    parts, now = [], 0
    for (seconds, rate), stream in zip(stretches, rng.spawn(len(stretches)), strict=True):
        parts.append(now + arrival_ticks(system.arrivals.with_rate(rate), clock, seconds, stream))
        now += clock.bound(seconds)
    if not sum(part.size for part in parts):
        raise InvalidInput("profile: no query comes; give longer stretches or higher rates")
    return np.concatenate(parts), now


def _watched(run: ClusterRun, edges: Ticks) -> WatchedRun:
    responses, deadlines = run.responses, run.deadlines
    place = np.searchsorted(edges, run.queries.arrival, side="right") - 1
    rows = [place == i for i in range(edges.size - 1)]
    late = place >= min(1, edges.size - 2)
    return WatchedRun(
        p95=tuple(quantile(responses[row], _P95) if row.any() else None for row in rows),
        attainment=tuple(attainment(responses[row], deadlines[row]) for row in rows),
        overall=quantile(responses[late], _P95),
        overall_attainment=attainment(responses[late], deadlines[late]),
    )


def replay_p95(
    system: WorkflowSystem,
    queries: Queries,
    rule: ClusterRule,
    alphas: Sequence[float],
    *,
    clock: Clock | None = None,
    workers: int | None = None,
) -> tuple[float, ...]:
    """P95 in seconds of queries under each alpha, each from an empty cluster to the end of the last query.

    Parameters
    ----------
    system, queries
    rule : ClusterRule
        One that has an alpha.
    alphas : sequence of float
    clock : Clock, optional
        Of the ticks of the queries; `cluster_clock` by default.
    workers : int, optional
        Threads; by default one a core.
    """
    from queuetheory_llm.simulation.cluster_runner import ClusterProcess  # loads numba

    rule.require_alpha()
    none = taken(queries, *(np.zeros(0, dtype=np.int64) for _ in range(2)))
    process = ClusterProcess(system, none, rule.dispatcher, rule.order, clock=clock)
    return _p95_ahead(process, queries, none, alphas, workers)


def _p95_ahead(
    process: ClusterProcess, ahead: Queries, rest: Queries, alphas: Sequence[float], workers: int | None
) -> tuple[float, ...]:
    """P95 of the seconds from now on, of the queries under way and those ahead, under each alpha."""
    come = int(np.searchsorted(process.queries.arrival, process.now))
    since = np.concatenate([np.full(come, process.now), ahead.arrival])
    asked = np.concatenate([process.finished[:come] == NEVER, np.ones(len(ahead), dtype=bool)])
    ends = process.forecast(ahead, rest, [{"alpha": alpha} for alpha in alphas], workers)
    return tuple(quantile((each - since)[asked] / process.clock.rate, _P95) for each in ends)


def chosen_alpha(alphas: Sequence[float], p95: Sequence[float], present: float, margin: float) -> float:
    """The alpha of the least P95, of equal ones the nearest to the present; the present one unless it is beaten.

    Parameters
    ----------
    alphas, p95 : sequences of float
        Of a replay, the present alpha among them.
    present : float
    margin : float
        Share of the present P95 by which another must be lower.
    """
    best = min(zip(p95, alphas, strict=True), key=lambda pair: (pair[0], abs(pair[1] - present), pair[1]))
    return best[1] if best[0] < (1 - margin) * p95[alphas.index(present)] else present


@attrs.frozen(kw_only=True)
class PeriodP95:
    """The P95 of a query that would spend its life under the conditions of a window; see this module.

    Attributes
    ----------
    value : float
        Where ``reached`` is false, so few ended that the P95 is beyond all that is seen: it is at least this.
    low : float
        Lower limit of confidence, one-sided.
    reached : bool
    """

    value: float
    low: float
    reached: bool

    @classmethod
    def of(cls, entered: Floats, left: Floats, ended: Floats, confidence: float) -> PeriodP95:
        """From what was seen of each query, in order of arrival.

        Parameters
        ----------
        entered, left : float arrays of shape (n,)
            Age at which it was first seen, 0 where it came within the window, and last.
        ended : bool array of shape (n,)
            Whether it ended then; else it is under way.
        confidence : float
        """
        if left.size < _SEEN:
            return cls(value=0.0, low=0.0, reached=False)
        ages, deaths = np.unique(left[ended], return_counts=True)
        at_risk = np.searchsorted(np.sort(entered), ages) - np.searchsorted(np.sort(left), ages)
        seen = at_risk >= _SEEN
        ages, deaths, at_risk = ages[seen], deaths[seen], at_risk[seen]
        alive = np.cumprod(1 - deaths / at_risk)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(np.cumsum(deaths / (at_risk * (at_risk - deaths))))  # Greenwood's, of the logarithm
        most, value = float(np.sort(left)[-_SEEN]), _first(ages, alive)
        reach = NormalDist().inv_cdf(confidence) * math.sqrt(_clustered(left > (most if value is None else value)))
        low = _first(ages, np.where(alive > 0, alive * np.exp(-reach * error), 0.0))
        return cls(value=most if value is None else value, low=most if low is None else low, reached=value is not None)


def _clustered(late: NDArray[np.bool_]) -> float:
    """How many times the variance of a share is that of independent queries: late ones come in bursts.

    From `_BATCHES` batches of neighbours, as for samples drawn in clusters (Woodruff, J. Amer. Stat. Assoc. 47 (1952));
    at least 1.
    """
    share = float(late.mean())
    if not 0 < share < 1:
        return 1.0
    batches = np.array_split(late, _BATCHES)
    off = sum(float((batch - share).sum()) ** 2 for batch in batches) * _BATCHES / (_BATCHES - 1)
    return max(1.0, off / (late.size * share * (1 - share)))


def _first(ages: Floats, share: Floats) -> float | None:
    """The first age that no more than a twentieth outlives."""
    below = np.flatnonzero(share <= 1 - _P95 + 1e-9)
    return float(ages[below[0]]) if below.size else None


@attrs.frozen(kw_only=True)
class _Look:
    """What is seen of a window: the P95, that of seconds over SLO, queries that came and ended, and those in sight."""

    p95: PeriodP95
    of_slo: PeriodP95
    came: int
    ended: int
    seen: int

    def growing(self, confidence: float) -> bool:
        """Whether more came than ended, by more than two Poisson numbers of one mean would differ."""
        return self.came - self.ended > NormalDist().inv_cdf(confidence) * math.sqrt(self.came + self.ended)


@attrs.define(kw_only=True)
class _Tuner:
    """The monitor and its memory."""

    system: WorkflowSystem
    queries: Queries
    rule: ClusterRule
    policy: TuningPolicy
    clock: Clock
    rng: np.random.Generator
    workers: int | None
    best: float = math.inf
    last: int | None = None
    decisions: list[Decision] = attrs.field(factory=list)

    def run(self, end: int) -> ClusterRun:
        """The whole run, looked at until ``end``."""
        from queuetheory_llm.simulation.cluster_runner import ClusterProcess  # loads numba

        process = ClusterProcess(
            self.system, self.queries, self.rule.dispatcher, self.rule.order, clock=self.clock, rng=0
        )
        step = max(self._ticks(self.policy.check), 1)
        for now in range(step, end, step):
            process.advance(now)
            look = self._look(process.finished, now)
            trigger = self._trigger(look, now)
            if trigger:
                decision = self._decide(trigger, look, process)
                if decision is not None and decision.after != decision.before:
                    self.rule = self.rule.with_alpha(decision.after)
                    process.set_parameters({"alpha": decision.after})
        process.advance(None)
        return process.run()

    def _ticks(self, seconds: float) -> int:
        return self.clock.ticks(Fraction(seconds))

    def _look(self, finished: Ticks, now: int) -> _Look:
        """What is seen of the window that ends now."""
        begin, come = now - self._ticks(self.policy.window), self.queries.arrival
        ended = (finished != NEVER) & (finished >= begin)
        seen = (come < now) & (ended | (finished == NEVER))
        born, ended = come[seen], ended[seen]
        entered = np.maximum(begin - born, 0) / self.clock.rate
        left = (np.where(ended, finished[seen], now) - born) / self.clock.rate
        slo = np.array(self.system.deadlines)[self.queries.tenant[seen]]
        given = np.isfinite(slo)
        return _Look(
            p95=PeriodP95.of(entered, left, ended, self.policy.confidence),
            of_slo=PeriodP95.of((entered / slo)[given], (left / slo)[given], ended[given], self.policy.confidence),
            came=int(np.count_nonzero(born >= begin)),
            ended=int(np.count_nonzero(ended)),
            seen=born.size,
        )

    def _trigger(self, look: _Look, now: int) -> str:
        """Why alpha is to be tuned now; "" if it is not."""
        if look.seen < self.policy.least:
            return ""
        filled = now >= 2 * self._ticks(self.policy.window)  # before that the cluster is filling
        degraded = look.p95.low > self.policy.factor * self.best
        if look.p95.reached and not degraded and now >= self._ticks(self.policy.window):
            self.best = min(self.best, look.p95.value)
        if self.last is not None and now - self.last < self._ticks(self.policy.rest):
            return ""
        if degraded:
            return "degraded"
        if self.policy.slo and look.of_slo.low > 1:
            return "slo"
        return "growing" if filled and look.growing(self.policy.confidence) else ""

    def _decide(self, trigger: str, look: _Look, process: ClusterProcess) -> Decision | None:
        """Replay what came within the window and choose; None where nothing did."""
        finished, now = process.finished, process.now
        begin, come = max(now - self._ticks(self.policy.window), 0), self.queries.arrival
        rows = np.flatnonzero((come >= begin) & (come < now))
        if not rows.size:
            return None
        under_way = np.flatnonzero((come < now) & (finished == NEVER))
        begun = process.begun
        pool, ended = self.queries, np.flatnonzero(finished != NEVER)
        unknown = finished[rows] == NEVER
        if ended.size < self.policy.least:
            pool = draw_queries(self.system.workflow, np.zeros(_MODELLED, dtype=np.int64), self.rng)
            ended, unknown = np.arange(_MODELLED), np.ones(rows.size, dtype=bool)
        stands = np.arange(come.size)
        drawn = np.union1d(under_way, rows[unknown])
        stands[drawn] = self._stand_ins(pool, ended, begun[drawn])
        again = now + come[rows] - begin
        ahead = attrs.evolve(taken(pool, stands[rows], again), tenant=self.queries.tenant[rows])
        rest = without_first(taken(pool, stands[under_way], come[under_way]), begun[under_way])
        present = self.rule.alpha
        alphas = sorted({*self.policy.alphas, present})
        p95 = _p95_ahead(process, ahead, rest, alphas, self.workers)
        after = chosen_alpha(alphas, p95, present, self.policy.margin)
        decision = Decision(
            at=now / self.clock.rate,
            trigger=trigger,
            watched=look.p95.value,
            low=look.p95.low,
            reached=look.p95.reached,
            best=self.best,
            came=look.came,
            ended=look.ended,
            under_way=under_way.size,
            replayed=rows.size,
            unknown=int(unknown.sum()),
            alphas=tuple(alphas),
            p95=p95,
            before=present,
            after=after,
            reason=self._reason(trigger, look, p95[alphas.index(present)], p95[alphas.index(after)], present, after),
        )
        self.decisions.append(decision)
        self.best, self.last = math.inf, now
        return decision

    def _stand_ins(self, pool: Queries, ended: Ints, begun: Ints) -> Ints:
        """For each query one that has ended, of no fewer steps than it has begun if there is one."""
        steps = np.diff(pool.first_step)[ended]
        order = np.argsort(steps, kind="stable")
        first = np.searchsorted(steps[order], np.minimum(begun, steps.max()))
        return np.asarray(ended[order][self.rng.integers(first, ended.size)])

    def _reason(self, trigger: str, look: _Look, kept: float, taken: float, before: float, after: float) -> str:
        why = {
            "degraded": f"P95, with confidence above {look.p95.low:.4g} s, is above {self.policy.factor:g} times "
            f"{self.best:.4g} s, the best since",
            "slo": f"more than a twentieth of the queries miss their SLO, P95 at least {look.p95.low:.4g} s",
            "growing": f"{look.came} queries came and {look.ended} ended",
        }[trigger]
        if after == before:
            return f"{why}; in the replay no alpha is better than {before:g} by {self.policy.margin:.0%}"
        return f"{why}; in the replay alpha {after:g} has P95 {taken:.4g} s, {before:g} has {kept:.4g} s"
