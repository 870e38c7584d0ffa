"""How often a request can be overtaken: the K of K-FCFS, on explored states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from queuetheory_llm.schedulers.policy import Batch, Scheduler
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.stability.exploration import Witness, followers, grids, visits

if TYPE_CHECKING:
    from networkx import DiGraph


def overtaken(state: State, batch: Batch) -> set[int]:
    """Positions that a later request of the same phase overtakes in this batch."""
    prompts = [position for position, (prefill, _) in enumerate(state.left) if prefill]
    decodes = [position for position, (prefill, _) in enumerate(state.left) if not prefill]
    found: set[int] = set()
    for served, ready in (({position for position, _ in batch.prefill}, prompts), (set(batch.decode), decodes)):
        latest = max(served, default=-1)
        found |= {position for position in ready if position < latest and position not in served}
    return found


def overtaking_bound(scheduler: Scheduler) -> tuple[int | None, Witness | None]:
    """Most overtakings one request can suffer, None with a witness when there is no bound.

    A node is a state with one request marked; an edge weighs 1 when the batch overtakes it. A cycle with a positive
    edge overtakes for ever, since every request brings finitely many tokens; otherwise the heaviest path is the bound.
    """
    import networkx as nx

    bound = 0
    for b_max, sizes in grids(scheduler):
        graph = nx.DiGraph()
        origin: dict[tuple[State, int], Witness] = {}
        for visit in visits(scheduler, b_max, sizes):
            late = overtaken(visit.state, visit.batch)
            following = list(followers(visit, sizes))
            for marked, after in _survivors(visit.state, visit.batch):
                origin[visit.state, marked] = visit.witness()
                for state in following:
                    graph.add_edge((visit.state, marked), (state, after), weight=int(marked in late))
        condensed, endless = _condensed(graph)
        if endless is not None:
            return None, origin[endless]
        bound = max(bound, nx.dag_longest_path_length(condensed))
    return bound, None


def _condensed(graph: DiGraph) -> tuple[DiGraph, tuple[State, int] | None]:
    """The graph of strong components with its heaviest edges, and a node on a positive cycle if there is one."""
    import networkx as nx

    components = enumerate(nx.strongly_connected_components(graph))
    member = {node: index for index, nodes in components for node in nodes}
    condensed = nx.DiGraph()
    for before, after, weight in graph.edges.data("weight"):
        first, second = member[before], member[after]
        if first == second and weight:
            return condensed, before
        if first != second:
            heavier = max(weight, condensed.get_edge_data(first, second, {"weight": 0})["weight"])
            condensed.add_edge(first, second, weight=heavier)
    return condensed, None


def _survivors(state: State, batch: Batch) -> Iterator[tuple[int, int]]:
    """(position before, position after) of each request that is still unfinished after the batch."""
    given = dict(batch.prefill)
    decoded = set(batch.decode)
    after = 0
    for position, (prefill, decode) in enumerate(state.left):
        if prefill - given.get(position, 0) + decode - (position in decoded) > 0:
            yield position, after
            after += 1
