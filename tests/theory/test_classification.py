"""Rules are what their batches show: work-conserving, K-FCFS, throughput-optimal, or a witness that they are not."""

from functools import cache
from itertools import pairwise

import attrs
import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.schedulers.policy import Batch, Pass, Policy
from queuetheory_llm.schedulers.registry import SCHEDULERS, parse_scheduler
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.stability import classify as classification
from queuetheory_llm.stability.classify import Classification, properties
from queuetheory_llm.stability.exploration import explored_form
from queuetheory_llm.stability.topologies import TOPOLOGIES, judge_topologies

classify = cache(classification.classify)
WORK_CONSERVING = ["orca", "sarathi", "vllm-chunked", "sglang+mixed", "tensorrt-llm+chunk", "orca-whole+chunk",
                   "vllm-vanilla+chunk+mixed", "fastertransformer+chunk+mixed", "static+chunk+mixed"]  # fmt: skip
OTHERS = ["fastertransformer", "vllm-vanilla", "orca-whole", "orca+whole", "sglang", "tensorrt-llm", "static",
          "vllm-chunked+whole", "sarathi+whole", "vllm-vanilla+chunk", "fastertransformer+chunk", "static+chunk",
          "vllm-vanilla+mixed"]  # fmt: skip


@pytest.mark.parametrize("name", WORK_CONSERVING)
def test_rules_that_fill_and_mix(name):
    found = classify(name)
    assert (found.work_conserving, found.overtaken, found.fills, found.throughput_optimal) == (True, 0, True, True)
    assert found.idle_witness is found.overtaking_witness is found.growth_witness is None
    assert "work-conserving and 0-FCFS, Theorem 2" in found.reason
    assert found.states > 1000
    assert [verdict.optimal for verdict in judge_topologies(found)] == [each.suffices for each in TOPOLOGIES]


@pytest.mark.parametrize("name", OTHERS)
def test_rules_that_do_not(name):
    found = classify(name)
    assert (found.work_conserving, found.throughput_optimal) == (False, False)
    assert found.idle_witness.tokens < min(found.idle_witness.b_max, found.idle_witness.demand)
    assert found.growth_witness.load < 1
    assert found.reason == str(found.growth_witness)
    assert not any(verdict.optimal for verdict in judge_topologies(found))


def first_violations(rule, b_max, most, sizes):
    """Reachable states with at most ``most`` requests whose batch is not full, by a plain search of our own."""
    found, seen, todo = [], set(), [State()]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        if len(state.left) < most:
            todo.extend(state.joined([size]) for size in sizes)
        if state.left:
            view = state.view(b_max)
            batch = rule.form(view)
            if batch.tokens < min(b_max, view.demand):
                found.append((len(state.left), state.tokens, b_max, state, batch))
            todo.append(state.after(batch))
    return found


@pytest.mark.parametrize("name", OTHERS)
def test_the_witness_is_reached_repeated_and_the_smallest(name):
    rule = parse_scheduler(name)
    witness = properties(rule).idle_witness
    present = len(witness.left)
    every = []
    for b_max in (1, 2, 3):
        longest = rule.longest_prompt(b_max)
        sizes = [(p, d) for p in range(4) for d in range(3) if p + d and (longest is None or p <= longest)]
        every += first_violations(rule, b_max, present, sizes)
    assert min(key[:2] for key in every) == (present, sum(p + d for p, d in witness.left))
    again = [
        (state, batch) for *_, b_max, state, batch in every if (b_max, state.left) == (witness.b_max, witness.left)
    ]
    served = (list(witness.prefill), list(witness.decode))
    assert (witness.running, served) in [(state.running, (b.prefill, b.decode)) for state, b in again]
    assert all(state.view(b_max).demand == witness.demand for state, _ in again)


@pytest.mark.parametrize("name", [*OTHERS, "sarathi+target=5", "orca+target=3"])
def test_the_growth_witness_grows_for_as_long_as_one_looks(name):
    witness = classify(name).growth_witness
    rule = explored_form(parse_scheduler(name))
    tokens = sum(witness.pattern) * sum(witness.size)
    assert tokens < witness.b_max * len(witness.pattern)
    state, backlog = State(), []
    for slot in range(7 * witness.period):
        if slot % witness.period == 0:
            backlog.append(state.tokens)
        state = state.joined([witness.size] * witness.pattern[slot % len(witness.pattern)])
        if state.left:
            batch = rule.form(state.view(witness.b_max))
            assert batch.tokens <= witness.b_max
            state = state.after(batch)
    gains = {after - before for before, after in pairwise(backlog[2:])}
    assert gains == {witness.growth}
    assert witness.growth > 0


