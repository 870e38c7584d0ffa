"""Axes of a sweep: what a user may write, and what it becomes."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.simulation.grid import MOST_POINTS, Axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("engine.b_max=128,256", (128, 256)),
        ("workload.rate=8:9:0.5", (Decimal(8), Decimal("8.5"), Decimal(9))),
        ("workload.rate=8:10:1,12", (8, 9, 10, 12)),
        ("workload.rate=0.1:0.3:0.1", (Decimal("0.1"), Decimal("0.2"), Decimal("0.3"))),
        ("workload.rate=1:2:0.75", (Decimal(1), Decimal("1.75"))),
        ("workload.rate=1/3:1:1/3", ("1/3", "2/3", Decimal(1))),
        ("workload.rate=400/187", ("400/187",)),
        ("engine.batch_time.c=11.28 ms, 12 ms", ("11.28 ms", "12 ms")),
        ("engine.batch_time.c=1:2:0.5 ms", ("1 ms", "1.5 ms", "2 ms")),
        ("engine.batch_time.c=1 ms:2 ms:1 ms", ("1 ms", "2 ms")),
        ("workload.arrivals=poisson,deterministic", ("poisson", "deterministic")),
        ('workload.trace="a:b,c.csv"', ("a:b,c.csv",)),
        (
            'workload.prefill=129,{ law = "uniform", low = 1, high = 9 }',
            (129, {"law": "uniform", "low": 1, "high": 9}),
        ),
    ],
)
def test_values_are_read_as_a_model_file_holds_them(text, values):
    assert Axis.parse(text).values == values


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("engine.b_max", "KEY=VALUES"),
        ("=1", "KEY=VALUES"),
        ("engine.b_max=", "KEY=VALUES"),
        ("engine.b_max=1,,2", "empty value"),
        ("workload.rate=9:8:1", "range is empty"),
        ("workload.rate=8:9:0", "step is not positive"),
        ("workload.rate=8:9:-1", "step is not positive"),
        ("workload.rate=8:9", "no range"),
        ("workload.rate=8:9:1:2", "no range"),
        ("workload.rate=a:b:c", "no range"),
        ("engine.batch_time.c=1 ms:2 s:1 ms", "one unit"),
        ("workload.rate=8:inf:1", "no range"),
        ("workload.rate=8:1/0:1", "divides by zero"),
        ("workload.rate=8,8", "twice"),
        ("workload.rate=8,8.0", "twice"),
        (f"workload.rate=0:{MOST_POINTS}:1", str(MOST_POINTS + 1)),
    ],
)
def test_what_is_no_axis_is_one_line(text, word):
    with pytest.raises(InvalidInput, match=word) as caught:
        Axis.parse(text)
    (fault,) = caught.value.faults
    assert fault.startswith("--grid: ")


def test_python_values_are_those_of_the_command_line():
    assert Axis.of("workload.rate", [8.5, 9]) == Axis.parse("workload.rate=8.5,9")
    assert Axis.of("workload.rate", np.arange(1, 4)).values == (1, 2, 3)
    assert Axis.of("workload.rate", np.array([0.1])).values == (Decimal("0.1"),)
    assert Axis.of("workload.rate", [Fraction(1, 3), Fraction(4, 2)]).values == ("1/3", 2)
    assert Axis.of("workload.rate", "8:9:1") == Axis.parse("workload.rate=8:9:1")
    for wrong in ([], [float("nan")], [None]):
        with pytest.raises(InvalidInput):
            Axis.of("workload.rate", wrong)


def test_cells_are_exact_or_texts():
    axis = Axis("key", (Decimal("0.1"), Decimal("0.1000000000000000000001"), 3, {"mean": Decimal("1.5")}))
    assert axis.cells == (0.1, "0.1000000000000000000001", 3, '{"mean": 1.5}')
