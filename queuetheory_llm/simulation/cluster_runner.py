"""The compiled runner of clusters: what `cluster_reference` does, some thousand times faster.

The arrays of `cluster_kernel` are made and read here. A rule or an order of the user's own is asked in Python, at each
call that is sent on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.registry import to_dispatcher
from queuetheory_llm.dispatch.view import Dispatcher, DispatchRule, DispatchView
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import require_whole
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.schedulers.queue_orders import to_order
from queuetheory_llm.schedulers.vtc import cost
from queuetheory_llm.simulation import cluster_kernel as core
from queuetheory_llm.simulation.clock import LAST_TICK, Clock, tick_table
from queuetheory_llm.simulation.cluster_run import (
    ClusterRun,
    chosen_instance,
    cluster_clock,
    key_in,
    law_ticks,
    mean_tokens,
    no_instance,
    order_view,
    shares_of,
)
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.requests import Ticks, read_only
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.threads import in_threads
from queuetheory_llm.simulation.workflow_draws import rows_of, starts

_NO_LIMIT = 2**62


def run_cluster(
    system: WorkflowSystem,
    queries: Queries,
    dispatcher: Dispatcher | DispatchRule | str,
    order: QueueOrder | str = "fcfs",
    *,
    until: int | None = None,
    watched: Sequence[int] | Ticks = (),
    rng: np.random.Generator | int = 0,
    clock: Clock | None = None,
    steps_cut: int = 1,
) -> ClusterRun:
    """Run queries on a cluster; see `cluster_reference.run_reference`, to which it is equal call for call.

    Parameters
    ----------
    system : WorkflowSystem
    queries : Queries
        On the ticks of ``clock``.
    dispatcher : Dispatcher, DispatchRule or str
        With ``shares`` if its rule has the split of the linear program.
    order : QueueOrder or str
    until : int, optional
        Only what happens strictly before this tick is run; None: until every query has ended, which also an unstable
        cluster comes to.
    watched : sequence of int
        Increasing ticks of the series; none after ``until``.
    rng : numpy.random.Generator or seed
        For rules that toss: one number a call, in order of dispatch.
    clock : Clock, optional
        `cluster_run.cluster_clock` by default.
    steps_cut : int
        Decode steps that any number of calls can share take one in so many of their ticks, prompts as long as ever, and
        rules see the seconds that they always see: `cluster_phases` says what for.

    Raises
    ------
    InvalidInput
        If the queries are not of this workflow, a watched tick is after ``until``, a name is not known, the rule
        chooses an instance that cannot serve the call, the order gives it no number, or the run outlives the clock.
    """
    process = ClusterProcess(
        system, queries, dispatcher, order, watched=watched, rng=rng, clock=clock, steps_cut=steps_cut
    )
    until = _tick("until", until)
    if until is not None and process.watch.ticks.size and process.watch.ticks[-1] > until:
        raise InvalidInput(f"watched: tick {process.watch.ticks[-1]} is after the end of the run, {until}")
    process.advance(until)
    return process.run()


class ClusterProcess:
    """A cluster under way: it can be advanced, looked at, told other parameters, and advanced again.

    Parameters and errors are those of `run_cluster`. ``advance`` lets other threads run, so that processes advance
    side by side.

    Attributes
    ----------
    dispatcher : Dispatcher
        With the parameters it has now.
    now : int
        Tick before which all has happened.
    """

    def __init__(
        self,
        system: WorkflowSystem,
        queries: Queries,
        dispatcher: Dispatcher | DispatchRule | str,
        order: QueueOrder | str = "fcfs",
        *,
        watched: Sequence[int] | Ticks = (),
        rng: np.random.Generator | int = 0,
        clock: Clock | None = None,
        steps_cut: int = 1,
    ) -> None:
        self.system, self.queries = system, queries
        self.dispatcher, self.order = to_dispatcher(dispatcher), to_order(order)
        self.clock = cluster_clock(system) if clock is None else clock
        _require_fit(system, queries)
        rule, rng = self.dispatcher.rule, np.random.default_rng(rng)
        self.now = 0
        self._how = core.How(
            rule=_place(core.RULES, rule.choose),
            order=_place(core.ORDERS, self.order.key),
            looks=int(not rule.oblivious),
            true=int(self.dispatcher.reading == "true"),
            fair=int(self.order.fair),
            rate=float(self.clock.rate),
        )
        self._cluster = _cluster(system, self.dispatcher, self.clock, steps_cut)
        self._load = _load(queries, rng.random(queries.calls) if rule.tosses else np.zeros(0))
        self._state = _state(system, queries, self.order)
        self.watch = _watch(watched, len(system.units))
        self._parameters = self.dispatcher.parameters

    @property
    def done(self) -> bool:
        """Whether every query has ended."""
        return bool((self._state.finished != NEVER).all())

    @property
    def finished(self) -> Ticks:
        """Tick at which each query ended, shape (Q,); `NEVER` of those that have not yet."""
        return read_only(self._state.finished)

    @property
    def begun(self) -> Ticks:
        """Steps of each query that have begun, shape (Q,)."""
        come = self._load.query_of < self._state.s[core.COME]
        begun = come & (self._state.steps[:, core.WAITS] == 0)
        return read_only(np.bincount(self._load.query_of[begun], minlength=len(self.queries)))

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Change parameters of the rule from now on; those left out stay as they are.

        Raises
        ------
        InvalidInput
            If the rule does not have one of them, or it is out of range.
        """
        self.dispatcher = attrs.evolve(self.dispatcher, values={**self.dispatcher.values, **values}, text="")
        self._parameters = self.dispatcher.parameters

    def advance(self, until: int | None = None) -> None:
        """Run all that happens before a tick; None: until every query has ended.

        Raises
        ------
        InvalidInput
            If the rule chooses an instance that cannot serve the call, the run outlives the clock, or the tick is none.
        """
        until = _tick("until", until)
        limit = core.NEVER_DUE if until is None else until
        while (status := self._drive(limit, 0)) != core.FINISHED:
            self._answer(status)
        s = self._state.s
        self.now = int(s[core.NOW]) + 1 if until is None else max(self.now, until)

    def forecast(
        self, ahead: Queries, rest: Queries, choices: Sequence[Mapping[str, float]], workers: int | None = None
    ) -> list[Ticks]:
        """When queries would end if it went on from here in a certain way; the process itself stays where it is.

        It goes on from the very state that the instances are in. Of a query that is under way the steps that have
        begun go on; those that have not are not known yet, and others take their place, which begin when all of the
        former have ended. Queries that are to come in ``queries`` are replaced too.

        Parameters
        ----------
        ahead : Queries
            That come from now on.
        rest : Queries
            A row for each query under way, in their order: its steps that have not begun.
        choices : sequence of mappings
            Parameters of the rule, as in `set_parameters`; one future for each.
        workers : int, optional
            Threads; by default one a core.

        Returns
        -------
        list of int64 arrays
            For each choice the ticks at which queries end: those that have come, then those ahead.
        """
        load, state = self._future(ahead, rest)

        def ends(values: Mapping[str, float]) -> Ticks:
            other = copy(self)
            other.watch = _watch((), len(self.system.units))
            other._load, other._state = load, core.State._make(map(np.copy, state))
            other.set_parameters(values)
            other.advance()
            return other.finished

        return in_threads(ends, choices, workers)

    def _future(self, ahead: Queries, rest: Queries) -> tuple[core.Load, core.State]:
        """The queries of `forecast`, and the state now; new steps and calls stand behind the old, ``rest`` last."""
        old, state = self.queries, self._state
        come = int(state.s[core.COME])
        steps = int(old.first_step[come])
        calls = int(old.first_call[steps])
        under_way = np.flatnonzero(state.finished[:come] == NEVER)
        query_of = self._load.query_of[:steps]
        running = np.flatnonzero(
            (state.steps[:steps, core.WAITS] == 0)
            & (state.steps[:steps, core.CALLS_LEFT] > 0)
            & (state.finished[query_of] == NEVER)
        )
        place = np.searchsorted(under_way, query_of[running])
        runs = np.bincount(place, minlength=under_way.size)
        # Each step that runs leads to every step of the rest that waits for no other of it.
        base = steps + ahead.stage.size
        rest_of = np.repeat(np.arange(under_way.size), np.diff(rest.first_step))
        heads = np.flatnonzero(rest.waits == 0)
        first_head = starts(np.bincount(rest_of[heads], minlength=under_way.size))
        led, _ = rows_of(first_head, place)
        out = np.zeros(steps, dtype=np.int64)
        out[running] = np.diff(first_head)[place]
        rest_waits = rest.waits.copy()
        rest_waits[heads] = runs[rest_of[heads]]
        queries = Queries(
            arrival=np.concatenate([old.arrival[:come], ahead.arrival]),
            tenant=np.concatenate([old.tenant[:come], ahead.tenant]),
            first_step=np.concatenate([old.first_step[:come], steps + ahead.first_step]),
            stage=np.concatenate([old.stage[:steps], ahead.stage, rest.stage]),
            waits=np.concatenate([state.steps[:steps, core.WAITS], ahead.waits, rest_waits]),
            first_next=starts(np.concatenate([out, np.diff(ahead.first_next), np.diff(rest.first_next)])),
            next=np.concatenate([base + heads[led], steps + ahead.next, base + rest.next]),
            first_call=starts(np.diff(np.concatenate([
                old.first_call[: steps + 1], calls + ahead.first_call[1:], calls + ahead.calls + rest.first_call[1:]
            ]))),
            prefill=np.concatenate([old.prefill[:calls], ahead.prefill, rest.prefill]),
            decode=np.concatenate([old.decode[:calls], ahead.decode, rest.decode]),
            work=np.concatenate([old.work[:calls], ahead.work, rest.work]),
        )  # fmt: skip
        tossed = np.random.default_rng(0).random(queries.calls if self._load.chance.size else 0)
        load = _load(queries, tossed)._replace(
            query_of=np.concatenate(
                [query_of, come + np.repeat(np.arange(len(ahead)), np.diff(ahead.first_step)), under_way[rest_of]]
            )
        )
        fresh = _state(self.system, queries, self.order)
        fresh.calls[:calls], fresh.key[:calls] = state.calls[:calls], state.key[:calls]
        fresh.steps[:steps, core.CALLS_LEFT] = state.steps[:steps, core.CALLS_LEFT]
        fresh.steps_left[under_way] = runs + np.diff(rest.first_step)
        fresh.finished[:come] = state.finished[:come]
        s = state.s.copy()
        s[[core.FIRST, core.END, core.SEEN]] = 0
        grown = {"calls", "key", "steps", "begins", "steps_left", "finished"}
        kept = {name: each for name, each in state._asdict().items() if name not in grown}
        return load, fresh._replace(**{**kept, "s": s})

    def run(self) -> ClusterRun:
        """What has happened so far; the series goes up to now."""
        state, ticks = self._state, self.watch.ticks
        seen = int(state.s[core.SEEN])
        self._drive(self.now, self.now + 1)  # the watched tick that is now: it may change yet
        known, state.s[core.SEEN] = int(state.s[core.SEEN]), seen
        width = state.ends.size // 2
        works = state.ends[width : width + len(state.instances)] != core.NEVER_DUE
        calls = state.calls
        return ClusterRun(
            system=self.system,
            queries=self.queries,
            clock=self.clock,
            until=self.now,
            finished=state.finished,
            instance=calls[:, core.INSTANCE],
            came=calls[:, core.CAME],
            began=calls[:, core.BEGAN],
            ended=calls[:, core.ENDED],
            sent=state.sent,
            busy=state.instances[:, core.BUSY] + works * (self.now - state.instances[:, core.SINCE]),
            watched=ticks[:known],
            present=self.watch.present[:, :known],
            work=self.watch.work[:, :known].copy(),
        )

    def _drive(self, until: int, through: int) -> int:
        return int(
            core.advance(
                self._how, self._cluster, self._load, self._state, self.watch, self._parameters, until, through
            )
        )

    def _answer(self, status: int) -> None:
        """Do what the kernel has stopped for."""
        if status == core.OVERFLOW:
            raise InvalidInput(
                f"queries: the run passes {self.clock.seconds(LAST_TICK):.3g} s, the last instant of a 64-bit clock of "
                f"{self.clock.rate} ticks/s; give fewer, or a higher rate"
            )
        s = self._state.s
        step = int(self._load.step_of[s[core.CALL]])
        stage, chosen = int(self._load.stage[step]), int(s[core.CHOSEN])
        if status == core.NO_INSTANCE:
            raise no_instance(self.system, self.dispatcher, stage, chosen)
        if status == core.ASK_RULE:
            s[core.CHOSEN] = chosen_instance(self.system, self.dispatcher, self._view(stage), self._parameters)
        else:
            self._state.answer[0] = self._key(step, stage, chosen)
            s[core.KEYED] = 1

    def _view(self, stage: int) -> DispatchView:
        state, cluster, chance = self._state, self._cluster, self._load.chance
        return DispatchView(
            stage=stage,
            seconds=cluster.seconds[stage],
            queued=state.left if self._how.true else state.estimated,
            outstanding=state.outstanding,
            tokens=state.tokens,
            assigned=state.assigned,
            turn=int(state.turn[stage]),
            shares=cluster.shares[stage],
            chance=float(chance[state.s[core.ORDER]]) if chance.size else 0.0,
        )

    def _key(self, step: int, stage: int, m: int) -> float:
        cluster, query = self._cluster, self._load.query_of[step]
        view = order_view(
            now=float(self._state.s[core.NOW]),
            born=float(self._load.arrival[query]),
            rate=self._how.rate,
            slo=float(cluster.slo[self._load.tenant[query]]),
            seconds=float(cluster.seconds[stage, m]),
            average=float(cluster.average[stage]),
            rest=float(cluster.rest[stage]),
            prefill=float(cluster.mean_prefill[stage]),
            decode=float(cluster.mean_decode[stage]),
        )
        return key_in(self.order, view)


