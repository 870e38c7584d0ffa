"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO

from queuetheory_llm.errors import InvalidInput


def write_atomically(path: str | Path, data: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file so that either all of it is there or nothing is changed.

    The content goes to a temporary file in the same folder, which then takes the name. A symbolic link is followed.

    Parameters
    ----------
    path : path
        Where to write; an existing regular file is replaced.
    data : bytes or callable
        The content, or a function that writes it to the binary file it is handed.

    Raises
    ------
    InvalidInput
        In one line, when the folder is missing, the path is no regular file, or the system refuses to write.
        Whatever ``data`` itself raises passes through.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InvalidInput(f"{path}: is a directory; give a file name")
    if target.exists() and not target.is_file():
        raise InvalidInput(f"{path}: is not a regular file; give the name of one")
    if not target.parent.is_dir():
        raise InvalidInput(f"{path}: the folder {target.parent} does not exist; create it first")
    temporary = target.parent / f".{secrets.token_hex(8)}.part"
    try:
        _write(temporary, data)
        temporary.replace(target)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror or error}; choose another place") from None
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, data: bytes | Callable[[IO[bytes]], object]) -> None:
    with path.open("xb") as file:
        if isinstance(data, bytes):
            file.write(data)
        else:
            data(file)
