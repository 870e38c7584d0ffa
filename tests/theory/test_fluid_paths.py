"""Exact fluid paths under static priorities: Rybko and Stolyar (1992), Lu and Kumar (1991), Dai (1995), [D] 5.4."""

import json
from fractions import Fraction as F
from itertools import pairwise

import attrs
import pytest
from fluid_networks import assert_is_path, random_lines

from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.files.model_file import load_model
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability import fluid_path as fluid_path_module
from queuetheory_llm.stability.automorphisms import automorphisms
from queuetheory_llm.stability.dominant_turn import DominantTurn
from queuetheory_llm.stability.engine_fluid import engine_fluid
from queuetheory_llm.stability.fluid_end import FluidEnd
from queuetheory_llm.stability.fluid_ode import ode_path
from queuetheory_llm.stability.fluid_path import fluid_path, fluid_paths, growing_path, search_growth
from queuetheory_llm.stability.fluid_rates import fluid_rates
from queuetheory_llm.stability.self_similar import Turn
from queuetheory_llm.verdict import Verdict

RS = load_network("rybko-stolyar").fluid_model
LU_KUMAR = load_network("lu-kumar").fluid_model
LLM = load_network("rybko-stolyar-llm").fluid_model


def with_means(model: FluidModel, *means: str) -> FluidModel:
    return attrs.evolve(model, service=tuple(map(F, means)))


def beside(model: FluidModel, *, rate: F, mean: F, fed_by: int | None = None) -> FluidModel:
    """The network with a further station of one class, fed from outside and by a class that would leave."""
    size = len(model.classes)
    routing = list(model.routing)
    if fed_by is not None:
        routing[fed_by] = (*routing[fed_by], (size, F(1)))
    return FluidModel(
        stations=(*model.stations, "s3"),
        classes=(*model.classes, "C"),
        station=(*model.station, len(model.stations)),
        arrival=(*model.arrival, rate),
        service=(*model.service, mean),
        routing=(*routing, ()),
        priority=(*model.priority, None),
        preemptive=(*model.preemptive, False),
    )


def line(*means: str, rate: str = "1") -> FluidModel:
    """A tandem."""
    size = len(means)
    return FluidModel(
        stations=tuple(f"s{k}" for k in range(size)),
        classes=tuple(f"c{k}" for k in range(size)),
        station=tuple(range(size)),
        arrival=(F(rate),) + (F(0),) * (size - 1),
        service=tuple(map(F, means)),
        routing=(*(((k + 1, F(1)),) for k in range(size - 1)), ()),
        priority=(None,) * size,
        preemptive=(False,) * size,
    )


def test_rybko_stolyar_grows_by_three_halves_each_half_cycle() -> None:
    path = fluid_path(RS, (1, 0, 0, 0))
    assert_is_path(path)
    total = dict(zip((point.time for point in path.breakpoints), path.totals, strict=True))
    assert {F(3, 2): F(3, 2), F(15, 4): F(9, 4), F(57, 8): F(27, 8)}.items() <= total.items()
    assert path.end is FluidEnd.GROWING
    assert path.unique
    # lambda m2/(1 - lambda m2), and its square when each class is where it was
    assert (path.factor, path.cycle_factor) == (F(3, 2), F(9, 4))
    assert path.at(F(3, 2)) == (0, 0, F(3, 2), 0)
    assert path.growth == F(1, 3)  # half a task more in each 3/2 s, and so on every scale
    proof = path.certificate()
    assert proof is not None
    assert proof.verdict is Verdict.UNSTABLE
    assert proof.proof["factor"] == "9/4"


@pytest.mark.parametrize("mean", ["11/20", "3/5", "7/10", "17/20"])
def test_growth_of_rybko_stolyar_is_lambda_m2_over_1_minus_it(mean: str) -> None:
    path = fluid_path(with_means(RS, "1/10", mean, "1/10", mean), (1, 0, 0, 0))
    assert path.factor == F(mean) / (1 - F(mean))


def test_light_rybko_stolyar_empties_at_2_after_infinitely_many_half_cycles() -> None:
    path = fluid_path(with_means(RS, ".1", ".4", ".1", ".4"), (1, 0, 0, 0))
    assert_is_path(path)
    assert (path.end, path.emptying_time) == (FluidEnd.EMPTY, 2)
    (closing,) = path.accumulations
    assert (closing.turn.start, closing.turn.seconds, closing.turn.factor) == (0, F(2, 3), F(2, 3))
    assert closing.text == "2/3 (1 + r + r^2 + ...) = 2 s with r = 2/3"
    # deep inside the series: the 10th half-cycle starts with (2/3)^10, in one of the two outer classes
    start = 2 - 2 * F(2, 3) ** 10
    assert path.at(start) == (F(2, 3) ** 10, 0, 0, 0)
    assert path.at(2 - 2 * F(2, 3) ** 11) == (0, 0, F(2, 3) ** 11, 0)


