"""Scaled runs of the Rybko-Stolyar network come to its exact fluid path, at the rate of a central limit theorem."""

import json
import math
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

_SCRIPT = Path(__file__).parents[2] / "experiments" / "fluid_limit" / "run.py"
_SPEC = spec_from_file_location("fluid_limit", _SCRIPT)
RUN = module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUN)
KEPT = json.loads(RUN.EXPECTED.read_text())

#: The turn at t = 3/2 is n busy periods of variance .36 (1 + .6)/(1 - .6)^3 = 9; 10 times its error is the distance.
LEADING = 10 * math.sqrt(0.36 * 1.6 / 0.4**3) * math.sqrt(2 / math.pi)


@pytest.fixture(scope="module")
def path():
    return RUN.fluid()


def test_the_distance_is_that_of_the_turn_of_the_path(path):
    found = RUN.distance(10_000, 12, path)
    assert 4 * found.error < LEADING / math.sqrt(found.size)
    assert abs(found.mean - LEADING / math.sqrt(found.size)) < 4 * found.error


def test_a_large_network_follows_the_path_up_to_its_noise(path):
    assert np.abs(RUN.scaled(100_000, 1) - path).max() < 4 * 30 / math.sqrt(100_000)


def test_the_distances_that_are_kept_are_those_of_the_turn():
    large = [each for each in KEPT["distances"] if each["size"] >= RUN.LEAST]
    assert len(large) > 1
    for each in large:
        assert abs(each["mean"] - LEADING / math.sqrt(each["size"])) < 4 * each["error"]
