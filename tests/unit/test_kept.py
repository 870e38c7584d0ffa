"""Machine code is kept on disk, and its absence is no error."""

import numpy as np
from numba.core import caching

from queuetheory_llm.kept import kept


def doubled(values):
    return values * 2


def test_code_is_kept_where_there_is_a_place(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    assert kept(doubled)(np.array([3])).tolist() == [6]
    assert list(tmp_path.rglob("*.nbi"))


def test_without_a_place_it_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert kept(doubled)(np.array([3])).tolist() == [6]
