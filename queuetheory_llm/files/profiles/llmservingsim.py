"""LLMServingSim layer profiles: v0 layers.csv (nanoseconds) and v1 dense.csv with per_sequence.csv (microseconds).

Formats of casys-kaist/LLMServingSim, profiler/v0/perf_models and profiler/perf (Cho et al., LLMServingSim, IISWC 2024).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.profiles.selection import Selection
from queuetheory_llm.files.profiles.table import (
    MICROSECOND,
    NANOSECOND,
    Head,
    Row,
    Samples,
    each_row,
    medians,
    read_head,
)
from queuetheory_llm.model.profile import Profile

_V0_LATENCY = "latency(ns)"
_V0_PER_LAYER = {
    "input_layernorm": 1, "q_proj": 1, "k_proj": 1, "v_proj": 1, "rope": 1, "attn": 1, "o_proj": 1,
    "post_layernorm": 1, "gate_proj": 1, "up_proj": 1, "act_fn": 1, "down_proj": 1,
}  # fmt: skip
_V0_ONCE = {"embedding": 1, "final_layernorm": 1, "lm_head": 1}
# v1 has one row for the norm before the attention and the one after it.
_V1_PER_LAYER = {
    "layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1,
    "down_proj": 1,
}  # fmt: skip
_V1_OPTIONAL = {"qk_norm"}  # only models that normalise queries and keys have it
_V1_ONCE = {"embedding": 1, "final_layernorm": 1}
_V1_HEAD = ("lm_head", "sampler")

Curves = dict[str, Samples]


def is_v0_layers(head: Head) -> bool:
    """Whether a file is v0 layers.csv."""
    return {"layer_name", "input", "kv_cache", "tp_size", _V0_LATENCY} <= set(head.columns)


def is_v1_dense(head: Head) -> bool:
    """Whether a file is v1 dense.csv."""
    return set(head.columns) == {"layer", "tokens", "time_us"}


def is_v1_per_sequence(head: Head) -> bool:
    """Whether a file is v1 per_sequence.csv."""
    return set(head.columns) == {"layer", "sequences", "time_us"}


def read_v0(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """Layers times --layers; embedding, final norm and output head once.

    Raises
    ------
    InvalidInput
        If --layers is missing or a layer is.
    """
    path = paths["llmservingsim-v0"][0]
    layers = selection.require_layers(path, "layers.csv")
    by_degree: dict[int, Curves] = {}
    cached: list[int] = []

    def take(row: Row) -> None:
        if row.count("kv_cache", least=0) > 0:
            cached.append(row.line)
            return
        curves = by_degree.setdefault(row.count("tp_size"), {})
        samples = curves.setdefault(row.text("layer_name"), {})
        samples.setdefault(row.count("input"), []).append(row.time(_V0_LATENCY, NANOSECOND))

    each_row(path, take)
    curves = by_degree[int(selection.one_of("tp", by_degree, path))]
    counts = {name: layers * often for name, often in _V0_PER_LAYER.items()} | _V0_ONCE
    medians_of = _whole_set(curves, counts, frozenset(), path)
    points, notes = _weighted_sum(medians_of, counts)
    last = max(points)
    notes += [
        "one call a point: single samples, with outliers",
        f"attn is the attention of one prompt of b tokens without earlier context "
        f"({_share(layers * medians_of['attn'][last], points[last])} of the time at {last} tokens); attention over "
        "cached tokens is not a law in tokens alone and is not included",
        f"lm_head is evaluated for all b tokens, as in decode; in a prefill only the last token of a prompt needs it, "
        f"so the time of one long prompt is overstated, by up to "
        f"{_share(medians_of['lm_head'][last], points[last])} at {last} tokens",
    ]
    if cached:
        notes.append(f"{len(cached)} rows with kv_cache above 0 are not used")
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=str(path),
        format="llmservingsim-v0",
        includes=f"{len(_V0_PER_LAYER)} operators x {layers} layers + embedding, final norm and output head once",
        statistic="single samples",
        notes=tuple(notes),
    )


def read_v1(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """Dense layers times --layers; embedding and final norm once, output head and sampler once by sequences.

    per_sequence.csv and meta.yaml are taken from where the profiler puts them, beside dense.csv and a folder above.

    Raises
    ------
    InvalidInput
        If --layers is missing or a layer is.
    """
    path = paths["llmservingsim-v1"][0]
    layers = selection.require_layers(path, "dense.csv")
    counts = {name: layers * often for name, often in _V1_PER_LAYER.items()} | _V1_ONCE
    curves = _whole_set(_read_curves(path, "tokens"), counts, _V1_OPTIONAL, path)
    points, notes = _weighted_sum(curves, {name: counts[name] for name in curves})
    head_path, points, remarks = _with_head(path, paths.get("llmservingsim-v1-per-sequence", ()), points)
    meta_path, settings = _settings(path)
    sources = [each for each in (path, head_path, meta_path) if each is not None]
    head = ", output head and sampler" if head_path else ""
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=", ".join(map(str, sources)),
        format="llmservingsim-v1",
        includes=f"dense operators x {layers} layers + embedding, final norm{head} once; no attention",
        statistic="as the profiler gives it, averaged over its iterations",
        notes=(
            *notes,
            "layernorm counts twice a layer: before the attention and before the MLP",
            *remarks,
            "attention over cached tokens is not a law in tokens alone and is not included",
            *settings,
        ),
    )


def _read_curves(path: Path, size: str) -> Curves:
    curves: Curves = {}

    def take(row: Row) -> None:
        samples = curves.setdefault(row.text("layer"), {})
        samples.setdefault(row.count(size), []).append(row.time("time_us", MICROSECOND))

    each_row(path, take)
    return curves


def _whole_set(
    curves: Curves, needed: Iterable[str], optional: frozenset[str] | set[str], path: Path
) -> dict[str, dict[int, Fraction]]:
    """Median of every layer; all that an iteration runs must be there, and nothing else."""
    faults = [
        f"layer: no rows of {name}; give the whole profile of a dense model"
        for name in needed
        if name not in curves and name not in optional
    ]
    faults += [
        f"layer: {name} is unknown, so how often it runs is too; drop its rows"
        for name in curves
        if name not in set(needed)
    ]
    if faults:
        raise InvalidInput(faults, source=str(path))
    return {name: medians(samples) for name, samples in curves.items()}


def _weighted_sum(
    curves: Mapping[str, Mapping[int, Fraction]], counts: Mapping[str, int]
) -> tuple[dict[int, Fraction], list[str]]:
    """Sum over layers at the batch sizes all of them have."""
    common = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    partial = sorted(set.union(*(set(curve) for curve in curves.values())) - set(common))
    points = {b: sum((often * curves[name][b] for name, often in counts.items()), Fraction(0)) for b in common}
    dropped = f"{len(partial)} token counts that not every layer has are dropped, the first {partial[:1]}"
    return points, [dropped] if partial else []


def _with_head(
    path: Path, given: Sequence[Path], points: dict[int, Fraction]
) -> tuple[Path | None, dict[int, Fraction], list[str]]:
    beside = path.with_name("per_sequence.csv")
    head_path = given[0] if given else beside if beside.is_file() else None
    if head_path is None:
        return None, points, ["output head and sampler are not included: give per_sequence.csv too"]
    if not is_v1_per_sequence(read_head(head_path)):
        raise InvalidInput("line 1: expected the columns layer,sequences,time_us; mend it", source=str(head_path))
    curves = _whole_set(_read_curves(head_path, "sequences"), _V1_HEAD, frozenset(), head_path)
    last = min(max(curve) for curve in curves.values())
    ends = {b: sum((_at_least(curve, min(b, last)) for curve in curves.values()), Fraction(0)) for b in points}
    whole = {b: time + ends[b] for b, time in points.items()}
    largest = max(points)
    extra = ends[largest] - sum((_at_least(curve, 1) for curve in curves.values()), Fraction(0))
    note = (
        f"{head_path.name}: output head and sampler run for min(b, {last}) sequences, one a token as in decode; "
        f"a batch of one prompt needs one, so its time is overstated, "
        f"by {_share(extra, whole[largest])} at {largest} tokens"
    )
    return head_path, whole, [note]


def _at_least(curve: Mapping[int, Fraction], size: int) -> Fraction:
    """The time at the next measured size."""
    sizes = list(curve)
    return curve[sizes[bisect_left(sizes, size)]]


def _settings(path: Path) -> tuple[Path | None, list[str]]:
    """What meta.yaml says of the engine, from its plain ``key: value`` lines."""
    for folder in (path.parent, path.parent.parent):
        meta = folder / "meta.yaml"
        if meta.is_file():
            return meta, _describe(meta)
    return None, ["no meta.yaml beside the profile: whether CUDA graphs were on is not known"]


def _describe(meta: Path) -> list[str]:
    text = meta.read_text(encoding="utf-8", errors="replace")
    wanted = ("gpu", "model", "vllm_version", "enforce_eager", "max_num_batched_tokens", "max_num_seqs")
    found = {}
    for key in wanted:
        match = re.search(rf"^\s*{key}:\s*(.+?)\s*$", text, re.MULTILINE)
        if match:
            found[key] = match[1].strip("'\"")
    listed = ", ".join(f"{key} {value}" for key, value in found.items())
    notes = [f"{meta.name}: {listed}"]
    if found.get("enforce_eager") == "true":
        notes.append("enforce_eager: no CUDA graphs, and only kernel time is measured: gaps on the CPU come on top")
    return notes


def _share(part: Fraction, whole: Fraction) -> str:
    return f"{float(part / whole):.1%}".replace("%", " %")
