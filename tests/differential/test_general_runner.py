# ruff: noqa: ARG001 - every rule has the three arguments
"""Rules on arrays: the compiled runner and the plain one agree batch for batch, in their refusals too."""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import engines, request_rows

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.kept import code_digest, code_key
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.array_rule import ArrayRule, helper
from queuetheory_llm.schedulers.registry import ADAPTIVE, parse_scheduler
from queuetheory_llm.simulation import general, reference
from queuetheory_llm.simulation.clock import LAST_TICK, Clock, generators
from queuetheory_llm.simulation.general import helpers_of, run_general
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import BatchLog, Run, Series
from queuetheory_llm.simulation.runner import run


@helper
def pieces_of(view, queue, tokens, seats, batch):
    """Pieces of the prompts of ``queue`` in turn; returns how many."""
    pieces = 0
    for request in queue:
        if tokens <= 0 or seats <= pieces:
            break
        batch.prefill_request[pieces] = request
        batch.prefill_tokens[pieces] = min(tokens, view.prefill_left[request])
        tokens -= batch.prefill_tokens[pieces]
        pieces += 1
    return pieces


@helper
def sarathi(view, batch):
    decodes = min(view.decoding.size, view.k_max, view.b_max)
    batch.decode_request[:decodes] = view.decoding[:decodes]
    return pieces_of(view, view.prefilling, view.b_max - decodes, view.k_max - decodes, batch), decodes


@helper
def vanilla(view, batch):
    tokens, pieces = view.b_max, 0
    for request in view.prefilling:
        if view.prefill_left[request] > tokens or pieces == view.k_max:
            break
        batch.prefill_request[pieces] = request
        batch.prefill_tokens[pieces] = view.prefill_left[request]
        tokens -= view.prefill_left[request]
        pieces += 1
    if pieces > 0:
        return pieces, 0
    decodes = min(view.decoding.size, view.k_max, view.b_max)
    batch.decode_request[:decodes] = view.decoding[:decodes]
    return 0, decodes


@helper
def last_come_first_served(view, batch):
    """Latest prompts first, then latest decodes; requests that hold a seat before those that wait."""
    pieces = pieces_of(view, view.prefilling[::-1], view.b_max, view.k_max, batch)
    tokens = view.b_max - np.sum(batch.prefill_tokens[:pieces])
    decodes = min(tokens, view.k_max - pieces, view.decoding.size)
    batch.decode_request[:decodes] = view.decoding[::-1][:decodes]
    return pieces, decodes


@helper
def one_token_each(view, queue, counts, batch):
    """One token for each request of ``queue`` while there is room; ``counts`` = (pieces, decodes) before and after."""
    pieces, decodes = counts
    for request in queue:
        if pieces + decodes == min(view.b_max, view.k_max):
            break
        if view.prefill_left[request] > 0:
            batch.prefill_request[pieces] = request
            batch.prefill_tokens[pieces] = 1
            pieces += 1
        else:
            batch.decode_request[decodes] = request
            decodes += 1
    return pieces, decodes


@helper
def seats(view, batch):
    """One token for each request that holds a seat, last seated first, then one for each that waits."""
    counts = one_token_each(view, view.running[::-1], (0, 0), batch)
    return one_token_each(view, view.waiting, counts, batch)


WRONG = [
    "serves nothing although 4 requests are present",
    "request 0 appears twice in one phase",
    "request 1 appears twice in one phase",
    "a decode token for request 4, which is not decoding",
    "a decode token for request 2, which is not decoding",
    "request 4 is not present",
    "request -1 is not present",
    "request 1 has no prompt tokens left",
    "13 prompt tokens for request 0, which has 4 left",
    "0 prompt tokens for request 0, which has 4 left",
    "7 tokens are above the budget b_max = 6",
    "4 requests are above the batch size k_max = 3",
    "it returned (-1, 0)",
    "it returned (99, 0)",
    "beyond an array",
]


