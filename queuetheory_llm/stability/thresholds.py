"""The largest stable request rate of a scheduler on one engine.

Work-conserving K-FCFS rules have it in closed form, F/(m_p + m_d) (Dai et al. 2025, Theorem 2). Rules that are not
work-conserving depend on whole laws; for constant prompts two kinds are solved here:

* rules that drain their decodes before new prompts (FasterTransformer, static batching) run in rounds, see `rounds`;
* rules that run prompts first and unmixed (vanilla vLLM, SGLang) serve decodes between busy periods of prefill,
  see `prefill_first`.

Everything else gets two bounds: a rate proved stable and one proved unstable under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.errors import InfeasibleRequest, NotConverged
from queuetheory_llm.exact.numbers import Number, Real, exact_text, to_fraction
from queuetheory_llm.exact.rounding import lower_limit, told_apart, upper_limit
from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import ObservedLengths
from queuetheory_llm.model.trace import TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Pass, Policy, Scheduler
from queuetheory_llm.schedulers.registry import to_policy
from queuetheory_llm.stability.capacity import full_batch_rate
from queuetheory_llm.stability.classify import properties
from queuetheory_llm.stability.linear_drift import linear_drift
from queuetheory_llm.stability.prefill_first import stable_rates
from queuetheory_llm.stability.rounds import round_rate, saturated_prefill_rate
from queuetheory_llm.stability.workload_region import RateBound, workload_bound
from queuetheory_llm.verdict import Basis, Judgement, Verdict, judge_load

#: Relative error of thresholds that come from floating-point numbers.
NUMERICAL_ERROR = 1e-7
THEOREM_2 = "Theorem 2 of arXiv 2504.07347"


#: A rate proved stable and why.
_Ground = Callable[[Engine, Policy, Workload], tuple[Real, str] | None]


@attrs.frozen(kw_only=True)
class Threshold(Result):
    """Requests/s up to which a scheduler is stable.

    Attributes
    ----------
    scheduler : str
    low : Fraction or float
        Stable below it, as ``method`` shows.
    high : Fraction or float
        Unstable above it; equal to ``low`` where the threshold is known.
    method : str
        Where the numbers come from.
    binding : str
        The limit that binds: "b_max", "k_max", "b_max and k_max" or "batch time".
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.capacity:draw_threshold"
    scheduler: str
    low: Real
    high: Real
    method: str
    binding: str
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the threshold is one number."""
        return self.low == self.high

    @property
    def requests_per_s(self) -> Real:
        """The largest rate shown stable (its supremum)."""
        return self.low

    def judge(self, rate: Number) -> Judgement:
        """Verdict at a rate in requests/s; the load is relative to ``low`` where only bounds are known and it holds."""
        asked = to_fraction(rate)
        if asked <= 0:
            return Judgement(verdict=Verdict.STABLE, basis=Basis.THEOREM, reason="nothing arrives", load=Fraction(0))
        if self.exact:
            return self._judge_sharp(asked, asked / self.low)
        if asked < self.low:
            shown, limit = told_apart(asked, self.low)
            reason = f"{shown} is below {limit} requests/s, proved stable: {self.method}"
            return Judgement(verdict=Verdict.STABLE, basis=Basis.THEOREM, reason=reason, load=asked / self.low)
        if asked > self.high:
            shown, limit = told_apart(asked, self.high)
            reason = f"{shown} is above {limit} requests/s, more than any mixture of its batches carries"
            return Judgement(verdict=Verdict.UNSTABLE, basis=Basis.THEOREM, reason=reason, load=asked / self.high)
        if asked == self.high:
            reason = f"on the boundary of what any rule carries, {upper_limit(self.high)} requests/s: at best critical"
            return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)
        reason = (
            f"between {lower_limit(self.low)} requests/s, proved stable, and {upper_limit(self.high)}, "
            f"the most any rule carries: {self.method}"
        )
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)

    def _judge_sharp(self, asked: Fraction, load: Real) -> Judgement:
        """Where one number decides; a numerical one decides nothing within its own error."""
        shown, bound = told_apart(asked, self.low)
        limit = f"{shown} requests/s against a limit of {bound}: {self.method}"
        if isinstance(load, float) and abs(load - 1) <= NUMERICAL_ERROR:
            reason = f"{limit}; too close to tell, the limit is known to {NUMERICAL_ERROR:g} of itself"
            return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)
        verdict = judge_load(load)
        # Below C, an engine that starts empty under a regular stream may never see the batches that overload it.
        grows = "; a large backlog grows for ever" if verdict is Verdict.UNSTABLE else ""
        return Judgement(verdict=verdict, basis=Basis.THEOREM, reason=limit + grows, load=load)

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``capacity --json``."""
        return {
            "scheduler": self.scheduler,
            "requests_per_s": float(self.requests_per_s),
            "exact": exact_text(self.requests_per_s) if self.exact else None,
            "method": self.method,
            "binding": self.binding,
            "low": float(self.low),
            "high": float(self.high),
            "notes": list(self.notes),
        }


