"""``qt-llm capacity`` as its users see it: rates, requirements, several engines, traces, refusals."""

import json
import sys
from fractions import Fraction

import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.schedulers.array_rule import ArrayRule
from queuetheory_llm.simulation import thresholds
from queuetheory_llm.simulation.rate_search import RateInterval

ENGINE = """
[engine]
b_max = {b_max}
[engine.batch_time]
law = "staircase"
c = "{c}"
a = "{a}"
b0 = {b0}
"""
CODELLAMA = ENGINE.format(b_max=512, c="11.28 ms", a="35.47 ms", b0=128)
SMALL = ENGINE.format(b_max=128, c="11.28 ms", a="35.47 ms", b0=128)
WASTEFUL = ENGINE.format(b_max=513, c="30 ms", a="5 ms", b0=64)
CHAT = ["--prefill", "129", "--decode", "112"]
F_BIG, F_SMALL = 12_800_000 / 3829 / 241, 128 / 0.04675 / 241


@pytest.fixture
def model(tmp_path):
    def write(text, name="model.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def run(capsys, *arguments):
    code = answer(["capacity", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys, *arguments, code=0):
    given, out, err = run(capsys, *arguments, "--json")
    assert (given, err) == (code, "")
    return json.loads(out)


def rates(capsys, *arguments):
    return {each["scheduler"]: each["requests_per_s"] for each in report(capsys, *arguments)["results"]}


def refused(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


class TestJson:
    def test_the_contract(self, capsys):
        found = report(capsys)
        assert found["schema"] == "qt-llm/capacity/1"
        (result,) = found["results"]
        assert {"scheduler", "requests_per_s", "method", "binding", "low", "high"} <= set(result)
        assert result["scheduler"] == "sarathi"
        assert result["low"] == result["high"] == result["requests_per_s"] == pytest.approx(13.871, abs=1e-3)
        assert result["exact"] == "12800000/922789"
        assert result["binding"] == "b_max"
        assert "Theorem 2" in result["method"]
        assert result["levers"][0]["change"] == "b_max 512 -> 1024"
        assert result["levers"][0]["low"] == pytest.approx(14.401, abs=1e-3)
        assert found["workload"] == {"mean_prefill": 129, "mean_decode": 112, "rate": 12}
        assert (found["engines"], found["dispatch"]) == (1, None)
        assert "require" not in found

    def test_the_numbers_of_the_paper_s_engine(self, capsys):
        rules = ["sarathi", "orca", "vllm-chunked", "vllm-vanilla", "fastertransformer"]
        found = rates(capsys, *CHAT, *(word for rule in rules for word in ("--scheduler", rule)))
        assert list(found) == rules
        expected = [13.871, 13.871, 13.871, 10.497, 0.5567]
        assert list(found.values()) == pytest.approx(expected, rel=1e-4)

    def test_a_rate_known_only_between_bounds(self, capsys):
        found = report(capsys, "codellama-34b-a100-k100", "--prefill", "290", "--decode", "990")["results"][0]
        assert found["exact"] is None
        assert found["requests_per_s"] == found["low"] < found["high"] == pytest.approx(400 / 187)
        assert found["binding"] == "k_max"

    def test_full_batches_that_are_not_the_best(self, capsys, model):
        name = model(WASTEFUL)
        rules = ["sarathi", "orca", "vllm-chunked", "sarathi+target=512"]
        flags = [word for rule in rules for word in ("--scheduler", rule)]
        found = report(capsys, name, "--prefill", "100", "--decode", "100", *flags)
        by_name = {each["scheduler"]: each for each in found["results"]}
        assert [by_name[rule]["exact"] for rule in rules] == ["171/5"] * 3 + ["256/7"]
        assert by_name["sarathi"]["low"] * 200 == pytest.approx(6840)
        (note,) = found["notes"]
        assert "b0 = 64 does not divide b_max = 513" in note
        assert "F = 6840" in note
        assert "+target=512" in note

    def test_two_classes(self, capsys, model):
        classes = "".join(
            f'[[workload.class]]\nname = "{name}"\nweight = 0.5\nprefill = {p}\ndecode = {d}\n'
            for name, p, d in (("chat", 129, 112), ("summary", 1000, 20))
        )
        name = model(CODELLAMA + '[workload]\narrivals = "poisson"\nrate = 5\n' + classes)
        assert rates(capsys, name)["sarathi"] == pytest.approx(12_800_000 / 3829 / ((241 + 1020) / 2))


class TestRequire:
    @pytest.mark.parametrize(
        ("rate", "code", "met"),
        [("12", 0, True), ("13.87", 0, True), ("13.88", 1, False), ("12800000/922789", 1, False)],
    )
    def test_met_below_the_edge_only(self, capsys, rate, code, met):
        found = report(capsys, *CHAT, "--require", rate, code=code)
        assert found["met"] is met
        assert found["require"] == pytest.approx(13.871, rel=0.2)
        given, out, _ = run(capsys, *CHAT, "--require", rate)
        assert given == code
        assert out.rstrip().endswith(": met (theorem)" if met else ": NOT met")

    def test_every_scheduler_has_to_meet_it(self, capsys):
        rules = ["--scheduler", "sarathi", "--scheduler", "vllm-vanilla"]
        assert run(capsys, *CHAT, *rules, "--require", "10.4")[0] == 0
        code, out, _ = run(capsys, *CHAT, *rules, "--require", "12")
        assert code == 1
        assert "sarathi: required 12 requests/s: met (theorem)" in out
        assert "vllm-vanilla: required 12 requests/s: NOT met" in out

    def test_a_rate_that_is_not_proved_is_not_met(self, capsys):
        arguments = ["codellama-34b-a100-k100", "--prefill", "290", "--decode", "990", "--require", "1.9"]
        assert run(capsys, *arguments)[0] == 1


class TestText:
    def test_the_answer(self, capsys):
        code, out, err = run(capsys)
        assert (code, err) == (0, "")
        for words in (
            "codellama-34b-a100: staircase c = 11.28 ms",
            "workload: poisson, 12 requests/s; 129 prefill, 112 decode",
            "13.871",
            "b_max 512 -> 1024 moves it to 14.4013 requests/s",
            "sarathi: STABLE: 12 requests/s against a limit of 13.8709: Theorem 2",
        ):
            assert words in out

    def test_limits_are_rounded_to_the_safe_side(self, capsys):
        _, out, _ = run(capsys, "--require", "13.871", "--rate", "13.871")
        assert ["sarathi", "13.8709", "13.871", "b_max"] in [line.split() for line in out.splitlines()]
        assert "sarathi: UNSTABLE: 13.871 requests/s against a limit of 13.870994: " in out
        assert "sarathi: required 13.871 requests/s: NOT met" in out

    def test_a_critical_rate(self, capsys, model):
        workload = '[workload]\narrivals = "poisson"\nrate = "12800000/922789"\nprefill = 129\ndecode = 112\n'
        _, out, _ = run(capsys, model(CODELLAMA + workload))
        assert "sarathi: CRITICAL" in out


class TestSeveralEngines:
    @pytest.mark.parametrize("dispatch", [[], ["--dispatch", "random"], ["--dispatch", "token-queue"]])
    def test_equal_ones(self, capsys, dispatch):
        found = report(capsys, *CHAT, "--engines", "4", *dispatch)
        assert found["results"][0]["low"] == pytest.approx(4 * F_BIG)
        assert (found["engines"], found["dispatch"]) == (4, dispatch[-1] if dispatch else "random")

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            (["--dispatch", "token-queue"], F_BIG + F_SMALL),
            (["--dispatch", "random"], 2 * F_SMALL),
            (["--split", "0.5,0.5"], 2 * F_SMALL),
            (["--split", "3/4,1/4"], F_BIG / 0.75),
            (["--split", "1,0"], F_BIG),
        ],
    )
    def test_unequal_ones(self, capsys, model, flags, expected):
        big, small = model(CODELLAMA, "big.toml"), model(SMALL, "small.toml")
        assert rates(capsys, big, small, *CHAT, *flags)["sarathi"] == pytest.approx(expected)

    def test_the_first_file_brings_the_workload(self, capsys, model):
        workload = '[workload]\narrivals = "poisson"\nrate = 1\nprefill = 10\ndecode = 10\n'
        first, second = model(CODELLAMA, "a.toml"), model(SMALL + workload, "b.toml")
        assert "workload: missing" in refused(capsys, first, second)
        assert report(capsys, second, first)["workload"]["mean_prefill"] == 10

    def test_the_text_names_the_dispatcher(self, capsys):
        _, out, _ = run(capsys, *CHAT, "--engines", "2", "--dispatch", "token-queue")
        assert "dispatch: token-queue over 2 engines" in out

    def test_of_the_fewest_requests_nothing_is_claimed_but_the_bound_of_every_rule(self, capsys):
        flags = ["--engines", "4", "--dispatch", "least-outstanding"]
        (found,) = report(capsys, *CHAT, *flags)["results"]
        assert (found["low"], found["high"]) == (0, pytest.approx(4 * F_BIG))
        _, out, _ = run(capsys, *CHAT, *flags)
        assert "no stable rate is proved" in out
        assert "finds the threshold itself" not in out  # the methods named there know one engine

    @pytest.mark.parametrize(
        ("rule", "complaint"),
        [
            (
                "hexgen-paper+alpha=0.5",
                "hexgen-paper weighs seconds at unlike instances; equal engines take random",
            ),
            ("least-outstanding+ties=fast", "flags are not for equal engines; write least-outstanding"),
        ],
    )
    def test_rules_that_need_more_than_queues(self, capsys, rule, complaint):
        assert complaint in refused(capsys, *CHAT, "--engines", "2", "--dispatch", rule)


class TestTrace:
    rows = "arrival,prefill,decode\n0,100,5\n1,50,10\n2,0,30\n"

    def test_lengths_and_rate(self, capsys, model):
        found = report(capsys, model(CODELLAMA), "--trace", model(self.rows, "trace.csv"))
        assert found["workload"] == {"mean_prefill": 50, "mean_decode": 15, "rate": 1}
        assert found["results"][0]["low"] == pytest.approx(12_800_000 / 3829 / 65)
        assert any("first token: as given" in note for note in found["notes"])

    def test_an_unsorted_trace_is_sorted_with_a_count_or_refused(self, capsys, model):
        trace = model("arrival,prefill,decode\n0,100,5\n5,50,10\n2,1,30\n", "trace.csv")
        notes = report(capsys, model(CODELLAMA), "--trace", trace)["notes"]
        assert any("sorted" in note for note in notes)
        assert "trace.csv: line 4" in refused(capsys, model(CODELLAMA), "--trace", trace, "--strict")

    def test_the_request_that_cannot_run(self, capsys, model):
        trace = model("arrival,prefill,decode\n0,100,5\n5,600,10\n6,700,1\n", "trace.csv")
        err = refused(capsys, model(CODELLAMA), "--trace", trace, "--scheduler", "fastertransformer")
        assert "trace.csv: request 1: its prompt of 600 tokens" in err

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("", "empty"),
            ("arrival,prefill,decode\n", "no requests"),
            ("a,b\n1,2\n", "header"),
            ("arrival,prefill,decode\n0,0,0\n", "line 2"),
        ],
    )
    def test_bad_traces(self, capsys, model, text, complaint):
        assert complaint in refused(capsys, model(CODELLAMA), "--trace", model(text, "trace.csv"))

    def test_a_folder_and_a_file_that_is_not_there(self, capsys, model, tmp_path):
        assert "directory" in refused(capsys, model(CODELLAMA), "--trace", str(tmp_path))
        assert "cannot be read" in refused(capsys, model(CODELLAMA), "--trace", str(tmp_path / "no.csv"))
        assert "directory" in refused(capsys, str(tmp_path))


