"""The static splits of dispatch rules, exactly: which share of each stage's calls each instance gets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from queuetheory_llm.dispatch.view import SHARE_ROUNDING, Dispatcher
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.model.cluster import WorkflowSystem

#: J rows that sum to 1, an entry a single instance.
Shares = tuple[tuple[Fraction, ...], ...]


def static_split(system: WorkflowSystem, dispatcher: Dispatcher) -> Shares | None:
    """The split of a dispatcher: its own, or that of its rule; None of a rule without one.

    Raises
    ------
    InvalidInput
        If the rule has the split of the linear program and the dispatcher no shares (`stability.lp_shares` has them),
        or if shares of its own do not fit.
    """
    if dispatcher.shares is not None:
        return _own(dispatcher, system)
    if dispatcher.rule.split == "uniform":
        return system.even_shares
    if dispatcher.rule.split == "proportional":
        return tuple(map(_proportional, system.unit_seconds))
    if dispatcher.rule.split:
        raise InvalidInput(f"dispatch {dispatcher.name}: it splits by a linear program; give its answer as shares")
    return None


def _proportional(row: Sequence[Fraction | None]) -> tuple[Fraction, ...]:
    """In proportion to the speeds 1/t_comp; instances that take no time share all of it."""
    if 0 in row:
        return _normed([Fraction(seconds == 0) for seconds in row])
    return _normed([Fraction(0) if seconds is None else 1 / seconds for seconds in row])


def _own(dispatcher: Dispatcher, system: WorkflowSystem) -> Shares:
    """Shares that were given, as floats or otherwise; what rounding leaves of their sum is divided among them."""
    assert dispatcher.shares is not None
    rows = [[to_fraction(share) for share in row] for row in dispatcher.shares]
    able = system.unit_seconds
    fits = [len(row) for row in rows] == [len(row) for row in able] and all(
        min(row) >= 0
        and abs(sum(row, Fraction(-1))) <= SHARE_ROUNDING
        and not any(share for share, seconds in zip(row, served, strict=True) if seconds is None)
        for row, served in zip(rows, able, strict=True)
    )
    if not fits:
        raise InvalidInput(
            f"dispatch {dispatcher.name}: the shares need a row a stage and an entry an instance, {len(able)} x "
            f"{len(system.units)}, not negative, 0 where a stage is not served, each row of sum 1"
        )
    return tuple(map(_normed, rows))


def _normed(row: Sequence[Fraction]) -> tuple[Fraction, ...]:
    total = sum(row)
    return tuple(each / total for each in row)
