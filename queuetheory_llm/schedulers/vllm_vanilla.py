"""vLLM before chunked prefill: prompts first, never mixed with decodes."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

VLLM_VANILLA = Policy(
    name="vllm-vanilla",
    rule="while any prompt waits, prefill-only batches of whole prompts; otherwise decodes",
    source="vLLM up to 0.3 (Kwon et al., SOSP 2023); Dai et al., arXiv 2504.07347, section 3",
    passes=(Pass.PREFILL, Pass.DECODE),
    mixed=False,
    chunks=False,
)
