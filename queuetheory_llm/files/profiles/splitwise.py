"""Splitwise whole-iteration times: perf_model.csv; milliseconds.

Format of Mutinifni/splitwise-sim, data/perf_model.csv (Patel et al., Splitwise, ISCA 2024). The grid is a cross:
prompts of several lengths at batch 1, and batches of several sizes at one prompt length. ``prompt_time`` at batch 1 is
t(prompt tokens), ``token_time`` is t(batch), a decode iteration with one token a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.profiles.selection import Selection
from queuetheory_llm.files.profiles.table import (
    MILLISECOND,
    Head,
    Row,
    Samples,
    each_row,
    join_phases,
    listed,
    medians,
)
from queuetheory_llm.model.profile import Profile

_COLUMNS = {
    "model", "hardware", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "tensor_parallel"
}  # fmt: skip
_DERIVED = "-pcap"  # hardware that is a power-capped copy: prompt_time is 1.3 times the original's, token_time the same


@attrs.frozen(kw_only=True)
class _Measurement:
    line: int
    key: tuple[str, str, int]
    prompt: int
    batch: int
    output: int
    prompt_time: Fraction
    token_time: Fraction

    @property
    def values(self) -> tuple[object, ...]:
        return attrs.astuple(self)[1:]


def recognises(head: Head) -> bool:
    """Whether a file is perf_model.csv."""
    return set(head.columns) >= _COLUMNS


def read(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """t(b) of one model, hardware and tensor-parallel degree.

    Raises
    ------
    InvalidInput
        If the file holds several and none was chosen, or the chosen hardware was not measured.
    """
    path = paths["splitwise"][0]
    rows, notes = _measured(_all_rows(path), selection, path)
    rows, remarks = _chosen(rows, selection, path)
    notes += remarks
    rows, remarks = _without_copies(rows)
    notes += remarks
    rows, remarks = _without_impossible(rows)
    notes += remarks
    prefill, decode, remarks = _cross(rows)
    notes += remarks
    points, remarks = join_phases(
        {} if selection.phase == "decode" else prefill, {} if selection.phase == "prefill" else decode
    )
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=str(path),
        format="splitwise",
        includes="whole iterations, attention included: prompts at batch 1, decode by batch size",
        statistic="median of the repetitions",
        notes=(*notes, *remarks),
    )


def _all_rows(path: Path) -> list[_Measurement]:
    rows: list[_Measurement] = []

    def take(row: Row) -> None:
        rows.append(
            _Measurement(
                line=row.line,
                key=(row.text("model"), row.text("hardware"), row.count("tensor_parallel")),
                prompt=row.count("prompt_size"),
                batch=row.count("batch_size"),
                output=row.count("token_size"),
                prompt_time=row.time("prompt_time", MILLISECOND),
                token_time=row.time("token_time", MILLISECOND),
            )
        )

    each_row(path, take)
    return rows


def _measured(rows: list[_Measurement], selection: Selection, path: Path) -> tuple[list[_Measurement], list[str]]:
    why = "is not measured: its prompt_time is 1.3 times that of the hardware without the power cap"
    if selection.hardware is not None and selection.hardware.endswith(_DERIVED):
        raise InvalidInput(
            f"--hardware: {selection.hardware} {why}; choose {selection.hardware.removesuffix(_DERIVED)}",
            source=str(path),
        )
    derived = sorted({row.key[1] for row in rows if row.key[1].endswith(_DERIVED)})
    kept = [row for row in rows if row.key[1] not in derived]
    if not kept:
        raise InvalidInput(f"hardware: {', '.join(derived)} {why}; give measured rows", source=str(path))
    return kept, [f"{len(rows) - len(kept)} rows dropped: {name} {why}" for name in derived]


def _chosen(rows: list[_Measurement], selection: Selection, path: Path) -> tuple[list[_Measurement], list[str]]:
    chosen: list[str] = []
    for position, field in enumerate(("model", "hardware", "tp")):
        value = selection.one_of(field, {row.key[position] for row in rows}, path)
        rows = [row for row in rows if row.key[position] == value]
        chosen.append(f"{field} {value}")
    return rows, [", ".join(chosen)]


def _without_copies(rows: list[_Measurement]) -> tuple[list[_Measurement], list[str]]:
    unique = {row.values: row for row in reversed(rows)}
    copies = len(rows) - len(unique)
    note = f"{copies} rows are exact copies of other rows (the two arms of the grid share a point) and are merged"
    return sorted(unique.values(), key=lambda row: row.line), [note] if copies else []


def _without_impossible(rows: list[_Measurement]) -> tuple[list[_Measurement], list[str]]:
    """Drop a batch whose prompts took less than half the time of a smaller batch of the same prompts."""
    samples: dict[tuple[int, int], list[Fraction]] = {}
    for row in rows:
        samples.setdefault((row.prompt, row.batch), []).append(row.prompt_time)
    typical = {key: medians({1: times})[1] for key, times in samples.items()}
    notes, bad = [], set()
    for (prompt, batch), time in sorted(typical.items()):
        longer = {b: t for (p, b), t in typical.items() if p == prompt and b < batch and t > time}
        if not any(t > 2 * time for t in longer.values()):
            continue
        bad.add((prompt, batch))
        lines = [row.line for row in rows if (row.prompt, row.batch) == (prompt, batch)]
        smaller = min(longer)
        notes.append(
            f"{len(lines)} bad rows dropped (lines {listed(lines)}): batch {batch} of prompt {prompt} has prompt_time "
            f"{float(time) * 1000:.0f} ms, below the {float(longer[smaller]) * 1000:.0f} ms of batch {smaller}; "
            "their token_time is dropped too"
        )
    return [row for row in rows if (row.prompt, row.batch) not in bad], notes


def _cross(rows: list[_Measurement]) -> tuple[dict[int, Fraction], dict[int, Fraction], list[str]]:
    """Prefill and decode points of the two arms, at the prompt and output length of the batch arm."""
    arm = [row for row in rows if row.batch > 1] or rows
    prompt = Counter(row.prompt for row in arm).most_common(1)[0][0]
    output = Counter(row.output for row in arm).most_common(1)[0][0]
    prefill: Samples = {}
    decode: Samples = {}
    for row in rows:
        if row.output == output and row.batch == 1:
            prefill.setdefault(row.prompt, []).append(row.prompt_time)
        if row.output == output and row.prompt == prompt:
            decode.setdefault(row.batch, []).append(row.token_time)
    others = sum(row.output != output for row in rows)
    repetitions = sorted({len(times) for times in (*prefill.values(), *decode.values())})
    notes = [
        f"decode iterations carry contexts of {prompt} to {prompt + output} tokens; prompt_time of batches above 1 "
        "is not used (its tokens are several prompts)",
        f"{'-'.join(map(str, repetitions))} repetitions a point",
    ]
    if others:
        notes.append(f"{others} rows with outputs other than {output} tokens repeat the same point and are not used")
    return medians(prefill), medians(decode), notes
