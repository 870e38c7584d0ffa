"""What every check of a proof is made of: a condition that must hold, numbers that must be those found."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from queuetheory_llm.errors import CertificateRejected
from queuetheory_llm.exact.reading import text
from queuetheory_llm.verdict import Verdict

#: The verdict that a proof establishes, and its statement, one sentence.
Conclusion = tuple[Verdict, str]


def require(condition: bool, failure: str) -> None:
    """Reject the proof with ``CONDITION: WHAT`` unless a condition holds."""
    if not condition:
        raise CertificateRejected(failure)


def same(what: str, listed: Iterable[Fraction], found: Iterable[Fraction], names: Iterable[str]) -> None:
    """Reject the proof unless the numbers it lists are those that were found."""
    for name, claim, value in zip(names, listed, found, strict=True):
        require(claim == value, f"{what}: that of {name} is {text(value)}, not {text(claim)}")
