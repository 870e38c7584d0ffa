"""Verdicts on networks: Rybko and Stolyar 1992, Lu and Kumar 1991, Jackson 1957, arXiv 2504.07347 section 5."""

from fractions import Fraction

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import some_network

from queuetheory_llm.certificates.certificate import check_certificate
from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.arrivals import (
    ConstantInterval,
    GammaInterval,
    PoissonArrivals,
    RenewalArrivals,
    UniformInterval,
)
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.network import ExternalArrivals, Network, Route, Station, TaskClass
from queuetheory_llm.stability.fluid_path import fluid_path
from queuetheory_llm.stability.network_doubts import fluid_doubt
from queuetheory_llm.stability.network_topology import FEED_FORWARD_THEOREM, SINGLE_THEOREM
from queuetheory_llm.stability.networks import POLICIES, verify_stability
from queuetheory_llm.stability.traffic import traffic
from queuetheory_llm.verdict import Basis, Verdict

ENTRY = {"s1": ("A1", "B2"), "s2": ("B1", "A2")}


def reordered(network: Network, orders: dict[str, tuple[str, ...] | None]) -> Network:
    stations = tuple(attrs.evolve(each, priority=orders[each.name]) for each in network.stations)
    return attrs.evolve(network, stations=stations)


def accepted(answer):
    """The certificate, which the checker accepts as it is written."""
    assert check_certificate(answer.certificate.to_dict()).verdict is answer.judgement.verdict
    return answer.certificate


def test_exit_priority_is_unstable_although_every_load_is_below_one():
    answer = verify_stability(load_network("rybko-stolyar"))
    assert answer.traffic.loads == (Fraction(7, 10), Fraction(7, 10))
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.UNSTABLE, Basis.CERTIFICATE)
    assert accepted(answer).kind == "virtual-station"
    (virtual,) = answer.virtual_stations
    assert (set(virtual.classes), virtual.load) == ({"A2", "B2"}, Fraction(6, 5))


def test_entry_priority_is_stable():
    answer = verify_stability(reordered(load_network("rybko-stolyar"), ENTRY))
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.STABLE, Basis.CERTIFICATE)
    accepted(answer)


def test_below_the_virtual_station_every_policy_is_stable():
    network = load_network("rybko-stolyar").scaled(Fraction(8, 10))
    for policy in ("file", "any"):
        answer = verify_stability(network, policy=policy)
        assert answer.judgement.verdict is Verdict.STABLE
        assert "every policy that never idles" in accepted(answer).statement


def test_some_policy_is_unstable_where_the_worst_virtual_station_is_overloaded():
    answer = verify_stability(reordered(load_network("rybko-stolyar"), ENTRY), policy="any")
    assert answer.judgement.verdict is Verdict.UNSTABLE
    assert accepted(answer).kind == "virtual-station"


@pytest.mark.parametrize("load", ["0.56", "0.9", "0.99"])
def test_batch_engines_have_an_unstable_fluid_model(load):
    """Batches are not interrupted, so that the virtual station is a statement on the fluid model alone."""
    answer = verify_stability(load_network("rybko-stolyar-llm").scaled(Fraction(load) / Fraction("0.9")))
    assert answer.traffic.loads[0] == Fraction(load)
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.UNSTABLE, Basis.FLUID)
    assert accepted(answer).kind == "fluid-cycle"
    m = Fraction(544, 768) * Fraction(load) * Fraction(768, 608)
    assert Fraction(answer.certificate.proof["factor"]) == (m / (1 - m)) ** 2  # a cycle has two half cycles


@pytest.mark.parametrize("load", ["0.5", "0.55"])
def test_batch_engines_below_the_frontier(load):
    answer = verify_stability(load_network("rybko-stolyar-llm").scaled(Fraction(load) / Fraction("0.9")))
    assert answer.judgement.verdict is Verdict.STABLE
    accepted(answer)


def test_entry_priority_and_back_pressure_keep_batch_engines_stable():
    network = load_network("rybko-stolyar-llm")
    assert verify_stability(reordered(network, ENTRY)).judgement.verdict is Verdict.STABLE
    pressed = verify_stability(network, policy="back-pressure").judgement
    assert (pressed.verdict, pressed.basis) == (Verdict.STABLE, Basis.THEOREM)


