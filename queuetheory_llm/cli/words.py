"""Engines and workloads in a few words, for tables and reports."""

from __future__ import annotations

from queuetheory_llm.exact.numbers import duration_text
from queuetheory_llm.model.arrivals import (
    Arrivals,
    DeterministicArrivals,
    RenewalArrivals,
    SlottedArrivals,
)
from queuetheory_llm.model.batch_time import BatchTime, Table
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import IndependentLengths, LengthLaw, RequestLengths
from queuetheory_llm.model.network import Network
from queuetheory_llm.model.workflow import Workflow
from queuetheory_llm.model.workload import Workload


def engine_words(engine: Engine) -> str:
    """``staircase c = 11.28 ms, a = 35.47 ms, b0 = 128; b_max 512, no k_max``."""
    limits = [f"b_max {engine.b_max}", "no k_max" if engine.k_max is None else f"k_max {engine.k_max}"]
    if engine.kv_tokens is not None:
        limits.append(f"{engine.kv_tokens} KV tokens")
    return f"{_law_words(engine.batch_time)}; {', '.join(limits)}"


def _law_words(law: BatchTime) -> str:
    if isinstance(law, Table):
        return f"table of {len(law.tokens)} points up to {law.longest} tokens"
    parameters = {key: value for key, value in law.to_dict().items() if key != "law"}
    return f"{law.law} " + ", ".join(f"{key} = {value}" for key, value in parameters.items())


def network_words(network: Network) -> str:
    """``2 LLM engines, 1 classical server, 4 classes, 2 streams, 1 fork, 1 join``."""
    engines = sum(len(station.engines) for station in network.stations)
    counted = [
        (engines, "LLM engine"),
        (sum(station.classical for station in network.stations), "classical server"),
        (len(network.classes), "class"),
        (len(network.arrivals), "stream"),
        (sum(route.is_fork for route in network.routes), "fork"),
        (len(network.joins), "join"),
    ]
    return ", ".join(f"{count} {_plural(word, count)}" for count, word in counted if count)


def workflow_words(workflow: Workflow) -> str:
    """``12 stages, 1 retry, 17.8 calls a query, 2 tenants``."""
    calls = f"{float(sum(workflow.visits)):.3g}"
    stages, tenants = len(workflow.stages), len(workflow.tenants)
    retries = len(workflow.retries)
    counted = [
        f"{stages} {_plural('stage', stages)}",
        *([f"{retries} {'retry' if retries == 1 else 'retries'}"] if retries else []),
        f"{calls} {_plural('call', 1 if calls == '1' else 2)} a query",
        f"{tenants} {_plural('tenant', tenants)}",
    ]
    return ", ".join(counted)


def cluster_words(system: WorkflowSystem) -> str:
    """``2 A100, 1 A6000, 1 L40S (batch engines); poisson, 0.5 queries/s``."""
    arrivals = system.arrivals
    kinds = list(dict.fromkeys(map(_instance_kind, system.instances)))
    counts = [f"{each.count} {each.name}" for each in system.instances]
    if len(kinds) > 1:
        counts = [f"{said} ({_instance_kind(each)})" for said, each in zip(counts, system.instances, strict=True)]
    listed = ", ".join(counts) + f" ({kinds[0]})" * (len(kinds) == 1)
    return f"{listed}; {arrivals.kind}, {float(arrivals.rate):.6g} queries/s"


def _instance_kind(instance: Instance) -> str:
    if instance.engine is not None:
        return "batch engines"
    return "classical servers" if instance.speed is not None else "isolated-latency instances"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}es" if word.endswith("s") else f"{word}s"


def workload_words(workload: Workload | None) -> str:
    """``poisson, 12 requests/s; 129 prefill, 112 decode``; "none" without a workload."""
    if workload is None:
        return "none"
    arrivals = "no rate" if workload.arrivals is None else _arrival_words(workload.arrivals)
    if len(workload.classes) == 1:
        return f"{arrivals}; {_length_words(workload.classes[0].lengths)}"
    classes = zip(workload.classes, workload.shares, strict=True)
    listed = ", ".join(f"{each.name} {float(share):.3g} ({_length_words(each.lengths)})" for each, share in classes)
    return f"{arrivals}; classes {listed}"


def _arrival_words(arrivals: Arrivals) -> str:
    match arrivals:
        case SlottedArrivals():
            return arrivals.describe()
        case DeterministicArrivals():
            return f"one request each {duration_text(arrivals.interval)}"
        case RenewalArrivals():
            return f"renewal ({arrivals.interval.law}), {float(arrivals.rate):.6g} requests/s"
    return f"{arrivals.kind}, {float(arrivals.rate):.6g} requests/s"


def _length_words(lengths: RequestLengths) -> str:
    if isinstance(lengths, IndependentLengths):
        return f"{_one_length(lengths.prefill)} prefill, {_one_length(lengths.decode)} decode"
    return f"mean {float(lengths.mean_prefill):.6g} prefill, {float(lengths.mean_decode):.6g} decode"


def _one_length(law: LengthLaw) -> str:
    return str(law.constant) if law.constant is not None else f"{law.law} (mean {float(law.mean):.6g})"
