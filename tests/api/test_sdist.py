"""A source distribution holds what it takes to build, test and change the package."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_source_distribution_is_a_workplace():
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("not a source tree")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all(entry.startswith("/") and (ROOT / entry[1:]).exists() for entry in included)
    assert set(included) >= {"/Makefile", "/CONTRIBUTING.md", "/.ci", "/docs", "/tests", "/constraints.txt"}
