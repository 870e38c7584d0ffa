"""Stability of a random walk in the quarter plane, from the signs of three drifts.

Fayolle, Malyshev and Menshikov (Topics in the Constructive Theory of Countable Markov Chains, 1995, chapter 3): with an
interior drift that is not 0 the walk follows it to an axis, and there the drift averaged over the stationary law of the
other component, the induced chain, decides. The induced chain of an axis is ergodic exactly when the interior drift
points towards that axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from queuetheory_llm.verdict import Verdict

#: Sign of a drift: -1, 0, 1; None where it is not known.
Sign = int | None


def verdict_of_drifts(interior: tuple[Sign, Sign], along_first: Sign, along_second: Sign) -> Verdict:
    """Verdict of a walk of two components.

    Parameters
    ----------
    interior : tuple of two signs
        Drift of the first and the second component where both are large.
    along_first, along_second : sign
        Drift of the first component, the only large one, along its axis; the same of the second. An axis to which the
        interior drift does not lead plays no part, whatever its sign.

    Returns
    -------
    Verdict
        UNDECIDED where an unknown sign matters, and for an interior drift of 0, which second moments decide.

    Examples
    --------
    >>> verdict_of_drifts((-1, 1), None, -1)
    <Verdict.STABLE: 'STABLE'>
    """
    found = {
        _known(first, second, one, other)
        for first, second, one, other in product(*map(_values, (*interior, along_first, along_second)))
    }
    return found.pop() if len(found) == 1 else Verdict.UNDECIDED


def _values(sign: Sign) -> Iterator[int]:
    yield from ((-1, 0, 1) if sign is None else (sign,))


def _known(first: int, second: int, along_first: int, along_second: int) -> Verdict:
    if first >= 0 and second >= 0:
        return Verdict.UNSTABLE if first or second else Verdict.UNDECIDED
    # A negative interior drift of one component leads to the axis of the other.
    reached = [along for towards, along in ((second, along_first), (first, along_second)) if towards < 0]
    worst = max(reached)
    return Verdict.STABLE if worst < 0 else Verdict.UNSTABLE if worst > 0 else Verdict.CRITICAL
