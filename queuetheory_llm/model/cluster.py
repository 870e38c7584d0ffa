"""Heterogeneous instances that serve the calls of a workflow, and the whole: workflow, instances, arrivals.

An instance is one of three kinds. A *batch engine* is the LLM engine of this package under the rule of vLLM. An
*isolated-latency instance* is what the simulator of HEXGEN-FLOW has: one prompt at a time, exclusively and first, then
decode steps whose time does not depend on how many calls decode. A *classical server* serves one call at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import optional_seconds, to_count, to_fraction, to_seconds
from queuetheory_llm.exact.reading import decimal
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.arrivals import Arrivals, DeterministicArrivals, PoissonArrivals, RenewalArrivals
from queuetheory_llm.model.cluster_faults import cluster_faults
from queuetheory_llm.model.columns import keyed, listed, names, of_type, text, tuple_of
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workflow import Stage, Workflow


def _not_negative(_: object, field: attrs.Attribute[Fraction], value: Fraction | None) -> None:
    if value is not None and value < 0:
        raise InvalidModel(f"{field.name}: {decimal(value)} s is negative; a token takes no less than no time")


@keyed
@attrs.frozen(kw_only=True)
class LatencyLaw:
    """Seconds of a call that is alone: base + per_prefill * v_p + per_decode * v_d, v_p and v_d its tokens.

    Parameters
    ----------
    base : Fraction or text with a unit
        Seconds; fitted laws may have a negative one.
    per_prefill, per_decode : Fraction or text with a unit
        Seconds a token, not negative.
    """

    base: Fraction = attrs.field(default=Fraction(0), converter=to_seconds)
    per_prefill: Fraction = attrs.field(converter=to_seconds, validator=_not_negative)
    per_decode: Fraction = attrs.field(converter=to_seconds, validator=_not_negative)

    def seconds(self, prefill: Fraction | int, decode: Fraction | int) -> Fraction:
        """Seconds of a call of so many tokens, alone."""
        return self.base + self.per_prefill * prefill + self.per_decode * decode


def _copied(
    value: LatencyLaw | Mapping[str, LatencyLaw] | None,
) -> LatencyLaw | Mapping[str, LatencyLaw] | None:
    """A mapping as one of its own, which nobody changes."""
    return dict(value) if isinstance(value, Mapping) else value


def _latency(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    """Refuse what is neither a law nor a mapping of stage names to laws."""
    if value is None or isinstance(value, LatencyLaw):
        return
    if not isinstance(value, Mapping):
        raise InvalidModel(f"{field.name}: {shown(value)} is no LatencyLaw or mapping of stage names to them; give one")
    if not value:
        raise InvalidModel(f"{field.name}: is empty; give a law for each stage that is served")
    for stage, law in value.items():
        if not isinstance(stage, str) or not isinstance(law, LatencyLaw):
            raise InvalidModel(f"{field.name}: {shown(stage)}: {shown(law)} is no LatencyLaw of a stage; make one")


@keyed
@attrs.frozen(kw_only=True)
class Instance:
    """Equal instances of one type: give ``engine``, ``latency`` or ``speed``.

    Parameters
    ----------
    name : str
        Of the type; a copy is called NAME-1, NAME-2 where there are several.
    count : int
        How many there are.
    engine : Engine, optional
        A batch engine under the rule of vLLM with chunked prefill.
    latency : LatencyLaw or mapping of stage name to LatencyLaw, optional
        An isolated-latency instance. A prompt is served alone and takes what the law leaves beside the decode steps,
        max(0, seconds(v_p, v_d) - v_d * step); waiting prompts go before decode steps; a step serves a token of each
        call that decodes.
    step : Fraction, optional
        Seconds of a decode step of an isolated-latency instance; by default ``per_decode`` of its law (of a mapping:
        the largest).
    seats : int, optional
        Most calls that an isolated-latency instance has begun and not ended; None is no limit.
    speed : Fraction, optional
        A classical server: one call at a time, of work/speed seconds; above 0.
    stages : tuple of str, optional
        The stages it can serve; None is all.
    """

    name: str = attrs.field(validator=text)
    count: int = attrs.field(default=1, converter=to_count)
    engine: Engine | None = attrs.field(default=None, validator=attrs.validators.optional(of_type(Engine)))
    latency: LatencyLaw | Mapping[str, LatencyLaw] | None = attrs.field(
        default=None, converter=_copied, validator=_latency
    )
    step: Fraction | None = attrs.field(default=None, converter=optional_seconds, validator=_not_negative)
    seats: int | None = attrs.field(default=None, converter=attrs.converters.optional(to_count))
    speed: Fraction | None = attrs.field(default=None, converter=attrs.converters.optional(to_fraction))
    stages: tuple[str, ...] | None = attrs.field(
        default=None, converter=listed, validator=attrs.validators.optional(names)
    )

    def serves(self, stage: Stage) -> bool:
        """Whether calls of a stage may be sent here."""
        return self.stages is None or stage.name in self.stages

    def law(self, stage: Stage) -> LatencyLaw:
        """The latency law of a stage at an isolated-latency instance.

        Raises
        ------
        KeyError
            If there is none; `Cluster` has refused such an instance.
        """
        assert self.latency is not None
        return self.latency[stage.name] if isinstance(self.latency, Mapping) else self.latency

    @property
    def decode_step(self) -> Fraction:
        """Seconds of a decode step of an isolated-latency instance."""
        assert self.latency is not None
        if self.step is not None:
            return self.step
        laws = self.latency.values() if isinstance(self.latency, Mapping) else (self.latency,)
        return max(law.per_decode for law in laws)

    def mean_seconds(self, stage: Stage) -> Fraction:
        """t_comp: seconds of a call of the stage's mean lengths that is alone here.

        What a dispatcher knows of a call that it has not seen the end of. At a batch engine the prompt takes
        ceil(v_p/b_max) batches and each decode token one. At an isolated-latency instance it is what the law says, but
        not less than the decode steps: a fitted law with a negative base can say less of short calls.
        """
        if self.speed is not None:
            assert stage.work is not None
            return stage.work.mean / self.speed
        assert stage.prefill is not None
        assert stage.decode is not None
        prefill, decode = Fraction(stage.prefill.mean), Fraction(stage.decode.mean)
        if self.engine is None:
            return max(self.law(stage).seconds(prefill, decode), decode * self.decode_step)
        return alone_seconds(self.engine, -(-prefill // 1), decode)


def alone_seconds(engine: Engine, prefill: int, decode: Fraction | int) -> Fraction:
    """Seconds of a call that is alone at a batch engine: full batches of its prompt, the rest, then token by token."""
    law = engine.batch_time
    full, rest = divmod(prefill, engine.b_max)
    prompt = full * law.seconds(engine.b_max) if full else Fraction(0)
    return prompt + (law.seconds(rest) if rest else 0) + decode * law.seconds(1)


@keyed
@attrs.frozen(kw_only=True)
class WorkflowSystem:
    """Queries of a workflow on a cluster of instances.

    Attributes
    ----------
    workflow : Workflow
    instances : tuple of Instance
        Types; together the cluster.
    arrivals : Arrivals
        Of queries; Poisson, deterministic or renewal. Its rate is in queries per second.
    source : mapping of str to str
    name : str
        File path or packaged name, for messages.

    Raises
    ------
    InvalidModel
        One line a fault, ``KEY PATH: WHAT, and how to mend it``; all the faults there are.
    """

    workflow: Workflow = attrs.field(validator=of_type(Workflow))
    instances: tuple[Instance, ...] = attrs.field(converter=listed, validator=tuple_of(Instance))
    arrivals: Arrivals = attrs.field(
        factory=lambda: PoissonArrivals(rate=1),
        validator=of_type(PoissonArrivals, DeterministicArrivals, RenewalArrivals),
    )
    source: Mapping[str, str] = attrs.field(factory=dict, validator=of_type(Mapping))
    name: str = attrs.field(default="workflow", validator=text)

    def __attrs_post_init__(self) -> None:
        """Check that instances and stages fit together."""
        faults = list(cluster_faults(self))
        if faults:
            raise InvalidModel(faults)

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Type of each single instance, the copies of a type one after another; shape (M,)."""
        return tuple(kind for kind, each in enumerate(self.instances) for _ in range(each.count))

    @cached_property
    def unit_names(self) -> tuple[str, ...]:
        """Name of each single instance."""
        return tuple(
            each.name if each.count == 1 else f"{each.name}-{copy + 1}"
            for each in self.instances
            for copy in range(each.count)
        )

    @cached_property
    def mean_seconds(self) -> tuple[tuple[Fraction | None, ...], ...]:
        """t_comp of each stage on each instance type; None where it is not served. Shape (J, types)."""
        return tuple(
            tuple(each.mean_seconds(stage) if each.serves(stage) else None for each in self.instances)
            for stage in self.workflow.stages
        )

    @cached_property
    def unit_seconds(self) -> tuple[tuple[Fraction | None, ...], ...]:
        """t_comp of each stage on each single instance; None where it is not served. Shape (J, M)."""
        return tuple(tuple(row[kind] for kind in self.units) for row in self.mean_seconds)

    @cached_property
    def even_shares(self) -> tuple[tuple[Fraction, ...], ...]:
        """Equal shares of each stage for the single instances that serve it; rows sum to 1. Shape (J, M)."""
        serves = [[seconds is not None for seconds in row] for row in self.unit_seconds]
        return tuple(tuple(Fraction(able, sum(row)) for able in row) for row in serves)

    @cached_property
    def average_seconds(self) -> tuple[Fraction, ...]:
        """t-bar of each stage: its t_comp, averaged over the single instances that serve it."""
        found = []
        for row in self.mean_seconds:
            pairs = zip(self.instances, row, strict=True)
            served = [(each.count, seconds) for each, seconds in pairs if seconds is not None]
            found.append(sum((n * s for n, s in served), Fraction(0)) / sum(n for n, _ in served))
        return tuple(found)

    @cached_property
    def base_seconds(self) -> Fraction:
        """Seconds of a query of mean lengths that is alone, on average over the instances: its expected critical path.

        What SLO scales multiply (HEXGEN-FLOW, section 5). A stage of parallel calls counts as one call; stages left out
        and loops count by their expectation, and of parallel parts the longest expectation.
        """
        return self.workflow.plan.length(self.average_seconds)

    @cached_property
    def fastest_seconds(self) -> Fraction:
        """Seconds of a query of mean lengths that is alone, each call on the instance that is fastest for it.

        Expected, and of parallel parts the longest expectation, as `base_seconds`.
        """
        fastest = [min(seconds for seconds in row if seconds is not None) for row in self.mean_seconds]
        return self.workflow.plan.length(fastest)

    @cached_property
    def seconds_after(self) -> tuple[Fraction, ...]:
        """t-bar expected after each stage: the sum over the stages still to come, for the budget rule."""
        return tuple(self.workflow.plan.seconds_after(self.average_seconds))

    def deadline(self, tenant: int) -> Fraction | None:
        """Seconds that a query of a tenant may take; None without an SLO."""
        each = self.workflow.tenants[tenant]
        return each.slo if each.slo_scale is None else each.slo_scale * self.base_seconds

    @cached_property
    def deadlines(self) -> tuple[float, ...]:
        """Seconds that a query of each tenant may take; inf without an SLO."""
        found = map(self.deadline, range(len(self.workflow.tenants)))
        return tuple(math.inf if each is None else float(each) for each in found)

    def with_rate(self, rate: Fraction) -> WorkflowSystem:
        """The system with queries coming at another rate, queries/s."""
        return attrs.evolve(self, arrivals=self.arrivals.with_rate(rate))


def require_cluster(system: WorkflowSystem) -> WorkflowSystem:
    """Refuse what is no workflow on a cluster.

    Raises
    ------
    InvalidInput
    """
    if isinstance(system, WorkflowSystem):
        return system
    raise InvalidInput(
        f"system: {shown(system)} is no WorkflowSystem; read one with load_workflow(NAME), of a file or packaged"
    )
