"""The version is written in three files, each read by another tool: they agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import queuetheory_llm

ROOT = Path(__file__).resolve().parents[2]


def test_pyproject_and_citation_have_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert project["version"] == queuetheory_llm.__version__
    assert f"version: {queuetheory_llm.__version__}" in citation
