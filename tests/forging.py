"""Certificates to forge: a valid one of every kind, and every way to change one number, entry or key of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from queuetheory_llm.certificates.certificate import digest
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.fluid_model import FluidModel

Path = tuple[str | int, ...]
ENGINE = Engine(batch_time=Staircase(c="30 ms", a="5 ms", b0=4), b_max=12)
SEATED = Engine(batch_time=Staircase(c="30 ms", a="5 ms", b0=4), b_max=12, k_max=3)


def rybko_stolyar(factor: str = "1") -> FluidModel:
    return load_network("rybko-stolyar").fluid_model.scaled(Fraction(factor))


def linear_program(
    network: FluidModel,
    w: Sequence[Sequence[float]] = (),
    pieces: str = "stations",
    *,
    cone: bool = True,
    symmetric: bool = False,
) -> tuple[list[list[Any]], Fraction]:
    """v and eps of the best piecewise-linear V by HiGHS, rounded; eps need not be positive.

    Without cone condition, symmetric and by class, v is the matrix of the best quadratic V with nonnegative entries.
    """
    from scipy.optimize import linprog

    classes, stations = len(network.classes), len(network.stations)
    own, busy = own_and_busy(network, pieces)
    count = len(own)
    size = count * classes + count * stations + 1
    rows: list[Any] = []
    for p in range(count):
        fall = np.zeros(size)
        fall[p * classes : (p + 1) * classes] = [float(rate) for rate in network.arrival]
        fall[count * classes + p * stations : count * classes + (p + 1) * stations] = 1
        fall[-1] = 1
        rows.append(fall)
        for s in range(stations):
            for i in busy[p] if s == network.station[busy[p][0]] else network.at(s):
                gain = np.zeros(size)
                for to, share in network.routing[i]:
                    gain[p * classes + to] += float(share / network.service[i])
                gain[p * classes + i] -= float(1 / network.service[i])
                gain[count * classes + p * stations + s] = -1
                rows.append(gain)
        for k in set(range(classes)) - set(own[p]) if cone else ():
            above = np.zeros(size)
            above[p * classes + k] = 1
            for q in range(count):
                above[q * classes + k] -= w[p][q]
            rows.append(above)
    if symmetric:
        for i, j in product(range(classes), repeat=2):
            equal = np.zeros(size)
            equal[i * classes + j] += 1
            equal[j * classes + i] -= 1
            rows.append(equal)
    free = [network.station[busy[p][0]] == s for p in range(count) for s in range(stations)]
    bounds = [(0, 1)] * (count * classes) + [(None if home else 0, None) for home in free] + [(None, 1)]
    found = linprog([*[0.0] * (size - 1), -1.0], A_ub=np.array(rows), b_ub=np.zeros(len(rows)), bounds=bounds)
    v = [[Fraction(float(x)).limit_denominator(10**4) for x in row]
         for row in found.x[: count * classes].reshape(count, classes)]  # fmt: skip
    return [[plain(x) for x in row] for row in v], -max(brute_drift(network, v[p], busy[p]) for p in range(count))


def own_and_busy(network: FluidModel, pieces: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Classes of each piece, and those its station may serve while the piece has fluid."""
    if pieces == "stations":
        at = [network.at(s) for s in range(len(network.stations))]
        return at, at
    classes = range(len(network.classes))
    busy = []
    for k in classes:
        order = network.priority[network.station[k]]
        busy.append(network.at(network.station[k]) if order is None else order[: order.index(k) + 1])
    return [(k,) for k in classes], busy


def brute_drift(network: FluidModel, weights: Sequence[Fraction], busy: Sequence[int]) -> Fraction:
    """Largest drift of weights.Q over every way in which each station serves one class or none."""
    home = network.station[busy[0]]
    choices: list[Sequence[int | None]] = [
        busy if s == home else [None, *network.at(s)] for s in range(len(network.stations))
    ]
    best = None
    for served in product(*choices):
        rates = list(network.arrival)
        for i in served:
            if i is not None:
                rates[i] -= 1 / network.service[i]
                for to, share in network.routing[i]:
                    rates[to] += share / network.service[i]
        drift = sum((w * rate for w, rate in zip(weights, rates, strict=True)), Fraction(0))
        best = drift if best is None or drift > best else best
    assert best is not None
    return best


def _piecewise(network: FluidModel, w: Sequence[Sequence[int]], pieces: str) -> tuple[dict[str, Any], dict[str, Any]]:
    v, eps = linear_program(network, w, pieces)
    assert eps > 0
    return network.to_dict(), {"pieces": pieces, "v": v, "w": [list(row) for row in w], "eps": plain(eps)}