@pytest.mark.parametrize("scale", ["1.2", "10"])
@pytest.mark.parametrize("policy", ["file", "any", "back-pressure"])
def test_an_overload_is_unstable_under_every_policy(policy, scale):
    answer = verify_stability(load_network("rybko-stolyar-llm").scaled(Fraction(scale)), policy=policy)
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.UNSTABLE, Basis.THEOREM)
    assert accepted(answer).kind == "load"


@pytest.mark.parametrize("name", ["rybko-stolyar", "jackson-loop", "tandem", "fork-join"])
def test_a_load_of_exactly_one_is_critical(name):
    network = load_network(name)
    worst = max(verify_stability(network).traffic.loads)
    answer = verify_stability(network.scaled(1 / worst), policy="any")
    assert answer.judgement.verdict is (Verdict.UNSTABLE if name == "rybko-stolyar" else Verdict.CRITICAL)
    assert answer.judgement.load >= 1


@pytest.mark.parametrize("name", ["jackson-loop", "tandem", "fork-join", "prefill-decode-disaggregated"])
def test_theorems_decide_without_a_program(name):
    answer = verify_stability(load_network(name))
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.STABLE, Basis.THEOREM)
    assert accepted(answer).kind == "load"
    assert answer.virtual_stations == ()


def test_the_loop_of_a_workflow_is_proved_group_by_group():
    """A cycle of two engines with several classes, and behind it a join."""
    answer = verify_stability(load_network("text-to-sql-loop"))
    assert answer.judgement.verdict is Verdict.STABLE
    assert accepted(answer).kind == "composition"
    assert [len(group.stations) for group in answer.groups] == [1, 2, 1]


@pytest.mark.parametrize(
    ("orders", "verdict"),
    [
        ({"s1": ("4", "1"), "s2": ("2", "3")}, Verdict.UNSTABLE),
        ({"s1": ("1", "4"), "s2": ("2", "3")}, Verdict.STABLE),  # first buffer first served
        ({"s1": ("4", "1"), "s2": ("3", "2")}, Verdict.STABLE),  # last buffer first served
    ],
)
def test_the_line_of_lu_and_kumar(orders, verdict):
    answer = verify_stability(reordered(load_network("lu-kumar"), orders))
    assert answer.judgement.verdict is verdict
    accepted(answer)


def test_constant_services_may_end_together():
    """Then both halves of the virtual station can be there at once: no proof, and the fluid model speaks."""
    network = load_network("rybko-stolyar")
    classes = tuple(attrs.evolve(each, service=ConstantInterval(mean=each.service.mean)) for each in network.classes)
    answer = verify_stability(attrs.evolve(network, classes=classes))
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.UNSTABLE, Basis.FLUID)


def test_first_come_first_served_is_undecided_where_nothing_covers_it():
    network = reordered(load_network("rybko-stolyar"), {"s1": None, "s2": None})
    assert verify_stability(network).judgement.verdict is Verdict.UNDECIDED
    classes = tuple(attrs.evolve(each, service=network.classes[0].service) for each in network.classes)
    kelly = verify_stability(attrs.evolve(network, classes=classes).scaled(Fraction("4.9"))).judgement
    assert (kelly.verdict, kelly.load) == (Verdict.STABLE, Fraction("0.98"))


def test_k_max_leaves_the_verdict_open():
    network = load_network("tandem")
    engine = attrs.evolve(network.stations[0].engines[0], k_max=100)
    limited = attrs.evolve(
        network, stations=(attrs.evolve(network.stations[0], engines=(engine,)), network.stations[1])
    )
    judged = verify_stability(limited).judgement
    assert judged.verdict is Verdict.UNDECIDED
    assert "k_max" in judged.reason
    assert verify_stability(limited.scaled(Fraction(2))).judgement.verdict is Verdict.UNSTABLE


def test_an_unknown_policy():
    with pytest.raises(InvalidInput, match="policy"):
        verify_stability(load_network("tandem"), policy="fifo")  # type: ignore[arg-type]


