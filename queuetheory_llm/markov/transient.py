"""The law some steps after the empty engine, and how far it is from the stationary one."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.markov.space import Space


@attrs.frozen(kw_only=True)
class Transient:
    """The law at boundaries after some steps.

    Attributes
    ----------
    steps : int
    requests, backlog : float
        Means, the second in tokens.
    distance : float
        To the stationary law, in total variation: the largest difference of a probability.
    """

    steps: int
    requests: float
    backlog: float
    distance: float

    @classmethod
    def of(cls, space: Space, law: Floats, stationary: Floats, steps: int) -> Transient:
        """Of the laws at boundaries, each of shape (states,)."""
        return cls(
            steps=steps,
            requests=float(law @ space.requests()),
            backlog=float(law @ space.backlog()),
            distance=float(np.abs(law - stationary).sum()) / 2,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "steps": self.steps,
            "mean_requests": self.requests,
            "mean_backlog_tokens": self.backlog,
            "total_variation": self.distance,
        }
