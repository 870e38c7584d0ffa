"""What dispatch rules and the budget rule do in cases that can be worked out by hand, or solved exactly.

The mean responses are of two exponential servers. For rules that look at the numbers of calls, (n_1, n_2) is a Markov
chain whose rates the rule itself gives; cut off where the tail is below rounding, it is solved here. Runs of the
compiled cluster are compared with it.
"""

from fractions import Fraction
from functools import cache
from math import inf, sqrt

import numpy as np
import pytest
from clusters import single_calls, work_stage
from scipy.optimize import brentq, minimize_scalar
from scipy.sparse import coo_matrix, eye, vstack
from scipy.sparse.linalg import spsolve

from queuetheory_llm.dispatch.hexgen_paper import HEXGEN_PAPER
from queuetheory_llm.dispatch.registry import to_dispatcher
from queuetheory_llm.dispatch.view import Dispatcher, DispatchRule, DispatchView
from queuetheory_llm.model.arrivals import ConstantInterval
from queuetheory_llm.model.cluster import Instance, WorkflowSystem
from queuetheory_llm.model.workflow import Stage, Workflow
from queuetheory_llm.schedulers import urgency
from queuetheory_llm.schedulers.queue_order import OrderView
from queuetheory_llm.simulation.cluster_run import cluster_clock
from queuetheory_llm.simulation.cluster_runner import run_cluster
from queuetheory_llm.simulation.queries import Queries


def seen(seconds, *, queued=(0, 0), outstanding=(0, 0), assigned=(0, 0), chance=0.0):
    return DispatchView(
        stage=0,
        seconds=np.array(seconds, dtype=float),
        queued=np.array(queued, dtype=float),
        outstanding=np.array(outstanding),
        tokens=np.zeros(len(seconds)),
        assigned=np.array(assigned, dtype=float),
        turn=0,
        shares=np.full(len(seconds), 1 / len(seconds)),
        chance=chance,
    )


class TestTheScoreOfThePaper:
    """A has t_queue = 2 and t_comp = 1, B has .5 and 3; beta = 1."""

    A, B = (Fraction(2), Fraction(1)), (Fraction(1, 2), Fraction(3))

    @pytest.mark.parametrize(("off", "expected"), [(-1e-12, 1), (1e-12, 0)])
    def test_where_the_choice_switches(self, off, expected):
        """(1 - a)/2 - a = 2 (1 - a) - 3 a at a = 3/7, and the difference is linear in a."""
        view = seen([self.A[1], self.B[1]], queued=[self.A[0], self.B[0]])
        assert HEXGEN_PAPER.choose(view, np.array([3 / 7 + off, 1.0])) == expected


def test_urgency_by_how_much_a_call_is_late_if_it_starts_now():
    """U = t_comp - (budget - time waited) is now less the key, whenever the call came."""
    for seconds, budget, waited, expected in ((2, 10, 3, -5), (1, 5, 4.5, 0.5)):
        call = OrderView(arrived=7, seconds=seconds, budget=budget, born=0, slo=inf, rest=0, prefill=1, decode=1)
        assert 7 + waited - urgency.key(call) == expected


def test_the_budgets_of_a_chain_on_unlike_instances_sum_to_its_deadline():
    """Mean seconds over the instances, and what the plan still expects after each stage."""
    stages = [work_stage(name, mean=mean) for name, mean in zip("abcd", (1, 3, Fraction(1, 2), 2), strict=True)]
    instances = [Instance(name="fast", speed=2, count=3), Instance(name="slow", speed=1)]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    elapsed, slo = Fraction(0), Fraction(19)
    for average, rest in zip(system.average_seconds, system.seconds_after, strict=True):
        elapsed += urgency.budget(slo - elapsed, average, rest)
    assert elapsed == slo
    assert system.average_seconds == tuple(Fraction(5, 8) * Fraction(m) for m in (1, 3, Fraction(1, 2), 2))


MOST = 60  # calls at a server; beyond it probabilities are below 1e-9


