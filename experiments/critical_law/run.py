"""Count the laws of the two scores of a measured verdict at the critical load.

    python experiments/critical_law/run.py [MILLIONS [SEED]]

There the excess is a reflected Brownian motion, in law |B| for a Brownian motion B; it is drawn exactly at the edges
of the windows. z is the score of growth and v the ratio of return of `queuetheory_llm.simulation.evidence`, computed
for many paths at a time and compared with the functions of that module on the first paths. 5 million paths take some
minutes on one core.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.simulation.evidence import (
    BATCH_MEANS,
    GROWTH,
    RATE,
    RETURN_LEVEL,
    WINDOWS,
    growth_score,
    ratio_needed,
    return_ratio,
)

Floats = NDArray[np.float64]

_PATHS = 5_000  # at a time


def paths(rng: np.random.Generator, count: int) -> Floats:
    """Reflected Brownian motions at the edges of the windows of the last three quarters, shape (count, WINDOWS + 1)."""
    steps = rng.standard_normal((count, WINDOWS * 4 // 3 + 1))
    return np.abs(np.cumsum(steps, axis=1))[:, -WINDOWS - 1 :]


def scores(level: Floats) -> tuple[Floats, Floats]:
    """z and v of every path."""
    errors = [np.sqrt(count * np.diff(level[:, :: WINDOWS // count]).var(axis=1, ddof=1)) for count in BATCH_MEANS]
    growth = (level[:, -1] - level[:, 0]) / np.maximum(*errors)
    return growth, level.var(axis=1) / np.square(np.diff(level)).sum(axis=1)


def require_same(level: Floats, growth: Floats, ratio: Floats) -> None:
    """The scores of the first paths must be those of the module."""
    for row in range(100):
        np.testing.assert_allclose(growth[row], growth_score(level[row], level[row]))
        np.testing.assert_allclose(ratio[row], return_ratio(level[row]))


def dependent_tail(growth: Floats, score: float) -> float:
    """Bound of P(mean of any number of z >= score) whatever their dependence: least of E(z - t)+ / (score - t)."""
    starts = np.arange(0.0, score - 0.05, 0.05)
    return min(float(np.maximum(growth - start, 0).mean()) / (score - start) for start in starts)


def main(millions: float, seed: int) -> None:
    """Draw, count, print."""
    rng = np.random.default_rng(seed)
    rounds = math.ceil(millions * 1e6 / _PATHS)
    growth, ratio = np.empty(rounds * _PATHS), np.empty(rounds * _PATHS)
    for index in range(rounds):
        level = paths(rng, _PATHS)
        part = slice(index * _PATHS, (index + 1) * _PATHS)
        growth[part], ratio[part] = scores(level)
        if not index:
            require_same(level, growth, ratio)
    print(f"{growth.size} paths, seed {seed}")
    print(f"growth: mean of z {growth.mean():.4f}, standard deviation {growth.std():.4f}")
    for share in (0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5):
        print(f"  P(z > {np.quantile(growth, 1 - share):.3f}) = {share:g}")
    for score in (3.92, 4.61, 5.0, GROWTH):
        seen = np.count_nonzero(growth > score)
        print(f"  z > {score:g} in {seen} paths; mean of any number of z: P < {dependent_tail(growth, score):.2g}")
    print(f"return: mean of {RATE}/v {(RATE / ratio).mean():.4f}")
    for share in (0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5):
        value = float(np.quantile(ratio, share))
        print(f"  P(v <= {value:.5f}) = {share:g}, bound exp(-{RATE}/v) = {math.exp(-RATE / value):.2g}")
    ordered = np.sort(ratio)
    bound = np.exp(-RATE / ordered)
    within = (bound < 0.4) & (np.arange(1, ordered.size + 1) >= 100)
    worst = float((np.arange(1, ordered.size + 1) / ordered.size / bound)[within].max())
    print(f"  P(v <= x)/bound is at most {worst:.3f} where the bound is below .4 and 100 paths or more are below x")
    seen = np.count_nonzero(ratio <= ratio_needed(1))
    print(f"  v <= {ratio_needed(1):.5f}, the level {RETURN_LEVEL:g}, in {seen} paths")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(float(arguments[0]) if arguments else 5, int(arguments[1]) if len(arguments) > 1 else 11)
