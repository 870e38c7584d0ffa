"""Invariants of every run of every rule, on drawn systems."""

from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.policy import Batch, Pass
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import BatchLog

FILLING = ["orca", "sarathi", "vllm-chunked", "orca-whole+chunk", "tensorrt-llm+chunk", "sglang+mixed"]
milliseconds = st.fractions(min_value=0, max_value=20, max_denominator=30).map(lambda value: value / 1000)
positive = milliseconds.filter(lambda value: value > 0)


@st.composite
def laws(draw, b_max):
    kind = draw(st.sampled_from(["staircase", "hinge", "table"]))
    if kind == "table":
        tokens = sorted({*draw(st.sets(st.integers(1, b_max), max_size=4)), b_max})
        return Table(tokens=tokens, seconds_at=[draw(positive) for _ in tokens])
    c, a, b0 = draw(positive), draw(positive), draw(st.integers(1, b_max + 3))
    return Staircase(c=c, a=a, b0=b0) if kind == "staircase" else Hinge(c=c, a=a, b0=b0)


@st.composite
def engines(draw, *, limited=True):
    b_max = draw(st.integers(1, 24))
    k_max = draw(st.none() | st.integers(1, 12)) if limited else None
    return Engine(batch_time=draw(laws(b_max)), b_max=b_max, k_max=k_max)


@st.composite
def rules(draw):
    name = draw(st.sampled_from(sorted(SCHEDULERS)))
    chunking = draw(st.sampled_from(["", "+chunk", "+whole"]))
    mixed = draw(st.sampled_from(["", "+mixed"]))
    target = draw(st.just("") | st.integers(1, 30).map("+target={}".format))
    threshold = draw(st.just("") | st.integers(1, 30).map("+threshold={}".format))
    try:
        return parse_scheduler(name + chunking + mixed + target + threshold)
    except InvalidInput:  # whole prompts have no threshold
        return parse_scheduler(name + chunking + mixed + target)


@st.composite
def rows(draw, longest, most=10):
    """Requests as (arrival in ms, prefill, decode), sorted by arrival."""
    length = st.integers(0, 12 if longest is None else min(12, longest))
    row = st.tuples(st.integers(0, 60), length, st.integers(0, 6)).filter(lambda row: row[1] + row[2] > 0)
    return sorted(draw(st.lists(row, min_size=1, max_size=most)), key=lambda row: row[0])


@st.composite
def systems(draw):
    engine, rule = draw(engines()), draw(rules())
    return engine, rule, draw(rows(rule.longest_prompt(engine.b_max)))


def run_rows(engine, rule, table, *, scale=Fraction(1)):
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | {scale / 1000}, Fraction(10**4))
    assert not clock.notes
    arrival = [clock.ticks(scale * row[0] / 1000) for row in table]
    requests = Requests(arrival=arrival, prefill=[row[1] for row in table], decode=[row[2] for row in table])
    return run(engine, rule, requests, clock, log=True)


def capacity(engine):
    """C in tokens/s, by trying every batch."""
    return max(b / engine.batch_time.seconds(b) for b in range(1, engine.b_max + 1))


def check_invariants(done, engine):
    """Conservation, causality, limits and the clock, recounted from the batch log alone."""
    requests, clock, log = done.requests, done.clock, done.log
    prefill, decode = requests.prefill.tolist(), requests.decode.tolist()
    ready = requests.arrival.tolist()  # earliest start of a batch that may decode the request
    served, end, best = 0, 0, capacity(engine)
    for start, duration, tokens, batch in zip(log.starts, log.durations, log.tokens, log, strict=True):
        present = [i for i in range(len(requests)) if requests.arrival[i] <= start and prefill[i] + decode[i] > 0]
        if start > end:  # the engine was idle
            assert start in requests.arrival
            assert all(prefill[i] + decode[i] == 0 for i in range(len(requests)) if requests.arrival[i] < start)
        assert start >= end
        assert Fraction(int(duration), clock.rate) == engine.batch_time.seconds(int(tokens))
        end = int(start + duration)
        assert 1 <= batch.tokens == tokens <= engine.b_max
        assert engine.k_max is None or batch.requests <= engine.k_max
        assert len(set(batch.decode)) == len(batch.decode)
        for request in batch.decode:
            assert request in present
            assert prefill[request] == 0
            assert start >= ready[request]
            decode[request] -= 1
        for request, count in batch.prefill:
            assert request in present
            prefill[request] -= count
            ready[request] = end
        assert min(prefill + decode) >= 0
        served += int(tokens)
        assert served <= best * Fraction(end, clock.rate)
        for i in present:
            assert (done.finish[i] == end) == (prefill[i] + decode[i] == 0)
        arrived = sum(int(work) for work, at in zip(requests.work, requests.arrival, strict=True) if at <= end)
        assert done.backlog(np.array([end]))[0] == arrived - served
    assert sum(prefill) + sum(decode) == 0


