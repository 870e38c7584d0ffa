"""Readers of batch-time profiles: one small module a format, one registry (`registry.FORMATS`)."""

from __future__ import annotations

from queuetheory_llm.files.profiles.registry import FORMATS, read_profile
from queuetheory_llm.files.profiles.selection import Gemm, Selection

__all__ = ["FORMATS", "Gemm", "Selection", "read_profile"]
