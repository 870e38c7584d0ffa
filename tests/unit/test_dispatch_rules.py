"""Dispatch rules and queue orders, one function at a time."""

import math
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuetheory_llm.dispatch.hexgen_paper import HEXGEN_PAPER
from queuetheory_llm.dispatch.registry import DISPATCH_RULES, parse_dispatcher, require_dispatch, to_dispatcher
from queuetheory_llm.dispatch.view import Dispatcher, DispatchRule, DispatchView
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.dispatch import STATION_RULES
from queuetheory_llm.schedulers import least_laxity, qlm, urgency, vtc
from queuetheory_llm.schedulers.queue_order import OrderView
from queuetheory_llm.schedulers.queue_orders import QUEUE_ORDERS, parse_order, to_order

INF = math.inf


def view(seconds, **seen):
    """Instances that have been given nothing, but for what is told; nobody can write to them."""
    size = len(seconds)
    able = np.isfinite(seconds)
    arrays = {
        "seconds": seconds,
        "queued": np.zeros(size),
        "outstanding": np.zeros(size, dtype=np.int64),
        "tokens": np.zeros(size),
        "assigned": np.zeros(size),
        "shares": able / able.sum(),
        **{name: value for name, value in seen.items() if name not in ("stage", "turn", "chance")},
    }
    arrays = {name: np.array(value) for name, value in arrays.items()}
    for each in arrays.values():
        each.setflags(write=False)
    return DispatchView(stage=seen.get("stage", 0), turn=seen.get("turn", 0), chance=seen.get("chance", 0.0), **arrays)


def chosen(text, seconds, **seen):
    to = to_dispatcher(text)
    return to.rule.choose(view(seconds, **seen), to.parameters)


def several(elements, size):
    return st.lists(elements, min_size=size, max_size=size)


@st.composite
def views(draw):
    size = draw(st.integers(1, 5))
    seconds = draw(several(st.sampled_from([0.25, 0.5, 1.0, 3.0, INF]), size))
    seconds[draw(st.integers(0, size - 1))] = 0.75
    return view(
        seconds,
        queued=draw(several(st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.5, 2.0, 1e6]), size)),
        outstanding=draw(several(st.integers(0, 3), size)),
        tokens=draw(several(st.sampled_from([0.0, 1.0, 7.0]), size)),
        assigned=draw(several(st.sampled_from([0.0, 1.0, 2.5]), size)),
        turn=draw(st.integers(0, 20)),
        chance=draw(st.floats(0, 1, exclude_max=True)),
    )


@pytest.mark.parametrize("name", DISPATCH_RULES)
@settings(max_examples=40)
@given(seen=views(), alpha=st.sampled_from([0.0, 0.3, 1.0]), beta=st.sampled_from([1e-30, 1.0, 1e30]), ties=st.data())
def test_a_call_goes_where_it_is_served_whatever_is_seen(name, seen, alpha, beta, ties):
    rule = DISPATCH_RULES[name]
    values = {"alpha": alpha, "beta": beta, "ties": ties.draw(st.integers(0, 3))}
    to = Dispatcher(rule=rule, values={key: values[key] for key in rule.defaults})
    assert seen.seconds[rule.choose(seen, to.parameters)] < INF


@given(seen=views(), alpha=st.floats(0, 1, exclude_max=True), beta=st.floats(1e-300, 1e300))
def test_an_idle_instance_goes_before_every_busy_one(seen, alpha, beta):
    """However short the queue of the busy one, and the fastest of the idle."""
    idle = [m for m in range(seen.seconds.size) if seen.queued[m] == 0 and seen.seconds[m] < INF]
    best = HEXGEN_PAPER.choose(seen, np.array([alpha, beta]))
    if idle:
        assert best == min(idle, key=lambda m: seen.seconds[m])


@given(seen=views(), beta=st.floats(1e-300, 1e300))
def test_at_alpha_1_the_score_is_the_time_of_the_call_alone(seen, beta):
    assert HEXGEN_PAPER.choose(seen, np.array([1.0, beta])) == int(np.argmin(seen.seconds))
    assert HEXGEN_PAPER.choose(seen, np.array([1.0, beta])) == chosen("fastest", seen.seconds)