@pytest.mark.parametrize("name", ["orca", "sarathi", "vllm-chunked"])
def test_the_same_patterns_leave_a_work_conserving_rule_bounded(name):
    rule = parse_scheduler(name)
    for other in OTHERS:
        witness = classify(other).growth_witness
        state, largest = State(), 0
        for slot in range(witness.period):
            state = state.joined([witness.size] * witness.pattern[slot % len(witness.pattern)])
            largest = max(largest, state.tokens)
            if state.left:
                state = state.after(rule.form(state.view(witness.b_max)))
        assert largest <= 4 * max(witness.pattern) * sum(witness.size) + witness.b_max


class TestNames:
    def test_a_name_decides_nothing(self):
        for name, other in (("sarathi", "vllm-vanilla"), ("vllm-vanilla", "sarathi"), ("fastertransformer", "orca")):
            disguised = attrs.evolve(SCHEDULERS[name], name=other, rule="?", source="?")
            plain, found = classify(name), classify(disguised)
            assert found.scheduler == other
            assert attrs.evolve(found, scheduler=name, explored_as=name) == plain

    def test_priority_alone_decides_nothing(self):
        """Decode first is FasterTransformer without filling and Sarathi with it; prefill first is vanilla or Orca."""
        for passes in ((Pass.DECODE, Pass.PREFILL), (Pass.PREFILL, Pass.DECODE)):
            make = {"name": "x", "rule": "x", "source": "x", "passes": passes}
            assert classify(Policy(**make, mixed=True, chunks=True)).work_conserving
            assert not classify(Policy(**make, mixed=False, chunks=True)).work_conserving
            assert not classify(Policy(**make, mixed=True, chunks=False)).work_conserving


@attrs.frozen
class LastComeFirstServed:
    """A rule of a user's own: the youngest request first, any phase, filling the batch."""

    name: str = "lcfs"

    def form(self, view):
        batch, room = Batch(), view.b_max
        for request in sorted([*view.prefilling, *view.decoding], reverse=True):
            tokens = min(room, view.prefill_left[request] or 1)
            if tokens and view.prefill_left[request]:
                batch.prefill.append((request, tokens))
            elif tokens:
                batch.decode.append(request)
            room -= tokens
        return batch


@attrs.frozen
class Holding:
    """Orca that starts nothing before two requests are present, unless one of them has started."""

    name: str = "holding"

    def form(self, view):
        if view.present < 2 and view.waiting:
            return Batch([(r, 1) for r in view.prefilling], list(view.decoding)[: not view.prefilling])
        return SCHEDULERS["orca"].form(view)


@attrs.frozen
class OneOvertakes:
    """Orca, but the second oldest decode goes before the oldest once: when exactly one prompt is present too."""

    name: str = "overtakes"

    def form(self, view):
        batch = SCHEDULERS["orca"].form(view)
        if len(view.prefilling) == 1 and len(view.decoding) == 2 and len(batch.decode) == 1:
            return Batch(batch.prefill, [view.decoding[1]])
        return batch


