"""Request logs of vLLM benchmark runs, as LLMServingSim records them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from queuetheory_llm.files.traces.jsonl import JsonlFormat, LeftOut, Request
from queuetheory_llm.files.traces.numbers import read_count, read_seconds


class VllmBench(JsonlFormat):
    """``input_toks``, ``output_toks``, ``arrival_time`` (UNIX clock) and ``*_ts`` (monotonic clock); seconds."""

    name: ClassVar[str] = "vLLM bench"
    header: ClassVar[str] = 'JSON lines {"input_toks", "output_toks", "arrival_time", ...}'
    keys: ClassVar[tuple[str, ...]] = ("input_toks", "output_toks", "arrival_time")
    absolute: ClassVar[bool] = True
    notes: ClassVar[tuple[str, ...]] = (
        "the file has two clocks; arrivals are arrival_time (UNIX), and the *_ts fields (monotonic) are not used",
    )

    def request(self, row: Mapping[str, Any]) -> Request | LeftOut:
        """See `JsonlFormat.request`."""
        return Request(
            read_seconds(row["arrival_time"], "arrival_time"),
            read_count(row["input_toks"], "input_toks"),
            read_count(row["output_toks"], "output_toks"),
        )
