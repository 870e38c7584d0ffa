"""Every sign of the three drifts of a walk in the quarter plane, and every doubt about one of them."""

from itertools import product

import pytest

from queuetheory_llm.exact.quarter_plane import verdict_of_drifts
from queuetheory_llm.verdict import Verdict

S, U, C, N = Verdict.STABLE, Verdict.UNSTABLE, Verdict.CRITICAL, Verdict.UNDECIDED

# Interior drift -> verdicts for the drift along the deciding axis (or the worse of two) being -1, 0, 1.
TO_FIRST_AXIS = [(0, -1), (1, -1)]
TO_SECOND_AXIS = [(-1, 0), (-1, 1)]
OUTWARD = [(0, 1), (1, 0), (1, 1)]
SIGNS = (-1, 0, 1)


@pytest.mark.parametrize("interior", TO_FIRST_AXIS)
@pytest.mark.parametrize(("along", "verdict"), [(-1, S), (0, C), (1, U), (None, N)])
def test_towards_the_first_axis_its_drift_alone_decides(interior, along, verdict):
    assert {verdict_of_drifts(interior, along, other) for other in (*SIGNS, None)} == {verdict}


@pytest.mark.parametrize("interior", TO_SECOND_AXIS)
@pytest.mark.parametrize(("along", "verdict"), [(-1, S), (0, C), (1, U), (None, N)])
def test_towards_the_second_axis_its_drift_alone_decides(interior, along, verdict):
    assert {verdict_of_drifts(interior, other, along) for other in (*SIGNS, None)} == {verdict}


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (-1, -1, S), (-1, 0, C), (-1, 1, U), (0, -1, C), (0, 0, C), (0, 1, U), (1, -1, U), (1, 0, U), (1, 1, U),
        (-1, None, N), (None, -1, N), (0, None, N), (None, None, N), (1, None, U), (None, 1, U),
    ],
)  # fmt: skip
def test_towards_both_axes_the_worse_decides(first, second, verdict):
    assert verdict_of_drifts((-1, -1), first, second) is verdict


@pytest.mark.parametrize("interior", OUTWARD)
def test_outward_the_axes_play_no_part(interior):
    assert {verdict_of_drifts(interior, *along) for along in product((*SIGNS, None), repeat=2)} == {U}


def test_no_interior_drift_is_not_decided_by_first_moments():
    assert {verdict_of_drifts((0, 0), *along) for along in product((*SIGNS, None), repeat=2)} == {N}


@pytest.mark.parametrize(
    ("interior", "along", "verdict"),
    [
        ((None, -1), (-1, -1), S),  # inward or not, both axes hold
        ((None, -1), (-1, 1), N),  # the second axis counts only if the first drift is negative
        ((None, -1), (1, 1), U),
        ((None, -1), (0, -1), C),
        ((-1, None), (-1, -1), S),
        ((-1, None), (1, -1), N),
        ((None, 1), (-1, -1), N),
        ((None, 1), (-1, 1), U),
        ((None, None), (1, 1), N),  # (0, 0) is possible
    ],
)
def test_an_unknown_interior_sign_matters_only_where_the_cases_differ(interior, along, verdict):
    assert verdict_of_drifts(interior, *along) is verdict
