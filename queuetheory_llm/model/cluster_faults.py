"""Whether the instances of a cluster can serve the stages of a workflow, and its tenants can be content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from queuetheory_llm.exact.reading import decimal
from queuetheory_llm.exact.words import enumeration, shown
from queuetheory_llm.model.arrivals import IntervalLaw, RenewalArrivals
from queuetheory_llm.model.dispatch import MOST_ENGINES
from queuetheory_llm.model.workflow_faults import name_faults, nearest

if TYPE_CHECKING:
    from queuetheory_llm.model.cluster import Instance, WorkflowSystem
    from queuetheory_llm.model.workflow import Stage, Workflow

_KINDS = ("engine", "latency", "speed")


def cluster_faults(system: WorkflowSystem) -> Iterator[str]:
    """One line a fault, ``KEY PATH: WHAT, and how to mend it``."""
    arrivals = system.arrivals
    if isinstance(arrivals, RenewalArrivals) and not isinstance(arrivals.interval, IntervalLaw):
        yield f"arrivals.interval: {shown(arrivals.interval)} is no IntervalLaw; give one"
    if not system.instances:
        yield "instance: there is none; add an [[instance]] with engine, latency or speed"
        return
    found = list(name_faults("instance", [each.name for each in system.instances]))  # the others quote these names
    found = found or list(_instances(system))
    yield from found or _deadlines(system)


def _instances(system: WorkflowSystem) -> Iterator[str]:
    yield from _numbers(system)
    for index, each in enumerate(system.instances):
        where = f"instance[{index}]"
        found = [*_kind(where, each), *_sizes(where, each), *_listed(where, each, system.workflow)]
        yield from found or _service(where, each, system.workflow)
    for j, stage in enumerate(system.workflow.stages):
        if not any(each.serves(stage) for each in system.instances):
            yield f"stage[{j}]: no instance serves {stage.name!r}; add it to the stages of one"


def _numbers(system: WorkflowSystem) -> Iterator[str]:
    """How many single instances there are, and what they are called."""
    total = sum(each.count for each in system.instances)
    if total > MOST_ENGINES:
        yield f"instance: there are {total} with their counts; a cluster has {MOST_ENGINES} at most"
    elif min(each.count for each in system.instances) >= 1:
        for name, times in Counter(system.unit_names).items():
            if times > 1:
                yield f"instance: {name!r} would be the name of two; the copies of a type are NAME-1, NAME-2, ..."


def _kind(where: str, each: Instance) -> Iterator[str]:
    given = [key for key in _KINDS if getattr(each, key) is not None]
    if not given:
        yield f"{where}: has neither engine, latency nor speed; give the one that says how it serves"
    elif len(given) > 1:
        yield f"{where}.{given[1]}: is given beside {given[0]}; an instance is of one kind, leave one out"
    elif "latency" not in given:
        yield from (
            f"{where}.{key}: goes with latency alone, this instance has {given[0]}; leave it out"
            for key in ("step", "seats")
            if getattr(each, key) is not None
        )


def _sizes(where: str, each: Instance) -> Iterator[str]:
    if each.count < 1:
        yield f"{where}.count: {each.count} is below 1; leave the instance out if there is none"
    if each.seats is not None and each.seats < 1:
        yield f"{where}.seats: {each.seats} is below 1; an instance that can serve has 1 at least"
    if each.speed is not None and each.speed <= 0:
        yield f"{where}.speed: {decimal(each.speed)} is not positive; give the seconds of work it does in a second"


def _listed(where: str, each: Instance, workflow: Workflow) -> Iterator[str]:
    """What ``stages`` and a mapping of ``latency`` name."""
    known = [stage.name for stage in workflow.stages]
    for name, times in Counter(each.stages or ()).items():
        if name not in known:
            yield f"{where}.stages: {name!r} is no stage; {nearest(name, known)}"
        elif times > 1:
            yield f"{where}.stages: {name!r} is listed more than once; list each stage once"
    if each.stages == ():
        yield f"{where}.stages: is empty, it would serve nothing; list stages, or leave the key out for all"
    if isinstance(each.latency, Mapping):
        for name in each.latency:
            if name not in known:
                yield f"{where}.latency: {name!r} is no stage; {nearest(name, known)}"
            elif each.stages is not None and name not in each.stages:
                yield f"{where}.latency: has a law for {name!r}, which is not among its stages; leave one of them out"


def _service(where: str, each: Instance, workflow: Workflow) -> Iterator[str]:
    """Whether it can serve the stages it serves."""
    served = [stage for stage in workflow.stages if each.serves(stage)]
    key = next(key for key in _KINDS if getattr(each, key) is not None)
    other = [stage for stage in served if stage.classical != (key == "speed")]
    if other:
        names = enumeration([repr(stage.name) for stage in other])
        if key == "speed":
            what = f"a classical server does seconds of work, and the calls of {names} are tokens"
        else:
            what = f"it serves tokens, and the calls of {names} are seconds of work"
        yield f"{where}.{key}: {what}; list in stages what it can serve"
    if key == "latency":
        yield from _latency(where, each, [stage for stage in served if stage not in other])


def _latency(where: str, each: Instance, served: list[Stage]) -> Iterator[str]:
    latency = each.latency
    missing = [stage for stage in served if isinstance(latency, Mapping) and stage.name not in latency]
    for stage in missing:
        yield f"{where}.latency: has no law for stage {stage.name!r}; add one, or list in stages what it serves"
    if each.decode_step == 0 and any(stage.decode is not None and stage.decode.largest != 0 for stage in served):
        key = "step" if each.step is not None else "latency"
        yield f"{where}.{key}: a decode step takes no time; give step or per_decode above 0"
    for stage in served:
        if stage not in missing and (seconds := _by_law(each, stage)) <= 0:
            yield (
                f"{where}.latency: a call of stage {stage.name!r} of mean lengths takes {float(seconds):.4g} s by the "
                f"law of {each.name!r}; raise base, or leave the stage to other instances"
            )


def _by_law(each: Instance, stage: Stage) -> Fraction:
    """Seconds of a call of mean lengths as the latency law says."""
    assert stage.prefill is not None
    assert stage.decode is not None
    return each.law(stage).seconds(Fraction(stage.prefill.mean), Fraction(stage.decode.mean))


def _deadlines(system: WorkflowSystem) -> Iterator[str]:
    for index, tenant in enumerate(system.workflow.tenants):
        deadline = system.deadline(index)
        if deadline is None or deadline >= system.fastest_seconds:
            continue
        key = "slo" if tenant.slo_scale is None else "slo_scale"
        given = "" if tenant.slo_scale is None else f"{decimal(tenant.slo_scale)} times an average query, "
        yield (
            f"tenant[{index}].{key}: {given}{float(deadline):.6g} s is below the {float(system.fastest_seconds):.6g} s "
            "of a fastest query, alone and each call on the instance that is fastest for it; give more"
        )
