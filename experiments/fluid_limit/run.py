"""How fast do scaled networks come to their fluid path? See README.md beside this file.

``python experiments/fluid_limit/run.py`` prints the table; with ``--write`` it also writes expected.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import attrs
import cyclopts
import numpy as np
from numpy.typing import NDArray

import queuetheory_llm as qt

EXPECTED = Path(__file__).with_name("expected.json")

MODEL, START = "rybko-stolyar", "A1"
#: Tasks at the start, and independent runs of each.
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
RUNS = 40
#: From here on the distance is small beside the path, and the rate is fitted.
LEAST = 10_000
#: End of the path in units of the scaled time, and equal parts of it at which it is compared.
END, PARTS = 3, 1_500

Floats = NDArray[np.float64]


def fluid() -> Floats:
    """The exact path from one unit at the start, at the edges of the parts; shape (classes, parts + 1)."""
    path = qt.fluid_path(qt.load_network(MODEL).fluid_model, {START: 1}, horizon=END)
    return np.array([[float(q) for q in path.at(Fraction(END * i, PARTS))] for i in range(PARTS + 1)]).T


def scaled(size: int, seed: int) -> Floats:
    """Q(n t)/n of one run from n tasks; shape (classes, parts + 1)."""
    watch = [Fraction(END * size * i, PARTS) for i in range(PARTS + 1)]
    found = qt.simulate_network(qt.load_network(MODEL), horizon=END * size, start={START: size}, watch=watch, seed=seed)
    return found.run.series.present / size


@attrs.frozen(kw_only=True)
class Distance:
    """Largest difference of a class over the whole path: mean over the runs, its standard error."""

    size: int
    mean: float
    error: float


def distance(size: int, runs: int, path: Floats) -> Distance:
    """Of ``runs`` independent runs from ``size`` tasks."""
    found = np.array([np.abs(scaled(size, seed) - path).max() for seed in range(1, runs + 1)])
    return Distance(size=size, mean=float(found.mean()), error=float(found.std(ddof=1) / np.sqrt(runs)))


def rate(distances: Sequence[Distance]) -> tuple[float, float]:
    """Slope of log distance against log n by weighted least squares, and its standard error."""
    x = np.log([each.size for each in distances])
    y = np.log([each.mean for each in distances])
    weight = np.array([(each.mean / each.error) ** 2 for each in distances])
    centred = x - np.average(x, weights=weight)
    spread = float((weight * centred**2).sum())
    return float((weight * centred * y).sum()) / spread, spread**-0.5


def main(*, write: bool = False) -> None:
    """Print the distances and the rate; with ``write`` keep them as expected.json."""
    path = fluid()
    distances = []
    for size in SIZES:
        distances.append(distance(size, RUNS, path))
        print(f"| {size} | {distances[-1].mean:.4f} | {distances[-1].error:.4f} |", flush=True)
    slope, error = rate([each for each in distances if each.size >= LEAST])
    print(f"distance ~ n^{slope:.3f} from n = {LEAST} on, standard error {error:.3f}")
    if write:
        rows = [attrs.asdict(each) for each in distances]
        EXPECTED.write_text(json.dumps({"distances": rows, "rate": slope, "error": error}, indent=1) + "\n")


if __name__ == "__main__":
    cyclopts.run(main)
