"""The packaged models hold what their sources say."""

from fractions import Fraction

import pytest

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files import packaged
from queuetheory_llm.files.model_file import load_model, read_document
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.model.chances import memoryless_decode

NETWORKS = [name for name in packaged.names() if read_document(name).is_network]
WORKFLOWS = [name for name in packaged.names() if read_document(name).is_workflow]
ENGINES = [name for name in packaged.names() if name not in (*NETWORKS, *WORKFLOWS)]


@pytest.mark.parametrize("name", packaged.names())
def test_every_model_loads_and_names_its_source(name):
    load = load_network if name in NETWORKS else load_workflow if name in WORKFLOWS else load_model
    model = load(name)
    assert model.name == name
    assert model.source["title"]
    assert model.source["url"].startswith("https://")
    assert model.source["section"]


@pytest.mark.parametrize("name", ENGINES)
def test_a_packaged_name_is_a_path(name):
    assert load_model(packaged.path(name)).engine == load_model(name).engine


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_no_engine(name):
    with pytest.raises(InvalidModel, match="network"):
        load_model(name)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_no_engine_and_a_network_where_stations_can_say_what_its_instances_do(name):
    with pytest.raises(InvalidModel, match="load_workflow"):
        load_model(name)
    if any(each.latency is not None for each in load_workflow(name).instances):
        with pytest.raises(InvalidModel, match="no station of a network"):
            load_network(name)
    else:
        assert load_network(name).name == name


@pytest.mark.parametrize(("name", "kind"), [("lu-kumar", "a network"), ("hexgen-a100", "one engine")])
def test_others_are_no_workflow(name, kind):
    with pytest.raises(InvalidModel, match=kind):
        load_workflow(name)


def test_the_models_there_are():
    assert {"codellama-34b-a100", "codellama-34b-a100-k100", "vllm-default", "hexgen-a100"} <= set(packaged.names())


def test_vertex_experiment_is_exactly_on_the_vertex():
    system = load_model("codellama-34b-a100-k100")
    batch = system.engine.batch_time.seconds(128)  # (29, 99) tokens
    rate = system.workload.rate
    assert rate == Fraction(400, 187)
    assert (rate * 290 * batch, rate * 990 * batch) == (29, 99)


def test_the_engine_for_the_exact_chain_has_states_that_are_few():
    """Prompts of one full batch, decodes without an age; far enough from the edge of the region."""
    system = load_model("codellama-34b-a100-b128")
    engine, workload = system.engine, system.workload
    assert memoryless_decode(workload) is not None
    assert (engine.b_max, workload.mean_prefill, workload.mean_decode) == (128, 128, 50)
    assert engine.batch_time.seconds(128) == Fraction("46.75") / 1000
    load = workload.rate * 178 * engine.batch_time.seconds(128) / 128
    assert Fraction("0.79") < load < Fraction("0.81")


@pytest.mark.parametrize(
    ("name", "intercept", "per_token", "step"),
    [
        ("hexgen-a100", -0.032, 2.585e-5, 0.03908),
        ("hexgen-a6000", -0.104, 3.677e-5, 0.06049),
        ("hexgen-l40s", -0.132, 3.281e-5, 0.05631),
    ],
)
def test_isolated_latencies(name, intercept, per_token, step):
    """A prompt above b0, alone, and a decode step: those of the fit, but for its negative intercept."""
    law = load_model(name).engine.batch_time
    assert float(law.seconds(256)) == pytest.approx(step)
    for prompt in (2000, 4000, 8000):
        assert float(law.seconds(prompt)) == pytest.approx(per_token * prompt, rel=2e-3)
        alone = float(law.seconds(prompt) + 499 * law.seconds(1))  # the first of 500 tokens comes with the prefill
        assert abs(alone - (intercept + per_token * prompt + step * 500)) < 0.08


def test_a_missing_installation_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(packaged, "_PACKAGE", tmp_path / "package")
    with pytest.raises(InvalidInput, match="reinstall"):
        packaged.names()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.toml").touch()
    assert packaged.names() == ["a"]


@pytest.mark.parametrize("name", ["azure-conv-2023", "mooncake-conversation", "vidur-arxiv"])
def test_a_model_made_from_a_trace_names_the_licence_of_the_trace(name):
    assert load_model(name).source["licence"] in {"Apache-2.0", "CC-BY-4.0", "MIT"}