@given(seen=views())
def test_at_alpha_0_the_score_is_the_queue_alone(seen):
    """The shortest queue; of idle instances, and of queues too short to be told apart, the fastest."""
    able = [m for m in range(seen.seconds.size) if seen.seconds[m] < INF]
    best = HEXGEN_PAPER.choose(seen, np.array([0.0, 1.0]))
    tiny = 1 / 1.7e308
    assert max(seen.queued[best], tiny) == max(min(seen.queued[m] for m in able), tiny)


def test_scores_that_are_equal():
    assert chosen("hexgen-paper", [2, 2, 2], queued=[1, 1, 1]) == 0
    assert chosen("hexgen-paper", [3, 2, 2]) == 1
    assert chosen("hexgen-paper+alpha=0", [3, 2, 2], queued=[1, 1, 1]) == 1


def test_the_released_score_gives_to_the_base_first_and_balances_what_was_assigned():
    assert chosen("hexgen-released+alpha=1", [5, 1], assigned=[0, 9]) == 0
    assert chosen("hexgen-released+alpha=1", [INF, 5, 1], assigned=[9, 0, 9]) == 1
    assert chosen("hexgen-released+alpha=0", [5, 1, 1], assigned=[5, 6, 4]) == 2
    assert chosen("hexgen-released+alpha=1", [5, 1, 1], assigned=[5, 60, 4]) == 1
    assert chosen("hexgen-released", [5, 5], assigned=[5, 5]) == 0
    # 1/2 - (1/2) 2 against 1/2 * 3 - (1/2) W_2: equal where W_2/W_1 = 3
    assert [chosen("hexgen-released+alpha=0.5", [3, 1], assigned=[1, w]) for w in (2.9, 3.1)] == [1, 0]
    assert chosen("hexgen-released", [1, 0, 2], assigned=[1, 8, 0]) == 1  # what takes no time there


def test_shares_are_probabilities():
    shares = [0.25, 0, 0.5, 0.25, 0]
    numbers = (np.arange(10_000) + 0.5) / 10_000
    found = [chosen("random-lp", [1] * 5, shares=shares, chance=u) for u in numbers]
    assert np.bincount(found, minlength=5).tolist() == [2500, 0, 5000, 2500, 0]
    below = [0.1] * 9 + [0.1 - 1e-9, 0]
    assert chosen("random", [1] * 11, shares=below, chance=np.nextafter(1, 0)) == 9


def test_turns_skip_what_does_not_serve_the_stage():
    assert [chosen("round-robin", [1, INF, 1, 2], turn=turn) for turn in range(6)] == [0, 2, 3, 0, 2, 3]


@pytest.mark.parametrize(
    ("ties", "expected"), [("first", [1, 1, 1]), ("random", [1, 2, 3]), ("fast", [2, 2, 2]), ("slow", [3, 3, 3])]
)
def test_ties_of_the_fewest_calls(ties, expected):
    seen = {"outstanding": [3, 2, 2, 2, 0], "seconds": [1, 3, 2, 4, INF]}
    found = [chosen(f"least-outstanding+ties={ties}", chance=chance, **seen) for chance in (0.0, 0.5, 0.999)]
    assert found == expected
    alone = {"outstanding": [3, 1, 2], "seconds": [1, 3, 2]}
    assert chosen(f"least-outstanding+ties={ties}", chance=0.9, **alone) == 1


def test_queues_by_delay_by_tokens_and_speed_alone():
    seconds, outstanding, tokens = [1, 2, INF, 2], [3, 1, 0, 0], [5, 9, 0, 5]
    assert chosen("shortest-expected-delay", seconds, outstanding=outstanding) == 3
    assert chosen("shortest-expected-delay", [1, 2], outstanding=[1, 0]) == 0
    assert chosen("token-queue", seconds, tokens=tokens) == 0
    assert chosen("token-queue", seconds, tokens=[5, 3, 0, 4]) == 1
    assert chosen("fastest", [INF, 2, 1, 1]) == 2


