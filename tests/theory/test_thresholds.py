"""Thresholds of every rule on one engine: published digits, exact fractions, verdicts at and around the edge."""

import math
from fractions import Fraction

import attrs
import pytest

from queuetheory_llm.errors import InfeasibleRequest
from queuetheory_llm.model.arrivals import DeterministicArrivals, PoissonArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Empirical, Geometric, IndependentLengths, ObservedLengths, Poisson, Uniform
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.schedulers.registry import SCHEDULERS
from queuetheory_llm.stability.answers import capacity
from queuetheory_llm.stability.linear_drift import linear_drift
from queuetheory_llm.stability.prefill_first import PrefillFirst
from queuetheory_llm.stability.thresholds import Threshold, threshold
from queuetheory_llm.verdict import Basis, Verdict

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
SECOND = Staircase(c="30 ms", a="5 ms", b0=64)
CHAT = Workload.of(prefill=129, decode=112)
A100 = Engine(batch_time=CODELLAMA, b_max=512)
SEATED = Engine(batch_time=CODELLAMA, b_max=1024, k_max=100)
FILLING = ["sarathi", "orca", "vllm-chunked", "sglang+mixed", "tensorrt-llm+chunk", "orca-whole+chunk"]


def exact(engine, rule, workload):
    found = threshold(engine, rule, workload)
    assert found.exact, found
    assert found.scheduler == rule
    return found.low


class TestFilling:
    @pytest.mark.parametrize("rule", FILLING)
    def test_codellama(self, rule):
        rate = exact(A100, rule, CHAT)
        assert rate == Fraction(12_800_000, 3829) / 241
        assert f"{float(rate):.3f}" == "13.871"
        assert "Theorem 2" in threshold(A100, rule, CHAT).method

    @pytest.mark.parametrize("rule", FILLING)
    def test_a_budget_that_wastes_a_block(self, rule):
        engine = Engine(batch_time=SECOND, b_max=513)
        assert exact(engine, rule, Workload.of(prefill=100, decode=100)) == Fraction(6840, 200)

    def test_a_target_that_does_not(self):
        engine = Engine(batch_time=SECOND, b_max=513)
        rate = exact(engine, "sarathi+target=512", Workload.of(prefill=100, decode=100))
        assert rate == Fraction(51_200, 7) / 200
        answer = capacity(engine, Workload.of(prefill=100, decode=100), schedulers=["orca", "sarathi+target=512"])
        assert any("+target=512" in note for note in answer.notes)

    def test_only_means_enter(self):
        laws = [112, Geometric(mean=112), Poisson(mean=112), Uniform(low=0, high=224), Empirical(values=[1, 223])]
        rates = {exact(A100, "orca", Workload.of(prefill=129, decode=law)) for law in laws}
        assert rates == {Fraction(12_800_000, 3829) / 241}

    def test_two_classes_sum(self):
        parts = [IndependentLengths(129, 112), IndependentLengths(1000, 20)]
        both = Workload(classes=[RequestClass(lengths=p, weight="0.5", name=str(i)) for i, p in enumerate(parts)])
        f = Fraction(12_800_000, 3829)
        assert exact(A100, "sarathi", both) == f / (Fraction(241 + 1020) / 2)
        single = [exact(A100, "sarathi", Workload(classes=[RequestClass(lengths=p)])) for p in parts]
        assert 1 / exact(A100, "sarathi", both) == sum(1 / rate for rate in single) / 2

    def test_a_threshold_of_its_own_still_fills(self):
        found = threshold(A100, "vllm-chunked+threshold=48", CHAT)
        assert found.low == found.high == Fraction(12_800_000, 3829) / 241
        assert "full once b_max requests are present" in found.method

    @pytest.mark.parametrize("rule", ["sarathi", "orca", "vllm-chunked"])
    def test_under_a_batch_size_only_bounds_are_known(self, rule):
        """290 + 990 tokens, k_max = 100: simulated edges lie at .82 to .89 of the bound of every rule."""
        found = threshold(SEATED, rule, Workload.of(prefill=290, decode=990))
        c = Fraction(400, 187)
        assert found.high == c
        assert found.low < 0.82 * c
        assert found.binding == "k_max"
        judged = found.judge(0.85 * c)
        assert (judged.verdict, judged.basis, judged.load) == (Verdict.UNDECIDED, None, None)

    def test_a_target_of_one_block_does_better_under_a_batch_size(self):
        workload = Workload.of(prefill=290, decode=990)
        plain, one_block = (threshold(SEATED, rule, workload) for rule in ("sarathi", "sarathi+target=128"))
        assert one_block.low > plain.low
        assert one_block.high == plain.high


