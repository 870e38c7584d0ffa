"""Random small systems that have a stationary law, for the tests of exact chains."""

from fractions import Fraction
from unittest import mock

from systems import some_law

import queuetheory_llm as qt
from queuetheory_llm.errors import AssumptionViolated, InfeasibleRequest, NotConverged
from queuetheory_llm.markov import explore
from queuetheory_llm.markov.admission import judge_stability
from queuetheory_llm.markov.chain import exact_chain
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.markov.space import Sizes
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.verdict import Verdict


def some_lengths(rng):
    """Prompts and decodes of a few tokens: constant, of few values, memoryless; one or two classes."""

    def few(least):
        kind = rng.randrange(3)
        if kind == 0:
            return rng.randint(least, 4)
        if kind == 1:
            low = rng.randint(least, 2)
            return qt.Uniform(low=low, high=low + rng.randint(1, 2))
        values = sorted(rng.sample(range(least, 6), 2))
        return qt.Empirical(values=values, weights=[rng.randint(1, 4) for _ in values])

    def decode(least):
        if rng.random() < 0.35:
            return qt.Geometric(mean=rng.choice(["3/2", 2, 3, 5]))
        return few(least)

    def pair():
        least = rng.choice([0, 1, 1, 1])
        return qt.IndependentLengths(few(least), decode(0 if least else 1))

    if rng.random() < 0.25:
        return [qt.RequestClass(lengths=pair(), weight=rng.randint(1, 3), name=name) for name in "ab"]
    return [qt.RequestClass(lengths=pair())]


def some_rule(rng):
    """A rule of the registry, with flags now and then."""
    name = rng.choice(sorted(SCHEDULERS)) + rng.choice(["", "", "+chunk"])
    rule = parse_scheduler(name + rng.choice(["", "", "", "+target=3"]))
    if rule.chunks and rng.random() < 0.2:
        return parse_scheduler(f"{rule.name}+threshold={rng.randint(1, 3)}")
    return rule


def some_chain(rng, loads=(0.3, 0.85)):
    """(engine, rule, workload) with a stationary law; the load is within ``loads`` of a rate known to be stable."""
    while True:
        b_max = rng.randint(1, 7)
        slotted = rng.random() < 0.5
        law = Table(tokens=[b_max], seconds_at=[Fraction(1)]) if slotted else some_law(rng, b_max)
        engine = qt.Engine(batch_time=law, b_max=b_max, k_max=rng.choice([None, None, 1, 2, 4]))
        workload = qt.Workload(classes=tuple(some_lengths(rng)))
        kind = rng.choice(["bernoulli", "poisson"])
        rule = some_rule(rng)
        try:
            stable = _stable_rate(engine, rule, workload, slotted, kind)
        except (InfeasibleRequest, NotConverged, AssumptionViolated):
            continue
        rate = stable * Fraction(rng.uniform(*loads)).limit_denominator(1000)
        if slotted and kind == "bernoulli" and rate >= 1:
            kind = "poisson"
        arrivals = _arrivals(rate, slotted, kind)
        workload = workload.with_arrivals(arrivals)
        if judge_stability(engine, rule, workload).verdict is Verdict.STABLE:
            return engine, rule, workload


def some_solved_chain(rng, tolerance, memory="300 MB"):
    """((engine, rule, workload), chain): the first random system whose chain is small enough."""
    while True:
        system = some_chain(rng)
        try:
            return system, exact_chain(*system, tolerance=tolerance, memory=memory)
        except NotConverged:
            continue


class Counted(Sizes):
    """A request takes as much of the level whatever is left of it: levels are numbers of requests."""

    def size(self, left):  # noqa: ARG002
        return self.whole


def counted_chain(engine, rule, workload, most):
    """The chain that refuses what comes while ``most`` requests are present."""
    law = request_law(workload, memoryless=True, late=True)
    outcomes = Outcomes(engine=engine, scheduler=rule, law=law)
    limit = explore.sizes_of(outcomes, workload.arrivals).most
    with mock.patch.object(explore, "sizes_of", return_value=Counted(law=law, most=limit)):
        space = explore.explore_plainly(
            outcomes, workload.arrivals, most * law.mean_tokens, explore.Limits(10**6, 10**6)
        )
    return Rewards(operator=Operator(space), arrivals=workload.arrivals, law=law)


def _arrivals(rate, slotted, kind):
    return qt.SlottedArrivals(slot="1 s", law=kind, mean=rate) if slotted else qt.PoissonArrivals(rate=rate)


def _stable_rate(engine, rule, workload, slotted, kind):
    """A rate that theory calls stable; the induced chains help where no theorem does."""
    found = qt.threshold(engine, rule, workload)
    if found.low > 0:
        return Fraction(found.low)
    rate = Fraction(found.high) / 2
    low = qt.induced_threshold(
        engine, rule, workload.with_arrivals(_arrivals(min(rate, Fraction(1, 2)), slotted, kind))
    )
    return Fraction(low.low)