def with_station(network: Network, index: int, **changes) -> Network:
    stations = list(network.stations)
    stations[index] = attrs.evolve(stations[index], **changes)
    return attrs.evolve(network, stations=tuple(stations))


def test_what_the_fluid_model_of_whole_tasks_does_not_show():
    """Prompts first, tasks gather before their decodes; shares of a dispatcher are queues of their own."""
    network = load_network("text-to-sql-loop")
    two = network.stations[1].engines * 2
    for changes in ({"scheduler": "orca"}, {"engines": two, "dispatch": "random"}):
        doubted = with_station(network, 1, **changes)
        answer = verify_stability(doubted, max_scale=True)
        assert (answer.judgement.verdict, answer.max_scale) == (Verdict.UNDECIDED, None)
        assert answer.to_dict()["max_scale"] is None
        assert any(note.startswith("max_scale: nothing is known") and "coder" in note for note in answer.notes)
        assert fluid_doubt(doubted, "file") in answer.judgement.reason
    assert "max_scale" not in verify_stability(network).to_dict()
    # behind a station that leads nowhere back none of this matters to the verdict, and all of it to the path
    alone = load_network("prefill-decode-disaggregated")
    assert fluid_doubt(alone) is None
    for changes in ({"scheduler": "orca"}, {"engines": two, "dispatch": "round-robin"}):
        changed = with_station(alone, 0, **changes)
        judged = verify_stability(changed).judgement
        assert (judged.verdict, judged.basis) == (Verdict.STABLE, Basis.THEOREM)
        assert fluid_doubt(changed) is not None


def test_engines_that_are_taken_as_one_have_no_certificate_of_the_network():
    network = load_network("text-to-sql-loop")
    level = with_station(network, 1, engines=network.stations[1].engines * 2, dispatch="token-queue")
    for policy in ("file", "any", "back-pressure"):
        answer = verify_stability(level, policy=policy, max_scale=True)
        if policy == "back-pressure":
            assert "joins" in answer.judgement.reason
            continue
        assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.STABLE, Basis.FLUID)
        assert answer.certificate is None
        assert "taken as one" in answer.judgement.reason
        certified = answer.max_scale.certified
        assert (certified.basis, certified.certificate) == (Basis.FLUID, None)


def batch_engine(b_max=64, tokens=(64,), seconds=(1,), k_max=None):
    return Engine(batch_time=Table(tokens=tokens, seconds_at=seconds), b_max=b_max, k_max=k_max)


def engine_network(engines, calls, routes=(), **station):
    """One station of engines: {class: tokens}, one call a second of the first class."""
    return Network(
        stations=(Station(name="s", engines=engines, **station),),
        classes=tuple(
            TaskClass(name=name, station="s", prefill=1, decode=tokens - 1) for name, tokens in calls.items()
        ),
        arrivals=(ExternalArrivals(task_class=next(iter(calls)), arrivals=PoissonArrivals(rate=1)),),
        routes=routes,
    )


def test_tasks_that_come_back_find_engines_that_are_queues_of_their_own():
    """Two engines that feed one another; of one class they are a Jackson network, level or not."""
    engines = (batch_engine(),) * 2
    follow, retry = Route(source="a", to=("b",)), Route(source="a", to=("a",), probability="1/2")
    expected = {
        ("random", "follow"): (Verdict.UNDECIDED, None),
        ("round-robin", "follow"): (Verdict.UNDECIDED, None),
        ("token-queue", "follow"): (Verdict.STABLE, Basis.FLUID),
        ("random", "retry"): (Verdict.STABLE, Basis.THEOREM),
        ("round-robin", "retry"): (Verdict.STABLE, Basis.THEOREM),
        ("token-queue", "retry"): (Verdict.STABLE, Basis.THEOREM),
    }
    for (dispatch, kind), said in expected.items():
        calls, routes = ({"a": 20, "b": 30}, (follow,)) if kind == "follow" else ({"a": 20}, (retry,))
        judged = verify_stability(engine_network(engines, calls, routes, dispatch=dispatch)).judgement
        assert (judged.verdict, judged.basis) == said


