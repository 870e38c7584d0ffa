"""A recorded stream of requests, as plain arrays."""

from __future__ import annotations

from fractions import Fraction

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.lengths import ObservedLengths


@attrs.frozen(kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival (stable: ties keep the order of the file).

    Attributes
    ----------
    lengths : ObservedLengths
        (prefill, decode) tokens of each request, arrays of shape (n,).
    arrivals : int64 array of shape (n,) or None
        Non-decreasing times in ticks; None for a file of lengths without times.
    tick : Fraction
        Seconds per tick.
    source : str
        File the requests came from.
    format : str
        Name of the recognised format.
    first_token : str
        "paper" (decode tokens = output tokens) or "engine" (= output tokens - 1); "as given" where the file has v_d.
    notes : tuple of str
        Everything a report must say: rows sorted, rounded, derived, and what the format does not tell.
    rate_given : Fraction or None
        Requests per second where the format states rates instead of arrivals.
    """

    lengths: ObservedLengths
    arrivals: NDArray[np.int64] | None
    tick: Fraction
    source: str
    format: str
    first_token: str
    notes: tuple[str, ...] = ()
    rate_given: Fraction | None = None

    def __len__(self) -> int:
        return int(self.lengths.prefill.size)

    @property
    def rate(self) -> Fraction | None:
        """(N - 1)/(t_N - t_1) requests per second; None without times or with one instant only."""
        if self.arrivals is None or len(self) < 2 or self.arrivals[-1] == self.arrivals[0]:
            return self.rate_given
        return Fraction(len(self) - 1, int(self.arrivals[-1]) - int(self.arrivals[0])) / self.tick

    def require_arrivals(self) -> NDArray[np.int64]:
        """The arrival ticks, for a command that replays the trace.

        Raises
        ------
        InvalidInput
            If the file has lengths only.
        """
        if self.arrivals is None:
            raise InvalidInput(
                f"{self.source}: header: the {self.format} format has no arrival times; "
                "use it with a model file's rate instead of replaying it"
            )
        return self.arrivals
