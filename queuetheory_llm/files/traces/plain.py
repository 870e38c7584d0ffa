"""The plain format of this package."""

from __future__ import annotations

from typing import ClassVar

from queuetheory_llm.files.traces.csv import CsvFormat


class Plain(CsvFormat):
    """``arrival,prefill,decode``: seconds and tokens; decode is the decode work itself."""

    name: ClassVar[str] = "plain CSV"
    header: ClassVar[str] = "arrival,prefill,decode"
    arrival: ClassVar[str | None] = "arrival"
    prefill: ClassVar[str] = "prefill"
    tokens: ClassVar[str] = "decode"
    outputs: ClassVar[bool] = False
