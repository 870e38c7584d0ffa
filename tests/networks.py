"""Networks for tests: random ones with everything a network may have, and small ones that are known in closed form."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np

from queuetheory_llm.model.arrivals import (
    ConstantInterval,
    DeterministicArrivals,
    ExponentialInterval,
    GammaInterval,
    PoissonArrivals,
    RenewalArrivals,
    UniformInterval,
)
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.dispatch import STATION_RULES
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Geometric, Poisson, Uniform
from queuetheory_llm.model.network import FILLING, ExternalArrivals, Join, Network, Route, Station, TaskClass


def exponential(mean):
    return ExponentialInterval(mean=mean)


def poisson(rate):
    return PoissonArrivals(rate=rate)


def classical(classes, arrivals, routes=(), joins=(), priority=None):
    """A network of classical servers: {class: (station, law)}, {class: process}, [(from, to, probability)]."""
    stations = dict.fromkeys(station for station, _ in classes.values())
    return Network(
        stations=tuple(Station(name=name, priority=(priority or {}).get(name)) for name in stations),
        classes=tuple(TaskClass(name=name, station=at, service=law) for name, (at, law) in classes.items()),
        arrivals=tuple(ExternalArrivals(task_class=name, arrivals=come) for name, come in arrivals.items()),
        routes=tuple(
            Route(source=source, to=to if isinstance(to, tuple) else (to,), probability=share)
            for source, to, share in routes
        ),
        joins=joins,
    )


def some_network(seed: int) -> Network:
    """Classical servers and engines, every order and dispatcher, loops, forks in forks and their joins.

    Half of them have whole times only, so that much happens at one instant.
    """
    draw = random.Random(seed)
    whole = draw.random() < 0.5
    stations = [_some_station(draw, f"s{s}", whole) for s in range(draw.randint(1, 4))]
    trunk = [f"c{k}" for k in range(draw.randint(1, 4))]
    routes, joins, names = [], [], list(trunk)
    for index, name in enumerate(trunk):
        follow = trunk[index + 1] if index + 1 < len(trunk) else None
        if draw.random() < 0.4:
            _fork(draw, name, names, routes, joins, depth=0, joined=follow if draw.random() < 0.7 else None)
        elif follow is not None:
            routes.append(Route(source=name, to=(follow,), probability=draw.choice(["1", "3/4", "1/3"])))
            if draw.random() < 0.4:  # back, to itself too
                routes.append(Route(source=name, to=(draw.choice(trunk[: index + 1]),), probability="1/4"))
                routes[-2] = Route(source=name, to=(follow,), probability="1/2")
    classes = [_some_class(draw, name, draw.choice(stations), whole) for name in names]
    stations = [_with_order(draw, station, classes) for station in stations]
    return Network(
        stations=tuple(stations),
        classes=tuple(classes),
        arrivals=tuple(
            ExternalArrivals(task_class=draw.choice(trunk), arrivals=_some_process(draw, whole))
            for _ in range(draw.randint(1, 3))
        ),
        routes=tuple(routes),
        joins=tuple(joins),
    )


def _fork(draw, source, names, routes, joins, depth, joined):
    """A fork of ``source`` whose branches are joined into ``joined``, or leave; a branch may fork and join itself."""
    heads, tails = [], []
    for _ in range(draw.randint(2, 3)):
        head = f"b{len(names)}"
        names.append(head)
        heads.append(head)
        tail = head
        if draw.random() < 0.5:
            tail = f"b{len(names)}"
            names.append(tail)
            if depth < 2 and draw.random() < 0.5:
                _fork(draw, head, names, routes, joins, depth + 1, tail)
            else:
                routes.append(Route(source=head, to=(tail,), probability="1/2"))
                routes.append(Route(source=head, to=(head,), probability="1/2"))
        tails.append(tail)
    routes.append(Route(source=source, to=tuple(heads)))
    if joined is not None:
        joins.append(Join(classes=tuple(tails), to=joined))


def _some_station(draw, name, whole):
    if draw.random() < 0.5:
        return Station(name=name)
    engines = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        b_max = draw.choice([1, 2, 5, 12])
        law = draw.choice(
            [
                Table(tokens=[b_max], seconds_at=[1]),
                Staircase(c=1, a=1, b0=4),
                Hinge(c=Fraction(1, 3), a=Fraction(1, 7), b0=3),
            ][: 2 if whole else 3]
        )
        engines.append(Engine(batch_time=law, b_max=b_max, k_max=draw.choice([None, None, 1, 3])))
    return Station(
        name=name,
        engines=tuple(engines),
        dispatch=draw.choice(STATION_RULES),
        scheduler=draw.choice(list(FILLING)),
    )


def _some_class(draw, name, station, whole):
    if station.classical:
        constant = ConstantInterval(mean=draw.randint(1, 3))
        others = [exponential("0.7 s"), UniformInterval(low=0, high=2), GammaInterval(mean=1, cv=2)]
        return TaskClass(
            name=name, station=station.name, service=constant if whole else draw.choice([constant, *others])
        )
    prefill = draw.choice([Constant(0), Constant(3), Uniform(low=0, high=8), Poisson(mean=4)])
    decode = draw.choice([Constant(2), Uniform(low=0, high=3), Geometric(mean=3)])
    return TaskClass(name=name, station=station.name, prefill=prefill, decode=decode)


def _with_order(draw, station, classes):
    import attrs

    here = [each.name for each in classes if each.station == station.name]
    if not here or draw.random() < 0.4:
        return station
    return attrs.evolve(station, priority=tuple(draw.sample(here, len(here))))


def _some_process(draw, whole):
    mean = draw.choice([2, 4, 9])
    fixed = [
        DeterministicArrivals(interval=mean),
        DeterministicArrivals(interval=2 * mean),
        RenewalArrivals(interval=ConstantInterval(mean=mean)),
    ]
    return draw.choice(
        fixed
        if whole
        else [*fixed, poisson(Fraction(1, mean)), RenewalArrivals(interval=GammaInterval(mean=mean, cv=2))]
    )


def some_start(network: Network, seed: int) -> dict[str, int]:
    """Tasks at classes that come before any fork."""
    rng = np.random.default_rng(seed)
    return {each.name: int(rng.integers(0, 30)) for each in network.classes if each.name.startswith("c")}
