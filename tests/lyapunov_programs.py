"""Certificates of stability for tests: the first function of a kind that falls, and the proof of a whole network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from queuetheory_llm.certificates.certificate import Certificate
from queuetheory_llm.errors import CertificateRejected
from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import ExternalArrivals, Network, Route, Station, TaskClass
from queuetheory_llm.stability.certified import compose, first_certificate, open_groups
from queuetheory_llm.stability.lyapunov import LyapunovPolicy
from queuetheory_llm.stability.piecewise_linear import Pieces, PiecewiseLinear, piecewise_linear_function, weights
from queuetheory_llm.stability.quadratic import QuadraticForm, quadratic_function
from queuetheory_llm.stability.traffic import traffic

PIECES: dict[LyapunovPolicy, tuple[Pieces, ...]] = {"any": ("stations",), "file": ("stations", "classes")}


def piecewise_linear_functions(model: FluidModel, *, pieces: Pieces) -> Iterator[PiecewiseLinear]:
    """The optimum of the program for each W."""
    for w in weights(len(model.stations if pieces == "stations" else model.classes)):
        found = piecewise_linear_function(model, w, pieces=pieces)
        if found is not None:
            yield found


def piecewise_linear(model: FluidModel, *, policy: LyapunovPolicy) -> Certificate | None:
    """Of a piecewise-linear function, one for every policy first; None where none falls."""
    found = chain.from_iterable(piecewise_linear_functions(model, pieces=pieces) for pieces in PIECES[policy])
    certificates = (each.certify(model) for each in found)
    return next((each for each in certificates if each is not None), None)


def quadratic(model: FluidModel, *, policy: LyapunovPolicy, form: QuadraticForm = "nonnegative") -> Certificate | None:
    """Of a quadratic function; None where it does not fall."""
    subject = model if policy == "file" else model.without_priorities()
    found = quadratic_function(subject, form=form)
    return None if found is None else found.certify(subject)


def whole_certificate(model: FluidModel, *, policy: LyapunovPolicy) -> Certificate | None:
    """Of all groups of stations together, whatever the loads: it is the checker that refuses."""
    subject = model if policy == "file" else model.without_priorities()
    solved = traffic(subject)
    parts = []
    for group in open_groups(subject, solved):
        part = first_certificate(group.model, policy=policy)
        if part is None:
            return None
        parts.append((group, part))
    try:
        return compose(subject, solved, parts)
    except CertificateRejected:
        return None


def classical_network(model: FluidModel) -> Network:
    """Poisson arrivals and exponential services with the rates, means, routes and priorities of a model."""
    return Network(
        stations=tuple(
            Station(name=name, priority=None if order is None else tuple(model.classes[k] for k in order))
            for name, order in zip(model.stations, model.priority, strict=True)
        ),
        classes=tuple(
            TaskClass(name=name, station=model.stations[s], service=ExponentialInterval(mean=mean))
            for name, s, mean in zip(model.classes, model.station, model.service, strict=True)
        ),
        arrivals=tuple(
            ExternalArrivals(task_class=name, arrivals=PoissonArrivals(rate=rate))
            for name, rate in zip(model.classes, model.arrival, strict=True)
            if rate
        ),
        routes=tuple(
            Route(source=model.classes[k], to=(model.classes[to],), probability=share)
            for k, row in enumerate(model.routing)
            for to, share in row
        ),
    )
