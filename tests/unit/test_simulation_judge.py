"""Theory and measurement side by side."""

import json
from fractions import Fraction

import attrs
import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import DeterministicArrivals, PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric, ObservedLengths
from queuetheory_llm.model.trace import Trace, TraceArrivals
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Batch
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.evidence import GROWTH_AT_CRITICAL
from queuetheory_llm.simulation.judge import default_horizon, find_contradiction, simulate, simulate_trace
from queuetheory_llm.simulation.statistics import Measured, measure
from queuetheory_llm.verdict import Basis, Judgement, Verdict

LAW = Staircase(c="10 ms", a="10 ms", b0=8)
ENGINE = Engine(batch_time=LAW, b_max=8)  # F = 400 tokens/s
SARATHI = parse_scheduler("sarathi")


def poisson(rate, prefill=5, decode=3):
    return Workload.of(prefill=prefill, decode=decode, arrivals=PoissonArrivals(rate=rate))


@attrs.define
class NewestFirst:
    """A rule outside the policy space: one token for the newest request that decodes, else its whole prompt."""

    name: str = "newest-first"

    def form(self, view):
        if view.decoding:
            return Batch([], [view.decoding[-1]])
        request = view.prefilling[-1]
        return Batch([(request, min(view.b_max, view.prefill_left[request]))], [])


def test_theory_judges_whatever_a_short_run_shows():
    found = simulate(ENGINE, SARATHI, poisson("49.9"), horizon=5)
    assert found.judgement.verdict is Verdict.STABLE
    assert found.judgement.basis is Basis.THEOREM
    assert found.judgement.load == Fraction(499, 500)
    assert found.measured.verdict is Verdict.UNDECIDED
    assert simulate(ENGINE, SARATHI, poisson("50.1"), horizon=5).judgement.verdict is Verdict.UNSTABLE
    assert simulate(ENGINE, SARATHI, poisson(50), horizon=5).judgement.verdict is Verdict.CRITICAL


def test_the_run_judges_where_no_theorem_does():
    light = simulate(ENGINE, NewestFirst(), poisson(2), horizon=500)
    assert light.judgement.verdict is light.measured.verdict is Verdict.STABLE
    assert light.judgement.basis is Basis.SIMULATION
    assert light.judgement.load is None
    heavy = simulate(ENGINE, NewestFirst(), poisson(40), horizon=100)
    assert heavy.judgement.verdict is heavy.measured.verdict is Verdict.UNSTABLE
    with pytest.raises(InvalidInput, match=r"^--latency: newest-first: .* it is UNSTABLE"):
        heavy.require_means()


def test_prompts_without_a_bound_leave_a_whole_prompt_rule_to_the_run():
    workload = poisson(1, prefill=Geometric(mean="1.5"), decode=2)
    found = simulate(ENGINE, parse_scheduler("vllm-vanilla"), workload, horizon=200)
    assert found.judgement.basis is Basis.SIMULATION
    assert "unbounded" in found.judgement.reason


def test_means_are_given_for_stable_systems_and_whole_traces_only():
    assert simulate(ENGINE, SARATHI, poisson(20), horizon=20).means_refused is None
    critical = simulate(ENGINE, SARATHI, poisson(50), horizon=20)
    assert "CRITICAL" in critical.means_refused
    assert all(each.mean is None for each in critical.latency.values())
    with pytest.raises(InvalidInput, match=r"^--latency: sarathi: .* it is CRITICAL"):
        critical.require_means()
    undecided = simulate(ENGINE, NewestFirst(), poisson(20), horizon=5)
    with pytest.raises(InvalidInput, match="it is UNDECIDED"):
        undecided.require_means()
    with pytest.raises(InvalidInput, match="contradict"):
        attrs.evolve(undecided, means_refused="theory and run contradict").require_means()


def trace_of(arrivals):
    lengths = ObservedLengths([5] * len(arrivals), [3] * len(arrivals))
    return Trace(
        lengths=lengths,
        arrivals=np.array(arrivals),
        tick=Fraction(1, 1000),
        source="t.csv",
        format="plain CSV",
        first_token="as given",
    )


def test_a_whole_trace_has_its_means_even_in_overload():
    found = simulate_trace(ENGINE, SARATHI, trace_of([10 * index for index in range(200)]))
    assert found.judgement.verdict is Verdict.UNSTABLE
    assert found.judgement.load == 2
    assert "a finite trace always ends" in found.judgement.reason
    found.require_means()
    assert found.requests == {"arrived": 200, "finished": 200, "present": 0}
    cut = simulate_trace(ENGINE, SARATHI, trace_of([10 * index for index in range(200)]), horizon="1 s")
    assert cut.requests["arrived"] == 100
    with pytest.raises(InvalidInput, match="UNSTABLE"):
        cut.require_means()


