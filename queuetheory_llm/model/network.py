"""A network: classes of tasks on stations, external arrivals, routes, forks and joins.

A station is a batch engine for LLM calls, several such engines behind a dispatcher, or a classical single server. A
task of a class takes one service at the class's station and is then routed: to another class, to several at once (a
fork), or out. Siblings of a fork may be joined again. Prefill and decode on different engines are a tandem of two
classes, one without decode and one without prefill tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property

import attrs

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.exact.reading import decimal
from queuetheory_llm.model.arrivals import (
    Arrivals,
    ConstantInterval,
    DeterministicArrivals,
    IntervalLaw,
    PoissonArrivals,
    RenewalArrivals,
)
from queuetheory_llm.model.columns import listed, names, of_type, text, tuple_of
from queuetheory_llm.model.dispatch import LEAST_OUTSTANDING, STATION_RULES, TOKEN_QUEUE
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.join_faults import forks_of_joins
from queuetheory_llm.model.lengths import LengthLaw, to_law
from queuetheory_llm.model.network_faults import network_faults

#: Orders within a class at a batch engine, by the name of the rule that has it: which phase is served first.
FILLING = {"sarathi": "decode", "orca": "prefill"}


@attrs.frozen(kw_only=True)
class Station:
    """A place where tasks are served.

    Parameters
    ----------
    name : str
    engines : tuple of Engine
        Batch engines; empty for a classical single server.
    dispatch : {"random", "round-robin", "token-queue", "least-outstanding"}
        To which of several engines a task goes when it comes; turns are taken class by class.
    scheduler : {"sarathi", "orca"}
        Which phase is served first in a batch, decodes or prompts: within a class, and without priorities among all.
        Both fill their batches, which the theorems on networks ask for.
    priority : tuple of str, optional
        Classes from high to low: a batch is filled class by class; a classical server interrupts a lower class and
        resumes it later. Absent: first come, first served.
    """

    name: str = attrs.field(validator=text)
    engines: tuple[Engine, ...] = attrs.field(default=(), converter=listed, validator=tuple_of(Engine))
    dispatch: str = TOKEN_QUEUE
    scheduler: str = "sarathi"
    priority: tuple[str, ...] | None = attrs.field(
        default=None, converter=listed, validator=attrs.validators.optional(names)
    )

    def __attrs_post_init__(self) -> None:
        """Refuse words that are not known."""
        for key, word, known in (
            ("dispatch", self.dispatch, STATION_RULES),
            ("scheduler", self.scheduler, tuple(FILLING)),
        ):
            if word not in known:
                raise InvalidModel(f"{key}: {word!r} is not known for a station; write one of {', '.join(known)}")

    @property
    def classical(self) -> bool:
        """Whether it is a single server that serves one task at a time."""
        return not self.engines

    @property
    def tokens_per_s(self) -> Fraction | None:
        """Tokens per second that full batches serve while the dispatcher gives all engines work; None: classical.

        F = b_max/t(b_max). Engines that tasks join by the fewest tokens serve sum F_i together; those that they join by
        the fewest tasks serve no more, and nothing proves that much (`network_doubts`). Equal shares of every class
        load all n alike, and the slowest bounds them: n min F_i. A random choice gives them, and so do turns that are
        taken class by class: of the first N tasks of a class every engine gets N/n, up to less than one task, and a
        task draws its tokens from the law of its class whatever its turn, so that the tokens sent to an engine are the
        n-th part up to o(N). The fluid limit sees the equal split alone, for turns as for a random choice.
        """
        if self.classical:
            return None
        full = [engine.b_max / engine.batch_time.seconds(engine.b_max) for engine in self.engines]
        return sum(full, Fraction(0)) if self.dispatch in (TOKEN_QUEUE, LEAST_OUTSTANDING) else len(full) * min(full)

    @property
    def limited(self) -> bool:
        """Whether k_max can keep a batch from filling, so that `tokens_per_s` is no guarantee."""
        return any(engine.slots < engine.b_max for engine in self.engines)


@attrs.frozen(kw_only=True)
class TaskClass:
    """A class of tasks: LLM calls of (prefill, decode) tokens, or tasks with a classical service time.

    A call may draw 0 + 0 tokens; it then passes its station at once. (A request of a single engine is drawn again; in a
    network the means would no longer be those that are written down.)
    """

    name: str = attrs.field(validator=text)
    station: str = attrs.field(validator=text)
    prefill: LengthLaw | None = attrs.field(default=None, converter=attrs.converters.optional(to_law))
    decode: LengthLaw | None = attrs.field(default=None, converter=attrs.converters.optional(to_law))
    service: IntervalLaw | None = attrs.field(default=None, validator=attrs.validators.optional(of_type(IntervalLaw)))

    @property
    def mean_tokens(self) -> Fraction:
        """Mean prefill and decode tokens of a call; a float of a law without exact mean is taken as it is."""
        assert self.prefill is not None
        assert self.decode is not None
        return Fraction(self.prefill.mean) + Fraction(self.decode.mean)

    @property
    def exact(self) -> bool:
        """Whether the mean is exact."""
        if self.service is not None:
            return True
        return all(isinstance(law.mean, Fraction) for law in (self.prefill, self.decode) if law is not None)


@attrs.frozen(kw_only=True)
class ExternalArrivals:
    """Tasks of a class that come from outside."""

    task_class: str = attrs.field(validator=text)
    arrivals: Arrivals = attrs.field(validator=of_type(PoissonArrivals, DeterministicArrivals, RenewalArrivals))


def _share(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if not 0 < value <= 1:
        raise InvalidModel(f"{field.name}: {decimal(value)} is outside 0 < probability <= 1; leave a route of 0 out")


@attrs.frozen(kw_only=True)
class Route:
    """Where a task goes after its service: to one class, or to each of several (a fork), with a probability."""

    source: str = attrs.field(validator=text)
    to: tuple[str, ...] = attrs.field(converter=listed, validator=names)
    probability: Fraction = attrs.field(default=Fraction(1), converter=to_fraction, validator=_share)

    @property
    def is_fork(self) -> bool:
        """Whether one task becomes several."""
        return len(self.to) > 1


@attrs.frozen(kw_only=True)
class Join:
    """Siblings of one fork, each at the end of its branch in one of ``classes``, become one task of class ``to``."""

    classes: tuple[str, ...] = attrs.field(converter=listed, validator=names)
    to: str = attrs.field(validator=text)


@attrs.frozen(kw_only=True)
class Network:
    """A network of stations.

    Attributes
    ----------
    stations : tuple of Station
    classes : tuple of TaskClass
    arrivals : tuple of ExternalArrivals
    routes : tuple of Route
        What is left of 1 after the routes of a class leaves the network.
    joins : tuple of Join
    source : mapping of str to str
        Free text: title, url, section.
    name : str

    Raises
    ------
    InvalidModel
        One line a fault, ``KEY PATH: WHAT, and how to mend it``; all the faults there are. An entry of another type
        is refused alone, before the rest is looked at; so it is in the parts of a network.
    """

    stations: tuple[Station, ...] = attrs.field(converter=listed, validator=tuple_of(Station))
    classes: tuple[TaskClass, ...] = attrs.field(converter=listed, validator=tuple_of(TaskClass))
    arrivals: tuple[ExternalArrivals, ...] = attrs.field(converter=listed, validator=tuple_of(ExternalArrivals))
    routes: tuple[Route, ...] = attrs.field(default=(), converter=listed, validator=tuple_of(Route))
    joins: tuple[Join, ...] = attrs.field(default=(), converter=listed, validator=tuple_of(Join))
    source: Mapping[str, str] = attrs.field(factory=dict, validator=of_type(Mapping))
    name: str = attrs.field(default="network", validator=text)

    def __attrs_post_init__(self) -> None:
        """Check that the parts fit together."""
        faults = list(network_faults(self))
        if faults:
            raise InvalidModel(faults)

    @cached_property
    def fluid_model(self) -> FluidModel:
        """What its stability depends on.

        m_k of a call is its mean tokens over the tokens per second of the full batches of its station.
        """
        place = {station.name: s for s, station in enumerate(self.stations)}
        number = {each.name: k for k, each in enumerate(self.classes)}
        rates = [Fraction(0)] * len(self.classes)
        for come in self.arrivals:
            rates[number[come.task_class]] += come.arrivals.rate
        rows: list[dict[int, Fraction]] = [{} for _ in self.classes]
        for source, to, share in self._flows():
            row = rows[number[source]]
            row[number[to]] = row.get(number[to], Fraction(0)) + share
        return FluidModel(
            stations=tuple(place),
            classes=tuple(number),
            station=tuple(place[each.station] for each in self.classes),
            arrival=tuple(rates),
            service=tuple(self.mean_service(each) for each in self.classes),
            routing=tuple(tuple(row.items()) for row in rows),
            priority=tuple(
                None if station.priority is None else tuple(number[name] for name in station.priority)
                for station in self.stations
            ),
            preemptive=tuple(station.classical for station in self.stations),
            density=tuple(
                each.service is not None and not isinstance(each.service, ConstantInterval) for each in self.classes
            ),
            joins=tuple((tuple(number[name] for name in join.classes), number[join.to]) for join in self.joins),
            forks=tuple(
                (number[route.source], tuple(number[name] for name in starts)) for route, starts in forks_of_joins(self)
            ),
        )

    def mean_service(self, each: TaskClass) -> Fraction:
        """m_k: mean seconds of its station that a task takes."""
        rate = self.station_of(each).tokens_per_s
        if rate is None:
            assert each.service is not None
            return each.service.mean
        return each.mean_tokens / rate

    def station_of(self, each: TaskClass) -> Station:
        """The station of a class."""
        return self._stations_by_name[each.station]

    @cached_property
    def _stations_by_name(self) -> dict[str, Station]:
        return {station.name: station for station in self.stations}

    def scaled(self, factor: Fraction) -> Network:
        """The network with every arrival process run ``factor`` > 0 times as fast."""
        come = tuple(
            attrs.evolve(each, arrivals=each.arrivals.with_rate(each.arrivals.rate * factor)) for each in self.arrivals
        )
        return attrs.evolve(self, arrivals=come)

    def _flows(self) -> Iterator[tuple[str, str, Fraction]]:
        """(from, to, mean number of tasks): a join of n takes one task for every n siblings."""
        for route in self.routes:
            for to in route.to:
                yield route.source, to, route.probability
        for join in self.joins:
            for name in join.classes:
                yield name, join.to, Fraction(1, len(join.classes))
