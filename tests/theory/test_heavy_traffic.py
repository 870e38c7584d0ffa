"""Exact chains of busy engines: the right answer, or none and the level that it would take; never a wrong number."""

import re
from fractions import Fraction

import numpy as np
import pytest
from closed_forms import bailey

import queuetheory_llm as qt
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock, generators
from queuetheory_llm.simulation.requests import fixed_times, sample
from queuetheory_llm.simulation.runner import run


def codellama(b_max, prompt, decode, load):
    """The batch time of CodeLlama-34B on one A100, every batch as long as its first 128 tokens; memoryless decodes."""
    engine = qt.Engine(batch_time=Staircase(c="11.28 ms", a="35.47 ms", b0=b_max), b_max=b_max)
    rate = Fraction(load) * b_max / engine.batch_time.seconds(b_max) / (prompt + decode)
    return engine, qt.Workload.of(
        prefill=prompt, decode=qt.Geometric(mean=decode), arrivals=qt.PoissonArrivals(rate=rate)
    )


@pytest.mark.parametrize("memory", ["1 MB", "8 MB"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("rule", ["sarathi", "vllm-vanilla"])
def test_at_99_per_cent_a_bulk_queue_is_right_or_refused(rule, tolerance, memory):
    """Bailey's queue of one-token requests, of which 56 are present on average."""
    engine = qt.Engine(batch_time=Table(tokens=[8], seconds_at=[1]), b_max=8)
    arrivals = qt.SlottedArrivals(slot=1, law="poisson", mean="7.92")
    workload = qt.Workload.of(prefill=1, decode=0, arrivals=arrivals)
    try:
        chain = qt.exact_chain(engine, rule, workload, tolerance=tolerance, memory=memory)
    except NotConverged as refused:
        told = str(refused)
    else:
        error, bound = abs(chain.means.requests - bailey(7.92, 8)), chain.truncation.bounds["requests"]
        assert error <= bound + 1e-9
        assert bound <= tolerance * chain.means.requests
        return
    assert memory == "1 MB"
    assert re.search(r"it would check the one up to \d+ tokens|a level of about \S+ tokens would do", told)


def test_at_99_per_cent_the_level_that_is_told_leads_to_the_answer():
    """A chain that is refused names a level, and three times that meets the tolerance; a third of it does not."""
    engine, workload = codellama(4, 3, 2, "0.99")
    with pytest.raises(NotConverged) as refused:
        qt.exact_chain(engine, "sarathi", workload, tolerance=0.02, memory="1 MB")
    told = float(re.search(r"a level of about (\S+) tokens would do", str(refused.value))[1])
    chain = qt.exact_chain(engine, "sarathi", workload, tolerance=0.02, level=3 * told)
    assert chain.truncation.bounds["requests"] <= 0.02 * chain.means.requests
    with pytest.raises(NotConverged, match=r"not known to 0\.02"):
        qt.exact_chain(engine, "sarathi", workload, tolerance=0.02, level=told / 3)


def test_the_backlog_of_a_batch_engine_is_that_of_the_kernel():
    """At a load of .8, the tokens left at instants of long runs, within four standard errors."""
    engine, workload = codellama(8, 4, 3, "0.8")
    chain = qt.exact_chain(engine, "sarathi", workload, tolerance=1e-3)
    horizon, rule, found = Fraction(8000), parse_scheduler("sarathi"), []
    clock = Clock.fit(generators(engine.batch_time, engine.b_max) | fixed_times(workload.arrivals), horizon)
    end = clock.bound(horizon)
    watch = np.linspace(end // 20, end, 40_000).astype(np.int64)  # the beginning, from empty, is left out
    for child in np.random.SeedSequence(4).spawn(16):
        requests = sample(workload, clock, horizon, np.random.default_rng(child))
        found.append(run(engine, rule, requests, clock, until=end, watch=watch).series.backlog.mean())
    error = np.std(found, ddof=1) / 4
    assert error < 0.007 * chain.means.backlog
    assert abs(np.mean(found) - chain.means.backlog) <= 4 * error + chain.truncation.bounds["backlog"]
    assert chain.truncation.bounds["backlog"] < error
