"""Model files: exact numbers, every law, all faults at once with their key paths, and writing them back."""

from fractions import Fraction

import attrs
import pytest

import queuetheory_llm as qt
from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.model_writer import dump_model
from queuetheory_llm.model.arrivals import (
    BatchCount,
    DeterministicArrivals,
    GammaInterval,
    PoissonArrivals,
    RenewalArrivals,
    SlottedArrivals,
    UniformInterval,
)
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import (
    Constant,
    Empirical,
    Geometric,
    IndependentLengths,
    LogNormal,
    ObservedLengths,
    Poisson,
    Uniform,
)
from queuetheory_llm.model.system import System
from queuetheory_llm.model.workload import RequestClass, Workload

ENGINE = """
[engine]
b_max = 512
[engine.batch_time]
law = "staircase"
c = "11.28 ms"
a = "35.47 ms"
b0 = 128
"""
UNIT_SLOT = """
[engine]
b_max = 4
[engine.batch_time]
law = "staircase"
c = "0 s"
a = "1 s"
b0 = 4
"""


@pytest.fixture
def load(tmp_path):
    def read(text, **options):
        path = tmp_path / "my.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_model(path, **options)

    return read


@pytest.fixture
def faults(load):
    def read(text):
        with pytest.raises(InvalidModel) as error:
            load(text)
        lines = error.value.faults
        assert all("\n" not in line and "my.toml: " in line for line in lines)
        return [line.split("my.toml: ", 1)[1] for line in lines]

    return read


def test_decimals_and_fractions_are_exact(load):
    system = load(ENGINE + '[workload]\narrivals = "poisson"\nrate = "400/187"\nprefill = 290\ndecode = 990\n')
    assert system.engine.batch_time == Staircase(c=Fraction(1128, 100000), a=Fraction(3547, 100000), b0=128)
    assert system.workload.arrivals == PoissonArrivals(rate=Fraction(400, 187))
    tenth = load(ENGINE + '[workload]\narrivals = "poisson"\nrate = 0.1\nprefill = 1\ndecode = 1\n')
    assert tenth.workload.rate == Fraction(1, 10)


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ('law = "hinge"\nc = "30 ms"\na = "5 us"\nb0 = 0', Hinge(c="30 ms", a="5 us", b0=0)),
        (
            'law = "table"\ntokens = [64, 512]\nseconds = [0.035, "40 ms"]',
            Table(tokens=[64, 512], seconds_at=["35 ms", "40 ms"]),
        ),
    ],
)
def test_batch_time_laws(load, text, law):
    assert load(f"[engine]\nb_max = 512\n[engine.batch_time]\n{text}\n").engine.batch_time == law


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("129", Constant(129)),
        ('{ law = "constant", value = 7 }', Constant(7)),
        ('{ law = "geometric", mean = 129.5 }', Geometric(mean="129.5")),
        ('{ law = "poisson", mean = 3 }', Poisson(mean=3)),
        ('{ law = "uniform", low = 0, high = 9 }', Uniform(low=0, high=9)),
        ('{ law = "empirical", values = [1, 5] }', Empirical(values=[1, 5])),
        (
            '{ law = "empirical", values = [1, 5], weights = [0.25, "1/3"] }',
            Empirical(values=[1, 5], weights=["1/4", "1/3"]),
        ),
        ('{ law = "lognormal", mean = 100, cv = 1.5 }', LogNormal(scale_mean=100, cv="1.5")),
    ],
)  # fmt: skip
def test_length_laws(load, text, law):
    workload = load(ENGINE + f"[workload]\nprefill = {text}\ndecode = 1\n").workload
    assert workload == Workload.of(prefill=law, decode=1)


