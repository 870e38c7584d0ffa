"""qt-llm fluid: exact paths, integrated ones, engines, overloads."""

import json
import sys
from fractions import Fraction

import pytest

from queuetheory_llm.cli.main import answer


def asked(capsys, *arguments):
    assert answer(["fluid", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "qt-llm/fluid/1"
    return document


def test_the_growing_path_is_exact(capsys):
    document = asked(capsys, "rybko-stolyar", "--start", "A1=1")
    assert (document["end"], document["growth_factor_exact"]) == ("GROWING", "3/2")
    (path,) = document["paths"]
    totals = {Fraction(point["time"]): sum(map(Fraction, point["state"])) for point in path["breakpoints"]}
    for time, total in ((Fraction(3, 2), "3/2"), (Fraction(15, 4), "9/4"), (Fraction(57, 8), "27/8")):
        assert totals[time] == Fraction(total)


def test_both_solutions_of_lu_and_kumar(capsys):
    document = asked(capsys, "lu-kumar", "--start", "1=1")
    assert [path["end"] for path in document["paths"]] == ["EMPTY", "GROWING"]
    assert document["end"] == "GROWING"


def test_a_growing_start_is_looked_for_whatever_the_horizon(capsys):
    free, bounded = asked(capsys, "lu-kumar"), asked(capsys, "lu-kumar", "--horizon", "5")
    first, again = (document["paths"][0]["breakpoints"][0]["state"] for document in (free, bounded))
    assert first == again
    assert (free["end"], bounded["end"]) == ("GROWING", "GROWING")


def test_on_a_terminal_the_search_for_a_start_is_said(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert answer(["fluid", "rybko-stolyar"]) == 0
    out, err = capsys.readouterr()
    assert "looking for a path that grows" in err
    assert "looking" not in out


def test_an_emptying_time_is_a_geometric_sum(capsys, tmp_path):
    """m2 = .4: empty at t = 2 after infinitely many half cycles."""
    assert answer(["models", "rybko-stolyar"]) == 0
    path = tmp_path / "milder.toml"
    path.write_text(capsys.readouterr().out.replace("600 ms", "400 ms"))
    document = asked(capsys, str(path), "--start", "A1=1")
    assert (document["end"], document["emptying_time"]) == ("EMPTY", 2)
    assert answer(["fluid", str(path), "--start", "A1=1"]) == 0
    assert "2/3 (1 + r + r^2 + ...) = 2 s with r = 2/3" in capsys.readouterr().out


def test_first_come_first_served_is_integrated(capsys):
    document = asked(capsys, "text-to-sql-loop")
    assert document["method"] == "ode"
    assert document["emptying_time"] is not None


def test_engines_have_a_path_for_each_scheduler(capsys):
    document = asked(capsys, "codellama-34b-a100", "--scheduler", "sarathi", "--scheduler", "vllm-vanilla")
    assert [each["end"] for each in document["results"]] == ["EMPTY", "DIVERGING"]
    # 1000 prompts of 129 tokens wait, each with 112 decode tokens to come: F - load tokens a second are worked off.
    load, full = Fraction(12 * 241), 512 / Fraction("0.15316")
    assert document["results"][0]["emptying_time"] == pytest.approx(float(241_000 / (full - load)))


def test_an_overload_of_an_engine(capsys, tmp_path):
    profile = tmp_path / "crowd.csv"
    profile.write_text("time,factor\n0,1\n60,1.5\n120,1\n")
    document = asked(capsys, "codellama-34b-a100", "--profile", str(profile), "--keep-below", "10000")
    (found,) = document["results"]
    excess = 18 * 241 - 512 / 0.15316
    assert found["depth"] == pytest.approx(60 * excess)
    assert found["deepest_at"] == 120
    assert found["drained_at"] == pytest.approx(120 + 60 * excess / (512 / 0.15316 - 12 * 241))
    assert found["capacity_needed_per_s"] == pytest.approx(18 * 241 - 10000 / 60)


def test_an_overload_of_a_network(capsys, tmp_path):
    profile = tmp_path / "crowd.csv"
    profile.write_text("time,factor\n0,1\n10,2\n20,1\n")
    document = asked(capsys, "jackson-loop", "--profile", str(profile))
    # only the second station, of load 5/7, is overloaded at twice the rate: by 3/7 of a second of work a second
    second = next(each for each in document["stations"] if each["name"] == "s2")
    assert second["largest_load"] == pytest.approx(10 / 7)
    assert 0 < document["drained_at"] < 60


CROWD = "time,factor\n0,1\n10,1.5\n20,1\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["rybko-stolyar", "--start", "A1=1"],
        ["text-to-sql-loop"],
        ["jackson-loop", "--profile", "crowd.csv"],
        ["codellama-34b-a100"],
        ["codellama-34b-a100", "--profile", "crowd.csv"],
    ],
)
def test_every_answer_says_how_its_path_ends_and_draws_it(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crowd.csv").write_text(CROWD)
    document = asked(capsys, *arguments, "-o", "path.svg")
    assert (tmp_path / "path.svg").read_text().startswith("<?xml")
    assert list(document)[:3] == ["schema", "title", "method"]
    assert document["end"] in ("EMPTY", "GROWING")
    assert (document["emptying_time"] is None) == (document["end"] == "GROWING")
    assert document["growth"] <= 0 or document["end"] == "GROWING"
    assert answer(["fluid", *arguments, "-o", "path.png"]) == 0
    assert capsys.readouterr().out.endswith("wrote path.png\n")


def test_a_run_beside_its_path(capsys, tmp_path):
    picture = tmp_path / "run.png"
    document = asked(capsys, "rybko-stolyar", "--start", "A1=3000", "--simulate", "--seed", "5", "-o", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    run, path = document["simulated"], document["paths"][0]
    assert (run["seed"], run["verdict"]) == (5, "UNSTABLE")
    assert run["horizon"] == path["seconds"] == 3000 * 57 / 8
    there = {each["name"]: each["present"] for each in run["classes"]}
    assert there["B1"] == pytest.approx(3000 * 27 / 8, rel=0.2)  # the fluid is all there
    assert sum(there.values()) < 1.05 * there["B1"]
    assert answer(["fluid", "rybko-stolyar", "--start", "A1=3000", "--simulate", "--seed", "5"]) == 0
    assert "a run from there: the work in the network grows by" in capsys.readouterr().out


def test_a_network_that_the_fluid_model_does_not_describe(capsys, tmp_path):
    """A station that fills its batches with prompts first."""
    assert answer(["models", "rybko-stolyar-llm"]) == 0
    path = tmp_path / "prompts.toml"
    path.write_text(capsys.readouterr().out.replace('name = "s1"', 'name = "s1"\nscheduler = "orca"', 1))
    assert answer(["fluid", str(path), "--start", "A1=1", "--json"]) == 0
    out, err = capsys.readouterr()
    (note,) = json.loads(out)["notes"]
    assert note.startswith("the fluid model may not describe this network: s1: ")
    assert err == f"note: {note}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rybko-stolyar", "--start", "C=1"], "--start: 'C' is no class; known: A1, A2, B1, B2"),
        (["rybko-stolyar", "--start", "A1"], "--start: 'A1' names no class"),
        (["rybko-stolyar", "--start", "A1=1", "--start", "A1=2"], "--start: 'A1' is given more than once"),
        (["rybko-stolyar", "--start", "A1=-1"], "--start: A1=-1 is negative"),
        (["text-to-sql-loop", "--start", "keywords=-1"], "--start: keywords=-1 is negative"),
        (["rybko-stolyar", "--start", "A1="], "--start: A1: '' is not a number"),
        (["rybko-stolyar", "--horizon", "0"], "--horizon: 0 is not positive"),
        (["rybko-stolyar", "--rate", "3"], "--rate: is for an engine"),
        (["rybko-stolyar", "--keep-below", "3"], "--keep-below: goes with --profile"),
        (["rybko-stolyar", "--seed", "3"], "--seed: nothing is simulated"),
        (["rybko-stolyar", "--simulate", "--start", "A1=1"], "--start: A1=1 is too few"),
        (["rybko-stolyar", "--simulate", "--start", "A1=20.5"], "--start: A1=41/2 = 20.5 is no whole number"),
        (["rybko-stolyar", "--simulate", "--start", "A1=1e12"], "--start: of a run as long as the path from there: "),
        (["rybko-stolyar", "--simulate", "--start", "A1=1e9", "--horizon", "9"], "--start: 1000000000 tasks"),
        (["rybko-stolyar", "--simulate", "--start", "A1=20", "--seed", "1e99"], "--seed: '1e99' is no whole number"),
        (["jackson-loop", "--simulate", "--profile", "CROWD"], "--simulate: the runs are at constant rates"),
        (["jackson-loop", "--seed", "3", "--profile", "CROWD"], "--seed: nothing is simulated"),
        (["codellama-34b-a100", "--horizon", "9", "--profile", "CROWD"], "--horizon: with --profile an engine"),
        (["codellama-34b-a100", "--start", "prefill=-1"], "--start: prefill=-1 is negative"),
        (
            ["codellama-34b-a100", "--scheduler", "orca", "--scheduler", "sarathi", "-o", "x.svg"],
            "-o: a figure is of one",
        ),
        (["codellama-34b-a100", "--scale", "3"], "--scale: is for a network"),
        (["codellama-34b-a100", "--start", "A1=3"], "--start: 'A1' is not known at an engine"),
        (["tandem", "--profile", "/nowhere.csv"], "/nowhere.csv: cannot be read"),
    ],
)
def test_bad_flags(capsys, tmp_path, arguments, said):
    crowd = tmp_path / "crowd.csv"
    crowd.write_text(CROWD)
    assert answer(["fluid", *(str(crowd) if each == "CROWD" else each for each in arguments)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_path_that_drains_does_not_hide_the_verdict(capsys, tmp_path):
    """From empty the fluid of an unstable network can stay empty, whatever the profile below capacity."""
    profile = tmp_path / "mild.csv"
    profile.write_text("time,factor\n0,1\n60,1.05\n120,1\n")
    assert answer(["fluid", "rybko-stolyar-llm", "--profile", str(profile)]) == 0
    out, err = capsys.readouterr()
    assert "no overload; the largest load is 0.945, at" in out
    assert "the network is UNSTABLE (fluid)" in err


def test_what_theory_leaves_out_is_said_of_the_file(capsys):
    assert answer(["fluid", "agents-mixed-gpus"]) == 2
    assert capsys.readouterr().err.startswith("error: agents-mixed-gpus: the join into ")
