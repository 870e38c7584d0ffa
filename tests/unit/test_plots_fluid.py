"""Figures of fluid paths carry the numbers of the paths, and every text is on the figure and covers no other."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from functools import cache
from itertools import combinations

import attrs
import numpy as np
import pytest
from fluid_networks import random_lines, random_start
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.batch_time import Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.plots.engine_fluid import draw_engine_fluid, render_engine_fluid
from queuetheory_llm.plots.fluid import (
    draw_fluid_path,
    draw_fluid_paths,
    fluid_curve,
    render_fluid_path,
    render_fluid_paths,
)
from queuetheory_llm.plots.overload import draw_overload
from queuetheory_llm.plots.style import figure_of, renderer_of, short
from queuetheory_llm.stability.engine_fluid import engine_fluid
from queuetheory_llm.stability.fluid_ode import ode_path
from queuetheory_llm.stability.fluid_path import FluidPath, fluid_path, fluid_paths
from queuetheory_llm.stability.overload import Overload, backlog_arcs, network_overload

RS = load_network("rybko-stolyar").fluid_model
LU_KUMAR = load_network("lu-kumar").fluid_model


def outer(mean: str) -> FluidModel:
    """Rybko-Stolyar with another mean of the classes about to leave."""
    return attrs.evolve(RS, service=(F(1, 10), F(mean), F(1, 10), F(mean)))


LINES = random_lines(3, stations=4, lengths=(6, 6, 5))
CASES: dict[str, Callable[[], FluidPath]] = {
    "growing": lambda: fluid_path(RS, {"A1": 1}),
    "emptying": lambda: fluid_path(outer("2/5"), {"A1": 1}),
    "slowly emptying": lambda: fluid_path(outer("49/100"), {"A1": 1}),
    "periodic": lambda: fluid_path(outer("1/2"), {"A1": 1}),
    "llm": lambda: fluid_path(load_network("rybko-stolyar-llm").fluid_model, {"A1": 2000}),
    "diverging": lambda: fluid_path(RS.scaled(F(2)), {"A1": 1}),
    "horizon": lambda: fluid_path(outer("2/5"), {"A1": 1}, horizon="1 s"),
    "empty": lambda: fluid_path(RS, {}),
    "many classes": lambda: fluid_path(LINES, random_start(3, LINES)),
    "no common ratio": lambda: fluid_path(random_lines(46, stations=3, lengths=(3, 3, 3), load=F(4, 5)), {"c0": 1}),
    "lu-kumar": lambda: next(path for path in fluid_paths(LU_KUMAR, {"1": 1}) if path.end.grows),
}
every_case = pytest.mark.parametrize("name", CASES)


@cache
def path(name: str) -> FluidPath:
    return CASES[name]()


@cache
def picture(name: str) -> Axes:
    return draw_fluid_path(path(name))


def line(ax: Axes, label: str) -> np.ndarray:
    """The points of the one line whose label begins so, gaps left out."""
    (found,) = [each for each in ax.lines if str(each.get_label()).split(",")[0] == label]
    points = found.get_xydata()
    return points[~np.isnan(points).any(axis=1)]


def texts(figure: Figure) -> list[Text]:
    """Every text that is written somewhere; ticks beyond the limits are not."""
    found = list(figure.texts)
    for ax in figure.axes:
        found += [each for each in ax.get_children() if isinstance(each, Text)]
        found += ax.legend_.get_texts() if ax.legend_ else []
        for axis in (ax.xaxis, ax.yaxis) if ax.axison else ():
            low, high = sorted(axis.get_view_interval())
            found += [axis.label, *(tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def assert_texts_fit(figure: Figure) -> None:
    """On the figure, and apart from one another."""
    renderer = renderer_of(figure)
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts(figure)]
    drawn = [(text, box) for text, box in boxes if box.width and box.height]
    for text, box in drawn:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, text
    for (first, one), (second, other) in combinations(drawn, 2):
        assert not one.overlaps(other), (first, second)


@every_case
def test_the_lines_are_the_breakpoints(name: str) -> None:
    shown, ax = path(name), picture(name)
    lines = {str(each.get_label()).split(",")[0]: each.get_xydata() for each in ax.lines}
    columns = dict(
        zip(shown.model.classes, zip(*(point.state for point in shown.breakpoints), strict=True), strict=True)
    )
    for label, values in {"total": shown.totals, **columns}.items():
        for point, value in zip(shown.breakpoints, values, strict=True):
            if label in lines and value:
                drawn = lines[label][np.flatnonzero(lines[label][:, 0] == float(point.time))]
                np.testing.assert_allclose(drawn, [[float(point.time), float(value)]], rtol=1e-12)


@pytest.mark.parametrize("name", ["emptying", "slowly emptying", "many classes"])
def test_the_turns_before_an_accumulation_point_are_those_of_the_path(name: str) -> None:
    shown = path(name)
    curve = fluid_curve(shown)
    assert len(curve.times) > 3 * len(shown.breakpoints)
    for time, state in list(zip(curve.times, curve.states, strict=True))[:: len(curve.times) // 15]:
        if time <= shown.seconds:
            near = [float(q) for q in shown.at(F(time))]
            np.testing.assert_allclose(state, near, atol=1e-9 * float(max(shown.totals)))
    limit = float(shown.accumulations[0].limit_time)
    before = curve.times[curve.times < limit].max()
    assert limit - before < 1e-2 * float(shown.seconds)
    assert limit in [each.get_xdata()[0] for each in picture(name).lines if "limit" in str(each.get_label())]


def test_turns_without_a_common_ratio_shrink_to_their_exact_limit() -> None:
    shown = path("no common ratio")
    (closing,) = shown.accumulations
    curve = fluid_curve(shown)
    after = curve.times > float(shown.breakpoints[closing.turn.last].time)
    turns = curve.totals[after & (curve.times < float(closing.limit_time))]
    assert len(turns) > 3 * (closing.turn.last - closing.turn.first)
    assert (np.diff(curve.times) > 0).all()
    assert turns[-1] < 1e-2 * turns[0]


def test_gaps_stand_where_a_class_is_empty() -> None:
    drawn = next(each for each in picture("growing").lines if each.get_label() == "A2").get_xydata()
    gaps = drawn[np.isnan(drawn[:, 1]), 0]
    assert gaps.size
    for time in gaps:
        assert path("growing").at(F(time))[1] == 0


def test_the_title_gives_the_factor_and_the_marks_the_ends_of_half_cycles() -> None:
    ax = picture("growing")
    head = figure_of(ax).texts[0].get_text()
    assert "factor 3/2 every half cycle" in head
    assert "unstable" in head
    assert line(ax, "_marks").tolist() == [[0, 1], [1.5, 1.5], [3.75, 2.25], [7.125, 3.375]]
    assert {"3/2", "9/4", "27/8"} <= {text.get_text() for text in ax.texts}
    assert "total, +1/3 tasks/s" in [str(each.get_label()) for each in ax.lines]


def test_titles_say_when_it_is_empty() -> None:
    assert "after 2 s, at the limit of infinitely many turns" in figure_of(picture("emptying")).texts[0].get_text()
    caption = " ".join(figure_of(picture("emptying")).texts[-1].get_text().split())
    assert "2/3 (1 + r + r^2 + ...) = 2 s with r = 2/3" in caption
    assert "4.135" in figure_of(picture("llm")).texts[0].get_text()


def test_the_envelope_touches_the_peaks_and_is_nowhere_below_the_total() -> None:
    shown, ax = path("lu-kumar"), picture("lu-kumar")
    (start, low), (end, high) = line(ax, "envelope")
    for time, total in shown.peaks[1:]:
        assert low + (high - low) * (float(time) - start) / (end - start) == pytest.approx(float(total))
    for time, total in line(ax, "total"):
        assert total <= low + (high - low) * (time - start) / (end - start) + 1e-9
    peaks = {(float(time), float(total)) for time, total in shown.peaks}
    assert {(x, y) for x, y in line(ax, "_marks")} == peaks


def test_many_classes_are_drawn_together() -> None:
    shown, ax = path("many classes"), picture("many classes")
    labels = [str(each.get_label()) for each in ax.lines]
    (together,) = [label for label in labels if "together" in label]
    named = sum(label in shown.model.classes for label in labels)
    filled = sum(bool(column.any()) for column in fluid_curve(shown).states.T)
    assert f"the other {filled - named} classes together" == together


@every_case
def test_every_text_is_on_the_figure_and_apart(name: str) -> None:
    assert_texts_fit(figure_of(picture(name)))


def test_several_solutions_stand_side_by_side() -> None:
    paths = fluid_paths(LU_KUMAR, {"1": 1})
    figure = figure_of(draw_fluid_paths(paths))
    assert "1 grows and 1 empties" in figure.texts[0].get_text()
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[1:] == ["Fluid grows by the factor 3/2 every cycle", "All fluid is gone after 7/3 s"]
    assert line(figure.axes[2], "total")[1].tolist() == [float(F(7, 3)), 0]
    assert_texts_fit(figure)


def test_axes_of_ones_own_and_the_same_bytes() -> None:
    own = Figure().subplots()
    assert path("growing").plot(own) is own
    assert own.get_title(loc="left").startswith("Fluid grows")
    assert render_fluid_path(path("growing"), "png") == render_fluid_path(path("growing"), "png")
    paths = fluid_paths(LU_KUMAR, {"1": 1})
    assert render_fluid_paths(paths, "svg") == render_fluid_paths(paths, "svg")


def test_an_integrated_path_is_drawn_along_the_exact_one() -> None:
    ax = draw_fluid_path(ode_path(RS, {"A1": 1}, F(57, 8)))
    shown = path("growing")
    for time, total in line(ax, "total")[::40]:
        assert total == pytest.approx(float(sum(shown.at(F(time)))), abs=1e-6)
    assert "3.375 tasks after 7.125 s" in figure_of(ax).texts[0].get_text()
    assert_texts_fit(figure_of(ax))


def test_an_integrated_path_is_shown_until_it_is_empty() -> None:
    found = ode_path(load_network("fork-join").fluid_model, {"split": 1}, 32)
    assert found.emptying_time is not None
    assert 1 < draw_fluid_path(found).get_xlim()[1] / found.emptying_time < 1.2


# ------------------------------------------------------------------------------------------------------------ overloads

STEPS = RateProfile(times=[0, 60, 120], values=[F(1, 2), 2, F(1, 2)])


def overload(profile: RateProfile, **options: object) -> Overload:
    """Work of 1 a second can be done, and as much comes as the profile says."""
    return Overload(load=profile, capacity=F(1), unit="tokens", arcs=backlog_arcs(profile, F(1)), **options)


def test_the_backlog_below_the_load_is_what_came_beyond_capacity() -> None:
    lower = draw_overload(overload(STEPS))
    upper = figure_of(lower).axes[1]
    load = np.unique(line(upper, "load"), axis=0)
    assert load.tolist()[:6] == [[0, 0.5], [60, 0.5], [60, 2], [120, 0.5], [120, 2], [load[-1, 0], 0.5]]
    for time, backlog in line(lower, "load"):
        assert backlog == pytest.approx(np.interp(time, [0, 60, 120, 240, 500], [0, 0, 60, 0, 0]))
    assert line(lower, "_deepest").tolist() == [[120, 60]]
    assert line(lower, "_drained")[0, 0] == 240
    said = [text.get_text() for text in lower.texts]
    assert said == ["60 at 120 s", "gone at 240 s"]
    assert figure_of(lower).texts[0].get_text() == "The backlog is 60 tokens deep and gone after 240 s"
    assert_texts_fit(figure_of(lower))


def test_what_is_above_capacity_is_shaded_and_nothing_else() -> None:
    upper = figure_of(draw_overload(overload(STEPS))).axes[1]
    (shade,) = upper.collections
    corners = np.concatenate([each.vertices for each in shade.get_paths()])
    assert (corners.min(axis=0).tolist(), corners.max(axis=0).tolist()) == ([60, 1], [120, 2])


def test_a_backlog_that_stays_says_so() -> None:
    grows = draw_overload(overload(RateProfile(times=[0, 60], values=[F(1, 2), 2])))
    assert figure_of(grows).texts[0].get_text() == "The backlog grows by 1 tokens/s for ever"
    assert not [each for each in grows.lines if each.get_label() == "_drained"]
    assert_texts_fit(figure_of(grows))
    none = draw_overload(overload(RateProfile(times=[0], values=[F(1, 2)])))
    assert "No backlog" in figure_of(none).texts[0].get_text()


def test_stations_of_a_network_have_a_backlog_each() -> None:
    model = load_network("tandem").fluid_model
    found = network_overload(model, RateProfile(times=[0, 60, 120], values=[1, 2, 1]), horizon=400)
    lower = draw_overload(found)
    for name, (time, depth) in zip(model.stations, found.depths, strict=True):
        drawn = line(lower, name)
        assert drawn[:, 1].max() == pytest.approx(depth, rel=1e-2)
        assert drawn[np.argmax(drawn[:, 1]), 0] == pytest.approx(time, abs=2)
    assert_texts_fit(figure_of(lower))
    assert found.plot(Figure().subplots()).get_title(loc="left") == figure_of(lower).texts[0].get_text()


# ----------------------------------------------------------------------------------------------------------- one engine


def test_the_path_of_an_engine_goes_through_its_corners_with_the_drifts_beside_it() -> None:
    engine = Engine(batch_time=Table(tokens=[4], seconds_at=[1]), b_max=4)
    found = engine_fluid(engine, "sarathi", Workload.of(prefill=2, decode=2), (1000, 400), rate="3/4")
    ax = draw_engine_fluid(found)
    expected = [[float(point.prefill), float(point.decode)] for point in found.points]
    assert line(ax, "_corners").tolist() == line(ax, "path").tolist() == expected
    assert {f"{short(float(point.time))} s" for point in found.points} <= {text.get_text() for text in ax.texts}
    labels = " ".join(str(each.get_label()) for each in ax.lines)
    drift = found.drifts.interior
    assert f"({drift[0].mean:.4g}, {drift[1].mean:.4g}) tokens/s" in labels
    assert "gone after" in figure_of(ax).texts[0].get_text()
    assert_texts_fit(figure_of(ax))
    assert render_engine_fluid(found, "svg") == render_engine_fluid(found, "svg")
