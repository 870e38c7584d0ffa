"""`qt-llm check` and the certificates that other commands write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import forging
import pytest

from queuetheory_llm.certificates.certificate import certify
from queuetheory_llm.cli.main import answer
from queuetheory_llm.files import packaged
from queuetheory_llm.files.certificates import read_certificate, write_certificate

ENGINE = "codellama-34b-a100"


def words(*arguments: str | Path) -> int:
    return answer([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("command", "kind", "verdict"),
    [
        (["region", ENGINE], "hull-inside", "UNDECIDED"),
        (["region", ENGINE, "--rate", "30"], "hull-outside", "UNSTABLE"),
        (["capacity", ENGINE, "--rate", "12"], "load", "STABLE"),
        (["capacity", ENGINE, "--rate", "14"], "load", "UNSTABLE"),
        (["capacity", f"{ENGINE}-k100", "--rate", "0.5"], "drift", "STABLE"),
        (["classify", "--scheduler", "vllm-vanilla"], "scheduler-witness", "UNDECIDED"),
    ],
)
def test_what_a_command_writes_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], kind: str, verdict: str
) -> None:
    file = tmp_path / "proof.json"
    assert words(*command, "--certificate", file) == 0
    assert f"wrote {file}" in capsys.readouterr().out
    assert words("check", file, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "qt-llm/check/1"
    (found,) = said["certificates"]
    assert (found["kind"], found["verdict"], found["accepted"]) == (kind, verdict, True)
    assert words("check", file) == 0
    assert f"verdict: {verdict}" in capsys.readouterr().out


def test_nothing_is_written_where_nothing_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "proof.json"
    assert words("capacity", ENGINE, "--rate", "12", "--scheduler", "fastertransformer", "--certificate", file) == 2
    assert words("classify", "--scheduler", "sarathi", "--certificate", file) == 2
    assert words("capacity", ENGINE, "--engines", "2", "--certificate", file) == 2
    assert words("region", ENGINE, "--certificate", tmp_path / "missing" / "proof.json") == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
    assert not file.exists()


def test_the_model_must_be_that_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "proof.json"
    words("region", ENGINE, "--certificate", file)
    assert words("check", file, "--model", ENGINE) == 0
    assert words("check", file, "--model", f"{ENGINE}-b128") == 1
    assert "rejected: model.engine.b_max: is " in capsys.readouterr().err
    assert words("check", file, "--model", "rybko-stolyar") == 1
    kind, model, proof = forging.examples()["virtual-station"]
    write_certificate(file, certify(kind, model, proof))
    assert words("check", file, "--model", "rybko-stolyar") == 0
    capsys.readouterr()
    assert words("check", file, "--model", "lu-kumar") == 1
    assert "rejected: model." in capsys.readouterr().err
    assert words("check", file, "--model", ENGINE) == 1
    assert words("check", file, "--model", tmp_path / "no.toml") == 2


def network_file(place: Path, rate: str, more: str = "") -> Path:
    """Rybko-Stolyar at another rate, with more to it."""
    text = packaged.path("rybko-stolyar").read_text()
    assert "rate = 1.0" in text
    place.write_text(text.replace("rate = 1.0", f"rate = {rate}") + more)
    return place


def test_what_holds_under_every_policy_holds_under_the_priorities_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof, file = tmp_path / "proof.json", network_file(tmp_path / "slow.toml", "0.8")
    assert words("network", file, "--policy", "any", "--certificate", proof) == 0
    assert all(each["priority"] is None for each in read_certificate(proof)["model"]["stations"])
    assert words("check", proof, "--model", file) == 0
    capsys.readouterr()
    assert words("check", proof, "--model", "rybko-stolyar") == 1
    assert "rejected: model: the arrival rates are 4/5 times those of the model file" in capsys.readouterr().err
    kind, model, numbers = forging.examples()["by class"]
    write_certificate(proof, certify(kind, model, numbers))
    assert words("check", proof, "--model", network_file(tmp_path / "fast.toml", "1.2")) == 1
    assert "rejected: model.stations['s1'].priority[0]: is 'A1', not 'B2' as in" in capsys.readouterr().err


def test_other_rates_and_parts_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = tmp_path / "proof.json"
    assert words("network", "rybko-stolyar", "--scale", "1.25", "--certificate", proof) == 0
    assert words("check", proof, "--model", "rybko-stolyar") == 1
    assert "model: the arrival rates are 5/4 times those of the model file" in capsys.readouterr().err
    third = """
