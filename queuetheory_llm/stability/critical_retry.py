"""The retry probability at which a cluster is full: the exact edge of a loop.

A loop of a plan that is passed again with probability p makes 1/(1 - p) passes, and the passes of loops within and
around it multiply: the calls of a stage in a query are

    visits_j = x * b_j  within the loop, x = 1/(1 - p),   visits_j = b_j  elsewhere,

b_j those at p = 0. They are linear in x whatever the nesting, so the largest x that some static split carries is a
linear program with x as a variable, f_jm = b_j g_jm within the loop:

    greatest x:  sum_m g_jm = x within, 1 elsewhere;   rate * sum_j b_j g_jm w_jr <= count_m for each resource r.

p = 1 - 1/x is then the probability at which the load of the cluster (`cluster_capacity`) is 1. Above it the cluster is
unstable under every dispatch rule that sends a call by its stage and by what has been, not by its own length; below it
that bound excludes nothing. It counts the best batches of engines, C. What a static split carries where engines fill
their batches is the same with F in the place of C: below `CriticalRetry.carried` no instance of such a split is
overloaded. The two are equal where full batches are the best ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import exact_text, require_whole
from queuetheory_llm.exact.program import Program
from queuetheory_llm.model.cluster import WorkflowSystem, require_cluster
from queuetheory_llm.model.workflow_plan import Plan
from queuetheory_llm.result import Result
from queuetheory_llm.stability.call_work import TypeWork, call_work
from queuetheory_llm.stability.cluster_capacity import load_scale, plan, resource_rows, spread

_ZERO, _ONE = Fraction(0), Fraction(1)
_POINTS = 12  # of the curve, even in the probability, and as many even in the passes


@attrs.frozen(kw_only=True)
class CriticalRetry(Result):
    """How much a retry can bear.

    Attributes
    ----------
    system : WorkflowSystem
    retry : int
        Its number in the workflow.
    probability : Fraction
        As it is in the workflow.
    critical : Fraction or None
        The probability at which the load is 1; None where `bears` says why there is none.
    carried : Fraction or None
        The probability up to which the best static split keeps every load below 1 where engines fill their batches;
        None where it does so for none, or for all.
    passes : Fraction or None
        1/(1 - critical), the passes of the loop that can be borne.
    base_load, load : Fraction
        Of the cluster at probability 0 and at that of the workflow.
    points : tuple of (Fraction, Fraction)
        (probability, load), from 0 up.
    shares : tuple of tuple of Fraction or None
        The split at the critical probability, by best batches: J rows that sum to 1, an entry a type.
    error : Fraction
        Relative error of the loads that sums of prompt seconds leave.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.cluster_capacity:draw_critical_retry"
    system: WorkflowSystem
    retry: int
    probability: Fraction
    critical: Fraction | None
    carried: Fraction | None
    passes: Fraction | None
    base_load: Fraction
    load: Fraction
    points: tuple[tuple[Fraction, Fraction], ...]
    shares: tuple[tuple[Fraction, ...], ...] | None
    error: Fraction

    @property
    def bears(self) -> str:
        """What the loop can bear, in a sentence."""
        name = f"retry from {self._ends[0]} to {self._ends[1]}"
        if self.base_load > 1:
            return f"no {name} is low enough: without it the load is already {float(self.base_load):.6g}, above 1"
        if self.base_load == 1:
            return f"no {name} is low enough: without it the load is already exactly 1"
        if self.critical is None:
            return f"every {name} below 1 is borne: the calls of the loop take up nothing of any resource"
        said = f"a {name} with probability {float(self.critical):.6g} fills the cluster, a higher one overloads it"
        if self.carried == self.critical:
            return said
        if self.carried is None:
            return f"{said}; full batches do not carry the calls under any split"
        return f"{said}; full batches carry the calls up to {float(self.carried):.6g}"

    @property
    def _ends(self) -> tuple[str, str]:
        each = self.system.workflow.retries[self.retry]
        return each.source, each.to

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "title": self.system.name,
            "rate": float(self.system.arrivals.rate),
            "retry": dict(zip(("from", "to"), self._ends, strict=True)),
            "probability": float(self.probability),
            "critical": None if self.critical is None else float(self.critical),
            "exact": None if self.critical is None or self.error else exact_text(self.critical),
            "carried": None if self.carried is None else float(self.carried),
            "passes": None if self.passes is None else float(self.passes),
            "load": float(self.load),
            "load_without_retry": float(self.base_load),
            "relative_error": float(self.error),
            "says": self.bears,
            "points": [{"probability": float(p), "load": float(load)} for p, load in self.points],
        }


