"""Network files: what they mean, and one clear line for whatever is wrong with them."""

from fractions import Fraction

import pytest

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.files.network_file import load_network

STATIONS = """
[[station]]
name = "s1"
[[station]]
name = "s2"
"""
ARRIVAL = """
[[arrival]]
class = "a"
rate = 1
"""

ENGINE = 'engine = { b_max = 4, batch_time = { law = "table", tokens = [4], seconds = [1] } }'


def classes(*names, station="s1"):
    return "".join(
        f'[[class]]\nname = "{name}"\nstation = "{station}"\nservice = {{ law = "exponential", mean = "1 ms" }}\n'
        for name in names
    )


def route(source, to, probability=None):
    target = f'"{to}"' if isinstance(to, str) else str(list(to)).replace("'", '"')
    share = "" if probability is None else f"probability = {probability}\n"
    return f'[[route]]\nfrom = "{source}"\nto = {target}\n{share}'


def join(siblings, to):
    return f'[[join]]\nclasses = {str(list(siblings)).replace(chr(39), chr(34))}\nto = "{to}"\n'


def load(tmp_path, *parts, stations=STATIONS, arrivals=ARRIVAL):
    path = tmp_path / "net.toml"
    path.write_text(stations + "\n".join(parts) + arrivals, encoding="utf-8")
    return load_network(path)


def faults(tmp_path, *parts, **options):
    """The faults of a file, each a line behind the name of the file, which is taken off."""
    with pytest.raises(InvalidModel) as refused:
        load(tmp_path, *parts, **options)
    prefix = f"{tmp_path / 'net.toml'}: "
    assert all(line.startswith(prefix) and "\n" not in line for line in refused.value.faults)
    return [line.removeprefix(prefix) for line in refused.value.faults]


FORK_JOIN = (classes("a", "y", "z", "w"), route("a", ["y", "z"]), join(["y", "z"], "w"))


