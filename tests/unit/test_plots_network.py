"""Drawings of networks carry the loads and the routes, and every text is on the figure and covers no other."""

from __future__ import annotations

from fractions import Fraction as F
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from fluid_networks import random_lines
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.plots.network import draw_network, render_network
from queuetheory_llm.plots.network_layout import links_of, station_columns
from queuetheory_llm.plots.network_run import draw_network_run, render_network_run
from queuetheory_llm.plots.style import figure_of, renderer_of
from queuetheory_llm.simulation.network_simulation import NetworkSimulation, simulate_network
from queuetheory_llm.stability.fluid_path import FluidPath, fluid_path
from queuetheory_llm.stability.network_topology import network_topology
from queuetheory_llm.stability.networks import NetworkAnswer, verify_stability
from queuetheory_llm.stability.traffic import traffic
from queuetheory_llm.verdict import Judgement, Verdict

PACKAGED = (
    "rybko-stolyar",
    "lu-kumar",
    "jackson-loop",
    "tandem",
    "fork-join",
    "text-to-sql-loop",
    "prefill-decode-disaggregated",
)
RANDOM = {"20 classes": (4, (5, 5, 5, 5)), "60 classes": (10, (12,) * 5), "3 stations": (3, (10,) * 3)}
every_network = pytest.mark.parametrize("name", [*PACKAGED, *RANDOM])


def unjudged(model: FluidModel) -> NetworkAnswer:
    """What is drawn of a network that nothing was proved of."""
    return NetworkAnswer(
        title="random",
        policy="file",
        model=model,
        traffic=traffic(model),
        topology=network_topology(model),
        judgement=Judgement(verdict=Verdict.UNDECIDED, basis=None, reason="nothing was looked for"),
        groups=(),
    )


@cache
def answer(name: str) -> NetworkAnswer:
    if name in PACKAGED:
        return verify_stability(load_network(name))
    stations, lengths = RANDOM[name]
    return unjudged(random_lines(5, stations=stations, lengths=lengths))


@cache
def picture(name: str) -> Axes:
    return draw_network(answer(name))


def bars(ax: Axes) -> dict[str, Rectangle]:
    """The bar of each class."""
    return {
        str(patch.get_label()).removeprefix("_load of "): patch
        for patch in ax.patches
        if isinstance(patch, Rectangle) and str(patch.get_label()).startswith("_load of ")
    }


def written(ax: Axes) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in (*figure_of(ax).texts, *ax.texts))


@every_network
def test_bars_are_the_loads_of_the_classes_in_the_order_of_priority(name: str) -> None:
    found, drawn = answer(name), bars(picture(name))
    model = found.model
    assert set(drawn) == set(model.classes)
    scales = set()
    for k, label in enumerate(model.classes):
        load = float(found.traffic.rates[k] * model.service[k])
        scales.add(round(drawn[label].get_width() / load, 6))
    assert len(scales) == 1  # one width is all the time of a station
    for order in model.priority:
        if order is not None:
            heights = [drawn[model.classes[k]].get_y() for k in order]
            assert heights == sorted(heights, reverse=True)