class TestFigure:
    def test_bars(self, tmp_path, capsys):
        path = tmp_path / "capacity.svg"
        code, *_ = run(capsys, *CHAT, "--scheduler", "sarathi", "--scheduler", "vllm-vanilla", "-o", str(path))
        assert code == 0
        assert path.read_bytes().startswith(b"<?xml")

    def test_a_bad_format(self, tmp_path, capsys):
        assert "end the name in .svg, .png or .pdf" in refused(capsys, "-o", str(tmp_path / "x.jpg"))


class TestRefusals:
    @pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e400", "12abc", "", "1/0"])
    def test_a_requirement_that_is_none(self, capsys, value):
        assert refused(capsys, f"--require={value}").startswith("error: --require: ")

    @pytest.mark.parametrize("value", ["0", "-2", "2.5", "nan", "1e400", "x", "", "1e30", "10001"])
    def test_a_number_of_engines_that_is_none(self, capsys, value):
        assert refused(capsys, f"--engines={value}").startswith("error: --engines: ")

    @pytest.mark.parametrize("value", ["0.5", "0.5,0.4", "0.5,0.6", "2,-1", "0.5,x", ",", "", "nan,1", "1,inf"])
    def test_a_split_that_is_none(self, capsys, value):
        assert refused(capsys, "--engines", "2", f"--split={value}").startswith("error: --split: ")

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--require"], "--require requires an argument"),
            (["--engines"], "--engines requires an argument"),
            (["--rquire", "3"], "Did you mean --require?"),
            (["--dispatch", "random"], "there is one engine only"),
            (["--split", "1"], "there is one engine only"),
            (["--engines", "2", "--dispatch", "randm"], "'randm' is not a dispatch rule; known: random, round-robin"),
            (["--engines", "2", "--dispatch", "token-queue", "--split", "0.5,0.5"], "only the random dispatch"),
            (["codellama-34b-a100", "vllm-default", "--engines", "2"], "several model files are the engines already"),
            (["codellama-34b-a100", "vllm-defalt"], "did you mean vllm-default?"),
            (["--scheduler", "sarati"], "did you mean sarathi?"),
            (["--scheduler", "vllm-vanilla", "--prefill", "513", "--decode", "1"], "use vllm-vanilla+chunk"),
            (["--prefill", "5"], "--decode: missing"),
        ],
    )
    def test_bad_command_lines(self, capsys, arguments, complaint):
        assert complaint in refused(capsys, *arguments)

    def test_no_workload(self, capsys, model):
        err = refused(capsys, model(CODELLAMA))
        assert "workload: missing" in err
        assert "--prefill N --decode N" in err