class TestRounds:
    def test_codellama_as_a_fraction(self):
        # Three prompts of 129 in a batch of 387 tokens, then 112 batches of three.
        rate = Fraction(3) / (Fraction("153.16") / 1000 + 112 * Fraction("46.75") / 1000)
        for rule in ("fastertransformer", "static"):
            assert exact(A100, rule, CHAT) == rate
        assert rate == Fraction(75_000, 134_729)
        assert f"{float(rate):.4f}" == "0.5567"

    def test_a_target_makes_smaller_rounds(self):
        rate = exact(A100, "fastertransformer+target=258", CHAT)
        assert rate == 2 / (CODELLAMA.seconds(258) + 112 * CODELLAMA.seconds(2))

    def test_geometric_decodes_wait_for_the_slowest(self):
        """At b_max = 512 every decode batch of a round lasts t(3): E[max] of three geometric lengths."""
        p = Fraction(1, 112)
        q = 1 - p
        slowest = sum(sign * math.comb(3, j) / (1 - q**j) for j, sign in ((1, 1), (2, -1), (3, 1)))
        rate = 3 / (CODELLAMA.seconds(387) + slowest * CODELLAMA.seconds(3))
        found = threshold(A100, "fastertransformer", Workload.of(prefill=129, decode=Geometric(mean=112)))
        assert found.low == pytest.approx(float(rate), rel=1e-12)

    def test_seats_make_the_round(self):
        found = threshold(attrs.evolve(A100, k_max=2), "fastertransformer", CHAT)
        assert found.low == 2 / (CODELLAMA.seconds(258) + 112 * CODELLAMA.seconds(2))
        assert found.binding == "k_max"
        assert threshold(A100, "fastertransformer", CHAT).binding == "b_max"

    def test_split_prompts_share_batches_between_rounds(self):
        """b_max = 8, prompts of 3: batches end 2, 5, 8 = 2 2/3 prompts; three rounds of batches carry 8 prompts."""
        engine = Engine(batch_time=Staircase(c=0, a=1, b0=8), b_max=8)
        rate = exact(engine, "fastertransformer+chunk", Workload.of(prefill=3, decode=5))
        assert rate == Fraction(8, 3 * (1 + 5))

    def test_long_prompts_take_several_batches(self):
        """290 tokens at b_max = 128: rounds of one prompt; 290 = 2 34/128, the spare tokens go to the next prompt."""
        machine = Engine(batch_time=CODELLAMA, b_max=128, k_max=100)
        rate = exact(machine, "fastertransformer+chunk", Workload.of(prefill=290, decode=990))
        # Per prompt 290/128 prefill batches and 990 decode batches of one.
        assert rate == 1 / ((Fraction(290, 128) + 990) * CODELLAMA.seconds(1))

    def test_static_batching_without_prompts(self):
        engine = attrs.evolve(A100, k_max=4)
        rate = exact(engine, "static", Workload.of(prefill=0, decode=10))
        assert rate == 4 / (10 * CODELLAMA.seconds(4))
        assert exact(engine, "fastertransformer", Workload.of(prefill=0, decode=10)) == rate

    def test_one_law_of_decodes_however_it_is_written(self):
        classes = [RequestClass(lengths=IndependentLengths(9, d), name=str(d), weight=w) for d, w in ((2, 1), (30, 3))]
        machine = attrs.evolve(A100, b_max=40)
        as_classes = threshold(machine, "fastertransformer", Workload(classes=classes))
        law = Empirical(values=[2, 30], weights=[1, 3])
        as_law = threshold(machine, "fastertransformer", Workload.of(prefill=9, decode=law))
        rows = ObservedLengths([9] * 4, [2, 30, 30, 30])
        as_rows = threshold(machine, "fastertransformer", Workload(classes=[RequestClass(lengths=rows)]))
        assert as_classes.exact
        assert as_classes.low == pytest.approx(as_law.low, rel=1e-12)
        assert as_rows.low == pytest.approx(as_law.low, rel=1e-12)

    @pytest.mark.parametrize("share", ["0.0301"])
    def test_290_990(self, share):
        found = exact(SEATED, "fastertransformer", Workload.of(prefill=290, decode=990))
        assert f"{float(found / Fraction(400, 187)):.4f}" == share


