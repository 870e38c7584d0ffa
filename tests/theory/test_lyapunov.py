"""Lyapunov functions of fluid models: how far they prove stability, and that they prove nothing false."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from fluid_models import (
    ENTRY,
    EXIT,
    FIRST_BUFFER,
    LAST_BUFFER,
    LU_KUMAR,
    fluid_model,
    lu_kumar,
    rybko_stolyar,
    tenths,
    third_station,
)
from hypothesis import given
from hypothesis import strategies as st
from lyapunov_programs import piecewise_linear, piecewise_linear_functions, quadratic

from queuetheory_llm.errors import CertificateRejected, InvalidInput
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.piecewise_linear import Weights, weights
from queuetheory_llm.stability.quadratic import quadratic_function
from queuetheory_llm.verdict import Verdict

NEAR = Fraction(1, 10**6)


def sharp(model: FluidModel, scale: Fraction, policy: Any) -> bool:
    """Whether stability is certified just below a scale of the arrival rates and not just above it."""
    below = piecewise_linear(model.scaled(scale * (1 - NEAR)), policy=policy)
    above = piecewise_linear(model.scaled(scale * (1 + NEAR)), policy=policy)
    return below is not None and below.verdict is Verdict.STABLE and above is None


# Every non-idling policy is stable iff the loads and the virtual station m2 + m4 are below 1 (Dai, Vande Vate 2000).
@pytest.mark.parametrize(
    ("model", "scale"),
    [
        (rybko_stolyar(tenths(1, 6, 1, 6)), Fraction(10, 12)),
        (rybko_stolyar(tenths(3, 4, 3, 4)), Fraction(10, 8)),
        (rybko_stolyar(tenths(4, 3, 4, 3)), Fraction(10, 7)),
        (lu_kumar(tenths(1, 6, 1, 6)), Fraction(10, 12)),
        (load_network("rybko-stolyar-llm").fluid_model.scaled(Fraction(10, 9)), Fraction(608, 1088)),
    ],
)
def test_two_stations_are_certified_up_to_the_virtual_station(model: FluidModel, scale: Fraction) -> None:
    assert sharp(model, scale, "any")


# Priority to the classes that enter, first and last buffer first: stable whenever the loads are below 1.
@pytest.mark.parametrize(
    "model",
    [
        rybko_stolyar(tenths(1, 6, 1, 6), ENTRY),
        lu_kumar(tenths(1, 6, 1, 6), FIRST_BUFFER),
        lu_kumar(tenths(1, 6, 1, 6), LAST_BUFFER),
    ],
)
def test_good_priorities_are_certified_up_to_a_load_of_1(model: FluidModel) -> None:
    assert sharp(model, Fraction(10, 7), "file")
    assert piecewise_linear(model, policy="any") is None


@pytest.mark.parametrize("model", [rybko_stolyar(tenths(1, 6, 1, 6), EXIT), lu_kumar(tenths(1, 6, 1, 6), LU_KUMAR)])
def test_bad_priorities_are_not_certified_beyond_the_virtual_station(model: FluidModel) -> None:
    assert sharp(model, Fraction(10, 12), "file")


@pytest.mark.parametrize("policy", ["any", "file"])
@pytest.mark.parametrize("seconds", [Fraction(1, 100), Fraction(1, 10), Fraction(6, 10)])
def test_a_third_station_proves_nothing_more(policy: Any, seconds: Fraction) -> None:
    # With a reducible W the piece of the third station would stand in for the others, and 1.4286 would be "proved".
    assert sharp(third_station(seconds), Fraction(10, 12), policy)


@pytest.mark.parametrize("pieces", range(1, 14))
def test_every_w_is_stochastic_without_diagonal_and_irreducible(pieces: int) -> None:
    import networkx as nx

    for each in weights(pieces):
        w = each.matrix()
        assert all(sum(row) == 1 and row[j] == 0 for j, row in enumerate(w))
        assert pieces == 1 or nx.is_strongly_connected(
            nx.DiGraph([(j, q) for j in range(pieces) for q in range(pieces) if w[j][q] > 0])
        )


@given(st.lists(st.integers(0, 50), min_size=2, max_size=7), st.data())
def test_lifting_reaches_the_cone_and_only_raises(column: list[int], data: st.DataObject) -> None:
    pieces = len(column)
    own = data.draw(st.integers(0, pieces - 1))
    w = data.draw(st.sampled_from(list(weights(pieces))))
    lifted = list(column)
    w.lift(lifted, own)
    assert all(after >= before for before, after in zip(column, lifted, strict=True))
    matrix = w.matrix()
    for j in range(pieces):
        assert j == own or lifted[j] <= sum(share * lifted[q] for q, share in enumerate(matrix[j]))
    again = list(lifted)
    w.lift(again, own)
    assert again == lifted


def test_two_pieces_have_one_w() -> None:
    assert list(weights(2)) == [Weights(2)]
    assert Weights(2).matrix() == [[0, 1], [1, 0]]


def test_one_station_and_a_station_without_classes() -> None:
    single = fluid_model([0, 0], [1, 0], [Fraction(1, 2), Fraction(1, 3)], [(0, 1, 1)])
    assert sharp(single, Fraction(6, 5), "any")
    model = rybko_stolyar(tenths(3, 4, 3, 4))
    wider = FluidModel(
        stations=(*model.stations, "unused"),
        classes=model.classes,
        station=model.station,
        arrival=model.arrival,
        service=model.service,
        routing=model.routing,
        priority=(*model.priority, ()),
        preemptive=(*model.preemptive, True),
    )
    assert piecewise_linear(wider, policy="any") is not None
    assert piecewise_linear(wider.scaled(Fraction(13, 10)), policy="any") is None


def test_no_arrivals_are_stable() -> None:
    assert piecewise_linear(rybko_stolyar(tenths(1, 6, 1, 6)).scaled(Fraction(0)), policy="any") is not None


def test_nothing_is_certified_of_joins() -> None:
    model = load_network("fork-join").fluid_model.scaled(Fraction(1, 2))
    linear = next(piecewise_linear_functions(model, pieces="stations"))
    for found in (linear, quadratic_function(model, form="nonnegative")):
        assert found is not None
        with pytest.raises(CertificateRejected, match="has joins"):
            found.certify(model)


# Numbers of an independent program; the first two are those of no priority as well.
@pytest.mark.parametrize(
    ("model", "policy", "form", "scale"),
    [
        (rybko_stolyar(tenths(1, 6, 1, 6)), "file", "nonnegative", 0.7987),
        (rybko_stolyar(tenths(1, 6, 1, 6)), "any", "copositive", 0.7987),
        (rybko_stolyar(tenths(3, 4, 3, 4)), "file", "copositive", 1.0233),
        (rybko_stolyar(tenths(4, 3, 4, 3)), "any", "nonnegative", 1.2006),
        (lu_kumar(tenths(1, 6, 1, 6)), "file", "nonnegative", 0.7831),
        (lu_kumar(tenths(1, 6, 1, 6)), "file", "copositive", 0.7831),
    ],
)
def test_quadratic_functions_reach_as_far_as_published(model: FluidModel, policy: Any, form: Any, scale: float) -> None:
    step = Fraction(1, 10**4)
    middle = Fraction(scale).limit_denominator(10**4)
    assert quadratic(model.scaled(middle - step), policy=policy, form=form) is not None
    assert quadratic(model.scaled(middle + step), policy=policy, form=form) is None


@pytest.mark.parametrize(
    ("model", "policy", "form"),
    [
        (rybko_stolyar(tenths(1, 6, 1, 6), ENTRY), "file", "nonnegative"),
        (rybko_stolyar(tenths(4, 3, 4, 3)), "any", "copositive"),
        (lu_kumar(tenths(1, 6, 1, 6), LAST_BUFFER), "file", "nonnegative"),
    ],
)
def test_quadratic_functions_that_reach_a_load_of_1(model: FluidModel, policy: Any, form: Any) -> None:
    edge = Fraction(10, 7)
    assert quadratic(model.scaled(edge * (1 - NEAR)), policy=policy, form=form) is not None
    assert quadratic(model.scaled(edge), policy=policy, form=form) is None


def test_the_semidefinite_factors_are_near_what_was_found() -> None:
    model = rybko_stolyar(tenths(4, 3, 4, 3)).without_priorities()
    found = quadratic_function(model, form="copositive")
    assert found is not None
    lower, diagonal = (
        [[Fraction(entry) for entry in row] for row in found.proof["psd"]["l"]],
        [Fraction(entry) for entry in found.proof["psd"]["d"]],
    )
    n = [[Fraction(entry) for entry in row] for row in found.proof["nonnegative"]]
    assert any(entry < 0 for row in found.q for entry in row)  # or the linear program would do
    for i, row in enumerate(found.q):
        for j, entry in enumerate(row):
            assert entry == n[i][j] + sum(lower[i][m] * diagonal[m] * lower[j][m] for m in range(4))


def test_unknown_forms_are_refused_and_solvers_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    model = rybko_stolyar(tenths(3, 4, 3, 4))
    with pytest.raises(InvalidInput, match="form: 'convex'"):
        quadratic(model, policy="any", form="convex")  # type: ignore[arg-type]
    quadratic(model, policy="any", form="copositive")
    assert capfd.readouterr() == ("", "")
