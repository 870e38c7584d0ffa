"""Arrival processes: when requests come."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import Number, duration_text, plain, to_counts, to_fraction, to_fractions, to_seconds
from queuetheory_llm.model.batch_time import BatchTime

_LISTED = 5  # numbers of requests that a description lists


def _positive(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if value <= 0:
        raise InvalidModel(f"{field.name}: {float(value):g} is not positive; give a value above 0")


class IntervalLaw(ABC):
    """Law of the time between two arrivals of a renewal process; seconds."""

    law: ClassVar[str]

    @property
    @abstractmethod
    def mean(self) -> Fraction:
        """Mean interval in seconds."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """``size`` independent intervals in seconds."""

    @abstractmethod
    def scaled(self, factor: Fraction) -> IntervalLaw:
        """The law of ``factor`` times the interval."""


@attrs.frozen(kw_only=True)
class ConstantInterval(IntervalLaw):
    """Always ``mean``."""

    law: ClassVar[str] = "constant"
    mean: Fraction = attrs.field(converter=to_seconds, validator=_positive)

    def scaled(self, factor: Fraction) -> ConstantInterval:
        """See `IntervalLaw.scaled`."""
        return attrs.evolve(self, mean=self.mean * factor)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:  # noqa: ARG002
        """See `IntervalLaw.sample`."""
        return np.full(size, float(self.mean))


@attrs.frozen(kw_only=True)
class ExponentialInterval(IntervalLaw):
    """Exponential: the renewal process is Poisson."""

    law: ClassVar[str] = "exponential"
    mean: Fraction = attrs.field(converter=to_seconds, validator=_positive)

    def scaled(self, factor: Fraction) -> ExponentialInterval:
        """See `IntervalLaw.scaled`."""
        return attrs.evolve(self, mean=self.mean * factor)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `IntervalLaw.sample`."""
        return rng.exponential(float(self.mean), size)


@attrs.frozen(kw_only=True)
class UniformInterval(IntervalLaw):
    """Uniform on [low, high], 0 <= low < high."""

    law: ClassVar[str] = "uniform"
    low: Fraction = attrs.field(converter=to_seconds)
    high: Fraction = attrs.field(converter=to_seconds)

    def __attrs_post_init__(self) -> None:
        """Check the order of the bounds."""
        if not 0 <= self.low < self.high:
            raise InvalidModel(f"low: need 0 <= low < high, got {float(self.low):g} and {float(self.high):g} s")

    @property
    def mean(self) -> Fraction:
        """See `IntervalLaw.mean`."""
        return (self.low + self.high) / 2

    def scaled(self, factor: Fraction) -> UniformInterval:
        """See `IntervalLaw.scaled`."""
        return UniformInterval(low=self.low * factor, high=self.high * factor)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `IntervalLaw.sample`."""
        return rng.uniform(float(self.low), float(self.high), size)


@attrs.frozen(kw_only=True)
class _ScaledInterval(IntervalLaw):
    mean: Fraction = attrs.field(converter=to_seconds, validator=_positive)
    cv: Fraction = attrs.field(converter=to_fraction, validator=_positive)


@attrs.frozen(kw_only=True)
class GammaInterval(_ScaledInterval):
    """Gamma with the given mean and coefficient of variation: shape 1/cv^2."""

    law: ClassVar[str] = "gamma"

    def scaled(self, factor: Fraction) -> GammaInterval:
        """See `IntervalLaw.scaled`."""
        return attrs.evolve(self, mean=self.mean * factor)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `IntervalLaw.sample`."""
        shape = float(1 / self.cv**2)
        return rng.gamma(shape, float(self.mean) / shape, size)


