"""Engines and workloads in one line of a figure."""

from __future__ import annotations

from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload


def engine_line(engine: Engine) -> str:
    """``b_max 512, no k_max, staircase batch time``."""
    batch_size = "no k_max" if engine.k_max is None else f"k_max {engine.k_max}"
    return f"b_max {engine.b_max}, {batch_size}, {engine.batch_time.law} batch time"


def workload_line(workload: Workload, *, arrivals: bool = True) -> str:
    """``Poisson arrivals, 12 requests/s, 129 prefill and 112 decode tokens a request``."""
    prefill, decode = (f"{float(mean):.6g}" for mean in (workload.mean_prefill, workload.mean_decode))
    if workload.constant_prompt is None:
        prefill = f"mean {prefill}"
    if workload.constant_decode is None:
        decode = f"mean {decode}"
    parts = [f"{prefill} prefill and {decode} decode tokens a request"]
    if arrivals and workload.arrivals is not None:
        parts.insert(
            0, f"{workload.arrivals.kind.capitalize()} arrivals, {float(workload.arrivals.rate):.4g} requests/s"
        )
    if len(workload.classes) > 1:
        parts.append(f"{len(workload.classes)} classes")
    return ", ".join(parts)
