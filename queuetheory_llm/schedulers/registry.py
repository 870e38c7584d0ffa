"""The rules by name, and the flags that change one switch of a rule: ``sarathi+target=128``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.schedulers.array_rule import ArrayRule
from queuetheory_llm.schedulers.fastertransformer import FASTERTRANSFORMER
from queuetheory_llm.schedulers.max_pressure import max_pressure
from queuetheory_llm.schedulers.max_weight import max_weight
from queuetheory_llm.schedulers.orca import ORCA
from queuetheory_llm.schedulers.orca_whole import ORCA_WHOLE
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.schedulers.sarathi import SARATHI
from queuetheory_llm.schedulers.sglang import SGLANG
from queuetheory_llm.schedulers.static import STATIC
from queuetheory_llm.schedulers.tensorrt_llm import TENSORRT_LLM
from queuetheory_llm.schedulers.vllm_chunked import VLLM_CHUNKED
from queuetheory_llm.schedulers.vllm_vanilla import VLLM_VANILLA

#: Every rule the command line knows.
SCHEDULERS: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        FASTERTRANSFORMER,
        VLLM_VANILLA,
        ORCA,
        ORCA_WHOLE,
        SARATHI,
        VLLM_CHUNKED,
        SGLANG,
        TENSORRT_LLM,
        STATIC,
    )
}

#: Rules made for one engine and the mean lengths of its requests.
ADAPTIVE: Mapping[str, Callable[[Engine, RequestLengths], ArrayRule]] = {
    "max-weight": max_weight,
    "max-pressure": max_pressure,
}

#: Flags without a value: the switch each sets.
_SWITCHES: Mapping[str, dict[str, Any]] = {
    "chunk": {"chunks": True},
    "whole": {"chunks": False},
    "mixed": {"mixed": True},
}
#: Flags with a whole number of tokens: the field each sets.
_COUNTS: Mapping[str, str] = {"target": "target", "threshold": "threshold"}
_MOST_DIGITS = 18  # int() refuses thousands of digits with an error of its own
_FLAGS = "+chunk, +whole, +mixed, +target=TOKENS, +threshold=TOKENS"


def parse_scheduler(text: str) -> Policy:
    """The rule named by ``text``, flags applied.

    Raises
    ------
    InvalidInput
        If the name or a flag is unknown, or two flags contradict each other.

    Examples
    --------
    >>> parse_scheduler("vllm-vanilla+chunk").chunks
    True
    """
    name, *flags = text.strip().split("+")
    if name in ADAPTIVE:
        raise InvalidInput(
            f"--scheduler: {name!r} is made for an engine and its lengths; simulate and sweep know it, and "
            "capacity with --method simulate"
        )
    if name not in SCHEDULERS:
        names = (*SCHEDULERS, *ADAPTIVE)
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
        raise InvalidInput(f"--scheduler: {name!r} is not a known rule; {hint}")
    changes: dict[str, Any] = {}
    for flag in flags:
        for field, value in _flag(text, flag).items():
            if field in changes:
                raise InvalidInput(f"--scheduler: {text!r} sets {field} twice; keep one of the flags")
            changes[field] = value
    return attrs.evolve(SCHEDULERS[name], name=text.strip(), **changes) if changes else SCHEDULERS[name]


def scheduler_for(text: str, engine: Engine, lengths: RequestLengths) -> Scheduler:
    """The rule named by ``text``: an adaptive one made for the engine and the lengths, else by `parse_scheduler`.

    Examples
    --------
    >>> from queuetheory_llm import Engine, Staircase, Workload
    >>> engine = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128), b_max=1024, k_max=100)
    >>> scheduler_for("max-pressure", engine, Workload.of(prefill=290, decode=990)).name
    'max-pressure'
    """
    make = ADAPTIVE.get(text.strip())
    return parse_scheduler(text) if make is None else make(engine, lengths)


def to_rule(rule: Scheduler | str) -> Scheduler | str:
    """A rule as it is, a name by `parse_scheduler`; an adaptive name stays one until its engine is known."""
    if not isinstance(rule, str):
        return rule
    name = rule.strip()
    return name if name in ADAPTIVE else parse_scheduler(name)


def name_of(rule: Scheduler | str) -> str:
    """How reports call a rule."""
    return rule if isinstance(rule, str) else rule.name


def to_scheduler(rule: Scheduler | str) -> Scheduler:
    """A rule as it is, a name by `parse_scheduler`."""
    return parse_scheduler(rule) if isinstance(rule, str) else rule


def to_policy(rule: Scheduler | str) -> Policy:
    """A policy as it is, a name by `parse_scheduler`.

    Raises
    ------
    InvalidInput
        If the rule is a user's own: its batches are not known from data.
    """
    if isinstance(rule, str):
        return parse_scheduler(rule)
    if not isinstance(rule, Policy):
        name = getattr(rule, "name", rule)
        raise InvalidInput(f"scheduler: {name!r} is no Policy, so no threshold is known; use classify or simulate")
    return rule


def _flag(text: str, flag: str) -> dict[str, Any]:
    key, equals, value = flag.partition("=")
    if key in _SWITCHES and not equals:
        return _SWITCHES[key]
    if key in _COUNTS and equals:
        if not value.isascii() or not value.isdigit() or len(value) > _MOST_DIGITS or int(value) < 1:
            raise InvalidInput(f"--scheduler: {text!r}: {key} takes a whole number of tokens, at least 1")
        return {_COUNTS[key]: int(value)}
    raise InvalidInput(f"--scheduler: {text!r}: unknown flag {'+' + flag!r}; flags are {_FLAGS}")