class TestOneFaultOneLine:
    @pytest.mark.parametrize(
        ("parts", "start", "words"),
        [
            ((classes("a"), route("a", "b")), "route[0].to: ", "'b' is no class; known here: a"),
            ((classes("a", "abc"), route("a", "abd")), "route[0].to: ", "did you mean abc?"),
            ((classes("a"), route("b", "a", 0.5)), "route[0].from: ", "'b' is no class"),
            ((classes("a"), classes("b", station="s3")), "class[1].station: ", "'s3' is no station; known here: s1"),
            ((classes("a", "b"), route("a", "b", 0.6), route("a", "a", 0.5)), "route: ", "from 'a' sum to 1.1"),
            ((classes("a", "b"), route("a", "b", "'1/3'"), route("a", "a", "'20000001/30000000'")),
             "route: ", "sum to 30000001/30000000"),
            ((classes("a", "b"), route("a", "b", 1.5)), "route[0].probability: ", "1.5 is outside 0 < probability"),
            ((classes("a", "b"), route("a", "b", 0)), "route[0].probability: ", "leave a route of 0 out"),
            ((classes("a", "b"), route("a", "b", -0.1)), "route[0].probability: ", "-0.1 is outside"),
            ((classes("a"), route("a", [])), "route[0].to: ", "is empty"),
            ((classes("a", "b"), route("a", "b", "1.0000001")), "route[0].probability: ", "1.0000001 is outside 0 <"),
            ((classes("a", "b" * 101),), "class[1].name: ", "has 101 characters; write 100 at most"),
            ((classes("a", "b"), route("a", ["b", "b"])), "route[0].to: ", "'b' is listed more than once"),
            ((classes("a"), "[[route]]\nfrom = 'a'\nto = 3\n"), "route[0].to: ", "is no list of names"),
            ((classes("a"), "[[route]]\nfrom = 'a'\n"), "route[0].to: ", "missing"),
            ((classes("a", "a")), "class: ", "'a' is the name of several"),
            ((classes("a", "")), "class[1].name: ", "write visible characters"),
            ((classes("a", " b")), "class[1].name: ", "write visible characters"),
            ((classes("a", r"b\nc")), "class[1].name: ", r"'b\nc' cannot be told in a line"),
            ((classes("a"), "[[class]]\nname = 'b'\nstation = 's1'\n"), "class[1].service: ", "classical server"),
            ((classes("a"), "[[class]]\nname = 'b'\nservice = { law = 'exponential', mean = '1 s' }\n"),
             "class[1].station: ", "missing; name the station"),
            ((classes("a"), "[[clas]]\nname = 'b'\n"), "clas: ", "unknown key; did you mean class?"),
        ],
    )  # fmt: skip
    def test_routes_and_classes(self, tmp_path, parts, start, words):
        parts = (parts,) if isinstance(parts, str) else parts
        (fault,) = faults(tmp_path, *parts)
        assert fault.startswith(start)
        assert words in fault

    @pytest.mark.parametrize(
        ("priority", "words"),
        [
            ('["a"]', "misses b; list every class of s1"),
            ('["a", "b", "a"]', "'a' is listed more than once"),
            ('["a", "b", "c"]', "'c' is no class of s1"),
            ('"a"', "is no list of names"),
            ("[1]", "is no list of names"),
        ],
    )
    def test_priorities(self, tmp_path, priority, words):
        stations = f'[[station]]\nname = "s1"\npriority = {priority}\n'
        (fault,) = faults(tmp_path, classes("a", "b"), stations=stations)
        assert fault.startswith("station[0].priority: ")
        assert words in fault

    @pytest.mark.parametrize(
        ("keys", "where", "words"),
        [
            ("count = 2", "count", "without engines"),
            ('scheduler = "orca"', "scheduler", "without engines"),
            ("engines = []", "engines", "is empty"),
            ("engines = 3", "engines", "double brackets"),
            ("engines = [3]", "engines[0]", "must be a table"),
            (
                'engines = [{ b_max = 0, batch_time = { law = "table", tokens = [1], seconds = [1] } }]',
                "engines[0].b_max",
                "at least 1",
            ),
            (f"count = 0\n{ENGINE}", "count", "0 is no whole number from 1 on"),
            (f"count = 1e9\n{ENGINE}", "count", "1000000000 is above 10000"),
            (f"count = 1.5\n{ENGINE}", "count", "1.5 is not a whole number"),
            (f"{ENGINE}\ndispatch = 0.5", "dispatch", "0.5 is not text"),
            (f"{ENGINE}\nscheduler = 1979-05-27", "scheduler", "1979-05-27 is not text"),
            ('dispatch = "shortest"', "dispatch", "without engines"),
            ("speed = 2", "speed", "unknown key"),
            ('"a\\nb" = 2', "'a\\nb'", "unknown key"),
        ],
    )
    def test_stations(self, tmp_path, keys, where, words):
        (fault,) = faults(tmp_path, classes("a"), stations=f'[[station]]\nname = "s1"\n{keys}\n')
        assert fault.startswith(f"station[0].{where}: ")
        assert words in fault

    @pytest.mark.parametrize(
        ("arrivals", "start"),
        [
            ("", "arrival: missing"),
            ("arrival = []\n", "arrival: nothing comes from outside"),
            ('[[arrival]]\nclass = "b"\nrate = 1\n', "arrival[0].class: 'b' is no class"),
            ('[[arrival]]\nclass = "a"\n', "arrival[0].rate: give either rate"),
            ('[[arrival]]\nclass = "a"\nrate = 1\ninterval = "1 s"\n', "arrival[0].rate: give either rate"),
            ('[[arrival]]\nclass = "a"\nrate = -1\n', "arrival[0].rate: "),
            ('[[arrival]]\nclass = "a"\ninterval = 3\n', "arrival[0].interval: 3 has no unit"),
        ],
    )
    def test_arrivals(self, tmp_path, arrivals, start):
        before = arrivals if arrivals.startswith("arrival") else ""
        (fault,) = faults(tmp_path, classes("a"), stations=before + STATIONS, arrivals="" if before else arrivals)
        assert fault.startswith(start)

    def test_all_the_faults_there_are(self, tmp_path):
        found = faults(tmp_path, classes("b", station="s9"), route("x", "y"))
        assert len(found) == 4  # the station, both ends of the route, the arrival

    def test_a_whole_number_of_engines_may_be_written_as_a_decimal(self, tmp_path):
        stations = f'[[station]]\nname = "s1"\ncount = 2.0\n{ENGINE}\n'
        call = '[[class]]\nname = "a"\nstation = "s1"\nprefill = 1\ndecode = 1\n'
        assert len(load(tmp_path, call, stations=stations).stations[0].engines) == 2

    def test_an_empty_file_says_what_a_network_has(self, tmp_path):
        path = tmp_path / "net.toml"
        path.write_text("\n", encoding="utf-8")
        with pytest.raises(InvalidModel, match=r"is empty; .*\[\[station\]\] tables"):
            load_network(path)

    def test_a_long_list_of_names_is_cut(self, tmp_path):
        (fault,) = faults(tmp_path, classes("a", *(f"c{i}" for i in range(600))), route("a", "nowhere"))
        assert "and 591 more" in fault
        assert len(fault) < 200


