"""QLM's order within an instance: the group whose deadline is nearest."""

from __future__ import annotations

from queuetheory_llm.schedulers.queue_order import OrderView, QueueOrder


def key(view: OrderView) -> float:
    """The deadline of the query.

    QLM puts requests of one SLO into groups and orders the groups by how near their deadlines are. Here the calls with
    one deadline are a group, and groups go by their deadlines: earliest deadline first. What else QLM does is left out:
    its linear program that sends groups to devices by estimated waiting times, and the swapping of models and eviction
    of requests that it plans. They have no part in a cluster where every instance holds the one model, and where a
    dispatcher stands in the place of the program.
    """
    return view.born + view.slo


QLM = QueueOrder(
    name="qlm",
    key=key,
    rule="the earliest deadline of the query",
    source="Patke et al., SoCC 2024, arXiv 2407.00047, the order of request groups alone",
)
