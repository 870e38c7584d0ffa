"""What holds of every network: traffic equations, order of loads, dispatch, and files that were damaged."""

import tempfile
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queuetheory_llm.certificates.certificate import certify
from queuetheory_llm.errors import CertificateRejected, InvalidInput, InvalidModel
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network, Station
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.stability import traffic as equations
from queuetheory_llm.stability.network_topology import Kind, network_topology
from queuetheory_llm.stability.parallel import parallel_threshold
from queuetheory_llm.stability.traffic import components, cyclic_joins, load_proof, traffic
from queuetheory_llm.verdict import Verdict

MODELS = Path(__file__).resolve().parents[2] / "models"
positive = st.fractions(min_value=Fraction(1, 10), max_value=5, max_denominator=10)


@st.composite
def fluid_models(draw, forks=True, most=7, sparse=False):
    """Any routing, rows summing to at most 1, or with forks to at most 2: open, trapped or multiplying."""
    count = draw(st.integers(1, most))
    stations = draw(st.integers(1, count))
    rows = []
    for _ in range(count):
        targets = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=2 if sparse else 3))
        weights = [draw(st.integers(1, 5)) for _ in targets]
        over = draw(st.sampled_from([1, Fraction(1, 2), Fraction(9, 10), *([2] if forks else [])]))
        rows.append(tuple((to, over * Fraction(each, sum(weights))) for to, each in zip(targets, weights, strict=True)))
    return FluidModel(
        stations=tuple(f"s{s}" for s in range(stations)),
        classes=tuple(f"k{k}" for k in range(count)),
        station=tuple(draw(st.integers(0, stations - 1)) for _ in range(count)),
        arrival=tuple(draw(st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(2)])) for _ in range(count)),
        service=tuple(draw(positive) for _ in range(count)),
        routing=tuple(rows),
        priority=(None,) * stations,
        preemptive=(False,) * stations,
    )


def solved(model):
    """The traffic of a model that is open; examples that are not are skipped."""
    try:
        return traffic(model)
    except InvalidModel:
        assume(False)


def right_side(model, rates):
    return tuple(
        alpha + sum(p * rates[source] for source, p in row)
        for alpha, row in zip(model.arrival, model.predecessors, strict=True)
    )


def radius(model):
    import numpy as np

    matrix = np.zeros((len(model.classes),) * 2)
    for k, row in enumerate(model.routing):
        for to, p in row:
            matrix[k, to] += float(p)
    return max(abs(np.linalg.eigvals(matrix)))


@given(fluid_models())
def test_solved_or_refused_as_the_spectral_radius_says(model):
    size = radius(model)
    if size > 1 - 1e-9:  # no routing of these few fractions is nearer to 1 and below it
        with pytest.raises(InvalidModel) as refused:
            traffic(model)
        assert all(line.startswith("route: ") and "\n" not in line for line in refused.value.faults)
        return
    found = traffic(model)
    assert found.exact
    assert found.rates == right_side(model, found.rates) == found.low == found.high
    assert found.visits == tuple(1 + sum(p * found.visits[to] for to, p in row) for row in model.routing)
    assert min(found.visits) >= 1
    assert min(found.rates) >= 0
    # Little's law of visits: what comes from outside, each with all its visits, is all that is served.
    assert sum(found.rates) == sum(a * w for a, w in zip(model.arrival, found.visits, strict=True))
    assert found.class_loads == tuple(rate * mean for rate, mean in zip(found.rates, model.service, strict=True))
    for s in range(len(model.stations)):
        assert found.loads[s] == sum(found.class_loads[k] for k in model.at(s))


@settings(max_examples=50)
@given(fluid_models(), positive)
def test_loads_are_linear_in_the_rates(model, factor):
    found, scaled = solved(model), traffic(model.scaled(factor))
    assert scaled.rates == tuple(factor * rate for rate in found.rates)
    assert scaled.loads == tuple(factor * load for load in found.loads)
    assert scaled.visits == found.visits


