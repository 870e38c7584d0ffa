"""Verdicts: what is said of a system, on which ground, and how verdicts of parts combine."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from fractions import Fraction
from functools import reduce

import attrs


class Verdict(Enum):
    """The four answers to "is it stable?"; the value is the word used in JSON."""

    STABLE = "STABLE"
    UNSTABLE = "UNSTABLE"
    CRITICAL = "CRITICAL"
    UNDECIDED = "UNDECIDED"

    @property
    def meaning(self) -> str:
        """One sentence for a person."""
        return _MEANING[self]


class Basis(Enum):
    """The ground a verdict stands on, strongest first."""

    THEOREM = "theorem"
    CERTIFICATE = "certificate"
    FLUID = "fluid"
    SIMULATION = "simulation"


_MEANING = {
    Verdict.STABLE: "the backlog stays bounded in distribution",
    Verdict.UNSTABLE: "the backlog grows without bound",
    Verdict.CRITICAL: "exactly on the boundary: null recurrent or periodic, no stationary mean is promised",
    Verdict.UNDECIDED: "neither stability nor instability is established",
}

_S, _U, _C, _N = Verdict.STABLE, Verdict.UNSTABLE, Verdict.CRITICAL, Verdict.UNDECIDED

# A system of parts is stable when all parts are, unstable when one part is; a part that is undecided may still turn
# out unstable, so it outweighs a critical one.
_BOTH: dict[tuple[Verdict, Verdict], Verdict] = {
    (_S, _S): _S, (_S, _U): _U, (_S, _C): _C, (_S, _N): _N,
    (_U, _S): _U, (_U, _U): _U, (_U, _C): _U, (_U, _N): _U,
    (_C, _S): _C, (_C, _U): _U, (_C, _C): _C, (_C, _N): _N,
    (_N, _S): _N, (_N, _U): _U, (_N, _C): _N, (_N, _N): _N,
}  # fmt: skip


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Verdict of a system all of whose parts must be stable; that of no parts is STABLE."""
    return reduce(lambda first, second: _BOTH[first, second], verdicts, Verdict.STABLE)


@attrs.frozen(kw_only=True)
class Judgement:
    """A verdict with its ground.

    Attributes
    ----------
    verdict : Verdict
    basis : Basis or None
        None exactly when the verdict is UNDECIDED for want of any ground.
    reason : str
        One sentence.
    load : Fraction, float or None
        1/(largest scale of the rates that stays stable); dimensionless.
    """

    verdict: Verdict
    basis: Basis | None
    reason: str
    load: Fraction | float | None = None

    @property
    def margin(self) -> Fraction | float | None:
        """``1 - load``; None where the load is not known."""
        return None if self.load is None else 1 - self.load


def judge_load(load: Fraction | float) -> Verdict:
    """Verdict of a sharp threshold: below 1 stable, above unstable, at 1 critical."""
    if load < 1:
        return Verdict.STABLE
    return Verdict.UNSTABLE if load > 1 else Verdict.CRITICAL