class TestPrefillFirst:
    def test_codellama(self):
        found = threshold(A100, "vllm-vanilla", CHAT)
        assert found.exact
        assert found.low == pytest.approx(10.497, abs=5e-4)
        # Full prefill batches of three would give 1/(t(387)/3 + 112 t(512)/512) = 11.826.
        full = 1 / (CODELLAMA.seconds(387) / 3 + 112 * CODELLAMA.seconds(512) / 512)
        assert f"{float(full):.3f}" == "11.826"

    def test_a_rate_that_looks_divergent_in_a_short_run_is_stable(self):
        judged = threshold(A100, "vllm-vanilla", CHAT).judge("10.4")
        assert (judged.verdict, judged.basis) == (Verdict.STABLE, Basis.THEOREM)
        assert threshold(A100, "vllm-vanilla", CHAT).judge("10.5").verdict is Verdict.UNSTABLE

    def test_the_backlog_slope_above_it(self):
        served = PrefillFirst(A100, 129, chunks=False).decode_rate(13.0)
        assert (13 * 112 - served) / 1000 == pytest.approx(0.664, abs=5e-4)

    def test_290_990_under_a_batch_size(self):
        """The simulated edge is .8094 of the bound of every rule, known within .5 %."""
        found = threshold(SEATED, "vllm-vanilla", Workload.of(prefill=290, decode=990))
        assert found.exact
        assert found.low / float(Fraction(400, 187)) == pytest.approx(0.8094, rel=5e-3)
        assert found.binding == "k_max"

    def test_only_the_mean_of_the_decodes_enters(self):
        laws = [112, Geometric(mean=112), Uniform(low=100, high=124)]
        rates = {threshold(A100, "vllm-vanilla", Workload.of(prefill=129, decode=law)).low for law in laws}
        assert len(rates) == 1

    def test_it_falls_with_every_cost(self):
        base = threshold(A100, "vllm-vanilla", CHAT).low
        worse = [
            threshold(A100, "vllm-vanilla", Workload.of(prefill=171, decode=112)).low,
            threshold(A100, "vllm-vanilla", Workload.of(prefill=129, decode=130)).low,
            threshold(attrs.evolve(A100, k_max=300), "vllm-vanilla", CHAT).low,
            threshold(attrs.evolve(A100, batch_time=attrs.evolve(CODELLAMA, c="20 ms")), "vllm-vanilla", CHAT).low,
        ]
        assert max(worse) < base

    def test_without_decodes_prefill_alone_binds(self):
        found = threshold(A100, "vllm-vanilla", Workload.of(prefill=129, decode=0))
        assert found.low == found.high == 3 / CODELLAMA.seconds(387)

    def test_it_needs_poisson_arrivals(self):
        regular = CHAT.with_arrivals(DeterministicArrivals(interval="1 s"))
        found = threshold(A100, "vllm-vanilla", regular)
        exact_rate = threshold(A100, "vllm-vanilla", CHAT.with_arrivals(PoissonArrivals(rate=1))).low
        assert found.low < exact_rate < found.high
        assert threshold(A100, "sarathi", regular).exact
        assert threshold(A100, "fastertransformer", regular).exact

    def test_split_prompts_fill_better(self):
        whole, split = (threshold(A100, rule, CHAT).low for rule in ("vllm-vanilla", "vllm-vanilla+chunk"))
        assert whole < split < float(Fraction(12_800_000, 3829) / 241)
        assert threshold(A100, "sglang", CHAT).low == split

    def test_a_long_split_prompt_ends_in_a_batch_of_its_own(self):
        """514 = 4 * 128 + 2: at low rates each prompt costs four full batches and one of two tokens."""
        machine = attrs.evolve(A100, b_max=128)
        served = PrefillFirst(machine, 514, chunks=True).decode_rate(0.01)
        t = float(CODELLAMA.seconds(128))
        assert served == pytest.approx(128 / t * (1 - 0.01 * 5 * t), rel=1e-3)

    def test_bounds_where_the_chain_is_too_long(self):
        machine = attrs.evolve(A100, b_max=2048)
        found = threshold(machine, "sglang", Workload.of(prefill=4001, decode=112))
        token = CODELLAMA.seconds(2048) / 2048
        assert found.low == 1 / (4113 * token + CODELLAMA.seconds(1) - token)
        assert found.high == 1 / (4113 * token)
        assert "at most one batch a prompt is not full" in found.method


