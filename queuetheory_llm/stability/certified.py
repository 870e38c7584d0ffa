"""One certificate of stability for a network: by its loads, by a Lyapunov function, or group of stations by group.

Stations that routes connect both ways form a group. Where no route leads back from later groups to earlier ones, a
network is stable when each group is by itself, fed at the rates of the whole; so a Lyapunov function is only looked for
where a group has several stations, one of which has several classes. That also proves more: with two stations in a
group the piecewise-linear program is sharp, whatever surrounds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

import attrs

from queuetheory_llm.certificates.certificate import Certificate, certify
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.lyapunov import LyapunovPolicy
from queuetheory_llm.stability.network_topology import needs_proof
from queuetheory_llm.stability.piecewise_linear import piecewise_linear_function, weights
from queuetheory_llm.stability.quadratic import quadratic_function
from queuetheory_llm.stability.traffic import Traffic, components, load_certificate, load_proof, traffic

#: Classes of a group up to which a semidefinite program is solved: a few tenths of a second.
MOST_SEMIDEFINITE = 16
#: Classes of a group up to which programs with a functional for each class are solved: seconds. Beyond it they take
#: minutes, and only the program with a piece for each station is left.
MOST_PROGRAM = 60
#: The smallest largest load at which a program is solved.
LEAST_LOAD = Fraction(1, 1000)


class LyapunovFunction(Protocol):
    """A candidate: whether and how far it falls is computed exactly."""

    @property
    def kind(self) -> str:
        """What it is, for a person."""

    def reach(self, model: FluidModel) -> Fraction | None:
        """Factor on all arrival rates below which it proves stability; None where nothing arrives."""

    def certify(self, model: FluidModel) -> Certificate | None:
        """The certificate; None where the function need not fall."""


@attrs.frozen(kw_only=True)
class Group:
    """Stations that routes connect both ways, as a network of their own.

    Attributes
    ----------
    stations : tuple of int
    model : FluidModel
    """

    stations: tuple[int, ...]
    model: FluidModel


#: What finds a candidate for a model, or fails.
LyapunovProgram = Callable[[FluidModel], LyapunovFunction | None]


def lyapunov_programs(
    model: FluidModel, *, policy: LyapunovPolicy, most_pieces: int | None = None
) -> Iterator[LyapunovProgram]:
    """Programs of every kind for a model and its multiples, the cheaper ones first.

    Parameters
    ----------
    model : FluidModel
        Without joins; without priorities if the policy is "any".
    policy : {"any", "file"}
    most_pieces : int, optional
        Classes up to which a piece for each class is tried; absent: `MOST_PROGRAM`.
    """
    for w in weights(len(model.stations)):
        yield partial(piecewise_linear_function, w=w, pieces="stations")
    if len(model.classes) > MOST_PROGRAM:
        return
    yield partial(quadratic_function, form="nonnegative")
    if policy == "file" and (most_pieces is None or len(model.classes) <= most_pieces):
        for w in weights(len(model.classes)):
            yield partial(piecewise_linear_function, w=w, pieces="classes")
    if len(model.classes) <= MOST_SEMIDEFINITE:
        yield partial(quadratic_function, form="copositive")


def open_groups(model: FluidModel, solved: Traffic) -> tuple[Group, ...]:
    """Groups whose stability is not a matter of their loads; see `network_topology.needs_proof`."""
    groups = (stations for stations in components(model) if needs_proof(model, stations))
    return tuple(Group(stations=each, model=model.restricted(each, solved.rates)) for each in groups)


def first_certificate(model: FluidModel, *, policy: LyapunovPolicy) -> Certificate | None:
    """That of the first function that falls.

    What falls at higher rates falls at lower ones. It is looked for at loads that do not vanish beside 1, for solvers
    take numbers as small as theirs for nothing.
    """
    busier = _busier(model)
    found = (program(busier) for program in lyapunov_programs(model, policy=policy))
    proofs = (each.certify(model) for each in found if each is not None)
    return next((each for each in proofs if each is not None), None)


def _busier(model: FluidModel) -> FluidModel:
    """The model with its rates raised to a load of `LEAST_LOAD`, unless it is as large already or 0."""
    load = max(traffic(model).loads, default=LEAST_LOAD)
    return model if load >= LEAST_LOAD or not load else model.scaled(LEAST_LOAD / load)


def compose(model: FluidModel, solved: Traffic, parts: Sequence[tuple[Group, Certificate]]) -> Certificate:
    """The certificate of the network from those of all its open groups; every load is below 1."""
    if not parts:
        return load_certificate(model, solved)
    if len(parts) == 1 and len(parts[0][0].stations) == len(model.stations):
        return certify(parts[0][1].kind, model.to_dict(), parts[0][1].proof)
    proved = {group.stations: part for group, part in parts}
    entries: list[dict[str, Any]] = []
    for stations in components(model):
        part = proved.get(stations)
        entries.append(
            {
                "stations": [model.stations[s] for s in stations],
                "kind": None if part is None else part.kind,
                "proof": None if part is None else part.proof,
            }
        )
    return certify("composition", model.to_dict(), {**load_proof(model, solved), "components": entries})
