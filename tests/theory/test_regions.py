"""Capacities, outer regions and workload bounds of Dai et al. 2025 as exact fractions and published digits."""

import math
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric, IndependentLengths, ObservedLengths, Uniform
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.stability.answers import stability_region
from queuetheory_llm.stability.capacity import capacity_notes, full_batch_rate, token_capacity
from queuetheory_llm.stability.region import outer_region
from queuetheory_llm.stability.workload_region import (
    constant_prompt_region,
    outer_bound,
    random_prompt_bound,
    workload_bound,
)
from queuetheory_llm.verdict import Verdict

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
SECOND = Staircase(c="30 ms", a="5 ms", b0=64)


def engine(law=CODELLAMA, **limits):
    return Engine(batch_time=law, **limits)


def corners(region):
    """Batches (prefill, decode) of the vertices, 0 first."""
    return [(v.batch.prefill, v.batch.decode) for v in region.vertices]


def labels(region):
    return [vertex.label for vertex in region.vertices]


class TestCapacity:
    @pytest.mark.parametrize(
        ("b_max", "ms", "tokens_per_s", "requests_per_s"),
        [
            (128, "46.75", "2737.97", "11.361"),
            (256, "82.22", "3113.60", "12.919"),
            (512, "153.16", "3342.91", "13.871"),
            (1024, "295.04", "3470.72", "14.401"),
            (2048, "578.80", "3538.36", "14.682"),
        ],
    )
    def test_codellama(self, b_max, ms, tokens_per_s, requests_per_s):
        found = token_capacity(engine(b_max=b_max))
        assert found.tokens_per_s == found.full_batches_tokens_per_s == b_max / (Fraction(ms) / 1000)
        assert found.batch_tokens == b_max
        assert found.filling_is_optimal
        assert f"{float(found.tokens_per_s):.2f}" == tokens_per_s
        assert f"{float(found.tokens_per_s / 241):.3f}" == requests_per_s
        assert capacity_notes(engine(b_max=b_max)) == ()

    def test_the_limit_is_b0_over_a(self):
        limit = CODELLAMA.b0 / CODELLAMA.a
        assert f"{float(limit):.2f}" == "3608.68"
        rates = [full_batch_rate(engine(b_max=128 * 2**k)) for k in range(20)]
        assert rates == sorted(rates)
        assert rates[-1] < limit < rates[-1] * Fraction(100_001, 100_000)

    def test_a_budget_that_b0_does_not_divide(self):
        found = token_capacity(engine(SECOND, b_max=513))
        assert found.tokens_per_s == Fraction(51_200, 7)
        assert f"{float(found.tokens_per_s):.4f}" == "7314.2857"
        assert found.batch_tokens == 512
        assert found.full_batches_tokens_per_s == 6840
        (note,) = capacity_notes(engine(SECOND, b_max=513))
        for words in ("b0 = 64 does not divide b_max = 513", "F = 6840", "C = 7314.29", "+target=512"):
            assert words in note

    def test_a_budget_that_b0_does_not_divide_may_still_be_best_full(self):
        assert token_capacity(engine(b_max=200)).batch_tokens == 128  # 2.74 tokens/ms against 2.43
        found = token_capacity(engine(Staircase(c=9, a=1, b0=4), b_max=5))
        assert (found.batch_tokens, found.filling_is_optimal) == (5, True)

    def test_a_table_that_is_not_monotone(self):
        table = Table(tokens=[4, 8, 16], seconds_at=["1 ms", "4 ms", "3 ms"])
        found = token_capacity(engine(table, b_max=8))
        assert (found.tokens_per_s, found.batch_tokens, found.full_batches_tokens_per_s) == (4000, 4, 2000)
        (note,) = capacity_notes(engine(table, b_max=8))
        assert "the batch time is not proportional to whole batches" in note
        assert token_capacity(engine(table, b_max=16)).batch_tokens == 16
        # Between two points the batch is padded: 15 tokens last as long as 16.
        assert token_capacity(engine(table, b_max=15)).tokens_per_s == 5000

    def test_without_a_fixed_cost_every_whole_block_is_as_good(self):
        found = token_capacity(engine(Staircase(c=0, a=1, b0=4), b_max=12))
        assert (found.tokens_per_s, found.batch_tokens) == (4, 12)
        affine = token_capacity(engine(Hinge(c=0, a="1/3 s", b0=0), b_max=7))
        assert (affine.tokens_per_s, affine.batch_tokens) == (3, 7)


