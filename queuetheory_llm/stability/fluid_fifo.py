"""The queue of a first come, first served station as a fluid: a belt that carries work in the order in which it came.

A place v on the belt is the work, in seconds, that came before it (an initial queue included). What lies at v is a
mixture of classes, in tasks per second of work; the station is at place S, which moves by one second of work per second
while there is any. What comes at time t lies at V(t) = S(t) + W(t), W the work in the queue, and so leaves at
t + W(t). In places instead of arrival times nothing is singular where nothing comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import numpy as np
from numpy.polynomial import chebyshev

from queuetheory_llm.arrays import Floats

_SAME = 1e-12  # relative difference of mixtures that are one
_NOTHING = 1e-9  # inflow, relative to the largest, that has no mixture: it comes when nothing comes


@attrs.frozen(eq=False)
class Stretch:
    """What lies on the belt up to ``end``: one mixture, or a mixture for each place.

    ``moved`` is the work in it that is not quite where it came: stretches were mixed.
    """

    end: float
    mixture: Floats | Callable[[float], Floats]
    moved: float = 0.0

    @property
    def constant(self) -> bool:
        """Whether it is one mixture."""
        return not callable(self.mixture)

    def at(self, place: float) -> Floats:
        """Tasks of each class of the station per second of work."""
        return self.mixture(place) if callable(self.mixture) else self.mixture

    def is_like(self, mixture: Floats) -> bool:
        """Whether it is this one mixture throughout."""
        if callable(self.mixture):
            return False
        return bool(np.abs(self.mixture - mixture).max() <= _SAME * np.abs(mixture).max())


@attrs.frozen(eq=False)
class Inflow:
    """What came into a queue during an interval.

    Attributes
    ----------
    mixture : array, or function of the work of the interval that came before
        Tasks per second of work.
    moved : float
        Seconds of work that are out of place in it.
    """

    mixture: Floats | Callable[[float], Floats]
    moved: float = 0.0


@attrs.define(eq=False)
class Belt:
    """The queue of one station.

    Every jump of the mixture that leaves a station makes one in what comes into those downstream, and so on round a
    loop: soon there would be more of them than can be followed. Neighbours are therefore mixed, class by class in the
    right amounts, as long as that moves less than ``resolution`` seconds of work about.

    Attributes
    ----------
    service : array
        m_k of the classes of the station, seconds.
    resolution : float
    place : float
        S, the work served since the queue last began.
    stretches : deque of Stretch
        In the order of service.
    """

    service: Floats
    resolution: float
    place: float = 0.0
    stretches: deque[Stretch] = attrs.field(factory=deque)

    @property
    def end(self) -> float:
        """V, the place where the next work will lie."""
        return self.stretches[-1].end if self.stretches else self.place

    def put(self, end: float, came: Inflow) -> None:
        """Add what came, up to a place."""
        begin = self.end
        if end <= begin:
            return
        last = self.stretches[-1] if self.stretches else None
        if callable(came.mixture):
            shape = came.mixture
            self.stretches.append(Stretch(end, lambda place: shape(place - begin), came.moved))
        elif last is not None and last.is_like(came.mixture):
            self.stretches[-1] = attrs.evolve(last, end=end)
        else:
            self._put_mixture(begin, end, came.mixture, came.moved)

    def _put_mixture(self, begin: float, end: float, mixture: Floats, moved: float) -> None:
        """As a stretch of its own, or mixed with the last; not with one that is being served."""
        last = self.stretches[-1] if len(self.stretches) > 1 else None
        if last is not None and not callable(last.mixture):
            length = begin - self.stretches[-2].end
            mixed = (last.mixture * length + mixture * (end - begin)) / (length + end - begin)
            both = moved + last.moved + length * float(self.service @ np.abs(mixed - last.mixture))
            if both <= self.resolution:
                self.stretches[-1] = Stretch(end, mixed, both)
                return
        self.stretches.append(Stretch(end, mixture, moved))

    def move(self, place: float, negligible: float) -> None:
        """Serve up to a place; the last stretch stays, since more may come behind it."""
        self.place = place
        while len(self.stretches) > 1 and self.stretches[0].end <= place + negligible:
            self.stretches.popleft()

    def clear(self) -> None:
        """The queue is empty."""
        self.place = 0.0
        self.stretches.clear()


def recorded(times: Floats, inflow: Floats, service: Floats, negligible: float) -> Inflow | None:
    """What came into a queue, from samples over time.

    Parameters
    ----------
    times : array, length 2 n + 1
        Seconds, Chebyshev points of the second kind.
    inflow : array, 2 n + 1 by classes
        Tasks per second.
    service : array
        m_k, seconds.
    negligible : float
        Seconds of work that may be out of place.

    Returns
    -------
    Inflow or None
        None where the polynomial through every other sample misses those between.
    """
    degree = len(times) // 2
    at = chebyshev.chebpts2(len(times))
    coefficients = chebyshev.chebint(chebyshev.chebfit(at, inflow, 2 * degree), lbnd=-1) * (times[-1] - times[0]) / 2
    came = chebyshev.chebval(at, coefficients).T  # tasks up to each time
    places = came @ service
    work, rates = float(places[-1]), inflow @ service
    some = rates > _NOTHING * rates.max()
    if work <= 0 or not some.any():
        return Inflow(np.zeros_like(service))
    mean, mixtures = came[-1] / work, inflow[some] / rates[some, None]
    moved = work * float((np.abs(mixtures - mean) @ service).max())
    if moved <= negligible:
        return Inflow(mean, moved)
    if not some.all() or (np.diff(places) <= 0).any():
        return None
    shares = 2 * places / work - 1
    shape = chebyshev.chebfit(shares[::2], mixtures[::2], degree)
    missed = np.abs(chebyshev.chebval(shares[1::2], shape).T - mixtures[1::2]) @ service
    if work * float(missed.max()) > negligible:
        return None
    return Inflow(lambda place: np.asarray(chebyshev.chebval(min(max(2 * place / work - 1, -1.0), 1.0), shape)))
