"""Laws of token counts, and the joint law of one request's (prefill, decode) counts.

Means are exact fractions wherever the law is rational; stability of a work-conserving rule needs nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import MOST, Real, plain, to_count, to_counts, to_fraction, to_fractions

Counts = NDArray[np.int64]


class LengthLaw(ABC):
    """Law of a number of tokens, a non-negative integer L."""

    law: ClassVar[str]

    @property
    @abstractmethod
    def mean(self) -> Real:
        """E[L] in tokens; a Fraction where it is rational."""

    @property
    @abstractmethod
    def zero(self) -> Real:
        """P(L = 0)."""

    @property
    @abstractmethod
    def largest(self) -> int | None:
        """Largest possible value; None when the support is unbounded."""

    @abstractmethod
    def survival(self, counts: Counts) -> Floats:
        """P(L >= k) for each k of ``counts``; same shape."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> Counts:
        """``size`` independent draws."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The law as an inline table of a model file."""

    @abstractmethod
    def scaled(self, factor: Fraction) -> LengthLaw:
        """A law of the same kind with ``factor`` > 0 times the mean, as near as whole tokens allow."""

    @property
    def constant(self) -> int | None:
        """The only value the law takes; None when there are several."""
        return None

    def atoms(self) -> tuple[tuple[int, Fraction], ...] | None:
        """The values in order with their exact chances, none of them 0; None where those are not known as fractions."""
        return None if self.constant is None else ((self.constant, Fraction(1)),)

    def cutoff(self, tail: float = 1e-15) -> int:
        """A value K with P(L > K) <= ``tail``."""
        if self.largest is not None:
            return self.largest
        high = max(1, math.ceil(self.mean))
        while self.survival(np.array([high + 1]))[0] > tail:
            high *= 2
        return high


