"""HEXGEN-FLOW's claims: the words follow from the kept intervals by their rule, and what stands behind them."""

import json
import os
from fractions import Fraction
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import attrs
import numpy as np
import pytest

import queuetheory_llm as qt
from queuetheory_llm.dispatch.hexgen_released import choose
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.simulation.query_statistics import LEVEL

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = ROOT / "experiments" / "hexgen" / "run.py"
_SPEC = spec_from_file_location("hexgen", _SCRIPT)
RUN = module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUN)
KEPT = json.loads(RUN.EXPECTED.read_text())
LOG = Path(
    os.environ.get("QT_SHARED", ROOT.parent / "shared"), "data/workflows/text2sql_chess/input_file_formula1.json"
)
needs_log = pytest.mark.skipif(not LOG.is_file(), reason=f"the log of real queries is not at {LOG}")


def cell(low, high):
    return RUN.Interval(mean=(low + high) / 2, low=low, high=high)


def test_a_word_is_about_every_cell():
    assert RUN.word([cell(1.5, 1.6), cell(1.42, 3)], 1.42) == "confirmed"
    assert RUN.word([cell(1.1, 1.4), cell(0.2, 1.41)], 1.42) == "refuted"
    assert RUN.word([cell(1.1, 1.4), cell(1.5, 1.6)], 1.42) == "not confirmed"
    assert RUN.word([cell(1.1, 1.5)], 1.42) == "not confirmed"
    assert RUN.word([cell(0.9, 1.01)], 1, 1.02) == "refuted"
    assert RUN.word([cell(0.9, 1.03)], 1, 1.02) == "not confirmed"
    assert RUN.word([cell(1.5, 1.6), None], 1.42) == "not confirmed"
    assert RUN.word([], 1.42) == RUN.TRANSIENT


def test_a_claim_is_refuted_only_where_it_was_made():
    assert RUN.in_setting("refuted", "released") == "refuted"
    assert RUN.in_setting("refuted", "engines") == "does not carry over"
    assert RUN.in_setting("confirmed", "free-decodes") == "carries over"
    assert RUN.in_setting("not confirmed", "engines") == "not confirmed"


def test_the_word_on_alpha_is_about_both_rates():
    assert RUN.alpha_word({0.5: [0.1, 0.2], 1.0: [0.0, 0.1]}) == "confirmed"
    assert RUN.alpha_word({0.5: [0.0, 0.1], 1.0: [0.0]}) == "not confirmed"
    assert RUN.alpha_word({0.5: [0.0], 1.0: [0.0]}) == "refuted"


def test_an_interval_of_ratios_covers_as_often_as_it_says():
    rng = np.random.default_rng(3)
    found = [RUN.geometric(1.3 * np.exp(rng.normal(0, 0.2, 12))) for _ in range(2_000)]
    share = np.mean([each.low <= 1.3 <= each.high for each in found])
    assert abs(share - LEVEL) < 4 * np.sqrt(LEVEL * (1 - LEVEL) / 2_000)


def test_the_kept_words_follow_from_the_kept_intervals():
    assert json.loads(json.dumps(RUN.claims(KEPT))) == KEPT["claims"]
    made = {row["word"] for row in KEPT["claims"] if row["setting"] in RUN.CLAIMED}
    assert made <= {"confirmed", "not confirmed", "refuted", RUN.TRANSIENT}
    others = {row["word"] for row in KEPT["claims"] if row["setting"] not in RUN.CLAIMED}
    assert others <= {"carries over", "not confirmed", "does not carry over", RUN.TRANSIENT}


def test_no_word_rests_on_a_load_above_1():
    for row in KEPT["claims"]:
        if "transients" in row:
            assert (row["word"] == RUN.TRANSIENT) == (not row["cells"])
    assert min(row["loads"]["0.5"] for row in KEPT["capacity"] if row["setting"] == "released") > 2


def test_the_halved_score_is_the_released_one_where_no_price_is_halved():
    parameters = np.array([0.3, 1, 1, 1, 1.0])
    rng = np.random.default_rng(5)
    for _ in range(200):
        seconds, assigned = rng.uniform(1, 9, (2, 4))
        view = DispatchView(0, seconds, None, None, None, assigned, 0, None, 0.0)
        assert RUN._halved(view, parameters) == choose(view, parameters[:1])


def test_what_is_left_of_a_faster_gpu_beside_its_decode_steps_is_less():
    """Without memory an A100, the fastest for a call alone, adds the least capacity, for its latency law asks for more
    seconds a token than the released decode step takes, and the difference is served exclusively."""
    packaged = qt.load_workflow("hexgen-cluster-1")
    unlimited = [attrs.evolve(each, seats=None) for each in packaged.instances]
    found = qt.cluster_capacity(attrs.evolve(packaged, instances=unlimited))
    adds = {each.name: more for each, more in zip(found.types, found.derivative, strict=True)}
    seconds = dict(zip(adds, np.array(found.system.mean_seconds, dtype=float).sum(axis=0), strict=True))
    assert sorted(adds, key=adds.get) == ["A100", "A6000", "L40S"]
    assert min(seconds, key=seconds.get) == "A100"
    free = attrs.evolve(found.system, instances=[attrs.evolve(each, step=None) for each in found.system.instances])
    assert qt.cluster_capacity(free).rate_limit > 5 * found.rate_limit


