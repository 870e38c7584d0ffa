"""Batch-time laws: values, corners against all batches, refusals."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import laws

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.model.batch_time import BATCH_TIME_LAWS, BatchTime, Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)


@pytest.mark.parametrize(
    ("tokens", "ms"), [(1, "46.75"), (128, "46.75"), (129, "82.22"), (512, "153.16"), (1024, "295.04"), (2048, "578.8")]
)
def test_the_fit_of_codellama(tokens, ms):
    assert CODELLAMA.seconds(tokens) == Fraction(ms) / 1000


def test_the_hinge_is_flat_then_linear_and_affine_without_a_flat_piece():
    hinge = Hinge(c="10 ms", a="1 ms", b0=4)
    assert [hinge.seconds(b) * 1000 for b in (1, 4, 5, 9)] == [10, 10, 11, 15]
    assert [Hinge(c=0, a=1, b0=0).seconds(b) for b in (1, 7)] == [1, 7]


def test_a_table_pads_to_the_next_larger_point_and_ends():
    table = Table(tokens=[2, 8], seconds_at=["3 ms", "1 ms"])
    assert [table.seconds(b) * 1000 for b in (1, 2, 3, 8)] == [3, 3, 1, 1]
    assert table.longest == 8
    with pytest.raises(InvalidInput, match="a batch of 9 tokens is beyond the table, which ends at 8"):
        table.seconds(9)
    with pytest.raises(InvalidInput, match="beyond the table"):
        table.seconds_array(np.array([1, 9]))


@given(laws(15))
def test_the_array_form_is_the_exact_one(law):
    counts = np.array([[1, 5, 15], [7, 7, 2]])
    values = law.seconds_array(counts)
    assert values.shape == counts.shape
    for value, count in zip(values.ravel(), counts.ravel(), strict=True):
        assert value == pytest.approx(float(law.seconds(int(count))), rel=1e-14)
    assert law.seconds_array(np.array([], dtype=np.int64)).size == 0


slopes = st.fractions(min_value=0, max_value=3, max_denominator=6)
shifts = st.fractions(min_value=-20, max_value=20, max_denominator=6)


@given(laws(20), st.tuples(st.integers(1, 20), st.integers(1, 20)).map(sorted), slopes, shifts)
def test_corners_and_troughs_attain_every_linear_fractional_extreme(law, ends, slope, shift):
    low, high = ends

    def value(b):
        return (slope * b + shift) / law.seconds(b)

    corners, troughs = law.corners(low, high), law.troughs(low, high)
    for found in (corners, troughs):
        assert found == sorted(set(found))
        assert low <= found[0]
        assert found[-1] <= high
    assert max(map(value, corners)) == max(map(value, range(low, high + 1)))
    assert min(map(value, troughs)) == min(map(value, range(low, high + 1)))


def test_a_staircase_has_three_corners_however_long():
    assert len(CODELLAMA.corners(100, 10**9)) <= 3
    assert len(CODELLAMA.troughs(100, 10**9)) <= 3


@given(laws(20))
def test_a_law_survives_its_table(law):
    row = law.to_dict()
    parameters = {key if key != "seconds" else "seconds_at": value for key, value in row.items() if key != "law"}
    assert BATCH_TIME_LAWS[row["law"]](**parameters) == law


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Staircase(c=-1, a=1, b0=1), "c: -1000 ms is negative"),
        (lambda: Staircase(c=0, a=0, b0=1), "a: 0 ms is not positive"),
        (lambda: Staircase(c=0, a=1, b0=0), "b0: 0 is below 1"),
        (lambda: Staircase(c=0, a=1, b0=1.5), "is not a whole number"),
        (lambda: Staircase(c="5", a=1, b0=1), "has no unit"),
        (lambda: Staircase(c=float("nan"), a=1, b0=1), "is not finite"),
        (lambda: Hinge(c=0, a=1, b0=3), "makes batches up to b0 take no time"),
        (lambda: Hinge(c=1, a=1, b0=-1), "b0: -1 is below 0"),
        (lambda: Table(tokens=[], seconds_at=[]), "the table is empty"),
        (lambda: Table(tokens=[1, 1], seconds_at=[1, 1]), "tokens: 1 after 1"),
        (lambda: Table(tokens=[0, 1], seconds_at=[1, 1]), "tokens: 0 is below 1"),
        (lambda: Table(tokens=[1], seconds_at=[0]), "seconds: 0 s at 1 tokens is not positive"),
        (lambda: Table(tokens=[1, 2], seconds_at=[1]), "seconds: 1 values for 2 token counts"),
    ],
)
def test_bad_laws_are_refused(make, complaint):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert any(complaint in fault for fault in caught.value.faults)


def test_every_fault_of_a_table_is_named_at_once():
    with pytest.raises(InvalidModel) as caught:
        Table(tokens=[0, 5, 5], seconds_at=[-1, 2])
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize("field", ["b_max", "k_max", "kv_tokens"])
@pytest.mark.parametrize("value", [0, -3])
def test_an_engine_that_cannot_serve(field, value):
    with pytest.raises(InvalidModel, match=f"{field}: {value} is below 1"):
        Engine(**{"batch_time": CODELLAMA, "b_max": 8, field: value})


def test_an_engine_beyond_its_measurements():
    with pytest.raises(InvalidModel, match="lower b_max to 8 or extend the table"):
        Engine(batch_time=Table(tokens=[8], seconds_at=[1]), b_max=9)


@pytest.mark.parametrize(("k_max", "slots"), [(None, 256), (1, 1), (100, 100), (256, 256), (999, 256)])
def test_each_request_of_a_batch_brings_a_token(k_max, slots):
    assert Engine(batch_time=CODELLAMA, b_max=256, k_max=k_max).slots == slots


def test_assumption_1():
    assert Engine(batch_time=CODELLAMA, b_max=256).whole_blocks
    assert not Engine(batch_time=CODELLAMA, b_max=200).whole_blocks
    assert not Engine(batch_time=Hinge(c=1, a=1, b0=128), b_max=256).whole_blocks


def test_an_engine_as_a_table_leaves_absent_limits_out():
    assert set(Engine(batch_time=CODELLAMA, b_max=256).to_dict()) == {"b_max", "batch_time"}
    assert Engine(batch_time=CODELLAMA, b_max=256, k_max=3).to_dict()["k_max"] == 3


@given(laws(20))
def test_a_law_reads_what_it_writes(law):
    assert BatchTime.from_dict(law.to_dict()) == law
