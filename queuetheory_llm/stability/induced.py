"""Stability by three drifts: the method of induced chains (Fayolle, Malyshev and Menshikov; fluid limits, Dai 1995).

The state of an engine in overload is a pair of token backlogs: Q_p, prompt tokens not yet served, and Q_d, decode
tokens of the requests past their prompts. Where both are large a batch does not depend on how large, and the pair moves
with the *interior drift*. Where only one is large the other one is a fast chain beside it, the induced chain, and the
large one moves with a drift averaged over its stationary law. The signs of the three decide, see
`exact.quarter_plane`. The chains are those of `saturated`: without error but that of their solution, of unbounded laws
cut where less than `saturated.TAIL` is left, and of a rule of one's own taken to be blind to its backlogs.

The induced chain must have one closed class. Constant decode lengths under k_max make it reducible: the ages of the
decodes in progress never mix, and the drift depends on the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import InvalidInput, NotConverged
from queuetheory_llm.exact.numbers import Number, Real, to_fraction
from queuetheory_llm.exact.quarter_plane import Sign, verdict_of_drifts
from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.chances import memoryless_decode
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.schedulers.registry import scheduler_for
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.stability.saturated import Plenty, Rates, SaturatedEngine
from queuetheory_llm.stability.thresholds import NUMERICAL_ERROR, Threshold, require_feasible, threshold
from queuetheory_llm.stability.workload_region import workload_bound
from queuetheory_llm.verdict import Basis, Judgement, Verdict

_LONGEST_CYCLE = 400_000  # seats times tokens of a constant decode length, for each start that is tried


@attrs.frozen(kw_only=True)
class DriftBounds:
    """Tokens per second by which a backlog grows, between ``low`` and ``high``.

    Attributes
    ----------
    low, high : Fraction or float
        Equal where the drift is one number; else over the starts tried, or the ends of a confidence interval.
    negligible : float
        A drift this small cannot be told from 0; 0 for an exact fraction.
    """

    low: Real
    high: Real
    negligible: float = 0.0

    @property
    def mean(self) -> float:
        """Middle of the interval."""
        return (float(self.low) + float(self.high)) / 2

    @property
    def sign(self) -> Sign:
        """-1, 0 or 1; None where the interval does not tell."""
        if self.high < -self.negligible:
            return -1
        if self.low > self.negligible:
            return 1
        return 0 if self.low == self.high == 0 and not self.negligible else None

    def to_dict(self) -> dict[str, float]:
        """``mean``, ``low``, ``high``."""
        return {"mean": self.mean, "low": float(self.low), "high": float(self.high)}


@attrs.frozen(kw_only=True)
class InducedDrifts(Result):
    """The drifts of the two backlogs at one rate, and the verdict they imply.

    Attributes
    ----------
    scheduler : str
    rate : Fraction
        Requests per second.
    interior : tuple of two DriftBounds
        Of prompt and of decode tokens, both plentiful.
    prompts : DriftBounds or None
        Of prompt tokens, they alone plentiful; None when the interior drift does not lead there.
    decodes : DriftBounds or None
        Of decode tokens, they alone plentiful.
    method : str
        "chains" or "simulation".
    confidence : float or None
        That of the intervals; None for chains.
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.induced:draw_drifts"
    scheduler: str
    rate: Fraction
    interior: tuple[DriftBounds, DriftBounds]
    prompts: DriftBounds | None
    decodes: DriftBounds | None
    method: str = "chains"
    confidence: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """By the signs of the drifts."""
        along = [None if drift is None else drift.sign for drift in (self.prompts, self.decodes)]
        return verdict_of_drifts((self.interior[0].sign, self.interior[1].sign), along[0], along[1])

    @property
    def judgement(self) -> Judgement:
        """The verdict with its reason."""
        verdict = self.verdict
        measured = Basis.SIMULATION if self.method == "simulation" else Basis.FLUID
        basis = None if verdict is Verdict.UNDECIDED else measured
        return Judgement(verdict=verdict, basis=basis, reason=self._reason())

    def _reason(self) -> str:
        first, second = (f"{drift.mean:.4g}" for drift in self.interior)
        parts = [f"with both backlogs large they drift by ({first}, {second}) tokens/s (prefill, decode)"]
        parts += [
            f"with {name} large alone by {_drift_words(drift)}"
            for name, drift in (("prompts", self.prompts), ("decodes", self.decodes))
            if drift is not None
        ]
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; drifts in tokens/s."""
        judgement = self.judgement
        return {
            "scheduler": self.scheduler,
            "rate": float(self.rate),
            "interior": {"prefill": self.interior[0].to_dict(), "decode": self.interior[1].to_dict()},
            "prompts_plentiful": None if self.prompts is None else self.prompts.to_dict(),
            "decodes_plentiful": None if self.decodes is None else self.decodes.to_dict(),
            "method": self.method,
            "confidence": self.confidence,
            "verdict": judgement.verdict.value,
            "basis": None if judgement.basis is None else judgement.basis.value,
            "reason": judgement.reason,
            "notes": list(self.notes),
        }


def _drift_words(drift: DriftBounds) -> str:
    return f"{drift.mean:.4g}" if drift.low == drift.high else f"{float(drift.low):.4g} .. {float(drift.high):.4g}"


@attrs.frozen(kw_only=True)
class InducedThreshold(Threshold):
    """A threshold from induced chains: one number, or a range over the starts tried where the chain is reducible."""

    def judge(self, rate: Number) -> Judgement:
        """See `Threshold.judge`; the basis is the fluid limit that the drifts are."""
        if self.exact:
            judged = super().judge(rate)
            return attrs.evolve(judged, basis=Basis.FLUID) if judged.basis is Basis.THEOREM else judged
        asked = to_fraction(rate)
        if asked < self.low:
            reason = f"below {lower_limit(self.low)} requests/s, carried from every start tried: {self.method}"
            return Judgement(verdict=Verdict.STABLE, basis=Basis.FLUID, reason=reason, load=asked / self.low)
        if asked > self.high:
            reason = f"above {upper_limit(self.high)} requests/s, carried from no start tried: {self.method}"
            return Judgement(verdict=Verdict.UNSTABLE, basis=Basis.FLUID, reason=reason, load=asked / self.high)
        span = f"{lower_limit(self.low)} .. {upper_limit(self.high)} requests/s"
        reason = f"within {span} it depends on the start, from those tried: {self.method}"
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)


@attrs.frozen(kw_only=True, eq=False)
class InducedChains:
    """The three chains of a rule on an engine under the lengths of a workload.

    Parameters
    ----------
    engine : Engine
    scheduler : Scheduler
    workload : Workload
    """

    engine: Engine
    scheduler: Scheduler
    workload: Workload

    @classmethod
    def of(cls, engine: Engine, scheduler: Scheduler | str, workload: Workload) -> InducedChains:
        """From a rule or its name.

        Raises
        ------
        InfeasibleRequest
            If the rule can never run some prompt.
        AssumptionViolated
            If some requests have no prompt.
        """
        rule = scheduler_for(scheduler, engine, workload) if isinstance(scheduler, str) else scheduler
        if isinstance(rule, Policy):
            require_feasible(rule, engine, workload)
        return cls(engine=engine, scheduler=rule, workload=workload)

    def _saturated(self, plenty: Plenty) -> SaturatedEngine:
        return SaturatedEngine(engine=self.engine, scheduler=self.scheduler, lengths=self.workload, plenty=plenty)

    @cached_property
    def interior(self) -> Rates:
        """Rates with both backlogs endless."""
        found = self._saturated(Plenty.BOTH).classes()
        if len({rates.prefill for rates in found}) > 1:
            raise NotConverged("with both backlogs large the batches depend on the start; measure by simulation")
        return found[0]

    @cached_property
    def decode_growth(self) -> Real:
        """Tokens/s by which decodes grow where both backlogs are large; independent of the rate."""
        return self.interior.prompts * self.workload.mean_decode - self.interior.decode

    @property
    def _decode_drift(self) -> DriftBounds:
        """`decode_growth` with what can be told of its sign."""
        return _exactly(self.decode_growth, self.interior.decode + self.interior.prompts)

    @property
    def _blind(self) -> tuple[str, ...]:
        """What is taken for granted of a rule that is not known from data."""
        return () if isinstance(self.scheduler, Policy) else (_BLIND.format(self.scheduler.name),)

    @cached_property
    def beside_prompts(self) -> tuple[Rates, ...]:
        """Rates with prompts endless: one, or the least and the most over the starts tried."""
        found = self._saturated(Plenty.PROMPTS).classes(self._starts())
        lowest, highest = (end(found, key=lambda rates: rates.prompts) for end in (min, max))
        same = highest.prompts - lowest.prompts <= NUMERICAL_ERROR * highest.prompts
        return (lowest,) if same else (lowest, highest)

    @cached_property
    def _beside_decodes(self) -> SaturatedEngine:
        return self._saturated(Plenty.DECODES)

    def decode_spare(self, rate: float) -> float:
        """Tokens/s by which endless decodes are served faster than ``rate`` requests/s bring new ones."""
        served = self._beside_decodes.beside_decodes(rate, self._arrivals).decode
        return float(served) - rate * float(self.workload.mean_decode)

    @property
    def _arrivals(self) -> Arrivals | None:
        return self.workload.arrivals

    def _starts(self) -> list[State]:
        """Decodes in progress to start from: none, and all seats taken, groups of g finishing together, evenly spread.

        Where lengths are drawn or seats are many, the start is forgotten or too long to follow: none and all at once.
        """
        decode, seats = self.workload.constant_decode, self.engine.slots
        if decode is None or decode == 0 or memoryless_decode(self.workload) is not None:
            return [State()]
        if decode * seats > _LONGEST_CYCLE:
            return [State()]
        return [State(), *(_grouped(decode, seats, size) for size in sorted({1, 2, 3, 4, seats}) if size <= seats)]

    def drifts(self, rate: Number) -> InducedDrifts:
        """The drifts at ``rate`` requests/s.

        Raises
        ------
        InvalidInput
            If the rate is not positive.
        AssumptionViolated, NotConverged
            Where the chains do not apply, or are too large: measure by simulation.
        """
        asked = to_fraction(rate)
        if asked <= 0:
            raise InvalidInput(f"rate: {float(asked):g} is not positive; give requests per second")
        mean = self.workload.mean_prefill
        first = _exactly(asked * mean - self.interior.prefill, self.interior.prefill)
        second = self._decode_drift
        prompts = decodes = None
        notes = self._blind
        if second.sign == -1:
            found = self.beside_prompts
            ends = [_exactly(asked * mean - rates.prefill, rates.prefill) for rates in reversed(found)]
            prompts = DriftBounds(low=ends[0].low, high=ends[-1].high, negligible=ends[0].negligible)
            if len(found) > 1:
                notes = (*notes, _DEPENDS)
        if first.sign == -1:
            decodes = _exactly(-self.decode_spare(float(asked)), asked * self.workload.mean_decode)
        return InducedDrifts(
            scheduler=self.scheduler.name,
            rate=asked,
            interior=(first, second),
            prompts=prompts,
            decodes=decodes,
            notes=notes,
        )

    def threshold(self) -> InducedThreshold:
        """The rate up to which the drifts imply stability, by root search on the rate.

        Decodes are taken to be served ever less beside more prompts, so that their spare changes its sign once.

        Raises
        ------
        NotConverged
            If the growth of decodes beside prompts cannot be told from 0, or a chain is too large.
        """
        falling = float(self.interior.prompts)  # below it prompts fall where both backlogs are large
        sign = self._decode_drift.sign
        if sign is None:
            raise NotConverged(
                "with both backlogs large the growth of decodes cannot be told from 0; measure by simulation"
            )
        if sign >= 0:
            root = self._decode_root(falling)
            return self._found(root, root, _METHOD)
        ends = [rates.prompts for rates in self.beside_prompts]
        most = min(falling, float(ends[-1]))
        root = self._decode_root(most) if most else most
        if root < most:
            ends = [min(end, root) for end in ends]
        reducible = ends[-1] > ends[0]
        method = f"{_METHOD}; {_DEPENDS}" if reducible else _METHOD
        return self._found(ends[0], ends[-1], method)

    def _found(self, low: Real, high: Real, method: str) -> InducedThreshold:
        if isinstance(self.scheduler, Policy):
            binding = threshold(self.engine, self.scheduler, self.workload).binding
        else:
            binding = workload_bound(self.engine, self.workload).binding
        return InducedThreshold(
            low=low, high=high, method=method, scheduler=self.scheduler.name, binding=binding, notes=self._blind
        )

    def _decode_root(self, most: float) -> float:
        """A rate below ``most`` from which on endless decodes are no longer served fast enough; else ``most``.

        It lies below the first of seven shares of ``most``, or of the largest rate the arrivals can have, without
        spare; that it is the first such rate is not proved.
        """
        from scipy.optimize import brentq

        if self.workload.mean_decode == 0:
            return most
        limit = None if self._arrivals is None else self._arrivals.largest_rate
        highest = most if limit is None else min(most, float(limit))
        bracket: Sequence[float] = [highest * share for share in (0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999)]
        low = 0.0
        for high in bracket:
            if self.decode_spare(high) <= 0:
                return float(brentq(self.decode_spare, low or 1e-9 * high, high, xtol=1e-13 * high, rtol=1e-12))
            low = high
        return most


_METHOD = "induced chains: the drift of one backlog, averaged over the other"
_BLIND = (
    "{} is taken to form its batches whatever the lengths of the backlogs: each batch met was compared with the one "
    "beside a backlog twice as long, which is no proof"
)
_DEPENDS = (
    "constant decode lengths never mix the ages of the decodes in progress, so the threshold depends on the start "
    "(range over the starts tried: no decodes, and all seats taken, their ages staggered, in small groups or all alike)"
)


def _exactly(value: Real, scale: Real) -> DriftBounds:
    """A drift without interval; a float is known to `NUMERICAL_ERROR` of what it is the difference of."""
    error = 0.0 if isinstance(value, Fraction) else NUMERICAL_ERROR * abs(float(scale))
    return DriftBounds(low=value, high=value, negligible=error)


def _grouped(decode: int, seats: int, size: int) -> State:
    """All seats taken by decodes that finish ``size`` at a time, evenly spread over a lifetime."""
    left = [min(decode, -(-decode * size * (seat // size + 1) // seats)) for seat in range(seats)]
    return State(tuple((0, tokens) for tokens in left), tuple(range(seats)))


def induced_drifts(engine: Engine, scheduler: Scheduler | str, workload: Workload, rate: Number) -> InducedDrifts:
    """The drifts of a rule at ``rate`` requests/s and the verdict they imply; see `InducedChains`.

    Examples
    --------
    >>> from queuetheory_llm.files.model_file import load_model
    >>> system = load_model("codellama-34b-a100")
    >>> found = induced_drifts(system.engine, "vllm-vanilla", system.workload, 13)
    >>> found.verdict.value, round(found.decodes.mean)
    ('UNSTABLE', 664)
    """
    return InducedChains.of(engine, scheduler, workload).drifts(rate)


def induced_threshold(engine: Engine, scheduler: Scheduler | str, workload: Workload) -> InducedThreshold:
    """The threshold of a rule by its drifts; see `InducedChains`.

    Raises
    ------
    AssumptionViolated, NotConverged
        Where the chains do not apply, or are too large: measure by simulation.
    """
    return InducedChains.of(engine, scheduler, workload).threshold()
