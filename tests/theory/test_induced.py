"""Drifts by induced chains: against closed forms, the prefill-first chain, published thresholds, slotted oracles."""

from fractions import Fraction
from itertools import product
from math import comb, exp, factorial

import attrs
import numpy as np
import pytest

from queuetheory_llm.errors import AssumptionViolated, InfeasibleRequest, InvalidInput, NotConverged
from queuetheory_llm.markov.explore import Limits
from queuetheory_llm.markov.space import Moves
from queuetheory_llm.model.arrivals import DeterministicArrivals, PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.chances import memoryless_decode, request_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Empirical, Geometric, IndependentLengths, Poisson, Uniform
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.schedulers.policy import Batch
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.stability import saturated
from queuetheory_llm.stability.induced import (
    DriftBounds,
    InducedChains,
    InducedDrifts,
    induced_drifts,
    induced_threshold,
)
from queuetheory_llm.stability.prefill_first import PrefillFirst
from queuetheory_llm.stability.saturated import TAIL, Plenty, SaturatedEngine
from queuetheory_llm.stability.thresholds import threshold
from queuetheory_llm.verdict import Basis, Verdict

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
A100 = Engine(batch_time=CODELLAMA, b_max=512)
SEATED = Engine(batch_time=CODELLAMA, b_max=1024, k_max=100)
CHAT = Workload.of(prefill=129, decode=112)
VERTEX = Workload.of(prefill=290, decode=990)
SLOT = Engine(batch_time=Staircase(c=0, a=1, b0=2), b_max=2)
SMALL = Engine(batch_time=Staircase(c="300 ms", a="500 ms", b0=3), b_max=7, k_max=3)


def chain(engine, rule, workload, plenty):
    return SaturatedEngine(engine=engine, scheduler=parse_scheduler(rule), lengths=workload, plenty=plenty)


