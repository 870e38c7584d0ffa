"""Workflows and clusters that are given in Python: whatever is wrong is `InvalidModel`, one line a fault."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import attrs
import numpy as np
import pytest

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.model.arrivals import (
    BernoulliCount,
    ExponentialInterval,
    PoissonArrivals,
    RenewalArrivals,
    SlottedArrivals,
)
from queuetheory_llm.model.batch_time import Hinge
from queuetheory_llm.model.cluster import Instance, LatencyLaw, WorkflowSystem
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Empirical, Geometric, Poisson
from queuetheory_llm.model.workflow import Retry, Stage, Tenant, Workflow

ENGINE = Engine(batch_time=Hinge(c="20 ms", a="10 us", b0=100), b_max=512)
LAW = LatencyLaw(base="-10 ms", per_prefill="1 ms", per_decode="20 ms")

STAGE = Stage(name="ask", prefill=100, decode=20)
LAST = Stage(name="tell", prefill=Geometric(mean=9), decode=2, chance="1/2", calls=3)
WORK = Stage(name="compute", work=ExponentialInterval(mean=1), after=("ask",))
RETRY = Retry(source="tell", to="tell", probability="1/3")
TENANT = Tenant(name="one", slo="100 s")
WORKFLOW = Workflow(stages=[STAGE, WORK, LAST], retries=[RETRY], tenants=[TENANT, Tenant(name="two", slo_scale=5)])
ISOLATED = Instance(name="isolated", latency=LAW, seats=4, stages=["ask", "tell"])
BATCHES = Instance(name="batches", engine=ENGINE, stages=["ask", "tell"], count=2)
SERVER = Instance(name="server", speed=2, stages=["compute"])
SYSTEM = WorkflowSystem(workflow=WORKFLOW, instances=[ISOLATED, BATCHES, SERVER], arrivals=PoissonArrivals(rate=1))

WRONG = [
    None, True, -1, 0, 1, 2.5, 10**40, math.nan, math.inf, np.float64("nan"), np.int64(-3), Fraction(-1, 3),
    Decimal("Infinity"), "", "x", "ask", "1/0", "1 parsec", "\n", b"x", object(), int, [], (), {}, [None], ("ask",),
    ["ask", "ask"], [["ask"]], {"ask": LAW}, {"ask": 1}, {3: LAW}, {"nobody": LAW}, Constant(0), Poisson(mean=1),
    Empirical(values=[0, 1]), Geometric(mean=2), ExponentialInterval(mean=1), LAW, ENGINE, STAGE, [STAGE],
    [STAGE, STAGE], WORKFLOW, RETRY, [RETRY], [RETRY, RETRY], [Retry(source="ask", to="x", probability=1)],
    TENANT, [TENANT, TENANT],
    ISOLATED, [ISOLATED], [SERVER], [ISOLATED, ISOLATED, SERVER], range(3), np.arange(3), iter([]), lambda: 0,
    RenewalArrivals(interval="1 s"), SlottedArrivals(slot=1, per_slot=BernoulliCount(p=1)),
]  # fmt: skip


def _whole(changed):
    """A system with one part exchanged for the changed one."""
    match changed:
        case Stage():
            stages = [changed if each.name == changed.name or each is STAGE else each for each in WORKFLOW.stages]
            return attrs.evolve(SYSTEM, workflow=attrs.evolve(WORKFLOW, stages=stages))
        case Retry():
            return attrs.evolve(SYSTEM, workflow=attrs.evolve(WORKFLOW, retries=[changed]))
        case Tenant():
            return attrs.evolve(SYSTEM, workflow=attrs.evolve(WORKFLOW, tenants=[changed]))
        case LatencyLaw():
            return attrs.evolve(SYSTEM, instances=[attrs.evolve(ISOLATED, latency=changed), SERVER])
        case Instance():
            return attrs.evolve(SYSTEM, instances=[changed, BATCHES, SERVER])
        case Workflow():
            return attrs.evolve(SYSTEM, workflow=changed)
    return changed


def _used(system):
    """All that is computed from a system that was accepted."""
    return (
        system.units, system.unit_names, system.mean_seconds, system.average_seconds, system.base_seconds,
        system.fastest_seconds, system.seconds_after, system.workflow.visits, system.arrivals.rate,
        [system.deadline(tenant) for tenant in range(len(system.workflow.tenants))],
    )  # fmt: skip


@pytest.mark.parametrize("good", [STAGE, LAST, WORK, RETRY, TENANT, LAW, ISOLATED, BATCHES, SERVER, WORKFLOW, SYSTEM])
def test_whatever_is_wrong_is_an_invalid_model(good):
    accepted, refused, faults = 0, 0, []
    for field, wrong in itertools.product(attrs.fields(type(good)), WRONG):
        try:
            assert _used(_whole(attrs.evolve(good, **{field.name: wrong})))
            accepted += 1
        except InvalidModel as error:
            faults += error.faults
            refused += 1
    assert refused > accepted
    assert all(fault.isprintable() for fault in faults)


def test_every_field_that_is_refused_is_named():
    with pytest.raises(InvalidModel) as refused:
        Stage(name="a", prefill="x", decode=-1, calls=2.5, chance="1/0")
    assert [fault.split(":")[0] for fault in refused.value.faults] == ["prefill", "decode", "calls", "chance"]


def test_a_mapping_of_laws_is_its_own():
    laws = {"ask": LAW, "tell": LAW}
    instance = attrs.evolve(ISOLATED, latency=laws)
    laws.clear()
    assert instance.law(STAGE) == LAW
