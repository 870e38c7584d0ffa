"""Traffic equations of 10 000 classes. Times are printed and recorded, never asserted; the answers are checked."""

import random
from fractions import Fraction

import pytest

from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.traffic import traffic

CLASSES, STATIONS = 10_000, 100


def tandem(_):
    return [[(k + 1, Fraction(1))] for k in range(CLASSES - 1)] + [[]]


def some(draw, targets):
    """Up to three ways on, and some tasks leave."""
    weights = {to: draw.randint(1, 9) for to in targets}
    total = sum(weights.values()) + draw.randint(0, 2)
    return [(to, Fraction(weight, total)) for to, weight in weights.items()]


def acyclic(draw):
    return [some(draw, [draw.randint(k + 1, CLASSES - 1) for _ in range(3)]) for k in range(CLASSES - 1)] + [[]]


def layered(draw):
    """Ways on lead to near classes only: exact rates would have thousands of digits, so they are enclosed."""
    near = [[min(CLASSES - 1, k + draw.randint(1, 20)) for _ in range(3)] for k in range(CLASSES - 1)]
    return [*(some(draw, targets) for targets in near), []]


def cyclic(_):
    """Pairs with retries, and half of what reaches the end begins again."""
    rows = [
        [(k + 1, Fraction(1))] if k % 2 == 0 else [(k - 1, Fraction(3, 10)), (k + 1, Fraction(7, 10))]
        for k in range(CLASSES - 1)
    ]
    return [*rows, [(CLASSES - 2, Fraction(3, 10)), (0, Fraction(1, 2))]]


def random_both_ways(draw):
    """One component without structure: elimination fills up, floats solve it."""
    return [some(draw, [draw.randint(0, CLASSES - 1) for _ in range(2)]) for _ in range(CLASSES)]


@pytest.mark.benchmark(group="traffic equations, 10 000 classes")
@pytest.mark.parametrize("shape", [tandem, acyclic, layered, cyclic, random_both_ways])
def test_traffic(benchmark, shape):
    model = FluidModel(
        stations=tuple(f"s{s}" for s in range(STATIONS)),
        classes=tuple(f"k{k}" for k in range(CLASSES)),
        station=tuple(k % STATIONS for k in range(CLASSES)),
        arrival=(Fraction(1), *[Fraction(0)] * (CLASSES - 1)),
        service=(Fraction(1, 100),) * CLASSES,
        routing=tuple(map(tuple, shape(random.Random(1)))),
        priority=(None,) * STATIONS,
        preemptive=(False,) * STATIONS,
    )
    found = benchmark.pedantic(traffic, (model,), rounds=3, warmup_rounds=1)
    print(f"\n{benchmark.name}: {benchmark.stats.stats.min * 1000:.0f} ms, {'exact' if found.exact else 'enclosed'}")
    assert all(b - a <= Fraction(1, 10**9) for a, b in zip(found.loads_low, found.loads_high, strict=True))
    assert found.exact or shape in (layered, random_both_ways)