class TestHull:
    def test_one_hundred_seats(self):
        region = outer_region(engine(b_max=1024, k_max=100))
        a, d = Fraction(1_024_000_000, 295_040), Fraction(100_000_000, 46_750)
        assert [(v.prefill, v.decode) for v in region.vertices] == [
            (0, 0),
            (a, 0),
            (Fraction(925_000_000, 295_040), Fraction(99_000_000, 295_040)),
            (Fraction(29_000_000, 46_750), Fraction(99_000_000, 46_750)),
            (0, d),
        ]
        assert corners(region) == [(0, 0), (1024, 0), (925, 99), (29, 99), (0, 100)]
        assert labels(region) == ["0", "A", "B", "C", "D"]
        printed = [(f"{float(v.prefill):.2f}", f"{float(v.decode):.2f}") for v in region.vertices[1:]]
        assert printed == [("3470.72", "0.00"), ("3135.17", "335.55"), ("620.32", "2117.65"), ("0.00", "2139.04")]
        assert [v.to_dict()["exact"] for v in region.vertices] == [
            ["0", "0"],
            ["1600000/461", "0"],
            ["2890625/922", "309375/922"],
            ["116000/187", "36000/17"],
            ["0", "400000/187"],
        ]
        assert region.vertices[3].batch.seconds == Fraction(46_750, 10**6)

    def test_thirty_three_seats(self):
        region = outer_region(engine(SECOND, b_max=512, k_max=33))
        assert [(v.prefill, v.decode) for v in region.vertices] == [
            (0, 0),
            (Fraction(51_200, 7), 0),
            (Fraction(48_000, 7), Fraction(3_200, 7)),
            (Fraction(6_400, 7), Fraction(6_400, 7)),
            (0, Fraction(6_600, 7)),
        ]
        assert corners(region) == [(0, 0), (512, 0), (480, 32), (32, 32), (0, 33)]
        printed = [(f"{float(v.prefill):.3f}", f"{float(v.decode):.3f}") for v in region.vertices[1:]]
        assert printed == [("7314.286", "0.000"), ("6857.143", "457.143"), ("914.286", "914.286"), ("0.000", "942.857")]

    @pytest.mark.parametrize("k_max", [None, 1024, 5000])
    def test_without_a_binding_batch_size_it_is_the_triangle(self, k_max):
        region = outer_region(engine(b_max=1024, k_max=k_max))
        c = token_capacity(region.engine).tokens_per_s
        assert [(v.prefill, v.decode) for v in region.vertices] == [(0, 0), (c, 0), (0, c)]

    def test_one_seat_serves_prompts_or_one_decode(self):
        region = outer_region(engine(b_max=1024, k_max=1))
        assert corners(region) == [(0, 0), (1024, 0), (0, 1)]
        assert labels(region) == ["0", "A", "D"]
        assert region.vertices[2].decode == 1 / CODELLAMA.seconds(1)

    def test_as_many_seats_as_a_block_has_tokens(self):
        """C = (1, b0 - 1) lies on the segment from B to D when k_max = b0."""
        region = outer_region(engine(b_max=1024, k_max=128))
        assert corners(region) == [(0, 0), (1024, 0), (897, 127), (0, 128)]
        assert labels(region) == ["0", "A", "B", "D"]

    def test_without_a_fixed_cost_a_whole_edge_is_optimal(self):
        """c = 0: A, B and C serve b0/a tokens alike, so B is no extreme point."""
        region = outer_region(engine(Staircase(c=0, a="35.47 ms", b0=128), b_max=1024, k_max=100))
        assert corners(region) == [(0, 0), (1024, 0), (29, 99), (0, 100)]
        assert labels(region) == ["0", "A", "C", "D"]

    def test_one_token_at_a_time(self):
        region = outer_region(engine(b_max=1, k_max=7))
        assert corners(region) == [(0, 0), (1, 0), (0, 1)]

    def test_more_seats_than_a_block(self):
        """k_max = 200 > b0 = 128: decodes alone are best in one full block, and nothing is named after Theorem 10."""
        region = outer_region(engine(b_max=1024, k_max=200))
        assert corners(region) == [(0, 0), (1024, 0), (825, 199), (57, 199), (0, 128)]
        assert labels(region) == ["0", "A", "B", "C", "D"]

    def test_corners_beyond_the_alphabet_are_numbered(self):
        # The rates of the batches (i, 200) lie on a circle, so that each is a corner but those near the decode axis.
        steps = range(1, 81)
        table = Table(tokens=[200 + i for i in steps], seconds_at=[math.hypot(i, 200) for i in steps])
        found = labels(outer_region(engine(table, b_max=280, k_max=201)))
        assert len(found) > 50
        assert found[:3] == ["0", "A", "B"]
        assert found[26:29] == ["Z", "V27", "V28"]
        assert len(set(found)) == len(found)