def _quadratic() -> tuple[dict[str, Any], dict[str, Any]]:
    network = rybko_stolyar("1/2")
    q, eps = linear_program(network, pieces="classes", cone=False, symmetric=True)
    assert eps > 0
    return network.to_dict(), {"q": q, "psd": None, "nonnegative": None, "eps": plain(eps)}


def _copositive() -> tuple[dict[str, Any], dict[str, Any]]:
    """The square of the work of two classes at one station, and a little more."""
    network = FluidModel(
        stations=("s",), classes=("a", "b"), station=(0, 0), arrival=(Fraction(1, 2), Fraction(1)),
        service=(Fraction(1, 2), Fraction(1, 4)), routing=((), ()), priority=(None,), preemptive=(False,),
    )  # fmt: skip
    psd = {"l": [[1, 0], ["1/2", 1]], "d": ["1/4", 0]}
    q = [[Fraction(1, 4), Fraction(27, 200)], [Fraction(27, 200), Fraction(1, 16)]]
    eps = -max(brute_drift(network, row, (0, 1)) for row in q)
    return network.to_dict(), {"q": None, "psd": psd, "nonnegative": [[0, "1/100"], ["1/100", 0]], "eps": plain(eps)}


def line_network() -> FluidModel:
    """Rybko-Stolyar at 0.8 with a station after A2: the pair needs a proof, the third station none."""
    pair = rybko_stolyar("4/5")
    return FluidModel(
        stations=("s1", "s2", "s3"),
        classes=(*pair.classes, "A3"),
        station=(*pair.station, 2),
        arrival=(*pair.arrival, Fraction(0)),
        service=(*pair.service, Fraction(1, 3)),
        routing=(pair.routing[0], ((4, Fraction(1)),), *pair.routing[2:], ()),
        priority=(*pair.priority, None),
        preemptive=(*pair.preemptive, False),
    )


def traffic(network: FluidModel) -> tuple[list[Fraction], list[Fraction]]:
    """Rates and visits; solved in floats and rounded to fractions of small denominators, which certificates check."""
    p = np.zeros((len(network.classes),) * 2)
    for k, row in enumerate(network.routing):
        for to, share in row:
            p[k, to] += float(share)
    alpha = np.array([float(rate) for rate in network.arrival])
    solved = np.linalg.solve(np.eye(len(p)) - p.T, alpha), np.linalg.solve(np.eye(len(p)) - p, np.ones(len(p)))
    rates, visits = ([Fraction(float(x)).limit_denominator(10**6) for x in each] for each in solved)
    return rates, visits


def loads(network: FluidModel) -> list[Fraction]:
    """rho of each station."""
    rates = traffic(network)[0]
    return [
        sum((rates[k] * network.service[k] for k in network.at(s)), Fraction(0)) for s in range(len(network.stations))
    ]


