"""What the class of a scheduler means on each topology: the columns of ``classify``."""

from __future__ import annotations

from typing import Any

import attrs

from queuetheory_llm.stability.classify import Classification


@attrs.frozen(kw_only=True)
class Topology:
    """A way to connect engines, and the theorem on rules that are throughput-optimal on one engine.

    Attributes
    ----------
    name : str
    theorem : str
        The stability condition under such a rule, in words and symbols, with its source.
    condition : str
        What the answer "yes" depends on; empty when on nothing.
    """

    name: str
    theorem: str
    condition: str = ""


TOPOLOGIES: tuple[Topology, ...] = (
    Topology(
        name="single engine",
        theorem="stable iff rate (m_p + m_d) < F; Theorem 2 of arXiv 2504.07347",
    ),
    Topology(
        name="several classes",
        theorem="stable iff sum over classes of rate_k (m_p,k + m_d,k) < F; Theorem 2 of arXiv 2504.07347 "
        "with the mixture of the classes",
    ),
    Topology(
        name="parallel, random split",
        theorem="stable iff rate p_i (m_p + m_d) < F_i at every engine i; carries sum F_i when p_i = F_i/sum F",
        condition="p_i proportional to F_i",
    ),
    Topology(
        name="parallel, token queue",
        theorem="stable iff rate (m_p + m_d) < sum F_i when each request joins the fewest queued tokens; "
        "arXiv 2504.07347, section 5",
    ),
)


@attrs.frozen(kw_only=True)
class TopologyVerdict:
    """Whether a scheduler is throughput-optimal on a topology; ``optimal`` is None when it is not known."""

    topology: str
    optimal: bool | None
    reason: str
    condition: str

    @property
    def word(self) -> str:
        """Yes, no or unknown, for a table."""
        if self.optimal is None:
            return "unknown"
        return ("if " + self.condition if self.condition else "yes") if self.optimal else "no"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"throughput_optimal": self.optimal, "reason": self.reason, "condition": self.condition or None}


def judge_topologies(found: Classification) -> tuple[TopologyVerdict, ...]:
    """The verdicts of a classified scheduler on every topology.

    A rule that fails on one engine fails on each topology: one engine is a case of it, and its witness carries over.
    """
    optimal = found.throughput_optimal
    return tuple(
        TopologyVerdict(
            topology=topology.name,
            optimal=optimal,
            reason=f"{found.reason}; {topology.theorem}" if optimal else f"on one engine: {found.reason}",
            condition=topology.condition if optimal else "",
        )
        for topology in TOPOLOGIES
    )
