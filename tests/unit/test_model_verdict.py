"""Verdicts of parts combine by the worst that may be true; a sharp threshold leaves no doubt but its own boundary."""

from fractions import Fraction
from itertools import permutations, product

import pytest

from queuetheory_llm.verdict import Basis, Judgement, Verdict, combine, judge_load

S, U, C, N = Verdict.STABLE, Verdict.UNSTABLE, Verdict.CRITICAL, Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (S, S, S), (S, U, U), (S, C, C), (S, N, N),
        (U, U, U), (U, C, U), (U, N, U),
        (C, C, C), (C, N, N),
        (N, N, N),
    ],
)  # fmt: skip
def test_the_truth_table(first, second, both):
    assert combine([first, second]) is both
    assert combine([second, first]) is both


def test_no_parts_are_stable_and_order_and_grouping_do_not_matter():
    assert combine([]) is S
    for parts in product(Verdict, repeat=3):
        assert {combine(order) for order in permutations(parts)} == {combine(parts)}
        assert combine([combine(parts[:2]), parts[2]]) is combine(parts)


def possible(verdict):
    """What may be true of a system with this verdict, undecided ones taken apart."""
    return {S, U, C} if verdict is N else {verdict}


def test_the_table_says_exactly_what_is_known_of_all_parts():
    """Stable needs all parts stable, unstable one unstable; a critical part spoils stability and nothing more."""
    for first, second in product(Verdict, repeat=2):
        truths = {U if U in pair else C if C in pair else S for pair in product(possible(first), possible(second))}
        combined = combine([first, second])
        assert truths == {combined} if combined is not N else len(truths) > 1


@pytest.mark.parametrize(
    ("load", "verdict"),
    [
        (Fraction(0), S),
        (Fraction(999_999_999, 10**9), S),
        (Fraction(1), C),
        (1.0, C),
        (Fraction(10**9 + 1, 10**9), U),
        (0.5, S),
        (2.5, U),
    ],
)
def test_a_sharp_threshold(load, verdict):
    assert judge_load(load) is verdict


def test_the_margin_is_what_is_left_of_the_load():
    known = Judgement(verdict=S, basis=Basis.THEOREM, reason="", load=Fraction(3, 4))
    assert known.margin == Fraction(1, 4)
    assert Judgement(verdict=N, basis=None, reason="").margin is None


def test_every_verdict_has_a_sentence():
    assert len({each.meaning for each in Verdict}) == len(Verdict)
