"""Small exact chains, in slots and in time, of every kind the export has to write."""

import numpy as np

import queuetheory_llm as qt
from queuetheory_llm.markov.explore import Limits, explore
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.schedulers.registry import parse_scheduler


def chain_of(engine, rule, workload, level):
    law = request_law(workload, memoryless=True, late=True)
    outcomes = Outcomes(engine=engine, scheduler=parse_scheduler(rule), law=law)
    space = explore(outcomes, workload.arrivals, level, Limits(10**6, 10**6))
    return Rewards(operator=Operator(space), arrivals=workload.arrivals, law=law)


def slotted(rule, prefill, decode, mean, *, law="bernoulli", b_max=2, k_max=None, level=30):
    engine = qt.Engine(batch_time=qt.Hinge(c="1 s", a="1 s", b0=1000), b_max=b_max, k_max=k_max)
    arrivals = qt.SlottedArrivals(slot="1 s", law=law, mean=mean)
    return chain_of(engine, rule, qt.Workload.of(prefill=prefill, decode=decode, arrivals=arrivals), level)


def timed(rule, prefill, decode, rate, *, b_max=3, k_max=2, level=24):
    engine = qt.Engine(batch_time=qt.Staircase(c="0.3 s", a="0.5 s", b0=2), b_max=b_max, k_max=k_max)
    arrivals = qt.PoissonArrivals(rate=rate)
    return chain_of(engine, rule, qt.Workload.of(prefill=prefill, decode=decode, arrivals=arrivals), level)


def mixed(low, high):
    return qt.Empirical(values=[low, high], weights=[2, 1])


CHAINS = {
    "slots, sarathi": lambda: slotted("sarathi", 2, 1, ".45"),
    "slots, vllm-vanilla": lambda: slotted("vllm-vanilla", 1, 1, ".5"),
    "slots, every slot one": lambda: slotted("sarathi", 1, 1, "1", b_max=3),
    "slots, Poisson": lambda: slotted("orca", 0, 1, "3", law="poisson", b_max=4),
    "slots, random lengths": lambda: slotted("fastertransformer", mixed(1, 2), mixed(0, 2), ".2", level=14),
    "time, sarathi": lambda: timed("sarathi", 1, 2, ".6"),
    "time, geometric": lambda: timed("vllm-chunked", 2, qt.Geometric(mean=2), ".3"),
    "time, random prompts": lambda: timed("sarathi", mixed(1, 3), qt.Geometric(mean=3), ".2"),
    "time, phases seen": lambda: timed("orca", mixed(0, 2), 1, ".5", level=6),
}


def stationary(matrix):
    """The stationary law of a dense matrix with one recurrent class, by plain linear algebra."""
    equations = matrix.T - np.eye(len(matrix))
    equations[0] = 1
    return np.linalg.solve(equations, np.eye(len(matrix))[0])
