"""Networks and fluid models that are given in Python: whatever is of another type is refused in one line."""

from fractions import Fraction

import attrs
import pytest
from networks import classical, exponential, poisson, some_network

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.certificates import read_certificate
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.arrivals import BernoulliCount, SlottedArrivals
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import ExternalArrivals, Join, Network, Route, Station, TaskClass
from queuetheory_llm.model.rate_profile import RateProfile

LINE = classical({"a": ("s", exponential(1)), "b": ("t", exponential(1))}, {"a": poisson(1)}, [("a", "b", 1)])


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: Route(source="a", to="bc"), "to: 'bc' is no list of names"),
        (lambda: Route(source=["a"], to=("b",)), "source: ['a'] is not text"),
        (lambda: Route(source="a", to=3), "to: 3 is no list of names"),
        (lambda: Join(classes="bc", to="d"), "classes: 'bc' is no list of names"),
        (lambda: Join(classes=("b", "c"), to=None), "to: None is not text"),
        (lambda: Station(name=3), "name: 3 is not text"),
        (lambda: Station(name="s", priority="a"), "priority: 'a' is no list of names"),
        (lambda: Station(name="s", priority=3), "priority: 3 is no list of names"),
        (lambda: Station(name="s", engines=["x"]), "engines[0]: 'x' is no Engine"),
        (lambda: TaskClass(name="a", station=3), "station: 3 is not text"),
        (lambda: TaskClass(name="a", station="s", service="1 s"), "service: '1 s' is no IntervalLaw"),
        (lambda: ExternalArrivals(task_class=["a"], arrivals=poisson(1)), "task_class: ['a'] is not text"),
        (lambda: ExternalArrivals(task_class="a", arrivals=3), "arrivals: 3 is no PoissonArrivals or Deterministic"),
        (
            lambda: ExternalArrivals(
                task_class="a", arrivals=SlottedArrivals(slot=1, per_slot=BernoulliCount(p="1/2"))
            ),
            "is no PoissonArrivals or DeterministicArrivals or RenewalArrivals",
        ),
        (lambda: attrs.evolve(LINE, stations=3), "stations: 3 is no list"),
        (lambda: attrs.evolve(LINE, classes=None), "classes: None is no list"),
        (lambda: attrs.evolve(LINE, routes=("ab",)), "routes[0]: 'ab' is no Route"),
        (lambda: attrs.evolve(LINE, joins="ab"), "joins: 'ab' is no list"),
        (lambda: RateProfile(times="0", values=[1]), "times: '0' is no sequence"),
        (lambda: RateProfile(times=[0], values="1"), "values: '1' is no sequence"),
        (lambda: RateProfile(times=3, values=[1]), "times: 3 is no sequence"),
        (lambda: RateProfile(times=[0], values=[1], classes="A1"), "classes: 'A1' is no sequence"),
        (lambda: RateProfile(times=[0], values=[1], classes=3), "classes: 3 is no sequence"),
        (lambda: RateProfile(times=[0], values=[float("nan")]), "values: nan is not finite"),
        (lambda: load_network(None), "model: None is no path; give the path of a file, or the name of a packaged"),
        (lambda: load_model(3), "model: 3 is no path"),
        (lambda: read_certificate(3), "3 is no path"),
    ],
)
def test_another_type_is_one_line(make, fault):
    with pytest.raises(InvalidInput) as refused:
        make()
    (line,) = refused.value.faults
    assert fault in line
    assert "\n" not in line


def test_lists_are_as_good_as_tuples():
    parts = {field.name: getattr(LINE, field.name) for field in attrs.fields(Network)}
    assert Network(**{key: list(value) if isinstance(value, tuple) else value for key, value in parts.items()}) == LINE


GOOD = {
    "stations": ("s", "t"),
    "classes": ("a", "b"),
    "station": (0, 1),
    "arrival": (Fraction(1, 10), 0),
    "service": (1, 1),
    "routing": (((1, 1),), ()),
    "priority": (None, None),
    "preemptive": (True, True),
}


def test_columns_of_a_fluid_model_are_read_exactly():
    written = FluidModel(**{**GOOD, "arrival": [0.1, "0"], "station": [0, 1], "routing": [[(1, 1.0)], []]})
    assert written == FluidModel(**GOOD)
    assert written.arrival == (Fraction(1, 10), 0)
    assert FluidModel.from_dict(written.to_dict()) == written


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"arrival": "12"}, "arrival: '12' is no sequence"),
        ({"arrival": None}, "arrival: None is no sequence"),
        ({"arrival": 3}, "arrival: 3 is no sequence"),
        ({"arrival": (float("nan"), 0)}, "arrival: nan is not finite"),
        ({"service": (float("inf"), 1)}, "service: inf is not finite"),
        ({"service": (Fraction(10) ** 400, 1)}, "service: a value outside 1e-100 .. 1e100"),
        ({"classes": (1, 2)}, "classes: 1 is not text"),
        ({"classes": ("a", "")}, "classes: '' cannot be told in a line"),
        ({"classes": ("a", " b")}, "classes: ' b' cannot be told in a line"),
        ({"stations": ("s", "\x1b[31m")}, "stations: '\\x1b[31m' cannot be told in a line"),
        ({"stations": ("s", "t" * 101)}, "has 101 characters; write 100 at most"),
        ({"preemptive": (1, 1)}, "preemptive: 1 is neither True nor False"),
        ({"station": (0, "t")}, "station: 't' is no number of a class or station"),
        ({"station": (0, True)}, "station: True is no number of a class or station"),
        ({"priority": ("a", None)}, "priority: 'a' is no tuple"),
        ({"priority": (("a",), None)}, "priority: 'a' is no number of a class"),
        ({"routing": (((1,),), ())}, "is no tuple of 2"),
        ({"routing": ((3,), ())}, "routing: 3 is no tuple of 2"),
        ({"joins": (((0, 1), 5),), "forks": ((0, (0, 1)),)}, "a join or its fork names no class"),
        ({"joins": (((0, 1), 1),)}, "forks needs one entry a join"),
    ],
)
def test_what_is_no_column_is_refused(changes, fault):
    with pytest.raises(InvalidModel) as refused:
        FluidModel(**{**GOOD, **changes})
    (line,) = refused.value.faults
    assert line.startswith("fluid model: ")
    assert fault in line


def test_forks_of_networks_are_found_for_their_joins():
    """Every random network with joins is a fluid model whose joins have their forks, branch for sibling."""
    joins = 0
    for seed in range(60):
        network = some_network(seed)
        model = network.fluid_model
        names = model.classes
        for (siblings, to), (fork, starts), join in zip(model.joins, model.forks, network.joins, strict=True):
            joins += 1
            assert (tuple(names[k] for k in siblings), names[to]) == (join.classes, join.to)
            assert any(
                route.source == names[fork] and sorted(route.to) == sorted(names[k] for k in starts)
                for route in network.routes
            )
    assert joins > 20
