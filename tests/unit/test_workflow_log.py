"""Logs of CHESS workflows: the order of their steps, what they suggest, and the real one where it is at hand."""

import json
from fractions import Fraction

import pytest

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.files.workflow_log import read_workflow_log
from queuetheory_llm.model.workflow import Tenant
from queuetheory_llm.model.workflow_log import WorkflowLog

STEPS = {
    "i": "Information Retriever", "k": "extract_keywords", "c": "generate_candidate_llama-agent", "r": "revise",
    "u": "unit_tester", "g": "generate_unit_test", "e": "evaluate",
}  # fmt: skip


def entry(letters):
    """A query: the call at each place has its place as prompt, and one token of output."""
    calls = [{"step": STEPS[each], "input_length": place, "output_length": 1} for place, each in enumerate(letters)]
    return {"Text2SQLRequest": calls}


def read(tmp_path, content):
    path = tmp_path / "log.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_workflow_log(path)


def test_stages_are_told_by_their_places(tmp_path):
    log = read(tmp_path, [entry("ikiiiccrrrugueeeu"), entry("iiiiccugueeu")])
    first, second = log.queries
    assert {stage: [prefill for prefill, _ in calls] for stage, calls in first.items()} == {
        "retrieve 1": [0], "extract keywords": [1], "retrieve 2": [2], "retrieve 3": [3], "retrieve 4": [4],
        "generate candidate": [5, 6], "revise": [7, 8, 9], "unit tester 1": [10], "generate unit test": [11],
        "unit tester 2": [12], "evaluate": [13, 14, 15], "unit tester 3": [16],
    }  # fmt: skip
    assert set(first) - set(second) == {"extract keywords", "revise"}
    assert second["retrieve 4"] == ((3, 1),)
    assert log.parallel == {"generate candidate", "evaluate"}


@pytest.mark.parametrize(
    ("letters", "fault"),
    [
        (
            "iiicc",
            "query 1: call 3: 'generate_candidate_llama-agent', where 'Information Retriever' is expected (retrie",
        ),
        ("kiiiiccuguu", "query 1: call 0: 'extract_keywords', where 'Information Retriever' is expected (retrieve 1)"),
        ("iiiiccug", "query 1: ends after 8 calls, where 'unit_tester' is expected (unit tester 2)"),
        ("iiiiccugueuu", "query 1: call 11: 'unit_tester' comes after the end; the last is 'unit tester 3'"),
        ("iiiiccruguereu", "query 1: call 11: 'revise', where 'unit_tester' is expected (unit tester 3)"),
    ],
)
def test_another_order(tmp_path, letters, fault):
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, [entry("iiiiccugueu"), entry(letters)])
    (found,) = refused.value.faults
    assert fault in found


def test_a_step_that_is_not_known(tmp_path):
    content = [entry("iiiiccugueu"), entry("iiiiccugueu"), entry("iiiiccugueu")]
    content[0]["Text2SQLRequest"][5]["step"] = "revize"
    content[2]["Text2SQLRequest"][0]["step"] = None
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, content)
    first, second = refused.value.faults
    assert "query 0: call 5: step 'revize' is not known; did you mean revise?; known steps: Information Retr" in first
    assert "query 2: call 0: step None is not known" in second
    assert all(name in first for name in STEPS.values())
    assert second.count("extract_keywords") == 1


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "no JSON"),
        ("[1, 2", "line 1, column 6: no JSON"),
        ("{}", "is no list of queries"),
        ("[]", "is no list of queries"),
        ("[3]", "query 0: has no list of calls"),
        ('[{"Text2SQLRequest": []}]', "query 0: has no list of calls"),
        ('[{"Text2SQLRequest": [3]}]', "query 0: call 0: 3 is no call"),
        ("[" * 100_000, "nested thousands deep"),
        ("[" + "1" * 5000 + "]", "thousands of digits"),
        (
            '[{"Text2SQLRequest": [{"step": "revise", "input_length": 1.5}]}]',
            "call 0.input_length: 1.5 is no number of",
        ),
        (
            '[{"Text2SQLRequest": [{"step": "revise", "input_length": 0, "output_length": 0}]}]',
            "call 0: has 0 + 0 tokens",
        ),
        ('[{"Text2SQLRequest": [{"step": "revise", "input_length": true, "output_length": 0}]}]', "True is no number"),
    ],
)
def test_what_is_no_log(tmp_path, content, fault):
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, content)
    (found,) = refused.value.faults
    assert found.startswith(str(tmp_path))
    assert fault in found
    assert len(found) < 400


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path, fault in ((tmp_path / "none", "cannot be read"), (tmp_path, "directory"), (tmp_path / "binary", "UTF-8")):
        with pytest.raises(InvalidInput, match=fault):
            read_workflow_log(path)
    with pytest.raises(InvalidInput, match=r"format: 'ches' is not known; did you mean chess"):
        read_workflow_log(tmp_path / "binary", format="ches")


