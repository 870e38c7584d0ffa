"""When turns that look alike may be continued for ever, and when not: made-up turns of two legs."""

from collections.abc import Callable
from fractions import Fraction as F

import attrs
import pytest

from queuetheory_llm.stability.dominant_turn import DominantTurn, dominant_turn
from queuetheory_llm.stability.fluid_rates import FluidRates
from queuetheory_llm.stability.self_similar import Breakpoint

RATES = [FluidRates(departures=(F(i),) * 3, slopes=(F(0),) * 3, efforts=(F(0),) * 3) for i in range(2)]
Level = Callable[[F, F], F]


def turns(
    slow: F, fast: F, level: Level, *, begins: F | None = None, share: int = 1, count: int = 9
) -> list[Breakpoint]:
    """Turns of two legs, in which two classes empty in turn; ``share`` of the second power on one of the first.

    A third class has ``level`` of the two, at the beginning of a turn ``begins`` if that is given.
    """
    points, time = [], F(0)
    for n in range(count + 1):
        a, b = slow**n, share * fast**n
        points.append(
            Breakpoint(time=time, state=(a + b, F(0), level(a, b) if begins is None else begins), rates=RATES[0])
        )
        points.append(Breakpoint(time=time + a + 2 * b, state=(F(0), a + b, level(a, b)), rates=RATES[1]))
        time += 2 * a + 3 * b
    return points[:-1]


def alternating(count: int) -> list[Breakpoint]:
    """Amid turn n the third class has 5 + 7/10 2^n + (-8/5)^n; at its beginning it has 5."""
    return turns(F(-8, 5), F(2), lambda a, b: 5 + F(7, 200) * b + a, begins=F(5), share=20, count=count)


def test_growing_turns_go_on() -> None:
    found = dominant_turn(turns(F(11, 10), F(2), lambda a, b: 10 * a + b))
    assert isinstance(found, DominantTurn)
    assert found.apex is None
    assert found.low <= 2 <= found.high
    assert found.factor == pytest.approx(2)


def test_turns_that_use_up_a_class_in_the_end_do_not() -> None:
    """1000 1.1^n - 2^n is positive in all turns that were seen, and negative from n = 12 on."""
    points = turns(F(11, 10), F(2), lambda a, b: 1000 * a - b)
    assert min(point.state[2] for point in points) > 0
    assert dominant_turn(points) is None


def test_shrinking_turns_end_in_their_limit() -> None:
    slow, fast = F(1, 3), F(1, 2)
    points = turns(slow, fast, lambda a, b: 5 + a - b)
    found = dominant_turn(points)
    assert isinstance(found, DominantTurn)
    assert found.apex == (0, 0, 5)
    assert found.apex_time == 2 / (1 - slow) + 3 / (1 - fast)
    assert found.low <= fast <= found.high < 1


def test_shrinking_turns_that_use_up_a_class_do_not() -> None:
    """The limit of the third class is 0, which it reaches from below in the end: (1/3)^n 10^6 - (1/2)^n."""
    points = turns(F(1, 3), F(1, 2), lambda a, b: 10**6 * a - b)
    assert min(point.state[2] for point in points) > 0
    assert dominant_turn(points) is None


@pytest.mark.parametrize("count", [6, 9])
def test_a_cone_that_the_next_turn_leaves_proves_nothing(count: int) -> None:
    """Each vector of the cone is the change of a turn, but what a turn makes of it is none: it would fall below 0."""
    assert dominant_turn(alternating(count)) is None


def test_a_cone_that_is_kept_after_more_turns_is_a_proof() -> None:
    found = dominant_turn(alternating(12))
    assert isinstance(found, DominantTurn)
    assert 1 < found.low <= 2 <= found.high


def test_turns_with_more_degrees_of_freedom_than_legs_are_left_open() -> None:
    """Three powers, of which two durations tell no recurrence."""
    points = turns(F(11, 10), F(2), lambda a, b: a + b)
    bent = [
        attrs.evolve(p, time=p.time + F(3, 2) ** i, state=(*p.state[:2], F(3, 2) ** i)) for i, p in enumerate(points)
    ]
    assert dominant_turn(bent) is None


def test_no_root_that_dominates_is_no_ground() -> None:
    assert dominant_turn(turns(F(-2), F(2), lambda a, b: 2 * b + a)) is None


def test_few_turns_are_not_looked_at() -> None:
    assert dominant_turn(turns(F(11, 10), F(2), lambda a, b: a + b)[:9]) is None