@attrs.frozen(kw_only=True)
class LogNormalInterval(_ScaledInterval):
    """Lognormal with the given mean and coefficient of variation."""

    law: ClassVar[str] = "lognormal"

    def scaled(self, factor: Fraction) -> LogNormalInterval:
        """See `IntervalLaw.scaled`."""
        return attrs.evolve(self, mean=self.mean * factor)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `IntervalLaw.sample`."""
        sigma = math.sqrt(math.log1p(float(self.cv) ** 2))
        return rng.lognormal(math.log(self.mean) - sigma**2 / 2, sigma, size)


@attrs.frozen(kw_only=True)
class WeibullInterval(_ScaledInterval):
    """Weibull with the given mean and coefficient of variation; the shape k solves cv^2 + 1 = G(2/k)/G(1/k)^2."""

    law: ClassVar[str] = "weibull"

    @property
    def _shape(self) -> float:
        from scipy.optimize import brentq
        from scipy.special import gammaln

        target = math.log1p(float(self.cv) ** 2)
        return float(brentq(lambda k: gammaln(1 + 2 / k) - 2 * gammaln(1 + 1 / k) - target, 0.05, 1e3))

    def __attrs_post_init__(self) -> None:
        """Keep the shape where the moment equation has its root."""
        if not Fraction(1, 500) <= self.cv <= 100:
            raise InvalidModel(f"cv: {float(self.cv):g} is outside 0.002 .. 100 for a Weibull interval")

    def scaled(self, factor: Fraction) -> WeibullInterval:
        """See `IntervalLaw.scaled`."""
        return attrs.evolve(self, mean=self.mean * factor)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `IntervalLaw.sample`."""
        shape = self._shape
        return float(self.mean) / math.gamma(1 + 1 / shape) * rng.weibull(shape, size)


INTERVAL_LAWS: Mapping[str, type[IntervalLaw]] = {
    law.law: law
    for law in (
        ConstantInterval,
        ExponentialInterval,
        UniformInterval,
        GammaInterval,
        LogNormalInterval,
        WeibullInterval,
    )
}


class Arrivals(ABC):
    """A stationary arrival process."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def rate(self) -> Fraction:
        """Mean arrivals per second."""

    @property
    def largest_rate(self) -> Fraction | None:
        """The largest rate that `with_rate` can give; None when there is none."""
        return None

    @abstractmethod
    def with_rate(self, rate: Fraction) -> Arrivals:
        """The same process, time rescaled to another rate."""


@attrs.frozen(kw_only=True)
class PoissonArrivals(Arrivals):
    """Poisson process of ``rate`` requests per second."""

    kind: ClassVar[str] = "poisson"
    rate: Fraction = attrs.field(converter=to_fraction, validator=_positive)

    def with_rate(self, rate: Fraction) -> PoissonArrivals:
        """See `Arrivals.with_rate`."""
        return PoissonArrivals(rate=rate)


@attrs.frozen(kw_only=True)
class DeterministicArrivals(Arrivals):
    """One request each ``interval``, the first at time 0."""

    kind: ClassVar[str] = "deterministic"
    interval: Fraction = attrs.field(converter=to_seconds, validator=_positive)

    @property
    def rate(self) -> Fraction:
        """See `Arrivals.rate`."""
        return 1 / self.interval

    def with_rate(self, rate: Fraction) -> DeterministicArrivals:
        """See `Arrivals.with_rate`."""
        return DeterministicArrivals(interval=1 / to_fraction(rate))


@attrs.frozen(kw_only=True)
class RenewalArrivals(Arrivals):
    """Independent intervals of one law."""

    kind: ClassVar[str] = "renewal"
    interval: IntervalLaw

    @property
    def rate(self) -> Fraction:
        """See `Arrivals.rate`."""
        return 1 / self.interval.mean

    def with_rate(self, rate: Fraction) -> RenewalArrivals:
        """See `Arrivals.with_rate`; a constant factor on every interval keeps the coefficient of variation."""
        return RenewalArrivals(interval=self.interval.scaled(self.rate / to_fraction(rate)))


class CountLaw(ABC):
    """Law of the number A of requests that come at the start of one slot; E[A] > 0."""

    law: ClassVar[str]

    @property
    @abstractmethod
    def mean(self) -> Fraction:
        """E[A]."""

    @property
    def largest_mean(self) -> Fraction | None:
        """The largest mean that `with_mean` can give; None when there is none."""
        return None

    @abstractmethod
    def with_mean(self, mean: Fraction) -> CountLaw:
        """A law of the same kind with another mean, at most `largest_mean`."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """``size`` independent draws."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The law as the inline table ``per_slot`` of a model file."""

    def describe(self) -> str:
        """The law in words."""
        return f"{self.law} with mean {float(self.mean):g}"