def test_many_bad_queries_are_not_all_listed(tmp_path):
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, [entry("u")] * 30)
    assert len(refused.value.faults) == 21
    assert refused.value.faults[-1].endswith("and 10 more queries like these")


def test_the_workflow_has_the_frequencies_of_the_log(tmp_path):
    log = read(tmp_path, [entry("ikiiiccrrrugueeeu"), entry("iiiiccugueeu"), entry("ikiiiccrugueeeu")])
    flow = log.workflow([Tenant(name="one", slo_scale=3)])
    named = {each.name: (each, visits) for each, visits in zip(flow.stages, flow.visits, strict=True)}
    assert [each.name for each in flow.tenants] == ["one"]
    for stage, (each, visits) in named.items():
        calls = log.calls(stage)
        assert visits == Fraction(len(calls), 3)
        assert each.prefill.mean == Fraction(sum(prefill for prefill, _ in calls), len(calls))
        assert each.decode.mean == 1
    assert named["extract keywords"][0].chance == named["revise"][0].chance == Fraction(2, 3)
    (retry,) = flow.retries
    assert (retry.source, retry.to, retry.probability) == ("revise", "revise", Fraction(1, 2))
    assert named["evaluate"][0].calls.to_dict() == {"law": "empirical", "values": [2, 3], "weights": [1, 2]}


def test_the_fit_of_a_loop_keeps_the_mean_and_has_the_variance_it_says():
    counts = [0, 0, 3, 1, 0, 5]
    log = WorkflowLog(
        stages=("a", "b"),
        parallel=frozenset(),
        queries=tuple({"a": ((1, 1),), **({"b": ((1, 1),) * n} if n else {})} for n in counts),
    )
    (fit,) = log.loops
    assert (fit.stage, fit.chance, fit.again) == ("b", Fraction(1, 2), Fraction(2, 3))
    chances = [Fraction(1, 2), *(Fraction(1, 2) * Fraction(1, 3) * Fraction(2, 3) ** n for n in range(400))]
    mean = sum(n * chance for n, chance in enumerate(chances))
    assert float(mean) == pytest.approx(sum(counts) / 6)
    assert float(fit.fitted_variance) == pytest.approx(float(sum((n - mean) ** 2 * p for n, p in enumerate(chances))))
    assert fit.variance == Fraction(35, 6) - Fraction(9, 6) ** 2


@pytest.mark.parametrize(
    ("queries", "fault"),
    [
        ((), "queries: there is none"),
        (({},), "query 0: has no calls"),
        (({"x": ((1, 1),)},), "query 0: 'x' is no stage"),
        (({"a": ()},), "query 0: 'a' has no calls"),
        (({"a": ((0, 0),)},), "query 0: 'a' has no calls, or one without tokens"),
    ],
)
def test_a_log_in_python(queries, fault):
    with pytest.raises(InvalidModel, match=fault):
        WorkflowLog(stages=("a",), parallel=frozenset(), queries=queries)


@pytest.fixture(scope="module")
def log(shared):
    return read_workflow_log(shared / "data/workflows/text2sql_chess/input_file_formula1.json")


class TestTheRealLog:
    def test_all_calls_find_their_stage(self, log):
        assert len(log) == 29
        assert sum(len(calls) for query in log.queries for calls in query.values()) == 515
        assert len(log.calls("extract keywords")) == 26
        assert set(log.counts("generate candidate")) == {2}
        assert (min(log.counts("evaluate")), max(log.counts("evaluate"))) == (3, 11)

    def test_revisions_are_clustered_as_the_fit_says_and_not_as_one_geometric_law(self, log):
        (fit,) = log.loops
        assert (fit.stage, fit.chance, fit.again) == ("revise", Fraction(11, 29), Fraction(4, 5))
        assert 0.8 < fit.variance / fit.fitted_variance < 1.2
        assert fit.variance > 2 * fit.geometric_variance

    @pytest.mark.parametrize(
        "name", ["hexgen-cluster-1", "hexgen-cluster-2", "hexgen-homogeneous", "agents-mixed-gpus"]
    )
    def test_the_packaged_workflows_are_those_of_the_log(self, log, name):
        logged, flow = log.workflow(), load_workflow(name).workflow
        assert flow.visits == logged.visits
        assert flow.retries == logged.retries
        for each, real in zip(flow.stages, logged.stages, strict=True):
            assert (each.name, each.chance, each.calls.mean) == (real.name, real.chance, real.calls.mean)
            assert abs(each.prefill.mean - real.prefill.mean) <= 0.5
            assert abs(each.decode.mean - real.decode.mean) <= 0.5
