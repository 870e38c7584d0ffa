"""Several engines: a random split needs each of them, the shortest token queue their sum."""

from fractions import Fraction

import attrs
import pytest

from queuetheory_llm.errors import InfeasibleRequest, InvalidInput
from queuetheory_llm.model.arrivals import DeterministicArrivals, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.stability.answers import capacity
from queuetheory_llm.stability.parallel import every_nth, parallel_threshold
from queuetheory_llm.stability.thresholds import threshold
from queuetheory_llm.verdict import Verdict

LAW = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
BIG, SMALL = Engine(batch_time=LAW, b_max=1024), Engine(batch_time=LAW, b_max=128)
CHAT = Workload.of(prefill=129, decode=112)
SARATHI = parse_scheduler("sarathi")
F = [Fraction(1024) / LAW.seconds(1024), Fraction(128) / LAW.seconds(128)]


def rate(engines, dispatch, rule=SARATHI, **options):
    found = parallel_threshold(engines, rule, CHAT, dispatch, **options)
    assert found.exact
    return found.low


@pytest.mark.parametrize("dispatch", ["random", "round-robin", "token-queue"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_equal_engines_carry_their_number(dispatch, count):
    assert rate([BIG] * count, dispatch) == count * F[0] / 241


def test_unequal_engines():
    assert rate([BIG, SMALL], "token-queue") == sum(F) / 241
    assert rate([BIG, SMALL], "random") == 2 * F[1] / 241  # half of the requests overload the small one first
    shares = [f / sum(F) for f in F]
    assert rate([BIG, SMALL], "random", split=shares) == sum(F) / 241
    for share in (Fraction(1, 4), Fraction(3, 4), Fraction(9, 10)):
        best = min(F[0] / share, F[1] / (1 - share)) / 241
        assert rate([BIG, SMALL], "random", split=[share, 1 - share]) == best


def test_the_engine_that_binds_is_named():
    found = parallel_threshold([BIG, SMALL], SARATHI, CHAT, "random")
    assert found.binding == "b_max of engine 2"
    uneven = [Fraction(1, 10), Fraction(8, 10), Fraction(1, 10)]
    found = parallel_threshold([SMALL, SMALL, BIG], SARATHI, CHAT, "random", split=uneven)
    assert found.low == F[1] / uneven[1] / 241
    assert found.binding == "b_max of engine 2"


def test_round_robin_gives_each_engine_its_number_of_requests():
    assert rate([BIG, SMALL], "round-robin") == 2 * F[1] / 241


def test_of_the_fewest_requests_only_the_bound_of_every_rule_is_proved():
    """Of equal engines what all carry together; of unlike ones their tokens, whoever serves which."""
    found = parallel_threshold([BIG, BIG], SARATHI, CHAT, "least-outstanding")
    assert (found.low, found.high) == (0, 2 * F[0] / 241)
    assert found.judge(1).verdict is Verdict.UNDECIDED
    assert found.judge(found.high * Fraction(101, 100)).verdict is Verdict.UNSTABLE
    assert parallel_threshold([BIG, SMALL], SARATHI, CHAT, "least-outstanding").high == sum(F) / 241
    alone = parallel_threshold([BIG], SARATHI, CHAT, "least-outstanding")
    assert alone.exact
    assert alone.low == F[0] / 241


def test_what_needs_poisson_arrivals_does_not_hold_of_every_second_one():
    """Vanilla vLLM has a sharp limit for Poisson arrivals only; of round robin's Erlang intervals it keeps bounds."""
    vanilla = parse_scheduler("vllm-vanilla")
    random, turns = (parallel_threshold([BIG] * 2, vanilla, CHAT, dispatch) for dispatch in ("random", "round-robin"))
    assert random.exact
    assert not turns.exact
    assert turns.low < random.low < turns.high
    assert parallel_threshold([BIG], vanilla, CHAT, "round-robin") == parallel_threshold([BIG], vanilla, CHAT, "random")
    regular = CHAT.with_arrivals(DeterministicArrivals(interval="1 s"))
    assert every_nth(regular, 2) is regular


def test_an_engine_that_gets_nothing_does_not_bind():
    assert rate([BIG, SMALL], "random", split=[Fraction(1), Fraction(0)]) == F[0] / 241


def test_a_split_poisson_process_is_poisson_but_a_joined_queue_is_not():
    vanilla = parse_scheduler("vllm-vanilla")
    poisson = CHAT.with_arrivals(PoissonArrivals(rate=1))
    alone = threshold(BIG, vanilla, poisson)
    split = parallel_threshold([BIG, BIG], vanilla, poisson, "random")
    assert split.exact
    assert split.low == pytest.approx(2 * alone.low)
    joined = parallel_threshold([BIG, BIG], vanilla, poisson, "token-queue")
    assert joined.low < 2 * alone.low < joined.high


def test_rounds_hold_for_every_process():
    draining = parse_scheduler("fastertransformer")
    assert rate([BIG, BIG], "token-queue", draining) == 2 * threshold(BIG, draining, CHAT).low


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dispatch": "shortest"}, "'shortest' is not a dispatch rule; known: random, round-robin, token-queue"),
        ({"dispatch": "token-queue", "split": [Fraction(1, 2)] * 2}, "only the random dispatch has a split"),
        ({"dispatch": "random", "split": [Fraction(1)]}, "1 shares for 2 engines"),
        ({"dispatch": "random", "split": [Fraction(1, 2), Fraction(1, 3)]}, "sum to 1, not 0.833333"),
        ({"dispatch": "random", "split": [Fraction(3, 2), Fraction(-1, 2)]}, "at least 0"),
    ],
)
def test_refusals(options, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        parallel_threshold([BIG, SMALL], SARATHI, CHAT, **options)


def test_an_infeasible_prompt_on_one_engine_is_refused():
    with pytest.raises(InfeasibleRequest, match="129 tokens can never run"):
        parallel_threshold([BIG, SMALL], parse_scheduler("vllm-vanilla"), CHAT, "token-queue")
    with pytest.raises(InfeasibleRequest, match="129 tokens can never run"):
        parallel_threshold([BIG, SMALL], parse_scheduler("vllm-vanilla"), CHAT, "least-outstanding")


class TestCapacityAnswer:
    def test_one_engine_has_levers(self):
        answer = capacity(attrs.evolve(SMALL, k_max=100), CHAT)
        (levers,) = answer.levers
        assert [lever.change for lever in levers] == ["b_max 128 -> 256", "k_max 100 -> 200"]
        # Without a binding batch size (200 > 128) the rate is that of full batches.
        assert levers[1].after.low == F[1] / 241
        assert answer.dispatch is None

    def test_several_engines_have_none(self):
        answer = capacity([BIG, SMALL], CHAT, dispatch="token-queue")
        assert answer.levers == ((),)
        assert answer.dispatch == "token-queue"
        assert answer.results[0].low == sum(F) / 241

    def test_a_dispatcher_by_default_is_random(self):
        assert capacity([BIG, SMALL], CHAT).dispatch == "random"
