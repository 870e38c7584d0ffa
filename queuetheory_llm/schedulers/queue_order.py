"""Which waiting call an instance takes next: what an order sees, and what it is.

An order is one pure function ``key(view) -> float``, asked once, when the call comes to its instance; the smallest key
is served first, calls of equal keys as they came. It is written in the Python that numba compiles, and calls no
function of its own.

That is enough even for the orders that are said to be recomputed at every decision. What they compare at the time now
of a decision is, of a call that waits, its key and now apart:

- urgency, the largest first: t_comp - (budget - (now - arrived)) = now - (arrived + budget - t_comp);
- laxity, the smallest first: (born + slo - now) - (t_comp + rest) = (born + slo - t_comp - rest) - now;
- time to the deadline, the smallest first: (born + slo) - now.

The key, in brackets, is known when the call comes and does not change; now is one number for all that wait. So the
difference of two calls is that of their keys at every decision, and the first of the order is the one of the smallest
key. (It would not be so if the budget were recomputed while a call waits: budgets of unlike shares shrink at unlike
rates. Neither the paper nor the released code of HEXGEN-FLOW does that; a budget is set when the call comes.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import attrs


class OrderView(NamedTuple):
    """A call that has come to an instance. It is never written.

    Attributes
    ----------
    arrived : float
        When it came to the instance, seconds.
    seconds : float
        t_comp: estimated seconds of this call alone on this instance.
    budget : float
        Its part of the deadline, seconds from ``arrived``; inf where its tenant has no SLO. See `urgency.budget`.
    born : float
        When its query came, seconds.
    slo : float
        Deadline of the query, seconds from ``born``; inf without one.
    rest : float
        t-bar expected after the stage of this call, seconds.
    prefill, decode : float
        Mean tokens of the call's stage; a dispatcher does not know more. Classical work counts as prefill.
    """

    arrived: float
    seconds: float
    budget: float
    born: float
    slo: float
    rest: float
    prefill: float
    decode: float


@attrs.frozen(kw_only=True)
class QueueOrder:
    """An order by its function.

    Parameters
    ----------
    name : str
    key : callable
        ``key(view) -> float``; see the head of the module. Written in the Python that numba compiles.
    rule : str
        The order in one sentence.
    source : str
        Where it is described.
    fair : bool
        Whether the tenant that has been served least goes first at each decision, and ``key`` orders the calls of one
        tenant alone: `vtc`.
    """

    name: str
    key: Callable[[OrderView], float] = attrs.field(eq=False)
    rule: str
    source: str
    fair: bool = False
