"""Mooncake traces (Qin et al., FAST 2025): integer milliseconds from the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.traces.jsonl import JsonlFormat, LeftOut, Request
from queuetheory_llm.files.traces.numbers import read_count, read_seconds


class Mooncake(JsonlFormat):
    """``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` of 512-token prefix blocks."""

    name: ClassVar[str] = "Mooncake"
    header: ClassVar[str] = 'JSON lines {"timestamp", "input_length", "output_length", ...}'
    keys: ClassVar[tuple[str, ...]] = ("timestamp", "input_length", "output_length")
    notes: ClassVar[tuple[str, ...]] = (
        "input_length counts every prompt token: a prefix cache would serve part of them without work",
    )

    def request(self, row: Mapping[str, Any]) -> Request | LeftOut:
        """See `JsonlFormat.request`."""
        mantissa, digits = read_seconds(row["timestamp"], "timestamp")
        if digits and mantissa % 10**digits:
            raise InvalidInput(f"timestamp: {row['timestamp']} is not a whole number of milliseconds")
        return Request(
            (mantissa // 10**digits, 3),
            read_count(row["input_length"], "input_length"),
            read_count(row["output_length"], "output_length"),
        )