class TestMembership:
    region = outer_region(engine(b_max=1024, k_max=100))

    def test_the_experiment_at_vertex_c(self):
        place = self.region.membership(Fraction(29_000_000, 46_750), Fraction(99_000_000, 46_750))
        assert place.load == 1
        assert place.verdict is Verdict.CRITICAL
        assert not place.inside
        assert [(v.label, w) for v, w in place.weights] == [("C", 1)]
        assert self.region.request_rate(290, 990) == Fraction(400, 187) == 1 / Fraction("0.4675")

    def test_inside_nothing_is_promised_of_any_one_rule(self):
        place = self.region.membership(100, 100)
        assert place.inside
        assert place.verdict is Verdict.UNDECIDED

    def test_outside_every_rule_is_unstable(self):
        place = self.region.membership(0, 2140)
        assert place.verdict is Verdict.UNSTABLE
        assert place.load == 2140 / Fraction(400_000, 187)

    def test_nothing_arrives(self):
        place = self.region.membership(0, 0)
        assert (place.load, place.weights, place.inside) == (0, (), True)

    def test_a_negative_rate_is_no_rate(self):
        with pytest.raises(InvalidInput, match="-3 is negative"):
            self.region.membership(5, -3)

    def test_a_direction_without_extent(self):
        only = constant_prompt_region(engine(b_max=8, k_max=2), 0)
        assert only.membership(0, 3).load == 3 * CODELLAMA.seconds(2) / 2
        with pytest.raises(AssumptionViolated, match="no extent towards 3 prefill and 0 decode"):
            only.membership(3, 0)

    def test_only_prompts_and_only_decodes(self):
        assert self.region.request_rate(1000, 0) == 1024 / CODELLAMA.seconds(1024) / 1000
        assert self.region.request_rate(0, 50) == 100 / CODELLAMA.seconds(100) / 50


