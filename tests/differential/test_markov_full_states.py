"""Exact chains against the plain one: every request drawn when it arrives, every token carried, nothing lumped.

Both refuse the same arrivals, so that their laws are the same at any load: those that come while a fixed number of
requests is present, or, where all requests are alike and the level counts tokens, those that do not fit below it.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from chains import counted_chain
from exported import chain_of
from scipy.sparse import csc_array, eye_array
from scipy.sparse.linalg import spsolve

import queuetheory_llm as qt
from queuetheory_llm.markov.laws import backlog_at_boundaries, requests_at_boundaries
from queuetheory_llm.markov.stationary import stationary
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.chances import arrivals_law, request_law
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import State

TAIL = 1e-7  # of the memoryless lengths, which the plain chain has to cut


def full_chain(engine, rule, workload, fit):
    """The states and the transitions; of what arrives at the end of a batch ``fit(state)`` requests are let in."""
    law = request_law(workload, memoryless=False, tail=TAIL)
    kinds = list(zip(law.prefill.tolist(), law.decode.tolist(), law.chance.tolist(), strict=True))
    number, states, rows = {State(): 0}, [State()], []
    done = 0
    while done < len(states):
        state, done = states[done], done + 1
        after, come_in = state, idle_law(workload.arrivals)
        if state.left:
            batch = rule.form(state.view(engine.b_max, engine.k_max))
            after = state.after(batch)
            come_in = arrivals_law(workload.arrivals, engine.batch_time.seconds(batch.tokens))
        room = fit(after)
        for count in range(min(room, come_in.size - 1) + 1):
            chance = come_in[count] if count < room else come_in[count:].sum()
            for come in product(kinds, repeat=count):
                following = after.joined([(prefill, decode) for prefill, decode, _ in come])
                if following not in number:
                    number[following] = len(states)
                    states.append(following)
                share = chance * np.prod([each for *_, each in come])
                rows.append((done - 1, number[following], share))
    return states, rows


def idle_law(arrivals):
    """Requests that end an idle time, or come in an idle slot."""
    return arrivals_law(arrivals, arrivals.slot) if isinstance(arrivals, qt.SlottedArrivals) else np.array([0.0, 1.0])


def stationary_of(size, rows):
    source, target, chance = (np.array(column) for column in zip(*rows, strict=True))
    moves = csc_array((chance, (target, source)), shape=(size, size)) - eye_array(size)
    moves = moves.tolil()
    moves[0, :] = 1.0
    aim = np.zeros(size)
    aim[0] = 1.0
    return spsolve(moves.tocsc(), aim)


LENGTHS = [
    {"prefill": qt.Uniform(low=1, high=2), "decode": qt.Uniform(low=0, high=1)},
    {"prefill": qt.Empirical(values=[1, 3]), "decode": 1},
    {"prefill": 0, "decode": qt.Uniform(low=1, high=3)},
    {"prefill": 1, "decode": qt.Empirical(values=[1, 3])},
    {"prefill": qt.Uniform(low=0, high=1), "decode": qt.Uniform(low=1, high=2)},
    {"prefill": 2, "decode": 2},
    {"prefill": 1, "decode": qt.Geometric(mean="3/2")},
]
RULES = ["sarathi", "orca", "orca-whole", "vllm-vanilla", "fastertransformer", "vllm-chunked", "vllm-chunked+whole",
         "sglang", "tensorrt-llm", "static", "sarathi+threshold=1", "vllm-chunked+threshold=1"]  # fmt: skip
SYSTEMS = [(load, k_max, slotted) for load in ("0.6", "0.8") for k_max, slotted in ((None, True), (2, False))]


def some_system(load, k_max, slotted, lengths):
    """An engine of three tokens a batch at a share of the tokens that full batches serve, in slots or in time."""
    law = Table(tokens=[3], seconds_at=[1]) if slotted else Staircase(c="0.4 s", a="0.2 s", b0=1)
    workload = qt.Workload.of(**lengths)
    mean = Fraction(load) * 3 / (workload.mean_prefill + workload.mean_decode)  # requests during a full batch
    arrivals = qt.SlottedArrivals(slot=1, law="poisson", mean=mean) if slotted else qt.PoissonArrivals(rate=mean)
    return qt.Engine(batch_time=law, b_max=3, k_max=k_max), workload.with_arrivals(arrivals)


def assert_same_laws(rewards, states, rows, atol):
    """Every entry of the laws of the requests and of the tokens left at a boundary."""
    plain = stationary_of(len(states), rows)
    counts = np.bincount([len(state.left) for state in states], weights=plain)
    tokens = np.bincount([state.tokens for state in states], weights=plain)
    assert counts[2:].sum() > 0.1  # requests meet
    law = stationary(rewards.operator).law
    for ours, theirs in ((requests_at_boundaries, counts), (backlog_at_boundaries, tokens)):
        found = ours(rewards, law)
        size = max(found.size, theirs.size)
        found, expected = (np.pad(each, (0, size - each.size)) for each in (found, theirs))
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_the_lumped_chain_is_the_plain_one(rule, lengths):
    geometric = isinstance(lengths["decode"], qt.Geometric)
    most, atol = (2, 30 * TAIL) if geometric else (4, 1e-11)
    policy = parse_scheduler(rule)
    for system in SYSTEMS:
        engine, workload = some_system(*system, lengths)
        full = full_chain(engine, policy, workload, lambda state: most - len(state.left))
        assert_same_laws(counted_chain(engine, policy, workload, most), *full, atol)


@pytest.mark.parametrize("lengths", [(1, 1), (0, 3), (3, 2), (2, 0)])
@pytest.mark.parametrize("rule", RULES)
def test_the_level_of_requests_that_are_alike_counts_tokens(rule, lengths):
    prefill, decode = lengths
    mean, level = prefill + decode, 6 * (prefill + decode) + 1
    policy = parse_scheduler(rule)
    for system in SYSTEMS:
        engine, workload = some_system(*system, {"prefill": prefill, "decode": decode})
        full = full_chain(engine, policy, workload, lambda state: (level - state.tokens) // mean)
        assert_same_laws(chain_of(engine, rule, workload, level), *full, 1e-11)