def check_fills(done, budget, k_max=None):
    """Every batch has min(budget, D) tokens, or a request in each of its k_max seats."""
    requests = done.requests
    prefill, decode = requests.prefill.tolist(), requests.decode.tolist()
    for start, batch in zip(done.log.starts, done.log, strict=True):
        present = [i for i in range(len(requests)) if requests.arrival[i] <= start and prefill[i] + decode[i] > 0]
        full = min(budget, sum(prefill[i] or 1 for i in present))
        assert batch.tokens == full or (batch.tokens < full and batch.requests == k_max)
        for request, count in batch.prefill:
            prefill[request] -= count
        for request in batch.decode:
            decode[request] -= 1


@given(systems())
def test_every_run_keeps_to_the_model(system):
    engine, rule, table = system
    check_invariants(run_rows(engine, rule, table), engine)


@given(engines(), st.sampled_from(FILLING), st.none() | st.integers(1, 30), st.data())
def test_work_conserving_rules_fill_every_batch(engine, name, target, data):
    rule = parse_scheduler(name if target is None else f"{name}+target={target}")
    check_fills(run_rows(engine, rule, data.draw(rows(None))), rule.budget(engine.b_max), engine.k_max)


@pytest.mark.parametrize("name", sorted(set(SCHEDULERS) - {"orca", "sarathi", "vllm-chunked"}))
def test_the_other_rules_do_not(name):
    # A decodes while B brings a prompt that fits and C one that does not fit beside it.
    table = [(0, 1, 3), (0, 2, 1), (0, 3, 1)]
    done = run_rows(Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4), parse_scheduler(name), table)
    with pytest.raises(AssertionError):
        check_fills(done, 4)


@attrs.define
class Watched:
    """A rule that checks what it is shown, and when it was first served."""

    rule: object
    k_max: int | None
    order: list = attrs.field(factory=list)
    name: str = "watched"

    def form(self, view):
        left = view.prefill_left
        assert list(view.prefilling) == sorted(view.prefilling)
        assert list(view.decoding) == sorted(view.decoding)
        assert list(view.waiting) == sorted(view.waiting)
        assert all(left[i] > 0 for i in view.prefilling)
        assert all(left[i] == 0 for i in view.decoding)
        assert sorted([*view.prefilling, *view.decoding]) == sorted([*view.waiting, *view.running])
        assert list(view.running) == [i for i in self.order if i in view.running]
        if self.rule.passes[0] is Pass.RUNNING and self.k_max is not None:
            assert len(view.running) <= self.k_max
        batch = self.rule.form(view)
        served = {*(request for request, _ in batch.prefill), *batch.decode}
        assert served
        self.order += sorted(served.difference(self.order))
        return batch


@given(systems())
def test_the_view_is_what_it_promises(system):
    engine, rule, table = system
    watched = run_rows(engine, Watched(rule, engine.k_max), table)
    plain = run_rows(engine, rule, table)
    assert list(watched.log) == list(plain.log)


@given(systems(), st.fractions(min_value=Fraction(1, 50), max_value=50, max_denominator=50))
def test_scaling_time_scales_the_run_and_nothing_else(system, factor):
    engine, rule, table = system
    law = engine.batch_time
    if isinstance(law, Table):
        slower = attrs.evolve(law, seconds_at=[factor * t for t in law.seconds_at])
    else:
        slower = attrs.evolve(law, c=factor * law.c, a=factor * law.a)
    plain = run_rows(engine, rule, table)
    scaled = run_rows(attrs.evolve(engine, batch_time=slower), rule, table, scale=factor)
    assert list(scaled.log) == list(plain.log)
    for before, after in zip(plain.log.ends, scaled.log.ends, strict=True):
        assert Fraction(int(after), scaled.clock.rate) == factor * Fraction(int(before), plain.clock.rate)


