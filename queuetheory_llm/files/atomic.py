"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
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
    target = check_target(path)
    temporary = target.parent / f".{secrets.token_hex(8)}.part"
    try:
        _write(temporary, data)
        temporary.replace(target)
    except OSError as error:
        raise _refused(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_together(files: Mapping[Path, bytes | Callable[[IO[bytes]], object]]) -> None:
    """Write several files so that either all of them are there or nothing is changed.

    All contents go to temporary files first. Then each takes its name, and what had that name is put back should a
    later one fail.

    Parameters
    ----------
    files : mapping of path to bytes or callable
        See `write_atomically`.

    Raises
    ------
    InvalidInput
        See `write_atomically`.
    """
    targets = {path: check_target(path) for path in files}
    staged = {path: target.parent / f".{secrets.token_hex(8)}.part" for path, target in targets.items()}
    replaced: list[tuple[Path, Path, bool]] = []
    path = next(iter(files), Path())
    try:
        for path, data in files.items():
            _write(staged[path], data)
        for path, target in targets.items():
            before = staged[path].with_suffix(".old")
            there = target.exists()
            replaced.append((before, target, there))
            if there:
                target.replace(before)
            staged[path].replace(target)
    except BaseException as error:
        _put_back(replaced)
        if isinstance(error, OSError):
            raise _refused(path, error) from None
        raise
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)
    for before, _, _ in replaced:
        before.unlink(missing_ok=True)


def _put_back(replaced: Sequence[tuple[Path, Path, bool]]) -> None:
    """Undo replacements: what was set aside gets its name back, and where nothing was there nothing is left."""
    for before, target, there in reversed(replaced):
        if before.exists():
            before.replace(target)
        elif not there:
            target.unlink(missing_ok=True)


def check_apart(outputs: Mapping[str, str | Path | None], inputs: Mapping[str, str | Path | None]) -> None:
    """Refuse to write a file over one that is read, or over another one that is written.

    Parameters
    ----------
    outputs, inputs : mapping of str to path or None
        By the flag or word that names them; None for a file that was not asked for.

    Raises
    ------
    InvalidInput
        In one line, with the two names of one file; links are followed. Also if a path is no possible name.
    """
    taken = {_real(path): name for name, path in inputs.items() if path is not None}
    for name, path in outputs.items():
        if path is None:
            continue
        real = _real(path)
        if real in taken:
            raise InvalidInput(f"{name}: {path} is the file of {taken[real]}; write to another one")
        taken[real] = name


def check_target(path: str | Path, endings: Sequence[str] = ()) -> Path:
    """Where writing to ``path`` would put the file; for commands to call before the work.

    Parameters
    ----------
    path : path
    endings : sequence of str
        The kinds of file that can be written, such as "svg"; any when empty.

    Raises
    ------
    InvalidInput
        In one line, when the ending is another one, the folder is missing or may not be written, or the path is a
        directory, no regular file, or no possible name.
    """
    if endings and Path(path).suffix.lstrip(".").lower() not in endings:
        known = f"{', '.join(f'.{ending}' for ending in endings[:-1])} or .{endings[-1]}"
        raise InvalidInput(f"{path}: has an unknown ending; end the name in {known}")
    try:
        target = _real(path)
        fault = _fault(target)
    except OSError as error:
        raise _refused(path, error) from None
    if fault is not None:
        raise InvalidInput(f"{path}: {fault}")
    return target


def _real(path: str | Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = getattr(error, "strerror", None) or error
        shown = str(path) if str(path).isprintable() else repr(str(path))
        raise InvalidInput(f"{shown}: no possible path: {why}; choose another place") from None


def _fault(target: Path) -> str | None:
    if target.is_dir():
        return "is a directory; give a file name"
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        return "is not a regular file; give the name of one"
    if _is_stdout(target):
        return "is where stdout goes, and would take the place of what is printed there; give another file"
    if not target.parent.is_dir():
        return f"the folder {target.parent} does not exist; create it first"
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return f"the folder {target.parent} may not be written; choose another place"
    return _refusal(target.parent)


def _refusal(folder: Path) -> str | None:
    """What the system says to a new file there: /proc takes none, though it may be written."""
    probe = folder / f".{secrets.token_hex(8)}.part"
    try:
        probe.touch(exist_ok=False)
    except OSError as error:
        return f"cannot be written: {error.strerror or error}; choose another place"
    probe.unlink(missing_ok=True)
    return None


def _is_stdout(target: Path) -> bool:
    """Whether the answers of this program go to the file."""
    try:
        return os.path.samestat(target.stat(), os.fstat(1))
    except OSError:  # no such file yet, or stdout is closed
        return False


def _refused(path: str | Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path}: cannot be written: {error.strerror or error}; choose another place")


def _write(path: Path, data: bytes | Callable[[IO[bytes]], object]) -> None:
    with path.open("xb") as file:
        if isinstance(data, bytes):
            file.write(data)
        else:
            data(file)
