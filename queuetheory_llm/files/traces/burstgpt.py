"""BurstGPT traces (Wang et al. 2024): seconds from the start of the recording."""

from __future__ import annotations

from typing import ClassVar

from queuetheory_llm.files.traces.csv import CsvFormat


class BurstGPT(CsvFormat):
    """``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``."""

    name: ClassVar[str] = "BurstGPT"
    header: ClassVar[str] = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    arrival: ClassVar[str | None] = "Timestamp"
    prefill: ClassVar[str] = "Request tokens"
    tokens: ClassVar[str] = "Response tokens"
    notes: ClassVar[tuple[str, ...]] = ("all models and log types of the file are one stream",)