@pytest.mark.parametrize(
    ("text", "process"),
    [
        ('arrivals = "poisson"\nrate = 12.0', PoissonArrivals(rate=12)),
        ('arrivals = "poisson"', None),
        ('arrivals = "deterministic"', None),
        ("", None),
        ('arrivals = "deterministic"\nrate = 4', DeterministicArrivals(interval="250 ms")),
        ('arrivals = "deterministic"\ninterval = "467.5 ms"', DeterministicArrivals(interval="467.5 ms")),
        (
            'arrivals = "renewal"\ninterval = { law = "gamma", mean = "80 ms", cv = 2 }',
            RenewalArrivals(interval=GammaInterval(mean="80 ms", cv=2)),
        ),
        (
            'arrivals = "renewal"\ninterval = { law = "uniform", low = "0 s", high = "1 s" }',
            RenewalArrivals(interval=UniformInterval(low=0, high=1)),
        ),
    ],
)
def test_arrivals(load, text, process):
    workload = load(ENGINE + f"[workload]\n{text}\nprefill = 129\ndecode = 112\n").workload
    assert workload.arrivals == process


@pytest.mark.parametrize(
    ("law", "process"),
    [
        ('{ law = "bernoulli", p = 0.5 }', SlottedArrivals(slot=1, law="bernoulli", mean="1/2")),
        ('{ law = "poisson", mean = 3 }', SlottedArrivals(slot=1, law="poisson", mean=3)),
        (
            '{ law = "batch", values = [0, 1, 4], weights = ["1/2", 0.25, "1/4"] }',
            SlottedArrivals(slot=1, per_slot=BatchCount(values=[0, 1, 4], weights=["1/2", "1/4", "1/4"])),
        ),
        ('{ law = "batch", values = [2, 3] }', SlottedArrivals(slot=1, per_slot=BatchCount(values=[2, 3]))),
    ],
)
def test_slotted_arrivals(load, law, process):
    text = f'[workload]\narrivals = "slotted"\nslot = "1 s"\nper_slot = {law}\nprefill = 1\ndecode = 1\n'
    assert load(UNIT_SLOT + text).workload.arrivals == process


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [
        (UNIT_SLOT.replace("b0 = 4", "b0 = 2"), 3),
        (UNIT_SLOT.replace('"1 s"', '"2 s"'), 1),
        ('[engine]\nb_max = 3\n[engine.batch_time]\nlaw = "table"\ntokens = [1, 2, 3]\nseconds = [1, 2, 1]\n', 2),
    ],
)
def test_a_batch_time_that_differs_from_the_slot(faults, engine, tokens):
    text = '[workload]\narrivals = "slotted"\nslot = "1 s"\nper_slot = { law = "bernoulli", p = 1 }\n'
    (fault,) = faults(engine + text + "prefill = 1\ndecode = 1\n")
    assert fault.startswith("workload.slot: ")
    assert f"a batch of {tokens} tokens" in fault


def test_classes(load):
    text = """
[[workload.class]]
name = "chat"
prefill = 129
decode = { law = "geometric", mean = 112 }
[[workload.class]]
name = "batch"
weight = 0.5
prefill = 1000
decode = 20
"""
    workload = load(ENGINE + '[workload]\narrivals = "poisson"\nrate = 3\n' + text).workload
    assert [each.name for each in workload.classes] == ["chat", "batch"]
    assert workload.shares == (Fraction(2, 3), Fraction(1, 3))
    assert workload.mean_prefill == Fraction(2 * 129 + 1000, 3)


def test_all_faults_at_once(faults):
    found = faults(
        """
        engin = 1
        [source]
        title = 3
        [engine]
        b_max = 0
        kmax = 3
        [engine.batch_time]
        law = "staircase"
        c = "-1 ms"
        a = 11.28
        [workload]
        arrivals = "poison"
        """
    )
    assert {line.rsplit(": ", 1)[0] if "unknown" not in line else line for line in found} >= {"source.title"}
    starts = (
        "source.title: 3 is not text",
        "engine.b_max: 0 is below 1",
        "engine.kmax: unknown key; did you mean k_max?",
        "engine.batch_time.c: -1 ms is negative",
        'engine.batch_time.a: 11.28 has no unit; write "11.28 ms"',
        "engine.batch_time.b0: missing",
        "workload.arrivals: 'poison' is not known; did you mean poisson?",
        "engin: unknown key; did you mean engine?",
    )
    assert len(found) == len(starts)
    for start in starts:
        assert any(line.startswith(start) for line in found), start


