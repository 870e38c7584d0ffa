"""Limits of dispatch rules: closed forms against chains, and the search by simulation against closed forms."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from queuetheory_llm.dispatch.hexgen_paper import HEXGEN_PAPER
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.model.arrivals import ExponentialInterval
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.workflow import Retry, Stage, Workflow
from queuetheory_llm.simulation.dispatch_limits import simulated_limit
from queuetheory_llm.stability.paper_score_limit import paper_score_limit

WIDTH = 0.04


def servers(*speeds):
    call = Stage(name="call", work=ExponentialInterval(mean=1))
    each = [Instance(name=f"server{i}", speed=speed) for i, speed in enumerate(speeds)]
    return WorkflowSystem(workflow=Workflow(stages=[call]), instances=each)


class TestClosedForm:
    """HEXGEN-FLOW's score on exponential servers of speeds 2 and 1, beta = 1."""

    @pytest.mark.parametrize(
        ("alpha", "estimated", "true"),
        [("0", 3, 3), ("0.5", 2.9196, 2.9959), ("0.9", 2.7321, 2.8344), ("0.99", 2.7321, 2.7435), ("1", 2, 2)],
    )
    def test_known_limits(self, alpha, estimated, true):
        assert paper_score_limit(2, 1, alpha=alpha) == pytest.approx(estimated, abs=5e-5)
        assert paper_score_limit(2, 1, alpha=alpha, reading="true") == pytest.approx(true, abs=5e-5)

    @settings(max_examples=40)
    @given(
        fast=st.integers(5, 60),
        slow=st.integers(1, 4),
        alpha=st.fractions(min_value="1/50", max_value="49/50", max_denominator=50),
    )
    def test_it_is_the_loss_of_the_chain_that_the_rule_itself_makes(self, fast, slow, alpha):
        """The rule is asked where a call goes while the fast queue is endless; its chain is solved by elimination."""
        theta = (1 - alpha) / alpha / (Fraction(1, slow) - Fraction(1, fast))
        assume(theta * slow < 50)
        assume((theta * slow).denominator > 1)  # else floats decide a tie
        limit = paper_score_limit(fast, slow, alpha=alpha)
        places = 0
        while self.to_slow(fast, slow, float(alpha), places):
            places += 1
        generator = np.diag(np.full(places, limit), 1) + np.diag(np.full(places, float(slow)), -1)
        generator -= np.diag(generator.sum(axis=1))
        stationary = np.linalg.lstsq(
            np.vstack([generator.T, np.ones(places + 1)]), np.append(np.zeros(places + 1), 1), rcond=None
        )[0]
        assert limit * stationary[-1] == pytest.approx(fast, rel=1e-6)

    @settings(max_examples=40)
    @given(
        fast=st.fractions(min_value=2, max_value=60, max_denominator=12),
        slow=st.fractions(min_value="1/3", max_value="19/10", max_denominator=12),
        alpha=st.fractions(min_value="1/50", max_value="49/50", max_denominator=50),
    )
    def test_by_true_work_it_is_the_loss_over_a_busy_period(self, fast, slow, alpha):
        """Backward equations from work y to an empty slow server, beside an endless fast queue.

        u(y), the mean of what accrues until then, has u' = c + r (w - u) below theta, w(y) = E u(y + S), w' = mu (w -
        u) for exponential S; above, u' is d. Refusals have c = 0 and d = r, seconds c = d = 1. So w(theta) = u(theta) +
        d/mu, u(0) = 0, and a cycle, an idle time of 1/r and then u(S), refuses the share of its calls that is B.
        """
        fast, slow = float(fast), float(slow)
        low, high = 0.0, 1e9
        while high - low > 1e-9 * high:  # the rule itself is asked where its threshold is
            middle = (low + high) / 2
            low, high = (middle, high) if self.to_slow(fast, slow, float(alpha), middle * slow) else (low, middle)
        rate = paper_score_limit(Fraction(fast), Fraction(slow), alpha=alpha, reading="true")
        assume(low * rate < 15)  # the differences below lose exp(low * rate) of their digits

        def cycle(below, above):
            steps = expm(low * np.array([[-rate, rate, below], [-slow, slow, 0], [0, 0, 0]]))
            fixed, free = steps @ [0, 0, 1], steps @ [0, 1, 0]  # u and w at theta from u(0) = 0 and w(0)
            return (fixed[0] + above / slow - fixed[1]) / (free[1] - free[0])

        refused = cycle(0, rate) / (1 + rate * cycle(1, 1))
        assert rate * refused == pytest.approx(fast, rel=1e-6)

    @settings(max_examples=100)
    @given(
        fast=st.fractions(min_value="21/10", max_value=60, max_denominator=50),
        slow=st.fractions(min_value="1/50", max_value=2, max_denominator=50),
        alpha=st.one_of(
            st.fractions(min_value=0, max_value=1, max_denominator=50),
            st.integers(1, 250).map(lambda n: Fraction(1, 10**n)),
        ),
        reading=st.sampled_from(["estimated", "true"]),
    )
    def test_there_is_a_limit_between_the_fast_server_and_both(self, fast, slow, alpha, reading):
        limit = paper_score_limit(fast, slow, alpha=alpha, reading=reading)
        assert float(fast) <= limit <= float(fast + slow) * (1 + 1e-15)

    @staticmethod
    def to_slow(fast, slow, alpha, there):
        seconds = np.array([1 / fast, 1 / slow])
        view = DispatchView(
            stage=0,
            seconds=seconds,
            queued=np.array([1e12, there * seconds[1]]),
            outstanding=np.array([10**12, int(there)]),
            tokens=np.zeros(2),
            assigned=np.zeros(2),
            turn=0,
            shares=np.zeros(2),
            chance=0.0,
        )
        return HEXGEN_PAPER.choose(view, np.array([alpha, 1.0])) == 1

    @pytest.mark.parametrize("reading", ["estimated", "true"])
    def test_weight_on_t_comp_costs_capacity(self, reading):
        limits = [
            paper_score_limit(2, 1, alpha=alpha, reading=reading) for alpha in ("0.1", "0.3", "0.5", "0.7", "0.9")
        ]
        assert all(a >= b for a, b in itertools.pairwise(limits))
        assert 1 + math.sqrt(3) - 1e-9 <= limits[-1] < limits[0] <= 3

    def test_where_calls_join_only_an_idle_slow_server_the_readings_agree(self):
        """lambda^2/(1 + lambda) = 2 at 1 + sqrt(3)."""
        for reading in ("estimated", "true"):
            near_one = paper_score_limit(2, 1, alpha="0.9999999", reading=reading)
            assert near_one == pytest.approx(1 + math.sqrt(3), abs=1e-5)

    def test_bad_input(self):
        with pytest.raises(InvalidInput, match=r"alpha: 1.1 is outside 0 \.\. 1"):
            paper_score_limit(2, 1, alpha="1.1")
        with pytest.raises(InvalidInput) as caught:
            paper_score_limit(2, 0, alpha=0, beta=-1, reading="guessed")
        assert [fault.partition(":")[0] for fault in caught.value.faults] == ["slow", "beta", "reading"]
        with pytest.raises(AssumptionViolated, match="equal servers"):
            paper_score_limit(1, 1, alpha="0.5")


