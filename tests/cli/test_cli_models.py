"""qt-llm models."""

import json

import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.files import packaged
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.network_file import load_network


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
        described = {"network"} if "network" in entry else {"engine", "workload"}
        assert set(entry) == {"name", "path", "source"} | described
        load = load_network if "network" in entry else load_model
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