@settings(max_examples=50)
@given(fluid_models(), st.data())
def test_rates_grow_with_arrivals_and_routes(model, data):
    found = solved(model)
    k, to = (data.draw(st.integers(0, len(model.classes) - 1)) for _ in range(2))
    arrival = list(model.arrival)
    arrival[k] += 1
    more = traffic(attrs.evolve(model, arrival=tuple(arrival)))
    assert all(a >= b for a, b in zip(more.rates, found.rates, strict=True))
    assert more.rates[k] >= found.rates[k] + 1
    routing = list(model.routing)
    row = dict(routing[k])
    row[to] = row.get(to, Fraction(0)) + Fraction(1, 20)
    routing[k] = tuple(row.items())
    more = solved(attrs.evolve(model, routing=tuple(routing)))
    assert all(a >= b for a, b in zip(more.rates, found.rates, strict=True))
    assert more.rates[to] >= found.rates[to] + found.rates[k] / 20


@settings(max_examples=50)
@given(fluid_models())
def test_an_enclosure_holds_the_exact_solution(model):
    exact = solved(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equations, "MOST_WORK", 0)
        enclosed = traffic(model)
    assert not enclosed.exact
    for low, rate, high in zip(enclosed.low, exact.rates, enclosed.high, strict=True):
        assert low <= rate <= high
        assert high - low <= Fraction(1, 10**9) * (1 + rate)
    for low, load, high in zip(enclosed.loads_low, exact.loads, enclosed.loads_high, strict=True):
        assert low <= load <= high
    assert all(upper >= count for upper, count in zip(enclosed.visits, exact.visits, strict=True))
    assert all(
        count >= 1 + sum(p * enclosed.visits[to] for to, p in row)
        for count, row in zip(enclosed.visits, model.routing, strict=True)
    )


@settings(max_examples=50)
@given(fluid_models())
def test_groups_are_in_an_order_in_which_no_route_leads_back(model):
    groups = components(model)
    assert sorted(s for group in groups for s in group) == list(range(len(model.stations)))
    place = {s: number for number, group in enumerate(groups) for s in group}
    links = {(model.station[k], model.station[to]) for k, row in enumerate(model.routing) for to, _ in row}
    assert all(place[a] <= place[b] for a, b in links)
    reach = {s: {s} for s in place}
    for _ in place:
        for a, b in links:
            reach[a] |= reach[b]
    assert all((place[a] == place[b]) == (b in reach[a] and a in reach[b]) for a in place for b in place)


@given(fluid_models(forks=False))
def test_the_certificate_of_the_loads_says_what_loads_say(model):
    found = solved(model)
    topology = network_topology(model)
    worst = max(found.loads)
    try:
        verdict = certify("load", model.to_dict(), load_proof(model, found)).verdict
    except CertificateRejected:
        cyclic_and_shared = topology.kind not in (Kind.SINGLE, Kind.FEED_FORWARD, Kind.JACKSON)
        assert worst == 1 or (worst < 1 and cyclic_and_shared)
        return
    assert worst != 1
    assert verdict is (Verdict.UNSTABLE if worst > 1 else Verdict.STABLE)
    assert verdict is Verdict.UNSTABLE or topology.loads_decide


@settings(max_examples=50)
@given(fluid_models())
def test_a_topology_names_a_cycle_where_there_is_one(model):
    found = network_topology(model)
    shared = [group for group in found.groups if len(group) > 1]
    assert bool(found.cycles) == bool(shared)
    links = {(model.station[k], model.station[to]) for k, row in enumerate(model.routing) for to, _ in row}
    number = {name: s for s, name in enumerate(model.stations)}
    for cycle in found.cycles:
        around = [number[name] for name in (*cycle, cycle[0])]
        assert all(link in links for link in pairwise(around))
    assert cyclic_joins(model) == ()
    assert found.kind.value in found.sentence


