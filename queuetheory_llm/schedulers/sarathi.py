"""Sarathi-Serve: every decode, then pieces of the oldest prompts."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

SARATHI = Policy(
    name="sarathi",
    rule="all decodes first, then pieces of the oldest prompts fill the batch",
    source="Agrawal et al., Sarathi-Serve, OSDI 2024; Dai et al., arXiv 2504.07347, section 3",
    passes=(Pass.DECODE, Pass.PREFILL),
    mixed=True,
    chunks=True,
)
