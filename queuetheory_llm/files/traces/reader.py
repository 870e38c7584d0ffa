"""Reading a request trace of any known format."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.paths import unreadable
from queuetheory_llm.files.traces.azure import Azure
from queuetheory_llm.files.traces.burstgpt import BurstGPT
from queuetheory_llm.files.traces.csv import CsvFormat, header_columns
from queuetheory_llm.files.traces.format import Options, TraceFormat
from queuetheory_llm.files.traces.lines import blocks
from queuetheory_llm.files.traces.mooncake import Mooncake
from queuetheory_llm.files.traces.plain import Plain
from queuetheory_llm.files.traces.servegen import ServeGen
from queuetheory_llm.files.traces.tracelab import TraceLab
from queuetheory_llm.files.traces.vidur import Vidur, VidurLengths
from queuetheory_llm.files.traces.vllm_bench import VllmBench
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.model.trace import Trace

#: Every known format by name; the first that recognises the first line reads the file.
FORMATS: Mapping[str, TraceFormat] = {
    form.name: form
    for form in (
        Azure(),
        Vidur(),
        VidurLengths(),
        Mooncake(),
        BurstGPT(),
        VllmBench(),
        TraceLab(),
        ServeGen(),
        Plain(),
    )
}

FIRST_TOKEN = ("paper", "engine")


def read_trace(
    path: str | Path,
    *,
    first_token: str | None = None,
    strict: bool = False,
    progress: bool = False,
    lengths: RequestLengths | None = None,
) -> Trace:
    """Read a request trace; its format is recognised by its first line.

    The file is streamed: about 24 bytes of memory a row are kept. Whatever is sorted, rounded, derived or left out is
    counted in the notes of the trace.

    Parameters
    ----------
    path : path
    first_token : {"paper", "engine"}, optional
        What a recorded output of n tokens costs to decode: n ("paper", Dai et al. 2025), or n - 1 since the first
        token comes with the last prefill chunk ("engine", the default).
    strict : bool
        Refuse a file that is not sorted by arrival instead of sorting it.
    progress : bool
        Show a progress bar on stderr when that is a terminal.
    lengths : RequestLengths, optional
        Lengths for a ServeGen client, in place of those of the dataset beside it.

    Returns
    -------
    Trace
        Arrivals in ticks that divide every recorded time exactly where 64 bits allow, else in nanoseconds.

    Raises
    ------
    InvalidInput
        ``FILE: line N: WHAT`` for the first fault of the file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("arrival,prefill,decode\\n0,10,5\\n0.25,20,5\\n")
    ...     file.flush()
    ...     read_trace(file.name).rate
    Fraction(4, 1)
    """
    if first_token is not None and first_token not in FIRST_TOKEN:
        raise InvalidInput(f"--first-token: {first_token!r} is not one of {' and '.join(FIRST_TOKEN)}")
    options = Options(source=str(path), first_token=first_token, strict=strict, lengths=lengths)
    try:
        stream = blocks(path, progress=progress)
        head = next(stream, None)
        if head is None:
            raise InvalidInput("is empty; give a trace with one row a request")
        first_line = head.lines[0].decode()
        return _recognised(first_line).read(first_line, chain([head], stream), options)
    except InvalidInput as error:
        raise type(error)(error.faults, source=str(path)) from None
    except OSError as error:  # of a file beside it
        raise unreadable(error, str(error.filename or path)) from None


def _recognised(first_line: str) -> TraceFormat:
    for form in FORMATS.values():
        if form.recognises(first_line):
            return form
    shown = first_line if len(first_line) <= 60 else f"{first_line[:57]}..."
    known = "; ".join(f"{form.name}: {form.header}" for form in FORMATS.values())
    raise InvalidInput(f"line 1: {shown!r} is the start of no known format{_nearest(first_line)}. Known are {known}")


def _nearest(first_line: str) -> str:
    """Which columns the nearest CSV format would still need."""
    present = set(header_columns(first_line))
    tables = [form for form in FORMATS.values() if isinstance(form, CsvFormat)]
    best = max(tables, key=lambda form: len(present.intersection(form.columns())))
    missing = [name for name in best.columns() if name not in present]
    if len(missing) == len(best.columns()):
        return ""
    return f" ({best.name} lacks the column {', '.join(missing)})"