@cache
def chain_response(text, rate, speeds):
    """Mean response at two exponential servers, exactly but for the cut: E(n_1 + n_2)/rate by Little's law."""
    to = to_dispatcher(text)
    size = (MOST + 1) ** 2
    rows, columns, rates = [], [], []
    idle = seen([1 / mu for mu in speeds])

    def move(n, to_n, value):
        if value and max(to_n) <= MOST:
            rows.append(n[0] * (MOST + 1) + n[1])
            columns.append(to_n[0] * (MOST + 1) + to_n[1])
            rates.append(value)

    for n in np.ndindex(MOST + 1, MOST + 1):
        chances = (0.25, 0.75) if to.rule.tosses else (0.0,)  # of a tie the halves
        for chance in chances:
            m = to.rule.choose(idle._replace(outstanding=n, chance=chance), to.parameters)
            move(n, (n[0] + (m == 0), n[1] + (m == 1)), rate / len(chances))
        for m, mu in enumerate(speeds):
            if n[m]:
                move(n, (n[0] - (m == 0), n[1] - (m == 1)), mu)
    flow = coo_matrix((rates, (rows, columns)), shape=(size, size)).tocsr()
    balance = (flow - eye(size).multiply(flow.sum(axis=1))).T.tocsr()
    system = vstack([np.ones((1, size)), balance[1:]]).tocsc()
    law = spsolve(system, np.eye(size, 1).ravel()).reshape(MOST + 1, MOST + 1)
    assert abs(law.min()) < 1e-9
    assert law[-1].sum() + law[:, -1].sum() < 1e-7
    return float((law * np.add.outer(np.arange(MOST + 1), np.arange(MOST + 1))).sum() / rate)


def square_root_response(rate, speeds):
    """The best static split of a Poisson stream over M/M/1 servers, where it uses all of them.

    Minimise sum_m f_m/(mu_m - f_m) with sum f_m = rate. The derivative mu_m/(mu_m - f_m)^2 is the same for all, so
    mu_m - f_m = c sqrt(mu_m), c = (sum mu - rate)/sum sqrt(mu); then sum f_m/(mu_m - f_m) = sum sqrt(mu)/c - M.
    """
    roots = sum(map(sqrt, speeds))
    spare = (sum(speeds) - rate) / roots
    assert all(mu > spare * sqrt(mu) for mu in speeds)
    return (roots / spare - len(speeds)) / rate, [1 - spare / sqrt(mu) for mu in speeds]


def test_the_square_root_rule_is_the_minimum():
    def response(share):
        return sum(f / (mu - f) for f, mu in ((2.4 * share, 2), (2.4 * (1 - share), 1))) / 2.4

    found = minimize_scalar(response, bounds=(0.6, 0.8), method="bounded", options={"xatol": 1e-9})
    best, loads = square_root_response(2.4, (2, 1))
    assert found.fun == pytest.approx(best, rel=1e-9)
    assert best == pytest.approx(3.2142, abs=5e-5)
    assert found.x * 2.4 / 2 == pytest.approx(loads[0], abs=1e-5)


def turns_response(rate):
    """Two servers of rate 1 in turn: GI/M/1 with the sum of two exponential intervals; 1/(1 - s)."""
    return 1 / (1 - brentq(lambda s: (rate / (rate + 1 - s)) ** 2 - s, 0, 0.999))


FIGURES = {
    "least-outstanding+ties=random": 2.0919,
    "least-outstanding+ties=fast": 1.9869,
    "least-outstanding+ties=slow": 2.1748,
    "shortest-expected-delay": 2.0211,
}


@pytest.mark.parametrize("text", FIGURES)
def test_exact_means(text):
    assert chain_response(text, 2.4, (2, 1)) == pytest.approx(FIGURES[text], abs=5e-5)


def test_exact_mean_of_the_shorter_of_two_equal_queues():
    """Whoever gets the ties."""
    for ties in ("first", "random"):
        assert chain_response(f"least-outstanding+ties={ties}", 1.6, (1, 1)) == pytest.approx(2.95574, abs=5e-6)


@cache
def poisson_calls(rate, ticks, count=60_000):
    """Calls of exponential work of mean 1, the same for all rules."""
    rng = np.random.default_rng(11)
    arrival = np.rint(np.cumsum(rng.exponential(1 / rate, count)) * ticks)
    return single_calls(arrival, [(0, 0, work) for work in rng.exponential(1, count).tolist()])


def simulated(to, rate, speeds):
    """Mean response of a run and its standard error, by batch means."""
    instances = [Instance(name=f"s{m}", speed=speed) for m, speed in enumerate(speeds)]
    system = WorkflowSystem(workflow=Workflow(stages=[work_stage("call", mean=1)]), instances=instances)
    responses = run_cluster(system, poisson_calls(rate, cluster_clock(system).rate), to, rng=5).responses
    means = np.array([batch.mean() for batch in np.array_split(responses, 50)])
    return means.mean(), means.std(ddof=1) / sqrt(means.size)