def test_a_trace_of_one_instant_is_not_judged():
    found = simulate_trace(ENGINE, SARATHI, trace_of([5, 5, 5]))
    assert found.judgement.verdict is Verdict.UNDECIDED
    assert found.judgement.basis is None
    assert found.to_dict()["load"] is None
    assert found.requests["finished"] == 3


def test_slots_and_batches_must_agree():
    arrivals = SlottedArrivals(slot="10 ms", law="bernoulli", mean="0.5")
    workload = Workload.of(prefill=1, decode=1, arrivals=arrivals)
    with pytest.raises(InvalidInput, match="slot: 10 ms, but a batch of 1 tokens lasts 20 ms"):
        simulate(ENGINE, SARATHI, workload, horizon=1)


@pytest.mark.parametrize("horizon", [0, -1, "nan", float("inf"), "3 minutes"])
def test_a_horizon_that_is_none(horizon):
    with pytest.raises(InvalidInput):
        simulate(ENGINE, SARATHI, poisson(1), horizon=horizon)


def test_the_default_horizon_spans_batches_lifetimes_and_requests():
    assert default_horizon(ENGINE, poisson(10), Fraction(10)) == 400  # 20 000 batches of 20 ms
    assert default_horizon(ENGINE, poisson(10, decode=999), Fraction(10)) == 1000  # 50 lifetimes of 20 s
    assert default_horizon(ENGINE, poisson(1), Fraction(1)) == 2000  # 2 000 requests
    assert default_horizon(ENGINE, poisson(10**4), Fraction(10**4)) == 50  # at most 500 000 requests


def regular(interval, horizon=100):
    workload = Workload.of(prefill=5, decode=3, arrivals=DeterministicArrivals(interval=interval))
    return simulate(ENGINE, SARATHI, workload, horizon=horizon)


def test_a_regular_stream_at_the_capacity_is_critical_and_bounded():
    """It stays bounded for ever, and no stream above it does: the run alone calls it neither stable nor unstable."""
    found = regular("20 ms")
    assert found.judgement.verdict is Verdict.CRITICAL
    assert found.measured.verdict is Verdict.UNDECIDED
    assert "the stream is regular and the engine never idle" in found.measured.reason
    assert {summary.steady for summary in found.latency.values()} == {None}
    assert found.contradiction is None
    assert regular("20.5 ms").measured.verdict is Verdict.UNDECIDED  # below the limit, and never idle
    assert regular("110 ms").measured.verdict is Verdict.STABLE
    assert regular("19.999 ms").measured.verdict is Verdict.UNDECIDED
    assert regular("19.999 ms", horizon=20_000).measured.verdict is Verdict.UNSTABLE


@pytest.mark.parametrize("seed", [True, None, 1.0, -1, [1], "1"], ids=repr)
def test_a_seed_is_a_whole_number_from_0_on(seed):
    with pytest.raises(InvalidInput, match=r"^seed: ") as error:
        simulate(ENGINE, SARATHI, poisson(1), horizon=1, seed=seed)
    assert len(error.value.faults) == 1


@attrs.frozen
class Returning:
    """A rule that returns the same whatever it sees."""

    batch: object
    name: str = "mine"

    def form(self, view):  # noqa: ARG002
        return self.batch

    def __hash__(self):
        return 0


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (None, "form returned NoneType; return a Batch"),
        ([(0, 5)], "form returned list; return a Batch"),
        (Batch(None, []), "lists"),
        (Batch([], (0,)), "lists"),
        (Batch([0]), r"prefill holds 0; give pairs"),
        (Batch([(0, 1, 2)]), r"prefill holds \(0, 1, 2\); give pairs"),
        (Batch(["05"]), "prefill holds '05'"),
        (Batch([("0", 5)]), "'0' is no whole number"),
        (Batch([(0.0, 5)]), "0.0 is no whole number"),
        (Batch([(0, 5.0)]), "5.0 is no whole number"),
        (Batch([(False, 5)]), "False is no whole number"),
        (Batch([], [None]), "None is no whole number"),
        (Batch([], [[0]]), r"\[0\] is no whole number"),
        (Batch([], [0.0]), "0.0 is no whole number"),
    ],
    ids=repr,
)
def test_a_rule_that_returns_no_batch_is_named(batch, what):
    with pytest.raises(InvalidInput, match=rf"^scheduler mine: batch 0 at .*{what}"):
        simulate(ENGINE, Returning(batch), poisson(10), horizon=10)