[[station]]
name = "s3"
[[class]]
name = "A3"
station = "s3"
service = { law = "exponential", mean = "0.1 s" }
[[route]]
from = "A2"
to = "A3"
"""
    file = network_file(tmp_path / "three.toml", "1.0", third)
    assert words("network", file, "--certificate", proof) == 0
    assert words("check", proof, "--model", file) == 0  # a virtual station is one of the whole
    kind, model, numbers = forging.examples()["virtual-station"]
    write_certificate(proof, certify(kind, model, numbers))
    assert words("check", proof, "--model", file) == 1
    assert "rejected: model: is s1 and s2 alone, a part of the network in the model file" in capsys.readouterr().err


def test_a_rejected_certificate_is_named_with_its_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, model, proof = forging.examples()["virtual-station"]
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write_certificate(good, certify(kind, model, proof))
    bad.write_text(good.read_text().replace('"6/5"', '"7/5"'))
    assert words("check", good, bad) == 1
    out, err = capsys.readouterr()
    assert f"{good}: accepted" in out
    assert err == f"error: {bad}: rejected: virtual-station: load: that of these classes is 6/5, not 7/5\n"
    assert words("check", bad, "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)["certificates"]
    assert found["accepted"] is False
    assert "6/5" in found["condition"]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "line 1, column 1: no JSON"),
        (b"{", "no JSON"),
        (b"[]", "is no JSON object"),
        (b"{}", 'schema: is not "qt-llm/certificate/1"'),
        (b'{"schema": "qt-llm/certificate/2"}', "schema"),
        (b'{"schema": 1, "schema": 2}', "'schema' is given twice"),
        (b'{"a": NaN}', "NaN is no exact number"),
        (b'{"a": -Infinity}', "-Infinity is no exact number"),
        (b'{"a": 0.5}', "0.5 is no exact number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
        (b"[" * 100_000, "nested thousands deep"),
        (b'{"a": ' * 100_000, "nested thousands deep"),
        (b"\xff", "UTF-8"),
        (b'{"a": "\\ud800"}', "UTF-8"),
        (b"\x00" * 10, "no JSON"),
    ],
)
def test_what_is_no_certificate_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, match: str
) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(content)
    assert words("check", file) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {file}: ")
    assert len(err.splitlines()) == 1
    assert match in err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(2**26 + 1)
    for path in (huge, tmp_path, tmp_path / "none.json", Path("/dev/null")):
        assert words("check", path) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {path}: ")
        assert len(err.splitlines()) == 1
    assert words("check") == 2


def test_a_certificate_is_read_as_it_was_written(tmp_path: Path) -> None:
    kind, model, proof = forging.examples()["fluid-cycle"]
    issued = certify(kind, model, proof)
    file = tmp_path / "proof.json"
    write_certificate(file, issued)
    table: dict[str, Any] = read_certificate(file)
    assert table == issued.to_dict()


def test_no_certificate_takes_the_place_of_the_answer(tmp_path: Path) -> None:
    """Stdout is a file that a name of its own leads to."""
    call = "import sys; from queuetheory_llm.cli.main import run; sys.argv = ['qt-llm', *sys.argv[1:]]; run()"
    for target in ("/dev/stdout", str(tmp_path / "answer.json")):
        with (tmp_path / "answer.json").open("wb") as answer_file:
            done = subprocess.run(
                [sys.executable, "-c", call, "network", "tandem", "--json", "--certificate", target],
                stdout=answer_file,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {target}: is where stdout goes")
        assert (tmp_path / "answer.json").read_bytes() == b""
