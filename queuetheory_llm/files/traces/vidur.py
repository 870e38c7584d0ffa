"""Traces of the Vidur simulator: relative seconds, or lengths without times."""

from __future__ import annotations

from typing import ClassVar

from queuetheory_llm.files.traces.csv import CsvFormat


class Vidur(CsvFormat):
    """``arrived_at,num_prefill_tokens,num_decode_tokens``; seconds from the first request."""

    name: ClassVar[str] = "Vidur"
    header: ClassVar[str] = "arrived_at,num_prefill_tokens,num_decode_tokens"
    arrival: ClassVar[str | None] = "arrived_at"
    prefill: ClassVar[str] = "num_prefill_tokens"
    tokens: ClassVar[str] = "num_decode_tokens"


class VidurLengths(CsvFormat):
    """``num_prefill_tokens,num_decode_tokens,...``: lengths only."""

    name: ClassVar[str] = "Vidur lengths"
    header: ClassVar[str] = "num_prefill_tokens,num_decode_tokens (no arrival times)"
    arrival: ClassVar[str | None] = None
    prefill: ClassVar[str] = "num_prefill_tokens"
    tokens: ClassVar[str] = "num_decode_tokens"
