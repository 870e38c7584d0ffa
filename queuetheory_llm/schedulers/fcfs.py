"""First come, first served at each instance."""

from __future__ import annotations

from queuetheory_llm.schedulers.queue_order import OrderView, QueueOrder


def key(view: OrderView) -> float:
    """When it came to the instance."""
    return view.arrived


FCFS = QueueOrder(
    name="fcfs",
    key=key,
    rule="the call that came to the instance first",
    source="the queue of vLLM; baseline of HEXGEN-FLOW, arXiv 2505.05286",
)
