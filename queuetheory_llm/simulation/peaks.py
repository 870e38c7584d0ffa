"""Peaks of a series that rises and falls by much more than its noise, such as the backlog of an oscillating network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Share of a peak by which the series must fall before another rise counts. Between two peaks of the LLM form of the
#: Rybko-Stolyar network at load 0.9 the tokens present fall by half.
FALL = 0.25


def peaks_between_falls(series: Sequence[float] | NDArray[np.generic], fall: float = FALL) -> NDArray[np.int64]:
    """Where a series has its peaks: the highest points of the stretches between deep falls.

    A peak counts once the series has fallen from it by more than ``fall`` of it; the next stretch begins at the lowest
    point after that, as soon as the series has risen so far again that the lowest point is ``1 - fall`` of the level.
    Noise that moves the level by less makes no peak. A last rise that has not fallen yet is none.

    Parameters
    ----------
    series : sequence of numbers >= 0
    fall : float
        Strictly between 0 and 1.

    Returns
    -------
    int64 array
        Positions in the series, increasing.

    Examples
    --------
    >>> peaks_between_falls([1, 4, 3, 4, 1, 2, 9, 8, 3, 30]).tolist()
    [1, 6]
    """
    levels = np.asarray(series, dtype=np.float64)
    found: list[int] = []
    rising, best = True, 0
    for position, level in enumerate(levels):
        if rising:
            if level > levels[best]:
                best = position
            elif level < (1 - fall) * levels[best]:
                found.append(best)
                rising, best = False, position
        elif level < levels[best]:
            best = position
        elif levels[best] < (1 - fall) * level:
            rising, best = True, position
    return np.array(found, dtype=np.int64)


def peak_ratios(series: Sequence[float] | NDArray[np.generic], fall: float = FALL) -> NDArray[np.float64]:
    """Each peak over the one before it, shape (number of peaks - 1,)."""
    heights = np.asarray(series, dtype=np.float64)[peaks_between_falls(series, fall)]
    return np.asarray(heights[1:] / heights[:-1], dtype=np.float64)
