"""A measured batch-time curve, as plain data."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import MOST


@attrs.frozen(kw_only=True)
class Profile:
    """How long batches of given sizes took.

    Attributes
    ----------
    tokens : tuple of int
        Batch sizes in tokens, strictly increasing, 1 .. 2^31 - 1.
    seconds : tuple of Fraction
        Duration of each, positive, exact where the file is decimal.
    source : str
        The files the points came from.
    format : str
        Name of the recognised format.
    includes : str
        What of an engine iteration the times cover, and what they leave out.
    statistic : str
        How the repetitions of one point became one number.
    notes : tuple of str
        Rows dropped and why, duplicates merged, choices a reader must know.

    Raises
    ------
    InvalidInput
        If there is no point, or the points break the rules above.
    """

    tokens: tuple[int, ...]
    seconds: tuple[Fraction, ...]
    source: str
    format: str
    includes: str
    statistic: str
    notes: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Check the points."""
        fault = self._fault()
        if fault is not None:
            raise InvalidInput(fault, source=self.source)

    def _fault(self) -> str | None:
        if not self.tokens or len(self.tokens) != len(self.seconds):
            return f"points: {len(self.tokens)} token counts and {len(self.seconds)} times; give one time a count"
        if self.tokens[0] < 1:
            return f"tokens: {self.tokens[0]} is below 1; a batch has at least one token"
        for before, after in pairwise(self.tokens):
            if after <= before:
                return f"tokens: {after} after {before}; list each count once, in increasing order"
        if self.tokens[-1] > MOST:
            return f"tokens: {self.tokens[-1]} is above {MOST}; mend or drop the row"
        for count, time in zip(self.tokens, self.seconds, strict=True):
            if time <= 0:
                return f"seconds: {float(time):g} s at {count} tokens is not positive; drop that point"
        return None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def token_array(self) -> NDArray[np.int64]:
        """Batch sizes in tokens, shape (n,)."""
        return np.array(self.tokens, dtype=np.int64)

    @property
    def second_array(self) -> NDArray[np.float64]:
        """Durations in seconds as floats, shape (n,)."""
        return np.array([float(time) for time in self.seconds])

    def up_to(self, b_max: int) -> Profile:
        """The points a budget of ``b_max`` tokens needs: those up to it, and the next one when none is at it.

        Raises
        ------
        InvalidInput
            If ``b_max`` is below 1.
        """
        if b_max < 1:
            raise InvalidInput(f"--b-max: {b_max} is below 1; a batch has at least one token")
        last = next((i for i, count in enumerate(self.tokens) if count >= b_max), len(self.tokens) - 1)
        left_out = len(self.tokens) - last - 1
        if left_out == 0:
            return self
        note = f"{left_out} points above {self.tokens[last]} tokens are left out, as the budget is {b_max} tokens"
        return attrs.evolve(
            self,
            tokens=self.tokens[: last + 1],
            seconds=self.seconds[: last + 1],
            notes=(*self.notes, note),
        )
