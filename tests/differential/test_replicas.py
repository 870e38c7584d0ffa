"""Several engines: each does what it would do alone with its requests, and the dispatchers send where they say."""

import random

import numpy as np
import pytest
from systems import assert_same, some_system

from queuetheory_llm.dispatch.registry import DISPATCH_RULES
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.dispatch import STATION_RULES
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.policy import Batch
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.simulation import dispatching, reference
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.replicas import run_replicas
from queuetheory_llm.simulation.requests import Requests


def split(system, count, dispatch, seed=0, told=None):
    engine, rule, requests, clock, until = system
    rng = np.random.default_rng(seed)
    return run_replicas(engine, rule, requests, clock, count=count, dispatch=dispatch, rng=rng, until=until, told=told)


def by_queues(system, count, dispatch):
    """Each request in turn to the engine with the fewest tokens or requests there, by logs of the plain runner."""
    engine, rule, requests, clock, _ = system
    sent = [[] for _ in range(count)]
    for request in range(len(requests)):
        now = int(requests.arrival[request])
        present = []
        for own in sent:
            before = requests.take(np.array(own, dtype=np.int64))
            run = reference.run(engine, rule, before, clock, until=now, log=True)
            tokens = int(before.work.sum()) - int(run.log.tokens[run.log.ends <= now].sum())
            requests_there = len(own) - int(((run.finish >= 0) & (run.finish <= now)).sum())
            present.append(tokens if dispatch == "token-queue" else requests_there)
        sent[int(np.argmin(present))].append(request)
    return sent


@pytest.mark.parametrize("dispatch", ["token-queue", "least-outstanding"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_queues_send_to_the_engine_with_the_fewest(name, dispatch):
    for seed in range(6):
        engine, rule, requests, clock, _ = some_system(random.Random(seed), name)
        system = (engine, rule, requests.take(np.arange(min(len(requests), 40))), clock, None)
        found = split(system, 3, dispatch)
        expected = by_queues(system, 3, dispatch)
        assert [np.flatnonzero(found.engine_of == number).tolist() for number in range(3)] == expected


@pytest.mark.parametrize("dispatch", STATION_RULES)
def test_each_engine_runs_its_own_requests_and_the_total_is_their_sum(dispatch):
    system = some_system(random.Random(5), "sarathi")
    engine, rule, requests, clock, until = system
    runs = []
    found = split(system, 3, dispatch, told=lambda number, run: runs.append((number, run)))
    assert [number for number, _ in runs] == [0, 1, 2]
    runs = [run for _, run in runs]
    assert sorted(len(run.requests) for run in runs) == sorted(np.bincount(found.engine_of, minlength=3))
    for number, ours in enumerate(runs):
        own = requests.take(np.flatnonzero(found.engine_of == number))
        watch = ours.series.ticks
        assert_same(ours, reference.run(engine, rule, own, clock, until=until, watch=watch))
        np.testing.assert_array_equal(found.total.finish[found.engine_of == number], ours.finish)
    assert found.total.tokens == sum(run.tokens for run in runs)
    np.testing.assert_array_equal(found.total.series.backlog, sum(run.series.backlog for run in runs))
    assert found.total.series.backlog[0] + found.total.tokens >= 0


@pytest.mark.parametrize("dispatch", STATION_RULES)
def test_one_engine_is_the_engine_alone(dispatch):
    system = some_system(random.Random(8), "orca")
    engine, rule, requests, clock, until = system
    assert_same(split(system, 1, dispatch).total, reference.run(engine, rule, requests, clock, until=until))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_what_is_compiled_is_the_rule(count):
    """Rules that need not know the queues, request by request in plain Python."""
    chances = np.random.default_rng(count).random(200)
    for name in ("random", "round-robin"):
        rule, engines = DISPATCH_RULES[name], dispatching.engines(count)
        views = (
            DispatchView(
                stage=0,
                seconds=engines.seconds,
                queued=engines.nothing,
                outstanding=engines.outstanding,
                tokens=engines.tokens,
                assigned=engines.nothing,
                turn=turn,
                shares=engines.shares,
                chance=chance,
            )
            for turn, chance in enumerate(chances)
        )
        assert dispatching.sent(name, count, chances).tolist() == [rule.choose(each, np.zeros(0)) for each in views]


def test_round_robin_takes_turns_and_random_is_fair():
    system = some_system(random.Random(3), "sarathi")
    count = len(system[2])
    assert split(system, 4, "round-robin").engine_of.tolist() == [number % 4 for number in range(count)]
    chosen = np.concatenate([split(system, 4, "random", seed).engine_of for seed in range(100)])
    share = np.bincount(chosen) / chosen.size
    assert np.abs(share - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / chosen.size)
    assert (split(system, 4, "random", 1).engine_of == split(system, 4, "random", 1).engine_of).all()


@pytest.mark.parametrize("name", ["sarathi", "sarathi+threshold=1", "vllm-chunked+threshold=1"])
def test_the_queues_of_the_dispatcher_grow_as_they_must(name):
    """All later requests go to the third engine while the others hold endless ones; its queue outgrows its room."""
    count, clock = 100, Clock(rate=10**9)
    requests = Requests(
        arrival=[0, 0, *range(0, (count - 2) * 10**9, 10**9)],
        prefill=[1, 10**6, *[1] * (count - 2)],
        decode=[10**6, *[0] * (count - 1)],
    )
    engine = Engine(batch_time=Staircase(c=0, a="0.5 s", b0=1), b_max=1)
    system = (engine, parse_scheduler(name), requests, clock, None)
    assert np.bincount(split(system, 3, "token-queue").engine_of, minlength=3).tolist() == [1, 1, count - 2]


def test_bad_input():
    system = some_system(random.Random(1), "sarathi")
    with pytest.raises(InvalidInput, match="engines: 0 is no whole number from 1 on"):
        split(system, 0, "random")
    with pytest.raises(InvalidInput, match="engines: 10001 is above 10000"):
        split(system, 10_001, "random")
    with pytest.raises(InvalidInput, match="known: random, round-robin, token-queue"):
        split(system, 2, "shortest")

    class Mine:
        name = "mine"

        def form(self, _view):
            return Batch()

    with pytest.raises(InvalidInput, match="token-queue knows the rules of the policy space only, not mine"):
        split((system[0], Mine(), *system[2:]), 2, "token-queue")
