"""All rates at an instant, found once more in floats: the solutions of a linear complementarity problem.

For an empty class either all that comes is passed or nothing of the station is left behind it and the classes above it;
for a class with fluid nothing is left. Every pattern of these is solved.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from fluid_networks import random_lines, random_start

from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.fluid_rates import fluid_rates


def complementary(model: FluidModel, state: tuple[Fraction, ...]) -> list[np.ndarray]:
    """Departures of every nonsingular pattern whose solution has no negative slack."""
    size = len(state)
    passing = np.eye(size)
    for k, row in enumerate(model.routing):
        for to, p in row:
            passing[to, k] -= float(p)
    using = np.zeros((size, size))
    for order in model.priority:
        for place, k in enumerate(order or ()):
            for above in (order or ())[: place + 1]:
                using[k, above] = float(model.service[above])
    arrival = np.array([float(rate) for rate in model.arrival])
    held = [bool(q) for q in state]
    found: list[np.ndarray] = []
    for full in product(*((True,) if each else (True, False) for each in held)):
        chosen = np.array(full)
        matrix = np.where(chosen[:, None], using, passing)
        if np.linalg.cond(matrix) > 1e10:
            continue
        rates = np.linalg.solve(matrix, np.where(chosen, 1.0, arrival))
        slack = np.concatenate([1 - using @ rates, np.where(held, 0, arrival - passing @ rates), rates])
        if slack.min() > -1e-9 and not any(np.allclose(rates, other) for other in found):
            found.append(rates)
    return found


@pytest.mark.parametrize("load", [Fraction(1, 2), Fraction(9, 10), Fraction(13, 10)])
@pytest.mark.parametrize(("stations", "lengths"), [(2, (2, 2)), (2, (4,)), (2, (3, 3)), (3, (3, 4))])
def test_every_solution_is_found_and_nothing_else(load: Fraction, stations: int, lengths: tuple[int, ...]) -> None:
    for seed in range(12):
        model = random_lines(seed, stations=stations, lengths=lengths, load=load)
        state = random_start(seed, model)
        exact = fluid_rates(model, tuple(not q for q in state))
        if exact.continuum:
            continue
        floats = sorted(complementary(model, state), key=list)
        ours = sorted((np.array([float(d) for d in each.departures]) for each in exact.solutions), key=list)
        assert len(floats) == len(ours)
        assert np.allclose(floats, ours)
        assert exact.unique is (len(ours) == 1)