#: Another way to the threshold of a rule on one engine than `threshold`: induced chains, or simulation.
Solver = Callable[[Engine, Scheduler, Workload], Threshold]


def require_feasible(policy: Policy, engine: Engine, workload: Workload) -> None:
    """Refuse prompts that a rule which does not split them can never run.

    Raises
    ------
    InfeasibleRequest
        If a prompt can exceed the budget of the rule; names the first request of a trace that does.
    """
    limit = policy.longest_prompt(engine.b_max)
    longest = workload.longest_prompt
    if limit is None or (longest is not None and longest <= limit):
        return
    what = "prompts of unbounded length" if longest is None else f"a prompt of {longest} tokens"
    split = policy.name.replace("+whole", "") if "+whole" in policy.name else f"{policy.name}+chunk"
    raise InfeasibleRequest(
        f"{_first_too_long(workload, limit) or f'workload: {what}'} can never run under {policy.name}, which takes "
        f"prompts whole within {limit} tokens; raise b_max or use {split}"
    )


def _first_too_long(workload: Workload, limit: int) -> str | None:
    """The first request of a trace above the limit, and how many there are; None for a law of lengths."""
    lengths = workload.classes[0].lengths
    if not isinstance(lengths, ObservedLengths):
        return None
    rows = np.flatnonzero(lengths.prefill > limit)
    arrivals = workload.arrivals
    source = f"{arrivals.trace.source}: " if isinstance(arrivals, TraceArrivals) else ""
    return (
        f"{source}request {rows[0]}: its prompt of {lengths.prefill[rows[0]]} tokens (of {lengths.prefill.size} "
        f"prompts {len(rows)} are too long)"
    )


def threshold(
    engine: Engine, scheduler: Policy | str, workload: Workload, *, token_certificate: bool = False
) -> Threshold:
    """Largest stable rate of a scheduler for the lengths (and kind of arrivals) of ``workload``.

    Parameters
    ----------
    engine : Engine
    scheduler : Policy or str
        A policy, or its name with flags.
    workload : Workload
        Arrivals are taken as Poisson when it has no process.
    token_certificate : bool
        Use only what holds for every stationary arrival process and rests on the token backlog alone, as a dispatcher
        that levels token backlogs needs.

    Returns
    -------
    Threshold
        Exact for every work-conserving K-FCFS rule without a binding k_max, for FasterTransformer and static
        batching with constant prompts, and for vanilla vLLM and SGLang with constant prompts and Poisson arrivals;
        two bounds otherwise.

    Raises
    ------
    InfeasibleRequest
        If the rule can never run some prompt.
    InvalidInput
        If the scheduler is no policy: other rules are classified and simulated.

    Examples
    --------
    >>> law = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
    >>> found = threshold(Engine(batch_time=law, b_max=512), "sarathi", Workload.of(prefill=129, decode=112))
    >>> found.low, round(float(found.low), 3)
    (Fraction(12800000, 922789), 13.871)
    """
    policy = to_policy(scheduler)
    require_feasible(policy, engine, workload)
    # A rule with a target of its own is the plain rule on an engine with that budget.
    inner = attrs.evolve(engine, b_max=policy.budget(engine.b_max))
    plain = attrs.evolve(policy, name=policy.name.partition("+")[0], target=None)
    found = _solved(inner, plain, workload, token_certificate)
    if inner.b_max < engine.b_max:
        found = attrs.evolve(found, binding=found.binding.replace("b_max", "target"))
    return attrs.evolve(found, scheduler=policy.name)


