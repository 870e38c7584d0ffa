"""Proofs about networks: loads, Lyapunov functions, virtual stations, paths of the fluid model.

A network is stable if every path of its fluid model empties (Dai 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from queuetheory_llm.certificates.conditions import Conclusion, require, same
from queuetheory_llm.exact import reading as read
from queuetheory_llm.exact.numbers import Matrix, Vector
from queuetheory_llm.exact.reading import text, total
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.verdict import Verdict

_ANY = "every policy that never idles and fills its batches"
_PRIORITIES = "these priorities, and any order that never idles at a station without"
_RECURRENT = "(positive Harris recurrent where interarrival times are unbounded and spread out, Dai 1995)"
_TRAFFIC = ("rates", "visits", "loads", "components")


def network_load(model: Any, proof: Any) -> Conclusion:
    """A load above 1: the mean work at a station and on its way there grows; or groups that need no further proof."""
    network, proof = _network(model, joins=True), read.keys("proof", proof, *_TRAFFIC)
    listed = read.entries("components", proof["components"])
    parts = [{"stations": group, "kind": None, "proof": None} for group in listed]
    worst, name = max(zip(_traffic(network, proof)[1], network.stations, strict=True), default=(Fraction(0), ""))
    if worst <= 1:
        return composition(model, {**proof, "components": parts})
    _groups(network, parts)
    return Verdict.UNSTABLE, f"the load of {name} is {text(worst)} > 1: unstable in every order of service"


def composition(model: Any, proof: Any) -> Conclusion:
    """Groups of stations, stable one by one, without a route back: each empties once those before it have emptied."""
    network, proof = _network(model, joins=True), read.keys("proof", proof, *_TRAFFIC)
    listed = read.entries("components", proof["components"])
    parts = [read.keys("components", part, "stations", "kind", "proof") for part in listed]
    (rates, loads), groups = _traffic(network, proof), _groups(network, parts)
    for name, rho in zip(network.stations, loads, strict=True):
        require(rho < 1, f"loads: {text(rho)} of {name} is not below 1")
    under = max({_group(network, rates, *pair) for pair in zip(groups, parts, strict=True)} - {_ANY}, default=_ANY)
    what = "every load is below 1 and every group of stations is stable, fed by those before it"
    return Verdict.STABLE, f"{what}: stable under {under} {_RECURRENT}"


def _group(network: FluidModel, rates: Vector, group: list[int], part: Mapping[str, Any]) -> str:
    """The policies under which a group is stable by itself, its loads being below 1.

    Without a proof: one station, whose work falls while there is some; or one class a station, a generalised Jackson
    network (Dai 1995). A join of siblings within a group is covered at one station only.
    """
    where, kind = f"group {', '.join(part['stations'])}", part["kind"]
    for siblings, to in network.joins if len(group) > 1 or kind is not None else ():
        within = network.station[to] in group and any(network.station[k] in group for k in siblings)
        require(not within, f"{where}: {network.classes[to]} joins within it")
    if kind is None:
        require(part["proof"] is None, f"{where}: has a proof without its kind")
        simple = len(group) == 1 or all(len(network.at(s)) < 2 for s in group)
        require(simple, f"{where}: several stations, one of them with several classes, need a proof")
        return _ANY
    require(kind in ("piecewise-linear", "quadratic"), f"{where}: {kind!r:.40} is no kind of proof for it")
    prove = piecewise_linear if kind == "piecewise-linear" else quadratic
    return prove(network.restricted(group, rates), part["proof"])


def lyapunov(prove: Callable[[FluidModel, Any], str], model: Any, proof: Any) -> Conclusion:
    """V >= 0 that falls along every path, at a bounded rate: it reaches 0, which it never could under an overload."""
    what = f"a Lyapunov function falls along every path of the fluid model under {prove(_network(model), proof)}"
    return Verdict.STABLE, f"{what}: stable {_RECURRENT}"


def piecewise_linear(network: FluidModel, proof: Any) -> str:
    """V(x) = max_p v_p.x, a piece p a station (Dai, Weiss 1996; Down, Meyn 1997) or a class; returns the policies.

    Where piece p attains the maximum and its station (class) is empty, v_p.x <= sum_q W_pq v_q.x <= V(x): all q with
    W_pq > 0 attain it too. W being irreducible, some piece that attains it has fluid of its own; its station works all
    its time, on any class (none below its own), and V falls at least as fast as v_p.x then must.
    """
    proof, classes = read.keys("proof", proof, "pieces", "v", "w", "eps"), range(len(network.classes))
    require(proof["pieces"] in ("stations", "classes"), 'pieces: neither "stations" nor "classes"')
    names, under = (network.stations, _ANY) if proof["pieces"] == "stations" else (network.classes, _PRIORITIES)
    own = busy = [network.at(s) for s in range(len(network.stations))]
    if under != _ANY:
        own, busy = [(k,) for k in classes], [network.not_below(k) for k in classes]
    v, w = read.matrix("v", proof["v"], len(names), len(classes)), _irreducible(proof["w"], names)
    require(all(0 <= entry <= 1 for row in v for entry in row), "v: an entry is outside 0 .. 1")
    for p, shares in enumerate(w):
        for k in set(classes) - set(own[p]):
            bound = total(share * v[q][k] for q, share in enumerate(shares) if share)
            require(v[p][k] <= bound, f"cone: the piece of {names[p]} is above its W-mean at {network.classes[k]}")
    _falls({name: _drift(network, v[p], busy[p]) for p, name in enumerate(names) if busy[p]}, proof["eps"])
    return under


def _irreducible(rows: Any, names: Sequence[str]) -> Matrix:
    """W: rows of sum 1, zero diagonal, every piece leads to every other; empty for one piece, which needs none."""
    w = read.matrix("w", rows, len(names) if len(names) > 1 else 0, len(names))
    for p, row in enumerate(w):
        require(min(row) >= 0 and sum(row) == 1 and row[p] == 0, f"w: {names[p]}: no distribution over the others")
    for start in range(len(w)):
        reached, stack = {start}, [start]
        while stack:
            fresh = {q for q, share in enumerate(w[stack.pop()]) if share} - reached
            reached, stack = reached | fresh, [*stack, *fresh]
        require(len(reached) == len(w), f"w: is reducible: {names[start]} does not lead to every other")
    return w


def quadratic(network: FluidModel, proof: Any) -> str:
    """V(x) = x'Qx, Q copositive (Kumar, Meyn 1995); returns the policies.

    V/2 changes at rate sum_j x_j (Q dx/dt)_j, and where x_j > 0 the station of j works all its time on classes not
    below j: it falls at rate eps sum_j x_j, and sqrt(V) at a rate bounded away from 0.
    """
    q = _copositive(read.keys("proof", proof, "q", "psd", "nonnegative", "eps"), len(network.classes))
    require(all(abs(entry) <= 1 for row in q for entry in row), "q: an entry is outside -1 .. 1")
    _falls({n: _drift(network, q[j], network.not_below(j)) for j, n in enumerate(network.classes)}, proof["eps"])
    return _PRIORITIES


def _copositive(proof: Mapping[str, Any], size: int) -> Matrix:
    """Q >= 0 entrywise; or Q = S + N with S = L diag(d) L' positive semidefinite, N >= 0 entrywise."""
    name, other = ("nonnegative", "q") if proof["q"] is None else ("q", "nonnegative")
    require(proof[other] is None and (name == "q") == (proof["psd"] is None), "q: give q, or psd and nonnegative")
    n = read.matrix(name, proof[name], size, size)
    fine = all(0 <= n[i][j] == n[j][i] for i in range(size) for j in range(size))
    require(fine, f"{name}: an entry is negative or not that across the diagonal")
    if name == "q":
        return n
    psd = read.keys("psd", proof["psd"], "l", "d")
    low, d = read.matrix("psd.l", psd["l"], size, size), read.vector("psd.d", psd["d"], size)
    unit = all(low[i][i] == 1 and not any(low[i][i + 1 :]) for i in range(size))
    require(unit and min(d, default=0) >= 0, "psd: is no L diag(d) L' with L unit lower triangular and d >= 0")
    s = [[total(a * x * b for a, x, b in zip(row, d, col, strict=True) if a and b) for col in low] for row in low]
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(s, n, strict=True)]


