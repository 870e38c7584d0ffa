"""Proofs about one engine and the rules that form its batches (Dai et al. 2025)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from queuetheory_llm.certificates.conditions import Conclusion, require, same
from queuetheory_llm.exact import reading as read
from queuetheory_llm.exact.numbers import Vector
from queuetheory_llm.exact.reading import text, total
from queuetheory_llm.exact.words import name_fault
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.verdict import Verdict

_WORK = ("rate", "prefill", "decode")


def _engine(model: Any, *names: str) -> tuple[Engine, Vector]:
    """The engine and the nonnegative numbers beside it: requests/s, mean tokens of a request, ..."""
    model = read.keys("model", model, "engine", *names)
    engine, numbers = Engine.from_dict(model["engine"]), [read.number(name, model[name]) for name in names]
    require(engine.b_max <= 2**20, f"model: b_max is above {2**20}, too many batches to look at")
    require(min(numbers) >= 0, f"model: one of {', '.join(names)} is negative")
    return engine, numbers


def engine_load(model: Any, proof: Any) -> Conclusion:
    """C = max b/t(b) bounds every rule; F = b_max/t(b_max) is what a rule serves whose batches are full."""
    engine, (rate, prefill, decode) = _engine(model, *_WORK)
    names, seconds = ("tokens_per_s", "capacity", "full_batches"), engine.batch_time.seconds
    listed, come = read.keys("proof", proof, *names), rate * (prefill + decode)
    most, full = max(b / seconds(b) for b in range(1, engine.b_max + 1)), engine.b_max / seconds(engine.b_max)
    same("load", [read.number(name, listed[name]) for name in names], [come, most, full], names)
    what = f"{text(come)} tokens/s come, the best batches serve {text(most)} and full ones {text(full)}"
    if come > most:
        return Verdict.UNSTABLE, f"{what}: unstable under every rule"
    require(come < full, f"load: {what}: neither above the one nor below the other")
    require(engine.slots == engine.b_max, "model: k_max may keep batches from filling")
    under = "every K-FCFS rule that fills its batches once b_max requests are present (arXiv 2504.07347, Theorem 2)"
    return Verdict.STABLE, f"{what}: stable under {under}"


def hull_inside(model: Any, proof: Any) -> Conclusion:
    """Shares of time of feasible batches that serve the point, with some time left."""
    engine, (rate, *means) = _engine(model, *_WORK)
    proof, served, load = read.keys("proof", proof, "batches", "load"), [Fraction(0), Fraction(0)], Fraction(0)
    for x, y, weight in read.matrix("batches", proof["batches"], len(read.entries("batches", proof["batches"])), 3):
        whole = x.denominator == y.denominator == 1 and min(x, y) >= 0 and 1 <= x + y <= engine.b_max
        share = whole and y + (x > 0) <= engine.slots and weight > 0
        require(share, f"batches: {text(weight)} x ({text(x)} + {text(y)} tokens) is no share of a feasible batch")
        speed, load = weight / engine.batch_time.seconds(int(x + y)), load + weight
        served = [served[0] + speed * x, served[1] + speed * y]
    for name, tokens, mean in zip(("prefill", "decode"), served, means, strict=True):
        require(tokens >= rate * mean, f"batches: serve {text(tokens)} {name} tokens/s of {text(rate * mean)}")
    same("load", [read.number("load", proof["load"])], [load], ["the sum of weights"])
    require(load < 1, f"load: {text(load)} is not below 1")
    what = f"inside the outer region, batches serve the point in {text(load)} of the time"
    return Verdict.UNDECIDED, f"{what}: no bound for every rule excludes it, and no rule is proved stable"


def hull_outside(model: Any, proof: Any) -> Conclusion:
    """A line p x + d y <= bound t(x + y) that the point breaks and every feasible batch, so the extreme ones, keeps."""
    engine, (rate, *means) = _engine(model, *_WORK)
    proof, k = read.keys("proof", proof, "prefill", "decode", "bound"), engine.slots
    p, d, bound = (read.number(name, proof[name]) for name in ("prefill", "decode", "bound"))
    require(min(p, d) >= 0, "line: a slope is negative")
    ends = [(0, b) for b in range(1, k + 1)] + [(b - k + 1, k - 1) for b in range(k, engine.b_max + 1)]
    ends += [(b, 0) for b in range(1, engine.b_max + 1)]
    most = max((p * x + d * y) / engine.batch_time.seconds(x + y) for x, y in ends)
    come = rate * (p * means[0] + d * means[1])
    same("bound", [bound], [most], ["the best batch"])
    require(come > bound, f"line: the point has {text(come)}, which is not above {text(bound)}")
    what = f"{text(p)} x prefill + {text(d)} x decode tokens come at {text(come)} a second"
    return Verdict.UNSTABLE, f"{what}, batches serve {text(bound)} at most: unstable under every rule"


def linear_drift(model: Any, proof: Any) -> Conclusion:
    """V = p (prefill left) + d (decode left) + n (requests in prefill) falls once k = min(k_max, b_max) are present.

    A rule that fills then forms a full batch, which may complete no prompt, or one of k requests that completes its s
    prompts: x + y = b < b_max, y = k - s. What it takes off V is linear in y, or in s, so the ends suffice.
    """
    engine, (rate, *means) = _engine(model, *_WORK, "prefill_probability")
    names, k, full = ("prefill", "decode", "requests", "requests_per_s"), engine.slots, engine.b_max
    *weights, limit = (read.number(name, read.keys("proof", proof, *names)[name]) for name in names)
    brought = total(weight * mean for weight, mean in zip(weights, means, strict=True))
    require(min(weights) >= 0 < brought and means[2] <= 1, "weights: one is negative, or a request brings nothing")
    batches = [(0, k, 0), (full, 0, 0), (full - k + 1, k - 1, 0)]
    batches += [batch for b in range(k, full) for batch in ((b - k + 1, k - 1, 1), (b, 0, k))]
    taken = [weights[0] * x + weights[1] * y + weights[2] * s for x, y, s in batches]
    speeds = [each / engine.batch_time.seconds(x + y) for each, (x, y, _) in zip(taken, batches, strict=True)]
    same("requests_per_s", [limit], [min(speeds) / brought], ["the worst batch"])
    require(rate < limit, f"drift: {text(rate)} requests/s are not below {text(limit)}")
    what = f"a linear function of the backlog falls whenever {k} requests are present"
    return Verdict.STABLE, f"{what}: stable under every rule that fills its batches"


def witness(model: Any, proof: Any) -> Conclusion:
    """A batch with fewer than min(b_max, D) tokens, D = prompt tokens left + requests in decode."""
    model, proof = read.keys("model", model, "scheduler", "b_max"), read.keys("proof", proof, "requests")
    rows = [tuple(read.entries("requests", row, 3)) for row in read.entries("requests", proof["requests"])]
    counts = [model["b_max"], *(count for row in rows for count in row)]
    require(all(type(count) is int and count >= 0 for count in counts), "requests: a count is no whole number")
    require(name_fault(model["scheduler"]) is None, "model: the scheduler has no name")
    for i, (prefill, decode, served) in enumerate(rows):
        require(prefill + decode > 0 and served <= (prefill or 1), f"requests[{i}]: is served more than it needs")
    tokens, most = sum(row[2] for row in rows), min(model["b_max"], sum(row[0] or 1 for row in rows))
    require(tokens < most, f"requests: {tokens} tokens are served, not fewer than the {most} that can be")
    what = f"a batch of {tokens} tokens where {most} are possible is not work-conserving"
    return Verdict.UNDECIDED, f"{what}; whether {model['scheduler']} forms it is for qt-llm classify to replay"
