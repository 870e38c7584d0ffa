"""Certificates about one engine, made of what the other modules find, and of the batches of schedulers.

What is found in floating point (weights of a linear function of the backlog) becomes rational here; any weights do for
a proof, and the rate they prove is recomputed from them exactly.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.certificates.engine_model import engine_model
from queuetheory_llm.errors import AssumptionViolated
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.schedulers.registry import to_policy
from queuetheory_llm.stability.capacity import token_capacity
from queuetheory_llm.stability.classify import Classification, properties
from queuetheory_llm.stability.linear_drift import crowded_batches, linear_drift
from queuetheory_llm.stability.region import outer_region

_DENOMINATOR = 10**9  # of rounded weights
_MEANS = ("prefill", "decode")


def region_certificate(engine: Engine, workload: Workload) -> Certificate:
    """Where the rate of a workload lies in the outer region: batches that serve it, or a line that no batch passes.

    Raises
    ------
    AssumptionViolated
        On the boundary, where neither proves anything, and without a rate.
    """
    model = _point(engine, workload)
    asked = Fraction(model["rate"])
    place = outer_region(engine).membership(asked * Fraction(model["prefill"]), asked * Fraction(model["decode"]))
    if place.load == 1:
        raise AssumptionViolated(
            "certificate: the operating point is on the boundary of the outer region, which none covers; change it"
        )
    if place.load > 1:
        p, d, bound = place.line
        return certify("hull-outside", model, {"prefill": plain(p / bound), "decode": plain(d / bound), "bound": 1})
    shares = [[vertex.batch.prefill, vertex.batch.decode, plain(weight)] for vertex, weight in place.weights]
    return certify("hull-inside", model, {"batches": shares, "load": plain(place.load)})


def rate_certificate(engine: Engine, scheduler: Policy | str, workload: Workload) -> Certificate:
    """That a scheduler is stable at the rate of a workload, by load or by a linear drift, or that no scheduler is.

    Raises
    ------
    AssumptionViolated
        Between the largest rate proved stable and the smallest proved unstable, for a rule that is not known to fill
        its batches, and without a rate.
    """
    model = _point(engine, workload)
    policy, capacity = to_policy(scheduler), token_capacity(engine)
    tokens = Fraction(model["rate"]) * (Fraction(model["prefill"]) + Fraction(model["decode"]))
    fills = properties(policy).proved_to_fill and policy.target is None and policy.threshold is None
    if tokens > capacity.tokens_per_s or (
        fills and engine.slots == engine.b_max and tokens < capacity.full_batches_tokens_per_s
    ):
        proof = {
            "tokens_per_s": tokens,
            "capacity": capacity.tokens_per_s,
            "full_batches": capacity.full_batches_tokens_per_s,
        }
        return certify("load", model, {key: plain(value) for key, value in proof.items()})
    place = outer_region(engine).membership(*(Fraction(model["rate"]) * Fraction(model[key]) for key in _MEANS))
    if place.load > 1:
        return region_certificate(engine, workload)
    proof = _drift_proof(engine, workload) if fills else {}
    if not proof or Fraction(model["rate"]) >= proof["requests_per_s"]:
        raise AssumptionViolated(
            f"certificate: {float(Fraction(model['rate'])):.6g} requests/s under {policy.name} are proved neither "
            "stable nor unstable by a load, a linear drift or the outer region; choose another rate or scheduler"
        )
    model["prefill_probability"] = plain(Fraction(workload.prefill_probability))
    return certify("drift", model, {key: plain(value) for key, value in proof.items()})


def _point(engine: Engine, workload: Workload) -> dict[str, Any]:
    model = engine_model(engine, workload)
    if "rate" not in model:
        raise AssumptionViolated("certificate: it is about one rate; give the workload a rate")
    del model["prefill_probability"]
    return model


def _drift_proof(engine: Engine, workload: Workload) -> dict[str, Fraction]:
    """Rounded weights, and the rate below which every crowded batch takes off more than comes during it."""
    found = linear_drift(engine, workload)
    p, d, n = (
        Fraction(weight).limit_denominator(_DENOMINATOR) for weight in (found.prefill, found.decode, found.requests)
    )
    brought = (
        p * Fraction(workload.mean_prefill)
        + d * Fraction(workload.mean_decode)
        + n * Fraction(workload.prefill_probability)
    )
    seconds = engine.batch_time.seconds
    speed = min((p * x + d * y + n * s) / seconds(x + y) for x, s, y in crowded_batches(engine))
    return {"prefill": p, "decode": d, "requests": n, "requests_per_s": speed / brought}


def witness_certificate(found: Classification) -> Certificate:
    """The state in which a scheduler serves fewer than min(b_max, D) tokens.

    Raises
    ------
    AssumptionViolated
        If none was found.
    """
    witness = found.idle_witness
    if witness is None:
        raise AssumptionViolated(
            f"certificate: {found.scheduler} is work-conserving in every state explored; choose a scheduler that is not"
        )
    served = {**dict(witness.prefill), **dict.fromkeys(witness.decode, 1)}
    requests = [[prefill, decode, served.get(i, 0)] for i, (prefill, decode) in enumerate(witness.left)]
    return certify(
        "scheduler-witness", {"scheduler": found.explored_as, "b_max": witness.b_max}, {"requests": requests}
    )
