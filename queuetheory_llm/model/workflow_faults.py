"""Whether the parts of a workflow fit together: names, order of the stages, retries, tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from queuetheory_llm.exact.reading import decimal
from queuetheory_llm.exact.words import name_fault
from queuetheory_llm.model.workflow_plan import plan_faults

if TYPE_CHECKING:
    from queuetheory_llm.model.workflow import Stage, Workflow

#: Most stages of a workflow, most calls that a stage makes at once, most runs of a stage in a query, in expectation.
MOST_STAGES = 100
MOST_CALLS = 10_000
MOST_RUNS = 1_000_000
MOST_NESTED = 50  # parts within parts of a plan; they are walked through recursively

_NEVER = 1e-18  # a chance that no run of 5e7 calls meets
_LISTED = 10  # names that a message lists


def workflow_faults(workflow: Workflow) -> Iterator[str]:
    """One line a fault, ``KEY PATH: WHAT, and how to mend it``."""
    counted = list(_counts(workflow))
    named = [
        *name_faults("stage", [each.name for each in workflow.stages]),
        *name_faults("tenant", [each.name for each in workflow.tenants]),
    ]
    if counted or named:  # other messages would quote these names
        yield from (*counted, *named)
        return
    for index, each in enumerate(workflow.stages):
        yield from _stage(f"stage[{index}]", each)
    order = [*_order(workflow), *_retries(workflow)]
    order = order or [f"{where}: {what}" for where, what in plan_faults(workflow)]
    yield from order or _extent(workflow)
    yield from _tenants(workflow)


def _counts(workflow: Workflow) -> Iterator[str]:
    if not workflow.stages:
        yield "stage: there is none; add a [[stage]] with its name and what a call of it takes"
    if len(workflow.stages) > MOST_STAGES:
        yield f"stage: there are {len(workflow.stages)}; a workflow has {MOST_STAGES} at most, repeat some by a retry"
    most = max(2 * len(workflow.stages) - 1, 0)  # of segments of a list that are distinct and nest
    if len(workflow.retries) > most:
        yield f"retry: there are {len(workflow.retries)}; so many do not nest, {most} at most do"
    if not workflow.tenants:
        yield "tenant: there is none; add a [[tenant]], or leave the key out for a single one without SLO"


def name_faults(key: str, names: Sequence[str]) -> Iterator[str]:
    """Faults of names that cannot be told in a line, and of those that repeat."""
    for index, name in enumerate(names):
        fault = name_fault(name)
        if fault is not None:
            yield f"{key}[{index}].name: {fault}"
    for name, times in Counter(names).items():
        if times > 1 and name_fault(name) is None:
            yield f"{key}: {name!r} is the name of several; give each its own"


def _stage(where: str, stage: Stage) -> Iterator[str]:
    tokens = {"prefill": stage.prefill, "decode": stage.decode}
    given = [key for key, law in tokens.items() if law is not None]
    if stage.work is not None:
        yield from (f"{where}.{key}: is given beside work; leave one of them out" for key in given)
    elif len(given) < len(tokens):
        what = "give tokens (0 for none) or a law; or work in the place of prefill and decode"
        yield from (f"{where}.{key}: missing; {what}" for key in tokens if key not in given)
    else:
        yield from _empty_calls(where, stage)
    yield from _parallel_calls(where, stage)


def _empty_calls(where: str, stage: Stage) -> Iterator[str]:
    """A call of no tokens is no call: nothing is sent, and drawing again would change the means written down."""
    assert stage.prefill is not None
    assert stage.decode is not None
    chance = float(stage.prefill.zero) * float(stage.decode.zero)
    if chance == 1:
        yield f"{where}.decode: every call has 0 + 0 tokens, the stage is dead; give one of them a token, or remove it"
    elif chance > _NEVER:
        yield (
            f"{where}.decode: a call has 0 + 0 tokens with probability {chance:.3g}; give prefill or decode a law "
            "without 0, and leave stages out by their chance"
        )


def _parallel_calls(where: str, stage: Stage) -> Iterator[str]:
    largest = stage.calls.largest
    if stage.calls.zero:
        yield f"{where}.calls: may be 0; give a law from 1 on, and leave the stage out by its chance"
    elif largest is None:
        yield f"{where}.calls: has no largest value; give a bounded law, such as uniform or empirical"
    elif largest > MOST_CALLS:
        yield f"{where}.calls: up to {largest} calls in parallel; a stage makes {MOST_CALLS} at most"


def _order(workflow: Workflow) -> Iterator[str]:
    names = [each.name for each in workflow.stages]
    place = {name: j for j, name in enumerate(names)}
    for j, stage in enumerate(workflow.stages):
        where = f"stage[{j}].after"
        for name in dict.fromkeys(stage.after or ()):
            if name not in place:
                yield f"{where}: {name!r} is no stage; {nearest(name, names[:j])}"
            elif place[name] == j:
                yield f"{where}: {name!r} cannot come after itself; a [[retry]] repeats a stage"
            elif place[name] > j:
                yield (
                    f"{where}: {name!r} is listed later; list stages in the order in which they can run, "
                    "and go back by a [[retry]]"
                )
        yield from (
            f"{where}: {name!r} is listed more than once; list each stage once"
            for name, times in Counter(stage.after or ()).items()
            if times > 1
        )


def _retries(workflow: Workflow) -> Iterator[str]:
    stages = {each.name: each for each in workflow.stages}
    for index, retry in enumerate(workflow.retries):
        where = f"retry[{index}]"
        for key, name in (("from", retry.source), ("to", retry.to)):
            if name not in stages:
                yield f"{where}.{key}: {name!r} is no stage; {nearest(name, stages)}"
            elif retry.source != retry.to and stages[name].chance != 1:
                yield (
                    f"{where}.{key}: {name!r} is left out by chance; both ends of a retry over several stages are "
                    "run in every pass, give it chance 1"
                )
        if retry.probability == 1:
            yield f"{where}.probability: 1 sends every query back for ever, what follows is dead; give less than 1"


def _extent(workflow: Workflow) -> Iterator[str]:
    """Whether the plan can be walked through: retries within retries multiply."""
    depth = workflow.plan.depth
    if depth > MOST_NESTED:
        yield f"stage: series, parallel parts and loops are nested {depth} deep; {MOST_NESTED} levels at most"
    for stage, runs in zip(workflow.stages, workflow.plan.runs(len(workflow.stages)), strict=True):
        if runs > MOST_RUNS:
            yield f"retry: a query runs {stage.name!r} more than {MOST_RUNS} times on average; lower a probability"
            return


def _tenants(workflow: Workflow) -> Iterator[str]:
    for index, tenant in enumerate(workflow.tenants):
        if tenant.slo is not None and tenant.slo_scale is not None:
            yield (
                f"tenant[{index}].slo_scale: {decimal(tenant.slo_scale)} is given beside "
                f"slo = {decimal(tenant.slo)} s; leave one of them out"
            )


def nearest(word: str, known: Collection[str]) -> str:
    """How to mend a name that is not one of ``known``."""
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    if not known:
        return "no stage is listed before it"
    listed = list(known)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return f"known here: {', '.join(listed[:_LISTED])}{more}"
