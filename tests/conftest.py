"""What the whole suite shares: the figures' backend, Hypothesis without a clock, and where the real data lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["MPLBACKEND"] = "Agg"  # before anything imports matplotlib: no window, whatever the machine has

# Two busy cores make a slow example, not a wrong one. All else is Hypothesis's own choice: with CI set it draws the
# same examples each time.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real traces, profiles and logs beside the repository; the test is skipped where there is none."""
    folder = Path(os.environ.get("QT_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there (QT_SHARED names another folder)")
    return folder