class TestAgainstClosedForms:
    def test_the_three_drifts_of_vanilla_vllm(self):
        found = induced_drifts(A100, "vllm-vanilla", CHAT, 13)
        prompts = 387 / CODELLAMA.seconds(387)
        assert found.interior[0].low == found.interior[0].high == 13 * 129 - prompts
        assert found.interior[1].low == prompts / 129 * 112
        assert found.prompts is None
        assert found.decodes.mean / 1000 == pytest.approx(0.664, abs=5e-4)  # tokens/ms
        assert (found.verdict, found.judgement.basis) == (Verdict.UNSTABLE, Basis.FLUID)
        assert induced_drifts(A100, "vllm-vanilla", CHAT, "10.4").verdict is Verdict.STABLE

    @pytest.mark.parametrize("chunks", [False, True])
    @pytest.mark.parametrize("rate", [0.3, 0.8])
    def test_the_prefill_first_chain(self, chunks, rate):
        for engine, prompt in ((SMALL, 3), (attrs.evolve(SMALL, k_max=None), 2), (attrs.evolve(SMALL, b_max=4), 4)):
            system = PrefillFirst(engine, prompt, chunks)
            asked = rate * system.prefill_rate
            found = chain(engine, "sglang" if chunks else "vllm-vanilla", Workload.of(prefill=prompt, decode=5),
                          Plenty.DECODES).beside_decodes(asked)  # fmt: skip
            assert found.decode == pytest.approx(system.decode_rate(asked), rel=1e-9)
            assert found.prompts == pytest.approx(asked, rel=1e-9)  # the prompts are in balance

    @pytest.mark.parametrize("rule", ["vllm-vanilla", "sglang"])
    def test_the_thresholds_of_prefill_first_rules(self, rule):
        workload = Workload.of(prefill=3, decode=4)
        found, known = induced_threshold(SMALL, rule, workload), threshold(SMALL, rule, workload)
        assert found.low == found.high == pytest.approx(known.low, rel=1e-9)

    def test_codellama(self):
        assert induced_threshold(A100, "vllm-vanilla", CHAT).low == pytest.approx(10.497, abs=5e-4)
        found = induced_threshold(A100, "fastertransformer", CHAT)
        assert found.low == Fraction(75_000, 134_729) == threshold(A100, "fastertransformer", CHAT).low
        assert found.binding == "b_max"

    @pytest.mark.parametrize("rule", ["sarathi", "vllm-chunked", "sarathi+target=5"])
    def test_filling_rules_carry_full_batches(self, rule):
        engine, workload = attrs.evolve(SMALL, k_max=None), Workload.of(prefill=3, decode=4)
        assert induced_threshold(engine, rule, workload).low == threshold(engine, rule, workload).low

    def test_a_prefill_first_filling_rule_carries_full_batches(self):
        engine, workload = attrs.evolve(SMALL, k_max=None), Workload.of(prefill=3, decode=4)
        assert induced_threshold(engine, "orca", workload).low == pytest.approx(
            float(threshold(engine, "orca", workload).low), rel=1e-9
        )

    @pytest.mark.parametrize("decode", [Geometric(mean=4), Uniform(low=1, high=7), Empirical(values=[1, 7])])
    def test_rounds_of_random_decodes(self, decode):
        workload = Workload.of(prefill=3, decode=decode)
        for rule in ("fastertransformer", "static"):
            found, known = induced_threshold(SMALL, rule, workload), threshold(SMALL, rule, workload)
            assert found.low == found.high == pytest.approx(float(known.low), rel=1e-9)

    @pytest.mark.parametrize(
        ("rule", "prompt", "edge"),
        [("vllm-vanilla", 1, 2 / 3), ("fastertransformer", 1, 1.0), ("vllm-vanilla", 2, 2 / 3), ("sarathi", 2, 2 / 3),
         ("orca", 2, 2 / 3), ("fastertransformer", 2, 1 / 2)],
    )  # fmt: skip
    def test_slotted_oracles(self, rule, prompt, edge):
        """One batch of two tokens a slot, Bernoulli(p) arrivals of 1 + 1 or 2 + 1 tokens."""
        arrivals = SlottedArrivals(slot="1 s", law="bernoulli", mean="0.4")
        workload = Workload.of(prefill=prompt, decode=1, arrivals=arrivals)
        assert float(induced_threshold(SLOT, rule, workload).low) == pytest.approx(edge, rel=1e-8)

    def test_rates_beyond_one_request_a_slot_are_not_asked_for(self):
        """Four tokens a slot, Bernoulli(p) arrivals: a prompt takes a slot of its own, (1 - p) 4 decodes are left."""
        arrivals = SlottedArrivals(slot="1 s", law="bernoulli", mean="0.4")
        workload = Workload.of(prefill=1, decode=1, arrivals=arrivals)
        machine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
        assert float(induced_threshold(machine, "vllm-vanilla", workload).low) == pytest.approx(4 / 5, rel=1e-8)

    def test_orca_under_a_batch_size(self):
        """290 + 990 tokens, k_max = 100: direct bisection has .8245 of vertex C, known within .5 %."""
        found = induced_threshold(SEATED, "orca", VERTEX)
        assert found.low == found.high
        assert found.low * 0.4675 == pytest.approx(0.8245, rel=5e-3)
        assert found.binding == "k_max"

    def test_a_target_of_one_block_holds_vertex_c(self):
        (found,) = chain(attrs.evolve(SEATED, b_max=128), "sarathi", VERTEX, Plenty.PROMPTS).classes()
        assert found.prompts == Fraction(400, 187)


class TestReducible:
    def test_constant_decodes_under_a_batch_size(self):
        """Ages fully staggered: each request has one batch of (290, 99), and 991/100 batches in all."""
        chains = InducedChains.of(SEATED, "sarathi", VERTEX)
        found = chains.threshold()
        assert found.low == 1 / (Fraction(991, 100) * Fraction("0.04675") + Fraction("0.10641"))
        assert 0.85 < found.high * Fraction(187, 400) < 0.89
        assert "depends on the start" in found.method
        inside = found.judge(0.83 * 400 / 187)
        assert (inside.verdict, inside.basis) == (Verdict.UNDECIDED, None)
        assert found.judge(0.8 * 400 / 187).verdict is Verdict.STABLE
        assert found.judge(0.9 * 400 / 187).verdict is Verdict.UNSTABLE
        drifts = chains.drifts(0.83 * 400 / 187)
        assert drifts.verdict is Verdict.UNDECIDED
        assert drifts.prompts.low < 0 < drifts.prompts.high
        assert "range over the starts tried" in drifts.notes[0]
        assert drifts.to_dict()["method"] == "chains"

    def test_random_decodes_mix(self):
        for decode in (Geometric(mean=6), Empirical(values=[5, 6, 7])):
            found = induced_threshold(SMALL, "sarathi", Workload.of(prefill=3, decode=decode))
            assert found.low == found.high