class TestNames:
    def test_flags(self):
        found = parse_dispatcher(" hexgen-paper+alpha=0.3+queue=true ")
        assert (found.rule, found.reading, found.name) == (HEXGEN_PAPER, "true", "hexgen-paper+alpha=0.3+queue=true")
        assert found.parameters.tolist() == [0.3, 1]
        assert parse_dispatcher("hexgen-paper+beta=5/2").parameters.tolist() == [0.2, 2.5]
        assert parse_dispatcher("least-outstanding+ties=slow").parameters.tolist() == [3]
        assert parse_dispatcher("round-robin").parameters.size == 0

    def test_every_name_is_its_rule(self):
        assert all(to_dispatcher(name).rule is rule for name, rule in DISPATCH_RULES.items())
        assert all(to_dispatcher(rule).name == name for name, rule in DISPATCH_RULES.items())
        assert set(STATION_RULES) <= set(DISPATCH_RULES)

    def test_a_dispatcher_is_called_by_what_differs(self):
        ties = Dispatcher(rule=DISPATCH_RULES["least-outstanding"], values={"ties": 2})
        assert ties.name == "least-outstanding+ties=fast"
        again = parse_dispatcher(Dispatcher(rule=HEXGEN_PAPER, values={"alpha": 0.45}, reading="true").name)
        assert (again.parameters.tolist(), again.reading) == ([0.45, 1], "true")

    def test_a_rule_of_ones_own(self):
        rule = DispatchRule(name="last", choose=lambda seen, parameters: seen.seconds.size - int(parameters[0]),
                            defaults={"back": 1})  # fmt: skip
        assert chosen(rule, [1, 1, 1]) == 2
        to = attrs.evolve(to_dispatcher(rule), values={"back": 2})
        assert to.rule.choose(view([1, 1, 1]), to.parameters) == 1
        assert to_dispatcher(to) is to

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("hexgen", "'hexgen' is not a known rule; did you mean hexgen-paper?"),
            ("", "'' is not a known rule; known: random, random-proportional"),
            ("hexgen-paper+alpha=1.2", "alpha: 1.2 is out of range; hexgen-paper takes 0 to 1"),
            ("hexgen-released+alpha=-0.1", "alpha: -0.1 is out of range; hexgen-released takes 0 to 1"),
            ("hexgen-paper+alpha=nan", "alpha: nan is not finite"),
            ("hexgen-paper+alpha=much", "alpha: 'much' is not a number"),
            ("hexgen-paper+beta=0", "beta: 0 is out of range; hexgen-paper takes above 0 and finite"),
            ("hexgen-paper+beta=-1", "beta: -1 is out of range"),
            ("hexgen-paper+beta=inf", "beta: inf is not finite"),
            ("hexgen-paper+alpha=0+alpha=1", r"'hexgen-paper\+alpha=0\+alpha=1' sets alpha twice"),
            ("hexgen-paper+queue=true+queue=true", "sets queue twice"),
            ("hexgen-paper+queue=real", "queue: 'real' is no reading of t_queue; write one of estimated, true"),
            ("hexgen-paper+alfa=0.5", r"unknown flag '\+alfa=0.5'; did you mean \+alpha=\?"),
            ("hexgen-released+beta=1", r"unknown flag '\+beta=1'; hexgen-released takes \+alpha="),
            ("hexgen-paper+true", r"unknown flag '\+true'"),
            ("fastest+queue=true", r"unknown flag '\+queue=true'; fastest takes none"),
            ("least-outstanding+ties=fst", "ties: 'fst' is not known; did you mean fast"),
            ("least-outstanding+ties=9", "ties: '9' is not known; known: first, random, fast, slow"),
        ],
    )
    def test_bad_input_is_one_line(self, text, fault):
        with pytest.raises(InvalidInput, match=f"^--dispatch: .*{fault}") as refused:
            parse_dispatcher(text)
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        ("options", "fault"),
        [
            ({"values": {"alpha": 2}}, "alpha: 2 is out of range"),
            ({"values": {"alpha": math.nan}}, "alpha: nan is out of range"),
            ({"values": {"beta": math.inf}}, "beta: inf is out of range"),
            ({"values": {"gamma": 1}}, "gamma: hexgen-paper has no such parameter; it has alpha, beta"),
            ({"reading": "guessed"}, "queue: 'guessed' is no reading of t_queue"),
        ],
    )
    def test_dispatchers_made_in_python_are_checked_too(self, options, fault):
        with pytest.raises(InvalidInput, match=f"^{fault}"):
            Dispatcher(rule=HEXGEN_PAPER, **options)
        with pytest.raises(InvalidInput, match="ties: 7 stands for no word; write one of first, random"):
            Dispatcher(rule=DISPATCH_RULES["least-outstanding"], values={"ties": 7})

    def test_what_is_no_rule(self):
        with pytest.raises(InvalidInput, match="dispatch: 3 is no dispatch rule; give a name, a DispatchRule or"):
            to_dispatcher(3)

    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            (
                "hexgen-paper+alpha=0.5",
                "hexgen-paper weighs seconds at unlike instances; equal engines take random",
            ),
            ("fastest", "fastest weighs seconds"),
            ("least-outstanding+ties=fast", "flags are not for equal engines; write least-outstanding"),
            ("jsq", "'jsq' is not a dispatch rule; known: random, round-robin, token-queue, least-outstanding"),
        ],
    )
    def test_rules_that_a_command_for_equal_engines_does_not_take(self, name, fault):
        with pytest.raises(InvalidInput, match=fault):
            require_dispatch(name)
        assert all(require_dispatch(each) is None for each in STATION_RULES)


