"""TensorRT-LLM in-flight batching: decodes first, whole prompts beside them."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

TENSORRT_LLM = Policy(
    name="tensorrt-llm",
    rule="all decodes first, then whole prompts while they fit, in the same batch",
    source="TensorRT-LLM in-flight batching; tensorrt-llm+chunk is enable_chunked_context",
    passes=(Pass.DECODE, Pass.PREFILL),
    mixed=True,
    chunks=False,
)
