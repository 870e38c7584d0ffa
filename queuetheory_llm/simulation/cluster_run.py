"""What happened in a run of a cluster, whichever runner made it, and what both runners are told in the same words."""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Integral, Real

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.dispatch.static_split import static_split
from queuetheory_llm.dispatch.view import Dispatcher, DispatchView
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.arrivals import ConstantInterval
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.workflow import Stage
from queuetheory_llm.schedulers.queue_order import OrderView, QueueOrder
from queuetheory_llm.schedulers.urgency import budget
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.queries import Queries
from queuetheory_llm.simulation.requests import Ticks, fixed_times, read_only
from queuetheory_llm.simulation.run import NEVER

_SPAN = Fraction(10**7)  # seconds that a clock of exact times must show; 116 days of queries


def cluster_clock(system: WorkflowSystem) -> Clock:
    """The clock of every run of a system: it shows its times that are not random, exactly where they fit.

    Those are the times of batches, of the latency laws token by token, of decode steps, of constant work and of
    deterministic arrivals. See `Clock.fit`.

    Raises
    ------
    InvalidInput
        If one of them does not fit a 64-bit clock.
    """
    times = set(fixed_times(system.arrivals))
    for each in system.instances:
        times |= _times(each, system)
    longest = max(map(abs, times), default=Fraction(0))
    try:
        return Clock.fit(times, max(_SPAN, 4 * longest))
    except InvalidInput:
        raise InvalidInput(
            f"instances, stages: one takes {float(longest):g} s for a unit of its work, too long for a 64-bit clock of "
            "1 ns; give times in smaller units, all of them"
        ) from None


def _times(each: Instance, system: WorkflowSystem) -> set[Fraction]:
    if each.engine is not None:
        return generators(each.engine.batch_time, each.engine.b_max)
    served = [stage for stage in system.workflow.stages if each.serves(stage)]
    if each.speed is not None:
        works = [stage.work.mean for stage in served if isinstance(stage.work, ConstantInterval)]
        return {work / each.speed for work in works}
    laws = [each.law(stage) for stage in served]
    return {each.decode_step} | {s for law in laws for s in (law.base, law.per_prefill, law.per_decode)}


def law_ticks(law: LatencyLaw, clock: Clock) -> tuple[int, int, int]:
    """Ticks of a law: its base, a prompt token, a decode token."""
    return clock.ticks(law.base), clock.ticks(law.per_prefill), clock.ticks(law.per_decode)


def shares_of(system: WorkflowSystem, dispatcher: Dispatcher) -> Floats:
    """The static split of a dispatcher, shape (J, M): its own, that of its rule, or zeros where it has none.

    Raises
    ------
    InvalidInput
        If the rule has the split of the linear program and the dispatcher no shares, or the shares do not fit.
    """
    split = static_split(system, dispatcher)
    if split is None:
        return np.zeros((len(system.workflow.stages), len(system.units)))
    return np.array([[float(share) for share in row] for row in split])


def order_view(
    now: float,
    born: float,
    rate: float,
    slo: float,
    seconds: float,
    average: float,
    rest: float,
    prefill: float,
    decode: float,
) -> OrderView:
    """What an order sees of a call that comes now; ``now`` and ``born`` in ticks, the others in seconds and tokens."""
    arrived, since = now / rate, born / rate
    own = slo if slo == np.inf else budget(slo - (arrived - since), average, rest)
    return OrderView(arrived, seconds, own, since, slo, rest, prefill, decode)


def no_instance(system: WorkflowSystem, dispatcher: Dispatcher, stage: int, chosen: object) -> InvalidInput:
    """The error of a rule that sends a call where it cannot be served."""
    able = [m for m, seconds in enumerate(system.unit_seconds[stage]) if seconds is not None]
    return InvalidInput(
        f"dispatch {dispatcher.name}: it sent a call of stage {system.workflow.stages[stage].name} to instance "
        f"{shown(chosen)}; choose one that serves it, whose view.seconds are finite: {', '.join(map(str, able))}"
    )