def split_by(shares):
    return Dispatcher(rule=to_dispatcher("random").rule, shares=(tuple(shares),))


def best_split():
    _, loads = square_root_response(2.4, (2, 1))
    first = loads[0] * 2 / 2.4
    return split_by([first, 1 - first])


@pytest.mark.parametrize(
    ("to", "rate", "speeds", "expected"),
    [
        ("random-proportional", 2.4, (2, 1), lambda: 2 / (3 - 2.4)),  # both of load .8: 2 calls for 2.4 a second
        (best_split, 2.4, (2, 1), lambda: square_root_response(2.4, (2, 1))[0]),
        *((text, 2.4, (2, 1), lambda text=text: chain_response(text, 2.4, (2, 1))) for text in FIGURES),
        ("random", 1.6, (1, 1), lambda: 5),
        ("round-robin", 1.6, (1, 1), lambda: turns_response(1.6)),
        ("least-outstanding", 1.6, (1, 1), lambda: chain_response("least-outstanding+ties=first", 1.6, (1, 1))),
    ],
)
def test_runs_have_the_exact_means(to, rate, speeds, expected):
    mean, error = simulated(to() if callable(to) else to, rate, speeds)
    assert abs(mean - expected()) < 4 * error
    assert error < 0.05 * expected()


@pytest.mark.parametrize(
    ("base", "limits"),
    [
        ((2, 1), {0: 3, 0.3: Fraction(39, 14), 0.5: Fraction(5, 2), 0.6: Fraction(9, 4), 0.7: 2}),
        ((1, 2), {0: 3, 0.3: 2.7, 0.5: 2.5, 0.6: 2.4, 0.7: 2.3}),
    ],
)
def test_the_released_score_is_a_fixed_split_in_the_long_run(base, limits):
    """Of one kind of call: W_m/W_base = max(0, 1 + a/(1 - a) (t_base/t_m - 1)); the limit is 1/max f_m t_m."""
    seconds = [1 / mu for mu in base]
    idle = seen(seconds)
    for alpha, limit in limits.items():
        to = to_dispatcher(f"hexgen-released+alpha={alpha}")
        sent, calls = np.zeros(2), 4_000
        for _ in range(calls):
            sent[to.rule.choose(idle._replace(assigned=sent * seconds), to.parameters)] += 1
        ratio = max(0, 1 + alpha / (1 - alpha) * (seconds[0] / seconds[1] - 1))
        split = np.array([1 / seconds[0], ratio / seconds[1]])
        assert sent / calls == pytest.approx(split / split.sum(), abs=2 / calls)
        assert 1 / (split / split.sum() * seconds).max() == pytest.approx(float(limit))


def one_counter(view, parameters):  # noqa: ARG001 - it has none
    """One counter for both stages: where they alternate, so many calls were sent before."""
    return (2 * view.turn + view.stage) % 2


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("round-robin", (0.6, 0.6)), (DispatchRule(name="one-counter", choose=one_counter), (0.0, 1.2))],
)
def test_turns_are_taken_stage_by_stage(rule, expected):
    """A query a second: a call of a millisecond, then one of 1.2 s. One counter sends every long call to one server."""
    stages = [Stage(name=n, work=ConstantInterval(mean=m)) for n, m in (("short", "1 ms"), ("long", "1.2 s"))]
    instances = [Instance(name="server", speed=1, count=2)]
    system = WorkflowSystem(workflow=Workflow(stages=stages), instances=instances)
    count, rate = 400, cluster_clock(system).rate
    queries = Queries(
        arrival=np.arange(count) * rate,
        tenant=np.zeros(count, dtype=np.int64),
        first_step=np.arange(0, 2 * count + 1, 2),
        stage=np.tile([0, 1], count),
        waits=np.tile([0, 1], count),
        first_next=np.repeat(np.arange(count + 1), 2)[1:],
        next=np.arange(1, 2 * count, 2),
        first_call=np.arange(2 * count + 1),
        prefill=np.zeros(2 * count, dtype=np.int64),
        decode=np.zeros(2 * count, dtype=np.int64),
        work=np.tile([0.001, 1.2], count),
    )
    run = run_cluster(system, queries, rule, until=count * rate)
    loads = np.array([0.001, 1.2]) @ run.sent / count
    assert loads == pytest.approx(expected, abs=0.002)
    last = run.responses[np.isfinite(run.responses)][-1]
    assert (last < 2.5) == (max(expected) < 1)
