"""Virtual stations: the definition by brute force, the textbook networks, and what a load above 1 does."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest
from fluid_models import (
    ENTRY,
    EXIT,
    FIRST_BUFFER,
    LAST_BUFFER,
    fluid_model,
    lu_kumar,
    random_lines,
    random_network,
    rybko_stolyar,
    tenths,
)

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.fluid_path import growing_path
from queuetheory_llm.stability.traffic import traffic
from queuetheory_llm.stability.virtual_stations import virtual_stations
from queuetheory_llm.verdict import Verdict


def network(seed: int, *, classes: int) -> FluidModel:
    if seed % 2:
        return random_network(seed, stations=2, classes=classes)
    return random_lines(seed, classes=classes)


def subsets(classes: tuple[int, ...]) -> Iterator[frozenset[int]]:
    for size in range(1, len(classes) + 1):
        yield from map(frozenset, combinations(classes, size))


def is_virtual(model: FluidModel, chosen: dict[int, frozenset[int]]) -> bool:
    """The definition, word for word; ``chosen`` holds the classes at each of the two stations."""
    for s, t in permutations(chosen):
        order = model.priority[t]
        lowest = max(order.index(k) for k in chosen[t])
        for k in chosen[s]:
            if model.arrival[k] > 0:
                return False
            for source, _ in model.predecessors[k]:
                below = model.station[source] == t and order.index(source) > lowest
                if source not in chosen[s] and not below:
                    return False
    return True


def heaviest(model: FluidModel) -> Fraction:
    """The largest load of a virtual station of stations 0 and 1 by trying all sets; 0 where there is none."""
    work = [rate * mean for rate, mean in zip(traffic(model).rates, model.service, strict=True)]
    found = [Fraction(0)]
    for first, second in product(subsets(model.at(0)), subsets(model.at(1))):
        takes_part = any(work[k] for k in first) and any(work[k] for k in second)
        if takes_part and is_virtual(model, {0: first, 1: second}):
            found.append(sum((work[k] for k in first | second), Fraction(0)))
    return max(found)


def load_of(model: FluidModel, policy: str) -> Fraction:
    found = virtual_stations(model, traffic(model), policy)  # type: ignore[arg-type]
    return found[0].load if found else Fraction(0)


@pytest.mark.parametrize("seed", range(60))
def test_given_priorities_against_all_sets(seed: int) -> None:
    model = network(seed, classes=7)
    assert load_of(model, "file") == heaviest(model)


@pytest.mark.parametrize("seed", range(50))
def test_worst_priorities_against_all_orders(seed: int) -> None:
    model = network(seed, classes=6)
    orders = product(*(permutations(model.at(s)) for s in range(2)))
    worst = max(heaviest(model.with_priority(each)) for each in orders)
    if worst >= max(traffic(model).loads):
        assert load_of(model, "any") == worst
    else:  # it restricts less than the station itself, and may be left out
        assert load_of(model, "any") in (0, worst)


def test_random_networks_have_virtual_stations_at_all() -> None:
    models = [network(seed, classes=7) for seed in range(60)]
    assert sum(load_of(model, "file") > 0 for model in models) >= 5
    assert sum(load_of(model, "any") > max(traffic(model).loads) for model in models) >= 3


def test_the_worst_priorities_are_named_and_have_it() -> None:
    for seed in range(60):
        model = network(seed, classes=7)
        for found in virtual_stations(model, traffic(model), "any"):
            assert load_of(found.model, "file") == found.load
            assert found.text.startswith("with priority to ")


def test_rybko_stolyar_in_words() -> None:
    model = load_network("rybko-stolyar").fluid_model
    (found,) = virtual_stations(model, traffic(model), "file")
    assert found.classes == ("B2", "A2")
    assert found.load == Fraction(6, 5)
    assert found.text == (
        "B2 at s1 and A2 at s2 are never served together: while B2 is there A1, which feeds A2, waits, and the other "
        "way round; together they need 1.2 seconds a second"
    )
    certificate = found.certificate()
    assert certificate is not None
    assert certificate.verdict is Verdict.UNSTABLE


def test_batches_are_not_interrupted_so_engines_have_them_in_the_fluid_model_only() -> None:
    model = load_network("rybko-stolyar-llm").fluid_model
    (found,) = virtual_stations(model, traffic(model), "file")
    assert found.load == Fraction(9, 10) * 1088 / 608
    assert "(in the fluid model)" in found.text
    assert found.certificate() is None
    assert growing_path(model) is not None


@pytest.mark.parametrize(
    "model",
    [
        rybko_stolyar(tenths(1, 6, 1, 6), ENTRY),
        rybko_stolyar(tenths(1, 6, 1, 6), None),
        lu_kumar(tenths(1, 6, 1, 6), FIRST_BUFFER),
        lu_kumar(tenths(1, 6, 1, 6), LAST_BUFFER),
    ],
)
def test_good_priorities_have_none_and_the_worst_have_one(model: FluidModel) -> None:
    assert virtual_stations(model, traffic(model), "file") == ()
    assert load_of(model, "any") == Fraction(6, 5)


def test_a_load_of_1_or_less_proves_nothing() -> None:
    model = rybko_stolyar(tenths(1, 6, 1, 6), EXIT).scaled(Fraction(10, 12))
    (found,) = virtual_stations(model, traffic(model), "file")
    assert found.load == 1
    assert found.certificate() is None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("policy", ["file", "any"])
def test_feed_forward_networks_have_none(seed: int, policy: str) -> None:
    assert load_of(random_network(seed, classes=8, feed_forward=True), policy) == 0


def test_a_class_no_task_reaches_is_no_part_of_one() -> None:
    # k1 is fed by k0 at the other station, and k3 by k2, to which nothing comes.
    model = fluid_model([0, 1, 1, 0], [1, 0, 0, 0], tenths(1, 6, 1, 6), [(0, 1, 1), (2, 3, 1)], [(3, 0), (1, 2)])
    for policy in ("file", "any"):
        assert load_of(model, policy) == 0


def test_unknown_policies_are_refused() -> None:
    model = rybko_stolyar(tenths(1, 6, 1, 6))
    with pytest.raises(InvalidInput, match="policy: 'best'"):
        virtual_stations(model, traffic(model), "best")  # type: ignore[arg-type]
