"""Thresholds and drifts by simulation: against closed forms, exact chains, published fractions; what they refuse."""

import math
from fractions import Fraction

import attrs
import numpy as np
import pytest

from queuetheory_llm.errors import InfeasibleRequest, InvalidInput
from queuetheory_llm.model.arrivals import DeterministicArrivals, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Empirical, Geometric, ObservedLengths, Uniform
from queuetheory_llm.model.trace import Trace, TraceArrivals
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.schedulers.policy import Batch
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.rate_search import search_rate
from queuetheory_llm.simulation.thresholds import (
    METHODS,
    SimulatedThreshold,
    simulated_drifts,
    simulated_threshold,
    solver_of,
)
from queuetheory_llm.stability.induced import DriftBounds, induced_drifts, induced_threshold
from queuetheory_llm.stability.thresholds import threshold
from queuetheory_llm.verdict import Basis, Verdict

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
A100 = Engine(batch_time=CODELLAMA, b_max=512)
SEATED = Engine(batch_time=CODELLAMA, b_max=1024, k_max=100)
CHAT = Workload.of(prefill=129, decode=112)
C = Fraction(400, 187)
_Q = 1 - Fraction(1, 290)
#: Geometric prompts that fit a batch: those beyond 1024 tokens are cut to it.
CUT = Empirical(values=range(1, 1025), weights=[*(_Q**k for k in range(1023)), _Q**1023 * 290])
CUT = Empirical(values=CUT.values, weights=[f"{float(weight):.12g}" for weight in CUT.weights])
_T_99 = 3.2498  # two-sided 99 % point of Student's t with 9 degrees of freedom


