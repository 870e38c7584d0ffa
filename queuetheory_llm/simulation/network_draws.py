"""All that is random in a run of a network, drawn the same for every runner.

Each source of chance has a stream of its own, spawned from the run's generator in this order: the external processes,
the services of each class, the routes of each class, the dispatchers of each station. A stream is read in the order in
which the network needs it: a service when a task comes to the class, a route when it leaves it, an engine when it comes
to a station that sends at random. So the laws of one class do not move the draws of another. Streams are drawn in
blocks of `BLOCK`; a block of calls is its prompts, then its decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import require_whole
from queuetheory_llm.model.arrivals import ConstantInterval, IntervalLaw
from queuetheory_llm.model.network import Network
from queuetheory_llm.simulation.clock import LAST_TICK, Clock, generators
from queuetheory_llm.simulation.requests import MOST_REQUESTS, Ticks, arrival_ticks, fixed_times

#: Draws made at once.
BLOCK = 4096

#: The longest service: the clock must show its end.
LONGEST = LAST_TICK // 4


def network_clock(network: Network, horizon: Fraction) -> Clock:
    """A clock that shows every time of the network that is not random, and four times the longest; see `Clock.fit`."""
    times: set[Fraction] = set()
    for come in network.arrivals:
        times |= fixed_times(come.arrivals)
    for each in network.classes:
        times |= {each.service.mean} if isinstance(each.service, ConstantInterval) else set()
    for station in network.stations:
        for engine in station.engines:
            times |= generators(engine.batch_time, engine.b_max) | {engine.batch_time.seconds(engine.b_max)}
    return Clock.fit(times, 4 * max([horizon, *times]))  # what runs at the horizon ends later


@attrs.frozen(kw_only=True, eq=False)
class Sources:
    """Tasks that come from outside, in order of time; at one tick those present at the start come first.

    Attributes
    ----------
    ticks : int64 array of shape (n,)
    classes : int64 array of shape (n,)
    """

    ticks: Ticks
    classes: Ticks


#: Most tasks at time 0; a fluid is seen long before.
MOST_AT_START = 10_000_000


class Draws:
    """The streams of one run.

    Parameters
    ----------
    network : Network
    clock : Clock
    horizon : Fraction
        Seconds; tasks come strictly before it.
    rng : numpy.random.Generator
    start : mapping of class name to number of tasks, optional
        Tasks present at time 0, not yet served; in the order of the model's classes.

    Raises
    ------
    InvalidInput
        If ``start`` names no class or counts no tasks, or too many tasks are to be expected.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        horizon: Fraction,
        rng: np.random.Generator,
        start: Mapping[str, int] | None = None,
    ) -> None:
        come, k, s = len(network.arrivals), len(network.classes), len(network.stations)
        streams = rng.spawn(come + 2 * k + s)
        self._network, self._clock = network, clock
        self._services, self._routes = streams[come : come + k], streams[come + k : come + 2 * k]
        self._dispatchers = streams[come + 2 * k :]
        present = _starting(network, {} if start is None else start)
        expected = sum(present) + sum(each.arrivals.rate for each in network.arrivals) * horizon
        if expected > MOST_REQUESTS:
            raise InvalidInput(
                f"horizon: about {float(expected):.3g} tasks would come, more than the {MOST_REQUESTS} of one run; "
                "give a shorter horizon or lower rates"
            )
        self.sources = self._merged(present, horizon, streams[:come])

    def _merged(self, present: list[int], horizon: Fraction, streams: list[np.random.Generator]) -> Sources:
        names = [each.name for each in self._network.classes]
        ticks = [np.zeros(sum(present), dtype=np.int64)]
        classes = [np.repeat(np.arange(len(present)), present)]
        for each, stream in zip(self._network.arrivals, streams, strict=True):
            ticks.append(arrival_ticks(each.arrivals, self._clock, horizon, stream))
            classes.append(np.full(ticks[-1].size, names.index(each.task_class)))
        times = np.concatenate(ticks)
        order = np.argsort(times, kind="stable")
        return Sources(ticks=times[order], classes=np.concatenate(classes)[order].astype(np.int64))

    def services(self, k: int) -> tuple[Ticks, Ticks]:
        """The next block of class k: prompt and decode tokens of calls, or ticks of service and zeros."""
        each, stream = self._network.classes[k], self._services[k]
        if each.service is None:
            assert each.prefill is not None
            assert each.decode is not None
            return each.prefill.sample(stream, BLOCK), each.decode.sample(stream, BLOCK)
        return self._in_ticks(each.service, stream), np.zeros(BLOCK, dtype=np.int64)

    def _in_ticks(self, law: IntervalLaw, stream: np.random.Generator) -> Ticks:
        if isinstance(law, ConstantInterval):
            return np.full(BLOCK, self._clock.ticks(law.mean))
        ticks = law.sample(stream, BLOCK) * self._clock.rate
        if ticks.max() > LONGEST:
            raise self._clock.overflow()
        return np.rint(ticks).astype(np.int64)

    def routes(self, k: int) -> Floats:
        """The next block of uniform numbers that choose where tasks of class k go on."""
        return self._routes[k].random(BLOCK)

    def engines(self, s: int) -> Floats:
        """The next block of uniform numbers that choose an engine of station s."""
        return self._dispatchers[s].random(BLOCK)


def _starting(network: Network, start: Mapping[str, int]) -> list[int]:
    names = [each.name for each in network.classes]
    if not isinstance(start, Mapping):
        raise InvalidInput(f"start: {start!r:.80} is no mapping; give the number of tasks by the name of their class")
    if unknown := [name for name in start if name not in names]:
        raise InvalidInput([f"start: {name!r} is no class; known: {', '.join(names)}" for name in unknown])
    found = [require_whole(f"start.{name}", start.get(name, 0), 0, "the number of tasks at time 0") for name in names]
    if sum(found) > MOST_AT_START:
        raise InvalidInput(f"start: {sum(found)} tasks at time 0 are more than {MOST_AT_START}; give fewer")
    return found