def test_half_loaded_virtual_station_is_periodic() -> None:
    path = fluid_path(with_means(RS, ".1", ".5", ".1", ".5"), (1, 0, 0, 0))
    assert path.end is FluidEnd.PERIODIC
    assert path.turn is not None
    assert path.turn.seconds == 1  # until the other outer class holds all
    assert path.certificate() is None


def test_entry_priority_empties() -> None:
    entry = RS.with_priority(((0, 3), (2, 1)))
    for name in RS.classes:
        paths = fluid_paths(entry, {name: 1})
        assert paths.complete
        assert [path.end for path in paths] == [FluidEnd.EMPTY]
    assert growing_path(entry) is None


def test_llm_form_grows_by_4_135_from_2000_requests() -> None:
    path = fluid_path(LLM, {"A1": 2000})
    busy = F(9, 10) * F(768, 608) * F(544, 768)  # lambda m2
    assert path.factor == busy / (1 - busy) == F(153, 37)
    assert float(path.factor) == pytest.approx(4.135, abs=5e-4)


@pytest.mark.parametrize(
    ("load", "end"),
    [
        (F(608, 1088) + F(1, 10**6), FluidEnd.GROWING),
        (F(999, 1000), FluidEnd.GROWING),
        (F(608, 1088), FluidEnd.PERIODIC),
        (F(608, 1088) - F(1, 10**6), FluidEnd.EMPTY),
        (F(1, 2), FluidEnd.EMPTY),
    ],
)
def test_llm_form_grows_exactly_for_loads_above_608_of_1088(load: F, end: FluidEnd) -> None:
    path = fluid_path(LLM.scaled(load / F(9, 10)), {"A1": 1})
    assert path.end is end


def test_lu_kumar_has_two_solutions_from_its_first_class() -> None:
    passing, growing = fluid_paths(LU_KUMAR, {"1": 5})
    for path in (passing, growing):
        assert_is_path(path)
        assert path.unique is False
        assert path.forks[0] == 0
    # everything passes at rate 1/(m1 + m4), station 2 exactly full
    rates = passing.breakpoints[0].rates
    assert rates.departures == (F(10, 7),) * 4
    assert rates.efforts[1] + rates.efforts[2] == 1
    assert (passing.end, passing.emptying_time) == (FluidEnd.EMPTY, 5 * F(7, 3))
    # class 2 accumulates: after 3x there is 1.5x in class 1
    assert growing.end is FluidEnd.GROWING
    assert growing.factor == F(3, 2)
    assert growing.at(15) == (F(15, 2), 0, 0, 0)
    assert growing.certificate() is not None
    assert [total for _, total in growing.peaks] == [F(25, 2) * F(3, 2) ** n for n in range(3)]
    line_of_peaks = growing.envelope
    assert line_of_peaks is not None
    for time, total in growing.peaks:
        assert total == line_of_peaks.level + line_of_peaks.slope * (time - line_of_peaks.time)
    found = growing_path(LU_KUMAR)
    assert found is not None
    assert found.factor == F(3, 2)


def test_a_path_that_forks_later_is_followed_both_ways() -> None:
    """Class 4 first holds class 1 up; when it is empty, what has come may pass or accumulate."""
    paths = fluid_paths(LU_KUMAR, {"4": 1})
    assert paths.complete
    assert [path.end for path in paths] == [FluidEnd.EMPTY, FluidEnd.GROWING]
    assert [path.forks[0] for path in paths] == [1, 1]
    assert paths.growing is paths[1]
    few = fluid_paths(LU_KUMAR, {"4": 1}, most_paths=1)
    assert not few.complete
    assert few.left is not None
    assert "beyond the 1 paths" in few.left


@pytest.mark.parametrize("mean", ["1/10", "49/100", "3/5"])
def test_lu_kumar_grows_exactly_where_its_virtual_station_is_overloaded(mean: str) -> None:
    found = growing_path(with_means(LU_KUMAR, ".1", mean, ".1", mean))
    assert (found is not None) == (2 * F(mean) > 1)


