"""Traffic equations lambda = alpha + P' lambda and visits w = 1 + P w of a network, exactly, whatever the cycles.

The classes are taken apart into strongly connected components. Between components there is only substitution; within
one, classes are eliminated one by one, the one with the fewest products of neighbours first, in rational arithmetic.
A network that tasks do not leave has no such rates: the spectral radius of P is then at least 1, which row sums show
(Perron-Frobenius) or, where rows above and below 1 are mixed, a pivot that is not positive (nonsingular M-matrices;
Berman, Plemmons 1994, chapter 6). It is refused, and a cycle is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import attrs

from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.errors import AssumptionViolated, InvalidModel
from queuetheory_llm.exact.elimination import NotPositive, TooMuchWork, Work, eliminate, solve, within
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.exact.words import arrows
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.stability.arguments import to_fluid_model
from queuetheory_llm.stability.traffic_enclosure import enclose

if TYPE_CHECKING:
    from networkx import DiGraph

#: Products of fractions, each counted by the bits it multiplies, before exact elimination is given up: half a second.
#: Sparse routing with short cycles needs a small part of it even with 10 000 classes. Beyond it are components that
#: fill up (random routes both ways among thousands of classes) and fractions of very many digits.
MOST_WORK = 2**18
#: Networks of fewer classes may take proportionally more, so that any of 60 classes has exact rates and certificates.
SMALL = 1000
_NAMED = 4  # classes of a longer list that a message names


@attrs.frozen(kw_only=True)
class Traffic:
    """Rates of all K classes and loads of all S stations.

    Attributes
    ----------
    rates : tuple of Fraction, length K
        lambda_k, tasks of class k per second; where not exact, a float solution between the bounds.
    low, high : tuple of Fraction, length K
        Proved bounds of the rates; both equal ``rates`` where exact.
    visits : tuple of Fraction, length K
        w = 1 + P w, the mean number of services that a task of class k and all that follow from it take, its own
        included; where not exact, numbers with w >= 1 + P w, which bound it from above. Either way they prove that
        the spectral radius of P is below 1.
    class_loads : tuple of Fraction, length K
        lambda_k m_k, seconds of its station that a class needs each second.
    loads, loads_low, loads_high : tuple of Fraction, length S
        rho_s, the sum of the loads of the classes at s.
    exact : bool
        Whether the equations were solved exactly.
    """

    rates: tuple[Fraction, ...]
    low: tuple[Fraction, ...]
    high: tuple[Fraction, ...]
    visits: tuple[Fraction, ...]
    class_loads: tuple[Fraction, ...]
    loads: tuple[Fraction, ...]
    loads_low: tuple[Fraction, ...]
    loads_high: tuple[Fraction, ...]
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values: exact numbers as integers or ``"p/q"``."""
        columns = {key: value for key, value in attrs.asdict(self, recurse=False).items() if key != "exact"}
        return {**{key: [plain(each) for each in column] for key, column in columns.items()}, "exact": self.exact}


def traffic(model: FluidModel | Network) -> Traffic:
    """Solve the traffic equations.

    Parameters
    ----------
    model : FluidModel or Network
        K classes; O(K + routes) without cycles.

    Returns
    -------
    Traffic

    Raises
    ------
    InvalidInput
        If it is neither.
    InvalidModel
        One line for each set of classes that tasks never leave, or in which they multiply without end.
    NotConverged
        If the network is too large for exact elimination and too near such a set for floats.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> [str(rate) for rate in traffic(load_network("jackson-loop").fluid_model).rates]
    ['15/14', '10/7', '10/7']
    """
    model = to_fluid_model(model)
    groups = _class_components(model)
    faults = list(_endless(model, groups))
    if faults:
        raise InvalidModel(faults)
    work = _work_for(model)
    try:
        rates = solve(model.predecessors, model.arrival, groups, work)
        visits = solve(model.routing, [Fraction(1)] * len(model.classes), groups[::-1], work)
        loads = _loads(model, rates, work)
    except (TooMuchWork, NotPositive):
        # A component whose check above was given up for want of work may still multiply tasks: then a pivot is not
        # positive here. The enclosure proves that it does not, or refuses the network.
        return _enclosed(model)
    return Traffic(
        rates=rates,
        low=rates,
        high=rates,
        visits=visits,
        class_loads=_class_loads(model, rates),
        loads=loads,
        loads_low=loads,
        loads_high=loads,
        exact=True,
    )


def require_open(model: FluidModel) -> None:
    """Refuse a network that tasks do not leave, as `traffic` does, without solving more than that needs.

    Raises
    ------
    InvalidModel
        One line for each set of classes that tasks never leave, or in which they multiply without end.
    """
    faults = list(_endless(model, _class_components(model)))
    if faults:
        raise InvalidModel(faults)


def hops(model: FluidModel) -> Iterator[tuple[int, int]]:
    """(class, next class), joins included."""
    for k, row in enumerate(model.routing):
        yield from ((k, to) for to, _ in row)
    for siblings, to in model.joins:
        yield from ((k, to) for k in siblings)


def components(model: FluidModel) -> tuple[tuple[int, ...], ...]:
    """Stations in groups that routes connect both ways, in an order in which no route leads back.

    A join counts as a route from each of its siblings to its target. Groups of one station are the usual case: a
    network all of whose groups are such is feed-forward, up to retries at the same station.
    """
    return _groups(len(model.stations), ((model.station[k], model.station[to]) for k, to in hops(model)))


