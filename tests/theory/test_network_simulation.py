"""Simulated networks against closed forms, within four standard errors over independent runs."""

import math

import numpy as np
import pytest
from networks import classical, exponential, poisson

from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.arrivals import (
    ConstantInterval,
    DeterministicArrivals,
    GammaInterval,
    RenewalArrivals,
    UniformInterval,
)
from queuetheory_llm.simulation.network_simulation import simulate_network
from queuetheory_llm.verdict import Verdict

RUNS = 24


def runs(network, horizon, count=RUNS, **options):
    return simulate_network(network, horizon=horizon, seed=1, replications=count, **options).runs


def mean_tasks(run):
    """Mean number at each class after the first tenth of the run."""
    series, warm = run.series, run.series.ticks.size // 10
    return (series.area[:, -1] - series.area[:, warm]) / (series.ticks[-1] - series.ticks[warm])


def assert_mean(values, known):
    """Within four standard errors, which may not be so wide as to say nothing."""
    values = np.asarray(values, dtype=float)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert 4 * error < 0.2 * known
    assert abs(values.mean() - known) < 4 * error


def settled_response(run):
    response = run.responses(settled=True)
    return response[response.size // 10 :].mean()


def test_the_jackson_loop_has_the_product_form():
    found = runs(load_network("jackson-loop"), 10_000)
    loads = [15 / 28, 5 / 7, 5 / 14]  # lambda = (15/14, 10/7, 10/7), mu = (2, 2, 4)
    for k, load in enumerate(loads):
        assert_mean([mean_tasks(run)[k] for run in found], load / (1 - load))
    assert sum(load / (1 - load) for load in loads) == pytest.approx(4.2094017, abs=1e-7)
    assert_mean([mean_tasks(run).sum() for run in found], 4.2094017)
    for server, load in enumerate(loads):
        assert_mean([run.busy[server] / run.until for run in found], load)


def test_two_exponential_servers_behind_a_fork():
    """(12 - rho)/8/(mu - lambda) by Nelson and Tantawi; Poisson out of the splitter; two servers of about 1 ms."""
    found = runs(load_network("fork-join"), 10_000)
    assert_mean([settled_response(run) for run in found], (12 - 0.5) / 8 / (1 - 0.5) + 2 / 999.5)


def test_poisson_arrivals_at_one_server_of_any_law_with_preemptive_priorities():
    """T_k = ((1 - s_k) E[S_k] + sum of lambda E[S^2]/2 down to k) / ((1 - s)(1 - s_k)), loads s above k, s_k with k."""
    laws = {
        "high": (0.2, ConstantInterval(mean=1), 1.0),
        "middle": (0.15, UniformInterval(low=0, high=4), 16 / 3),
        "low": (0.1, exponential(2), 8.0),
    }
    network = classical(
        {name: ("server", law) for name, (_, law, _) in laws.items()},
        {name: poisson(str(rate)) for name, (rate, _, _) in laws.items()},
        priority={"server": ("high", "middle", "low")},
    )
    found = runs(network, 20_000)
    above, residual = 0.0, 0.0
    for k, (rate, law, square) in enumerate(laws.values()):
        mean = float(law.mean)
        load, residual = above + rate * mean, residual + rate * square / 2
        stay = ((1 - load) * mean + residual) / ((1 - above) * (1 - load))
        assert_mean([mean_tasks(run)[k] for run in found], rate * stay)  # by Little
        above = load


def test_the_mean_of_a_single_server_follows_pollaczek_and_khinchine():
    network = classical({"a": ("s", GammaInterval(mean=1, cv=2))}, {"a": poisson("0.6")})
    found = runs(network, 40_000)
    assert_mean([mean_tasks(run)[0] for run in found], 0.6 + 0.36 * (1 + 4) / 2 / 0.4)


def test_a_tandem_has_independent_queues():
    network = classical(
        {"a": ("s", exponential(1)), "b": ("t", exponential(1))}, {"a": poisson("0.7")}, [("a", "b", "1")]
    )
    found = runs(network, 20_000)
    for k in (0, 1):
        assert_mean([mean_tasks(run)[k] for run in found], 0.7 / 0.3)
        for most in (0, 3):
            assert_mean([(run.series.present[k] <= most).mean() for run in found], 1 - 0.7 ** (most + 1))
    assert_mean([(run.series.present == 0).all(axis=0).mean() for run in found], 0.3 * 0.3)
    assert_mean([(run.series.present <= 2).all(axis=0).mean() for run in found], (1 - 0.7**3) ** 2)


def test_a_line_that_comes_back_first_come_first_served_has_the_product_form_of_kelly():
    network = classical(
        {"one": ("s", exponential("0.4 s")), "two": ("t", exponential("0.5 s")), "three": ("s", exponential("0.4 s"))},
        {"one": poisson(1)},
        [("one", "two", "1"), ("two", "three", "1")],
    )
    found = runs(network, 20_000)
    for k, mean in enumerate([2.0, 1.0, 2.0]):  # rho = .8 and .5; the two classes at s share its queue evenly
        assert_mean([mean_tasks(run)[k] for run in found], mean)


def test_regular_arrivals_at_an_exponential_server():
    """D/M/1: the share of time sigma = exp(-(1 - sigma)/rho); an arrival stays 1/(mu (1 - sigma))."""
    sigma = 0.5
    for _ in range(200):
        sigma = math.exp(-(1 - sigma) / 0.8)
    for process in (
        DeterministicArrivals(interval="1.25 s"),
        RenewalArrivals(interval=ConstantInterval(mean="1.25 s")),
    ):
        found = runs(classical({"a": ("s", exponential(1))}, {"a": process}), 20_000)
        assert_mean([settled_response(run) for run in found], 1 / (1 - sigma))


# --- Rybko and Stolyar ------------------------------------------------------------------------------------------------

ENTRY = {"s1": ["A1", "B2"], "s2": ["B1", "A2"]}


@pytest.mark.parametrize("name", ["rybko-stolyar", "rybko-stolyar-llm"])
def test_exit_priority_makes_the_work_grow_and_other_orders_keep_it(name):
    network = load_network(name)
    file = simulate_network(network, horizon=20_000, seed=2)
    assert file.measured is Verdict.UNSTABLE
    assert file.growth.low > 0
    assert file.present is None
    assert file.response.mean is None
    for options in ({"priority": ENTRY}, {"policy": "back-pressure"}):
        assert simulate_network(network, horizon=60_000, seed=2, **options).measured is Verdict.STABLE


def test_the_fluid_path_gives_the_growth_of_the_textbook_network():
    """Loads .7, virtual station 1.2: from (x, 0, 0, 0) one half cycle takes 3/2 x, and the burden is 3/2 x then."""
    grown = [
        simulate_network(
            load_network("rybko-stolyar"), horizon=6000, seed=seed, start={"A1": 4000}, watch=[6000]
        ).run.present
        for seed in range(4)
    ]
    for present in grown:
        assert present.sum() == pytest.approx(6000, rel=0.05)
        assert present[2] > 0.95 * present.sum()  # all of it at B1


def test_peaks_of_the_llm_form_grow_by_the_fluid_factor():
    """lambda m2/(1 - lambda m2) = 4.135 at load .9, m2 = 544/768; from 2 000 requests at A1."""
    network, factor = load_network("rybko-stolyar-llm"), 4.1351
    ratios = np.array(
        [
            simulate_network(network, horizon=120_000, seed=seed, start={"A1": 2000}).peak_ratios()[:2]
            for seed in range(1, 7)
        ]
    )
    assert ratios.shape == (6, 2)
    assert np.abs(np.median(ratios, axis=0) / factor - 1).max() < 0.1
    assert (np.abs(ratios / factor - 1) < 0.1).mean() > 0.8
    assert_mean(ratios[:, 0], factor)
    assert_mean(ratios[:, 1], factor)


def test_entry_priority_bounds_the_peaks_of_the_llm_form():
    network = load_network("rybko-stolyar-llm")
    highest = [
        int(simulate_network(network, horizon=3000, seed=seed, priority=ENTRY).run.series.highest.max())
        for seed in range(1, 9)
    ]
    assert 17_000 < np.median(highest) < 25_000
