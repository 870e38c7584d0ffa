"""Rates over time: exact values and areas, files read whole or refused line by line."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.rate_profile import load_rate_profile
from queuetheory_llm.model.rate_profile import RateProfile

STEPS = RateProfile(times=[0, 10, 20], values=["0.5", 2, 1])
LINES = RateProfile(times=[0, 10, 20], values=["0.5", 2, 1], shape="linear")


def test_steps_hold_and_lines_join():
    assert [STEPS.at(t) for t in (0, "9.9", 10, 15, 20, 1000)] == [F(1, 2), F(1, 2), 2, 2, 1, 1]
    assert [LINES.at(t) for t in (0, 5, 10, 15, 20, 1000)] == [F(1, 2), F(5, 4), 2, F(3, 2), 1, 1]
    assert (STEPS.largest, STEPS.last) == (2, 1)


def test_areas_are_those_of_rectangles_and_trapezia():
    assert [STEPS.area(t) for t in (0, 10, 15, 30)] == [0, 5, 15, 35]
    assert [LINES.area(t) for t in (0, 10, 20, 30)] == [0, F(25, 2), F(55, 2), F(75, 2)]


@given(st.lists(st.fractions(0, 5, max_denominator=20), min_size=1, max_size=6), st.fractions(0, 12), st.booleans())
def test_the_area_grows_by_the_value(values, time, lines):
    profile = RateProfile(times=range(0, 2 * len(values), 2), values=values, shape="linear" if lines else "steps")
    step = F(1, 1000)
    least, most = sorted((profile.at(time), profile.at(time + step)))
    growth = (profile.area(time + step) - profile.area(time)) / step
    slack = 0 if not any(time < point < time + step for point in profile.times) else profile.largest
    assert least - slack <= growth <= most + slack


def test_rates_and_factors_are_one_profile_given_the_rate_of_the_model():
    rates = RateProfile(times=[0, 5], values=[3, 6], quantity="rate")
    factors = rates.relative_to("1.5")
    assert (factors.values, factors.quantity) == ((2, 4), "factor")
    assert factors.rates("1.5") == rates
    assert factors.relative_to(7) is factors
    assert rates.rates(7) is rates
    with pytest.raises(InvalidModel, match="without external arrivals"):
        rates.relative_to(0)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"times": [1, 2]}, "begins at 0"),
        ({"times": [], "values": []}, "begins at 0"),
        ({"times": [0, 0]}, "does not follow"),
        ({"values": [1, -1]}, "is negative"),
        ({"values": [1]}, "1 for 2 times"),
        ({"shape": "cubic"}, "write steps or linear"),
        ({"quantity": "speed"}, "write factor or rate"),
        ({"classes": ()}, "name each class once"),
        ({"classes": ("a", "a")}, "name each class once"),
    ],
)
def test_contradictions_are_refused(changes, what):
    with pytest.raises(InvalidModel, match=what):
        RateProfile(**{"times": [0, 1], "values": [1, 1], **changes})


def test_all_faults_are_told_at_once():
    with pytest.raises(InvalidModel) as caught:
        RateProfile(times=[1, 1], values=[-1, 1, 2], shape="x")
    assert len(caught.value.faults) == 5


def test_a_file_is_read_exactly(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("time,rate\r\n0,0.1\r\n3600,1/3\r\n", encoding="utf-8")
    profile = load_rate_profile(path, shape="linear", classes=["A1"])
    assert profile == RateProfile(
        times=[0, 3600], values=[F(1, 10), F(1, 3)], shape="linear", quantity="rate", classes=["A1"]
    )
    path.write_text("factor, time\n2,0\n", encoding="utf-8")
    assert load_rate_profile(path) == RateProfile.constant(2)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("time,load\n0,1\n", "line 1: time,load is no header of a rate profile; write time,factor or time,rate"),
        ("", "line 1: the file is empty"),
        ("time,factor\n", "line 2: no rows"),
        ("time,factor\n0,1\n# lunch,2\n", "line 3: time: '# lunch' is not a number"),
        ("time,factor\n0,1\n5\n", "line 3: 1 fields for 2 columns"),
        ("time,factor\n0,\n", "line 2: factor: empty"),
        ("time,factor\n0,nan\n", "line 2: factor: nan is not finite"),
        ('time,factor\n0,"1\n', "line 2: no comma-separated values (unexpected end of data); mend the quotes"),
        ("time,factor\n0,1_0\n", "line 2: factor: '1_0' is not a number"),
        ("time,factor\n1,1\n", "line 2: time: 1 is not 0"),
        ("time,factor\n0,1\n5,2\n4,-1\n", "line 4: time: 4 does not follow 5"),
        ("time,factor\n0,1\n5,-2\n", "line 3: factor: -2 is negative"),
    ],
)
def test_a_faulty_file_is_refused_with_its_line(tmp_path, content, what):
    path = tmp_path / "day.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        load_rate_profile(path)
    assert caught.value.faults[0].startswith(f"{path}: {what}")


def test_an_unknown_shape_names_the_file(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("time,factor\n0,1\n", encoding="utf-8")
    with pytest.raises(InvalidModel, match=r"day\.csv: shape: 'cubic'"):
        load_rate_profile(path, shape="cubic")
