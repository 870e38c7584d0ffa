"""Orca: iteration-level batching, prompts first, decodes fill the rest of the batch."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

ORCA = Policy(
    name="orca",
    rule="prompts first, split as needed to fill the batch, then decodes in the same batch",
    source="Yu et al., Orca, OSDI 2022; Dai et al., arXiv 2504.07347, section 3",
    passes=(Pass.PREFILL, Pass.DECODE),
    mixed=True,
    chunks=True,
)
