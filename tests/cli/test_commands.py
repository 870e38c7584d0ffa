"""What all commands have in common: words, defaults, places for their files."""

from __future__ import annotations

import json

import pytest

from queuetheory_llm.cli.main import answer


def run(capsys, *arguments):
    code = answer(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def words(text):
    """The text of a help screen without its boxes and line ends."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("region", "sarathi, vllm-vanilla, fastertransformer"),
        ("capacity", "sarathi"),
        ("simulate", "sarathi"),
        ("markov", "sarathi"),
        ("classify", "all"),
    ],
)
def test_help_names_the_default_schedulers(capsys, command, default):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"may be repeated. Default: {default}." in words(out)


@pytest.mark.parametrize("command", ["region", "capacity", "simulate"])
def test_the_workload_flags_are_the_same(capsys, command):
    _, out, _ = run(capsys, command, "--help")
    for flag in ("--trace", "--prefill", "--decode", "--rate"):
        assert flag in out
    assert "Take the requests from this trace, in place of the model's workload." in words(out)


@pytest.mark.parametrize("command", ["region", "capacity"])
def test_a_written_figure_is_said(capsys, tmp_path, command):
    path = tmp_path / "figure.svg"
    code, out, _ = run(capsys, command, "-o", str(path))
    assert code == 0
    assert f"wrote {path}" in out.splitlines()
    assert path.stat().st_size
    path.unlink()
    code, out, _ = run(capsys, command, "-o", str(path), "--json")
    assert json.loads(out)["schema"] == f"qt-llm/{command}/1"


@pytest.mark.parametrize("command", ["region", "capacity"])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("absent/f.svg", "create it first"),
        ("folder.svg", "is a directory"),
        ("f.jpg", "has an unknown ending; end the name in .svg, .png or .pdf"),
        ("f" * 300 + ".svg", "File name too long"),
    ],
)
def test_a_place_for_a_figure_is_checked_before_the_work(capsys, tmp_path, monkeypatch, command, name, what):
    (tmp_path / "folder.svg").mkdir()
    monkeypatch.setattr(f"queuetheory_llm.cli.{command}.read_question", lambda *_, **__: pytest.fail("began to work"))
    assert what in refused(capsys, command, "-o", str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_capacity_judges_a_rate(capsys):
    code, out, _ = run(capsys, "capacity", "--rate", "5")
    assert code == 0
    assert "sarathi: STABLE" in out
    code, out, _ = run(capsys, "capacity", "--rate", "50")
    assert "sarathi: UNSTABLE" in out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--dispatch", "foo"], "--dispatch: 'foo' is not a dispatch rule; known: random, round-robin, token-queue"),
        (["--dispatch="], "--dispatch: '' is not a dispatch rule"),
        (["--dispatch=", "--engines", "2"], "--dispatch: '' is not a dispatch rule"),
        (["--dispatch", "random"], "there is one engine only"),
        (["--split", "1"], "there is one engine only"),
        (["--split="], "there is one engine only"),
        (["--engines", "10001"], "--engines: 10001 is above 10000"),
        (["--engines", "1e9"], "--engines: 1000000000 is above 10000"),
        (["--engines", "2.5"], "--engines: 2.5 is not a whole number"),
        (["--rate", "0"], "--rate: 0 is not positive"),
    ],
)
def test_capacity_flags(capsys, arguments, what):
    assert what in refused(capsys, "capacity", *arguments)


@pytest.mark.parametrize("command", ["region", "capacity", "simulate", "markov", "sweep"])
def test_help_says_what_a_flag_takes(capsys, command):
    answer([command, "--help"])
    out = capsys.readouterr().out
    assert "--scheduler NAME" in out
    for flag in ("--engines", "--seed", "--seeds", "--rate", "--horizon", "--trace", "--width"):
        assert f"{flag} STR" not in out
