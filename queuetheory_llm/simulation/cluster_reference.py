"""The definition of how a cluster runs the calls of queries: plain Python, event by event.

At one tick, until nothing more happens at it:

1. Completions, by instance. The calls that have their last token end, those of one instance in the order in which it
   admitted them. A step ends with its last call, a query with its last step.
2. Moves: the steps that waited for nothing else begin, in the order in which the steps before them ended. The calls of
   a step are dispatched one after another, each seeing the effect of the one before. A call without tokens ends at
   once at a batch engine.
3. Queries that come, one after another, each with the moves that follow.
4. Decisions: every idle instance that has something turns to what it serves next.

So whatever comes at or before the end of a batch is seen by the next one. What an instance serves next, its kind says:
`_Engine`, `_Latency`, `_Server`. Waiting calls are in the order of their keys, equal keys in the order of coming.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.view import Dispatcher, DispatchView
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.schedulers.vtc import cost, lifted
from queuetheory_llm.simulation.clock import BatchTicks, Clock
from queuetheory_llm.simulation.cluster_run import (
    ClusterRun,
    chosen_instance,
    cluster_clock,
    key_in,
    law_ticks,
    mean_tokens,
    order_view,
    shares_of,
)
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.requests import Ticks
from queuetheory_llm.simulation.run import NEVER


def run_reference(
    system: WorkflowSystem,
    queries: Queries,
    dispatcher: Dispatcher,
    order: QueueOrder,
    *,
    until: int | None = None,
    watched: Sequence[int] | Ticks = (),
    rng: np.random.Generator,
    clock: Clock | None = None,
) -> ClusterRun:
    """Run queries on a cluster.

    Parameters
    ----------
    system : WorkflowSystem
    queries : Queries
        On the ticks of ``clock``.
    dispatcher : Dispatcher
        Its ``shares`` given if its rule has a split other than uniform and proportional.
    order : QueueOrder
    until : int, optional
        Only what happens strictly before this tick is run; None: until every query has ended.
    watched : sequence of int
        Increasing ticks of the series; none after ``until``.
    rng : numpy.random.Generator
        For rules that toss: one number a call, in order of dispatch.
    clock : Clock, optional
        `cluster_run.cluster_clock` by default.

    Raises
    ------
    InvalidInput
        If the rule chooses an instance that cannot serve the call, or the order gives it no number.
    """
    machine = _Machine(system, queries, dispatcher, order, rng, cluster_clock(system) if clock is None else clock)
    return machine.run(until, np.asarray(watched, dtype=np.int64))


@attrs.define(eq=False)
class _Call:
    """A call at an instance: tokens or ticks of work that are left of it, and its place among those that came.

    ``charge`` is what it costs its tenant where the order is fair.
    """

    number: int
    stage: int
    tenant: int
    query: int
    prompt: int
    decode: int
    work: float
    place: int
    charge: float
    ticks: int = 0  # of a prompt at an isolated-latency instance, of the work at a classical server

    @property
    def tokens(self) -> int:
        return self.prompt + self.decode


@attrs.define(eq=False)
class _Instance:
    """What the three kinds have in common.

    ``waiting`` holds, by tenant, heaps of (key, place, call); of an order that is not fair, tenant 0 has them all.
    ``running`` are the calls begun and not ended, in the order in which they were admitted. ``served`` are the parts
    of calls in service: (call, prompt tokens, decode tokens, ticks of work).
    """

    number: int
    most: float
    rate: int
    began: Ticks
    waiting: dict[int, list[tuple[float, int, _Call]]] = attrs.field(factory=dict)
    charged: dict[int, float] = attrs.field(factory=dict)
    running: list[_Call] = attrs.field(factory=list)
    served: list[tuple[_Call, int, int, int]] = attrs.field(factory=list)
    since: int = 0
    end: int | None = None
    drop: int = 0  # ticks, alone, that what is in service takes off the work
    busy: int = 0

    def alone(self, prompt: int, decode: int, ticks: int) -> int:
        """Ticks of a call that is alone, of what is left of it."""
        raise NotImplementedError

    def prepare(self, call: _Call) -> None:
        """Set the ticks of a call that has come."""

    def serve(self, now: int) -> int:
        """Choose what is served next, into ``served``; how many ticks it takes."""
        raise NotImplementedError

    @property
    def calls(self) -> list[_Call]:
        return self.running + [call for heap in self.waiting.values() for _, _, call in heap]

    def join(self, call: _Call, key: float, fair: bool) -> None:
        """A call comes to wait; a tenant that had none waiting is lifted to the least served of those that had."""
        tenant = call.tenant if fair else 0
        heap = self.waiting.setdefault(tenant, [])
        if not heap:
            others = [self.charged[each] for each, calls in self.waiting.items() if calls]
            own = self.charged.get(tenant, 0.0)
            self.charged[tenant] = lifted(own, min(others)) if others else own
        heapq.heappush(heap, (key, call.place, call))

    def has_waiting(self) -> bool:
        return any(self.waiting.values()) and len(self.running) < self.most

    def admit(self, now: int) -> _Call:
        """The first of the waiting calls is begun: of the tenant served least, the one of the least key."""
        tenant = min((each for each, heap in self.waiting.items() if heap), key=lambda each: (self.charged[each], each))
        call = heapq.heappop(self.waiting[tenant])[2]
        self.charged[tenant] += call.charge
        self.running.append(call)
        self.began[call.number] = now
        return call

    def decide(self, now: int) -> None:
        """An idle instance that has something serves."""
        if self.end is None and (self.running or self.has_waiting()):
            self.since, self.end = now, now + self.serve(now)
            self.drop = sum(
                self.alone(call.prompt, call.decode, call.ticks)
                - self.alone(call.prompt - prompt, call.decode - decode, call.ticks - ticks)
                for call, prompt, decode, ticks in self.served
            )

    def complete(self) -> list[_Call]:
        """Credit what was served; the calls that have ended, in the order in which they were admitted."""
        assert self.end is not None
        for call, prompt, decode, ticks in self.served:
            call.prompt -= prompt
            call.decode -= decode
            call.ticks -= ticks
        self.busy += self.end - self.since
        self.served, self.end, self.drop = [], None, 0
        done = [call for call in self.running if call.tokens == 0 and call.ticks == 0]
        self.running = [call for call in self.running if call not in done]
        return done

    def seconds_left(self, now: int) -> float:
        """Seconds of work, each call alone; what is in service is taken off evenly while it is served."""
        whole = sum(self.alone(call.prompt, call.decode, call.ticks) for call in self.calls)
        if self.end is None or self.end == self.since:
            return whole / self.rate
        return (whole - self.drop * ((now - self.since) / (self.end - self.since))) / self.rate

    def tokens_left(self, now: int) -> float:
        """Tokens not served by the end of the last batch."""
        del now
        return float(sum(call.tokens for call in self.calls))


@attrs.define(eq=False)
class _Engine(_Instance):
    """A batch engine: the calls that run in the order of admission, then waiting ones while budget is left."""

    batch: BatchTicks = attrs.field(kw_only=True)
    budget: int = attrs.field(kw_only=True)

    def alone(self, prompt: int, decode: int, ticks: int) -> int:
        del ticks
        full, rest = divmod(prompt, self.budget)
        prompts = full * (self.batch[self.budget] if full else 0) + (self.batch[rest] if rest else 0)
        return prompts + decode * self.batch[1]

    def serve(self, now: int) -> int:
        left = self.budget
        for call in self.running:
            left -= self._take(call, left)
        while left and self.has_waiting():
            left -= self._take(self.admit(now), left)
        return self.batch[self.budget - left]

    def _take(self, call: _Call, left: int) -> int:
        prompt = min(call.prompt, left)
        decode = 0 if prompt else 1
        self.served.append((call, prompt, decode, 0))
        return prompt + decode


@attrs.define(eq=False)
class _Latency(_Instance):
    """An isolated-latency instance: one prompt alone before any decode step; a step serves all that decode."""

    step: int = attrs.field(kw_only=True)
    laws: dict[int, tuple[int, int, int]] = attrs.field(kw_only=True)  # base, a prompt token, a decode token by stage

    def prepare(self, call: _Call) -> None:
        base, prefill, decode = self.laws[call.stage]
        call.ticks = max(0, base + prefill * call.prompt + (decode - self.step) * call.decode)

    def alone(self, prompt: int, decode: int, ticks: int) -> int:
        del prompt
        return ticks + decode * self.step

    def serve(self, now: int) -> int:
        if self.has_waiting():
            call = self.admit(now)
            self.served = [(call, call.prompt, 0, call.ticks)]
            return call.ticks
        # Steps that take no time are all done at once, up to the first end of a call.
        steps = 1 if self.step else min(call.decode for call in self.running)
        self.served = [(call, 0, steps, 0) for call in self.running]
        return self.step


@attrs.define(eq=False)
class _Server(_Instance):
    """A classical server."""

    ticks_of_work: float = attrs.field(kw_only=True)

    def prepare(self, call: _Call) -> None:
        call.ticks = round(call.work * self.ticks_of_work)

    def alone(self, prompt: int, decode: int, ticks: int) -> int:
        del prompt, decode
        return ticks

    def serve(self, now: int) -> int:
        call = self.admit(now)
        self.served = [(call, 0, 0, call.ticks)]
        return call.ticks

    def tokens_left(self, now: int) -> float:
        return self.seconds_left(now)


class _Machine:
    """The state of a run."""

    def __init__(
        self,
        system: WorkflowSystem,
        queries: Queries,
        dispatcher: Dispatcher,
        order: QueueOrder,
        rng: np.random.Generator,
        clock: Clock,
    ) -> None:
        self.system, self.queries, self.dispatcher, self.order, self.clock = system, queries, dispatcher, order, clock
        stages, instances, calls = len(system.workflow.stages), len(system.units), queries.calls
        self.came, self.began, self.ended = (np.full(calls, NEVER, dtype=np.int64) for _ in range(3))
        self.instance = np.full(calls, -1, dtype=np.int64)
        self.finished = np.full(len(queries), NEVER, dtype=np.int64)
        self.sent, self.there = (np.zeros((stages, instances), dtype=np.int64) for _ in range(2))
        self.instances = _instances(system, clock, self.began)
        self.costs = system.unit_seconds
        self.seconds = np.array([[np.inf if s is None else float(s) for s in row] for row in self.costs])
        self.shares = shares_of(system, dispatcher)
        self.parameters = dispatcher.parameters
        self.means = [mean_tokens(stage) for stage in system.workflow.stages]
        self.slo = system.deadlines
        self.chances = rng.random(calls) if dispatcher.rule.tosses else np.zeros(calls)
        self.dispatched = 0
        self.waits = queries.waits.tolist()
        self.calls_left = np.diff(queries.first_call).tolist()
        self.steps_left = np.diff(queries.first_step).tolist()
        self.step_of = np.repeat(np.arange(queries.stage.size), np.diff(queries.first_call)).tolist()
        self.query_of = np.repeat(np.arange(len(queries)), np.diff(queries.first_step)).tolist()
        self.begins: deque[int] = deque()  # steps, in the order in which they begin at this instant
        self.come = 0
        self.now = -1

    def run(self, until: int | None, watched: Ticks) -> ClusterRun:
        """All events before ``until``, and the result."""
        arrivals = self.queries.arrival.tolist()
        present = np.zeros((len(self.instances), watched.size), dtype=np.int64)
        work = np.zeros((len(self.instances), watched.size))
        seen = 0
        while True:
            pending = [each.end for each in self.instances if each.end is not None]
            pending += arrivals[self.come : self.come + 1]
            tick = min(pending, default=None)
            ends = tick is None or (until is not None and tick >= until)
            while seen < watched.size and (ends or watched[seen] < tick):
                present[:, seen] = self.there.sum(axis=0)
                work[:, seen] = [each.seconds_left(int(watched[seen])) for each in self.instances]
                seen += 1
            if ends or tick is None:
                break
            self.now = tick
            self._instant(arrivals)
        return self._result(self.now + 1 if until is None else until, watched, present, work)

    def _instant(self, arrivals: list[int]) -> None:
        ended = [call for each in self.instances if each.end == self.now for call in each.complete()]
        for call in ended:
            self._end(call.number, self.instances[self.instance[call.number]])
        self._begin_steps()
        while self.come < len(arrivals) and arrivals[self.come] == self.now:
            self._query(self.come)
            self.come += 1
        for each in self.instances:
            each.decide(self.now)

    # --- moves ------------------------------------------------------------------------------------------------------

    def _query(self, query: int) -> None:
        first, last = self.queries.first_step[query : query + 2].tolist()
        if first == last:
            self.finished[query] = self.now
        self.begins.extend(step for step in range(first, last) if self.waits[step] == 0)
        self._begin_steps()

    def _begin_steps(self) -> None:
        while self.begins:
            step = self.begins.popleft()
            for number in range(self.queries.first_call[step], self.queries.first_call[step + 1]):
                self._dispatch(number, step)

    def _dispatch(self, number: int, step: int) -> None:
        stage, query = int(self.queries.stage[step]), self.query_of[step]
        chosen = chosen_instance(self.system, self.dispatcher, self._view(stage), self.parameters)
        there = self.instances[chosen]
        call = _Call(
            number=number,
            stage=stage,
            tenant=int(self.queries.tenant[query]),
            query=query,
            prompt=int(self.queries.prefill[number]),
            decode=int(self.queries.decode[number]),
            work=float(self.queries.work[number]),
            place=self.dispatched,
            charge=cost(*self.means[stage]),
        )
        self.dispatched += 1
        self.instance[number], self.came[number] = chosen, self.now
        self.sent[stage, chosen] += 1
        self.there[stage, chosen] += 1
        if isinstance(there, _Engine) and call.tokens == 0:
            self.began[number] = self.now
            self._end(number, there)
            return
        there.prepare(call)
        there.join(call, self._key(call, chosen), self.order.fair)

    def _view(self, stage: int) -> DispatchView:
        true = self.dispatcher.reading == "true"
        estimated = np.array([_total(self.there[:, each.number], self.costs, each.number) for each in self.instances])
        left = np.array([each.seconds_left(self.now) for each in self.instances])
        return DispatchView(
            stage=stage,
            seconds=self.seconds[stage],
            queued=left if true else estimated,
            outstanding=self.there.sum(axis=0),
            tokens=np.array([each.tokens_left(self.now) for each in self.instances]),
            assigned=np.array([_total(self.sent[:, each.number], self.costs, each.number) for each in self.instances]),
            turn=int(self.sent[stage].sum()),
            shares=self.shares[stage],
            chance=float(self.chances[self.dispatched]),
        )

    def _key(self, call: _Call, chosen: int) -> float:
        prefill, decode = self.means[call.stage]
        view = order_view(
            now=float(self.now),
            born=float(self.queries.arrival[call.query]),
            rate=float(self.clock.rate),
            slo=self.slo[call.tenant],
            seconds=float(self.seconds[call.stage, chosen]),
            average=float(self.system.average_seconds[call.stage]),
            rest=float(self.system.seconds_after[call.stage]),
            prefill=prefill,
            decode=decode,
        )
        return key_in(self.order, view)

    def _end(self, number: int, there: _Instance) -> None:
        """A call has ended; so may its step and its query."""
        step = self.step_of[number]
        self.ended[number] = self.now
        self.there[int(self.queries.stage[step]), there.number] -= 1
        self.calls_left[step] -= 1
        if self.calls_left[step]:
            return
        query = self.query_of[step]
        self.steps_left[query] -= 1
        if self.steps_left[query] == 0:
            self.finished[query] = self.now
        for after in self.queries.next[self.queries.first_next[step] : self.queries.first_next[step + 1]].tolist():
            self.waits[after] -= 1
            if self.waits[after] == 0:
                self.begins.append(after)

    def _result(self, until: int, watched: Ticks, present: Ticks, work: Floats) -> ClusterRun:
        under_way = [0 if each.end is None else until - each.since for each in self.instances]
        return ClusterRun(
            system=self.system,
            queries=self.queries,
            clock=self.clock,
            until=until,
            finished=self.finished,
            instance=self.instance,
            came=self.came,
            began=self.began,
            ended=self.ended,
            sent=self.sent,
            busy=[each.busy + ticks for each, ticks in zip(self.instances, under_way, strict=True)],
            watched=watched,
            present=present,
            work=work,
        )


def _total(counts: Ticks, costs: Sequence[Sequence[Fraction | None]], number: int) -> float:
    """Estimated seconds of so many calls of each stage at an instance."""
    total = 0.0
    for count, row in zip(counts.tolist(), costs, strict=True):
        seconds = row[number]
        total += count * (0.0 if seconds is None else float(seconds))
    return total


def _instances(system: WorkflowSystem, clock: Clock, began: Ticks) -> list[_Instance]:
    found: list[_Instance] = []
    for number, kind in enumerate(system.units):
        each = system.instances[kind]
        common: dict[str, Any] = {"number": number, "rate": clock.rate, "began": began}
        if each.engine is not None:
            most = np.inf if each.engine.k_max is None else each.engine.k_max
            batch = BatchTicks(each.engine.batch_time, clock)
            found.append(_Engine(most=most, batch=batch, budget=each.engine.b_max, **common))
        elif each.speed is not None:
            found.append(_Server(most=1, ticks_of_work=float(clock.rate / each.speed), **common))
        else:
            most = np.inf if each.seats is None else each.seats
            served = [(j, each.law(stage)) for j, stage in enumerate(system.workflow.stages) if each.serves(stage)]
            laws = {j: law_ticks(law, clock) for j, law in served}
            found.append(_Latency(most=most, step=clock.ticks(each.decode_step), laws=laws, **common))
    return found