class TestWorkloadBounds:
    """CodeLlama, k_max = 100, b_max = 1024: outer region, constant prompts, random prompts; requests/s."""

    machine = engine(b_max=1024, k_max=100)

    @pytest.mark.parametrize(
        ("prefill", "decode", "outer", "constant", "random"),
        [
            (10, 10, "149.665", "147.233", "147.428"),
            (1, 10, "213.169", "194.458", "194.458"),
            (10, 100, "21.3169", "21.1786", "21.1786"),
            (290, 990, "2.13904", "2.13904", "2.13904"),
        ],
    )
    def test_oracles(self, prefill, decode, outer, constant, random):
        def text(value):
            digits = len(outer.partition(".")[2])
            return f"{float(value):.{digits}f}"

        lengths = IndependentLengths(prefill, decode)
        assert text(outer_bound(self.machine, lengths).requests_per_s) == outer
        exact = workload_bound(self.machine, lengths).requests_per_s
        assert isinstance(exact, Fraction)
        assert text(exact) == constant
        assert text(random_prompt_bound(self.machine, lengths).requests_per_s) == random
        # The program knows the chance of a prompt and the means, nothing else of the law.
        spread = IndependentLengths(Geometric(mean=prefill), Geometric(mean=decode))
        if prefill > 1:
            assert text(workload_bound(self.machine, spread).requests_per_s) == random

    def test_10_over_34_keeps_0_9819_of_the_outer_region(self):
        lengths = IndependentLengths(10, 34)
        share = workload_bound(self.machine, lengths).requests_per_s / outer_bound(self.machine, lengths).requests_per_s
        assert f"{float(share):.4f}" == "0.9819"

    def test_limits_are_named(self):
        assert workload_bound(self.machine, IndependentLengths(290, 990)).binding == "k_max"
        assert workload_bound(self.machine, IndependentLengths(1000, 0)).binding == "b_max"
        assert outer_bound(engine(b_max=512), IndependentLengths(129, 112)).binding == "b_max"
        assert outer_bound(engine(SECOND, b_max=513), IndependentLengths(1, 1)).binding == "batch time"
        assert workload_bound(engine(b_max=128, k_max=100), IndependentLengths(290, 990)).binding == "b_max and k_max"

    def test_requests_without_prompts_take_no_slot_in_prefill(self):
        """Half the requests have a prompt of 10: more can be carried than if all had one of 5."""
        some = ObservedLengths([0, 10], [10, 10])
        every = IndependentLengths(Uniform(low=5, high=5), 10)
        assert some.mean_prefill == every.mean_prefill == 5
        machine = engine(b_max=1024, k_max=4)
        assert workload_bound(machine, some).requests_per_s > random_prompt_bound(machine, every).requests_per_s * 1.01

    def test_only_decodes(self):
        bound = workload_bound(self.machine, IndependentLengths(0, 7))
        assert bound.requests_per_s == 100 / CODELLAMA.seconds(100) / 7

    def test_one_token_prompts_are_decodes(self):
        region = constant_prompt_region(self.machine, 1)
        assert corners(region) == [(0, 0), (100, 0), (0, 100)]


class TestAnswer:
    def test_two_classes_are_their_mixture(self):
        classes = [
            RequestClass(lengths=IndependentLengths(129, 112), name="chat", weight="0.5"),
            RequestClass(lengths=IndependentLengths(1000, 20), name="summary", weight="0.5"),
        ]
        workload = Workload(classes=classes, arrivals=PoissonArrivals(rate=5))
        point = stability_region(engine(b_max=512), workload).operating_point
        assert (point.prefill, point.decode) == (5 * Fraction(1129, 2), 5 * 66)
        # The sum rule: one class alone would load the engine by its own token rate.
        parts = [Fraction(5, 2) * tokens / token_capacity(engine(b_max=512)).tokens_per_s for tokens in (241, 1020)]
        assert point.load == sum(parts)
        assert point.margin == 1 - sum(parts)

    def test_a_region_needs_no_workload(self):
        answer = stability_region(engine(b_max=512))
        assert (answer.schedulers, answer.workload_outer, answer.operating_point, answer.judgements) == (
            (),
            None,
            None,
            (),
        )
        assert answer.to_dict()["capacity"]["exact"] == "12800000/3829"

    def test_memory_is_said_to_play_no_part(self):
        (note,) = stability_region(engine(b_max=512, kv_tokens=41_408)).notes
        assert "kv_tokens = 41408 plays no part here" in note

    def test_rays_of_a_scheduler_without_batch_size_end_on_its_line(self):
        answer = stability_region(
            engine(b_max=512), Workload.of(prefill=129, decode=112), schedulers=["sarathi", "fastertransformer"]
        )
        filling, draining = answer.schedulers
        total = float(token_capacity(engine(b_max=512)).tokens_per_s)
        assert [p.prefill + p.decode for p in filling.points] == pytest.approx([total] * len(filling.points))
        for point in (*filling.points, *draining.points):
            assert point.decode == pytest.approx(point.prefill * np.tan(np.radians(point.angle)), abs=1e-6)
            assert point.requests_per_s == pytest.approx(point.prefill / 129)
        assert all(d.prefill <= f.prefill * (1 + 1e-12) for d, f in zip(draining.points, filling.points, strict=True))
        assert draining.points[10].prefill < 0.1 * filling.points[10].prefill

    def test_only_decodes_are_one_ray(self):
        answer = stability_region(engine(b_max=512), Workload.of(prefill=0, decode=112))
        (point,) = answer.schedulers[0].points
        assert (point.angle, point.prefill) == (90.0, 0)
        assert point.decode == pytest.approx(3342.909, rel=1e-6)