S, U, C, N = Verdict.STABLE, Verdict.UNSTABLE, Verdict.CRITICAL, Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("theory", "run", "contradict"),
    [
        (S, S, False), (S, U, True), (S, N, False),
        (U, S, True), (U, U, False), (U, N, False),
        (C, S, True), (C, U, True), (C, N, False),
    ],
)  # fmt: skip
def test_theory_and_run_contradict_when_both_cannot_be_true(theory, run, contradict):
    judgement = Judgement(verdict=theory, basis=Basis.THEOREM, reason="a theorem")
    measured = Measured(verdict=run, drift=None, reason="a slope")
    found = find_contradiction(judgement, measured)
    assert (found is not None) == contradict
    if contradict:
        assert theory.value in found
        assert run.value in found
    by_run = attrs.evolve(judgement, basis=Basis.SIMULATION)
    assert find_contradiction(by_run, measured) is None


@pytest.mark.parametrize("count", [True, 0, -1, 1.0, None], ids=repr)
def test_replications_are_a_whole_number_from_1_on(count):
    with pytest.raises(InvalidInput, match=r"^replications: "):
        simulate(ENGINE, SARATHI, poisson(1), horizon=1, replications=count)


def test_replications_are_different_and_reproducible():
    found = simulate(ENGINE, SARATHI, poisson(20), horizon=20, replications=3, check=True)
    again = simulate(ENGINE, SARATHI, poisson(20), horizon=20, replications=3)
    arrivals = [run.requests.arrival.tolist() for run in found.runs]
    assert arrivals == [run.requests.arrival.tolist() for run in again.runs]
    assert len({tuple(each) for each in arrivals}) == 3
    assert found.requests["arrived"] == sum(map(len, arrivals))
    assert found.violations == ()
    assert found.run.log is None
    assert again.violations is None


