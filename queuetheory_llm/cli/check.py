"""``qt-llm check``: certificates checked again, in exact arithmetic, from their models alone."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from queuetheory_llm.certificates.certificate import SCHEMA, check_certificate
from queuetheory_llm.certificates.subject import difference
from queuetheory_llm.cli.output import Json, print_json
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.errors import CertificateRejected, InvalidInput
from queuetheory_llm.files.certificates import expected_models, read_certificate


def check(
    *files: str,
    model: Annotated[
        str | None,
        Parameter(
            help="Check too that the certificates are about this network, workflow or engine file; that of a network "
            "without priorities is about every order of service."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Check certificates: every condition of their proofs, what follows from it, and that nothing was changed since.

    Exit code 0: all accepted; 1: one is rejected, with the condition that fails.

    Parameters
    ----------
    files
        Certificate files, as other commands write them with --certificate.
    """
    if not files:
        raise InvalidInput("FILE: none given; name one or more certificate files")
    tables = [_read(file) for file in files]
    expected = None if model is None else expected_models(model)
    answers = [_answer(file, table, expected) for file, table in zip(files, tables, strict=True)]
    if json:
        print_json("check", {"certificates": answers})
    for answer in answers:
        if answer["accepted"] and not json:
            say(f"{answer['file']}: accepted")
            for key in ("kind", "verdict", "statement"):
                say(f"  {key}: {answer[key]}")
        elif not answer["accepted"]:
            say(f"error: {answer['file']}: rejected: {answer['condition']}", to=sys.stderr)
    return 0 if all(answer["accepted"] for answer in answers) else 1


def _read(file: str) -> dict[str, Any]:
    table = read_certificate(file)
    if table.get("schema") != SCHEMA:
        raise InvalidInput(f'schema: is not "{SCHEMA}"; give a certificate that the package wrote', source=file)
    return table


def _answer(file: str, table: dict[str, Any], expected: tuple[dict[str, Any], ...] | None) -> dict[str, Any]:
    """What is said of one file; ``condition`` is the one that fails."""
    try:
        found = check_certificate(table)
        foreign = None if expected is None else difference(found.model, *expected)
        if foreign is not None:
            raise CertificateRejected(foreign)
    except CertificateRejected as error:
        condition = " ".join(str(error).split())[:400]
        return {"file": file, "accepted": False, "condition": condition}
    said = {"kind": found.kind, "verdict": found.verdict.value, "statement": " ".join(found.statement.split())}
    return {"file": file, "accepted": True, **said, "condition": None}
