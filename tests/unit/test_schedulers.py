"""The batches every rule forms of states written by hand, flag by flag; the registry and its refusals."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import rules

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.policy import Batch, Pass, Policy
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler, to_policy, to_scheduler
from queuetheory_llm.schedulers.state import State

# By arrival: 0 decodes, 1 has 5 prompt tokens, 2 decodes, 3 has 3 prompt tokens of which some are served, 4 has 2.
# 2 was served before 0, and 3 last.
BUSY = State(left=((0, 2), (5, 1), (0, 1), (3, 2), (2, 0)), running=(2, 0, 3))


def formed(rule, state=BUSY, b_max=8, k_max=None):
    batch = parse_scheduler(rule).form(state.view(b_max, k_max))
    return batch.prefill, batch.decode


@pytest.mark.parametrize(
    ("rule", "prefill", "decode"),
    [
        ("fastertransformer", [], [0, 2]),
        ("fastertransformer+mixed", [(1, 5)], [0, 2]),
        ("fastertransformer+chunk", [], [0, 2]),
        ("vllm-vanilla", [(1, 5), (3, 3)], []),
        ("vllm-vanilla+mixed", [(1, 5), (3, 3)], []),
        ("orca", [(1, 5), (3, 3)], []),
        ("orca-whole", [(1, 5), (3, 3)], []),
        ("sarathi", [(1, 5), (3, 1)], [0, 2]),
        ("vllm-chunked", [(3, 3), (1, 3)], [2, 0]),
        ("vllm-chunked+whole", [(3, 3)], [2, 0]),
        ("sglang", [(1, 5), (3, 3)], []),
        ("tensorrt-llm", [(1, 5)], [0, 2]),
        ("tensorrt-llm+chunk", [(1, 5), (3, 1)], [0, 2]),
        ("static", [(3, 3)], [2, 0]),
        ("static+mixed", [(3, 3)], [2, 0]),
    ],
)
def test_eight_tokens_for_five_requests(rule, prefill, decode):
    assert formed(rule) == (prefill, decode)


@pytest.mark.parametrize(
    ("rule", "prefill", "decode"),
    [
        ("vllm-vanilla", [(1, 5)], []),  # the next prompt does not fit and ends the pass, a smaller one behind it too
        ("vllm-vanilla+chunk", [(1, 5), (3, 1)], []),
        ("vllm-vanilla+mixed", [(1, 5)], [0]),
        ("orca", [(1, 5), (3, 1)], []),
        ("orca-whole", [(1, 5)], [0]),
        ("sglang", [(1, 5), (3, 1)], []),
        ("sglang+mixed", [(1, 5), (3, 1)], []),
        ("sarathi", [(1, 4)], [0, 2]),
        ("tensorrt-llm", [], [0, 2]),
        ("fastertransformer+mixed", [], [0, 2]),
        ("vllm-chunked", [(3, 3), (1, 1)], [2, 0]),
        ("static", [(3, 3)], [2, 0]),
        ("static+chunk", [(3, 3)], [2, 0]),
    ],
)
def test_six_tokens_cut_a_prompt_or_leave_it(rule, prefill, decode):
    assert formed(rule, b_max=6) == (prefill, decode)


@pytest.mark.parametrize(
    ("rule", "prefill", "decode"),
    [
        ("sarathi+target=3", [(1, 1)], [0, 2]),
        ("sarathi+threshold=2", [(1, 2), (3, 2), (4, 2)], [0, 2]),
        ("sarathi+target=5+threshold=2", [(1, 2), (3, 1)], [0, 2]),
        ("sarathi+target=100", [(1, 5), (3, 1)], [0, 2]),
        ("vllm-chunked+threshold=2", [(3, 2), (1, 2), (4, 2)], [2, 0]),
        ("orca+threshold=1", [(1, 1), (3, 1), (4, 1)], [0, 2]),
        ("vllm-vanilla+target=5", [(1, 5)], []),
        ("sglang+threshold=1", [(1, 1), (3, 1), (4, 1)], []),
    ],
)
def test_targets_and_thresholds(rule, prefill, decode):
    assert formed(rule) == (prefill, decode)


@pytest.mark.parametrize(
    ("rule", "k_max", "prefill", "decode"),
    [
        ("sarathi", 1, [], [0]),
        ("sarathi", 3, [(1, 5)], [0, 2]),
        ("orca", 1, [(1, 5)], []),
        ("orca", 2, [(1, 5), (3, 3)], []),
        ("vllm-vanilla", 1, [(1, 5)], []),
        ("fastertransformer", 1, [], [0]),
        # Three requests hold a seat: with three seats nobody else enters, with four one does.
        ("vllm-chunked", 3, [(3, 3)], [2, 0]),
        ("vllm-chunked", 4, [(3, 3), (1, 3)], [2, 0]),
        ("static", 9, [(3, 3)], [2, 0]),
    ],
)
def test_a_batch_size(rule, k_max, prefill, decode):
    assert formed(rule, k_max=k_max) == (prefill, decode)


def test_a_seat_is_held_by_a_request_that_the_batch_did_not_reach():
    # Request 0 takes the whole budget; 1 has started too, so the two seats are taken although only one is used.
    state = State(left=((9, 1), (0, 1), (1, 1)), running=(0, 1))
    assert formed("vllm-chunked", state, b_max=4, k_max=2) == ([(0, 4)], [])
    assert formed("vllm-chunked", State(left=((2, 1), (0, 1), (1, 1)), running=(0, 1)), b_max=4, k_max=2) == (
        [(0, 2)],
        [1],
    )


@pytest.mark.parametrize(
    ("rule", "prefill", "decode"),
    [
        ("vllm-vanilla", [], [0, 1]),
        ("fastertransformer", [], [0, 1]),
        ("sglang", [], [0, 1]),
        ("static", [], [0, 1]),
        ("orca", [], [0, 1]),
    ],
)
def test_without_prompts_everyone_decodes(rule, prefill, decode):
    assert formed(rule, State(left=((0, 2), (0, 1)), running=(0, 1))) == (prefill, decode)


@pytest.mark.parametrize("rule", ["fastertransformer", "static", "vllm-vanilla", "tensorrt-llm", "vllm-chunked+whole"])
def test_whole_prompts_into_an_empty_engine_stop_at_the_first_that_does_not_fit(rule):
    state = State(left=((4, 1), (5, 1), (1, 1)))
    assert formed(rule, state, b_max=8) == ([(0, 4)], [])


def test_nothing_is_served_where_no_prompt_fits():
    assert formed("vllm-vanilla", State(left=((9, 1), (1, 1))), b_max=8) == ([], [])


@given(rules(), st.data())
def test_a_batch_keeps_to_the_budget_the_seats_and_the_requests_present(rule, data):
    tokens = st.tuples(st.integers(0, 6), st.integers(0, 3)).filter(any)
    left = tuple(data.draw(st.lists(tokens, max_size=7)))
    running = tuple(data.draw(st.permutations(range(len(left)))))[: data.draw(st.integers(0, len(left)))]
    b_max, k_max = data.draw(st.integers(1, 12)), data.draw(st.none() | st.integers(1, 5))
    state = State(left, running)
    batch = rule.form(state.view(b_max, k_max))
    assert batch.tokens <= rule.budget(b_max)
    assert k_max is None or batch.requests <= k_max
    assert len({*dict(batch.prefill), *batch.decode}) == batch.requests
    for request, count in batch.prefill:
        assert 1 <= count <= left[request][0]
        assert rule.threshold is None or count <= rule.threshold
        assert rule.chunks or count == left[request][0]
    assert all(left[request][0] == 0 < left[request][1] for request in batch.decode)
    phases = bool(batch.prefill) + bool(batch.decode)
    assert rule.mixed or phases <= 1 or rule.passes[0] is Pass.RUNNING
    assert state.after(batch).tokens == state.tokens - batch.tokens


def test_the_state_after_a_batch():
    after = BUSY.after(Batch(prefill=[(3, 3), (1, 3)], decode=[2, 0]))
    assert after == State(left=((0, 1), (2, 1), (0, 2), (2, 0)), running=(0, 2, 1))
    assert after.joined([(7, 7)]).left[-1] == (7, 7)
    assert BUSY.view(8).demand == 2 + 5 + 3 + 2
    assert BUSY.view(8).present == 5


class TestRegistry:
    def test_every_rule_has_a_sentence_and_a_source(self):
        for name, policy in SCHEDULERS.items():
            assert policy.name == name
            assert len(policy.rule) > 20
            assert len(policy.source) > 10

    def test_the_names_promised(self):
        promised = {"fastertransformer", "vllm-vanilla", "orca", "sarathi", "vllm-chunked", "sglang", "tensorrt-llm"}
        assert promised <= set(SCHEDULERS)

    @pytest.mark.parametrize("name", SCHEDULERS)
    def test_a_name_alone_is_the_rule_itself(self, name):
        assert parse_scheduler(name) is SCHEDULERS[name]
        assert parse_scheduler(f" {name} ") is SCHEDULERS[name]

    def test_a_flag_changes_its_switch_and_the_name(self):
        changed = parse_scheduler("vllm-vanilla+chunk+mixed+target=64+threshold=8")
        assert changed == attrs.evolve(
            SCHEDULERS["vllm-vanilla"],
            name="vllm-vanilla+chunk+mixed+target=64+threshold=8",
            chunks=True,
            mixed=True,
            target=64,
            threshold=8,
        )
        assert parse_scheduler("orca+whole").passes == SCHEDULERS["orca-whole"].passes
        assert parse_scheduler("orca+whole").chunks is False

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("sarati", "did you mean sarathi?"),
            ("vllm-vanila", "did you mean vllm-vanilla?"),
            ("Sarathi", "did you mean sarathi?"),
            ("", "known: fastertransformer"),
            ("+chunk", "known: fastertransformer"),
            ("zzz", "known: fastertransformer"),
            ("zzz", "static, max-weight, max-pressure"),
            ("max-presure", "did you mean max-pressure?"),
            ("sarathi+", "unknown flag '+'"),
            ("sarathi+fast", "unknown flag '+fast'; flags are +chunk"),
            ("sarathi+chunk=1", "unknown flag '+chunk=1'"),
            ("sarathi+target", "unknown flag '+target'"),
            ("sarathi+target=", "target takes a whole number of tokens, at least 1"),
            ("sarathi+target=0", "target takes a whole number of tokens, at least 1"),
            ("sarathi+target=-4", "target takes a whole number"),
            ("sarathi+target=1.5", "target takes a whole number"),
            ("sarathi+target=٣", "target takes a whole number"),
            ("sarathi+target=" + "9" * 5000, "target takes a whole number"),
            ("sarathi+threshold=0", "threshold takes a whole number"),
            ("sarathi+chunk+whole", "sets chunks twice"),
            ("sarathi+target=4+target=5", "sets target twice"),
            ("vllm-vanilla+threshold=4", "a threshold splits prompts; drop it or add +chunk"),
            ("sarathi+whole+threshold=4", "a threshold splits prompts"),
        ],
    )
    def test_refusals(self, text, complaint):
        with pytest.raises(InvalidInput) as caught:
            parse_scheduler(text)
        assert complaint in str(caught.value)
        assert len(caught.value.faults) == 1

    def test_rules_pass_as_they_are(self):
        rule = SCHEDULERS["orca"]
        assert to_policy(rule) is to_scheduler(rule) is to_policy("orca") is rule

    def test_the_longest_prompt_of_a_rule(self):
        assert parse_scheduler("sarathi").longest_prompt(64) is None
        assert parse_scheduler("vllm-vanilla").longest_prompt(64) == 64
        assert parse_scheduler("vllm-vanilla+target=16").longest_prompt(64) == 16


def test_a_policy_of_ones_own_is_a_rule():
    passes = (Pass.RUNNING, Pass.WAITING)
    mine = Policy(name="mine", rule="running first", source="me", passes=passes, mixed=False, chunks=True)
    assert mine.form(BUSY.view(8)).tokens == 5


@pytest.mark.parametrize("passes", [(), (Pass.RUNNING,), (Pass.WAITING, Pass.RUNNING), (Pass.DECODE, Pass.DECODE)])
def test_passes_that_miss_requests_are_refused(passes):
    with pytest.raises(InvalidInput, match="mine: passes must be PREFILL and DECODE in either order"):
        Policy(name="mine", rule="running first", source="me", passes=passes, mixed=False, chunks=True)
