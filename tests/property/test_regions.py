"""Properties of regions, bounds and thresholds on drawn engines, rules and workloads; exact where the answers are."""

from fractions import Fraction
from itertools import product

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import engines, length_laws, longest_prompt, positive_seconds, rules, workloads

from queuetheory_llm.model.arrivals import DeterministicArrivals
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.lengths import IndependentLengths
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.stability.capacity import capacity_notes, token_capacity
from queuetheory_llm.stability.region import outer_region
from queuetheory_llm.stability.scheduler_region import rays, scheduler_region, workload_outer_region
from queuetheory_llm.stability.thresholds import threshold
from queuetheory_llm.stability.workload_region import (
    constant_prompt_region,
    outer_bound,
    random_prompt_bound,
    workload_bound,
)

parametric = engines(kinds=("staircase", "hinge"))
rates = st.fractions(min_value=0, max_value=60, max_denominator=8)
shares = st.fractions(min_value=0, max_value=1, max_denominator=16)
factors = st.fractions(min_value=Fraction(1, 8), max_value=8, max_denominator=8)


def contains(outer, inner):
    """Exact: every extreme point of one region lies in the other."""
    return all(outer.membership(v.prefill, v.decode).load <= 1 for v in inner.vertices)


def slowed(engine, factor):
    """The same engine, every batch ``factor`` times as long."""
    law = engine.batch_time
    if isinstance(law, Table):
        return attrs.evolve(engine, batch_time=attrs.evolve(law, seconds_at=[factor * t for t in law.seconds_at]))
    return attrs.evolve(engine, batch_time=attrs.evolve(law, c=factor * law.c, a=factor * law.a))


class TestOuterRegion:
    @given(parametric, st.integers(1, 6))
    def test_grows_with_the_budget(self, engine, more):
        assert contains(outer_region(attrs.evolve(engine, b_max=engine.b_max + more)), outer_region(engine))

    @given(engines(), st.integers(1, 6))
    def test_grows_with_the_batch_size(self, engine, more):
        unlimited = outer_region(attrs.evolve(engine, k_max=None))
        if engine.k_max is not None:
            larger = outer_region(attrs.evolve(engine, k_max=engine.k_max + more))
            assert contains(larger, outer_region(engine))
            assert contains(unlimited, larger)

    @given(parametric, positive_seconds, st.sampled_from(["c", "a"]))
    def test_shrinks_with_either_cost(self, engine, more, cost):
        law = engine.batch_time
        dearer = attrs.evolve(engine, batch_time=attrs.evolve(law, **{cost: getattr(law, cost) + more}))
        assert contains(outer_region(engine), outer_region(dearer))

    @given(engines(), st.tuples(rates, rates), st.tuples(rates, rates), shares)
    def test_is_convex(self, engine, first, second, share):
        region = outer_region(engine)
        loads = [region.membership(*point).load for point in (first, second)]
        middle = [share * x + (1 - share) * y for x, y in zip(first, second, strict=True)]
        assert region.membership(*middle).load <= share * loads[0] + (1 - share) * loads[1]

    @given(engines(), st.tuples(rates, rates), shares, shares)
    def test_is_down_closed(self, engine, point, kept, also):
        region = outer_region(engine)
        assert region.membership(kept * point[0], also * point[1]).load <= region.membership(*point).load

    @given(engines(), st.tuples(rates, rates), factors)
    def test_load_is_homogeneous(self, engine, point, factor):
        region = outer_region(engine)
        assert region.membership(*(factor * x for x in point)).load == factor * region.membership(*point).load

    @given(engines(), factors)
    def test_slower_time_scales_every_vertex_and_keeps_its_batch(self, engine, factor):
        before, after = outer_region(engine).vertices, outer_region(slowed(engine, factor)).vertices
        assert [v.batch.prefill for v in before] == [v.batch.prefill for v in after]
        assert [v.batch.decode for v in before] == [v.batch.decode for v in after]
        assert [v.label for v in before] == [v.label for v in after]
        for slow, fast in zip(after, before, strict=True):
            assert (slow.prefill * factor, slow.decode * factor) == (fast.prefill, fast.decode)

    @given(engines(limited=False), st.none() | st.integers(0, 5))
    def test_is_the_triangle_when_seats_do_not_bind(self, engine, more):
        engine = attrs.evolve(engine, k_max=None if more is None else engine.b_max + more)
        c = token_capacity(engine).tokens_per_s
        assert {(v.prefill, v.decode) for v in outer_region(engine).vertices} == {(0, 0), (c, 0), (0, c)}

    @given(engines())
    def test_no_vertex_beats_the_capacity(self, engine):
        c = token_capacity(engine).tokens_per_s
        vertices = outer_region(engine).vertices
        assert max(v.prefill + v.decode for v in vertices) == max(v.prefill for v in vertices) == c

    @given(engines())
    def test_capacity_is_the_best_batch_of_all(self, engine):
        found = token_capacity(engine)
        every = {b: b / engine.batch_time.seconds(b) for b in range(1, engine.b_max + 1)}
        assert found.tokens_per_s == max(every.values()) == every[found.batch_tokens]
        assert found.batch_tokens == max(b for b, rate in every.items() if rate == found.tokens_per_s)
        assert found.full_batches_tokens_per_s == every[engine.b_max]
        assert bool(capacity_notes(engine)) == (every[engine.b_max] < found.tokens_per_s)