def _solved(engine: Engine, policy: Policy, workload: Workload, token_certificate: bool) -> Threshold:
    """The first exact method that applies, else bounds; a method that does not converge leaves a note."""
    notes = []
    for solve in _EXACT[:-1] if token_certificate else _EXACT:
        try:
            found = solve(engine, policy, workload)
        except NotConverged as error:
            notes.append(f"bounds only: {error}")
            continue
        if found is not None:
            return found
    grounds = (_crowded,) if token_certificate else _GROUNDS
    return attrs.evolve(_bounds(engine, policy, workload, grounds), notes=tuple(notes))


def _sharp(rate: Real, method: str, binding: str, *notes: str) -> Threshold:
    return Threshold(scheduler="", low=rate, high=rate, method=method, binding=binding, notes=notes)


def _closed_form(engine: Engine, policy: Policy, workload: Workload) -> Threshold | None:
    """F/(m_p + m_d) for a rule that fills its batches, when k_max does not keep it from filling."""
    found = properties(policy)
    if not (found.proved_to_fill and engine.slots == engine.b_max):
        return None
    method = THEOREM_2 if found.work_conserving else found.reason
    return _sharp(full_batch_rate(engine) / workload.mean_tokens, method, "b_max")


def _decode_only(engine: Engine, policy: Policy, workload: Workload) -> Threshold | None:
    """Without prompts every rule but a draining one serves min(b_max, k_max) tokens a batch in overload."""
    if workload.prefill_probability != 0 or _drains(policy):
        return None
    full = attrs.evolve(engine, b_max=engine.slots)
    binding = "b_max" if engine.slots == engine.b_max else "k_max"
    return _sharp(full_batch_rate(full) / workload.mean_decode, "only decodes: full batches of one token each", binding)


def _prefill_only(engine: Engine, policy: Policy, workload: Workload) -> Threshold | None:
    """Constant prompts without decodes: batches in overload repeat a cycle."""
    if workload.constant_prompt is None or workload.mean_decode != 0 or policy.threshold is not None:
        return None
    if policy.chunks and _drains(policy):  # the rest of a split prompt runs in a batch of its own
        return None
    rate, full = saturated_prefill_rate(engine, workload.constant_prompt, chunks=policy.chunks)
    return _sharp(rate, "only prompts: the cycle of batches in overload", full)


def _drains(policy: Policy) -> bool:
    """Unmixed, and no new request is served while one that has started is unfinished."""
    return not policy.mixed and policy.passes == (Pass.RUNNING, Pass.WAITING)


def _rounds(engine: Engine, policy: Policy, workload: Workload) -> Threshold | None:
    """FasterTransformer and static batching with constant prompts: see `rounds`."""
    decode_first = not policy.mixed and policy.passes == (Pass.DECODE, Pass.PREFILL)
    whole = not policy.chunks or decode_first
    if not (decode_first or _drains(policy)) or not whole or policy.threshold is not None:
        return None
    prompt = workload.constant_prompt
    if prompt is None or (decode_first and prompt == 0):
        return None
    rate = round_rate(engine, prompt, workload, chunks=policy.chunks)
    return _sharp(
        rate, "saturated rounds: prompts, then decodes to the end (constant prompts)", _round_limit(engine, prompt)
    )


def _round_limit(engine: Engine, prompt: int) -> str:
    return "k_max" if engine.k_max is not None and engine.k_max * prompt < engine.b_max else "b_max"


def _prefill_first(engine: Engine, policy: Policy, workload: Workload) -> Threshold | None:
    """Vanilla vLLM and SGLang with constant prompts and Poisson arrivals: see `prefill_first`."""
    unmixed = not policy.mixed and policy.passes == (Pass.PREFILL, Pass.DECODE) and policy.threshold is None
    poisson = workload.arrivals is None or isinstance(workload.arrivals, PoissonArrivals)
    prompt = workload.constant_prompt
    if not (unmixed and poisson and prompt):
        return None
    low, high = stable_rates(engine, prompt, float(workload.mean_decode), chunks=policy.chunks)
    method = "decodes served between prefill busy periods (constant prompts, Poisson arrivals)"
    binding = "b_max" if engine.slots == engine.b_max else "k_max"
    if engine.batch_time.is_nondecreasing(engine.b_max):
        return _sharp(low, method, binding)
    note = "batch times are not monotone: crossings were searched on a grid of rates, and may be more"
    return Threshold(scheduler="", low=low, high=high, method=method, binding=binding, notes=(note,))


