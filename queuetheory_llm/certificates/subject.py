"""Whether what a certificate is about is the model of a file, and how the two differ where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from queuetheory_llm.exact.reading import text
from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.model.fluid_model import FluidModel


def difference(listed: Mapping[str, Any], *expected: Mapping[str, Any]) -> str | None:
    """How the model of a certificate that was accepted differs from what a file describes; None where it does not.

    Parameters
    ----------
    listed : mapping
        ``Certificate.model``.
    expected : mapping
        `FluidModel.to_dict` of a network, `engine_model` of an engine, `stability.cluster_capacity.cluster_model` of a
        workflow on a cluster; where a file describes several, one of them is enough. A file need not give a rate or
        mean lengths: of an engine, what only one of the two has is not compared.
    """
    alike = [model for model in expected if not set(listed).isdisjoint(model)]
    if not alike:
        return f"model: is that of {_kind(listed)}, the model file describes {_kind(expected[0])}"
    found = [_difference(listed, model) for model in alike]
    return None if None in found else found[0]


def _difference(listed: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    both = [key for key in listed if key in expected]
    if "stations" in both:
        return _of_networks(FluidModel.from_dict(listed), FluidModel.from_dict(expected))
    return _first({key: listed[key] for key in both}, {key: expected[key] for key in both})


def _kind(model: Mapping[str, Any]) -> str:
    kinds = {"stations": "a network", "engine": "an engine", "instances": "a cluster of instances"}
    return next((words for key, words in kinds.items() if key in model), "a scheduler")


def _of_networks(listed: FluidModel, expected: FluidModel) -> str | None:
    """Without priorities, whatever is proved holds in every order of service, in those of the file too."""
    if all(order is None for order in listed.priority):
        expected = expected.without_priorities()
    if set(listed.stations) < set(expected.stations) and set(listed.classes) < set(expected.classes):
        names = enumeration(listed.stations)
        return f"model: is {names} alone, a part of the network in the model file, with what the rest sends there"
    scale = _scale(listed, expected)
    if scale is not None:
        return f"model: the arrival rates are {text(scale)} times those of the model file; scale them there as well"
    return _first(listed.to_dict(), expected.to_dict())


def _scale(listed: FluidModel, expected: FluidModel) -> Fraction | None:
    """The factor on all external rates, if nothing else differs."""
    total = sum(expected.arrival, Fraction(0))
    factor = sum(listed.arrival, Fraction(0)) / total if total else Fraction(1)
    return factor if factor != 1 and listed == expected.scaled(factor) else None


def _first(listed: Any, expected: Any, where: str = "model") -> str | None:
    """Where and how two models in plain values differ first; None where they do not."""
    if isinstance(listed, Mapping) and isinstance(expected, Mapping):
        pairs = [(f"{where}.{key}", listed.get(key), expected.get(key)) for key in {**listed, **expected}]
    elif where in ("model.stations", "model.classes"):
        other = _other_names([each["name"] for each in listed], [each["name"] for each in expected])
        if other is not None:
            return f"{where}: {other}"
        pairs = [(f"{where}[{ours['name']!r}]", ours, theirs) for ours, theirs in zip(listed, expected, strict=True)]
    elif isinstance(listed, list) and isinstance(expected, list) and len(listed) == len(expected):
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(listed, expected, strict=True))]
    else:
        return None if listed == expected else f"{where}: is {listed!r:.80}, not {expected!r:.80} as in the model file"
    found = (_first(ours, theirs, place) for place, ours, theirs in pairs)
    return next((each for each in found if each is not None), None)


def _other_names(listed: Sequence[str], expected: Sequence[str]) -> str | None:
    """How the names of stations or classes differ."""
    more, fewer = ([name for name in ours if name not in theirs] for ours, theirs in
                   ((listed, expected), (expected, listed)))  # fmt: skip
    if more:
        return f"has {enumeration(more)}, which the model file has not"
    if fewer:
        return f"lacks {enumeration(fewer)} of the model file"
    return None if list(listed) == list(expected) else "are in another order than in the model file"
