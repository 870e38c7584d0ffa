"""The checker: what follows from a proof, recomputed in exact arithmetic from the model alone.

It shares nothing with the finders. A network is stable if every path of its fluid model empties (Dai 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from queuetheory_llm.errors import CertificateRejected, InvalidInput
from queuetheory_llm.exact import reading as read
from queuetheory_llm.exact.numbers import Matrix, Vector
from queuetheory_llm.exact.reading import text, total
from queuetheory_llm.exact.words import name_fault
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.verdict import Verdict

Conclusion = tuple[Verdict, str]
_ANY = "every policy that never idles and fills its batches"
_PRIORITIES = "these priorities, and any order that never idles at a station without"
_RECURRENT = "(positive Harris recurrent where interarrival times are unbounded and spread out, Dai 1995)"
_TRAFFIC = ("rates", "visits", "loads", "components")
_WORK = ("rate", "prefill", "decode")


def conclude(kind: str, model: Mapping[str, Any], proof: Mapping[str, Any]) -> Conclusion:
    """The verdict and the statement, one sentence, that a proof of a kind establishes of a model.

    Raises `CertificateRejected`, ``KIND: CONDITION``, with the class, station or row where the condition fails.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise CertificateRejected(f"kind: {kind!r:.40} is not known; one of {', '.join(KINDS)}")
    try:
        return KINDS[kind](model, proof)
    except (CertificateRejected, InvalidInput) as error:
        raise CertificateRejected(f"{kind}: {error}") from None


def _load(model: Any, proof: Any) -> Conclusion:
    """A load above 1: the mean work at a station and on its way there grows; or groups that need no further proof."""
    if isinstance(model, Mapping) and "engine" in model:
        return _engine_load(model, proof)
    network, proof = _network(model, joins=True), read.keys("proof", proof, *_TRAFFIC)
    listed = read.entries("components", proof["components"])
    parts = [{"stations": group, "kind": None, "proof": None} for group in listed]
    worst, name = max(zip(_traffic(network, proof)[1], network.stations, strict=True), default=(Fraction(0), ""))
    if worst <= 1:
        return _composition(model, {**proof, "components": parts})
    _groups(network, parts)
    return Verdict.UNSTABLE, f"the load of {name} is {text(worst)} > 1: unstable in every order of service"


def _composition(model: Any, proof: Any) -> Conclusion:
    """Groups of stations, stable one by one, without a route back: each empties once those before it have emptied."""
    network, proof = _network(model, joins=True), read.keys("proof", proof, *_TRAFFIC)
    listed = read.entries("components", proof["components"])
    parts = [read.keys("components", part, "stations", "kind", "proof") for part in listed]
    (rates, loads), groups = _traffic(network, proof), _groups(network, parts)
    for name, rho in zip(network.stations, loads, strict=True):
        _require(rho < 1, f"loads: {text(rho)} of {name} is not below 1")
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
        _require(not within, f"{where}: {network.classes[to]} joins within it")
    if kind is None:
        _require(part["proof"] is None, f"{where}: has a proof without its kind")
        simple = len(group) == 1 or all(len(network.at(s)) < 2 for s in group)
        _require(simple, f"{where}: several stations, one of them with several classes, need a proof")
        return _ANY
    _require(kind in ("piecewise-linear", "quadratic"), f"{where}: {kind!r:.40} is no kind of proof for it")
    prove = _piecewise_linear if kind == "piecewise-linear" else _quadratic
    return prove(network.restricted(group, rates), part["proof"])


def _lyapunov(prove: Callable[[FluidModel, Any], str], model: Any, proof: Any) -> Conclusion:
    """V >= 0 that falls along every path, at a bounded rate: it reaches 0, which it never could under an overload."""
    what = f"a Lyapunov function falls along every path of the fluid model under {prove(_network(model), proof)}"
    return Verdict.STABLE, f"{what}: stable {_RECURRENT}"


