"""How many requests are present over a run: the law of their number in time, counted tick by tick."""

from __future__ import annotations

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, to_seconds
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import NEVER, Run


def occupancy(run: Run, warm_up: Number = 0) -> Floats:
    """Share of time during which n requests are present, n = 0, 1, ..., most.

    A request is present from its arrival to the end of the batch that credits its last token. Where arrivals and batch
    ends all lie on slot starts, this is the law at slot starts after the arrivals.

    Parameters
    ----------
    run : Run
    warm_up : number or str
        Seconds left out at the beginning. The rest ends at ``run.until``, after which nothing arrives, or at the end of
        the last batch without it.

    Returns
    -------
    float64 array of shape (most + 1,)
        Sums to 1; ``most`` is the largest number that is present for any time.

    Raises
    ------
    InvalidInput
        If the warm-up is negative or leaves nothing of the run.
    """
    ticks = ticks_present(run, warm_up)
    return np.asarray(ticks / ticks.sum(), dtype=np.float64)


def ticks_present(run: Run, warm_up: Number = 0) -> Ticks:
    """Ticks during which n requests are present; int64 array of shape (most + 1,). See `occupancy`."""
    start, end = _window(run, warm_up)
    leaving = np.where(run.finish == NEVER, end, run.finish)
    inside = (run.requests.arrival < end) & (leaving > start)
    # A request that leaves at a tick is counted before one that comes: a number that lasts no time is no peak.
    events = np.concatenate([leaving[inside], run.requests.arrival[inside]])
    np.clip(events, start, end, out=events)
    order = np.argsort(events, kind="stable")
    present = np.cumsum(np.where(order < events.size // 2, -1, 1))
    lasting = np.diff(events[order], append=end)
    counted = np.concatenate([[0], present[lasting > 0]])
    ticks = np.zeros(int(counted.max()) + 1, dtype=np.int64)
    np.add.at(ticks, counted[1:], lasting[lasting > 0])
    ticks[0] += end - start - ticks.sum()  # before the first arrival
    return ticks


def _window(run: Run, warm_up: Number) -> tuple[int, int]:
    """The ticks between which a run is counted."""
    seconds = to_seconds(warm_up)
    start, end = run.clock.bound(seconds), run.last if run.until is None else run.until
    if seconds < 0:
        raise InvalidInput(f"warm-up: {float(seconds):g} s is negative; give 0 s or more")
    if start >= end:
        raise InvalidInput(
            f"warm-up: {float(seconds):g} s leave nothing of a run of {run.clock.seconds(end):g} s; "
            "give a shorter one or run longer"
        )
    return start, end