def _at_least(least: int, note: str) -> Any:
    def check(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
        if value < least:
            raise InvalidModel(f"{field.name}: {float(value):g} is below {least}; {note}")
        if value > MOST:
            raise InvalidModel(f"{field.name}: {float(value):g} is beyond {MOST} tokens; check its unit")

    return check


def _mean_tokens(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if not Fraction(1, 10**6) <= value <= MOST:
        raise InvalidModel(f"{field.name}: {float(value):g} is outside 1e-6 .. {MOST} tokens")


def _spread(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if not 0 < value <= 100:
        raise InvalidModel(f"{field.name}: {float(value):g} is outside 0 < cv <= 100")


@attrs.frozen
class Constant(LengthLaw):
    """Always ``value`` tokens (an integer >= 0)."""

    law: ClassVar[str] = "constant"
    value: int = attrs.field(converter=to_count, validator=_at_least(0, "it counts tokens"))

    @property
    def mean(self) -> Fraction:
        """See `LengthLaw.mean`."""
        return Fraction(self.value)

    @property
    def zero(self) -> Fraction:
        """See `LengthLaw.zero`."""
        return Fraction(self.value == 0)

    @property
    def largest(self) -> int:
        """See `LengthLaw.largest`."""
        return self.value

    @property
    def constant(self) -> int:
        """See `LengthLaw.constant`."""
        return self.value

    def survival(self, counts: Counts) -> Floats:
        """See `LengthLaw.survival`."""
        return (np.asarray(counts) <= self.value).astype(float)

    def scaled(self, factor: Fraction) -> Constant:
        """See `LengthLaw.scaled`."""
        return Constant(round(self.value * factor))

    def sample(self, rng: np.random.Generator, size: int) -> Counts:  # noqa: ARG002 - no randomness to use
        """See `LengthLaw.sample`."""
        return np.full(size, self.value, dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """See `LengthLaw.to_dict`."""
        return {"law": self.law, "value": self.value}


@attrs.frozen(kw_only=True)
class Geometric(LengthLaw):
    """P(L >= k) = (1 - 1/mean)^(k-1), k = 1, 2, ...: memoryless, mean >= 1."""

    law: ClassVar[str] = "geometric"
    mean: Fraction = attrs.field(
        converter=to_fraction, validator=_at_least(1, "a geometric length is at least one token")
    )

    @property
    def zero(self) -> Fraction:
        """See `LengthLaw.zero`."""
        return Fraction(0)

    @property
    def largest(self) -> int | None:
        """See `LengthLaw.largest`."""
        return 1 if self.mean == 1 else None

    @property
    def constant(self) -> int | None:
        """See `LengthLaw.constant`."""
        return self.largest

    def survival(self, counts: Counts) -> Floats:
        """See `LengthLaw.survival`."""
        return np.asarray(float(1 - 1 / self.mean) ** np.maximum(np.asarray(counts, dtype=float) - 1, 0))

    def scaled(self, factor: Fraction) -> Geometric:
        """See `LengthLaw.scaled`."""
        return Geometric(mean=max(Fraction(1), self.mean * factor))

    def sample(self, rng: np.random.Generator, size: int) -> Counts:
        """See `LengthLaw.sample`."""
        return rng.geometric(float(1 / self.mean), size)

    def to_dict(self) -> dict[str, Any]:
        """See `LengthLaw.to_dict`."""
        return {"law": self.law, "mean": plain(self.mean)}


@attrs.frozen(kw_only=True)
class Poisson(LengthLaw):
    """Poisson with the given mean > 0; zero is possible."""

    law: ClassVar[str] = "poisson"
    mean: Fraction = attrs.field(converter=to_fraction, validator=_mean_tokens)

    @property
    def zero(self) -> float:
        """See `LengthLaw.zero`."""
        return math.exp(-self.mean)

    @property
    def largest(self) -> None:
        """See `LengthLaw.largest`."""
        return

    def survival(self, counts: Counts) -> Floats:
        """See `LengthLaw.survival`."""
        from scipy.special import gammainc  # P(L >= k) is the gamma cdf; k = 0 is certain

        k = np.asarray(counts, dtype=float)
        return np.where(k <= 0, 1.0, gammainc(np.maximum(k, 1), float(self.mean)))

    def scaled(self, factor: Fraction) -> Poisson:
        """See `LengthLaw.scaled`."""
        return Poisson(mean=self.mean * factor)

    def sample(self, rng: np.random.Generator, size: int) -> Counts:
        """See `LengthLaw.sample`."""
        return rng.poisson(float(self.mean), size)

    def to_dict(self) -> dict[str, Any]:
        """See `LengthLaw.to_dict`."""
        return {"law": self.law, "mean": plain(self.mean)}


@attrs.frozen(kw_only=True)
class Uniform(LengthLaw):
    """Each integer of ``low..high`` equally likely, 0 <= low <= high."""

    law: ClassVar[str] = "uniform"
    low: int = attrs.field(converter=to_count, validator=_at_least(0, "it counts tokens"))
    high: int = attrs.field(converter=to_count)

    def __attrs_post_init__(self) -> None:
        """Check the order of the bounds."""
        if self.high < self.low:
            raise InvalidModel(f"high: {self.high} is below low = {self.low}; swap them")

    @property
    def mean(self) -> Fraction:
        """See `LengthLaw.mean`."""
        return Fraction(self.low + self.high, 2)

    @property
    def zero(self) -> Fraction:
        """See `LengthLaw.zero`."""
        return Fraction(1, self.high + 1) if self.low == 0 else Fraction(0)

    @property
    def largest(self) -> int:
        """See `LengthLaw.largest`."""
        return self.high

    @property
    def constant(self) -> int | None:
        """See `LengthLaw.constant`."""
        return self.low if self.low == self.high else None

    def atoms(self) -> tuple[tuple[int, Fraction], ...]:
        """See `LengthLaw.atoms`."""
        chance = Fraction(1, self.high - self.low + 1)
        return tuple((value, chance) for value in range(self.low, self.high + 1))

    def survival(self, counts: Counts) -> Floats:
        """See `LengthLaw.survival`."""
        return np.clip((self.high + 1 - np.asarray(counts, dtype=float)) / (self.high + 1 - self.low), 0, 1)

    def scaled(self, factor: Fraction) -> Uniform:
        """See `LengthLaw.scaled`."""
        return Uniform(low=round(self.low * factor), high=round(self.high * factor))

    def sample(self, rng: np.random.Generator, size: int) -> Counts:
        """See `LengthLaw.sample`."""
        return rng.integers(self.low, self.high + 1, size)

    def to_dict(self) -> dict[str, Any]:
        """See `LengthLaw.to_dict`."""
        return {"law": self.law, "low": self.low, "high": self.high}


@attrs.frozen(kw_only=True)
class LogNormal(LengthLaw):
    """ceil(X), X lognormal with mean ``scale_mean`` > 0 and coefficient of variation ``cv`` > 0.

    Rounding up adds about half a token: `mean` is that of the rounded length.
    """

    law: ClassVar[str] = "lognormal"
    scale_mean: Fraction = attrs.field(converter=to_fraction, validator=_mean_tokens)
    cv: Fraction = attrs.field(converter=to_fraction, validator=_spread)

    @property
    def _sigma(self) -> float:
        return math.sqrt(math.log1p(float(self.cv) ** 2))

    @property
    def _mu(self) -> float:
        return math.log(self.scale_mean) - self._sigma**2 / 2

    @cached_property
    def mean(self) -> float:
        """E[ceil X] = sum of P(X > k), k >= 0: summed to K, then E[(X - K)+] + P(X > K)/2 (midpoint rule)."""
        from scipy.special import ndtr

        last = min(self.cutoff(), 10**6)
        head = float(np.sum(self.survival(np.arange(1, last + 1))))
        d = (self._mu - math.log(last)) / self._sigma
        beyond = float(ndtr(d))
        return head + float(self.scale_mean) * float(ndtr(d + self._sigma)) - last * beyond + beyond / 2

    @property
    def zero(self) -> Fraction:
        """See `LengthLaw.zero`."""
        return Fraction(0)

    @property
    def largest(self) -> None:
        """See `LengthLaw.largest`."""
        return

    def cutoff(self, tail: float = 1e-15) -> int:
        """See `LengthLaw.cutoff`."""
        from scipy.special import ndtri

        return math.ceil(math.exp(self._mu - self._sigma * float(ndtri(tail))))

    def survival(self, counts: Counts) -> Floats:
        """See `LengthLaw.survival`."""
        from scipy.special import ndtr

        k = np.asarray(counts, dtype=float)
        with np.errstate(divide="ignore"):
            depth = np.log(np.maximum(k - 1, 0))
        return np.asarray(ndtr((self._mu - depth) / self._sigma), dtype=float)

    def scaled(self, factor: Fraction) -> LogNormal:
        """See `LengthLaw.scaled`."""
        return LogNormal(scale_mean=self.scale_mean * factor, cv=self.cv)

    def sample(self, rng: np.random.Generator, size: int) -> Counts:
        """See `LengthLaw.sample`."""
        return np.ceil(rng.lognormal(self._mu, self._sigma, size)).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """See `LengthLaw.to_dict`."""
        return {"law": self.law, "mean": plain(self.scale_mean), "cv": plain(self.cv)}


@attrs.frozen(kw_only=True)
class Empirical(LengthLaw):
    """The given values with probabilities proportional to ``weights`` (all equal when absent)."""

    law: ClassVar[str] = "empirical"
    values: tuple[int, ...] = attrs.field(converter=to_counts)
    weights: tuple[Fraction, ...] = attrs.field(default=(), converter=to_fractions)

    def __attrs_post_init__(self) -> None:
        """Check the values and fill equal weights."""
        if not self.values:
            raise InvalidModel("values: the list is empty; give at least one value")
        if min(self.values) < 0:
            raise InvalidModel(f"values: {min(self.values)} is negative; it counts tokens")
        if not self.weights:
            object.__setattr__(self, "weights", (Fraction(1),) * len(self.values))
        if len(self.weights) != len(self.values):
            raise InvalidModel(f"weights: {len(self.weights)} weights for {len(self.values)} values; give one each")
        if min(self.weights) < 0 or sum(self.weights) == 0:
            raise InvalidModel("weights: must be non-negative with a positive sum")

    @cached_property
    def mean(self) -> Fraction:
        """See `LengthLaw.mean`."""
        pairs = zip(self.values, self.weights, strict=True)
        return sum((v * w for v, w in pairs), Fraction(0)) / sum(self.weights)

    @cached_property
    def zero(self) -> Fraction:
        """See `LengthLaw.zero`."""
        pairs = zip(self.values, self.weights, strict=True)
        return sum((w for v, w in pairs if v == 0), Fraction(0)) / sum(self.weights)

    @cached_property
    def largest(self) -> int:
        """See `LengthLaw.largest`."""
        return max(v for v, w in zip(self.values, self.weights, strict=True) if w)

    @cached_property
    def constant(self) -> int | None:
        """See `LengthLaw.constant`."""
        support = {v for v, w in zip(self.values, self.weights, strict=True) if w}
        return support.pop() if len(support) == 1 else None

    def atoms(self) -> tuple[tuple[int, Fraction], ...]:
        """See `LengthLaw.atoms`."""
        found: dict[int, Fraction] = {}
        for value, weight in zip(self.values, self.weights, strict=True):
            if weight:
                found[value] = found.get(value, Fraction(0)) + weight
        total = sum(self.weights)
        return tuple((value, weight / total) for value, weight in sorted(found.items()))

    @cached_property
    def _probabilities(self) -> Floats:
        total = sum(self.weights)
        return np.array([float(w / total) for w in self.weights])

    def survival(self, counts: Counts) -> Floats:
        """See `LengthLaw.survival`."""
        order = np.argsort(self.values, kind="stable")
        above = np.concatenate([np.cumsum(self._probabilities[order][::-1])[::-1], [0.0]])
        return above[np.searchsorted(np.asarray(self.values)[order], np.asarray(counts))]

    def scaled(self, factor: Fraction) -> Empirical:
        """See `LengthLaw.scaled`."""
        return Empirical(values=[round(value * factor) for value in self.values], weights=self.weights)

    def sample(self, rng: np.random.Generator, size: int) -> Counts:
        """See `LengthLaw.sample`."""
        return rng.choice(np.asarray(self.values, dtype=np.int64), size, p=self._probabilities)

    def to_dict(self) -> dict[str, Any]:
        """See `LengthLaw.to_dict`."""
        return {
            "law": self.law,
            "values": list(self.values),
            "weights": [plain(w) for w in self.weights],
        }


#: The laws a model file may name; a bare integer is `Constant`.
LENGTH_LAWS: Mapping[str, type[LengthLaw]] = {
    law.law: law for law in (Constant, Geometric, Poisson, Uniform, LogNormal, Empirical)
}


def to_law(value: LengthLaw | int) -> LengthLaw:
    """A law as it is, a whole number as the constant law."""
    return value if isinstance(value, LengthLaw) else Constant(value)


class RequestLengths(ABC):
    """Joint law of one request's (v_p, v_d): prefill and decode tokens, never both 0."""

    @property
    @abstractmethod
    def mean_prefill(self) -> Real:
        """m_p in tokens."""

    @property
    @abstractmethod
    def mean_decode(self) -> Real:
        """m_d in tokens."""

    @property
    @abstractmethod
    def prefill_probability(self) -> Real:
        """P(v_p >= 1): the chance that a request ever needs a prefill slot."""

    @property
    @abstractmethod
    def constant_prompt(self) -> int | None:
        """The only prompt length there is; None when there are several."""

    @property
    @abstractmethod
    def longest_prompt(self) -> int | None:
        """Largest possible prompt; None when unbounded."""

    @abstractmethod
    def with_mean_decode(self, mean: Real) -> RequestLengths:
        """The same prompts, decode lengths scaled to a mean near ``mean`` >= 0 (whole tokens); 0 leaves none."""

    @property
    def constant_decode(self) -> int | None:
        """The only number of decode tokens there is; None when there are several."""
        return None

    @abstractmethod
    def decode_survival(self, counts: Counts) -> Floats:
        """P(v_d >= k) for each k."""

    @abstractmethod
    def decode_cutoff(self) -> int:
        """A value that v_d exceeds with probability at most 1e-15."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> tuple[Counts, Counts]:
        """``size`` independent requests as (prefill, decode) arrays."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say of the law, such as a mean that redrawing changed."""
        return ()


@attrs.frozen
class IndependentLengths(RequestLengths):
    """Prefill and decode lengths drawn independently; a draw of 0 + 0 tokens is drawn again.

    Redrawing divides both means by 1 - P(v_p = 0) P(v_d = 0).
    """

    prefill: LengthLaw = attrs.field(converter=to_law)
    decode: LengthLaw = attrs.field(converter=to_law)

    def __attrs_post_init__(self) -> None:
        """A request without tokens is none."""
        if self._empty == 1:
            raise InvalidModel("prefill, decode: every request has 0 + 0 tokens; give one of them a token")

    @property
    def _empty(self) -> Real:
        return self.prefill.zero * self.decode.zero or Fraction(0)  # the product with a float 0 is a float

    @property
    def mean_prefill(self) -> Real:
        """See `RequestLengths.mean_prefill`."""
        return self.prefill.mean / (1 - self._empty)

    @property
    def mean_decode(self) -> Real:
        """See `RequestLengths.mean_decode`."""
        return self.decode.mean / (1 - self._empty)

    @property
    def prefill_probability(self) -> Real:
        """See `RequestLengths.prefill_probability`."""
        return (1 - self.prefill.zero) / (1 - self._empty)

    @property
    def constant_prompt(self) -> int | None:
        """See `RequestLengths.constant_prompt`."""
        return self.prefill.constant

    @property
    def longest_prompt(self) -> int | None:
        """See `RequestLengths.longest_prompt`."""
        return self.prefill.largest

    @property
    def constant_decode(self) -> int | None:
        """See `RequestLengths.constant_decode`."""
        return self.decode.constant if self._empty == 0 else None

    def decode_survival(self, counts: Counts) -> Floats:
        """See `RequestLengths.decode_survival`."""
        raw = self.decode.survival(counts)
        return np.where(np.asarray(counts) <= 0, 1.0, raw / float(1 - self._empty))

    def decode_cutoff(self) -> int:
        """See `RequestLengths.decode_cutoff`."""
        return self.decode.cutoff()

    def with_mean_decode(self, mean: Real) -> IndependentLengths:
        """See `RequestLengths.with_mean_decode`."""
        if mean and self.decode.mean:
            return IndependentLengths(self.prefill, self.decode.scaled(Fraction(mean / self.decode.mean)))
        return IndependentLengths(self.prefill, Constant(round(mean)))

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Counts, Counts]:
        """See `RequestLengths.sample`."""
        prefill, decode = self.prefill.sample(rng, size), self.decode.sample(rng, size)
        while (empty := np.flatnonzero((prefill == 0) & (decode == 0))).size:
            prefill[empty] = self.prefill.sample(rng, empty.size)
            decode[empty] = self.decode.sample(rng, empty.size)
        return prefill, decode

    @property
    def notes(self) -> tuple[str, ...]:
        """See `RequestLengths.notes`."""
        found = []
        for phase, law in (("prefill", self.prefill), ("decode", self.decode)):
            if isinstance(law, LogNormal):
                found.append(
                    f"{phase}: rounding up moves the lognormal mean from "
                    f"{float(law.scale_mean):g} to {law.mean:.6g} tokens"
                )
        if self._empty:
            found.append(
                f"0 + 0 tokens has probability {float(self._empty):.3g} and is redrawn: the means become "
                f"{float(self.mean_prefill):.6g} prefill, {float(self.mean_decode):.6g} decode"
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """``prefill`` and ``decode`` as in a model file."""
        return {"prefill": self.prefill.to_dict(), "decode": self.decode.to_dict()}


def _readonly(values: Sequence[int] | Counts) -> Counts:
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and not values.flags.writeable:
        return values  # nobody can change it: a trace of 10^8 rows is held once
    array = np.array(values, dtype=np.int64)
    array.setflags(write=False)
    return array


@attrs.frozen(eq=False)
class ObservedLengths(RequestLengths):
    """The pairs of a trace, each row equally likely: the correlation of prompt and output is kept.

    Parameters
    ----------
    prefill, decode : int arrays of one shape (n,)
        Row i is request i; no row is 0 + 0.
    """

    prefill: Counts = attrs.field(converter=_readonly)
    decode: Counts = attrs.field(converter=_readonly)

    def __attrs_post_init__(self) -> None:
        """Check shapes and signs."""
        if self.prefill.shape != self.decode.shape or self.prefill.ndim != 1 or not self.prefill.size:
            raise InvalidModel("prefill, decode: need two arrays of one length, at least one request")
        bad = np.flatnonzero((self.prefill < 0) | (self.decode < 0) | (self.prefill + self.decode == 0))
        if bad.size:
            raise InvalidModel(f"request {bad[0]}: token counts must be non-negative and not both 0")

    @cached_property
    def mean_prefill(self) -> Fraction:
        """See `RequestLengths.mean_prefill`."""
        return Fraction(int(self.prefill.sum()), self.prefill.size)

    @cached_property
    def mean_decode(self) -> Fraction:
        """See `RequestLengths.mean_decode`."""
        return Fraction(int(self.decode.sum()), self.decode.size)

    @property
    def prefill_probability(self) -> Fraction:
        """See `RequestLengths.prefill_probability`."""
        return Fraction(int(np.count_nonzero(self.prefill)), self.prefill.size)

    @property
    def constant_prompt(self) -> int | None:
        """See `RequestLengths.constant_prompt`."""
        first = int(self.prefill[0])
        return first if bool((self.prefill == first).all()) else None

    @property
    def longest_prompt(self) -> int:
        """See `RequestLengths.longest_prompt`."""
        return int(self.prefill.max())

    @property
    def constant_decode(self) -> int | None:
        """See `RequestLengths.constant_decode`."""
        first = int(self.decode[0])
        return first if bool((self.decode == first).all()) else None

    @cached_property
    def _sorted_decode(self) -> Counts:
        return np.sort(self.decode)

    def decode_survival(self, counts: Counts) -> Floats:
        """See `RequestLengths.decode_survival`."""
        return 1.0 - np.searchsorted(self._sorted_decode, np.asarray(counts)) / self.decode.size

    def decode_cutoff(self) -> int:
        """See `RequestLengths.decode_cutoff`."""
        return int(self.decode.max())

    def with_mean_decode(self, mean: Real) -> ObservedLengths:
        """See `RequestLengths.with_mean_decode`; a request without a prompt keeps one decode token."""
        shape = self.decode / float(self.mean_decode) if self.mean_decode else np.ones(self.decode.size)
        scaled = np.rint(shape * float(mean)).astype(np.int64)
        return ObservedLengths(self.prefill, np.maximum(scaled, self.prefill == 0))

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Counts, Counts]:
        """See `RequestLengths.sample`."""
        rows = rng.integers(0, self.prefill.size, size)
        return self.prefill[rows], self.decode[rows]
