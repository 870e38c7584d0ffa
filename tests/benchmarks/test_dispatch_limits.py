"""Limits of HEXGEN-FLOW's score to 1 % beside their closed forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuetheory_llm.model.arrivals import ExponentialInterval
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.model.workflow import Stage, Workflow
from queuetheory_llm.simulation.dispatch_limits import simulated_limit
from queuetheory_llm.stability.paper_score_limit import paper_score_limit

Figure = Callable[[str], None]
WIDTH = 0.01


@pytest.mark.parametrize("reading", ["estimated", "true"])
@pytest.mark.parametrize("alpha", ["0", "0.5", "0.9", "0.99", "1"])
def test_the_score_of_the_paper(alpha: str, reading: str, figure: Figure) -> None:
    call = Stage(name="call", work=ExponentialInterval(mean=1))
    instances = [Instance(name="fast", speed=2), Instance(name="slow", speed=1)]
    system = WorkflowSystem(workflow=Workflow(stages=[call]), instances=instances)
    found = simulated_limit(system, f"hexgen-paper+alpha={alpha}+queue={reading}", width=WIDTH)
    exact = paper_score_limit(2, 1, alpha=alpha, reading=reading)
    figure(f"alpha {alpha}, t_queue {reading}: {float(found.low):.4f} .. {float(found.high):.4f}, exact {exact:.4f}")
    assert found.met
    assert found.low <= exact <= found.high
    assert found.rate == pytest.approx(exact, rel=WIDTH)
