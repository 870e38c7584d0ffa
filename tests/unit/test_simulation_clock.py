from fractions import Fraction

import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.batch_time import BatchTime, Hinge, Staircase, Table
from queuetheory_llm.simulation.clock import LAST_TICK, BatchTicks, Clock, generators, tick_table


@pytest.mark.parametrize(
    ("times", "rate"),
    [
        ([Fraction(187, 400), Fraction(187, 4000)], 10**9),
        ([Fraction(1, 3)], 3 * 333_333_334),
        ([Fraction(1, 2**40)], 2**40),
        ([], 10**9),
    ],
)
def test_ticks_are_at_most_a_nanosecond_and_divide_every_time(times, rate):
    clock = Clock.fit(times, Fraction(1000))
    assert clock.rate == rate >= 10**9
    assert all((time * clock.rate).denominator == 1 for time in times)
    assert clock.notes == ()


def test_a_clock_that_cannot_be_exact_says_what_it_rounds():
    odd = Fraction(1, 10**9 + 7), Fraction(1, 998244353)
    clock = Clock.fit(odd, Fraction(10**6))
    assert clock.rate == 10**9
    assert len(clock.notes) == 1
    assert "rounded to 1 ns" in clock.notes[0]


def test_a_span_beyond_64_bits_of_nanoseconds_is_refused():
    assert Clock.fit([], Fraction(LAST_TICK, 10**9)).rate == 10**9
    with pytest.raises(InvalidInput, match="64-bit"):
        Clock.fit([], Fraction(LAST_TICK + 1, 10**9))


def test_the_bound_separates_strictly_earlier_ticks():
    clock = Clock(rate=10**9)
    horizon = Fraction(1, 3)
    first_not_before = clock.bound(horizon)
    assert Fraction(first_not_before, clock.rate) >= horizon > Fraction(first_not_before - 1, clock.rate)
    assert clock.bound(Fraction(2)) == 2 * 10**9


class Cubic(BatchTime):
    law = "cubic"

    def seconds(self, tokens):
        return Fraction(tokens**3, 7)

    def corners(self, low, high):
        return [low, high]

    def to_dict(self):
        return {}


@pytest.mark.parametrize(
    "law",
    [
        Staircase(c="1/7 s", a="1/11 s", b0=3),
        Hinge(c="1/7 s", a="1/11 s", b0=4),
        Hinge(c="1/7 s", a="1/11 s", b0=0),
        Table(tokens=[1, 5, 20], seconds_at=["1/7 s", "1/11 s", "1/13 s"]),
        Cubic(),
    ],
)
@pytest.mark.parametrize("b_max", [1, 4, 20])
def test_every_batch_time_is_a_whole_number_of_ticks(law, b_max):
    clock = Clock.fit(generators(law, b_max), Fraction(10))
    assert clock.notes == ()
    ticks = BatchTicks(law, clock)
    assert all(ticks[b] == law.seconds(b) * clock.rate for b in range(1, b_max + 1))


def test_only_times_that_can_occur_matter():
    # c and a in sevenths, every batch within one stair: t = 3/7 + 4/7 = 1.
    law = Staircase(c="3/7 s", a="4/7 s", b0=64)
    assert Clock.fit(generators(law, 64), Fraction(10)).rate == 10**9
    table = Table(tokens=[4, 8], seconds_at=[1, "1/7 s"])
    assert Clock.fit(generators(table, 4), Fraction(10)).rate == 10**9


def test_a_batch_shorter_than_a_tick_is_refused():
    with pytest.raises(InvalidInput, match="below a tick"):
        BatchTicks(Staircase(c=0, a=Fraction(1, 10**12), b0=1), Clock(rate=10**9))[1]


@pytest.mark.parametrize(
    "law",
    [
        Staircase(c="1/7 s", a="1/11 s", b0=3),
        Staircase(c=0, a="0.3 ms", b0=1),
        Staircase(c="1 ms", a="1 ms", b0=64),
        Hinge(c="1/7 s", a="1/11 s", b0=4),
        Hinge(c="1/7 s", a="1/11 s", b0=64),
        Hinge(c=0, a="1/11 s", b0=0),
        Table(tokens=[1, 5, 20], seconds_at=["1/7 s", "1/11 s", "1/13 s"]),
        Cubic(),
    ],
)
@pytest.mark.parametrize("longest", [1, 3, 4, 20])
@pytest.mark.parametrize("exact", [True, False])
def test_the_table_of_batch_times_is_that_of_single_batches(law, longest, exact):
    clock = Clock.fit(generators(law, longest), Fraction(10)) if exact else Clock(rate=10**9)
    ticks = BatchTicks(law, clock)
    assert tick_table(law, clock, longest).tolist() == [0, *(ticks[b] for b in range(1, longest + 1))]


def test_a_table_longer_than_there_is_room_for_is_refused():
    with pytest.raises(InvalidInput, match="lower b_max"):
        tick_table(Staircase(c=0, a=1, b0=1), Clock(rate=10**9), 2**24 + 1)
