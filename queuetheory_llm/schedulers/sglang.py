"""SGLang: prompts first, in pieces, not mixed with decodes unless mixed chunks are on."""

from __future__ import annotations

from queuetheory_llm.schedulers.policy import Pass, Policy

SGLANG = Policy(
    name="sglang",
    rule="while any prompt waits, prefill-only batches of prompt pieces; otherwise decodes",
    source="SGLang scheduler with --chunked-prefill-size; sglang+mixed is --enable-mixed-chunk",
    passes=(Pass.PREFILL, Pass.DECODE),
    mixed=False,
    chunks=True,
)
