"""Queries with all their chances drawn: which steps each takes, which calls those make, of how many tokens.

Loops are unrolled and stages left out are gone, so that what is left of a query is a graph of steps. Every rule that is
compared gets the same queries, and a log of real ones has the same form.
"""

from __future__ import annotations

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.simulation.requests import Ticks, read_only


def arrivals(values: object) -> Ticks:
    """Ticks at which queries come, as an array that nobody can write to.

    Raises
    ------
    InvalidInput
        If they are not whole numbers from 0 on in one row, not decreasing.
    """
    ticks = np.asarray(values)
    whole = ticks.dtype.kind in "iu" or (ticks.dtype.kind == "f" and bool((ticks == np.rint(ticks)).all()))
    if ticks.ndim != 1 or not whole:
        raise InvalidInput("arrival_ticks: no whole numbers in one row; give an integer array of shape (Q,)")
    if ticks.size and (ticks[0] < 0 or bool((ticks[1:] < ticks[:-1]).any())):
        raise InvalidInput("arrival_ticks: negative, or not in order; give ticks from 0 on that do not decrease")
    return read_only(values)


@attrs.frozen(kw_only=True, eq=False)
class Queries:
    """Q queries in order of arrival, P steps, C calls, E dependencies; ``first_*`` are the starts of rows.

    Attributes
    ----------
    arrival : int64 array of shape (Q,)
        Ticks, not decreasing.
    tenant : int64 array of shape (Q,)
    first_step : int64 array of shape (Q + 1,)
        Steps of a query stand together, each behind those that it waits for.
    stage : int64 array of shape (P,)
        The stage that each step is a visit to.
    waits : int64 array of shape (P,)
        Number of steps that must have ended before it begins; 0: it begins with the query.
    first_next : int64 array of shape (P + 1,)
    next : int64 array of shape (E,)
        The steps that wait for each step.
    first_call : int64 array of shape (P + 1,)
        The calls of each step, at least one; it ends with the last of them.
    prefill, decode : int64 arrays of shape (C,)
        Tokens; 0 of a classical call.
    work : float array of shape (C,)
        Seconds at a classical server of speed 1; 0 of a call of tokens.

    Raises
    ------
    InvalidInput
        If the arrivals are not as `arrivals` takes them.
    """

    arrival: Ticks = attrs.field(converter=arrivals)
    tenant: Ticks = attrs.field(converter=read_only)
    first_step: Ticks = attrs.field(converter=read_only)
    stage: Ticks = attrs.field(converter=read_only)
    waits: Ticks = attrs.field(converter=read_only)
    first_next: Ticks = attrs.field(converter=read_only)
    next: Ticks = attrs.field(converter=read_only)
    first_call: Ticks = attrs.field(converter=read_only)
    prefill: Ticks = attrs.field(converter=read_only)
    decode: Ticks = attrs.field(converter=read_only)
    work: Floats

    def __len__(self) -> int:
        """Number of queries."""
        return int(self.arrival.size)

    @property
    def calls(self) -> int:
        """Number of calls."""
        return int(self.prefill.size)
