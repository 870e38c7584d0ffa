"""The laws of a model as vectors of probabilities: counts of arrivals, of departures, and the lengths of a request.

Exact chains are built from these. Every vector sums to 1; what is cut off an unbounded law is a stated probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby, product

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import AssumptionViolated, InvalidInput, InvalidModel, NotConverged
from queuetheory_llm.exact.numbers import Real, to_fraction
from queuetheory_llm.model.arrivals import (
    Arrivals,
    BatchCount,
    BernoulliCount,
    CountLaw,
    PoissonArrivals,
    PoissonCount,
    SlottedArrivals,
)
from queuetheory_llm.model.lengths import (
    Counts,
    Empirical,
    Geometric,
    IndependentLengths,
    LengthLaw,
    ObservedLengths,
    RequestLengths,
)
from queuetheory_llm.model.workload import Workload

_NEGLIGIBLE = 1e-18  # of a count of arrivals or departures
_MOST_AT_ONCE = 10**6  # requests
_WIDEST = 100  # times the entries allowed: values of one law, or of one of kinds, that are looked at
_ROUNDING = 1e-12  # of the probabilities of one law


# ------------------------------------------------------------------------------------------------- numbers of requests


def poisson_law(mean: float) -> Floats:
    """P(j arrivals), j = 0, 1, ..., with ``mean`` >= 0: cut above the last one over 1e-18, and summing to 1.

    Of a small mean, over 1e-18 of it: an arrival that is rare is still all that happens.
    """
    from scipy.special import gammaln, xlogy

    counts = np.arange(int(mean + 12 * mean**0.5) + 41)
    law = np.exp(xlogy(counts, mean) - mean - gammaln(counts + 1))
    law = law[: np.flatnonzero(law > _NEGLIGIBLE * min(1.0, mean))[-1] + 1]
    return np.asarray(law / law.sum(), dtype=np.float64)


def binomial_law(trials: int, chance: float) -> Floats:
    """P(j of ``trials`` happen), j = 0, 1, ..., when each does with ``chance``, independently.

    Cut above the last j whose probability is over 1e-18 of the largest one, and summing to 1. Entry j is always P(j):
    small j keep their place, and their relative accuracy, however unlikely they are.
    """
    from scipy.stats import binom

    law = binom.pmf(np.arange(trials + 1), trials, chance)
    law = law[: np.flatnonzero(law > _NEGLIGIBLE * law.max())[-1] + 1]
    return np.asarray(law / law.sum(), dtype=np.float64)


def arrivals_law(arrivals: Arrivals | None, seconds: Fraction, rate: Real | None = None) -> Floats:
    """P(j requests arrive during a batch), j = 0, 1, ...

    Parameters
    ----------
    arrivals : Arrivals or None
        None stands for a Poisson process of ``rate``.
    seconds : Fraction
        Duration of the batch; under slotted arrivals every batch lasts one slot.
    rate : number, optional
        Requests per second in place of the process's own.

    Raises
    ------
    AssumptionViolated
        If the numbers of arrivals in successive batches are not independent.
    InvalidModel
        If slotted arrivals cannot come at ``rate``.
    """
    if isinstance(arrivals, SlottedArrivals):
        return count_law((arrivals if rate is None else arrivals.with_rate(to_fraction(rate))).per_slot)
    if arrivals is not None and not isinstance(arrivals, PoissonArrivals):
        raise AssumptionViolated(
            f"an exact chain of batches needs Poisson or slotted arrivals, not {arrivals.kind}; use qt-llm simulate"
        )
    own = arrivals.rate if arrivals is not None and rate is None else rate
    if own is None:
        raise AssumptionViolated("an exact chain of batches needs a rate of arrivals, and there is none; give rate")
    return poisson_law(float(own) * float(seconds))


def count_law(per_slot: CountLaw) -> Floats:
    """P(j requests come at the start of a slot), j = 0, 1, ...

    Raises
    ------
    NotConverged
        If the numbers of a batch law go beyond 10^6.
    AssumptionViolated
        If the law is of another kind: its probabilities are not known.
    """
    match per_slot:
        case BernoulliCount():
            return np.array([float(1 - per_slot.p), float(per_slot.p)])
        case PoissonCount():
            return poisson_law(float(per_slot.mean))
        case BatchCount():
            chances = {value: float(chance) for value, chance in per_slot.chances.items() if chance}
            if max(chances) > _MOST_AT_ONCE:
                raise NotConverged(f"{max(chances)} requests may come in one slot; measure by simulation")
            law = np.zeros(max(chances) + 1)
            law[list(chances)] = list(chances.values())
            return law
    raise AssumptionViolated(f"the probabilities of {per_slot.law} arrivals are not known; use qt-llm simulate")


# ------------------------------------------------------------------------------------------------ lengths of a request


@attrs.frozen(kw_only=True)
class DecodeKind:
    """The law of a decode length of at least one token that is not drawn with the prompt.

    No rule sees a decode length, so a chain may draw it when its first token is served. A geometric length has no
    memory, and need never be drawn: whether it goes on is, after each of its tokens.

    Attributes
    ----------
    mean : Fraction or float
        Tokens.
    values : tuple of int
        Ascending, from 1 on, at least two; none stand for the geometric law.
    chances : tuple of float
        Of the values; positive, with sum 1.
    """

    mean: Fraction | float
    values: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()

    @property
    def memoryless(self) -> bool:
        """Whether it is geometric."""
        return not self.values

    @property
    def bound(self) -> float:
        """What the expected tokens left never exceed while the request lasts: the largest value, or the mean."""
        return float(self.values[-1] if self.values else self.mean)


@attrs.frozen(kw_only=True, eq=False)
class RequestLaw:
    """The joint law of one request's (prefill, decode) tokens on finitely many entries.

    Attributes
    ----------
    prefill, decode : int64 arrays of shape (n,)
        Tokens of entry i, sorted by (prefill, decode), no two alike. ``decode[i] < 0`` stands for a decode length of
        ``kinds[-1 - decode[i]]``, independent of all else.
    chance : float64 array of shape (n,)
        Positive, with sum 1.
    kinds : tuple of DecodeKind
        The memoryless ones first, by their means.
    cut : float
        Probability of the requests that were cut off, 0 where every law is bounded or kept memoryless.
    """

    prefill: Counts
    decode: Counts
    chance: Floats
    kinds: tuple[DecodeKind, ...] = ()
    cut: float = 0.0

    @property
    def mean_prefill(self) -> float:
        """Mean prefill tokens of this law, that is after cutting."""
        return float(self.chance @ self.prefill)

    @property
    def mean_decode(self) -> float:
        """Mean decode tokens of this law, that is after cutting."""
        tokens = self.decode.astype(np.float64)
        kept = self.decode < 0
        tokens[kept] = np.array([float(kind.mean) for kind in self.kinds])[-1 - self.decode[kept]]
        return float(self.chance @ tokens)

    @property
    def mean_tokens(self) -> float:
        """m, the mean tokens of a request of this law."""
        return self.mean_prefill + self.mean_decode


def request_law(
    lengths: RequestLengths, *, memoryless: bool, late: bool = False, tail: float | None = None, most: int = 400
) -> RequestLaw:
    """The law of one request's lengths, entry by entry.

    Parameters
    ----------
    lengths : RequestLengths
        A workload is the mixture of its classes.
    memoryless : bool
        Keep a geometric decode length that is independent of the prompt as one entry for each prompt.
    late : bool
        Keep the other decode lengths of at least one token as one entry for each prompt too, where they have several
        values given the prompt; unless requests past their prompts then differ in no fewer ways than by the values.
    tail : float, optional
        An unbounded law is cut at the first value that it exceeds with at most this probability, and what is left of
        it is divided by its sum. Without it, such a law is refused.
    most : int
        Most entries, and most values of a kind.

    Raises
    ------
    InvalidModel
        If a law is unbounded and there is no ``tail``: one line for each such law.
    InvalidInput
        If ``tail`` is no probability.
    NotConverged
        If the entries are more than ``most``, or the type of ``lengths`` does not tell its values.

    Examples
    --------
    >>> law = request_law(IndependentLengths(2, Geometric(mean=3)), memoryless=True)
    >>> law.prefill.tolist(), law.decode.tolist(), law.kinds[0].mean
    ([2], [-1], Fraction(3, 1))
    >>> from queuetheory_llm.model.lengths import Uniform
    >>> law = request_law(IndependentLengths(2, Uniform(low=0, high=2)), memoryless=True, late=True)
    >>> law.decode.tolist(), law.kinds[0].values, law.kinds[0].chances, law.mean_decode
    ([-1, 0], (1, 2), (0.5, 0.5), 1.0)
    """
    classes = list(_classes(lengths))
    means = sorted({mean for _, each, _ in classes if (mean := _memoryless_mean(each))}) if memoryless else []
    _require_tail(classes, means, tail)
    chances: dict[tuple[int, int], float] = {}
    cut = 0.0
    for where, each, share in classes:
        entries, lost = _entries(each, means, tail or 0.0, (most, _WIDEST * most if late else most), where)
        cut += float(share) * lost
        for pair, chance in entries:
            chances[pair] = chances.get(pair, 0.0) + float(share) * chance
    found = sorted((pair, chance) for pair, chance in chances.items() if chance > 0)
    if not found:
        raise InvalidInput(f"tail: {tail:g} cuts off all requests; give a smaller probability")
    kinds = [DecodeKind(mean=mean) for mean in means]
    if late:
        found, kinds = _drawn_late(found, kinds)
    if max(len(found), *(len(kind.values) for kind in kinds), 0) > most:
        raise _too_many(most)
    weights = np.array([chance for _, chance in found])
    return RequestLaw(
        prefill=np.array([prefill for (prefill, _), _ in found], dtype=np.int64),
        decode=np.array([decode for (_, decode), _ in found], dtype=np.int64),
        chance=weights / weights.sum(),
        kinds=tuple(kinds),
        cut=min(cut, 1.0),
    )


def _drawn_late(
    entries: list[tuple[tuple[int, int], float]], memoryless: list[DecodeKind]
) -> tuple[list[tuple[tuple[int, int], float]], list[DecodeKind]]:
    """The entries with the decode lengths that have several values put together, and all kinds.

    Where prompts and decodes depend on each other there may be as many laws as values, and nothing is gained.
    """
    out, kinds = [], memoryless.copy()
    for prefill, group in groupby(entries, lambda each: each[0][0]):
        same = list(group)
        drawn = {decode: chance for (_, decode), chance in same if decode > 0}
        if len(drawn) < 2:
            out.extend(same)
            continue
        out.extend(each for each in same if each[0][1] <= 0)
        whole = sum(drawn.values())
        out.append(((prefill, -1 - _kind(tuple(drawn), np.array(list(drawn.values())) / whole, kinds)), whole))
    if len({decode for (_, decode), _ in out}) < len({decode for (_, decode), _ in entries}):
        return sorted(out), kinds
    return entries, memoryless


def _kind(values: tuple[int, ...], chances: Floats, kinds: list[DecodeKind]) -> int:
    """Index of the kind of this law, which is added where it is new; laws that differ by rounding alone are the same.

    A prompt with another probability leaves other rounding errors in the same law.
    """
    for index, kind in enumerate(kinds):
        if kind.values == values and np.allclose(kind.chances, chances, rtol=_ROUNDING, atol=0):
            return index
    kinds.append(DecodeKind(mean=float(chances @ values), values=values, chances=tuple(chances.tolist())))
    return len(kinds) - 1


def memoryless_decode(lengths: RequestLengths) -> Fraction | None:
    """Mean of the decode lengths when they are geometric, of one mean above 1 and independent of the prompts."""
    means = {_memoryless_mean(each) for _, each, _ in _classes(lengths)}
    return means.pop() if len(means) == 1 else None


def _classes(
    lengths: RequestLengths, share: Fraction = Fraction(1), where: str = ""
) -> Iterator[tuple[str, RequestLengths, Fraction]]:
    """The laws that a mixture is made of: what to call each in a message, the law, its share of the requests."""
    if not isinstance(lengths, Workload):
        yield where, lengths, share
        return
    for each, part in zip(lengths.classes, lengths.shares, strict=True):
        name = where if len(lengths.classes) == 1 else f"{where}class {each.name}: "
        yield from _classes(each.lengths, share * part, name)


def _memoryless_mean(lengths: RequestLengths) -> Fraction | None:
    """Mean of a geometric decode length independent of the prompt; one of mean 1 is a constant."""
    if isinstance(lengths, IndependentLengths) and isinstance(lengths.decode, Geometric) and lengths.decode.mean > 1:
        return lengths.decode.mean
    return None


def _require_tail(
    classes: list[tuple[str, RequestLengths, Fraction]], means: list[Fraction], tail: float | None
) -> None:
    """Unbounded laws need a tail to be cut off."""
    if tail is not None:
        if not 0 < tail < 1:
            raise InvalidInput(f"tail: {tail} is no probability between 0 and 1; give a small one, such as 1e-12")
        return
    faults = [
        f"{where}{phase}: a {law.law} law has no largest value; say how much of its tail to cut off, such as "
        "--cut 1e-12 (in Python tail=1e-12)"
        for where, each, _ in classes
        if isinstance(each, IndependentLengths)
        for phase, law in (("prefill", each.prefill), ("decode", each.decode))
        if law.largest is None and not (phase == "decode" and _memoryless_mean(each) in means)
    ]
    if faults:
        raise InvalidModel(faults)


def _entries(
    lengths: RequestLengths, means: list[Fraction], tail: float, limits: tuple[int, int], where: str
) -> tuple[Iterable[tuple[tuple[int, int], float]], float]:
    """((prefill, decode), chance) of one class, summing to 1, and the probability that was cut off.

    ``limits`` are those of the values of one length and of the pairs.
    """
    most, pairs_most = limits
    if isinstance(lengths, ObservedLengths):
        rows, counts = np.unique(np.stack([lengths.prefill, lengths.decode]), axis=1, return_counts=True)
        if len(counts) > pairs_most:
            raise _too_many(pairs_most, where)
        return zip(map(tuple, rows.T.tolist()), (counts / counts.sum()).tolist(), strict=True), 0.0
    if not isinstance(lengths, IndependentLengths):
        raise NotConverged(f"{where}{type(lengths).__name__}: its values are not known; measure by simulation")
    prompts, prompts_cut = _values(lengths.prefill, tail, most, where)
    if (mean := _memoryless_mean(lengths)) in means:
        decodes, decodes_cut = [(-1 - means.index(mean), 1.0)], 0.0
    else:
        decodes, decodes_cut = _values(lengths.decode, tail, most, where)
    if len(prompts) * len(decodes) > pairs_most + 1:  # 0 + 0 may be dropped
        raise _too_many(pairs_most, where)
    pairs = [((v, w), p * q) for (v, p), (w, q) in product(prompts, decodes) if (v, w) != (0, 0)]
    total = sum(chance for _, chance in pairs)
    drawn = 1 - float(lengths.prefill.zero * lengths.decode.zero)  # 0 + 0 tokens is drawn again
    lost = (prompts_cut + decodes_cut - prompts_cut * decodes_cut) / drawn
    return [(pair, chance / total) for pair, chance in pairs], lost


def _values(law: LengthLaw, tail: float, most: int, where: str) -> tuple[list[tuple[int, float]], float]:
    """The values of a law with their chances, and the probability of the values that were cut off."""
    if law.constant is not None:
        return [(law.constant, 1.0)], 0.0
    last = law.cutoff(tail)
    if isinstance(law, Empirical):
        values = np.unique(law.values)
    elif last > _WIDEST * most:
        raise NotConverged(f"{where}lengths up to {last} take too many values; measure by simulation")
    else:
        values = np.arange(last + 1)
    alive, beyond = law.survival(values), law.survival(values + 1)
    lost = 0.0
    if law.largest is None:
        kept = min(int(np.count_nonzero(beyond > tail)) + 1, len(values))
        lost = float(beyond[kept - 1])
        values, alive, beyond = values[:kept], alive[:kept], beyond[:kept]
    chance = alive - beyond
    return [(int(value), float(p)) for value, p in zip(values, chance, strict=True) if p > 0], lost


def _too_many(most: int, where: str = "") -> NotConverged:
    return NotConverged(f"{where}the lengths take more than {most} values; measure by simulation")
