"""Certificates that are changed are not accepted: every number perturbed, swapped or dropped, every key too.

With the digest recomputed, what rejects a forgery is the condition of the proof that fails. A number of a Lyapunov
function may change and leave a Lyapunov function; an independent computation says when.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

import attrs
import forging
import networkx as nx
import numpy as np
import pytest

from queuetheory_llm.certificates import checker
from queuetheory_llm.certificates.certificate import Certificate, certify, check_certificate
from queuetheory_llm.certificates.subject import difference
from queuetheory_llm.errors import CertificateRejected, InvalidInput
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel

EXAMPLES = forging.examples()
#: Where some numbers may change and leave a proof, of the same or of another statement.
LOOSE = {"piecewise-linear", "quadratic", "composition", "scheduler-witness"}
RIGID = [name for name, (kind, _, _) in EXAMPLES.items() if kind not in LOOSE]
LYAPUNOV = [name for name, (kind, _, _) in EXAMPLES.items() if kind in ("piecewise-linear", "quadratic")]


def accepted(table: dict[str, Any]) -> bool:
    try:
        check_certificate(table)
    except CertificateRejected:
        return False
    return True


def rejection(table: dict[str, Any]) -> str:
    with pytest.raises(CertificateRejected) as caught:
        check_certificate(table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def by_condition(table: dict[str, Any], why: str) -> bool:
    """Whether a condition of the proof failed. A line through a corner may turn there: then it says something else."""
    return why.startswith(
        (f"{table['kind']}: ", "statement: ") if table["kind"] == "hull-outside" else f"{table['kind']}: "
    )


def issued(name: str) -> dict[str, Any]:
    return certify(*EXAMPLES[name]).to_dict()


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_issued_is_accepted(name: str) -> None:
    table = issued(name)
    found = check_certificate(table)
    assert isinstance(found, Certificate)
    assert found.to_dict() == table


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_changed_number_does_not_fit_the_digest(name: str) -> None:
    table = issued(name)
    places = [(part, *path) for part in ("model", "proof") for path, _ in forging.leaves(table[part])]
    assert places
    for place in places:
        for value in forging.perturbed(forging.at(table, place)):
            assert not accepted(forging.changed(table, place, value)), place


@pytest.mark.parametrize("name", RIGID)
def test_a_perturbed_number_breaks_a_condition(name: str) -> None:
    table = issued(name)
    for path, number in forging.leaves(table["proof"]):
        for value in forging.perturbed(number):
            why = rejection(forging.signed(forging.changed(table, ("proof", *path), value)))
            assert by_condition(table, why), (path, value, why)


@pytest.mark.parametrize("name", RIGID)
def test_swapped_numbers_break_a_condition(name: str) -> None:
    table = issued(name)
    for (first, one), (second, other) in combinations(forging.leaves(table["proof"]), 2):
        if one != other:
            swapped = forging.changed(forging.changed(table, ("proof", *first), other), ("proof", *second), one)
            assert by_condition(table, rejection(forging.signed(swapped))), (first, second)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "scheduler-witness"])
def test_a_dropped_entry_breaks_a_condition(name: str) -> None:
    table = issued(name)
    for path in forging.nodes(table["proof"]):
        why = rejection(forging.signed(forging.dropped(table, ("proof", *path))))
        assert why.startswith(f"{table['kind']}: "), (path, why)


@pytest.mark.parametrize("name", EXAMPLES)
def test_keys_are_neither_missing_nor_more(name: str) -> None:
    table = issued(name)
    for key in table:
        if key != "schema":
            assert not accepted(forging.dropped(table, (key,)))
    tables = [(), *(path for path in forging.nodes(table) if isinstance(forging.at(table, path), dict))]
    for place in tables:
        more = forging.changed(table, (*place, "extra"), 1)
        assert not accepted(more)
        assert not accepted(forging.signed(more)), place
    for path in forging.nodes(table["model"]):
        assert not accepted(forging.dropped(table, ("model", *path)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_it_says_is_what_follows(name: str) -> None:
    table = issued(name)
    for verdict in ("STABLE", "UNSTABLE", "UNDECIDED", "CRITICAL", "stable", None):
        if verdict != table["verdict"]:
            assert rejection(forging.signed({**table, "verdict": verdict})).startswith("verdict: ")
    assert rejection(forging.signed({**table, "statement": table["statement"] + "!"})).startswith("statement: ")
    assert rejection({**table, "digest": "0" * 64}).startswith("digest: ")
    for kind in {kind for kind, _, _ in EXAMPLES.values()} | {"", "proof", None, 1}:
        if kind != table["kind"]:
            assert not accepted(forging.signed({**table, "kind": kind}))


@pytest.mark.parametrize(
    "table", [None, [], {}, {"schema": "qt-llm/network/1"}, {"schema": ["qt-llm/certificate/1"]}, "x"]
)
def test_what_claims_nothing_is_bad_input(table: Any) -> None:
    with pytest.raises(InvalidInput, match="schema"):
        check_certificate(table)


def test_numbers_of_thousands_of_digits_are_summed_and_named() -> None:
    """Python refuses to print more than 4300 digits; what is checked may have more."""
    _, model, proof = EXAMPLES["piecewise-linear"]
    network = FluidModel.from_dict(model)
    large = [[plain(Fraction(10**3990 + k, 7**4730 + i)) for k in range(4)] for i in range(2)]
    reject("piecewise-linear", network, {**proof, "v": large}, "cone: |drift: .*about|eps: .*about")
    rates = {**EXAMPLES["virtual-station"][2], "rates": [10**3999] * 4}
    reject("virtual-station", forging.rybko_stolyar(), rates, "above 1000000000000000000000000000000")
    huge = {**EXAMPLES["virtual-station"][2], "load": plain(Fraction(10**3999, 3 * 10**3990 + 1))}
    reject("virtual-station", forging.rybko_stolyar(), huge, "load: that of these classes is 6/5, not about 333333333")


STRANGE = (None, True, 0.5, "x", "1/0", "2/4", "1e3", [], {}, [[]], {"a": 1}, 10**40, "", "9" * 4999, "\ud800")


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "scheduler-witness"])
def test_no_strange_value_passes_for_a_part_of_a_proof(name: str) -> None:
    table = issued(name)
    for path in [(), *forging.nodes(table["proof"])]:
        old = forging.at(table, ("proof", *path))
        for value in STRANGE:
            if value != old:
                assert not accepted(forging.signed(forging.changed(table, ("proof", *path), value))), (path, value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_strange_value_in_a_model_is_more_than_rejected(name: str) -> None:
    """Another order of service may well leave the proof one; nothing else is raised than `CertificateRejected`."""
    table = issued(name)
    for path in [(), *forging.nodes(table["model"])]:
        for value in STRANGE:
            accepted(forging.signed(forging.changed(table, ("model", *path), value)))


def holds(kind: str, network: FluidModel, proof: Mapping[str, Any]) -> bool:
    """Whether a Lyapunov function is one, by enumerating all that the stations can do."""
    if kind == "quadratic":
        q = _matrix(proof)
        own, busy = forging.own_and_busy(network, "classes")
        fine = q is not None and all(abs(x) <= 1 for row in q for x in row)
        return fine and _falls(network, q or [], busy, proof)
    v, w = ([[Fraction(x) for x in row] for row in proof[key]] for key in ("v", "w"))
    own, busy = forging.own_and_busy(network, proof["pieces"])
    graph = nx.DiGraph([(p, q) for p, row in enumerate(w) for q, share in enumerate(row) if share])
    graph.add_nodes_from(range(len(v)))
    mixing = all(min(row) >= 0 and sum(row) == 1 and row[p] == 0 for p, row in enumerate(w))
    means = np.array(w, dtype=object) @ np.array(v) if w else np.array(v)
    cone = all(v[p][k] <= means[p, k] for p in range(len(v)) for k in range(len(network.classes)) if k not in own[p])
    bounded = all(0 <= x <= 1 for row in v for x in row)
    return mixing and nx.is_strongly_connected(graph) and cone and bounded and _falls(network, v, busy, proof)


def _falls(network: FluidModel, rows: list[list[Fraction]], busy: Any, proof: Mapping[str, Any]) -> bool:
    worst = max(forging.brute_drift(network, row, each) for row, each in zip(rows, busy, strict=True))
    return worst < 0 and plain(-worst) == proof["eps"]


def _matrix(proof: Mapping[str, Any]) -> list[list[Fraction]] | None:
    """Q, where it is copositive by its form."""
    key = "nonnegative" if proof["q"] is None else "q"
    n = np.array([[Fraction(x) for x in row] for row in proof[key]])
    if (n != n.T).any() or (n < 0).any():
        return None
    if key == "q":
        return n.tolist()
    low = np.array([[Fraction(x) for x in row] for row in proof["psd"]["l"]])
    d = np.array([Fraction(x) for x in proof["psd"]["d"]])
    if (np.triu(low, 1) != 0).any() or (np.diag(low) != 1).any() or (d < 0).any():
        return None
    return (low @ np.diag(d) @ low.T + n).tolist()


@pytest.mark.parametrize("name", LYAPUNOV)
def test_a_lyapunov_function_is_accepted_exactly_where_it_is_one(name: str) -> None:
    table = issued(name)
    network = FluidModel.from_dict(table["model"])
    numbers = list(forging.leaves(table["proof"]))
    forged = [
        forging.changed(table["proof"], path, value) for path, number in numbers for value in forging.perturbed(number)
    ]
    for (first, one), (second, other) in combinations(numbers, 2):
        if one != other:
            forged.append(forging.changed(forging.changed(table["proof"], first, other), second, one))
    true = 0
    for proof in forged:
        sound = holds(table["kind"], network, proof)
        true += sound
        assert accepted(forging.signed({**table, "proof": proof})) == sound, proof
    assert true < len(forged) / 2


@pytest.mark.parametrize(
    "name", [name for name in EXAMPLES if issued(name)["verdict"] == "STABLE" and "engine" not in EXAMPLES[name][1]]
)
def test_no_number_of_a_stable_model_changes_into_an_overload(name: str) -> None:
    table = issued(name)
    for path, number in forging.leaves(table["model"]):
        for value in [*forging.perturbed(number), plain(3 * Fraction(number)), plain(10 * Fraction(number))]:
            forged = forging.signed(forging.changed(table, ("model", *path), value))
            if accepted(forged):
                network = FluidModel.from_dict(forged["model"])
                rates = forging.traffic(network)[0]
                loads = [
                    sum(rates[k] * network.service[k] for k in network.at(s)) for s in range(len(network.stations))
                ]
                assert max(loads) < 1
    network = FluidModel.from_dict(table["model"]).scaled(Fraction(3))
    assert not accepted(forging.signed({**table, "model": network.to_dict()}))


def test_what_a_certificate_rests_on_can_be_read_in_one_go() -> None:
    """The checker, what its conditions are made of, and the proofs of one family of models."""
    folder = Path(checker.__file__).parent
    lines = {path.name: len(path.read_text().splitlines()) for path in folder.glob("*.py")}
    families = [name for name in lines if name.endswith("_proofs.py")]
    assert families
    for name in families:
        assert lines["checker.py"] + lines["conditions.py"] + lines[name] < 400, name


def reject(kind: str, network: FluidModel, proof: dict[str, Any], match: str) -> None:
    with pytest.raises(CertificateRejected, match=match):
        certify(kind, network.to_dict(), proof)


def test_a_reducible_w_is_refused_where_all_else_holds() -> None:
    """Rybko-Stolyar with a third station after A2 at rate 1, unstable: its virtual station needs 6/5."""
    network = forging.line_network().scaled(Fraction(5, 4))
    found = 0
    for w in ([[0, 0, 1], [0, 0, 1], [1, 0, 0]], [[0, 0, 1], [0, 0, 1], [0, 1, 0]], [[0, 1, 0], [1, 0, 0], [1, 0, 0]]):
        v, eps = forging.linear_program(network, w)
        if eps > 0:
            found += 1
            proof = {"pieces": "stations", "v": v, "w": w, "eps": plain(eps)}
            reject("piecewise-linear", network, proof, "w: is reducible")
    assert found
    for w in ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]]):
        assert forging.linear_program(network, w)[1] <= 0


def test_the_cone_condition_is_needed() -> None:
    network = forging.rybko_stolyar()
    v, eps = forging.linear_program(network, cone=False)
    assert eps > 0
    reject(
        "piecewise-linear", network, {"pieces": "stations", "v": v, "w": [[0, 1], [1, 0]], "eps": plain(eps)}, "cone: "
    )


def test_a_form_that_is_not_copositive_proves_an_overload_stable_and_is_refused() -> None:
    network = FluidModel(
        stations=("s",), classes=("a",), station=(0,), arrival=(Fraction(2),), service=(Fraction(1),), routing=((),),
        priority=(None,), preemptive=(False,),
    )  # fmt: skip
    assert forging.brute_drift(network, [Fraction(-1)], (0,)) == -1
    bare = {"psd": None, "nonnegative": None, "eps": 1}
    reject("quadratic", network, {**bare, "q": [[-1]]}, "q: an entry is negative")
    reject("quadratic", network, {**bare, "q": None, "psd": {"l": [[1]], "d": [-1]}, "nonnegative": [[0]]}, "psd: ")
    reject("quadratic", network, {**bare, "q": None, "psd": {"l": [[1]], "d": [0]}, "nonnegative": [[-1]]}, "negative")
    reject("quadratic", network, {**bare, "q": [[1]]}, "drift: 1 in the part of a")
    reject(
        "piecewise-linear", network, {"pieces": "stations", "v": [[1]], "w": [], "eps": -1}, "drift: 1 in the part of s"
    )
    reject("piecewise-linear", network, {"pieces": "classes", "v": [[0]], "w": [], "eps": 0}, "drift: 0")


def random_network(rng: np.random.Generator) -> FluidModel:
    """A few classes on a few stations, feedback and priorities at random, mean services in hundredths."""
    stations, classes = int(rng.integers(1, 4)), int(rng.integers(3, 6))
    station = [*range(stations), *rng.integers(0, stations, classes - stations)]
    order: list[tuple[int, ...] | None] = []
    for s in range(stations):
        here = [k for k in range(classes) if station[k] == s]
        order.append(None if rng.random() < 0.3 else tuple(int(k) for k in rng.permutation(here)))
    targets = [(int(to), Fraction(int(p), 10)) for to, p in rng.integers((0, 1), (classes, 10), (classes, 2))]
    return FluidModel(
        stations=tuple(f"s{s}" for s in range(stations)),
        classes=tuple(f"c{k}" for k in range(classes)),
        station=tuple(map(int, station)),
        arrival=tuple(Fraction(int(x), 10) for x in rng.integers(0, 8, classes)),
        service=tuple(Fraction(int(x), 100) for x in rng.integers(5, 120, classes)),
        routing=tuple((hop,) if rng.random() < 0.8 else () for hop in targets),
        priority=tuple(order),
        preemptive=(True,) * stations,
    )


def test_the_best_functions_for_overloaded_networks_are_all_refused() -> None:
    rng = np.random.default_rng(7)
    overloaded = stable = 0
    for _ in range(60):
        network = random_network(rng)
        rho = max(forging.loads(network))
        for pieces in ("stations", "classes"):
            count = len(getattr(network, pieces))
            w = [[int(q == (p + 1) % count) for q in range(count)] for p in range(count)] if count > 1 else []
            v, eps = forging.linear_program(network, w, pieces, cone=count > 1)
            proof = {"pieces": pieces, "v": v, "w": w, "eps": plain(eps)}
            try:
                certify("piecewise-linear", network.to_dict(), proof)
            except CertificateRejected:
                overloaded += rho >= 1
                continue
            assert rho < 1
            stable += 1
    assert overloaded > 10
    assert stable > 10


def test_classes_as_pieces_use_the_priorities() -> None:
    """At 6/5 of Rybko-Stolyar no station-wise function exists, and priority to the entering classes is stable."""
    kind, model, proof = EXAMPLES["by class"]
    assert certify(kind, model, proof).verdict.value == "STABLE"
    leaving = forging.rybko_stolyar("6/5")
    reject(kind, leaving, proof, "drift: ")
    served_in_order = leaving.with_priority((None, None))
    reject(kind, served_in_order, proof, "drift: ")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"classes": ["A2", "B1"]}, "classes: B1 has arrivals from outside"),
        ({"classes": ["A2"]}, "classes: A2 can be entered from A1|load: "),
        ({"stations": ["s1", "s1"]}, "stations: a name repeats"),
        ({"stations": ["s1"]}, "stations: has 1 entries"),
        ({"classes": ["A2", "B2", "B2"]}, "classes: a name repeats"),
        ({"classes": ["A2", "C"]}, "classes: 'C' is unknown"),
    ],
)
def test_virtual_stations_need_classes_that_exclude_one_another(change: dict[str, Any], match: str) -> None:
    _, _, proof = EXAMPLES["virtual-station"]
    reject("virtual-station", forging.rybko_stolyar(), {**proof, **change}, match)


def test_virtual_stations_need_the_priorities_and_preemption() -> None:
    _, _, proof = EXAMPLES["virtual-station"]
    network = forging.rybko_stolyar()
    reject("virtual-station", network.with_priority(((0, 3), (2, 1))), proof, "A2 can be entered from A1")
    reject("virtual-station", network.with_priority((None, None)), proof, "no preemptive priorities")
    reject("virtual-station", attrs.evolve(network, preemptive=(True, False)), proof, "no preemptive priorities")


def test_virtual_stations_need_densities_at_one_side() -> None:
    """A1 and B1 let tasks in; where both may end at one instant, both groups may hold tasks."""
    kind, _, proof = EXAMPLES["virtual-station"]
    network = forging.rybko_stolyar()
    for flags in product((False, True), repeat=4):
        model = attrs.evolve(network, density=flags)
        if flags[network.classes.index("A1")] or flags[network.classes.index("B1")]:
            assert certify(kind, model.to_dict(), proof).verdict.value == "UNSTABLE"
        else:
            reject(kind, model, proof, "model: services that feed these classes could end at the same instant")


@pytest.mark.parametrize("name", [name for name in EXAMPLES if "stations" in EXAMPLES[name][1]])
def test_a_forged_flag_does_not_fit_the_digest_and_helps_no_proof(name: str) -> None:
    """Only virtual stations read the flags; what else is proved holds whatever they say."""
    table = issued(name)
    flags = [path for path in forging.nodes(table["model"]) if path[-1] in ("preemptive", "density")]
    assert len(flags) == len(table["model"]["stations"]) + len(table["model"]["classes"])
    for path in flags:
        forged = forging.changed(table, ("model", *path), not forging.at(table["model"], path))
        assert rejection(forged).startswith(("digest: ", "virtual-station: "))
        assert accepted(forging.signed(forged)) == (name != "virtual-station" or path[-1] == "density")


def test_a_path_must_keep_the_priorities() -> None:
    _, _, proof = EXAMPLES["fluid-cycle"]
    network = forging.rybko_stolyar()
    reject("fluid-cycle", network.with_priority(((0, 3), (2, 1))), proof, "segment 0: A2|segment 0: B1")
    reject("fluid-cycle", network.with_priority((None, None)), proof, "s1 has no priorities")


def test_groups_are_in_order_and_simple() -> None:
    _, model, proof = EXAMPLES["composition"]
    network = FluidModel.from_dict(model)
    pair, third = proof["components"]
    reject("composition", network, {**proof, "components": [third, pair]}, "A2 leads back to A3")
    reject("composition", network, {**proof, "components": [pair]}, "not every station once")
    bare = {"stations": ["s1", "s2"], "kind": None, "proof": None}
    reject("composition", network, {**proof, "components": [bare, third]}, "several classes, need a proof")
    listed = {**proof, "components": [["s1", "s2"], ["s3"]]}
    reject("load", network, listed, "several classes, need a proof")
    reject("load", network, {**proof, "components": [["s1"], ["s2"], ["s3"]]}, "leads back")


def test_joins_are_judged_by_loads_alone() -> None:
    network = load_network("fork-join").fluid_model
    rates, visits = forging.traffic(network)
    loads = [*map(plain, forging.loads(network))]
    proof = {"rates": [*map(plain, rates)], "visits": [*map(plain, visits)], "loads": loads}
    apart = [[name] for name in network.stations]
    assert certify("load", network.to_dict(), {**proof, "components": apart}).verdict.value == "STABLE"
    reject("load", network, {**proof, "components": [list(network.stations)]}, "merge joins within it")
    reject("piecewise-linear", network, {"pieces": "stations", "v": [], "w": [], "eps": 1}, "model: has joins")


def tree(**changes: Any) -> dict[str, Any]:
    """f forks into a and b; b forks into c and d, joined as e; a and e are joined as g. As plain values."""
    names, routes = "fabcdeg", {"f": "ab", "b": "cd"}
    sends: dict[str, list[Any]] = {name: [[to, 1] for to in routes.get(name, "")] for name in names}
    sends |= {"c": [["e", "1/2"]], "d": [["e", "1/2"]], "a": [["g", "1/2"]], "e": [["g", "1/2"]]}
    rates = dict.fromkeys(names, 0) | {"f": 1}
    joins = [
        {"classes": ["a", "e"], "to": "g", "fork": "f", "branches": ["a", "b"]},
        {"classes": ["c", "d"], "to": "e", "fork": "b", "branches": ["c", "d"]},
    ]
    return {
        "stations": [{"name": f"s{name}", "priority": None, "preemptive": True} for name in names],
        "classes": [
            {"name": name, "station": f"s{name}", "rate": (rates | changes.get("rates", {}))[name],
             "seconds": "1/100", "density": True, "routes": (sends | changes.get("sends", {}))[name]}
            for name in names
        ],
        "joins": changes.get("joins", lambda given: given)(joins),
    }  # fmt: skip


def load_proof(model: dict[str, Any]) -> dict[str, Any]:
    """The proof that the loads of a network are below 1, whatever its joins."""
    network = FluidModel.from_dict({**model, "joins": []})
    rates, visits = forging.traffic(network)
    loads, order = [*map(plain, forging.loads(network))], [f"s{name}" for name in "fabcdeg"]
    return {"rates": [*map(plain, rates)], "visits": [*map(plain, visits)], "loads": loads,
            "components": [[name] for name in order]}  # fmt: skip


def test_a_fork_within_a_branch_is_accepted() -> None:
    model = tree()
    assert certify("load", model, load_proof(model)).verdict.value == "STABLE"


def edited(number: int, **keys: Any) -> Any:
    return lambda joins: [{**join, **keys} if i == number else join for i, join in enumerate(joins)]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        # independent arrivals of the siblings: their difference is a null recurrent walk
        ({"rates": {"f": 0, "a": 1, "b": 1}}, "a is in a branch of f, and tasks enter it from elsewhere"),
        ({"rates": {"c": 1, "d": 1}}, "c is in a branch of f, and tasks enter it from elsewhere"),
        ({"sends": {"f": []}, "rates": {"a": 1, "b": 1}}, "f does not fork into a, b"),
        # a coin within a branch, with the rates of a fork
        ({"sends": {"b": [["c", "1/2"], ["d", "1/2"]]}}, "b is in a branch of f, and a task may leave there"),
        ({"sends": {"f": [["a", 2], ["b", 2]]}}, "f does not fork into a, b"),
        ({"sends": {"f": [["a", 1], ["b", "1/2"]]}}, "f does not fork into a, b"),
        ({"sends": {"b": [["c", "1/2"], ["d", 1]]}}, "b does not fork into c, d"),
        # a sibling that is listed twice, in two joins, alone, or nowhere
        ({"joins": edited(1, classes=["c", "c"])}, "joins: a name repeats"),
        ({"joins": edited(1, classes=["a", "d"])}, "a waits in more than one place of the joins"),
        ({"joins": edited(1, classes=["c"], branches=["c"])}, "the join into e needs two siblings or more"),
        ({"joins": edited(1, classes=[], branches=[])}, "the join into e needs two siblings or more"),
        ({"joins": edited(1, branches=["c"])}, "the join into e needs two siblings or more"),
        ({"joins": lambda joins: [*joins, joins[1]]}, "c waits in more than one place of the joins"),
        # not the fork, or not its branches
        ({"joins": edited(1, branches=["d", "c"])}, "the branch from d does not end in c alone"),
        ({"joins": edited(1, fork="f")}, "f does not fork into c, d"),
        ({"joins": edited(0, branches=["a", "a"])}, "joins: a name repeats"),
        ({"joins": edited(1, fork="x")}, "joins: 'x' is unknown"),
        ({"joins": lambda joins: joins[:1]}, "b is in a branch of f, and a task may leave there or become several"),
        ({"joins": lambda joins: joins[1:]}, None),
        # a branch that may be left, or be entered behind its fork
        ({"sends": {"e": [["g", "1/3"]]}}, "e waits in a join of 2; it sends 1/2 of a task"),
        ({"sends": {"e": [["g", "1/2"], ["d", "1/4"]]}}, "e waits in a join of 2"),
        ({"sends": {"g": [["a", "1/2"], ["b", "1/2"]]}}, "a is in a branch of f, and tasks enter it from elsewhere"),
        ({"sends": {"f": [["a", 1], ["b", 1], ["c", "1/8"], ["d", "1/8"]]}}, "c is in a branch of f, and tasks enter"),
    ],
)  # fmt: skip
def test_siblings_that_are_not_of_one_fork_are_refused(changes: dict[str, Any], match: str | None) -> None:
    """All loads are below 1 and every equation of the traffic holds; what waits for its sibling grows for ever."""
    model = tree(**changes)
    if match is None:  # a fork whose branches are not joined is no fault by itself
        assert certify("load", model, load_proof(model)).verdict.value == "STABLE"
        return
    with pytest.raises(CertificateRejected, match=f"^load: fluid model: .*{match}"):
        certify("load", model, load_proof(model))


@pytest.mark.parametrize(
    ("requests", "match"),
    [
        ([[2, 1, 2], [0, 1, 1]], "3 tokens are served"),
        ([[2, 1, 3], [0, 1, 0]], "more than it needs"),
        ([[2, 1, 0], [0, 1, 2]], "more than it needs"),
        ([[0, 0, 0], [2, 1, 1]], "more than it needs"),
        ([[2, 1, -1]], "no whole number"),
        ([[2, 1]], "has 2 entries"),
        ([], "0 tokens are served"),
    ],
)
def test_witnesses_are_batches_that_leave_work_undone(requests: list[Any], match: str) -> None:
    kind, model, _ = EXAMPLES["scheduler-witness"]
    with pytest.raises(CertificateRejected, match=match):
        certify(kind, model, {"requests": requests})


def test_nothing_that_a_certificate_says_gets_raw_into_a_message() -> None:
    """A terminal obeys escape sequences, and a text is no list of its letters."""
    table, escape = issued("virtual-station"), "\x1b[2J"
    for forged in (
        {**table, escape: 1},
        {**table, "kind": escape},
        {**table, "model": escape},
        forging.changed(table, ("model", "stations"), escape),
        forging.changed(table, ("model", "stations", 0, "name"), escape),
        forging.changed(issued("scheduler-witness"), ("model", "scheduler"), escape),
    ):
        why = rejection(forging.signed(forged))
        assert why.isprintable()
        assert "J, [" not in why


def test_a_model_that_differs_is_told_by_the_names_of_its_parts() -> None:
    pair, line = forging.rybko_stolyar().to_dict(), forging.line_network().to_dict()
    assert difference(pair, pair) is None
    assert difference(line, pair) == "model.stations: has s3, which the model file has not"
    bare = forging.rybko_stolyar().without_priorities().to_dict()
    renamed = forging.changed(bare, ("classes", 3, "name"), "C")
    renamed["classes"][2]["routes"] = [["C", 1]]
    assert difference(renamed, pair) == "model.classes: has C, which the model file has not"
    slower = forging.changed(pair, ("classes", 1, "seconds"), "7/10")
    assert difference(slower, pair) == "model.classes['A2'].seconds: is '7/10', not '3/5' as in the model file"
    engine = EXAMPLES["hull-inside"][1]
    assert difference(engine, pair) == "model: is that of an engine, the model file describes a network"