class TestRulesOfAUser:
    def test_last_come_first_served_is_work_conserving_and_overtakes_for_ever(self):
        found = classify(LastComeFirstServed())
        assert found.work_conserving
        assert found.overtaken is None
        assert found.throughput_optimal is None
        assert found.reason.startswith("neither a theorem applies")
        witness = found.overtaking_witness
        # In the witness a later request gets a token of a phase in which an earlier one is ready and gets none.
        served = {request for request, _ in witness.prefill}
        waiting = {i for i, (p, _) in enumerate(witness.left) if p} - served
        decoded = set(witness.decode)
        undecoded = {i for i, (p, _) in enumerate(witness.left) if not p} - decoded
        assert (served and waiting and min(waiting) < max(served)) or (
            decoded and undecoded and min(undecoded) < max(decoded)
        )
        assert [verdict.word for verdict in judge_topologies(found)] == ["unknown"] * len(TOPOLOGIES)
        assert found.to_dict()["k_fcfs"] is None
        assert set(found.to_dict()["witnesses"]) == {"k_fcfs"}

    def test_a_rule_that_holds_back(self):
        found = classify(Holding())
        assert not found.work_conserving
        assert len(found.idle_witness.left) == 1
        # One request alone is served a token at a time; at most so much is lost that no theorem is needed.
        assert found.scheduler == "holding"

    def test_some_overtaking_is_endless_when_it_can_be_repeated(self):
        found = classify(OneOvertakes())
        assert found.work_conserving
        assert found.overtaken is None
        assert found.overtaking_witness is not None

    @pytest.mark.parametrize("limit", ["present", "b_max", "prompt"])
    def test_a_rule_that_is_bad_beyond_the_search_is_not_certified(self, limit):
        """Orca on all that is explored, one token a batch beyond: nothing was violated, and nothing is claimed."""

        @attrs.frozen
        class Hidden:
            name: str = "hidden"

            def form(self, view):
                batch = SCHEDULERS["orca"].form(view)
                size = {
                    "present": view.present,
                    "b_max": view.b_max,
                    "prompt": max((view.prefill_left[r] for r in view.prefilling), default=0),
                }[limit]
                if size <= 3:
                    return batch
                if batch.prefill:
                    return Batch([(batch.prefill[0][0], 1)])
                return Batch([], batch.decode[:1])

        found = classify(Hidden())
        assert found.work_conserving
        assert found.throughput_optimal is not True
        assert found.growth_witness or "proves nothing beyond them" in found.reason

    @pytest.mark.parametrize(
        "answer",
        [None, 3, Batch([(9, 1)]), Batch([(0, 9)]), Batch([(0, -1)]), Batch([], [0, 0]), Batch([(0, 0.5)])],
    )
    def test_what_is_no_batch_is_refused(self, answer):
        @attrs.frozen(eq=False)
        class Faulty:
            name: str = "faulty"

            def form(self, _):
                return answer

        with pytest.raises(InvalidInput, match="scheduler faulty: "):
            classification.classify(Faulty())


class TestConstantsOfARule:
    @pytest.mark.parametrize("target", [2, 5, 128])
    def test_a_target_is_found_however_large(self, target):
        found = classify(f"sarathi+target={target}")
        assert not found.work_conserving
        assert not found.fills
        assert found.explored_as == "sarathi+target=2"
        assert found.throughput_optimal is False
        assert found.growth_witness.b_max > 2

    @pytest.mark.parametrize("threshold", [1, 2, 48])
    def test_a_threshold_keeps_a_lone_prompt_from_filling_but_not_a_crowd(self, threshold):
        found = classify(f"vllm-chunked+threshold={threshold}")
        assert not found.work_conserving
        assert found.fills
        assert found.throughput_optimal
        assert found.explored_as == "vllm-chunked+threshold=2"
        assert found.idle_witness.tokens == 2
        assert "full once b_max requests are present" in found.reason

    def test_a_threshold_does_not_mend_a_rule_that_does_not_mix(self):
        found = classify("sglang+threshold=2")
        assert not found.fills
        assert found.throughput_optimal is False


class TestTopologies:
    def test_one_column_each(self):
        assert [topology.name for topology in TOPOLOGIES] == [
            "single engine",
            "several classes",
            "parallel, random split",
            "parallel, token queue",
            "network without cycles (DAG)",
            "network with forks and joins",
            "cycle through several stations",
        ]
        assert all(topology.theorem for topology in TOPOLOGIES)

    def test_the_random_split_asks_for_its_probabilities(self):
        words = {v.topology: v.word for v in judge_topologies(classify("sarathi"))}
        assert words["parallel, random split"] == "yes if p_i proportional to F_i"
        assert words["single engine"] == "yes"
        assert {v.word for v in judge_topologies(classify("vllm-vanilla"))} == {"no"}

    def test_a_cycle_is_not_decided_by_the_rule(self):
        verdicts = {v.topology: v for v in judge_topologies(classify("sarathi"))}
        assert verdicts["network without cycles (DAG)"].word == "yes"
        assert verdicts["network with forks and joins"].word == "yes"
        assert verdicts["cycle through several stations"].word == "no unless every station has one class"
        assert "unstable at loads of 0.9" in verdicts["cycle through several stations"].reason

    def test_without_theorem_or_witness_nothing_is_claimed(self):
        unknown = Classification(
            scheduler="x", explored_as="x", work_conserving=True, overtaken=None, fills=True, states=1
        )
        assert {v.word for v in judge_topologies(unknown)} == {"unknown"}
