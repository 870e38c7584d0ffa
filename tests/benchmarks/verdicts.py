"""What a measured verdict must never say, at every run length: 20 seeds each at 10^4 to 10^7 batches.

    python tests/benchmarks/verdicts.py [MOST_BATCHES [SEEDS]]

CodeLlama-34B on one A100, b_max = 512, Poisson arrivals. Vanilla vLLM at 10.4 requests/s, .9 % below its threshold
10.497, is stable and must not be called UNSTABLE; sarathi at exactly its capacity must not be called STABLE; lognormal
lengths with cv 3 at .8 of it must not be called UNSTABLE. Prints one line a case and run length, and exits with 1 when
a verdict is wrong. The whole takes about half an hour on one core and 3 GB; tests/theory/test_critical_load.py is the
short form.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction

import attrs
import numpy as np

from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Geometric, LengthLaw, LogNormal
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import Requests
from queuetheory_llm.simulation.runner import run
from queuetheory_llm.simulation.statistics import Measured, measure
from queuetheory_llm.verdict import Verdict

CODELLAMA = Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=128), b_max=512)
FULL = 512 / CODELLAMA.batch_time.seconds(512)  # F = C, tokens/s
SLOT = Engine(batch_time=Table(tokens=[1], seconds_at=[1]), b_max=1)
HORIZONS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)


@attrs.frozen(kw_only=True)
class Case:
    """A system and the verdict no run of it may show; ``seconds`` is about the mean duration of its batches."""

    name: str
    engine: Engine
    rule: str
    prefill: LengthLaw
    decode: LengthLaw
    rate: Fraction | Callable[[Fraction], Fraction]
    seconds: float
    never: Verdict

    def measured(self, batches: int, seed: int) -> tuple[Measured, int]:
        """The verdict of one run of about so many batches, and their number."""
        workload = Workload.of(prefill=self.prefill, decode=self.decode)
        rate = self.rate if isinstance(self.rate, Fraction) else self.rate(Fraction(workload.mean_tokens))
        rng = np.random.default_rng([seed, batches])
        horizon = batches * self.seconds
        clock = Clock.fit(generators(self.engine.batch_time, self.engine.b_max), Fraction(horizon))
        until = clock.bound(Fraction(horizon))
        arrival = np.sort(rng.integers(0, until, rng.poisson(float(rate) * horizon)))
        prefill, decode = workload.sample(rng, arrival.size)
        requests = Requests(arrival=arrival, prefill=prefill, decode=decode)
        done = run(self.engine, parse_scheduler(self.rule), requests, clock, until=until)
        return measure(done), done.batches


HEAVY = {"prefill": LogNormal(scale_mean=129, cv=3), "decode": LogNormal(scale_mean=112, cv=3)}
PLAIN = {"prefill": Constant(129), "decode": Constant(112)}
RANDOM = {"prefill": Geometric(mean=129), "decode": Geometric(mean=112)}
STABLE, UNSTABLE = Verdict.STABLE, Verdict.UNSTABLE


def at(load: str) -> Callable[[Fraction], Fraction]:
    """The rate that brings a share of the capacity."""
    return lambda tokens: Fraction(load) * FULL / tokens


def case(name: str, rule: str, lengths: dict[str, LengthLaw], rate: object, seconds: float, never: Verdict) -> Case:
    """A case on the CodeLlama engine."""
    return Case(name=name, engine=CODELLAMA, rule=rule, rate=rate, seconds=seconds, never=never, **lengths)


CASES = (
    case("vllm-vanilla at 10.4", "vllm-vanilla", PLAIN, Fraction("10.4"), 0.122, UNSTABLE),
    case("vllm-vanilla at 10.6", "vllm-vanilla", PLAIN, Fraction("10.6"), 0.122, STABLE),
    case("sarathi, rho 1", "sarathi", PLAIN, at("1"), 0.153, STABLE),
    case("orca, rho 1, geometric", "orca", RANDOM, at("1"), 0.153, STABLE),
    case("sarathi, rho 1, cv 3", "sarathi", HEAVY, at("1"), 0.153, STABLE),
    case("sarathi, rho .8, cv 3", "sarathi", HEAVY, at("0.8"), 0.088, UNSTABLE),
    case("orca, rho .8, cv 3", "orca", HEAVY, at("0.8"), 0.088, UNSTABLE),
    case("vllm-vanilla+chunk, rho .6, cv 3", "vllm-vanilla+chunk", HEAVY, at("0.6"), 0.088, UNSTABLE),
    Case(
        name="M/D/1, rho 1", engine=SLOT, rule="sarathi", prefill=Constant(1), decode=Constant(0),
        rate=Fraction(1), seconds=1.0, never=STABLE,
    ),
)  # fmt: skip


def lines(most: int, seeds: int) -> Iterator[tuple[str, bool]]:
    """One line a case and run length, and whether a verdict was wrong."""
    for each in CASES:
        for batches in (horizon for horizon in HORIZONS if horizon <= most):
            began, found, reached, growth, ratio = time.monotonic(), Counter[str](), 0, -9.0, 9.0
            for seed in range(seeds):
                measured, count = each.measured(batches, seed)
                found[measured.verdict.value] += 1
                reached = max(reached, count)
                growth = growth if measured.growth is None else max(growth, measured.growth)
                ratio = ratio if measured.ratio is None else min(ratio, measured.ratio)
            wrong = found[each.never.value] > 0
            yield (
                f"{'WRONG' if wrong else 'right'}  {each.name:34} {reached:>9} batches  {dict(found)}  "
                f"largest growth {growth:.2f}, smallest ratio {ratio:.4f}  {time.monotonic() - began:.0f} s",
                wrong,
            )


def main(arguments: list[str]) -> int:
    """Run the cases; 1 when a verdict is wrong."""
    most = int(float(arguments[0])) if arguments else HORIZONS[-1]
    seeds = int(arguments[1]) if len(arguments) > 1 else 20
    failed = 0
    for line, wrong in lines(most, seeds):
        print(line, flush=True)
        failed += wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
