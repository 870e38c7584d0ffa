"""The limits of the model that every batch keeps to, and the one-line refusal of a batch that does not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from numbers import Integral

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.policy import Batch, View


class BrokenLimit(Exception):
    """A limit of the model that a batch breaks, in words."""


def require_batch(batch: object) -> None:
    """Refuse what is no `Batch` of whole numbers; a `Policy` forms no other.

    Raises
    ------
    BrokenLimit
    """
    if not isinstance(batch, Batch):
        raise BrokenLimit(f"form returned {type(batch).__name__}; return a Batch")
    if not isinstance(batch.prefill, list) or not isinstance(batch.decode, list):
        raise BrokenLimit("prefill and decode of a Batch are lists; give lists")
    for part in batch.prefill:
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise BrokenLimit(f"prefill holds {part!r}; give pairs (request, tokens)")
    for number in (*batch.decode, *(number for part in batch.prefill for number in part)):
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise BrokenLimit(f"{number!r} is no whole number; give the numbers of the view")


def checked_tokens(batch: Batch, view: View, arrived: int) -> int:
    """Tokens of a batch formed from ``view`` after ``arrived`` requests have come.

    Raises
    ------
    BrokenLimit
        If the batch breaks a limit of the model; names the first.
    """
    tokens = _checked_prefill(batch, view, arrived) + _checked_decode(batch, view)
    k_max = view.b_max if view.k_max is None else view.k_max
    if tokens > view.b_max:
        raise BrokenLimit(f"{tokens} tokens are above the budget b_max = {view.b_max}")
    if batch.requests > k_max:
        raise BrokenLimit(f"{batch.requests} requests are above the batch size k_max = {k_max}")
    if tokens == 0:
        raise BrokenLimit(f"it serves nothing although {view.present} requests are present; a rule may not idle then")
    return tokens


def _checked_prefill(batch: Batch, view: View, arrived: int) -> int:
    tokens = 0
    for request, count in batch.prefill:
        if not 0 <= request < arrived:
            raise BrokenLimit(f"request {request} is not present")
        left = view.prefill_left[request]
        if not left:
            raise BrokenLimit(f"request {request} has no prompt tokens left")
        if not 1 <= count <= left:
            raise BrokenLimit(f"{count} prompt tokens for request {request}, which has {left} left")
        tokens += int(count)
    if len(batch.prefill) > 1:
        _check_distinct([request for request, _ in batch.prefill])
    return tokens


def _checked_decode(batch: Batch, view: View) -> int:
    count = len(batch.decode)
    if batch.decode != view.decoding[:count]:  # the usual batch is the oldest ones, and then needs no more
        _check_distinct(batch.decode)
        strange = set(batch.decode).difference(view.decoding)
        if strange:
            raise BrokenLimit(f"a decode token for request {min(strange)}, which is not decoding")
    return count


def _check_distinct(requests: Sequence[int]) -> None:
    if len(set(requests)) < len(requests):
        twice = next(request for request in requests if requests.count(request) > 1)
        raise BrokenLimit(f"request {twice} appears twice in one phase")


def refusal(name: str, view: View, index: int, seconds: float, broken: BrokenLimit) -> InvalidInput:
    """The error that names the rule, the batch, its time, the limit broken and the state."""
    state = f"prefilling {_some(view.prefilling)}, decoding {_some(view.decoding)}, running {_some(view.running)}"
    return InvalidInput(f"scheduler {name}: batch {index} at {seconds:g} s: {broken}; state: {state}")


def _some(requests: Sequence[int]) -> str:
    count = len(requests)
    shown = ", ".join(str(request) for request in islice(requests, 5))
    return f"[{shown}{', ...' if count > 5 else ''}] ({count})"
