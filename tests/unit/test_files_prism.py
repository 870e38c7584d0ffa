"""Chains written for model checkers, read back by a reader of the test's own and compared with the operator."""

import re
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from exported import CHAINS, chain_of, slotted, stationary, timed
from scipy.sparse import coo_array

import queuetheory_llm as qt
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files import atomic, prism
from queuetheory_llm.files.atomic import write_together
from queuetheory_llm.files.prism import (
    check_export,
    export,
    export_files,
    labels,
    prism_text,
    rewards,
    updates,
)

COMMAND = re.compile(r"\[\] ([^;]*?) ->\s+([^;]*);")
UPDATE = re.compile(r"([-+.0-9e]+):\(core'=(\d+)\)&\(unseen'=([^ ]+)\)(?: \+\s*|$)")
REWARDS = re.compile(r'rewards "(\w+)"\n(.*?)endrewards', re.DOTALL)
LABEL = re.compile(r'label "(\w+)" = ([^;]*);')


@cache
def compiled(expression):
    """The same in Python, compiled once: it is asked for at every state."""
    python = re.sub(r"(?<![<>])=", "==", expression).replace("&", " and ").replace("|", " or ")
    return compile(" ".join(python.split()), "<expression>", "eval")


class Reader:
    """The chain of a text in the PRISM language, over all (core, unseen) of a space."""

    def __init__(self, text, states):
        self.text = re.sub(r"//[^\n]*", "", text)
        self.states = states
        self.place = {state: index for index, state in enumerate(states)}

    def value(self, expression, state):
        """Of an expression at a state; its grammar is Python's but for = & | and true."""
        names = {"core": state[0], "unseen": state[1], "true": True, "false": False, "min": min}
        return eval(compiled(expression), {"__builtins__": {}}, names)

    def matrix(self):
        commands = COMMAND.findall(self.text)
        rows, columns, chances = [], [], []
        for index, state in enumerate(self.states):
            (update,) = (update for guard, update in commands if self.value(guard, state))
            assert not UPDATE.sub("", update)
            for chance, core, unseen in UPDATE.findall(update):
                rows.append(index)
                columns.append(self.place[int(core), self.value(unseen, state)])
                chances.append(float(chance))
        return coo_array((chances, (rows, columns)), shape=(len(self.states),) * 2).toarray()

    def rewards(self):
        found = {}
        for name, body in REWARDS.findall(self.text):
            items = [line.strip().rstrip(";").split(" : ") for line in body.strip().splitlines()]
            found[name] = np.array(
                [
                    sum(self.value(what, state) for guard, what in items if self.value(guard, state))
                    for state in self.states
                ]
            )
        return found

    def labels(self):
        return {name: [bool(self.value(what, each)) for each in self.states] for name, what in LABEL.findall(self.text)}


def numbered(space):
    return [(core, unseen) for core, room in enumerate(space.room.tolist()) for unseen in range(room + 1)]


@pytest.mark.parametrize("name", CHAINS)
def test_the_prism_text_read_back_is_the_chain(name):
    chain = CHAINS[name]()
    space, operator = chain.space, chain.operator
    text = "".join(prism_text(chain, name))
    reader = Reader(text, numbered(space))
    matrix = reader.matrix()
    np.testing.assert_allclose(matrix, operator.matrix().toarray(), rtol=1e-15, atol=0)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(stationary(matrix), stationary(operator.matrix().toarray()), atol=1e-12)
    ours, theirs = rewards(chain), reader.rewards()
    assert theirs.keys() == ours.keys()
    for which, values in ours.items():
        np.testing.assert_allclose(theirs[which], values, rtol=1e-14, atol=1e-14, err_msg=which)
    for which, holds in labels(space).items():
        assert reader.labels()[which] == holds.tolist(), which
    assert text.count("core'=") <= updates(space) <= operator.transitions
    assert text.isascii()


@pytest.mark.parametrize("level", [0, 1, 6])
def test_no_variable_is_a_constant(level):
    """Storm drops the updates of a state that do nothing where a variable has one value, and goes elsewhere."""
    chain = slotted("sarathi", 0, 1, ".5", b_max=1, level=level)
    assert len(chain.space.known) == 1
    last = re.findall(r" : \[0\.\.(\d+)\] init 0;", "".join(prism_text(chain)))
    assert list(map(int, last)) == [1, max(1, level)]