def _place(functions: Sequence[Callable[..., Any]], function: Callable[..., Any]) -> int:
    """The number of a function that is compiled in; -1 of another."""
    return functions.index(function) if function in functions else core.NONE


def _require_fit(system: WorkflowSystem, queries: Queries) -> None:
    """Refuse queries of another workflow."""
    if queries.stage.size and queries.stage.max() >= len(system.workflow.stages):
        raise InvalidInput(
            f"queries: they have {queries.stage.max() + 1} stages, the workflow {len(system.workflow.stages)}"
        )
    if len(queries) and queries.tenant.max() >= len(system.workflow.tenants):
        raise InvalidInput(
            f"queries: they have {queries.tenant.max() + 1} tenants, the workflow {len(system.workflow.tenants)}"
        )
    of_call = np.repeat(queries.stage, np.diff(queries.first_call))
    classical = np.array([each.classical for each in system.workflow.stages], dtype=bool)[of_call]
    wrong = np.where(classical, (queries.prefill != 0) | (queries.decode != 0), np.asarray(queries.work) != 0)
    if wrong.any():
        stage = system.workflow.stages[of_call[np.argmax(wrong)]]
        takes, brings = ("seconds of work", "tokens") if stage.classical else ("tokens", "seconds of work")
        raise InvalidInput(
            f"queries: a call of stage {stage.name} brings {brings}, it takes {takes}; draw them from this workflow"
        )


