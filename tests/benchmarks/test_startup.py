"""Whole processes from start to exit, as multiples of a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
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