@helper
def wrong(view, which, batch):
    """Breaks limit ``which`` of `WRONG`; requests 0, 2, 3 are in their prompt, 1 decodes."""
    pieces = ((0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (4, 1), (-1, 1), (1, 1), (0, 13), (0, 0), (2, 6), (0, 1))
    counts = ((0, 0), (2, 0), (0, 2), (0, 2), (0, 1), (1, 0), (1, 0), (1, 0), (1, 0), (1, 0), (1, 1), (3, 1))
    if which == 12:
        return -1, 0
    if which == 13:
        return 99, 0
    if which == 14:
        for i in range(99):
            batch.prefill_request[i] = 0
        return 1, 0
    batch.decode_request[:2] = 2 if which == 4 else 1
    if which == 3:
        batch.decode_request[1] = 4
    batch.prefill_request[:3] = 0
    batch.prefill_tokens[:3] = 1
    batch.prefill_request[0], batch.prefill_tokens[0] = pieces[which]
    if which == 11:
        batch.prefill_request[1:3] = view.prefilling[1:3]
    return counts[which]


def any_rule(view, parameters, batch):
    """All the rules above in one, which numba compiles once; ``parameters`` = the number of the rule."""
    which = int(parameters[0])
    if which == 0:
        return sarathi(view, batch)
    if which == 1:
        return vanilla(view, batch)
    if which == 2:
        return last_come_first_served(view, batch)
    if which == 3:
        return seats(view, batch)
    return wrong(view, which - 4, batch)


PLAIN = {
    name: ArrayRule(name=name, function=any_rule, parameters=(which,))
    for which, name in enumerate(("sarathi", "vllm-vanilla", "lcfs", "seats"))
}


def requests_of(engine, rows):
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | {Fraction(1, 4)}, Fraction(10**4))
    arrival = [clock.ticks(Fraction(row[0], 4)) for row in rows]
    return clock, Requests(arrival=arrival, prefill=[row[1] for row in rows], decode=[row[2] for row in rows])


def outcome(runner, engine, rule, rows, *, log=True, until=None):
    """The run, or the error a user reads."""
    clock, requests = requests_of(engine, rows)
    ticks = np.unique([0, clock.ticks(Fraction(7)), clock.ticks(Fraction(15)), clock.ticks(Fraction(60))])
    end = None if until is None else clock.ticks(Fraction(until, 4))
    try:
        return runner(engine, rule, requests, clock, until=end, log=log, watch=ticks)
    except InvalidInput as error:
        return str(error)


