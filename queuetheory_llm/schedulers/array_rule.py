"""Rules outside the policy space as one function on arrays: plain Python for the reference runner, compiled by numba.

A rule is a function ``form(view, parameters, batch) -> (pieces, decodes)`` that reads an `ArrayView`, writes request
numbers and token counts into the first entries of an `ArrayBatch`, and returns how many it wrote. It is written in the
Python that numba compiles, uses no state of its own, and marks the functions of its own that it calls with `helper`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.policy import Batch, View

Ids = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])


class ArrayView(NamedTuple):
    """What a rule may look at when a batch ends: a `View` in plain numbers and arrays. It is never written.

    Attributes
    ----------
    b_max : int
        Token budget.
    k_max : int
        Most requests in a batch; ``b_max`` where the engine has no limit.
    prefilling, decoding : int64 arrays
        Requests by phase, in order of arrival.
    waiting, running : int64 arrays
        Not yet served at all, in order of arrival; served at least once, in order of first service.
    prefill_left : int64 array of shape (youngest request present + 1,)
        Prompt tokens still to serve, by request.
    """

    b_max: int
    k_max: int
    prefilling: Ids
    decoding: Ids
    waiting: Ids
    running: Ids
    prefill_left: Ids


class ArrayBatch(NamedTuple):
    """Where a rule writes its batch; each array has room for more than the requests of one phase.

    Attributes
    ----------
    prefill_request, prefill_tokens : int64 arrays
        Prompt pieces in serving order.
    decode_request : int64 array
        One token each, in serving order.
    """

    prefill_request: Ids
    prefill_tokens: Ids
    decode_request: Ids

    @classmethod
    def empty(cls, prefilling: int, decoding: int) -> ArrayBatch:
        """Room for that many requests of each phase, and one more so that a rule that takes too many is seen."""
        return cls(*(np.zeros(size + 1, np.int64) for size in (prefilling, prefilling, decoding)))

    def read(self, name: str, counts: tuple[int, int]) -> Batch:
        """The batch in the first ``counts`` = (pieces, decodes) entries, as the rule ``name`` wrote it.

        Raises
        ------
        InvalidInput
            If the counts are no numbers of entries.
        """
        pieces, decodes = counts
        whole = isinstance(pieces, Integral) and isinstance(decodes, Integral)
        if not whole or not (0 <= pieces <= self.prefill_request.size and 0 <= decodes <= self.decode_request.size):
            raise InvalidInput(
                f"scheduler {name}: it returned ({pieces}, {decodes}); return how many prompt pieces and decode "
                "tokens it wrote, at most one a request"
            )
        requests, tokens = self.prefill_request[:pieces].tolist(), self.prefill_tokens[:pieces].tolist()
        return Batch(list(zip(requests, tokens, strict=True)), self.decode_request[:decodes].tolist())


ArrayFunction = Callable[[ArrayView, Floats, ArrayBatch], tuple[int, int]]

_HELPER = "__array_rule_helper__"


def helper(function: F) -> F:
    """Mark a function that rules call, so that it can be compiled with them; it stays the plain function it is.

    The mark is on the function itself, and goes with it to other processes.

    Examples
    --------
    >>> @helper
    ... def twice(x):
    ...     return 2 * x
    >>> twice(3)
    6
    """
    setattr(function, _HELPER, True)
    return function


def is_helper(value: object) -> bool:
    """Whether it is a function marked with `helper`."""
    return getattr(value, _HELPER, False) is True


def plain(function: F) -> F:
    """The Python function behind one that numba has compiled already."""
    original: F = getattr(function, "py_func", function)
    return original


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


@attrs.frozen(kw_only=True, cache_hash=True)
class ArrayRule:
    """A rule as a function on arrays; also a `Scheduler`, which forms its batches in plain Python.

    Parameters
    ----------
    name : str
    function : callable
        ``form(view, parameters, batch) -> (pieces, decodes)``, see the head of the module; plain, or compiled by
        ``numba.njit`` with the caller's own options.
    rule : str
        The rule in one sentence.
    source : str
        Where it is described.
    parameters : tuple of float
        What the function gets as a float64 array.
    """

    name: str
    function: ArrayFunction
    rule: str = "a user's own rule"
    source: str = "a user's own rule"
    parameters: tuple[float, ...] = attrs.field(default=(), converter=_floats, repr=False)

    @property
    def values(self) -> Floats:
        """The parameters as the function gets them."""
        return np.array(self.parameters, dtype=np.float64)

    def beyond(self) -> InvalidInput:
        """The error of a function that reads or writes outside its arrays."""
        return InvalidInput(
            f"scheduler {self.name}: it reads or writes beyond an array; each phase has room for one entry a request"
        )

    def form(self, view: View) -> Batch:
        """Form the batch; see `Scheduler.form`.

        Raises
        ------
        InvalidInput
            If the function leaves its arrays, or returns counts that are none.
        """
        batch = ArrayBatch.empty(len(view.prefilling), len(view.decoding))
        try:
            counts = plain(self.function)(array_view(view), self.values, batch)
        except IndexError:
            raise self.beyond() from None
        return batch.read(self.name, counts)


def array_view(view: View) -> ArrayView:
    """A `View` as arrays, which nobody can write to."""
    youngest = max(phase[-1] for phase in ((-1,), view.prefilling, view.decoding) if phase)
    left = [view.prefill_left[request] for request in range(youngest + 1)]
    arrays = [np.array(part, np.int64) for part in (view.prefilling, view.decoding, view.waiting, view.running, left)]
    for array in arrays:
        array.setflags(write=False)
    return ArrayView(view.b_max, view.b_max if view.k_max is None else view.k_max, *arrays)