def _bounds(engine: Engine, policy: Policy, workload: Workload, grounds: Sequence[_Ground]) -> Threshold:
    """A proved stable rate and the bound of every rule."""
    upper: RateBound = workload_bound(engine, workload)
    proved = [found for ground in grounds if (found := ground(engine, policy, workload)) is not None]
    low, why = max(proved, default=(Fraction(0), "no stable rate is proved"))
    return Threshold(
        scheduler="",
        low=low,
        high=upper.requests_per_s,
        method=f"bounds: {why}; {upper.method}",
        binding=upper.binding,
    )


def _linear_drift(engine: Engine, policy: Policy, workload: Workload) -> tuple[Real, str] | None:
    """A linear function of the backlog has negative drift whenever k_max requests are present: see `linear_drift`."""
    found = properties(policy)
    if not found.proved_to_fill or policy.threshold is not None:
        return None
    drift = linear_drift(engine, workload)
    # The linear program ends within its tolerances: what is called proved stays below them.
    return drift.requests_per_s * (
        1 - NUMERICAL_ERROR
    ), f"{drift} has negative drift once {engine.slots} requests are present"


def _crowded(engine: Engine, policy: Policy, workload: Workload) -> tuple[Real, str] | None:
    """Least tokens per second of a batch once k_max requests are present.

    A rule that fills serves a token of every request in the batch, so such a batch has at least min(b_max, k_max)
    tokens; a mixed rule of whole prompts leaves less than one prompt unused. Below the least b/t(b) over those b the
    token backlog has negative drift whenever k_max requests are present.
    """
    found = properties(policy)
    if found.overtaken is None:
        return None
    least = engine.slots
    if not found.fills:
        if policy.chunks or not policy.mixed or workload.longest_prompt is None:
            return None
        least = min(least, engine.b_max - workload.longest_prompt + 1)
    rates: list[Fraction] = [b / engine.batch_time.seconds(b) for b in engine.batch_time.troughs(least, engine.b_max)]
    ground = f"every batch has at least {least} tokens once {engine.slots} requests are present"
    return min(rates) / workload.mean_tokens, ground


def _one_by_one(engine: Engine, policy: Policy, workload: Workload) -> tuple[Real, str] | None:
    """Whole prompts first: at worst each prompt costs a batch of its own, and decodes get the rest of the time.

    Needs t(x + y) <= t(x) + t(y): every staircase, and a hinge with c >= a b0.
    """
    law = engine.batch_time
    whole_first = policy.passes == (Pass.PREFILL, Pass.DECODE) and not policy.mixed and not policy.chunks
    subadditive = isinstance(law, Staircase) or (isinstance(law, Hinge) and law.c >= law.a * law.b0)
    if not whole_first or workload.longest_prompt is None or not subadditive:
        return None
    prefill = workload.prefill_probability * law.seconds(max(1, workload.longest_prompt))
    full = attrs.evolve(engine, b_max=engine.slots)
    decode = workload.mean_decode / full_batch_rate(full)
    return 1 / (prefill + decode), "a batch for each prompt, full decode batches between"


def _split_first(engine: Engine, policy: Policy, workload: Workload) -> tuple[Real, str] | None:
    """Split prompts first: a batch that is not full completes a prompt, so there is at most one such batch a prompt.

    With x tokens it costs t(x) - x t(b_max)/b_max more than its tokens would in full batches; decodes get the rest of
    the time.
    """
    split_first = policy.passes == (Pass.PREFILL, Pass.DECODE) and not policy.mixed and policy.chunks
    if not split_first or policy.threshold is not None:
        return None
    law, token = engine.batch_time, 1 / full_batch_rate(engine)
    excess = max(law.seconds(x) - x * token for x in law.troughs(1, engine.b_max))
    prefill = workload.mean_prefill * token + workload.prefill_probability * max(excess, Fraction(0))
    decode = workload.mean_decode / full_batch_rate(attrs.evolve(engine, b_max=engine.slots))
    return 1 / (prefill + decode), "at most one batch a prompt is not full, full decode batches between"


_EXACT = (_closed_form, _decode_only, _prefill_only, _rounds, _prefill_first)
_GROUNDS: tuple[_Ground, ...] = (_linear_drift, _crowded, _one_by_one, _split_first)
