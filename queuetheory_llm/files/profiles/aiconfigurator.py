"""aiconfigurator operator tables: gemm_perf.parquet; milliseconds. Needs the ``parquet`` extra.

Format of ai-dynamo/aiconfigurator, systems/data: one row a matrix product (m x k) times (k x n), m = tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.files.profiles.selection import Gemm, Selection
from queuetheory_llm.files.profiles.table import MILLISECOND, Head, Samples, medians, parquet_file, repetition_note
from queuetheory_llm.model.profile import Profile

_COLUMNS = ("gemm_dtype", "m", "n", "k", "latency")


def is_gemm(head: Head) -> bool:
    """Whether a file is gemm_perf.parquet."""
    return head.parquet and set(_COLUMNS) <= set(head.columns)


def is_attention(head: Head) -> bool:
    """Whether a file is one of the attention tables."""
    return head.parquet and {"isl", "num_heads", "num_key_value_heads", "latency"} <= set(head.columns)


def read(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """Sum over the GEMMs of one layer, times --layers, by tokens.

    Raises
    ------
    InvalidInput
        If --layers or --gemm is missing, or a shape was not measured.
    """
    path = paths["aiconfigurator"][0]
    layers = selection.require_layers(path, "the table with --gemm")
    if not selection.gemms:
        raise InvalidInput(
            "--gemm: missing; the table is by shape: give --gemm N:K once for every matrix product of a layer "
            "(N columns out, K columns in, per tensor-parallel shard)",
            source=str(path),
        )
    table = parquet_file(path).read(columns=list(_COLUMNS))
    dtypes = table.column("gemm_dtype").to_pylist()
    dtype = selection.one_of("dtype", set(dtypes), path)
    shapes = zip(*(table.column(name).to_pylist() for name in ("n", "k", "m", "latency")), strict=True)
    curves: dict[Gemm, Samples] = {gemm: {} for gemm in selection.gemms}
    known: set[tuple[int, int]] = set()
    for kind, (n, k, m, latency) in zip(dtypes, shapes, strict=True):
        if kind != dtype:
            continue
        known.add((n, k))
        curve = curves.get(Gemm(n=n, k=k))
        if curve is not None:
            curve.setdefault(int(m), []).append(_time(latency, (n, k, m), path))
    _require_shapes(curves, known, path)
    by_shape = {gemm: medians(samples) for gemm, samples in curves.items()}
    common = sorted(set.intersection(*(set(curve) for curve in by_shape.values())))
    points = {m: layers * sum((by_shape[gemm][m] for gemm in selection.gemms), Fraction(0)) for m in common}
    listed = ", ".join(f"{gemm.n}:{gemm.k}" for gemm in selection.gemms)
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=str(path),
        format="aiconfigurator",
        includes=f"matrix products {listed} x {layers} layers; matrix products only",
        statistic="one value a shape",
        notes=(
            f"{dtype}; latencies are 64-bit floats, read as the shortest decimals that print them",
            "attention, norms, activations, embedding, output head and all-reduce are not included: "
            "the times are lower bounds of an iteration",
            *(note for samples in curves.values() for note in repetition_note(samples)),
        ),
    )


def _time(latency: object, shape: tuple[int, int, int], path: Path) -> Fraction:
    where = f"latency of (n, k, m) = {shape}"
    try:
        time = to_fraction(latency)  # type: ignore[arg-type]  # whatever the column holds; it refuses what is no number
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}", source=str(path)) from None
    if time <= 0:
        raise InvalidInput(f"{where}: {latency} is not a positive time; drop the row", source=str(path))
    return time * MILLISECOND


def _require_shapes(curves: Mapping[Gemm, Samples], known: set[tuple[int, int]], path: Path) -> None:
    faults = []
    for gemm, samples in curves.items():
        if samples:
            continue
        near = sorted(known, key=lambda shape: abs(shape[0] - gemm.n) / gemm.n + abs(shape[1] - gemm.k) / gemm.k)
        listed = ", ".join(f"{n}:{k}" for n, k in near[:4])
        faults.append(f"--gemm {gemm.n}:{gemm.k}: not in the table; the nearest shapes are {listed}")
    if faults:
        raise InvalidInput(faults, source=str(path))