@pytest.mark.parametrize("order", [((0, 3), (1, 2)), ((3, 0), (2, 1))], ids=["first buffer", "last buffer"])
@pytest.mark.parametrize("scale", [F(1), F(10, 7) - F(1, 1000)])
def test_first_and_last_buffer_first_served_empty_below_load_1(order: tuple, scale: F) -> None:
    model = LU_KUMAR.with_priority(order).scaled(scale)
    for name in model.classes:
        paths = fluid_paths(model, {name: 1})
        assert paths.complete
        assert {path.end for path in paths} == {FluidEnd.EMPTY}


def test_tandem_empties_in_its_workload_over_its_spare_capacity() -> None:
    path = fluid_path(line("1/2", "4/5", "1/4"), (1, 0, 0))
    assert_is_path(path)
    assert path.emptying_time == F(4, 5) / (1 - F(4, 5))  # the slowest stage is never idle before
    assert path.work[0] == F(1, 2) + F(4, 5) + F(1, 4)


def test_the_work_of_a_task_counts_every_later_visit() -> None:
    """w = m + P w in the Jackson loop: w3 = 1/4 + w1/20 + w2/4, w2 = 1/2 + w3, w1 = 1/2 + w2."""
    path = fluid_path(load_network("jackson-loop").fluid_model, (1, 0, 0), horizon=F(1, 100))
    third = (F(1, 4) + F(1, 20) + F(1, 8)) / (1 - F(1, 20) - F(1, 4))
    assert path.work[0] == F(1, 2) + F(1, 2) + third


def test_the_work_of_a_task_that_never_leaves_is_refused() -> None:
    trap = attrs.evolve(line("1/2", "1/4"), routing=(((1, F(1)),), ((0, F(1)),)))
    with pytest.raises(InvalidInput, match="some tasks can never leave"):
        _ = fluid_path(trap, (1, 0), horizon=1).work


def test_a_full_station_keeps_its_level() -> None:
    path = fluid_path(line("1", "1/2"), (3, 1))
    assert path.end is FluidEnd.CONSTANT
    assert path.breakpoints[-1].state == (3, 0)
    assert fluid_path(line("1", "1/2"), (0, 0)).end is FluidEnd.EMPTY


def test_an_overloaded_station_grows_at_the_excess() -> None:
    path = fluid_path(line("1/2", "2"), (0, 0), horizon=10)
    assert path.end is FluidEnd.DIVERGING
    assert path.slope == (0, F(1, 2))
    assert path.growth == F(1, 2)
    assert path.at(10) == (0, 5)


def test_an_accumulation_point_that_is_not_the_origin() -> None:
    """A2 feeds a class C that is large: at t = 2 the pair is empty, and C got all that was or came into A."""
    model = beside(with_means(RS, ".1", ".4", ".1", ".4"), rate=F(0), mean=F(1, 3), fed_by=1)
    path = fluid_path(model, (1, 0, 0, 0, 100))
    assert_is_path(path)
    (closing,) = path.accumulations
    assert closing.limit_time == 2
    assert closing.turn.apex == (0, 0, 0, 0, 100 + (1 + 2) - 6)
    assert path.at(2) == closing.turn.apex
    assert path.end is FluidEnd.EMPTY
    assert path.emptying_time == 2 + F(97, 2)  # it drains at 3 - 1


def test_growth_beside_a_class_that_grows_at_a_constant_rate() -> None:
    """The state is no multiple of an earlier one, but its changes are: the certificate starts at a change."""
    model = beside(RS, rate=F(2), mean=F(1))
    path = fluid_path(model, (1, 0, 0, 0, 50))
    assert_is_path(path)
    assert path.end is FluidEnd.GROWING
    assert path.cycle_factor == F(9, 4)
    assert path.certificate() is not None


def test_turns_of_equal_size_beside_a_class_that_grows() -> None:
    model = beside(with_means(RS, ".1", ".5", ".1", ".5"), rate=F(2), mean=F(1))
    path = fluid_path(model, (1, 0, 0, 0, 0))
    assert path.end is FluidEnd.DIVERGING
    assert path.slope == (0, 0, 0, 0, 1)


def test_a_class_that_drains_meanwhile_does_not_hide_growth() -> None:
    path = fluid_path(beside(RS, rate=F(0), mean=F(1)), (1, 0, 0, 0, 40))
    assert_is_path(path)
    assert path.factor == F(3, 2)


def test_a_continuum_of_rates_is_said() -> None:
    """With equal means A1 and B1 can share the stations in any proportion."""
    model = with_means(RS, ".5", ".5", ".5", ".5")
    found = fluid_rates(model, (False, True, False, True))  # A1 and B1 have fluid
    assert found.continuum
    assert len(found.solutions) == 2
    assert not fluid_paths(model, {"A1": 1, "B1": 1}).complete


