"""The compiled runner of networks: what `network_reference` does, some thousand times faster.

The arrays of `network_kernel` are made and read here, and its streams filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.dispatch.registry import DISPATCH_RULES
from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.model.network import FILLING, Network
from queuetheory_llm.schedulers.back_pressure import BackPressure
from queuetheory_llm.schedulers.class_order import ClassOrder, NetworkPolicy
from queuetheory_llm.schedulers.class_priority import ClassPriority
from queuetheory_llm.simulation import network_kernel as core
from queuetheory_llm.simulation.clock import Clock, tick_table
from queuetheory_llm.simulation.dispatching import NUMBERS, PARAMETERS
from queuetheory_llm.simulation.network_draws import BLOCK, Draws
from queuetheory_llm.simulation.network_run import BINS, NetworkRun, NetworkSeries, no_sibling
from queuetheory_llm.simulation.requests import Ticks, sealed
from queuetheory_llm.simulation.run import NEVER

T = TypeVar("T")

_TASKS = 1 << 10  # room at first
_LOG = 1 << 14  # events that are held before they are put aside
_NO_LIMIT = 2**62


def run(
    network: Network, policy: NetworkPolicy, draws: Draws, clock: Clock, *, until: int, watch: Ticks, log: bool = False
) -> NetworkRun:
    """Run a network up to a tick; see `network_reference.run`, to which it is equal event for event.

    Raises
    ------
    AssumptionViolated
        If a task comes to a join without being a branch of a fork of its size.
    InvalidInput
        If the run outlives the clock, or a rule of the policy is not one of those that are compiled.
    """
    machine = NetworkMachine(network, policy, draws, clock, until, watch)
    return machine.result(machine.advance(log))


class NetworkMachine:
    """The arrays of one run."""

    def __init__(
        self, network: Network, policy: NetworkPolicy, draws: Draws, clock: Clock, until: int, watch: Ticks
    ) -> None:
        self.network, self.draws, self.clock, self.until = network, draws, clock, until
        self.net = _net(network, policy, clock)
        self.everywhere = bool((self.net.rule == core.BACK_PRESSURE).any())
        sources = draws.sources
        self.load = core.Load(sources.ticks, sources.classes, np.full(sources.ticks.size, NEVER, dtype=np.int64))
        classes, stations = len(network.classes), len(network.stations)
        self.streams = _streams(classes, stations)
        self.state = _state(self.net, classes)
        self.watch = _watch(watch, classes, stations)

    def advance(self, log: bool) -> list[Ticks]:
        """Run to the end; the pieces of the log."""
        room = np.empty((_LOG + self.net.station.size if log else 0, 4), dtype=np.int64)
        logs: list[Ticks] = []
        while True:
            status = core.advance(
                self.net, self.load, self.streams, self.state, self.watch, room, self.everywhere, self.until
            )
            if log and status in (core.LOG_FULL, core.FINISHED):
                logs.append(room[: self.state.s[core.LOGGED]].copy())
                self.state.s[core.LOGGED] = 0
            if status == core.FINISHED:
                return logs
            self._mend(status)

    def _mend(self, status: int) -> None:
        """Do what the kernel has stopped for."""
        asked = int(self.state.s[core.ASKED])
        streams = self.streams
        if status == core.SERVICES:
            streams.first[asked], streams.second[asked] = self.draws.services(asked)
            streams.used_services[asked] = 0
        elif status == core.ROUTES:
            streams.route[asked] = self.draws.routes(asked)
            streams.used_routes[asked] = 0
        elif status == core.ENGINES:
            streams.engine[asked] = self.draws.engines(asked)
            streams.used_engines[asked] = 0
        elif status == core.POOL_FULL:
            self._make_room()
        elif status == core.OVERFLOW:
            raise self.clock.overflow()
        elif status == core.NO_SIBLING:
            raise AssumptionViolated(no_sibling(self.network, asked))
        elif status != core.LOG_FULL:
            raise AssertionError(f"the compiled runner stopped with status {status}")

    def _make_room(self) -> None:
        """Twice as many tasks, and forks."""
        tasks, forks, s = self.state.tasks, self.state.forks, self.state.s
        larger = _pool(2 * len(tasks), core.TASK_SIZE, core.NEXT, tasks, s[core.FREE])
        wider = _pool(2 * len(forks), core.FORK_SIZE, core.OUTER, forks, s[core.FORK])
        s[core.FREE], s[core.FREE_COUNT] = len(tasks), s[core.FREE_COUNT] + len(tasks)
        s[core.FORK], s[core.FORK_COUNT] = len(forks), s[core.FORK_COUNT] + len(forks)
        self.state = self.state._replace(tasks=larger, forks=wider)

    def result(self, logs: list[Ticks]) -> NetworkRun:
        """The run."""
        state, sources, watch = self.state, self.draws.sources, self.watch
        width = state.ends.size // 2
        works = state.ends[width : width + len(state.servers)] != core.NEVER_DUE
        elapsed = works * (self.until - state.servers[:, core.SINCE])
        classical = self.net.classical[self.net.station] == 1
        return NetworkRun(
            network=self.network,
            clock=self.clock,
            until=self.until,
            sources=sources.classes,
            born=sources.ticks,
            ended=sealed(self.load.ended),
            arrived=state.arrived,
            served=state.served,
            present=state.present,
            waiting=int(state.s[core.WAITING]),
            started=state.servers[:, core.STARTED],
            busy=state.servers[:, core.BUSY] + elapsed,
            brought=state.servers[:, core.BROUGHT],
            left=state.servers[:, core.WORK] - elapsed * classical,
            bins=state.bins,
            series=NetworkSeries(**watch._asdict()),
            log=np.concatenate(logs) if logs else None,
        )


def _pool(size: int, columns: int, link: int, old: Ticks, free: int) -> Ticks:
    """Rows that are ``old`` and then free ones, each linked to the next and the last to ``free``."""
    rows = np.zeros((size, columns), dtype=np.int64)
    rows[: len(old)] = old
    rows[len(old) :, link] = np.append(np.arange(len(old) + 1, size), free)
    return rows


def _rows(lists: Iterable[Sequence[T]]) -> tuple[Ticks, list[T]]:
    """Rows of a flat list: where each starts, the end of the last, and the list."""
    kept = list(lists)
    return np.array([0, *accumulate(map(len, kept))], dtype=np.int64), list(chain.from_iterable(kept))


def _ints(values: Iterable[int]) -> Ticks:
    return np.array(list(values), dtype=np.int64)


def _floats(values: Iterable[float]) -> NDArray[np.float64]:
    return np.array(list(values), dtype=np.float64)


def _net(network: Network, policy: NetworkPolicy, clock: Clock) -> core.Net:
    model, stations = network.fluid_model, network.stations
    rules = [_kind(rule) for rule in policy.rules]
    orders = [_order(rule, model.at(s)) for s, rule in enumerate(policy.rules)]
    first_order, order = _rows(orders)
    groups = [1 if kind == core.FIRST_COME else max(1, len(model.at(s))) for s, kind in enumerate(rules)]
    servers = [s for s, station in enumerate(stations) for _ in range(max(1, len(station.engines)))]
    engines = [engine for station in stations for engine in station.engines or [None]]
    tables = [_ints([]) if each is None else tick_table(each.batch_time, clock, each.b_max) for each in engines]
    group = [0 if rules[s] == core.FIRST_COME else model.at(s).index(k) for k, s in enumerate(model.station)]
    routes = [[r for r in network.routes if r.source == each.name] for each in network.classes]
    chances = [[float(p) for p in accumulate(r.probability for r in of)] for of in routes]
    first_route, flat = _rows(routes)
    names = list(model.classes)
    first_branch, branch = _rows([[names.index(to) for to in route.to] for route in flat])
    joins = {k: (to, len(siblings)) for siblings, to in model.joins for k in siblings}
    first_flow, flows = _rows(model.routing)
    first_server = np.searchsorted(_ints(servers), np.arange(len(stations) + 1)).astype(np.int64)
    return core.Net(
        classical=_ints(station.classical for station in stations),
        decode_first=_ints(FILLING[station.scheduler] == "decode" for station in stations),
        rule=_ints(rules),
        dispatch=_ints(NUMBERS[station.dispatch] for station in stations),
        tosses=_ints(DISPATCH_RULES[station.dispatch].tosses for station in stations),
        seconds=np.ones(len(servers)),
        nothing=np.zeros(len(servers)),
        shares=_floats(1 / max(1, len(stations[s].engines)) for s in servers),
        usual=PARAMETERS,
        first_server=first_server,
        first_order=first_order,
        order=_ints(order),
        station=_ints(servers),
        first_list=_ints([0, *accumulate(groups[s] for s in servers)]),
        budget=_ints(0 if each is None else each.b_max for each in engines),
        seats=_ints(_NO_LIMIT if each is None or each.k_max is None else each.k_max for each in engines),
        first_ticks=_ints([0, *accumulate(map(len, tables))]),
        batch_ticks=np.concatenate([*tables, _ints([0])]),
        at=_ints(model.station),
        group=_ints(group),
        first_route=first_route,
        chance=_floats(chain.from_iterable(chances)),
        random=_ints(bool(of) and of != [1.0] for of in chances),
        first_branch=first_branch,
        branch=_ints(branch),
        join_to=_ints(joins.get(k, (core.NONE, 0))[0] for k in range(len(names))),
        join_size=_ints(joins.get(k, (core.NONE, 0))[1] for k in range(len(names))),
        rate=_floats(float(1 / mean) for mean in model.service),
        first_flow=first_flow,
        flow_to=_ints(to for to, _ in flows),
        flow=_floats(float(p) for _, p in flows),
    )


def _kind(rule: ClassOrder | None) -> int:
    if rule is None:
        return core.FIRST_COME
    if isinstance(rule, ClassPriority):
        return core.PRIORITY
    if isinstance(rule, BackPressure):
        return core.BACK_PRESSURE
    raise InvalidInput(f"policy: {type(rule).__name__} is not compiled; run it with network_reference")


def _order(rule: ClassOrder | None, classes: Sequence[int]) -> Sequence[int]:
    return rule.classes if isinstance(rule, ClassPriority) else classes


def _streams(classes: int, stations: int) -> core.Streams:
    """Streams that are all used up."""
    return core.Streams(
        first=np.empty((classes, BLOCK), dtype=np.int64),
        second=np.empty((classes, BLOCK), dtype=np.int64),
        route=np.empty((classes, BLOCK), dtype=np.float64),
        engine=np.empty((stations, BLOCK), dtype=np.float64),
        used_services=np.full(classes, BLOCK, dtype=np.int64),
        used_routes=np.full(classes, BLOCK, dtype=np.int64),
        used_engines=np.full(stations, BLOCK, dtype=np.int64),
    )


def _state(net: core.Net, classes: int) -> core.State:
    """The empty network at time 0."""
    servers = net.station.size
    s = np.zeros(core.STATE_SIZE, dtype=np.int64)
    s[[core.MOVING, core.FREE, core.FORK]] = core.NONE, 0, 0
    s[[core.FREE_COUNT, core.FORK_COUNT]] = _TASKS
    of_servers = np.zeros((servers, core.SERVER_SIZE), dtype=np.int64)
    of_servers[:, [core.GROUP, core.DONE, core.READY]] = core.NONE
    width = 1 << (servers - 1).bit_length()
    nothing = np.zeros((0, 1), dtype=np.int64)
    return core.State(
        s=s,
        tasks=_pool(_TASKS, core.TASK_SIZE, core.NEXT, nothing, core.NONE),
        forks=_pool(_TASKS, core.FORK_SIZE, core.OUTER, nothing, core.NONE),
        lists=np.full((3 * int(net.first_list[-1]), 2), core.NONE, dtype=np.int64),
        ends=np.full(2 * width, core.NEVER_DUE, dtype=np.int64),
        servers=of_servers,
        changed=np.zeros(servers, dtype=np.int64),
        turn=np.zeros(classes, dtype=np.int64),
        present=np.zeros(classes, dtype=np.int64),
        arrived=np.zeros(classes, dtype=np.int64),
        served=np.zeros(classes, dtype=np.int64),
        since=np.zeros(classes, dtype=np.int64),
        area=np.zeros(classes),
        stay=np.zeros(classes),
        bins=np.zeros((classes, BINS), dtype=np.int64),
        weight=np.zeros(classes),
    )


def _watch(ticks: Ticks, classes: int, stations: int) -> core.Watch:
    def of(rows: int) -> Ticks:
        return np.zeros((rows, ticks.size), dtype=np.int64)

    return core.Watch(
        ticks=ticks,
        present=of(classes),
        arrived=of(classes),
        served=of(classes),
        area=np.zeros((classes, ticks.size)),
        stay=np.zeros((classes, ticks.size)),
        work=of(stations),
        tokens=np.zeros(ticks.size, dtype=np.int64),
        highest=np.zeros(ticks.size, dtype=np.int64),
    )