class TestTasksThatNeverLeave:
    def test_a_trap(self, tmp_path):
        parts = (classes("a", "b", "c"), route("a", "b", 0.5), route("b", "c"), route("c", "b"))
        assert faults(tmp_path, *parts) == [
            "route: no task ever leaves the cycle b -> c -> b; let a part of its tasks out"
        ]

    def test_a_trap_of_several_cycles(self, tmp_path):
        parts = (classes("a", "b", "c"), route("a", "b", 0.5), route("a", "c", 0.5), route("b", "a"), route("c", "a"))
        (fault,) = faults(tmp_path, *parts)
        assert fault.startswith("route: no task ever leaves the classes a, b, c, which lie on cycles such as ")

    def test_a_retry_for_ever(self, tmp_path):
        (fault,) = faults(tmp_path, classes("a"), route("a", "a"))
        assert "the cycle a -> a" in fault

    def test_a_long_trap_is_named_shortly(self, tmp_path):
        names = ["a", *(f"c{i}" for i in range(60))]
        hops = [route(x, y) for x, y in zip(names, [*names[1:], "a"], strict=True)]
        (fault,) = faults(tmp_path, classes(*names), *hops)
        assert "the cycle a -> c0 -> c1 -> ... -> a (61 in all)" in fault

    def test_a_fork_that_multiplies(self, tmp_path):
        parts = (classes("a", "b", "c"), route("a", ["b", "c"]), route("b", "a", 0.6), route("c", "a", 0.6))
        (fault,) = faults(tmp_path, *parts)
        assert fault.startswith("route: the fork after 'a' is in the cycle a -> b -> a")

    def test_a_fork_that_just_sustains_itself(self, tmp_path):
        """Critical: one task comes back for each, on average."""
        parts = (classes("a", "b", "c"), route("a", ["b", "c"]), route("b", "a", 0.5), route("c", "a", 0.5))
        (fault,) = faults(tmp_path, *parts)
        assert "the fork after 'a'" in fault

    def test_a_fork_whose_branches_mostly_leave_is_fine(self, tmp_path):
        parts = (classes("a", "b", "c"), route("a", ["b", "c"]), route("b", "a", 0.5), route("c", "a", 0.4))
        assert load(tmp_path, *parts).fluid_model.classes == ("a", "b", "c")

    def test_each_trap_has_a_line(self, tmp_path):
        parts = (classes("a", "b"), route("a", "a"), route("b", "b"))
        assert len(faults(tmp_path, *parts)) == 2


