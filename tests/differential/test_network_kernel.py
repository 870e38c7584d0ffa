"""The compiled runner of networks is the plain one, event for event and bit for bit."""

from fractions import Fraction

import attrs
import numpy as np
import pytest
from networks import classical, exponential, poisson, some_network, some_start

from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.arrivals import ExponentialInterval, RenewalArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.dispatch import STATION_RULES
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric, Uniform
from queuetheory_llm.model.network import ExternalArrivals, Network, Station, TaskClass
from queuetheory_llm.schedulers.class_order import NetworkPolicy, network_policy
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation import dispatching, kernel, network_reference, network_runner
from queuetheory_llm.simulation.network_draws import Draws, network_clock
from queuetheory_llm.simulation.replicas import run_replicas
from queuetheory_llm.simulation.requests import Requests


def run(runner, network, horizon, *, seed=0, start=None, policy="file", priority=None):
    clock = network_clock(network, Fraction(horizon))
    until = clock.bound(Fraction(horizon))
    return runner.run(
        network,
        network_policy(network, policy, priority),
        Draws(network, clock, Fraction(horizon), np.random.default_rng(seed), start),
        clock,
        until=until,
        watch=np.linspace(0, until, 30).astype(np.int64),
        log=True,
    )


def both(*system, **options):
    return [run(runner, *system, **options) for runner in (network_reference, network_runner)]


def assert_same(one, other):
    assert one.log.tolist() == other.log.tolist()
    for found, asked in ((one, other), (one.series, other.series)):
        for field in attrs.fields(type(found)):
            left, right = getattr(found, field.name), getattr(asked, field.name)
            if isinstance(left, np.ndarray):
                assert np.array_equal(left, right), field.name
    assert one.waiting == other.waiting


def test_every_dispatcher_is_compiled():
    assert set(dispatching.NUMBERS) == set(STATION_RULES)


@pytest.mark.parametrize("policy", ["file", "back-pressure"])
def test_random_networks(policy):
    events = 0
    for seed in range(60):
        network = some_network(seed)
        plain, fast = both(network, 60, seed=seed, start=some_start(network, seed), policy=policy)
        assert_same(plain, fast)
        events += len(plain.log)
    assert events > 12_000


@pytest.mark.parametrize(
    ("name", "horizon"),
    [("jackson-loop", 300), ("fork-join", 600), ("lu-kumar", 300), ("prefill-decode-disaggregated", 9)],
)
def test_packaged_networks(name, horizon):
    assert_same(*both(load_network(name), horizon))


def test_a_backlog_that_outgrows_every_array():
    network = load_network("rybko-stolyar-llm")
    plain, fast = both(network, 60, start={"A1": 1500, "B1": 900})
    assert_same(plain, fast)
    assert plain.present.sum() > 2 * network_runner._TASKS


@pytest.mark.parametrize("runner", [network_reference, network_runner])
def test_a_task_without_siblings_is_refused_by_both(runner):
    with pytest.raises(AssumptionViolated, match="class left part: a task waits for siblings"):
        run(runner, load_network("fork-join"), 10, start={"left part": 1})


class Longest:
    """A rule of a user's own: the longest queue first."""

    def order(self, classes, present):
        return sorted(classes, key=lambda k: -present[k])


def test_a_rule_of_ones_own_runs_in_plain_python_and_is_not_taken_for_another():
    network, horizon = load_network("rybko-stolyar"), Fraction(400)
    clock = network_clock(network, horizon)
    rules = NetworkPolicy((Longest(), Longest()))
    system = {"until": clock.bound(horizon), "watch": np.zeros(0, dtype=np.int64)}
    draws = Draws(network, clock, horizon, np.random.default_rng(0))
    found = network_reference.run(network, rules, draws, clock, **system)
    assert found.hops > 1200
    with pytest.raises(InvalidInput, match="Longest is not compiled"):
        network_runner.run(network, rules, draws, clock, **system)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    network = classical({"a": ("s", exponential(1))}, {"a": poisson("1/2")})
    first, again = run(network_runner, network, 100, seed=3), run(network_runner, network, 100, seed=3)
    assert first.log.tobytes() == again.log.tobytes()
    assert first.log.tobytes() != run(network_runner, network, 100, seed=4).log.tobytes()


def one_station(engines, scheduler, mean, dispatch="token-queue"):
    """Calls at one station, some without a prompt, one every ``mean`` seconds."""
    calls = TaskClass(name="call", station="s", prefill=Uniform(low=0, high=9), decode=Geometric(mean=4))
    arrivals = RenewalArrivals(interval=ExponentialInterval(mean=mean))
    return Network(
        stations=(Station(name="s", engines=engines, scheduler=scheduler, dispatch=dispatch),),
        classes=(calls,),
        arrivals=(ExternalArrivals(task_class="call", arrivals=arrivals),),
    )


def requests_of(network, clock, horizon):
    """The requests that the network draws, for the runner of engines."""
    draws = Draws(network, clock, horizon, np.random.default_rng(0))
    ticks = draws.sources.ticks
    prefill, decode = (tokens[: ticks.size] for tokens in draws.services(0))
    return Requests(arrival=ticks, prefill=prefill, decode=decode)


@pytest.mark.parametrize("scheduler", ["sarathi", "orca"])
@pytest.mark.parametrize("k_max", [None, 3])
def test_a_station_of_one_engine_is_that_engine(scheduler, k_max):
    engine = Engine(batch_time=Staircase(c="0.3 s", a="0.7 s", b0=4), b_max=11, k_max=k_max)
    network, horizon = one_station((engine,), scheduler, 3 if k_max is None else 5), Fraction(6000)
    clock = network_clock(network, horizon)
    requests = requests_of(network, clock, horizon)
    alone = kernel.run(engine, parse_scheduler(scheduler), requests, clock, until=None)
    there = run(network_runner, network, horizon)
    done = there.ended >= 0
    assert done.sum() > 1000
    assert np.array_equal(there.ended[done], alone.finish[done])
    assert (alone.finish[~done] >= there.until).all()


@pytest.mark.parametrize("dispatch", ["token-queue", "round-robin", "least-outstanding"])
def test_engines_behind_a_dispatcher_are_those_of_the_runner_of_engines(dispatch):
    engine = Engine(batch_time=Staircase(c="1.1 s", a="0.7 s", b0=4), b_max=5)
    network, horizon = one_station((engine,) * 3, "sarathi", Fraction(3, 2), dispatch), Fraction(2000)
    clock = network_clock(network, horizon)
    requests = requests_of(network, clock, horizon)
    rng = np.random.default_rng(0)
    apart = run_replicas(
        engine, parse_scheduler("sarathi"), requests, clock, count=3, dispatch=dispatch, rng=rng, until=None
    )
    there = run(network_runner, network, horizon)
    done = there.ended >= 0
    assert done.sum() > 1200
    assert np.array_equal(there.ended[done], apart.total.finish[done])
