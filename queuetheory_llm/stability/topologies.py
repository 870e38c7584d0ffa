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
    heading : str
        The name in a narrow table.
    theorem : str
        The stability condition under such a rule, in words and symbols, with its source.
    suffices : bool
        Whether being throughput-optimal on one engine is enough, the condition granted.
    condition : str
        What the answer "yes" depends on, or to what the answer "no" is no; empty when on nothing.
    """

    name: str
    heading: str
    theorem: str
    suffices: bool = True
    condition: str = ""


TOPOLOGIES: tuple[Topology, ...] = (
    Topology(
        name="single engine",
        heading="engine",
        theorem="stable iff rate (m_p + m_d) < F; Theorem 2 of arXiv 2504.07347",
    ),
    Topology(
        name="several classes",
        heading="classes",
        theorem="stable iff sum over classes of rate_k (m_p,k + m_d,k) < F; Theorem 2 of arXiv 2504.07347 "
        "with the mixture of the classes",
    ),
    Topology(
        name="parallel, random split",
        heading="split",
        theorem="stable iff rate p_i (m_p + m_d) < F_i at every engine i; carries sum F_i when p_i = F_i/sum F",
        condition="p_i proportional to F_i",
    ),
    Topology(
        name="parallel, token queue",
        heading="queue",
        theorem="stable iff rate (m_p + m_d) < sum F_i when each request joins the fewest queued tokens; "
        "arXiv 2504.07347, section 5",
    ),
    Topology(
        name="network without cycles (DAG)",
        heading="DAG",
        theorem="stable iff sum over classes k at s of rate_k (m_p,k + m_d,k) < F_s at every station s, retries at the "
        "same station counted; arXiv 2504.07347, section 5",
    ),
    Topology(
        name="network with forks and joins",
        heading="fork-join",
        theorem="stable iff sum over classes k at s of rate_k (m_p,k + m_d,k) < F_s at every station s; a join adds no "
        "load; arXiv 2504.07347, section 5",
    ),
    Topology(
        name="cycle through several stations",
        heading="cycle",
        suffices=False,
        condition="every station has one class",
        theorem="with one class per station stable iff every load is below 1 (generalised Jackson networks; Dai 1995); "
        "with several the rule does not decide: the network of Rybko and Stolyar is unstable at loads of 0.9 when the "
        "calls about to leave go first and stable when they go last (arXiv 2504.07347, section 5.4), and first come, "
        "first served can fail too (Bramson 1994); ask qt-llm network about yours",
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
    def answer(self) -> str:
        """Yes, no or unknown, the condition left out."""
        return "unknown" if self.optimal is None else "yes" if self.optimal else "no"

    @property
    def proviso(self) -> str:
        """The condition as it goes with the answer: "if ...", "unless ..."; empty without one."""
        if not self.condition:
            return ""
        return f"{'if' if self.optimal else 'unless'} {self.condition}"

    @property
    def word(self) -> str:
        """The answer in one phrase."""
        return f"{self.answer} {self.proviso}".strip()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"throughput_optimal": self.optimal, "reason": self.reason, "condition": self.condition or None}


def judge_topologies(found: Classification) -> tuple[TopologyVerdict, ...]:
    """The verdicts of a classified scheduler on every topology.

    A rule that fails on one engine fails on each topology: one engine is a case of it, and its witness carries over.
    """
    return tuple(_judge(found, topology) for topology in TOPOLOGIES)


def _judge(found: Classification, topology: Topology) -> TopologyVerdict:
    optimal = found.throughput_optimal
    if not optimal:
        return TopologyVerdict(
            topology=topology.name, optimal=optimal, reason=f"on one engine: {found.reason}", condition=""
        )
    return TopologyVerdict(
        topology=topology.name,
        optimal=topology.suffices,
        reason=f"{found.reason}; {topology.theorem}",
        condition=topology.condition,
    )
