"""The console script as a process: full disks, readers that leave, error lines of bounded length."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from queuetheory_llm.cli import main
from queuetheory_llm.cli.main import answer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-c", "from queuetheory_llm.cli.main import run; run()"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
QUESTIONS = [["models", "--json"], ["models"], ["models", "vllm-default"], ["capacity"], ["--help"]]

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@full
@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_a_full_disk_is_one_error_line(question):
    with Path("/dev/full").open("w") as out:
        done = subprocess.run(
            [*PROGRAM, *question], stdout=out, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
        )
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if not line.startswith("note: ")] == [
        "error: stdout: No space left on device; write to another place"
    ]


@pytest.mark.parametrize("question", QUESTIONS[:-1], ids=" ".join)
def test_a_reader_that_leaves_is_no_error(question):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*PROGRAM, *question], stdout=writing, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
    )
    os.close(writing)
    assert done.returncode == 141
    assert [line for line in done.stderr.splitlines() if not line.startswith("note: ")] == []


def test_a_closed_stdout_is_one_error_line():
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, "models"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: stdout: is closed; open it, or send it to /dev/null\n"


@pytest.mark.parametrize("value", ["9" * 100_000, "x" * 100_000, "x y " * 30_000])
@pytest.mark.parametrize("flag", ["--rate", "--prefill", "--scheduler", "--trace", "-o"])
def test_an_echoed_value_is_cut(capsys, flag, value):
    assert answer(["region", f"{flag}={value}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 850


def test_a_closed_stderr_costs_the_notes_only():
    command = 'exec "$0" "$@" 2>&-'
    done = subprocess.run(
        ["bash", "-c", command, *PROGRAM, "simulate", "--rate", "5", "--horizon", "5", "--json"],
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "qt-llm/simulate/1"


@pytest.mark.parametrize(
    ("command", "advice"),
    [("markov", "give a lower --level"), ("simulate", "give a shorter --horizon"), ("fit", "lines")],
)
def test_too_little_memory_is_one_line_with_what_the_command_can_do(monkeypatch, capsys, command, advice):
    def fails(_):
        raise MemoryError("Unable to allocate 8 GiB.")

    monkeypatch.setattr(main, "answer", fails)
    monkeypatch.setattr(sys, "argv", ["qt-llm", command])
    with pytest.raises(SystemExit) as left:
        main.run()
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: memory: Unable to allocate 8 GiB; ")
    assert advice in err
    assert ("--horizon" in err) == (command == "simulate")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", main._LESS)
def test_the_flags_that_are_advised_are_those_of_the_command(capsys, command):
    assert answer([command, "--help"]) == 0
    assert set(re.findall(r"--\w+", main._LESS[command])) <= set(re.findall(r"--\w+", capsys.readouterr().out))
