"""What the calls of a stage need of an instance: of each thing that can run out there, how much.

An instance has *resources*: each gives one unit a second, whatever the order of service, and a call takes up its work.

*Classical server*: its time; a call takes work/speed.

*Batch engine*: what a second of batches can serve, in every weighing of prompt and decode tokens. Tokens served by time
t never exceed C t, C = max b/t(b); with k_max the outer region (Dai et al. 2025, Theorem 10) has further faces, each a
resource. A rule that fills its batches serves F = b_max/t(b_max) tokens a second, and F <= C.

*Isolated-latency instance*: its time. A prompt is served alone, max(0, T - v_d step) seconds, T the law's seconds of
the call; a decode step serves one token of each call that decodes, of which there are `seats` at most, so that a call
takes at least v_d step/seconds more, step/seats a token. With prompts first this is what it takes: a step is begun only
when all seats decode or no call waits.

Without a limit of seats the decode term is 0: a step takes the same time for any number of calls, so *such an instance
has no decode capacity at all*. It is stable for every rate below 1/E[prompt seconds]: prompts are a single-server queue
with vacations of a step, which is stable then; that leaves a positive share of the time for steps, in each of which
every call that decodes has a token, so that calls leave. The simulator of HEXGEN-FLOW (arXiv 2505.05286) is of this
kind: in its setting decode tokens cost latency and no throughput, but for what the law has beyond the step: where
per_decode > step, (per_decode - step) v_d seconds count as prompt and are exclusive. Its fitted laws moreover have
negative intercepts, so that where the two are equal a prompt shorter than -base/per_prefill tokens takes no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, LengthLaw, Uniform
from queuetheory_llm.model.workflow import Stage
from queuetheory_llm.stability.capacity import token_capacity
from queuetheory_llm.stability.region import outer_region

#: Pairs of a prompt and a decode length up to which prompt seconds are summed exactly.
MOST_PAIRS = 2**15
#: Relative error of prompt seconds that are summed in floats; that of the laws' survival functions and of the sums.
SUM_ERROR = Fraction(1, 10**9)
_LONGEST = 10**7  # values of a law that are summed


@attrs.frozen(kw_only=True)
class Resource:
    """What an instance has one unit a second of.

    Attributes
    ----------
    name : str
    work : tuple of (Fraction or None)
        Units that a call of each stage needs on average; None where the type does not serve the stage.
    """

    name: str
    work: tuple[Fraction | None, ...]


@attrs.frozen(kw_only=True)
class TypeWork:
    """The resources of the instances of one type.

    Attributes
    ----------
    name : str
    count : int
    resources : tuple of Resource
    error : Fraction
        Largest relative error of the works: 0 where they are exact but for means that are floats.
    """

    name: str
    count: int
    resources: tuple[Resource, ...]
    error: Fraction

    def serves(self, stage: int) -> bool:
        """Whether calls of a stage may be sent here."""
        return self.resources[0].work[stage] is not None

    def needs(self, stage: int) -> tuple[Fraction, ...]:
        """Work of a call of a stage that is served here, a number for each resource."""
        return tuple(work for each in self.resources if (work := each.work[stage]) is not None)


def call_work(system: WorkflowSystem, *, filling: bool = False) -> tuple[TypeWork, ...]:
    """The work of a call of each stage at each type.

    Parameters
    ----------
    system : WorkflowSystem
    filling : bool
        Of batch engines whose full batches are not their best: what a rule that fills them can serve, F in the place
        of C. Without it, what no rule can beat.

    Raises
    ------
    NotConverged
        If prompt seconds at an isolated-latency instance are sums over more than 10^7 lengths.
    """
    stages = system.workflow.stages
    found = []
    for each in system.instances:
        served = [stage if each.serves(stage) else None for stage in stages]
        if each.engine is not None:
            found.append(_engine_work(each, each.engine, served, filling=filling))
            continue
        works = [None if stage is None else busy_seconds(each, stage) for stage in served]
        found.append(
            TypeWork(
                name=each.name,
                count=each.count,
                resources=(Resource(name="time", work=tuple(None if one is None else one[0] for one in works)),),
                error=max((one[1] for one in works if one is not None), default=Fraction(0)),
            )
        )
    return tuple(found)


def binding_work(system: WorkflowSystem) -> tuple[TypeWork, ...]:
    """The work that an instance's own batches cannot do without, under the rule that engines have.

    An engine that always fills its batches when it is behind, as one without k_max does, serves F and no more; the
    others may do as well as `call_work` says.
    """
    pairs = zip(system.instances, call_work(system), call_work(system, filling=True), strict=True)
    return tuple(
        filled if each.engine is not None and each.engine.slots == each.engine.b_max else least
        for each, least, filled in pairs
    )


def busy_seconds(instance: Instance, stage: Stage) -> tuple[Fraction, Fraction]:
    """Least mean seconds that a call keeps a classical server or an isolated-latency instance busy; its relative error.

    Attained where all seats are taken whenever a decode step begins.
    """
    if instance.speed is not None:
        assert stage.work is not None
        return stage.work.mean / instance.speed, Fraction(0)
    assert stage.decode is not None
    prompt, error = prompt_seconds(instance, stage)
    if instance.seats is None:
        return prompt, error
    return prompt + Fraction(stage.decode.mean) * instance.decode_step / instance.seats, error


def prompt_seconds(instance: Instance, stage: Stage) -> tuple[Fraction, Fraction]:
    """E[max(0, T - v_d step)] at an isolated-latency instance, and its relative error.

    Exact where nothing is ever cut off at 0 and where the lengths have finitely many values, not too many; else summed
    over their survival functions in floats.
    """
    assert stage.prefill is not None
    assert stage.decode is not None
    law = instance.law(stage)
    base, per_prefill, per_decode = law.base, law.per_prefill, law.per_decode - instance.decode_step
    prefill, decode = stage.prefill, stage.decode
    least = _least(per_decode, decode)
    if least is not None and base + least >= 0:
        return base + per_prefill * Fraction(prefill.mean) + per_decode * Fraction(decode.mean), Fraction(0)
    prompts = _values(prefill if per_prefill else Constant(0))
    decodes = _values(decode if per_decode else Constant(0))
    if prompts is not None and decodes is not None and len(prompts) * len(decodes) <= MOST_PAIRS:
        positive = (
            p * q * max(Fraction(0), base + per_prefill * v + per_decode * w)
            for (v, p), (w, q) in product(prompts, decodes)
        )
        return sum(positive, Fraction(0)), Fraction(0)
    return Fraction(_summed(float(base), float(per_prefill), float(per_decode), prefill, decode)), SUM_ERROR


def _least(per_decode: Fraction, decode: LengthLaw) -> Fraction | None:
    """A lower bound of per_decode * v_d; None where there is none."""
    if per_decode >= 0:
        return Fraction(0)
    return None if decode.largest is None else per_decode * decode.largest


def _values(law: LengthLaw) -> tuple[tuple[int, Fraction], ...] | None:
    """The values of a law with their exact chances; None where they are not known or too many."""
    return None if isinstance(law, Uniform) and law.high - law.low >= MOST_PAIRS else law.atoms()


def _summed(base: float, per_prefill: float, per_decode: float, prefill: LengthLaw, decode: LengthLaw) -> float:
    """E[(base + a V + d W)+] = sum_w P(W = w) E[(x_w + a V)+], x_w = base + d w."""
    if per_decode == 0:
        decode = Constant(0)
    last = decode.cutoff() if decode.largest is None else decode.largest
    if last > _LONGEST:
        raise NotConverged(f"prompt seconds: decode lengths up to {last} are too many to sum; use a shorter law")
    lengths = np.arange(last + 1)
    chances = decode.survival(lengths) - decode.survival(lengths + 1)
    starts = np.asarray(base + per_decode * lengths, dtype=np.float64)
    positive = starts + per_prefill * float(prefill.mean) + _shortfall(-starts, per_prefill, prefill)
    return float(np.sum(chances * np.maximum(positive, 0)))


def _shortfall(depths: Floats, slope: float, law: LengthLaw) -> Floats:
    """E[(depth - slope V)+] of each depth: of c = depth/slope, the integral of P(V <= s) over 0 <= s <= c."""
    if slope == 0:
        return np.maximum(depths, 0)
    reach = np.maximum(depths / slope, 0)
    whole = np.floor(reach).astype(np.int64)
    last = int(whole.max(initial=0))
    if last > _LONGEST:
        raise NotConverged(f"prompt seconds: prompts up to {last} tokens are too many to sum; use another latency law")
    below = 1 - law.survival(np.arange(1, last + 2))  # P(V <= s) for s = 0, 1, ...
    sums = np.concatenate([[0.0], np.cumsum(below)])
    return np.asarray(slope * (sums[whole] + (reach - whole) * below[whole]), dtype=float)


def _engine_work(each: Instance, engine: Engine, served: Sequence[Stage | None], *, filling: bool) -> TypeWork:
    """The faces of the outer region; where full batches are not the best and are asked for, tokens over F too."""
    lines = list(_faces(engine, filling=filling))
    resources = tuple(
        Resource(name=name, work=tuple(None if stage is None else _weighed(stage, p, d) for stage in served))
        for name, p, d in lines
    )
    return TypeWork(name=each.name, count=each.count, resources=resources, error=Fraction(0))


def _weighed(stage: Stage, per_prefill: Fraction, per_decode: Fraction) -> Fraction:
    assert stage.prefill is not None
    assert stage.decode is not None
    return per_prefill * Fraction(stage.prefill.mean) + per_decode * Fraction(stage.decode.mean)


def _faces(engine: Engine, *, filling: bool) -> Iterator[tuple[str, Fraction, Fraction]]:
    """(name, units a prefill token, units a decode token)."""
    found = token_capacity(engine)
    if engine.slots == engine.b_max:
        rate = found.full_batches_tokens_per_s if filling else found.tokens_per_s
        yield "tokens", 1 / rate, 1 / rate
        return
    if filling and not found.filling_is_optimal:
        yield "full batches", 1 / found.full_batches_tokens_per_s, 1 / found.full_batches_tokens_per_s
    region = outer_region(engine)
    for face in region.polygon.faces:
        ends = " - ".join(dict.fromkeys(region.labels[index] for index in face.ends))
        yield f"batches {ends}", face.prefill / face.bound, face.decode / face.bound
