"""Fluid models of the textbooks, and random ones, for tests."""

from __future__ import annotations

import random
from fractions import Fraction

from queuetheory_llm.model.fluid_model import FluidModel

Route = tuple[int, int, Fraction | int]


def fluid_model(
    station: list[int],
    arrival: list[Fraction | int],
    service: list[Fraction],
    routes: list[Route],
    priority: list[tuple[int, ...]] | None = None,
) -> FluidModel:
    """Classes k0, k1, ... on stations s0, s1, ...; classical preemptive priorities, or none."""
    stations, classes = max(station) + 1, len(station)
    rows: list[list[tuple[int, Fraction]]] = [[] for _ in range(classes)]
    for source, to, share in routes:
        rows[source].append((to, Fraction(share)))
    return FluidModel(
        stations=tuple(f"s{s}" for s in range(stations)),
        classes=tuple(f"k{k}" for k in range(classes)),
        station=tuple(station),
        arrival=tuple(map(Fraction, arrival)),
        service=tuple(service),
        routing=tuple(map(tuple, rows)),
        priority=(None,) * stations if priority is None else tuple(priority),
        preemptive=(True,) * stations,
        density=(True,) * classes,
    )


def tenths(*values: int) -> list[Fraction]:
    return [Fraction(value, 10) for value in values]


EXIT, ENTRY = [(3, 0), (1, 2)], [(0, 3), (2, 1)]


def rybko_stolyar(service: list[Fraction], priority: list[tuple[int, ...]] | None = EXIT) -> FluidModel:
    """A1 at s0, A2 at s1; B1 at s1, B2 at s0; a task a second on each route."""
    return fluid_model([0, 1, 1, 0], [1, 0, 1, 0], service, [(0, 1, 1), (2, 3, 1)], priority)


LU_KUMAR, FIRST_BUFFER, LAST_BUFFER = [(3, 0), (1, 2)], [(0, 3), (1, 2)], [(3, 0), (2, 1)]


def lu_kumar(service: list[Fraction], priority: list[tuple[int, ...]] | None = LU_KUMAR) -> FluidModel:
    """A line s0, s1, s1, s0; one task a second."""
    return fluid_model([0, 1, 1, 0], [1, 0, 0, 0], service, [(0, 1, 1), (1, 2, 1), (2, 3, 1)], priority)


def third_station(lead: Fraction) -> FluidModel:
    """Rybko-Stolyar, and a third station that every A task passes at last, for ``lead`` seconds."""
    service = [*tenths(1, 6, 1, 6), lead]
    return fluid_model([0, 1, 1, 0, 2], [1, 0, 1, 0, 0], service, [(0, 1, 1), (2, 3, 1), (1, 4, 1)], [*EXIT, (4,)])


def random_network(seed: int, *, stations: int = 3, classes: int = 6, feed_forward: bool = False) -> FluidModel:
    """Tasks arrive at some classes, move on with probability below 1 to random ones, under random priorities."""
    draw = random.Random(seed)
    station = [*range(stations), *(draw.randrange(stations) for _ in range(classes - stations))]
    if feed_forward:
        station.sort()
    routes: list[Route] = []
    for k in range(classes):
        later = [to for to in range(classes) if to != k and (not feed_forward or to > k)]
        chosen = draw.sample(later, min(len(later), draw.choice([0, 1, 1, 2])))
        routes += [(k, to, Fraction(draw.randint(1, 4), 5 * len(chosen))) for to in chosen]
    arrival = [draw.choice([0, 1, 2]) for _ in range(classes)]
    arrival[0] += not any(arrival)
    priority = []
    for s in range(stations):
        here = [k for k in range(classes) if station[k] == s]
        draw.shuffle(here)
        priority.append(tuple(here))
    return fluid_model(station, arrival, [Fraction(draw.randint(1, 20), 20) for _ in station], routes, priority)


def random_lines(seed: int, *, classes: int = 7, stations: int = 2) -> FluidModel:
    """Two routes that wander among the stations, under random priorities: virtual stations are frequent."""
    draw = random.Random(seed)
    station = [*range(stations), *(draw.randrange(stations) for _ in range(classes - stations))]
    draw.shuffle(station)
    second = draw.randint(1, classes - 1)
    routes: list[Route] = [(k, k + 1, 1) for k in range(classes - 1) if k + 1 != second]
    arrival = [int(k in (0, second)) for k in range(classes)]
    orders = [[k for k in range(classes) if station[k] == s] for s in range(stations)]
    for order in orders:
        draw.shuffle(order)
    service = [Fraction(draw.randint(1, 20), 20) for _ in station]
    return fluid_model(station, arrival, service, routes, list(map(tuple, orders)))


def loads(model: FluidModel) -> list[Fraction]:
    """rho of every station, by elimination on lambda = alpha + P' lambda."""
    size = len(model.classes)
    rows = [[Fraction(i == j) for j in range(size)] + [model.arrival[i]] for i in range(size)]
    for k, row in enumerate(model.routing):
        for to, p in row:
            rows[to][k] -= p
    for i in range(size):
        pivot = next(j for j in range(i, size) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(size):
            if j != i and rows[j][i]:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [sum((rows[k][-1] * model.service[k] for k in model.at(s)), Fraction(0)) for s in range(len(model.stations))]