@pytest.mark.parametrize("name", CHAINS)
def test_the_explicit_files_read_back_are_the_chain(name, tmp_path):
    chain = CHAINS[name]()
    space = chain.space
    written = export(tmp_path / "some.chain.tra", chain, title=name, notes=["one note"])
    assert sorted(written) == sorted(tmp_path.iterdir())
    first, *lines = (tmp_path / "some.chain.tra").read_text().splitlines()
    assert first == "dtmc"
    entries = [(int(come), int(go), float(chance)) for come, go, chance in map(str.split, lines)]
    assert all(before[:2] < after[:2] for before, after in pairwise(entries))
    matrix = np.zeros((len(space), len(space)))
    for come, go, chance in entries:
        assert chance > 0
        matrix[come, go] = chance
    np.testing.assert_array_equal(matrix, chain.operator.matrix().toarray())
    declared, *rows = (tmp_path / "some.chain.lab").read_text().split("#END\n")[-1].splitlines()
    found = {int(row.split()[0]): set(row.split()[1:]) for row in [declared, *rows]}
    for which, holds in labels(space).items():
        assert [which in found.get(state, ()) for state in range(len(space))] == holds.tolist()
    assert [state for state, names in found.items() if "init" in names] == [0]
    for which, values in rewards(chain).items():
        read = np.zeros(len(space))
        for row in (tmp_path / f"some.chain.{which}.srew").read_text().splitlines():
            read[int(row.split()[0])] = float(row.split()[1])
        np.testing.assert_array_equal(read, values)
    assert "one note\n" in (tmp_path / "some.chain.txt").read_text()


def test_rewards_of_an_md1_queue_are_pollaczeks():
    """Exactly one request of one token at a time: the mean over time is rho + rho^2/(2(1 - rho))."""
    engine = qt.Engine(batch_time=qt.Hinge(c="2 s", a="1 s", b0=1000), b_max=1)
    workload = qt.Workload.of(prefill=0, decode=1, arrivals=qt.PoissonArrivals(rate=".25"))
    queue = chain_of(engine, "sarathi", workload, 80)
    law, earned = stationary(queue.operator.matrix().toarray()), rewards(queue)
    seconds = law @ earned["seconds"]
    assert law @ earned["requests_seconds"] / seconds == pytest.approx(0.75, abs=1e-12)
    assert law @ earned["tokens"] / seconds == pytest.approx(0.25, abs=1e-12)
    assert law @ earned["idle"] * 4 / seconds == pytest.approx(0.5, abs=1e-12)


def test_in_slots_a_mean_over_time_is_one_over_boundaries():
    earned = rewards(slotted("sarathi", 1, 1, ".5"))
    assert (earned["seconds"] == 1).all()
    np.testing.assert_array_equal(earned["requests_seconds"], earned["requests"])
    np.testing.assert_array_equal(earned["backlog_seconds"], earned["backlog"])


def test_full_is_where_the_matrix_loses_an_arrival():
    """The mean number that is let in falls short of the mean number that comes exactly in the states of the label."""
    chain = slotted("vllm-vanilla", 1, 1, ".5", level=9)
    space, operator = chain.space, chain.operator
    tokens = operator.expected(space.moves.tokens.astype(float))
    gained = operator.pull(space.backlog()) - space.backlog() + tokens
    np.testing.assert_array_equal(gained < 2 * 0.5 - 1e-9, labels(space)["full"])


def test_a_model_of_ranges_does_not_grow_with_the_level():
    short, long = (slotted("sarathi", 2, 1, ".45", level=level) for level in (60, 600))
    assert len(long.space) > 9 * len(short.space)
    assert updates(long.space) == updates(short.space)
    assert sum(map(len, prism_text(long))) < 1.05 * sum(map(len, prism_text(short)))


def test_a_period_is_told_in_the_header(tmp_path):
    """One request a slot under FasterTransformer: prompts and decodes take turns for ever."""
    chain = slotted("fastertransformer", 1, 1, "1", b_max=3, level=12)
    words = "period 2: iterations for these averages, as PRISM's for S, need not converge"
    assert words in "".join(prism_text(chain, period=2))
    assert "period" not in "".join(prism_text(chain))
    for name, ending in (("x.prism", "prism"), ("x.tra", "txt")):
        export(tmp_path / name, chain, period=2)
        assert words in (tmp_path / f"x.{ending}").read_text()


def test_a_title_cannot_leave_its_comment():
    text = "".join(
        prism_text(slotted("sarathi", 1, 1, ".5", level=6), "Modèle\nmodule x", ["a\r\nb\x85c\u2028endmodule"])
    )
    assert text.isascii()
    assert text.splitlines()[:8] == ["dtmc", "", r"// Mod\xe8le", "// module x", "// a", "// b", "// c", "// endmodule"]


