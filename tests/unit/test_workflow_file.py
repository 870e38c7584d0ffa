"""Workflow files: what a good one says, and one line for each fault of a bad one."""

from fractions import Fraction

import pytest

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.model.arrivals import DeterministicArrivals, ExponentialInterval, GammaInterval, PoissonArrivals
from queuetheory_llm.model.cluster import LatencyLaw
from queuetheory_llm.model.lengths import Constant, Uniform
from queuetheory_llm.model.workflow import Tenant

FULL = """
[source]
title = "a test"

[arrivals]
rate = 0.25

[[tenant]]
name = "fast"
share = "1/3"
slo = "500 s"

[[tenant]]
name = "slow"
slo_scale = 2.5

[[stage]]
name = "ask"
prefill = 100
decode = 20

[[stage]]
name = "compute"
work = { law = "exponential", mean = "2 s" }
after = "ask"
chance = 0.5

[[stage]]
name = "look"
prefill = 10
decode = 3
after = ["ask"]
calls = { law = "uniform", low = 1, high = 3 }

[[stage]]
name = "tell"
prefill = 10
decode = 3
after = ["compute", "look"]

[[retry]]
from = "tell"
to = "ask"
probability = "1/4"

[[instance]]
name = "gpu"
engine = { b_max = 512, batch_time = { law = "hinge", c = "20 ms", a = "10 us", b0 = 100 } }
stages = ["ask", "look"]

[[instance]]
name = "one"
latency = { base = "-32 ms", per_prefill = "25.85 us", per_decode = "39.08 ms" }
step = "35 ms"
seats = 8
stages = ["ask"]

[[instance]]
name = "two"
count = 2
latency = { look = { per_prefill = "1 ms", per_decode = "1 ms" }, tell = { per_prefill = "1 ms", per_decode = "2 ms" } }
stages = ["look", "tell"]

[[instance]]
name = "tool"
speed = 2
stages = ["compute"]
"""
STAGE = '[[stage]]\nname = "a"\nprefill = 10\ndecode = 2\n'
INSTANCE = '[[instance]]\nname = "x"\nlatency = { per_prefill = "1 ms", per_decode = "2 ms" }\n'
ARRIVALS = "[arrivals]\nrate = 1\n"


def load(tmp_path, text):
    path = tmp_path / "flow.toml"
    path.write_text(text, encoding="utf-8")
    return load_workflow(path)


def faults(tmp_path, text):
    with pytest.raises(InvalidModel) as refused:
        load(tmp_path, text)
    prefix = f"{tmp_path / 'flow.toml'}: "
    assert all(fault.startswith(prefix) and fault.isprintable() for fault in refused.value.faults)
    return [fault.removeprefix(prefix) for fault in refused.value.faults]


def test_all_that_a_file_can_say(tmp_path):
    system = load(tmp_path, FULL)
    flow = system.workflow
    assert system.arrivals == PoissonArrivals(rate=Fraction(1, 4))
    assert system.source == {"title": "a test"}
    assert [(each.share, each.slo, each.slo_scale) for each in flow.tenants] == [
        (Fraction(1, 3), 500, None), (1, None, Fraction(5, 2))
    ]  # fmt: skip
    ask, compute, look, tell = flow.stages
    assert (ask.prefill, ask.decode, ask.calls, ask.chance, ask.after) == (
        Constant(100),
        Constant(20),
        Constant(1),
        1,
        None,
    )
    assert (compute.work, compute.chance, compute.after) == (ExponentialInterval(mean=2), Fraction(1, 2), ("ask",))
    assert (look.calls, tell.after) == (Uniform(low=1, high=3), ("compute", "look"))
    assert [(each.source, each.to, each.probability) for each in flow.retries] == [("tell", "ask", Fraction(1, 4))]
    assert flow.visits == (Fraction(4, 3), Fraction(2, 3), Fraction(8, 3), Fraction(4, 3))
    gpu, one, two, tool = system.instances
    assert gpu.engine.b_max == 512
    assert one.latency == LatencyLaw(base=-0.032, per_prefill=2.585e-5, per_decode=0.03908)
    assert (one.step, one.seats, one.decode_step) == (Fraction(35, 1000), 8, Fraction(35, 1000))
    assert (two.count, two.decode_step, set(two.latency)) == (2, Fraction(2, 1000), {"look", "tell"})
    assert (tool.speed, tool.stages) == (2, ("compute",))


def test_what_may_be_left_out(tmp_path):
    system = load(tmp_path, STAGE + INSTANCE + ARRIVALS)
    assert system.workflow.tenants == (Tenant(name="all"),)
    assert system.workflow.retries == ()
    assert system.base_seconds == Fraction(14, 1000)


