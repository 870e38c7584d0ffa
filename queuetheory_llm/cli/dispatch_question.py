"""What is asked of ``qt-llm dispatch``: its flags as the arguments of the package."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.cli.dispatch_flags import DEFAULT_RULES
from queuetheory_llm.cli.inputs import count_flag, positive_flag, seed_flag
from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.rate_profile import load_rate_profile
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.files.workflow_log import read_workflow_log
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.simulation.cluster_rule import ClusterRule, to_cluster_rule, to_cluster_rules
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.workflow_draws import queries_of_log
from queuetheory_llm.stability.score_weights import score_weights

_LEAST_SHARE = Fraction(1, 2)  # of the work at slower instances, from which queues that weigh nothing are worth a note


@attrs.frozen(kw_only=True)
class Runs:
    """How rules are run."""

    queries: int
    replications: int
    seed: int

    @classmethod
    def of(cls, queries: str, replications: str, seed: str) -> Runs:
        """From the flags."""
        return cls(
            queries=count_flag("--queries", queries, least=1),
            replications=count_flag("--replications", replications, least=1),
            seed=seed_flag(seed),
        )


@attrs.frozen(kw_only=True)
class Cluster:
    """A system as the flags describe it, the queries of a log, and what reading them changed."""

    system: WorkflowSystem
    log: Queries | None
    notes: tuple[str, ...]

    def require_slo(self, flag: str) -> None:
        """Refuse a flag about deadlines where there are none."""
        system = self.system
        if all(system.deadline(tenant) is None for tenant in range(len(system.workflow.tenants))):
            raise InvalidInput(f"{flag}: no tenant of {system.name} has an SLO; give --slo-scale, or slo in the file")


def read_rules(names: Sequence[str] | None, ablations: bool) -> list[ClusterRule]:
    """The rules asked for and their ablations, once each."""
    with _said_of_rules():
        rules = to_cluster_rules(names or DEFAULT_RULES, "fcfs")
    if ablations:
        whole = with_alpha(rules, "--ablations")
        parts = (to_cluster_rule("round-robin", whole.order), to_cluster_rule(whole.dispatcher, "fcfs"))
        known = [each.settings for each in rules]
        rules += [each for each in parts if each.settings not in known]
    return rules


@contextmanager
def _said_of_rules() -> Iterator[None]:
    """What is said of dispatch rules and queue orders by the package is said of --rule."""
    try:
        yield
    except InvalidInput as error:
        faults = [re.sub(r"^(rules?|order): ", "--rule: ", fault) for fault in error.faults]
        raise InvalidInput(faults) from None


@contextmanager
def said_of_model(model: str) -> Iterator[None]:
    """What is said in a run of the rate, the retries or the instances is said of the file that they are in."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(
            f"{model}: {fault}" if re.match(r"(rate|retry|instances?)\b", fault) else fault for fault in error.faults
        ) from None


def with_alpha(rules: Sequence[ClusterRule], flag: str) -> ClusterRule:
    """The first rule that has an alpha."""
    for each in rules:
        if "alpha" in each.dispatcher.rule.defaults:
            return each
    raise InvalidInput(f"{flag}: none of the rules has an alpha; add --rule hexgen-paper/urgency")


def read_share(text: str) -> float:
    """The value of --throughput."""
    value = positive_flag("--throughput", text)
    if value >= 1:
        raise InvalidInput(f"--throughput: {text} is no share of the queries below 1; give one such as 0.95")
    return float(value)


def read_cluster(model: str, *, rate: str | None, slo_scale: str | None, log: str | None) -> Cluster:
    """The system of the flags and the queries of the log."""
    system, recorded, notes = load_workflow(model), None, []
    if rate is not None:
        system = system.with_rate(positive_flag("--rate", rate))
    workflow = system.workflow
    if slo_scale is not None:
        scale = positive_flag("--slo-scale", slo_scale)
        tenants = [attrs.evolve(each, slo=None, slo_scale=scale) for each in workflow.tenants]
        workflow = attrs.evolve(workflow, tenants=tenants)
    if log is not None:
        real = read_workflow_log(log)
        try:
            workflow = real.workflow(workflow.tenants)
        except InvalidModel as error:
            raise InvalidInput(error.faults, source=log) from None
        none = np.zeros(len(real), dtype=np.int64)
        recorded = queries_of_log(real, workflow, none, np.random.default_rng(0), in_order=True)
        notes.append(
            f"{log}: {len(real)} queries of {recorded.calls} calls, drawn at random with replacement; verdicts are of "
            "the runs; what is computed (capacity, limits, retries) takes the calls of a query as independent"
        )
    try:
        return Cluster(system=attrs.evolve(system, workflow=workflow), log=recorded, notes=tuple(notes))
    except InvalidModel as error:
        if slo_scale is None:
            raise
        faults = [re.sub(r"^tenant\[\d+\]\.slo_scale", "--slo-scale", fault) for fault in error.faults]
        raise InvalidInput(dict.fromkeys(faults)) from None


def read_stretches(path: str, system: WorkflowSystem) -> tuple[Sequence[tuple[Fraction, Fraction]], Sequence[str]]:
    """(seconds, queries/s) of each stretch of a profile, and how long its last one is, which has no end."""
    found = load_rate_profile(path)
    if len(found.times) < 2:
        raise InvalidInput(f"{path}: holds one rate; give two rows at least, or leave --profile out")
    if not all(found.values):
        raise InvalidInput(f"{path}: a rate of 0, at which nothing is to be tuned; give positive ones")
    unit = system.arrivals.rate if found.quantity == "factor" else Fraction(1)
    lengths = [end - start for start, end in itertools.pairwise(found.times)]
    lengths.append(lengths[-1])
    note = f"{path}: the last stretch is run for {float(lengths[-1]):g} s, as long as the one before"
    return [(seconds, value * unit) for seconds, value in zip(lengths, found.values, strict=True)], [note]


def score_notes(system: WorkflowSystem, rules: Sequence[ClusterRule]) -> Iterator[str]:
    """Of rules in whose score the queues weigh next to nothing: from which queue on they refuse, and what mends it."""
    for each in rules:
        weights = score_weights(system, each.dispatcher)
        if weights is None or weights.refused < _LEAST_SHARE:
            continue
        place, refused = weights.heaviest, float(100 * weights.refused)
        yield (
            f"{each.name}: a queue weighs next to nothing beside the seconds of a call: {place.instance} gets a call "
            f"of {place.stage} ({float(place.seconds):.3g} s) only while its queue is below (1 - alpha) beta/(alpha "
            f"(t_slow - t_fast)) = {float(place.theta):.3g} s; {refused:.3g} % of the work that slower instances could "
            "do they refuse behind a single call of its kind, and it waits at the fastest; where its queue grows, give "
            f"a smaller alpha or a larger +beta= (unit s^2): from {float(weights.least_beta):.3g} on none is so refused"
        )
