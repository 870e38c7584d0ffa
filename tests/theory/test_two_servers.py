"""Two servers of rate 1 and 1.6 tasks a second: what each way to share the tasks does to the mean response.

Random: two M/M/1 queues. In turn: two queues whose interarrival times are the sum of two exponential ones (GI/M/1). By
fewest tokens: a task goes where it starts first, so that the two are one queue with two servers (M/M/2). By fewest
tasks: join the shorter queue.
"""

from math import sqrt

import numpy as np
import pytest
from scipy.optimize import brentq

from queuetheory_llm.model.arrivals import ExponentialInterval, GammaInterval, PoissonArrivals, RenewalArrivals
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric
from queuetheory_llm.model.network import ExternalArrivals, Network, Station, TaskClass
from queuetheory_llm.simulation.network_simulation import simulate_network

RATE, RUNS, HORIZON = 1.6, 8, 15_000
SHORTER_QUEUE = 2.95574  # by number, of the Markov chain that tests/theory/test_dispatch.py solves
TOKENS = 100  # of a call, geometric: an exponential service, rounded to hundredths


def response(network: Network) -> tuple[float, float]:
    """Mean seconds over independent runs, and their standard error."""
    found = simulate_network(network, horizon=HORIZON, seed=7, replications=RUNS)
    means = np.array([run.responses(settled=True).mean() for run in found.runs])
    return float(means.mean()), float(means.std(ddof=1) / sqrt(RUNS))


def one_server(arrivals) -> Network:
    return Network(
        stations=(Station(name="server"),),
        classes=(TaskClass(name="task", station="server", service=ExponentialInterval(mean=1)),),
        arrivals=(ExternalArrivals(task_class="task", arrivals=arrivals),),
    )


def two_engines(dispatch: str) -> Network:
    engine = Engine(b_max=1, batch_time=Table(tokens=[1], seconds_at=[f"{1000 // TOKENS} ms"]))
    calls = TaskClass(name="call", station="engines", prefill=0, decode=Geometric(mean=TOKENS))
    return Network(
        stations=(Station(name="engines", engines=(engine, engine), dispatch=dispatch),),
        classes=(calls,),
        arrivals=(ExternalArrivals(task_class="call", arrivals=PoissonArrivals(rate=RATE)),),
    )


def erlang_response() -> float:
    """GI/M/1: 1/(1 - s), s the root in (0, 1) of s = E exp(-(1 - s) A) with A the sum of two Exp(1.6)."""
    root = brentq(lambda s: (RATE / (RATE + 1 - s)) ** 2 - s, 0, 0.999)
    return 1 / (1 - root)


def test_closed_forms():
    alone, together = 1 / (1 - RATE / 2), 1 / (1 - (RATE / 2) ** 2)
    assert alone == pytest.approx(5)
    assert erlang_response() == pytest.approx(3.84398, abs=5e-6)
    assert together == pytest.approx(2.77778, abs=5e-6)
    assert together < SHORTER_QUEUE


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        (PoissonArrivals(rate=RATE / 2), 5),
        (RenewalArrivals(interval=GammaInterval(mean=2 / RATE, cv=f"{sqrt(0.5):.12f}")), erlang_response()),
    ],
    ids=["random", "in turn"],
)
def test_each_server_alone(arrivals, expected):
    mean, error = response(one_server(arrivals))
    assert abs(mean - expected) < 4 * error


@pytest.mark.parametrize(
    ("dispatch", "expected"),
    [
        ("random", 5),
        ("round-robin", erlang_response()),
        ("token-queue", 1 / 0.36),
        ("least-outstanding", SHORTER_QUEUE),
    ],
)
def test_two_engines_behind_a_dispatcher(dispatch, expected):
    """Steps of 1/100 of the mean service add a hundredth of a second at most, well inside the error."""
    mean, error = response(two_engines(dispatch))
    assert abs(mean - expected) < 4 * error
    assert error < 0.15 * expected
