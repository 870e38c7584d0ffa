"""How fluid paths end, of whatever kind: exact ones and integrated ones of networks, and those of one engine."""

from __future__ import annotations

from enum import Enum


class FluidEnd(Enum):
    """How a path ends; the value is the word used in JSON."""

    EMPTY = "EMPTY"
    CONSTANT = "CONSTANT"
    PERIODIC = "PERIODIC"
    GROWING = "GROWING"
    DIVERGING = "DIVERGING"
    HORIZON = "HORIZON"
    UNRESOLVED = "UNRESOLVED"

    @property
    def meaning(self) -> str:
        """One sentence for a person."""
        return _MEANING[self]

    @property
    def grows(self) -> bool:
        """Whether the path goes to infinity."""
        return self in (FluidEnd.GROWING, FluidEnd.DIVERGING)


_MEANING = {
    FluidEnd.EMPTY: "all fluid is gone, and a path that stays empty follows; where the fluid model is unstable, others "
    "leave 0",
    FluidEnd.CONSTANT: "the path comes to rest with fluid left: what comes and what goes balance for ever",
    FluidEnd.PERIODIC: "the path returns to where it was and repeats itself for ever",
    FluidEnd.GROWING: "each turn of the path repeats the one before on a larger scale, for ever: the fluid model is "
    "unstable",
    FluidEnd.DIVERGING: "some fluid grows at a constant mean rate for ever: the fluid model is unstable",
    FluidEnd.HORIZON: "the path is followed to the horizon; what comes after is not known",
    FluidEnd.UNRESOLVED: "the path is followed no further: its next move is not known, or too many have been followed",
}
