"""Random systems, and what it means that two runs are the same."""

from fractions import Fraction

import numpy as np

from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import BatchLog, Run

LOGGED = ("starts", "durations", "piece_request", "piece_tokens", "piece_end", "decode_request", "decode_end")
TIMES = ("begin", "first_decode", "last_prefill", "finish", "longest_gap")


def assert_same(ours: Run, theirs: Run) -> None:
    for field in TIMES:
        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field), err_msg=field)
    for field in ("ticks", "backlog", "waiting", "decoding", "batches", "busy"):
        np.testing.assert_array_equal(getattr(ours.series, field), getattr(theirs.series, field), err_msg=field)
    for field in ("batches", "busy", "tokens", "last", "finished"):
        assert getattr(ours, field) == getattr(theirs, field), field


def assert_same_log(ours: BatchLog, theirs: BatchLog) -> None:
    for field in LOGGED:
        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field), err_msg=field)


def some_law(rng, b_max):
    def milliseconds():
        return Fraction(rng.randint(1, 600), rng.choice([1, 2, 3, 7, 30])) / 1000

    kind = rng.choice(["staircase", "hinge", "table"])
    if kind == "table":
        tokens = sorted({*rng.sample(range(1, b_max + 1), min(b_max, rng.randint(0, 4))), b_max})
        return Table(tokens=tokens, seconds_at=[milliseconds() for _ in tokens])
    a, b0 = milliseconds(), rng.randint(1, b_max + 2)
    if kind == "staircase":
        return Staircase(c=rng.choice([0, milliseconds()]), a=a, b0=b0)
    return Hinge(c=milliseconds(), a=a, b0=rng.choice([0, b0]))


def some_rule(rng, name):
    flags = rng.choice(["", "+chunk", "+whole"]) + rng.choice(["", "+mixed"])
    rule = parse_scheduler(name + flags + rng.choice(["", f"+target={rng.randint(1, 30)}"]))
    if rule.chunks and rng.random() < 0.4:
        return parse_scheduler(f"{rule.name}+threshold={rng.randint(1, 9)}")
    return rule


def some_requests(rng, longest, tick):
    """Up to 120 requests, with or without empty prompts, from rare to all at once."""
    count = rng.choice([1, 3, 10, 40, 120])
    least = rng.choice([0, 1, 1])
    longest_prompt, longest_decode = min(longest or 60, rng.choice([3, 12, 60])), rng.choice([1, 3, 20, 60])
    prefill = [rng.randint(least, longest_prompt) for _ in range(count)]
    decode = [rng.randint(0 if tokens else 1, longest_decode) for tokens in prefill]
    if rng.random() < 0.2:  # equal requests
        prefill, decode = [max(prefill[0], 1)] * count, decode[:1] * count
    span = rng.choice([0, 5, 100, 2000]) * count
    grid = rng.choice([1, 1, 500])
    arrival = sorted(rng.randint(0, span) // grid * grid * tick for _ in range(count))
    return Requests(arrival=arrival, prefill=prefill, decode=decode), span


def some_system(rng, name):
    """An engine, a rule, requests, a clock and where the run ends."""
    b_max = rng.choice([1, 2, 3, 5, 8, 13, 24, 40])
    engine = Engine(batch_time=some_law(rng, b_max), b_max=b_max, k_max=rng.choice([None, None, 1, 2, 3, 5, 9, 30]))
    rule = some_rule(rng, name)
    clock = Clock.fit(generators(engine.batch_time, b_max) | {Fraction(1, 1000)}, Fraction(10**5))
    requests, span = some_requests(rng, rule.longest_prompt(b_max), clock.rate // 1000)
    until = None if rng.random() < 0.6 else rng.randint(1, 2 * span + 2) * (clock.rate // 1000)
    return engine, rule, requests, clock, until
