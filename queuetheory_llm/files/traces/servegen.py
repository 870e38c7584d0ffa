"""ServeGen clients (Xiang et al. 2025): request rates by window, and the laws of the lengths beside them."""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.files.traces.format import Options, TraceFormat
from queuetheory_llm.files.traces.lines import Block
from queuetheory_llm.files.traces.numbers import read_count, read_number
from queuetheory_llm.model.lengths import Empirical, IndependentLengths, RequestLengths
from queuetheory_llm.model.trace import Trace

WINDOW = 600  # seconds
_FIELDS = 6
_LARGEST_DATASET = 1 << 28
_FIRST = re.compile(r"[\d.]+,[\d.]+,[\d.eE+-]*,[A-Za-z]*,[\d.eE+-]*,[\d.eE+-]*")


class ServeGen(TraceFormat):
    """``chunk-N-trace.csv``: window start (s), rate (requests/s), cv, pattern, two arguments; no header.

    The lengths are in ``chunk-N-dataset.json`` beside it.
    """

    name: ClassVar[str] = "ServeGen"
    header: ClassVar[str] = "chunk-N-trace.csv without header: window start, rate, cv, pattern, two arguments"

    def recognises(self, first_line: str) -> bool:
        """See `TraceFormat.recognises`."""
        return _FIRST.fullmatch(first_line.strip()) is not None

    def read(self, first_line: str, stream: Iterable[Block], options: Options) -> Trace:  # noqa: ARG002 - no header
        """See `TraceFormat.read`."""
        windows = _windows(stream)
        total = sum(windows.values(), Fraction(0))
        if total == 0:
            raise InvalidInput("every window has rate 0; there is nothing to serve")
        convention = options.first_token or "engine"
        notes = _window_notes(windows)
        lengths = options.lengths
        if lengths is None:
            lengths, more = _sibling_lengths(options.source, windows, convention)
            notes += more
        return Trace(
            lengths=lengths,
            arrivals=None,
            tick=Fraction(1),
            source=options.source,
            format=self.name,
            first_token=convention if options.lengths is None else "as given",
            notes=tuple(notes),
            rate_given=total / len(windows),
        )


def _windows(stream: Iterable[Block]) -> dict[Fraction, Fraction]:
    """Window start in seconds -> requests per second, in order."""
    windows: dict[Fraction, Fraction] = {}
    last = Fraction(-1)
    for block in stream:
        for number, line in enumerate(block.lines, block.first):
            try:
                start, rate = _window(line.decode())
            except InvalidInput as error:
                raise InvalidInput(f"line {number}: {error}") from None
            if start <= last:
                raise InvalidInput(f"line {number}: window {start} s does not come after {last} s; sort the windows")
            windows[start] = rate
            last = start
    return windows


def _window(line: str) -> tuple[Fraction, Fraction]:
    fields = line.split(",")
    if len(fields) != _FIELDS:
        raise InvalidInput(f"has {len(fields)} fields, a window has {_FIELDS}; complete the row")
    start = read_number(fields[0], "window start")
    rate = Fraction(0) if fields[1].strip() == "" else read_number(fields[1], "rate")
    if start < 0 or rate < 0:
        raise InvalidInput("the window start and the rate must not be negative")
    return start, rate


def _window_notes(windows: Mapping[Fraction, Fraction]) -> list[str]:
    rates = list(windows.values())
    starts = list(windows)
    peak = max(rates)
    notes = [
        f"the rate is the mean over {len(rates)} windows of {WINDOW} s, {rates.count(Fraction(0))} of them empty; "
        f"the busiest has {float(peak):.6g} requests/s, and a system stable at the mean may be overloaded there"
    ]
    gaps = sum(after - before != WINDOW for before, after in pairwise(starts))
    if gaps:
        notes.append(f"{gaps} windows do not start {WINDOW} s after the one before; gaps are not counted in the mean")
    return notes


