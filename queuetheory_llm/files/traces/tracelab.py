"""TraceLab traces of coding agents (uw-syfi/TraceLab): one row a round of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.traces.jsonl import JsonlFormat, LeftOut, Request
from queuetheory_llm.files.traces.numbers import read_calendar, read_count


class TraceLab(JsonlFormat):
    """``newly_append_tokens`` (prompt tokens not in the cache), ``output_tokens``, ``timing_events`` (ISO 8601)."""

    name: ClassVar[str] = "TraceLab"
    header: ClassVar[str] = 'JSON lines {"newly_append_tokens", "output_tokens", "timing_events", ...}'
    keys: ClassVar[tuple[str, ...]] = ("newly_append_tokens", "output_tokens", "timing_events")
    absolute: ClassVar[bool] = True
    notes: ClassVar[tuple[str, ...]] = (
        "prefill = newly_append_tokens: prefix_tokens are cached and cost no prefill work",
        "a round arrives at its first timing event",
    )

    def request(self, row: Mapping[str, Any]) -> Request | LeftOut:
        """See `JsonlFormat.request`; a row whose nulls hide its time or its lengths is left out."""
        if row["output_tokens"] is None:
            return LeftOut("left out, output_tokens is null")
        stamp = _first_stamp(row["timing_events"])
        if stamp is None:
            return LeftOut("left out, timing_events has no timestamp")
        prefill, mended = row["newly_append_tokens"], ""
        if prefill is None:
            total, cached = row.get("input_tokens_total"), row.get("prefix_tokens")
            if total is None or cached is None:
                return LeftOut("left out, newly_append_tokens is null and cannot be derived")
            prefill = read_count(total, "input_tokens_total") - read_count(cached, "prefix_tokens")
            mended = "newly_append_tokens is null, taken as input_tokens_total - prefix_tokens"
        time = read_calendar(stamp, "timing_events.timestamp")
        tokens = read_count(row["output_tokens"], "output_tokens")
        return Request(time, read_count(prefill, "newly_append_tokens"), tokens, mended)


def _first_stamp(events: object) -> object | None:
    """The timestamp of the first event that has one."""
    if events is None:
        return None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InvalidInput("timing_events: is not a list of objects")
    return next((event["timestamp"] for event in events if event.get("timestamp") is not None), None)