def chosen_instance(system: WorkflowSystem, dispatcher: Dispatcher, view: DispatchView, parameters: Floats) -> int:
    """The instance that a rule chooses, asked in Python.

    Raises
    ------
    InvalidInput
        If it is none that serves the stage, or the rule fails.
    """
    try:
        chosen: object = dispatcher.rule.choose(view, parameters)
    except Exception as error:  # whatever a user's function raises
        raise InvalidInput(
            f"dispatch {dispatcher.name}: {_raised(error)}; mend its choose(view, parameters)"
        ) from error
    if (
        not isinstance(chosen, Integral)
        or not 0 <= int(chosen) < len(view.seconds)
        or view.seconds[int(chosen)] == np.inf
    ):
        raise no_instance(system, dispatcher, view.stage, chosen)
    return int(chosen)


def _raised(error: Exception) -> str:
    """What a user's function raised, in one line."""
    return " ".join(f"its function raised {type(error).__name__}: {error}".split())


def key_in(order: QueueOrder, view: OrderView) -> float:
    """The key that an order gives to a call, asked in Python.

    Raises
    ------
    InvalidInput
        If it is no number that can be compared, or the order fails.
    """
    try:
        key: object = order.key(view)
    except Exception as error:  # whatever a user's function raises
        raise InvalidInput(f"order {order.name}: {_raised(error)}; mend its key(view)") from error
    if not isinstance(key, Real) or math.isnan(key):
        raise InvalidInput(f"order {order.name}: its key of a call is {shown(key)}; return a number, infinite or not")
    return float(key)


def mean_tokens(stage: Stage) -> tuple[float, float]:
    """Mean prompt and decode tokens of a stage; seconds of classical work count as a prompt."""
    if stage.work is not None:
        return float(stage.work.mean), 0.0
    assert stage.prefill is not None
    assert stage.decode is not None
    return float(stage.prefill.mean), float(stage.decode.mean)


@attrs.frozen(kw_only=True, eq=False)
class ClusterRun:
    """What happened before the tick ``until``; M single instances, J stages, g watched ticks.

    Attributes
    ----------
    system : WorkflowSystem
    queries : Queries
    clock : Clock
    until : int
        Only what happens strictly before this tick is run.
    finished : int64 array of shape (Q,)
        Tick at which each query ended; `NEVER`.
    instance : int64 array of shape (C,)
        Where each call was sent; -1 if it had not come yet.
    came, began, ended : int64 arrays of shape (C,)
        Ticks at which each call came to its instance, was first served there, and had its last token; `NEVER`.
    sent : int64 array of shape (J, M)
        Calls of each stage sent to each instance.
    busy : int64 array of shape (M,)
        Ticks below ``until`` in which each instance worked.
    watched : int64 array of shape (g,)
        Ticks, increasing.
    present : int64 array of shape (M, g)
        Calls at each instance then.
    work : float array of shape (M, g)
        Seconds that are truly left of the calls at each instance, each alone.
    """

    system: WorkflowSystem
    queries: Queries
    clock: Clock
    until: int
    finished: Ticks = attrs.field(converter=read_only)
    instance: Ticks = attrs.field(converter=read_only)
    came: Ticks = attrs.field(converter=read_only)
    began: Ticks = attrs.field(converter=read_only)
    ended: Ticks = attrs.field(converter=read_only)
    sent: Ticks = attrs.field(converter=read_only)
    busy: Ticks = attrs.field(converter=read_only)
    watched: Ticks = attrs.field(converter=read_only)
    present: Ticks = attrs.field(converter=read_only)
    work: Floats

    @property
    def responses(self) -> Floats:
        """Seconds from arrival to end of each query, shape (Q,); inf of those that had not ended."""
        seconds = (self.finished - self.queries.arrival) / self.clock.rate
        return np.where(self.finished == NEVER, np.inf, seconds)

    @property
    def deadlines(self) -> Floats:
        """Seconds that each query may take, shape (Q,); inf where its tenant has no SLO."""
        return np.array(self.system.deadlines)[self.queries.tenant]
