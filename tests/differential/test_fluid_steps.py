"""Exact fluid paths against a crude simulation: small steps, each station serving what it holds in its order."""

from fractions import Fraction

import numpy as np
import pytest
from fluid_networks import assert_is_path, random_lines, random_start

from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.fluid_path import FluidPath, fluid_path


def stepped(model: FluidModel, start: tuple[Fraction, ...], until: float, steps: int) -> np.ndarray:
    """The state after ``steps`` steps: arrivals first, then service by priority, then routing."""
    held = np.array([float(q) for q in start])
    step = until / steps
    comes = step * np.array([float(rate) for rate in model.arrival])
    mean = [float(each) for each in model.service]
    routing = np.zeros((len(held), len(held)))
    for k, row in enumerate(model.routing):
        for to, p in row:
            routing[k, to] = float(p)
    for _ in range(steps):
        held += comes
        gone = np.zeros(len(held))
        for order in model.priority:
            left = step
            for k in order or ():
                gone[k] = min(held[k], left / mean[k])
                left -= gone[k] * mean[k]
        held += gone @ routing - gone
    return held


def error(path: FluidPath, start: tuple[Fraction, ...], until: Fraction, steps: int) -> float:
    exact = np.array([float(q) for q in path.at(until)])
    return float(np.abs(stepped(path.model, start, float(until), steps) - exact).max())


@pytest.mark.parametrize(
    ("stations", "lengths", "seeds"), [(2, (2, 2), range(12)), (2, (4, 3), range(8)), (3, (3, 3, 3), range(8))]
)
def test_small_steps_come_to_the_exact_path(stations: int, lengths: tuple[int, ...], seeds: range) -> None:
    compared = 0
    for seed in seeds:
        model = random_lines(seed, stations=stations, lengths=lengths)
        start = random_start(seed, model)
        path = fluid_path(model, start, horizon=12)
        assert_is_path(path)
        if path.unique is not True:  # the steps may follow another solution
            continue
        compared += 1
        for until in (path.seconds / 3, path.seconds * Fraction(4, 5)):
            # in both of them each class runs ahead of or behind the fluid by some steps of one station's work
            assert error(path, start, until, 4000) < 8 * float(until) / 4000 / float(min(model.service))
    assert compared >= len(seeds) // 2
