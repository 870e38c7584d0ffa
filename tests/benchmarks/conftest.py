"""A table of figures at the end of the benchmarks: ours, the peer's or the allowed one, and their ratio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_FIGURES: list[str] = []


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Notes one line of the table."""
    return _FIGURES.append


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the lines; captured output of tests that pass would not be shown."""
    if _FIGURES:
        terminalreporter.section("figures")
        for line in _FIGURES:
            terminalreporter.line(line)
