"""What the runs of a cluster show of its queries: quantiles of their seconds, deadlines met, each with its interval.

Intervals are Student's over independent replications. Two rules are compared replication by replication, since both get
the same queries: the interval is that of the mean of the differences, or of the logarithms of the ratios, and most of
the noise of the queries is in neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.simulation.statistics import student

#: Level of the intervals of a comparison.
LEVEL = 0.95


@attrs.frozen(kw_only=True)
class Interval:
    """A mean over replications, and its confidence interval; None where there is one replication alone."""

    mean: float
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, float | bool | None]:
        """``mean``, ``low``, ``high``; where ``infinite``, since too many queries never ended, all are null."""
        values = {name: _finite(value) for name, value in attrs.asdict(self).items()}
        return {**values, "infinite": math.isinf(self.mean)}

    @classmethod
    def of(cls, values: Floats, level: float = LEVEL) -> Interval:
        """From one value of each replication, shape (R,); infinite as soon as one of them is."""
        if not np.isfinite(values).all():
            return cls(mean=math.inf, low=None, high=None)
        if values.size == 1:
            return cls(mean=float(values[0]), low=None, high=None)
        mean, reach = student(values, level)
        return cls(mean=mean, low=mean - reach, high=mean + reach)

    @classmethod
    def of_known(cls, values: Sequence[float | None], level: float = LEVEL) -> Interval | None:
        """Over the replications that have a value; None where none has."""
        known = [value for value in values if value is not None]
        return cls.of(np.array(known), level) if known else None

    @classmethod
    def of_shares(cls, values: Sequence[float | None], level: float = LEVEL) -> Interval | None:
        """As `of_known`, of shares: Student's interval cut to 0 .. 1, which takes away nothing that could be true."""
        found = cls.of_known(values, level)
        if found is None or found.low is None or found.high is None:
            return found
        return cls(mean=found.mean, low=max(found.low, 0.0), high=min(found.high, 1.0))

    @classmethod
    def of_ratio(cls, values: Floats, base: Floats, level: float = LEVEL) -> Interval | None:
        """Of values/base by pairs, the geometric mean; None where one of them is 0 or infinite."""
        if not (np.isfinite(values) & np.isfinite(base) & (values > 0) & (base > 0)).all():
            return None
        logs = cls.of(np.log(values / base), level)
        low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
        return cls(mean=math.exp(logs.mean), low=low, high=high)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def maybe(value: Interval | None) -> dict[str, Any] | None:
    """`Interval.to_dict`, of what may be missing."""
    return None if value is None else value.to_dict()


def attainment(responses: Floats, deadlines: Floats) -> float | None:
    """Share of the queries with an SLO that end within it; None where none has one.

    Parameters
    ----------
    responses, deadlines : float arrays of shape (n,)
        Seconds; inf of a query that had not ended, and of one without an SLO.
    """
    given = np.isfinite(deadlines)
    return float((responses <= deadlines)[given].mean()) if given.any() else None


def quantile(values: Floats, share: float) -> float:
    """The least of the values at or below which a share of them lies; some may be infinite."""
    if not values.size:
        return float("nan")
    return float(np.quantile(values, share, method="inverted_cdf"))