def _tick(where: str, value: int | None) -> int | None:
    """A tick of the clock, or None."""
    if value is None:
        return None
    tick = require_whole(where, value, 0, "a tick of the clock")
    if tick > core.NEVER_DUE:
        raise InvalidInput(f"{where}: {tick} is beyond {core.NEVER_DUE}, the last tick of a run; give an earlier one")
    return tick


def _table(each: Instance, clock: Clock) -> Ticks:
    """Ticks of batches by their tokens, see `tick_table`."""
    if each.engine is None:
        return _ints([0])
    try:
        return tick_table(each.engine.batch_time, clock, each.engine.b_max)
    except InvalidInput as error:
        raise InvalidInput(f"instance {each.name}: {fault}" for fault in error.faults) from None


def _ints(values: Sequence[Any]) -> Ticks:
    return np.array(values, dtype=np.int64)


def _floats(values: Sequence[Any]) -> Floats:
    return np.array(values, dtype=np.float64)


def _kind(each: Instance) -> int:
    if each.engine is not None:
        return core.ENGINE
    return core.SERVER if each.speed is not None else core.LATENCY


def _most(each: Instance) -> int:
    """Most calls begun and not ended."""
    if each.speed is not None:
        return 1
    limit = each.seats if each.engine is None else each.engine.k_max
    return _NO_LIMIT if limit is None else limit