BATCH_TIME = "engine.batch_time"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("b_max = 512", "", "engine.b_max: missing"),
        ("b_max = 512", "b_max = -3", "engine.b_max: -3 is below 1"),
        ("b_max = 512", "b_max = 2.5", "engine.b_max: 2.5 is not a whole number"),
        ("b_max = 512", "b_max = true", "engine.b_max: True is not a number"),
        ("b_max = 512", "b_max = inf", "engine.b_max: Infinity is not finite"),
        ("b_max = 512", "b_max = [1]", "engine.b_max: [1] is not a number"),
        ("b_max = 512", "b_max = 1979-05-27", "engine.b_max: "),
        ("b_max = 512", "b_max = 512\nk_max = 0", "engine.k_max: 0 is below 1"),
        ("b_max = 512", "b_max = 512\nkv_tokens = -1", "engine.kv_tokens: -1 is below 1"),
        ("b_max = 512", "b_max = 512\nname = 3", "engine.name: 3 is not text"),
        ('"11.28 ms"', '"11.28"', BATCH_TIME + ".c: '11.28' has no unit"),
        ('"11.28 ms"', '"11.28 min"', BATCH_TIME + ".c: '11.28 min' has the unknown unit 'min'"),
        ('"11.28 ms"', '"nan ms"', BATCH_TIME + ".c: "),
        ('"11.28 ms"', "nan", BATCH_TIME + ".c: NaN has no unit"),
        ('"11.28 ms"', '"1/0 s"', BATCH_TIME + ".c: '1/0' divides by zero"),
        ('"35.47 ms"', '"0 s"', BATCH_TIME + ".a: 0 ms is not positive"),
        ('"35.47 ms"', '"1e99 s"', BATCH_TIME + ".a: 1e99 is outside"),
        ("b0 = 128", "b0 = 0", BATCH_TIME + ".b0: 0 is below 1"),
        ("b0 = 128", "", BATCH_TIME + ".b0: missing"),
        ('law = "staircase"', 'law = "stair case"', BATCH_TIME + ".law: 'stair case' is not known; did you mean stair"),
        ('law = "staircase"', "law = 3", BATCH_TIME + ".law: 3 is not known"),
        ('law = "staircase"', "", BATCH_TIME + ".law: missing"),
        ("[engine.batch_time]", "[engine.batchtime]", "engine.batch_time: missing"),
        (ENGINE, "[workload]\nprefill = 1\ndecode = 1", "engine: missing"),
        (ENGINE, "engine = 3", "engine: must be a table"),
        (ENGINE, "[engine]\nb_max = 8\nbatch_time = 3", "engine.batch_time: must be a table"),
    ],
)  # fmt: skip
def test_faults_of_an_engine(faults, old, new, fault):
    assert old in ENGINE
    assert any(line.startswith(fault) for line in faults(ENGINE.replace(old, new)))


