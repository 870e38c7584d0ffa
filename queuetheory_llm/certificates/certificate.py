"""A certificate: what is proved, of which model, by which numbers.

A certificate is plain JSON and speaks for itself: the model it is about, the numbers of the proof as exact fractions,
the verdict and the sentence that the checker derives from them, and a digest of all that. `certify` is the only way to
one, and it runs the checker: what the checker does not accept is never issued.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import attrs

from queuetheory_llm.certificates.checker import conclude
from queuetheory_llm.errors import CertificateRejected, InvalidInput
from queuetheory_llm.exact.words import shown
from queuetheory_llm.verdict import Verdict

SCHEMA = "qt-llm/certificate/1"
_KEYS = ("schema", "kind", "verdict", "statement", "model", "proof", "digest")


@attrs.frozen(kw_only=True)
class Certificate:
    """An accepted proof.

    Attributes
    ----------
    kind : str
        One of `checker.KINDS`.
    verdict : Verdict
    statement : str
        What is proved, one sentence, as the checker derives it.
    model, proof : mapping of plain values
        Numbers are integers or texts ``"p/q"``.
    """

    kind: str
    verdict: Verdict
    statement: str
    model: Mapping[str, Any]
    proof: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The certificate as JSON holds it."""
        content = {
            "schema": SCHEMA,
            "kind": self.kind,
            "verdict": self.verdict.value,
            "statement": self.statement,
            "model": dict(self.model),
            "proof": dict(self.proof),
        }
        return {**content, "digest": digest(content)}


def certify(kind: str, model: Mapping[str, Any], proof: Mapping[str, Any]) -> Certificate:
    """A certificate, if the checker accepts it.

    Raises
    ------
    CertificateRejected
        Naming the condition that fails.
    """
    verdict, statement = conclude(kind, model, proof)
    return Certificate(kind=kind, verdict=verdict, statement=statement, model=model, proof=proof)


def check_certificate(table: Mapping[str, Any]) -> Certificate:
    """Check a certificate as JSON holds it, believing nothing it says of itself.

    Parameters
    ----------
    table : mapping
        The JSON object: ``Certificate.to_dict()``.

    Returns
    -------
    Certificate

    Raises
    ------
    CertificateRejected
        Naming the condition that fails: of the proof first, then of what is said to follow from it, last the digest.
    InvalidInput
        If it does not claim to be a certificate.
    """
    if not isinstance(table, Mapping) or table.get("schema") != SCHEMA:
        raise InvalidInput(f'schema: is not "{SCHEMA}"; give a file that the package wrote as a certificate')
    wrong = sorted(map(shown, set(table) ^ set(_KEYS)))
    if wrong:
        raise CertificateRejected(f"keys: {', '.join(wrong)} missing or unknown; a certificate has {', '.join(_KEYS)}")
    accepted = certify(table["kind"], table["model"], table["proof"])
    for key, value in accepted.to_dict().items():
        if table[key] != value:
            raise CertificateRejected(f"{key}: is {value!r} by what was checked, not {table[key]!r:.200}")
    return accepted


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a certificate without its digest: whatever was changed afterwards shows."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
