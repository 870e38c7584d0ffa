"""A lock on a file that is written over a long time, so that two programs do not write it at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_target


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold a file for one writer.

    The lock is on ``.NAME.lock`` beside it, since the file itself is replaced while it is held. The system frees it
    when the process ends in whatever way.

    Parameters
    ----------
    path : path
        The file, which need not be there yet.

    Raises
    ------
    InvalidInput
        In one line, when another holds it, or the place cannot be written; see `check_target`.
    """
    target = check_target(path)
    lock = target.parent / f".{target.name}.lock"
    try:
        file = _acquire(lock)
    except BlockingIOError:
        raise InvalidInput(f"{path}: another run is writing it; wait for its end, or give another file") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror or error}; choose another place") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(file)


def _acquire(lock: Path) -> int:
    """The lock held, on the file that has its name now: whoever held it before removes his."""
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file)
            if lock.exists() and os.path.samestat(os.fstat(file), lock.stat()):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover - a system without it excludes nobody
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
