"""HEXGEN-FLOW's local priority: the most urgent call, each call with its part of the deadline as a budget."""

from __future__ import annotations

from math import inf

from queuetheory_llm.schedulers.queue_order import OrderView, QueueOrder


def budget(left: float, average: float, rest: float) -> float:
    """Seconds of a call's own: what is left of the deadline, in proportion to its share of the work still expected.

    (SLO - elapsed) * tbar/(tbar + sum of tbar expected of the stages still to come). On a chain of stages that are all
    run once the last gets all that is left, so that the budgets sum to the SLO where every stage takes exactly its own.
    Beside parallel parts it is those along one path that do; where a stage may be left out or run again, passes that
    are expected and do not come, or come beyond what was expected, leave the sum below the SLO. (After a last pass
    that could have been repeated, ``rest`` is still positive.) Without an SLO, ``left`` is infinite.

    Of a query that is late ``left`` is negative, and a *smaller* part of it is a less negative budget: the calls of
    early stages, to which the formula gives least, become less urgent than those of last ones. In an overload that
    starves queries at their beginning. The paper's formula is kept as it is.
    """
    return left if left == inf or average + rest == 0 else left * average / (average + rest)


def key(view: OrderView) -> float:
    """-U up to what is the same for all that wait.

    U = t_comp - (budget - time waited) is by how much a call is late if it starts now, and the largest is served. The
    time waited is now - arrived, and now is one number for all.
    """
    return view.arrived + view.budget - view.seconds


URGENCY = QueueOrder(
    name="urgency",
    key=key,
    rule="the largest t_comp - (budget - time waited)",
    source="HEXGEN-FLOW, arXiv 2505.05286, section 4",
)
