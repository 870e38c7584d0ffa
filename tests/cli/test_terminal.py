"""What a certificate, a model or a flag brings to the terminal is shown and never obeyed."""

from __future__ import annotations

import json
from pathlib import Path

import forging
import pytest

from queuetheory_llm.certificates.certificate import certify
from queuetheory_llm.cli.main import answer
from queuetheory_llm.cli.output import print_json, print_table
from queuetheory_llm.cli.terminal import printable
from queuetheory_llm.files.certificates import write_certificate

CLEAR = "\x1b[2J"
HOSTILE = f"a{CLEAR}\x9b31m\u202eb\x07"
SHOWN = r"a\x1b[2J\x9b31m\u202eb\x07"


def test_control_characters_are_shown() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("rho = 1/2: größer, λ\n") == "rho = 1/2: größer, λ\n"


def test_tables_show_what_is_in_their_cells_and_heads(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([HOSTILE, "[bold]x"], [["[red]1", HOSTILE]])
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 2
    assert "[bold]x" in out
    assert "[red]1" in out


def test_json_stays_json_with_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("check", {"text": HOSTILE})
    out = capsys.readouterr().out
    assert json.loads(out)["text"] == HOSTILE
    assert not set(HOSTILE) & set(out) - set(printable(HOSTILE))


@pytest.mark.parametrize("place", ["statement", "kind", "digest"])
def test_what_a_certificate_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    kind, model, proof = forging.examples()["virtual-station"]
    file = tmp_path / "proof.json"
    write_certificate(file, certify(kind, model, proof))
    file.write_text(json.dumps({**json.loads(file.read_text()), place: HOSTILE}))
    assert answer(["check", str(file)]) == 1
    out, err = capsys.readouterr()
    assert "rejected" in err
    assert "\x1b" not in out + err


def test_what_a_flag_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["fluid", "rybko-stolyar", "--start", f"{CLEAR}=x"]) == 2
    assert answer(["network", "rybko-stolyar", f"--{CLEAR}"]) == 2
    assert answer(["network", f"no{CLEAR}.toml"]) == 2
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert r"\x1b" in err