def test_symmetries() -> None:
    assert automorphisms(RS) == ((0, 1, 2, 3), (2, 3, 0, 1))
    assert automorphisms(LU_KUMAR) == ((0, 1, 2, 3),)
    assert automorphisms(with_means(RS, ".1", ".6", ".1", ".5")) == ((0, 1, 2, 3),)


def test_horizon() -> None:
    path = fluid_path(RS, (1, 0, 0, 0), horizon=1)
    assert (path.end, path.seconds) == (FluidEnd.HORIZON, 1)
    grown = fluid_path(RS, (1, 0, 0, 0), horizon=100)
    assert (grown.end, grown.seconds) == (FluidEnd.GROWING, 100)
    assert_is_path(grown)
    light = with_means(RS, ".1", ".4", ".1", ".4")
    assert fluid_path(light, (1, 0, 0, 0), horizon=F(19, 10)).end is FluidEnd.HORIZON
    assert fluid_path(light, (1, 0, 0, 0), horizon=2).end is FluidEnd.EMPTY
    assert fluid_path(light, (1, 0, 0, 0), most_events=2).end is FluidEnd.UNRESOLVED


def test_what_has_no_exact_path_is_refused() -> None:
    with pytest.raises(AssumptionViolated, match=r"station s1 serves several classes first come, first served.*diff"):
        fluid_path(RS.with_priority((None, RS.priority[1])), (1, 0, 0, 0))
    with pytest.raises(AssumptionViolated, match="join"):
        fluid_path(load_network("fork-join").fluid_model, (1,) * len(load_network("fork-join").classes))
    with pytest.raises(InvalidInput, match="start: 2 numbers for 4 classes"):
        fluid_path(RS, (1, 0))
    with pytest.raises(InvalidInput, match="start: 'A9' is no class"):
        fluid_path(RS, {"A9": 1})
    with pytest.raises(InvalidInput, match="start: 'A1' holds -1 tasks"):
        fluid_path(RS, {"A1": -1})
    with pytest.raises(InvalidInput, match="horizon: 0 s is not positive"):
        fluid_path(RS, {"A1": 1}, horizon=0)


def test_growth_without_a_common_ratio_is_proved_between_bounds() -> None:
    """Three stations: the turns tend to an eigenvector with an irrational factor, and are followed much further."""
    model = random_lines(46, stations=3, lengths=(3, 3, 3))
    path = fluid_path(model, {"c0": 1})
    assert_is_path(path)
    turn = path.turn
    assert isinstance(turn, DominantTurn)
    assert path.end is FluidEnd.GROWING
    assert path.certificate() is None
    assert 1 < turn.low <= turn.factor <= turn.high < turn.low * 1.05
    further = fluid_path(model, {"c0": 1}, horizon=10**5)
    assert_is_path(further)
    assert (further.end, further.seconds) == (FluidEnd.GROWING, 10**5)
    length = turn.last - turn.first
    times = [point.time for point in further.breakpoints[turn.last : -1 : length]]
    durations = [float(after - before) for before, after in pairwise(times)]
    assert len(durations) > 10
    for before, after in pairwise(durations):
        assert turn.low * 0.99 < after / before < turn.high * 1.01
    assert durations[-1] / durations[-2] == pytest.approx(turn.factor, rel=1e-6)


def test_accumulation_without_a_common_ratio_has_an_exact_limit() -> None:
    path = fluid_path(random_lines(46, stations=3, lengths=(3, 3, 3), load=F(4, 5)), {"c0": 1})
    assert_is_path(path)  # which follows the turns towards the limit
    (closing,) = path.accumulations
    assert isinstance(closing.turn, DominantTurn)
    assert closing.turn.low <= closing.turn.factor <= closing.turn.high < 1
    assert path.end is FluidEnd.EMPTY
    assert path.at(path.seconds) == (0,) * 9
    with pytest.raises(InvalidInput, match="infinitely many turns"):
        path.at((path.breakpoints[closing.turn.last].time + closing.limit_time) / 2)


def test_a_growing_turn_with_an_accumulation_point_inside() -> None:
    path = fluid_path(random_lines(430, stations=3, lengths=(4, 5)), {"c0": 1})
    assert_is_path(path)
    turn = path.turn
    assert isinstance(turn, Turn)
    assert path.factor == turn.factor > 1
    inside = [each for each in path.accumulations if turn.first <= each.turn.last < turn.last]
    assert inside
    assert len(path.accumulations) == 3 * len(inside)  # and in both copies that are listed
    assert path.certificate() is None  # infinitely many legs
    for part in range(1, 12):
        time = turn.start + turn.seconds * F(part, 12)
        assert path.at(turn.copy_time(time)) == turn.copy_state(path.at(time))


