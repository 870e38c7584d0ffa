"""Exported chains in Storm, the probabilistic model checker: its long-run averages are the operator's.

stormpy (GPL) is no dependency; the test runs where it is installed.
"""

import numpy as np
import pytest
from exported import CHAINS, stationary

from queuetheory_llm.files.prism import export, labels, rewards

stormpy = pytest.importorskip("stormpy", minversion="2.0")


def long_run(model, questions, program=None):
    """Values in the initial state."""
    (start,) = model.initial_states
    properties = stormpy.parse_properties(";".join(questions), program)
    return [stormpy.model_checking(model, each, environment=precise()).get_value(start) for each in properties]


def precise():
    """State elimination, which is direct: what Storm iterates by default stops at 1e-6."""
    environment = stormpy.Environment()
    environment.solver().set_linear_equation_solver_type(stormpy.environments.EquationSolverType.ELIMINATION)
    return environment


@pytest.mark.parametrize("name", CHAINS)
def test_storm_finds_the_same_averages(name, tmp_path):
    chain = CHAINS[name]()
    law = stationary(chain.operator.matrix().toarray())
    earned, holds = rewards(chain), labels(chain.space)
    expected = [law @ values for values in [*earned.values(), *holds.values()]]
    questions = [*(f'R{{"{each}"}}=? [ LRA ]' for each in earned), *(f'LRA=? [ "{each}" ]' for each in holds)]

    export(tmp_path / "chain.prism", chain, title=name)
    program = stormpy.parse_prism_program(str(tmp_path / "chain.prism"))
    properties = stormpy.parse_properties(";".join(questions), program)
    model = stormpy.build_model(program, properties)
    np.testing.assert_allclose(long_run(model, questions, program), expected, rtol=1e-11, atol=1e-14)

    export(tmp_path / "chain.tra", chain, title=name)
    model = stormpy.build_model_from_explicit(tmp_path / "chain.tra", tmp_path / "chain.lab")
    assert model.nr_states == len(chain.space)
    found = long_run(model, questions[len(earned) :])
    np.testing.assert_allclose(found, expected[len(earned) :], rtol=1e-11, atol=1e-14)
    for which, mean in zip(earned, expected, strict=False):
        model = stormpy.build_model_from_explicit(
            tmp_path / "chain.tra", tmp_path / "chain.lab", state_rewards=tmp_path / f"chain.{which}.srew"
        )
        assert long_run(model, ["R=? [ LRA ]"]) == [pytest.approx(mean, rel=1e-11, abs=1e-14)]