class TestThresholds:
    @pytest.mark.parametrize(
        ("engine", "rule", "workload", "edge"),
        [
            (A100, "vllm-vanilla", CHAT, 10.49729),
            (A100, "fastertransformer", CHAT, 75_000 / 134_729),
            (A100, "sarathi", CHAT, 12_800_000 / 922_789),
            (SEATED, "vllm-vanilla", Workload.of(prefill=290, decode=990), 0.80866 * C),
            (SEATED, "fastertransformer", Workload.of(prefill=290, decode=990), 0.030134 * C),
            (SEATED, "orca", Workload.of(prefill=290, decode=990), 0.82384 * C),
            (SEATED, "sarathi", Workload.of(prefill=290, decode=Geometric(mean=990)), 0.82308 * C),
        ],
    )
    def test_what_is_known_lies_inside(self, engine, rule, workload, edge):
        found = simulated_threshold(engine, rule, workload)
        assert found.low < edge < found.high
        assert found.high - found.low <= 0.01 * found.high
        assert found.falling.high < 0 < found.growing.low
        assert found.confidence == 0.99
        assert (found.method, found.scheduler) == ("simulation", rule)

    @pytest.mark.parametrize(
        ("rule", "workload", "share"),
        [
            ("sarathi", Workload.of(prefill=290, decode=990), 0.8245),  # from empty
            ("orca", Workload.of(prefill=Geometric(mean=290), decode=Geometric(mean=990)), 0.8505),
            ("sarathi", Workload.of(prefill=Geometric(mean=290), decode=Geometric(mean=990)), 0.850),
            ("vllm-vanilla", Workload.of(prefill=CUT, decode=Geometric(mean=990)), 0.8229),
            ("fastertransformer", Workload.of(prefill=CUT, decode=Geometric(mean=990)), 0.0174),
        ],
    )
    def test_published_fractions_of_vertex_c(self, rule, workload, share):
        """They are known within .5 % of themselves."""
        found = simulated_threshold(SEATED, rule, workload)
        assert found.low < share * 1.005 * C
        assert found.high > share * 0.995 * C
        assert found.high - found.low <= 0.01 * found.high

    def test_verdicts_stand_on_the_runs_outside_the_interval(self):
        found = simulated_threshold(A100, "vllm-vanilla", CHAT)
        verdicts = [(found.judge(rate).verdict, found.judge(rate).basis) for rate in ("10.4", "10.5", "10.6")]
        simulated = Basis.SIMULATION
        assert verdicts == [(Verdict.STABLE, simulated), (Verdict.UNDECIDED, None), (Verdict.UNSTABLE, simulated)]
        data = found.to_dict()
        assert (data["method"], data["confidence"]) == ("simulation", 0.99)
        assert data["low"] < 10.497 < data["high"]
        assert data["drift_at_low"]["high"] < 0 < data["drift_at_high"]["low"]
        assert any("theory: stable below 10.4972 " in note for note in found.notes)

    def test_the_same_seed_gives_the_same_interval_and_another_one_overlaps(self):
        first, again, other = (simulated_threshold(A100, "fastertransformer", CHAT, seed=seed) for seed in (3, 3, 4))
        assert first == again
        assert first.low != other.low
        assert max(first.low, other.low) < min(first.high, other.high)

    def test_heavy_tails(self):
        from queuetheory_llm.model.lengths import LogNormal

        lengths = {"prefill": LogNormal(scale_mean=129, cv=3), "decode": LogNormal(scale_mean=112, cv=3)}
        workload = Workload.of(**lengths)
        found = simulated_threshold(A100, "sarathi", workload)
        assert found.low < float(threshold(A100, "sarathi", workload).low) < found.high

    def test_without_time_to_run_the_bounds_of_theory_stand(self):
        bounds = threshold(SEATED, "sarathi", Workload.of(prefill=290, decode=990))
        found = simulated_threshold(SEATED, "sarathi", Workload.of(prefill=290, decode=990), max_requests=1)
        assert (found.low, found.high, found.confidence) == (bounds.low, bounds.high, None)
        assert "is not confirmed" in found.notes[0]
        assert found.judge(2.2).basis is Basis.THEOREM

    def test_replications_that_never_agree(self):
        """Short pieces of prompts under k_max: which decodes share a batch is settled by chance, once and for all."""
        engine, rule = attrs.evolve(A100, k_max=40), "vllm-chunked+threshold=48"
        bounds, found = threshold(engine, rule, CHAT), simulated_threshold(engine, rule, CHAT)
        assert (found.low, found.high, found.confidence) == (bounds.low, bounds.high, None)
        assert "depends on the start" in found.notes[0]
        chained = induced_threshold(engine, rule, CHAT)
        assert bounds.low <= chained.low < 0.9 * chained.high
        assert chained.high <= bounds.high

    def test_it_is_drawn(self):
        found = simulated_threshold(A100, "fastertransformer", CHAT)
        assert isinstance(found, SimulatedThreshold)
        assert "0.55" in found.plot().texts[0].get_text()


class TestRegularArrivals:
    def test_nothing_random_is_left_and_the_interval_still_has_a_width(self):
        """One request each 1/r s, lengths constant: replications differ in where their windows begin alone."""
        workload = CHAT.with_arrivals(DeterministicArrivals(interval="1 s"))
        found = simulated_threshold(A100, "vllm-vanilla", workload)
        for rate, sign in ((0.97 * found.low, -1), (1.03 * found.high, 1)):
            assert simulated_drifts(A100, "vllm-vanilla", workload, rate).decodes.sign == sign
        regular = simulated_threshold(A100, "sarathi", workload)
        assert regular.low < float(threshold(A100, "sarathi", workload).low) < regular.high


