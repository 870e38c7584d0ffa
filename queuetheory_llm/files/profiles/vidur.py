"""Vidur operator profiles: mlp.csv (one layer, one tensor-parallel shard) and all_reduce.csv; milliseconds.

Format of microsoft/vidur, data/profiling/compute and data/profiling/network (Agrawal et al., Vidur, MLSys 2024).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.profiles.selection import Selection
from queuetheory_llm.files.profiles.table import (
    MILLISECOND,
    Head,
    Row,
    Samples,
    each_row,
    medians,
    read_head,
    repetition_note,
)
from queuetheory_llm.model.profile import Profile

_PER_LAYER = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
_ONCE = ("emb",)
_OPTIONAL = {"post_attention_layernorm", "emb"}  # a parallel block has one norm
_REDUCE = "time_stats.all_reduce.median"
_HALF_PRECISION = 2  # bytes a value
_REDUCES_A_LAYER = 2  # after the attention and after the MLP


def _column(operator: str) -> str:
    return f"time_stats.{operator}.median"


def is_mlp(head: Head) -> bool:
    """Whether a file is mlp.csv."""
    needed = {_column(name) for name in _PER_LAYER if name not in _OPTIONAL}
    return needed | {"num_tokens", "num_tensor_parallel_workers", "n_embd"} <= set(head.columns)


def is_all_reduce(head: Head) -> bool:
    """Whether a file is all_reduce.csv."""
    return {_REDUCE, "num_workers", "devices_per_node", "size"} <= set(head.columns)


def read(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """Sum of the operators' medians times the layers, embedding once, two all-reduces a layer.

    Raises
    ------
    InvalidInput
        If --layers is missing, --tp is not decided, or the all-reduce table does not fit.
    """
    path = paths["vidur-mlp"][0]
    layers = selection.require_layers(path, "mlp.csv")
    present = set(read_head(path).columns)
    per_layer = [name for name in _PER_LAYER if _column(name) in present]
    once = [name for name in _ONCE if _column(name) in present]
    by_degree: dict[int, Samples] = {}
    widths: set[int] = set()

    def take(row: Row) -> None:
        layer = sum((row.time(_column(name), MILLISECOND) for name in per_layer), Fraction(0))
        ends = sum((row.time(_column(name), MILLISECOND) for name in once), Fraction(0))
        degree = by_degree.setdefault(row.count("num_tensor_parallel_workers"), {})
        degree.setdefault(row.count("num_tokens"), []).append(layers * layer + ends)
        widths.add(row.count("n_embd"))

    each_row(path, take)
    tp = int(selection.one_of("tp", by_degree, path))
    if len(widths) > 1:
        raise InvalidInput("n_embd: several hidden sizes; give the file of one model", source=str(path))
    samples = by_degree[tp]
    points = medians(samples)
    notes = [
        f"tensor-parallel degree {tp}: times of one shard",
        *repetition_note(samples),
        "attention, final norm, output head, sampling and the CPU's share of an iteration are not in this profile",
        *_missing(per_layer),
    ]
    reduce_paths = paths.get("vidur-all-reduce", ())
    points, reduced, remarks = _with_all_reduce(points, reduce_paths, tp=tp, layers=layers, width=widths.pop())
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=", ".join(map(str, [path, *reduce_paths])),
        format="vidur",
        includes=f"{len(per_layer)} operators x {layers} layers{' + embedding' if once else ''}{reduced}; no attention",
        statistic="sum of the operators' medians; median over repeated rows",
        notes=(*notes, *remarks),
    )


def _missing(per_layer: Sequence[str]) -> list[str]:
    absent = [name for name in _PER_LAYER if name not in per_layer]
    return [f"the file has no {name}; nothing is counted for it" for name in absent]


def _with_all_reduce(
    points: dict[int, Fraction], paths: Sequence[Path], *, tp: int, layers: int, width: int
) -> tuple[dict[int, Fraction], str, list[str]]:
    if not paths:
        lacking = f"tensor-parallel degree {tp} without all-reduce: the times are too short; give all_reduce.csv too"
        return points, "", [lacking] if tp > 1 else []
    if tp == 1:
        raise InvalidInput("one shard (--tp 1) has no all-reduce; leave the file out", source=str(paths[0]))
    sizes = _all_reduce(paths[0], tp)
    bytes_of = {count: _HALF_PRECISION * width * count for count in points}
    beyond = [count for count, size in bytes_of.items() if size > max(sizes)]
    if beyond:
        raise InvalidInput(
            f"size: ends at {max(sizes)} bytes, below the {bytes_of[beyond[0]]} bytes of {beyond[0]} tokens "
            f"({_HALF_PRECISION} x {width} x tokens); give a longer table",
            source=str(paths[0]),
        )
    between = sum(size not in sizes for size in bytes_of.values())
    whole = {
        count: time + _REDUCES_A_LAYER * layers * _interpolated(sizes, bytes_of[count])
        for count, time in points.items()
    }
    note = (
        f"{_REDUCES_A_LAYER} all-reduces a layer of {_HALF_PRECISION} x {width} x tokens bytes (half precision), among "
        f"{tp} devices of one node; {between} of {len(points)} lie between measured sizes and are interpolated linearly"
    )
    return whole, f" + {_REDUCES_A_LAYER} all-reduces x {layers} layers", [note]


def _all_reduce(path: Path, tp: int) -> dict[int, Fraction]:
    """Median seconds by size in bytes, among ``tp`` devices that fill one node."""
    samples: Samples = {}
    degrees: set[int] = set()

    def take(row: Row) -> None:
        workers = row.count("num_workers")
        if workers != row.count("devices_per_node") or row.fields.get("collective", "all_reduce") != "all_reduce":
            return
        degrees.add(workers)
        if workers == tp:
            samples.setdefault(row.count("size"), []).append(row.time(_REDUCE, MILLISECOND))

    each_row(path, take)
    if not samples:
        known = ", ".join(map(str, sorted(degrees))) or "none"
        raise InvalidInput(
            f"num_workers: no all-reduce among {tp} devices of one node; the file holds {known}: choose with --tp",
            source=str(path),
        )
    return medians(samples)


def _interpolated(sizes: Mapping[int, Fraction], size: int) -> Fraction:
    """Linear between the measured sizes; below the smallest, the smallest one's time."""
    known = list(sizes)
    index = bisect_left(known, size)
    if known[index] == size or index == 0:
        return sizes[known[index]]
    low, high = known[index - 1], known[index]
    return sizes[low] + (sizes[high] - sizes[low]) * Fraction(size - low, high - low)
