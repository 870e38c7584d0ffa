"""What hulls, bounds and thresholds cost. Times are printed and recorded, never asserted; sizes of the work are."""

import pytest

from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric, IndependentLengths
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.stability.capacity import token_capacity
from queuetheory_llm.stability.classify import _remembered, properties
from queuetheory_llm.stability.linear_drift import linear_drift
from queuetheory_llm.stability.prefill_first import stable_rates
from queuetheory_llm.stability.region import outer_region
from queuetheory_llm.stability.rounds import round_rate
from queuetheory_llm.stability.workload_region import constant_prompt_region, random_prompt_bound, slot_batches

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
BIG = Engine(batch_time=CODELLAMA, b_max=16_384, k_max=1024)
POINTS = range(1, 32_769)


def steps(b):
    """Microseconds of a measured batch of b tokens: tiles of 256, a dip at each whole tile, some noise."""
    return 30_000 + 120 * -(-b // 256) * 16 - 700 * (b % 256 == 0) + 37 * b % 101


TABLES = {
    "affine": [30_000 + 7 * b for b in POINTS],
    "noisy": [30_000 + 7 * b + 7919 * b % 911 for b in POINTS],
    "tile steps": [steps(b) for b in POINTS],
}


def timed(benchmark, function, *arguments, rounds=5, **options):
    """The result of a function that remembers nothing; the least time is printed beside the name of the benchmark."""

    def forgetful():
        for cached in (outer_region, constant_prompt_region, slot_batches, _remembered):
            cached.cache_clear()
        return arguments, options

    result = benchmark.pedantic(function, setup=forgetful, rounds=rounds, warmup_rounds=1)
    print(f"\n{benchmark.name}: {benchmark.stats.stats.min * 1000:.2f} ms")
    return result


@pytest.mark.benchmark(group="hull: b_max 16384, k_max 1024")
@pytest.mark.parametrize("law", [CODELLAMA, Hinge(c="11.28 ms", a="0.3 ms", b0=128)], ids=["staircase", "hinge"])
def test_outer_region(benchmark, law):
    region = timed(benchmark, outer_region, Engine(batch_time=law, b_max=16_384, k_max=1024), rounds=50)
    assert len(region.vertices) <= 8


@pytest.mark.benchmark(group="hull: table of 32768 points")
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("k_max", [None, 1024])
def test_outer_region_of_a_table(benchmark, kind, k_max):
    table = Table(tokens=POINTS, seconds_at=[f"{us} us" for us in TABLES[kind]])
    region = timed(benchmark, outer_region, Engine(batch_time=table, b_max=32_768, k_max=k_max))
    assert region.vertices[1].prefill == token_capacity(region.engine).tokens_per_s


@pytest.mark.benchmark(group="hull: constant prompts, b_max 16384")
@pytest.mark.parametrize("prompt", [1, 10, 290, 16_384])
def test_constant_prompts(benchmark, prompt):
    region = timed(benchmark, constant_prompt_region, BIG, prompt)
    assert region.vertices[1].prefill <= token_capacity(BIG).tokens_per_s


@pytest.mark.benchmark(group="linear programs")
@pytest.mark.parametrize("program", [random_prompt_bound, linear_drift], ids=["random prompts", "drift"])
@pytest.mark.parametrize("law", ["staircase", "noisy table"])
def test_linear_programs(benchmark, program, law):
    engine = BIG
    if law == "noisy table":
        table = Table(tokens=POINTS, seconds_at=[f"{us} us" for us in TABLES["noisy"]])
        engine = Engine(batch_time=table, b_max=32_768, k_max=1024)
    found = timed(benchmark, program, engine, IndependentLengths(290, Geometric(mean=990)), rounds=3)
    assert found.requests_per_s > 0


A100 = Engine(batch_time=CODELLAMA, b_max=512)


@pytest.mark.benchmark(group="thresholds: CodeLlama, 129/112")
@pytest.mark.parametrize("chunks", [False, True], ids=["vllm-vanilla", "sglang"])
def test_prefill_first(benchmark, chunks):
    low, high = timed(benchmark, stable_rates, A100, 129, 112.0, chunks=chunks, rounds=3)
    assert low == high > 10


@pytest.mark.benchmark(group="thresholds: CodeLlama, 129/112")
@pytest.mark.parametrize("law", [112, Geometric(mean=112)], ids=["constant", "geometric"])
def test_rounds(benchmark, law):
    workload = Workload.of(prefill=129, decode=law)
    assert timed(benchmark, round_rate, A100, 129, workload, chunks=False) > 0.3


@pytest.mark.benchmark(group="classification")
@pytest.mark.parametrize("name", ["sarathi", "vllm-vanilla", "sarathi+target=128"])
def test_classification(benchmark, name):
    found = timed(benchmark, properties, parse_scheduler(name), rounds=3)
    assert found.states > 1000
