"""Invariants of every run of a network, on drawn networks."""

from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import some_network, some_start

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.class_order import POLICIES, network_policy
from queuetheory_llm.simulation import network_runner
from queuetheory_llm.simulation.network_draws import Draws, network_clock
from queuetheory_llm.simulation.network_invariants import check_network_run


def run(seed, policy="file", log=True):
    network = some_network(seed)
    clock = network_clock(network, Fraction(60))
    until = clock.bound(Fraction(60))
    draws = Draws(network, clock, Fraction(60), np.random.default_rng(seed), some_start(network, seed))
    watch = np.linspace(0, until, 12).astype(np.int64)
    return network_runner.run(network, network_policy(network, policy), draws, clock, until=until, watch=watch, log=log)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), policy=st.sampled_from(POLICIES))
def test_every_run_keeps_the_invariants(seed, policy):
    assert check_network_run(run(seed, policy)) == []


SEED = 20  # a classical server, an engine, siblings that wait for a join


def shifted(log, row, column, by):
    log = log.copy()
    log[row, column] += by
    return log


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda one: {"served": one.served + 1}, "tasks"),
        (lambda one: {"busy": one.busy + 1}, "work"),
        (lambda one: {"brought": one.brought + 1}, "work"),
        (lambda one: {"ended": np.where(one.ended >= 0, one.ended + 1, -1)}, "tasks"),
        (lambda one: {"waiting": -one.waiting}, "joins"),
        (lambda one: {"log": shifted(one.log, -1, 0, one.until)}, "clock"),
        (lambda one: {"log": shifted(one.log, np.flatnonzero(one.log[:, 1] == 1)[0], 3, 1)}, "causality"),
        (lambda one: {"series": attrs.evolve(one.series, area=one.series.area * 1.001)}, "series"),
        (lambda one: {"series": attrs.evolve(one.series, present=one.series.present + 1)}, "series"),
    ],
)
def test_what_is_tampered_with_is_found(change, what):
    one = run(SEED)
    assert one.network.joins
    assert (one.ended >= 0).any()
    assert any(line.startswith(what) for line in check_network_run(attrs.evolve(one, **change(one))))


def test_batches_that_overlap_are_found():
    one = run(4)  # one station of three engines
    starts = np.flatnonzero(one.log[:, 1] == 2)
    found = [check_network_run(attrs.evolve(one, log=shifted(one.log, row, 0, -1))) for row in starts]
    assert any(line.endswith("overlap") for lines in found for line in lines)


def test_a_run_without_log_cannot_be_checked():
    with pytest.raises(InvalidInput, match="log=True"):
        check_network_run(run(1, log=False))
