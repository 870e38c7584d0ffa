import csv
import json
from pathlib import Path

import attrs
import numpy as np
import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.simulation import judge, replicas
from queuetheory_llm.verdict import Basis, Judgement, Verdict

ENGINE = """
[engine]
b_max = 8
k_max = 4
[engine.batch_time]
law = "staircase"
c = "10 ms"
a = "10 ms"
b0 = 8
"""
WORKLOAD = """
[workload]
arrivals = "poisson"
rate = 10
prefill = 5
decode = 3
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text(ENGINE + WORKLOAD)
    return str(path)


@pytest.fixture
def bare(tmp_path):
    path = tmp_path / "bare.toml"
    path.write_text(ENGINE)
    return str(path)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival,prefill,decode\n0,5,3\n0.005,5,0\n0.02,9,1\n")
    return str(path)


def run(capsys, *arguments):
    code = answer(["simulate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def refused(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_one_run_is_one_flat_object(model, capsys):
    found = report(capsys, model, "--horizon", "60", "--seed", "3")
    assert found["schema"] == "qt-llm/simulate/1"
    assert found["horizon"] == 60
    assert found["seed"] == 3
    assert found["first_token"] == "paper"
    requests = found["requests"]
    assert requests["arrived"] == requests["finished"] + requests["present"] > 400
    drift = found["measured"]["token_drift"]
    assert drift["low"] <= drift["mean"] <= drift["high"]
    assert found["verdict"] == "STABLE"
    assert found["basis"] in ("theorem", "simulation")
    assert set(found["latency"]) == {"queueing", "ttft", "tpot", "max_tbt", "e2e"}
    for each in found["latency"].values():
        assert each["p50"] <= each["p90"] <= each["p95"] <= each["p99"]
        assert each["mean"] > 0
        steady = each["steady"]
        assert steady["low99"] <= steady["low95"] <= steady["mean"] <= steady["high95"] <= steady["high99"]
        assert steady["method"] == found["measured"]["method"] == "batch means"
    assert found["replications"] == 1
    assert found["contradiction"] is None
    assert found["violations"] is None
    assert report(capsys, model, "--horizon", "60", "--seed", "3") == found
    assert report(capsys, model, "--horizon", "60", "--seed", "4")["latency"] != found["latency"]


@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_figure_is_written_and_said(suffix, magic, model, tmp_path, capsys):
    path = tmp_path / f"run.{suffix}"
    code, out, _ = run(capsys, model, "--horizon", "20", "-o", str(path))
    assert code == 0
    assert out.endswith(f"wrote {path}\n")
    assert path.read_bytes().startswith(magic)
    report(capsys, model, "--horizon", "20", "-o", str(path))  # --json prints one object alone


def test_several_schedulers_are_a_list(model, capsys):
    found = report(capsys, model, "--horizon", "20", "--scheduler", "orca", "--scheduler", "sarathi+target=4")
    assert [each["scheduler"] for each in found["results"]] == ["orca", "sarathi+target=4"]


def test_the_text_answer_names_verdict_drift_and_latency(model, capsys):
    code, out, err = run(capsys, model, "--horizon", "60")
    assert code == 0
    assert err == ""
    for word in ("STABLE", "measured", "ttft", "tpot", "e2e", "p99"):
        assert word in out


def test_the_default_horizon_is_said(model, capsys):
    _, _, err = run(capsys, model)
    assert err.startswith("note: horizon: ")


def test_a_trace_runs_until_every_request_is_finished(bare, trace, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    found = report(capsys, bare, "--trace", trace, "--batch-log", str(log), "--latency", "--scheduler", "sarathi")
    assert found["requests"] == {"arrived": 3, "finished": 3, "present": 0}
    assert found["first_token"] == "engine"
    assert found["horizon"] is None
    assert "finite trace" in found["reason"]
    assert found["latency"]["tpot"]["count"] == 2
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0] == {"start": 0.0, "seconds": 0.02, "tokens": 5, "prefill": [[0, 5]], "decode": []}
    assert lines[1] == {"start": 0.02, "seconds": 0.02, "tokens": 8, "prefill": [[1, 5], [2, 2]], "decode": [0]}
    assert found["batches"] == len(lines)
    stopped = report(capsys, bare, "--trace", trace, "--horizon", "0.02")
    assert stopped["requests"] == {"arrived": 2, "finished": 0, "present": 2}
    assert stopped["means_refused"]


def test_overload_has_percentiles_and_no_means(model, capsys):
    found = report(capsys, model, "--rate", "100", "--horizon", "60")
    assert found["verdict"] == "UNSTABLE"
    assert found["measured"]["verdict"] == "UNSTABLE"
    assert found["load"] > 1
    assert found["margin"] == pytest.approx(1 - found["load"])
    assert found["latency"]["e2e"]["mean"] is None
    assert found["latency"]["e2e"]["steady"] is None
    assert found["latency"]["e2e"]["p50"] > 0
    assert "UNSTABLE" in found["means_refused"]


def test_overload_asked_for_means_is_an_error_and_writes_nothing(model, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    err = refused(capsys, model, "--rate", "100", "--horizon", "60", "--latency", "--batch-log", str(log), "--json")
    assert "it is UNSTABLE" in err
    assert not log.exists()


@pytest.mark.parametrize("flag", ["--rate", "--horizon"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e400", "fast", "1/0"])
def test_rates_and_horizons_that_are_none(flag, value, model, capsys):
    assert flag in refused(capsys, model, f"{flag}={value}")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scheduler", "sarathy"], "did you mean sarathi?"),
        (["--seed", "-1"], "--seed: '-1' is no whole number"),
        (["--seed", "1.5"], "--seed: '1.5' is no whole number"),
        (["--first-token", "last"], "first-token"),
        (["--horizon", "1e11"], "64-bit"),
        (["--rate", "1e12", "--horizon", "10"], "requests would arrive"),
        (["--scheduler", "orca", "--scheduler", "sarathi", "--batch-log", "x.jsonl"], "one --scheduler"),
        (["--scheduler", "orca", "--scheduler", "sarathi", "-o", "x.svg"], "-o: one figure shows one run"),
        (["--scheduler", "orca", "--scheduler", "sarathi", "--series", "x.csv"], "--series: one series holds one run"),
        (["--replications", "2", "--series", "x.csv"], "leave out --replications"),
        (["--replications", "2", "--batch-log", "x.jsonl"], "leave out --replications"),
        (["--replications", "2", "-o", "x.svg"], "leave out --replications"),
        (["--replications", "0"], "--replications: 0 is below 1"),
        (["--replications", "nan"], "--replications: nan"),
        (["--trace", "no-such.csv", "--replications", "2"], "--replications: a trace is one run"),
        (["--horizon", "10", "--series", "no-such-folder/x.csv"], "no-such-folder"),
        (["-o", "x.jpg"], "x.jpg: has an unknown ending"),
        (["--horizon", "10", "-o", "no-such-folder/x.svg"], "no-such-folder"),
        (["--engines", "100000"], "--engines: 100000 is above 10000"),
        (["--engines", "2", "--dispatch", "best", "--horizon", "1"], "--dispatch: 'best' is not a dispatch rule"),
        (
            ["--engines", "2", "--batch-log", "x.jsonl", "--horizon", "1"],
            "--batch-log: one log holds the batches of one",
        ),
        (["--trace", "no-such.csv"], "no-such.csv"),
        (["--trace", "no-such.csv", "--rate", "1"], "--rate"),
        (["--trace", "no-such.csv", "--prefill", "1"], "--prefill: a trace has its own lengths"),
        (["--prefill", "1"], "--decode: missing"),
        (["--horizon", "10", "--batch-log", "b" * 300], "File name too long"),
        (["--horizon", "10", "--batch-log", "no-such-folder/x.jsonl"], "no-such-folder"),
    ],
)
def test_bad_options(arguments, complaint, model, capsys):
    assert complaint in refused(capsys, model, *arguments)


def test_a_model_without_a_rate_asks_for_one(bare, tmp_path, capsys):
    assert "workload" in refused(capsys, bare)
    lengths = tmp_path / "lengths.toml"
    lengths.write_text(ENGINE + "[workload]\nprefill = 5\ndecode = 3\n")
    assert "--rate R" in refused(capsys, str(lengths))
    assert report(capsys, str(lengths), "--rate", "400/187", "--horizon", "20")["requests"]["arrived"] > 10


def test_lengths_from_flags(bare, model, capsys):
    lengths = ("--prefill", "5", "--decode", "3")
    found = report(capsys, model, "--horizon", "60")
    assert report(capsys, bare, *lengths, "--rate", "10", "--horizon", "60") == found
    doubled = report(capsys, model, "--prefill", "10", "--decode", "6", "--horizon", "60")
    assert doubled["load"] > 1.5 * found["load"]
    assert report(capsys, model, *lengths, "--horizon", "60") == found


def test_a_written_log_is_said(model, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    code, out, _ = run(capsys, model, "--horizon", "10", "--batch-log", str(log))
    assert code == 0
    assert f"wrote {log}" in out.splitlines()


def test_the_series_is_written_whole(model, tmp_path, capsys):
    path = tmp_path / "series.csv"
    code, out, _ = run(capsys, model, "--horizon", "40", "--series", str(path))
    assert code == 0
    assert f"wrote {path}" in out.splitlines()
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["seconds", "backlog", "waiting", "decoding", "batches", "busy"]
    assert len(rows) == 4001
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds[0] == 0
    assert seconds[-1] == 40
    assert seconds == sorted(seconds)
    found = report(capsys, model, "--horizon", "40")
    assert int(rows[-1]["batches"]) in (found["batches"], found["batches"] - 1)
    half = (int(rows[-1]["backlog"]) - int(rows[2000]["backlog"])) / 20
    assert found["measured"]["token_drift"]["mean"] == pytest.approx(half)


def test_replications_are_independent_runs_with_intervals_over_them(model, capsys):
    found = report(capsys, model, "--horizon", "600", "--replications", "4")
    assert found["replications"] == 4
    assert found["requests"]["arrived"] == pytest.approx(4 * 6000, abs=4 * 24_000**0.5)
    assert found["measured"]["verdict"] == "STABLE"
    assert found["measured"]["method"] == found["latency"]["e2e"]["steady"]["method"] == "replications"
    assert report(capsys, model, "--horizon", "600", "--replications", "4") == found
    short = report(capsys, model, "--horizon", "60", "--replications", "4", "--seed", "1")
    assert short["latency"]["e2e"]["mean"] != found["latency"]["e2e"]["mean"]
    assert (short["measured"]["verdict"] == "STABLE") == (short["latency"]["e2e"]["steady"] is not None)


def test_a_sound_run_passes_its_check(model, capsys):
    code, out, err = run(capsys, model, "--horizon", "20", "--check", "--scheduler", "sarathi")
    assert code == 0
    assert err == ""
    assert "Little's law" in out
    assert "full batches" in out
    assert "full batches" not in run(capsys, model, "--horizon", "20", "--check", "--scheduler", "vllm-vanilla")[1]
    assert report(capsys, model, "--horizon", "20", "--check", "--replications", "2")["violations"] == []


def test_a_broken_run_fails_its_check(model, monkeypatch, capsys):
    """A runner that loses one batch of its log."""
    real = replicas.run

    def lossy(*arguments, **options):
        done = real(*arguments, **options)
        log, kept = done.log, np.arange(1, done.batches)
        shorter = type(log).of(log.starts[kept], log.durations[kept], [log[index] for index in kept])
        return attrs.evolve(done, log=shorter)

    monkeypatch.setattr(replicas, "run", lossy)
    code, out, err = run(capsys, model, "--horizon", "20", "--check")
    assert code == 1
    assert err.startswith("warning: sarathi: CHECK FAILED: ")
    assert "BROKEN" in out
    code, out, _ = run(capsys, model, "--horizon", "20", "--check", "--json")
    assert code == 1
    assert json.loads(out)["violations"]


def test_theory_against_the_run_is_said_loudly(model, monkeypatch, capsys):
    """A run of a system far above capacity, judged as if the theorem called it stable."""
    stable = Judgement(verdict=Verdict.STABLE, basis=Basis.THEOREM, reason="a theorem for the test")
    monkeypatch.setattr(judge, "_theory", lambda *_: stable)
    code, out, err = run(capsys, model, "--rate", "100", "--horizon", "60")
    assert code == 0
    assert err.startswith("warning: sarathi: CONTRADICTION: theory says STABLE")
    assert "CONTRADICTION" in out
    assert "no means: " in out
    found = report(capsys, model, "--rate", "100", "--horizon", "60")
    assert "the run shows UNSTABLE" in found["contradiction"]
    assert found["latency"]["e2e"]["mean"] is None


def test_a_prompt_that_never_fits_names_its_row(bare, trace, capsys):
    err = refused(capsys, bare, "--trace", trace, "--scheduler", "vllm-vanilla")
    assert f"{trace}: request 2: prompt of 9 tokens" in err
    assert "vllm-vanilla+chunk" in err


def test_an_unsorted_trace_is_sorted_and_said_or_refused(bare, tmp_path, capsys):
    path = tmp_path / "unsorted.csv"
    path.write_text("arrival,prefill,decode\n1,5,3\n0,5,3\n")
    assert any("sort" in note for note in report(capsys, bare, "--trace", str(path))["notes"])
    assert str(path) in refused(capsys, bare, "--trace", str(path), "--strict")


def test_slotted_and_deterministic_models_run(tmp_path, capsys):
    slotted = tmp_path / "slotted.toml"
    slotted.write_text(
        '[engine]\nb_max = 2\n[engine.batch_time]\nlaw = "table"\ntokens = [2]\nseconds = [1]\n'
        '[workload]\narrivals = "slotted"\nslot = "1 s"\nper_slot = { law = "bernoulli", p = 0.5 }\n'
        "prefill = 1\ndecode = 1\n"
    )
    found = report(capsys, str(slotted), "--horizon", "2000")
    assert abs(found["requests"]["arrived"] - 1000) < 4 * 500**0.5
    regular = tmp_path / "regular.toml"
    regular.write_text(
        ENGINE + '[workload]\narrivals = "deterministic"\ninterval = "100 ms"\nprefill = 5\ndecode = 3\n'
    )
    found = report(capsys, str(regular), "--horizon", "10")
    assert found["requests"]["arrived"] == 100
    assert found["measured"]["verdict"] == "STABLE"


def test_several_engines_and_adaptive_rules(capsys, model):
    found = report(capsys, model, "--engines", "2", "--dispatch", "round-robin", "--horizon", "30")
    assert found["load"] == pytest.approx(report(capsys, model, "--horizon", "30")["load"] / 2)
    assert report(capsys, model, "--scheduler", "max-weight", "--horizon", "20")["scheduler"] == "max-weight"


def test_no_file_is_written_over_one_that_is_read_or_written(capsys, model, tmp_path):
    before = Path(model).read_text()
    assert "--series: " in refused(capsys, model, "--horizon", "5", "--series", model)
    assert Path(model).read_text() == before
    table = tmp_path / "t.csv"
    table.write_text("arrival,prefill,decode\n0,5,5\n1,5,5\n")
    assert "is the file of --trace" in refused(capsys, model, "--trace", str(table), "--batch-log", str(table))
    both = str(tmp_path / "x.csv")
    assert "is the file of --batch-log" in refused(capsys, model, "--batch-log", both, "--series", both)
