"""Capacity of a cluster of unlike instances for a workflow: the best static split, and why no rule does better.

Calls of stage j come at rate_j = (queries/s) * visits_j, and f_jm of them a second are sent to instance type m. The
static planning problem (Harrison, Lopez 1999) is

    least rho:  sum_m f_jm = rate_j,   sum_j f_jm w_jr <= rho * count_m  for each resource r of each type m, f >= 0,

w_jr the work of a call at a resource (`call_work`). Its dual has a price y_r >= 0 for a unit of each resource, sum_m
count_m sum_r y_r = 1, and the worth v_j = min_m sum_r y_r w_jr of a call; at the optimum rho = sum_j rate_j v_j. HiGHS
finds what binds; split and prices are then computed exactly and their equality is checked.

*Outside*, rho > 1: the cluster is unstable in every order of service and under every dispatch rule that sends a call by
its stage and by what has been, not by its own length (`certificates.split_proofs.EVERY_RULE`; the proof is there, with
what it asks of the lengths). Where the works
of a call at the types are proportional whatever its lengths (classical servers; engines without k_max) it holds of
rules that know the lengths too; elsewhere one that knows them may send long prompts where prompts are cheap and do
better.

*Inside*, rho < 1: sent at random by the split f_jm/rate_j, no instance is overloaded that has batches as good as the
plan counts on: full ones, F, are what engines have, and `lp_shares` is the split for them. (An engine with k_max counts
with its outer region, which no rule need attain: there rho < 1 excludes no instability.) Whether the queues are then
stable is a question about a network, for queries come back: `model.workflow_network` makes it, `verify_stability`
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import attrs

from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.errors import AssumptionViolated
from queuetheory_llm.exact.linear import Equation, Singular, solve_system
from queuetheory_llm.exact.numbers import exact_text, plain
from queuetheory_llm.exact.program import Program
from queuetheory_llm.model.cluster import WorkflowSystem, require_cluster
from queuetheory_llm.result import Result, html_table
from queuetheory_llm.stability.call_work import TypeWork, call_work

_ZERO, _ONE = Fraction(0), Fraction(1)
#: Unlike types for which the program with one more instance is solved; beyond, it takes minutes.
MOST_SOLVED = 100
N = TypeVar("N", Fraction, float)


@attrs.frozen(kw_only=True)
class Planned:
    """The optimum of the static planning problem.

    Attributes
    ----------
    load : Fraction
        rho.
    shares : tuple of tuple of Fraction
        f_jm/rate_j; J rows that sum to 1, an entry a type.
    prices : tuple of tuple of Fraction
        Optimal y_r, a row a type, an entry a resource; all 0 where rho is. There may be others, see `price_ranges`.
    worth : tuple of Fraction, length J
        v_j.
    """

    load: Fraction
    shares: tuple[tuple[Fraction, ...], ...]
    prices: tuple[tuple[Fraction, ...], ...]
    worth: tuple[Fraction, ...]


def plan(types: Sequence[TypeWork], rates: Sequence[Fraction]) -> Planned:
    """Solve the static planning problem exactly.

    Parameters
    ----------
    types : sequence of TypeWork
        Each stage is served by one at least.
    rates : sequence of Fraction, length J
        Calls per second, all positive.

    Raises
    ------
    NotConverged
        If what binds cannot be told from the floats of HiGHS.
    """
    cells = [(j, m) for j in range(len(rates)) for m, each in enumerate(types) if each.serves(j)]
    unit = load_scale(types, rates)
    if unit == 0:  # every call has a type at which it takes up nothing
        return _free(types, len(rates))
    size, rows = len(cells), resource_rows(types, cells, [rate / unit for rate in rates])
    found = Program(
        cost=[*[_ZERO] * size, _ONE],
        equal=[{i: _ONE for i, cell in enumerate(cells) if cell[0] == j} for j in range(len(rates))],
        equal_right=[_ONE] * len(rates),
        below=[{**row, size: -Fraction(types[m].count)} for m, row in rows],
        below_right=[_ZERO] * len(rows),
    ).solve()
    return Planned(
        load=found.x[size] * unit,
        shares=spread(cells, found.x, len(rates), len(types)),
        prices=_by_type(types, found.below_prices),
        worth=tuple(price * unit / rate for price, rate in zip(found.equal_prices, rates, strict=True)),
    )


def prices_are_unique(types: Sequence[TypeWork], rates: Sequence[Fraction], planned: Planned) -> bool:
    """Whether one equation after another fixes the optimal prices; if not, they may be unique all the same.

    By complementary slackness with one optimal split all optimal prices are 0 where a resource is not full, and make
    v_j = sum_r y_r w_jr where a call of stage j is sent.
    """
    loads = [
        [sum((rate * row[m] * work for rate, row, work in zip(rates, planned.shares, each.work, strict=True) if work),
             _ZERO) for each in kind.resources]
        for m, kind in enumerate(types)
    ]  # fmt: skip
    full = [
        (m, r) for m, kind in enumerate(types) for r, load in enumerate(loads[m]) if load == planned.load * kind.count
    ]
    worth = len(full)  # unknowns: y of the full resources, then v of each stage
    equations: list[dict[int, Fraction]] = [{i: Fraction(types[m].count) for i, (m, _) in enumerate(full)}]
    for j, row in enumerate(planned.shares):
        for m, share in enumerate(row):
            if share:
                works = {i: types[m].resources[r].work[j] or _ZERO for i, (at, r) in enumerate(full) if at == m}
                equations.append({**works, worth + j: -_ONE})
    right = [_ONE, *[_ZERO] * (len(equations) - 1)]
    return not isinstance(solve_system(equations, right, worth + len(rates)), Singular)


def price_ranges(
    types: Sequence[TypeWork], rates: Sequence[Fraction], load: Fraction
) -> tuple[tuple[Fraction, Fraction], ...]:
    """Least and largest price of an instance of each type, sum_r y_r, over all the optimal prices.

    Prices are optimal where they are feasible and sum_j rate_j v_j is the load of the optimum, ``load``.
    """
    unit = load_scale(types, rates)
    cells = [(j, m) for j in range(len(rates)) for m, each in enumerate(types) if each.serves(j)]
    resources = resource_rows(types, cells, [rate / unit for rate in rates])
    size, stages = len(resources), len(rates)  # variables: y of each resource, then rate_j v_j/unit of each stage
    below: list[dict[int, Fraction]] = [{size + j: _ONE} for j, _ in cells]
    for r, (_, row) in enumerate(resources):
        for i, work in row.items():
            below[i][r] = -work

    def least(m: int, sign: int) -> Fraction:
        found = Program(
            cost=[*[Fraction(sign * (at == m)) for at, _ in resources], *[_ZERO] * stages],
            equal=[
                {r: Fraction(types[at].count) for r, (at, _) in enumerate(resources)},
                {size + j: _ONE for j in range(stages)},
            ],
            equal_right=[_ONE, load / unit],
            below=below,
            below_right=[_ZERO] * len(below),
        ).solve()
        return sum((found.x[r] for r, (at, _) in enumerate(resources) if at == m), _ZERO)

    firsts = {each.resources: m for m, each in enumerate(types)}  # types of equal works have equal prices
    found = {work: (least(m, 1), least(m, -1)) for work, m in firsts.items()}
    return tuple(found[each.resources] for each in types)


def resource_rows(
    types: Sequence[TypeWork], cells: Sequence[tuple[int, int]], rates: Sequence[Fraction]
) -> list[tuple[int, Equation]]:
    """(type, units a second of it that each cell's whole stage would need), a row a resource."""
    return [
        (
            m,
            {i: rates[j] * work for i, (j, at) in enumerate(cells) if at == m and (work := resource.work[j])},
        )
        for m, each in enumerate(types)
        for resource in each.resources
    ]


def spread(
    cells: Sequence[tuple[int, int]], values: Sequence[Fraction], stages: int, types: int
) -> tuple[tuple[Fraction, ...], ...]:
    """The values of cells (stage, type) as a matrix."""
    found = [[_ZERO] * types for _ in range(stages)]
    for (j, m), value in zip(cells, values, strict=False):
        found[j][m] = value
    return tuple(map(tuple, found))


def load_scale(types: Sequence[TypeWork], rates: Sequence[Fraction]) -> Fraction:
    """A load of the size of the optimum, for the scale of a program: each call where it takes up least."""
    least = (rate * min(max(each.needs(j)) for each in types if each.serves(j)) for j, rate in enumerate(rates))
    return sum(least, _ZERO) / sum(each.count for each in types)


def _free(types: Sequence[TypeWork], stages: int) -> Planned:
    first = [
        next(m for m, each in enumerate(types) if each.serves(j) and not any(each.needs(j))) for j in range(stages)
    ]
    return Planned(
        load=_ZERO,
        shares=tuple(tuple(Fraction(m == at) for m in range(len(types))) for at in first),
        prices=tuple((_ZERO,) * len(each.resources) for each in types),
        worth=(_ZERO,) * stages,
    )


def _by_type(types: Sequence[TypeWork], below: Sequence[Fraction]) -> tuple[tuple[Fraction, ...], ...]:
    """Prices of the rows, no longer negative, type by type."""
    found, start = [], 0
    for each in types:
        found.append(tuple(-price for price in below[start : start + len(each.resources)]))
        start += len(each.resources)
    return tuple(found)


@attrs.frozen(kw_only=True)
class ClusterCapacity(Result):
    """How much of a workflow a cluster can carry, what binds, and what one more instance would add.

    Attributes
    ----------
    system : WorkflowSystem
    filling : bool
        Whether batch engines count with their full batches (F) instead of with their best (C).
    types : tuple of TypeWork
    planned : Planned
        At one query a second: its load is 1/`rate_limit`.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.cluster_capacity:draw_cluster_capacity"
    system: WorkflowSystem
    filling: bool
    types: tuple[TypeWork, ...]
    planned: Planned

    @property
    def rate_limit(self) -> Fraction | None:
        """Largest queries/s with a load of 1 or less; None: there is no limit, no call takes up anything.

        Above it no dispatch rule is stable that does not know lengths; what a split carries is `carried`.
        """
        return 1 / self.planned.load if self.planned.load else None

    @property
    def load(self) -> Fraction:
        """rho at the rate of the system."""
        return self.system.arrivals.rate * self.planned.load

    @property
    def error(self) -> Fraction:
        """Relative error of `load` and `rate_limit` that the sums of prompt seconds leave; 0 where all is exact."""
        return max(each.error for each in self.types)

    @cached_property
    def price_ranges(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """Least and largest price of an instance of each type over all optimal prices; equal where they are unique.

        What an instance of the type more adds to `rate_limit` is at most limit * least, what one less takes away at
        least limit * largest.
        """
        if not self.planned.load:
            return ((_ZERO, _ZERO),) * len(self.types)
        visits = self.system.workflow.visits
        if prices_are_unique(self.types, visits, self.planned):
            return tuple((sum(row, _ZERO),) * 2 for row in self.planned.prices)
        return price_ranges(self.types, visits, self.planned.load)

    @property
    def binding(self) -> tuple[str, ...]:
        """Types that are full in every optimal split at the limit: fewer of them would lower it.

        Those are the types that have a price in some optimal prices (strict complementarity). More of one of them need
        not help, where others bind as well and are as full.
        """
        return tuple(each.name for each, (_, most) in zip(self.types, self.price_ranges, strict=True) if most)

    @cached_property
    def one_more(self) -> tuple[Fraction | None, ...]:
        """What one more instance of each type adds to `rate_limit`, queries/s, solved anew.

        Nothing where the least price is 0, see `price_ranges`. None: there is no limit, or more than `MOST_SOLVED`
        unlike types have a price, which are not solved; then `derivative` is the most that each can add.
        """
        works = [each.resources for each in self.types]
        priced = {work: m for m, work in enumerate(works) if self.price_ranges[m][0]}
        if not self.planned.load or len(priced) > MOST_SOLVED:
            return (None,) * len(self.types)
        added = {work: self._with_one_more(m) - 1 / self.planned.load for work, m in priced.items()}
        return tuple(added.get(work, _ZERO) for work in works)

    def _with_one_more(self, m: int) -> Fraction:
        """`rate_limit` with another instance of a type."""
        more = attrs.evolve(self.types[m], count=self.types[m].count + 1)
        return 1 / plan([*self.types[:m], more, *self.types[m + 1 :]], self.system.workflow.visits).load

    @cached_property
    def carried(self) -> Fraction | None:
        """Queries/s up to which the best static split keeps every load below 1 where engines fill their batches.

        `rate_limit` where full batches are the best ones; None where no call takes up anything.
        """
        return self.rate_limit if self.filling else cluster_capacity(self.system, filling=True).rate_limit

    @cached_property
    def derivative(self) -> tuple[Fraction, ...]:
        """What a small part of one more instance of each type adds to `rate_limit`, per instance: limit * least price.

        The limit is concave in the numbers of instances, and its slope to the right is that of the least of the optimal
        prices.
        """
        limit = self.rate_limit or _ZERO
        return tuple(limit * least for least, _ in self.price_ranges)

    @cached_property
    def shares(self) -> tuple[tuple[Fraction, ...], ...]:
        """The split over single instances: J rows that sum to 1, an entry an instance; copies get equal parts."""
        return unit_shares(self.system, self.planned.shares)

    @cached_property
    def split(self) -> tuple[tuple[Fraction, ...], ...]:
        """f_jm at the rate of the system: calls/s of each stage sent to each type, shape (J, types)."""
        return tuple(
            tuple(share * rate for share in row)
            for row, rate in zip(self.planned.shares, stage_rates(self.system), strict=True)
        )

    def certificate(self) -> Certificate:
        """That no rule is stable at the rate of the system, or that a split keeps every load below 1.

        Raises
        ------
        AssumptionViolated
            At a load of exactly 1, where neither is so, or one that cannot be told from 1 within its `error`.
        """
        model = cluster_model(self.system, self.types)
        if abs(self.load - 1) <= self.error * self.load:
            what = f"1 within its error of {float(self.error):.2g}" if self.error else "exactly 1"
            raise AssumptionViolated(f"certificate: the load is {what}, which none covers; change the rate")
        if self.load > 1:
            prices = [[plain(price) for price in row] for row in self.planned.prices]
            proof = {"split": None, "loads": None, "prices": prices, "bound": plain(self.load)}
            return certify("split", model, proof)
        rate, units = self.system.arrivals.rate, self.system.units
        loads = unit_loads(self.system, self.types, self.shares)
        proof = {
            "split": [[plain(flow) for flow in row] for row in self.split],
            "loads": [[plain(rate * load) for load in loads[units.index(m)]] for m in range(len(self.types))],
            "prices": None,
            "bound": None,
        }
        return certify("split", model, proof)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; rates in queries/s."""
        limit = self.rate_limit
        types = [
            {
                "name": each.name,
                "count": each.count,
                "price": float(sum(row, _ZERO)),
                "binding": each.name in self.binding,
                "one_more": None if more is None else float(more),
                "derivative": float(derivative),
                "resources": [
                    {"name": resource.name, "price": float(price)}
                    for resource, price in zip(each.resources, row, strict=True)
                ],
            }
            for each, row, more, derivative in zip(
                self.types, self.planned.prices, self.one_more, self.derivative, strict=True
            )
        ]
        return {
            "title": self.system.name,
            "batches": "full" if self.filling else "best",
            "rate": float(self.system.arrivals.rate),
            "rate_limit": None if limit is None else float(limit),
            "carried": None if self.carried is None else float(self.carried),
            "exact": None if limit is None or self.error else exact_text(limit),
            "relative_error": float(self.error),
            "load": float(self.load),
            "binding": list(self.binding),
            "types": types,
            "stages": [
                {"name": stage.name, "visits": float(visits), "worth": float(worth), "shares": [float(s) for s in row]}
                for stage, visits, worth, row in zip(
                    self.system.workflow.stages,
                    self.system.workflow.visits,
                    self.planned.worth,
                    self.planned.shares,
                    strict=True,
                )
            ],
        }

    def _repr_html_(self) -> str:
        rows = (
            (each["name"], str(each["count"]), f"{each['price']:.4g}", "-" if each["one_more"] is None
             else f"{each['one_more']:.4g}")
            for each in self.to_dict()["types"]
        )  # fmt: skip
        return html_table(("instance type", "count", "price", "one more adds, queries/s"), rows)


def cluster_capacity(system: WorkflowSystem, *, filling: bool = False) -> ClusterCapacity:
    """Largest rate of queries that the static plan has; above it no dispatch rule is stable that does not know lengths.

    With the best batches of engines that is a bound, and with ``k_max`` doubly so: the outer region of such an engine
    may not be attained by any batches. What a static split carries where engines fill their batches is
    `ClusterCapacity.carried`; the two are equal where full batches are the best ones. Lengths of calls are taken as
    independent, as the workflow has them; of queries whose calls depend on one another, as those of a log may do,
    nothing is said.

    Parameters
    ----------
    system : WorkflowSystem
    filling : bool
        Count batch engines with their full batches, F, in the place of their best, C: the plan of `lp_shares`.

    Raises
    ------
    InvalidInput
        If ``system`` is none.
    NotConverged
        If prompt seconds or what binds cannot be computed.

    Examples
    --------
    >>> from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
    >>> from queuetheory_llm.model.cluster import Instance, WorkflowSystem
    >>> from queuetheory_llm.model.workflow import Stage, Workflow
    >>> call = Stage(name="call", work=ExponentialInterval(mean=1))
    >>> servers = [Instance(name="fast", speed=2), Instance(name="slow", speed=1)]
    >>> system = WorkflowSystem(workflow=Workflow(stages=[call]), instances=servers, arrivals=PoissonArrivals(rate=2))
    >>> found = cluster_capacity(system)
    >>> found.rate_limit, found.load, found.one_more
    (Fraction(3, 1), Fraction(2, 3), (Fraction(2, 1), Fraction(1, 1)))
    """
    types = call_work(require_cluster(system), filling=filling)
    return ClusterCapacity(system=system, filling=filling, types=types, planned=plan(types, system.workflow.visits))


def stage_rates(system: WorkflowSystem) -> tuple[Fraction, ...]:
    """Calls of each stage per second."""
    return tuple(system.arrivals.rate * visits for visits in system.workflow.visits)


def unit_shares(system: WorkflowSystem, shares: Sequence[Sequence[Fraction]]) -> tuple[tuple[Fraction, ...], ...]:
    """Shares of types as shares of single instances, the copies of a type equal."""
    counts = [each.count for each in system.instances]
    return tuple(tuple(row[kind] / counts[kind] for kind in system.units) for row in shares)


def lp_shares(system: WorkflowSystem) -> tuple[tuple[Fraction, ...], ...]:
    """The split of the dispatch rule ``random-lp`` over single instances, J rows that sum to 1.

    That of the static plan with the full batches of engines, F: engines fill their batches, so that a split which
    counts on the best ones, C, may overload an engine below the limit that the plan promises.
    """
    return cluster_capacity(system, filling=True).shares


def unit_loads(
    system: WorkflowSystem, types: Sequence[TypeWork], shares: Sequence[Sequence[N]]
) -> list[list[Fraction | N]]:
    """Loads of each single instance at one query a second under a static split: a row an instance, an entry a resource.

    Parameters
    ----------
    system : WorkflowSystem
    types : sequence of TypeWork
        The works of `call_work`; their resources are those of the answer.
    shares : sequence of sequence of numbers, shape (J, M)
        Exact shares give exact loads, floats give floats.
    """
    visits = system.workflow.visits
    return [
        [
            sum((n * work * row[m] for n, work, row in zip(visits, each.work, shares, strict=True) if work), _ZERO)
            for each in types[kind].resources
        ]
        for m, kind in enumerate(system.units)
    ]


def cluster_model(system: WorkflowSystem, types: Sequence[TypeWork]) -> dict[str, Any]:
    """What a certificate about a cluster says of it: rates of the stages, and the work of their calls.

    Works that are sums in floats are taken at their value.
    """
    return {
        "stages": [stage.name for stage in system.workflow.stages],
        "rates": [plain(rate) for rate in stage_rates(system)],
        "instances": [
            {
                "name": each.name,
                "count": each.count,
                "work": [
                    [None if work is None else plain(work) for work in resource.work] for resource in each.resources
                ],
            }
            for each in types
        ],
    }
