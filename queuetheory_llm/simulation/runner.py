"""The runner for a rule: compiled for the policy space and for rules on arrays, plain Python for any other rule."""

from __future__ import annotations

from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.array_rule import ArrayRule
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.simulation import reference
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.requests import Requests, Ticks
from queuetheory_llm.simulation.run import Progress, Run


def run(
    engine: Engine,
    scheduler: Scheduler,
    requests: Requests,
    clock: Clock,
    *,
    until: int | None = None,
    log: bool = False,
    watch: Ticks | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run one engine under one rule; see `reference.run` for parameters and errors."""
    if isinstance(scheduler, Policy):
        from queuetheory_llm.simulation import kernel  # loads numba

        return kernel.run(engine, scheduler, requests, clock, until=until, log=log, watch=watch, progress=progress)
    if isinstance(scheduler, ArrayRule):
        from queuetheory_llm.simulation.general import run_general  # loads numba

        return run_general(engine, scheduler, requests, clock, until=until, log=log, watch=watch, progress=progress)
    return reference.run(engine, scheduler, requests, clock, until=until, log=log, watch=watch, progress=progress)
