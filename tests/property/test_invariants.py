"""The checker of runs: silent on every sound run, and it sees every kind of damage to one."""

import tracemalloc

import attrs
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import engines, longest_prompt, rules

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.simulation import invariants, kernel, reference
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.invariants import CHECKED, check_run
from queuetheory_llm.simulation.judge import claims_full_batches
from queuetheory_llm.simulation.requests import Requests

#: Examples of each kind of damage; a thousand of each were run once.
few = settings(max_examples=40)
TICKS = 10**9 // 12  # of the times below, in twelfths of a second


@st.composite
def runs(draw, least=1):
    """A run with its log, its engine and its rule; stopped at a horizon in half of the cases."""
    engine, rule = draw(engines()), draw(rules())
    longest = longest_prompt(rule, engine)
    row = st.tuples(st.integers(0, 60), st.integers(0, longest), st.integers(0, 5)).filter(lambda row: row[1] + row[2])
    table = sorted(draw(st.lists(row, min_size=least, max_size=8)))
    clock = Clock.fit(generators(engine.batch_time, engine.b_max), 10**4)
    requests = Requests(
        arrival=[row[0] * TICKS for row in table], prefill=[row[1] for row in table], decode=[row[2] for row in table]
    )
    until = None if draw(st.booleans()) else draw(st.integers(61, 120)) * TICKS
    run = draw(st.sampled_from([kernel.run, reference.run]))
    return run(engine, rule, requests, clock, until=until, log=True), engine, rule


def test_the_checks_are_named():
    assert len(set(CHECKED)) == len(CHECKED) > 5


@few
@given(runs())
def test_sound_runs_pass(system):
    done, engine, rule = system
    assert check_run(done, engine, rule, fills=claims_full_batches(rule)) == []


@few
@given(runs(), st.integers(1, 9))
def test_pages_of_the_log_say_what_the_whole_says(system, page):
    done, _, _ = system
    log, count = done.log, len(done.requests)
    for entries, ends in ((log.piece_request, log.piece_end), (log.decode_request, log.decode_end)):
        whole = invariants._Phase.of(entries, ends, log.ends, count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(invariants, "_PAGE", page)
            paged = invariants._Phase.of(entries, ends, log.ends, count)
        for field in attrs.fields_dict(invariants._Phase):
            np.testing.assert_array_equal(getattr(paged, field), getattr(whole, field))


def test_a_check_takes_little_memory_beside_the_log(monkeypatch):
    """400 000 decode tokens in batches of 256, pages of a hundredth of them."""
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=256), b_max=256)
    requests = Requests(arrival=[0] * 1000, prefill=[1] * 1000, decode=[400] * 1000)
    rule = SCHEDULERS["sarathi"]
    done = kernel.run(engine, rule, requests, Clock(rate=10**9), log=True)
    assert check_run(done, engine, rule) == []  # what is imported is not counted
    monkeypatch.setattr(invariants, "_PAGE", 4_000)
    tracemalloc.start()
    try:
        assert check_run(done, engine, rule) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * done.log.decode_request.size  # bytes; the log itself has 8 a token


def test_a_run_without_a_log_cannot_be_checked():
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
    requests = Requests(arrival=[0], prefill=[1], decode=[1])
    done = reference.run(engine, SCHEDULERS["sarathi"], requests, Clock(rate=10**9))
    with pytest.raises(InvalidInput, match="batch log"):
        check_run(done, engine, SCHEDULERS["sarathi"])


def changed(values, index, by):
    copy = np.array(values)
    copy[index] += by
    return copy


def logged(done, **fields):
    return attrs.evolve(done, log=attrs.evolve(done.log, **fields))


@st.composite
def steps(draw):
    return draw(st.integers(-(10**10), 10**10).filter(bool) | st.sampled_from([-1, 1]))


@few
@given(runs(), st.data())
def test_a_changed_time_of_a_request_is_seen(system, data):
    done, engine, rule = system
    name = data.draw(st.sampled_from(["begin", "first_decode", "last_prefill", "finish", "longest_gap"]))
    index = data.draw(st.integers(0, len(done.requests) - 1))
    bad = attrs.evolve(done, **{name: changed(getattr(done, name), index, data.draw(steps()))})
    assert any(name in fault for fault in check_run(bad, engine, rule))


@few
@given(runs(), st.data())
def test_a_changed_point_of_the_series_is_seen(system, data):
    done, engine, rule = system
    name = data.draw(st.sampled_from(["backlog", "waiting", "decoding", "batches", "busy"]))
    index = data.draw(st.integers(0, done.series.ticks.size - 1))
    series = attrs.evolve(done.series, **{name: changed(getattr(done.series, name), index, data.draw(steps()))})
    faults = check_run(attrs.evolve(done, series=series), engine, rule)
    assert [fault for fault in faults if fault.startswith(f"series: {name}")] == faults != []


@few
@given(runs(), st.sampled_from(["batches", "tokens", "busy", "last"]), steps())
def test_a_changed_total_is_seen(system, name, by):
    done, engine, rule = system
    assert check_run(attrs.evolve(done, **{name: getattr(done, name) + by}), engine, rule)


