"""Averages over time of timed chains, against the plain chain: every request drawn when it arrives, nothing lumped.

What a batch draws tells how long it lasts and with how much work it began: the two may not be averaged apart.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.sparse import csc_array, eye_array
from scipy.sparse.linalg import spsolve

import queuetheory_llm as qt
from queuetheory_llm.markov.chain import exact_chain
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import State

MOST = 4  # requests in the plain chain; more are next to never there


def plain_chain(engine, rule, workload):
    """States, transitions with the seconds they take, of the chain with at most `MOST` requests."""
    law = request_law(workload, memoryless=False)
    kinds = list(zip(law.prefill.tolist(), law.decode.tolist(), law.chance.tolist(), strict=True))
    rate = float(workload.rate)
    number, states, rows = {State(): 0}, [State()], []
    done = 0
    while done < len(states):
        state, done = states[done], done + 1
        if state.left:
            batch = rule.form(state.view(engine.b_max, engine.k_max))
            after, seconds = state.after(batch), float(engine.batch_time.seconds(batch.tokens))
            mean = rate * seconds
            come = [np.exp(-mean) * mean**count / np.prod(np.arange(1, count + 1)) for count in range(MOST + 1)]
        else:
            after, seconds, come = state, 1 / rate, [0.0, 1.0]
        for count, chance in enumerate(come):
            room = min(count, MOST - len(after.left))
            for drawn in product(kinds, repeat=room):
                following = after.joined([(prefill, decode) for prefill, decode, _ in drawn])
                if following not in number:
                    number[following] = len(states)
                    states.append(following)
                share = chance * np.prod([each for *_, each in drawn])
                rows.append((done - 1, number[following], share, seconds))
    return states, rows


def time_averages(engine, rule, workload):
    """Mean requests, tokens left and requests with prompt tokens left, over time; and the chance of `MOST` requests."""
    states, rows = plain_chain(engine, rule, workload)
    source, target, chance, seconds = (np.array(column) for column in zip(*rows, strict=True))
    size = len(states)
    total = np.bincount(source, weights=chance)
    moves = (csc_array((chance / total[source], (target, source)), shape=(size, size)) - eye_array(size)).tolil()
    moves[0, :] = 1.0
    law = spsolve(moves.tocsc(), np.eye(1, size)[0])
    lasts = np.zeros(size)
    lasts[source] = seconds
    busy = np.array([bool(state.left) for state in states])
    coming = np.where(busy, float(workload.rate) * lasts**2 / 2, 0.0)
    law_of_one = request_law(workload, memoryless=False)
    prompts = float(law_of_one.chance[law_of_one.prefill > 0].sum())
    values = [
        [len(state.left) for state in states],
        [state.tokens for state in states],
        [sum(prefill > 0 for prefill, _ in state.left) for state in states],
    ]
    per = [1.0, float(workload.mean_tokens), prompts]
    spent = [np.array(value) * lasts + each * coming for value, each in zip(values, per, strict=True)]
    return [law @ each / (law @ lasts) for each in spent], law[[len(state.left) == MOST for state in states]].sum()


LAWS = {
    "prompts": [(qt.Empirical(values=[1, 4]), 1)],
    "both": [(qt.Uniform(low=1, high=2), qt.Uniform(low=1, high=2))],
    "classes": [(4, 1), (1, 2)],
}
CASES = [
    *((rule, "prompts") for rule in ("sarathi", "orca", "vllm-vanilla", "fastertransformer", "vllm-chunked", "sglang")),
    *((rule, "both") for rule in ("sarathi", "orca", "vllm-vanilla", "vllm-chunked")),
    *((rule, "classes") for rule in ("sarathi", "fastertransformer", "vllm-chunked")),
]


@pytest.mark.parametrize(("rule", "law"), CASES)
def test_time_averages_are_those_of_the_plain_chain(rule, law):
    classes = LAWS[law]
    engine = qt.Engine(batch_time=Table(tokens=[1, 2, 3, 4], seconds_at=[1, 2, 3, 4]), b_max=4)
    workload = qt.Workload(
        classes=tuple(
            qt.RequestClass(lengths=qt.IndependentLengths(*lengths), name=str(number))
            for number, lengths in enumerate(classes)
        ),
        arrivals=qt.PoissonArrivals(rate=Fraction(1, 250)),
    )
    policy = parse_scheduler(rule)
    (requests, backlog, prompts), cut = time_averages(engine, policy, workload)
    chain = exact_chain(engine, policy, workload, tolerance=1e-4)
    assert cut < 1e-5
    cut += 1e-5 * requests
    assert chain.means.requests == pytest.approx(requests, abs=20 * cut)
    assert chain.means.backlog == pytest.approx(backlog, abs=100 * cut)
    assert chain.means.prompts == pytest.approx(prompts, abs=20 * cut)
    assert abs(chain.means.backlog - backlog) < 0.01 * backlog  # an average of products is 18 % more here


@pytest.mark.parametrize("rule", ["vllm-chunked", "sarathi"])
def test_little_s_law_holds_for_prompts_that_may_be_empty(rule):
    """One request at a time: a prompt of 2 or none, a decode token; its prompt is done, or it begins, after a batch."""
    engine = qt.Engine(batch_time=Table(tokens=[1, 2], seconds_at=[1, 3]), b_max=2, k_max=1)
    arrivals = qt.PoissonArrivals(rate=Fraction(1, 10**6))
    workload = qt.Workload.of(prefill=qt.Empirical(values=[0, 2]), decode=1, arrivals=arrivals)
    chain = exact_chain(engine, rule, workload, tolerance=1e-3)
    assert chain.mean_prompt_time == pytest.approx(0.5 * 3 + 0.5 * 1, rel=1e-4)
    assert chain.mean_sojourn == pytest.approx(0.5 * 4 + 0.5 * 1, rel=1e-4)
