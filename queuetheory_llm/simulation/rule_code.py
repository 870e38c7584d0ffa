"""What a rule on arrays is made of: the functions of its own that it calls, and a name for all of its code.

numba knows a compiled function by the object it was made from, and one kept on disk by its own file alone. A rule that
comes to a worker is a new object each time, and a helper may stand in another file: so a rule is known here by the code
of its function and of everything that it refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from queuetheory_llm.schedulers.array_rule import is_helper, plain

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype)


class _Same:
    """An object that is known by what it is, not by what it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


def helpers_of(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions marked with `helper` that a function calls, and that those call."""
    found: dict[int, Callable[..., Any]] = {}
    ahead = [function]
    while ahead:
        for value in _surroundings(plain(ahead.pop())).values():
            if is_helper(value) and id(value) not in found:
                found[id(value)] = value
                ahead.append(value)
    return list(found.values())


def code_key(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Equal for two functions that compile to the same, such as one and its copy in a worker; hashable."""
    return (_options(function), _key(plain(function), {}))


def code_digest(key: tuple[Any, ...]) -> str | None:
    """A name for a key, the same in every process; None where the code refers to what only this process knows."""
    return sha256(repr(key).encode()).hexdigest() if _is_settled(key) else None


def _is_settled(key: Any) -> bool:
    return all(map(_is_settled, key)) if isinstance(key, tuple) else not isinstance(key, _Same)


def _key(function: Callable[..., Any], seen: dict[int, int]) -> tuple[Any, ...]:
    """``seen``: the functions on the way here by order, so that recursion ends."""
    if id(function) in seen:
        return ("again", seen[id(function)])
    seen[id(function)] = len(seen)
    around = {name: _value_key(value, seen) for name, value in sorted(_surroundings(function).items())}
    defaults = _value_key(function.__defaults__, seen)
    return (*_code_key(function.__code__), defaults, *around.items())


def _code_key(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_code_key(one) if isinstance(one, CodeType) else _value_key(one, {}) for one in code.co_consts)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, *counts, constants)


def _value_key(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, _PLAIN):
        return (type(value).__name__, repr(value))
    if isinstance(value, tuple | frozenset):
        parts = [_value_key(one, seen) for one in value]
        return (type(value).__name__, *(parts if isinstance(value, tuple) else sorted(parts, key=repr)))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if is_helper(value) or hasattr(value, "py_func"):
        return ("function", _options(value), _key(plain(value), seen))
    if getattr(value, "__module__", None) == "builtins" or isinstance(value, ModuleType):
        return ("named", value.__name__)
    return _Same(value)


def _options(function: Any) -> str:
    """Of a function that numba has compiled already."""
    return repr(sorted(getattr(function, "targetoptions", {}).items()))


def _surroundings(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function refers to outside itself by name: globals, what stands in modules, what it closes over."""
    code, around = function.__code__, function.__globals__
    used = set(_names(code))
    found = {name: around[name] for name in used if name in around}
    modules = {name: value for name, value in found.items() if isinstance(value, ModuleType)}
    for name, module in modules.items():
        found |= {f"{name}.{one}": value for one, value in _own(module, used).items()}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell: numba says so
            found[name] = cell.cell_contents
    return found


def _own(module: ModuleType, used: set[str]) -> Mapping[str, Any]:
    """What a rule may have written into a module: helpers, compiled functions and numbers."""
    values = {name: getattr(module, name) for name in used if hasattr(module, name)}
    return {
        name: value
        for name, value in values.items()
        if is_helper(value) or hasattr(value, "py_func") or isinstance(value, (*_PLAIN, tuple))
    }


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)
