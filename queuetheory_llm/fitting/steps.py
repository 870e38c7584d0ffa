"""Tile steps: token counts after which the batch time jumps, and places where it falls.

A GPU runs matrix products in tiles of a fixed number of rows, so one token more can cost a whole tile, and a larger
batch can be faster than a smaller one when a better kernel takes over.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.model.profile import Profile

_WINDOW = 8  # neighbours on each side that tell what an ordinary increment is
_NOISES = 6.0  # a step exceeds the scatter of the ordinary increments this many times
_LEAST = 0.01  # and this fraction of the batch time: smaller steps do not matter to a capacity
_FEWEST = 3  # neighbours without which no slope is known
_TO_SIGMA = 1.4826  # median absolute deviation -> standard deviation, for normal scatter


@attrs.frozen(kw_only=True)
class TileStep:
    """One place where t(b) is not smooth.

    Attributes
    ----------
    after_tokens, next_tokens : int
        The measured sizes on either side.
    before_seconds, after_seconds : float
        Their times.
    """

    after_tokens: int
    next_tokens: int
    before_seconds: float
    after_seconds: float

    @property
    def change(self) -> float:
        """Relative change of t across the step."""
        return self.after_seconds / self.before_seconds - 1

    @property
    def falls(self) -> bool:
        """Whether the larger batch is the faster one."""
        return self.change < 0

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON; seconds."""
        return {
            "after_tokens": self.after_tokens,
            "next_tokens": self.next_tokens,
            "before_seconds": self.before_seconds,
            "after_seconds": self.after_seconds,
            "change": self.change,
        }


def tile_steps(profile: Profile) -> tuple[TileStep, ...]:
    """Steps of a profile, in order of size.

    A jump is an increment beyond what the slopes before and after it predict (the larger of their medians over eight
    neighbours), by more than six times the scatter of increments around it and by more than 1 % of t. Where one side
    has fewer than three neighbours a jump cannot be told from a slope. A fall is any decrease by more than 1 % of t
    that also exceeds the scatter.

    Returns
    -------
    tuple of TileStep
    """
    tokens, seconds = profile.token_array, profile.second_array
    if tokens.size < 2:
        return ()
    gaps, increments = np.diff(tokens), np.diff(seconds)
    slopes = increments / gaps
    before, after = _running_median(slopes, _WINDOW, 0), _running_median(slopes, 0, _WINDOW)
    around = _running_median(slopes, _WINDOW, _WINDOW)
    scatter = _running_median(np.abs(increments - around * gaps) / seconds[:-1], _WINDOW, _WINDOW)
    threshold = np.maximum(_NOISES * _TO_SIGMA * np.nan_to_num(scatter), _LEAST) * seconds[:-1]
    jumps = increments - np.maximum(before, after) * gaps > threshold  # false where a side is unknown
    falls = increments < -threshold
    return tuple(
        TileStep(
            after_tokens=int(tokens[i]),
            next_tokens=int(tokens[i + 1]),
            before_seconds=float(seconds[i]),
            after_seconds=float(seconds[i + 1]),
        )
        for i in np.flatnonzero(jumps | falls)
    )


def _running_median(values: NDArray[np.float64], left: int, right: int) -> NDArray[np.float64]:
    """Median of up to ``left`` and ``right`` neighbours of each value; NaN where fewer than three exist; same shape.

    The value itself belongs to a window that has both sides.
    """
    result = np.full(values.size, np.nan)
    for i in range(values.size):
        low = max(0, i - left) if left else i + 1
        window = values[low : i + right + 1 if right else i]
        if window.size >= _FEWEST:
            result[i] = np.median(window)
    return result
