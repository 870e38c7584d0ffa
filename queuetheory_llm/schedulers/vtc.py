"""Virtual token counters: the tenant that has been served least goes first.

Every instance has a counter for each tenant. Whenever a call is admitted, it is the first of the tenant with the least
counter among those that wait, and the counter grows by what the call costs: `cost`. A tenant that comes to wait when it
had nothing waiting is lifted to the least counter of those that wait (`lifted`), so that nobody saves up service that
was not asked for.

The paper counts output tokens as they are generated, because nobody knows their number before, and describes a variant
that charges a prediction at admission. This is that variant with the mean of the stage as the prediction, uncorrected:
in the long run a tenant is charged what it uses.
"""

from __future__ import annotations

from queuetheory_llm.schedulers.queue_order import OrderView, QueueOrder

#: What a token costs: of a prompt, of the output.
PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


def cost(prefill: float, decode: float) -> float:
    """What a call costs its tenant.

    >>> cost(100, 10)
    120.0
    """
    return PROMPT_WEIGHT * prefill + OUTPUT_WEIGHT * decode


def lifted(own: float, least: float) -> float:
    """The counter of a tenant that comes to wait while others do, ``least`` the smallest of theirs."""
    return max(own, least)


def key(view: OrderView) -> float:
    """Calls of one tenant as they came; which tenant is next, ``fair`` says."""
    return view.arrived


VTC = QueueOrder(
    name="vtc",
    key=key,
    rule="the tenant with the fewest weighted tokens served here, its calls as they came",
    source="Sheng et al., OSDI 2024, arXiv 2401.00588",
    fair=True,
)
