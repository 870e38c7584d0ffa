"""vLLM with chunked prefill (the V1 engine): running requests, then waiting ones."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

VLLM_CHUNKED = Policy(
    name="vllm-chunked",
    rule="running requests in the order of admission, then waiting ones while seats and budget last",
    source="vLLM V1 scheduler, vllm.v1.core.sched.scheduler (0.30.0): first come first served, synchronous",
    passes=(Pass.RUNNING, Pass.WAITING),
    mixed=True,
    chunks=True,
)