def _piecewise_linear(network: FluidModel, proof: Any) -> str:
    """V(x) = max_p v_p.x, a piece p a station (Dai, Weiss 1996; Down, Meyn 1997) or a class; returns the policies.

    Where piece p attains the maximum and its station (class) is empty, v_p.x <= sum_q W_pq v_q.x <= V(x): all q with
    W_pq > 0 attain it too. W being irreducible, some piece that attains it has fluid of its own; its station works all
    its time, on any class (none below its own), and V falls at least as fast as v_p.x then must.
    """
    proof, classes = read.keys("proof", proof, "pieces", "v", "w", "eps"), range(len(network.classes))
    _require(proof["pieces"] in ("stations", "classes"), 'pieces: neither "stations" nor "classes"')
    names, under = (network.stations, _ANY) if proof["pieces"] == "stations" else (network.classes, _PRIORITIES)
    own = busy = [network.at(s) for s in range(len(network.stations))]
    if under != _ANY:
        own, busy = [(k,) for k in classes], [network.not_below(k) for k in classes]
    v, w = read.matrix("v", proof["v"], len(names), len(classes)), _irreducible(proof["w"], names)
    _require(all(0 <= entry <= 1 for row in v for entry in row), "v: an entry is outside 0 .. 1")
    for p, shares in enumerate(w):
        for k in set(classes) - set(own[p]):
            bound = total(share * v[q][k] for q, share in enumerate(shares) if share)
            _require(v[p][k] <= bound, f"cone: the piece of {names[p]} is above its W-mean at {network.classes[k]}")
    _falls({name: _drift(network, v[p], busy[p]) for p, name in enumerate(names) if busy[p]}, proof["eps"])
    return under


def _irreducible(rows: Any, names: Sequence[str]) -> Matrix:
    """W: rows of sum 1, zero diagonal, every piece leads to every other; empty for one piece, which needs none."""
    w = read.matrix("w", rows, len(names) if len(names) > 1 else 0, len(names))
    for p, row in enumerate(w):
        _require(min(row) >= 0 and sum(row) == 1 and row[p] == 0, f"w: {names[p]}: no distribution over the others")
    for start in range(len(w)):
        reached, stack = {start}, [start]
        while stack:
            fresh = {q for q, share in enumerate(w[stack.pop()]) if share} - reached
            reached, stack = reached | fresh, [*stack, *fresh]
        _require(len(reached) == len(w), f"w: is reducible: {names[start]} does not lead to every other")
    return w


def _quadratic(network: FluidModel, proof: Any) -> str:
    """V(x) = x'Qx, Q copositive (Kumar, Meyn 1995); returns the policies.

    V/2 changes at rate sum_j x_j (Q dx/dt)_j, and where x_j > 0 the station of j works all its time on classes not
    below j: it falls at rate eps sum_j x_j, and sqrt(V) at a rate bounded away from 0.
    """
    q = _copositive(read.keys("proof", proof, "q", "psd", "nonnegative", "eps"), len(network.classes))
    _require(all(abs(entry) <= 1 for row in q for entry in row), "q: an entry is outside -1 .. 1")
    _falls({n: _drift(network, q[j], network.not_below(j)) for j, n in enumerate(network.classes)}, proof["eps"])
    return _PRIORITIES


def _copositive(proof: Mapping[str, Any], size: int) -> Matrix:
    """Q >= 0 entrywise; or Q = S + N with S = L diag(d) L' positive semidefinite, N >= 0 entrywise."""
    name, other = ("nonnegative", "q") if proof["q"] is None else ("q", "nonnegative")
    _require(proof[other] is None and (name == "q") == (proof["psd"] is None), "q: give q, or psd and nonnegative")
    n = read.matrix(name, proof[name], size, size)
    fine = all(0 <= n[i][j] == n[j][i] for i in range(size) for j in range(size))
    _require(fine, f"{name}: an entry is negative or not that across the diagonal")
    if name == "q":
        return n
    psd = read.keys("psd", proof["psd"], "l", "d")
    low, d = read.matrix("psd.l", psd["l"], size, size), read.vector("psd.d", psd["d"], size)
    unit = all(low[i][i] == 1 and not any(low[i][i + 1 :]) for i in range(size))
    _require(unit and min(d, default=0) >= 0, "psd: is no L diag(d) L' with L unit lower triangular and d >= 0")
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
        _require(drift < 0, f"drift: {text(drift)} in the part of {name} is not negative")
    _same("eps", [read.number("eps", eps)], [-max(drifts.values(), default=Fraction(0))], ["the slowest fall"])


