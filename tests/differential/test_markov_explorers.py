"""The chain of a policy, explored by compiled code and by the rule's own `form`: the same cores and moves."""

import math
import random
from collections import Counter
from fractions import Fraction

import attrs
import numpy as np
import pytest
from systems import some_law, some_rule

from queuetheory_llm.errors import InfeasibleRequest, NotConverged
from queuetheory_llm.markov import policy_space
from queuetheory_llm.markov.explore import Limits, explore, explore_plainly
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.policy_space import Cores, explore_policy
from queuetheory_llm.markov.space import Moves
from queuetheory_llm.model.arrivals import PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Empirical, Geometric, IndependentLengths, ObservedLengths, Uniform
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.schedulers.state import State

SYSTEMS_OF_A_RULE = 110
MANY = Limits(10**6, 10**6)
FEW = Limits(10**6, 200)  # moves that plain Python is asked for
DRAWS = 300  # lengths that may be drawn for it at once, where nothing stays hidden


def some_values(rng, least, longest, kinds=("constant", "constant", "uniform", "empirical")):
    kind = rng.choice(kinds)
    if kind == "constant" or least == longest:
        return Constant(rng.randint(least, longest))
    if kind == "uniform":
        low = rng.randint(least, longest)
        return Uniform(low=low, high=min(longest, low + rng.randint(0, 2)))
    values = rng.sample(range(least, longest + 1), min(rng.choice([2, 3]), longest - least + 1))
    return Empirical(values=values, weights=[rng.randint(1, 4) for _ in values])


def some_class(rng, longest, empty):
    """One class; decodes are memoryless in two of five, prompts may be empty in two of five; few are dependent.

    With ``empty`` there are no prompts at all.
    """
    if not empty and rng.random() < 0.1:
        return ObservedLengths([1, 1, longest, longest], [1, rng.randint(2, 3), rng.randint(0, 1), rng.randint(2, 3)])
    prompts = "zero" if empty else rng.choice(["zero", "some", "any", "some", "some"])
    prefill = Constant(0) if prompts == "zero" else some_values(rng, 0 if prompts == "any" else 1, longest)
    if rng.random() < 0.4:
        return IndependentLengths(prefill, Geometric(mean=rng.choice([Fraction(3, 2), 2, Fraction(7, 3), 5])))
    decode = some_values(
        rng, 0 if prompts == "some" else 1, rng.choice([1, 2, 4, 4]), ("constant", "uniform", "empirical")
    )
    return IndependentLengths(prefill, decode)


def some_chain(rng, name):
    """The outcomes, the arrivals and a level, so low that the chain is small."""
    b_max = rng.choice([1, 2, 3, 4, 6, 9])
    engine = Engine(batch_time=some_law(rng, b_max), b_max=b_max, k_max=rng.choice([None, None, 1, 2, 3, 5]))
    rule = some_rule(rng, name)
    longest = min(rule.longest_prompt(b_max) or 7, rng.choice([2, 4, 7]))
    empty = rng.random() < 0.15
    classes = [
        RequestClass(lengths=some_class(rng, longest, empty), weight=rng.randint(1, 3), name=f"class {i}")
        for i in range(rng.choice([1, 1, 2]))
    ]
    law = request_law(Workload(classes=classes), memoryless=True, late=rng.random() < 0.8)
    outcomes = Outcomes(engine=engine, scheduler=rule, law=law)
    arrivals = rng.choice([PoissonArrivals(rate=1), SlottedArrivals(slot="1 s", law="bernoulli", mean="0.5")])
    requests = rng.choice([4, 8, 16])
    if not outcomes.hidden:
        requests = min(requests, math.log(DRAWS, law.chance.size))
    return outcomes, arrivals, requests * law.mean_tokens


def first_tokens(outcomes, space):
    """Most lengths that are drawn after one batch."""
    kinds = outcomes.law.kinds
    waiting = {-1 - i for i, kind in enumerate(kinds) if not kind.memoryless}
    most = 0
    for core in space.cores:
        if sum(left in {(0, code) for code in waiting} for left in core.left) > 1:
            batch = outcomes.scheduler.form(core.view(outcomes.engine.b_max, outcomes.engine.k_max))
            most = max(most, sum(core.left[position][1] in waiting for position in batch.decode))
    return most


def covered(outcomes, space):
    """What there is about a chain that a fault could hide behind."""
    rule, law = outcomes.scheduler, outcomes.law
    memoryless = sum(kind.memoryless for kind in law.kinds)
    late = len(law.kinds) - memoryless
    return {
        "mixed": rule.mixed,
        "not mixed": not rule.mixed,
        "chunks": rule.chunks,
        "whole": not rule.chunks,
        "target": rule.target is not None and rule.target < outcomes.engine.b_max,
        "threshold": rule.threshold is not None and rule.threshold < law.prefill.max(),
        "k_max": outcomes.engine.slots < rule.budget(outcomes.engine.b_max),
        "one length": law.chance.size == 1,
        "many lengths": law.chance.size > 3,
        "memoryless": memoryless > 0,
        "two memoryless": memoryless == 2,
        "memoryless and known": memoryless > 0 and law.decode.max() > 0,
        "late": late > 0,
        "two late": late > 1,
        "late alone": late == 1 == law.chance.size,
        "late and known": late > 0 and law.decode.max() > 0,
        "late and no decode": late > 0 and law.decode.max() == 0,
        "late and memoryless": late > 0 and memoryless > 0,
        "late, seats": late > 0 and outcomes.seated,
        "late, phases": late > 0 and outcomes.phased,
        "late, several at once": late > 0 and first_tokens(outcomes, space) > 1,
        "no prompts": law.prefill.max() == 0,
        "no prompts, many": law.prefill.max() == 0 and law.chance.size > 1,
        "some prompts empty": law.prefill.min() == 0 < law.prefill.max(),
        "nothing hidden": not outcomes.hidden,
        "no decodes": law.decode.max() == 0 == law.decode.min(),
        "cores": len(space.cores) > 10,
        "alike from the second": bool((space.moves.low[space.moves.low < space.moves.high] > 1).any()),
    }