class TestMembershipProof:
    @given(engines(), st.tuples(rates, rates).filter(any))
    def test_weights_serve_the_point_and_the_line_holds_every_batch(self, engine, point):
        region = outer_region(engine)
        place = region.membership(*point)
        assert place.load > 0
        # Shares of time that serve the point.
        assert sum(weight for _, weight in place.weights) == place.load
        assert 1 <= len(place.weights) <= 2
        assert all(weight > 0 for _, weight in place.weights)
        for served, needed in (
            (sum(w * v.batch.prefill / v.batch.seconds for v, w in place.weights), point[0]),
            (sum(w * v.batch.decode / v.batch.seconds for v, w in place.weights), point[1]),
        ):
            assert served >= needed
        for vertex, _ in place.weights:
            assert vertex.batch.seconds == engine.batch_time.seconds(vertex.batch.prefill + vertex.batch.decode)
            assert vertex.batch.decode + (vertex.batch.prefill > 0) <= engine.slots
        # The line: every batch keeps to it, and the point has ``load`` of it.
        p, d, bound = place.line
        assert min(p, d) >= 0 < bound
        k_max = engine.k_max or engine.b_max
        for x, y in product(range(engine.b_max + 1), repeat=2):
            if 0 < x + y <= engine.b_max and y + (x > 0) <= k_max:
                assert p * x + d * y <= bound * engine.batch_time.seconds(x + y)
        assert p * point[0] + d * point[1] == place.load * bound
        assert place.inside == (place.load < 1)
        assert place.to_dict()["margin"] == pytest.approx(1 - float(place.load))


class TestWorkloadBounds:
    @given(engines(), st.integers(1, 15))
    def test_constant_prompts_stay_in_the_outer_region(self, engine, prompt):
        tight = constant_prompt_region(engine, prompt)
        assert contains(outer_region(engine), tight)
        assert contains(constant_prompt_region(engine, prompt + 1), tight)
        if prompt >= engine.b_max:
            assert contains(tight, outer_region(engine))

    @settings(max_examples=60)
    @given(engines(), workloads(longest_prompt=9))
    def test_random_prompts_stay_in_it_too(self, engine, workload):
        outer = float(outer_bound(engine, workload).requests_per_s)
        program = float(random_prompt_bound(engine, workload).requests_per_s)
        assert float(workload_bound(engine, workload).requests_per_s) <= outer * (1 + 1e-7)
        assert program <= outer * (1 + 1e-7)

    @settings(max_examples=60)
    @given(engines(), st.integers(1, 9), st.integers(0, 6))
    def test_knowing_that_prompts_are_constant_is_worth_something_or_nothing(self, engine, prefill, decode):
        lengths = IndependentLengths(prefill, decode)
        program = random_prompt_bound(engine, lengths).requests_per_s
        assert float(workload_bound(engine, lengths).requests_per_s) <= program * (1 + 1e-7)


@st.composite
def served(draw, **options):
    """An engine, a rule, and a workload the rule can run."""
    engine, rule = draw(engines(**options)), draw(rules())
    return engine, rule, draw(workloads(longest_prompt(rule, engine)))


