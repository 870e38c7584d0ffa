"""Is this LLM serving system stable, how far from the edge, and what moves the edge.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "answer_region": "queuetheory_llm.stability.answers",
    "Engine": "queuetheory_llm.model.engine",
    "Staircase": "queuetheory_llm.model.batch_time",
    "Hinge": "queuetheory_llm.model.batch_time",
    "Table": "queuetheory_llm.model.batch_time",
    "Workload": "queuetheory_llm.model.workload",
    "RequestClass": "queuetheory_llm.model.workload",
    "load_model": "queuetheory_llm.files.model_file",
    "read_trace": "queuetheory_llm.files.traces.reader",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


__all__ = ["__version__", *_PUBLIC]
