"""Every command and every line of Python in the README runs, in the order a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

import queuetheory_llm as qt
from queuetheory_llm.verdict import Verdict

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_shell_commands_run(tmp_path: Path) -> None:
    """All but the two make targets, which .ci/run and its reader run, with this interpreter as .venv."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    program = tmp_path / ".venv/bin/qt-llm"
    program.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from queuetheory_llm.cli.main import run; run()' \"$@\"\n"
    )
    program.chmod(0o755)
    script = "\n".join(block for block in blocks("sh") if not block.startswith("make"))
    assert script.count("\nqt-llm ") >= 9
    environment = {**os.environ, "PYTHONPATH": str(README.parent)}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "13.871" in done.stdout
    assert "10.497" in done.stdout
    assert "1.593755" in done.stdout
    assert "agents.json: accepted" in done.stdout
    figures = ("engine.svg", "fitted.svg", "law.svg", "drift.svg", "agents.svg", "sawtooth.svg", "crowd.svg")
    for name in (*figures, "fitted.toml", "batches.jsonl", "chain.prism", "sweep.jsonl", "sweep.csv"):
        assert (tmp_path / "scratch" / name).stat().st_size > 0


def test_make_targets_exist() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)$", "\n".join(blocks("sh")), flags=re.M)
    assert targets == ["region", "test"]
    assert all(re.search(rf"^{target}:", makefile, flags=re.M) for target in targets)


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), {})
    assert "290" in README.read_text(encoding="utf-8")
    out = capsys.readouterr().out
    assert "V = " in out
    assert "1.3006450" in out  # the exact chain
    assert "GROWING 3/2" in out


def test_what_is_said_of_two_routes_in_opposite_order() -> None:
    """Both loads 0.9; fourfold, by 153/37; proved below 0.62 times the rates, and under back-pressure at them."""
    text = " ".join(README.read_text(encoding="utf-8").split())
    said = (
        "both loads are 0.9",
        "grows fourfold each time, by 153/37",
        "Below 0.62 times these rates it is proved stable",
    )
    assert all(each in text for each in said)
    network = qt.load_network("rybko-stolyar-llm")
    found = qt.verify_stability(network, max_scale=True)
    assert found.traffic.loads == (Fraction(9, 10),) * 2
    path = qt.growing_path(network.fluid_model)
    assert path is not None
    assert path.factor == Fraction(153, 37)
    assert found.to_dict()["max_scale"]["certified"] == pytest.approx(0.6209, abs=1e-4)
    assert qt.verify_stability(network, policy="back-pressure").judgement.verdict is Verdict.STABLE


def test_every_command_of_the_program_is_in_the_table() -> None:
    from queuetheory_llm.cli.main import COMMANDS

    text = README.read_text(encoding="utf-8")
    assert all(f"| `qt-llm {name}` |" in text for name in COMMANDS)