@pytest.mark.parametrize(
    ("law", "fault"),
    [
        ("tokens = 64\nseconds = [1]", "engine.batch_time.tokens: 64 is not a list; write [64]"),
        ('tokens = "64"\nseconds = [1]', "engine.batch_time.tokens: '64' is not a list"),
        ("tokens = []\nseconds = []", "engine.batch_time.tokens: the table is empty"),
        ("tokens = [8, 8]\nseconds = [1, 1]", "engine.batch_time.tokens: 8 after 8"),
        ("tokens = [8, 9]\nseconds = [1]", "engine.batch_time.seconds: 1 values for 2 token counts"),
        ("tokens = [8]\nseconds = [0]", "engine.batch_time.seconds: 0 s at 8 tokens is not positive"),
        ('tokens = [8]\nseconds = ["3 m"]', "engine.batch_time.seconds[0]: '3 m' has the unknown unit"),
        ("tokens = [4]\nseconds = [1]", "engine.b_max: 8 is beyond the last measured batch"),
    ],
)
def test_faults_of_a_table(faults, law, fault):
    text = f'[engine]\nb_max = 8\n[engine.batch_time]\nlaw = "table"\n{law}\n'
    assert any(line.startswith(fault) for line in faults(text))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("prefill = 1", "workload.decode: missing"),
        ("prefill = 0\ndecode = 0", "workload: prefill, decode: every request has 0 + 0 tokens"),
        ("prefill = -1\ndecode = 1", "workload.prefill: -1 is below 0"),
        ('prefill = { law = "geometric", mean = 0.5 }\ndecode = 1', "workload.prefill.mean: 0.5 is below 1"),
        ('prefill = { law = "empirical", values = [1, -2] }\ndecode = 1', "workload.prefill.values: -2 is negative"),
        ('prefill = { law = "zipf" }\ndecode = 1', "workload.prefill.law: 'zipf' is not known"),
        ('prefill = { law = "lognormal", scale_mean = 3, cv = 1 }\ndecode = 1', "workload.prefill.mean: missing"),
        ('arrivals = "poisson"\nrate = 0\nprefill = 1\ndecode = 1', "workload.rate: 0 is not positive"),
        ('arrivals = "poisson"\nrate = nan\nprefill = 1\ndecode = 1', "workload.rate: NaN is not finite"),
        (
            'arrivals = "poisson"\nrate = 1\ninterval = "1 s"\nprefill = 1\ndecode = 1',
            "workload.interval: is given beside rate",
        ),
        ("rate = 3\nprefill = 1\ndecode = 1", "workload.arrivals: missing"),
        (
            'arrivals = "deterministic"\nrate = 3\ninterval = "1 s"\nprefill = 1\ndecode = 1',
            "workload.interval: is given beside rate",
        ),
        ('arrivals = "deterministic"\ninterval = 3\nprefill = 1\ndecode = 1', "workload.interval: 3 has no unit"),
        ('arrivals = "renewal"\nprefill = 1\ndecode = 1', "workload.interval: missing"),
        (
            'arrivals = "renewal"\ninterval = { law = "weibull", mean = "1 s", cv = 1000 }\nprefill = 1\ndecode = 1',
            "workload.interval.cv: 1000 is outside",
        ),
        ('arrivals = "slotted"\nprefill = 1\ndecode = 1', "workload.slot: missing"),
        (
            'arrivals = "slotted"\nslot = "1 s"\nper_slot = { law = "bernoulli", p = 2 }\nprefill = 1\ndecode = 1',
            "workload.per_slot.p: 2 is above 1",
        ),
        (
            'arrivals = "slotted"\nslot = "1 s"\nper_slot = 3\nprefill = 1\ndecode = 1',
            "workload.per_slot: must be a table",
        ),
        *(
            (
                f'arrivals = "slotted"\nslot = "1 s"\nper_slot = {{ {law} }}\nprefill = 1\ndecode = 1',
                f"workload.per_slot.{fault}",
            )
            for law, fault in (
                ('law = "bernouli", p = 1', "law: 'bernouli' is not known; did you mean bernoulli?"),
                ('law = "bernoulli"', "p: missing"),
                ('law = "poisson", mean = 0', "mean: 0 is not positive"),
                ('law = "batch"', "values: missing"),
                ('law = "batch", values = 3', "values: 3 is not a list"),
                ('law = "batch", values = []', "values: the list is empty"),
                ('law = "batch", values = [0]', "values: no slot ever brings a request"),
                ('law = "batch", values = [0, 1.5]', "values[1]: 1.5 is not a whole number"),
                ('law = "batch", values = [0, -1]', "values: -1 is negative"),
                ('law = "batch", values = [1, 1]', "values: 1 is given 2 times"),
                ('law = "batch", values = [0, 1], weights = [1, -1]', "weights: -1 is negative"),
                ('law = "batch", values = [0, 1], weights = [1]', "weights: 1 weights for 2 values"),
                ('law = "batch", values = [0, 1], mean = 1', "mean: unknown key"),
            )
        ),
        ('class = { name = "a" }', "workload.class: write [[workload.class]]"),
        ("class = [3]", "workload.class[0]: must be a table"),
        (
            'prefill = 1\n[[workload.class]]\nname = "a"\nprefill = 1\ndecode = 1',
            "workload.class: goes without",
        ),
        (
            '[[workload.class]]\nname = "a"\nprefill = 1\ndecode = 1\n' * 2,
            "workload.class: the name 'a' is used twice",
        ),
        (
            '[[workload.class]]\nname = "a"\nweight = 0\nprefill = 1\ndecode = 1',
            "workload.class[0].weight: 0 is",
        ),
        ('arrivals = "trace"', "workload.trace: missing"),
        ('arrivals = "trace"\ntrace = "t.csv"\nprefill = 1', "workload.prefill: unknown key"),
        ('arrivals = "trace"\ntrace = "nowhere.csv"', "workload.trace: "),
        ('arrivals = "trace"\ntrace = ""', "workload.trace: is empty; name the trace file"),
    ],
)
def test_faults_of_a_workload(faults, text, fault):
    assert any(line.startswith(fault) for line in faults(ENGINE + f"[workload]\n{text}\n"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"[engine\n", "line 1: TOML"),
        (b"[engine]\nb_max = \n", "line 2: TOML"),
        (b"[engine]\nb_max = 1\nb_max = 2\n", "line 3: TOML"),
        (b"a = \x00\n", "zero byte"),
        (b"[engine]\n# \xff\n", "line 2: is not UTF-8"),
        (b"a = " + b"9" * 5000, "TOML: a number of thousands of digits; round it"),
        (b"a = 1e" + b"9" * 50, "TOML: a number of thousands of digits; round it"),
        (b"a = " + b"[" * 50000, "TOML: "),
    ],
    ids=["empty", "blank", "header", "value", "twice", "binary", "latin", "digits", "exponent", "deep"],
)
def test_files_that_are_no_model(faults, content, what):
    (fault,) = faults(content)
    assert fault.startswith(what) or what in fault


