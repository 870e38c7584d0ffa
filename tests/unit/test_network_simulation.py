"""Bad input of simulated networks, peaks, bins, chosen ticks, results as plain values."""

import json

import numpy as np
import pytest
from networks import classical, exponential, poisson

from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.arrivals import ConstantInterval, DeterministicArrivals, LogNormalInterval
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.network import ExternalArrivals, Network, Route, Station, TaskClass
from queuetheory_llm.simulation.network_run import BINS, ENTERS, LEAVES, STARTS, bin_edges, bin_of
from queuetheory_llm.simulation.network_simulation import simulate_network, work_to_come
from queuetheory_llm.simulation.peaks import peak_ratios, peaks_between_falls
from queuetheory_llm.verdict import Verdict


@pytest.fixture(scope="module")
def loop():
    return load_network("jackson-loop")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"horizon": 0}, "horizon: 0 s is not positive"),
        ({"horizon": 10, "seed": -1}, "seed"),
        ({"horizon": 10, "replications": 0}, "replications"),
        ({"horizon": 10, "start": {"fourth": 1}}, "start: 'fourth' is no class"),
        ({"horizon": 10, "start": {"first": -1}}, "start.first: -1"),
        ({"horizon": 10, "start": {"first": 1.5}}, "start.first: 1.5"),
        ({"horizon": 10, "start": {"first": 10_000_001}}, "start: 10000001 tasks at time 0 are more than 10000000"),
        ({"horizon": 10, "start": 3}, "start: 3 is no mapping"),
        ({"horizon": 10, "start": []}, r"start: \[\] is no mapping"),
        ({"horizon": 10, "start": {3: 1}}, "start: 3 is no class"),
        ({"horizon": 10, "start": {"first": float("nan")}}, "start.first: nan"),
        ({"horizon": float("nan")}, "horizon: nan is not finite"),
        ({"horizon": None}, "horizon: None is not a number"),
        ({"horizon": 10, "replications": 10**12}, "replications: 1000000000000 are more than 1000"),
        ({"horizon": 10, "watch": 3}, "watch: 3 is no sequence"),
        ({"horizon": 10, "watch": "35"}, "watch: '35' is no sequence"),
        ({"horizon": 10, "watch": [1, float("nan")]}, r"watch\[1\]: nan is not finite"),
        ({"horizon": 10, "watch": [1, 10**25]}, "watch: give increasing"),
        ({"horizon": 10, "log": 3}, "log: 3 is no truth value"),
        ({"horizon": 10, "priority": 3}, "priority: 3 is no mapping"),
        ({"horizon": 10, "priority": {"s1": "first"}}, "priority.s1: 'first' is no list"),
        ({"horizon": 10, "priority": {"s1": [["first"]]}}, "priority.s1: "),
        ({"horizon": 10**9}, "horizon"),
        ({"horizon": 10**10}, "horizon"),
        ({"horizon": 10, "watch": [3, 2]}, "watch: give increasing"),
        ({"horizon": 10, "watch": [11]}, "watch: give increasing"),
        ({"horizon": 10, "policy": "lifo"}, "policy: 'lifo'"),
    ],
)
def test_bad_input_is_refused(loop, options, what):
    with pytest.raises(InvalidInput, match=what):
        simulate_network(loop, **options)


@pytest.mark.parametrize("network", [None, 3, "jackson-loop", []])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(InvalidInput, match=r"network: .* is no Network; .*load_network"):
        simulate_network(network, horizon=10)


def test_tasks_that_never_leave_have_no_mean_work():
    trap = classical({"a": ("s", exponential("0.1 s"))}, {"a": poisson(1)}, [("a", "a", "1")])
    with pytest.raises(AssumptionViolated, match="never leave"):
        simulate_network(trap, horizon=100)


def test_tasks_that_multiply_are_refused():
    laws = {"a": ("s", exponential("0.1 s")), "b": ("t", exponential("0.1 s"))}
    bomb = classical(laws, {"a": poisson(1)}, [("a", ("a", "b"), "1")])
    with pytest.raises(AssumptionViolated, match="multiply without end"):
        simulate_network(bomb, horizon=100)


