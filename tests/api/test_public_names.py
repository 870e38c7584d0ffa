"""The public names, written down: a name that appears or vanishes is a decision, not an accident."""

from __future__ import annotations

import queuetheory_llm

#: The names that scripts were promised.
CONTRACT = {
    "Engine", "Staircase", "Workload", "load_model", "capacity", "stability_region", "classify", "threshold",
    "simulate", "Certificate", "check_certificate", "Network", "fluid_path", "verify_stability",
}  # fmt: skip
MODEL = {
    "System", "Hinge", "Table", "RequestClass", "IndependentLengths", "Constant", "Geometric", "Poisson", "Uniform",
    "LogNormal", "Empirical", "PoissonArrivals", "DeterministicArrivals", "RenewalArrivals", "SlottedArrivals",
    "ConstantInterval", "ExponentialInterval", "UniformInterval", "GammaInterval", "LogNormalInterval",
    "WeibullInterval", "BernoulliCount", "PoissonCount", "BatchCount", "Trace", "TraceArrivals",
}  # fmt: skip
NETWORKS = {
    "Station", "TaskClass", "ExternalArrivals", "Route", "Join", "FluidModel", "RateProfile", "load_network",
    "load_rate_profile", "traffic", "NetworkAnswer", "fluid_paths", "growing_path", "FluidPath", "ode_path",
    "engine_fluid", "engine_overload", "network_overload", "simulate_network", "NetworkSimulation",
    "check_network_run",
}  # fmt: skip
WORKFLOWS = {
    "Stage", "Retry", "Tenant", "Workflow", "LatencyLaw", "Instance", "WorkflowSystem", "WorkflowLog", "Queries",
    "draw_queries", "queries_of_log", "load_workflow", "read_workflow_log", "DispatchRule", "cluster_capacity",
    "cluster_clock", "run_cluster", "simulate_cluster", "slo_throughput",
}  # fmt: skip
CLUSTERS = {
    "ClusterCapacity", "CriticalRetry", "critical_retry", "dispatch_verdict", "ReleasedShares", "released_limit",
    "released_shares", "released_split", "paper_score_limit", "workflow_network", "rule_limit", "LimitByTheory",
    "score_weights", "ScoreWeights",
}  # fmt: skip
OWN_RULES = {
    "Dispatcher", "DispatchView", "DISPATCH_RULES", "parse_dispatcher", "QueueOrder", "OrderView", "QUEUE_ORDERS",
    "parse_order",
}  # fmt: skip
RULES_COMPARED = {
    "ClusterRule", "ClusterComparison", "DispatchLimit", "dispatch_limit", "judge_rules", "simulated_limit",
    "SloThroughput", "ServiceCurves", "rate_curves", "scale_curves", "alpha_curve", "TuningPolicy", "TuningRun",
    "tune_alpha", "replay_p95",
}  # fmt: skip
RULES = {
    "Batch", "Pass", "Policy", "Scheduler", "View", "SCHEDULERS", "ArrayBatch", "ArrayRule", "ArrayView",
    "helper", "scheduler_for",
}  # fmt: skip
FILES = {"read_certificate", "read_trace", "read_sweep", "read_profile", "Selection", "Gemm"}
ANSWERS = {
    "simulate_trace", "outer_bound", "workload_bound", "sweep", "fit_profile", "Verdict", "Basis", "Judgement",
    "Simulation", "SweepResult", "exact_chain", "ExactChain",
}  # fmt: skip
THRESHOLDS = {
    "induced_drifts", "induced_threshold", "simulated_drifts", "simulated_threshold", "SimulatedThreshold",
    "InducedDrifts",
}  # fmt: skip
ERRORS = {
    "QueueTheoryError", "InvalidInput", "InvalidModel", "InfeasibleRequest", "AssumptionViolated", "NotConverged",
    "CertificateRejected",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    names = queuetheory_llm.__all__
    assert len(names) == len(set(names))
    clusters = (WORKFLOWS, CLUSTERS, OWN_RULES, RULES_COMPARED)
    groups = (CONTRACT, MODEL, NETWORKS, *clusters, RULES, FILES, ANSWERS, THRESHOLDS, ERRORS)
    assert set(names) == {"__version__"}.union(*groups)


def test_every_error_has_one_root() -> None:
    for name in ERRORS:
        assert issubclass(getattr(queuetheory_llm, name), queuetheory_llm.QueueTheoryError)