def long_run(step, start):
    """Long-run (prompts, prefill, decode) per second of step(state) -> [(chance, state, seconds, what is served)]."""
    states, rows = [start], []
    for state in states:
        for chance, target, seconds, served in step(state):
            if target not in states:
                states.append(target)
            rows.append((states.index(state), states.index(target), chance, seconds, *served))
    source, target, chance, *earned = np.array(rows).T
    balance = -np.eye(len(states))
    np.add.at(balance, (target.astype(int), source.astype(int)), chance)
    balance[0] = 1
    law = np.linalg.solve(balance, np.eye(len(states))[0])
    seconds, *served = [law[source.astype(int)] @ (chance * each) for each in earned]
    return [each / seconds for each in served]


def takes(law, room, seats, *, chunks, first=0):
    """What endless prompts give to a batch: (chance, tokens, prompts completed, tokens left of the last one begun).

    ``first``: tokens left of the one begun before.
    """
    if not room or not seats:
        return [(1.0, 0, 0, first)]
    found = []
    for length, chance in [(first, 1.0)] if first else law.items():
        if length <= room:
            rest = takes(law, room - length, seats - 1, chunks=chunks)
            found += [(chance * p, length + tokens, 1 + done, left) for p, tokens, done, left in rest]
        else:
            found.append((chance, room, 0, length - room) if chunks else (chance, 0, 0, length))
    return found


CUT = {1: 8 / 15, 2: 4 / 15, 3: 2 / 15, 4: 1 / 15}  # geometric, cut at 4
EVEN = {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}
PROMPTS = [
    (CUT, Empirical(values=[1, 2, 3, 4], weights=[8, 4, 2, 1])),
    (EVEN, Uniform(low=2, high=4)),
]


class TestRandomPrompts:
    """Against chains written for the rule, and solved by linear algebra."""

    @pytest.mark.parametrize("large", [False, True])
    @pytest.mark.parametrize(("law", "prompts"), PROMPTS)
    def test_sarathi_with_endless_prompts(self, law, prompts, large, monkeypatch):
        """The tokens left of the prompt begun, and the decodes in progress, each of which ends with chance 1/3."""
        if large:  # as chains of many states are explored and solved
            monkeypatch.setattr(saturated, "_COLD", Limits(2, 2))
            monkeypatch.setattr(saturated, "_DIRECT", 1)

        def step(state):
            begun, decodes = state
            for chance, tokens, done, left in takes(law, SMALL.b_max - decodes, 3 - decodes, chunks=True, first=begun):
                seconds = float(SMALL.batch_time.seconds(tokens + decodes))
                for ended in range(decodes + 1):
                    ends = comb(decodes, ended) * 2 ** (decodes - ended) / 3**decodes
                    yield chance * ends, (left, decodes - ended + done), seconds, (done, tokens, decodes)

        (found,) = chain(
            SMALL, "sarathi", Workload.of(prefill=prompts, decode=Geometric(mean=3)), Plenty.PROMPTS
        ).classes()
        assert (found.prompts, found.prefill, found.decode) == pytest.approx(long_run(step, (0, 0)), rel=1e-10)

    @pytest.mark.parametrize(("law", "prompts"), PROMPTS)
    def test_vanilla_vllm_beside_endless_decodes(self, law, prompts):
        """The prompt that did not fit, and how many wait behind it, up to 40; it takes whole prompts up to 7 tokens."""
        rate, most = 0.35, 40

        def batches(head, waiting):
            if not head and not waiting:
                return [(1.0, 0, 0, 0)]
            lengths = {head: 1.0} if head else law
            return [
                (chance * p, *rest)
                for length, p in lengths.items()
                for chance, *rest in fill(length, waiting - (not head))
            ]

        def fill(head, waiting, room=7, seats=3, tokens=0, done=0):
            """From a prompt looked at on: (chance, tokens, prompts taken, the prompt left over, those behind it)."""
            if head > room or not seats:
                return [(1.0, tokens, done, head, waiting)]
            served = (room - head, seats - 1, tokens + head, done + 1)
            if not waiting or not served[0] or not served[1]:
                return [(1.0, *served[2:], 0, waiting)]
            return [
                (p * chance, *rest) for length, p in law.items() for chance, *rest in fill(length, waiting - 1, *served)
            ]

        def step(state):
            for chance, tokens, done, head, *behind in batches(*state):
                decodes = 0 if tokens else 3
                seconds = float(SMALL.batch_time.seconds(tokens + decodes))
                left = behind[0] if behind else 0
                come = [exp(-rate * seconds) * (rate * seconds) ** j / factorial(j) for j in range(25)]
                for j, p in enumerate(come):
                    yield chance * p, (head, min(left + j, most)), seconds, (done, tokens, decodes)

        workload = Workload.of(prefill=prompts, decode=5)
        found = chain(SMALL, "vllm-vanilla", workload, Plenty.DECODES).beside_decodes(rate)
        assert (found.prompts, found.prefill, found.decode) == pytest.approx(long_run(step, (0, 0)), rel=1e-9)
        assert found.prompts == pytest.approx(rate, rel=1e-9)

    @pytest.mark.parametrize("rule", ["sarathi", "vllm-chunked", "fastertransformer", "tensorrt-llm"])
    def test_both_explorers_find_one_chain(self, rule):
        for prompts, decode, k_max in product((3, Uniform(low=1, high=4)), (Geometric(mean=3), 2), (2, 4)):
            workload = Workload.of(prefill=prompts, decode=decode)
            system = chain(attrs.evolve(SMALL, k_max=k_max), rule, workload, Plenty.PROMPTS)
            plain, compiled = system._explored([State()], 0), system._explored_compiled()
            assert list(plain.space.cores) == list(compiled.space.cores)
            for field in ("first", "known", "tokens"):
                np.testing.assert_array_equal(getattr(plain.space, field), getattr(compiled.space, field))
            assert plain.begun.tolist() == compiled.begun.tolist()
            for field in attrs.fields_dict(Moves):
                np.testing.assert_array_equal(getattr(plain.space.moves, field), getattr(compiled.space.moves, field))