def test_the_number_at_an_arrow_and_the_diamond_of_a_fork_are_of_one_route() -> None:
    """A class that forks now and then leaves in two places, and its shares are explained."""
    ax = picture("text-to-sql-loop")
    (fork,) = {float(line.get_ydata()[0]) for line in ax.lines if line.get_markerfacecolor() != "white"}
    starts = [patch.get_path().vertices[0] for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    below = [y for _, y in starts if abs(y - fork) < 1e-9]
    assert len(below) == 2
    assert min(abs(y - fork) for _, y in starts if abs(y - fork) > 1e-9) > 0.05
    assert "number at an arrow: share of the tasks that take it" in written(ax)
    assert "number at an arrow" not in written(picture("tandem"))


def test_the_caption_does_not_respell_a_name() -> None:
    assert " coder, tester: a Lyapunov function" in written(picture("text-to-sql-loop"))
    assert " A Lyapunov function" in written(draw_network(verify_stability(load_network("lu-kumar").scaled(F(1, 2)))))


@every_network
def test_every_route_has_its_arrow(name: str) -> None:
    model = answer(name).model
    arrows = [patch for patch in picture(name).patches if isinstance(patch, FancyArrowPatch)]
    if len(model.classes) > 24:
        hops = {(model.station[link.source], model.station[link.to]) for link in links_of(model)}
        assert len(arrows) == sum(source != to for source, to in hops)
    else:
        joined = {k for siblings, _ in model.joins for k in siblings}
        rows = [sum((share for _, share in row), F(0)) for row in model.routing]
        leave = sum(total < 1 and k not in joined for k, total in enumerate(rows))
        assert len(arrows) == len(links_of(model)) + sum(map(bool, model.arrival)) + leave


@every_network
def test_texts_and_boxes_are_on_the_figure_and_texts_apart(name: str) -> None:
    ax = picture(name)
    figure = figure_of(ax)
    figure.draw_without_rendering()
    renderer = renderer_of(figure)
    texts = [text for text in (*figure.texts, *ax.texts) if text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    for text, box in (*boxes, *(("a box", patch.get_window_extent(renderer)) for patch in ax.patches)):
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, text
    for (first, one), (second, other) in combinations(boxes, 2):
        assert not one.overlaps(other), (first, second)


@every_network
def test_boxes_are_apart(name: str) -> None:
    outlines = [
        patch.get_bbox() for patch in picture(name).patches if isinstance(patch, Rectangle) and patch.get_zorder() == 3
    ]
    assert len(outlines) == len(answer(name).model.stations)
    assert not any(one.overlaps(other) for one, other in combinations(outlines, 2))


def test_stations_stand_after_what_feeds_them() -> None:
    def names(model: FluidModel) -> list[list[str]]:
        return [[model.stations[s] for s in column] for column in station_columns(model)]

    assert names(answer("fork-join").model) == [["splitter"], ["left", "right"], ["merger"]]
    assert names(answer("text-to-sql-loop").model) == [["retriever"], ["coder"], ["tester"], ["judge"]]
    assert names(answer("rybko-stolyar").model) == [["s1"], ["s2"]]


def test_a_violated_virtual_station_is_hatched_and_named_with_its_load() -> None:
    ax = picture("rybko-stolyar")
    hatched = {label for label, bar in bars(ax).items() if bar.get_hatch()}
    assert hatched == {"A2", "B2"}
    assert "rybko-stolyar: UNSTABLE by certificate" in written(ax)
    assert "virtual station of classes B2 and A2, load 1.2" in written(ax)
    assert not any(bar.get_hatch() for bar in bars(picture("jackson-loop")).values())


def test_probabilities_rates_and_leaving_shares_are_written() -> None:
    written_texts = {text.get_text() for text in picture("jackson-loop").texts}
    assert {"0.05", "0.25", "0.7", "1/s"} <= written_texts


def test_forks_and_joins_have_their_marks() -> None:
    marks = [line.get_markerfacecolor() for line in picture("fork-join").lines]
    assert len(marks) == 4
    assert marks.count("white") == 2
    kinds = {(link.fork, link.join) for link in links_of(answer("text-to-sql-loop").model)}
    assert kinds == {(False, False), (True, False), (False, True)}
    assert not picture("tandem").lines


def test_the_title_says_for_which_orders() -> None:
    network = load_network("rybko-stolyar")
    some = draw_network(verify_stability(network, policy="any"), Figure().subplots())
    assert some.get_title(loc="left").endswith("under some non-idling policy")
    pressed = draw_network(verify_stability(network, policy="back-pressure"), Figure().subplots())
    assert pressed.get_title(loc="left") == "rybko-stolyar: STABLE by theorem under back-pressure"


def test_an_overload_fills_its_cell_and_no_more() -> None:
    model = answer("tandem").model.scaled(F(3))
    ax = draw_network(unjudged(model))
    cells = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    widest = max(patch.get_width() for patch in cells if patch.get_zorder() == 4)
    assert {bar.get_width() for bar in bars(ax).values()} == {widest}


def test_very_many_stations_are_bars_of_loads() -> None:
    size = 40
    model = FluidModel(
        stations=tuple(f"s{k}" for k in range(size)),
        classes=tuple(f"c{k}" for k in range(size)),
        station=tuple(range(size)),
        arrival=(F(1),) + (F(0),) * (size - 1),
        service=tuple(F(k + 1, 50) for k in range(size)),
        routing=(*(((k + 1, F(1)),) for k in range(size - 1)), ()),
        priority=(None,) * size,
        preemptive=(False,) * size,
    )
    ax = draw_network(unjudged(model))
    widths = [patch.get_width() for patch in ax.patches]
    np.testing.assert_allclose(widths, [(size - place) / 50 for place in range(len(widths))])
    assert f"the {len(widths)} highest loads of 40 stations" in written(ax).lower()


def test_axes_of_ones_own_and_the_same_bytes() -> None:
    own = Figure().subplots()
    assert answer("lu-kumar").plot(own) is own
    assert render_network(answer("lu-kumar"), "svg") == render_network(answer("lu-kumar"), "svg")


# --------------------------------------------------------------------------------------------------------------- a run


@cache
def llm_run() -> tuple[NetworkSimulation, FluidPath]:
    network = load_network("rybko-stolyar-llm")
    path = fluid_path(network.fluid_model, {"A1": 300})
    return simulate_network(network, horizon=path.seconds, start={"A1": 300}), path


def test_the_sawtooth_of_a_run_has_the_fluid_path_over_it() -> None:
    run, path = llm_run()
    upper = draw_network_run(run, path=path)
    lines = {str(each.get_label()): each.get_xydata() for each in upper.lines}
    seconds = run.run.series.ticks / run.run.clock.rate
    np.testing.assert_array_equal(lines["run"], np.column_stack([seconds, run.run.series.highest]))
    tokens = np.array([64, 544, 64, 544])  # of a call of A1, A2, B1, B2
    drawn = dict(lines["fluid path"])
    for point in path.breakpoints:
        assert drawn[float(point.time)] == pytest.approx(float(tokens @ np.array(point.state, dtype=float)))
    np.testing.assert_array_equal(lines["peaks of the run"], np.array(run.peaks()))
    lower = figure_of(upper).axes[0]
    for k, name in enumerate(run.network.fluid_model.classes):
        (of_class,) = [each for each in lower.lines if each.get_label() == name]
        drawn_tasks = of_class.get_ydata()
        np.testing.assert_array_equal(drawn_tasks[~np.isnan(drawn_tasks)], run.run.series.present[k])


def test_the_words_on_a_run() -> None:
    run, path = llm_run()
    figure = figure_of(draw_network_run(run, path=path))
    said = " ".join(" ".join(text.get_text().split()) for text in figure.texts)
    assert f"rybko-stolyar-llm: {run.measured.value} by simulation" in said
    assert "factor of the fluid path 4.135" in said
    renderer = renderer_of(figure)
    boxes = [text.get_window_extent(renderer) for text in figure.texts]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for ax in figure.axes:
        assert ax.get_tightbbox(renderer).x0 >= 0
    own = Figure().subplots()
    assert run.plot(own) is own
    assert render_network_run(run, "svg", path=path) == render_network_run(run, "svg", path=path)
