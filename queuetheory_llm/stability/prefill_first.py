"""Rules that run prompts first and never mix, with constant prompts and Poisson arrivals.

With decodes always waiting, the engine alternates between one full decode batch, run when no prompt waits, and a busy
period of prefill batches. Let h(u) be the mean length of the busy period that starts with u units of prefill waiting
(whole prompts, or tokens where prompts are split) and x(u) the units its first batch serves:

    h(0) = 0,   h(u) = t(x) + sum_j P(j arrivals in t(x)) h(u - x + j v),

v the units of a prompt. Decodes are then served at r(rate) = y/(t(y) + E[h(arrivals during t(y))]) tokens per second,
y = min(b_max, k_max), and the system is stable exactly when rate * m_d < r(rate).
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.errors import NotConverged
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.stability.rounds import saturated_prefill_rate

_TOLERANCE = 1e-7  # relative, on the decode rate
_MOST_STATES = 33_000  # a second of sparse solves


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

        The number of states is doubled until r moves by less than 1e-7.

        Raises
        ------
        NotConverged
            When the states needed exceed 33 000.
        """
        states, before = self.first_states, 0.0
        while not _agree(value := self.decode_rate_with(rate, states), before):
            before, states = value, 2 * states
        return value

    def decode_rate_with(self, rate: float, states: int) -> float:
        """r(rate) from a chain cut at ``states`` states."""
        if states > _MOST_STATES:
            raise NotConverged(f"prefill at {rate:.6g} requests/s needs more than {_MOST_STATES} states")
        full = float(self.engine.batch_time.seconds(self.decode_batch))
        if rate <= 0:
            return self.decode_batch / full
        if rate >= self.prefill_rate:
            return 0.0
        starts = _poisson(rate * full)
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
            law = _poisson(rate * duration)
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


def _agree(first: float, second: float) -> bool:
    """Whether doubling the states no longer moved a rate."""
    return abs(first - second) <= _TOLERANCE * max(first, second)


def _poisson(mean: float) -> NDArray[np.float64]:
    """P(j arrivals), j = 0, 1, ..., cut where the tail is below 1e-17, and summing to 1."""
    from scipy.special import gammaln, xlogy

    counts = np.arange(int(mean + 12 * mean**0.5) + 41)
    law = np.exp(xlogy(counts, mean) - mean - gammaln(counts + 1))
    law = law[: np.flatnonzero(law > 1e-18)[-1] + 1]
    law[-1] += max(0.0, 1.0 - float(law.sum()))
    return np.asarray(law, dtype=np.float64)


@lru_cache(maxsize=4096)
def prefill_first_rate(engine: Engine, prompt: int, mean_decode: float, *, chunks: bool) -> float:
    """Largest stable requests/s: the root of rate * m_d = r(rate), which is unique because r decreases."""
    from scipy.optimize import brentq

    system = PrefillFirst(engine, prompt, chunks)
    ceiling = system.prefill_rate
    if mean_decode == 0:
        return ceiling
    full = system.decode_rate(0.0)
    # Were every prefill batch full, prompts would take rate/ceiling of the time: nearly always an upper bracket.
    likely, most = 1 / (mean_decode / full + 1 / ceiling), min(ceiling, full / mean_decode) * (1 - 1e-9)
    states = system.first_states
    while True:

        def spare(rate: float, states: int = states) -> float:
            return system.decode_rate_with(rate, states) - rate * mean_decode

        root = float(brentq(spare, 0.0, likely if spare(likely) <= 0 else most, xtol=1e-12, rtol=1e-10))
        states *= 2
        if _agree(system.decode_rate_with(root, states), root * mean_decode):
            return root