def _drift(network: FluidModel, weights: Vector, busy: Sequence[int]) -> Fraction:
    """Largest d/dt of weights.Q while one station works all its time on ``busy``, the others at will."""
    rate = total(w * alpha for w, alpha in zip(weights, network.arrival, strict=True))
    for s in range(len(network.stations)):
        home = s == network.station[busy[0]]
        later = {i: total(p * weights[to] for to, p in network.routing[i]) for i in (busy if home else network.at(s))}
        gains = [(after - weights[i]) / network.service[i] for i, after in later.items()]
        rate += max(gains if home else [Fraction(0), *gains])
    return rate


def _falls(drifts: Mapping[str, Fraction], eps: Any) -> None:
    for name, drift in drifts.items():
        require(drift < 0, f"drift: {text(drift)} in the part of {name} is not negative")
    same("eps", [read.number("eps", eps)], [-max(drifts.values(), default=Fraction(0))], ["the slowest fall"])


def virtual_station(model: Any, proof: Any) -> Conclusion:
    """Classes V at two stations s, t that are never served together, with more than a unit of work a second.

    A task enters V_s = V at s only from V_s, or from a service at t that a task of V_t would have interrupted; and so
    does V_t. So from an empty start V_s and V_t never both hold tasks: two services that would let both in do not end
    at the same instant where those of one side have densities.
    """
    network = _network(model)
    proof = read.keys("proof", proof, "rates", "visits", "stations", "classes", "load")
    rates, station, names = _traffic(network, proof)[0], network.station, network.classes
    pair = read.places("stations", read.entries("stations", proof["stations"], 2), network.stations)
    preemptive = all(network.preemptive[s] and network.priority[s] is not None for s in pair)
    require(preemptive, "stations: one of them has no preemptive priorities")
    chosen, feeders = read.places("classes", proof["classes"], names), set()
    for k in chosen:
        inner = station[k] in pair and network.arrival[k] == 0
        require(inner, f"classes: {names[k]} has arrivals from outside or is served at neither station")
        for source, _ in network.predecessors[k]:
            higher = {i for i in chosen if station[i] == station[source]} <= set(network.not_below(source)) - {source}
            entered = source in chosen if station[source] == station[k] else station[source] in pair and higher
            require(entered, f"classes: {names[k]} can be entered from {names[source]} while both stations serve")
            feeders |= {source} - set(chosen)
    apart = any(all(network.density[k] for k in feeders if station[k] == s) for s in pair)
    require(apart, "model: services that feed these classes could end at the same instant")
    demand, joint = total(rates[k] * network.service[k] for k in chosen), ", ".join(names[k] for k in chosen)
    same("load", [read.number("load", proof["load"])], [demand], ["these classes"])
    require(demand > 1, f"load: {text(demand)} is not above 1")
    what = f"{joint} are never served together from an empty start and need {text(demand)} > 1"
    return Verdict.UNSTABLE, f"{what}: unstable under these priorities"


