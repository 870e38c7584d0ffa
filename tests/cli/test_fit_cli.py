"""The command ``qt-llm fit``: report, JSON, files written, errors."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.model.batch_time import Hinge, Staircase

COUNTS = ("layers", "tp", "context", "test", "b-max", "k-max")
GRID = (1, 2, 4, *range(8, 1025, 8))


@pytest.fixture
def stairs(tmp_path: Path) -> Path:
    law = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
    path = tmp_path / "stairs.csv"
    path.write_text("tokens,seconds\n" + "".join(f"{b},{float(law.seconds(b))}\n" for b in GRID))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = answer(["fit", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_report_starts_with_the_largest_error(capsys, stairs):
    code, out, err = run(capsys, stairs)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("max relative error 0.00 % at ")
    assert lines[1].split() == ["R^2", "1"]
    assert "staircase: c = 11.28 ms, a = 35.47 ms, b0 = 128" in lines[2]
    assert "tile steps: 7" in out
    assert "note: c and the times of a table are rounded" in err


def test_json_is_one_object(capsys, stairs):
    code, out, err = run(capsys, stairs, "--json", "--k-max", 32)
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert content["schema"] == "qt-llm/fit/1"
    assert content["chosen"] == "staircase"
    assert (content["b_max"], content["k_max"], content["model_file"]) == (1024, 32, None)
    assert content["points"] == len(GRID)
    keys = {"law", "c", "a", "b0", "max_relative_error", "at_tokens", "mean_relative_error", "r2"}
    assert all(set(candidate) == keys for candidate in content["candidates"])
    assert [step["after_tokens"] for step in content["tile_steps"]] == list(range(128, 1000, 128))


def test_model_file_and_figure(capsys, stairs, tmp_path):
    from queuetheory_llm.files.model_file import load_model

    model, figure = tmp_path / "model.toml", tmp_path / "fit.svg"
    code, out, _ = run(capsys, stairs, "-o", model, "-o", figure, "--k-max", 100)
    assert code == 0
    assert f"wrote {model}" in out
    system = load_model(str(model))
    assert system.engine.batch_time == Staircase(c="11.28 ms", a="35.47 ms", b0=128)
    assert (system.engine.b_max, system.engine.k_max) == (1024, 100)
    assert "max relative error 0.00 %" in system.source["fit"]
    assert str(stairs) in system.source["profile"]
    assert figure.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("law", ["affine", "hinge", "table"])
def test_every_law_can_be_written_and_read(capsys, stairs, tmp_path, law):
    from queuetheory_llm.files.model_file import load_model

    model = tmp_path / "model.toml"
    code, out, _ = run(capsys, stairs, "--law", law, "-o", model, "--json")
    assert (code, json.loads(out)["model_file"]) == (0, str(model))
    written = load_model(str(model)).engine.batch_time
    assert written.law == ("hinge" if law == "affine" else law)
    if law == "table":
        exact = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
        assert all(written.seconds(b) == exact.seconds(b) for b in GRID)


def test_region_accepts_the_model(capsys, stairs, tmp_path):
    model = tmp_path / "model.toml"
    run(capsys, stairs, "-o", model)
    assert answer(["region", str(model), "--json"]) == 0
    capacity = json.loads(capsys.readouterr().out)["capacity"]
    assert Fraction(capacity["exact"]) == 1024 / Staircase(c="11.28 ms", a="35.47 ms", b0=128).seconds(1024)


def test_budget_bounds_the_fit(capsys, stairs):
    content = json.loads(run(capsys, stairs, "--b-max", 500, "--json")[1])
    assert content["b_max"] == 500
    assert any("points above 504 tokens are left out, as the budget is 500" in note for note in content["notes"])
    assert any("b0 = 128 does not divide b_max = 500" in note for note in content["notes"])
    beyond = json.loads(run(capsys, stairs, "--b-max", 2048, "--json")[1])
    assert any("the law is extrapolated" in note for note in beyond["notes"])


def test_table_is_offered_beyond_ten_percent(capsys, tmp_path):
    law = Hinge(c="20 ms", a="0.1 ms", b0=0)
    rows = [f"{b},{float(law.seconds(b)) * (1.4 if 256 < b <= 300 else 1)}\n" for b in GRID]
    path = tmp_path / "bumpy.csv"
    path.write_text("tokens,seconds\n" + "".join(rows))
    code, out, err = run(capsys, path)
    assert code == 0
    assert "at the table's own points; the closest simpler law" in out.splitlines()[0]
    assert "the table is offered" in err
    assert "t is not monotone" in err


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--law", "cubic"], "cubic"),
        (["--layers", "2"], "--layers: does not apply to the plain CSV format; leave it out"),
        (["--gemm", "12"], "--gemm: '12' is not N:K"),
        (["--gemm", "0:4"], "--gemm: '0:4' is not N:K"),
        (["-o", "model.txt"], "model.txt: has an unknown ending; end the name in .toml, .svg, .png or .pdf"),
        (["-o", "a.toml", "-o", "b.toml"], "-o: more than one .toml"),
        (["--b-max", "0"], "--b-max: 0 is below 1"),
        (["--k-max", "0"], "--k-max: 0 is below 1"),
        *((["--" + flag, "2.9"], f"--{flag}: 2.9 is not a whole number") for flag in COUNTS),
        *((["--" + flag, "0"], f"--{flag}: 0 is below 1") for flag in COUNTS if flag != "context"),
        (["--context", "-1"], "--context: -1 is below 0"),
        (["--layers", "many"], "--layers: 'many' is not a number"),
        (["--law", "table", "--b-max", "4096"], "b_max: 4096 is beyond the last measured batch"),
        (["--all-reduce", "absent.csv"], "absent.csv: cannot be read"),
    ],
)
def test_bad_flags(capsys, stairs, tmp_path, monkeypatch, arguments, fault):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, stairs, *arguments)
    assert code == 2
    assert out == ""
    assert fault in err
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert [path.name for path in tmp_path.iterdir()] == ["stairs.csv"]


def test_no_profile(capsys):
    code, _, err = run(capsys)
    assert code == 2
    assert err.startswith("error: PROFILE: missing")


@pytest.mark.parametrize("bad", ["absent/model.svg", "folder.svg", "f" * 300 + ".svg", "model.txt"])
def test_every_output_is_checked_before_the_first_is_written(capsys, stairs, tmp_path, bad):
    (tmp_path / "folder.svg").mkdir()
    code, out, err = run(capsys, stairs, "-o", tmp_path / "ok.toml", "-o", tmp_path / bad)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"stairs.csv", "folder.svg"}
