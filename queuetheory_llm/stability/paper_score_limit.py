"""The largest stable rate of HEXGEN-FLOW's dispatch score on two exponential servers of different speeds.

Calls come at rate r and bring one unit of exponential work; the servers work at mu_1 > mu_2, so that t_comp is
t_m = 1/mu_m. A call goes to the busy server with the larger (1 - alpha) beta/t_queue - alpha t_comp, so to the slow one
if and only if

    1/q_2 > 1/q_1 + 1/theta,    theta = (1 - alpha) beta / (alpha (t_2 - t_1)),

with q_m = t_queue: to an idle fast one, else to an idle slow one. So no call joins the slow server at q_2 >= theta,
whatever the queue of the fast one, and the longer that is the nearer to theta calls still join. Beside an endless
fast queue the slow server is a loss system that refuses calls at q_2 >= theta, and what it refuses goes to the fast
one. With B the share refused there, the cluster is stable if r B < mu_1 and unstable if r B > mu_1.

*t_queue estimated*, n calls of t_2 each. The slow queue never grows beyond K, the least n with n t_2 >= theta, and
the choice no longer depends on the fast queue once that is long, as n t_2 < theta leaves room for n < K. (Fast queue,
slow queue) is a chain on a strip, homogeneous beyond a level: a quasi-birth-death chain, positive recurrent if
r B < mu_1 and transient if r B > mu_1 by the drift criterion of Neuts (1981). The slow server is M/M/1/K: B = a^K/(1 +
a + ... + a^K), a = r/mu_2 (Erlang).

*t_queue true*, the seconds of work left. The state (x, y) = (work at the fast server, work at the slow one) is
continuous; calls join the slow server at y < h(x) = 1/(1/x + 1/theta), which increases to theta and is theta at no x,
and its work exceeds theta by as much as the last call to join brings. Write Y for the work at the slow server under the
constant threshold theta, R_T(y) for the mean number of calls it refuses by time T from y.
(a) Y is regenerative at 0, which it reaches from y <= theta in a time of bounded mean, and while it is above theta it
falls at rate 1 and refuses all. So |R_T(y) - r B T| <= C for y <= theta; from y = theta + u it is r min(u, T) +
r B (T - u)^+ up to C; all with one C for all T.
(b) From (x, y) let both run on the same calls. As long as the fast work is above x - T, which it is up to T, they part
only when a call finds Y in [h(x - T), theta). Y passes down through that window at rate 1 and goes up at arrivals only,
so in [0, T] it spends there at most (theta - h(x - T)) times 1 + the number of arrivals. So the probability that they
part by T vanishes as x grows, uniformly in y, and so does the difference of what is refused in the mean, as the square
of the number of arrivals is integrable.
(c) r B < mu_1: let V = x + c y, c = 1 + r/mu_1, and let x be large. From y <= theta + T the mean of V changes by at
most T (r B/mu_1 - 1) + u (r (1 - B)/mu_1 - c) + C', u = (y - theta)^+, C' free of T: less than -1 for T large. From y >
theta + T and any x it changes by at most r T/mu_1 - c T = -T. What is left is x and y bounded, from where (0, 0) is
reached with a probability bounded away from 0. So V is a Foster-Lyapunov function of the process watched every T
seconds: it is positive Harris recurrent (Meyn, Tweedie 1993).
(d) r B > mu_1 > mu_2: from x large and any y the mean of x rises by at least T (r B/mu_1 - 1) - C'' > 0 for T large,
since r min(u, T) >= r B min(u, T), and its steps have exponential tails. So exp(-eta x) is a supermartingale beyond
some x for a small eta > 0, and with positive probability x grows for ever (Fayolle, Malyshev, Menshikov 1995).
By level crossing the density of Y is f(y) = r P_0 exp((r - mu_2) y) up to theta and falls like exp(-mu_2 y) beyond,
with P_0 = P(Y = 0) from the total mass 1:

    1/P_0 = 1 + r int_0^theta exp((r - mu_2) u) du + (r/mu_2) exp((r - mu_2) theta).

In both readings r (1 - B) = mu_2 (1 - P_0): what is taken is what is done. B increases with r, as 1/B is 1 + 1/a + ...
+ 1/a^K, or 1 + mu_2 int_0^theta exp(-(r - mu_2) u) du + (mu_2/r) exp(-(r - mu_2) theta). So r B increases too, from
below mu_1 at r = mu_1 to above it at mu_1 + mu_2; the limit is the one rate between at which it is mu_1, or mu_1 + mu_2
- d with d = mu_2 P_0.

At alpha = 1 all calls go to the fast server. At alpha = 0 theta is infinite and nothing is refused: the rule levels the
queues, and `rule_limits` proves the limit mu_1 + mu_2. For every alpha > 0 the limit is below mu_1 + mu_2: any weight
on t_comp costs capacity, because the slow server starves now and then while the queue of the fast one grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.exact.numbers import Number, to_fraction

#: Relative error of the limit; that of the root and of what is evaluated for it is a few units of the last place.
ERROR = 1e-12
_LONGEST = Fraction(10**300)  # of theta, for floats


def paper_score_limit(
    fast: Number, slow: Number, *, alpha: Number, beta: Number = 1, reading: str = "estimated"
) -> float:
    """Calls/s up to which the paper's score keeps two exponential servers stable; see the head of the module.

    Parameters
    ----------
    fast, slow : number
        Speeds, calls/s of a server that is always busy.
    alpha : number
        0 to 1.
    beta : number
        Positive; in seconds squared where t_comp is in seconds.
    reading : {"estimated", "true"}
        Of t_queue: calls there times t_comp, or the seconds of work left.

    Raises
    ------
    InvalidInput
        If a number is out of range or the reading unknown.
    AssumptionViolated
        If ``fast`` is not above ``slow``: with equal speeds the score is the shortest queue for alpha < 1.

    Examples
    --------
    >>> [round(paper_score_limit(2, 1, alpha=alpha), 4) for alpha in ("0", "0.5", "0.9", "1")]
    [3.0, 2.9196, 2.7321, 2.0]
    """
    mu_1, mu_2, weight, scale = (to_fraction(each) for each in (fast, slow, alpha, beta))
    faults = [
        f"{name}: {float(value):g} is not positive" for name, value in (("slow", mu_2), ("beta", scale)) if value <= 0
    ]
    if not 0 <= weight <= 1:
        faults.append(f"alpha: {float(weight):g} is outside 0 .. 1")
    if reading not in ("estimated", "true"):
        faults.append(f"reading: {reading!r} is not known; use estimated or true")
    if faults:
        raise InvalidInput(faults)
    if mu_1 <= mu_2:
        raise AssumptionViolated(
            f"fast: {float(mu_1):g} is not above the speed {float(mu_2):g} of the slow server; of equal servers the "
            "score with alpha < 1 takes the shorter queue and loses nothing"
        )
    if weight == 0:
        return float(mu_1 + mu_2)
    if weight == 1:
        return float(mu_1)
    theta = min((1 - weight) * scale / (weight * (1 / mu_2 - 1 / mu_1)), _LONGEST)
    first, second = float(mu_1), float(mu_2)
    if reading == "estimated":
        places = float(math.ceil(theta * mu_2))
        return first + second - _deficit(lambda rate: _idle_by_number(second / rate, places), first, second)
    most = float(theta)
    return first + second - _deficit(lambda rate: _idle_by_work(rate, second, most), first, second)


def _idle_by_number(shrink: float, places: float) -> float:
    """P_0 of M/M/1/K: 1/(1 + a + ... + a^K) at a = 1/``shrink`` > 1."""
    least = math.exp(places * math.log(shrink))
    return least * (1 - shrink) / (1 - shrink * least)


def _idle_by_work(rate: float, slow: float, most: float) -> float:
    """P_0 of the server that takes calls while its work is below ``most`` seconds; ``rate`` > ``slow``."""
    apart = rate - slow
    least = math.exp(-apart * most)
    return least / (least - rate * math.expm1(-apart * most) / apart + rate / slow)


def _deficit(idle: Callable[[float], float], fast: float, slow: float) -> float:
    """What starving costs: d = mu_2 P_0(mu_1 + mu_2 - d), unique between 0 and mu_2.

    That is r B(r) = mu_1, as r (1 - B) = mu_2 (1 - P_0): but it keeps its digits where d is small. Where it is nothing
    beside the speeds, P_0 is 0.
    """
    from scipy.optimize import brentq

    def missing(deficit: float) -> float:
        return deficit - slow * idle(fast + slow - deficit)

    return 0.0 if missing(0.0) >= 0 else float(brentq(missing, 0.0, slow, xtol=1e-300, rtol=1e-13, maxiter=5000))
