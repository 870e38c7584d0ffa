"""qt-llm models."""

import json

import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.cli.words import cluster_words
from queuetheory_llm.files import packaged
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.model.arrivals import ConstantInterval
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.workflow import Stage, Workflow


def test_the_list_names_every_model(capsys):
    assert answer(["models"]) == 0
    out, err = capsys.readouterr()
    assert all(name in out for name in packaged.names())
    assert err == ""


def test_json_is_one_object(capsys):
    assert answer(["models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "qt-llm/models/1"
    assert [entry["name"] for entry in document["models"]] == packaged.names()
    for entry in document["models"]:
        kinds = {"network": (load_network, {"network"}), "workflow": (load_workflow, {"workflow", "cluster"})}
        load, described = next((kinds[key] for key in kinds if key in entry), (load_model, {"engine", "workload"}))
        assert set(entry) == {"name", "path", "source"} | described
        assert load(entry["path"]).source == entry["source"]


def test_one_model_is_printed_as_its_file(capsys, tmp_path):
    assert answer(["models", "vllm-default"]) == 0
    copy = tmp_path / "copy.toml"
    copy.write_text(capsys.readouterr().out)
    assert load_model(copy).engine == load_model("vllm-default").engine


def test_one_model_as_json(capsys):
    assert answer(["models", "vllm-default", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["models"]
    assert entry["engine"] == "staircase c = 11.28 ms, a = 35.47 ms, b0 = 128; b_max 2048, k_max 256"
    assert entry["workload"] == "no rate; 129 prefill, 112 decode"


@pytest.mark.parametrize("arguments", [["models", "vllm-defalt"], ["models", "vllm-defalt", "--json"]])
def test_a_typo(capsys, arguments):
    assert answer(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: vllm-defalt: ")
    assert "did you mean vllm-default?" in err


def test_a_workflow_and_its_cluster_are_told_in_a_line_each(capsys):
    assert answer(["models"]) == 0
    out = capsys.readouterr().out
    assert "workflow: 12 stages, 1 retry, 17.8 calls a query, 2 tenants" in out
    assert "cluster: 2 A100, 1 A6000, 1 L40S (isolated-latency instances); poisson, 0.12 queries/s" in out
    assert "cluster: 2 A100, 1 A6000, 1 L40S (batch engines); poisson, 0.5 queries/s" in out
    assert "workflow: 1 stage, 1 call a query, 1 tenant" in out
    assert "cluster: 1 fast, 1 slow (classical servers); poisson, 2.4 queries/s" in out


def test_clusters_of_several_kinds_say_each():
    stages = [Stage(name="ask", prefill=10, decode=5), Stage(name="run", work=ConstantInterval(mean=1))]
    law = LatencyLaw(base=1, per_prefill=0, per_decode=1)
    instances = [
        Instance(name="cpu", speed=1, count=2, stages=["run"]),
        Instance(name="gpu", latency=law, stages=["ask"]),
    ]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    assert cluster_words(system).startswith("2 cpu (classical servers), 1 gpu (isolated-latency instances); poisson")
