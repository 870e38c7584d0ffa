"""What every Lyapunov program of a fluid model is made of: a linear functional and how fast it can grow at most.

Along a fluid path of the network (Dai 1995; Stolyar 1995) a functional f.x changes at the rate

    f.alpha + sum_i T_i' c_i,   c_i = (sum_k P_ik f_k - f_i) / m_i,

where T_i' >= 0 is the effort that its station spends on class i. No station spends more than 1, so that the classes of
station s contribute at most r_s = max(0, max_i c_i). A station that is known to be busy spends exactly 1 on the classes
that it may then serve: r_s is the maximum over these, and may be negative. The programs find f in floating point; the
numbers that count are computed here again, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Matrix, Vector
from queuetheory_llm.model.fluid_model import FluidModel

if TYPE_CHECKING:
    from scipy.sparse import csr_array

#: "file": the priorities of the model; "any": every non-idling policy.
LyapunovPolicy = Literal["file", "any"]

#: Numbers of a proof are rounded to multiples of 1/GRID: finer than what HiGHS leaves open, coarser than a float.
GRID = 10**12

#: From so many variables on, the interior-point method (with crossover): the simplex method may take minutes there.
LARGE = 1000


@attrs.frozen
class Busy:
    """A station that spends all its effort, and the classes it then spends it on."""

    station: int
    served: tuple[int, ...]


def busy_stations(model: FluidModel) -> tuple[Busy, ...]:
    """For each station: while it has fluid, a non-idling policy serves any of its classes at full effort."""
    return tuple(Busy(s, model.at(s)) for s in range(len(model.stations)))


def busy_classes(model: FluidModel) -> tuple[Busy, ...]:
    """For each class: while it has fluid, its station serves at full effort, and no class of lower priority.

    Without priorities the station may serve any of its classes.
    """
    return tuple(Busy(s, model.not_below(k)) for k, s in enumerate(model.station))


def largest_rate(model: FluidModel, functional: Vector, busy: Busy) -> tuple[Fraction, Fraction]:
    """(f.alpha, sum_s r_s): what arrivals add to f.x per second, and the most that service adds while busy."""
    arrivals = sum((rate * f for rate, f in zip(model.arrival, functional, strict=True) if rate), Fraction(0))
    gain = [
        (sum((p * functional[to] for to, p in row), -functional[i]) / model.service[i])
        for i, row in enumerate(model.routing)
    ]
    idle = Fraction(0)
    served = sum(
        (
            max(gain[i] for i in busy.served) if s == busy.station else max([idle, *(gain[i] for i in model.at(s))])
            for s in range(len(model.stations))
        ),
        idle,
    )
    return arrivals, served


def _rates(model: FluidModel, functionals: Matrix, busy: Sequence[Busy]) -> list[tuple[Fraction, Fraction]]:
    """`largest_rate` of each; a station without classes is never busy and asks nothing."""
    return [largest_rate(model, f, each) for f, each in zip(functionals, busy, strict=True) if each.served]


def decay(model: FluidModel, functionals: Matrix, busy: Sequence[Busy]) -> Fraction:
    """eps: every functional falls at least so fast while its ``busy`` holds; negative or 0 where it need not fall."""
    return -max(arrivals + served for arrivals, served in _rates(model, functionals, busy))


def reach(model: FluidModel, functionals: Matrix, busy: Sequence[Busy]) -> Fraction | None:
    """Factor on all arrival rates below which every functional still falls; None where none bounds it.

    It is 0 or less where a functional does not fall even without arrivals.
    """
    rates = _rates(model, functionals, busy)
    if any(arrivals <= 0 and served >= 0 for arrivals, served in rates):
        return Fraction(0)
    return min((-served / arrivals for arrivals, served in rates if arrivals > 0), default=None)


def require_policy(policy: str) -> None:
    """Refuse a policy that is not known.

    Raises
    ------
    InvalidInput
    """
    if policy not in get_args(LyapunovPolicy):
        raise InvalidInput(f"policy: {policy!r} is not known; write {' or '.join(get_args(LyapunovPolicy))}")


@attrs.frozen(kw_only=True)
class DriftProgram:
    """maximise eps: every functional falls at the rate eps while its ``busy`` holds, its entries being variables.

    The variables are those of the functionals, numbered from 0, then r (one a functional and station), then eps. Time
    is counted in units of 1/(sum of the external rates), so that the numbers are of order 1 whatever the unit of the
    model.

    Attributes
    ----------
    model : FluidModel
    busy : sequence of Busy, length J
    entries : (J, K) integers
        The variable that is entry k of functional j.
    low : float
        Bounds of these variables: ``low`` .. 1.
    """

    model: FluidModel
    busy: Sequence[Busy]
    entries: Ints
    low: float

    @property
    def size(self) -> int:
        """Number of variables of the functionals."""
        return int(self.entries.max()) + 1

    @property
    def eps(self) -> int:
        """The number of the variable eps."""
        return self.size + len(self.busy) * len(self.model.stations)

    def drift_rows(self) -> csr_array:
        """Rows of A x <= 0: J rates with eps, then J*K bounds on r."""
        from scipy.sparse import coo_array

        model, stations = self.model, len(self.model.stations)
        unit = 1.0 / float(sum(model.arrival)) if any(model.arrival) else float(max(model.service))
        seconds = [float(mean) / unit for mean in model.service]
        arrival = [(k, float(rate) * unit) for k, rate in enumerate(model.arrival) if rate]
        routing = [[(to, float(p)) for to, p in row] for row in model.routing]
        cells: list[tuple[int, int, float]] = []
        row = len(self.busy)
        for j, busy in enumerate(self.busy):
            if not busy.served:
                continue
            entry, rate = self.entries[j], self.size + j * stations
            cells += [(j, entry[k], a) for k, a in arrival]
            cells += [(j, rate + s, 1.0) for s in range(stations)]
            cells.append((j, self.eps, 1.0))
            for i, s in enumerate(model.station):
                if s == busy.station and i not in busy.served:
                    continue
                cells += [(row, entry[to], p) for to, p in routing[i]]
                cells += [(row, entry[i], -1.0), (row, rate + s, -seconds[i])]
                row += 1
        rows, columns, values = (np.array(each) for each in zip(*cells, strict=True))
        return coo_array((values, (rows, columns)), shape=(row, self.eps + 1)).tocsr()

    def solve(self, more: csr_array | None = None) -> Floats | None:
        """The variables of the functionals at the optimum found by HiGHS; None where it finds none.

        Parameters
        ----------
        more : (n, m) sparse, optional
            Further rows A x <= 0; columns beyond eps are further free variables.
        """
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack

        rows = self.drift_rows()
        if more is not None:
            rows = csr_array(
                vstack([csr_array((rows.data, rows.indices, rows.indptr), (rows.shape[0], more.shape[1])), more])
            )
        width = rows.shape[1]
        low, high = np.full(width, -np.inf), np.full(width, np.inf)
        low[: self.size], high[: self.size] = self.low, 1.0
        rates = np.zeros((len(self.busy), len(self.model.stations)))
        rates[np.arange(len(self.busy)), [busy.station for busy in self.busy]] = -np.inf
        low[self.size : self.eps] = rates.ravel()
        cost = np.zeros(width)
        cost[self.eps] = -1.0
        found = linprog(
            cost,
            A_ub=rows,
            b_ub=np.zeros(rows.shape[0]),
            bounds=np.column_stack([low, high]),
            method="highs-ds" if width < LARGE else "highs-ipm",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        return None if found.x is None else np.asarray(found.x[: self.size], dtype=float)


def to_grid(values: Iterable[float]) -> list[int]:
    """Multiples of 1/GRID nearest to the values."""
    return [round(value * GRID) for value in values]