class TestSigns:
    def test_at_the_edge_the_verdict_is_critical(self):
        edge = induced_threshold(A100, "fastertransformer", CHAT).low
        assert induced_drifts(A100, "fastertransformer", CHAT, edge).verdict is Verdict.CRITICAL

    def test_a_numerical_drift_is_never_exactly_critical(self):
        edge = induced_threshold(SMALL, "vllm-vanilla", Workload.of(prefill=3, decode=4)).low
        assert (
            induced_drifts(SMALL, "vllm-vanilla", Workload.of(prefill=3, decode=4), edge).verdict is Verdict.UNDECIDED
        )

    @pytest.mark.parametrize("growth", [1e-9, -1e-9])
    def test_a_growth_of_decodes_within_the_error_decides_nothing(self, growth, monkeypatch):
        """The threshold asks the same sign as the drifts do."""
        chains = InducedChains.of(SMALL, "vllm-vanilla", Workload.of(prefill=3, decode=4))
        monkeypatch.setattr(InducedChains, "decode_growth", growth)
        assert chains.drifts(1e-3).interior[1].sign is None
        with pytest.raises(NotConverged, match="cannot be told from 0"):
            chains.threshold()

    def test_a_drift_outward_is_unstable(self):
        assert induced_drifts(A100, "vllm-vanilla", CHAT, 20).decodes is None
        assert induced_drifts(A100, "vllm-vanilla", CHAT, 20).verdict is Verdict.UNSTABLE

    @pytest.mark.parametrize(
        ("drift", "sign"),
        [(DriftBounds(low=-2, high=-1), -1), (DriftBounds(low=1, high=2), 1),
         (DriftBounds(low=Fraction(0), high=Fraction(0)), 0),
         (DriftBounds(low=-1, high=1), None), (DriftBounds(low=0.5, high=0.5, negligible=0.6), None)],
    )  # fmt: skip
    def test_the_sign_of_a_drift(self, drift, sign):
        assert drift.sign == sign

    def test_data_and_figure(self):
        found = induced_drifts(A100, "vllm-vanilla", CHAT, 10)
        data = found.to_dict()
        assert data["verdict"] == "STABLE"
        assert data["basis"] == "fluid"
        assert data["decodes_plentiful"]["mean"] < 0
        arrows = [text.get_text() for text in found.plot().texts if text.get_text()]
        assert len(arrows) == 2
        assert isinstance(found, InducedDrifts)


