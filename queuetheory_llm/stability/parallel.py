"""Several engines behind a dispatcher.

*random*: each request goes to engine i with probability p_i, so engine i alone must carry p_i of the rate.
*round-robin*: each engine gets every n-th request, so its own arrivals are a renewal process with n-fold intervals
whatever the lengths: what is proved of one engine for renewal arrivals holds at 1/n of the rate. One counter does for
all classes of a workload, whose requests are one stream with independent classes: those of every n-th request are
independent and of the same law. (Classes with streams of their own, as in a network, need turns of their own.)
*token-queue*: each request joins the engine with the fewest tokens queued; backlogs then stay level, and the engines
carry the sum of what each can (Dai et al. 2025, section 5.1).
*least-outstanding*: each request joins the engine with the fewest requests, which levels requests and not the tokens
that are left of them. That no rule carries more than all engines together is proved; that this one carries as much, or
anything, is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import attrs

from queuetheory_llm.dispatch.registry import require_dispatch
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.model.arrivals import GammaInterval, PoissonArrivals, RenewalArrivals
from queuetheory_llm.model.dispatch import LEAST_OUTSTANDING, RANDOM, ROUND_ROBIN, TOKEN_QUEUE
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.stability.capacity import token_capacity
from queuetheory_llm.stability.thresholds import Threshold, require_feasible, threshold
from queuetheory_llm.stability.workload_region import workload_bound


def parallel_threshold(
    engines: Sequence[Engine],
    policy: Policy,
    workload: Workload,
    dispatch: str,
    *,
    split: Sequence[Fraction] | None = None,
) -> Threshold:
    """Largest stable rate of all requests together.

    Parameters
    ----------
    engines : sequence of Engine
        At least one; they may differ.
    policy : Policy
        The scheduler of every engine.
    workload : Workload
    dispatch : {"random", "round-robin", "token-queue", "least-outstanding"}
    split : sequence of Fraction, optional
        Probabilities of the random split; uniform when absent.

    Raises
    ------
    InvalidInput
        Unknown dispatch rule, or a split that does not fit the engines.
    """
    if not engines:
        raise InvalidInput("engines: none given; a system has at least one")
    require_dispatch(dispatch)
    if split is not None and dispatch != RANDOM:
        raise InvalidInput("--split: only the random dispatch has a split; drop it or use --dispatch random")
    # Under the token queue what arrives at an engine depends on the queues, and what is leveled is tokens.
    leveled = dispatch == TOKEN_QUEUE and len(engines) > 1
    if dispatch == LEAST_OUTSTANDING and len(engines) > 1:
        return _unproved(engines, policy, workload)
    seen = every_nth(workload, len(engines)) if dispatch == ROUND_ROBIN else workload
    own = {each: threshold(each, policy, seen, token_certificate=leveled) for each in dict.fromkeys(engines)}
    parts = [own[engine] for engine in engines]
    if leveled:
        return _pooled(parts)
    shares = _shares(len(engines), split)
    return parts[0] if len(parts) == 1 else _fixed_split(parts, shares, dispatch)


def every_nth(workload: Workload, count: int) -> Workload:
    """The workload whose arrivals are every ``count``-th of a Poisson stream: Erlang intervals; others as they are."""
    arrivals = workload.arrivals
    if count == 1 or not (arrivals is None or isinstance(arrivals, PoissonArrivals)):
        return workload
    rate = Fraction(1) if arrivals is None else arrivals.rate
    # The coefficient of variation to 15 digits: thresholds ask for the kind of process alone.
    cv = Fraction(f"{count**-0.5:.15g}")
    return workload.with_arrivals(RenewalArrivals(interval=GammaInterval(mean=count / rate, cv=cv)))


def _shares(count: int, split: Sequence[Fraction] | None) -> tuple[Fraction, ...]:
    if split is None:
        return (Fraction(1, count),) * count
    if len(split) != count:
        raise InvalidInput(f"--split: {len(split)} shares for {count} engines; give one each")
    if min(split) < 0 or sum(split) != 1:
        raise InvalidInput(f"--split: shares must be at least 0 and sum to 1, not {float(sum(split)):g}")
    return tuple(split)


def _fixed_split(parts: Sequence[Threshold], shares: Sequence[Fraction], dispatch: str) -> Threshold:
    used = [(number, part, share) for number, (part, share) in enumerate(zip(parts, shares, strict=True), 1) if share]
    low = min(part.low / share for _, part, share in used)
    engine, tightest, share = min(used, key=lambda each: each[1].high / each[2])
    return attrs.evolve(
        tightest,
        low=low,
        high=tightest.high / share,
        method=f"{dispatch} split over {len(parts)} engines, each stable on its own share; {tightest.method}",
        binding=tightest.binding if len(set(parts)) == 1 else f"{tightest.binding} of engine {engine}",
    )


def _pooled(parts: Sequence[Threshold]) -> Threshold:
    low: Real = sum((part.low for part in parts), Fraction(0))
    high: Real = sum((part.high for part in parts), Fraction(0))
    return attrs.evolve(
        parts[0],
        low=low,
        high=high,
        method=f"shortest token queue over {len(parts)} engines: the sum of their capacities; {parts[0].method}",
        binding=" and ".join(dict.fromkeys(part.binding for part in parts)),
    )


def _unproved(engines: Sequence[Engine], policy: Policy, workload: Workload) -> Threshold:
    """The bound of every rule alone.

    Of equal engines the rates they serve sum to a point of n times the region of one, which is convex. Of unlike ones
    one may serve long prompts and another long outputs, so that the tokens of all batches are counted instead.
    """
    for engine in engines:
        require_feasible(policy, engine, workload)
    bound = workload_bound(engines[0], workload)
    if len(set(engines)) == 1:
        high: Real = len(engines) * bound.requests_per_s
    else:
        high = sum((token_capacity(engine).tokens_per_s for engine in engines), Fraction(0)) / workload.mean_tokens
    return Threshold(
        scheduler=policy.name,
        low=Fraction(0),
        high=high,
        method=f"bounds: fewest requests level no tokens, no stable rate is proved; {len(engines)} engines together",
        binding=bound.binding,
    )
