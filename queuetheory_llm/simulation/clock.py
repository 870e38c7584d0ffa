"""Integer time: ticks so short that every time the model fixes is a whole number of them.

An arrival exactly at the end of a batch is visible at that boundary; only exact times can tell (Dai et al. 2025,
section 6.2, puts one request every 467.5 ms on an engine whose batch lasts 46.75 ms).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import singledispatch

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import common_denominator
from queuetheory_llm.model.batch_time import BatchTime, Hinge, Staircase, Table

#: Last tick a 64-bit clock can show.
LAST_TICK = 2**63 - 1
_NANO = 10**9


@attrs.frozen(kw_only=True)
class Clock:
    """A clock of whole ticks.

    Attributes
    ----------
    rate : int
        Ticks per second, at least 1e9.
    notes : tuple of str
        What a report must say about times that are rounded; empty when every fixed time is exact.
    """

    rate: int
    notes: tuple[str, ...] = ()

    @classmethod
    def fit(cls, times: Iterable[Fraction], span: Fraction) -> Clock:
        """The coarsest clock with ticks of at most 1 ns that shows ``times`` exactly.

        Where such ticks do not fit 64 bits over ``span``, ticks of 1 ns with a note.

        Parameters
        ----------
        times : iterable of Fraction
            Seconds; every time of the model that is not random is a sum of these.
        span : Fraction
            Seconds the clock must be able to show.

        Raises
        ------
        InvalidInput
            If even ticks of 1 ns do not fit 64 bits.
        """
        exact = common_denominator(list(times))
        rate = exact * -(-_NANO // exact)
        if span * rate <= LAST_TICK:
            return cls(rate=rate)
        if span * _NANO > LAST_TICK:
            raise InvalidInput(
                f"horizon: {float(span):g} s do not fit a 64-bit clock of 1 ns; "
                f"stay below {LAST_TICK / _NANO:.3g} s, or scale all times"
            )
        note = (
            f"clock: times are rounded to 1 ns, since ticks of 1/{rate} s, which all of them need to be exact, "
            f"do not fit 64 bits over {float(span):g} s"
        )
        return cls(rate=_NANO, notes=(note,))

    def ticks(self, seconds: Fraction) -> int:
        """The nearest tick; exact where the clock shows ``seconds`` exactly."""
        return round(seconds * self.rate)

    def bound(self, seconds: Fraction) -> int:
        """The first tick at or after ``seconds``: ticks strictly before it are strictly before ``seconds``."""
        return -(-seconds.numerator * self.rate // seconds.denominator)

    def seconds(self, ticks: int) -> float:
        """Seconds as the nearest float."""
        return int(ticks) / self.rate

    def overflow(self) -> InvalidInput:
        """The error of a run that outlives the clock."""
        return InvalidInput(
            f"horizon: the run passes {self.seconds(LAST_TICK):.3g} s, the last instant of a 64-bit clock of "
            f"{self.rate} ticks/s; give a shorter --horizon"
        )


class BatchTicks(dict[int, int]):
    """t(b) in ticks by number of tokens b; filled as sizes occur."""

    def __init__(self, law: BatchTime, clock: Clock) -> None:
        super().__init__()
        self._law, self._clock = law, clock

    def __missing__(self, tokens: int) -> int:
        seconds = self._law.seconds(tokens)
        ticks = self._clock.ticks(seconds)
        if ticks < 1:
            raise InvalidInput(
                f"engine.batch_time: {float(seconds):g} s for {tokens} tokens is below a tick of the clock "
                f"({self._clock.rate} ticks/s); give a shorter --horizon, or scale all times"
            )
        self[tokens] = ticks
        return ticks


#: Batch sizes of which t(b) is tabulated at most.
MOST_SIZES = 1 << 24


def tick_table(law: BatchTime, clock: Clock, longest: int) -> NDArray[np.int64]:
    """t(b) in ticks at index b = 0..longest, with t(0) = 0; each the nearest tick, as `BatchTicks` has them.

    Raises
    ------
    InvalidInput
        If a batch lasts less than half a tick, or the table is longer than `MOST_SIZES`.
    """
    if longest > MOST_SIZES:
        raise InvalidInput(f"engine.b_max: a batch of {longest} tokens; runs know up to {MOST_SIZES}: lower b_max")
    table = np.zeros(longest + 1, dtype=np.int64)
    ends, step = _levels(law, longest)
    ticks = BatchTicks(law, clock)
    if step is not None and (step * clock.rate).denominator == 1 and len(ends) > 1:
        levels = ticks[int(ends[0])] + np.arange(len(ends), dtype=np.int64) * clock.ticks(step)
    else:
        levels = np.array([ticks[int(end)] for end in ends], dtype=np.int64)
    table[1:] = np.repeat(levels, np.diff(ends, prepend=0))
    return table


@singledispatch
def _levels(law: BatchTime, longest: int) -> tuple[NDArray[np.int64], Fraction | None]:
    """The last b of each interval of 1..longest on which t is constant, and the rise of t from each to the next."""
    del law
    return np.arange(1, longest + 1), None


@_levels.register
def _staircase_levels(law: Staircase, longest: int) -> tuple[NDArray[np.int64], Fraction | None]:
    return np.append(np.arange(law.b0, longest, law.b0), longest), law.a


@_levels.register
def _hinge_levels(law: Hinge, longest: int) -> tuple[NDArray[np.int64], Fraction | None]:
    flat = min(max(law.b0, 1), longest)
    return np.arange(flat, longest + 1), law.a


@_levels.register
def _table_levels(law: Table, longest: int) -> tuple[NDArray[np.int64], Fraction | None]:
    return np.array([*(count for count in law.tokens if count < longest), longest], dtype=np.int64), None


@singledispatch
def generators(law: BatchTime, b_max: int) -> set[Fraction]:
    """Durations in seconds of which every t(b), 1 <= b <= b_max, is a sum of whole multiples."""
    return {law.seconds(tokens) for tokens in range(1, b_max + 1)}


@generators.register
def _staircase(law: Staircase, b_max: int) -> set[Fraction]:
    return {law.seconds(1), law.a} if b_max > law.b0 else {law.seconds(1)}


@generators.register
def _hinge(law: Hinge, b_max: int) -> set[Fraction]:
    return {law.seconds(1), law.a} if b_max > max(1, law.b0) else {law.seconds(1)}
