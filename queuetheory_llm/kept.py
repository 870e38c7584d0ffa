"""Machine code that is kept on disk, where there is a place to keep it, and how the kernels are compiled.

numba knows what it has kept by the date of the file of the function that Python calls; it does not see that a function
in another file, which is compiled in, has changed. So such functions are told to `kept`, which puts a name for their
code into that of what is kept. The code of a function is its own and that of everything that it refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype)
_LIBRARIES = ("builtins", "math", "numpy")  # numba has code of its own for their functions


def kept(function: F, *, of: Sequence[Any] = (), **options: Any) -> F:
    """The function compiled by numba with these options, and its machine code on disk.

    Where neither the package nor a home is writable, or ``of`` has no name that other processes would give it, each
    process compiles it anew.

    Parameters
    ----------
    function : callable
    of : sequence of functions, named tuples and plain values
        What is compiled in from other files, see `code_digest`.
    **options
        Of `numba.njit`.
    """
    digest = code_digest(tuple(map(code_key, of))) if of else ""
    if digest is None:
        return cast(F, njit(**options)(function))
    if digest:
        function.__qualname__ = f"{function.__qualname__}_{digest}"  # the name of numba's file
    try:
        return cast(F, njit(**options, cache=True)(function))
    except RuntimeError:  # numba finds no place
        return cast(F, njit(**options)(function))


# No kernel makes or keeps an array, so nothing need count references to them; counting is most of the time otherwise.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # not called from Python
compiled = njit(**_INNER)
inlined = njit(**_INNER, forceinline=True)


def entry(function: F, of: Sequence[Any] = ()) -> F:
    """Compile what Python calls, with all that it calls, and keep it under ``of`` too; other threads run meanwhile."""
    return kept(function, of=of, **_OPTIONS, nogil=True)


# --- names of code ----------------------------------------------------------------------------------------------------


class _Same:
    """An object that is known by what it is, not by what it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


def code_key(value: Any) -> Any:
    """Equal for two functions that compile to the same, such as one and its copy in a worker; hashable.

    Named tuples are known by their fields, numbers and words by themselves.
    """
    return _value_key(value, {})


def code_digest(key: Any) -> str | None:
    """A name for a key, the same in every process; None where the code refers to what only this process knows."""
    return sha256(repr(key).encode()).hexdigest()[:16] if _is_settled(key) else None


def _is_settled(key: Any) -> bool:
    return all(map(_is_settled, key)) if isinstance(key, tuple) else not isinstance(key, _Same)


def _value_key(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, _PLAIN):
        return (type(value).__name__, repr(value))
    if isinstance(value, tuple | frozenset):
        parts = [_value_key(one, seen) for one in value]
        return (type(value).__name__, *(parts if isinstance(value, tuple) else sorted(parts, key=repr)))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, ModuleType) or _is_library(value):
        return ("named", value.__name__)
    if _is_function(value):
        return ("function", _options(value), _key(value, seen))
    if isinstance(value, type) and hasattr(value, "_fields"):
        return ("fields", value.__name__, value._fields)
    return _Same(value)


def _is_function(value: Any) -> bool:
    """Whether it is written in Python, compiled by numba or not."""
    return isinstance(value, FunctionType) or hasattr(value, "py_func")


def _is_library(value: Any) -> bool:
    """Whether numba knows it by its name."""
    module = str(getattr(value, "__module__", "")).partition(".")[0]
    return module in _LIBRARIES and callable(value) and hasattr(value, "__name__")


def _key(function: Any, seen: dict[int, int]) -> tuple[Any, ...]:
    """``seen``: the functions met so far by order, so that recursion ends and each is written once."""
    python: FunctionType = getattr(function, "py_func", function)
    if id(python) in seen:
        return ("again", seen[id(python)])
    seen[id(python)] = len(seen)
    around = {name: _value_key(value, seen) for name, value in sorted(surroundings(python).items())}
    defaults = _value_key(python.__defaults__, seen)
    return (*_code_key(python.__code__), defaults, *around.items())


def _code_key(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_code_key(one) if isinstance(one, CodeType) else _value_key(one, {}) for one in code.co_consts)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, *counts, constants)


def _options(function: Any) -> str:
    """Of a function that numba has compiled already."""
    return repr(sorted(getattr(function, "targetoptions", {}).items()))


def surroundings(function: Any) -> dict[str, Any]:
    """What a function refers to outside itself by name: globals, what stands in modules, what it closes over."""
    code, around = function.__code__, function.__globals__
    used = _names(code)
    found = {name: around[name] for name in used if name in around}
    modules = {name: value for name, value in found.items() if isinstance(value, ModuleType)}
    for name, module in modules.items():
        found |= {f"{name}.{one}": value for one, value in _own(module, used).items()}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell: numba says so
            found[name] = cell.cell_contents
    return found


def _own(module: ModuleType, used: set[str]) -> Mapping[str, Any]:
    """What may be compiled in from a module: functions and numbers."""
    values = {name: getattr(module, name) for name in used if hasattr(module, name)}
    return {
        name: value
        for name, value in values.items()
        if not _is_library(value) and (_is_function(value) or isinstance(value, (*_PLAIN, tuple)))
    }


def _names(code: CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)