def unseated():
    """Two isolated-latency instances without a limit of seats."""
    laws = [LatencyLaw(per_prefill=f"{ms} ms", per_decode=1) for ms in (1, 2)]
    return WorkflowSystem(
        workflow=Workflow(stages=[Stage(name="call", prefill=1000, decode=50)]),
        instances=[Instance(name=f"instance{i}", latency=law) for i, law in enumerate(laws)],
    )


def found(rule, system=None, **options):
    return simulated_limit(servers(2, 1) if system is None else system, rule, **{"width": WIDTH, **options})


class TestSearch:
    """At 99 % both ends are right; the seed is fixed."""

    @pytest.mark.parametrize(("alpha", "reading"), [("0.9", "true"), ("0.9", "estimated"), ("1", "estimated")])
    def test_the_score_of_the_paper(self, alpha, reading):
        answer = found(f"hexgen-paper+alpha={alpha}+queue={reading}")
        assert answer.met
        assert answer.low <= paper_score_limit(2, 1, alpha=alpha, reading=reading) <= answer.high
        assert answer.high - answer.low <= WIDTH * answer.high

    @pytest.mark.parametrize("base", ["fast", "slow"])
    def test_the_released_score_is_a_fixed_split(self, base):
        """1/max f_m t_m, f_m proportional to W_m/t_m."""
        speeds, alpha = ((2, 1) if base == "fast" else (1, 2)), 0.5
        seconds = 1 / np.array(speeds)
        assigned = np.maximum(0, 1 + alpha / (1 - alpha) * (seconds[0] / seconds - 1))
        split = assigned / seconds / (assigned / seconds).sum()
        answer = found(f"hexgen-released+alpha={alpha}", servers(*speeds))
        assert answer.met
        assert answer.low <= 1 / (split * seconds).max() <= answer.high

    def test_a_rule_that_wastes_nothing_reaches_the_capacity(self):
        answer = found("random-proportional")
        assert answer.high == answer.capacity == 3
        assert answer.low > 3 * (1 - WIDTH)
        assert answer.falling.high < 0

    def test_who_is_next_moves_no_limit_of_one_class(self):
        answers = [found("fastest", order=order, width=0.1) for order in ("fcfs", "least-laxity")]
        assert all(answer.low <= 2 <= answer.high for answer in answers)

    def test_the_same_seed_gives_the_same_answer_whatever_the_number_of_threads(self):
        rule = "hexgen-paper+alpha=0.9"
        assert simulated_limit(servers(2, 1), rule, width=0.2, workers=1) == simulated_limit(
            servers(2, 1), rule, width=0.2, workers=3
        )

    def test_calls_that_come_back_count_as_often_as_they_come(self):
        """Two stages, the second three times on average by retries: 4 units of work a query on speed 3."""
        stages = [Stage(name=name, work=ExponentialInterval(mean=1)) for name in ("plan", "try")]
        again = Retry(source="try", to="try", probability="2/3")
        system = WorkflowSystem(
            workflow=Workflow(stages=stages, retries=[again]),
            instances=[Instance(name="one", speed=2), Instance(name="two", speed=1)],
        )
        answer = found("shortest-expected-delay", system, width=0.1)
        assert answer.capacity == pytest.approx(0.75)
        assert answer.low <= 0.75
        assert answer.low > 0.75 * 0.9

    @pytest.mark.parametrize("rule", ["round-robin", "least-outstanding/urgency"])
    def test_decode_steps_without_a_limit_of_seats_cost_no_capacity(self, rule):
        """Prompts of 1 and 2 s, then 50 steps of 1 s: in turn the slow one binds at 2 x 1/2, levelled both: 3/2."""
        system = unseated()
        answer = found(rule, system, width=0.1)
        assert answer.met
        assert answer.low <= (1 if rule == "round-robin" else Fraction(3, 2)) <= answer.high

    def test_too_few_queries_leave_the_bound_and_say_so(self):
        answer = found("least-outstanding", max_queries=100)
        assert not answer.met
        assert (answer.low, answer.high) == (0, 3)
        assert "queries the interval is not confirmed" in answer.notes[-1]

    def test_bad_input(self):
        with pytest.raises(InvalidInput, match="width: 2 is outside"):
            simulated_limit(servers(2, 1), "fastest", width=2)
        with pytest.raises(InvalidInput, match="max_queries: 0 is no whole number from 1 on"):
            simulated_limit(servers(2, 1), "fastest", max_queries=0)
        with pytest.raises(InvalidInput, match="is not a known rule"):
            simulated_limit(servers(2, 1), "fastes")
        with pytest.raises(InvalidInput, match="alpha: 2 is out of range"):
            simulated_limit(servers(2, 1), "hexgen-paper+alpha=2")