def fluid_cycle(model: Any, proof: Any) -> Conclusion:
    """A path of the fluid model under its priorities to a multiple of its start: repeated, it grows for ever."""
    network, proof = _network(model), read.keys("proof", proof, "states", "seconds", "efforts", "factor")
    for s, order in enumerate(network.priority):  # first come, first served depends on more than amounts of fluid
        require(order is not None or len(network.at(s)) < 2, f"model: {network.stations[s]} has no priorities")
    legs, count = len(read.entries("seconds", proof["seconds"])), len(network.classes)
    seconds, factor = read.vector("seconds", proof["seconds"], legs), read.number("factor", proof["factor"])
    states = read.matrix("states", proof["states"], legs + 1, count)
    efforts = read.matrix("efforts", proof["efforts"], legs, count)
    require(legs > 0 and any(states[0]), "states: the path starts without fluid or does not move")
    require(min(map(min, states)) >= 0, "states: an amount of fluid is negative")
    for leg in range(legs):
        _segment(network, f"segment {leg}", states[leg : leg + 2], seconds[leg], efforts[leg])
    same("factor", states[-1], [factor * q for q in states[0]], network.classes)
    require(factor > 1, f"factor: {text(factor)} is not above 1")
    what = f"a path of the fluid model under these priorities returns to {text(factor)} times its start"
    return Verdict.UNSTABLE, f"{what}: the fluid model is unstable (no proof for the stochastic network)"


