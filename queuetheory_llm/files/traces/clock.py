"""Arrival times of a trace as 64-bit ticks that divide them exactly, where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput

_NANO = 9  # digits of the tick that is used where no exact one fits
_LIMIT = 2**62  # half the range: differences of two times fit as well
_TOO_LONG = f"arrival times go beyond {_LIMIT // 10**_NANO} s, too long for 64-bit nanoseconds; check their unit"
Ticks = NDArray[np.int64]


class Clock:
    """Collects times given as integers at a number of decimal digits, block by block.

    Parameters
    ----------
    absolute : bool
        Whether the clock counts from an epoch; it is then shifted so that the first arrival is at 0.
    """

    def __init__(self, *, absolute: bool) -> None:
        self._absolute = absolute
        self._origin: int | None = None if absolute else 0  # whole seconds, taken off before anything is stored
        self._parts: list[Ticks] = []
        self._digits: list[int] = []
        self._exact = True
        self._rounded = 0
        self.tick = Fraction(1)

    def add(self, times: Sequence[int], digits: int) -> None:
        """Take a block of times, ``times[i] / 10^digits`` seconds."""
        if not times:
            return
        if self._origin is None:
            self._origin = times[0] // 10**digits
        shift = self._origin * 10**digits
        try:
            part = np.fromiter(times, np.int64, len(times)) - np.int64(shift)
            if np.abs(part).max() >= _LIMIT:
                raise OverflowError
        except OverflowError:
            part, digits = self._rounded_part([time - shift for time in times], digits), _NANO
        self._parts.append(part)
        self._digits.append(digits)

    def _rounded_part(self, times: list[int], digits: int) -> Ticks:
        """The times in nanoseconds, for a block that does not fit 64 bits at its own digits."""
        self._exact = False
        unit = 10 ** max(digits - _NANO, 0)
        factor = 10 ** max(_NANO - digits, 0)
        self._rounded += sum(time % unit != 0 for time in times)
        nanoseconds = [(time * factor + unit // 2) // unit for time in times]
        if max(map(abs, nanoseconds)) >= _LIMIT:
            raise InvalidInput(_TOO_LONG)
        return np.array(nanoseconds, dtype=np.int64)

    def ticks(self) -> Ticks:
        """All times on one tick, in the order they were added; sets `tick`.

        Returns
        -------
        int64 array of shape (n,)
        """
        digits = max(self._digits)
        largest = max(
            int(np.abs(part).max()) * 10 ** (digits - own) for part, own in zip(self._parts, self._digits, strict=True)
        )
        if not self._exact or largest >= _LIMIT:
            digits = _NANO
        parts = [self._rescaled(part, own, digits) for part, own in zip(self._parts, self._digits, strict=True)]
        self._parts.clear()
        self.tick = Fraction(1, 10**digits)
        ticks = np.concatenate(parts)
        if self._absolute:
            ticks -= ticks.min()
        return ticks

    def _rescaled(self, part: Ticks, own: int, digits: int) -> Ticks:
        if own <= digits:
            factor = 10 ** (digits - own)
            if int(np.abs(part).max()) * factor >= _LIMIT:
                raise InvalidInput(_TOO_LONG)
            part *= np.int64(factor)
            return part
        unit = min(10 ** (own - digits), 2 * _LIMIT - 1)  # beyond it every time rounds to 0 all the same
        whole, rest = np.divmod(part, np.int64(unit))
        self._rounded += int(np.count_nonzero(rest))
        return np.asarray(whole + (rest >= unit - rest), dtype=np.int64)

    def notes(self, rows: int) -> list[str]:
        """What was done to the times of ``rows`` rows; after `ticks`."""
        found = []
        if self._absolute:
            found.append("the clock is shifted so that the first arrival is at 0 s")
        if self._rounded:
            found.append(
                f"{self._rounded} of {rows} arrival times have more digits than 64-bit ticks hold over this span; "
                "they are rounded to 1 ns"
            )
        return found