def test_services_beyond_the_clock_are_refused():
    for law in (ConstantInterval(mean="1e10 s"), LogNormalInterval(mean="1e7 s", cv=100)):
        with pytest.raises(InvalidInput, match="64-bit clock"):
            simulate_network(classical({"a": ("s", law)}, {"a": poisson(1)}), horizon=10_000)


def test_work_to_come_counts_every_later_visit(loop):
    work = work_to_come(loop.fluid_model)  # w3 = 1/4 + w1/20 + w2/4, w2 = 1/2 + w3, w1 = 1/2 + w2
    assert work[2] == pytest.approx(0.25 + work[0] / 20 + work[1] / 4)
    assert work[0] == pytest.approx(0.5 + work[1])
    assert work[1] == pytest.approx(0.5 + work[2])


def test_a_run_in_plain_values(loop):
    found = simulate_network(loop, horizon=2000, seed=1)
    again = simulate_network(loop, horizon=2000, seed=1)
    table = json.loads(json.dumps(found.to_dict()))
    assert table == json.loads(json.dumps(again.to_dict()))
    assert table["hops"] == sum(row["served"] for row in table["classes"])
    assert [row["arrived"] - row["served"] - row["present"] for row in table["classes"]] == [0, 0, 0]
    assert found.sojourns("first")["p50"] == pytest.approx(np.log(2) / (2 - 15 / 14), rel=0.2)  # exponential


def test_chosen_ticks_and_short_runs_give_no_verdict(loop):
    for found in (simulate_network(loop, horizon=2000, watch=[5, 1000]), simulate_network(loop, horizon=5)):
        assert found.measured is Verdict.UNDECIDED
        assert found.growth is None
        assert found.response.mean is None


def test_a_batch_sees_who_comes_at_its_end_and_a_finished_prompt_decodes_in_the_next():
    """Two engines of one-second batches in a row, 3 + 1 tokens every 2 s, budgets 2: all times by hand."""
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=2), b_max=2)
    network = Network(
        stations=(Station(name="s", engines=(engine,)), Station(name="t", engines=(engine,))),
        classes=(
            TaskClass(name="a", station="s", prefill=3, decode=1),
            TaskClass(name="b", station="t", prefill=0, decode=2),
        ),
        arrivals=(ExternalArrivals(task_class="a", arrivals=DeterministicArrivals(interval=2)),),
        routes=(Route(source="a", to=("b",)),),
    )
    log = simulate_network(network, horizon=7, log=True).run.log
    events = [(int(tick) / 1e9, int(kind), int(who), int(what)) for tick, kind, who, what in log]
    # s: 2 prompt tokens; 1; the decode and 1 prompt token of the next; its other 2; its decode and 1 of the third; ...
    assert [(when, tokens) for when, kind, who, tokens in events if kind == STARTS and who == 0] == [
        (0, 2),
        (1, 1),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 2),
        (6, 2),
    ]
    assert [when for when, kind, who, _ in events if kind == LEAVES and who == 0] == [3, 5]
    assert [when for when, kind, who, _ in events if kind == ENTERS and who == 1] == [3, 5]
    assert [(when, tokens) for when, kind, who, tokens in events if kind == STARTS and who == 1] == [
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
    ]
    assert [when for when, kind, who, _ in events if kind == LEAVES and who == 1] == [5]


def test_peaks_are_told_from_noise():
    rng = np.random.default_rng(1)
    time = np.arange(4000)
    swing = 2.0 ** (time / 1000) * (1.2 + np.sin(time * 2 * np.pi / 1000)) * rng.uniform(0.95, 1.05, time.size)
    assert np.abs(peaks_between_falls(swing) - np.array([268, 1268, 2268, 3268])).max() < 40
    assert peak_ratios(swing) == pytest.approx(2, rel=0.06)
    assert peaks_between_falls(np.arange(10)).size == 0
    assert peaks_between_falls([]).size == 0
    assert peaks_between_falls([0, 0, 0]).size == 0


def test_bins_cover_all_sojourns_without_gaps():
    edges = bin_edges()
    for ticks in [*range(70), *(2**power + shift for power in range(7, 62) for shift in (-1, 0, 1))]:
        place = bin_of(ticks)
        assert 0 <= place < BINS
        assert edges[place] <= ticks
        assert ticks <= edges[place + 1]