def _segment(network: FluidModel, where: str, ends: Matrix, seconds: Fraction, effort: Vector) -> None:
    """A straight piece of a path: fluid is conserved, stations work at unit rate, higher classes first."""
    served = [u / m for u, m in zip(effort, network.service, strict=True)]
    change = [seconds * (into - out) for into, out in zip(_inflow(network, served), served, strict=True)]
    same(where, ends[1], [q + dq for q, dq in zip(ends[0], change, strict=True)], network.classes)
    require(seconds > 0 and min(effort) >= 0, f"{where}: does not last, or an effort is negative")
    for k, name in enumerate(network.classes):
        share = total(effort[i] for i in network.not_below(k))
        require(share <= 1, f"{where}: the station of {name} works at {text(share)} > 1")
        full = share == 1 or ends[0][k] == ends[1][k] == 0
        require(full, f"{where}: {name} has fluid, but classes not below it get {text(share)}")


def _traffic(network: FluidModel, proof: Mapping[str, Any]) -> tuple[Vector, Vector]:
    """Rates lambda = alpha + P' lambda and loads; w = 1 + P w, w > 0 puts the spectral radius of P below 1.

    The siblings of a join come from one fork, or there is no such model (`model.forks`); then each gets to the join.
    """
    rates, visits = (read.vector(key, proof[key], len(network.classes)) for key in ("rates", "visits"))
    same("rates", rates, _inflow(network, rates), network.classes)
    same("visits", visits, [1 + total(visits[to] * p for to, p in row) for row in network.routing], network.classes)
    require(min(visits, default=1) > 0, "visits: one is not positive")
    loads = [total(rates[k] * network.service[k] for k in network.at(s)) for s in range(len(network.stations))]
    if "loads" in proof:
        same("loads", read.vector("loads", proof["loads"], len(loads)), loads, network.stations)
    return rates, loads


def _groups(network: FluidModel, parts: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Groups that hold every station once, with no route to an earlier one."""
    names = [name for part in parts for name in read.entries("components", part["stations"])]
    found = iter(read.places("components", names, network.stations))
    require(len(names) == len(network.stations), "components: not every station once")
    groups = [[next(found) for _ in part["stations"]] for part in parts]
    place = {s: position for position, group in enumerate(groups) for s in group}
    for k, row in enumerate(network.routing):
        back = [network.classes[to] for to, _ in row if place[network.station[to]] < place[network.station[k]]]
        require(not back, f"components: {network.classes[k]} leads back to {', '.join(back)}")
    return groups


def _network(table: Any, *, joins: bool = False) -> FluidModel:
    model = FluidModel.from_dict(table)
    require(model.to_dict() == table, "model: is not written as the package writes it")
    require(joins or not model.joins, "model: has joins, of which this kind says nothing")
    return model


def _inflow(network: FluidModel, served: Vector) -> Vector:
    came = [total(served[source] * p for source, p in row) for row in network.predecessors]
    return [rate + more for rate, more in zip(network.arrival, came, strict=True)]
