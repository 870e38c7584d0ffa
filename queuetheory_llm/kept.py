"""Machine code that is kept on disk, where there is a place to keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kept(function: F, **options: Any) -> F:
    """The function compiled by numba with these options, and its machine code on disk.

    Where neither the package nor a home is writable, each process compiles it anew.
    """
    try:
        return cast(F, njit(**options, cache=True)(function))
    except RuntimeError:  # numba finds no place
        return cast(F, njit(**options)(function))
