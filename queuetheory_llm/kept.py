"""Machine code that is kept on disk, where there is a place to keep it, and how the kernels are compiled."""

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


# No kernel makes or keeps an array, so nothing need count references to them; counting is most of the time otherwise.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # not called from Python
compiled = njit(**_INNER)
inlined = njit(**_INNER, forceinline=True)


def entry(function: F) -> F:
    """Compile what Python calls, with all that it calls."""
    return kept(function, **_OPTIONS)
