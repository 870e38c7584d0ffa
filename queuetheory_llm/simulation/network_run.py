"""What happened in a run of a network, whichever runner made it."""

from __future__ import annotations

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.network import Network
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.requests import Ticks, read_only

# `network_kernel` compiles what follows into its code, which is known on disk by the date of that file: a change here
# needs a change of that file too.

#: Kinds of logged events: a task comes to a class, leaves it, a server starts a batch or a task.
ENTERS, LEAVES, STARTS = range(3)

#: Sojourns are counted in bins, `FINE` of equal width between two powers of 2 ticks.
FINE = 16
BINS = 60 * FINE


@attrs.frozen(kw_only=True, eq=False)
class NetworkSeries:
    """The state at chosen ticks, after all that happens at or before each; g of them, K classes, S stations.

    Attributes
    ----------
    ticks : int64 array of shape (g,)
        Increasing.
    present : int64 array of shape (K, g)
        Tasks at each class, those in service included; siblings that wait for a join are at none.
    arrived, served : int64 arrays of shape (K, g)
        Tasks that have come to each class, and left it.
    area : float array of shape (K, g)
        Integral of ``present`` over [0, tick], in task ticks.
    stay : float array of shape (K, g)
        Sum over the tasks that have left of the ticks from coming to leaving.
    work : int64 array of shape (S, g)
        At batch engines tokens of the tasks present, credited at the ends of batches; at a classical server ticks of
        service left.
    tokens : int64 array of shape (g,)
        Tokens present: the sum of ``work`` over the stations of batch engines, so of tasks at their present hop.
    highest : int64 array of shape (g,)
        Most tokens present at any time since the tick before.
    """

    ticks: Ticks = attrs.field(converter=read_only)
    present: Ticks = attrs.field(converter=read_only)
    arrived: Ticks = attrs.field(converter=read_only)
    served: Ticks = attrs.field(converter=read_only)
    area: Floats
    stay: Floats
    work: Ticks = attrs.field(converter=read_only)
    tokens: Ticks = attrs.field(converter=read_only)
    highest: Ticks = attrs.field(converter=read_only)


@attrs.frozen(kw_only=True, eq=False)
class NetworkRun:
    """What happened up to the horizon, on the ticks of ``clock``.

    Attributes
    ----------
    network : Network
    clock : Clock
    until : int
        Only what happens strictly before this tick is run.
    sources, born, ended : int64 arrays of shape (n,)
        Class and tick at which each task came from outside, and the tick at which the last of it left; `NEVER` (-1).
    arrived, served, present : int64 arrays of shape (K,)
        Tasks by class: come, gone on, there at the end.
    waiting : int
        Siblings that wait for a join at the end.
    started : int64 array of shape (V,)
        Batches, or periods of service, begun by each server; engines of a station one after another.
    busy : int64 array of shape (V,)
        Ticks below ``until`` in which each server worked.
    brought, left : int64 arrays of shape (V,)
        Tokens, or ticks of service at a classical server, that have come to each server and that are left at the end;
        tokens of a batch that is running are left.
    bins : int64 array of shape (K, BINS)
        Sojourns of the tasks that have left each class; see `bin_edges`.
    series : NetworkSeries
    log : int64 array of shape (events, 4), or None
        Tick, kind, who, what: (`ENTERS` or `LEAVES`, class, task from outside), or (`STARTS`, server, tokens of the
        batch or class of the task).
    """

    network: Network
    clock: Clock
    until: int
    sources: Ticks = attrs.field(converter=read_only)
    born: Ticks = attrs.field(converter=read_only)
    ended: Ticks = attrs.field(converter=read_only)
    arrived: Ticks = attrs.field(converter=read_only)
    served: Ticks = attrs.field(converter=read_only)
    present: Ticks = attrs.field(converter=read_only)
    waiting: int
    started: Ticks = attrs.field(converter=read_only)
    busy: Ticks = attrs.field(converter=read_only)
    brought: Ticks = attrs.field(converter=read_only)
    left: Ticks = attrs.field(converter=read_only)
    bins: Ticks = attrs.field(converter=read_only)
    series: NetworkSeries
    log: Ticks | None = None

    @property
    def hops(self) -> int:
        """Tasks that have left a class."""
        return int(self.served.sum())

    def responses(self, *, settled: bool = False) -> Floats:
        """Seconds in the network of the tasks that have left it, in order of arrival, shape (finished,).

        With ``settled`` only of those that came before the oldest that is still there: of the tasks that come last
        only the quick ones have left.
        """
        done = self.ended >= 0
        if settled and not done.all():
            done[int(np.argmin(done)) :] = False
        return np.asarray((self.ended - self.born)[done] / self.clock.rate, dtype=np.float64)


def bin_of(ticks: int) -> int:
    """The bin of a sojourn: exact below `FINE`, then `FINE` bins between two powers of 2."""
    if ticks < FINE:
        return ticks
    power = ticks.bit_length() - FINE.bit_length()
    return (power + 1) * FINE + (ticks >> power) - FINE


def bin_edges() -> Floats:
    """Lower ends of the bins in ticks and the upper end of the last, shape (BINS + 1,)."""
    index = np.arange(BINS + 1)
    power = np.maximum(index // FINE - 1, 0)
    return np.where(index < FINE, index, (FINE + index % FINE) * 2.0**power)


def no_sibling(network: Network, k: int) -> str:
    """What is said of a task that cannot join."""
    return (
        f"class {network.classes[k].name}: a task waits for siblings and is no branch of a fork of that join; "
        "let tasks start before the fork, and join the branches of every fork that is inside another"
    )
