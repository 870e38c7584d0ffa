"""Proofs about a cluster of unlike instances that calls are dispatched to: a split that carries them, or prices.

The model has, for each type of instances, their number and what of them can run out: of each such resource an instance
gives one unit a second, and a call of stage j needs w_j of it on average (null where the type does not serve it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.certificates.conditions import Conclusion, require, same
from queuetheory_llm.exact import reading as read
from queuetheory_llm.exact.numbers import Matrix, Vector
from queuetheory_llm.exact.reading import text, total
from queuetheory_llm.exact.words import name_fault
from queuetheory_llm.verdict import Verdict

#: Whom the bound of `ClusterCapacity` binds; rules that know lengths may do better (see `split`).
EVERY_RULE = "every dispatch rule that sends a call by its stage and by what has been, not by its own length"
#: The same bound of a capacity, in short.
NO_RULE = "no dispatch rule that knows calls by their stage carries more"


@attrs.frozen(kw_only=True)
class _Type:
    """Instances of one type; ``work`` has a row a resource, an entry a stage."""

    name: str
    count: int
    serves: Sequence[bool]
    work: Matrix


def split(model: Any, proof: Any) -> Conclusion:
    """Calls of stage j come at rate_j; f_jm of them a second are sent to type m, or y_r is the price of resource r.

    *Split.* Sent at random, f_jm/rate_j to the instances of type m in equal parts, every resource of every instance is
    needed for less than a unit a second: the bound of the prices excludes no such rates. Whether the cluster is stable
    also depends on how the calls of a query follow one another, so this is no proof of stability.

    *Prices.* Let y >= 0 with sum_m count_m sum_r y_r = 1, and weigh what calls need of the resources with y: a call of
    stage j that is sent to type m needs sum_r y_r w_jr on average, so at least v_j, the least of these over the types.
    The lengths of different calls are independent, those of a stage of one law, and the work that a query still needs
    has a finite mean given what it has done. (A replayed log breaks the first: its queries have lengths that go
    together.) The calls that a rule sends from stage j to type m, chosen without knowing their lengths, are as good as
    any others (Doob: a selection that does not look ahead leaves independent draws what they are), so by the law of
    large numbers
    what has been sent by time t needs at least sum_j v_j n_j(t) - o(t), n_j the calls sent. All instances together give
    at most t. The queries that have come by t make sum_j rate_j t + o(t) calls, sent or still to be sent. So
    what the queries present still need, v_j for each call not yet sent, is at least (sum_j rate_j v_j - 1) t - o(t):
    it grows linearly, whatever the orders of service and whether or not instances idle.
    """
    model = read.keys("model", model, "stages", "rates", "instances")
    stages = [_named("stages", name) for name in read.entries("stages", model["stages"])]
    rates = read.vector("rates", model["rates"], len(stages))
    require(min(rates, default=Fraction(0)) > 0, "model: no stage, or a rate that is not positive")
    types = [_type(table, len(stages)) for table in read.entries("instances", model["instances"])]
    for j, name in enumerate(stages):
        require(any(each.serves[j] for each in types), f"model: no instance serves {name}")
    proof = read.keys("proof", proof, "split", "loads", "prices", "bound")
    sent = proof["prices"] is None
    empty, given = (("prices", "bound"), ("split", "loads")) if sent else (("split", "loads"), ("prices", "bound"))
    fits = all(proof[key] is None for key in empty) and all(proof[key] is not None for key in given)
    require(fits, "proof: give split and loads, or prices and bound")
    return _sent(types, stages, rates, proof) if sent else _priced(types, rates, proof)


def _sent(types: Sequence[_Type], stages: Sequence[str], rates: Vector, proof: Any) -> Conclusion:
    flows = read.matrix("split", proof["split"], len(stages), len(types))
    require(min(map(min, flows)) >= 0, "split: an entry is negative")
    same("split", [total(row) for row in flows], rates, stages)
    for name, row, j in zip(stages, flows, range(len(stages)), strict=True):
        stray = [each.name for each, flow in zip(types, row, strict=True) if flow and not each.serves[j]]
        require(not stray, f"split: {name} is not served at {', '.join(stray)}")
    listed, most = read.entries("loads", proof["loads"], len(types)), Fraction(0)
    for m, each in enumerate(types):
        loads = [total(row[m] * w for row, w in zip(flows, work, strict=True)) / each.count for work in each.work]
        same("loads", read.vector("loads", listed[m], len(loads)), loads, [each.name] * len(loads))
        most = max(most, *loads)
    require(most < 1, f"loads: {text(most)} is not below 1")
    what = f"a static split loads no instance above {text(most)}"
    return Verdict.UNDECIDED, f"{what}: no bound excludes these rates (no proof of stability)"


def _priced(types: Sequence[_Type], rates: Vector, proof: Any) -> Conclusion:
    listed = read.entries("prices", proof["prices"], len(types))
    prices = [read.vector("prices", row, len(each.work)) for row, each in zip(listed, types, strict=True)]
    require(all(price >= 0 for row in prices for price in row), "prices: one is negative")
    given = total(each.count * total(row) for each, row in zip(types, prices, strict=True))
    require(given == 1, f"prices: those of all instances sum to {text(given)}, not to 1")
    least = [min(_worth(types, prices, j)) for j in range(len(rates))]
    needed = total(rate * worth for rate, worth in zip(rates, least, strict=True))
    same("bound", [read.number("bound", proof["bound"])], [needed], ["the weighed work"])
    require(needed > 1, f"bound: {text(needed)} is not above 1")
    what = f"weighed by its prices, work comes at {text(needed)} or more a second, whatever is sent where"
    return Verdict.UNSTABLE, f"{what}, and all instances do 1: unstable under {EVERY_RULE}"


def _worth(types: Sequence[_Type], prices: Matrix, j: int) -> Iterable[Fraction]:
    """What a call of stage j needs at each type that serves it."""
    for each, row in zip(types, prices, strict=True):
        if each.serves[j]:
            yield total(price * work[j] for price, work in zip(row, each.work, strict=True))


def _type(table: Any, stages: int) -> _Type:
    table = read.keys("instances", table, "name", "count", "work")
    name, count = _named("instances", table["name"]), table["count"]
    require(type(count) is int and count > 0, f"model: the number of {name} is no whole number from 1 on")
    rows = [read.entries("work", row, stages) for row in read.entries("work", table["work"])]
    require(bool(rows), f"model: {name} has no resource")
    serves = [value is not None for value in rows[0]]
    fits = all([value is not None for value in row] == serves for row in rows)
    require(fits, f"model: the resources of {name} do not serve the same stages")
    work = [read.vector("work", [0 if value is None else value for value in row], stages) for row in rows]
    require(all(value >= 0 for row in work for value in row), f"model: some work at {name} is negative")
    return _Type(name=name, count=count, serves=serves, work=work)


def _named(where: str, name: Any) -> str:
    fault = name_fault(name)
    require(fault is None, f"model: {where}: {fault}")
    return str(name)