def cyclic_joins(model: FluidModel) -> tuple[int, ...]:
    """Joins that lie inside a cycle, of classes or of several stations, by their number in ``model.joins``.

    What such a join emits depends on itself, so the fluid equations, which count a sibling as 1/n of a task, do not
    describe it.
    """
    classes = _number_of_group(_class_components(model))
    stations = _number_of_group(components(model))
    return tuple(
        number
        for number, (siblings, to) in enumerate(model.joins)
        if any(
            classes[k] == classes[to]
            or (model.station[k] != model.station[to] and stations[model.station[k]] == stations[model.station[to]])
            for k in siblings
        )
    )


def load_proof(model: FluidModel, solved: Traffic) -> dict[str, Any]:
    """The numbers that prove the loads of a network: rates, visits, loads and the order of its stations.

    Raises
    ------
    AssumptionViolated
        If the traffic equations were not solved exactly: there are no exact numbers to check then.
    """
    if not solved.exact:
        raise AssumptionViolated(
            "load certificate: the traffic equations were enclosed, not solved; a proof needs exact rates"
        )
    return {
        "rates": [plain(rate) for rate in solved.rates],
        "visits": [plain(count) for count in solved.visits],
        "loads": [plain(load) for load in solved.loads],
        "components": [[model.stations[s] for s in group] for group in components(model)],
    }


def load_certificate(model: FluidModel, solved: Traffic) -> Certificate:
    """The certificate of the loads.

    Raises
    ------
    AssumptionViolated
        If the traffic equations were not solved exactly.
    CertificateRejected
        If the loads alone decide nothing.
    """
    return certify("load", model.to_dict(), load_proof(model, solved))


def _enclosed(model: FluidModel) -> Traffic:
    found, free = enclose(model), Work(math.inf)
    low, high = _loads(model, found.low, free), _loads(model, found.high, free)
    return Traffic(
        rates=found.rates,
        low=found.low,
        high=found.high,
        visits=found.visits,
        class_loads=_class_loads(model, found.rates),
        loads=tuple((a + b) / 2 for a, b in zip(low, high, strict=True)),
        loads_low=low,
        loads_high=high,
        exact=False,
    )


def _loads(model: FluidModel, rates: Sequence[Fraction], work: Work) -> tuple[Fraction, ...]:
    return tuple(
        work.sum(Fraction(0), ((rates[k], model.service[k]) for k in model.at(s))) for s in range(len(model.stations))
    )


def _class_loads(model: FluidModel, rates: Sequence[Fraction]) -> tuple[Fraction, ...]:
    return tuple(rate * mean for rate, mean in zip(rates, model.service, strict=True))


def _class_components(model: FluidModel) -> tuple[tuple[int, ...], ...]:
    return _groups(len(model.classes), hops(model))


def _groups(count: int, hops: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Strongly connected components of a graph on 0..count-1, sources first, otherwise by their smallest member."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(hops)
    found = [tuple(sorted(group)) for group in nx.strongly_connected_components(graph)]
    condensed = nx.condensation(graph, found)
    return tuple(found[each] for each in nx.lexicographical_topological_sort(condensed, key=lambda each: found[each]))


def _number_of_group(groups: Sequence[Sequence[int]]) -> dict[int, int]:
    return {member: number for number, group in enumerate(groups) for member in group}


def _work_for(model: FluidModel) -> Work:
    """More for small networks; one without classes has nothing to solve."""
    count = max(1, len(model.classes))
    return Work(MOST_WORK * max(SMALL, count) // count)


def _endless(model: FluidModel, groups: Iterable[tuple[int, ...]]) -> Iterator[str]:
    """One line for each component of classes whose routing has spectral radius 1 or more."""
    for group in groups:
        inside = set(group)
        rows = {k: within(model.routing[k], inside) for k in group}
        kept = {k: sum(row.values(), Fraction(0)) for k, row in rows.items()}
        if any(kept.values()) and not _leaves(model, rows, kept):
            yield _endless_text(model, rows, kept)


def _leaves(model: FluidModel, rows: dict[int, dict[int, Fraction]], kept: dict[int, Fraction]) -> bool:
    """Whether an irreducible part of the routing has spectral radius below 1; ``kept`` are its row sums."""
    least, most = min(kept.values()), max(kept.values())
    if least >= 1 or most <= 1:
        return least < 1  # the spectral radius is between the row sums, strictly unless all are equal
    try:
        eliminate({k: dict(row) for k, row in rows.items()}, [Fraction(0)] * len(model.classes), _work_for(model))
    except NotPositive:
        return False
    except TooMuchWork:
        return True  # left to the enclosure, which either proves it or refuses
    return True


def _endless_text(model: FluidModel, rows: dict[int, dict[int, Fraction]], kept: dict[int, Fraction]) -> str:
    fork = max(kept, key=lambda k: kept[k])
    cycle = _cycle_through(rows, fork)
    around = arrows([model.classes[k] for k in cycle])
    if kept[fork] > 1:
        return (
            f"route: the fork after {model.classes[fork]!r} is in the cycle {around}, and its "
            "branches send back one task or more for each that forks, so that tasks never run out; let fewer come back"
        )
    if len(cycle) == len(rows):
        return f"route: no task ever leaves the cycle {around}; let a part of its tasks out"
    names = [model.classes[k] for k in rows]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"route: no task ever leaves the classes {', '.join(names[:_NAMED])}{more}, which lie on cycles such as "
        f"{around}; let a part of their tasks out"
    )


def _cycle_through(rows: dict[int, dict[int, Fraction]], start: int) -> list[int]:
    """A shortest cycle through a class of a strongly connected component, each class once, ``start`` first."""
    import networkx as nx

    graph: DiGraph[int] = nx.DiGraph((k, to) for k, row in rows.items() for to in row)
    back = nx.single_target_shortest_path(graph, start)
    return [start, *min((back[to] for to in rows[start]), key=len)[:-1]]
