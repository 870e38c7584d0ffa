"""A workflow on a cluster under a static split, as a network of stations: every tool of networks then applies.

Each single instance is a station, first come, first served. Each stage has a class at every instance that gets a share
of its calls, and a call goes to one of them at random, independently of everything else. That is what *differs* from
other rules: turns have the same long-run shares and the same fluid limit, but smoother arrivals; rules that look at
queues have no fixed shares at all, and no such network.

Series, stages that are left out and retries are routes. Parallel stages, and the parallel calls of a stage, are
branches of a fork with classes of their own; calls in random number are a fork of each size with its probability. A
fork of a network starts from one class, a branch begins and ends in one, and a join leads to one, so that where several
instances can be next a *hop* stands between: a station of its own with one class and a constant service of a
microsecond, which no theorem minds and which no other task uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import attrs

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import Number, to_fraction
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.arrivals import ConstantInterval, PoissonArrivals
from queuetheory_llm.model.cluster import Instance, WorkflowSystem, require_cluster
from queuetheory_llm.model.network import ExternalArrivals, Join, Network, Route, Station, TaskClass
from queuetheory_llm.model.workflow import Stage
from queuetheory_llm.model.workflow_plan import Plan

#: Seconds of a hop.
HOP = Fraction(1, 10**6)
#: Classes of a network that is still looked at.
MOST_CLASSES = 5000

_ONE = Fraction(1)
#: Where a query goes next: probability of each class; None: it has passed the part at once.
_Next = Mapping[str | None, Fraction]


def workflow_network(
    system: WorkflowSystem, split: Sequence[Sequence[Number]] | None = None, rate: Number | None = None
) -> Network:
    """The network of a workflow whose calls are split over the instances at random.

    Parameters
    ----------
    system : WorkflowSystem
    split : sequence of sequences of numbers, shape (J, M), optional
        The share of each stage's calls that each single instance gets; rows sum to 1. Absent: equal shares for the
        instances that serve the stage. `ClusterCapacity.shares` is the best one.
    rate : number, optional
        Queries per second in the place of those of the system.

    Raises
    ------
    InvalidInput
        If the split does not fit: one line a fault.
    InvalidModel
        If an instance or a number of calls has no place in a network: one line a fault, with what to use instead.

    Examples
    --------
    >>> from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
    >>> from queuetheory_llm.model.workflow import Retry, Stage, Workflow
    >>> write = Stage(name="write", work=ExponentialInterval(mean="250 ms"))
    >>> loop = Workflow(stages=[write], retries=[Retry(source="write", to="write", probability="1/2")])
    >>> servers = [Instance(name="fast", speed=2), Instance(name="slow", speed=1)]
    >>> network = workflow_network(WorkflowSystem(workflow=loop, instances=servers), [["2/3", "1/3"]])
    >>> [(each.name, str(network.mean_service(each))) for each in network.classes]
    [('write @ fast', '1/8'), ('write @ slow', '1/4')]
    """
    shares = _shares(require_cluster(system), split)
    sizes = {stage.name: stage.calls.atoms() for stage in system.workflow.stages}
    faults = list(_faults(system, shares, sizes))
    if faults:
        raise InvalidModel(faults)
    come = system.arrivals if rate is None else system.arrivals.with_rate(to_fraction(rate))
    made = _Making(system=system, shares=shares, sizes={name: found for name, found in sizes.items() if found})
    enter = made.part(system.workflow.plan).enter
    if not isinstance(come, PoissonArrivals) and set(enter.values()) != {_ONE}:
        enter = {made.hop("arrivals", enter): _ONE}
    arrivals = [
        ExternalArrivals(task_class=to, arrivals=come if share == 1 else come.with_rate(come.rate * share))
        for to, share in enter.items()
        if to is not None
    ]
    used = {each.station for each in made.classes}
    units = [_station(system, unit) for unit in range(len(system.units)) if system.unit_names[unit] in used]
    return Network(
        stations=[*units, *made.hops],
        classes=made.classes,
        arrivals=arrivals,
        routes=list(made.routes()),
        joins=made.joins,
        source=system.source,
        name=system.name,
    )


def _shares(system: WorkflowSystem, split: Sequence[Sequence[Number]] | None) -> Sequence[Sequence[Fraction]]:
    if split is None:
        return system.even_shares
    if isinstance(split, str) or not isinstance(split, Iterable) or not all(isinstance(row, Iterable) for row in split):
        raise InvalidInput(f"split: {shown(split)} is no table; give a row a stage with an entry an instance")
    shares = [[to_fraction(share) for share in row] for row in split]
    faults = list(_split_faults(system, shares))
    if faults:
        raise InvalidInput(faults)
    return shares


def _split_faults(system: WorkflowSystem, shares: Sequence[Sequence[Fraction]]) -> Iterator[str]:
    stages, units = system.workflow.stages, system.unit_names
    if [len(row) for row in shares] != [len(units)] * len(stages):
        yield f"split: is no table of {len(stages)} rows, a stage each, with {len(units)} entries, an instance each"
        return
    for stage, row, served in zip(stages, shares, system.unit_seconds, strict=True):
        if min(row) < 0 or sum(row) != 1:
            yield f"split: the shares of {stage.name!r} sum to {float(sum(row)):g}; give shares from 0 on that sum to 1"
        for name, share, seconds in zip(units, row, served, strict=True):
            if share > 0 and seconds is None:
                yield f"split: {name!r} does not serve {stage.name!r}; give it no share"


def _faults(
    system: WorkflowSystem,
    shares: Sequence[Sequence[Fraction]],
    sizes: Mapping[str, Sequence[tuple[int, Fraction]] | None],
) -> Iterator[str]:
    """What a network cannot say."""
    classes = 0
    for j, stage in enumerate(system.workflow.stages):
        found = sizes[stage.name]
        if found is None:
            yield f"stage[{j}].calls: is of no law with known chances of each size; use an empirical or a uniform one"
            continue
        classes += sum(n for n, _ in found) * (sum(map(bool, shares[j])) + 2)
    if classes > MOST_CLASSES:
        yield f"stage: makes more than {MOST_CLASSES} classes, one a branch and instance; use fewer calls at once"
    for kind, each in enumerate(system.instances):
        sent = [
            stage
            for stage, row in zip(system.workflow.stages, shares, strict=True)
            if any(share for share, at in zip(row, system.units, strict=True) if at == kind)
        ]
        yield from _no_station(f"instance[{kind}]", each, sent)


def _no_station(where: str, each: Instance, sent: Iterable[Stage]) -> Iterator[str]:
    if each.latency is None:
        return
    if each.seats != 1:
        yield (
            f"{where}: an isolated-latency instance that serves several calls at once is no station of a network; "
            "use qt-llm dispatch, or give it seats = 1, an engine or a speed"
        )
        return
    for stage in sent:
        seconds = _constant_seconds(each, stage)
        if seconds is None:
            yield f"{where}: a station has no law for the seconds of {stage.name!r}; give constant lengths or an engine"
        elif seconds == 0:
            yield f"{where}: {stage.name!r} takes no time there, and a task of a network takes some; change its law"


def _constant_seconds(each: Instance, stage: Stage) -> Fraction | None:
    """Seconds of a call of constant lengths that is alone; None where they are random."""
    assert stage.prefill is not None
    assert stage.decode is not None
    prefill, decode = stage.prefill.constant, stage.decode.constant
    if prefill is None or decode is None:
        return None
    steps = decode * each.decode_step
    return max(Fraction(0), each.law(stage).seconds(prefill, decode) - steps) + steps


def _station(system: WorkflowSystem, unit: int) -> Station:
    each = system.instances[system.units[unit]]
    return Station(name=system.unit_names[unit], engines=() if each.engine is None else (each.engine,))


@attrs.frozen
class _Part:
    """A part of the plan in the network.

    Attributes
    ----------
    enter : mapping
        Where a query goes that comes to it.
    leave : mapping of str to Fraction
        Of each class, the probability with which its tasks leave the part.
    """

    enter: _Next
    leave: Mapping[str, Fraction]


@attrs.define
class _Making:
    """A network that grows part by part."""

    system: WorkflowSystem
    shares: Sequence[Sequence[Fraction]]
    sizes: Mapping[str, Sequence[tuple[int, Fraction]]]
    classes: list[TaskClass] = attrs.field(factory=list)
    hops: list[Station] = attrs.field(factory=list)
    joins: list[Join] = attrs.field(factory=list)
    forks: list[Route] = attrs.field(factory=list)
    ways: dict[str, dict[str, Fraction]] = attrs.field(factory=dict)

    def part(self, plan: Plan) -> _Part:
        """Classes and routes of a part; those out of it are left to whoever knows what follows."""
        if plan.kind == "series":
            return self._series([self.part(each) for each in plan.parts])
        if plan.kind == "parallel":
            return self._forked([([self.part(each) for each in plan.parts], _ONE)])
        if plan.kind == "loop":
            body = self.part(plan.parts[0])
            leave = self._connected(body.leave, {**_times(body.enter, plan.again), None: 1 - plan.again})
            return _Part(_perhaps(body.enter, plan.chance), leave)
        assert plan.stage is not None
        found = self._stage(plan.stage)
        return _Part(_perhaps(found.enter, plan.chance), found.leave)

    def _series(self, parts: Sequence[_Part]) -> _Part:
        """One after the other; what passes a part at once comes to the next."""
        enter, leave = parts[0].enter, parts[0].leave
        for each in parts[1:]:
            leave = {**self._connected(leave, each.enter), **each.leave}
            passed = enter.get(None, Fraction(0))
            enter = _sum({to: p for to, p in enter.items() if to is not None}, _times(each.enter, passed))
        return _Part(enter, leave)

    def _stage(self, stage: int) -> _Part:
        """The calls of a stage: one, or a fork of each number of them."""
        sizes = self.sizes[self.system.workflow.stages[stage].name]
        if [n for n, _ in sizes] == [1]:
            return self._call(stage, "")
        return self._forked([([self._call(stage, f" {i + 1}/{n}") for i in range(n)], chance) for n, chance in sizes])

    def _call(self, number: int, copy: str) -> _Part:
        """A class for each instance that gets a share."""
        stage, enter = self.system.workflow.stages[number], dict[str | None, Fraction]()
        for unit, share in enumerate(self.shares[number]):
            if share:
                name = f"{stage.name}{copy} @ {self.system.unit_names[unit]}"
                self.classes.append(self._class(name, stage, unit))
                enter[name] = share
        return _Part(enter, {name: _ONE for name in enter if name is not None})

    def _class(self, name: str, stage: Stage, unit: int) -> TaskClass:
        station, each = self.system.unit_names[unit], self.system.instances[self.system.units[unit]]
        if each.engine is not None:
            return TaskClass(name=name, station=station, prefill=stage.prefill, decode=stage.decode)
        if each.speed is not None:
            assert stage.work is not None
            return TaskClass(name=name, station=station, service=stage.work.scaled(1 / each.speed))
        seconds = _constant_seconds(each, stage)
        assert seconds is not None
        return TaskClass(name=name, station=station, service=ConstantInterval(mean=seconds))

    def _forked(self, choices: Sequence[tuple[Sequence[_Part], Fraction]]) -> _Part:
        """With each probability the branches of one list at once; a single branch is no fork."""
        number = 1 + sum(each.name.startswith("fork ") for each in self.hops)
        fork, after = self.hop(f"fork {number}", {}), self.hop(f"join {number}", {})
        leave: dict[str, Fraction] = {after: _ONE}
        for branches, chance in choices:
            if len(branches) == 1:
                self.ways[fork] = _named(_sum(self.ways[fork], _times(branches[0].enter, chance)))
                leave |= branches[0].leave
                continue
            ends = [self._branch(each, f"{number}, {i + 1}/{len(branches)}") for i, each in enumerate(branches)]
            self.forks.append(Route(source=fork, to=[start for start, _ in ends], probability=chance))
            self.joins.append(Join(classes=[end for _, end in ends], to=after))
        return _Part({fork: _ONE}, leave)

    def _branch(self, part: _Part, where: str) -> tuple[str, str]:
        """The classes in which a branch begins and ends; of a single class that is both."""
        if len(part.enter) == 1 and part.leave == part.enter:
            (only,) = part.leave
            return only, only
        end = self.hop(f"end {where}", {})
        self._connected(part.leave, {end: _ONE})
        enter: dict[str | None, Fraction] = {end if to is None else to: p for to, p in part.enter.items()}
        starts = _named(enter)
        return next(iter(starts)) if len(starts) == 1 else self.hop(f"begin {where}", enter), end

    def hop(self, name: str, following: _Next) -> str:
        """A station of its own with one class."""
        self.hops.append(Station(name=name))
        self.classes.append(TaskClass(name=name, station=name, service=ConstantInterval(mean=HOP)))
        self.ways[name] = _named(following)
        return name

    def _connected(self, leave: Mapping[str, Fraction], following: _Next) -> dict[str, Fraction]:
        """Routes from what leaves to what follows; returns what leaves still, as what follows may be passed at once."""
        for name, chance in leave.items():
            self.ways[name] = _named(_sum(self.ways.get(name, {}), _times(following, chance)))
        passed = following.get(None, Fraction(0))
        return {name: chance * passed for name, chance in leave.items()} if passed else {}

    def routes(self) -> Iterator[Route]:
        """All of them."""
        yield from self.forks
        for source, row in self.ways.items():
            for to, probability in row.items():
                yield Route(source=source, to=[to], probability=probability)


def _times(row: _Next, factor: Fraction) -> dict[str | None, Fraction]:
    return {to: p * factor for to, p in row.items() if p * factor}


def _sum(first: Mapping[str, Fraction] | _Next, second: _Next) -> dict[str | None, Fraction]:
    found: dict[str | None, Fraction] = {}
    for to, p in (*first.items(), *second.items()):
        found[to] = found.get(to, Fraction(0)) + p
    return found


def _perhaps(row: _Next, chance: Fraction) -> dict[str | None, Fraction]:
    """Entered with a chance, else passed at once."""
    return dict(row) if chance == 1 else _sum(_times(row, chance), {None: 1 - chance})


def _named(row: _Next) -> dict[str, Fraction]:
    """Without what leaves."""
    return {to: p for to, p in row.items() if to is not None}