def test_back_pressure_asks_of_single_stations_too():
    """It orders tasks, not their phases, and knows nothing of several engines."""
    one, two = (batch_engine(),), (batch_engine(),) * 2
    for engines, station, said in (
        (one, {}, Verdict.STABLE),
        (one, {"scheduler": "orca"}, Verdict.UNDECIDED),
        (two, {"dispatch": "random"}, Verdict.UNDECIDED),
        (two, {"dispatch": "token-queue"}, Verdict.STABLE),
    ):
        network = engine_network(engines, {"a": 20, "b": 30}, **station)
        assert verify_stability(network, policy="back-pressure").judgement.verdict is said
        assert verify_stability(network).judgement.verdict is Verdict.STABLE


@pytest.mark.parametrize("policy", POLICIES)
def test_full_batches_are_what_is_served_even_where_smaller_ones_would_serve_more(policy):
    """64 tokens a second in batches of 64, 42.7 in full ones of 128; k_max may keep them small."""
    slow = {"b_max": 128, "tokens": (64, 128), "seconds": (1, 3)}
    judged = verify_stability(engine_network((batch_engine(**slow),), {"a": 50}), policy=policy).judgement
    assert (judged.verdict, judged.load) == (Verdict.UNSTABLE, Fraction(150, 128))
    assert "full batches" in judged.reason
    limited = engine_network((batch_engine(**slow, k_max=60),), {"a": 50})
    assert verify_stability(limited, policy=policy).judgement.verdict is Verdict.UNDECIDED


def test_turns_among_unequal_engines():
    """The slow engine gets half the calls of every class, and serves one token a second."""
    engines = (batch_engine(), batch_engine(b_max=1, tokens=(1,), seconds=(1,)))
    one = verify_stability(engine_network(engines, {"a": 20}, dispatch="round-robin")).judgement
    assert (one.verdict, one.load) == (Verdict.UNSTABLE, 10)
    two = engine_network(engines, {"a": 20, "b": 2}, (Route(source="a", to=("b",)),), dispatch="round-robin")
    answer = verify_stability(two)
    assert (answer.judgement.verdict, answer.judgement.load) == (Verdict.UNSTABLE, 11)
    assert answer.certificate is not None


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6), policy=st.sampled_from(POLICIES), load=st.sampled_from([Fraction(1), Fraction(11, 10)])
)
def test_no_load_of_1_or_more_is_stable(seed, policy, load):
    """Classical servers and engines of every law, limit, scheduler and dispatcher, loops, forks and joins."""
    network = some_network(seed)
    try:
        full = network.scaled(load / max(traffic(network.fluid_model).loads))
    except InvalidModel:  # a slot has room for no more
        assume(False)
    answer = verify_stability(full, policy=policy)
    assert answer.judgement.verdict is not Verdict.STABLE
    assert answer.certificate is None or answer.certificate.verdict is Verdict.UNSTABLE


def test_one_station_is_no_row_of_stations():
    lone = verify_stability(engine_network((batch_engine(),), {"a": 20})).judgement
    assert lone.reason == SINGLE_THEOREM
    tandem = verify_stability(load_network("tandem"))
    assert tandem.judgement.reason == FEED_FORWARD_THEOREM
    assert {group.judgement.reason for group in tandem.groups} == {SINGLE_THEOREM}


def test_constant_services_under_every_policy():
    """The worst priorities then overload a virtual station of the fluid model; for the network that is no proof."""
    network = load_network("rybko-stolyar")
    classes = tuple(attrs.evolve(each, service=ConstantInterval(mean=each.service.mean)) for each in network.classes)
    answer = verify_stability(attrs.evolve(network, classes=classes), policy="any", max_scale=True)
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.UNSTABLE, Basis.FLUID)
    assert answer.certificate is None
    assert answer.max_scale.unstable.basis is Basis.FLUID


def test_a_verdict_says_of_which_policies_it_speaks():
    network = load_network("rybko-stolyar")
    for policy, scale, said in (
        ("file", "1", "under the orders of service of the file"),
        ("any", "1", "under some non-idling policy"),
        ("any", "0.8", "under every non-idling policy"),
        ("any", "2", "under every non-idling policy"),
        ("back-pressure", "1", "under back-pressure"),
    ):
        answer = verify_stability(network.scaled(Fraction(scale)), policy=policy)
        assert answer.scope == answer.to_dict()["scope"] == said


