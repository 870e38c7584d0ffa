"""Frontiers of networks: certified from below, shown unstable from above, and what no certificate may ever say."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import attrs
import pytest
from fluid_models import (
    ENTRY,
    EXIT,
    FIRST_BUFFER,
    LAST_BUFFER,
    fluid_model,
    loads,
    lu_kumar,
    random_lines,
    random_network,
    rybko_stolyar,
    tenths,
    third_station,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lyapunov_programs import (
    classical_network,
    piecewise_linear,
    piecewise_linear_functions,
    quadratic,
    whole_certificate,
)

from queuetheory_llm.certificates.checker import conclude
from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability import frontier as frontiers
from queuetheory_llm.stability.frontier import Bound, frontier
from queuetheory_llm.stability.networks import POLICIES, verify_stability
from queuetheory_llm.stability.quadratic import quadratic_function
from queuetheory_llm.stability.traffic import traffic
from queuetheory_llm.stability.virtual_stations import virtual_stations
from queuetheory_llm.verdict import Basis, Verdict

NEAR = Fraction(1, 10**6)
LLM = load_network("rybko-stolyar-llm").fluid_model


def holds(bound: Bound, verdict: Verdict) -> None:
    """The certificate of a bound says so, of the network at that scale."""
    assert bound.certificate is not None
    assert bound.certificate.verdict is verdict
    assert conclude(bound.certificate.kind, bound.certificate.model, bound.certificate.proof)[0] is verdict


@pytest.mark.parametrize(
    ("model", "policy", "scale"),
    [
        (rybko_stolyar(tenths(1, 6, 1, 6), EXIT), "file", Fraction(10, 12)),
        (rybko_stolyar(tenths(1, 6, 1, 6), ENTRY), "any", Fraction(10, 12)),
        (rybko_stolyar(tenths(1, 6, 1, 6), ENTRY), "file", Fraction(10, 7)),
        (rybko_stolyar(tenths(3, 4, 3, 4)), "file", Fraction(10, 8)),
        (rybko_stolyar(tenths(4, 3, 4, 3)), "any", Fraction(10, 7)),
        (lu_kumar(tenths(1, 6, 1, 6)), "file", Fraction(10, 12)),
        (lu_kumar(tenths(1, 6, 1, 6), FIRST_BUFFER), "file", Fraction(10, 7)),
        (lu_kumar(tenths(1, 6, 1, 6), LAST_BUFFER), "file", Fraction(10, 7)),
        (third_station(Fraction(1, 10)), "file", Fraction(10, 12)),
        (LLM, "file", Fraction(608, 1088) / Fraction(9, 10)),
        (load_network("jackson-loop").fluid_model, "any", Fraction(7, 5)),
        (load_network("fork-join").fluid_model, "any", Fraction(2)),
    ],
)
def test_textbook_networks_leave_no_gap(model: FluidModel, policy: Any, scale: Fraction) -> None:
    found = frontier(model, policy=policy)
    assert found.unstable.scale == scale
    assert found.certified is not None
    assert scale * (1 - Fraction(1, 10**7)) < found.certified.scale < scale
    assert found.gap is not None
    assert 0 < found.gap < Fraction(1, 10**7)
    holds(found.certified, Verdict.STABLE)
    assert found.certified.certificate is not None
    subject = model if policy == "file" else model.without_priorities()
    assert found.certified.certificate.model == subject.scaled(found.certified.scale).to_dict()
    if found.unstable.basis is not Basis.FLUID:
        holds(found.unstable, Verdict.UNSTABLE)


def test_the_ground_of_instability_is_named() -> None:
    assert frontier(LLM, policy="file").unstable.basis is Basis.FLUID
    virtual = frontier(rybko_stolyar(tenths(1, 6, 1, 6)), policy="file").unstable
    assert (virtual.basis, "virtual station" in virtual.reason) == (Basis.CERTIFICATE, True)
    load = frontier(rybko_stolyar(tenths(4, 3, 4, 3)), policy="file").unstable
    assert (load.basis, "every order of service" in load.reason) == (Basis.THEOREM, True)


def test_a_growing_path_closes_a_gap_that_virtual_stations_leave() -> None:
    model = random_lines(0, stations=3)  # three stations and no virtual one; loads allow 5/11
    assert virtual_stations(model, traffic(model), "any") == ()
    found = frontier(model, policy="file")
    assert found.certified is not None
    assert found.unstable.basis is Basis.FLUID
    assert found.unstable.scale < Fraction(5, 11)
    assert found.gap is not None
    assert found.gap < NEAR
    holds(found.unstable, Verdict.UNSTABLE)
    assert not found.unstable.holds_above  # the one scale of the path
    assert found.note == "the two scales meet; of scales above that of the growing path nothing more is shown"


def test_what_theory_leaves_open_is_said() -> None:
    assert "decides" in frontier(lu_kumar(tenths(1, 6, 1, 6)), policy="any").note
    assert frontier(lu_kumar(tenths(1, 6, 1, 6)), policy="file").note == "the two scales meet"
    assert "loads decide" in frontier(load_network("tandem").fluid_model, policy="any").note


def test_an_open_gap_and_where_the_search_ended_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontiers, "MOST_PATH_CLASSES", 4)
    found = frontier(random_lines(17, stations=3, classes=5), policy="any")
    assert found.gap is not None
    assert found.gap > Fraction(1, 5)
    sufficient, *ended = found.note.split("; ")
    assert sufficient.endswith("the programs are only sufficient, and what lies between the two scales is not known")
    assert ended == ["growing fluid paths were not looked for beyond 4 classes"]


def test_json_of_a_frontier() -> None:
    table = frontier(rybko_stolyar(tenths(1, 6, 1, 6)), policy="file").to_dict()
    assert set(table) == {"policy", "certified", "unstable", "gap", "note"}
    assert table["unstable"]["exact"] == "5/6"
    assert table["unstable"]["holds_above"] is True
    assert table["certified"]["certificate"]["verdict"] == "STABLE"


def test_no_arrivals_and_unknown_policies_are_refused() -> None:
    model = rybko_stolyar(tenths(1, 6, 1, 6))
    with pytest.raises(InvalidModel, match="arrival: nothing"):
        frontier(model.scaled(Fraction(0)), policy="any")
    with pytest.raises(InvalidInput, match="policy"):
        frontier(model, policy="best")  # type: ignore[arg-type]


def random_pattern(seed: int) -> FluidModel:
    """Rybko-Stolyar or Lu-Kumar with random service times and rates."""
    draw = random.Random(seed)
    service = [Fraction(draw.randint(1, 99), 100) for _ in range(4)]
    rates = [Fraction(draw.randint(1, 30), 10) for _ in range(2)]
    if seed % 2:
        routes = [(0, 1, 1), (2, 3, 1)]
        return fluid_model([0, 1, 1, 0], [rates[0], 0, rates[1], 0], service, routes, EXIT)  # type: ignore[arg-type]
    return lu_kumar(service).scaled(rates[0])


def test_two_hundred_random_networks_are_certified_up_to_loads_and_virtual_stations() -> None:
    virtual_binds = 0
    for seed in range(200):
        model = random_pattern(seed)
        solved = traffic(model)
        virtual = [each.load for each in virtual_stations(model, solved, "any")]
        scale = 1 / max(*solved.loads, *virtual)
        virtual_binds += 1 / scale > max(solved.loads)
        assert piecewise_linear(model.scaled(scale * (1 - NEAR)), policy="any") is not None
        assert piecewise_linear(model.scaled(scale * (1 + NEAR)), policy="any") is None
    assert 30 < virtual_binds < 170


PROGRAMS = ("stations", "classes", "quadratic")


def best_of(program: str, model: FluidModel) -> Any:
    """The function that is best by one program; it need not fall."""
    if program == "quadratic":
        return quadratic_function(model, form="nonnegative")
    return next(piecewise_linear_functions(model, pieces=program))  # type: ignore[arg-type]


# Two thousand networks, ten at a time: to every other one a program is put, to the rest the whole question.
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    excess=st.sampled_from([-NEAR, Fraction(0), NEAR, Fraction(1, 10), Fraction(2)]),
    policy=st.sampled_from(POLICIES),
)
def test_no_certificate_for_an_overloaded_network(seed: int, excess: Fraction, policy: Any) -> None:
    for number in range(10):
        model = random_network(seed + number, stations=1 + number % 3, classes=3)
        critical = model.scaled(1 / max(loads(model)))
        over = critical.scaled(1 + max(excess, Fraction(0)))
        if number % 2:  # what is best at any scale, below a load of 1 or above, does not fall at 1
            best = best_of(PROGRAMS[(seed + number) % 3], critical.scaled(1 + excess))
            assert best.reach(critical) <= 1
            assert best.certify(over) is None
            continue
        answer = verify_stability(classical_network(over), policy=policy)
        assert answer.judgement.verdict in ((Verdict.UNSTABLE,) if excess > 0 else (Verdict.UNSTABLE, Verdict.CRITICAL))
        assert answer.certificate is None or answer.certificate.verdict is Verdict.UNSTABLE


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**9), policy=st.sampled_from(["any", "file"]))
def test_no_composed_certificate_for_an_overloaded_network(seed: int, policy: Any) -> None:
    """Whatever the groups; it is the checker that refuses."""
    model = random_network(seed)
    found = whole_certificate(model.scaled(1 / max(loads(model))), policy=policy)
    assert found is None or found.verdict is Verdict.UNSTABLE


@pytest.mark.parametrize("form", ["nonnegative", "copositive"])
@pytest.mark.parametrize("seed", range(6))
def test_no_semidefinite_certificate_for_an_overloaded_network(seed: int, form: Any) -> None:
    model = random_network(seed, classes=5)
    critical = model.scaled(1 / max(loads(model)))
    for excess in (Fraction(0), NEAR, Fraction(1)):
        assert quadratic(critical.scaled(1 + excess), policy="file", form=form) is None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), kind=st.sampled_from(["feed-forward", "one class each"]))
def test_feed_forward_and_jackson_networks_are_stable_up_to_a_load_of_1(seed: int, kind: str) -> None:
    if kind == "feed-forward":
        model = random_network(seed, feed_forward=True)
    else:
        model = random_network(seed, stations=4, classes=4)
    critical = model.scaled(1 / max(loads(model)))
    below = critical.scaled(1 - NEAR)
    for policy in ("any", "file"):
        certificate = whole_certificate(below, policy=policy)  # type: ignore[arg-type]
        assert certificate is not None
        assert certificate.verdict is Verdict.STABLE
        assert whole_certificate(critical, policy=policy) is None  # type: ignore[arg-type]
        assert virtual_stations(below, traffic(below), policy) == ()  # type: ignore[arg-type]
    found = frontier(below, policy="file").unstable
    assert found.scale == 1 / (1 - NEAR)
    assert found.basis is Basis.THEOREM


def test_a_group_is_proved_by_itself_and_composed() -> None:
    model = third_station(Fraction(1, 10)).scaled(Fraction(4, 5))
    certificate = whole_certificate(model, policy="any")
    assert certificate is not None
    assert certificate.kind == "composition"
    kinds = [(part["stations"], part["kind"]) for part in certificate.proof["components"]]
    assert kinds == [(["s0", "s1"], "piecewise-linear"), (["s2"], None)]
    whole = whole_certificate(rybko_stolyar(tenths(1, 6, 1, 6)).scaled(Fraction(4, 5)), policy="file")
    assert whole is not None
    assert whole.kind == "piecewise-linear"


def test_a_join_is_covered_at_one_station_and_not_within_a_group_of_several() -> None:
    """The siblings of a task may wait for one another at a station that works whenever there is work."""
    network = load_network("fork-join").fluid_model
    one = attrs.evolve(network, stations=("s0",), station=(0,) * 4, priority=(None,), preemptive=(False,))
    alone = whole_certificate(one.scaled(Fraction(9, 10)), policy="any")
    assert alone is not None
    assert alone.kind == "load"
    looped = attrs.evolve(
        network, routing=(*network.routing[:3], ((0, Fraction(1, 4)),))
    )  # the merged task may start again
    assert whole_certificate(looped, policy="any") is None
    assert frontier(looped, policy="any").certified is None
