"""Rules that finish the decodes of a round before they take new prompts, with constant prompts.

In overload a round is a deterministic number n of prompts, then decode batches until the last of them is done. With
iid decode lengths L_1..L_n the round lasts

    T = prefill batches + sum over k >= 1 of E[t(number of the n requests with L >= k)],   t(0) = 0,

and the queue of prompts has negative drift exactly below n/E[T] requests/s.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.exact.numbers import Real
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths

_MOST_BATCHES = 100_000
_CELLS = 1 << 20  # numbers held at a time
_MOST_CELLS = 1 << 27  # a few seconds of work


@attrs.frozen
class PrefillRound:
    """Prefill batches (their token counts) until at least one prompt is complete, and how many are."""

    batches: tuple[int, ...]
    prompts: int


def saturated_rounds(engine: Engine, prompt: int, *, chunks: bool) -> tuple[PrefillRound, ...]:
    """The cycle of prefill rounds in overload.

    Parameters
    ----------
    engine : Engine
    prompt : int
        Tokens of every prompt, at least 1.
    chunks : bool
        Whether a prompt may be split; then the last prompt of a round can be left part done, and the rounds repeat
        once the same part is left again.
    """
    if not chunks:
        prompts = min(engine.b_max // prompt, engine.slots)
        return (PrefillRound((prompts * prompt,), prompts),)
    rounds: list[PrefillRound] = []
    first_seen: dict[int, int] = {}
    head, batches = prompt, 0
    while head not in first_seen:
        batches += 1 + head // engine.b_max
        if batches > _MOST_BATCHES:
            raise NotConverged(f"prompts of {prompt} tokens need more than {_MOST_BATCHES} batches to repeat")
        first_seen[head] = len(rounds)
        each, head = _chunked_round(engine, prompt, head)
        rounds.append(each)
    return tuple(rounds[first_seen[head] :])


def _chunked_round(engine: Engine, prompt: int, head: int) -> tuple[PrefillRound, int]:
    """One round from ``head`` tokens left of the oldest prompt, and the tokens left of the oldest after it."""
    batches, done = [], 0
    while done == 0:
        tokens = min(engine.b_max, head + (engine.slots - 1) * prompt)
        batches.append(tokens)
        if tokens < head:
            head -= tokens
        else:
            extra, part = divmod(tokens - head, prompt)
            done, head = 1 + extra, prompt - part
    return PrefillRound(tuple(batches), done), head


def round_rate(engine: Engine, prompt: int, lengths: RequestLengths, *, chunks: bool) -> Real:
    """Threshold in requests/s of a rule that drains its decodes: sum of n over sum of E[T] along the cycle.

    Exact (a Fraction) for constant decode lengths; otherwise a float with relative error below 1e-12.
    ``prompt`` 0 (static batching only) makes a round of min(b_max, k_max) requests without prefill.
    """
    rounds = saturated_rounds(engine, prompt, chunks=chunks) if prompt else (PrefillRound((), engine.slots),)
    seconds = engine.batch_time.seconds
    prefill = sum((seconds(tokens) for each in rounds for tokens in each.batches), Fraction(0))
    decode: Real = sum((decode_seconds(engine, each.prompts, lengths) for each in rounds), Fraction(0))
    return sum(each.prompts for each in rounds) / (prefill + decode)


def saturated_prefill_rate(engine: Engine, prompt: int, *, chunks: bool) -> tuple[Fraction, str]:
    """Threshold in requests/s for prompts without decodes, and the limit its batches exhaust."""
    if chunks and (engine.slots - 1) * prompt + 1 >= engine.b_max:  # seats never keep a batch from filling
        return engine.b_max / engine.batch_time.seconds(engine.b_max) / prompt, "b_max"
    rounds = saturated_rounds(engine, prompt, chunks=chunks)
    batches = [tokens for each in rounds for tokens in each.batches]
    total = sum((engine.batch_time.seconds(tokens) for tokens in batches), Fraction(0))
    limit = "b_max" if chunks and min(batches) == engine.b_max else _full_limit(engine, prompt)
    return sum(each.prompts for each in rounds) / total, limit


def _full_limit(engine: Engine, prompt: int) -> str:
    return "k_max" if engine.slots * prompt < engine.b_max else "b_max"


def decode_seconds(engine: Engine, requests: int, lengths: RequestLengths) -> Real:
    """sum over k >= 1 of E[t(number of the requests with v_d >= k)], seconds; the requests are iid."""
    if lengths.constant_decode is None and lengths.decode_cutoff() * requests > _MOST_CELLS:
        raise NotConverged(
            f"decode lengths up to {lengths.decode_cutoff()} in rounds of {requests} are too many to sum"
        )
    if lengths.constant_decode is not None:
        return lengths.constant_decode * engine.batch_time.seconds(requests)
    from scipy.special import gammaln, xlog1py, xlogy

    busy = np.arange(1, requests + 1)
    choose = gammaln(requests + 1) - gammaln(busy + 1) - gammaln(requests - busy + 1)
    seconds = engine.batch_time.seconds_array(busy)
    total = 0.0
    for survival, repeats in _survival_runs(lengths, max(1, _CELLS // requests)):
        alive = survival[:, None]
        chance = np.exp(choose + xlogy(busy, alive) + xlog1py(requests - busy, -np.minimum(alive, 1.0)))
        total += float(repeats @ (chance @ seconds))
    return total


def _survival_runs(lengths: RequestLengths, block: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of distinct values of P(v_d >= k), k = 1, 2, ..., with how many k share each."""
    last = lengths.decode_cutoff()
    for start in range(1, last + 1, block):
        values, repeats = np.unique(
            lengths.decode_survival(np.arange(start, min(start + block, last + 1))), return_counts=True
        )
        yield values, repeats.astype(float)