class TestThresholds:
    @settings(max_examples=80)
    @given(served())
    def test_no_rule_beats_the_bound_of_every_rule(self, system):
        engine, rule, workload = system
        found = threshold(engine, rule, workload)
        bound = float(workload_bound(engine, workload).requests_per_s)
        c = float(token_capacity(engine).tokens_per_s)
        assert 0 <= found.low <= found.high * (1 + 1e-9)
        assert float(found.high) <= bound * (1 + 1e-7)
        assert float(found.high * workload.mean_tokens) <= c * (1 + 1e-7)
        assert found.scheduler == rule.name
        assert found.method
        assert set(found.binding.split(" and ")) <= {"b_max", "k_max", "batch time", "target"}

    @settings(max_examples=50)
    @given(served(), factors)
    def test_slower_time_scales_every_rate(self, system, factor):
        engine, rule, workload = system
        before, after = threshold(engine, rule, workload), threshold(slowed(engine, factor), rule, workload)
        assert float(after.low * factor) == pytest.approx(float(before.low), rel=1e-6)
        assert float(after.high * factor) == pytest.approx(float(before.high), rel=1e-6)
        assert after.exact == before.exact

    @settings(max_examples=60)
    @given(served())
    def test_bounds_that_hold_for_every_process_enclose_those_of_a_poisson_one(self, system):
        engine, rule, workload = system
        poisson = threshold(engine, rule, workload)
        regular = threshold(engine, rule, workload.with_arrivals(DeterministicArrivals(interval=1)))
        assert regular.low <= poisson.low * (1 + 1e-9)
        assert poisson.high <= regular.high * (1 + 1e-9)

    @given(
        engines(limited=False), st.sampled_from(["orca", "sarathi", "vllm-chunked"]), workloads(9), workloads(9), shares
    )
    def test_classes_sum(self, engine, rule, first, second, share):
        assume(0 < share < 1)
        both = Workload(
            classes=[
                RequestClass(lengths=first, weight=share, name="first"),
                RequestClass(lengths=second, weight=1 - share, name="second"),
            ]
        )
        parts = [threshold(engine, rule, each).low for each in (first, second)]
        # Seconds per request add up, as do the loads that the two classes bring.
        assert 1 / threshold(engine, rule, both).low == share / parts[0] + (1 - share) / parts[1]
        region = outer_region(engine)
        loads = [region.membership(each.mean_prefill, each.mean_decode).load for each in (first, second)]
        assert region.membership(both.mean_prefill, both.mean_decode).load == share * loads[0] + (1 - share) * loads[1]

    @settings(max_examples=40)
    @given(served())
    def test_a_workload_written_as_one_class_or_two_is_the_same(self, system):
        engine, rule, workload = system
        halves = [
            attrs.evolve(each, name=f"{each.name} {half}", weight=each.weight / 2)
            for each in workload.classes
            for half in (1, 2)
        ]
        once, twice = threshold(engine, rule, workload), threshold(engine, rule, Workload(classes=halves))
        assert float(once.low) == pytest.approx(float(twice.low), rel=1e-9)
        assert float(once.high) == pytest.approx(float(twice.high), rel=1e-9)

    @settings(max_examples=60)
    @given(engines(kinds=("staircase", "hinge")), rules(), st.data())
    def test_a_target_is_a_smaller_budget(self, engine, rule, data):
        workload = data.draw(workloads(longest_prompt(rule, engine)))
        budget = rule.budget(engine.b_max)
        plain = attrs.evolve(rule, target=None)
        alone = threshold(attrs.evolve(engine, b_max=budget), plain, workload)
        found = threshold(engine, rule, workload)
        assert found.low == alone.low
        assert found.high >= alone.high * (1 - 1e-9)


class TestSchedulerRegions:
    @settings(max_examples=12)
    @given(engines(kinds=("staircase",)), st.data())
    def test_boundaries_lie_within_the_outer_region(self, engine, data):
        rule = data.draw(rules())
        prompts = data.draw(length_laws(longest_prompt(rule, engine), least=1))
        workload = Workload.of(prefill=prompts, decode=2)
        region = outer_region(engine)
        own = scheduler_region(engine, rule, rays(workload))
        every, _ = workload_outer_region(engine, rays(workload))
        assert bool(own.points) != bool(own.inner)
        for mine, most in zip(own.points or own.inner, every, strict=True):
            assert mine.angle == most.angle
            assert mine.requests_per_s <= most.requests_per_s * (1 + 1e-6)
            assert float(region.membership(most.prefill, most.decode).load) <= 1 + 1e-6
