"""The queries of replications: the same for every rule, and the same at every rate but for their times.

Times, queries and tosses come from streams of their own. The times at two rates come from the same random numbers, so
they are those of the lower rate, shrunk.
"""

from __future__ import annotations

from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.arrays import Ints
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.simulation.clock import LAST_TICK, Clock
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.requests import MOST_REQUESTS, Ticks, arrival_ticks, sealed
from queuetheory_llm.simulation.workflow_draws import draw_queries, require_drawn, rows_of, starts


@attrs.frozen(kw_only=True)
class Draw:
    """What is random in one replication: the seeds of its streams."""

    seeds: tuple[int, ...]

    def streams(self) -> list[np.random.Generator]:
        """For times, for queries, for tosses; new ones at every call."""
        return np.random.default_rng(list(self.seeds)).spawn(3)


def queries_of(system: WorkflowSystem, count: int, draw: Draw, clock: Clock, log: Queries | None = None) -> Queries:
    """``count`` queries at the rate of the system: of its workflow, or of a log at random, with replacement."""
    times, rng, _ = draw.streams()
    arrival = first_arrivals(system, count, times, clock)
    if log is None:
        return draw_queries(system.workflow, arrival, rng)
    if not len(log):
        raise InvalidInput("log: it has no queries; give one that has")
    return taken(log, rng.integers(len(log), size=count), arrival)


def first_arrivals(system: WorkflowSystem, count: int, rng: np.random.Generator, clock: Clock) -> Ticks:
    """The ticks of the first ``count`` arrivals.

    Raises
    ------
    InvalidInput
        If there are more of them, or they take longer, than a run can hold.
    """
    if count > MOST_REQUESTS:
        raise InvalidInput(
            f"queries: a run of {count}, those before and after the counted ones included, is above the "
            f"{MOST_REQUESTS} of one run; give fewer"
        )
    if system.arrivals.rate > clock.rate:
        raise InvalidInput(
            f"rate: {float(system.arrivals.rate):g} queries/s are more than one in each of the {clock.rate} ticks of a "
            "second; give a lower rate"
        )
    state = rng.bit_generator.state
    reach = count + 10 * int(count**0.5) + 10
    while True:
        rng.bit_generator.state = state
        if 4 * reach * clock.rate > LAST_TICK * system.arrivals.rate:  # a run goes on when the last query has come
            raise InvalidInput(
                f"rate: {count} queries at {float(system.arrivals.rate):g} queries/s come in "
                f"{count / float(system.arrivals.rate):.3g} s, more than a 64-bit clock of {clock.rate} ticks/s shows; "
                "give a higher rate or fewer queries"
            )
        ticks = arrival_ticks(system.arrivals, clock, Fraction(reach) / system.arrivals.rate, rng)
        if ticks.size >= count:
            return sealed(ticks[:count].copy())
        reach *= 2


def without_first(queries: Queries, skipped: Ints) -> Queries:
    """What is left of each query without its first steps, whose calls and edges go with them.

    Parameters
    ----------
    queries : Queries
    skipped : int64 array of shape (Q,)
        Steps of each query that are left out, in their order; all of them where it has no more.
    """
    lengths = np.diff(queries.first_step)
    skipped = np.minimum(skipped, lengths)
    kept = np.flatnonzero(np.arange(queries.stage.size) >= np.repeat(queries.first_step[:-1] + skipped, lengths))
    calls, first_call = rows_of(queries.first_call, kept)
    edges, first_next = rows_of(queries.first_next, kept)
    place = np.full(queries.stage.size, -1, dtype=np.int64)
    place[kept] = np.arange(kept.size)
    after = place[queries.next[edges]]  # who waits for a step stands behind it, so none of them is left out
    return Queries(
        arrival=queries.arrival,
        tenant=queries.tenant,
        first_step=starts(lengths - skipped),
        stage=queries.stage[kept],
        waits=np.bincount(after, minlength=kept.size),
        first_next=first_next,
        next=after,
        first_call=first_call,
        prefill=queries.prefill[calls],
        decode=queries.decode[calls],
        work=queries.work[calls],
    )


def taken(queries: Queries, rows: Ints, arrival: Ticks) -> Queries:
    """Some of the queries, at times of one's choice; a row may come more than once.

    Parameters
    ----------
    queries : Queries
    rows : int64 array of shape (n,)
    arrival : int64 array of shape (n,)
        Ticks, not decreasing.

    Raises
    ------
    InvalidInput
        If they make more calls than a run may.
    """
    require_drawn(queries.first_call[queries.first_step], rows)
    steps, first_step = rows_of(queries.first_step, rows)
    calls, first_call = rows_of(queries.first_call, steps)
    edges, first_next = rows_of(queries.first_next, steps)
    shift = np.repeat(first_step[:-1] - queries.first_step[rows], np.diff(first_next[first_step]))
    return Queries(
        arrival=arrival,
        tenant=queries.tenant[rows],
        first_step=first_step,
        stage=queries.stage[steps],
        waits=queries.waits[steps],
        first_next=first_next,
        next=queries.next[edges] + shift,
        first_call=first_call,
        prefill=queries.prefill[calls],
        decode=queries.decode[calls],
        work=queries.work[calls],
    )
