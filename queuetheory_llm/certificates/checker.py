"""The checker: what follows from a proof, recomputed in exact arithmetic from the model alone.

It shares nothing with the finders. Each family of models has a module of its own, which says why its conditions
suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from queuetheory_llm.certificates.conditions import Conclusion
from queuetheory_llm.certificates.engine_proofs import engine_load, hull_inside, hull_outside, linear_drift, witness
from queuetheory_llm.certificates.network_proofs import (
    composition,
    fluid_cycle,
    lyapunov,
    network_load,
    piecewise_linear,
    quadratic,
    virtual_station,
)
from queuetheory_llm.certificates.split_proofs import split
from queuetheory_llm.errors import CertificateRejected, InvalidInput


def conclude(kind: str, model: Mapping[str, Any], proof: Mapping[str, Any]) -> Conclusion:
    """The verdict and the statement, one sentence, that a proof of a kind establishes of a model.

    Raises `CertificateRejected`, ``KIND: CONDITION``, with the class, station or row where the condition fails.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise CertificateRejected(f"kind: {kind!r:.40} is not known; one of {', '.join(KINDS)}")
    try:
        return KINDS[kind](model, proof)
    except (CertificateRejected, InvalidInput) as error:
        raise CertificateRejected(f"{kind}: {error}") from None


def _load(model: Any, proof: Any) -> Conclusion:
    """The loads of an engine or of a network."""
    return (engine_load if isinstance(model, Mapping) and "engine" in model else network_load)(model, proof)


#: Kind of proof -> what checks it and says what follows.
KINDS: Mapping[str, Callable[[Any, Any], Conclusion]] = {
    "load": _load,
    "composition": composition,
    "piecewise-linear": partial(lyapunov, piecewise_linear),
    "quadratic": partial(lyapunov, quadratic),
    "virtual-station": virtual_station,
    "fluid-cycle": fluid_cycle,
    "hull-inside": hull_inside,
    "hull-outside": hull_outside,
    "drift": linear_drift,
    "scheduler-witness": witness,
    "split": split,
}
