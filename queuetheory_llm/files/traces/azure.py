"""Azure LLM inference traces: calendar times with seven fractional digits (Patel et al., Splitwise, ISCA 2024)."""

from __future__ import annotations

from typing import ClassVar

from queuetheory_llm.files.traces.csv import Column, CsvFormat, plain_integers
from queuetheory_llm.files.traces.numbers import MOST_DIGITS, Time, read_calendar, whole_seconds


class Azure(CsvFormat):
    """``TIMESTAMP,ContextTokens,GeneratedTokens``; ticks of 100 ns; UTC where no zone is written."""

    name: ClassVar[str] = "Azure"
    header: ClassVar[str] = "TIMESTAMP,ContextTokens,GeneratedTokens"
    arrival: ClassVar[str | None] = "TIMESTAMP"
    prefill: ClassVar[str] = "ContextTokens"
    tokens: ClassVar[str] = "GeneratedTokens"
    absolute: ClassVar[bool] = True

    def times(self, column: Column) -> tuple[list[int], int]:
        """See `CsvFormat.times`; each distinct second is converted once."""
        split = [text.partition(b".") for text in column]
        digits = max(len(tail) for _, _, tail in split)
        if digits > MOST_DIGITS:
            raise ValueError
        seconds = {head: whole_seconds(head.decode()) * 10**digits for head in {head for head, _, _ in split}}
        fractions = plain_integers([tail.ljust(digits, b"0") or b"0" for _, _, tail in split])
        return [seconds[head] + part for (head, _, _), part in zip(split, fractions, strict=True)], digits

    def time(self, text: str) -> Time:
        """See `CsvFormat.time`."""
        return read_calendar(text, "TIMESTAMP")
