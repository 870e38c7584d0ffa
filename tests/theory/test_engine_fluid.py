"""The fluid limit of a scheduler on one engine: corners, emptying times, growth, against runs of the simulator."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

import queuetheory_llm as qt
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.registry import SCHEDULERS
from queuetheory_llm.stability.capacity import full_batch_rate
from queuetheory_llm.stability.classify import properties
from queuetheory_llm.stability.engine_fluid import engine_fluid, path_of_drifts
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.induced import DriftBounds, InducedDrifts
from queuetheory_llm.verdict import Verdict

ENGINE = qt.Engine(batch_time=qt.Staircase(c="10 ms", a="10 ms", b0=4), b_max=8)
WORK = qt.Workload.of(prefill=3, decode=4)


def drifts(interior, prompts=None, decodes=None) -> InducedDrifts:
    along = [None if value is None else DriftBounds(low=F(value), high=F(value)) for value in (prompts, decodes)]
    inner = tuple(DriftBounds(low=F(value), high=F(value)) for value in interior)
    return InducedDrifts(scheduler="none", rate=F(1), interior=inner, prompts=along[0], decodes=along[1])


def corners(path):
    return [(point.time, point.prefill, point.decode) for point in path.points]


class TestPathsOfDrifts:
    def test_through_the_interior_along_an_axis_to_empty(self):
        path = path_of_drifts(drifts((1, -2), prompts=-3), (F(2), F(4)))
        assert corners(path) == [(0, 2, 4), (2, 4, 0), (F(10, 3), 0, 0)]
        assert (path.end, path.emptying_time) == (FluidEnd.EMPTY, F(10, 3))

    def test_growth_along_an_axis(self):
        path = path_of_drifts(drifts((-1, 1), decodes=F(1, 2)), (F(3), F(0)))
        assert corners(path) == [(0, 3, 0), (3, 0, 3)]
        assert (path.end, path.slope, path.growth, path.emptying_time) == (
            FluidEnd.DIVERGING,
            (0, F(1, 2)),
            F(1, 2),
            None,
        )

    def test_the_interior_may_lead_outward(self):
        path = path_of_drifts(drifts((2, 1)), (F(0), F(5)))
        assert (path.end, path.slope, path.growth, len(path.points)) == (FluidEnd.DIVERGING, (2, 1), 3, 1)
        followed = path_of_drifts(drifts((2, 1)), (F(0), F(5)), F(10))
        assert corners(followed)[-1] == (10, 20, 15)
        assert followed.slope == (2, 1)

    def test_an_axis_that_repels_is_left(self):
        path = path_of_drifts(drifts((-1, 1), decodes=-1), (F(2), F(0)), F(3))
        assert corners(path) == [(0, 2, 0), (2, 0, 2), (3, 0, 1)]
        assert (path.end, path.growth) == (FluidEnd.HORIZON, -1)

    def test_both_backlogs_may_empty_at_once(self):
        path = path_of_drifts(drifts((-1, -1), prompts=-1, decodes=-1), (F(2), F(2)))
        assert corners(path) == [(0, 2, 2), (2, 0, 0)]
        assert path.end is FluidEnd.EMPTY

    def test_from_empty_an_unstable_rule_leaves(self):
        assert path_of_drifts(drifts((-1, -1), prompts=-1, decodes=3), (F(0), F(0))).slope == (0, 3)
        assert path_of_drifts(drifts((1, 1)), (F(0), F(0))).slope == (1, 1)

    def test_on_the_boundary_it_stays(self):
        path = path_of_drifts(drifts((1, -1), prompts=0), (F(1), F(1)))
        assert (path.end, path.growth, corners(path)[-1]) == (FluidEnd.CONSTANT, 0, (1, 2, 0))

    def test_an_unknown_sign_decides_nothing(self):
        found = drifts((1, -1))
        path = path_of_drifts(found, (F(1), F(1)))
        assert (path.end, path.growth, len(path.points)) == (FluidEnd.UNRESOLVED, None, 2)
        assert path.notes[-1] == "the drift from 2 prompt and 0 decode tokens on cannot be told from 0"


class TestSchedulers:
    @pytest.mark.parametrize("name", SCHEDULERS)
    def test_every_rule_answers_and_agrees_with_its_verdict(self, name):
        for rate in (10, 60):
            path = engine_fluid(ENGINE, name, WORK, (160, 240), rate=rate)
            ends = {Verdict.STABLE: FluidEnd.EMPTY, Verdict.UNSTABLE: FluidEnd.DIVERGING}
            assert path.end is ends[path.drifts.verdict]

    @pytest.mark.parametrize("name", SCHEDULERS)
    def test_rules_that_fill_empty_first(self, name):
        """Waiting prompts bring their decodes: W = Q_p (1 + m_d/m_p) + Q_d falls at F - L where batches are full."""
        rate, start = 20, (F(160), F(240))
        path = engine_fluid(ENGINE, name, WORK, start, rate=rate)
        fastest = (start[0] * F(7, 3) + start[1]) / (full_batch_rate(ENGINE) - rate * 7)
        if properties(SCHEDULERS[name]).work_conserving:
            assert float(path.emptying_time) == pytest.approx(float(fastest), rel=1e-7)
        else:
            assert path.emptying_time is None or float(path.emptying_time) > float(fastest) * (1 - 1e-9)

    def test_vanilla_vllm_first_turns_its_prompts_into_decodes(self):
        """Two prompts of 3 tokens a batch, 30 ms: each batch brings 8 decode tokens, and serves none."""
        path = engine_fluid(ENGINE, "vllm-vanilla", WORK, (36000, 0), rate=20)
        turn = path.points[1]
        assert turn.prefill == 0
        growth = turn.decode / turn.time
        assert float(growth) == pytest.approx(8 / 0.03, rel=1e-9)
        assert float(turn.time) == pytest.approx(36000 / (6 / 0.03 - 60), rel=1e-9)


class TestAnswers:
    @pytest.mark.parametrize(
        ("start", "options", "what"),
        [((1,), {"rate": 1}, "two numbers"), ((-1, 0), {"rate": 1}, "at least 0"), ((1, 1), {}, "rate: the workload"),
         ((1, 1), {"rate": 1, "horizon": 0}, "horizon: 0 s is not positive")],
    )  # fmt: skip
    def test_bad_input(self, start, options, what):
        with pytest.raises(InvalidInput, match=what):
            engine_fluid(ENGINE, "sarathi", WORK, start, **options)

    def test_plain_data(self):
        data = engine_fluid(ENGINE, "sarathi", WORK, (160, 240), rate=20).to_dict()
        assert (data["end"], data["growth"]) == ("EMPTY", 0)
        assert data["emptying_time_exact"] == "92/19"
        assert [set(point) for point in data["points"]] == [{"time", "prefill", "decode"}] * 3
