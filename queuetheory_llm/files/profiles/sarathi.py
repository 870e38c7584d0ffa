"""Sarathi-Serve figure 2: prefill.csv and decode.csv; whole batches, seconds.

Format of microsoft/sarathi-serve, osdi-experiments/figure-2 (Agrawal et al., Sarathi-Serve, OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.files.profiles.selection import Selection
from queuetheory_llm.files.profiles.table import Head, Row, RowFault, Samples, each_row, join_phases, medians
from queuetheory_llm.files.profiles.table import repetition_note as repeated
from queuetheory_llm.model.profile import Profile

_COLUMNS = {
    "batch_num_tokens", "batch_num_decode_tokens", "batch_num_prefill_tokens", "Batch Id", "batch_execution_time",
    "inter_batch_delay",
}  # fmt: skip
_SECOND = Fraction(1)


def recognises(head: Head) -> bool:
    """Whether a file is prefill.csv or decode.csv of figure 2."""
    return set(head.columns) >= _COLUMNS


def read(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """t(b) from either file or both; where both have a point the longer time is kept.

    Raises
    ------
    InvalidInput
        If no row of the chosen phase is left.
    """
    files = paths["sarathi"]
    samples: dict[str, Samples] = {"prefill": {}, "decode": {}}
    notes: list[str] = []
    for path in files:
        notes += _read_file(path, samples)
    phases = [selection.phase] if selection.phase else ["prefill", "decode"]
    if not any(samples[phase] for phase in phases):
        raise InvalidInput(f"--phase: no {' or '.join(phases)} rows; leave it out", source=str(files[0]))
    used = {phase: samples[phase] if phase in phases else {} for phase in samples}
    points, remarks = join_phases(medians(used["prefill"]), medians(used["decode"]))
    present = " and ".join(phase for phase in used if used[phase])
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=", ".join(map(str, files)),
        format="sarathi",
        includes=f"whole {present} batches, attention included",
        statistic="as the file gives it, one value a batch size",
        notes=(*notes, *repeated(used["prefill"]), *repeated(used["decode"]), *remarks),
    )


def _read_file(path: Path, samples: dict[str, Samples]) -> list[str]:
    notes: list[str] = []

    def take(row: Row) -> None:
        tokens, time = row.count("batch_num_tokens"), row.time("batch_execution_time", _SECOND)
        if _is_first_batch(row):
            notes.append(
                f"{path.name} line {row.line} dropped: {tokens} tokens in {float(time) * 1000:.0f} ms was the first "
                "batch of the run (Batch Id 0, no inter_batch_delay), a warm-up"
            )
            return
        decodes = row.count("batch_num_decode_tokens", least=0)
        if 0 < decodes < tokens:
            raise RowFault(f"batch_num_decode_tokens: {decodes} of {tokens} tokens, a mixed batch; drop the row")
        samples["decode" if decodes else "prefill"].setdefault(tokens, []).append(time)

    each_row(path, take)
    return notes


def _is_first_batch(row: Row) -> bool:
    number = row.text("Batch Id")
    return bool(number) and to_fraction(number) == 0 and not row.text("inter_batch_delay")
