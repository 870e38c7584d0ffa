"""``qt-llm sweep`` as a user runs it: answers, files, interruption, bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from queuetheory_llm.cli.main import answer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-c", "from queuetheory_llm.cli.main import run; run()"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
MODEL = """
[engine]
b_max = 8
[engine.batch_time]
law = "staircase"
c = "10 ms"
a = "10 ms"
b0 = 8
[workload]
arrivals = "poisson"
rate = 10
prefill = 5
decode = 3
"""
GRID = ("--grid", "workload.rate=10:60:25", "--horizon", "30", "--workers", "1")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.toml").write_text(MODEL)
    return "model.toml"


def run(capsys, *arguments):
    code = answer(["sweep", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "Traceback" not in err
    return err


def test_json_is_one_object_with_a_row_a_point(model, capsys):
    code, out, err = run(
        capsys, model, *GRID, "--scheduler", "sarathi", "--scheduler", "orca", "--seeds", "2", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "qt-llm/sweep/1"
    assert found["grid"] == {"workload.rate": [10, 35, 60]}
    assert found["points"] == found["finished"] == len(found["results"]) == 12
    verdicts = {(row["workload.rate"], row["verdict"]) for row in found["results"]}
    assert verdicts == {(10, "STABLE"), (35, "STABLE"), (60, "UNSTABLE")}  # F/(m_p + m_d) = 400/8 requests/s


def test_a_point_is_what_simulate_prints(model, capsys):
    _, out, _ = run(capsys, model, "--grid", "workload.rate=35", "--horizon", "30", "--workers", "1", "--json")
    (row,) = json.loads(out)["results"]
    answer(["simulate", model, "--rate", "35", "--horizon", "30", "--json"])
    single = json.loads(capsys.readouterr().out)
    assert row["latency.e2e.p95"] == single["latency"]["e2e"]["p95"]
    assert row["measured.token_drift.mean"] == single["measured"]["token_drift"]["mean"]
    assert row["verdict"] == single["verdict"]


def test_files_by_their_ending_and_the_table_on_stdout(model, capsys):
    code, out, err = run(capsys, model, *GRID, "-o", "r.csv", "-o", "f.svg", "--plot", "latency.e2e.p95")
    assert (code, err) == (0, "")
    assert out.endswith("wrote r.jsonl\nwrote r.csv\nwrote f.svg\n")
    with Path("r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["workload.rate"] for row in rows] == ["10", "35", "60"]
    assert "p95 of e2e" not in out
    assert b"<svg" in Path("f.svg").read_bytes()
    code, out, err = run(capsys, model, *GRID, "--out", "r.jsonl")
    assert err == "note: r.jsonl: goes on after 3 finished points\n"
    assert "UNSTABLE" in out


def test_several_engines_are_in_the_title_and_the_question(model, capsys):
    arguments = [model, *GRID, "--engines", "2", "--dispatch", "token-queue"]
    assert "2 engines (token-queue)" in " ".join(run(capsys, *arguments)[1].split())
    found = json.loads(run(capsys, *arguments, "--json")[1])
    assert (found["engines"], found["dispatch"]) == (2, "token-queue")
    assert {row["verdict"] for row in found["results"]} == {"STABLE"}  # 60 of 2 x 50 requests/s


def test_errors_at_points_are_counted(model, capsys):
    grid = ("--grid", "engine.b_max=4,8", "--horizon", "5", "--workers", "1", "--scheduler", "vllm-vanilla")
    code, out, err = run(capsys, model, *grid)
    assert code == 0
    assert err.startswith("note: 1 of 2 points are bad input, see the column error; the first: ")
    assert "error" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grid", "engine.b_maxx=1"], "did you mean b_max?"),
        (["--grid", "workload.rate=9:8:1"], "range is empty"),
        (["--grid", "workload.rate=8:9:0"], "step is not positive"),
        (["--grid", "workload.rate=8", "--grid", "workload.rate=9"], "given twice"),
        (["--grid", "workload.rate=1:1e6:0.1"], "9999991 points"),
        (["--workers", "0"], "--workers: 0"),
        (["--workers", "-1"], "--workers: -1"),
        (["--seeds", "none"], "--seeds: "),
        (["--horizon", "-1"], "--horizon: -1"),
        (["--horizon", "nan"], "--horizon: 'nan'"),
        (["--cluster", "spark"], "--cluster: 'spark'"),
        (["--cluster", "tcp://127.0.0.1:1", "--workers", "2"], "--workers: a Dask scheduler has its own"),
        (["--cluster", "ray", "--workers", "2"], "--workers: Ray has its own workers"),
        (["--engines", "0"], "--engines: 0"),
        (["--dispatch", "random"], "--dispatch: there is one engine only"),
        (["--engines", "2", "--dispatch", "nearest"], "'nearest' is not a dispatch rule"),
        (["-o", "x.txt"], ".jsonl, .csv, .svg, .png or .pdf"),
        (["-o", "no/x.csv"], "does not exist"),
        (["-o", "x.jsonl", "-o", "y.jsonl"], "more than one .jsonl"),
        (["-o", "x.svg", "--grid", "engine.b_max=8:30:1", "--grid", "workload.rate=1:40:1"], "23 lines"),
        (["--scheduler", "orcha"], "did you mean orca?"),
    ],
    ids=" ".join,
)
def test_bad_input_is_refused_and_leaves_nothing(arguments, words, model, capsys):
    assert words in refused(capsys, model, *arguments)
    assert [path.name for path in Path().iterdir()] == ["model.toml"]


def test_a_column_that_cannot_be_drawn_names_the_nearest_and_the_points_are_kept(model, capsys):
    said = refused(capsys, model, *GRID, "-o", "f.svg", "--plot", "latency.e2e.p955")
    assert "did you mean latency.e2e.p95?" in said
    assert sorted(path.name for path in Path().iterdir()) == ["f.jsonl", "model.toml"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_an_interrupted_sweep_goes_on_without_losing_or_repeating_a_point(how, model, capsys):
    """Ctrl-C and kill -9 of the real program, a torn line added where the kill may leave one."""
    question = [model, "--grid", "workload.rate=10:60:2", "--horizon", "2000", "--workers", "1"]
    with subprocess.Popen(
        [*PROGRAM, "sweep", *question, "-o", "s.jsonl"],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_listen,
    ) as process:
        while process.poll() is None and _lines("s.jsonl") < 4:
            time.sleep(0.01)
        os.killpg(process.pid, how)
        said = process.stderr.read()
    kept = _lines("s.jsonl") - 1
    assert 3 <= kept < 26
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert said == (
            f"note: interrupted: {kept} of 26 points are finished and are in s.jsonl; "
            "the same command goes on from there\n"
        )
    else:
        with Path("s.jsonl").open("a") as file:
            file.write('{"point": 25, "workl')
    assert run(capsys, *question, "-o", "s.jsonl")[2].startswith(
        f"note: s.jsonl: goes on after {kept} finished points\n"
    )
    run(capsys, *question, "-o", "whole.jsonl")
    assert Path("s.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def _listen():
    """A shell lets what it runs in the background ignore Ctrl-C; this program is at a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _lines(path):
    file = Path(path)
    return file.read_bytes().count(b"\n") if file.exists() else 0
