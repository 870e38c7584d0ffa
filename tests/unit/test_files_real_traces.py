"""The readers and the packaged summaries on the public traces, where these are at hand."""

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.traces.reader import read_trace
from queuetheory_llm.model.lengths import IndependentLengths

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("QT_SHARED", ROOT.parent / "shared")) / "data" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not in {TRACES}")

AZURE = "azure2023/AzureLLMInferenceTrace_conv.csv"
VIDUR = "vidur/splitwise_conv.csv"
ARXIV = "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
VLLM = "llmservingsim_bench/RTX4090/Llama-3.1-8B/vllm/requests.jsonl"
TRACELAB = "tracelab/round_trace.jsonl"
CLIENT = "servegen/reason/deepseek-r1/chunk-35-trace.csv"
CLIENT_WITHOUT_LENGTHS = "servegen/language/m-small/chunk-5-trace.csv"


@pytest.mark.parametrize(
    ("file", "form", "rows"),
    [
        (AZURE, "Azure", 19366),
        (VIDUR, "Vidur", 19366),
        (ARXIV, "Vidur lengths", 28257),
        (MOONCAKE, "Mooncake", 12031),
        (VLLM, "vLLM bench", 300),
        (TRACELAB, "TraceLab", 19),
    ],
)
def test_formats_and_rows(file, form, rows):
    trace = read_trace(TRACES / file)
    assert (trace.format, len(trace), trace.first_token) == (form, rows, "engine")


def test_azure_and_its_vidur_copy_are_the_same_requests():
    azure, vidur = read_trace(TRACES / AZURE), read_trace(TRACES / VIDUR)
    assert azure.tick == Fraction(1, 10**7)
    assert np.array_equal(azure.lengths.prefill, vidur.lengths.prefill)
    assert np.array_equal(azure.lengths.decode, vidur.lengths.decode)
    assert vidur.tick == Fraction(1, 10**9)
    assert any("rounded to 1 ns" in note for note in vidur.notes)
    assert np.abs(azure.arrivals * 100 - vidur.arrivals).max() <= 1000  # the copy is rounded to 1 us
    assert not np.any(np.diff(azure.arrivals) <= 0)


def test_mooncake_ticks():
    trace = read_trace(TRACES / MOONCAKE)
    assert np.unique(trace.arrivals).size == 1180
    assert any(note.startswith("10851 of 12031") for note in trace.notes)


def test_vllm_bench_rate():
    assert float(read_trace(TRACES / VLLM).rate) == pytest.approx(10, rel=0.1)


def test_servegen_clients():
    trace = read_trace(TRACES / CLIENT)
    rates = [Fraction(line.split(",")[1]) for line in (TRACES / CLIENT).read_text().splitlines()]
    assert trace.rate == sum(rates) / 144
    assert isinstance(trace.lengths, IndependentLengths)
    with pytest.raises(InvalidInput, match="--prefill N --decode N"):
        read_trace(TRACES / CLIENT_WITHOUT_LENGTHS)
    assert read_trace(TRACES / CLIENT_WITHOUT_LENGTHS, lengths=IndependentLengths(100, 10)).rate > 0


def test_a_file_that_is_no_request_trace():
    with pytest.raises(InvalidInput, match="no known format"):
        read_trace(TRACES / "llmservingsim_bench/RTX4090/Llama-3.1-8B/vllm/timeseries.csv")


@pytest.mark.parametrize(
    ("model", "file"), [("azure-conv-2023", AZURE), ("mooncake-conversation", MOONCAKE), ("vidur-arxiv", ARXIV)]
)
def test_packaged_summaries_are_those_of_the_data(model, file):
    trace, workload = read_trace(TRACES / file), load_model(model).workload
    lengths = workload.classes[0].lengths
    for law, column in ((lengths.prefill, trace.lengths.prefill), (lengths.decode, trace.lengths.decode)):
        groups = np.array_split(np.sort(column), 20)
        assert law.values == tuple(round(float(group.mean())) for group in groups)
        assert law.weights == tuple(group.size for group in groups)
    if trace.rate is None:
        assert workload.rate is None
    else:
        assert float(workload.rate) == pytest.approx(float(trace.rate), rel=1e-5)