def _virtual_station(model: Any, proof: Any) -> Conclusion:
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
    _require(preemptive, "stations: one of them has no preemptive priorities")
    chosen, feeders = read.places("classes", proof["classes"], names), set()
    for k in chosen:
        inner = station[k] in pair and network.arrival[k] == 0
        _require(inner, f"classes: {names[k]} has arrivals from outside or is served at neither station")
        for source, _ in network.predecessors[k]:
            higher = {i for i in chosen if station[i] == station[source]} <= set(network.not_below(source)) - {source}
            entered = source in chosen if station[source] == station[k] else station[source] in pair and higher
            _require(entered, f"classes: {names[k]} can be entered from {names[source]} while both stations serve")
            feeders |= {source} - set(chosen)
    apart = any(all(network.density[k] for k in feeders if station[k] == s) for s in pair)
    _require(apart, "model: services that feed these classes could end at the same instant")
    demand, joint = total(rates[k] * network.service[k] for k in chosen), ", ".join(names[k] for k in chosen)
    _same("load", [read.number("load", proof["load"])], [demand], ["these classes"])
    _require(demand > 1, f"load: {text(demand)} is not above 1")
    what = f"{joint} are never served together from an empty start and need {text(demand)} > 1"
    return Verdict.UNSTABLE, f"{what}: unstable under these priorities"


def _fluid_cycle(model: Any, proof: Any) -> Conclusion:
    """A path of the fluid model under its priorities to a multiple of its start: repeated, it grows for ever."""
    network, proof = _network(model), read.keys("proof", proof, "states", "seconds", "efforts", "factor")
    for s, order in enumerate(network.priority):  # first come, first served depends on more than amounts of fluid
        _require(order is not None or len(network.at(s)) < 2, f"model: {network.stations[s]} has no priorities")
    legs, count = len(read.entries("seconds", proof["seconds"])), len(network.classes)
    seconds, factor = read.vector("seconds", proof["seconds"], legs), read.number("factor", proof["factor"])
    states = read.matrix("states", proof["states"], legs + 1, count)
    efforts = read.matrix("efforts", proof["efforts"], legs, count)
    _require(legs > 0 and any(states[0]), "states: the path starts without fluid or does not move")
    _require(min(map(min, states)) >= 0, "states: an amount of fluid is negative")
    for leg in range(legs):
        _segment(network, f"segment {leg}", states[leg : leg + 2], seconds[leg], efforts[leg])
    _same("factor", states[-1], [factor * q for q in states[0]], network.classes)
    _require(factor > 1, f"factor: {text(factor)} is not above 1")
    what = f"a path of the fluid model under these priorities returns to {text(factor)} times its start"
    return Verdict.UNSTABLE, f"{what}: the fluid model is unstable (no proof for the stochastic network)"


def _segment(network: FluidModel, where: str, ends: Matrix, seconds: Fraction, effort: Vector) -> None:
    """A straight piece of a path: fluid is conserved, stations work at unit rate, higher classes first."""
    served = [u / m for u, m in zip(effort, network.service, strict=True)]
    change = [seconds * (into - out) for into, out in zip(_inflow(network, served), served, strict=True)]
    _same(where, ends[1], [q + dq for q, dq in zip(ends[0], change, strict=True)], network.classes)
    _require(seconds > 0 and min(effort) >= 0, f"{where}: does not last, or an effort is negative")
    for k, name in enumerate(network.classes):
        share = total(effort[i] for i in network.not_below(k))
        _require(share <= 1, f"{where}: the station of {name} works at {text(share)} > 1")
        full = share == 1 or ends[0][k] == ends[1][k] == 0
        _require(full, f"{where}: {name} has fluid, but classes not below it get {text(share)}")


def _traffic(network: FluidModel, proof: Mapping[str, Any]) -> tuple[Vector, Vector]:
    """Rates lambda = alpha + P' lambda and loads; w = 1 + P w, w > 0 puts the spectral radius of P below 1.

    The siblings of a join come from one fork, or there is no such model (`model.forks`); then each gets to the join.
    """
    rates, visits = (read.vector(key, proof[key], len(network.classes)) for key in ("rates", "visits"))
    _same("rates", rates, _inflow(network, rates), network.classes)
    _same("visits", visits, [1 + total(visits[to] * p for to, p in row) for row in network.routing], network.classes)
    _require(min(visits, default=1) > 0, "visits: one is not positive")
    loads = [total(rates[k] * network.service[k] for k in network.at(s)) for s in range(len(network.stations))]
    if "loads" in proof:
        _same("loads", read.vector("loads", proof["loads"], len(loads)), loads, network.stations)
    return rates, loads


