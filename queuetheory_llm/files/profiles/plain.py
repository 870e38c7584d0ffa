"""Plain CSV with the header ``tokens,seconds``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from queuetheory_llm.files.profiles.selection import Selection
from queuetheory_llm.files.profiles.table import Head, Row, Samples, each_row, medians, repetition_note
from queuetheory_llm.model.profile import Profile


def recognises(head: Head) -> bool:
    """Whether the columns are tokens and seconds."""
    return set(head.columns) == {"tokens", "seconds"}


def read(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:  # noqa: ARG001
    """The points as they are, repeated sizes by their median."""
    path = paths["plain"][0]
    samples: Samples = {}

    def take(row: Row) -> None:
        samples.setdefault(row.count("tokens"), []).append(row.time("seconds", Fraction(1)))

    each_row(path, take)
    points = medians(samples)
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=str(path),
        format="plain",
        includes="whatever the file measured",
        statistic="median of the rows of one size",
        notes=tuple(repetition_note(samples)),
    )
