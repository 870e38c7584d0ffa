"""FasterTransformer: request-level batching, decodes to the end before new prompts."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

FASTERTRANSFORMER = Policy(
    name="fastertransformer",
    rule="while any request decodes, decode-only batches; otherwise whole prompts",
    source="NVIDIA FasterTransformer; Dai et al., arXiv 2504.07347, section 3",
    passes=(Pass.DECODE, Pass.PREFILL),
    mixed=False,
    chunks=False,
)