@given(
    engines(limited=False),
    st.sampled_from(FILLING),
    st.tuples(st.integers(0, 12), st.integers(0, 8)).filter(any),
    st.sampled_from([Fraction(1), Fraction(1), Fraction(11, 10), Fraction(3)]),
)
def test_regular_arrivals_within_full_batches_keep_the_backlog_bounded(engine, name, lengths, slack):
    """W tokens every G seconds with W <= F G: at most (b_max + 1) W tokens after every batch, at equality too.

    No batch may last longer than a full one: with t(1) = 1 ms, t(2) = 0.5 ms and b_max = 2, one token every 0.25 ms
    keeps 4 tokens there.
    """
    law = engine.batch_time
    if isinstance(law, Table):
        engine = attrs.evolve(engine, batch_time=attrs.evolve(law, seconds_at=sorted(law.seconds_at)))
    work = sum(lengths)
    interval = slack * work * engine.batch_time.seconds(engine.b_max) / engine.b_max
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | {interval}, Fraction(10**4))
    count = 120
    requests = Requests(
        arrival=[clock.ticks(index * interval) for index in range(count)],
        prefill=[lengths[0]] * count,
        decode=[lengths[1]] * count,
    )
    done = run(engine, parse_scheduler(name), requests, clock, log=True)
    within = done.log.ends[done.log.ends <= requests.arrival[-1]]
    assert not within.size or done.backlog(within).max() <= (engine.b_max + 1) * work


@attrs.define
class Mutated:
    """Orca, but for one batch in which it does something else."""

    change: object
    at: int
    name: str = "mutated"
    formed: int = 0

    def form(self, view):
        batch = SCHEDULERS["orca"].form(view)
        self.formed += 1
        return self.change(batch) if self.formed - 1 == self.at else batch


def repeated(batch):
    return Batch(batch.prefill * 2, batch.decode * 2)


def of_the_future(batch):
    return Batch(batch.prefill, [*batch.decode, 4])


def half_a_token(batch):
    return Batch([(request, count / 2) for request, count in batch.prefill], batch.decode)


def too_much(batch):
    return Batch([(request, count + 9) for request, count in batch.prefill], batch.decode)


MUTANT_ENGINE = Engine(batch_time=Staircase(c=0, a="1 ms", b0=4), b_max=6, k_max=3)
MUTANT_ROWS = [(0, 4, 2), (0, 3, 2), (1, 5, 2), (1, 5, 2), (100, 1, 1)]


@pytest.mark.parametrize(
    ("change", "at", "complaint"),
    [
        (lambda _: Batch(), 1, "serves nothing although 4 requests are present"),
        (repeated, 0, "twice"),
        (of_the_future, 0, "request 4, which is not decoding"),
        (lambda _: Batch([(4, 1)]), 0, "request 4 is not present"),
        (lambda _: Batch([(0, 1)]), 1, "request 0 has no prompt tokens left"),
        (half_a_token, 0, "2.0 is no whole number"),
        (too_much, 0, "13 prompt tokens for request 0, which has 4 left"),
        (lambda _: Batch([(1, 1), (2, 5)], [0]), 1, "7 tokens are above the budget b_max = 6"),
        (lambda _: Batch([(1, 1), (2, 1), (3, 1)], [0]), 1, "4 requests are above the batch size k_max = 3"),
    ],
)
def test_a_batch_that_breaks_the_model_is_refused_with_its_state(change, at, complaint):
    with pytest.raises(InvalidInput, match=r"prefilling .* decoding .* running") as caught:
        run_rows(MUTANT_ENGINE, Mutated(change, at), MUTANT_ROWS)
    assert complaint in str(caught.value)
    assert f"scheduler mutated: batch {at} at " in str(caught.value)


def test_a_rule_that_holds_back_in_one_batch_is_no_longer_work_conserving():
    engine = attrs.evolve(MUTANT_ENGINE, k_max=None)
    check_fills(run_rows(engine, SCHEDULERS["orca"], MUTANT_ROWS), 6)
    lazy = Mutated(lambda batch: Batch(batch.prefill[:1], []), 1)
    with pytest.raises(AssertionError):
        check_fills(run_rows(engine, lazy, MUTANT_ROWS), 6)


@given(systems(), st.data())
def test_a_run_that_skips_one_batch_breaks_an_invariant(system, data):
    engine, rule, table = system
    done = run_rows(engine, rule, table)
    skip = data.draw(st.integers(0, done.batches - 1))
    kept = [index for index in range(done.batches) if index != skip]
    log = BatchLog.of(done.log.starts[kept], done.log.durations[kept], [done.log[index] for index in kept])
    skipped = attrs.evolve(done, log=log)
    with pytest.raises(AssertionError):
        check_invariants(skipped, engine)


@attrs.define
class Writes:
    """A rule that changes what it is shown."""

    change: object
    name: str = "writes"

    def form(self, view):
        self.change(view)
        return Batch()


@pytest.mark.parametrize(
    "change",
    [
        lambda view: view.prefill_left.__setitem__(0, 1),
        lambda view: view.waiting.clear(),
        lambda view: view.decoding.append(0),
        lambda view: view.running.pop(),
        lambda view: view.prefilling.popleft(),
    ],
)
def test_a_rule_cannot_write_to_its_view(change):
    with pytest.raises(AttributeError):
        run_rows(MUTANT_ENGINE, Writes(change), MUTANT_ROWS)
