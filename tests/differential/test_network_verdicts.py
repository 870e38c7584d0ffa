"""Verdicts by theorem against runs: what is proved stable is never measured unstable."""

from fractions import Fraction

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
def test_turns_of_several_classes_are_no_equal_shares(dispatch):
    """By turns, one engine gets every long call, half as many tokens again as it serves."""
    network, turns = alternating(dispatch), dispatch == "round-robin"
    answer = verify_stability(network)
    assert answer.judgement.verdict is (Verdict.UNDECIDED if turns else Verdict.STABLE)
    assert answer.traffic.loads == (Fraction(76, 100),)
    assert (simulate_network(network, horizon=40_000, seed=1).measured is Verdict.UNSTABLE) == turns


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
