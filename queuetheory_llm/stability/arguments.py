"""Arguments that functions on networks share: what stands for a model, and numbers by the name of their argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, to_fraction, to_seconds
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.model.rate_profile import RateProfile

#: Fluid at time 0: one number a class, or a mapping of class names, of which those left out are empty.
Start = Sequence[Number] | Mapping[str, Number]


def to_fluid_model(model: FluidModel | Network) -> FluidModel:
    """What the fluid obeys; of a network, its fluid model.

    Raises
    ------
    InvalidInput
        If it is neither.
    """
    if isinstance(model, FluidModel):
        return model
    return require_network(model, "network or fluid model").fluid_model


def require_network(network: Network, what: str = "network") -> Network:
    """Refuse what is no network.

    Raises
    ------
    InvalidInput
    """
    if isinstance(network, Network):
        return network
    called = f"{network!r}" if isinstance(network, str) else f"a value of type {type(network).__name__}"
    raise InvalidInput(f"model: {called} is no {what}; read one with load_network(NAME), of a file or a packaged model")


def require_profile(profile: RateProfile) -> RateProfile:
    """Refuse what is no profile.

    Raises
    ------
    InvalidInput
    """
    if isinstance(profile, RateProfile):
        return profile
    raise InvalidInput(
        f"profile: a value of type {type(profile).__name__} is no profile; give RateProfile(times=..., values=...)"
    )


def read_number(where: str, value: Number, read: Callable[[Number], Fraction] = to_fraction) -> Fraction:
    """An exact number; what is wrong with it is said of ``where``.

    Raises
    ------
    InvalidInput
    """
    try:
        return read(value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {fault}" for fault in error.faults) from None


def read_horizon(value: Number) -> Fraction:
    """Seconds to follow a path, more than 0.

    Raises
    ------
    InvalidInput
    """
    seconds = read_number("horizon", value, to_seconds)
    if seconds <= 0:
        raise InvalidInput(f"horizon: {float(seconds):g} s is not positive; give the seconds to follow")
    return seconds


def read_state(model: FluidModel, state: Start) -> tuple[Fraction, ...]:
    """A state as exact numbers, one a class.

    Raises
    ------
    InvalidInput
        If it has the wrong length, names no class, or is negative.
    """
    if isinstance(state, Mapping):
        if unknown := [name for name in state if name not in model.classes]:
            known = ", ".join(model.classes)
            raise InvalidInput(f"start: {name!r} is no class; known: {known}" for name in unknown)
        state = [state.get(name, 0) for name in model.classes]
    if isinstance(state, str) or not hasattr(state, "__len__") or not hasattr(state, "__iter__"):
        raise InvalidInput(
            f"start: {state!r} holds no tasks by class; name the classes that are not empty, such as "
            f"{{{model.classes[0]!r}: 1}}"
        )
    if len(state) != len(model.classes):
        raise InvalidInput(f"start: {len(state)} numbers for {len(model.classes)} classes; give one a class")
    found = tuple(read_number(f"start: {name}", value) for name, value in zip(model.classes, state, strict=True))
    if negative := [(name, value) for name, value in zip(model.classes, found, strict=True) if value < 0]:
        raise InvalidInput(
            f"start: {name!r} holds {float(value):g} tasks; a class holds 0 or more" for name, value in negative
        )
    return found
