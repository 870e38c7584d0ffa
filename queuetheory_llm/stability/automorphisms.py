"""Symmetries of a fluid model: relabellings of classes and stations that change nothing."""

from __future__ import annotations

from itertools import islice
from typing import Any

from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.fluid_rates import service_orders

#: Symmetries that are looked for, at most; a path loses nothing but shorter cycles by missing some.
MOST_SYMMETRIES = 48

#: pi as a tuple: class k becomes class pi[k].
Relabelling = tuple[int, ...]


def automorphisms(model: FluidModel, *, most: int = MOST_SYMMETRIES) -> tuple[Relabelling, ...]:
    """Permutations of the classes that keep rates, service times, routes, stations and the order of service.

    Parameters
    ----------
    model : FluidModel
        Every station has a priority order or one class.
    most : int
        Cap on their number.

    Returns
    -------
    tuple of tuple of int
        The identity first.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> automorphisms(load_network("rybko-stolyar").fluid_model)
    ((0, 1, 2, 3), (2, 3, 0, 1))
    """
    size = len(model.classes)
    identity = tuple(range(size))
    colours = _colours(model)
    if len(set(colours)) == size:
        return (identity,)
    found = {identity: None}
    for match in islice(_isomorphisms(model, colours), most):
        found[tuple(match[k] for k in range(size))] = None
    return tuple(found)


def _colours(model: FluidModel) -> list[tuple[Any, ...]]:
    """What a relabelling keeps of a class by itself: its rate, its service, its place in the order of its station."""
    places = {k: (place, len(order)) for order in service_orders(model) for place, k in enumerate(order)}
    return [
        (rate, mean, *places[k], len(model.routing[k]), len(model.predecessors[k]))
        for k, (rate, mean) in enumerate(zip(model.arrival, model.service, strict=True))
    ]


def _isomorphisms(model: FluidModel, colours: list[tuple[Any, ...]]) -> Any:
    import networkx

    graph = networkx.DiGraph()
    for s in range(len(model.stations)):
        graph.add_node(("station", s), colour=None)
    for k, colour in enumerate(colours):
        graph.add_node(k, colour=colour)
        graph.add_edge(k, ("station", model.station[k]), weight=None)
        for to, p in model.routing[k]:
            graph.add_edge(k, to, weight=p)
    same = networkx.algorithms.isomorphism
    matcher = same.DiGraphMatcher(
        graph, graph, same.categorical_node_match("colour", None), same.categorical_edge_match("weight", None)
    )
    return matcher.isomorphisms_iter()