@few
@given(runs(), st.data())
def test_a_changed_number_of_the_log_is_seen(system, data):
    done, engine, rule = system
    assume(done.batches)
    names = ["starts", "durations", "piece_tokens", "piece_request", "decode_request", "piece_end", "decode_end"]
    name = data.draw(st.sampled_from([name for name in names if getattr(done.log, name).size]))
    index = data.draw(st.integers(0, getattr(done.log, name).size - 1))
    by = data.draw(st.integers(-3, 3).filter(bool) | steps())
    assert check_run(logged(done, **{name: changed(getattr(done.log, name), index, by)}), engine, rule)


@few
@given(runs(), st.data())
def test_a_missing_or_repeated_batch_is_seen(system, data):
    done, engine, rule = system
    assume(done.batches)
    index = data.draw(st.integers(0, done.batches - 1))
    batches = [done.log[place] for place in range(done.batches)]
    order = list(range(done.batches))
    if data.draw(st.booleans()):
        order.remove(index)
    else:
        order.insert(index, index)
    log = type(done.log).of(done.log.starts[order], done.log.durations[order], [batches[place] for place in order])
    assert check_run(attrs.evolve(done, log=log), engine, rule)


@few
@given(runs(), st.data())
def test_two_requests_exchanged_in_one_batch_are_seen(system, data):
    """Tokens of the batch stay the same, their owners do not."""
    done, engine, rule = system
    places = data.draw(st.sampled_from(["piece_request", "decode_request"]))
    owners = getattr(done.log, places)
    assume(np.unique(owners).size > 1)
    index = data.draw(st.integers(0, owners.size - 1))
    other = data.draw(st.sampled_from([int(owner) for owner in np.unique(owners) if owner != owners[index]]))
    bad = np.array(owners)
    bad[index] = other
    assert check_run(logged(done, **{places: bad}), engine, rule)


@few
@given(runs(), st.data())
def test_a_later_start_of_all_that_follows_is_seen(system, data):
    """The clock of every batch is right, but the engine idles while a request is present."""
    done, engine, rule = system
    assume(done.batches)
    index = data.draw(st.integers(0, done.batches - 1))
    starts = np.array(done.log.starts)
    starts[index:] += data.draw(st.integers(1, 10**9))
    assert any("work conservation" in fault for fault in check_run(logged(done, starts=starts), engine, rule))


@few
@given(runs(), st.data())
def test_requests_that_are_not_those_of_the_run_are_seen(system, data):
    done, engine, rule = system
    assume(done.finished)
    name = data.draw(st.sampled_from(["prefill", "decode"]))
    index = data.draw(st.sampled_from(np.flatnonzero(done.finish >= 0).tolist()))
    requests = attrs.evolve(done.requests, **{name: changed(getattr(done.requests, name), index, 1)})
    assert check_run(attrs.evolve(done, requests=requests), engine, rule)


@few
@given(runs(), st.data())
def test_smaller_limits_than_those_of_the_run_are_seen(system, data):
    done, engine, rule = system
    assume(done.batches)
    most = int(done.log.tokens.max())
    seats = max(len(batch.prefill) + len(batch.decode) for batch in done.log)
    if data.draw(st.booleans()):
        assume(most > 1)
        small = attrs.evolve(engine, b_max=most - 1, k_max=None)
    else:
        assume(seats > 1)
        small = attrs.evolve(engine, k_max=seats - 1)
    assert any(fault.startswith("limits") for fault in check_run(done, small, rule))


def test_a_slower_engine_than_that_of_the_run_is_seen():
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
    requests = Requests(arrival=[0, 0], prefill=[4, 4], decode=[1, 1])
    done = reference.run(engine, SCHEDULERS["sarathi"], requests, Clock(rate=10**9), log=True)
    faults = check_run(done, attrs.evolve(engine, batch_time=Staircase(c=0, a=2, b0=4)), SCHEDULERS["sarathi"])
    assert any(fault.startswith("clock") for fault in faults)
    assert any(fault.startswith("capacity") for fault in faults)


@pytest.mark.parametrize("name", sorted(set(SCHEDULERS) - {"orca", "sarathi", "vllm-chunked"}))
def test_the_other_rules_leave_batches_that_are_not_full(name):
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=4), b_max=4)
    requests = Requests(arrival=[0, 0, 0], prefill=[1, 2, 3], decode=[3, 1, 1])
    done = reference.run(engine, parse_scheduler(name), requests, Clock(rate=10**9), log=True)
    assert not claims_full_batches(parse_scheduler(name))
    assert check_run(done, engine, parse_scheduler(name)) == []
    assert any(fault.startswith("full batches") for fault in check_run(done, engine, parse_scheduler(name), fills=True))


@few
@given(runs(), st.randoms(use_true_random=False))
def test_the_order_within_a_batch_is_free(system, random):
    """What is not damage: the lists of a batch in another order."""
    done, engine, rule = system
    batches = list(done.log)
    for batch in batches:
        random.shuffle(batch.prefill)
        random.shuffle(batch.decode)
    log = type(done.log).of(done.log.starts, done.log.durations, batches)
    assert check_run(attrs.evolve(done, log=log), engine, rule) == []
