"""Queries of a workflow drawn a second; every comparison of dispatch rules begins with them. Seconds of CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.simulation.workflow_draws import draw_queries

pytestmark = pytest.mark.benchmark(timer=time.process_time, group="workflows")
Figure = Callable[[str], None]
QUERIES = 10_000
SECONDS = 1.0


def test_ten_thousand_queries_of_eighteen_calls(benchmark: BenchmarkFixture, figure: Figure) -> None:
    workflow = load_workflow("hexgen-cluster-1").workflow
    arrivals = np.arange(QUERIES, dtype=np.int64)
    drawn = benchmark(lambda: draw_queries(workflow, arrivals, np.random.default_rng(1)))
    seconds = benchmark.stats.stats.median
    figure(f"draws of workflows: {QUERIES} queries, {drawn.calls} calls in {seconds:.3f} s (at most {SECONDS:g})")
    assert seconds < SECONDS
