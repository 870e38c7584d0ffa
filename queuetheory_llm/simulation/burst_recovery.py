"""Does a cluster recover from a burst? A test of stability with a stated error, where a run from empty leaves it open.

A run is repeated on the same queries with a burst of further ones, all at once, at its start, and its backlog at the
end (work left, calls yet to be made included) is compared with that of the run without. Where every state is left
behind the two come together; where a resource is short, what the burst has left there stays.

*Error.* At the limit the backlog of what is short is a reflected Brownian motion, and the two runs differ by what of
the burst the reflection has not taken up: with a burst of B and fluctuations sigma sqrt(T) in the time T of the run,
at most a tenth of B is left with chance p = P(|N(0,1)| >= 0.9 B/(sigma sqrt(T))); above the limit it is less. Runs are
independent, so the number that recover is at most binomial, and STABLE is said when that many or more would recover by
chance with probability `LEVEL` at most. sigma^2 is taken as twice the variance of the work of Poisson arrivals: once
for arrivals and once for services, the location of calls and the tosses of a rule. Assumed are arrivals and works of
finite variance, and that what is short holds a tenth of the burst at least. Tested are bursts of this size: a rule that
recovers from these and not from far larger ones is seen by `dispatch_limits`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.simulation.cluster_phases import QueryStream
from queuetheory_llm.simulation.cluster_run import ClusterRun
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.query_source import Draw, taken
from queuetheory_llm.simulation.query_work import QueryWork, come, served
from queuetheory_llm.verdict import Verdict

if TYPE_CHECKING:
    from queuetheory_llm.simulation.cluster_runner import ClusterProcess

#: Chance that a cluster at its limit, or above it, is called STABLE.
LEVEL = 1e-3
_LEFT = 0.1  # of the burst: a run that holds no more of it has recovered
_SHARE = 0.1  # of the queries of a run, that a burst has at least
_REACH = 2.0  # fluctuations of the backlog in a run, that a burst has at least
_EDGES = 11  # of the last tenth of a run, over which a backlog is averaged


def arrived(process: ClusterProcess) -> ClusterRun:
    """The run up to the last arrival."""
    process.advance(int(process.queries.arrival[-1]))
    return process.run()


def late_backlog(run: ClusterRun, work: QueryWork) -> float:
    """Seconds of work left of the queries that have come, averaged over the last tenth of the run."""
    edges = np.linspace(0.9 * run.until, run.until, _EDGES).astype(np.int64)
    parts = work.parts(run.queries)
    return float(np.mean(come(run.queries, parts.sum(axis=0), edges)[1] - served(run, parts, edges)))


@attrs.frozen(kw_only=True)
class Burst:
    """Queries that come at once at the start of a run.

    Attributes
    ----------
    work : QueryWork
    size : int
        Queries.
    chance : float
        p of the head of the module, of one run.
    replications : int
    """

    work: QueryWork
    size: int
    chance: float
    replications: int

    @classmethod
    def of(cls, system: WorkflowSystem, queries: int, replications: int) -> Burst:
        """For runs of so many queries: large enough that all runs would tell."""
        from scipy.special import ndtr, ndtri

        stream = QueryStream(system)
        noise = math.sqrt(2 * queries * stream.spread)  # in queries
        all_tell = -float(ndtri(LEVEL ** (1 / replications) / 2)) / (1 - _LEFT)
        size = math.ceil(max(noise * max(_REACH, 1.01 * all_tell), _SHARE * queries))
        chance = 2 * float(ndtr(-(1 - _LEFT) * size / noise))
        return cls(work=stream.weights, size=size, chance=chance, replications=replications)

    def before(self, queries: Queries, draw: Draw) -> Queries:
        """The burst, taken at random from the queries of a run with replacement, and then those."""
        extra = draw.streams()[0].spawn(1)[0].integers(len(queries), size=self.size)
        rows = np.concatenate([extra, np.arange(len(queries))])
        return taken(queries, rows, np.concatenate([np.zeros(self.size, dtype=np.int64), queries.arrival]))

    def judge(self, more: Floats) -> tuple[Verdict, str]:
        """Verdict and reason from the seconds of work that each run with the burst holds more than that without."""
        from scipy.special import bdtrc

        recovered = int(np.count_nonzero(more <= _LEFT * self.size * self.work.mean))
        text = f"a burst of {self.size} queries at once is worked off within the run in {recovered} of {more.size} runs"
        if recovered and float(bdtrc(recovered - 1, more.size, self.chance)) <= LEVEL:
            return Verdict.STABLE, f"{text}; at or above its limit a rule would do so with a chance below {LEVEL:g}"
        return (
            Verdict.UNDECIDED,
            f"no growth from empty is established, but {text}: too near the limit for runs of this length, or it does "
            "not recover from bursts",
        )