engines = st.builds(
    lambda blocks, a: Engine(batch_time=Staircase(c="10 ms", a=a, b0=8), b_max=8 * blocks),
    blocks=st.integers(1, 6),
    a=st.fractions(min_value=Fraction(1, 100), max_value=1, max_denominator=100),
)
calls = Workload.of(prefill=5, decode=3)
sarathi = parse_scheduler("sarathi")


def full_rate(engine):
    return engine.b_max / engine.batch_time.seconds(engine.b_max)


@settings(max_examples=40)
@given(st.lists(engines, min_size=1, max_size=4), st.sampled_from(["random", "round-robin", "token-queue"]))
def test_no_dispatch_carries_more_than_the_engines_together(several, dispatch):
    """The bound of a station is what the thresholds of its engines say, and below the sum of what they do."""
    total, least = sum(map(full_rate, several)), min(map(full_rate, several))
    found = parallel_threshold(several, sarathi, calls, dispatch)
    station = Station(name="s", engines=tuple(several), dispatch=dispatch)
    assert found.exact
    assert found.low * 8 == station.tokens_per_s <= total
    assert station.tokens_per_s == (total if dispatch == "token-queue" else len(several) * least)


@settings(max_examples=30)
@given(engines, st.integers(1, 5), st.sampled_from(["random", "round-robin", "token-queue"]))
def test_equal_engines_carry_their_number(engine, count, dispatch):
    one = parallel_threshold([engine], sarathi, calls, dispatch)
    many = parallel_threshold([engine] * count, sarathi, calls, dispatch)
    assert many.low == many.high == count * one.low


@pytest.mark.parametrize("name", ["jackson-loop", "fork-join", "rybko-stolyar-llm", "prefill-decode-disaggregated"])
@settings(max_examples=15)
@given(factor=positive)
def test_a_network_scales_as_its_fluid_model_does(name, factor):
    network = load_network(name)
    assert network.scaled(factor).fluid_model == network.fluid_model.scaled(factor)
    assert isinstance(network, Network)


pieces = st.binary(max_size=4) | st.sampled_from(
    [*(bytes([each]) for each in b'0-.",{}[]=\nen_ '), b"\\n", b"[[join]]\n", b"to", b"1e400", b"nan", b"A1"]
)
edits = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 12), pieces), min_size=1, max_size=3)


def damaged(content, changes):
    for at, length, new in changes:
        start = at % (len(content) + 1)
        content = content[:start] + new + content[start + length :]
    return content


@pytest.mark.parametrize("name", ["fork-join", "rybko-stolyar-llm", "jackson-loop"])
@settings(max_examples=80)
@given(changes=edits)
def test_a_damaged_network_is_read_or_refused(name, changes):
    _read_or_refuse(damaged((MODELS / f"{name}.toml").read_bytes(), changes))


lines = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=3)


@pytest.mark.parametrize("name", ["fork-join", "prefill-decode-disaggregated", "jackson-loop"])
@settings(max_examples=60)
@given(moves=lines)
def test_lines_in_the_wrong_place(name, moves):
    """Lines that are dropped, doubled or moved: names without tables, routes without ends, joins without forks."""
    text = (MODELS / f"{name}.toml").read_text().splitlines()
    for start, end in moves:
        line = text.pop(start % len(text))
        if end % 3:
            text.insert(end % (len(text) + 1), line)
        if end % 3 == 2:
            text.insert(end % (len(text) + 1), line)
    _read_or_refuse("\n".join(text).encode())


def _read_or_refuse(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.toml"
        path.write_bytes(content)
        faults: tuple[str, ...] = ()
        try:
            network = load_network(path)
        except InvalidInput as error:
            network, faults = None, error.faults or ("",)
        assert all(line.startswith(f"{path}: ") and "\n" not in line for line in faults)
    if network is not None:
        model = network.fluid_model
        found = traffic(model)
        assert found.rates == right_side(model, found.rates)
        assert FluidModel.from_dict(model.to_dict()) == model
