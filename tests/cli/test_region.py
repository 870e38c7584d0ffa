"""``qt-llm region`` as its users see it: text, JSON, figures, refusals."""

import json

import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.stability.thresholds import threshold

ENGINE = """
[engine]
b_max = {b_max}
{k_max}
[engine.batch_time]
law = "staircase"
c = "{c}"
a = "{a}"
b0 = {b0}
"""
WORKLOAD = """
[workload]
arrivals = "poisson"
rate = {rate}
prefill = {prefill}
decode = {decode}
"""


def written(tmp_path, text, name="model.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.fixture
def vertex_c(tmp_path):
    """CodeLlama-34B at vertex C: k_max = 100, one request of 290 + 990 tokens every 467.5 ms."""
    engine = ENGINE.format(b_max=1024, k_max="k_max = 100", c="11.28 ms", a="35.47 ms", b0=128)
    return written(tmp_path, engine + WORKLOAD.format(rate='"400/187"', prefill=290, decode=990))


@pytest.fixture
def second(tmp_path):
    return written(tmp_path, ENGINE.format(b_max=512, k_max="k_max = 33", c="30 ms", a="5 ms", b0=64), "second.toml")


def run(capsys, *arguments):
    code = answer(["region", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys, *arguments):
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


def refused(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


class TestJson:
    def test_the_contract(self, vertex_c, capsys):
        found = report(capsys, vertex_c)
        assert found["schema"] == "qt-llm/region/1"
        assert next(iter(found)) == "schema"
        assert found["capacity"] == {
            "tokens_per_s": pytest.approx(3470.716, abs=1e-3),
            "exact": "1600000/461",
            "batch_tokens": 1024,
            "full_batches_tokens_per_s": pytest.approx(3470.716, abs=1e-3),
        }
        for vertex in found["outer"]["vertices"]:
            assert set(vertex) == {"prefill", "decode", "exact", "batch", "label"}
            assert set(vertex["batch"]) == {"prefill", "decode", "seconds"}
        assert set(found["workload_outer"]) == {"points", "method"}
        assert found["workload_outer"]["method"] == "outer region for constant prompts"
        for name in ("sarathi", "vllm-vanilla", "fastertransformer"):
            each = found["schedulers"][name]
            assert each["method"]
            points = each["points"] or each["inner"]
            assert set(points[0]) == {"angle", "prefill", "decode", "requests_per_s"}
            angles = [point["angle"] for point in points]
            assert angles == sorted(angles)
        point = found["operating_point"]
        assert {"rate", "prefill", "decode", "inside", "load", "margin"} <= set(point)
        assert isinstance(found["notes"], list)

    def test_vertices_are_exact_and_name_their_batches(self, vertex_c, capsys):
        vertices = report(capsys, vertex_c)["outer"]["vertices"]
        assert [(v["label"], v["exact"], v["batch"]["prefill"], v["batch"]["decode"]) for v in vertices] == [
            ("0", ["0", "0"], 0, 0),
            ("A", ["1600000/461", "0"], 1024, 0),
            ("B", ["2890625/922", "309375/922"], 925, 99),
            ("C", ["116000/187", "36000/17"], 29, 99),
            ("D", ["0", "400000/187"], 0, 100),
        ]
        assert [v["batch"]["seconds"] for v in vertices] == [0, 0.29504, 0.29504, 0.04675, 0.04675]

    def test_another_engine(self, second, capsys):
        found = report(capsys, second)
        assert [v["exact"] for v in found["outer"]["vertices"]] == [
            ["0", "0"],
            ["51200/7", "0"],
            ["48000/7", "3200/7"],
            ["6400/7", "6400/7"],
            ["0", "6600/7"],
        ]
        assert found["schedulers"] == {}
        assert found["operating_point"] is None
        assert "workload_outer" not in found

    def test_at_the_vertex_the_verdict_is_critical(self, vertex_c, capsys):
        point = report(capsys, vertex_c)["operating_point"]
        assert (point["load"], point["margin"], point["load_exact"]) == (1.0, 0.0, "1")
        assert (point["inside"], point["verdict"]) == (False, "CRITICAL")
        assert point["weights"] == [
            {"batch": {"prefill": 29, "decode": 99, "seconds": 0.04675}, "label": "C", "weight": "1"}
        ]

    def test_the_proof_can_be_checked_by_hand(self, vertex_c, capsys):
        from fractions import Fraction

        for rate in ("1", "3"):
            found = report(capsys, vertex_c, "--rate", rate)
            point = found["operating_point"]
            exact = {v["label"]: [Fraction(x) for x in v["exact"]] for v in found["outer"]["vertices"]}
            for axis, tokens in enumerate((290, 990)):
                served = sum(Fraction(w["weight"]) * exact[w["label"]][axis] for w in point["weights"])
                assert served >= int(rate) * tokens
            assert sum(Fraction(w["weight"]) for w in point["weights"]) == Fraction(point["load_exact"])
            line = {key: Fraction(value) for key, value in point["line"].items()}
            assert all(line["prefill"] * x + line["decode"] * y <= line["bound"] for x, y in exact.values())
            value = int(rate) * (290 * line["prefill"] + 990 * line["decode"])
            assert (value > line["bound"]) == (point["verdict"] == "UNSTABLE") == (rate == "3")

    def test_judgements_stand_beside_their_thresholds(self, capsys):
        found = report(capsys, "codellama-34b-a100", "--scheduler", "sarathi", "--scheduler", "vllm-vanilla")
        judged = found["judgements"]
        assert list(judged) == list(found["schedulers"]) == ["sarathi", "vllm-vanilla"]
        assert (judged["sarathi"]["verdict"], judged["vllm-vanilla"]["verdict"]) == ("STABLE", "UNSTABLE")
        assert judged["sarathi"]["basis"] == "theorem"
        assert judged["sarathi"]["load"] == pytest.approx(12 / 13.871, rel=1e-4)
        assert judged["vllm-vanilla"]["high"] == pytest.approx(10.497, abs=1e-3)
        assert judged["sarathi"]["margin"] == pytest.approx(1 - judged["sarathi"]["load"])

    def test_the_answer_is_one_object_and_nothing_else(self, capsys):
        code, out, err = run(capsys, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["title"].startswith("codellama-34b-a100")

    def test_two_classes(self, tmp_path, capsys):
        engine = ENGINE.format(b_max=512, k_max="", c="11.28 ms", a="35.47 ms", b0=128)
        classes = "".join(
            f'[[workload.class]]\nname = "{name}"\nweight = 0.5\nprefill = {p}\ndecode = {d}\n'
            for name, p, d in (("chat", 129, 112), ("summary", 1000, 20))
        )
        model = written(tmp_path, engine + '[workload]\narrivals = "poisson"\nrate = 5\n' + classes)
        found = report(capsys, model, "--scheduler", "sarathi")
        point = found["operating_point"]
        assert (point["prefill"], point["decode"]) == (5 * 564.5, 5 * 66)
        c = 12_800_000 / 3829
        assert point["load"] == pytest.approx(2.5 * (241 + 1020) / c)
        assert found["judgements"]["sarathi"]["load"] == pytest.approx(point["load"])
        # The default rules that take prompts whole cannot run a prompt of 1000 tokens: left out with a note.
        found = report(capsys, model)
        assert list(found["schedulers"]) == ["sarathi"]
        assert any(note.startswith("vllm-vanilla is left out") for note in found["notes"])


class TestText:
    def test_the_default_model(self, capsys):
        code, out, err = run(capsys)
        assert (code, err) == (0, "")
        for words in (
            "codellama-34b-a100: staircase c = 11.28 ms, a = 35.47 ms, b0 = 128; b_max 512, no k_max",
            "capacity C = 3342.909 tokens/s, by batches of 512 tokens",
            "operating point: 12 requests/s = 1548 prefill + 1344 decode tokens/s, inside the outer region",
            "load 0.86511, margin to R 0.1349",
            "sarathi",
            "STABLE",
            "10.4973",
            "0.556673",
        ):
            assert words in out

    def test_no_workload(self, second, capsys):
        _, out, _ = run(capsys, second)
        assert "no workload given" in out
        assert "(32, 32)" in out

    def test_no_rate(self, second, capsys):
        _, out, _ = run(capsys, second, "--prefill", "100", "--decode", "20")
        assert "no operating point: the workload has no rate; give --rate R" in out

    @pytest.mark.parametrize(
        ("rate", "words"),
        [
            ("400/187", "on the boundary of the outer region R: load 1, margin to R 0"),
            ("3", "outside the outer region R: load 1.4025"),
            ("1", "inside the outer region R: load 0.4675"),
        ],
    )
    def test_where_the_point_lies(self, vertex_c, capsys, rate, words):
        _, out, _ = run(capsys, vertex_c, "--rate", rate)
        assert words in out
        assert ("every batch keeps" in out) == (rate == "3")

    def test_notes_go_to_standard_error(self, tmp_path, capsys):
        model = written(tmp_path, ENGINE.format(b_max=513, k_max="", c="30 ms", a="5 ms", b0=64))
        _, out, err = run(capsys, model)
        assert err.startswith("note: b0 = 64 does not divide b_max = 513")
        assert "note:" not in out
        _, out, err = run(capsys, model, "--json")
        assert err == ""
        assert json.loads(out)["notes"][0].startswith("b0 = 64 does not divide")


class TestFlags:
    def test_lengths_and_rate_of_ones_own(self, capsys):
        found = report(capsys, "--prefill", "1000", "--decode", "20", "--rate", "2", "--scheduler", "orca")
        assert found["operating_point"]["prefill"] == 2000
        engine = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128), b_max=512)
        limit = threshold(engine, "orca", Workload.of(prefill=1000, decode=20)).low
        assert found["judgements"]["orca"]["low"] == pytest.approx(float(limit))

    def test_a_trace(self, tmp_path, second, capsys):
        trace = written(tmp_path, "arrival,prefill,decode\n0,100,5\n1,50,10\n2,0,30\n", "trace.csv")
        found = report(capsys, second, "--trace", trace, "--scheduler", "sarathi")
        assert found["operating_point"]["rate"] == 1
        assert (found["operating_point"]["prefill"], found["operating_point"]["decode"]) == (50, 15)
        assert found["workload_outer"]["method"] == "linear program over batches and slots"
        assert "first token: as given" in found["notes"][0]
        faster = report(capsys, second, "--trace", trace, "--rate", "7", "--scheduler", "sarathi")
        assert faster["operating_point"]["rate"] == 7

    def test_a_rule_twice_is_drawn_once(self, capsys):
        found = report(capsys, "--scheduler", "orca", "--scheduler", "orca")
        assert list(found["schedulers"]) == ["orca"]

    def test_flags_of_a_rule(self, capsys):
        found = report(capsys, "--scheduler", "vllm-vanilla+chunk+mixed", "--scheduler", "sarathi+target=128")
        assert found["judgements"]["vllm-vanilla+chunk+mixed"]["low"] == pytest.approx(13.871, abs=1e-3)
        assert found["judgements"]["sarathi+target=128"]["low"] == pytest.approx(11.361, abs=1e-3)


class TestFigure:
    @pytest.mark.parametrize(("suffix", "head"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
    def test_formats(self, tmp_path, capsys, suffix, head):
        path = tmp_path / f"region.{suffix}"
        code, out, _ = run(capsys, "-o", str(path), "--scheduler", "sarathi")
        assert code == 0
        assert path.read_bytes().startswith(head)
        assert f"wrote {path}" in out

    def test_json_stays_alone(self, tmp_path, capsys):
        path = tmp_path / "region.svg"
        assert report(capsys, "-o", str(path), "--scheduler", "sarathi")["schema"] == "qt-llm/region/1"
        assert path.stat().st_size > 1000

    @pytest.mark.parametrize("name", ["x.gif", "x", "x.svgz", ".svg"])
    def test_a_format_is_checked_before_the_work(self, tmp_path, capsys, name):
        err = refused(capsys, "-o", str(tmp_path / name))
        assert "has an unknown ending; end the name in .svg, .png or .pdf" in err
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_is_not_there(self, tmp_path, capsys):
        refused(capsys, "-o", str(tmp_path / "no/x.svg"), "--scheduler", "sarathi")
        assert list(tmp_path.iterdir()) == []


BAD_NUMBERS = ["nan", "inf", "-inf", "-1", "0", "1e400", "12abc", "", "1/0", "1,5", "0x10"]


class TestRefusals:
    @pytest.mark.parametrize("value", BAD_NUMBERS)
    def test_a_rate_that_is_none(self, capsys, value):
        assert refused(capsys, f"--rate={value}").startswith("error: --rate: ")

    @pytest.mark.parametrize("flag", ["--prefill", "--decode"])
    @pytest.mark.parametrize("value", [*(v for v in BAD_NUMBERS if v != "0"), "2.5"])
    def test_a_count_that_is_none(self, capsys, flag, value):
        other = {"--prefill": "--decode", "--decode": "--prefill"}[flag]
        assert refused(capsys, f"{flag}={value}", f"{other}=5").startswith(f"error: {flag}: ")

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--rate"], "--rate requires an argument"),
            (["--scheduler"], "--scheduler requires an argument"),
            (["--nope"], "Unknown option: --nope"),
            (["--jsn"], "Did you mean --json?"),
            (["--prefill", "5"], "--decode: missing; --prefill and --decode go together"),
            (["--decode", "5"], "--prefill: missing"),
            (["--prefill", "0", "--decode", "0"], "every request has 0 + 0 tokens"),
            (["--scheduler", "sarati"], "did you mean sarathi?"),
            (["--scheduler", "sarathi+target=0"], "at least 1"),
            (["--scheduler", "vllm-vanilla", "--prefill", "513", "--decode", "1"], "513 tokens can never run"),
            (["--first-token", "now"], 'Choose from: "paper", "engine"'),
            (["codellama-34b-a10"], "did you mean codellama-34b-a100"),
            (["no/such.toml"], "no/such.toml"),
            (["codellama-34b-a100", "vllm-default"], "vllm-default"),
            (["--trace", "no-such.csv"], "no-such.csv: cannot be read"),
            (["--engines", "2"], "Unknown option: --engines"),
        ],
    )
    def test_bad_command_lines(self, capsys, arguments, complaint):
        assert complaint in refused(capsys, *arguments)

    def test_a_rate_without_a_workload(self, second, capsys):
        assert "there is no workload to come at this rate" in refused(capsys, second, "--rate", "3")

    def test_a_prompt_of_a_trace_is_named(self, tmp_path, second, capsys):
        trace = written(tmp_path, "arrival,prefill,decode\n0,100,5\n1,513,10\n", "trace.csv")
        err = refused(capsys, second, "--trace", trace, "--scheduler", "vllm-vanilla")
        assert "trace.csv: request 1: its prompt of 513 tokens" in err

    def test_every_fault_of_a_model_has_its_line(self, tmp_path, capsys):
        model = written(tmp_path, ENGINE.format(b_max=0, k_max="k_max = 0", c="-1 ms", a="5", b0=64))
        code, out, err = run(capsys, model)
        assert (code, out) == (2, "")
        lines = err.splitlines()
        assert len(lines) == 4
        assert all(line.startswith(f"error: {model}: engine.") for line in lines)
        for where in ("engine.b_max", "engine.k_max", "engine.batch_time.c", "engine.batch_time.a"):
            assert any(where in line for line in lines)


class TestSimulate:
    SMALL = (
        ENGINE.format(b_max=12, k_max="k_max = 4", c="1 ms", a="2 ms", b0=4)
        + WORKLOAD.format(rate=20, prefill=6, decode=4)
    )  # fmt: skip

    def test_a_region_that_theory_only_bounds_is_measured(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("queuetheory_llm.stability.scheduler_region.ANGLES", (0.0, 20.0, 45.0, 70.0, 88.0))
        model, figure = written(tmp_path, self.SMALL), tmp_path / "region.svg"
        flags = ["--scheduler", "orca", "--scheduler", "fastertransformer", "--simulate", "--width", "0.2"]
        found = report(capsys, model, *flags, "-o", str(figure))
        measured, exact = (found["schedulers"][name] for name in ("orca", "fastertransformer"))
        assert measured["method"] == "simulation"
        bounds = report(capsys, model, "--scheduler", "orca")
        assert bounds["schedulers"]["orca"]["points"] == []
        assert measured["inner"] == bounds["schedulers"]["orca"]["inner"]
        upper = {point["angle"]: point["requests_per_s"] for point in bounds["workload_outer"]["points"]}
        for point, inner in zip(measured["points"], measured["inner"], strict=True):
            assert point["angle"] == inner["angle"]
            assert inner["requests_per_s"] <= point["low"] * (1 + 1e-9)
            assert point["low"] <= point["requests_per_s"] <= point["high"] <= upper[point["angle"]] * (1 + 1e-9)
            assert point["high"] <= 1.2 * point["low"]
            assert point["prefill"] == pytest.approx(6 * point["requests_per_s"])
        assert exact == report(capsys, model, "--scheduler", "fastertransformer")["schedulers"]["fastertransformer"]
        assert "dotted: proved" in figure.read_text()
        assert any("orca: simulated region: all 5 directions decided to 20 %" in note for note in found["notes"])
        judged = found["judgements"]["orca"]
        assert judged["low"] < judged["high"] < 1.2 * judged["low"]

    @pytest.mark.parametrize("flag", ["--width", "--seed"])
    def test_flags_of_a_simulation_that_is_not_asked_for(self, tmp_path, capsys, flag):
        err = refused(capsys, written(tmp_path, self.SMALL), flag, "1")
        assert f"{flag}: nothing is simulated; leave it out, or give --simulate" in err

    def test_a_bad_width(self, tmp_path, capsys):
        assert "--width: 0 is not positive" in refused(
            capsys, written(tmp_path, self.SMALL), "--simulate", "--width", "0"
        )
