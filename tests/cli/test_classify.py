"""``qt-llm classify``: a table derived from the batches, with a theorem or a witness for every line."""

import json
import os
import subprocess
import sys

import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.schedulers.registry import SCHEDULERS
from queuetheory_llm.stability.topologies import TOPOLOGIES


def run(capsys, *arguments):
    code = answer(["classify", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "qt-llm/classify/1"
    return {each["scheduler"]: each for each in found["schedulers"]}


def test_every_rule_and_every_topology(capsys):
    found = report(capsys)
    assert list(found) == list(SCHEDULERS)
    columns = [topology.name for topology in TOPOLOGIES]
    for each in found.values():
        assert {"work_conserving", "k_fcfs", "throughput_optimal", "reason", "states", "witnesses"} <= set(each)
        assert list(each["topologies"]) == columns
        answers = [verdict["throughput_optimal"] for verdict in each["topologies"].values()]
        assert answers[:-1] == [each["throughput_optimal"]] * (len(columns) - 1)
        # No rule decides a cycle through several stations; what fails on one engine fails there for that reason.
        cycle = each["topologies"]["cycle through several stations"]
        assert cycle["throughput_optimal"] is False
        assert ("Rybko" in cycle["reason"]) == each["throughput_optimal"] == (cycle["condition"] is not None)
        if each["work_conserving"]:
            assert "Theorem 2" in each["reason"]
            assert each["witnesses"] == {}
        else:
            assert {"work_conserving", "throughput_optimal"} <= set(each["witnesses"])
    assert {name for name, each in found.items() if each["work_conserving"]} == {"orca", "sarathi", "vllm-chunked"}
    assert {each["k_fcfs"] for each in found.values()} == {0}


def test_a_witness_is_a_state_a_batch_and_a_demand(capsys):
    witness = report(capsys, "--scheduler", "vllm-vanilla")["vllm-vanilla"]["witnesses"]["work_conserving"]
    assert witness == {
        "b_max": 2,
        "state": [[1, 0], [0, 1]],
        "running": [],
        "batch": {"prefill": [[0, 1]], "decode": []},
        "demand": 2,
    }


def test_flags_change_the_class(capsys):
    names = ["sglang", "sglang+mixed", "vllm-vanilla+chunk", "vllm-chunked+whole", "sarathi+target=8"]
    found = report(capsys, *(word for name in names for word in ("--scheduler", name)))
    assert [found[name]["work_conserving"] for name in names] == [False, True, False, False, False]


def test_the_table_in_words(capsys):
    code, out, err = run(capsys, "--scheduler", "sarathi", "--scheduler", "fastertransformer")
    assert (code, err) == (0, "")
    for words in (
        "throughput-optimal? (no limit k_max)",
        "work-conserving",
        "\nsarathi            yes  0  yes     yes      yes*   yes    yes  yes        no**\n",
        "\nfastertransformer  no   0  no      no       no     no     no   no         no\n",
        "\nWC: work-conserving; K: of K-FCFS\n* if p_i proportional to F_i\n** unless every station has one class\n",
        "work-conserving and 0-FCFS, Theorem 2 of arXiv 2504.07347",
        "not work-conserving: b_max",
        "the batch serves",
        "the batches repeat and the",
        SCHEDULERS["fastertransformer"].source,
        *(topology.theorem for topology in TOPOLOGIES),
    ):
        assert words in out
    assert max(map(len, out.split("\n\n")[0].splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scheduler", "sarati"], "did you mean sarathi?"),
        (["--scheduler", "sarathi+chunk+whole"], "sets chunks twice"),
        (["--scheduler"], "--scheduler requires an argument"),
        (["sarathi"], "sarathi"),
        (["--nope"], "Unknown option"),
        (["--scheduler", ""], "known: fastertransformer"),
    ],
)
def test_refusals(capsys, arguments, complaint):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert complaint in err


def test_every_process_finds_the_same_witness():
    """Whatever the hash seed."""
    command = [sys.executable, "-c", "from queuetheory_llm.cli.main import run; run()", "classify", "--json"]
    flags = ["--scheduler", "static", "--scheduler", "vllm-vanilla"]
    found = {
        subprocess.run(
            [*command, *flags], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
