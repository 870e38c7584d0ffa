"""The law of the number present in a run: counted tick by tick, by Little, and against Pollaczek's M/D/1."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from systems import some_system

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.batch_time import Hinge
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.simulation import reference
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.occupancy import occupancy, ticks_present
from queuetheory_llm.simulation.requests import Requests, sample
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.runner import run

ONE_A_SECOND = Engine(batch_time=Hinge(c="1 s", a="1 s", b0=1000), b_max=1)
SECOND = 10**9


def tick_run(rng, until):
    """A run on a clock whose times are all whole seconds, so that a loop over them is a loop over all ticks."""
    engine = Engine(batch_time=Hinge(c="2 s", a="1 s", b0=rng.randint(0, 3)), b_max=rng.randint(1, 5))
    rule = parse_scheduler(rng.choice(["sarathi", "orca", "vllm-vanilla+chunk", "fastertransformer+chunk"]))
    count = rng.randint(0, 12)
    requests = Requests(
        arrival=sorted(rng.randint(0, 40) * SECOND for _ in range(count)),
        prefill=[rng.randint(0, 3) for _ in range(count)],
        decode=[rng.randint(1, 3) for _ in range(count)],
    )
    clock = Clock(rate=SECOND)
    return reference.run(engine, rule, requests, clock, until=until * SECOND if until else None)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_a_loop_over_the_ticks_counts(seed):
    rng = random.Random(seed)
    until, warm_up = rng.choice([None, 20, 33, 90]), rng.choice([0, 0, 7, 11])
    done = tick_run(rng, until)
    end = until or done.last // SECOND
    if end <= warm_up:
        with pytest.raises(InvalidInput, match="leave nothing"):
            occupancy(done, warm_up)
        return
    counted = np.zeros(1, dtype=np.int64)
    for second in range(warm_up, end):
        present = sum(
            come <= second * SECOND and (gone == NEVER or gone > second * SECOND)
            for come, gone in zip(done.requests.arrival.tolist(), done.finish.tolist(), strict=True)
        )
        counted = np.pad(counted, (0, max(0, present + 1 - counted.size)))
        counted[present] += SECOND
    np.testing.assert_array_equal(ticks_present(done, warm_up), counted)
    np.testing.assert_array_equal(occupancy(done, f"{warm_up} s"), counted / counted.sum())


@pytest.mark.parametrize("rule", SCHEDULERS)
def test_little_exactly(rule):
    rng = random.Random(rule)
    for _ in range(10):
        engine, scheduler, requests, clock, until = some_system(rng, rule)
        done = run(engine, scheduler, requests, clock, until=until)
        end = done.last if until is None else until
        warm_up = Fraction(rng.choice([0, 0, end // 3]), clock.rate)
        start = clock.bound(warm_up)
        ticks = ticks_present(done, warm_up)
        gone = np.where(done.finish == NEVER, end, done.finish)
        stays = np.clip(gone, start, end) - np.clip(requests.arrival, start, end)
        assert ticks.sum() == end - start
        assert ticks @ np.arange(ticks.size) == stays.sum()
        assert ticks[-1] > 0
        assert occupancy(done, warm_up).sum() == pytest.approx(1, abs=1e-14)


def test_under_slotted_arrivals_it_is_the_law_at_slot_starts_after_the_arrivals():
    engine = Engine(batch_time=Hinge(c="1 s", a="1 s", b0=1000), b_max=2)
    workload = Workload.of(prefill=2, decode=1, arrivals=SlottedArrivals(slot="1 s", law="poisson", mean=".5"))
    horizon = Fraction(500)
    requests = sample(workload, Clock(rate=SECOND), horizon, np.random.default_rng(4))
    done = run(engine, parse_scheduler("sarathi"), requests, Clock(rate=SECOND), until=500 * SECOND)
    slots = np.arange(500) * SECOND
    gone = np.sort(np.where(done.finish == NEVER, 501 * SECOND, done.finish))
    present = np.searchsorted(requests.arrival, slots, side="right") - np.searchsorted(gone, slots, side="right")
    np.testing.assert_allclose(occupancy(done), np.bincount(present) / 500, rtol=1e-15)


def md1_law(load, most):
    """P(N = n), n = 0..most, of M/D/1 with unit service: the Pollaczek-Khinchine transform expanded."""
    law = [1 - load, (1 - load) * (math.exp(load) - 1)]
    for number in range(2, most + 1):
        total = math.exp(number * load)
        for done in range(1, number):
            left = number - done
            term = (done * load) ** left / math.factorial(left)
            term += (done * load) ** (left - 1) / math.factorial(left - 1)
            total += math.exp(done * load) * (-1) ** left * term
        law.append((1 - load) * total)
    return np.array(law)


def test_md1_against_pollaczek():
    load, horizon = Fraction(7, 10), Fraction(20_000)
    workload = Workload.of(prefill=0, decode=1, arrivals=PoissonArrivals(rate=load))
    clock = Clock.fit([Fraction(1)], horizon)
    runs = []
    for rng in np.random.default_rng(7).spawn(30):
        requests = sample(workload, clock, horizon, rng)
        runs.append(run(ONE_A_SECOND, parse_scheduler("sarathi"), requests, clock, until=clock.bound(horizon)))
    law = md1_law(float(load), 6)
    shares = np.array([occupancy(each, 200)[:7] for each in runs])
    errors = shares.std(axis=0, ddof=1) / math.sqrt(len(runs))
    assert (np.abs(shares.mean(axis=0) - law) < 4 * errors).all()
    assert errors.max() < 0.003


def test_the_share_of_a_number_that_lasts_no_time_is_not_given():
    """One request leaves as the next comes: there are never two."""
    requests = Requests(arrival=[0, SECOND], prefill=[0, 0], decode=[1, 1])
    done = run(ONE_A_SECOND, parse_scheduler("sarathi"), requests, Clock(rate=SECOND))
    assert ticks_present(done).tolist() == [0, 2 * SECOND]


def test_refusals_are_one_line():
    requests = Requests(arrival=[0], prefill=[1], decode=[1])
    done = run(ONE_A_SECOND, parse_scheduler("sarathi"), requests, Clock(rate=SECOND))
    for call, words in [
        (lambda: occupancy(done, 2), "leave nothing of a run of 2 s"),
        (lambda: occupancy(done, "-1 s"), "negative"),
    ]:
        with pytest.raises(InvalidInput, match=words) as refused:
            call()
        assert len(refused.value.faults) == 1
        assert "\n" not in str(refused.value)