def test_no_rule_can_have_the_claimed_multiple_of_round_robin():
    """The best split carries less than 1.49 times what equal parts carry, so no dispatch rule is stable at that."""
    ratios = {(row["setting"], row["cluster"]): row["capacity"] / row["round_robin"] for row in KEPT["capacity"]}
    for cluster in RUN.HETEROGENEOUS:
        assert 1 < ratios["engines", cluster] < 1.25
        assert 1 < ratios["free-decodes", cluster] < 1.25
    assert all(abs(ratios[setting, "homogeneous"] - 1) < 1e-12 for setting in RUN.SETTINGS)


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """A log of five queries, of the steps that every query has."""
    steps = ["Information Retriever"] * 4 + ["generate_candidate_llama-agent"] + ["unit_tester"] * 3
    queries = [
        [{"step": name, "input_length": 300 + 700 * k, "output_length": 40 * k + 5} for name in steps] for k in range(5)
    ]
    path = tmp_path_factory.mktemp("log") / "log.json"
    path.write_text(json.dumps([{"Text2SQLRequest": calls} for calls in queries]))
    return path


def test_five_queries_end_to_end(five, tmp_path, monkeypatch, capsys):
    """What is printed, kept and drawn; the seats of the packaged clusters are those of the log of the source alone."""
    small = {"tuning": 2, "measuring": 2, "queries": 5, "throughput": 5, "width": 0.5, "long": ("engines",)}
    monkeypatch.setattr(RUN, "QUICK", attrs.evolve(RUN.QUICK, **small))
    for name, value in {"ALPHAS": (0.0, 0.3), "LOADS": (0.5,), "QUERIES": 20, "COUNTED": slice(5, 15)}.items():
        monkeypatch.setattr(RUN, name, value)
    monkeypatch.setattr(RUN, "EXPECTED", tmp_path / "expected.json")
    monkeypatch.setattr(RUN, "FIGURE", tmp_path / "figure.svg")
    RUN.main(five, quick=True, write=True)
    found = json.loads((tmp_path / "expected.json").read_text())
    assert json.loads(json.dumps(RUN.claims(found))) == found["claims"]
    assert found["log"] == {"queries": 5, "calls": 40}
    assert {row["score"] for row in found["protocol"]} == set(RUN.SCORES)
    free = next(row for row in found["protocol"] if row["score"] == RUN.FREE)
    assert list(free["by_beta"]) == list(RUN.BETAS)
    assert RUN.table(found["claims"]) in capsys.readouterr().out
    assert "hexgen-paper" in (tmp_path / "figure.svg").read_text()


def test_the_scale_of_beta_is_the_square_of_a_mean_call(five):
    """On A100s a call takes -0.032 + 2.585e-5 in + 0.03908 out seconds, none of them below 0 here."""
    log = qt.read_workflow_log(five)
    at = RUN.system("homogeneous", "no-memory", log)
    calls = np.array([call for stage in log.stages for call in log.calls(stage)], dtype=float)
    mean = float((-0.032 + calls @ [2.585e-5, 0.03908]).mean())
    assert RUN.tbar(at) == pytest.approx(mean, rel=1e-3)
    tuned = RUN.candidates(RUN.FREE, "homogeneous", at)
    assert f"hexgen-paper+alpha=0.3+beta={10 * RUN.tbar(at) ** 2:.3g}" in [each.rule for each in tuned]


@needs_log
def test_the_packaged_seats_are_those_of_the_log():
    seats = RUN.seats(qt.read_workflow_log(LOG))
    for name in ("hexgen-cluster-1", "hexgen-cluster-2", "hexgen-homogeneous"):
        assert all(each.seats == seats[each.name] for each in qt.load_workflow(name).instances)


@needs_log
def test_the_log_has_the_kept_capacities_and_seats():
    log = qt.read_workflow_log(LOG)
    assert KEPT["log"] == {"queries": len(log), "calls": sum(len(log.calls(stage)) for stage in log.stages)}
    assert KEPT["seats"] == RUN.seats(log)
    kept = {(row["setting"], row["cluster"]): row for row in KEPT["capacity"]}
    for setting in RUN.SETTINGS:
        assert RUN.rounded(RUN.capacities("cluster-1", setting, log)) == kept[setting, "cluster-1"]


@needs_log
def test_other_queries_give_the_kept_factor_of_a_simple_rule():
    """Least outstanding against round robin, on replications that the kept interval has not seen."""
    log = qt.read_workflow_log(LOG)
    bench = RUN.Bench(system=RUN.system("cluster-1", "released", log), log=log, rate=0.5)
    ours, theirs = (bench.columns(rule, "fcfs", range(900, 912))[0] for rule in ("round-robin", "least-outstanding"))
    row = next(row for row in KEPT["protocol"] if (row["setting"], row["rate"]) == ("released", 0.5))
    kept = row["p95_ratio"]["vLLM"]["mean"] / row["p95_ratio"]["Ray"]["mean"]
    logs = np.log(ours / theirs)
    assert abs(logs.mean() - np.log(kept)) < 4 * logs.std(ddof=1) / np.sqrt(12)


@needs_log
def test_a_tenant_is_as_likely_as_the_other():
    log = qt.read_workflow_log(LOG)
    queries = RUN.recorded(RUN.system("cluster-2", "no-memory", log), log)
    assert np.bincount(queries.tenant).tolist() == [len(log)] * 2
    assert float(Fraction(RUN.SLO_BASE["cluster-2"]) * RUN.SCALE) == pytest.approx(301.17)
