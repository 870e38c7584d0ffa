"""A plain simulator of first come, first served networks of many small tasks, all of it deterministic."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count

import numpy as np

from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.rate_profile import RateProfile


def simulated_states(
    model: FluidModel, start: list[float], times: np.ndarray, scale: int, profile: RateProfile | None = None
) -> np.ndarray:
    """Tasks of each class over ``scale`` at some times: ``scale`` tasks for one, each ``scale`` times as short.

    Routes are certain. Arrivals come at even steps of the cumulative rate, initial queues are evenly mixed.
    """
    service = [float(mean) / scale for mean in model.service]
    after = [row[0][0] if row else None for row in model.routing]
    number = count()
    events = [
        (time, next(number), None, k)
        for k, rate in enumerate(model.arrival)
        if rate
        for time in _arrival_times(float(rate) * scale, float(times[-1]), profile)
    ]
    heapq.heapify(events)
    queues = [_mixed(model, start, scale, s) for s in range(len(model.stations))]
    busy = [False] * len(queues)
    present = np.array([round(tasks * scale) for tasks in start], dtype=float)
    found: list[np.ndarray] = []

    def begin(station: int, now: float) -> None:
        if queues[station] and not busy[station]:
            busy[station] = True
            k = queues[station].popleft()
            heapq.heappush(events, (now + service[k], next(number), station, k))

    def join(k: int, now: float) -> None:
        present[k] += 1
        queues[model.station[k]].append(k)
        begin(model.station[k], now)

    for station in range(len(queues)):
        begin(station, 0.0)
    while len(found) < len(times):
        now, _, station, k = heapq.heappop(events) if events else (np.inf, 0, None, 0)
        while len(found) < len(times) and times[len(found)] < now:
            found.append(present / scale)
        if now == np.inf:
            break
        if station is None:
            join(k, now)
            continue
        busy[station] = False
        present[k] -= 1
        if after[k] is not None:
            join(after[k], now)
        begin(station, now)
    return np.array(found)


def _arrival_times(rate: float, horizon: float, profile: RateProfile | None) -> np.ndarray:
    grid = np.linspace(0, horizon, 4001)
    area = grid if profile is None else np.array([float(profile.area(time)) for time in grid])
    return np.interp(np.arange(0.5, area[-1] * rate), area * rate, grid)


def _mixed(model: FluidModel, start: list[float], scale: int, station: int) -> deque[int]:
    places = []
    for k in model.at(station):
        tasks = round(start[k] * scale)
        places += [((i + 0.5) / tasks, k) for i in range(tasks)]
    return deque(k for _, k in sorted(places))
