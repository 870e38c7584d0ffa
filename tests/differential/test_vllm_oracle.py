"""vllm-chunked against step logs of the scheduler of vLLM 0.30.0, batch for batch, as a user would run it."""

import json
from fractions import Fraction

import pytest

from queuetheory_llm.cli.main import answer

# The scheduler that corresponds to the configuration of each log with blocks in plenty.
LOGS = {
    "w01_B32_S2": "vllm-chunked",
    "w03_B64_S4": "vllm-chunked",
    "w05_B128_S8": "vllm-chunked",
    "w06_B128_S4_time": "vllm-chunked",
    "w13_B512_S8_nochunk": "vllm-chunked+whole",
    "x15_B128_S8_lpt48": "vllm-chunked+threshold=48",
}


def batch_time(workload):
    """One second a step, or the log's own staircase with ticks of a microsecond; the seconds in a tick."""
    if workload["arrival_mode"] == "step":
        budget = workload["max_num_batched_tokens"]
        return f'law = "table"\ntokens = [{budget}]\nseconds = [1]\n', Fraction(1)
    law = workload["time_law"]
    return f'law = "staircase"\nc = "{law["c"]} us"\na = "{law["a"]} us"\nb0 = {law["b0"]}\n', Fraction(1, 10**6)


@pytest.mark.parametrize("name", LOGS)
def test_batches_of_the_real_scheduler(name, shared, tmp_path, capsys):
    log = json.loads((shared / "oracles" / "vllm-0.30" / f"{name}.json").read_text())
    workload = log["workload"]
    law, tick = batch_time(workload)
    model = tmp_path / "engine.toml"
    model.write_text(
        f"[engine]\nb_max = {workload['max_num_batched_tokens']}\nk_max = {workload['max_num_seqs']}\n"
        f"[engine.batch_time]\n{law}"
    )
    # The step with the last prompt token emits the first output: v_d = output - 1.
    rows = [f"{float(r['arrival'] * tick)},{r['prompt']},{r['output'] - 1}" for r in workload["requests"]]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival,prefill,decode", *rows]) + "\n")
    written = tmp_path / "batches.jsonl"

    code = answer(
        [
            "simulate",
            str(model),
            "--trace",
            str(trace),
            "--scheduler",
            LOGS[name],
            "--batch-log",
            str(written),
            "--json",
        ]
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err

    ours = [json.loads(line) for line in written.read_text().splitlines()]
    assert len(ours) == len(log["steps"])
    for step, batch in zip(log["steps"], ours, strict=True):
        assert batch == {
            "start": float(step["start"] * tick),
            "seconds": float((step["end"] - step["start"]) * tick),
            "tokens": step["total_tokens"],
            "prefill": [[request, count] for request, count, _, kind, _ in step["batch"] if kind == "prefill"],
            "decode": [request for request, _, _, kind, _ in step["batch"] if kind == "decode"],
        }

    report = json.loads(captured.out)
    results = log["requests_result"]
    assert report["batches"] == len(ours)
    assert report["requests"] == {"arrived": len(results), "finished": len(results), "present": 0}
    arrival = {request["id"]: request["arrival"] for request in workload["requests"]}
    for latency, event in (("ttft", "first_token"), ("e2e", "finish")):
        theirs = [(result[event] - arrival[result["id"]]) * tick for result in results]
        assert report["latency"][latency]["mean"] == pytest.approx(float(sum(theirs) / len(theirs)))