class TestOnlyOnePhase:
    @pytest.mark.parametrize("rule", SCHEDULERS)
    def test_one_token_decodes(self, rule):
        """Every rule serves min(b_max, k_max) one-token requests a batch."""
        for k_max, tokens in ((None, 512), (100, 100), (1, 1)):
            machine = attrs.evolve(A100, k_max=k_max)
            assert exact(machine, rule, Workload.of(prefill=0, decode=1)) == tokens / CODELLAMA.seconds(tokens)

    @pytest.mark.parametrize("rule", SCHEDULERS)
    def test_one_token_prompts(self, rule):
        for k_max, tokens in ((None, 512), (100, 100), (1, 1)):
            machine = attrs.evolve(A100, k_max=k_max)
            assert exact(machine, rule, Workload.of(prefill=1, decode=0)) == tokens / CODELLAMA.seconds(tokens)

    @pytest.mark.parametrize("rule", SCHEDULERS)
    def test_one_token_a_batch(self, rule):
        machine = Engine(batch_time=CODELLAMA, b_max=1)
        assert exact(machine, rule, Workload.of(prefill=1, decode=0)) == 1 / CODELLAMA.seconds(1)

    def test_the_rest_of_a_split_prompt_runs_alone_in_a_static_group(self):
        """Batches of 4 and 2 tokens carry one prompt of 3 a second; a rule that fills would carry 4/3."""
        machine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
        found = threshold(machine, "static+chunk", Workload.of(prefill=3, decode=0))
        assert found.low <= 1 <= found.high


class TestJudge:
    sharp = Threshold(scheduler="x", low=Fraction(10), high=Fraction(10), method="m", binding="b_max")
    bounds = attrs.evolve(sharp, high=Fraction(12))
    nothing = attrs.evolve(sharp, low=Fraction(0), high=Fraction(12))

    @pytest.mark.parametrize(
        ("limit", "rate", "verdict", "basis", "load"),
        [
            (sharp, 9, Verdict.STABLE, Basis.THEOREM, Fraction(9, 10)),
            (sharp, 10, Verdict.CRITICAL, Basis.THEOREM, 1),
            (sharp, 11, Verdict.UNSTABLE, Basis.THEOREM, Fraction(11, 10)),
            (sharp, 0, Verdict.STABLE, Basis.THEOREM, 0),
            (bounds, 9, Verdict.STABLE, Basis.THEOREM, Fraction(9, 10)),
            (bounds, 10, Verdict.UNDECIDED, None, None),
            (bounds, 11, Verdict.UNDECIDED, None, None),
            (bounds, 12, Verdict.UNDECIDED, None, None),
            (bounds, 13, Verdict.UNSTABLE, Basis.THEOREM, Fraction(13, 12)),
            (nothing, "0.001", Verdict.UNDECIDED, None, None),
            (nothing, 0, Verdict.STABLE, Basis.THEOREM, 0),
        ],
    )
    def test_verdicts(self, limit, rate, verdict, basis, load):
        judged = limit.judge(rate)
        assert (judged.verdict, judged.basis, judged.load) == (verdict, basis, load)
        assert len(judged.reason) > 5

    def test_at_equality_never_stable(self):
        rate = threshold(A100, "sarathi", CHAT).low
        assert threshold(A100, "sarathi", CHAT).judge(rate).verdict is Verdict.CRITICAL
        just_below = rate * Fraction(10**12 - 1, 10**12)
        assert threshold(A100, "sarathi", CHAT).judge(just_below).verdict is Verdict.STABLE


