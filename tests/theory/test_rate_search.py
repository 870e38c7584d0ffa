"""What the interval of a rate search is worth: systems whose drift is known, measured with noise of one's choice."""

import math
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from queuetheory_llm.simulation.rate_search import _Search
from queuetheory_llm.simulation.statistics import TokenDrift, student

ROOT = 10.0


@attrs.define
class Known:
    """Runs of a system of work 1 a request: normal drifts about ``rate - root``, ten replications, drawn anew for
    each draw and the same for all runs of one draw."""

    seed: int
    noise: float
    root: float = ROOT
    requests: int = 0
    stream: SimpleNamespace = attrs.field(factory=lambda: SimpleNamespace(work=1.0, notes=(), shortfall=lambda _: 0.0))

    def sized(self, requests, _rate):
        return requests

    def drifts(self, phases, *, confidence, draw=0):
        rng, found = np.random.default_rng([self.seed, draw]), []
        for phase in phases:
            self.requests += phase.requests
            values = float(phase.rate) - self.root + self.noise / math.sqrt(phase.requests) * rng.standard_normal(10)
            mean, reach = student(values, confidence)
            found.append(SimpleNamespace(total=TokenDrift(mean=mean, low=mean - reach, high=mean + reach)))
        return found


def interval(runs, confidence):
    search = _Search(runs=runs, width=0.02, confidence=confidence, budget=300_000, report=lambda _: None)
    return search.result(search.root(1.02 * ROOT))


def wrong(found):
    return found.low > ROOT or (found.high is not None and found.high < ROOT)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_both_ends_are_right_as_often_as_is_said(confidence):
    """However the search got there: it looks at many rates, and goes on until what it sees looks good."""
    searches = 300
    misses = sum(wrong(interval(Known(seed, 10), confidence)) for seed in range(searches))
    chance = 1 - confidence
    assert misses <= searches * chance + 4 * math.sqrt(searches * chance * confidence)


def test_most_searches_succeed_where_the_noise_allows_it():
    found = [interval(Known(seed, 10), 0.99) for seed in range(100)]
    assert sum(each.met for each in found) >= 90
    assert all(each.falling.high < 0 < each.growing.low for each in found if each.met)
    assert all(each.high - each.low <= 0.02 * each.high for each in found if each.met)


@attrs.define
class Fickle(Known):
    """The first draw, which leads the search, and some confirmations see another root than `ROOT`."""

    seen: dict[int, float] = attrs.field(factory=dict)
    levels: list[float] = attrs.field(factory=list)

    def drifts(self, phases, *, confidence, draw=0):
        self.root = self.seen.get(draw, ROOT)
        if draw:
            self.levels.append(confidence)
            self.seen[0] = self.seen.get(-draw, self.seen.get(0, ROOT))  # what the search sees afterwards
        return Known.drifts(self, phases, confidence=confidence, draw=draw)


def test_what_the_search_saw_is_not_believed():
    """Its random numbers err, the same in every run of it: those of the confirmations are others."""
    found = interval(Fickle(1, 0.1, seen={0: 1.03 * ROOT}), 0.99)
    assert not found.met
    assert not wrong(found)


def test_the_chance_of_an_error_is_spent_over_the_confirmations():
    runs = Fickle(1, 0.1, seen={1: 1.1 * ROOT, 2: 1.1 * ROOT})
    found = interval(runs, 0.96)
    assert found.met
    assert found.confidence == 0.96
    assert runs.levels == pytest.approx([0.98, 0.99, 0.995])


def test_growth_below_a_rate_that_falls_leaves_no_interval():
    """First it grows at about 10.1, then it falls at about 10.9: the ends are not exchanged, there are none."""
    found = interval(Fickle(1, 0.1, seen={1: 0.99 * ROOT, -1: 1.1 * ROOT, 2: 1.1 * ROOT}), 0.99)
    assert (found.low, found.high, found.falling, found.growing, found.met) == (0, None, None, None, False)
    assert any("grew at a lower one: it depends on the start" in note for note in found.notes)


@pytest.mark.parametrize("root", [-5.0, -0.01])
def test_a_root_that_leaves_the_positive_rates_shows_nothing(root):
    """The backlog grows at every rate: the steps run below 0, where there is no rate to try."""
    search = _Search(runs=Known(1, 0.01, root=root), width=0.02, confidence=0.99, budget=10**7, report=lambda _: None)
    found = search.result(search.root(1.0))
    assert (found.low, found.met) == (0, False)
