"""The critical probability of a retry: by hand, against the capacity on both sides of it, nested loops included."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workflow import Retry, Stage, Workflow
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.cluster_bounds import with_split
from queuetheory_llm.simulation.cluster_rule import run_rule, to_cluster_rule, to_cluster_rules
from queuetheory_llm.simulation.cluster_run import ClusterRun, cluster_clock
from queuetheory_llm.simulation.cluster_runner import run_cluster
from queuetheory_llm.simulation.run import NEVER
from queuetheory_llm.simulation.workflow_draws import draw_queries
from queuetheory_llm.stability.cluster_capacity import cluster_capacity
from queuetheory_llm.stability.critical_retry import critical_retry

F = Fraction


def system(stages: list[Stage], retries: list[tuple[str, str, Any]], instances: list[Instance], rate: Any) -> Any:
    loops = [Retry(source=source, to=to, probability=F(p)) for source, to, p in retries]
    return WorkflowSystem(
        workflow=Workflow(stages=stages, retries=loops), instances=instances, arrivals=PoissonArrivals(rate=F(rate))
    )


def work(name: str, mean: Any, **more: Any) -> Stage:
    return Stage(name=name, work=ExponentialInterval(mean=F(mean)), **more)


SERVER = [Instance(name="server", speed=1)]


def test_one_server_by_hand() -> None:
    """Rate 1/4, plan 1 s, then write 1/2 s and test 1/4 s in a loop: 1/4 (1 + 3x/4) = 1 at x = 4, p = 3/4."""
    stages = [work("plan", 1), work("write", "1/2"), work("test", "1/4")]
    found = critical_retry(system(stages, [("test", "write", "1/2")], SERVER, "1/4"))
    assert found.critical == F(3, 4)
    assert found.passes == 4
    assert found.load == F(1, 4) * (1 + F(3, 4) * 2)
    assert found.base_load == F(7, 16)
    assert dict(found.points)[F(3, 4)] == 1
    assert [load for _, load in found.points] == sorted(load for _, load in found.points)
    assert all(p < 1 for p, _ in found.points)


def test_one_batch_engine_by_its_tokens() -> None:
    """C = 7314.2857 tokens/s; 1000 + 500 tokens, then 200 + 100 in a loop, 4 queries/s: 4 (1500 + 300 x) = C."""
    engine = Engine(batch_time=Staircase(c="30 ms", a="5 ms", b0=64), b_max=512)
    stages = [Stage(name="write", prefill=1000, decode=500), Stage(name="revise", prefill=200, decode=100)]
    found = critical_retry(system(stages, [("revise", "revise", "1/5")], [Instance(name="gpu", engine=engine)], 4))
    passes = (F(512) / F("0.07") / 4 - 1500) / 300
    assert found.passes == passes
    assert found.carried == found.critical  # 512 is a multiple of 64: full batches are the best
    assert found.critical == 1 - 1 / passes


def unlike() -> list[Instance]:
    """Seconds of a, b, c at three types."""
    seconds = {"p": (1, 2, 5), "q": (3, 1, 2), "r": (2, 2, 1)}
    return [
        Instance(
            name=name,
            count=1 + (name == "q"),
            latency={
                stage: LatencyLaw(base=F(t), per_prefill=0, per_decode=0) for stage, t in zip("abc", row, strict=True)
            },
        )
        for name, row in seconds.items()
    ]


@pytest.mark.parametrize("retry", [0, 1])
def test_nested_loops_on_unlike_instances(retry: int) -> None:
    """With the critical probability the load of the workflow is exactly 1, a little below it less, above it more."""
    stages = [
        Stage(name="a", prefill=1, decode=0),
        Stage(name="b", prefill=1, decode=0, calls=2),
        Stage(name="c", prefill=1, decode=0),
    ]
    base = system(stages, [("b", "b", "1/3"), ("c", "a", "1/4")], unlike(), "1/10")
    found = critical_retry(base, retry)
    assert found.critical is not None

    def load_at(p: Fraction) -> Fraction:
        retries = list(base.workflow.retries)
        retries[retry] = attrs.evolve(retries[retry], probability=p)
        changed = attrs.evolve(base, workflow=attrs.evolve(base.workflow, retries=retries))
        return cluster_capacity(changed).load

    for p, load in found.points[1:]:
        assert load_at(p) == load
    assert found.points[0] == (0, found.base_load)
    assert load_at(found.critical) == 1
    assert load_at(found.critical - F(1, 1000)) < 1 < load_at(found.critical + F(1, 1000))
    assert found.load == cluster_capacity(base).load
    assert found.shares is not None
    assert all(sum(row) == 1 for row in found.shares)


@pytest.mark.parametrize("apart", [F(-1, 20), F(1, 20)])
def test_a_run_grows_above_the_critical_probability_and_not_below(apart: Fraction) -> None:
    """Servers of speeds 2 and 1 under the best split: above, work is left at rate * E[work] - 3 seconds a second.

    All work of a query is drawn beforehand, so that what came less what was done is the backlog, its calls to come
    included; the former varies with standard deviation sqrt(rate T E[work^2]).
    """
    stages = [work("plan", 1), work("write", "1/2"), work("test", "1/4")]
    servers = [Instance(name="fast", speed=2), Instance(name="slow", speed=1)]
    critical = critical_retry(system(stages, [("test", "write", "1/2")], servers, "3/4")).critical
    assert critical == F(3, 4)
    base = system(stages, [("test", "write", critical + apart)], servers, "3/4")
    clock, seconds = Clock(rate=10**6), 20_000
    rng = np.random.default_rng(6)
    arrivals = np.sort(rng.integers(0, seconds * clock.rate, rng.poisson(seconds * 3 / 4)))
    queries = draw_queries(base.workflow, arrivals, rng)
    (rule,) = to_cluster_rules(["random-lp"], "fcfs")
    dispatcher = with_split(rule, base).dispatcher
    found = run_cluster(base, queries, dispatcher, until=seconds * clock.rate, clock=clock)
    came = queries.work.sum()
    left = came - (found.busy / clock.rate) @ [2, 1]
    # Passes are geometric: E[x] = x, E[x^2] = x (2 x - 1); a pass is 3/4 s, its square 2 (1/4 + 1/16) + 1/4.
    passes = float(1 / (1 - critical - apart))
    square = 2 + 2 * 0.75 * passes + passes * 0.3125 + passes * (2 * passes - 1) * 0.5625
    error = np.sqrt(0.75 * square / seconds)
    assert abs(came / seconds - 0.75 * (1 + 0.75 * passes)) < 4 * error
    if apart > 0:
        assert abs(left / seconds - (0.75 * (1 + 0.75 * passes) - 3)) < 4 * error
    else:
        assert left < 0.01 * came


def ran(base: WorkflowSystem, retry: Fraction, seconds: int, rule: str) -> ClusterRun:
    """A run with another probability of the first retry, Poisson arrivals."""
    retries = [attrs.evolve(base.workflow.retries[0], probability=retry)]
    changed = attrs.evolve(base, workflow=attrs.evolve(base.workflow, retries=retries))
    clock, rng = cluster_clock(changed), np.random.default_rng(6)
    count = rng.poisson(seconds * float(base.arrivals.rate))
    queries = draw_queries(changed.workflow, np.sort(rng.integers(0, seconds * clock.rate, count)), rng)
    named = with_split(to_cluster_rule(rule), changed)
    return run_rule(changed, queries, named, until=seconds * clock.rate, rng=rng, clock=clock)


@pytest.mark.parametrize("apart", [F(-1, 10), F(1, 10)])
def test_a_batch_engine_grows_above_its_critical_probability_and_not_below(apart: Fraction) -> None:
    """F = C = 7314.2857 tokens/s; 3 queries/s of 1500 tokens and x passes of 300: above, 3 (1500 + 300 x) - F are left.

    The queries vary by var[x] = x (x - 1), and of calls in service at the end, one a token of a batch at most, what is
    served already is counted as left.
    """
    engine = Engine(batch_time=Staircase(c="30 ms", a="5 ms", b0=64), b_max=512)
    stages = [Stage(name="write", prefill=1000, decode=500), Stage(name="revise", prefill=200, decode=100)]
    base = system(stages, [("revise", "revise", "1/5")], [Instance(name="gpu", engine=engine)], 3)
    critical = critical_retry(base).critical
    assert critical is not None
    seconds, passes = 4000, float(1 / (1 - critical - apart))
    run = ran(base, critical + apart, seconds, "round-robin")
    tokens = run.queries.prefill + run.queries.decode
    left = tokens[run.ended == NEVER].sum() / seconds
    grows = 3 * (1500 + 300 * passes) - 512 / 0.07
    if apart < 0:
        assert left < 512 * 1500 / seconds
        return
    error = np.sqrt(3 * ((1500 + 300 * passes) ** 2 + 300**2 * passes * (passes - 1)) / seconds)
    assert abs(left - grows) < 4 * error + 512 * 1500 / seconds


@pytest.mark.parametrize("rule", ["random-lp", "least-outstanding"])
def test_the_packaged_text_to_sql_workflow_on_engines(rule: str) -> None:
    """2 queries/s: from queries not ended, those that no order can keep up with; nothing of the kind below."""
    base, seconds = load_workflow("agents-mixed-gpus").with_rate(F(2)), 4000
    found = critical_retry(base)
    assert found.critical is not None
    assert found.carried is not None
    assert found.carried < found.critical  # some full batches are not the best
    over, growth = found.critical + F(1, 40), []
    for probability in (found.carried - F(1, 20), over):
        run = ran(base, probability, seconds, rule)
        ticks = [run.until // 4, run.until]
        ended = np.where(run.finished == NEVER, run.until, run.finished)
        present = [(run.queries.arrival < at).sum() - (ended < at).sum() for at in ticks]
        growth.append((present[1] - present[0]) / (0.75 * seconds))
    retries = [attrs.evolve(base.workflow.retries[0], probability=over)]
    load = cluster_capacity(attrs.evolve(base, workflow=attrs.evolve(base.workflow, retries=retries))).load
    lost = 2 * float(1 - 1 / load)  # queries a second that all instances together cannot end
    assert growth[0] < 0.1 * lost
    assert growth[1] > 0.5 * lost


def test_an_overload_without_the_loop_has_no_critical_probability() -> None:
    stages = [work("plan", 3), work("write", "1/2")]
    over = critical_retry(system(stages, [("write", "write", "1/2")], SERVER, 1))
    assert over.critical is None
    assert over.passes is None
    assert "without it the load is already 3.5" in over.bears
    exact = critical_retry(system(stages, [("write", "write", "1/2")], SERVER, "2/7"))
    assert exact.critical is None
    assert "exactly 1" in exact.bears


def test_a_loop_that_takes_up_nothing_is_borne_at_any_probability() -> None:
    """Without seats an isolated-latency instance has no decode capacity to use up, and short prompts take no time."""
    law = LatencyLaw(base="-0.032 s", per_prefill="0.02585 ms", per_decode="39.08 ms")
    stages = [Stage(name="plan", prefill=2000, decode=5), Stage(name="revise", prefill=900, decode=500)]
    found = critical_retry(system(stages, [("revise", "revise", "9/10")], [Instance(name="m", latency=law)], 1))
    assert found.critical is None
    assert found.bears.startswith("every retry")
    assert found.to_dict()["critical"] is None


def test_what_is_not_there_is_refused() -> None:
    base = system([work("a", 1)], [("a", "a", "1/2")], SERVER, "1/9")
    for retry in (1, -1, True, "a"):
        with pytest.raises(InvalidInput, match="retry"):
            critical_retry(base, retry)  # type: ignore[arg-type]
