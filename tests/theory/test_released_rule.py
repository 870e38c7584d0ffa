"""The released rule of HEXGEN-FLOW: its fixed point against the rule itself, run call by call."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.dispatch.hexgen_released import HEXGEN_RELEASED
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.errors import InvalidInput, NotConverged
from queuetheory_llm.model.arrivals import ExponentialInterval
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.workflow import Stage, Workflow
from queuetheory_llm.stability.cluster_capacity import cluster_capacity
from queuetheory_llm.stability.released_rule import released_limit, released_shares, released_split

F = Fraction


@pytest.mark.parametrize(
    ("alpha", "fast", "slow"),
    [("0", 3, 3), ("3/10", F(39, 14), F(27, 10)), ("1/2", F(5, 2), F(5, 2)), ("3/5", F(9, 4), F(12, 5)),
     ("7/10", 2, F(23, 10))],
)  # fmt: skip
def test_two_exponential_servers(alpha: str, fast: Fraction, slow: Fraction) -> None:
    """mu = (2, 1), the base the fast one and the slow one."""
    assert released_limit(["1/2", 1], alpha, base=0) == fast
    assert released_limit(["1/2", 1], alpha, base=1) == slow


def counted(times: list[Fraction], alpha: Fraction, base: int, calls: int, start: list[Fraction]) -> list[Fraction]:
    """W after so many calls, chosen by the score in rational arithmetic."""
    work = list(start)
    for _ in range(calls):
        if not work[base]:
            chosen = base
        else:
            scores = [alpha * times[base] / t - (1 - alpha) * w / work[base] for t, w in zip(times, work, strict=True)]
            chosen = scores.index(max(scores))
        work[chosen] += times[chosen]
    return work


@given(
    st.lists(st.integers(1, 8).map(lambda n: F(n, 4)), min_size=1, max_size=3),
    st.integers(0, 8).map(lambda n: F(n, 10)),
    st.data(),
)
@settings(max_examples=15, deadline=None)
def test_the_rule_comes_to_the_fixed_point_from_any_start(
    times: list[Fraction], alpha: Fraction, data: st.DataObject
) -> None:
    """W_m/W_base is within the bounds of the proof, t_m/W_base above and w_m t_base/W_base below.

    A start of 2 s is caught up with by two instances of w <= 29 and calls of 1/4 s in 464 calls.
    """
    base = data.draw(st.integers(0, len(times) - 1))
    start = data.draw(st.lists(st.sampled_from([F(0), F(1), F(2)]), min_size=len(times), max_size=len(times)))
    work = counted(times, alpha, base, 800, start)
    split = released_split(times, alpha, base)
    for w, t, ratio, first in zip(work, times, split.ratios, start, strict=True):
        above = (max(t, first) if ratio else first) + t  # a call of a tie at 0
        assert -ratio * times[base] <= w - ratio * work[base] <= above
    assert sum(split.shares) == 1
    assert split.limit == 1 / max(share * t for share, t in zip(split.shares, times, strict=True))


def test_at_alpha_1_all_go_to_the_fastest() -> None:
    assert released_split([3, 1, 2], 1).shares == (0, 1, 0)
    assert released_limit([3, 1, 2], 1) == 1


def servers(works: list[int], speeds: list[int]) -> WorkflowSystem:
    stages = [Stage(name=f"s{j}", work=ExponentialInterval(mean=work)) for j, work in enumerate(works)]
    return WorkflowSystem(
        workflow=Workflow(stages=stages), instances=[Instance(name=f"m{m}", speed=s) for m, s in enumerate(speeds)]
    )


def test_kinds_of_calls_with_proportional_times_divide_the_work_alike() -> None:
    """Works 1 and 4 a query: the closed form over 5, and the sequence of mixed calls comes to the same loads."""
    found = released_shares(servers([1, 4], [2, 1]), F(1, 2))
    assert found.limit == F(5, 2) / 5
    assert found.low == found.high == found.limit
    assert 1 / float(found.loads.max()) == pytest.approx(0.5, rel=0.02)
    ratio = found.loads[1] / found.loads[0]
    assert ratio == pytest.approx(0.5, rel=0.02)


def test_a_stage_that_hardly_comes_is_not_counted() -> None:
    """One call in 5000 holds most of the work: the seconds of a short sequence are nowhere near their limit."""
    stages = [
        Stage(name="usual", prefill=1, decode=1),
        Stage(name="rare", prefill=1_000_000, decode=0, chance="1/4999"),
    ]
    laws = {"p": ("1 ms", "3 ms"), "q": ("2 ms", "2 ms")}
    instances = [
        Instance(name=name, latency=LatencyLaw(per_prefill=first, per_decode=then))
        for name, (first, then) in laws.items()
    ]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    with pytest.raises(NotConverged, match=r"'rare' is 0.0002 of the calls.*calls=1000000"):
        released_shares(system, "1/2")


def test_sequences_are_followed_by_the_rule_itself() -> None:
    """Choice by choice: stages that not every instance serves, and unlike bases."""
    seconds = np.array([[np.inf, 2.0, 3.0, 3.0], [0.7, 1.3, np.inf, 0.9], [5.0, 1.0, 0.1, 4.0]])
    names = ("a", "b", "c")
    instances = [
        Instance(
            name=f"m{m}",
            latency={names[j]: LatencyLaw(base=F(str(t)), per_prefill=0, per_decode=0) for j, t in served},
            stages=tuple(names[j] for j, _ in served),
        )
        for m, column in enumerate(seconds.T)
        for served in [[(j, t) for j, t in enumerate(column.tolist()) if np.isfinite(t)]]
    ]
    stages = [Stage(name=name, prefill=1, decode=0) for name in names]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    found = released_shares(system, "0.3", calls=1000, replicas=2, seed=3).shares
    drawn = np.random.default_rng(3).choice(3, (1000, 2), p=np.full(3, 1 / 3))
    shares = []
    for sequence in drawn.T:
        assigned, sent = np.zeros(4), np.zeros((3, 4))
        for number, stage in enumerate(sequence):
            nothing = np.zeros(4)
            view = DispatchView(
                stage=int(stage), seconds=seconds[stage], queued=nothing, outstanding=nothing.astype(np.int64),
                tokens=nothing, assigned=assigned, turn=0, shares=nothing, chance=0.0,
            )  # fmt: skip
            chosen = HEXGEN_RELEASED.choose(view, np.array([0.3]))
            assigned[chosen] += seconds[stage, chosen]
            sent[stage, chosen] += number >= 500
        shares.append(sent / sent.sum(axis=1, keepdims=True))
    assert found == pytest.approx(np.mean(shares, axis=0), abs=1e-12)


def test_unlike_times_are_followed_and_stay_below_the_best_split() -> None:
    """Two stages that are fast at one instance each. At alpha = 0 only assigned seconds count, whatever is fast."""
    stages = [Stage(name="a", prefill=1, decode=0), Stage(name="b", prefill=1, decode=0)]
    seconds = {"p": (1, 3), "q": (3, 1)}
    instances = [
        Instance(
            name=name,
            latency={
                s.name: LatencyLaw(base=F(t), per_prefill=0, per_decode=0) for s, t in zip(stages, row, strict=True)
            },
        )
        for name, row in seconds.items()
    ]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    best = cluster_capacity(system).rate_limit
    assert best == 1
    fast = released_shares(system, F(4, 5))
    assert fast.low <= fast.limit <= fast.high <= 1 + 1e-9
    assert fast.limit == pytest.approx(1, abs=0.02)  # each stage goes where it is fast, and the works are level
    level = released_shares(system, 0)
    assert np.allclose(level.loads, level.loads.mean(), rtol=0.05)
    # Both stages go where less has been assigned: half of each to each, load (1 + 3)/2 at one query a second.
    assert level.limit == pytest.approx(0.5, rel=0.05)
    assert level.to_dict()["exact"] is None


@pytest.mark.parametrize("alpha", [-0.1, 1.1, "x"])
def test_alpha_outside_its_range_is_refused(alpha: float | str) -> None:
    for refused in (lambda: released_limit([1, 2], alpha), lambda: released_shares(servers([1], [1]), alpha)):
        with pytest.raises(InvalidInput):
            refused()


def test_times_and_base_are_checked() -> None:
    for times, base in (([], 0), ([0, 1], 0), ([1, 2], 2), ([1, 2], -1)):
        with pytest.raises(InvalidInput):
            released_limit(times, "1/2", base)
