"""The definition of how a network runs: plain Python, event by event.

At one tick, until nothing more happens at it:

1. Completions, by station and engine in the order of the model. The tasks of a batch that have got their last token
   leave in the order in which the batch served them. A task that leaves goes on at once, and so does what follows from
   it, before the next task moves: branches of a fork one after another, a call of 0 + 0 tokens through its station.
2. Tasks from outside, in the order of `network_draws.Sources`.
3. Decisions: a free engine forms a batch of what is there now; a classical server turns to the class it should serve.

So whatever comes at or before the end of a batch is seen by the next one, from other stations too. A batch is filled
class by class in the order of the station's rule, and within a class as `Policy.form` says; without a rule all tasks
are one class, in the order in which they came to the station. A classical server interrupts the task in service when
another class should be served, and resumes it later; tasks of a class are served in the order in which they came.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, count
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.dispatch.registry import to_dispatcher
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.errors import AssumptionViolated
from queuetheory_llm.model.network import FILLING, Network, Route
from queuetheory_llm.schedulers.class_order import NetworkPolicy
from queuetheory_llm.schedulers.policy import Batch, View
from queuetheory_llm.schedulers.registry import SCHEDULERS
from queuetheory_llm.simulation.clock import BatchTicks, Clock
from queuetheory_llm.simulation.network_draws import Draws
from queuetheory_llm.simulation.network_run import (
    BINS,
    ENTERS,
    LEAVES,
    STARTS,
    NetworkRun,
    NetworkSeries,
    bin_of,
    no_sibling,
)
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import NEVER


@attrs.define(eq=False)
class _Siblings:
    """A fork that has happened: its branches, how many are left, and of what it is a branch itself."""

    size: int
    left: int
    outer: _Siblings | None


@attrs.define(eq=False)
class _Task:
    """A task, or a branch of one; ``prompt`` and ``decode`` are tokens left, ``ticks`` is service left."""

    source: int
    k: int
    fork: _Siblings | None = None
    came: int = 0
    prompt: int = 0
    decode: int = 0
    ticks: int = 0

    @property
    def work(self) -> int:
        return self.prompt + self.decode + self.ticks


@attrs.define(eq=False)
class _Server:
    """A classical server or one engine of a station.

    ``queue`` holds the tasks present in the order in which they came to the station; ``running`` those in service.
    """

    number: int
    station: int
    ticks: BatchTicks | None = None
    b_max: int = 0
    k_max: int | None = None
    queue: list[_Task] = attrs.field(factory=list)
    running: list[_Task] = attrs.field(factory=list)
    batch: list[tuple[_Task, int]] = attrs.field(factory=list)
    since: int = 0
    end: int | None = None
    started: int = 0
    busy: int = 0
    brought: int = 0

    @property
    def work(self) -> int:
        return sum(task.work for task in self.queue)


def run(
    network: Network, policy: NetworkPolicy, draws: Draws, clock: Clock, *, until: int, watch: Ticks, log: bool = False
) -> NetworkRun:
    """Run a network up to a tick.

    Parameters
    ----------
    network : Network
    policy : NetworkPolicy
    draws : Draws
        Read from its beginning; used up.
    clock : Clock
    until : int
        Only what happens strictly before this tick is run.
    watch : int64 array of shape (g,)
        Increasing ticks of the series.
    log : bool
        Whether to note every event.

    Raises
    ------
    AssumptionViolated
        If a task comes to a join without being a branch of a fork of its size.
    """
    machine = _Machine(network, policy, draws, clock, watch, log)
    machine.run(until)
    return machine.result(until)


class _Machine:
    """The state of the network."""

    def __init__(
        self, network: Network, policy: NetworkPolicy, draws: Draws, clock: Clock, watch: Ticks, log: bool
    ) -> None:
        self.network, self.policy, self.draws, self.clock = network, policy, draws, clock
        size = len(network.classes)
        self.station, self.at = network.fluid_model.station, network.fluid_model.at
        self.routes = [[r for r in network.routes if r.source == each.name] for each in network.classes]
        self.chances = [[float(p) for p in accumulate(r.probability for r in routes)] for routes in self.routes]
        self.number = {each.name: k for k, each in enumerate(network.classes)}
        self.join = {name: join for join in network.joins for name in join.classes}
        self.servers = _servers(network, clock)
        self.turn = [0] * size
        self.streams = _Streams(draws)
        self.now = 0
        self.moves: deque[tuple[_Task, bool]] = deque()  # who moves next, and whether it comes or goes
        self.come = 0
        self.present, self.arrived, self.served = [0] * size, [0] * size, [0] * size
        self.area, self.stay, self.changed = [0.0] * size, [0.0] * size, [0] * size
        self.bins = np.zeros((size, BINS), dtype=np.int64)
        self.ended = np.full(draws.sources.ticks.size, NEVER, dtype=np.int64)
        self.waiting = 0
        self.watch = watch.tolist()
        self.noted, self.highest = 0, 0
        self.seen = _room(size, len(network.stations), watch.size)
        self.log: list[tuple[int, int, int, int]] | None = [] if log else None

    def run(self, until: int) -> None:
        """All events before ``until``."""
        sources = self.draws.sources.ticks.tolist()
        while True:
            pending = [server.end for server in self.servers if server.end is not None]
            tick = min([*pending, *sources[self.come : self.come + 1], until])
            self._note_before(tick)
            if tick >= until:
                return
            self.now = tick
            self._instant(sources)

    def _instant(self, sources: list[int]) -> None:
        for server in self.servers:
            if server.end == self.now:
                self._complete(server)
        while self.come < len(sources) and sources[self.come] == self.now:
            self.moves.append((_Task(self.come, int(self.draws.sources.classes[self.come])), True))
            self.come += 1
            self._move_all()
        for server in self.servers:
            self._decide(server)

    # --- moves ------------------------------------------------------------------------------------------------------

    def _complete(self, server: _Server) -> None:
        """Credit what was served; those who have all of it move on."""
        for task, tokens in server.batch:
            if task.prompt:
                task.prompt -= tokens
            else:
                task.decode -= tokens
        if server.ticks is None:
            server.running[0].ticks = 0
        done = [task for task in server.running if task.work == 0]
        server.queue = [task for task in server.queue if task not in done]
        self._stop(server)
        self.moves.extend((task, False) for task in done)
        self._move_all()

    def _stop(self, server: _Server) -> None:
        server.busy += self.now - server.since
        server.running, server.batch, server.end = [], [], None

    def _move_all(self) -> None:
        while self.moves:
            task, comes = self.moves.popleft()
            if comes:
                self._enter(task)
            else:
                self._leave(task)

    def _enter(self, task: _Task) -> None:
        k = task.k
        self._count(k, 1)
        self.arrived[k] += 1
        task.came = self.now
        self._record(ENTERS, k, task.source)
        first, second = self.streams.service(k)
        if self.network.stations[self.station[k]].classical:
            task.ticks = first
        elif first + second == 0:
            self.moves.appendleft((task, False))
            return
        else:
            task.prompt, task.decode = first, second
        server = self._send(k)
        server.queue.append(task)
        server.brought += task.work
        self.highest = max(self.highest, self._tokens())

    def _send(self, k: int) -> _Server:
        """The engine that the dispatcher of its station chooses for a task of class k."""
        s = self.station[k]
        engines = [server for server in self.servers if server.station == s]
        if len(engines) == 1:
            return engines[0]
        to = to_dispatcher(self.network.stations[s].dispatch)
        nothing, size = np.zeros(len(engines)), len(engines)
        view = DispatchView(
            stage=k,
            seconds=np.ones(size),
            queued=nothing,
            outstanding=np.array([len(server.queue) for server in engines]),
            tokens=np.array([float(server.work) for server in engines]),
            assigned=nothing,
            turn=self.turn[k],
            shares=np.full(size, 1 / size),
            chance=self.streams.engine(s) if to.rule.tosses else 0.0,
        )
        self.turn[k] += 1
        return engines[to.rule.choose(view, to.parameters)]

    def _leave(self, task: _Task) -> None:
        k = task.k
        self._count(k, -1)
        self.served[k] += 1
        self.stay[k] += self.now - task.came
        self.bins[k, bin_of(self.now - task.came)] += 1
        self._record(LEAVES, k, task.source)
        join = self.join.get(self.network.classes[k].name)
        if join is not None:
            self._join(task, self.number[join.to], len(join.classes))
            return
        route = self._route(k)
        if route is None:
            self._out(task)
        elif not route.is_fork:
            task.k = self.number[route.to[0]]
            self.moves.appendleft((task, True))
        else:
            fork = _Siblings(len(route.to), len(route.to), task.fork)
            branches = [_Task(task.source, self.number[to], fork) for to in route.to]
            self.moves.extendleft((branch, True) for branch in reversed(branches))

    def _route(self, k: int) -> Route | None:
        """Where a task goes on; None is out. Nothing is drawn where there is no choice."""
        routes, chances = self.routes[k], self.chances[k]
        if not routes or chances == [1.0]:
            return routes[0] if routes else None
        index = bisect_right(chances, self.streams.route(k))
        return routes[index] if index < len(routes) else None

    def _join(self, task: _Task, to: int, size: int) -> None:
        """The last of the siblings goes on as the task that forked."""
        if task.fork is None or task.fork.size != size:
            raise AssumptionViolated(no_sibling(self.network, task.k))
        task.fork.left -= 1
        self.waiting += 1
        if task.fork.left == 0:
            self.waiting -= size
            task.k, task.fork = to, task.fork.outer
            self.moves.appendleft((task, True))

    def _out(self, task: _Task) -> None:
        """A task from outside has ended when the last of its branches has."""
        fork = task.fork
        while fork is not None:
            fork.left -= 1
            if fork.left:
                return
            fork = fork.outer
        self.ended[task.source] = self.now

    # --- decisions --------------------------------------------------------------------------------------------------

    def _decide(self, server: _Server) -> None:
        if server.ticks is None:
            self._turn_to(server)
        elif server.end is None and server.queue:
            self._start_batch(server)

    def _groups(self, server: _Server) -> list[list[_Task]]:
        """The tasks of the server in the groups that are served one after another."""
        rule = self.policy.rules[server.station]
        if rule is None:
            return [server.queue]
        order = rule.order(self.at(server.station), self.present)
        return [[task for task in server.queue if task.k == k] for k in order]

    def _turn_to(self, server: _Server) -> None:
        """A classical server: the first task of the first class there is."""
        first = next((group[0] for group in self._groups(server) if group), None)
        current = server.running[0] if server.running else None
        if first is current:
            return
        if current is not None:
            current.ticks -= self.now - server.since
            self._stop(server)
        if first is not None:
            server.running, server.since, server.end = [first], self.now, self.now + first.ticks
            server.started += 1
            self._record(STARTS, server.number, first.k)

    def _start_batch(self, server: _Server) -> None:
        assert server.ticks is not None
        scheduler = self.network.stations[server.station].scheduler
        room, seats = server.b_max, server.k_max
        for group in self._groups(server):
            batch = _form(scheduler, group, room, seats)
            parts = [(group[i], 1) for i in batch.decode], [(group[i], tokens) for i, tokens in batch.prefill]
            for part in parts if FILLING[scheduler] == "decode" else reversed(parts):
                server.batch += part
            room -= batch.tokens
            seats = None if seats is None else seats - batch.requests
            if room == 0 or seats == 0:
                break
        if server.batch:
            tokens = sum(tokens for _, tokens in server.batch)
            server.running = [task for task, _ in server.batch]
            server.since, server.end = self.now, self.now + server.ticks[tokens]
            server.started += 1
            self._record(STARTS, server.number, tokens)

    # --- notes ------------------------------------------------------------------------------------------------------

    def _count(self, k: int, step: int) -> None:
        self.area[k] += float(self.present[k]) * float(self.now - self.changed[k])
        self.changed[k] = self.now
        self.present[k] += step

    def _record(self, kind: int, who: int, what: int) -> None:
        if self.log is not None:
            self.log.append((self.now, kind, who, what))

    def _tokens(self) -> int:
        return sum(server.work for server in self.servers if server.ticks is not None)

    def _note_before(self, tick: int) -> None:
        """The state at the watched ticks before ``tick``."""
        while self.noted < len(self.watch) and self.watch[self.noted] < tick:
            self._note()

    def _note(self) -> None:
        at = self.watch[self.noted]
        work = [0] * len(self.network.stations)
        for server in self.servers:
            classical = server.ticks is None and server.running
            work[server.station] += server.work - (at - server.since if classical else 0)
        area = [
            total + float(q) * float(at - changed)
            for total, q, changed in zip(self.area, self.present, self.changed, strict=True)
        ]
        tokens = self._tokens()
        state = (self.present, self.arrived, self.served, area, self.stay, work, tokens, self.highest)
        for column, value in zip(self.seen.values(), state, strict=True):
            column[..., self.noted] = value
        self.noted += 1
        self.highest = tokens

    def result(self, until: int) -> NetworkRun:
        """The run; what is watched at ``until`` is the last state."""
        self._note_before(until + 1)
        elapsed = [0 if server.end is None else until - server.since for server in self.servers]
        sources = self.draws.sources
        return NetworkRun(
            network=self.network,
            clock=self.clock,
            until=until,
            sources=sources.classes,
            born=sources.ticks,
            ended=self.ended,
            arrived=self.arrived,
            served=self.served,
            present=self.present,
            waiting=self.waiting,
            started=[server.started for server in self.servers],
            busy=[server.busy + ticks for server, ticks in zip(self.servers, elapsed, strict=True)],
            brought=[server.brought for server in self.servers],
            left=[
                server.work - (ticks if server.ticks is None else 0)
                for server, ticks in zip(self.servers, elapsed, strict=True)
            ],
            bins=self.bins,
            series=NetworkSeries(ticks=self.watch, **self.seen),
            log=None if self.log is None else np.array(self.log, dtype=np.int64).reshape(-1, 4),
        )


def _servers(network: Network, clock: Clock) -> list[_Server]:
    """Every engine and classical server, in the order of the stations."""
    found: list[_Server] = []
    for s, station in enumerate(network.stations):
        if station.classical:
            found.append(_Server(len(found), s))
        for engine in station.engines:
            ticks = BatchTicks(engine.batch_time, clock)
            found.append(_Server(len(found), s, ticks, engine.b_max, engine.k_max))
    return found


def _room(classes: int, stations: int, ticks: int) -> dict[str, NDArray[Any]]:
    """The columns of `NetworkSeries` in their order, unwritten."""
    counts, sums = ((classes, ticks), np.int64), ((classes, ticks), np.float64)
    kinds = {
        "present": counts,
        "arrived": counts,
        "served": counts,
        "area": sums,
        "stay": sums,
        "work": ((stations, ticks), np.int64),
        "tokens": ((ticks,), np.int64),
        "highest": ((ticks,), np.int64),
    }
    return {name: np.zeros(shape, dtype=kind) for name, (shape, kind) in kinds.items()}


def _form(scheduler: str, group: Sequence[_Task], room: int, seats: int | None) -> Batch:
    """A batch of the tasks of one group, in the order in which they came."""
    numbers = range(len(group))
    view = View(
        b_max=room,
        k_max=seats,
        prefilling=[i for i in numbers if group[i].prompt],
        decoding=[i for i in numbers if not group[i].prompt],
        waiting=[],
        running=[],
        prefill_left=[task.prompt for task in group],
    )
    return SCHEDULERS[scheduler].form(view)


class _Streams:
    """The streams of `Draws`, one draw at a time."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._services: dict[int, Iterator[tuple[int, int]]] = {}
        self._routes: dict[int, Iterator[float]] = {}
        self._engines: dict[int, Iterator[float]] = {}

    def service(self, k: int) -> tuple[int, int]:
        """Prompt and decode tokens of a call, or ticks of service and 0."""
        blocks = (zip(*self._draws.services(k), strict=True) for _ in count())
        first, second = next(self._services.setdefault(k, chain.from_iterable(blocks)))
        return int(first), int(second)

    def route(self, k: int) -> float:
        """A uniform number for a task that leaves class k."""
        return next(self._routes.setdefault(k, chain.from_iterable(self._draws.routes(k) for _ in count())))

    def engine(self, s: int) -> float:
        """A uniform number for a task that comes to station s."""
        return next(self._engines.setdefault(s, chain.from_iterable(self._draws.engines(s) for _ in count())))