def twentieths(low, high):
    """Exact numbers; `st.fractions` takes many times as long to draw."""
    return st.integers(20 * low, 20 * high).map(lambda number: Fraction(number, 20))


numbers = twentieths(0, 50)


@st.composite
def waiting_calls(draw):
    """Calls at an instance, all there at the time now; exact, so that equal keys are equal."""
    now = draw(twentieths(60, 100))
    calls = []
    for _ in range(draw(st.integers(2, 5))):
        born = draw(numbers)
        calls.append(
            OrderView(
                arrived=born + draw(twentieths(0, 10)),
                seconds=draw(numbers),
                budget=draw(numbers),
                born=born,
                slo=draw(numbers),
                rest=draw(numbers),
                prefill=1,
                decode=1,
            )
        )
    return calls, now


@settings(max_examples=40)
@given(case=waiting_calls())
def test_a_key_asked_once_is_the_order_recomputed_at_every_decision(case):
    calls, now = case
    recomputed = {
        urgency: lambda c: -(c.seconds - (c.budget - (now - c.arrived))),
        least_laxity: lambda c: (c.born + c.slo - now) - (c.seconds + c.rest),
        qlm: lambda c: c.born + c.slo - now,
    }
    for module, anew in recomputed.items():
        assert sorted(calls, key=module.key) == sorted(calls, key=anew)
        assert {module.key(c) - anew(c) for c in calls} == {now}


def test_what_has_no_deadline_waits_behind_what_has_one_and_first_come_first_served():
    budget = urgency.budget(INF, 1, 2)
    free = OrderView(arrived=1, seconds=1, budget=budget, born=0, slo=INF, rest=3, prefill=1, decode=1)
    for module in (urgency, least_laxity, qlm):
        assert module.key(free) == INF
    assert urgency.budget(INF, 0, 2) == INF
    assert QUEUE_ORDERS["fcfs"].key(free) == QUEUE_ORDERS["vtc"].key(free) == 1


def test_an_output_token_costs_two_of_a_prompt_and_nobody_saves_up_service():
    assert vtc.cost(129, 112) == 353
    assert (vtc.lifted(3, 8), vtc.lifted(9, 8)) == (8, 9)
    assert [order.name for order in QUEUE_ORDERS.values() if order.fair] == ["vtc"]


def test_orders_by_name():
    assert parse_order(" urgency ") is to_order("urgency") is QUEUE_ORDERS["urgency"]
    own = attrs.evolve(QUEUE_ORDERS["fcfs"], name="mine", key=lambda seen: -seen.arrived)
    assert to_order(own) is own
    with pytest.raises(InvalidInput, match="--order: 'urgent' is not a known queue order; did you mean urgency"):
        parse_order("urgent")
    with pytest.raises(InvalidInput, match="known: fcfs, urgency, least-laxity, vtc, qlm"):
        parse_order("xx")
    with pytest.raises(InvalidInput, match="order: 1 is no queue order; give a name or a QueueOrder"):
        to_order(1)


@given(seconds=st.lists(twentieths(1, 20), min_size=1, max_size=8), slo=twentieths(1, 100))
def test_budgets_sum_to_the_deadline_where_every_stage_takes_its_own(seconds, slo):
    elapsed = Fraction(0)
    for j, average in enumerate(seconds):
        elapsed += urgency.budget(slo - elapsed, average, sum(seconds[j + 1 :], Fraction(0)))
    assert elapsed == slo
