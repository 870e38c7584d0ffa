"""``qt-llm classify``: what kind of rule each scheduler is, from the batches it forms."""

from __future__ import annotations

from typing import Annotated

from queuetheory_llm.cli.inputs import read_schedulers
from queuetheory_llm.cli.output import Certificate, Json, print_json, print_table, print_written, scheduler_flag
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.files.certificates import check_certificate_target, write_certificate
from queuetheory_llm.schedulers.registry import SCHEDULERS
from queuetheory_llm.stability import classify as rules
from queuetheory_llm.stability.classify import Classification
from queuetheory_llm.stability.engine_certificates import witness_certificate
from queuetheory_llm.stability.topologies import TOPOLOGIES, TopologyVerdict, judge_topologies


def classify(
    *,
    scheduler: Annotated[list[str] | None, scheduler_flag("all")] = None,
    certificate: Certificate = None,
    json: Json = False,
) -> None:
    """Schedulers x topologies: work-conserving? K-FCFS? throughput-optimal? With a theorem or a witness.

    Every rule is run on all the small states it can reach; nothing is taken from its name.
    """
    check_certificate_target(certificate, {}, {})
    policies = read_schedulers(scheduler, tuple(SCHEDULERS))
    found = [rules.classify(policy) for policy in policies]
    verdicts = [judge_topologies(each) for each in found]
    if certificate is not None:
        write_certificate(certificate, witness_certificate(found[0]))
    if json:
        rows = [
            {**each.to_dict(), "topologies": {v.topology: v.to_dict() for v in row}}
            for each, row in zip(found, verdicts, strict=True)
        ]
        print_json("classify", {"schedulers": rows})
        return
    provisos = list(dict.fromkeys(verdict.proviso for row in verdicts for verdict in row if verdict.proviso))
    print_table(
        ["scheduler", "WC", "K", *(topology.heading for topology in TOPOLOGIES)],
        [_row(each, row, provisos) for each, row in zip(found, verdicts, strict=True)],
        title="throughput-optimal? (no limit k_max)",
    )
    say("WC: work-conserving; K: of K-FCFS")
    for number, proviso in enumerate(provisos, 1):
        say(f"{'*' * number} {proviso}")
    for policy, each in zip(policies, found, strict=True):
        say(f"{each.scheduler}: {policy.rule} [{policy.source}]")
        say(f"  {each.reason}")
        for label, witness in (("not work-conserving", each.idle_witness), ("not K-FCFS", each.overtaking_witness)):
            if witness is not None:
                say(f"  {label}: {witness}")
    for topology in TOPOLOGIES:
        say(f"{topology.heading}, {topology.name}: {topology.theorem}")
    print_written(certificate)


def _row(found: Classification, verdicts: tuple[TopologyVerdict, ...], provisos: list[str]) -> list[str]:
    k = "-" if found.overtaken is None else str(found.overtaken)
    stars = {proviso: "*" * number for number, proviso in enumerate(provisos, 1)}
    cells = [verdict.answer + stars.get(verdict.proviso, "") for verdict in verdicts]
    return [found.scheduler, "yes" if found.work_conserving else "no", k, *cells]
