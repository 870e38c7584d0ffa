"""The models that come with the package."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from queuetheory_llm.errors import InvalidInput, InvalidModel

_PACKAGE = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """Where the packaged models are: inside an installed package, beside the package in a checkout.

    Raises
    ------
    InvalidInput
        If neither is there.
    """
    for place in (_PACKAGE / "models", _PACKAGE.parent / "models"):
        if place.is_dir():
            return place
    raise InvalidInput("the packaged models are not installed; reinstall the package")


def names() -> list[str]:
    """Names of the packaged models, in alphabetical order."""
    return sorted(file.stem for file in folder().glob("*.toml"))


def path(name: str) -> Path:
    """The file of a packaged model.

    Raises
    ------
    InvalidModel
        If there is none of that name; the nearest names are offered.
    """
    if name not in names():
        raise InvalidModel(f"{name}: no such file or packaged model; {suggestion(name)}")
    return folder() / f"{name}.toml"


def suggestion(name: str) -> str:
    """How to mend a name that is not that of a packaged model."""
    near = get_close_matches(name, names(), n=2, cutoff=0.5)
    listed = "`qt-llm models` lists the packaged models"
    return f"did you mean {' or '.join(near)}? {listed}" if near else f"give a path that exists; {listed}"
