"""qt-llm network: the contract of its JSON, its errors, what a person reads."""

import json
import sys
from fractions import Fraction

import pytest

from queuetheory_llm.cli import terminal
from queuetheory_llm.cli.main import answer

TANDEM = """
[[station]]
name = "s1"
[[station]]
name = "s2"
[[class]]
name = "a"
station = "s1"
service = { law = "exponential", mean = "100 ms" }
[[class]]
name = "b"
station = "s2"
service = { law = "exponential", mean = "0.2 s" }
[[arrival]]
class = "a"
rate = 2
[[route]]
from = "a"
to = "b"
"""


def asked(capsys, *arguments):
    assert answer(["network", *arguments, "--json"]) == 0
    out, _ = capsys.readouterr()
    return json.loads(out)


def test_the_json_of_an_unstable_network(capsys):
    document = asked(capsys, "rybko-stolyar", "--max-scale")
    assert document["schema"] == "qt-llm/network/1"
    assert (document["verdict"], document["basis"]) == ("UNSTABLE", "certificate")
    assert "never served together" in document["reason"]
    assert document["stations"] == [
        {"name": "s1", "load": 0.7, "load_exact": "7/10"},
        {"name": "s2", "load": 0.7, "load_exact": "7/10"},
    ]
    (virtual,) = document["virtual_stations"]
    assert (sorted(virtual["classes"]), virtual["load"], virtual["load_exact"]) == (["A2", "B2"], 1.2, "6/5")
    assert document["certificate"]["kind"] == "virtual-station"
    scale = document["max_scale"]
    assert scale["certified"] == pytest.approx(5 / 6, rel=1e-7)
    assert scale["unstable"] == pytest.approx(5 / 6, rel=1e-7)
    assert scale["certified"] < scale["unstable"]


def test_the_frontier_of_the_llm_form(capsys):
    """608/1088 in load, whatever the rate of the file."""
    for scale in ("1", "0.5"):
        document = asked(capsys, "rybko-stolyar-llm", "--max-scale", "--scale", scale)
        for key in ("certified", "unstable"):
            load = document["max_scale"][key] * document["stations"][0]["load"]
            assert load == pytest.approx(608 / 1088, rel=1e-6)


def test_on_a_terminal_a_long_search_shows_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(terminal, "_QUIET_SECONDS", -1.0)
    assert answer(["network", "rybko-stolyar", "--max-scale", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "network: the largest scale" in err
    assert json.loads(out)["verdict"] == "UNSTABLE"


def test_without_being_asked_no_scale_is_searched_for(capsys):
    assert "max_scale" not in asked(capsys, "tandem")


def test_the_certificate_is_written_and_accepted(capsys, tmp_path):
    path = tmp_path / "proof.json"
    assert answer(["network", "lu-kumar", "--scale", "0.8", "--certificate", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    assert answer(["check", str(path)]) == 0


def test_no_certificate_no_file(capsys, tmp_path):
    """The answer is given all the same; what was asked for and is not there is a check that fails."""
    path = tmp_path / "proof.json"
    assert answer(["network", "rybko-stolyar", "--policy", "back-pressure", "--certificate", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "STABLE (theorem) under back-pressure" in out
    assert f"{path} was not written" in err
    assert not path.exists()


def test_what_would_be_stable_instead(capsys):
    """Entry priority at either station, or back-pressure (Rybko, Stolyar 1992; Dai, Lin 2005)."""
    found = {each["change"]: each["basis"] for each in asked(capsys, "rybko-stolyar")["levers"]}
    assert found["serve A1 > B2 at s1, and B1 > A2 at s2"] == "certificate"
    assert found["serve by back-pressure"] == "theorem"
    assert asked(capsys, "rybko-stolyar", "--scale", "0.8")["levers"] == []
    assert asked(capsys, "rybko-stolyar", "--scale", "2")["levers"] == []  # overloaded in every order


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("file", "UNSTABLE (certificate) under the orders of service of the file"),
        ("any", "UNSTABLE (certificate) under some non-idling policy"),
        ("back-pressure", "STABLE (theorem) under back-pressure"),
    ],
)
def test_what_a_person_reads_first(capsys, policy, words):
    assert answer(["network", "rybko-stolyar", "--policy", policy]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rybko-stolyar: 2 classical servers, 4 classes, 2 streams"
    assert lines[1].startswith(words)


def test_stable_means_every_policy(capsys):
    assert answer(["network", "rybko-stolyar", "--policy", "any", "--scale", "0.8"]) == 0
    assert "STABLE (certificate) under every non-idling policy" in capsys.readouterr().out


def test_a_file(capsys, tmp_path):
    path = tmp_path / "tandem.toml"
    path.write_text(TANDEM)
    document = asked(capsys, str(path))
    assert document["title"] == str(path)
    assert [Fraction(each["load_exact"]) for each in document["stations"]] == [Fraction(1, 5), Fraction(2, 5)]
    assert document["margin"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('to = "b"', 'to = "c"', "route[0].to: 'c' is no class; "),
        ('station = "s2"', 'station = "s3"', "class[1].station: 's3' is no station; "),
        ('to = "b"', 'to = "b"\nprobability = 1.5', "route[0].probability: 1.5 is outside"),
        ('to = "b"', 'to = "b"\n[[route]]\nfrom = "b"\nto = "a"', "no task ever leaves the cycle a -> b -> a"),
        ('to = "b"', 'to = "b"\n[[join]]\nclasses = ["a", "b"]\nto = "b"', "join[0]: "),
        ('name = "s2"', 'name = "s2"\npriority = ["a"]', "station[1].priority: "),
    ],
)
def test_a_bad_file_is_told_in_lines_with_its_name(capsys, tmp_path, old, new, said):
    path = tmp_path / "bad.toml"
    path.write_text(TANDEM.replace(old, new, 1))
    assert answer(["network", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert all(line.startswith(f"error: {path}: ") for line in err.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["network", "codellama-34b-a100"], "station: missing; this file describes one engine"),
        (["network", "rybko-stolyar", "--policy", "fifo"], "--policy"),
        (["network", "rybko-stolyar", "--scale", "0"], "--scale: 0 is not positive"),
        (["network", "rybko-stolyar", "--scale", "x"], "--scale: 'x' is not a number"),
        (["network", "rybko-stolyar", "-o", "x.gif"], "x.gif"),
        (["region", "rybko-stolyar"], "this is a network; use qt-llm network"),
        (["simulate", "rybko-stolyar"], "this is a network"),
    ],
)
def test_bad_flags(capsys, arguments, said):
    assert answer(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
