"""Proofs about one engine: what the checker enumerates against all batches there are, and what the finders make."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from queuetheory_llm.certificates.certificate import certify
from queuetheory_llm.errors import AssumptionViolated, CertificateRejected
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import to_policy
from queuetheory_llm.stability.classify import properties
from queuetheory_llm.stability.engine_certificates import rate_certificate, region_certificate, witness_certificate
from queuetheory_llm.stability.linear_drift import linear_drift
from queuetheory_llm.stability.region import outer_region
from queuetheory_llm.verdict import Verdict

LAWS = (
    Staircase(c="30 ms", a="5 ms", b0=4),
    Hinge(c="20 ms", a="3 ms", b0=5),
    Table(tokens=(1, 2, 5, 9, 14), seconds_at=("20 ms", "15 ms", "40 ms", "41 ms", "90 ms")),
)
ENGINES = [Engine(batch_time=law, b_max=b, k_max=k) for law, b, k in product(LAWS, (1, 9, 14), (None, 1, 2, 5, 20))]
WORK = Workload.of(prefill=5, decode=3)


def at(rate: Fraction, work: Workload = WORK) -> Workload:
    return work.with_arrivals(PoissonArrivals(rate=rate))


def batches(engine: Engine) -> list[tuple[int, int]]:
    """Every feasible batch (prefill, decode)."""
    sizes = range(engine.b_max + 1)
    return [(x, y) for x, y in product(sizes, sizes) if 1 <= x + y <= engine.b_max and y + (x > 0) <= engine.slots]


def crowded(engine: Engine) -> list[tuple[int, int, int]]:
    """(prefill, decode, prompts completed) of the batches of a rule that fills, k requests being present."""
    k, full = engine.slots, engine.b_max
    return [
        (x, y, s)
        for x, y in batches(engine)
        for s in range(min(x, k - y) + 1)
        if x + y == full or (y + s == k and (s > 0) == (x > 0))
    ]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_bound_of_a_line_is_that_of_all_batches(engine: Engine) -> None:
    for p, d in ((1, 1), (1, 0), (0, 1), (1, 3), (7, 2)):
        bound = max((p * x + d * y) / engine.batch_time.seconds(x + y) for x, y in batches(engine))
        model = {"engine": engine.to_dict(), "prefill": 1, "decode": 1}
        line = {"prefill": p, "decode": d, "bound": plain(bound)}
        edge = bound / (p + d)
        assert (
            certify("hull-outside", {**model, "rate": plain(edge * Fraction(101, 100))}, line).verdict
            is Verdict.UNSTABLE
        )
        with pytest.raises(CertificateRejected, match="not above"):
            certify("hull-outside", {**model, "rate": plain(edge)}, line)
        with pytest.raises(CertificateRejected, match="bound: "):
            certify(
                "hull-outside", {**model, "rate": plain(2 * edge)}, {**line, "bound": plain(bound * Fraction(99, 100))}
            )


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_drift_of_weights_is_that_of_all_crowded_batches(engine: Engine) -> None:
    for p, d, n in ((1, 1, 0), (1, 2, 3), (1, 9, 0), (3, 1, 2), (0, 1, 4)):
        speed = min((p * x + d * y + n * s) / engine.batch_time.seconds(x + y) for x, y, s in crowded(engine))
        limit = speed / (5 * p + 3 * d + n)
        if not limit:
            continue
        model = {"engine": engine.to_dict(), "prefill": 5, "decode": 3, "prefill_probability": 1}
        proof = {"prefill": p, "decode": d, "requests": n, "requests_per_s": plain(limit)}
        assert certify("drift", {**model, "rate": plain(limit * Fraction(99, 100))}, proof).verdict is Verdict.STABLE
        with pytest.raises(CertificateRejected, match="drift: "):
            certify("drift", {**model, "rate": plain(limit)}, proof)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_edge_of_the_outer_region_has_a_proof_on_each_side(engine: Engine) -> None:
    edge = outer_region(engine).request_rate(5, 3)
    inside, outside = (region_certificate(engine, at(edge * Fraction(x, 100))) for x in (99, 101))
    assert (inside.kind, inside.verdict) == ("hull-inside", Verdict.UNDECIDED)
    assert (outside.kind, outside.verdict) == ("hull-outside", Verdict.UNSTABLE)
    with pytest.raises(AssumptionViolated, match="boundary"):
        region_certificate(engine, at(edge))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_rates_of_a_rule_that_fills_are_proved_up_to_the_linear_drift(engine: Engine) -> None:
    low = Fraction(linear_drift(engine, WORK).requests_per_s)
    proved = rate_certificate(engine, "sarathi", at(low * Fraction(999, 1000)))
    assert proved.verdict is Verdict.STABLE
    assert proved.kind == ("load" if engine.slots == engine.b_max else "drift")
    high = outer_region(engine).request_rate(5, 3)
    assert rate_certificate(engine, "fastertransformer", at(high * Fraction(101, 100))).verdict is Verdict.UNSTABLE
    with pytest.raises(AssumptionViolated, match="neither"):
        rate_certificate(engine, "fastertransformer", at(low / 2))


def test_means_that_are_random_count_prompts_that_are_empty() -> None:
    engine = Engine(batch_time=LAWS[0], b_max=12, k_max=3)
    work = Workload.of(prefill=Geometric(mean=4), decode=3)
    assert rate_certificate(engine, "sarathi", at(Fraction(10), work)).model["prefill_probability"] == plain(
        Fraction(work.prefill_probability)
    )


@pytest.mark.parametrize("name", ["vllm-vanilla", "fastertransformer", "sarathi+threshold=64"])
def test_a_witness_is_the_state_that_classify_found(name: str) -> None:
    found = properties(to_policy(name))
    assert found.idle_witness is not None
    proved = witness_certificate(found)
    rows: list[Any] = proved.proof["requests"]
    assert tuple((p, d) for p, d, _ in rows) == found.idle_witness.left
    assert sum(served for _, _, served in rows) == found.idle_witness.tokens
    assert f"{found.idle_witness.tokens} tokens where" in proved.statement


def test_a_work_conserving_rule_has_no_witness() -> None:
    with pytest.raises(AssumptionViolated, match="work-conserving in every state"):
        witness_certificate(properties(to_policy("sarathi")))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"b_max": 2**21}, "too many batches"),
        ({"b_max": 0}, "b_max"),
        ({"k_max": "3"}, "not written as the package writes it"),
        ({"batch_time": {"law": "cubic"}}, "cubic"),
        ({"batch_time": {"law": "staircase", "c": "30 ms", "a": "5 ms"}}, "b0"),
        ({"batch_time": []}, "engine: "),
        ({"more": 1}, "more"),
    ],
)
def test_engines_that_cannot_be_read_are_rejected(change: dict[str, Any], match: str) -> None:
    engine = {**Engine(batch_time=LAWS[0], b_max=12).to_dict(), **change}
    proof = {"tokens_per_s": 8, "capacity": "800/3", "full_batches": "800/3"}
    with pytest.raises(CertificateRejected, match=match):
        certify("load", {"engine": engine, "rate": 1, "prefill": 5, "decode": 3}, proof)