def one_line(call, words):
    with pytest.raises(InvalidInput, match=words) as refused:
        call()
    assert len(refused.value.faults) == 1
    assert "\n" not in str(refused.value)


def test_refusals_are_one_line_and_leave_nothing(tmp_path, monkeypatch):
    chain = timed("sarathi", 1, 2, ".6", level=8)
    one_line(lambda: export(tmp_path / "x.nm", chain), r"unknown ending; end the name in \.prism, \.pm or \.tra")
    one_line(lambda: export(tmp_path / "no" / "x.prism", chain), "does not exist; create it first")
    one_line(lambda: check_export(tmp_path / "no" / "x.tra"), "does not exist; create it first")
    assert check_export(tmp_path / "x.PM") == "prism"
    monkeypatch.setattr(prism, "MOST_UPDATES", 10)
    monkeypatch.setattr(prism, "MOST_TRANSITIONS", 20)
    one_line(lambda: export(tmp_path / "x.prism", chain), r"has \d+ updates in the PRISM language, more than the 10 ")
    one_line(lambda: check_export(tmp_path / "x.tra", chain), "give a lower --level$")
    monkeypatch.setattr(prism, "MOST_UPDATES", 10**6)
    one_line(lambda: export(tmp_path / "x.tra", chain), r"has \d+ transitions.*the 20 .*or write NAME\.prism$")
    assert not list(tmp_path.iterdir())


def test_explicit_files_are_written_together_or_not_at_all(tmp_path):
    chain = timed("sarathi", 1, 2, ".6", level=8)
    (tmp_path / "x.tra").write_text("before")
    (tmp_path / "x.idle.srew").mkdir()
    one_line(lambda: export(tmp_path / "x.tra", chain), r"x\.idle\.srew: is a directory")
    assert (tmp_path / "x.tra").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["A.TRA", "a.b.tra", "c.pm", "D.Prism"])
def test_the_files_written_are_those_announced(tmp_path, name):
    chain = timed("sarathi", 1, 2, ".6", level=8)
    assert tuple(rewards(chain)) == prism.REWARDS
    files = export_files(tmp_path / name)
    assert files[0] == tmp_path / name
    assert export(tmp_path / name, chain) == files
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert (tmp_path / name).read_text().startswith("dtmc\n")


@pytest.mark.parametrize("sibling", ["x.lab", "x.txt", "x.tokens.srew"])
def test_every_file_of_the_set_is_checked_before_the_work(tmp_path, sibling):
    (tmp_path / sibling).mkdir()
    one_line(lambda: check_export(tmp_path / "x.tra"), rf"{re.escape(sibling)}: is a directory")
    (tmp_path / sibling).rmdir()
    (tmp_path / sibling).symlink_to("x.tra")
    one_line(lambda: check_export(tmp_path / "x.tra"), r"is the file of the file x\.tra; write to another one")


@pytest.mark.parametrize(
    "name", ["", " ", ".tra", " .tra", ".PRISM", " .pm", "folder/.tra", "two\nlines.tra", "end.tra\n"]
)
def test_a_name_without_a_name_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    one_line(lambda: check_export(name), "write NAME.prism or NAME.tra$|give a name of one line$")


def failing(error):
    def write(_):
        raise error

    return write


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_set_whose_last_content_fails_changes_nothing(tmp_path, error):
    (tmp_path / "a").write_text("before")
    files = {tmp_path / "a": b"after", tmp_path / "b": failing(error)}
    with pytest.raises(InvalidInput if isinstance(error, OSError) else KeyboardInterrupt) as refused:
        write_together(files)
    if isinstance(error, OSError):
        assert (
            str(refused.value) == f"{tmp_path / 'b'}: cannot be written: No space left on device; choose another place"
        )
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("a", "before")]


@pytest.mark.parametrize("fails", range(5))
def test_a_set_is_put_back_wherever_a_replacement_fails(tmp_path, monkeypatch, fails):
    """Two files are there already, one is new: five renames, each of which may fail."""
    for name in ("a", "c"):
        (tmp_path / name).write_text(f"before {name}")
    real, calls = atomic.Path.replace, []

    def replace(path, target):
        calls.append(path)
        if len(calls) == fails + 1:
            raise OSError(5, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(atomic.Path, "replace", replace)
    one_line(lambda: write_together({tmp_path / name: b"after" for name in "abc"}), "Input/output error")
    found = sorted((each.name, each.read_text()) for each in tmp_path.iterdir())
    assert found == [("a", "before a"), ("c", "before c")]
    write_together({tmp_path / name: b"after" for name in "abc"})
    assert sorted((each.name, each.read_text()) for each in tmp_path.iterdir()) == [(name, "after") for name in "abc"]