def _groups(network: FluidModel, parts: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Groups that hold every station once, with no route to an earlier one."""
    names = [name for part in parts for name in read.entries("components", part["stations"])]
    found = iter(read.places("components", names, network.stations))
    _require(len(names) == len(network.stations), "components: not every station once")
    groups = [[next(found) for _ in part["stations"]] for part in parts]
    place = {s: position for position, group in enumerate(groups) for s in group}
    for k, row in enumerate(network.routing):
        back = [network.classes[to] for to, _ in row if place[network.station[to]] < place[network.station[k]]]
        _require(not back, f"components: {network.classes[k]} leads back to {', '.join(back)}")
    return groups


def _network(table: Any, *, joins: bool = False) -> FluidModel:
    model = FluidModel.from_dict(table)
    _require(model.to_dict() == table, "model: is not written as the package writes it")
    _require(joins or not model.joins, "model: has joins, of which this kind says nothing")
    return model


def _inflow(network: FluidModel, served: Vector) -> Vector:
    came = [total(served[source] * p for source, p in row) for row in network.predecessors]
    return [rate + more for rate, more in zip(network.arrival, came, strict=True)]


def _engine(model: Any, *names: str) -> tuple[Engine, Vector]:
    """The engine and the nonnegative numbers beside it: requests/s, mean tokens of a request, ..."""
    model = read.keys("model", model, "engine", *names)
    engine, numbers = Engine.from_dict(model["engine"]), [read.number(name, model[name]) for name in names]
    _require(engine.b_max <= 2**20, f"model: b_max is above {2**20}, too many batches to look at")
    _require(min(numbers) >= 0, f"model: one of {', '.join(names)} is negative")
    return engine, numbers


def _engine_load(model: Any, proof: Any) -> Conclusion:
    """C = max b/t(b) bounds every rule; F = b_max/t(b_max) is what a rule serves whose batches are full."""
    engine, (rate, prefill, decode) = _engine(model, *_WORK)
    names, seconds = ("tokens_per_s", "capacity", "full_batches"), engine.batch_time.seconds
    listed, come = read.keys("proof", proof, *names), rate * (prefill + decode)
    most, full = max(b / seconds(b) for b in range(1, engine.b_max + 1)), engine.b_max / seconds(engine.b_max)
    _same("load", [read.number(name, listed[name]) for name in names], [come, most, full], names)
    what = f"{text(come)} tokens/s come, the best batches serve {text(most)} and full ones {text(full)}"
    if come > most:
        return Verdict.UNSTABLE, f"{what}: unstable under every rule"
    _require(come < full, f"load: {what}: neither above the one nor below the other")
    _require(engine.slots == engine.b_max, "model: k_max may keep batches from filling")
    under = "every K-FCFS rule that fills its batches once b_max requests are present (arXiv 2504.07347, Theorem 2)"
    return Verdict.STABLE, f"{what}: stable under {under}"


def _hull_inside(model: Any, proof: Any) -> Conclusion:
    """Shares of time of feasible batches that serve the point, with some time left."""
    engine, (rate, *means) = _engine(model, *_WORK)
    proof, served, load = read.keys("proof", proof, "batches", "load"), [Fraction(0), Fraction(0)], Fraction(0)
    for x, y, weight in read.matrix("batches", proof["batches"], len(read.entries("batches", proof["batches"])), 3):
        whole = x.denominator == y.denominator == 1 and min(x, y) >= 0 and 1 <= x + y <= engine.b_max
        share = whole and y + (x > 0) <= engine.slots and weight > 0
        _require(share, f"batches: {text(weight)} x ({text(x)} + {text(y)} tokens) is no share of a feasible batch")
        speed, load = weight / engine.batch_time.seconds(int(x + y)), load + weight
        served = [served[0] + speed * x, served[1] + speed * y]
    for name, tokens, mean in zip(("prefill", "decode"), served, means, strict=True):
        _require(tokens >= rate * mean, f"batches: serve {text(tokens)} {name} tokens/s of {text(rate * mean)}")
    _same("load", [read.number("load", proof["load"])], [load], ["the sum of weights"])
    _require(load < 1, f"load: {text(load)} is not below 1")
    what = f"inside the outer region, batches serve the point in {text(load)} of the time"
    return Verdict.UNDECIDED, f"{what}: no bound for every rule excludes it, and no rule is proved stable"


def _hull_outside(model: Any, proof: Any) -> Conclusion:
    """A line p x + d y <= bound t(x + y) that the point breaks and every feasible batch, so the extreme ones, keeps."""
    engine, (rate, *means) = _engine(model, *_WORK)
    proof, k = read.keys("proof", proof, "prefill", "decode", "bound"), engine.slots
    p, d, bound = (read.number(name, proof[name]) for name in ("prefill", "decode", "bound"))
    _require(min(p, d) >= 0, "line: a slope is negative")
    ends = [(0, b) for b in range(1, k + 1)] + [(b - k + 1, k - 1) for b in range(k, engine.b_max + 1)]
    ends += [(b, 0) for b in range(1, engine.b_max + 1)]
    most = max((p * x + d * y) / engine.batch_time.seconds(x + y) for x, y in ends)
    come = rate * (p * means[0] + d * means[1])
    _same("bound", [bound], [most], ["the best batch"])
    _require(come > bound, f"line: the point has {text(come)}, which is not above {text(bound)}")
    what = f"{text(p)} x prefill + {text(d)} x decode tokens come at {text(come)} a second"
    return Verdict.UNSTABLE, f"{what}, batches serve {text(bound)} at most: unstable under every rule"


def _linear_drift(model: Any, proof: Any) -> Conclusion:
    """V = p (prefill left) + d (decode left) + n (requests in prefill) falls once k = min(k_max, b_max) are present.

    A rule that fills then forms a full batch, which may complete no prompt, or one of k requests that completes its s
    prompts: x + y = b < b_max, y = k - s. What it takes off V is linear in y, or in s, so the ends suffice.
    """
    engine, (rate, *means) = _engine(model, *_WORK, "prefill_probability")
    names, k, full = ("prefill", "decode", "requests", "requests_per_s"), engine.slots, engine.b_max
    *weights, limit = (read.number(name, read.keys("proof", proof, *names)[name]) for name in names)
    brought = total(weight * mean for weight, mean in zip(weights, means, strict=True))
    _require(min(weights) >= 0 < brought and means[2] <= 1, "weights: one is negative, or a request brings nothing")
    batches = [(0, k, 0), (full, 0, 0), (full - k + 1, k - 1, 0)]
    batches += [batch for b in range(k, full) for batch in ((b - k + 1, k - 1, 1), (b, 0, k))]
    taken = [weights[0] * x + weights[1] * y + weights[2] * s for x, y, s in batches]
    speeds = [each / engine.batch_time.seconds(x + y) for each, (x, y, _) in zip(taken, batches, strict=True)]
    _same("requests_per_s", [limit], [min(speeds) / brought], ["the worst batch"])
    _require(rate < limit, f"drift: {text(rate)} requests/s are not below {text(limit)}")
    what = f"a linear function of the backlog falls whenever {k} requests are present"
    return Verdict.STABLE, f"{what}: stable under every rule that fills its batches"


def _witness(model: Any, proof: Any) -> Conclusion:
    """A batch with fewer than min(b_max, D) tokens, D = prompt tokens left + requests in decode."""
    model, proof = read.keys("model", model, "scheduler", "b_max"), read.keys("proof", proof, "requests")
    rows = [tuple(read.entries("requests", row, 3)) for row in read.entries("requests", proof["requests"])]
    counts = [model["b_max"], *(count for row in rows for count in row)]
    _require(all(type(count) is int and count >= 0 for count in counts), "requests: a count is no whole number")
    _require(name_fault(model["scheduler"]) is None, "model: the scheduler has no name")
    for i, (prefill, decode, served) in enumerate(rows):
        _require(prefill + decode > 0 and served <= (prefill or 1), f"requests[{i}]: is served more than it needs")
    tokens, most = sum(row[2] for row in rows), min(model["b_max"], sum(row[0] or 1 for row in rows))
    _require(tokens < most, f"requests: {tokens} tokens are served, not fewer than the {most} that can be")
    what = f"a batch of {tokens} tokens where {most} are possible is not work-conserving"
    return Verdict.UNDECIDED, f"{what}; whether {model['scheduler']} forms it is for qt-llm classify to replay"


def _require(condition: bool, failure: str) -> None:
    if not condition:
        raise CertificateRejected(failure)


def _same(what: str, listed: Iterable[Fraction], found: Iterable[Fraction], names: Iterable[str]) -> None:
    for name, claim, value in zip(names, listed, found, strict=True):
        _require(claim == value, f"{what}: that of {name} is {text(value)}, not {text(claim)}")


#: Kind of proof -> what checks it and says what follows.
KINDS: Mapping[str, Callable[[Any, Any], Conclusion]] = {
    "load": _load,
    "composition": _composition,
    "piecewise-linear": partial(_lyapunov, _piecewise_linear),
    "quadratic": partial(_lyapunov, _quadratic),
    "virtual-station": _virtual_station,
    "fluid-cycle": _fluid_cycle,
    "hull-inside": _hull_inside,
    "hull-outside": _hull_outside,
    "drift": _linear_drift,
    "scheduler-witness": _witness,
}
