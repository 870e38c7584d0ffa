"""qt-llm dispatch: the contract of its JSON, what a person reads, its figures, its errors."""

import json
import math
import re

import pytest

import queuetheory_llm as qt
from queuetheory_llm.cli.dispatch_report import interval_text, percent_text
from queuetheory_llm.cli.main import answer
from queuetheory_llm.cli.words import workflow_words
from queuetheory_llm.simulation.query_statistics import Interval

SHORT = ("--queries", "150", "--replications", "3")
LOOP = """
[arrivals]
rate = 1
[[tenant]]
name = "gold"
slo_scale = 4
[[tenant]]
name = "plain"
slo_scale = 8
[[stage]]
name = "write"
work = { law = "exponential", mean = "100 ms" }
[[stage]]
name = "test"
work = { law = "exponential", mean = "200 ms" }
[[retry]]
from = "test"
to = "write"
probability = 0.5
[[instance]]
name = "fast"
speed = 2
[[instance]]
name = "slow"
speed = 1
"""


@pytest.fixture
def loop(tmp_path):
    path = tmp_path / "loop.toml"
    path.write_text(LOOP)
    return str(path)


def asked(capsys, *arguments):
    assert answer(["dispatch", *arguments, *SHORT, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def read(capsys, *arguments):
    assert answer(["dispatch", *arguments, *SHORT]) == 0
    return capsys.readouterr().out


def test_the_json_holds_capacity_verdicts_and_rules(capsys):
    found = asked(capsys, "two-servers", "--rule", "round-robin", "--rule", "random-lp", "--rule", "least-outstanding")
    assert found["schema"] == "qt-llm/dispatch/1"
    assert (found["capacity"]["exact"], found["capacity"]["load"]) == ("3", 0.8)
    assert [each["one_more"] for each in found["capacity"]["types"]] == [2, 1]
    turns, split, least = found["rules"]
    assert [each["rule"] for each in found["rules"]] == ["round-robin/fcfs", "random-lp/fcfs", "least-outstanding/fcfs"]
    assert (turns["verdict"], turns["basis"], turns["mean"]) == ("UNSTABLE", "theorem", None)  # half of 2.4 on speed 1
    assert (split["verdict"], split["basis"]) == ("STABLE", "theorem")
    assert (least["verdict"], least["basis"]) == ("STABLE", "theorem")  # below the sum of the speeds
    assert least["measured"]["verdict"] in ("STABLE", "UNDECIDED")
    assert 0 < split["mean"]["mean"] < split["p99"]["mean"]  # stable by a theorem, whatever so short runs show
    assert [each["name"] for each in split["instances"]] == ["fast", "slow"]
    assert split["p50"]["mean"] < split["p95"]["mean"] < split["p99"]["mean"]
    assert found["retries"] is None


def test_the_same_seed_gives_the_same_bytes(capsys):
    first = asked(capsys, "two-servers", "--rule", "random")
    assert first == asked(capsys, "two-servers", "--rule", "random", "--seed", "0")
    assert first != asked(capsys, "two-servers", "--rule", "random", "--seed", "1")


def test_limits_in_closed_form(capsys):
    """Turns overload the slow server above 2; the released rule at alpha 0.5 from the fast server carries 2.5."""
    rules = ("--rule", "round-robin", "--rule", "hexgen-released+alpha=0.5", "--rule", "hexgen-paper+alpha=0.5")
    found = asked(capsys, "two-servers", *rules, "--limit")
    limits = [each["limit"] for each in found["rules"]]
    assert [each["rate"] for each in limits] == pytest.approx([2, 2.5, 2.9196], rel=1e-4)
    assert {each["method"] for each in limits} == {"theorem"}


def test_limits_of_theory_do_not_depend_on_the_rate_asked_at(capsys):
    """Also where every rule is unstable at that rate."""
    rules = ("round-robin", "least-outstanding", "hexgen-paper+alpha=0.9", "hexgen-released+alpha=0.5")
    flags = [text for rule in rules for text in ("--rule", rule)]
    answers = [asked(capsys, "two-servers", *flags, "--limit", "--rate", rate) for rate in ("1", "2.4", "3.5")]
    limits = [[each["limit"]["rate"] for each in found["rules"]] for found in answers]
    assert limits[0] == limits[1] == limits[2]
    assert limits[0] == pytest.approx([2, 3, 2.7320508, 2.5])
    assert {each["verdict"] for each in answers[2]["rules"]} == {"UNSTABLE"}


def test_limits_and_verdicts_are_those_of_python(capsys):
    system, rule = qt.load_workflow("two-servers"), "hexgen-paper+alpha=0.5"
    (row,) = asked(capsys, "two-servers", "--rule", rule, "--limit")["rules"]
    assert row["limit"] == qt.dispatch_limit(system, rule).to_dict()
    assert row["limit"]["rate"] == qt.rule_limit(system, rule).limit
    judged = qt.dispatch_verdict(system, rule)
    assert (row["verdict"], row["reason"]) == (judged.verdict.value, judged.reason)
    compared = qt.simulate_cluster(system, [rule], queries=150, replications=3)
    assert qt.judge_rules(compared, [rule]) == (judged,)


def test_limits_searched_by_simulation_are_those_of_python(capsys, loop):
    """Two kinds of calls of which either may wait for the other: no theory of the fewest calls."""
    rule = "least-outstanding/urgency"
    (row,) = asked(capsys, loop, "--rule", rule, "--limit")["rules"]
    most = math.ceil(20_000_000 / 4)  # calls of a search, four in a query
    found = qt.dispatch_limit(qt.load_workflow(loop), rule, width=0.05, max_queries=most)
    assert row["limit"] == found.to_dict()
    assert found.method == "simulation"
    assert found.high <= 5


def test_the_verdict_is_of_the_queue_order_too(capsys, tmp_path):
    """Calls of one mean at each server: a theorem first come, first served; in any order another proof is needed."""
    path = tmp_path / "alike.toml"
    path.write_text(LOOP.replace("200 ms", "100 ms"))
    rows = asked(capsys, str(path), "--rule", "random-lp/fcfs", "--rule", "random-lp/urgency")["rules"]
    assert [(row["verdict"], row["basis"]) for row in rows] == [("STABLE", "theorem"), ("STABLE", "certificate")]
    judged = [qt.dispatch_verdict(qt.load_workflow(path), "random-lp", order) for order in ("fcfs", "urgency")]
    assert [row["reason"] for row in rows] == [each.reason for each in judged]


def test_the_proof_is_written_and_accepted(capsys, tmp_path):
    path = tmp_path / "split.json"
    for rate, words in (("2.4", "no proof of stability"), ("3.5", "UNSTABLE")):
        read(capsys, "two-servers", "--rule", "random-lp", "--rate", rate, "--certificate", str(path))
        assert answer(["check", str(path)]) == 0
        assert words in capsys.readouterr().out
        path.unlink()
    arguments = ("two-servers", "--rule", "random-lp", "--rate", "3", "--certificate", str(path))
    assert answer(["dispatch", *arguments, *SHORT]) == 1
    assert "at a load of 1 there is none" in capsys.readouterr().err
    assert not path.exists()


def test_a_score_without_queues_is_pointed_out(capsys, loop):
    """beta = 1 s^2 beside calls of 50 to 200 ms is plenty; beta = 1e-4 s^2 is next to nothing."""
    assert not asked(capsys, loop, "--rule", "hexgen-paper")["notes"]
    (note,) = asked(capsys, loop, "--rule", "hexgen-paper+alpha=0.5+beta=0.0001")["notes"]
    # test: 0.2 s on the slow server, 0.1 s more than on the fast one: 0.0001/0.1 = 1 ms; 0.2 * 0.1 = 0.02 s^2
    assert "slow gets a call of test (0.2 s) only while its queue is below" in note
    assert "= 0.001 s; 100 % of the work" in note
    assert "from 0.02 on" in note


def test_undecided_says_how_many_queries_would_decide(capsys):
    out = read(capsys, "hexgen-cluster-1", "--rule", "hexgen-paper/urgency")
    assert re.search(r"UNDECIDED: .*about [\d,]+ queries", out)


def test_the_critical_retry(capsys, loop):
    """A pass is 0.3 s of work at speed 1, all servers have speed 3: 10 passes/s, so at 1 query/s the chance is 0.9."""
    found = asked(capsys, loop, "--rule", "random-lp", "--retry")
    (retry,) = found["retries"]
    assert retry["critical"] == pytest.approx(0.9)
    assert "0.9 fills the cluster" in read(capsys, loop, "--rule", "random-lp", "--retry")


def test_what_a_person_reads_first(capsys, loop):
    lines = read(capsys, loop).splitlines()
    assert "2 stages" in lines[0]
    assert lines[1].startswith("capacity: 5 queries/s (exactly 5); no dispatch rule that knows calls by their stage")
    assert lines[2].startswith("load 0.2 at 1 queries/s, margin 0.8; every instance type binds")
    assert any("gold P95" in line and "plain P95" in line for line in lines)


def test_no_mean_of_a_rule_that_is_not_stable(capsys):
    out = read(capsys, "two-servers", "--rule", "round-robin")
    (row,) = [line for line in out.splitlines() if line.startswith("round-robin/fcfs  UNSTABLE")]
    assert row.split()[2] == "-"
    assert "round-robin/fcfs: UNSTABLE (theorem): turns" in out
    assert "grows with the horizon" in out
    assert "no ratios" not in out  # one rule has none


def test_ratios_need_a_baseline_that_is_not_unstable(capsys):
    assert "no ratios: round-robin/fcfs" in read(capsys, "two-servers", "--rule", "round-robin", "--rule", "random-lp")


def test_ablations_stand_beside_the_whole(capsys):
    found = asked(capsys, "two-servers", "--rule", "hexgen-paper/urgency", "--ablations")
    assert [each["rule"] for each in found["rules"]] == [
        "hexgen-paper/urgency",
        "round-robin/urgency",
        "hexgen-paper/fcfs",
    ]


def test_the_curve_of_alpha_has_a_best(capsys):
    found = asked(capsys, "two-servers", "--rule", "hexgen-paper", "--tune", "alpha")["tuning"]
    (curve,) = found["curves"]
    assert [each["at"] for each in curve["points"]] == pytest.approx([k / 10 for k in range(11)])
    least = min((each for each in curve["points"] if each["p95"]["mean"]), key=lambda each: each["p95"]["mean"])
    assert found["best_alpha"] == least["at"]


def test_tuning_online_follows_the_profile(capsys, tmp_path):
    (tmp_path / "day.csv").write_text("time,factor\n0,0.5\n200,1\n400,0.5\n")
    arguments = ("--rule", "hexgen-paper+alpha=0.8", "--tune", "alpha", "--profile", str(tmp_path / "day.csv"))
    found = asked(capsys, "two-servers", *arguments)["online"]
    assert [(each["seconds"], each["rate"]) for each in found["profile"]] == [(200, 1.2), (200, 2.4), (200, 1.2)]
    assert found["alphas"][0] == {"from": 0, "alpha": 0.8}


def test_curves_and_throughput_within_the_slo(capsys, loop):
    found = asked(capsys, loop, "--rule", "random-lp", "--curves", "slo-scale", "--throughput", "0.9")
    met = [each["attainment"]["mean"] for each in found["curves"]["curves"][0]["points"]]
    assert met == sorted(met)
    assert 0 < found["rules"][0]["slo_throughput"]["rate"]["mean"] < 5
    found = asked(capsys, loop, "--rule", "random-lp", "--curves", "rate")
    assert [each["at"] for each in found["curves"]["curves"][0]["points"]][-1] == pytest.approx(4.5)


def test_queries_of_a_log(capsys, tmp_path):
    steps = [
        ("Information Retriever", 300, 5),
        ("Information Retriever", 300, 5),
        ("Information Retriever", 300, 5),
        ("Information Retriever", 300, 5),
        ("generate_candidate_llama-agent", 900, 50),
        ("unit_tester", 200, 5),
        ("unit_tester", 200, 5),
        ("unit_tester", 200, 5),
    ]
    calls = [{"step": name, "input_length": prompt, "output_length": out} for name, prompt, out in steps]
    (tmp_path / "log.json").write_text(json.dumps([{"Text2SQLRequest": calls}]))
    found = asked(capsys, "hexgen-homogeneous", "--rule", "round-robin", "--log", str(tmp_path / "log.json"))
    assert [each["visits"] for each in found["capacity"]["stages"]] == [1] * len(steps)
    assert any("1 queries of 8 calls" in note for note in found["notes"])
    assert all(each["verdict"] == each["measured"]["verdict"] for each in found["rules"])  # no theory of real queries


@pytest.mark.parametrize("extra", [(), ("--tune", "alpha"), ("--curves", "rate")])
def test_the_figure_is_of_what_was_asked_for(capsys, tmp_path, extra):
    path = tmp_path / "figure.svg"
    out = read(capsys, "two-servers", "--rule", "hexgen-paper", *extra, "-o", str(path))
    assert f"wrote {path}" in out
    assert "P95" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--rule", "hexgen-paper+alpha=1.5"), "--rule: alpha: 1.5 is out of range"),
        (("--rule", "rond-robin"), "did you mean round-robin?"),
        (("--rule", "round-robin/urgncy"), "did you mean urgency?"),
        (("--rule", "round-robin", "--rule", "round-robin/fcfs"), "--rule: round-robin/fcfs comes twice"),
        (("--rule", "round-robin/foo"), "--rule: 'foo' is not a known queue order"),
        (("--rate", "-1"), "--rate: -1 is below 0"),
        (("--queries", "0"), "--queries: 0 is below 1"),
        (("--replications", "2000"), "--replications: 2000 are more than 1000"),
        (("--seed", "-1"), "--seed: '-1'"),
        (("--tune", "alpha", "--rule", "round-robin"), "--tune: none of the rules has an alpha"),
        (("--ablations", "--rule", "round-robin"), "--ablations: none of the rules has an alpha"),
        (("--profile", "day.csv"), "--profile: the rate changes for the tuning"),
        (("--throughput", "1"), "--throughput: 1 is no share"),
        (("--throughput", "0.9"), "--throughput: no tenant of two-servers has an SLO"),
        (("--curves", "slo-scale"), "--curves slo-scale: no tenant of two-servers has an SLO"),
        (("--slo-scale", "0.1"), "--slo-scale: 0.1 times"),
        (("--curves", "rate", "--tune", "alpha"), "-o: one figure shows --curves or --tune"),
        (("--log", "none.json"), "none.json: cannot be read"),
        (("--log", ""), "error: --log: is empty"),
        (("--profile", "", "--tune", "alpha"), "error: --profile: is empty"),
        (("--rate", "1e-9"), "error: --rate: "),
        (("--queries", "60000000"), "error: --queries: "),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, arguments, what):
    path = tmp_path / "figure.svg"
    assert answer(["dispatch", "two-servers", *arguments, "-o", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert what in err
    assert "Traceback" not in err
    assert not path.exists()


@pytest.mark.parametrize(("path", "what"), [("", "-o: is empty"), ("/proc/x.svg", "/proc/x.svg: cannot be written")])
def test_a_figure_that_cannot_be_written_is_refused_before_the_runs(capsys, monkeypatch, path, what):
    monkeypatch.setattr("queuetheory_llm.cli.dispatch.read_cluster", lambda *_, **__: pytest.fail("it was run"))
    assert answer(["dispatch", "two-servers", "-o", path]) == 2
    assert what in capsys.readouterr().err


def test_what_is_wrong_in_the_file_is_said_of_the_file(capsys, tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text(LOOP.replace("rate = 1", "rate = 1e-9"))
    assert answer(["dispatch", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: rate: ")
    path.write_text(LOOP.replace("probability = 0.5", "probability = 0.99999"))
    assert answer(["dispatch", str(path), "--queries", "20"]) == 2
    assert f"error: {path}: retry: " in capsys.readouterr().err


def test_json_has_no_ratio_of_a_rule_that_is_unstable_and_marks_its_quantiles(capsys):
    rules = ("--rule", "round-robin", "--rule", "random-lp")
    found = asked(capsys, "two-servers", *rules, "--rate", "2.5")["rules"]
    assert found[0]["verdict"] == "UNSTABLE"
    assert [each["quantiles_grow"] for each in found] == [each["verdict"] == "UNSTABLE" for each in found]
    assert all(ratio is None for each in found for ratio in each["ratios"].values())


def test_the_help_can_be_printed(capsys):
    answer(["dispatch", "--help"])
    assert "NAME/ORDER" in capsys.readouterr().out


def test_a_query_of_one_call_has_one_call():
    assert "1 call a query" in workflow_words(qt.load_workflow("two-servers").workflow)


def test_a_profile_of_one_rate_is_refused(capsys, tmp_path):
    path = tmp_path / "flat.csv"
    path.write_text("time,factor\n0,1\n")
    assert answer(["dispatch", "two-servers", "--tune", "alpha", "--profile", str(path)]) == 2
    assert "holds one rate" in capsys.readouterr().err


def test_intervals_are_short_and_no_digit_is_noise():
    assert interval_text(Interval(mean=123.4, low=119.4, high=127.4)) == "123 ± 4"
    assert interval_text(Interval(mean=0.2891, low=0.2599, high=0.3183)) == "0.289 ± 0.029"
    assert interval_text(Interval(mean=float("inf"), low=None, high=None)) == "inf"
    assert interval_text(Interval(mean=2.0, low=None, high=None)) == "2"
    assert percent_text(Interval(mean=0.931, low=0.926, high=0.936)) == "93.1 ± 0.5 %"
    assert percent_text(Interval(mean=0.96, low=0.828, high=1.0)) == "96.0 % (82.8 .. 100.0)"
    assert (interval_text(None), percent_text(None)) == ("-", "-")
