"""A damaged file is read, or refused with one-line faults that name it; nothing else is ever raised."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.traces.reader import read_trace

TRACES = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.99,396,109",
    b"arrival,prefill,decode\n0,290,990\n0.4675,290,990\n1e1,1,0\n",
    b'{"timestamp": 0, "input_length": 6758, "output_length": 500}\n'
    b'{"timestamp": 7, "input_length": 1, "output_length": 2}\n',
    b'{"newly_append_tokens": 5, "output_tokens": 9, "timing_events": [{"timestamp": "2026-06-01T05:40:20.151Z"}]}\n',
    b"0,8.5,1.35,Gamma,0.54,0.21\n600,0,,,,\n",
]
MODEL = b"""[source]
title = "x"
[engine]
b_max = 512
[engine.batch_time]
law = "table"
tokens = [64, 512]
seconds = [0.035, "40 ms"]
[workload]
arrivals = "deterministic"
rate = "400/187"
[[workload.class]]
name = "a"
weight = 0.5
prefill = { law = "empirical", values = [1, 2], weights = [1, "1/3"] }
decode = { law = "lognormal", mean = 3, cv = 1 }
"""

pieces = st.binary(max_size=4) | st.sampled_from([bytes([each]) for each in b'0-.",{}[]=\nen_ '])
edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12), pieces), min_size=1, max_size=3)


def damaged(content, changes):
    for at, length, new in changes:
        start = at % (len(content) + 1)
        content = content[:start] + new + content[start + length :]
    return content


def read_or_refuse(reader, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        path.write_bytes(content)
        faults: tuple[str, ...] = ()
        try:
            reader(path)
        except InvalidInput as error:
            faults = error.faults or ("",)
        assert all(str(path) in fault for fault in faults)


@pytest.mark.parametrize("content", TRACES, ids=["azure", "plain", "mooncake", "tracelab", "servegen"])
@settings(deadline=None)
@given(changes=edits)
def test_traces(content, changes):
    read_or_refuse(read_trace, damaged(content, changes))


@settings(deadline=None, max_examples=300)
@given(changes=edits)
def test_models(changes):
    read_or_refuse(load_model, damaged(MODEL, changes))
