"""Any system that a model file can hold is read back as it was written."""

import tempfile
from fractions import Fraction
from pathlib import Path

import attrs
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.model_writer import dump_model
from queuetheory_llm.model.arrivals import INTERVAL_LAWS, DeterministicArrivals, PoissonArrivals, RenewalArrivals
from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Empirical, Geometric, LogNormal, Uniform
from queuetheory_llm.model.system import System
from queuetheory_llm.model.workload import Workload

positive = st.fractions(min_value=Fraction(1, 10**9), max_value=10**6).filter(lambda value: value > 0)
counts = st.integers(1, 10**6)
text = st.text(st.characters(exclude_categories=("Cs",)))


@st.composite
def tables(draw):
    tokens = sorted(draw(st.sets(counts, min_size=1, max_size=5)))
    return Table(tokens=tokens, seconds_at=[draw(positive) for _ in tokens])


laws = st.one_of(
    st.builds(Staircase, c=positive, a=positive, b0=counts),
    st.builds(Hinge, c=positive, a=positive, b0=counts),
    tables(),
)
lengths = st.one_of(
    st.builds(Constant, counts),
    st.builds(Geometric, mean=positive.map(lambda value: value + 1)),
    st.builds(LogNormal, scale_mean=positive.map(lambda value: value + 1), cv=st.fractions(Fraction(1, 1000), 100)),
    st.builds(lambda low, more: Uniform(low=low, high=low + more), counts, counts),
    st.lists(st.tuples(counts, positive), min_size=1).map(
        lambda pairs: Empirical(values=[v for v, _ in pairs], weights=[w for _, w in pairs])
    ),
)
intervals = st.one_of(
    *(st.builds(INTERVAL_LAWS[name], mean=positive) for name in ("constant", "exponential")),
    *(st.builds(INTERVAL_LAWS[name], mean=positive, cv=positive) for name in ("gamma", "lognormal")),
)
arrivals = st.one_of(
    st.none(),
    st.builds(PoissonArrivals, rate=positive),
    st.builds(DeterministicArrivals, interval=positive),
    st.builds(RenewalArrivals, interval=intervals),
)
workloads = st.none() | st.builds(Workload.of, prefill=lengths, decode=lengths, arrivals=arrivals)


@settings(deadline=None)
@example(Staircase(c=0, a=Fraction(2**60 + 1, 2**60), b0=1), None, None, {})  # a decimal of more than 28 digits
@given(laws, st.none() | counts, workloads, st.dictionaries(text, text, max_size=3))
def test_round_trip(law, k_max, workload, source):
    engine = Engine(batch_time=law, b_max=law.longest or 4096, k_max=k_max)
    system = System(engine=engine, workload=workload, source=source)
    with tempfile.TemporaryDirectory() as folder:
        dump_model(system, Path(folder) / "m.toml")
        assert attrs.evolve(load_model(Path(folder) / "m.toml"), name=system.name) == system
