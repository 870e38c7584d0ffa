"""Certificates as files: one JSON object, written whole, read without trust."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from queuetheory_llm.certificates.certificate import Certificate
from queuetheory_llm.certificates.engine_model import engine_model
from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.atomic import check_apart, check_target, write_atomically
from queuetheory_llm.files.model_file import load_model, read_document
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.files.paths import as_path, check_regular, unreadable
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.stability.call_work import call_work
from queuetheory_llm.stability.cluster_capacity import cluster_model

_LARGEST = 2**26  # bytes; the piecewise-linear proof of a network of 60 classes takes 2**16


def check_certificate_target(
    path: str | None, outputs: Mapping[str, str | None], inputs: Mapping[str, str | None]
) -> None:
    """Refuse a place for a certificate that cannot be written, or that is another file of the command.

    Raises
    ------
    InvalidInput
        In one line, before any work; see `check_apart`.
    """
    if path is not None:
        check_target(path)
        check_apart({"--certificate": path, **outputs}, inputs)


def write_certificate(path: str | Path, certificate: Certificate) -> None:
    """Write a certificate as JSON.

    Raises
    ------
    InvalidInput
        In one line, if the file cannot be written; then nothing is.
    """
    write_atomically(path, (json.dumps(certificate.to_dict(), indent=1) + "\n").encode())


def read_certificate(path: str | Path) -> dict[str, Any]:
    """The JSON object of a certificate file, not yet checked: `check_certificate` does that.

    Raises
    ------
    InvalidInput
        ``FILE: WHAT``, if there is no such file, it is too large, or it is not one JSON object of texts, whole numbers,
        truth values, lists and objects whose keys do not repeat.
    """
    file = as_path(path)
    try:
        check_regular(file, "a certificate file")
        size = file.stat().st_size
        if size > _LARGEST:
            raise InvalidInput(f"{size} bytes are no certificate; the largest that are read have {_LARGEST}")
        table = _parsed(file.read_bytes())
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=str(path)) from None
    except OSError as error:
        raise unreadable(error, str(path)) from None
    return table


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        table = json.loads(data.decode(), object_pairs_hook=_object, parse_float=_inexact, parse_constant=_inexact)
        json.dumps(table, ensure_ascii=False).encode()
    except InvalidInput:
        raise
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput(f"{where}: no JSON: {error.msg}; give a file that the package wrote") from None
    except RecursionError:
        raise InvalidInput("lists nested thousands deep; a certificate has none") from None
    except UnicodeError:
        raise InvalidInput("is no text in UTF-8; give a file that the package wrote") from None
    except ValueError:  # of int
        raise InvalidInput("a whole number of thousands of digits; a certificate has none") from None
    if not isinstance(table, dict):
        raise InvalidInput("is no JSON object; give a file that the package wrote")
    return table


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{twice!r:.40} is given twice in one object; leave one of them out")
    return table


def _inexact(text: str) -> NoReturn:
    raise InvalidInput(f'{text:.40} is no exact number; a certificate has integers and texts "p/q"')


def expected_models(ref: str | Path) -> tuple[dict[str, Any], ...]:
    """What a certificate about a file may have as its model.

    Of a network its fluid model; of an engine what the file says of it; of a workflow the work of its calls at the
    instances, as rules that fill batches and as no rule can beat it, and its network where there is one.

    Raises
    ------
    InvalidModel
        If the file is none.
    """
    document = read_document(ref)
    if document.is_network:
        return (load_network(ref).fluid_model.to_dict(),)
    if not document.is_workflow:
        system = load_model(ref)
        return (engine_model(system.engine, system.workload),)
    cluster = load_workflow(ref)
    models = [cluster_model(cluster, call_work(cluster, filling=filling)) for filling in (False, True)]
    with contextlib.suppress(InvalidModel):  # an instance that is no station: there are no certificates of a network
        models.append(load_network(ref).fluid_model.to_dict())
    return tuple(models)
