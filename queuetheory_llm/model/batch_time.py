"""Batch-time laws t(b): how long a batch of b tokens lasts.

A law also names its *corners* and *troughs*: the few token counts at which a batch can be best or worst. Every
quantity of the capacity and region theory maximises (or minimises) ``(alpha*b + beta)/t(b)``, ``alpha >= 0``, over an
interval of b. On a flat piece of t the maximum is at the right end and the minimum at the left one; on a piece where t
is affine in b the ratio is monotone. So the ends of the pieces suffice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import duration_text, to_count, to_seconds


class BatchTime(ABC):
    """A law t(b) in seconds, for b = 1, 2, ... tokens."""

    law: ClassVar[str]

    @abstractmethod
    def seconds(self, tokens: int) -> Fraction:
        """Duration of a batch of ``tokens`` >= 1 tokens, exact, in seconds."""

    def corners(self, low: int, high: int) -> list[int]:
        """Token counts in ``low..high``, ascending, one of which maximises any (alpha*b + beta)/t(b), alpha >= 0."""
        return list(range(low, high + 1))

    def troughs(self, low: int, high: int) -> list[int]:
        """Token counts in ``low..high``, ascending, one of which minimises any (alpha*b + beta)/t(b), alpha >= 0."""
        return list(range(low, high + 1))

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The law as the ``[engine.batch_time]`` table of a model file."""

    @staticmethod
    def from_dict(table: Mapping[str, Any]) -> BatchTime:
        """The law in plain values, of the keys of `to_dict`.

        Raises
        ------
        KeyError, TypeError, InvalidModel
            If the law or a key is missing or unknown, or a value is none of its key.
        """
        parameters = dict(table)
        return BATCH_TIME_LAWS[parameters.pop("law")]._of_parameters(parameters)

    @classmethod
    def _of_parameters(cls, parameters: Mapping[str, Any]) -> BatchTime:
        return cls(**parameters)

    @property
    def longest(self) -> int | None:
        """Largest batch the law speaks of; None when there is no limit."""
        return None

    def is_nondecreasing(self, b_max: int) -> bool:
        """Whether t(1) <= t(2) <= ... <= t(b_max)."""
        return all(self.seconds(b) <= self.seconds(b + 1) for b in range(1, b_max))

    def seconds_array(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """t(b) in seconds as floats, same shape as ``tokens``."""
        values, where = np.unique(tokens, return_inverse=True)
        return np.array([float(self.seconds(int(b))) for b in values])[where].reshape(np.shape(tokens))


def _nonnegative(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if value < 0:
        raise InvalidModel(f"{field.name}: {duration_text(value)} is negative; a duration is at least 0 s")


def _positive(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if value <= 0:
        raise InvalidModel(f"{field.name}: {duration_text(value)} is not positive; the law needs {field.name} > 0")


def _block(least: int) -> Any:
    def check(_: object, field: attrs.Attribute[int], value: int) -> None:
        if value < least:
            raise InvalidModel(f"{field.name}: {value} is below {least}; it counts tokens")

    return check


def _linear_parameters(law: Staircase | Hinge) -> dict[str, Any]:
    return {"law": law.law, "c": duration_text(law.c), "a": duration_text(law.a), "b0": law.b0}


@attrs.frozen(kw_only=True)
class Staircase(BatchTime):
    """t(b) = c + a*ceil(b/b0): a fixed cost and a cost per started block of b0 tokens (Dai et al. 2025, eq. 4).

    Parameters
    ----------
    c, a : duration
        Seconds, or text with a unit; c >= 0, a > 0.
    b0 : int
        Block length in tokens, at least 1.

    Examples
    --------
    >>> Staircase(c="11.28 ms", a="35.47 ms", b0=128).seconds(129)
    Fraction(4111, 50000)
    """

    law: ClassVar[str] = "staircase"
    c: Fraction = attrs.field(converter=to_seconds, validator=_nonnegative)
    a: Fraction = attrs.field(converter=to_seconds, validator=_positive)
    b0: int = attrs.field(converter=to_count, validator=_block(1))

    def seconds(self, tokens: int) -> Fraction:
        """See `BatchTime.seconds`."""
        return self.c + self.a * -(-tokens // self.b0)

    def is_nondecreasing(self, b_max: int) -> bool:  # noqa: ARG002 - true of every such law
        """See `BatchTime.is_nondecreasing`."""
        return True

    def seconds_array(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `BatchTime.seconds_array`."""
        return np.asarray(float(self.c) + float(self.a) * -(-np.asarray(tokens) // self.b0), dtype=np.float64)

    def corners(self, low: int, high: int) -> list[int]:
        """The first and the last end of a stair in the interval, and its right end: t is affine over stair ends."""
        first, last = -(-low // self.b0) * self.b0, high // self.b0 * self.b0
        return sorted({min(first, high), max(last, low) if last >= low else high, high})

    def troughs(self, low: int, high: int) -> list[int]:
        """The left end, and the first and the last start of a stair: t is affine over stair starts."""
        first, last = -(-low // self.b0) * self.b0 + 1, (high - 1) // self.b0 * self.b0 + 1
        return sorted({low, *(start for start in (first, last) if low <= start <= high)})

    def to_dict(self) -> dict[str, Any]:
        """See `BatchTime.to_dict`."""
        return _linear_parameters(self)


@attrs.frozen(kw_only=True)
class Hinge(BatchTime):
    """t(b) = c + a*max(0, b - b0): flat while memory bound, then linear; ``b0 = 0`` is the affine law.

    Parameters
    ----------
    c, a : duration
        Seconds (c) and seconds per token (a); c >= 0, a > 0, and c > 0 unless b0 = 0.
    b0 : int
        Where the slope starts, in tokens, at least 0.
    """

    law: ClassVar[str] = "hinge"
    c: Fraction = attrs.field(converter=to_seconds, validator=_nonnegative)
    a: Fraction = attrs.field(converter=to_seconds, validator=_positive)
    b0: int = attrs.field(converter=to_count, validator=_block(0))

    def __attrs_post_init__(self) -> None:
        """Refuse a law with batches that take no time."""
        if self.c == 0 and self.b0 > 0:
            raise InvalidModel("c: 0 s makes batches up to b0 take no time; give c > 0 or b0 = 0")

    def seconds(self, tokens: int) -> Fraction:
        """See `BatchTime.seconds`."""
        return self.c + self.a * max(0, tokens - self.b0)

    def is_nondecreasing(self, b_max: int) -> bool:  # noqa: ARG002 - true of every such law
        """See `BatchTime.is_nondecreasing`."""
        return True

    def seconds_array(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `BatchTime.seconds_array`."""
        excess = np.maximum(0, np.asarray(tokens) - self.b0)
        return np.asarray(float(self.c) + float(self.a) * excess, dtype=np.float64)

    def corners(self, low: int, high: int) -> list[int]:
        """The end of the flat piece and the end of the interval."""
        return sorted({min(max(self.b0, low), high), high})

    def troughs(self, low: int, high: int) -> list[int]:
        """Both ends: on either piece the ratio is monotone, and it rises along the flat one."""
        return sorted({low, min(max(self.b0, low), high), high})

    def to_dict(self) -> dict[str, Any]:
        """See `BatchTime.to_dict`."""
        return _linear_parameters(self)


def _counts(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(to_count(value) for value in values)


def _durations(values: Sequence[Fraction | str | float]) -> tuple[Fraction, ...]:
    return tuple(to_seconds(value) for value in values)


@attrs.frozen(kw_only=True, cache_hash=True)
class Table(BatchTime):
    """Measured points; between two points the batch is padded to the next larger one.

    Parameters
    ----------
    tokens : sequence of int
        Strictly increasing, at least 1.
    seconds_at : sequence of durations
        One positive duration a point; it need not be monotone. ``seconds`` in a model file.
    """

    law: ClassVar[str] = "table"
    tokens: tuple[int, ...] = attrs.field(converter=_counts)
    seconds_at: tuple[Fraction, ...] = attrs.field(converter=_durations)

    def __attrs_post_init__(self) -> None:
        """Check lengths, order and signs; every fault is named."""
        faults = []
        if not self.tokens:
            faults.append("tokens: the table is empty; give at least one point")
        if len(self.tokens) != len(self.seconds_at):
            faults.append(f"seconds: {len(self.seconds_at)} values for {len(self.tokens)} token counts; give one each")
        if self.tokens and self.tokens[0] < 1:
            faults.append(f"tokens: {self.tokens[0]} is below 1; a batch has at least one token")
        for before, after in pairwise(self.tokens):
            if after <= before:
                faults.append(f"tokens: {after} after {before}; list each count once, in increasing order")
                break
        for count, value in zip(self.tokens, self.seconds_at, strict=False):
            if value <= 0:
                faults.append(f"seconds: {value} s at {count} tokens is not positive")
                break
        if faults:
            raise InvalidModel(faults)

    @property
    def longest(self) -> int | None:
        """The last point; longer batches were not measured."""
        return self.tokens[-1]

    def _index(self, tokens: int) -> int:
        index = bisect_left(self.tokens, tokens)
        if index == len(self.tokens):
            raise InvalidInput(f"a batch of {tokens} tokens is beyond the table, which ends at {self.tokens[-1]}")
        return index

    def seconds(self, tokens: int) -> Fraction:
        """See `BatchTime.seconds`."""
        return self.seconds_at[self._index(tokens)]

    def is_nondecreasing(self, b_max: int) -> bool:
        """See `BatchTime.is_nondecreasing`."""
        return all(before <= after for before, after in pairwise(self.seconds_at[: self._index(b_max) + 1]))

    def seconds_array(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `BatchTime.seconds_array`."""
        counts = np.asarray(tokens)
        if counts.size:
            self._index(int(counts.max()))
        return np.array([float(t) for t in self.seconds_at])[np.searchsorted(self.tokens, counts)]

    def corners(self, low: int, high: int) -> list[int]:
        """Every point of the table in the interval and its right end."""
        inside = list(self.tokens[bisect_left(self.tokens, low) : bisect_left(self.tokens, high)])
        return [*inside, high]

    def troughs(self, low: int, high: int) -> list[int]:
        """The left end and the count after each point of the table."""
        inside = self.tokens[bisect_left(self.tokens, low) : bisect_left(self.tokens, high)]
        return [low, *(count + 1 for count in inside)]

    @classmethod
    def _of_parameters(cls, parameters: Mapping[str, Any]) -> Table:
        named = dict(parameters)
        return cls(seconds_at=named.pop("seconds"), **named)

    def to_dict(self) -> dict[str, Any]:
        """See `BatchTime.to_dict`."""
        return {
            "law": self.law,
            "tokens": list(self.tokens),
            "seconds": [duration_text(t) for t in self.seconds_at],
        }


#: The laws a model file may name.
BATCH_TIME_LAWS: Mapping[str, type[BatchTime]] = {law.law: law for law in (Staircase, Hinge, Table)}
