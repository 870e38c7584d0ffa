"""``qt-llm classify``: what kind of rule each scheduler is, from the batches it forms."""

from __future__ import annotations

from typing import Annotated

from queuetheory_llm.cli.inputs import read_schedulers
from queuetheory_llm.cli.output import Json, print_json, print_table, scheduler_flag
from queuetheory_llm.schedulers.registry import SCHEDULERS
from queuetheory_llm.stability import classify as rules
from queuetheory_llm.stability.classify import Classification
from queuetheory_llm.stability.topologies import TOPOLOGIES, TopologyVerdict, judge_topologies


def classify(*, scheduler: Annotated[list[str] | None, scheduler_flag("all")] = None, json: Json = False) -> None:
    """Schedulers x topologies: work-conserving? K-FCFS? throughput-optimal? With a theorem or a witness.

    Every rule is run on all the small states it can reach; nothing is taken from its name.
    """
    policies = read_schedulers(scheduler, tuple(SCHEDULERS))
    found = [rules.classify(policy) for policy in policies]
    verdicts = [judge_topologies(each) for each in found]
    if json:
        rows = [
            {**each.to_dict(), "topologies": {v.topology: v.to_dict() for v in row}}
            for each, row in zip(found, verdicts, strict=True)
        ]
        print_json("classify", {"schedulers": rows})
        return
    print_table(
        ["scheduler", "work-conserving", "K-FCFS", *(topology.name for topology in TOPOLOGIES)],
        [_row(each, row) for each, row in zip(found, verdicts, strict=True)],
        title="throughput-optimal? (no limit k_max)",
    )
    for policy, each in zip(policies, found, strict=True):
        print(f"{each.scheduler}: {policy.rule} [{policy.source}]")
        print(f"  {each.reason}")
        for label, witness in (("not work-conserving", each.idle_witness), ("not K-FCFS", each.overtaking_witness)):
            if witness is not None:
                print(f"  {label}: {witness}")
    for topology in TOPOLOGIES:
        print(f"{topology.name}: {topology.theorem}")


def _row(found: Classification, verdicts: tuple[TopologyVerdict, ...]) -> list[str]:
    k = "no" if found.overtaken is None else f"K = {found.overtaken}"
    return [found.scheduler, "yes" if found.work_conserving else "no", k, *(verdict.word for verdict in verdicts)]