def _probability(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if value > 1:
        raise InvalidModel(f"{field.name}: {float(value):g} is above 1; it is a probability")


@attrs.frozen(kw_only=True)
class BernoulliCount(CountLaw):
    """One request with probability ``p``, else none; 0 < p <= 1."""

    law: ClassVar[str] = "bernoulli"
    p: Fraction = attrs.field(converter=to_fraction, validator=[_positive, _probability])

    @property
    def mean(self) -> Fraction:
        """See `CountLaw.mean`."""
        return self.p

    @property
    def largest_mean(self) -> Fraction:
        """See `CountLaw.largest_mean`."""
        return Fraction(1)

    def with_mean(self, mean: Fraction) -> BernoulliCount:
        """See `CountLaw.with_mean`."""
        return BernoulliCount(p=mean)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """See `CountLaw.sample`."""
        return (rng.random(size) < float(self.p)).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """See `CountLaw.to_dict`."""
        return {"law": self.law, "p": plain(self.p)}


@attrs.frozen(kw_only=True)
class PoissonCount(CountLaw):
    """Poisson with the given mean > 0."""

    law: ClassVar[str] = "poisson"
    mean: Fraction = attrs.field(converter=to_fraction, validator=_positive)

    def with_mean(self, mean: Fraction) -> PoissonCount:
        """See `CountLaw.with_mean`."""
        return PoissonCount(mean=mean)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """See `CountLaw.sample`."""
        return rng.poisson(float(self.mean), size)

    def to_dict(self) -> dict[str, Any]:
        """See `CountLaw.to_dict`."""
        return {"law": self.law, "mean": plain(self.mean)}


@attrs.frozen(kw_only=True)
class BatchCount(CountLaw):
    """Batches of requests: ``values`` with probabilities proportional to ``weights``.

    Parameters
    ----------
    values : sequence of int
        Distinct numbers of requests >= 0, one at least positive and of positive weight.
    weights : sequence of numbers, optional
        One for each value, not negative; all equal when absent.
    """

    law: ClassVar[str] = "batch"
    values: tuple[int, ...] = attrs.field(converter=to_counts)
    weights: tuple[Fraction, ...] = attrs.field(default=(), converter=to_fractions)

    def __attrs_post_init__(self) -> None:
        """Check the values and the weights, and fill equal ones."""
        if not self.values:
            raise InvalidModel("values: the list is empty; give at least one number of requests")
        if min(self.values) < 0:
            raise InvalidModel(f"values: {min(self.values)} is negative; it counts requests")
        value, times = Counter(self.values).most_common(1)[0]
        if times > 1:
            raise InvalidModel(f"values: {value} is given {times} times; give it once, with the sum of its weights")
        if not self.weights:
            object.__setattr__(self, "weights", (Fraction(1),) * len(self.values))
        if len(self.weights) != len(self.values):
            raise InvalidModel(f"weights: {len(self.weights)} weights for {len(self.values)} values; give one each")
        if min(self.weights) < 0:
            raise InvalidModel(f"weights: {float(min(self.weights)):g} is negative; give a probability or a multiple")
        if not any(value * weight for value, weight in zip(self.values, self.weights, strict=True)):
            raise InvalidModel("values: no slot ever brings a request; give a positive number a positive weight")

    @property
    def chances(self) -> dict[int, Fraction]:
        """P(A = value) for each value."""
        total = sum(self.weights)
        return {value: weight / total for value, weight in zip(self.values, self.weights, strict=True)}

    @property
    def mean(self) -> Fraction:
        """See `CountLaw.mean`."""
        return sum((value * chance for value, chance in self.chances.items()), Fraction(0))

    @property
    def largest_mean(self) -> Fraction:
        """See `CountLaw.largest_mean`: E[A | A > 0], at which no slot is empty."""
        return self.mean / (1 - self.chances.get(0, Fraction(0)))

    def with_mean(self, mean: Fraction) -> BatchCount:
        """See `CountLaw.with_mean`: P(A = a) times one factor for each a > 0, the rest to P(A = 0)."""
        if mean > self.largest_mean:
            raise InvalidModel(
                f"mean: {float(mean):g} is above {float(self.largest_mean):g}, at which no slot is empty; give less"
            )
        chances = {value: chance * mean / self.mean for value, chance in self.chances.items() if value}
        empty = 1 - sum(chances.values())
        values = self.values if 0 in self.values or not empty else (0, *self.values)
        return BatchCount(values=values, weights=[chances.get(value, empty) for value in values])

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """See `CountLaw.sample`."""
        chances = [float(chance) for chance in self.chances.values()]
        return rng.choice(np.asarray(self.values, dtype=np.int64), size, p=chances)

    def to_dict(self) -> dict[str, Any]:
        """See `CountLaw.to_dict`."""
        return {"law": self.law, "values": list(self.values), "weights": [plain(weight) for weight in self.weights]}

    def describe(self) -> str:
        """See `CountLaw.describe`."""
        listed = ", ".join(map(str, self.values)) if len(self.values) <= _LISTED else f"up to {max(self.values)}"
        return f"batches of {listed} with mean {float(self.mean):g}"


#: The laws of ``per_slot`` that a model file may name.
COUNT_LAWS: Mapping[str, type[CountLaw]] = {law.law: law for law in (BernoulliCount, PoissonCount, BatchCount)}


def _one_number(law: str | None, mean: Number | None) -> CountLaw:
    """A law of requests per slot that its mean determines."""
    if law is None or mean is None:
        raise InvalidModel("per_slot: give the law of the number of requests per slot, or its name and mean")
    if law == BernoulliCount.law:
        return BernoulliCount(p=mean)
    if law == PoissonCount.law:
        return PoissonCount(mean=mean)
    raise InvalidModel(f"law: {law!r} is not bernoulli or poisson; give any other as per_slot, such as BatchCount")


@attrs.frozen(kw_only=True, init=False)
class SlottedArrivals(Arrivals):
    """Independent numbers of requests at the slot starts; every batch lasts one slot.

    Parameters
    ----------
    slot : duration
    per_slot : CountLaw
        Law of the number of requests per slot. For Bernoulli and Poisson ``law`` and ``mean`` will do.
    law : {"bernoulli", "poisson"}
    mean : number
        Mean requests per slot: p for Bernoulli (at most 1).

    Examples
    --------
    >>> SlottedArrivals(slot="1 s", law="bernoulli", mean=0.5).rate
    Fraction(1, 2)
    >>> SlottedArrivals(slot="1 s", per_slot=BatchCount(values=[0, 1, 4], weights=["1/2", "1/4", "1/4"])).rate
    Fraction(5, 4)
    """

    kind: ClassVar[str] = "slotted"
    slot: Fraction = attrs.field(converter=to_seconds, validator=_positive)
    per_slot: CountLaw

    def __init__(
        self, *, slot: Number, per_slot: CountLaw | None = None, law: str | None = None, mean: Number | None = None
    ) -> None:
        """A law of the numbers per slot, or its name and mean."""
        if per_slot is not None and (law is not None or mean is not None):
            raise InvalidModel("per_slot: goes without law and mean; leave them out")
        self.__attrs_init__(slot=slot, per_slot=_one_number(law, mean) if per_slot is None else per_slot)

    @property
    def rate(self) -> Fraction:
        """See `Arrivals.rate`."""
        return self.per_slot.mean / self.slot

    @property
    def largest_rate(self) -> Fraction | None:
        """See `Arrivals.largest_rate`."""
        most = self.per_slot.largest_mean
        return None if most is None else most / self.slot

    def with_rate(self, rate: Fraction) -> SlottedArrivals:
        """The same slot with another mean; unlike time, slots are not rescaled.

        Raises
        ------
        InvalidModel
            If the rate is not positive or above `largest_rate`.
        """
        asked, most = to_fraction(rate), self.largest_rate
        if asked <= 0:
            raise InvalidModel(f"rate: {float(asked):g} is not positive")
        if most is not None and asked > most:
            raise InvalidModel(
                f"rate: {float(asked):g} requests/s is above {float(most):g}, at which no slot is empty; "
                "give a lower rate, or a law with more requests per slot"
            )
        return SlottedArrivals(slot=self.slot, per_slot=self.per_slot.with_mean(asked * self.slot))

    def require_slot_batches(self, law: BatchTime, b_max: int) -> None:
        """Under slotted arrivals every batch up to ``b_max`` lasts one slot.

        Raises
        ------
        InvalidModel
            If some batch does not; names its size.
        """
        for tokens in sorted({1, *law.corners(1, b_max), *law.troughs(1, b_max)}):
            lasts = law.seconds(tokens)
            if lasts != self.slot:
                raise InvalidModel(
                    f"slot: {duration_text(self.slot)}, but a batch of {tokens} tokens lasts {duration_text(lasts)}; "
                    "under slotted arrivals every batch up to b_max must last one slot"
                )

    def describe(self) -> str:
        """The process in words."""
        return f"{self.per_slot.describe()} per slot of {duration_text(self.slot)}"
