"""The compiled runner does what the reference runner does: times, series and every batch, on random systems."""

import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from systems import assert_same, assert_same_log, some_system

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.simulation import kernel, reference
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import NEVER, Series

SYSTEMS, PARTS = 2400, 8


@pytest.mark.parametrize("part", range(PARTS))
def test_random_systems(part):
    """With the log every batch is run by itself; without it equal batches in a row are run in one step."""
    names = list(SCHEDULERS)
    for seed in range(part, SYSTEMS, PARTS):
        engine, rule, requests, clock, until = some_system(random.Random(seed), names[seed // PARTS % len(names)])
        theirs = reference.run(engine, rule, requests, clock, until=until, log=True)
        assert_same(kernel.run(engine, rule, requests, clock, until=until), theirs)
        logged = kernel.run(engine, rule, requests, clock, until=until, log=True)
        assert_same(logged, theirs)
        assert_same_log(logged.log, theirs.log)


def test_the_random_systems_are_of_every_kind():
    names = list(SCHEDULERS)
    drawn = [some_system(random.Random(seed), names[seed // PARTS % len(names)]) for seed in range(SYSTEMS)]
    rules = Counter((rule.passes, rule.mixed, rule.chunks, rule.threshold is None) for _, rule, *_ in drawn)
    assert len(rules) == 3 * 2 * 3  # a threshold needs chunks
    assert min(rules.values()) >= 10
    kinds = Counter((type(engine.batch_time), engine.k_max is None) for engine, *_ in drawn)
    assert len(kinds) == 6
    assert any((requests.prefill == 0).any() for _, _, requests, *_ in drawn)


@pytest.mark.parametrize("name", ["vllm-chunked+threshold=3", "orca+threshold=2", "sarathi", "vllm-vanilla", "static"])
@pytest.mark.parametrize("empty_prompts", [False, True])
def test_a_long_backlog_widens_the_tree_and_empties_again(name, empty_prompts):
    rng = random.Random(1)
    count = 600
    prefill = [rng.randint(0 if empty_prompts else 1, 20) for _ in range(count)]
    decode = [rng.randint(1, 200) for _ in range(count)]
    requests = Requests(arrival=sorted(rng.randint(0, 10**8) for _ in range(count)), prefill=prefill, decode=decode)
    engine = Engine(batch_time=Staircase(c=0, a="1 ms", b0=32), b_max=300)
    clock = Clock(rate=10**9)
    rule = parse_scheduler(name)
    assert_same(kernel.run(engine, rule, requests, clock), reference.run(engine, rule, requests, clock))


def test_gaps_that_only_shrink_are_all_remembered():
    """Each round is shorter than the one before: the stack of gaps holds every round and outgrows its first room."""
    rounds = 3000
    table = Table(tokens=range(1, rounds + 1), seconds_at=[Fraction(rounds + size, 1000) for size in range(rounds)])
    engine = Engine(batch_time=table, b_max=rounds)
    requests = Requests(arrival=[0] * rounds, prefill=[1] * rounds, decode=range(1, rounds + 1))
    clock = Clock(rate=10**9)
    rule = parse_scheduler("sarathi")
    assert_same(kernel.run(engine, rule, requests, clock), reference.run(engine, rule, requests, clock))


def test_watched_ticks_in_and_between_equal_batches():
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
    requests = Requests(arrival=[10**9, 10**9 + 7], prefill=[2, 40], decode=[30, 2])
    clock = Clock(rate=10**9)
    watch = np.array([0, 1, 10**9, 10**9 + 1, 4 * 10**9, 5 * 10**9 - 1, 5 * 10**9, 10**12], dtype=np.int64)
    for name in SCHEDULERS:
        rule = parse_scheduler(f"{name}+chunk")
        ours, theirs = (runner.run(engine, rule, requests, clock, watch=watch).series for runner in (kernel, reference))
        for field in Series.__attrs_attrs__:
            np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name))


def test_the_log_is_whole_however_often_its_room_is_full(monkeypatch):
    monkeypatch.setattr(kernel, "_LOG_BATCHES", 3)
    monkeypatch.setattr(kernel, "_STEPS", 7)
    engine, rule, requests, clock, _ = some_system(random.Random(77), "orca")
    seen = []
    ours = kernel.run(engine, rule, requests, clock, log=True, progress=seen.append)
    theirs = reference.run(engine, rule, requests, clock, log=True)
    assert ours.batches > 20
    assert_same_log(ours.log, theirs.log)
    assert seen == sorted(seen)
    assert 0 < seen[0] <= seen[-1] <= 1


def test_a_run_beyond_the_clock_is_refused_by_both():
    engine = Engine(batch_time=Staircase(c=0, a=10**9, b0=1), b_max=1)
    requests = Requests(arrival=[0], prefill=[1], decode=[20])
    for runner in (kernel, reference):
        with pytest.raises(InvalidInput, match="the last instant of a 64-bit clock"):
            runner.run(engine, parse_scheduler("sarathi"), requests, Clock(rate=10**9))


def test_no_requests_no_batches():
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=1), b_max=1)
    requests = Requests(arrival=[], prefill=[], decode=[])
    ours = kernel.run(engine, parse_scheduler("orca"), requests, Clock(rate=10**9), until=10**9, log=True)
    assert (ours.batches, ours.end, len(ours.log)) == (0, 10**9, 0)
    assert not ours.series.busy.any()


def test_an_unfinished_request_never_finishes():
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=1), b_max=1)
    requests = Requests(arrival=[0], prefill=[1], decode=[5])
    ours = kernel.run(engine, parse_scheduler("orca"), requests, Clock(rate=10**9), until=3 * 10**9)
    assert ours.finish.tolist() == [NEVER]
    assert ours.series.backlog[-1] == 3