class TestJoins:
    @pytest.mark.parametrize(
        ("parts", "words"),
        [
            ((classes("a", "y", "z", "w"), join(["y", "z"], "w")), "no fork into 2 branches"),
            ((classes("a", "y", "z", "w"), route("a", ["y", "z", "w"]), join(["y", "z"], "w")), "no fork into 2"),
            ((*FORK_JOIN[:2], join(["y"], "w")), "a join has at least two siblings"),
            ((*FORK_JOIN[:2], join(["y", "x"], "w")), "'x' is no class"),
            ((*FORK_JOIN[:2], join(["y", "z"], "x")), "'x' is no class"),
            ((*FORK_JOIN, route("y", "w")), "'y' waits in join[0]; it has no other way on"),
            ((*FORK_JOIN[:2], join(["y", "z", "y"], "w")), "'y' is listed more than once"),
            ((classes("a", "b", "y", "z", "w"), route("a", ["b", "z"]), route("b", "y", 0.9), join(["y", "z"], "w")),
             "the branch of 'b' can leave at 'b' without joining"),
            ((classes("a", "b", "y", "z", "w"), route("a", ["b", "z"]), route("b", "z"), join(["y", "z"], "w")),
             "meet at 'z' before the join"),
            ((classes("a", "b", "y", "z", "w"), route("a", ["b", "z"]), route("b", "y", 0.5), route("b", "z", 0.5),
              join(["y", "z"], "w")), "ends in several classes of it"),
            ((*FORK_JOIN, classes("b"), route("b", "y")), "'b' enters a branch of 'a' from outside"),
            ((*FORK_JOIN, '[[arrival]]\nclass = "y"\nrate = 1\n'), "'y' in a branch of 'a' has arrivals from outside"),
            ((*FORK_JOIN[:2], join(["y", "z"], "y")), "enters a branch of 'a' at 'y' and has no sibling there"),
            # A branch that becomes two tasks gives the join two siblings where it needs one.
            ((classes("a", "b", "c", "d", "y", "z", "w"), route("a", ["b", "z"]), route("b", ["c", "d"]),
              route("c", "y"), route("d", "y"), join(["y", "z"], "w")), "forks at 'b' and is not joined again"),
            # A branch that runs through its own fork again.
            ((classes("a", "y", "z", "w"), route("a", ["y", "z"], 0.5), route("a", "w", 0.5), route("w", "a", 0.5),
              classes("b"), route("b", ["w", "a"], 0.1), join(["y", "z"], "w")), None),
        ],
    )  # fmt: skip
    def test_a_join_without_its_fork(self, tmp_path, parts, words):
        if words is None:
            assert load(tmp_path, *parts).joins
            return
        found = faults(tmp_path, *parts)
        assert len(found) == 1
        assert words in found[0]
        assert found[0].startswith(("join", "route"))

    def test_siblings_of_another_fork_do_not_count(self, tmp_path):
        """Both branches choose a join on their own: tasks would wait for siblings that went elsewhere."""
        parts = (
            classes("a", "b", "c", "y1", "y2", "z1", "z2", "w"), route("a", ["b", "c"]),
            route("b", "y1", 0.5), route("b", "y2", 0.5), route("c", "z1", 0.5), route("c", "z2", 0.5),
            join(["y1", "z1"], "w"), join(["y2", "z2"], "w"),
        )  # fmt: skip
        found = faults(tmp_path, *parts)
        assert len(found) == 2
        assert "waits at 'y2' in join[1] for a task of another branch" in found[0]

    def test_the_reason_is_about_the_fork_that_comes_near(self, tmp_path):
        parts = (
            *FORK_JOIN, classes("b", "c", "d", "v"), route("w", ["b", "c"]), route("c", "d", 0.9),
            join(["b", "d"], "v"),
        )  # fmt: skip
        (fault,) = faults(tmp_path, *parts)
        assert fault.startswith("join[1]: the branch of 'c' can leave at 'c'")

    def test_forks_within_branches(self, tmp_path):
        parts = (
            classes("a", "b", "p", "q", "r", "z", "w"), route("a", ["b", "z"]), route("b", ["p", "q"]),
            route("p", "p", 0.5), route("p", "r", 0.5), classes("y"), join(["r", "q"], "y"), join(["y", "z"], "w"),
        )  # fmt: skip
        model = load(tmp_path, *parts).fluid_model
        inner, outer = model.joins
        assert [model.classes[k] for k in (*inner[0], inner[1], *outer[0], outer[1])] == list("rqyyzw")
        assert dict(model.routing[model.classes.index("y")]) == {model.classes.index("w"): Fraction(1, 2)}

    def test_a_fork_join_that_is_repeated(self, tmp_path):
        """The whole of it may be gone through again: that is a join in a cycle, not a broken one."""
        assert load(tmp_path, *FORK_JOIN, route("w", "a", 0.5)).joins


def test_parallel_engines_are_the_sum_or_the_slowest(tmp_path):
    engine = '{{ b_max = {0}, batch_time = {{ law = "table", tokens = [{0}], seconds = [1] }} }}'
    engines = f"[{engine.format(60)}, {engine.format(20)}]"
    seconds = {}
    for rule in ("token-queue", "round-robin", "random"):
        stations = f'[[station]]\nname = "s"\nengines = {engines}\ndispatch = "{rule}"\n'
        network = load(tmp_path, '[[class]]\nname = "a"\nstation = "s"\nprefill = 7\ndecode = 1\n', stations=stations)
        (seconds[rule],) = network.fluid_model.service
    assert seconds == {"token-queue": Fraction(8, 80), "round-robin": Fraction(8, 40), "random": Fraction(8, 40)}
