"""Exact chains against closed forms of queues, to nine digits."""

from fractions import Fraction

import numpy as np
import pytest
from closed_forms import bailey, take_all_sojourn, vanilla

from queuetheory_llm.errors import AssumptionViolated
from queuetheory_llm.markov.chain import exact_chain
from queuetheory_llm.model.arrivals import PoissonArrivals, SlottedArrivals
from queuetheory_llm.model.batch_time import Hinge, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.verdict import Verdict

EXACT = 1e-10


def slotted(rule, b_max, lengths, law, mean):
    engine = Engine(batch_time=Table(tokens=[b_max], seconds_at=[1]), b_max=b_max)
    arrivals = SlottedArrivals(slot=1, law=law, mean=mean)
    workload = Workload.of(prefill=lengths[0], decode=lengths[1], arrivals=arrivals)
    return exact_chain(engine, rule, workload, tolerance=EXACT)


@pytest.mark.parametrize(
    ("rule", "lengths", "p", "mean"),
    [
        *((rule, (1, 1), p, 2 * p) for rule in ("sarathi", "orca", "vllm-chunked") for p in (0.3, 0.5, 0.9)),
        *(("vllm-vanilla", (1, 1), p, vanilla(p)) for p in (0.1, 0.3, 0.5, 0.62)),
        ("fastertransformer", (1, 1), 0.5, 1.2),
        ("sarathi", (2, 1), 0.45, 1.3006450141),
        ("orca", (2, 1), 0.45, 1.5937551539),
        ("vllm-vanilla", (2, 1), 0.45, 1.5937551539),
        ("fastertransformer", (2, 1), 0.45, 2.925),
    ],
)
def test_slotted_chains_of_two_token_batches(rule, lengths, p, mean):
    """Bernoulli(p) requests a slot, two tokens a batch: mean number at slot starts, after arrivals."""
    chain = slotted(rule, 2, lengths, "bernoulli", str(p))
    assert chain.means.requests == pytest.approx(mean, abs=1e-9)
    assert chain.judgement.verdict is Verdict.STABLE
    assert chain.counted_at == "slot start, after arrivals"
    assert chain.means.requests == pytest.approx(float(chain.law @ chain.space.requests()), abs=1e-12)


@pytest.mark.parametrize("rule", ["vllm-vanilla", "orca", "sarathi", "fastertransformer"])
@pytest.mark.parametrize(("lengths", "edges"), [((1, 1), (1, 1, 2 / 3, 1)), ((2, 1), (2 / 3, 2 / 3, 2 / 3, 1 / 2))])
def test_two_token_batches_beyond_the_edge_are_refused(rule, lengths, edges):
    """The thresholds of section 6 of Dai et al.'s model: 1, 2/3, 1/2; and at them the chain is not stable either."""
    edge = dict(zip(["sarathi", "orca", "vllm-vanilla", "fastertransformer"], edges, strict=True))[rule]
    beyond = Fraction(edge).limit_denominator(10) + Fraction(1, 100)
    if beyond <= 1:
        with pytest.raises(AssumptionViolated, match="UNSTABLE, so there is no stationary law"):
            slotted(rule, 2, lengths, "bernoulli", beyond)
    below = Fraction(edge).limit_denominator(10) - Fraction(1, 20)
    assert slotted(rule, 2, lengths, "bernoulli", below).means.requests > 0


@pytest.mark.parametrize(("mean", "b_max"), [("0.8", 1), ("3", 4), ("7", 8), ("13.6", 16)])
@pytest.mark.parametrize(("rule", "lengths"), [("sarathi", (0, 1)), ("vllm-vanilla", (1, 0)), ("vllm-chunked", (1, 0))])
def test_bulk_service(mean, b_max, rule, lengths):
    """Bailey 1954: Poisson one-token requests a slot, up to b_max served."""
    chain = slotted(rule, b_max, lengths, "poisson", mean)
    assert chain.means.requests == pytest.approx(bailey(float(mean), b_max), abs=1e-9)


@pytest.mark.parametrize("rule", ["sarathi", "vllm-vanilla", "vllm-chunked", "static"])
def test_geo_geo_1(rule):
    """Arrival .3 and service .5 a slot: 1.05 present after arrivals; geometric from one request on."""
    chain = slotted(rule, 1, (0, Geometric(mean=2)), "bernoulli", "0.3")
    assert chain.means.requests == pytest.approx(1.05, abs=1e-9)
    assert chain.tail.decay == pytest.approx(0.3 * 0.5 / (0.7 * 0.5), abs=1e-6)
    assert chain.means.backlog == pytest.approx(2.1, abs=1e-9)


@pytest.mark.parametrize("load", ["0.3", "0.7", "0.95"])
@pytest.mark.parametrize(("lengths", "rule"), [((1, 0), "sarathi"), ((0, 1), "orca"), ((1, 0), "vllm-chunked")])
def test_one_token_at_a_time_is_m_d_1(load, lengths, rule):
    """Pollaczek and Khinchine: mean number over time rho + rho^2/(2(1 - rho)), idle 1 - rho; Erlang's law."""
    engine = Engine(batch_time=Table(tokens=[1], seconds_at=["2 s"]), b_max=1)
    arrivals = PoissonArrivals(rate=Fraction(load) / 2)
    workload = Workload.of(prefill=lengths[0], decode=lengths[1], arrivals=arrivals)
    chain = exact_chain(engine, rule, workload, tolerance=EXACT)
    rho = float(load)
    assert chain.means.requests == pytest.approx(rho + rho**2 / (2 * (1 - rho)), abs=1e-9)
    assert chain.means.idle == pytest.approx(1 - rho, abs=1e-9)
    assert chain.mean_sojourn == pytest.approx(2 * (1 + rho / (2 * (1 - rho))), abs=1e-8)
    law = (1 - rho) * np.array([1, np.exp(rho) - 1, np.exp(2 * rho) - np.exp(rho) * (1 + rho)])
    np.testing.assert_allclose(chain.requests_law[:3], law, atol=1e-9)
    assert chain.counted_at == "time"


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_batches_that_take_all(load):
    """Inoue 2021: t(b) = alpha b + tau0, every batch takes all that wait."""
    law = Hinge(c="1.8874 ms", a="0.1438 ms", b0=0)
    engine = Engine(batch_time=law, b_max=300)  # which no batch comes near
    arrivals = PoissonArrivals(rate=Fraction(str(load)) / law.a)
    chain = exact_chain(engine, "sarathi", Workload.of(prefill=1, decode=0, arrivals=arrivals), tolerance=EXACT)
    expected = take_all_sojourn(load, 0.1438, 1.8874)
    if load == 0.5:
        assert expected == pytest.approx(5.9018645689, abs=1e-9)
    assert chain.mean_sojourn * 1000 == pytest.approx(expected, abs=1e-9)
