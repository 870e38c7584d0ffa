"""What a path names, in one-line errors whatever the system says of it."""

from __future__ import annotations

import stat
from os import PathLike
from pathlib import Path

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.words import shown


def as_path(path: str | Path) -> Path:
    """The path that a text names.

    Raises
    ------
    InvalidInput
        If it is something else, such as a number.
    """
    if not isinstance(path, str | PathLike):
        raise InvalidInput(f"{shown(path)} is no path; give the path of a file")
    return Path(path)


def check_regular(path: str | Path, instead: str) -> None:
    """Refuse what is no regular file.

    Parameters
    ----------
    path : path
    instead : str
        What to give in place of a directory.

    Raises
    ------
    InvalidInput
        In one line without the path, which the caller puts before it.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise unreadable(error) from None
    if stat.S_ISDIR(mode):
        raise InvalidInput(f"is a directory; give {instead}")
    if not stat.S_ISREG(mode):
        raise InvalidInput("is not a regular file; copy its content to a file first")


def unreadable(error: OSError | ValueError, source: str | None = None) -> InvalidInput:
    """The one-line error for a file that the system does not let us read."""
    why = getattr(error, "strerror", None) or str(error)
    return InvalidInput(f"cannot be read: {why}; check the path", source=source)
