"""Least laxity first: the query that can least afford to wait."""

from __future__ import annotations

from queuetheory_llm.schedulers.queue_order import OrderView, QueueOrder


def key(view: OrderView) -> float:
    """When it must start at the latest, if the query is to end in time: now, plus its laxity.

    Laxity is the time to the deadline of the query less the work expected of it from this call on. Without an SLO it is
    infinite.
    """
    return view.born + view.slo - (view.seconds + view.rest)


LEAST_LAXITY = QueueOrder(
    name="least-laxity",
    key=key,
    rule="the least time to the deadline of the query beyond the work still expected of it",
    source="Mok, MIT/LCS/TR-297 (1983); baseline of HEXGEN-FLOW, arXiv 2505.05286",
)