def assert_closed(space):
    """No batch leads beyond the level: only arrivals are refused there."""
    moves = space.moves
    assert (space.room >= 0).all()
    assert (moves.high - moves.taken <= space.room[moves.target]).all()


def assert_same(ours, theirs):
    assert list(ours.cores) == list(theirs.cores)
    for field in ("first", "known"):
        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field), err_msg=field)
    np.testing.assert_allclose(ours.tokens, theirs.tokens, rtol=1e-14)
    for field in attrs.fields_dict(Moves):
        np.testing.assert_array_equal(getattr(ours.moves, field), getattr(theirs.moves, field), err_msg=field)
    assert [each.seconds for each in ours.durations] == [each.seconds for each in theirs.durations]


def small_space(outcomes, arrivals, level):
    """The compiled space of the largest level tried that has few moves, and that level."""
    while True:
        try:
            return explore_policy(outcomes, arrivals, level, FEW), level
        except NotConverged:
            level *= 0.8


def systems(name):
    rng = random.Random(f"explorers {name}")
    for _ in range(SYSTEMS_OF_A_RULE):
        outcomes, arrivals, level = some_chain(rng, name)
        space, level = small_space(outcomes, arrivals, level)
        yield outcomes, arrivals, level, space


@pytest.mark.parametrize("name", SCHEDULERS)
def test_random_systems(name):
    for outcomes, arrivals, level, ours in systems(name):
        assert_same(ours, explore_plainly(outcomes, arrivals, level, MANY))


def test_random_systems_cover_every_switch():
    seen = Counter()
    for name in SCHEDULERS:
        for outcomes, _, _, space in systems(name):
            seen.update({key: bool(there) for key, there in covered(outcomes, space).items()})
    assert min(seen.values()) >= 20, seen


def two_lengths(rule="orca"):
    law = request_law(Workload.of(prefill=Uniform(low=1, high=2), decode=2), memoryless=True)
    engine = Engine(batch_time=Staircase(c=0, a="1 s", b0=4), b_max=4)
    return Outcomes(engine=engine, scheduler=parse_scheduler(rule), law=law)


SLOTTED = SlottedArrivals(slot="1 s", law="bernoulli", mean="0.5")


def test_explore_takes_the_compiled_way_for_a_policy_alone():
    outcomes = two_lengths()

    @attrs.frozen
    class Own:
        """The same rule, not known to be a policy."""

        name: str = "own"

        def form(self, view):
            return outcomes.scheduler.form(view)

    own = attrs.evolve(outcomes, scheduler=Own())
    assert isinstance(explore(outcomes, SLOTTED, 12, MANY).cores, Cores)
    assert isinstance(explore(own, SLOTTED, 12, MANY).cores, list)


def test_limits_hold_in_both():
    outcomes = two_lengths()
    space = explore_policy(outcomes, SLOTTED, 12, MANY)
    states, moves = len(space), len(space.moves) - 1  # the idle engine has a move of its own
    for way in (explore_policy, explore_plainly):
        assert len(way(outcomes, SLOTTED, 12, Limits(states, moves + 9))) == states
        for few in (Limits(states - 1, 10**6), Limits(10**6, moves - 1)):
            with pytest.raises(NotConverged, match="up to 12 tokens has more than"):
                way(outcomes, SLOTTED, 12, few)


def test_arrays_grow_and_progress_is_told(monkeypatch):
    monkeypatch.setattr(policy_space, "FIRST_CORES", 2)
    monkeypatch.setattr(policy_space, "FIRST_MOVES", 1)
    monkeypatch.setattr(policy_space, "FIRST_RUNS", 1)
    monkeypatch.setattr(policy_space, "PAUSE", 8)
    outcomes, told = two_lengths("sarathi"), []
    ours = explore_policy(outcomes, SLOTTED, 30, MANY, told.append)
    assert_same(ours, explore_plainly(outcomes, SLOTTED, 30, MANY))
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] <= len(ours)


def test_cores_are_a_sequence():
    cores = explore_policy(two_lengths("vllm-chunked"), SLOTTED, 12, MANY).cores
    assert cores[0] == State()
    assert cores[-1] == cores[len(cores) - 1]
    assert cores[1:3] == [cores[1], cores[2]]
    assert len(set(cores)) == len(cores)
    with pytest.raises(IndexError):
        cores[len(cores)]


def test_too_many_outcomes_of_a_batch_are_refused():
    """Few moves, for prompts served whole are forgotten, but 3^20 ways to them."""
    law = request_law(Workload.of(prefill=Uniform(low=1, high=3), decode=Geometric(mean=2)), memoryless=True)
    engine = Engine(batch_time=Staircase(c=0, a="1 s", b0=60), b_max=60, k_max=20)
    outcomes = Outcomes(engine=engine, scheduler=parse_scheduler("vllm-vanilla"), law=law)
    with pytest.raises(NotConverged, match="more than 100000 outcomes"):
        explore_policy(outcomes, SLOTTED, 200, Limits(10**5, 10**5))


def test_a_prompt_that_can_never_run_is_refused():
    with pytest.raises(InfeasibleRequest, match="a prompt of 5 tokens can never run under orca"):
        attrs.evolve(two_lengths("orca+whole"), law=request_law(Workload.of(prefill=5, decode=1), memoryless=True))
