"""Thresholds against other computations of the same number: enumeration, full chains, the rule run in overload."""

from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import bisect, linprog
from scipy.stats import poisson
from strategies import engines, length_laws, longest_prompt, rules, workloads

from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Empirical, Geometric, IndependentLengths, Poisson
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.stability.linear_drift import linear_drift
from queuetheory_llm.stability.prefill_first import PrefillFirst
from queuetheory_llm.stability.rounds import decode_seconds
from queuetheory_llm.stability.thresholds import threshold

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)


# --- rules in rounds ------------------------------------------------------------------------------------------------


def support(law):
    """(value, probability) of an empirical law, exact."""
    total = sum(law.weights)
    return [(v, w / total) for v, w in zip(law.values, law.weights, strict=True)]


@settings(max_examples=40)
@given(engines(most=9), st.integers(1, 4), length_laws(5), st.data())
def test_a_round_by_enumerating_the_lengths_of_its_requests(engine, requests, law, data):
    if not isinstance(law, Empirical):
        law = Empirical(values=data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    requests = min(requests, engine.b_max)
    expected = Fraction(0)
    for outcome in product(support(law), repeat=requests):
        chance = Fraction(1)
        for _, p in outcome:
            chance *= p
        counts = [sum(v >= k for v, _ in outcome) for k in range(1, 6)]
        expected += chance * sum((engine.batch_time.seconds(n) for n in counts if n), Fraction(0))
    lengths = IndependentLengths(1, law)
    assert float(decode_seconds(engine, requests, lengths)) == pytest.approx(float(expected), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("requests", "mean"), [(2, 7), (5, 30), (40, 200)])
def test_a_round_of_geometric_lengths_by_binomials(requests, mean):
    """E[t(N_k)] with N_k binomial(n, (1 - 1/mean)^(k-1)), summed term by term."""
    engine = Engine(batch_time=Staircase(c=1, a=2, b0=3), b_max=64)
    expected, k = 0.0, 1
    while (alive := (1 - 1 / mean) ** (k - 1)) > 1e-16:
        for n in range(1, requests + 1):
            chance = comb(requests, n) * alive**n * (1 - alive) ** (requests - n)
            expected += chance * float(engine.batch_time.seconds(n))
        k += 1
    found = decode_seconds(engine, requests, IndependentLengths(1, Geometric(mean=mean)))
    assert found == pytest.approx(expected, rel=1e-11)


def overload(engine, rule, prompt, decode, rounds, spare):
    """Run a rule with requests always waiting: the states seen when no decode is left, with seconds and finished."""
    state, seconds, finished, history = State(), Fraction(0), 0, []
    while len(history) < rounds:
        missing = spare - sum(1 for i in range(len(state.left)) if i not in state.running)
        state = state.joined([(prompt, decode)] * max(0, missing))
        if all(p for p, _ in state.left):
            part = tuple(state.left[i][0] for i in state.running)
            history.append((part, seconds, finished))
        batch = rule.form(state.view(engine.b_max, engine.k_max))
        seconds += engine.batch_time.seconds(batch.tokens)
        before = len(state.left)
        state = state.after(batch)
        finished += before - len(state.left)
    return history


def cycle_rate(history):
    """Requests per second over one cycle of the states of a deterministic run."""
    first = {}
    for part, seconds, finished in history:
        if part in first:
            return Fraction(finished - first[part][1]) / (seconds - first[part][0])
        first[part] = seconds, finished
    raise AssertionError("no cycle")


@settings(max_examples=60)
@given(
    engines(most=8),
    st.sampled_from(["fastertransformer", "static", "fastertransformer+chunk"]),
    st.integers(1, 10),
    st.integers(1, 4),
)
def test_rounds_of_constant_lengths_by_running_the_rule(engine, name, prompt, decode):
    rule = parse_scheduler(name)
    prompt = min(prompt, longest_prompt(rule, engine, most=10))
    found = threshold(engine, rule, Workload.of(prefill=prompt, decode=decode))
    assert found.exact
    assert found.low == cycle_rate(overload(engine, rule, prompt, decode, rounds=prompt + 2, spare=engine.b_max + 1))


@settings(max_examples=60)
@given(engines(most=8), rules(), st.integers(1, 10))
def test_the_cycle_of_prompts_without_decodes_by_running_the_rule(engine, rule, prompt):
    prompt = min(prompt, longest_prompt(rule, engine, most=10))
    found = threshold(engine, rule, Workload.of(prefill=prompt, decode=0))
    if rule.threshold is not None or "bounds" in found.method:
        return
    rate = cycle_rate(overload(engine, rule, prompt, 0, rounds=10 * prompt + 2, spare=engine.b_max + 1))
    assert found.exact
    assert found.low == rate


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("fastertransformer", Geometric(mean=6)),
        ("static", Poisson(mean=3)),
        ("fastertransformer+chunk", Empirical(values=[1, 9])),
    ],
)
def test_rounds_of_random_lengths_by_simulating_them(name, law):
    engine = Engine(batch_time=Staircase(c=1, a=2, b0=4), b_max=20, k_max=6)
    rule, rng = parse_scheduler(name), np.random.default_rng(2)
    state, durations, done, seconds, finished = State(), [], [], 0.0, 0
    while len(done) < 3000:
        missing = max(0, 21 - len(state.left))
        if missing:
            state = state.joined([(3, int(v)) for v in law.sample(rng, missing)])
        if all(p for p, _ in state.left) and finished:
            durations.append(seconds)
            done.append(finished)
            seconds, finished = 0.0, 0
        batch = rule.form(state.view(engine.b_max, engine.k_max))
        seconds += float(engine.batch_time.seconds(batch.tokens))
        before = len(state.left)
        state = state.after(batch)
        finished += before - len(state.left)
    rate = np.sum(done) / np.sum(durations)
    error = np.std(done - rate * np.array(durations), ddof=1) / np.sqrt(len(done)) / np.mean(durations)
    found = threshold(engine, rule, Workload.of(prefill=3, decode=law))
    assert found.exact
    assert abs(rate - float(found.low)) < 4 * error
    assert 4 * error < 0.05 * rate