class TestLaws:
    def test_memoryless_means_geometric_of_one_mean(self):
        geometric = IndependentLengths(2, Geometric(mean=3))
        assert memoryless_decode(geometric) == 3
        assert memoryless_decode(Workload(classes=[RequestClass(lengths=geometric)])) == 3
        assert memoryless_decode(IndependentLengths(2, 3)) is None
        other = RequestClass(lengths=IndependentLengths(1, Geometric(mean=4)), name="b")
        assert memoryless_decode(Workload(classes=[RequestClass(lengths=geometric), other])) is None

    def test_one_state_stands_for_a_geometric_decode(self):
        """The same law cut at a tail below 1e-12 and written out, an age at a time."""
        cut = Empirical(values=range(1, 21), weights=[Fraction(1, 4) ** k for k in range(20)])
        ends = []
        for decode in (Geometric(mean="4/3"), cut):
            workload = Workload.of(prefill=2, decode=decode)
            machine = attrs.evolve(SMALL, k_max=2)
            ends.append(chain(machine, "sarathi", workload, Plenty.PROMPTS).classes()[0].prompts)
        assert ends[0] == pytest.approx(ends[1], rel=1e-10)


@attrs.frozen
class Longest:
    """A rule that serves the phase with the longer queue."""

    name: str = "longest"

    def form(self, view):
        if len(view.decoding) >= len(view.prefilling):
            return Batch([], list(view.decoding)[: view.b_max])
        return Batch([(view.prefilling[0], 1)], [])


@attrs.frozen
class YoungestDecodes:
    """Decodes only, the latest first; prompts alone where there are none, one token at a time."""

    name: str = "youngest"

    def form(self, view):
        if view.decoding:
            return Batch([], list(view.decoding)[-2:])
        return Batch([(view.prefilling[0], 1)], [])


class TestOwnRules:
    def test_a_rule_outside_the_policies(self):
        """A token each second: 3 for the prompt, then 4 batches of one decode: nothing overlaps."""
        engine = Engine(batch_time=Table(tokens=[4], seconds_at=["1 s"]), b_max=4)
        found = induced_threshold(engine, YoungestDecodes(), Workload.of(prefill=3, decode=4))
        assert found.low == found.high == Fraction(1, 7)
        drifts = induced_drifts(engine, YoungestDecodes(), Workload.of(prefill=3, decode=4), Fraction(1, 8))
        for notes in (found.notes, drifts.notes):
            assert any("youngest is taken to form its batches whatever" in note for note in notes)
        assert not induced_threshold(A100, "fastertransformer", CHAT).notes

    def test_a_rule_that_weighs_its_backlogs_has_no_drift_of_its_own(self):
        with pytest.raises(AssumptionViolated, match="longest forms its batches by how long the backlogs are"):
            induced_threshold(SMALL, Longest(), Workload.of(prefill=3, decode=4))


class TestRefusals:
    @pytest.mark.parametrize("rate", [0, -1])
    def test_a_rate_that_is_none(self, rate):
        with pytest.raises(InvalidInput, match=r"rate: .* is not positive"):
            induced_drifts(A100, "sarathi", CHAT, rate)

    def test_a_prompt_beyond_the_budget(self):
        with pytest.raises(InfeasibleRequest, match="can never run under vllm-vanilla"):
            induced_threshold(attrs.evolve(A100, b_max=128), "vllm-vanilla", CHAT)

    def test_requests_without_a_prompt(self):
        with pytest.raises(AssumptionViolated, match="requests without a prompt"):
            induced_threshold(SMALL, "sarathi", Workload.of(prefill=Uniform(low=0, high=2), decode=4))

    def test_arrivals_that_remember(self):
        regular = Workload.of(prefill=3, decode=4, arrivals=DeterministicArrivals(interval="1 s"))
        with pytest.raises(AssumptionViolated, match="needs Poisson or slotted arrivals, not deterministic"):
            induced_threshold(SMALL, "vllm-vanilla", regular)
        poisson = regular.with_arrivals(PoissonArrivals(rate=1))
        assert (
            induced_threshold(SMALL, "fastertransformer", regular).low
            == induced_threshold(SMALL, "fastertransformer", poisson).low
        )

    def test_laws_of_too_many_values(self):
        wide = Workload.of(prefill=Geometric(mean=300), decode=4)
        with pytest.raises(NotConverged, match="by simulation"):
            induced_threshold(attrs.evolve(SMALL, batch_time=Hinge(c=1, a=1, b0=2)), "sarathi", wide)
        with pytest.raises(NotConverged, match="more than 400 values"):
            request_law(Workload.of(prefill=Poisson(mean=1000), decode=4), memoryless=True, tail=TAIL)