def parts(value):
    """Everything in a run as plain values."""
    if isinstance(value, Run | Series | BatchLog):
        return {field.name: parts(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, Requests):
        return len(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def make(name, engine, rows):
    if name in PLAIN:
        return PLAIN[name]
    prefill, decode = (sum(row[i] for row in rows) // len(rows) for i in (1, 2))
    return ADAPTIVE[name](engine, Workload.of(prefill=prefill, decode=max(decode, 1 - min(prefill, 1))))


@pytest.mark.parametrize("name", [*PLAIN, *ADAPTIVE])
@settings(max_examples=40)
@given(engines(), request_rows(14), st.none() | st.integers(1, 80))
def test_compiled_equals_plain(name, engine, rows, until):
    rule = make(name, engine, rows)
    compiled = parts(outcome(run_general, engine, rule, rows, until=until))
    assert compiled == parts(outcome(reference.run, engine, rule, rows, until=until))


@settings(max_examples=50)
@given(engines(), st.sampled_from(["sarathi", "vllm-vanilla"]), st.data())
def test_a_rule_on_arrays_equals_the_policy_it_restates(engine, name, data):
    rows = data.draw(request_rows(min(14, engine.b_max)))
    policy = outcome(reference.run, engine, parse_scheduler(name), rows)
    assert parts(outcome(run, engine, PLAIN[name], rows)) == parts(policy)


CODELLAMA = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128), b_max=256, k_max=20)
QUEUE = [(i // 3, 1 + 37 * i % 400, 1 + 13 * i % 90) for i in range(60)]


@pytest.mark.parametrize("small", [{"_LOG": 7}, {"_PAUSE": 3}, {"_TABLE": 5}])
def test_the_run_does_not_depend_on_how_often_the_kernel_comes_back(monkeypatch, small):
    whole = parts(outcome(run_general, CODELLAMA, PLAIN["sarathi"], QUEUE))
    for name, value in small.items():
        monkeypatch.setattr(general, name, value)
    assert parts(outcome(run_general, CODELLAMA, PLAIN["sarathi"], QUEUE)) == whole


def test_progress_is_told_and_grows(monkeypatch):
    monkeypatch.setattr(general, "_PAUSE", 5)
    clock, requests = requests_of(CODELLAMA, QUEUE)
    for until in (None, clock.ticks(Fraction(10))):
        told = []
        run_general(CODELLAMA, PLAIN["sarathi"], requests, clock, until=until, progress=told.append)
        assert len(told) > 3
        assert told == sorted(told)
        assert 0 < told[0] < told[-1] <= 1


@pytest.mark.parametrize("which", range(len(WRONG)))
def test_a_batch_that_breaks_the_model_is_refused_in_the_words_of_the_reference(which):
    engine = Engine(batch_time=Staircase(c=0, a=1, b0=6), b_max=6, k_max=3)
    rows = [(0, 4, 1), (0, 0, 3), (0, 6, 1), (0, 6, 1), (400, 1, 1)]
    rule = ArrayRule(name="wrong", function=any_rule, parameters=(4 + which,))
    said = outcome(run_general, engine, rule, rows)
    assert said == outcome(reference.run, engine, rule, rows)
    assert WRONG[which] in said
    assert said.startswith("scheduler wrong: ")
    assert "\n" not in said


def test_a_rule_that_numba_cannot_compile_is_an_error_of_one_line():
    def strange(view, parameters, batch):
        return len({request: {} for request in view.prefilling}), set()

    rule = ArrayRule(name="strange", function=strange)
    clock, requests = requests_of(CODELLAMA, QUEUE)
    with pytest.raises(InvalidInput, match="scheduler strange: numba cannot compile the rule") as caught:
        run_general(CODELLAMA, rule, requests, clock)
    assert "\n" not in str(caught.value)


def test_a_rule_that_numba_has_compiled_runs_on_both_runners():
    import numba

    rule = ArrayRule(name="seats", function=numba.njit(any_rule), parameters=(3,))
    expected = parts(outcome(reference.run, CODELLAMA, PLAIN["seats"], QUEUE))
    assert parts(outcome(run, CODELLAMA, rule, QUEUE)) == expected
    assert parts(outcome(reference.run, CODELLAMA, rule, QUEUE)) == expected


def test_what_is_no_function_is_an_error_of_one_line():
    clock, requests = requests_of(CODELLAMA, QUEUE)
    with pytest.raises(InvalidInput, match="is no plain Python function"):
        run_general(CODELLAMA, ArrayRule(name="odd", function=len), requests, clock)


def test_a_rule_is_known_by_its_code_wherever_it_comes_from():
    """A copy of a rule in a worker is the same rule; another constant, closure, helper or option is another one."""

    def make(limit, inner="return view.k_max + LIMIT", name="form"):
        text = f"LIMIT = {limit}\n@helper\ndef inside(view):\n    {inner}\n"
        text += f"def outer(closed):\n    def {name}(view, parameters, batch):\n"
        text += "        return inside(view) + closed, [i for i in range(2)][0]\n"
        text += f"    return {name}\nmade = outer(2.5)\n"
        space = {"helper": helper}
        exec(text, space)
        return space["made"]

    import numba

    key = code_key(make(3))
    copy = make(3)
    assert [each.__name__ for each in helpers_of(copy)] == ["inside"]
    assert code_key(copy) == key
    assert hash(code_key(copy)) == hash(key)
    assert code_digest(code_key(copy)) == code_digest(key)
    others = [make(4), make(3.0), make(True), make(3, "return view.b_max + LIMIT"), numba.njit(make(3))]
    assert len({key, *map(code_key, others)}) == 1 + len(others)
    assert code_digest(code_key(make([3]))) is None  # a list is known by identity


def test_the_packaged_rules_are_kept_on_disk_under_all_their_code(monkeypatch):
    from queuetheory_llm.schedulers import max_pressure, weighted

    key = code_key(max_pressure._form)
    assert code_digest(key) is not None

    @helper
    def changed(view, prefill, decode, batch):
        return weighted.serve_oldest(view, prefill, decode, batch)

    monkeypatch.setattr(max_pressure, "serve_oldest", changed)
    assert code_digest(code_key(max_pressure._form)) != code_digest(key)


WORKER = """
import queuetheory_llm as qt

@qt.helper
def oldest(view, batch):
    decodes = min(view.decoding.size, view.k_max, view.b_max)
    batch.decode_request[:decodes] = view.decoding[:decodes]
    if decodes > 0 or view.prefilling.size == 0:
        return 0, decodes
    batch.prefill_request[0] = view.prefilling[0]
    batch.prefill_tokens[0] = min(view.b_max, view.prefill_left[view.prefilling[0]])
    return 1, 0

def form(view, parameters, batch):
    return oldest(view, batch)

if __name__ == "__main__":
    rules = [qt.ArrayRule(name="own", function=form)]
    result = qt.sweep("codellama-34b-a100", schedulers=rules, seeds=2, horizon=5, n_jobs=2)  # the second in a worker
    assert result.failed == 0
"""


def test_a_rule_with_a_helper_runs_in_workers(tmp_path):
    """As a user's script: its functions go to the workers by value."""
    program = tmp_path / "program.py"
    program.write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_that_outlives_the_clock_is_refused():
    clock = Clock(rate=10**9)
    requests = Requests(arrival=[LAST_TICK - 10], prefill=[1], decode=[1])
    for runner in (run_general, reference.run):
        with pytest.raises(InvalidInput, match="the last instant of a 64-bit clock"):
            runner(CODELLAMA, PLAIN["sarathi"], requests, clock)


def test_no_requests_are_no_batches():
    clock, _ = requests_of(CODELLAMA, QUEUE)
    done = run_general(CODELLAMA, PLAIN["sarathi"], Requests(arrival=[], prefill=[], decode=[]), clock, log=True)
    assert (done.batches, done.tokens, len(done.log)) == (0, 0, 0)
