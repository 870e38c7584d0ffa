"""Every published profile that lies beside the repository: read, fitted, its quirks named."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.profiles import Gemm, Selection, read_profile
from queuetheory_llm.fitting import Fit, fit_profile

VIDUR = Path("vidur/data/profiling")
SPLITWISE = Path("splitwise-sim/perf_model.csv")
SARATHI = Path("sarathi-serve/osdi-experiments/figure-2")
V0 = Path("llmservingsim_v0/A6000/meta-llama/Llama-3.1-8B/tp1")
V1 = Path("llmservingsim_v1/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1")
DISTSERVE = Path("distserve/profiler-a100-80g.vllm.json")
BLIS = Path("blis/goldendataset.json")

#: Layers of the models, from their public configurations.
LAYERS = {"CodeLlama-34b-Instruct-hf": 48, "Llama-2-70b-hf": 80, "Llama-2-7b-hf": 32}
#: Matrix products of one Llama-2-70B layer in 4 shards: qkv and gate-up fused as in vLLM.
GEMMS = tuple(Gemm(n=n, k=k) for n, k in ((2560, 8192), (8192, 2048), (7168, 8192), (7168, 8192), (8192, 7168)))


@pytest.fixture
def data(shared: Path) -> Path:
    return shared / "data" / "batch_time"


def fit(paths: list[Path], **choices: object) -> Fit:
    return fit_profile(read_profile(paths, Selection(**choices)))  # type: ignore[arg-type]


def check(result: Fit) -> None:
    """What must hold of any fit: the chosen law is within 10 % or is the table, and makes an engine."""
    assert result.chosen.name == "table" or result.chosen.max_relative_error <= 0.10
    if result.chosen.name == "table":
        assert result.chosen.max_relative_error < 1e-6
    engine = result.engine()
    assert engine.b_max <= result.profile.tokens[-1]
    assert engine.batch_time.seconds(1) > 0


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", LAYERS)
@pytest.mark.parametrize("hardware", ["a100", "a40", "h100"])
def test_vidur(data, hardware, model, tp):
    found = list((data / VIDUR / "compute" / hardware).glob(f"*/{model}/mlp.csv"))
    if not found:
        pytest.skip(f"{model} was not profiled on {hardware}")
    network = data / VIDUR / "network" / f"{hardware}_dgx" / "all_reduce.csv"
    paths = [*found, *([network] if tp > 1 and network.is_file() else [])]
    result = fit(paths, layers=LAYERS[model], tp=tp)
    check(result)
    assert len(result.profile) == 259
    assert result.tile_steps
    assert any("2 token counts are in several rows (2048, 4096)" in note for note in result.notes)


def test_vidur_codellama_agrees_with_the_published_fit(data):
    """Dai et al. 2025, section 2.3: c = 11.28 ms, a = 35.47 ms, b0 = 128, R^2 > 0.97, CodeLlama-34B on one A100."""
    paths = list((data / VIDUR / "compute" / "a100").glob("*/CodeLlama-34b-Instruct-hf/mlp.csv"))
    result = fit(paths, layers=48, tp=1)
    staircase = next(candidate for candidate in result.candidates if candidate.name == "staircase")
    assert staircase.law.b0 == 128
    assert float(staircase.law.a) == pytest.approx(0.03547, rel=0.02)
    assert float(staircase.law.c) == pytest.approx(0.01128, abs=0.002)
    assert staircase.r2 is not None
    assert staircase.r2 > 0.97


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("hardware", ["a100-80gb", "h100-80gb"])
def test_splitwise(data, hardware, tp):
    result = fit([data / SPLITWISE], hardware=hardware, tp=tp)
    check(result)
    bad = [note for note in result.notes if "5 bad rows dropped" in note and "batch 64 of prompt 512" in note]
    assert len(bad) == (1 if tp == 2 else 0)
    assert (64 in result.profile.tokens) == (tp != 2)


def test_sarathi(data):
    check(fit([data / SARATHI / "prefill.csv"]))
    check(fit([data / SARATHI / "decode.csv"]))
    both = fit([data / SARATHI / "prefill.csv", data / SARATHI / "decode.csv"])
    check(both)
    assert 256 not in both.profile.tokens
    assert any("prefill.csv line 3 dropped" in note for note in both.notes)


def test_llmservingsim_v0(data):
    result = fit([data / V0 / "layers.csv"], layers=32)
    check(result)
    assert result.profile.tokens == tuple(range(1, 2049))
    with pytest.raises(InvalidInput, match="no law in tokens alone"):
        fit([data / V0 / "attention.csv"])


def test_llmservingsim_v1(data):
    result = fit([data / V1 / "dense.csv"], layers=32)
    check(result)
    assert "per_sequence.csv" in result.profile.source
    assert any("enforce_eager true" in note for note in result.notes)
    with pytest.raises(InvalidInput, match="no law in tokens alone"):
        fit([data / V1 / "attention.csv"])


@pytest.mark.parametrize(
    ("hardware", "dtype"), [("a100", None), ("h100", "bfloat16"), ("h100", "fp8"), ("h100", "fp8_block")]
)
def test_aiconfigurator(data, hardware, dtype):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    folder = data / "aiconfigurator" / f"{hardware}_sxm"
    check(fit([next(folder.rglob("gemm_perf.parquet"))], layers=80, gemms=GEMMS, dtype=dtype))
    for attention in folder.rglob("*_attention_perf.parquet"):
        with pytest.raises(InvalidInput, match="no law in tokens alone"):
            fit([attention])


@pytest.mark.parametrize(
    ("model", "tp"), [("opt-13b", 1), ("opt-13b", 2), ("opt-13b", 4), *(("opt-66b", tp) for tp in (2, 3, 4, 8))]
)
def test_distserve(data, model, tp):
    name = f"facebook/{model}"
    prefill = fit([data / DISTSERVE], model=name, tp=tp, phase="prefill")
    check(prefill)
    negative = any("negative" in note for note in prefill.notes)
    assert negative == ((model, tp) == ("opt-66b", 2))
    check(fit([data / DISTSERVE], model=name, tp=tp, phase="decode", context=512, b_max=256))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("test", range(1, 6))
def test_blis(data, test, phase):
    result = fit([data / BLIS], test=test, phase=phase)
    assert result.chosen.name == "affine"
    assert result.chosen.max_relative_error < 1e-6
