"""What is answered of a network: the verdict on each group of its stations and on the whole, and the proof."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import attrs

from queuetheory_llm.certificates.certificate import Certificate
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.result import Result
from queuetheory_llm.stability.certified import Group
from queuetheory_llm.stability.frontier import Frontier
from queuetheory_llm.stability.lyapunov import LyapunovPolicy
from queuetheory_llm.stability.network_topology import NetworkTopology
from queuetheory_llm.stability.traffic import Traffic
from queuetheory_llm.stability.virtual_stations import VirtualStation
from queuetheory_llm.verdict import Basis, Judgement, Verdict

#: What decides who is served: the orders of the model, whatever never idles, or back-pressure.
Policy = Literal[LyapunovPolicy, "back-pressure"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

_SCOPES: dict[Policy, str] = {
    "file": "under the orders of service of the file",
    "any": "under every non-idling policy",
    "back-pressure": "under back-pressure",
}


@attrs.frozen(kw_only=True)
class GroupVerdict:
    """Stations that feed one another, and what is known of them fed at the rates of the whole.

    Attributes
    ----------
    group : Group
    judgement : Judgement
    certificate : Certificate or None
        Of the group alone; None where a theorem speaks for it, or nothing does.
    virtual_stations : tuple of VirtualStation
    by_theorem : bool
        Whether a load certificate is all the proof it needs: one station, or one class at each.
    """

    group: Group
    judgement: Judgement
    certificate: Certificate | None = None
    virtual_stations: tuple[VirtualStation, ...] = ()
    by_theorem: bool = False

    @property
    def stations(self) -> tuple[str, ...]:
        """Names of its stations."""
        return self.group.model.stations

    @property
    def names(self) -> str:
        """Its stations in a sentence."""
        return ", ".join(self.stations)


@attrs.frozen(kw_only=True)
class NetworkAnswer(Result):
    """Whether a network is stable, why, and the proof.

    Attributes
    ----------
    title : str
    policy : {"file", "any", "back-pressure"}
    model : FluidModel
    traffic : Traffic
    topology : NetworkTopology
    judgement : Judgement
    groups : tuple of GroupVerdict
        In an order in which no route leads back.
    certificate : Certificate or None
    max_scale_asked : bool
    max_scale : Frontier or None
        Factors on all arrival rates: certified stable below, shown unstable above. None where it was not asked for, or
        nothing is known of it; ``notes`` then say why.
    notes : tuple of str
        What the verdict rests on.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.network:draw_network"
    title: str
    policy: Policy
    model: FluidModel
    traffic: Traffic
    topology: NetworkTopology
    judgement: Judgement
    groups: tuple[GroupVerdict, ...]
    certificate: Certificate | None = None
    max_scale_asked: bool = False
    max_scale: Frontier | None = None
    notes: tuple[str, ...] = ()

    @property
    def virtual_stations(self) -> tuple[VirtualStation, ...]:
        """Those of every group."""
        return tuple(each for group in self.groups for each in group.virtual_stations)

    @property
    def scope(self) -> str:
        """Of which policies the verdict speaks, in words: one that is unstable refutes that all are stable."""
        judged = self.judgement
        if self.policy == "any" and judged.verdict is Verdict.UNSTABLE and judged.basis is not Basis.THEOREM:
            return "under some non-idling policy"
        return _SCOPES[self.policy]

    def to_dict(self) -> dict[str, Any]:
        """The content of ``network --json``; ``max_scale`` is there where it was asked for."""
        judgement = self.judgement
        return {
            "title": self.title,
            "policy": self.policy,
            "scope": self.scope,
            **_said(judgement),
            "load": None if judgement.load is None else float(judgement.load),
            "margin": None if judgement.margin is None else float(judgement.margin),
            "topology": self.topology.to_dict(),
            "stations": [
                {"name": name, "load": float(load), "load_exact": str(load) if self.traffic.exact else None}
                for name, load in zip(self.model.stations, self.traffic.loads, strict=True)
            ],
            "classes": [
                {"name": name, "station": self.model.stations[self.model.station[k]], "rate": float(rate)}
                for k, (name, rate) in enumerate(zip(self.model.classes, self.traffic.rates, strict=True))
            ],
            "groups": [{"stations": list(group.stations), **_said(group.judgement)} for group in self.groups],
            "virtual_stations": [
                {
                    "classes": list(each.classes),
                    "stations": list(each.station_names),
                    "load": float(each.load),
                    "load_exact": plain(each.load),
                    "sentence": each.text,
                }
                for each in self.virtual_stations
            ],
            "certificate": None if self.certificate is None else self.certificate.to_dict(),
            **({"max_scale": _scales(self.max_scale)} if self.max_scale_asked else {}),
            "notes": list(self.notes),
        }


def _said(judgement: Judgement) -> dict[str, Any]:
    return {
        "verdict": judgement.verdict.value,
        "basis": None if judgement.basis is None else judgement.basis.value,
        "reason": judgement.reason,
    }


def _scales(found: Frontier | None) -> dict[str, Any] | None:
    """``certified`` and ``unstable`` as numbers, and what they stand on."""
    if found is None:
        return None
    return {
        "certified": None if found.certified is None else float(found.certified.scale),
        "unstable": float(found.unstable.scale),
        "gap": None if found.gap is None else float(found.gap),
        "certified_by": None if found.certified is None else found.certified.to_dict(),
        "unstable_by": found.unstable.to_dict(),
        "note": found.note,
    }