# --- prompts first, unmixed -----------------------------------------------------------------------------------------


@lru_cache
def arrivals_in(mean, states):
    return poisson.pmf(np.arange(states), mean)


def decode_rate_by_chain(engine, prompt, rate, states=400):
    """E[decode tokens]/E[duration] under the stationary law of q, the prompts waiting at batch boundaries."""
    most = min(engine.b_max // prompt, engine.slots)
    matrix, seconds = np.zeros((states, states)), np.zeros(states)
    for q in range(states):
        served = min(q, most)
        seconds[q] = float(engine.batch_time.seconds(served * prompt if q else engine.slots))
        arrivals = arrivals_in(float(rate * seconds[q]), states)
        rest = q - served
        matrix[q, rest:] = arrivals[: states - rest]
        matrix[q, -1] += max(0.0, 1 - matrix[q].sum())
    balance = matrix.T - np.eye(states)
    balance[0] = 1
    law = np.linalg.solve(balance, np.eye(states)[0])
    assert law[-10:].sum() < 1e-9
    return engine.slots * law[0] / (law @ seconds)


@pytest.mark.parametrize(
    ("engine", "prompt", "rates"),
    [
        (Engine(batch_time=CODELLAMA, b_max=512), 129, (2.0, 10.4, 10.497, 13.0)),
        (Engine(batch_time=CODELLAMA, b_max=1024, k_max=100), 290, (0.5, 1.73, 5.0)),
        (Engine(batch_time=CODELLAMA, b_max=1024, k_max=2), 100, (1.0, 10.0)),
    ],
)
def test_the_decode_rate_by_the_stationary_law_of_waiting_prompts(engine, prompt, rates):
    system = PrefillFirst(engine, prompt, chunks=False)
    for rate in rates:
        assert system.decode_rate(rate) == pytest.approx(decode_rate_by_chain(engine, prompt, rate), rel=1e-8)


def test_the_threshold_of_vanilla_vllm_by_the_stationary_law():
    engine = Engine(batch_time=CODELLAMA, b_max=512)
    edge = bisect(lambda rate: rate * 112 - decode_rate_by_chain(engine, 129, rate, 150), 9, 12, xtol=1e-9)
    assert threshold(engine, "vllm-vanilla", Workload.of(prefill=129, decode=112)).low == pytest.approx(edge, rel=1e-8)
    assert edge == pytest.approx(10.497, abs=5e-4)


@settings(max_examples=15)
@given(engines(most=8, kinds=("staircase", "hinge")), st.integers(1, 8), st.integers(1, 6))
def test_the_threshold_of_prefill_first_on_drawn_engines(engine, prompt, decode):
    prompt = min(prompt, engine.b_max)
    found = threshold(engine, "vllm-vanilla", Workload.of(prefill=prompt, decode=decode))
    rate = found.low if isinstance(found.low, float) else float(found.low)
    prefill = PrefillFirst(engine, prompt, chunks=False)
    if rate < 0.9 * prefill.prefill_rate:  # nearer to saturation the chain needs more states
        assert decode_rate_by_chain(engine, prompt, rate, 300) == pytest.approx(rate * decode, rel=1e-6)


@pytest.mark.parametrize(
    ("b_max", "k_max", "prompt", "rate"),
    [(8, None, 3, 0.35), (5, None, 12, 0.1), (6, 2, 5, 0.2), (512, 100, 129, 12.0), (128, None, 514, 1.0)],
)
def test_the_decode_rate_of_split_prompts_by_running_it(b_max, k_max, prompt, rate):
    """Decodes always waiting: prompts in order, split; a full decode batch whenever none waits."""
    law = CODELLAMA if b_max > 100 else Staircase(c="0.5 s", a="1 s", b0=4)
    engine = Engine(batch_time=law, b_max=b_max, k_max=k_max)
    times = [0.0, *(float(law.seconds(b)) for b in range(1, b_max + 1))]
    rng = np.random.default_rng(8)
    batches, each = 40, 4000
    tokens, seconds = np.zeros(batches), np.zeros(batches)
    waiting = []
    for part in range(batches):
        for _ in range(each):
            room, seats, lasts = b_max, engine.slots, 0
            while waiting and room and seats:
                piece = min(waiting[0], room)
                waiting[0] -= piece
                room, seats, lasts = room - piece, seats - 1, lasts + piece
                if waiting[0] == 0:
                    waiting.pop(0)
            if not lasts:
                lasts = engine.slots
                tokens[part] += lasts
            seconds[part] += times[lasts]
            waiting += [prompt] * rng.poisson(rate * times[lasts])
    measured = tokens.sum() / seconds.sum()
    error = np.std(tokens - measured * seconds, ddof=1) / np.sqrt(batches) / seconds.mean()
    found = PrefillFirst(engine, prompt, chunks=True).decode_rate(rate)
    assert abs(found - measured) < 4 * error
    assert 4 * error < 0.1 * found


def test_without_a_second_prompt_in_a_batch_the_busy_period_is_that_of_m_d_1():
    """Prompts of b_max tokens: h(j) = j t/(1 - rate t) by Wald, so r = y/(t + rate t * t/(1 - rate t))."""
    engine = Engine(batch_time=Staircase(c="0.1 s", a="0.4 s", b0=8), b_max=8)
    for rate in (0.1, 1.0, 1.9):
        for chunks in (False, True):
            t = 0.5
            expected = 8 / (t + rate * t * t / (1 - rate * t))
            assert PrefillFirst(engine, 8, chunks=chunks).decode_rate(rate) == pytest.approx(expected, rel=1e-9)


# --- proved bounds --------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(engines(), rules(), st.data())
def test_the_proved_rate_is_a_drift_of_every_crowded_batch(engine, rule, data):
    """V falls on average over every batch that the rule forms once k_max requests are present."""
    longest = longest_prompt(rule, engine)
    workload = data.draw(workloads(longest))
    found = threshold(engine, rule, workload)
    if "once" not in found.method:
        return
    inner = Engine(batch_time=engine.batch_time, b_max=rule.budget(engine.b_max), k_max=engine.k_max)
    weights = (1.0, 1.0, 0.0)
    if "negative drift" in found.method:
        drift = linear_drift(inner, workload)
        weights = (drift.prefill, drift.decode, drift.requests)
    p, d, n = weights
    gain = p * workload.mean_prefill + d * workload.mean_decode + n * workload.prefill_probability
    tokens = st.tuples(st.integers(0, workload.longest_prompt), st.integers(0, 5)).filter(any)
    left = data.draw(st.lists(tokens, min_size=inner.slots, max_size=inner.slots + 3))
    running = tuple(i for i, (prefill, _) in enumerate(left) if not prefill)[: inner.slots]
    state = State(tuple(left), running)
    batch = rule.form(state.view(engine.b_max, engine.k_max))
    completed = sum(count == left[request][0] for request, count in batch.prefill)
    fall = p * batch.prefill_tokens + d * len(batch.decode) + n * completed
    assert float(found.low * gain * engine.batch_time.seconds(batch.tokens)) <= float(fall) * (1 + 1e-9)


def crowded(engine):
    """Every (x, s, y) with k_max requests present: full, no prompt need be completed; or all slots, s completed."""
    seats, b_max = engine.slots, engine.b_max
    yield from ((b_max - y, 0, y) for y in range(min(seats, b_max) + 1) if y < seats or b_max == seats)
    for s in range(seats + 1):
        for x in range(s, b_max - seats + s) if s else [0]:
            if (x, s, seats - s) != (0, 0, b_max):
                yield x, s, seats - s


@settings(max_examples=80)
@given(engines(most=8), workloads(longest_prompt=8))
def test_the_drift_program_over_all_batches(engine, workload):
    found = linear_drift(engine, workload)
    weights = np.array([found.prefill, found.requests, found.decode])
    means = np.array([float(m) for m in (workload.mean_prefill, workload.prefill_probability, workload.mean_decode)])
    assert weights.min() >= 0
    assert weights @ means == pytest.approx(means[0] + means[2])
    served = np.array(list(crowded(engine)), dtype=float)
    seconds = np.array([float(engine.batch_time.seconds(int(x + y))) for x, _, y in served])
    # The rate is what the weights prove ...
    assert found.requests_per_s == pytest.approx(
        float(np.min(served @ weights / seconds) / (weights @ means)), rel=1e-9
    )
    # ... and no weights prove more.
    done = linprog(
        c=[0, 0, 0, -1],
        A_ub=np.column_stack([-served, seconds]),
        b_ub=np.zeros(len(served)),
        A_eq=[[*means, 0]],
        b_eq=[1],
    )
    assert found.requests_per_s == pytest.approx(done.x[-1], rel=1e-6)


def test_the_backlog_slope_of_vanilla_vllm_in_overload():
    """13 requests/s of 129 + 112 tokens: 0.664 tokens/ms, by running the rule on numbers of prompts and decodes."""
    rng = np.random.default_rng(1)
    t = {b: float(CODELLAMA.seconds(b)) for b in range(1, 513)}
    slopes = []
    for _ in range(20):
        clock, arrived, served, waiting, decoding = 0.0, 0, 0, 0, [2000] * 112
        # decoding[k]: requests with k + 1 decode tokens left; many at first, so that every decode batch is full.
        while clock < 500:
            if waiting:
                n = min(3, waiting)
                waiting, served, lasts = waiting - n, served + 129 * n, t[129 * n]
                decoding[111] += n
            else:
                served, lasts = served + 512, t[512]
            new = rng.poisson(13 * lasts)
            clock, arrived, waiting = clock + lasts, arrived + 241 * new, waiting + new
        slopes.append((arrived - served) / clock / 1000)
    error = np.std(slopes, ddof=1) / np.sqrt(len(slopes))
    assert abs(np.mean(slopes) - 0.664) < 4 * error + 5e-4
    assert error < 0.02