class TestTraces:
    def trace(self, rows=2_000):
        rng = np.random.default_rng(5)
        bursts = np.where(np.arange(rows) // 200 % 2, 3.0, 0.5)
        arrivals = np.cumsum(rng.exponential(1e8, rows) * bursts).astype(np.int64)
        lengths = ObservedLengths(rng.integers(1, 400, rows), rng.geometric(1 / 100, rows))
        found = Trace(lengths=lengths, arrivals=arrivals, tick=Fraction(1, 10**9), source="x.csv", format="plain",
                      first_token="paper")  # fmt: skip
        return Workload(classes=(RequestClass(lengths=found.lengths),), arrivals=TraceArrivals(trace=found))

    def test_a_filling_rule_carries_full_batches_of_a_repeated_trace(self):
        workload = self.trace()
        found = simulated_threshold(A100, "sarathi", workload)
        assert found.low < float(threshold(A100, "sarathi", workload).low) < found.high
        assert found.high - found.low <= 0.01 * found.high
        assert any("2000 requests are repeated end to end" in note for note in found.notes)
        rate = float(workload.rate)
        assert found.notes[-1] == (
            f"that is {float(found.low) / rate:.4g} .. {float(found.high) / rate:.4g} times the rate of the trace"
        )

    def test_another_rule_carries_less(self):
        workload = self.trace()
        found = simulated_threshold(A100, "vllm-vanilla", workload)
        bounds = threshold(A100, "vllm-vanilla", workload)
        assert bounds.low < found.low < found.high < bounds.high


def _systems(count):
    """Small systems with random lengths, drawn once."""
    rng = np.random.default_rng(20)
    rules = ["sarathi", "orca", "vllm-vanilla", "fastertransformer", "vllm-chunked", "tensorrt-llm", "sglang",
             "orca-whole", "sarathi+threshold=2"]  # fmt: skip
    for index in range(count):
        b_max, k_max = int(rng.integers(4, 8)), int(rng.integers(2, 5))
        law = Staircase(c=Fraction(int(rng.integers(0, 4)), 4), a=Fraction(int(rng.integers(1, 5)), 4),
                        b0=int(rng.integers(1, 5)))  # fmt: skip
        prefill = Uniform(low=1, high=int(rng.integers(2, 5)))
        decode = Geometric(mean=3) if index % 2 else Uniform(low=1, high=int(rng.integers(2, 6)))
        yield (
            Engine(batch_time=law, b_max=b_max, k_max=k_max),
            rules[index % 9],
            Workload.of(prefill=prefill, decode=decode),
        )


class TestDrifts:
    @pytest.mark.parametrize(("engine", "rule", "workload"), list(_systems(9)))
    def test_exact_chains_within_four_standard_errors(self, engine, rule, workload):
        edge = float(induced_threshold(engine, rule, workload).low)
        for rate in (0.9 * edge, 1.05 * edge):
            exact = induced_drifts(engine, rule, workload, rate)
            measured = simulated_drifts(engine, rule, workload, rate)
            pairs = [*zip(exact.interior, measured.interior, strict=True), (exact.prompts, measured.prompts),
                     (exact.decodes, measured.decodes)]  # fmt: skip
            for one, two in pairs:
                if one is not None:
                    error = float(two.high - two.low) / 2 / _T_99
                    assert abs(one.mean - two.mean) <= 4 * error
            assert measured.verdict in (exact.verdict, Verdict.UNDECIDED)
            assert measured.judgement.basis in (Basis.SIMULATION, None)

    @pytest.mark.parametrize(("engine", "rule", "workload"), list(_systems(9))[::2])
    def test_thresholds_of_exact_chains_lie_inside(self, engine, rule, workload):
        edge = float(induced_threshold(engine, rule, workload).low)
        found = simulated_threshold(engine, rule, workload, width=0.03)
        assert found.low < edge
        # A rule that fills reaches the bound of theory that the search keeps to, but for rounding.
        assert edge < found.high or edge == pytest.approx(float(found.high), rel=1e-12)

    def test_codellama(self):
        found = simulated_drifts(A100, "vllm-vanilla", CHAT, 13)
        assert found.decodes.low < 664.03 < found.decodes.high
        assert found.prompts is None
        assert found.verdict is Verdict.UNSTABLE
        assert found.method == "simulation"
        assert found.confidence == 0.99

    def test_constant_decodes_under_a_batch_size_are_said_to_depend_on_the_start(self):
        found = simulated_drifts(SEATED, "sarathi", Workload.of(prefill=290, decode=990), 0.83 * C, requests=500)
        assert any("depends on the start" in note for note in found.notes)


@attrs.frozen
class OneByOne:
    """A rule of one's own: the oldest request alone, its prompt whole."""

    name: str = "one-by-one"

    def form(self, view):
        if view.decoding:
            return Batch([], [view.decoding[0]])
        return Batch([(view.prefilling[0], view.prefill_left[view.prefilling[0]])], [])


def test_a_rule_of_ones_own():
    """t = 1 s for every batch: a request of 3 + 1 tokens takes two of them."""
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
    workload = Workload.of(prefill=3, decode=1)
    found = simulated_threshold(engine, OneByOne(), workload, width=0.2)
    assert found.low < Fraction(1, 2) < found.high
    assert found.high - found.low <= 0.2 * found.high


class TestRefusals:
    @pytest.mark.parametrize(
        ("changed", "complaint"),
        [
            ({"width": 0.0}, "width: 0 is outside"),
            ({"width": math.nan}, "width: nan is outside"),
            ({"confidence": 1.0}, "confidence: 1 is outside"),
            ({"seed": -1}, "seed: -1 is no whole number"),
            ({"seed": True}, "seed: True is no whole number"),
            ({"max_requests": 0}, "max_requests: 0 is no whole number from 1 on"),
        ],
    )
    def test_arguments_out_of_range(self, changed, complaint):
        with pytest.raises(InvalidInput, match=complaint):
            simulated_threshold(A100, "sarathi", CHAT, **changed)

    @pytest.mark.parametrize(
        ("changed", "complaint"),
        [
            ({"seed": -1}, "seed: -1 is no whole number"),
            ({"seed": 1.5}, "seed: 1.5 is no whole number"),
            ({"confidence": 2}, "confidence: 2 is outside"),
            ({"confidence": math.nan}, "confidence: nan is outside"),
            ({"requests": -5}, "requests: -5 is no whole number from 1 on"),
            ({"requests": 1.5}, "requests: 1.5 is no whole number from 1 on"),
        ],
    )
    def test_arguments_of_drifts_out_of_range(self, changed, complaint):
        with pytest.raises(InvalidInput, match=complaint):
            simulated_drifts(A100, "sarathi", CHAT, 1, **changed)

    def test_every_fault_has_its_line(self):
        with pytest.raises(InvalidInput) as caught:
            simulated_threshold(A100, "sarathi", CHAT, width=2, confidence=0.1, seed=-1)
        assert len(caught.value.faults) == 3

    def test_an_overload_that_is_none(self):
        with pytest.raises(InvalidInput, match="overload: 0 is not positive"):
            search_rate(A100, parse_scheduler("sarathi"), CHAT, overload=0)

    def test_a_prompt_beyond_the_budget(self):
        small = attrs.evolve(A100, b_max=128)
        for ask in (simulated_threshold, lambda *system: simulated_drifts(*system, 1)):
            with pytest.raises(InfeasibleRequest, match="vllm-vanilla"):
                ask(small, "vllm-vanilla", CHAT)

    def test_drifts_need_a_rate_and_two_phases(self):
        with pytest.raises(InvalidInput, match="rate: 0 is not positive"):
            simulated_drifts(A100, "sarathi", CHAT, 0)
        with pytest.raises(InvalidInput, match="one phase alone"):
            simulated_drifts(A100, "sarathi", Workload.of(prefill=0, decode=3), 1)

    def test_an_unknown_method(self):
        with pytest.raises(InvalidInput, match="--method: 'guess' is not known; use auto, theorem, induced, simulate"):
            solver_of("guess")
        assert [solver_of(name) is None for name in METHODS] == [True, True, False, False]


def test_induced_falls_back_on_runs_and_says_why():
    workload = Workload.of(prefill=Uniform(low=0, high=9), decode=4, arrivals=PoissonArrivals(rate=1))
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=12, k_max=3)
    solver = solver_of("induced", width=0.1)
    assert solver is not None
    found = solver(engine, parse_scheduler("sarathi"), workload)
    assert isinstance(found, SimulatedThreshold)
    assert found.notes[0].startswith("by simulation: requests without a prompt skip a queue")
    chained = solver(
        engine, parse_scheduler("sarathi"), Workload.of(prefill=Uniform(low=1, high=9), decode=Geometric(mean=4))
    )
    assert chained.exact


def test_the_sign_of_a_measured_drift_is_unknown_when_its_interval_holds_0():
    assert DriftBounds(low=-0.1, high=0.2).sign is None
