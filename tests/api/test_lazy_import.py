"""What an import costs and gives: no heavy library before it is used, every public name, every module by itself."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import queuetheory_llm
from queuetheory_llm.cli.main import COMMANDS

HEAVY = [
    "matplotlib",
    "numpy",
    "scipy",
    "pydantic",
    "pyarrow",
    "numba",
    "cvxpy",
    "clarabel",
    "sympy",
    "networkx",
    "pandas",
    "joblib",
    "dask",
]
MODULES = sorted(module.name for module in pkgutil.walk_packages(queuetheory_llm.__path__, "queuetheory_llm."))


def run(code: str) -> str:
    """Standard output of ``code`` in a fresh interpreter that turns every warning into an error."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def loaded_after(code: str) -> list[str]:
    """The heavy libraries that ``code`` loads."""
    report = f"import json, sys; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    last_line = run(f"{code}\n{report}").splitlines()[-1]
    return list(json.loads(last_line))


def test_the_probe_sees_a_heavy_library() -> None:
    assert loaded_after("import queuetheory_llm; queuetheory_llm.Workload") == ["numpy"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import queuetheory_llm") == []


def test_listing_the_public_names_loads_nothing_heavy() -> None:
    assert loaded_after("import queuetheory_llm; dir(queuetheory_llm)") == []


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(flag: str) -> None:
    assert loaded_after(f"from queuetheory_llm.cli.main import answer; assert answer([{flag!r}]) == 0") == []


def test_help_lists_every_command() -> None:
    text = run("from queuetheory_llm.cli.main import answer; answer(['--help'])")
    assert set(text.split()) >= set(COMMANDS)


@pytest.mark.parametrize("name", queuetheory_llm.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(queuetheory_llm, name) is not None
    assert name in dir(queuetheory_llm)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        queuetheory_llm.no_such_name  # noqa: B018


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_alone_without_warnings(module: str) -> None:
    assert run(f"import {module}") == ""