def test_progress_counts_over_all_runs():
    shares = []
    simulate(ENGINE, NewestFirst(), poisson(30), horizon=100, replications=2, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < shares[-1] <= 1.1


def test_a_run_of_a_rule_outside_the_policies_is_checked_too():
    assert simulate(ENGINE, NewestFirst(), poisson(10), horizon=20, check=True).violations == ()


@pytest.mark.parametrize("dispatch", ["random", "round-robin", "token-queue"])
def test_several_engines_carry_what_their_dispatcher_lets_them(dispatch):
    """Three engines at .96 and 1.2 of 150 requests/s; backlogs, batches and busy time are those of all."""
    light = simulate(ENGINE, SARATHI, poisson(120), engines=3, dispatch=dispatch, horizon=2000, check=True)
    assert light.judgement.verdict is light.measured.verdict is Verdict.STABLE
    assert light.judgement.load == Fraction(120, 150)
    assert light.violations == ()
    heavy = simulate(ENGINE, SARATHI, poisson(180), engines=3, dispatch=dispatch, horizon=500)
    assert heavy.judgement.verdict is heavy.measured.verdict is Verdict.UNSTABLE
    assert heavy.measured.drift.mean == pytest.approx(30 * 8, rel=0.1)


def test_the_fewest_requests_are_judged_by_runs():
    """No theorem says what they carry; above what all carry together, one does."""
    light = simulate(ENGINE, SARATHI, poisson(120), engines=3, dispatch="least-outstanding", horizon=2000, check=True)
    assert (light.judgement.verdict, light.judgement.basis) == (Verdict.STABLE, Basis.SIMULATION)
    assert light.violations == ()
    heavy = simulate(ENGINE, SARATHI, poisson(180), engines=3, dispatch="least-outstanding", horizon=500)
    assert (heavy.judgement.verdict, heavy.judgement.basis) == (Verdict.UNSTABLE, Basis.THEOREM)


def test_what_was_run_is_in_the_answer_and_numpy_numbers_are_numbers():
    found = simulate(
        ENGINE, SARATHI, poisson(20), horizon=2, engines=np.int64(2), dispatch="round-robin", seed=np.int64(7),
        replications=np.int64(2),
    )  # fmt: skip
    said = json.loads(json.dumps(found.to_dict()))
    assert {name: said[name] for name in ("engines", "dispatch", "seed", "replications")} == {
        "engines": 2, "dispatch": "round-robin", "seed": 7, "replications": 2
    }  # fmt: skip
    with pytest.raises(InvalidInput, match=r"^seed: "):
        simulate_trace(ENGINE, SARATHI, trace_of([0, 5]), seed=-1)


def test_engines_that_queue_apart_are_scored_apart():
    """Exactly at the limit the sum over 64 engines grows as if it had a drift; each of them does not."""
    single = Engine(batch_time=Staircase(c=0, a=1, b0=1), b_max=1)
    workload = poisson(64, prefill=1, decode=0)
    found = [simulate(single, SARATHI, workload, engines=64, horizon=3000, seed=seed) for seed in range(3)]
    assert np.mean([measure(each.run).growth for each in found]) > 2.4  # P < .01 of a single run for one queue
    assert all(abs(each.measured.growth - GROWTH_AT_CRITICAL) < 4 * 0.7 / 8 for each in found)
    assert all(each.measured.verdict is Verdict.UNDECIDED for each in found)
    turns = simulate(single, SARATHI, workload, engines=64, dispatch="round-robin", horizon=3000)
    assert turns.measured.verdict is Verdict.UNDECIDED


def test_the_shortest_queue_waits_less_than_turns_and_turns_less_than_chance():
    """Single servers of one token a second, requests of random length, load .9."""
    single = Engine(batch_time=Staircase(c=0, a=1, b0=1), b_max=1)
    workload = poisson("0.9", prefill=Geometric(mean=3), decode=0)
    mean = {}
    for dispatch in ("random", "round-robin", "token-queue"):
        found = simulate(single, SARATHI, workload, engines=3, dispatch=dispatch, horizon=100_000)
        mean[dispatch] = found.latency["e2e"].mean
    assert mean["token-queue"] < 0.7 * mean["round-robin"]
    assert mean["round-robin"] < 0.9 * mean["random"]


def test_adaptive_rules_are_made_for_the_engine_and_the_lengths():
    found = simulate(ENGINE, "max-pressure", poisson(30), horizon=300, check=True)
    assert found.scheduler == "max-pressure"
    assert found.violations == ()
    assert found.judgement.basis is Basis.SIMULATION
    with pytest.raises(InvalidInput, match="'max-pressure' is made for an engine and its lengths"):
        parse_scheduler("max-pressure")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"engines": 0}, "engines: 0 is no whole number from 1 on"),
        ({"engines": 10_001}, "engines: 10001 is above 10000"),
        ({"engines": True}, "engines: True is no whole number"),
        (
            {"engines": 2, "dispatch": "best"},
            "--dispatch: 'best' is not a dispatch rule; known: random, round-robin, token-queue",
        ),
        ({"engines": 2, "log": True}, "--batch-log: one log holds the batches of one engine"),
    ],
)
def test_clusters_that_are_none(options, fault):
    with pytest.raises(InvalidInput, match=fault):
        simulate(ENGINE, SARATHI, poisson(10), horizon=5, **options)


@pytest.mark.parametrize("rule", ["sarathi", "orca", "vllm-chunked", "tensorrt-llm", "vllm-vanilla"])
@pytest.mark.parametrize("load", [1, Fraction(1001, 1000)])
def test_no_rule_is_called_stable_under_a_regular_stream_at_its_limit(rule, load):
    """One seat: a request of 10 + 4 tokens takes five batches of 20 ms, whatever the rule, and no batch is full."""
    engine = Engine(batch_time=Staircase(c="10 ms", a="10 ms", b0=16), b_max=16, k_max=1)
    arrivals = DeterministicArrivals(interval=Fraction(1, 10) / load)
    workload = Workload.of(prefill=10, decode=4, arrivals=arrivals)
    for horizon in (30, 300):
        found = simulate(engine, rule, workload, horizon=horizon)
        assert found.measured.verdict is not Verdict.STABLE
        assert found.contradiction is None


def test_a_workload_whose_arrivals_are_a_trace_is_its_replay():
    trace = trace_of([10 * index for index in range(50)])
    workload = Workload.of(prefill=1, decode=1).with_arrivals(TraceArrivals(trace=trace))
    for asked in (None, "paper", "engine"):
        found = simulate(ENGINE, SARATHI, workload, first_token=asked)
        assert found.to_dict() == simulate_trace(ENGINE, SARATHI, trace, first_token=trace.convention(asked)).to_dict()
    read_by_the_paper = attrs.evolve(trace, first_token="paper")
    assert read_by_the_paper.convention("engine") == "paper"
    assert attrs.evolve(trace, first_token="as given").convention() == "engine"
    assert attrs.evolve(trace, first_token="as given").convention("paper") == "paper"
    with pytest.raises(InvalidInput, match="replications: a replayed trace is one run"):
        simulate(ENGINE, SARATHI, workload, replications=2)
