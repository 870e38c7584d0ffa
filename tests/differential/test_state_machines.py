"""The two state machines, `State` and the reference runner, agree batch for batch on drawn small systems."""

import attrs
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import longest_prompt, rules

from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import NEVER


@st.composite
def systems(draw):
    """An engine whose batches last 1 s, a rule, and requests (arrival in s, prefill, decode) by arrival."""
    b_max = draw(st.integers(1, 8))
    engine = Engine(
        batch_time=Table(tokens=[b_max], seconds_at=[1]), b_max=b_max, k_max=draw(st.none() | st.integers(1, 5))
    )
    rule = draw(rules())
    tokens = st.tuples(st.integers(0, longest_prompt(rule, engine)), st.integers(0, 5)).filter(any)
    requests = draw(st.lists(st.tuples(st.integers(0, 12), tokens), min_size=1, max_size=8))
    return engine, rule, sorted(((arrival, *left) for arrival, left in requests), key=lambda row: row[0])


def shown(view, ids):
    """What a rule sees, by request: phases, orders, and the prompt tokens left of those present."""
    named = [[ids[i] for i in group] for group in (view.prefilling, view.decoding, view.waiting, view.running)]
    return named, {ids[i]: view.prefill_left[i] for i in (*view.prefilling, *view.decoding)}


@attrs.frozen
class Watched:
    """A rule that notes what it is shown."""

    rule: object
    seen: list = attrs.field(factory=list, eq=False)

    @property
    def name(self):
        return self.rule.name

    def form(self, view):
        self.seen.append(shown(view, range(len(view.prefill_left))))
        return self.rule.form(view)


def by_states(engine, rule, rows):
    """Step `State` from boundary to boundary: (start, view, prefill, decode, finished, backlog after) of each batch."""
    state, ids, now, come = State(), [], 0, 0
    while come < len(rows) or state.left:
        if not state.left:
            now = max(now, rows[come][0])
        state, ids, come = joined(state, ids, rows, come, now)
        view = state.view(engine.b_max, engine.k_max)
        batch = rule.form(view)
        prefill, decode = [(ids[i], tokens) for i, tokens in batch.prefill], [ids[i] for i in batch.decode]
        start, seen, before = now, shown(view, ids), ids
        left = after_by_hand(state, batch)
        state, now = state.after(batch), now + 1
        ids = [request for request, tokens in zip(ids, left, strict=True) if any(tokens)]
        assert list(state.left) == [tokens for tokens in left if any(tokens)]
        finished = sorted(set(before) - set(ids))
        backlog = state.tokens + sum(p + d for arrival, p, d in rows[come:] if arrival <= now)
        yield start, seen, prefill, decode, finished, backlog


def joined(state, ids, rows, come, now):
    """The state with the requests that arrive at or before ``now``, and their numbers."""
    upto = sum(arrival <= now for arrival, _, _ in rows)
    new = [(prefill, decode) for _, prefill, decode in rows[come:upto]]
    return state.joined(new), [*ids, *range(come, upto)], upto


def after_by_hand(state, batch):
    """Tokens left of each request present, the finished ones included."""
    given = dict(batch.prefill)
    return [(p - given.get(i, 0), d - (i in batch.decode)) for i, (p, d) in enumerate(state.left)]


@given(systems())
def test_both_machines_form_the_same_batches_and_pass_the_same_states(system):
    engine, rule, rows = system
    clock = Clock.fit(generators(engine.batch_time, engine.b_max), 10**4)
    arrival, prefill, decode = zip(*rows, strict=True)
    requests = Requests(arrival=[at * clock.rate for at in arrival], prefill=prefill, decode=decode)
    watched = Watched(rule)
    done = run(engine, watched, requests, clock, log=True)
    expected = list(by_states(engine, rule, rows))
    assert len(done.log) == len(watched.seen) == len(expected)
    backlog = done.backlog(done.log.ends)
    for index, (start, seen, prefill_part, decode_part, finished, after) in enumerate(expected):
        assert done.log.starts[index] == start * clock.rate
        assert watched.seen[index] == seen
        assert done.log[index].prefill == prefill_part
        assert done.log[index].decode == decode_part
        assert np.flatnonzero(done.finish == done.log.ends[index]).tolist() == finished
        assert backlog[index] == after
    assert NEVER not in done.finish