@pytest.mark.parametrize("name", ["m" * 300, "m" * 300 + ".toml", "a\0b", "a\0b.toml"], ids=["long", "toml", "0", "0t"])
def test_names_that_no_file_can_have(tmp_path, name):
    for ref in (name, tmp_path / name):
        with pytest.raises(InvalidModel) as error:
            load_model(ref)
        assert len(error.value.faults) == 1


def test_a_directory_a_missing_file_and_a_typo(tmp_path):
    for ref, what in (
        (tmp_path, "is a directory"),
        (tmp_path / "none.toml", "no such file"),
        ("/dev/null", "is not a regular file"),
        ("codelama-34b-a100", "did you mean codellama-34b-a100"),
        ("codellama-34b-a100.tml", "did you mean codellama-34b-a100"),
        ("a\0b", "a\0b"),
    ):
        with pytest.raises(InvalidModel, match=what) as error:
            load_model(ref)
        assert len(error.value.faults) == 1


def test_a_trace_as_workload(load, tmp_path):
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n0.5,20,7\n")
    text = ENGINE + '[workload]\narrivals = "trace"\ntrace = "t.csv"\n'
    workload = load(text).workload
    assert workload.rate == 2
    assert workload.mean_decode == 5
    assert load(text + 'first_token = "paper"\n').workload.mean_decode == 6
    assert load(text + 'first_token = "paper"\n', first_token="engine").workload.mean_decode == 5
    slower = workload.arrivals.with_rate(Fraction(1, 2))
    assert slower.rate == Fraction(1, 2)
    assert slower.trace.tick == 4 * workload.arrivals.trace.tick