def _step(each: Instance, clock: Clock) -> int:
    """Ticks of a decode token of a call that is alone."""
    if each.engine is not None:
        return clock.ticks(each.engine.batch_time.seconds(1))
    return clock.ticks(each.decode_step) if each.latency is not None else 0


def _cluster(system: WorkflowSystem, dispatcher: Dispatcher, clock: Clock, steps_cut: int) -> core.Cluster:
    types, units, stages = system.instances, list(system.units), system.workflow.stages
    tables = [_table(each, clock) for each in types]
    starts = [0, *accumulate(map(len, tables))]
    laws = [
        law_ticks(each.law(stage), clock) if each.latency is not None and each.serves(stage) else (0, 0, 0)
        for stage in stages
        for each in types
    ]
    law = _ints(laws).reshape(len(stages), len(types), 3)[:, units]
    step = _ints([_step(types[kind], clock) for kind in units])
    vacation = np.array([types[kind].latency is not None and types[kind].seats is None for kind in units])
    cut = np.where(vacation, step - step // steps_cut, 0)
    seconds = system.unit_seconds
    means = [mean_tokens(stage) for stage in stages]
    return core.Cluster(
        kind=_ints([_kind(types[kind]) for kind in units]),
        most=_ints([_most(types[kind]) for kind in units]),
        budget=_ints([1 if (engine := types[kind].engine) is None else engine.b_max for kind in units]),
        first_ticks=_ints([starts[kind] for kind in units]),
        batch_ticks=np.concatenate(tables),
        step=step - cut,
        base=law[..., 0].copy(),
        prefill=law[..., 1].copy(),
        decode=law[..., 2] - cut,
        ticks_of_work=_floats([float(clock.rate / (types[kind].speed or 1)) for kind in units]),
        seconds=_floats([[np.inf if s is None else s for s in row] for row in seconds]),
        cost=_floats([[0 if s is None else s for s in row] for row in seconds]),
        shares=shares_of(system, dispatcher),
        average=_floats(system.average_seconds),
        rest=_floats(system.seconds_after),
        mean_prefill=_floats([prefill for prefill, _ in means]),
        mean_decode=_floats([decode for _, decode in means]),
        charge=_floats([cost(prefill, decode) for prefill, decode in means]),
        slo=_floats(system.deadlines),
    )


def _load(queries: Queries, chance: Floats) -> core.Load:
    return core.Load(
        arrival=queries.arrival,
        tenant=queries.tenant,
        first_step=queries.first_step,
        stage=queries.stage,
        first_next=queries.first_next,
        next=queries.next,
        first_call=queries.first_call,
        prefill=queries.prefill,
        decode=queries.decode,
        work=np.array(queries.work, dtype=np.float64),
        query_of=np.repeat(np.arange(len(queries)), np.diff(queries.first_step)),
        step_of=np.repeat(np.arange(queries.stage.size), np.diff(queries.first_call)),
        chance=chance,
    )


def _state(system: WorkflowSystem, queries: Queries, order: QueueOrder) -> core.State:
    """The empty cluster before time 0."""
    instances, stages = len(system.units), len(system.workflow.stages)
    groups = len(system.workflow.tenants) if order.fair else 1
    s = np.zeros(core.STATE_SIZE, dtype=np.int64)
    s[[core.NOW, core.DECIDED, core.CHOSEN]] = NEVER, NEVER, core.NONE
    own = np.zeros((instances, core.INSTANCE_SIZE), dtype=np.int64)
    own[:, [core.ROOT, core.PARTIAL]] = core.NONE
    width = 1 << (instances - 1).bit_length()
    return core.State(
        s=s,
        calls=np.full((queries.calls, core.CALL_SIZE), NEVER, dtype=np.int64),
        key=np.zeros(queries.calls),
        steps=np.stack([np.diff(queries.first_call), queries.waits], axis=1),
        begins=np.zeros(queries.stage.size, dtype=np.int64),
        steps_left=np.diff(queries.first_step),
        finished=np.full(len(queries), NEVER, dtype=np.int64),
        instances=own,
        ends=np.full(2 * width, core.NEVER_DUE, dtype=np.int64),
        changed=np.zeros(instances, dtype=np.int64),
        roots=np.full((instances, groups), core.NONE, dtype=np.int64),
        waiting=np.zeros((instances, groups), dtype=np.int64),
        charged=np.zeros((instances, groups)),
        there=np.zeros((stages, instances), dtype=np.int64),
        sent=np.zeros((stages, instances), dtype=np.int64),
        turn=np.zeros(stages, dtype=np.int64),
        estimated=np.zeros(instances),
        left=np.zeros(instances),
        outstanding=np.zeros(instances, dtype=np.int64),
        tokens=np.zeros(instances),
        assigned=np.zeros(instances),
        answer=np.zeros(1),
    )


def _watch(watched: Sequence[int] | Ticks, instances: int) -> core.Watch:
    ticks = np.array(watched, dtype=np.int64)
    if ticks.size and (ticks[0] < 0 or (np.diff(ticks) <= 0).any()):
        raise InvalidInput("watched: the ticks must be increasing and not negative")
    return core.Watch(
        ticks=ticks,
        present=np.zeros((instances, ticks.size), dtype=np.int64),
        work=np.zeros((instances, ticks.size)),
    )