def test_a_path_as_plain_values() -> None:
    light = fluid_path(with_means(RS, ".1", ".4", ".1", ".4"), (1, 0, 0, 0)).to_dict()
    assert light["end"] == "EMPTY"
    assert light["seconds_exact"] == 2
    (closing,) = light["accumulations"]
    assert (closing["start"], closing["first_term"], closing["ratio_exact"], closing["limit"]) == (0, "2/3", "2/3", 2)
    grown = fluid_path(RS, (1, 0, 0, 0)).to_dict()
    assert (grown["factor"], grown["factor_exact"], grown["cycle_factor"]) == (1.5, "3/2", 2.25)
    assert grown["breakpoints"][1]["state"] == [0, "25/27", "1/9", 0]
    json.dumps([light, grown])


def test_several_paths_as_plain_values() -> None:
    paths = fluid_paths(LU_KUMAR, {"1": 1})
    assert paths[:1] == (paths[0],)
    assert paths.worst is paths.growing is paths[1]
    data = paths.to_dict()
    assert [path["end"] for path in data["paths"]] == ["EMPTY", "GROWING"]
    assert (data["end"], data["emptying_time"], data["growth_factor_exact"]) == ("GROWING", None, "3/2")
    assert data["growth"] == data["paths"][1]["growth"] == pytest.approx(0.5 / 3)  # half a task in a cycle of 3 s
    json.dumps(data)
    empty = fluid_paths(RS, {}).to_dict()
    assert (empty["end"], empty["emptying_time"], empty["growth"]) == ("EMPTY", 0, 0)


def test_every_kind_of_path_says_in_one_way_how_it_ends() -> None:
    system = load_model("codellama-34b-a100")
    assert system.workload is not None
    found = [
        fluid_path(RS, {"A1": 1}),
        fluid_paths(RS, {"A1": 1}),
        ode_path(RS, {"A1": 1}, 1),
        engine_fluid(system.engine, "vllm-vanilla", system.workload, (1000, 0)),
    ]
    ends = {end.value: end.meaning for end in FluidEnd}
    for data in (each.to_dict() for each in found):
        assert data["reason"] == ends[data["end"]]
        assert data["emptying_time"] is None
        assert isinstance(data["growth"], float)
    assert [each.to_dict()["end"] for each in found] == ["GROWING", "GROWING", "HORIZON", "DIVERGING"]


def tandem(classes: int) -> FluidModel:
    return FluidModel(
        stations=tuple(f"s{k}" for k in range(classes)),
        classes=tuple(f"c{k}" for k in range(classes)),
        station=tuple(range(classes)),
        arrival=(F(1, 2), *(F(0),) * (classes - 1)),
        service=(F(1),) * classes,
        routing=(*(((k + 1, F(1)),) for k in range(classes - 1)), ()),
        priority=(None,) * classes,
        preemptive=(True,) * classes,
    )


def test_a_network_too_large_for_exact_paths_is_refused():
    large = tandem(101)
    with pytest.raises(InvalidInput, match=r"101 classes; exact paths are followed up to 100"):
        fluid_path(large, {"c0": 1})
    assert growing_path(large) is None
    assert "not looked for beyond 100 classes" in search_growth(large).left


def test_a_search_says_where_it_ended_for_its_length(monkeypatch):
    entry = RS.with_priority([(0, 3), (2, 1)])
    assert search_growth(entry).left is None
    monkeypatch.setattr(fluid_path_module, "SEARCH_WORK", 16)
    assert "the first 1 of 2 starts alone" in search_growth(entry).left
    assert search_growth(entry).path is None


def test_a_search_over_many_starts_finds_what_a_path_from_one_does():
    found = search_growth(load_network("lu-kumar"))
    assert found.left is None
    assert found.path.factor == growing_path(LU_KUMAR).factor == F(3, 2)


def test_paths_of_a_network_are_those_of_its_fluid_model():
    network = load_network("rybko-stolyar")
    assert fluid_path(network, {"A1": 1}).to_dict() == fluid_path(RS, {"A1": 1}).to_dict()
    assert len(fluid_paths(network, {"A1": 1})) == 1


def test_branches_beyond_the_budget_are_left_and_said(monkeypatch):
    monkeypatch.setattr(fluid_path_module, "PATHS_WORK", 16)
    found = fluid_paths(LU_KUMAR, {"1": 1})
    assert not found.complete
    assert "branches beyond" in found.left