def test_faults_of_a_trace_name_both_files(faults, tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prefill,decode\n0,10,-5\n")
    (fault,) = faults(ENGINE + '[workload]\narrivals = "trace"\ntrace = "t.csv"\n')
    assert fault.startswith("workload.trace: ")
    assert "t.csv: line 2: decode: '-5' is negative" in fault


SYSTEMS = [
    System(engine=Engine(b_max=512, batch_time=Staircase(c="1/3 s", a="35.47 ms", b0=128))),
    System(
        engine=Engine(b_max=8, k_max=3, kv_tokens=99, name='a "b"', batch_time=Hinge(c="3 us", a="1/7 s", b0=2)),
        source={"title": 'quotes " \\ and\nlines \x7f é', "odd key": "x"},
        workload=Workload.of(prefill=LogNormal(scale_mean=3, cv="1/3"), decode=Poisson(mean="5/7")),
    ),
    System(
        engine=Engine(b_max=2, batch_time=Table(tokens=[1, 2], seconds_at=["1/3 s", "20 ms"])),
        workload=Workload(
            classes=(
                RequestClass(name="a", weight="1/3", lengths=IndependentLengths(Uniform(low=0, high=3), 4)),
                RequestClass(name="b", lengths=IndependentLengths(Empirical(values=[1, 2], weights=["1/3", 2]), 0)),
            ),
            arrivals=PoissonArrivals(rate="400/187"),
        ),
    ),
    System(
        engine=Engine(b_max=4, batch_time=Staircase(c=0, a=1, b0=4)),
        workload=Workload.of(prefill=1, decode=1, arrivals=SlottedArrivals(slot=1, law="bernoulli", mean="1/3")),
    ),
    *(
        System(
            engine=Engine(b_max=4, batch_time=Staircase(c=0, a=1, b0=4)),
            workload=Workload.of(prefill=Geometric(mean="7/3"), decode=0, arrivals=arrivals),
        )
        for arrivals in (
            SlottedArrivals(slot=1, law="poisson", mean="5/7"),
            SlottedArrivals(slot=1, per_slot=BatchCount(values=[4, 0, 1], weights=["1/3", 2, "1/7"])),
            DeterministicArrivals(interval="187/400 s"),
            RenewalArrivals(interval=GammaInterval(mean="1/3 s", cv="1/7")),
            RenewalArrivals(interval=UniformInterval(low=0, high="1/3 s")),
            None,
        )
    ),
]


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_written_reads_back_equal(tmp_path, system):
    path = tmp_path / "out.toml"
    dump_model(system, path)
    assert attrs.evolve(load_model(path), name=system.name) == system


def test_a_replayed_trace_is_written_as_its_file(load, tmp_path):
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n0.5,20,7\n")
    system = load(ENGINE + '[workload]\narrivals = "trace"\ntrace = "t.csv"\nfirst_token = "paper"\n')
    (tmp_path / "sub").mkdir()
    dump_model(system, tmp_path / "sub" / "out.toml")
    again = load_model(tmp_path / "sub" / "out.toml").workload
    assert (again.rate, again.mean_decode) == (2, 6)


def test_lengths_without_a_law_are_refused_and_nothing_is_written(tmp_path):
    observed = Workload(classes=(RequestClass(lengths=ObservedLengths([1], [2])),))
    with pytest.raises(InvalidInput, match="no pair of laws"):
        dump_model(System(engine=SYSTEMS[0].engine, workload=observed), tmp_path / "out.toml")
    assert list(tmp_path.iterdir()) == []


def test_public_names():
    assert qt.load_model is load_model
    assert "load_model" in dir(qt)
