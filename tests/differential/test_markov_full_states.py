"""Exact chains against the plain one: every request drawn when it arrives, every token carried, nothing lumped."""

import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.sparse import csc_array, eye_array
from scipy.sparse.linalg import spsolve

import queuetheory_llm as qt
from queuetheory_llm.markov.chain import exact_chain
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.chances import arrivals_law, request_law
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import State


def full_chain(engine, rule, workload, most):
    """The states with up to ``most`` requests, and the transitions; later arrivals are refused."""
    law = request_law(workload, memoryless=False, tail=1e-9)
    kinds = list(zip(law.prefill.tolist(), law.decode.tolist(), law.chance.tolist(), strict=True))
    number, states, rows = {State(): 0}, [State()], []
    done = 0
    while done < len(states):
        state, done = states[done], done + 1
        after, seconds = state, workload.arrivals.slot
        if state.left:
            batch = rule.form(state.view(engine.b_max, engine.k_max))
            after, seconds = state.after(batch), engine.batch_time.seconds(batch.tokens)
        for count, chance in enumerate(arrivals_law(workload.arrivals, seconds).tolist()):
            room = min(count, most - len(after.left))
            for come in product(kinds, repeat=room):
                following = after.joined([(prefill, decode) for prefill, decode, _ in come])
                if following not in number:
                    number[following] = len(states)
                    states.append(following)
                share = chance * np.prod([each for *_, each in come])
                rows.append((done - 1, number[following], share))
    return states, rows


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
    {"prefill": 1, "decode": qt.Geometric(mean="3/2")},
]
RULES = ["sarathi", "orca", "orca-whole", "vllm-vanilla", "fastertransformer", "vllm-chunked", "vllm-chunked+whole",
         "sglang", "tensorrt-llm", "static", "sarathi+threshold=1", "vllm-chunked+threshold=1"]  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_the_lumped_chain_is_the_plain_one(rule, lengths):
    rng = random.Random(f"{rule} {lengths}")
    geometric = isinstance(lengths["decode"], qt.Geometric)
    mixed = lengths["prefill"] == qt.Uniform(low=0, high=1)  # every request is seen at once: many states
    b_max, k_max = 3, rng.choice([None, 2, 3])
    engine = qt.Engine(batch_time=Table(tokens=[b_max], seconds_at=[Fraction(1)]), b_max=b_max, k_max=k_max)
    arrivals = qt.SlottedArrivals(slot=1, law="bernoulli", mean="1/40" if geometric else "1/12" if mixed else "1/6")
    workload = qt.Workload.of(**lengths, arrivals=arrivals)
    policy = parse_scheduler(rule)
    most = 3 if geometric else 6
    states, rows = full_chain(engine, policy, workload, most)
    plain = stationary_of(len(states), rows)
    chain = exact_chain(engine, policy, workload, tolerance=1e-5 if mixed else 1e-9)
    counts = np.array([len(state.left) for state in states])
    lost = plain[counts == most].sum()
    assert lost < 3e-4
    law = np.bincount(counts, weights=plain)
    ours = np.zeros(law.size + 60)
    ours[: chain.requests_law.size] = chain.requests_law[: ours.size]
    np.testing.assert_allclose(ours[: law.size], law, atol=20 * lost + (1e-5 if mixed else 1e-8))
    tokens = np.array([state.tokens for state in states])
    assert float(plain @ tokens) == pytest.approx(chain.means.backlog, abs=200 * lost + (1e-4 if mixed else 1e-7))
