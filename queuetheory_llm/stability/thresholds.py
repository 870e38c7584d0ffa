"""The largest stable request rate of a scheduler on one engine.

Work-conserving K-FCFS rules have it in closed form, F/(m_p + m_d) (Dai et al. 2025, Theorem 2). Rules that are not
work-conserving depend on whole laws; for constant prompts two kinds are solved here:

* rules that drain their decodes before new prompts (FasterTransformer, static batching) run in rounds, see `rounds`;
* rules that run prompts first and unmixed (vanilla vLLM, SGLang) serve decodes between busy periods of prefill,
  see `prefill_first`.

Everything else gets two bounds: a rate proved stable and one proved unstable under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, ClassVar

import attrs
import numpy as np

from queuetheory_llm.errors import InfeasibleRequest, NotConverged
from queuetheory_llm.exact.numbers import Number, Real, exact_text, to_fraction
from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import ObservedLengths
from queuetheory_llm.model.trace import TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Pass, Policy
from queuetheory_llm.schedulers.registry import to_policy
from queuetheory_llm.stability.capacity import full_batch_rate
from queuetheory_llm.stability.classify import properties
from queuetheory_llm.stability.linear_drift import linear_drift
from queuetheory_llm.stability.prefill_first import prefill_first_rate
from queuetheory_llm.stability.rounds import round_rate, saturated_prefill_rate
from queuetheory_llm.stability.workload_region import RateBound, workload_bound
from queuetheory_llm.verdict import Basis, Judgement, Verdict, judge_load

THEOREM_2 = "Theorem 2 of arXiv 2504.07347"


@attrs.frozen(kw_only=True)
class Threshold(Result):
    """Requests/s up to which a scheduler is stable.

    Attributes
    ----------
    scheduler : str
    low : Fraction or float
        Stable below it.
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
        """The largest rate proved stable (its supremum)."""
        return self.low

    def judge(self, rate: Number) -> Judgement:
        """Verdict at a rate in requests/s; the load is relative to ``low`` where only bounds are known and it holds."""
        asked = to_fraction(rate)
        if asked <= 0:
            return Judgement(verdict=Verdict.STABLE, basis=Basis.THEOREM, reason="nothing arrives", load=Fraction(0))
        if self.exact:
            load = asked / self.low
            return Judgement(
                verdict=judge_load(load),
                basis=Basis.THEOREM,
                reason=f"{float(asked):.6g} of at most {float(self.low):.6g} requests/s: {self.method}",
                load=load,
            )
        if asked < self.low:
            reason = f"below {float(self.low):.6g} requests/s, proved stable: {self.method}"
            return Judgement(verdict=Verdict.STABLE, basis=Basis.THEOREM, reason=reason, load=asked / self.low)
        if asked > self.high:
            reason = f"above {float(self.high):.6g} requests/s, which no rule carries"
            return Judgement(verdict=Verdict.UNSTABLE, basis=Basis.THEOREM, reason=reason, load=asked / self.high)
        if asked == self.high:
            reason = f"on the boundary of what any rule carries, {float(self.high):.6g} requests/s: at best critical"
            return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)
        reason = (
            f"between {float(self.low):.6g} requests/s, proved stable, and {float(self.high):.6g}, "
            f"the most any rule carries: {self.method}"
        )
        return Judgement(verdict=Verdict.UNDECIDED, basis=None, reason=reason)

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
    raise InfeasibleRequest(
        f"{_first_too_long(workload, limit) or f'workload: {what}'} can never run under {policy.name}, which takes "
        f"prompts whole within {limit} tokens; raise b_max or use {policy.name}+chunk"
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
        f"{source}request {rows[0]}: its prompt of {lengths.prefill[rows[0]]} tokens, like {len(rows) - 1} others "
        f"of {lengths.prefill.size},"
    )


def threshold(engine: Engine, rule: Policy | str, workload: Workload) -> Threshold:
    """Largest stable rate of a rule (or its name) for the lengths (and kind of arrivals) of ``workload``.

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

    Examples
    --------
    >>> law = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
    >>> found = threshold(Engine(batch_time=law, b_max=512), "sarathi", Workload.of(prefill=129, decode=112))
    >>> found.low, round(float(found.low), 3)
    (Fraction(12800000, 922789), 13.871)
    """
    policy = to_policy(rule)
    require_feasible(policy, engine, workload)
    # A rule with a target of its own is the plain rule on an engine with that budget.
    inner = attrs.evolve(engine, b_max=policy.budget(engine.b_max))
    plain = attrs.evolve(policy, name=policy.name.partition("+")[0], target=None)
    for solve in (_closed_form, _decode_only, _prefill_only, _rounds, _prefill_first):
        found = solve(inner, plain, workload)
        if found is not None:
            return attrs.evolve(found, scheduler=policy.name)
    return attrs.evolve(_bounds(engine, inner, plain, workload), scheduler=policy.name)


def _sharp(rate: Real, method: str, binding: str, *notes: str) -> Threshold:
    return Threshold(scheduler="", low=rate, high=rate, method=method, binding=binding, notes=notes)


def _closed_form(engine: Engine, policy: Policy, workload: Workload) -> Threshold | None:
    """F/(m_p + m_d) for a rule that fills its batches, when k_max does not keep it from filling."""
    found = properties(policy)
    if not (found.fills and found.overtaken is not None and engine.slots == engine.b_max):
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
    try:
        rate = prefill_first_rate(engine, prompt, float(workload.mean_decode), chunks=policy.chunks)
    except NotConverged:  # split prompts much longer than a batch: bounds are left
        return None
    return _sharp(
        rate,
        "decodes served between prefill busy periods (constant prompts, Poisson arrivals)",
        "b_max" if engine.slots == engine.b_max else "k_max",
    )


def _bounds(engine: Engine, inner: Engine, policy: Policy, workload: Workload) -> Threshold:
    """A proved stable rate and the bound of every rule."""
    upper: RateBound = workload_bound(engine, workload)
    low, why = max(_stable_rates(inner, policy, workload), default=(Fraction(0), "no stable rate is proved"))
    return Threshold(
        scheduler="",
        low=low,
        high=upper.requests_per_s,
        method=f"bounds: {why}; {upper.method}",
        binding=upper.binding,
    )


def _stable_rates(engine: Engine, policy: Policy, workload: Workload) -> Iterator[tuple[Real, str]]:
    """Rates proved stable, each with its ground."""
    for ground in _GROUNDS:
        found = ground(engine, policy, workload)
        if found is not None:
            yield found


def _crowded(engine: Engine, policy: Policy, workload: Workload) -> tuple[Real, str] | None:
    """The drift of a linear function of the backlog is negative whenever k_max requests are present."""
    found = properties(policy)
    if found.overtaken is None:
        return None
    if found.fills and policy.threshold is None:
        drift = linear_drift(engine, workload)
        return drift.requests_per_s, f"{drift} has negative drift once {engine.slots} requests are present"
    least = engine.slots
    if not found.fills:
        if policy.chunks or not policy.mixed or workload.longest_prompt is None:
            return None
        # A prompt that does not fit leaves less than one prompt unused.
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


_Ground = Callable[[Engine, Policy, Workload], tuple[Real, str] | None]
_GROUNDS: tuple[_Ground, ...] = (_crowded, _one_by_one, _split_first)
