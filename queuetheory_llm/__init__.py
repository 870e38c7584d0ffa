"""Is this LLM serving system stable, how far from the edge, and what moves the edge.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODEL, _STABILITY = "queuetheory_llm.model", "queuetheory_llm.stability"

#: Public name -> module that defines it.
_PUBLIC = {
    "System": f"{_MODEL}.system",
    "Engine": f"{_MODEL}.engine",
    "Staircase": f"{_MODEL}.batch_time",
    "Hinge": f"{_MODEL}.batch_time",
    "Table": f"{_MODEL}.batch_time",
    "Constant": f"{_MODEL}.lengths",
    "Geometric": f"{_MODEL}.lengths",
    "Poisson": f"{_MODEL}.lengths",
    "Uniform": f"{_MODEL}.lengths",
    "LogNormal": f"{_MODEL}.lengths",
    "Empirical": f"{_MODEL}.lengths",
    "IndependentLengths": f"{_MODEL}.lengths",
    "PoissonArrivals": f"{_MODEL}.arrivals",
    "DeterministicArrivals": f"{_MODEL}.arrivals",
    "RenewalArrivals": f"{_MODEL}.arrivals",
    "SlottedArrivals": f"{_MODEL}.arrivals",
    "BernoulliCount": f"{_MODEL}.arrivals",
    "PoissonCount": f"{_MODEL}.arrivals",
    "BatchCount": f"{_MODEL}.arrivals",
    "ConstantInterval": f"{_MODEL}.arrivals",
    "ExponentialInterval": f"{_MODEL}.arrivals",
    "UniformInterval": f"{_MODEL}.arrivals",
    "GammaInterval": f"{_MODEL}.arrivals",
    "LogNormalInterval": f"{_MODEL}.arrivals",
    "WeibullInterval": f"{_MODEL}.arrivals",
    "Network": f"{_MODEL}.network",
    "Station": f"{_MODEL}.network",
    "TaskClass": f"{_MODEL}.network",
    "ExternalArrivals": f"{_MODEL}.network",
    "Route": f"{_MODEL}.network",
    "Join": f"{_MODEL}.network",
    "FluidModel": f"{_MODEL}.fluid_model",
    "RateProfile": f"{_MODEL}.rate_profile",
    "Trace": f"{_MODEL}.trace",
    "TraceArrivals": f"{_MODEL}.trace",
    "RequestClass": f"{_MODEL}.workload",
    "Workload": f"{_MODEL}.workload",
    "Batch": "queuetheory_llm.schedulers.policy",
    "Pass": "queuetheory_llm.schedulers.policy",
    "Policy": "queuetheory_llm.schedulers.policy",
    "Scheduler": "queuetheory_llm.schedulers.policy",
    "View": "queuetheory_llm.schedulers.policy",
    "ArrayBatch": "queuetheory_llm.schedulers.array_rule",
    "ArrayRule": "queuetheory_llm.schedulers.array_rule",
    "ArrayView": "queuetheory_llm.schedulers.array_rule",
    "helper": "queuetheory_llm.schedulers.array_rule",
    "Certificate": "queuetheory_llm.certificates.certificate",
    "check_certificate": "queuetheory_llm.certificates.certificate",
    "read_certificate": "queuetheory_llm.files.certificates",
    "SCHEDULERS": "queuetheory_llm.schedulers.registry",
    "scheduler_for": "queuetheory_llm.schedulers.registry",
    "capacity": f"{_STABILITY}.answers",
    "stability_region": f"{_STABILITY}.answers",
    "classify": f"{_STABILITY}.classify",
    "threshold": f"{_STABILITY}.thresholds",
    "outer_bound": f"{_STABILITY}.workload_region",
    "workload_bound": f"{_STABILITY}.workload_region",
    "verify_stability": f"{_STABILITY}.networks",
    "NetworkAnswer": f"{_STABILITY}.networks",
    "traffic": f"{_STABILITY}.traffic",
    "fluid_path": f"{_STABILITY}.fluid_path",
    "fluid_paths": f"{_STABILITY}.fluid_path",
    "growing_path": f"{_STABILITY}.fluid_path",
    "FluidPath": f"{_STABILITY}.fluid_path",
    "ode_path": f"{_STABILITY}.fluid_ode",
    "engine_fluid": f"{_STABILITY}.engine_fluid",
    "engine_overload": f"{_STABILITY}.overload",
    "network_overload": f"{_STABILITY}.overload",
    "induced_drifts": f"{_STABILITY}.induced",
    "induced_threshold": f"{_STABILITY}.induced",
    "simulate": "queuetheory_llm.simulation.judge",
    "simulate_trace": "queuetheory_llm.simulation.judge",
    "Simulation": "queuetheory_llm.simulation.judge",
    "check_network_run": "queuetheory_llm.simulation.network_invariants",
    "simulate_network": "queuetheory_llm.simulation.network_simulation",
    "NetworkSimulation": "queuetheory_llm.simulation.network_simulation",
    "SweepResult": "queuetheory_llm.simulation.sweep",
    "simulated_drifts": "queuetheory_llm.simulation.thresholds",
    "simulated_threshold": "queuetheory_llm.simulation.thresholds",
    "SimulatedThreshold": "queuetheory_llm.simulation.thresholds",
    "InducedDrifts": f"{_STABILITY}.induced",
    "exact_chain": "queuetheory_llm.markov.chain",
    "ExactChain": "queuetheory_llm.markov.chain",
    "fit_profile": "queuetheory_llm.fitting.fit",
    "read_profile": "queuetheory_llm.files.profiles",
    "Selection": "queuetheory_llm.files.profiles",
    "Gemm": "queuetheory_llm.files.profiles",
    "load_network": "queuetheory_llm.files.network_file",
    "load_rate_profile": "queuetheory_llm.files.rate_profile",
    "load_model": "queuetheory_llm.files.model_file",
    "sweep": "queuetheory_llm.files.sweep",
    "read_sweep": "queuetheory_llm.files.sweep_store",
    "read_trace": "queuetheory_llm.files.traces.reader",
    "Verdict": "queuetheory_llm.verdict",
    "Basis": "queuetheory_llm.verdict",
    "Judgement": "queuetheory_llm.verdict",
    "QueueTheoryError": "queuetheory_llm.errors",
    "InvalidInput": "queuetheory_llm.errors",
    "InvalidModel": "queuetheory_llm.errors",
    "InfeasibleRequest": "queuetheory_llm.errors",
    "AssumptionViolated": "queuetheory_llm.errors",
    "NotConverged": "queuetheory_llm.errors",
    "CertificateRejected": "queuetheory_llm.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


__all__ = ["__version__", *_PUBLIC]
