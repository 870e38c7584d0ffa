"""Fitting batch-time laws to profiles: pure functions from a `Profile` to laws with their errors."""

from __future__ import annotations

from queuetheory_llm.fitting.fit import Fit, fit_profile
from queuetheory_llm.fitting.laws import LAWS, Candidate
from queuetheory_llm.fitting.steps import TileStep, tile_steps

__all__ = ["LAWS", "Candidate", "Fit", "TileStep", "fit_profile", "tile_steps"]
