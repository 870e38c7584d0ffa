"""Random priority networks, and an independent check that a path obeys the equations of the fluid model."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import attrs

from queuetheory_llm.model.fluid_model import FluidModel, Row
from queuetheory_llm.stability.dominant_turn import DominantTurn
from queuetheory_llm.stability.fluid_path import FluidPath
from queuetheory_llm.stability.self_similar import Breakpoint


def random_lines(seed: int, *, stations: int, lengths: tuple[int, ...], load: Fraction = Fraction(9, 10)) -> FluidModel:
    """Routes of the given lengths through random stations, in random orders of service, every station equally loaded.

    Some of them grow although no station is overloaded, and some empty in infinitely many turns.
    """
    draw = random.Random(seed)
    place: list[int] = []
    arrival: list[Fraction] = []
    routing: list[Row] = []
    for length in lengths:
        for step in range(length):
            last = place[-1] if step else -1
            place.append(draw.choice([s for s in range(stations) if s != last]))
            arrival.append(Fraction(not step))
            share = Fraction(draw.choice((8, 10, 10)), 10)
            routing.append(((len(place), share),) if step < length - 1 else ())
    size = len(place)
    rates = list(arrival)
    for k, row in enumerate(routing):
        for to, share in row:
            rates[to] += share * rates[k]
    weight = [Fraction(draw.choice((1, 1, 2, 6, 8, 12))) for _ in range(size)]
    demand = [sum(weight[k] * rates[k] for k in range(size) if place[k] == s) for s in range(stations)]
    orders = [[k for k in range(size) if place[k] == s] for s in range(stations)]
    for order in orders:
        draw.shuffle(order)
    return FluidModel(
        stations=tuple(f"s{s}" for s in range(stations)),
        classes=tuple(f"c{k}" for k in range(size)),
        station=tuple(place),
        arrival=tuple(arrival),
        service=tuple(weight[k] * load / demand[place[k]] for k in range(size)),
        routing=tuple(routing),
        priority=tuple(map(tuple, orders)),
        preemptive=(True,) * stations,
    )


def random_start(seed: int, model: FluidModel) -> tuple[Fraction, ...]:
    """Fluid in one to three classes."""
    draw = random.Random(seed)
    held = draw.sample(range(len(model.classes)), draw.randint(1, 3))
    return tuple(Fraction(draw.randint(1, 6), 3) if k in held else Fraction(0) for k in range(len(model.classes)))


def assert_is_path(path: FluidPath) -> None:
    """Balance, capacity, priority, non-idling on every leg; two further copies of every turn that accumulates."""
    gaps = {each.turn.last: each for each in path.accumulations}
    for i, (point, after) in enumerate(pairwise(path.breakpoints)):
        if i not in gaps:
            assert_is_leg(path.model, point, after)
            continue
        turn = gaps[i].turn
        assert point.closing == turn.factor < 1
        assert (after.time, after.state) == (turn.apex_time, turn.apex)
        if isinstance(turn, DominantTurn):
            assert_comes_near(path, i)
            continue
        copies = list(path.breakpoints[turn.first : turn.last + 1])
        for _ in range(2):
            moved = [turn.copy_point(each) for each in copies]
            assert (moved[0].time, moved[0].state) == (copies[-1].time, copies[-1].state)
            for one, other in pairwise(moved):
                if one.closing is None:
                    assert_is_leg(path.model, one, other)
            copies = moved
        assert after.time == turn.start + turn.seconds / (1 - turn.factor)
        begin, end = path.breakpoints[turn.first].state, path.breakpoints[turn.last].state
        if turn.order == 1:
            limit = tuple(a + (b - a) / (1 - turn.factor) for a, b in zip(begin, end, strict=True))
            assert after.state == limit


def assert_comes_near(path: FluidPath, i: int) -> None:
    """The legs of the turn, followed one after another from breakpoint ``i``, come near the limit, not beyond it."""
    turn, limit = (
        path.accumulations[[each.turn.last for each in path.accumulations].index(i)].turn,
        path.breakpoints[i + 1],
    )
    legs = path.breakpoints[turn.first : turn.last]
    time, state = path.breakpoints[i].time, path.breakpoints[i].state
    if any(leg.closing is not None for leg in legs):
        return
    left = limit.time - time
    for _ in range(12):
        for leg in legs:
            slopes = leg.rates.slopes
            seconds = min(-q / slope for q, slope in zip(state, slopes, strict=True) if slope < 0)
            moved = tuple(q + slope * seconds for q, slope in zip(state, slopes, strict=True))
            assert_is_leg(
                path.model,
                attrs.evolve(leg, time=time, state=state),
                attrs.evolve(leg, time=time + seconds, state=moved),
            )
            time, state = time + seconds, moved
    assert 0 < limit.time - time < left / 2
    assert max(abs(a - b) for a, b in zip(state, limit.state, strict=True)) < left


def assert_is_leg(model: FluidModel, point: Breakpoint, after: Breakpoint) -> None:
    """The equations of the fluid model from one breakpoint to the next."""
    seconds = after.time - point.time
    assert seconds > 0
    efforts = point.rates.efforts
    gone = [effort / mean for effort, mean in zip(efforts, model.service, strict=True)]
    assert tuple(gone) == point.rates.departures
    for k, (before, now) in enumerate(zip(point.state, after.state, strict=True)):
        come = model.arrival[k] + sum(gone[j] * p for j, row in enumerate(model.routing) for to, p in row if to == k)
        assert now == before + (come - gone[k]) * seconds
        assert now >= 0
        assert efforts[k] >= 0
    for s, order in enumerate(model.priority):
        used = Fraction(0)
        for k in order if order is not None else model.at(s):
            used += efforts[k]
            if point.state[k] + after.state[k] > 0:
                assert used == 1
        assert used <= 1
