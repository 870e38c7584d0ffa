"""Decode lengths that are drawn at their first token, against the chain with every length drawn with its prompt."""

import numpy as np
import pytest

import queuetheory_llm as qt
from queuetheory_llm.markov.explore import Limits, explore
from queuetheory_llm.markov.laws import backlog_at_boundaries, requests_at_boundaries
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.markov.stationary import stationary
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.model.lengths import ObservedLengths
from queuetheory_llm.schedulers.registry import parse_scheduler

ENGINE = qt.Engine(batch_time=qt.Hinge(c="1 s", a="1 s", b0=1000), b_max=3, k_max=2)
ARRIVALS = qt.SlottedArrivals(slot="1 s", law="bernoulli", mean="1/16")
TWO_CLASSES = qt.Workload(
    classes=[
        qt.RequestClass(lengths=qt.IndependentLengths(1, qt.Geometric(mean="3/2")), name="a"),
        qt.RequestClass(lengths=qt.IndependentLengths(1, qt.Uniform(low=0, high=3)), name="b"),
    ]
)
DEPENDENT = qt.Workload(classes=[qt.RequestClass(lengths=ObservedLengths([1, 1, 2, 2, 3], [1, 4, 2, 3, 1]))])
WORKLOADS = {
    "no prompts": qt.Workload.of(prefill=0, decode=qt.Empirical(values=[1, 2, 5], weights=[3, 2, 1])),
    "one prompt": qt.Workload.of(prefill=1, decode=qt.Uniform(low=1, high=3)),
    "empty decodes": qt.Workload.of(prefill=2, decode=qt.Uniform(low=0, high=2)),
    "two classes": TWO_CLASSES,
    "dependent": DEPENDENT,
}
RULES = ["sarathi", "orca", "vllm-vanilla", "vllm-chunked+threshold=1", "fastertransformer"]


def solved(rule, workload, late, requests):
    """The chain up to a level of so many requests, and its law."""
    law = request_law(workload, memoryless=True, late=late)
    outcomes = Outcomes(engine=ENGINE, scheduler=parse_scheduler(rule), law=law)
    space = explore(outcomes, ARRIVALS, requests * law.mean_tokens, Limits(10**6, 10**6))
    rewards = Rewards(operator=Operator(space), arrivals=ARRIVALS, law=law)
    return rewards, stationary(rewards.operator).law


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("rule", RULES)
def test_late_lengths_change_no_law(rule, workload):
    late, law = solved(rule, workload, True, 4)
    early, other = solved(rule, workload, False, 4)
    assert len(late.operator) <= len(early.operator)
    lost = late.operator.refused(law)[0] + early.operator.refused(other)[0]
    assert lost < 1e-4
    for of in (requests_at_boundaries, backlog_at_boundaries):
        ours, theirs = of(late, law), of(early, other)
        size = max(ours.size, theirs.size)
        np.testing.assert_allclose(
            np.pad(ours, (0, size - ours.size)), np.pad(theirs, (0, size - theirs.size)), atol=20 * lost + 1e-12
        )
    for name in ("requests", "backlog", "prompts", "batch_tokens"):
        assert law @ getattr(late, name) == pytest.approx(other @ getattr(early, name), abs=200 * lost + 1e-12)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("rule", RULES)
def test_the_law_of_the_backlog_has_the_mean_of_v_and_v_its_drift(rule, workload):
    """A length that is drawn changes no mean: V is a martingale but for what arrives and what is served."""
    rewards, law = solved(rule, workload, True, 4)
    backlog = rewards.space.backlog()
    tokens = backlog_at_boundaries(rewards, law)
    assert tokens @ np.arange(tokens.size) == pytest.approx(law @ backlog, abs=1e-9)
    room = np.repeat(rewards.space.room, np.diff(rewards.space.first)) - rewards.space.unseen()
    change = rewards.operator.matrix() @ backlog - backlog
    deep = room > 0  # one request more fits, and after a batch no fewer
    assert deep.sum() > 5
    np.testing.assert_allclose(change[deep], rewards.drift()[deep], atol=1e-12)


@pytest.mark.parametrize("rule", ["vllm-vanilla", "orca"])
def test_a_queue_past_its_prompts_is_only_counted(rule):
    """Orca's and the vanilla rule's queues of decodes grow without bound: by as many cores for each request.

    With every length drawn beforehand, here one of three, they would grow by a factor.
    """
    engine = qt.Engine(batch_time=ENGINE.batch_time, b_max=3)

    def cores(late, requests):
        law = request_law(WORKLOADS["one prompt"], memoryless=True, late=late)
        outcomes = Outcomes(engine=engine, scheduler=parse_scheduler(rule), law=law)
        return len(explore(outcomes, ARRIVALS, 3 * requests, Limits(10**6, 10**6)).cores)

    (more,) = set(np.diff([cores(True, requests) for requests in range(6, 12)]))
    assert more > 0
    early = np.diff([cores(False, requests) for requests in range(4, 8)])
    assert (early[1:] > 1.5 * early[:-1]).all()


@pytest.mark.parametrize("level", [20, 21.3, 22.1])
@pytest.mark.parametrize("rule", ["orca", "vllm-vanilla", "sarathi"])
def test_a_length_above_its_mean_stays_within_the_level(rule, level):
    """One length in ten is 9 tokens, five times the mean: a batch that draws it still refuses nobody."""
    law = request_law(
        qt.Workload.of(prefill=1, decode=qt.Empirical(values=[1, 9], weights=[9, 1])), memoryless=True, late=True
    )
    engine = qt.Engine(batch_time=ENGINE.batch_time, b_max=3)
    outcomes = Outcomes(engine=engine, scheduler=parse_scheduler(rule), law=law)
    space = explore(outcomes, ARRIVALS, level, Limits(10**6, 10**6))
    assert (space.room >= 0).all()
    assert (space.moves.high - space.moves.taken <= space.room[space.moves.target]).all()
