"""Verdicts by theorem against runs: what is proved stable is never measured unstable."""

from fractions import Fraction

import numpy as np
import pytest
from networks import some_network

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.arrivals import DeterministicArrivals
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.network import ExternalArrivals, Network, Station, TaskClass
from queuetheory_llm.simulation.network_simulation import simulate_network
from queuetheory_llm.stability.networks import verify_stability
from queuetheory_llm.verdict import Basis, Verdict


def alternating(dispatch: str) -> Network:
    """Calls of 910 tokens and of 2 come by turns; two engines serve 100 tokens/s each, three quarters of which come."""
    engine = Engine(batch_time=Table(tokens=[100], seconds_at=[1]), b_max=100)
    return Network(
        stations=(Station(name="s", engines=(engine,) * 2, dispatch=dispatch),),
        classes=(
            TaskClass(name="A", station="s", prefill=900, decode=10),
            TaskClass(name="B", station="s", prefill=1, decode=1),
        ),
        arrivals=tuple(ExternalArrivals(task_class=name, arrivals=DeterministicArrivals(interval=6)) for name in "AB"),
    )


@pytest.mark.parametrize("dispatch", ["round-robin", "random", "token-queue"])
def test_every_class_is_shared_by_the_engines(dispatch):
    """One counter for both classes would send every long call to one engine, half as many tokens again as it serves."""
    network = alternating(dispatch)
    answer = verify_stability(network)
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.STABLE, Basis.THEOREM)
    assert answer.traffic.loads == (Fraction(76, 100),)
    assert simulate_network(network, horizon=40_000, seed=1).measured is not Verdict.UNSTABLE


def test_turns_load_every_engine_alike():
    """Each engine gets every second call of either class, 912 tokens every 12 s, and stays near empty."""
    horizon = 12_000
    run = simulate_network(alternating("round-robin"), horizon=horizon, seed=1).run
    assert np.abs(run.brought - 76 * horizon).max() <= 912
    assert run.series.work.max() < 4 * 912


def test_nothing_is_proved_of_the_fewest_tasks_but_overload():
    """Of two engines that serve 100 tokens/s each: 152 a second are UNDECIDED, 203 too much for any rule."""
    network = alternating("least-outstanding")
    judged = verify_stability(network).judgement
    assert judged.verdict is Verdict.UNDECIDED
    assert "levels the number of tasks and not their tokens" in judged.reason
    assert simulate_network(network, horizon=40_000, seed=1).measured is not Verdict.UNSTABLE
    over = verify_stability(network.scaled(Fraction(4, 3))).judgement
    assert (over.verdict, over.basis) == (Verdict.UNSTABLE, Basis.THEOREM)


def test_what_is_stable_by_theorem_is_not_measured_unstable():
    kept = 0
    for seed in range(150):
        network = some_network(seed)
        try:
            network = network.scaled(Fraction(4, 5) / max(verify_stability(network).traffic.loads))
        except InvalidInput:  # a slot has room for no more
            continue
        judged = verify_stability(network).judgement
        if (judged.verdict, judged.basis) != (Verdict.STABLE, Basis.THEOREM):
            continue
        kept += 1
        assert simulate_network(network, horizon=20_000, seed=seed).measured is not Verdict.UNSTABLE, seed
    assert kept > 30
