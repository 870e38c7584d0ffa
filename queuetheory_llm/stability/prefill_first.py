"""Rules that run prompts first and never mix, with constant prompts and Poisson arrivals.

With decodes always waiting, the engine alternates between one full decode batch, run when no prompt waits, and a busy
period of prefill batches. Let h(u) be the mean length of the busy period that starts with u units of prefill waiting
(whole prompts, or tokens where prompts are split) and x(u) the units its first batch serves:

    h(0) = 0,   h(u) = t(x) + sum_j P(j arrivals in t(x)) h(u - x + j v),

v the units of a prompt. Decodes are then served at r(rate) = y/(t(y) + E[h(arrivals during t(y))]) tokens per second,
y = min(b_max, k_max), and the system is stable exactly when rate * m_d < r(rate).

Where t does not decrease in b, more work or more arrivals never shorten a busy period (coupling), so r decreases and
the stable rates are an interval. Measured tables need not be so; there the rates are searched for every crossing.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.model.chances import poisson_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.stability.rounds import saturated_prefill_rate

_TOLERANCE = 1e-9  # of the decode rate without prompts
_MOST_STATES = 33_000  # a second of sparse solves
_MOST_ARRIVALS = 10_000
_SCAN = 64  # rates looked at for crossings where t is not monotone


@attrs.frozen
class PrefillFirst:
    """An engine under a prefill-first, unmixed rule with constant prompts of ``prompt`` >= 1 tokens."""

    engine: Engine
    prompt: int
    chunks: bool

    @cached_property
    def prefill_rate(self) -> float:
        """Requests/s above which prefill alone does not keep up."""
        return float(saturated_prefill_rate(self.engine, self.prompt, chunks=self.chunks)[0])

    @property
    def decode_batch(self) -> int:
        """Tokens of a full decode batch."""
        return self.engine.slots

    @property
    def first_states(self) -> int:
        """States to begin with; doubled until the answer stands still. A lone prompt has to be inside."""
        return 2 * max(self.engine.b_max, self.prompt) if self.chunks else 64

    def decode_rate(self, rate: float) -> float:
        """r(rate): decode tokens per second left by prompts at ``rate`` requests/s, decodes always waiting.

        The number of states is doubled until r moves by less than 1e-9 of its value without prompts.

        Raises
        ------
        NotConverged
            When the states or the arrivals during one batch are too many.
        """
        states, before = self.first_states, np.inf
        while not self.agree(value := self.decode_rate_with(rate, states), before):
            before, states = value, 2 * states
        return value

    def agree(self, first: float, second: float) -> bool:
        """Whether doubling the states no longer moved r."""
        return abs(first - second) <= _TOLERANCE * self.decode_rate_with(0.0, self.first_states)

    def decode_rate_with(self, rate: float, states: int) -> float:
        """r(rate) from a chain cut at ``states`` states."""
        if states > _MOST_STATES:
            raise NotConverged(f"prefill at {rate:.6g} requests/s needs more than {_MOST_STATES} states")
        full = float(self.engine.batch_time.seconds(self.decode_batch))
        if rate <= 0:
            return self.decode_batch / full
        if rate >= self.prefill_rate:
            return 0.0
        if rate * max(full, float(self.engine.batch_time.seconds(self.engine.b_max))) > _MOST_ARRIVALS:
            raise NotConverged(f"more than {_MOST_ARRIVALS} prompts arrive during one batch at {rate:.6g} requests/s")
        starts = poisson_law(rate * full)
        busy = self._busy_periods(rate, states)
        return self.decode_batch / (full + float(starts @ self._extended(busy, rate, len(starts))))

    @property
    def _unit(self) -> int:
        """Units a prompt brings: its tokens where prompts are split, else one."""
        return self.prompt if self.chunks else 1

    def _slope(self, rate: float) -> float:
        """Seconds a unit adds to a long busy period: every batch is full, the drift is constant."""
        return 1 / (self._unit * (self.prefill_rate - rate))

    def _extended(self, busy: NDArray[np.float64], rate: float, prompts: int) -> NDArray[np.float64]:
        """h after 0, 1, ..., ``prompts`` - 1 prompts arrived at an engine without prefill."""
        waiting = self._unit * np.arange(prompts)
        beyond = -(-np.maximum(waiting - (len(busy) - 1), 0) // self._unit)
        inside = busy[waiting - self._unit * beyond]
        return np.asarray(inside + self._slope(rate) * self._unit * beyond)

    def _served(self, waiting: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Units and tokens that a batch serves with ``waiting`` >= 1 units of prefill."""
        engine, slots = self.engine, self.engine.slots
        if not self.chunks:
            prompts = np.minimum(waiting, min(engine.b_max // self.prompt, slots))
            return prompts, prompts * self.prompt
        head = (waiting - 1) % self.prompt + 1
        tokens = np.minimum(np.minimum(waiting, engine.b_max), head + (slots - 1) * self.prompt)
        return tokens, tokens

    def _busy_periods(self, rate: float, states: int) -> NDArray[np.float64]:
        """h(0..states - 1).

        Far up every batch is full and h grows by t/(drift of the backlog) a unit. Arrivals beyond the last state are
        therefore brought back by whole prompts, each worth that slope times its units: the error of the cut decays
        geometrically in ``states``, however close prefill is to saturation.
        """
        from scipy.sparse import csr_array, eye_array
        from scipy.sparse.linalg import spsolve

        unit, slope = self._unit, self._slope(rate)
        waiting = np.arange(1, states)
        units, tokens = self._served(waiting)
        seconds = self.engine.batch_time.seconds_array(tokens)
        cost = seconds.copy()
        rows, columns, chances = [], [], []
        for duration in np.unique(seconds):
            law = poisson_law(rate * duration)
            which = np.flatnonzero(seconds == duration)
            target = (waiting - units)[which, None] + unit * np.arange(len(law))
            beyond = -(-np.maximum(target - (states - 1), 0) // unit)
            cost[which] += slope * unit * (beyond @ law)
            rows.append(np.repeat(which, len(law)))
            columns.append((target - unit * beyond).ravel())
            chances.append(np.tile(law, len(which)))
        row, column, chance = (np.concatenate(part) for part in (rows, columns, chances))
        inside = column > 0
        moves = csr_array((chance[inside], (row[inside], column[inside] - 1)), shape=(states - 1, states - 1))
        solved = spsolve(eye_array(states - 1, format="csc") - moves.tocsc(), cost)
        return np.concatenate([[0.0], solved])


def stable_rates(engine: Engine, prompt: int, mean_decode: float, *, chunks: bool) -> tuple[float, float]:
    """Requests/s below which the rule is stable and above which it is unstable; equal where t is monotone.

    Parameters
    ----------
    engine : Engine
    prompt : int
        Tokens of every prompt, at least 1.
    mean_decode : float
        Mean decode tokens of a request.
    chunks : bool
        Whether prompts are split.

    Raises
    ------
    NotConverged
        See `PrefillFirst.decode_rate`.
    """
    system = PrefillFirst(engine, prompt, chunks)
    ceiling, full = system.prefill_rate, system.decode_rate(0.0)
    if mean_decode == 0:
        return ceiling, ceiling
    most = min(ceiling, full / mean_decode) * (1 - 1e-9)
    if not engine.batch_time.is_nondecreasing(engine.b_max):
        return _outermost_crossings(system, mean_decode, most)
    # Were every prefill batch full, prompts would take rate/ceiling of the time: nearly always an upper bracket.
    likely = 1 / (mean_decode / full + 1 / ceiling)
    root = _crossing(system, mean_decode, 0.0, (likely, most))
    return root, root


def _crossing(system: PrefillFirst, mean_decode: float, low: float, highs: tuple[float, ...]) -> float:
    """Where r(rate) meets rate * m_d, between ``low`` and the first of ``highs`` beyond it."""
    from scipy.optimize import brentq

    states = system.first_states
    while True:

        def spare(rate: float, states: int = states) -> float:
            return system.decode_rate_with(rate, states) - rate * mean_decode

        high = next((rate for rate in highs if spare(rate) <= 0), highs[-1])
        root = high if spare(high) > 0 else float(brentq(spare, low, high, xtol=1e-12, rtol=1e-10))
        value = system.decode_rate_with(root, states)
        states *= 2
        if system.agree(system.decode_rate_with(root, states), value):
            return root


def _outermost_crossings(system: PrefillFirst, mean_decode: float, most: float) -> tuple[float, float]:
    """First and last crossing seen on a grid of rates."""
    grid = np.linspace(0.0, most, _SCAN + 1)
    spare = np.array([system.decode_rate(rate) - rate * mean_decode for rate in grid])
    down = np.flatnonzero((spare[:-1] > 0) & (spare[1:] <= 0))
    if not down.size:
        return most, most
    first, last = (_crossing(system, mean_decode, float(grid[i]), (float(grid[i + 1]),)) for i in (down[0], down[-1]))
    return first, last
