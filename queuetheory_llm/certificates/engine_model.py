"""What a certificate about an engine says of it, in plain values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload


def engine_model(engine: Engine, workload: Workload | None) -> dict[str, Any]:
    """What a certificate about an engine says of it: the engine, requests/s and the means of a request.

    Parameters
    ----------
    engine : Engine
    workload : Workload or None
        None leaves rate and means out; one without a rate leaves out the rate. A mean that is a float is taken at its
        value.
    """
    model: dict[str, Any] = {"engine": engine.to_dict()}
    if workload is None:
        return model
    if workload.rate is not None:
        model["rate"] = plain(workload.rate)
    for key, mean in (
        ("prefill", workload.mean_prefill),
        ("decode", workload.mean_decode),
        ("prefill_probability", workload.prefill_probability),
    ):
        model[key] = plain(Fraction(mean))
    return model
