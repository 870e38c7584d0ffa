"""Capacity of one engine in tokens per second (Dai et al. 2025, section 2.3).

C = max of b/t(b) over 1 <= b <= b_max bounds every rule, pathwise: tokens served by time t never exceed C t.
F = b_max/t(b_max) is what full batches serve; it equals C under Assumption 1 and can be smaller otherwise.
"""

from __future__ import annotations

from fractions import Fraction

import attrs

from queuetheory_llm.exact.numbers import duration_text
from queuetheory_llm.model.engine import Engine


@attrs.frozen(kw_only=True)
class TokenCapacity:
    """Capacity of an engine whose batches are not limited by the number of requests.

    Attributes
    ----------
    tokens_per_s : Fraction
        C.
    batch_tokens : int
        The largest b that attains it.
    full_batches_tokens_per_s : Fraction
        F.
    """

    tokens_per_s: Fraction
    batch_tokens: int
    full_batches_tokens_per_s: Fraction

    @property
    def filling_is_optimal(self) -> bool:
        """Whether F = C."""
        return self.full_batches_tokens_per_s == self.tokens_per_s


def full_batch_rate(engine: Engine) -> Fraction:
    """F = b_max/t(b_max) in tokens per second."""
    return engine.b_max / engine.batch_time.seconds(engine.b_max)


def token_capacity(engine: Engine) -> TokenCapacity:
    """C, its batch and F, exact.

    Examples
    --------
    >>> from queuetheory_llm.model.batch_time import Staircase
    >>> law = Staircase(c="30 ms", a="5 ms", b0=64)
    >>> found = token_capacity(Engine(batch_time=law, b_max=513))
    >>> found.batch_tokens, found.full_batches_tokens_per_s
    (512, Fraction(6840, 1))
    """
    law = engine.batch_time
    best = max(law.corners(1, engine.b_max), key=lambda b: (b / law.seconds(b), b))
    return TokenCapacity(
        tokens_per_s=best / law.seconds(best), batch_tokens=best, full_batches_tokens_per_s=full_batch_rate(engine)
    )


def capacity_notes(engine: Engine) -> tuple[str, ...]:
    """What a report must say of an engine whose full batches are not its most efficient ones."""
    found = token_capacity(engine)
    if found.filling_is_optimal:
        return ()
    law = engine.batch_time
    reason = (
        f"b0 = {getattr(law, 'b0', None)} does not divide b_max = {engine.b_max}"
        if law.law == "staircase"
        else "the batch time is not proportional to whole batches"
    )
    return (
        f"{reason}: full batches of {engine.b_max} tokens last {duration_text(law.seconds(engine.b_max))} and serve "
        f"F = {float(found.full_batches_tokens_per_s):.6g} tokens/s, batches of {found.batch_tokens} serve "
        f"C = {float(found.tokens_per_s):.6g}; rules that fill to b_max are unstable between the two. "
        f"Set b_max = {found.batch_tokens}, or +target={found.batch_tokens}",
    )