@pytest.mark.parametrize(
    ("text", "process"),
    [
        ('interval = "2 s"', DeterministicArrivals(interval=2)),
        ('interval = { law = "gamma", mean = "2 s", cv = 2 }', GammaInterval(mean=2, cv=2)),
    ],
)
def test_arrivals(tmp_path, text, process):
    found = load(tmp_path, f"{STAGE}{INSTANCE}[arrivals]\n{text}\n").arrivals
    assert found == process or found.interval == process


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("rate = 0.25", "", "arrivals.rate: give either rate (Poisson, per second) or interval"),
        ("rate = 0.25", "rate = -1", "arrivals.rate: -1 is not positive"),
        ("rate = 0.25", 'rate = 1\narrivals = "slotted"', "arrivals.arrivals: unknown key"),
        ("[arrivals]\nrate = 0.25", "", "arrivals: missing; add [arrivals] with rate"),
        ('slo = "500 s"', "slo = 500", 'tenant[0].slo: 500 has no unit; write "500 ms" or "500 s"'),
        ('slo = "500 s"', 'slo = "1 s"', "tenant[0].slo: 1 s is below the"),
        ('slo = "500 s"', 'slo = "500 s"\nslo_scale = 3', "tenant[0].slo_scale: 3 is given beside slo = 500 s"),
        ("slo_scale = 2.5", "slo_scale = 0", "tenant[1].slo_scale: 0 is not positive"),
        ('share = "1/3"', "share = 0", "tenant[0].share: 0 is not positive"),
        ('name = "slow"', 'name = "fast"', "tenant: 'fast' is the name of several"),
        ('name = "look"', 'name = "ask"', "stage: 'ask' is the name of several"),
        ('name = "look"\nprefill = 10', 'name = "look"', "stage[2].prefill: missing; give tokens"),
        ("chance = 0.5", "chance = 0", "stage[1].chance: 0 is outside 0 < chance <= 1; leave out what never is"),
        ("chance = 0.5", "prefill = 3", "stage[1].prefill: is given beside work"),
        ("chance = 0.5", "chanse = 0.5", "stage[1].chanse: unknown key; did you mean chance?"),
        ('after = "ask"', 'after = "asks"', "stage[1].after: 'asks' is no stage; did you mean ask?"),
        ('after = "ask"', 'after = "tell"', "stage[1].after: 'tell' is listed later"),
        ('after = "ask"', 'after = "compute"', "stage[1].after: 'compute' cannot come after itself"),
        ('after = "ask"', "after = 3", "stage[1].after: is no list of names"),
        ('after = ["ask"]', 'after = ["ask", "ask"]', "stage[2].after: 'ask' is listed more than once"),
        ("low = 1, high", "low = 0, high", "stage[2].calls: may be 0"),
        ('{ law = "uniform", low = 1, high = 3 }', '{ law = "geometric", mean = 2 }', "stage[2].calls: has no largest"),
        ("low = 1, high = 3", "low = 1, high = 20000", "stage[2].calls: up to 20000 calls in parallel"),
        ("prefill = 100\ndecode = 20", "prefill = 0\ndecode = 0", "stage[0].decode: every call has 0 + 0 tokens, t"),
        (
            "prefill = 100\ndecode = 20",
            'prefill = { law = "poisson", mean = 2 }\ndecode = { law = "uniform", low = 0, high = 1 }',
            "stage[0].decode: a call has 0 + 0 tokens with probability 0.0677",
        ),
        ('from = "tell"', 'from = "tel"', "retry[0].from: 'tel' is no stage; did you mean tell?"),
        ('from = "tell"', 'from = "look"', "retry[0]: the stages from one to the other are no part of one series"),
        ('from = "tell"', 'from = "compute"', "retry[0].from: 'compute' is left out by chance"),
        ('probability = "1/4"', "probability = 1", "retry[0].probability: 1 sends every query back for ever"),
        ('probability = "1/4"', 'probability = "9999999/10000000"', "retry: a query runs 'ask' more than 1000000"),
        ('probability = "1/4"', "", "retry[0].probability: missing; give that of one more pass"),
        ('step = "35 ms"', "step = 35", "instance[1].step: 35 has no unit"),
        ("seats = 8", "seats = 0.5", "instance[1].seats: 0.5 is not a whole number"),
        ("seats = 8", "seats = 0", "instance[1].seats: 0 is below 1"),
        ('base = "-32 ms"', 'base = "-32"', "instance[1].latency.base: '-32' has no unit"),
        ('base = "-32 ms"', 'base = "-9 s"', "instance[1].latency: a call of stage 'ask' of mean lengths takes"),
        ('per_prefill = "25.85 us", ', "", "instance[1].latency.per_prefill: missing; add it"),
        ('look = { per_prefill = "1 ms", per_decode', 'look = { per_decode', "instance[2].latency.look.per_prefill: "),
        ('look = { per_prefill', 'loop = { per_prefill', "instance[2].latency: 'loop' is no stage; did you mean look?"),
        ("speed = 2", "speed = 2\nseats = 3", "instance[3].seats: goes with latency alone"),
        ("speed = 2", 'speed = "fast"', "instance[3].speed: 'fast' is not a number"),
        ('[source]\ntitle = "a test"', "[engine]", "engine: unknown key"),
        ("[[retry]]", "[retry]", "retry: write [[retry]] in double brackets, once for each"),
        ('stages = ["ask", "look"]', 'stages = "ask"', "instance[0].stages: is no list of names"),
        ("b_max = 512, ", "", "instance[0].engine.b_max: missing"),
    ],
)  # fmt: skip
def test_one_fault_one_line(tmp_path, old, new, fault):
    assert FULL.count(old) >= 1
    found = faults(tmp_path, FULL.replace(old, new, 1))
    assert any(line.startswith(fault) for line in found), found
    assert all(": " in line for line in found)


def test_all_faults_of_tables_at_once(tmp_path):
    text = (
        FULL.replace("decode = 20", "decode = -1")
        .replace("speed = 2", "speed = 2\nx = 1")
        .replace("rate = 0.25", "rate = 0")
    )
    assert [line.split(":")[0] for line in faults(tmp_path, text)] == [
        "stage[0].decode",
        "instance[3].x",
        "arrivals.rate",
    ]


def test_a_file_of_something_else(tmp_path):
    assert faults(tmp_path, "[engine]\nb_max = 3\n")[0].startswith("stage: missing; this file describes one engine")
    assert faults(tmp_path, '[[station]]\nname = "s"\n')[0].startswith("station: this is a network")
    assert faults(tmp_path, ARRIVALS)[0].startswith("stage: missing; add a [[stage]]")