POISSON = '[workload]\narrivals = "poisson"\nrate = 1.7\nprefill = 290\ndecode = 990\n'
SEATED = CODELLAMA.replace("b_max = 512", "b_max = 1024\nk_max = 100") + POISSON


class TestMethods:
    def test_what_is_bounded_is_found_by_simulation(self, capsys, model):
        flags = ["--method", "simulate", "--seed", "2", "--width", "0.1"]
        (found,) = report(capsys, model(SEATED), *flags)["results"]
        assert (found["method"], found["exact"], found["confidence"]) == ("simulation", None, 0.99)
        assert found["low"] < 0.8245 * 400 / 187 < found["high"] <= 1.1 * found["low"]
        assert found["requests_per_s"] == found["low"]
        assert found["levers"] == []

    def test_the_default_width_is_one_percent(self, capsys, model):
        (found,) = report(capsys, model(SEATED), "--method", "simulate")["results"]
        assert found["low"] < 0.8245 * 400 / 187 < found["high"] <= 1.01 * found["low"]

    def test_adaptive_rules_by_name(self, capsys, model, monkeypatch):
        """They reach the search made for the engine and the lengths; the search itself is tested elsewhere."""
        searched = []

        def search(engine, rule, workload, **_):
            searched.append((type(rule), rule.name, engine.k_max, workload.mean_decode))
            return RateInterval(
                low=Fraction(0), high=None, falling=None, growing=None, confidence=0.99, met=False, requests=1
            )

        monkeypatch.setattr(thresholds, "search_rate", search)
        flags = ["--scheduler", "max-pressure", "--scheduler", "max-weight"]
        results = report(capsys, model(SEATED), "--method", "simulate", *flags)["results"]
        assert [each["scheduler"] for each in results] == ["max-pressure", "max-weight"]
        assert searched == [(ArrayRule, "max-pressure", 100, 990), (ArrayRule, "max-weight", 100, 990)]
        assert "capacity with --method simulate" in refused(capsys, model(SEATED), "--scheduler", "max-pressure")

    def test_induced_chains(self, capsys, model):
        found = report(capsys, model(SEATED), "--method", "induced", "--scheduler", "static")["results"][0]
        assert found["low"] == found["high"] == pytest.approx(0.0301 * 400 / 187, rel=2e-3)
        assert found["method"].startswith("induced chains")

    def test_theory_is_the_default(self, capsys, model):
        name = model(SEATED)
        assert report(capsys, name) == report(capsys, name, "--method", "theorem")

    def test_in_words(self, capsys, model):
        _, bounds, _ = run(capsys, model(SEATED))
        assert "--method induced or --method simulate finds the threshold itself" in bounds
        _, found, err = run(capsys, model(SEATED), "--method", "simulate", "--width", "0.1")
        assert "sarathi: STABLE: below" in found
        assert "--method" not in found
        assert err == ""

    def test_on_a_terminal_it_says_what_it_does(self, capsys, model, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        code, out, err = run(capsys, model(SEATED), "--method", "simulate", "--width", "0.1")
        assert code == 0
        assert "simulation" in out
        assert "sarathi: between" in err

    def test_it_can_be_required(self, capsys, model):
        flags = ["--method", "simulate", "--width", "0.1", "--scheduler", "vllm-vanilla"]
        found = report(capsys, model(SEATED), *flags, "--require", "1.6")
        assert (found["met"], found["met_by"]) == (True, {"vllm-vanilla": "simulation"})
        assert report(capsys, model(SEATED), *flags, "--require", "1.9", code=1)["met"] is False

    def test_the_basis_of_a_requirement(self, capsys, model):
        """Drifts are no proof, and what theory proves is one whatever the method."""
        name = model(SEATED)
        induced = ["--method", "induced", "--scheduler", "static"]
        assert report(capsys, name, *induced, "--require", ".06")["met_by"] == {"static": "fluid"}
        assert run(capsys, name, *induced, "--require", ".06")[1].rstrip().endswith(": met (fluid)")
        assert report(capsys, name, "--require", "0.1")["met_by"] == {"sarathi": "theorem"}
        assert report(capsys, name, "--require", "2.2", code=1)["met_by"] == {"sarathi": None}

    @pytest.mark.parametrize(
        ("flags", "complaint"),
        [
            (["--method", "guess"], "--method: 'guess' is not known"),
            (["--method", "simulate", "--width", "0"], "--width: 0 is not positive"),
            (["--method", "simulate", "--width", "2"], "width: 2 is outside 0.0001 .. 0.5"),
            (["--method", "simulate", "--seed", "-1"], "--seed: '-1' is no whole number"),
            (["--width", "0.1"], "--width: nothing is simulated; leave it out, or give --method simulate"),
            (["--method", "theorem", "--seed", "1"], "--seed: nothing is simulated; leave it out"),
            (["--method", "simulate", "--engines", "2"], "--method: induced and simulate know one engine"),
            (["--method", "induced", "--scheduler", "static", "--prefill", "2000", "--decode", "1"], "can never run"),
        ],
    )  # fmt: skip
    def test_refusals(self, capsys, model, flags, complaint):
        assert complaint in refused(capsys, model(SEATED), *flags)