def critical_retry(system: WorkflowSystem, retry: int = 0) -> CriticalRetry:
    """The probability of a retry at which the cluster is exactly full at the rate of the system.

    Parameters
    ----------
    system : WorkflowSystem
    retry : int
        The number of the retry in ``system.workflow.retries``.

    Raises
    ------
    InvalidInput
        If ``system`` is none, or there is no such retry.
    NotConverged
        If what binds cannot be computed.

    Examples
    --------
    >>> from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
    >>> from queuetheory_llm.model.cluster import Instance, WorkflowSystem
    >>> from queuetheory_llm.model.workflow import Retry, Stage, Workflow
    >>> write = Stage(name="write", work=ExponentialInterval(mean=1))
    >>> loop = Workflow(stages=[write], retries=[Retry(source="write", to="write", probability="1/2")])
    >>> servers = [Instance(name="server", speed=1)]
    >>> found = critical_retry(WorkflowSystem(workflow=loop, instances=servers, arrivals=PoissonArrivals(rate="1/3")))
    >>> found.critical, found.load
    (Fraction(2, 3), Fraction(2, 3))
    """
    retries = require_cluster(system).workflow.retries
    if require_whole("retry", retry, 0, "the number of a retry") >= len(retries):
        raise InvalidInput(f"retry: {retry} is not there; the workflow has {len(retries)}, numbered from 0")
    types, inside = call_work(system), frozenset(loop_stages(system, retry))
    rates, probability = _rates_without(system, retry, inside), retries[retry].probability
    base = plan(types, rates).load
    passes, shares = (None, None) if base >= 1 else _most_passes(types, rates, inside)
    critical = None if passes is None else 1 - 1 / passes
    filled = call_work(system, filling=True)
    most = passes if filled == types else _passes_borne(filled, rates, inside)
    grid = _grid(critical, probability)
    loads = {p: plan(types, _with_passes(rates, inside, 1 / (1 - p))).load for p in grid}
    return CriticalRetry(
        system=system,
        retry=retry,
        probability=probability,
        critical=critical,
        carried=None if most is None else 1 - 1 / most,
        passes=passes,
        base_load=base,
        load=loads[probability],
        points=tuple(loads.items()),
        shares=shares,
        error=max(each.error for each in types),
    )


def loop_stages(system: WorkflowSystem, retry: int) -> tuple[int, ...]:
    """The stages that a retry repeats."""
    return next(tuple(part.stages()) for part in _parts(system.workflow.plan) if part.retry == retry)


def _parts(part: Plan) -> Iterator[Plan]:
    yield part
    for inner in part.parts:
        yield from _parts(inner)


def _rates_without(system: WorkflowSystem, retry: int, inside: frozenset[int]) -> list[Fraction]:
    """Calls per second of each stage if the loop were passed once."""
    once = 1 - system.workflow.retries[retry].probability
    return [
        system.arrivals.rate * visits * (once if j in inside else 1) for j, visits in enumerate(system.workflow.visits)
    ]


def _with_passes(rates: Sequence[Fraction], inside: frozenset[int], passes: Fraction) -> list[Fraction]:
    return [rate * passes if j in inside else rate for j, rate in enumerate(rates)]


def _most_passes(
    types: Sequence[TypeWork], rates: Sequence[Fraction], inside: frozenset[int]
) -> tuple[Fraction | None, tuple[tuple[Fraction, ...], ...] | None]:
    """The greatest x and its split; None where x may grow without end, the loop taking up nothing somewhere."""
    if all(any(each.serves(j) and not any(each.needs(j)) for each in types) for j in inside):
        return None, None
    cells = [(j, m) for j in range(len(rates)) for m, each in enumerate(types) if each.serves(j)]
    size, rows = len(cells), resource_rows(types, cells, rates)
    # Of stages within, cells are shares of x; of the others, shares of 1. x is scaled by what the loop alone can bear.
    unit = 1 / load_scale(types, [rate if j in inside else _ZERO for j, rate in enumerate(rates)])
    scaled = [
        (m, {i: value * (unit if cells[i][0] in inside else 1) / types[m].count for i, value in row.items()})
        for m, row in rows
    ]
    equal = [
        {
            **{i: _ONE for i, cell in enumerate(cells) if cell[0] == j},
            **({size: -_ONE} if j in inside else {}),
        }
        for j in range(len(rates))
    ]
    found = Program(
        cost=[*[_ZERO] * size, -_ONE],
        equal=equal,
        equal_right=[_ZERO if j in inside else _ONE for j in range(len(rates))],
        below=[row for _, row in scaled],
        below_right=[_ONE] * len(scaled),
    ).solve()
    most = found.x[size]
    values = [value / most if j in inside else value for (j, _), value in zip(cells, found.x, strict=False)]
    return most * unit, spread(cells, values, len(rates), len(types))


def _passes_borne(types: Sequence[TypeWork], rates: Sequence[Fraction], inside: frozenset[int]) -> Fraction | None:
    """The greatest x; None where there is none, or no end of it."""
    return None if plan(types, rates).load >= 1 else _most_passes(types, rates, inside)[0]


def _grid(critical: Fraction | None, probability: Fraction) -> list[Fraction]:
    """Probabilities for the curve, with 0, that of the workflow and the critical one."""
    last = max(critical or _ZERO, probability)
    end = last + (1 - last) / 8
    parts = [Fraction(i, _POINTS) for i in range(_POINTS + 1)]
    even = [end * part for part in parts]
    passes = [1 - 1 / (1 + part * end / (1 - end)) for part in parts]  # evenly many, to where the curve is steep
    return sorted({*even, *passes, probability, *([] if critical is None else [critical])})
