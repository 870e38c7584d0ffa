"""Arrival processes: when requests come."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import duration_text, to_fraction, to_seconds
from queuetheory_llm.model.batch_time import BatchTime


def _positive(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if value <= 0:
        raise InvalidModel(f"{field.name}: {float(value):g} is not positive")


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


@attrs.frozen(kw_only=True)
class SlottedArrivals(Arrivals):
    """Independent numbers of requests at the slot starts; every batch lasts one slot.

    Parameters
    ----------
    slot : duration
    law : {"bernoulli", "poisson"}
    mean : number
        Mean requests per slot: p for Bernoulli (at most 1).
    """

    kind: ClassVar[str] = "slotted"
    slot: Fraction = attrs.field(converter=to_seconds, validator=_positive)
    law: str = attrs.field(validator=attrs.validators.in_(("bernoulli", "poisson")))
    mean: Fraction = attrs.field(converter=to_fraction, validator=_positive)

    def __attrs_post_init__(self) -> None:
        """A probability is at most 1."""
        if self.law == "bernoulli" and self.mean > 1:
            raise InvalidModel(f"p: {float(self.mean):g} is above 1; it is a probability")

    @property
    def rate(self) -> Fraction:
        """See `Arrivals.rate`."""
        return self.mean / self.slot

    @property
    def largest_rate(self) -> Fraction | None:
        """See `Arrivals.largest_rate`."""
        return 1 / self.slot if self.law == "bernoulli" else None

    def with_rate(self, rate: Fraction) -> SlottedArrivals:
        """The same slot with another mean; unlike time, slots are not rescaled."""
        return attrs.evolve(self, mean=to_fraction(rate) * self.slot)

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
        return f"{self.law} with mean {float(self.mean):g} per slot of {duration_text(self.slot)}"
