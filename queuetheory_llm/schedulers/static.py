"""Static batching: a group of requests runs to its end before the next is taken."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

STATIC = Policy(
    name="static",
    rule="whole prompts into an empty engine; the group runs to its end before any other is taken",
    source="request-level batching without in-flight admission, as Yu et al., OSDI 2022, describe it; no padding",
    passes=(Pass.RUNNING, Pass.WAITING),
    mixed=False,
    chunks=False,
)
