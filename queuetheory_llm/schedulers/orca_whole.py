"""Orca as published, without splitting a prompt over iterations."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

ORCA_WHOLE = Policy(
    name="orca-whole",
    rule="whole prompts first, as many as fit, then decodes in the same batch",
    source="Yu et al., Orca, OSDI 2022 (selective batching of whole prompts)",
    passes=(Pass.PREFILL, Pass.DECODE),
    mixed=True,
    chunks=False,
)
