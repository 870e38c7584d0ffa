"""Hypothesis strategies for engines, rules, requests and workloads, shared by the tests."""

from fractions import Fraction

from hypothesis import strategies as st

from queuetheory_llm.model.batch_time import Hinge, Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Constant, Empirical, Geometric, IndependentLengths, Uniform
from queuetheory_llm.model.workload import RequestClass, Workload
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler

seconds = st.fractions(min_value=0, max_value=2, max_denominator=12)
positive_seconds = seconds.filter(lambda value: value > 0)


@st.composite
def laws(draw, longest, kinds=("staircase", "hinge", "table")):
    """A batch-time law that speaks of every batch up to ``longest`` tokens; tables need not be monotone."""
    kind = draw(st.sampled_from(kinds))
    if kind == "table":
        tokens = sorted({*draw(st.sets(st.integers(1, longest), max_size=6)), longest})
        return Table(tokens=tokens, seconds_at=[draw(positive_seconds) for _ in tokens])
    a, b0 = draw(positive_seconds), draw(st.integers(1, longest + 2))
    if kind == "staircase":
        return Staircase(c=draw(seconds), a=a, b0=b0)
    return Hinge(c=draw(positive_seconds), a=a, b0=draw(st.sampled_from([0, b0])))


@st.composite
def engines(draw, most=12, kinds=("staircase", "hinge", "table"), limited=True):
    """An engine of at most ``most`` tokens a batch, with or without a batch size."""
    b_max = draw(st.integers(1, most))
    k_max = draw(st.none() | st.integers(1, most + 2)) if limited else None
    return Engine(batch_time=draw(laws(b_max, kinds)), b_max=b_max, k_max=k_max)


@st.composite
def rules(draw, names=tuple(SCHEDULERS)):
    """A rule of the registry under any flags that agree."""
    name = draw(st.sampled_from(names))
    chunking = draw(st.sampled_from(["", "+chunk", "+whole"]))
    mixed = draw(st.sampled_from(["", "+mixed"]))
    target = draw(st.just("") | st.integers(1, 9).map("+target={}".format))
    plain = parse_scheduler(name + chunking + mixed + target)
    if plain.chunks and draw(st.booleans()):
        return parse_scheduler(f"{plain.name}+threshold={draw(st.integers(1, 5))}")
    return plain


@st.composite
def length_laws(draw, longest, least=0):
    """A law of token counts within least..longest, or geometric where no bound is asked for."""
    constant = st.integers(least, longest).map(Constant)
    pair = st.tuples(st.integers(least, longest), st.integers(least, longest)).map(sorted)
    uniform = pair.map(lambda ends: Uniform(low=ends[0], high=ends[1]))
    weights = st.integers(1, 5)
    values = st.lists(st.tuples(st.integers(least, longest), weights), min_size=1, max_size=3)
    empirical = values.map(lambda rows: Empirical(values=[v for v, _ in rows], weights=[w for _, w in rows]))
    return draw(st.one_of(constant, uniform, empirical))


def _some_tokens(pair):
    return not (pair[0].largest == 0 and pair[1].largest == 0)


@st.composite
def workloads(draw, longest_prompt, longest_decode=6, geometric=False):
    """One or two classes of independent lengths."""
    decodes = length_laws(longest_decode)
    if geometric:
        means = st.fractions(min_value=1, max_value=longest_decode, max_denominator=4)
        decodes = st.one_of(decodes, means.map(lambda mean: Geometric(mean=mean)))
    lengths = st.tuples(length_laws(longest_prompt), decodes).filter(_some_tokens)
    classes = draw(st.lists(lengths, min_size=1, max_size=2))
    shares = st.fractions(min_value=Fraction(1, 4), max_value=4, max_denominator=4)
    return Workload(
        classes=[
            RequestClass(lengths=IndependentLengths(prefill, decode), weight=draw(shares), name=f"class {index}")
            for index, (prefill, decode) in enumerate(classes)
        ]
    )


def longest_prompt(rule, engine, most=8):
    """The longest prompt to draw for a rule on an engine: what it can run, at most ``most`` tokens."""
    limit = rule.longest_prompt(engine.b_max)
    return most if limit is None else min(limit, most)


@st.composite
def request_rows(draw, longest, most=10):
    """Requests as (arrival in quarters of a second, prefill, decode), sorted by arrival; ``longest`` bounds prompts."""
    row = st.tuples(st.integers(0, 60), st.integers(0, longest), st.integers(0, 6)).filter(lambda row: row[1] + row[2])
    return sorted(draw(st.lists(row, min_size=1, max_size=most)), key=lambda row: row[0])
