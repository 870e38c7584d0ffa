"""The queue orders by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.words import shown
from queuetheory_llm.schedulers.fcfs import FCFS
from queuetheory_llm.schedulers.least_laxity import LEAST_LAXITY
from queuetheory_llm.schedulers.qlm import QLM
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.schedulers.urgency import URGENCY
from queuetheory_llm.schedulers.vtc import VTC

#: Every order the command line knows.
QUEUE_ORDERS: Mapping[str, QueueOrder] = {order.name: order for order in (FCFS, URGENCY, LEAST_LAXITY, VTC, QLM)}


def parse_order(text: str) -> QueueOrder:
    """The order of a name.

    Raises
    ------
    InvalidInput
        If there is none.

    Examples
    --------
    >>> parse_order("urgency").rule
    'the largest t_comp - (budget - time waited)'
    """
    name = text.strip()
    if name in QUEUE_ORDERS:
        return QUEUE_ORDERS[name]
    near = get_close_matches(name, QUEUE_ORDERS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(QUEUE_ORDERS)}"
    raise InvalidInput(f"--order: {shown(name)} is not a known queue order; {hint}")


def to_order(order: QueueOrder | str) -> QueueOrder:
    """An order as it is, a name by `parse_order`.

    Raises
    ------
    InvalidInput
        Also if it is neither.
    """
    if isinstance(order, QueueOrder):
        return order
    if not isinstance(order, str):
        raise InvalidInput(f"order: {shown(order)} is no queue order; give a name or a QueueOrder")
    return parse_order(order)