def test_notes_on_memory_and_on_arrivals_that_are_not_spread_out():
    network = engine_network((attrs.evolve(batch_engine(), kv_tokens=1000),), {"a": 20})
    assert any(note.startswith("s: kv_tokens = 1000 plays no part") for note in verify_stability(network).notes)

    def recurrence(interval):
        come = ExternalArrivals(task_class="a", arrivals=RenewalArrivals(interval=interval))
        return [
            note for note in verify_stability(attrs.evolve(network, arrivals=(come,))).notes if "recurrence" in note
        ]

    assert recurrence(GammaInterval(mean=1, cv=2)) == []
    for interval in (ConstantInterval(mean=1), UniformInterval(low=0, high=2)):
        assert "departures keep pace with arrivals" in recurrence(interval)[0]


def test_engines_of_different_speed_are_not_one_server_where_tasks_come_back():
    """Of 64 and 32 tokens a second, from equal queues the faster idles while the slower works off its own."""
    unequal = (batch_engine(), batch_engine(seconds=(2,)))
    follow = (Route(source="a", to=("b",)),)
    network = engine_network(unequal, {"a": 20, "b": 30}, follow)
    judged = verify_stability(network).judgement
    assert (judged.verdict, judged.basis) == (Verdict.UNDECIDED, None)
    assert "differ in speed" in judged.reason
    assert "differ in speed" in fluid_doubt(network)
    passing = verify_stability(engine_network(unequal, {"a": 20, "b": 30})).judgement
    assert (passing.verdict, passing.basis) == (Verdict.STABLE, Basis.THEOREM)


def test_engines_that_order_their_own_queues_are_said_to():
    ordered = engine_network(
        (batch_engine(),) * 2, {"a": 20, "b": 30}, (Route(source="a", to=("b",)),), priority=("b", "a")
    )
    assert "each orders its own queue" in verify_stability(ordered).judgement.reason


def with_front(network: Network) -> Network:
    """With a station before the first class, which then is fed from there alone."""
    first, *others = network.arrivals
    front = TaskClass(name="front", station="door", service=ConstantInterval(mean="10 ms"))
    return attrs.evolve(
        network,
        stations=(Station(name="door"), *network.stations),
        classes=(front, *network.classes),
        arrivals=(attrs.evolve(first, task_class="front"), *others),
        routes=(Route(source="front", to=(first.task_class,)), *network.routes),
    )


@pytest.mark.parametrize("policy", ["file", "any"])
def test_the_proof_of_a_part_that_is_too_much_for_its_priorities_is_about_the_whole(policy):
    network = with_front(load_network("rybko-stolyar"))
    answer = verify_stability(network, policy=policy)
    assert (answer.judgement.verdict, answer.judgement.basis) == (Verdict.UNSTABLE, Basis.CERTIFICATE)
    proof = accepted(answer)
    assert proof.kind == "virtual-station"
    assert [each["name"] for each in proof.model["classes"]] == list(network.fluid_model.classes)


@pytest.mark.parametrize("scale", ["1e-6", "1e-12", "1e-20"])
@pytest.mark.parametrize("name", ["lu-kumar", "rybko-stolyar"])
def test_loads_that_vanish_are_proved_stable_as_larger_ones_are(name, scale):
    answer = verify_stability(load_network(name).scaled(Fraction(scale)))
    assert answer.judgement.verdict is Verdict.STABLE
    accepted(answer)


def test_progress_rises_to_the_end():
    shares = []
    answer = verify_stability(load_network("rybko-stolyar"), max_scale=True, progress=shares.append)
    assert answer.max_scale.gap < Fraction(1, 10**7)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1


@pytest.mark.parametrize("wrong", [None, 3, "rybko-stolyar", []])
def test_what_is_no_network_is_refused(wrong):
    for ask in (verify_stability, traffic, lambda model: fluid_path(model, {"A1": 1})):
        with pytest.raises(InvalidInput, match=r"model: .* is no network.*load_network"):
            ask(wrong)
    with pytest.raises(InvalidInput, match="max_scale: 'no' is neither"):
        verify_stability(load_network("rybko-stolyar"), max_scale="no")