def _sibling_lengths(
    source: str, windows: Mapping[Fraction, Fraction], convention: str
) -> tuple[RequestLengths, list[str]]:
    path = Path(source)
    sibling = path.with_name(re.sub(r"-trace(?=\.csv$)", "-dataset", path.name)).with_suffix(".json")
    if not sibling.is_file():
        raise InvalidInput(
            f"the lengths should be in {sibling.name} beside it, which is missing; put it there, or give "
            "--prefill N --decode N"
        )
    datasets = _datasets(sibling)
    shares = _shares(sorted(datasets), windows)
    shift = 1 if convention == "engine" else 0
    prefill = _mixture({datasets[key].prefill: share for key, share in shares.items()}, 0)
    decode = _mixture({datasets[key].output: share for key, share in shares.items()}, shift)
    note = (
        f"lengths: {len(shares)} laws of {sibling.name}, averaged with the number of requests in their windows as "
        "weight; prefill and decode are independent"
    )
    return IndependentLengths(prefill, decode), [note]


@attrs.frozen(eq=False)
class _Dataset:
    prefill: _Law
    output: _Law


@attrs.frozen(eq=False)
class _Law:
    probabilities: Mapping[int, Fraction]


def _shares(starts: list[Fraction], windows: Mapping[Fraction, Fraction]) -> dict[Fraction, Fraction]:
    """Dataset start -> sum of the rates of the windows from it up to the next one; datasets without requests left out.

    Windows before the first dataset use the first.
    """
    shares = dict.fromkeys(starts, Fraction(0))
    for start, rate in windows.items():
        shares[starts[max(bisect_right(starts, start) - 1, 0)]] += rate
    return {start: share for start, share in shares.items() if share}


def _mixture(parts: Mapping[_Law, Fraction], shift: int) -> Empirical:
    weights: dict[int, Fraction] = {}
    for law, share in parts.items():
        total = sum(law.probabilities.values())
        for value, probability in law.probabilities.items():
            shifted = max(value - shift, 0)
            weights[shifted] = weights.get(shifted, Fraction(0)) + share * probability / total
    values = sorted(weights)
    return Empirical(values=values, weights=[weights[value] for value in values])


def _datasets(path: Path) -> dict[Fraction, _Dataset]:
    try:
        if path.stat().st_size > _LARGEST_DATASET:
            raise InvalidInput(f"is larger than {_LARGEST_DATASET >> 20} MiB, no ServeGen dataset")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not content:
            raise InvalidInput("is no object of windows")
        return {read_number(str(key), "window start"): _dataset(key, value) for key, value in content.items()}
    except InvalidInput as error:
        raise InvalidInput(f"dataset {path.name}: {error}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidInput(f"dataset {path.name}: cannot be read: {error}") from None
    except RecursionError:
        raise InvalidInput(f"dataset {path.name}: cannot be read: nested too deeply") from None
    except ValueError:
        raise InvalidInput(f"dataset {path.name}: holds a number of thousands of digits; round it") from None


def _dataset(key: str, value: Any) -> _Dataset:
    if not isinstance(value, dict) or not {"input_tokens", "output_tokens"} <= set(value):
        raise InvalidInput(f"window {key}: needs input_tokens and output_tokens")
    return _Dataset(*(_law(f"window {key}: {name}", value[name]) for name in ("input_tokens", "output_tokens")))


def _law(where: str, text: Any) -> _Law:
    """A law written as the text of a Python dictionary {value: probability}."""
    try:
        law = ast.literal_eval(text) if isinstance(text, str) else text
        if not isinstance(law, dict):
            raise ValueError("no dictionary")
        read = {read_count(value, where): to_fraction(probability) for value, probability in law.items()}
    except InvalidInput as error:
        raise InvalidInput(str(error)) from None
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise InvalidInput(f"{where}: is no dictionary of probabilities: {error}") from None
    off = abs(sum(read.values(), Fraction(0)) - 1)
    if not read or min(read.values()) < 0 or off > Fraction(1, 1000):
        raise InvalidInput(f"{where}: the probabilities must be non-negative and sum to 1")
    return _Law(read)
