"""The classification of drawn rules against their batches on drawn runs, larger than those it explored."""

from itertools import chain, repeat

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import rules

from queuetheory_llm.schedulers.policy import Batch
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.stability.classify import classify, properties
from queuetheory_llm.stability.exploration import explored_form

FILLING = ["orca", "sarathi", "vllm-chunked", "sglang+mixed", "tensorrt-llm+chunk", "orca-whole+chunk"]


@st.composite
def arrivals(draw, longest, slots=25):
    """Requests (prefill, decode) that come at each of some batch boundaries."""
    tokens = st.tuples(st.integers(0, longest), st.integers(0, 4)).filter(any)
    return draw(st.lists(st.lists(tokens, max_size=3), min_size=1, max_size=slots))


def boundaries(rule, b_max, coming):
    """(state, batch) at every boundary at which the rule has something to serve, until all is done."""
    state = State()
    work = sum(map(sum, chain.from_iterable(coming)))  # a batch serves a token at least
    for new in [*coming, *repeat([], work)]:
        state = state.joined(new)
        if not state.left:
            continue
        batch = rule.form(state.view(b_max))
        yield state, batch
        state = state.after(batch)
    assert not state.left


@given(st.sampled_from(FILLING), st.integers(1, 15), arrivals(20))
def test_a_work_conserving_rule_fills_every_batch(name, b_max, coming):
    rule = parse_scheduler(name)
    assert properties(rule).work_conserving
    for state, batch in boundaries(rule, b_max, coming):
        assert batch.tokens == min(b_max, state.view(b_max).demand)


@settings(max_examples=60)
@given(rules(), st.integers(1, 15), st.data())
def test_what_the_classification_says_of_a_rule_holds_on_its_runs(rule, b_max, data):
    found = properties(rule)
    longest = rule.longest_prompt(b_max)
    coming = data.draw(arrivals(9 if longest is None else min(9, longest), slots=12))
    overtaken: dict[tuple[int, str], int] = {}
    names: list[int] = []  # of the requests present, numbered by arrival
    arrived = 0
    for state, batch in boundaries(rule, b_max, coming):
        new = len(state.left) - len(names)
        names += range(arrived, arrived + new)
        arrived += new
        if found.work_conserving:
            assert batch.tokens == min(b_max, state.view(b_max).demand)
        if found.fills and len(state.left) >= b_max:
            assert batch.tokens == b_max
        for phase, served, ready in (
            ("prefill", [i for i, _ in batch.prefill], [i for i, (p, _) in enumerate(state.left) if p]),
            ("decode", batch.decode, [i for i, (p, _) in enumerate(state.left) if not p]),
        ):
            for i in set(ready).difference(served):
                overtaken[names[i], phase] = overtaken.get((names[i], phase), 0) + sum(j > i for j in served)
        done = finished(state, batch)
        names = [name for i, name in enumerate(names) if i not in done]
    if found.overtaken is not None:
        assert max(overtaken.values(), default=0) <= found.overtaken


def finished(state, batch):
    given_tokens = dict(batch.prefill)
    return {i for i, (p, d) in enumerate(state.left) if p - given_tokens.get(i, 0) + d - (i in batch.decode) == 0}


@settings(max_examples=25)
@given(rules())
def test_a_rule_that_is_not_work_conserving_has_a_witness_and_the_others_none(rule):
    found = properties(rule)
    assert (found.idle_witness is None) == found.work_conserving
    if found.work_conserving:
        assert found.fills
        return
    witness = found.idle_witness
    assert witness.tokens < min(witness.b_max, witness.demand)
    assert witness.demand == sum(p or 1 for p, _ in witness.left)
    # The batch is one the rule forms of such a state, whoever holds a seat.
    seats = [tuple(i for i in range(len(witness.left)) if mask >> i & 1) for mask in range(2 ** len(witness.left))]
    orders = [*seats, *(seat[::-1] for seat in seats)]
    batches = [explored_form(rule).form(State(witness.left, running).view(witness.b_max)) for running in orders]
    assert (list(witness.prefill), list(witness.decode)) in [(batch.prefill, batch.decode) for batch in batches]


@settings(max_examples=4)
@given(rules())
def test_names_flags_and_sources_decide_nothing(rule):
    disguised = attrs.evolve(rule, name="sarathi", rule="fills every batch", source="Theorem 2")
    plain, found = classify(rule), classify(disguised)
    assert attrs.evolve(found, scheduler=rule.name, explored_as=plain.explored_as) == plain


@attrs.frozen
class Skipping:
    """A rule that leaves one token out of its batch in one kind of state: a mutant of a work-conserving one."""

    base: object
    present: int
    name: str = "skipping"

    def form(self, view):
        batch = self.base.form(view)
        if view.present == self.present and batch.tokens >= 2 and batch.decode:
            return Batch(batch.prefill, batch.decode[:-1])
        return batch


@pytest.mark.parametrize("present", [2, 3])
@pytest.mark.parametrize("name", ["orca", "sarathi", "vllm-chunked"])
def test_a_rule_that_skips_in_one_kind_of_state_is_caught(name, present):
    found = properties(Skipping(parse_scheduler(name), present))
    assert not found.work_conserving
    assert len(found.idle_witness.left) == present


@attrs.frozen
class Reversed:
    """A rule that sees the requests of each phase youngest first: it fills as well, and overtakes for ever."""

    base: object
    name: str = "reversed"

    def form(self, view):
        return self.base.form(
            attrs.evolve(view, prefilling=list(view.prefilling)[::-1], decoding=list(view.decoding)[::-1])
        )


@pytest.mark.parametrize("name", ["orca", "sarathi"])
def test_the_same_rule_youngest_first_is_work_conserving_and_not_fcfs(name):
    found = properties(Reversed(parse_scheduler(name)))
    assert found.work_conserving
    assert found.overtaken is None
    assert found.overtaking_witness is not None
    assert found.throughput_optimal is None