def examples() -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """(kind, model, proof) by name; all are accepted."""
    pair, fast = rybko_stolyar("4/5"), rybko_stolyar()
    loop = load_network("jackson-loop").fluid_model
    rates, visits = traffic(loop)
    rho = loads(loop)
    jackson = {
        "rates": [*map(plain, rates)], "visits": [*map(plain, visits)], "loads": [*map(plain, rho)],
        "components": [list(loop.stations)],
    }  # fmt: skip
    over = loop.scaled(Fraction(3))
    joined = load_network("fork-join").fluid_model
    line = line_network()
    cycle = [[1, 0, 0, 0], [0, "25/27", "1/9", 0], [0, 0, "3/2", 0], ["1/6", 0, 0, "25/18"], ["9/4", 0, 0, 0]]
    entry = rybko_stolyar("6/5").with_priority(((0, 3), (2, 1)))
    seated = {"engine": SEATED.to_dict(), "prefill": 5, "decode": 3}
    work = {"engine": ENGINE.to_dict(), "rate": 20, "prefill": 5, "decode": 3}
    cluster = {
        "stages": ["a", "b"], "rates": ["5/4", "1/4"],
        "instances": [
            {"name": "fast", "count": 2, "work": [[1, None], ["1/3", None]]},
            {"name": "slow", "count": 1, "work": [[2, "3/2"]]},
        ],
    }  # fmt: skip
    return {
        "load": ("load", loop.to_dict(), jackson),
        "overload": ("load", over.to_dict(), {
            **jackson, "rates": [plain(3 * rate) for rate in rates], "loads": [plain(3 * load) for load in rho],
        }),
        "fork-join": ("load", joined.to_dict(), {
            "rates": ["1/2"] * 4, "visits": [4, "3/2", "3/2", 1], "loads": ["1/2000", "1/2", "1/2", "1/2000"],
            "components": [["splitter"], ["left"], ["right"], ["merger"]],
        }),
        "composition": ("composition", line.to_dict(), {
            "rates": ["4/5"] * 5, "visits": [3, 2, 2, 1, 1], "loads": ["14/25", "14/25", "4/15"],
            "components": [
                {"stations": ["s1", "s2"], "kind": "piecewise-linear",
                 "proof": _piecewise(pair, [[0, 1], [1, 0]], "stations")[1]},
                {"stations": ["s3"], "kind": None, "proof": None},
            ],
        }),
        "piecewise-linear": ("piecewise-linear", *_piecewise(pair, [[0, 1], [1, 0]], "stations")),
        "by class": ("piecewise-linear", *_piecewise(
            entry, [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], "classes")),
        "quadratic": ("quadratic", *_quadratic()),
        "copositive": ("quadratic", *_copositive()),
        "virtual-station": ("virtual-station", fast.to_dict(), {
            "rates": [1, 1, 1, 1], "visits": [2, 1, 2, 1], "stations": ["s1", "s2"], "classes": ["A2", "B2"],
            "load": "6/5",
        }),
        "fluid-cycle": ("fluid-cycle", fast.to_dict(), {
            "states": cycle, "seconds": ["1/9", "25/18", "1/6", "25/12"], "factor": "9/4",
            "efforts": [[1, 1, 0, 0], ["1/10", 1, 0, 0], [0, 0, 1, 1], [0, 0, "1/10", 1]],
        }),
        "engine load": ("load", work, {"tokens_per_s": 160, "capacity": "800/3", "full_batches": "800/3"}),
        "engine overload": ("load", {**work, "rate": 40},
                            {"tokens_per_s": 320, "capacity": "800/3", "full_batches": "800/3"}),
        "hull-inside": ("hull-inside", {**seated, "rate": "216/11"},
                        {"batches": [[10, 2, "243/550"], [0, 3, "126/275"]], "load": "9/10"}),
        "hull-outside": ("hull-outside", {**seated, "rate": 24},
                         {"prefill": "13/6000", "decode": "7/600", "bound": 1}),
        "drift": ("drift", {**seated, "rate": 16, "prefill_probability": 1},
                  {"prefill": "18/37", "decode": "56/37", "requests": "38/37", "requests_per_s": "600/37"}),
        "split": ("split", cluster, {"split": [["9/8", "1/8"], [0, "1/4"]], "loads": [["9/16", "3/16"], ["5/8"]],
                                     "prices": None, "bound": None}),
        "prices": ("split", {**cluster, "rates": [4, 1]},
                   {"split": None, "loads": None, "prices": [["1/6", "1/9"], ["4/9"]], "bound": "40/27"}),
        "scheduler-witness": ("scheduler-witness", {"scheduler": "vllm-vanilla", "b_max": 3},
                              {"requests": [[2, 1, 2], [0, 1, 0]]}),
    }  # fmt: skip


def signed(table: dict[str, Any]) -> dict[str, Any]:
    """The table with the digest that belongs to it."""
    content = {key: value for key, value in table.items() if key != "digest"}
    return {**content, "digest": digest(content)}


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every exact number in plain values, with its place."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    elif type(value) is int or (isinstance(value, str) and value[:1].isdigit() and value[-1:].isdigit()):
        yield path, value


def nodes(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every entry of a list and key of a table."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from nodes(item, (*path, key))


def changed(value: Any, path: Path, new: Any) -> Any:
    """A copy with another value at a place."""
    result = copy.deepcopy(value)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return result


def dropped(value: Any, path: Path) -> Any:
    """A copy without the entry at a place."""
    result = copy.deepcopy(value)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return result


def at(value: Any, path: Path) -> Any:
    """The value at a place."""
    for key in path:
        value = value[key]
    return value


def perturbed(number: Any) -> list[Any]:
    """Other numbers than this one, near and far."""
    value = Fraction(number)
    near = [value + Fraction(1, 10**9), value * Fraction(999, 1000), value + 1, value - 1, value * 2, -value, 0 * value]
    return [plain(other) for other in dict.fromkeys(near) if other != value]
