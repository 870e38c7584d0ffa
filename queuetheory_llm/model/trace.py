"""A recorded stream of requests, as plain arrays."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.lengths import ObservedLengths, RequestLengths

#: When the first output token comes: with the first decode token (paper), or with the last prefill one (engine).
FirstToken = Literal["paper", "engine"]


@attrs.frozen(kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival (stable: ties keep the order of the file).

    Attributes
    ----------
    lengths : RequestLengths
        ObservedLengths, the (prefill, decode) tokens of each of n requests, where the file has one row a request;
        another law where it describes lengths by their distribution.
    arrivals : int64 array of shape (n,) or None
        Non-decreasing times in ticks; None for a file without arrival times.
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

    lengths: RequestLengths
    arrivals: NDArray[np.int64] | None
    tick: Fraction
    source: str
    format: str
    first_token: str
    notes: tuple[str, ...] = ()
    rate_given: Fraction | None = None

    def __len__(self) -> int:
        """Number of recorded requests; 0 where the format has rates and laws instead."""
        return int(self.lengths.prefill.size) if isinstance(self.lengths, ObservedLengths) else 0

    def __bool__(self) -> bool:
        """True: a file of rates and laws has no rows, and is a trace all the same."""
        return True

    @property
    def rate(self) -> Fraction | None:
        """(N - 1)/(t_N - t_1) requests per second; None without times or with one instant only."""
        if self.arrivals is None or len(self) < 2 or self.arrivals[-1] == self.arrivals[0]:
            return self.rate_given
        return Fraction(len(self) - 1, int(self.arrivals[-1]) - int(self.arrivals[0])) / self.tick

    def convention(self, asked: FirstToken | None = None) -> FirstToken:
        """Convention of the latencies of its replay: "paper" where the file was read so or it is asked for.

        A format that records v_d itself leaves the choice open.
        """
        return "paper" if "paper" in (self.first_token, asked) else "engine"

    def require_rows(self) -> ObservedLengths:
        """The lengths request by request, for a command that replays the trace.

        Raises
        ------
        InvalidInput
            If the file describes lengths by a law.
        """
        if not isinstance(self.lengths, ObservedLengths):
            raise InvalidInput(
                f"{self.source}: the {self.format} format has no requests of its own, only rates and length laws; "
                "use it for capacities and regions instead of replaying it"
            )
        return self.lengths

    def require_arrivals(self) -> NDArray[np.int64]:
        """The arrival ticks, for a command that replays the trace.

        Raises
        ------
        InvalidInput
            If the file has lengths only.
        """
        if self.arrivals is None:
            raise InvalidInput(
                f"{self.source}: the {self.format} format has no arrival times; "
                "use it with a model file's rate instead of replaying it"
            )
        return self.arrivals


@attrs.frozen(kw_only=True)
class TraceArrivals(Arrivals):
    """The recorded arrivals of a trace, replayed.

    Parameters
    ----------
    trace : Trace
        One that has a rate.
    """

    kind: ClassVar[str] = "trace"
    trace: Trace

    def __attrs_post_init__(self) -> None:
        """A process has a rate."""
        _ = self.rate

    @property
    def rate(self) -> Fraction:
        """See `Arrivals.rate`."""
        rate = self.trace.rate
        if rate is None:
            raise InvalidInput(f"{self.trace.source}: has no arrival rate; give a model's rate instead")
        return rate

    def with_rate(self, rate: Fraction) -> TraceArrivals:
        """The same trace, its clock stretched so that the rate is ``rate``."""
        wanted = to_fraction(rate)
        stated = None if self.trace.rate_given is None else wanted
        stretched = attrs.evolve(self.trace, tick=self.trace.tick * self.rate / wanted, rate_given=stated)
        return TraceArrivals(trace=stretched)