class TestInfeasible:
    @pytest.mark.parametrize("rule", ["vllm-vanilla", "fastertransformer", "orca-whole", "static", "tensorrt-llm"])
    def test_a_prompt_that_never_fits(self, rule):
        with pytest.raises(InfeasibleRequest, match=rf"a prompt of 513 tokens .*use {rule}\+chunk"):
            threshold(A100, rule, Workload.of(prefill=513, decode=1))
        assert threshold(A100, rule, Workload.of(prefill=512, decode=1)).high > 0

    def test_prompts_without_bound(self):
        with pytest.raises(InfeasibleRequest, match="prompts of unbounded length"):
            threshold(A100, "vllm-vanilla", Workload.of(prefill=Geometric(mean=5), decode=1))
        assert threshold(A100, "sarathi", Workload.of(prefill=Geometric(mean=5), decode=1)).exact

    def test_the_budget_of_the_rule_counts(self):
        with pytest.raises(InfeasibleRequest, match="whole within 100 tokens"):
            threshold(A100, "vllm-vanilla+target=100", CHAT)

    def test_the_request_of_a_trace_is_named(self):
        rows = ObservedLengths([5, 600, 7, 700], [1, 1, 1, 1])
        with pytest.raises(InfeasibleRequest, match="request 1: its prompt of 600 tokens"):
            threshold(A100, "vllm-vanilla", Workload(classes=[RequestClass(lengths=rows)]))


class TestProvedBounds:
    def test_a_hinge_whose_batches_cost_more_than_their_prompts(self):
        """c = 1 ms, a = 1 ms, b0 = 10: t(10) = 1 ms but t(20) = 11 ms, so two prompts at once take longer than apart.

        At 300 requests/s prompts alone overload vanilla vLLM, whose batches take two: no such rate may be called
        stable.
        """
        machine = Engine(batch_time=Hinge(c="1 ms", a="1 ms", b0=10), b_max=20)
        found = threshold(machine, "vllm-vanilla", Workload.of(prefill=Uniform(low=9, high=10), decode=1))
        assert found.low <= 2 / machine.batch_time.seconds(18)

    def test_whole_prompts_one_by_one(self):
        machine = Engine(batch_time=CODELLAMA, b_max=512)
        workload = Workload.of(prefill=Uniform(low=100, high=128), decode=112)
        found = threshold(machine, "vllm-vanilla", workload)
        assert found.low == 1 / (CODELLAMA.seconds(128) + 112 * CODELLAMA.seconds(512) / 512)
        assert found.low < found.high

    def test_no_ground_means_no_rate(self):
        table = Table(tokens=[64, 512], seconds_at=["10 ms", "90 ms"])
        machine = Engine(batch_time=table, b_max=512)
        found = threshold(machine, "vllm-vanilla", Workload.of(prefill=Uniform(low=9, high=10), decode=1))
        assert found.low == 0
        assert "no stable rate is proved" in found.method

    def test_the_drift_of_short_prompts_by_hand(self):
        """t(b) = 1 + b, two seats, prompts of 1 or 2: 8 p >= 9 r and 2 p + 2 n >= 3 r bind under 3/2 p + n = 3/2."""
        machine = Engine(batch_time=Staircase(c=1, a=1, b0=1), b_max=8, k_max=2)
        found = linear_drift(machine, IndependentLengths(Uniform(low=1, high=2), 0))
        assert found.requests_per_s == pytest.approx(16 / 33)

    def test_the_drift_of_a_full_batch_that_wastes_a_block_by_hand(self):
        """t(5) = 2 t(3): d = r/3 from three decodes, then 3 p + 2 d >= 2 r from a full batch that completes nothing."""
        machine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=5, k_max=3)
        assert linear_drift(machine, IndependentLengths(6, 6)).requests_per_s == pytest.approx(3 / 14)
