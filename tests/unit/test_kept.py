"""Machine code is kept on disk, and its absence is no error."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit
from numba.core import caching

from queuetheory_llm.kept import code_digest, code_key, kept
from queuetheory_llm.simulation import cluster_kernel, dispatching


def doubled(values):
    return values * 2


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    return tmp_path


def test_code_is_kept_where_there_is_a_place(place):
    assert kept(doubled)(np.array([3])).tolist() == [6]
    assert list(place.rglob("*.nbi"))


def test_without_a_place_it_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert kept(doubled)(np.array([3])).tolist() == [6]


def written(text: str, name: str, **around: Any) -> Callable[..., Any]:
    """A function as if from another file."""
    space = dict(around)
    exec(text, space)
    return njit(space[name])


def calling(inner):
    def outer(value):
        return inner(value) + 1

    return outer


def test_a_change_of_what_is_compiled_in_is_seen(place):
    """The file of ``outer`` is the same, and so are its own code and the types."""
    for text, expected in (("value * 2", 7), ("value * 3", 10), ("value * 2", 7)):
        inner = written(f"def inner(value): return {text}", "inner")
        assert kept(calling(inner), of=(inner,))(3) == expected
    assert len(list(place.rglob("*.nbi"))) == 2


def test_what_has_no_name_for_others_is_not_kept(place):
    inner = written("def inner(value): return value * 2", "inner")
    assert kept(calling(inner), of=(inner, object()))(3) == 7
    assert not list(place.rglob("*.nbi"))


class Seen(NamedTuple):
    one: int
    other: int


class Swapped(NamedTuple):
    other: int
    one: int


def test_a_name_tells_the_code_of_rules_and_orders_and_the_fields_of_what_they_see():
    compiled_in = (*dispatching.CODE, cluster_kernel.choose_by, cluster_kernel.key_by, cluster_kernel.order_view_of)
    names = [code_digest(code_key(each)) for each in (*compiled_in, cluster_kernel.lift)]
    assert None not in names
    assert len(set(names)) == len(names)
    Swapped.__name__ = Seen.__name__
    assert code_key(Seen) != code_key(Swapped)
    views = [written("def f(a): return Seen(a, 1).one", "f", Seen=each) for each in (Seen, Swapped)]
    assert code_key(views[0]) != code_key(views[1])
