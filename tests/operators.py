"""Chains for tests: toy systems, random systems, and any stochastic matrix as a chain of lines of one state."""

from fractions import Fraction

import numpy as np

import queuetheory_llm as qt
from queuetheory_llm.markov.explore import Limits, explore
from queuetheory_llm.markov.operator import Operator
from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.markov.space import Duration, Moves, Space
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import State

SLOT = qt.Hinge(c="1 s", a="1 s", b0=1000)


def slotted(prefill, decode, mean, law="bernoulli"):
    """One class of requests in slots of a second."""
    return qt.Workload.of(prefill=prefill, decode=decode, arrivals=qt.SlottedArrivals(slot="1 s", law=law, mean=mean))


def timed(prefill, decode, rate):
    """One class of requests, Poisson."""
    return qt.Workload.of(prefill=prefill, decode=decode, arrivals=qt.PoissonArrivals(rate=rate))


def chain(rule, b_max, workload, level, batch_time=SLOT, k_max=None):
    """The chain of an engine up to a level."""
    outcomes = Outcomes(
        engine=qt.Engine(batch_time=batch_time, b_max=b_max, k_max=k_max),
        scheduler=parse_scheduler(rule),
        law=request_law(workload, memoryless=True, late=True),
    )
    return Operator(explore(outcomes, workload.arrivals, level, Limits(10**6, 10**6)))


def written(matrix, known=None):
    """Any stochastic matrix as a chain: each state a line by itself, each entry a move."""
    rows, columns = np.nonzero(matrix)
    size = len(matrix)
    nothing = np.zeros(rows.size, dtype=np.int32)
    return Operator(
        Space(
            cores=[State(((state + 1, 0),)) for state in range(size)],
            first=np.arange(size + 1),
            known=np.zeros(size, dtype=np.int64) if known is None else np.asarray(known, dtype=np.int64),
            tokens=np.zeros(size),
            mean=1.0,
            level=1.0,
            moves=Moves(
                source=rows.astype(np.int32),
                target=columns.astype(np.int32),
                low=nothing,
                high=nothing,
                taken=nothing,
                chance=np.asarray(matrix[rows, columns], dtype=np.float64),
                tokens=nothing,
                duration=nothing,
            ),
            durations=(Duration(seconds=Fraction(1), arrivals=np.ones(1)),),
        )
    )


def random_matrix(rng, size, degree=4, cycle=True):
    """A sparse stochastic matrix; with a cycle through all states it is irreducible."""
    matrix = np.zeros((size, size))
    for row in range(size):
        matrix[row, rng.integers(0, size, degree)] = rng.exponential(size=degree) ** 3
        if cycle:
            matrix[row, (row + 1) % size] += 0.01
    return matrix / matrix.sum(axis=1, keepdims=True)


def law_of(matrix):
    """The stationary law of a small irreducible matrix of fractions, exactly."""
    size = len(matrix)
    rows = [[(matrix[j][i] - (i == j)) for j in range(size)] + [Fraction(0)] for i in range(size - 1)]
    rows.append([Fraction(1)] * (size + 1))
    for pivot in range(size):
        swap = next(row for row in range(pivot, size) if rows[row][pivot])
        rows[pivot], rows[swap] = rows[swap], rows[pivot]
        rows[pivot] = [entry / rows[pivot][pivot] for entry in rows[pivot]]
        for row in range(size):
            if row != pivot and rows[row][pivot]:
                rows[row] = [a - rows[row][pivot] * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    return [row[-1] for row in rows]


def systems(seed, number):
    """Random small systems, most of them stable: (operator at a level, the same at twice the level)."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        rule = str(rng.choice(["sarathi", "orca", "vllm-vanilla", "fastertransformer", "vllm-chunked"]))
        b_max = int(rng.integers(2, 5))
        prefill = int(rng.integers(0, b_max + 1))
        mean = int(rng.integers(2, 5))
        decode = qt.Geometric(mean=mean) if rng.random() < 0.5 else int(rng.integers(1, 3))
        rate = Fraction(int(rng.integers(1, 10)), 10) * b_max / (prefill + mean) / 2
        if rng.random() < 0.5:
            workload = timed(prefill, decode, rate)
            law = qt.Staircase(c="0.2 s", a="0.5 s", b0=2)
        else:
            workload, law = slotted(prefill, decode, min(rate, Fraction(9, 10)), "bernoulli"), SLOT
        level = int(rng.integers(3, 6)) * (prefill + mean)
        yield chain(rule, b_max, workload, level, law), chain(rule, b_max, workload, 2 * level, law)
