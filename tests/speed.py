"""The load that speed is measured at, and the runner's call timed alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction

import attrs
import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from queuetheory_llm.model.arrivals import PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Policy
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.simulation import kernel
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.run import Run, watched
from queuetheory_llm.stability.thresholds import threshold

LAW = Staircase(c="30 ms", a="10 ms", b0=64)
PROMPT, OUTPUT = 512, 200


@attrs.frozen
class Load:
    """A rule that can run every prompt of the load: it splits them, or those beyond b_max are not drawn."""

    name: str
    b_max: int

    @property
    def rule(self) -> Policy:
        return parse_scheduler(self.name)

    @property
    def engine(self) -> Engine:
        return Engine(batch_time=LAW, b_max=self.b_max)

    @property
    def clock(self) -> Clock:
        return Clock.fit(generators(LAW, self.b_max), Fraction(10**8))

    def requests(self, count: int, rate: float, *, waiting: int = 0, seed: int = 0) -> Requests:
        """Poisson requests of geometric lengths, after ``waiting`` more that are there at the start."""
        rng = np.random.default_rng(seed)
        gaps = np.concatenate([np.zeros(waiting), rng.exponential(1 / rate, count)])
        prefill, decode = rng.geometric(1 / PROMPT, gaps.size), rng.geometric(1 / OUTPUT, gaps.size)
        while not self.rule.chunks and (beyond := np.flatnonzero(prefill > self.b_max)).size:
            prefill[beyond] = rng.geometric(1 / PROMPT, beyond.size)
        return Requests(arrival=np.rint(np.cumsum(gaps) * self.clock.rate), prefill=prefill, decode=decode)

    def threshold(self) -> float:
        """The rule's own limit in requests/s: in closed form where there is one, else within 1 % by bisection."""
        if self.rule.chunks:
            workload = Workload.of(prefill=Geometric(mean=PROMPT), decode=Geometric(mean=OUTPUT))
            found = threshold(self.engine, self.rule, workload.with_arrivals(PoissonArrivals(rate=1)))
            if found.exact:
                return float(found.low)
        low, high = 0.0, self.b_max / float(LAW.seconds(self.b_max)) / (PROMPT + OUTPUT)
        while high - low > high / 100:
            rate = (low + high) / 2
            low, high = (rate, high) if self._drains(rate) else (low, rate)
        return low

    def _drains(self, rate: float, waiting: int = 30_000) -> bool:
        """Whether a long backlog falls, which is seen after its prompts, once decodes are plentiful too."""
        done = kernel.run(self.engine, self.rule, requests := self.requests(200_000, rate, waiting=waiting), self.clock)
        backlog = done.series.backlog
        return bool(backlog[-1] < max(backlog[backlog.size // 2], requests.work[:waiting].sum() // 20))


LOADS = [
    load
    for name, rule in SCHEDULERS.items()
    for load in ([Load(name, 512)] if rule.chunks else [Load(f"{name}+chunk", 512), Load(name, 8192)])
]


def machine(load: Load, requests: Requests, until: int | None = None) -> kernel._Machine:
    """A run of the compiled kernel that only has to be advanced."""
    return kernel._Machine(load.engine, load.rule, requests, load.clock, until, watched(requests, until))


@attrs.frozen
class Timed:
    """The last of several rounds, and the least seconds: of the processor, and by the clock on the wall."""

    run: Run
    cpu: float
    wall: float


def timed(benchmark: BenchmarkFixture, prepare: Callable[[], kernel._Machine], rounds: int) -> Timed:
    """Time the kernel's call alone, once it is compiled; the benchmark's timer must be ``time.process_time``."""
    wall = []

    def advance(machine: kernel._Machine) -> kernel._Machine:
        start = time.perf_counter()
        machine.advance(log=False, progress=None)
        wall.append(time.perf_counter() - start)
        return machine

    last = benchmark.pedantic(advance, setup=lambda: ((prepare(),), {}), rounds=rounds, warmup_rounds=1)
    return Timed(last.result([]), benchmark.stats.stats.min, min(wall))
