"""Whole processes from start to exit, as multiples of a bare interpreter."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

QT_LLM = "from queuetheory_llm.cli.main import run; run()"  # what the console script does, installed or not


@pytest.mark.benchmark(group="process: start to exit")
@pytest.mark.parametrize(
    ("code", "arguments", "makes"),
    [
        pytest.param("pass", [], None, id="bare interpreter"),
        pytest.param("import matplotlib.figure", [], None, id="bare interpreter with matplotlib"),
        pytest.param(QT_LLM, ["--help"], None, id="qt-llm --help"),
        pytest.param(QT_LLM, ["region"], None, id="qt-llm region"),
        pytest.param(QT_LLM, ["region", "-o", "x.svg"], "x.svg", id="qt-llm region -o x.svg"),
    ],
)
def test_process(
    benchmark: BenchmarkFixture, tmp_path: Path, code: str, arguments: list[str], makes: str | None
) -> None:
    command = [sys.executable, "-c", code, *arguments]
    benchmark.pedantic(
        lambda: subprocess.run(command, cwd=tmp_path, capture_output=True, check=True), rounds=5, warmup_rounds=1
    )
    assert makes is None or (tmp_path / makes).stat().st_size > 0


def process(code: str, arguments: list[str], cache: Path) -> tuple[float, float]:
    """CPU and wall seconds of one process, compiled code kept in ``cache``."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=True, env=environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


@pytest.mark.benchmark(group="process: start to exit")
def test_first_and_later_runs(benchmark: BenchmarkFixture, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The first `qt-llm simulate` of a machine compiles the kernel; later ones load it."""
    command = ["simulate", "--rate", "10", "--horizon", "60"]
    first = process(QT_LLM, command, tmp_path)
    assert any(tmp_path.rglob("*.nbc"))
    later = [benchmark.pedantic(process, args=(QT_LLM, command, tmp_path), rounds=1)]
    later += [process(QT_LLM, command, tmp_path) for _ in range(5)]
    bare = [process("pass", [], tmp_path) for _ in range(5)]
    loaded = [process("import numba, scipy.linalg", [], tmp_path) for _ in range(3)]
    cpu, wall = (min(column) for column in zip(*later, strict=True))
    figure(
        f"qt-llm simulate: first {first[0]:.1f} s of CPU time ({first[1]:.1f} s by the wall clock), 15 allowed; later "
        f"{cpu:.2f} s ({wall:.2f} s), 1.5 allowed; the bare interpreter {min(bare)[0]:.3f} s, "
        f"with numba and what it loads {min(loaded)[0]:.2f} s"
    )
    assert first[0] <= 15
    assert cpu <= 1.5
