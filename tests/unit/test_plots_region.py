"""Figures of regions and capacities: artists carry the data, texts cover nothing, bytes are reproducible."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from matplotlib.text import Text

from queuetheory_llm.model.arrivals import Arrivals, DeterministicArrivals, PoissonArrivals
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric, LengthLaw
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.plots.capacity import draw_capacity, render_capacity, spreads
from queuetheory_llm.plots.labels import Canvas, crossings
from queuetheory_llm.plots.region import draw_region, most_separated, nested_shapes, ray_curve, render_region
from queuetheory_llm.plots.style import LINES, PALETTE, figure_of
from queuetheory_llm.stability.answers import CapacityAnswer, RegionAnswer, capacity, stability_region
from queuetheory_llm.stability.scheduler_region import RayInterval, RayPoint, SchedulerRegion
from queuetheory_llm.stability.thresholds import Threshold

CODELLAMA = Staircase(c="11.28 ms", a="35.47 ms", b0=128)
TITLE = "codellama-34b-a100: staircase c = 11.28 ms, a = 35.47 ms, b0 = 128; b_max 512, no k_max"


def asked(
    engine: Engine,
    lengths: tuple[LengthLaw | int, LengthLaw | int] | None = (129, 112),
    arrivals: Arrivals | None = None,
    schedulers: tuple[str, ...] = (),
    title: str = "",
) -> RegionAnswer:
    workload = None if lengths is None else Workload.of(prefill=lengths[0], decode=lengths[1], arrivals=arrivals)
    return stability_region(engine, workload, schedulers=schedulers, optional=True, title=title)


def codellama(b_max: int, k_max: int | None = None) -> Engine:
    return Engine(batch_time=CODELLAMA, b_max=b_max, k_max=k_max)


def poisson(rate: str) -> PoissonArrivals:
    return PoissonArrivals(rate=rate)


def noisy_table(bend: float) -> Table:
    """300 points about a power law; with a bend above 1 the region has dozens of extreme points."""
    rng = np.random.default_rng(5)
    tokens = [8 * i for i in range(1, 301)]
    seconds = [round(0.012 + 1e-5 * b**bend / 400 ** (bend - 1) * (1 + 0.01 * rng.random()), 6) for b in tokens]
    return Table(tokens=tokens, seconds_at=seconds)


VERTEX_C = DeterministicArrivals(interval="467.5 ms")
SLOW = Staircase(c="30 ms", a="5 ms", b0=64)
CASES: dict[str, Callable[[], RegionAnswer]] = {
    "triangle": lambda: asked(
        codellama(512), (129, 112), poisson("12"), ("sarathi", "vllm-vanilla", "fastertransformer"), TITLE
    ),
    "vertex C": lambda: asked(codellama(1024, 100), (290, 990), VERTEX_C, ("sarathi", "orca", "fastertransformer")),
    "k_max 33": lambda: asked(
        Engine(batch_time=SLOW, b_max=512, k_max=33), (10, 10), poisson("30"), ("sarathi", "orca")
    ),
    "k_max 1": lambda: asked(codellama(512, 1), (129, 112), poisson("0.1"), ("sarathi",)),
    "k_max b_max 1": lambda: asked(codellama(1, 1), (1, 1), poisson("3"), ("sarathi",)),
    "noisy table": lambda: asked(
        Engine(batch_time=noisy_table(1.0), b_max=2400, k_max=64), (129, 112), poisson("20"), ("sarathi",)
    ),
    "many vertices": lambda: asked(
        Engine(batch_time=noisy_table(1.7), b_max=2400, k_max=64), (129, 112), poisson("20"), ("sarathi",)
    ),
    "outside": lambda: asked(codellama(512), (129, 112), poisson("14.9"), ("sarathi", "vllm-vanilla")),
    "far outside": lambda: asked(codellama(512), (129, 112), poisson("149"), ("sarathi",)),
    "barely outside": lambda: asked(codellama(512), (129, 112), poisson("13.87238"), ("sarathi",)),
    "nearly idle": lambda: asked(codellama(512), (129, 112), poisson("0.001"), ("sarathi",)),
    "no workload": lambda: asked(codellama(1024, 100), None),
    "no rate": lambda: asked(codellama(1024, 100), (290, 990), None, ("sarathi",)),
    "decodes only": lambda: asked(codellama(1024, 100), (0, 112), poisson("10"), ("sarathi", "fastertransformer")),
    "prompts only": lambda: asked(codellama(512), (200, 0), poisson("5"), ("sarathi", "vllm-vanilla")),
    "nearly a rectangle": lambda: asked(
        Engine(batch_time=Staircase(c="0 ms", a="5 ms", b0=64), b_max=512, k_max=4),
        (Geometric(mean=100), Geometric(mean=50)),
        poisson("5"),
        ("sarathi", "vllm-vanilla"),
    ),
    "many schedulers": lambda: asked(
        codellama(512),
        (129, 112),
        poisson("12"),
        ("sarathi", "orca", "vllm-chunked", "vllm-vanilla", "fastertransformer", "tensorrt-llm", "static"),
        "a title so long that it cannot stand in one line: " + TITLE,
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


@cache
def answer(name: str) -> RegionAnswer:
    return CASES[name]()


@cache
def picture(name: str) -> Axes:
    """The figure of a case, for tests that only look at it."""
    return draw_region(answer(name))


def line(ax: Axes, label: str) -> Line2D:
    """The one line the figure has under a label of its own."""
    (found,) = [each for each in ax.lines if each.get_label() == f"_{label}"]
    return found


def patch(ax: Axes, label: str) -> Polygon:
    (found,) = [each for each in ax.patches if each.get_label() == f"_{label}"]
    assert isinstance(found, Polygon)
    return found


def texts_in_legend(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text().replace("\n", " ") for text in legend.get_texts()]


def annotations(ax: Axes) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in ax.texts if text.get_text()]


def caption(ax: Axes) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure_of(ax).texts)


def rates(name: str) -> np.ndarray:
    return np.array([(float(v.prefill), float(v.decode)) for v in answer(name).outer.vertices])


# ------------------------------------------------------------------------------------------ artists and their data


@every_case
def test_r_is_the_polygon_of_the_extreme_points(name: str) -> None:
    ax = picture(name)
    np.testing.assert_array_equal(patch(ax, "R").get_xy()[:-1], rates(name))  # matplotlib repeats the first point
    np.testing.assert_array_equal(line(ax, "outline").get_xydata(), rates(name)[1:])
    np.testing.assert_array_equal(line(ax, "vertices").get_xydata(), rates(name)[1:])


def test_every_label_names_letter_batch_and_duration() -> None:
    found = set(annotations(picture("vertex C")))
    assert found == {
        "A (1024, 0) 295.04 ms",
        "B (925, 99) 295.04 ms",
        "C (29, 99) 46.75 ms",
        "D (0, 100) 46.75 ms",
        "on the boundary of R",
    }


def test_a_corner_that_another_dominates_has_its_letter_only() -> None:
    square = asked(Engine(batch_time=Table(tokens=[1, 2], seconds_at=["1 s", "1 s"]), b_max=2, k_max=2), None)
    assert set(annotations(draw_region(square))) >= {
        v.label if v.label.endswith("'") else f"{v.label} ({v.batch.prefill}, {v.batch.decode}) 1000 ms"
        for v in square.outer.vertices[1:]
    }


def test_six_separated_points_are_labelled_where_there_are_many() -> None:
    ax = picture("many vertices")
    assert len(rates("many vertices")) > 20
    labelled = np.asarray(line(ax, "labelled vertices").get_xydata())
    assert len(labelled) == 6
    assert len([text for text in annotations(ax) if " ms" in text]) == 6
    everywhere = {tuple(point) for point in rates("many vertices")}
    assert all(tuple(point) in everywhere for point in labelled)
    assert {tuple(rates("many vertices")[1]), tuple(rates("many vertices")[-1])} <= {tuple(p) for p in labelled}
    assert "6 of the" in " ".join(text.get_text() for text in figure_of(ax).texts)


def test_most_separated_points_are_as_far_apart_as_a_greedy_choice_can_make_them() -> None:
    points = np.array([[10.0, 0], [9.9, 0.1], [5, 5], [5.1, 4.9], [0.1, 9.9], [0, 10]])
    assert most_separated(points, 3) == [0, 2, 5] or most_separated(points, 3) == [0, 3, 5]
    assert most_separated(points, 6) == list(range(6))


@every_case
def test_the_operating_point_and_its_ray(name: str) -> None:
    point, ax = answer(name).operating_point, picture(name)
    drawn = {each.get_label() for each in ax.lines}
    if point is None:
        assert not {"_operating point", "_margin", "_ray"} & drawn
        return
    start, end = np.asarray(line(ax, "margin").get_xydata())
    assert float(answer(name).outer.membership(*map(float, end)).load) == pytest.approx(1)
    across = start[0] * float(point.decode) - start[1] * float(point.prefill)
    assert across == pytest.approx(0, abs=1e-9 * np.abs(end).max() ** 2)
    if name == "far outside":
        assert "_operating point" not in drawn
        return
    place = (float(point.prefill), float(point.decode))
    np.testing.assert_allclose(np.asarray(line(ax, "operating point").get_xydata()), [place])
    np.testing.assert_allclose(start, place)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("triangle", "margin to R 13.5 %"),
        ("vertex C", "on the boundary of R"),
        ("outside", "load 1.07, outside"),
        ("far outside", "load 10.7, outside, off the figure"),
        ("nearly idle", "margin to R 99.99 %"),
        ("barely outside", "load 1.0001, outside"),
    ],
)
def test_the_margin_in_words(name: str, text: str) -> None:
    assert text in annotations(picture(name))


def test_a_point_far_outside_does_not_squeeze_the_region() -> None:
    ax = picture("far outside")
    assert ax.get_xlim()[1] < 2 * rates("far outside")[:, 0].max()


def test_the_legend_names_every_shape_once() -> None:
    assert texts_in_legend(picture("triangle")) == [
        "R: outside it no scheduler is stable",
        "sarathi (STABLE, margin 13.5 %)",
        "vllm-vanilla (UNSTABLE, load 1.14)",
        "fastertransformer (UNSTABLE, load 21.6)",
        "operating point, 12 requests/s",
    ]


def test_coinciding_curves_are_one_entry_and_unknown_boundaries_say_so() -> None:
    found = texts_in_legend(picture("k_max 33"))
    assert "sarathi and orca (STABLE, margin 60.8 %), proved stable" in found
    assert len(found) == 4
    assert "sarathi, orca and vllm-chunked (STABLE, margin 13.5 %)" in texts_in_legend(picture("many schedulers"))


@every_case
def test_shapes_carry_the_points_of_their_schedulers(name: str) -> None:
    ax = picture(name)
    areas = [patch(ax, shape.label).get_zorder() for shape in nested_shapes(answer(name).schedulers)]
    assert areas == sorted(areas)
    for shape in nested_shapes(answer(name).schedulers):
        for scheduler in shape.schedulers:
            (region,) = [each for each in answer(name).schedulers if each.scheduler == scheduler]
            known = region.points or region.inner
            drawn = np.asarray(line(ax, shape.label).get_xydata())
            for point in known:
                if point.decode or point.prefill <= drawn[:, 0].max():  # a spike along the axis is left out
                    assert np.abs(drawn - [point.prefill, point.decode]).max(axis=1).min() <= 1e-5 * drawn.max()
        hatched = [each.get_label() for each in ax.patches if each.get_hatch()]
        assert (f"_{shape.label}, hatch" in hatched) == shape.proved


def test_shapes_are_drawn_the_largest_first() -> None:
    shapes = nested_shapes(answer("many schedulers").schedulers)
    assert [shape.area for shape in shapes] == sorted((shape.area for shape in shapes), reverse=True)
    drawn = [each.get_label() for each in picture("many schedulers").patches if not each.get_hatch()]
    assert drawn == ["_R", *(f"_{shape.label}" for shape in shapes)]


def test_hatches_show_in_svg() -> None:
    """An opacity on the face of a hatched patch would fade its hatch with it."""
    drawn = [each for name in CASES for each in picture(name).patches if each.get_hatch()]
    drawn += [each for each in draw_capacity(capacities(BARS)).patches if each.get_hatch()]
    assert drawn
    for each in drawn:
        assert each.get_facecolor()[3] in (0, 1)
        assert each.get_edgecolor()[3] == 1


def test_every_shape_has_a_colour_and_a_line_of_its_own() -> None:
    shapes = nested_shapes(answer("many schedulers").schedulers)
    ax = picture("many schedulers")
    looks = {(line(ax, shape.label).get_color(), str(LINES[shape.rank % len(LINES)])) for shape in shapes}
    assert len(looks) == len(shapes)
    assert len({(i % len(PALETTE), i % len(LINES)) for i in range(30)}) == 30


def test_colours_stay_with_a_scheduler_whatever_its_rank_by_size() -> None:
    engine, rate = codellama(512), poisson("12")
    forward = asked(engine, (129, 112), rate, ("fastertransformer", "sarathi"))
    colours = {shape.label: shape.rank for shape in nested_shapes(forward.schedulers)}
    assert colours == {"fastertransformer": 0, "sarathi": 1}


def test_the_palette_is_told_apart_in_grey_by_lightness_or_line() -> None:
    """Colours that share a line style differ in lightness, and no colour fades on white."""
    grey = [float(np.dot(to_rgb(colour), (0.299, 0.587, 0.114))) for colour in PALETTE]
    assert max(grey) < 0.75
    for i, j in itertools.combinations(range(len(PALETTE)), 2):
        if i % len(LINES) == j % len(LINES):
            assert abs(grey[i] - grey[j]) > 0.1


def test_the_bound_of_the_prompts_is_drawn_where_it_differs_visibly() -> None:
    bound = answer("k_max 33").workload_outer
    assert bound is not None
    drawn = np.asarray(line(picture("k_max 33"), "bound").get_xydata())
    np.testing.assert_array_equal(drawn, [(point.prefill, point.decode) for point in bound])
    assert "R, tightened for these prompts" in texts_in_legend(picture("k_max 33"))
    assert "_bound" not in {each.get_label() for each in picture("triangle").lines}


def ray(prefill: float, decode: float) -> RayPoint:
    return RayPoint(angle=0.0, prefill=prefill, decode=decode, requests_per_s=1.0)


def test_what_holds_on_the_prefill_axis_alone_claims_no_area() -> None:
    """Rays on x + y = 100 but for the axis, where 300 is proved: nothing above x + y = 100 may be filled or drawn."""
    points = tuple(ray(x, y) for x, y in [(300.0, 0.0), (90.0, 10.0), (80.0, 20.0), (0.0, 100.0)])
    (shape,) = nested_shapes([SchedulerRegion(scheduler="rule", points=(), inner=points, method="")])
    np.testing.assert_allclose(shape.curve[:2], [(100, 0), (90, 10)])
    assert shape.area == pytest.approx(100 * 100 / 2)


def test_a_measured_boundary_has_a_band_of_its_intervals() -> None:
    ends = {"angle": 0.0, "requests_per_s": 10.0}
    points = tuple(
        RayInterval(prefill=x, decode=y, low=9.0, high=high, **ends)
        for x, y, high in [(100.0, 0.0, 10.0), (60.0, 40.0, 11.0), (20.0, 80.0, 12.0)]
    )
    proved = tuple(ray(x / 2, y / 2) for x, y in [(100.0, 0.0), (60.0, 40.0), (20.0, 80.0)])
    region = SchedulerRegion(scheduler="rule", points=points, inner=proved, method="simulation")
    (shape,) = nested_shapes([region])
    assert not shape.proved
    assert shape.label == "rule, simulated; dotted: proved stable"
    np.testing.assert_allclose(shape.curve, [(90, 0), (54, 36), (18, 72)])
    np.testing.assert_allclose(shape.band, [(90, 0), (54, 36), (18, 72), (24, 96), (66, 44), (100, 0)])
    np.testing.assert_allclose(shape.beneath, [(50, 0), (30, 20), (10, 40)])
    ax = draw_region(attrs.evolve(answer("triangle"), schedulers=(region,), width=0.15))
    drawn = np.asarray(line(ax, shape.label).get_xydata())
    assert not (drawn[:, None] == [(100, 0), (60, 40), (20, 80)]).all(axis=2)[:, 1:].any()  # no line within the band
    assert line(ax, f"{shape.label}, proved").get_linestyle() == "--"  # what matplotlib calls any pattern of dashes
    assert "Band: the threshold lies in it; rule: 2 of 3 directions not decided to 15 % (widest 30 %)." in caption(ax)


def test_how_closely_a_boundary_is_known_in_words() -> None:
    exact = SchedulerRegion(scheduler="rule", points=(ray(1.0, 2.0),), inner=(), method="")
    assert exact.measured(0.1) == ""
    ends = {"angle": 0.0, "requests_per_s": 10.0, "prefill": 1.0, "decode": 1.0}
    spans = (RayInterval(low=9.75, high=10.25, **ends), RayInterval(low=9.0, high=11.0, **ends))
    found = attrs.evolve(exact, points=spans)
    assert found.measured(0.1) == "1 of 2 directions not decided to 10 % (widest 20 %)"
    assert found.measured(0.2) == "all 2 directions decided to 20 %"
    assert found.measured(None) == "known in 2 directions (widest 20 %)"


def test_the_caption_explains_hatches_where_there_are_any() -> None:
    words = "Hatched: proved stable, undecided from there to R; plain: exact."
    assert words in caption(picture("k_max 33"))
    assert "Hatched" not in caption(picture("triangle"))


def test_the_margin_has_a_colour_that_no_boundary_has() -> None:
    ax = picture("triangle")
    colour = line(ax, "margin").get_color()
    assert [text.get_color() for text in ax.texts if "margin" in text.get_text()] == [colour]
    assert colour not in {*PALETTE, line(ax, "outline").get_color()}


def test_a_curve_that_meets_the_prefill_axis_is_left_alone() -> None:
    curve = ray_curve([ray(102.0, 0.0), ray(90.0, 10.0), ray(80.0, 20.0)])
    np.testing.assert_array_equal(curve, [(102, 0), (90, 10), (80, 20)])


def test_axes_are_those_of_token_rates() -> None:
    ax = picture("triangle")
    assert ax.get_xlabel() == "prefill tokens/s"
    assert ax.get_ylabel() == "decode tokens/s"
    assert ax.get_xlim()[0] == ax.get_ylim()[0] == 0
    assert tuple(figure_of(ax).get_size_inches()) == (6.5, 4.8)


def test_the_title_is_the_answers_own_or_says_what_the_engine_is() -> None:
    assert TITLE in [text.get_text() for text in figure_of(picture("triangle")).texts]
    made = [text.get_text() for text in figure_of(picture("vertex C")).texts]
    assert "b_max 1024, k_max 100, staircase batch time" in made
    assert "Deterministic arrivals, 2.139 requests/s, 290 prefill and 990 decode tokens a request" in made


# ------------------------------------------------------------------------------------------------- nothing covered


def boxes(figure: Figure) -> dict[str, np.ndarray]:
    """Every visible text of a figure with its box (x0, y0, x1, y1) in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = {}
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if not (text.get_visible() and text.get_text().strip()):
            continue
        box = Text.get_window_extent(text, renderer)
        if box.width > 0 and _drawn(text, figure):
            found[f"{len(found)}: {text.get_text()}"] = np.array([box.x0, box.y0, box.x1, box.y1])
    return found


def _drawn(text: Text, figure: Figure) -> bool:
    """Whether the text is on the figure: axes keep labels of ticks beyond their limits, which are not."""
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if text in (tick.label1, tick.label2):
                    return bool(text is tick.label1 and low <= tick.get_loc() <= high)
    return True


def assert_texts_apart(figure: Figure) -> None:
    found = boxes(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for text, (x0, y0, x1, y1) in found.items():
        assert x0 >= 0, f"{text} leaves the figure"
        assert y0 >= 0, f"{text} leaves the figure"
        assert x1 <= width, f"{text} leaves the figure"
        assert y1 <= height, f"{text} leaves the figure"
    for (one, a), (two, b) in itertools.combinations(found.items(), 2):
        overlap = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
        assert overlap.min() <= 0, f"{one!r} and {two!r} overlap"


def points_along(ax: Axes) -> np.ndarray:
    """Pixels a quarter apart on every line drawn."""
    every = []
    for each in ax.lines:
        corners = ax.transData.transform(np.asarray(each.get_xydata()))
        if each.get_linestyle() == "None":
            every.append(corners)
            continue
        for start, end in itertools.pairwise(corners):
            steps = 2 + int(4 * np.linalg.norm(end - start))
            every.append(start + np.linspace(0, 1, steps)[:, None] * (end - start))
    return np.vstack(every)


@every_case
def test_no_text_overlaps_another_or_leaves_the_figure(name: str) -> None:
    assert_texts_apart(figure_of(picture(name)))


@every_case
def test_no_label_covers_a_curve_a_point_or_the_axes(name: str) -> None:
    ax = picture(name)
    found = boxes(figure_of(ax))
    on_curves, frame = points_along(ax), ax.get_window_extent()
    legend = ax.get_legend()
    assert legend is not None
    inside = {text.get_text() for text in (*ax.texts, *legend.get_texts())}
    for text, (x0, y0, x1, y1) in found.items():
        if text.partition(": ")[2] not in inside:
            continue
        assert not ((on_curves > (x0, y0)) & (on_curves < (x1, y1))).all(axis=1).any(), text
        assert x0 > frame.x0, text
        assert y0 > frame.y0, text
        assert x1 <= frame.x1 + 1, text
        assert y1 <= frame.y1 + 1, text


@every_case
def test_every_vertex_and_the_margin_find_a_place(name: str) -> None:
    wanted = min(6, len(rates(name)) - 1) + (answer(name).operating_point is not None)
    assert len(annotations(picture(name))) == wanted


def test_axes_of_the_callers_own_are_used_and_stay_readable() -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert draw_region(answer("triangle"), left) is left
    assert answer("vertex C").plot(right) is right
    assert not figure.texts
    assert_texts_apart(figure)


sizes = st.integers(-30, 30)


@given(st.lists(st.tuples(sizes, sizes, sizes, sizes), min_size=1, max_size=5), st.tuples(sizes, sizes), sizes, sizes)
def test_crossings_agree_with_clipping(
    segments: list[tuple[int, int, int, int]], corner: tuple[int, int], width: int, height: int
) -> None:
    box = (*corner, corner[0] + abs(width), corner[1] + abs(height))
    found = crossings(np.array([box], float), np.array(segments, float))[0]
    assert list(found) == [_clips(segment, box) for segment in segments]


def _clips(segment: tuple[int, int, int, int], box: tuple[int, int, int, int]) -> bool:
    """Liang and Barsky's test in rational arithmetic."""
    from fractions import Fraction

    low, high = Fraction(0), Fraction(1)
    for axis in (0, 1):
        start, step = segment[axis], segment[axis + 2] - segment[axis]
        if step == 0:
            if not box[axis] <= start <= box[axis + 2]:
                return False
            continue
        ends = sorted(Fraction(edge - start, step) for edge in (box[axis], box[axis + 2]))
        low, high = max(low, ends[0]), min(high, ends[1])
    return low <= high


pixels = st.floats(0, 400)


@given(
    st.lists(st.tuples(pixels, pixels), min_size=1, max_size=12),
    st.lists(st.tuples(pixels, pixels, pixels, pixels), max_size=8),
)
def test_placed_labels_cover_nothing(
    anchors: list[tuple[float, float]], lines: list[tuple[float, float, float, float]]
) -> None:
    canvas = Canvas((0, 0, 400, 400), 1.0)
    for x0, y0, x1, y1 in lines:
        canvas.add_line(np.array([[x0, y0], [x1, y1]]))
    drawn, placed = canvas.segments.copy(), []
    for anchor in anchors:
        place = canvas.place(np.array([anchor]), (60, 12))
        if place is not None:
            placed.append(place.box)
    for one, two in itertools.combinations(placed, 2):
        assert min(one[2], two[2]) <= max(one[0], two[0]) or min(one[3], two[3]) <= max(one[1], two[1])
    for box in placed:
        assert 0 <= box[0] < box[2] <= 400
        assert 0 <= box[1] < box[3] <= 400
        assert not crossings(np.array([box]), drawn).any()


# ----------------------------------------------------------------------------------------------------------- bytes

MAGIC = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.mark.parametrize("format", MAGIC)
def test_the_same_answer_gives_the_same_bytes(format: str) -> None:
    for name in ("vertex C", "many vertices"):
        first = render_region(answer(name), format)
        assert first.startswith(MAGIC[format])
        assert first == render_region(answer(name), format)


def test_bytes_do_not_depend_on_the_process_and_pyplot_stays_out() -> None:
    code = (
        "import hashlib, sys\n"
        "import queuetheory_llm as qt\n"
        "from queuetheory_llm.plots.region import render_region\n"
        "law = qt.Staircase(c='11.28 ms', a='35.47 ms', b0=128)\n"
        "found = qt.stability_region(qt.Engine(batch_time=law, b_max=1024, k_max=100))\n"
        "print(*(hashlib.sha256(render_region(found, kind)).hexdigest() for kind in ('svg', 'png', 'pdf')))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": ":".join(sys.path), "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


# ------------------------------------------------------------------------------------------------------- capacities


@cache
def capacities(schedulers: tuple[str, ...], k_max: int | None = None) -> CapacityAnswer:
    workload = Workload.of(prefill=129, decode=112)
    return capacity([codellama(512, k_max)], workload, schedulers=schedulers, title=TITLE)


BARS = ("sarathi", "vllm-vanilla", "tensorrt-llm")
DOTS = (*BARS, "fastertransformer", "sarathi+target=256")


def test_bars_end_at_the_largest_stable_rate() -> None:
    ax = draw_capacity(capacities(BARS))
    assert ax.get_xscale() == "linear"
    for row, limit in enumerate(capacities(BARS).results):
        (bar,) = [each for each in ax.patches if not each.get_hatch() and _row(each) == row]
        assert bar.get_x() == 0
        assert bar.get_width() == pytest.approx(float(limit.low))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(BARS)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first asked for is on top


def _row(bar: object) -> int:
    return round(bar.get_y() + bar.get_height() / 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("names", [BARS, DOTS])
def test_bounds_are_a_hatched_interval(names: tuple[str, ...]) -> None:
    ax = draw_capacity(capacities(names))
    results = capacities(names).results
    hatched = {_row(each): each for each in ax.patches if each.get_hatch()}
    assert set(hatched) == {row for row, limit in enumerate(results) if not limit.exact} != set()
    for row, bar in hatched.items():
        assert bar.get_x() == pytest.approx(float(results[row].low))
        assert bar.get_x() + bar.get_width() == pytest.approx(float(results[row].high))


def test_a_wide_spread_takes_a_logarithmic_axis_and_dots() -> None:
    ax = draw_capacity(capacities(DOTS))
    assert ax.get_xscale() == "log"
    dots = {float(each.get_xdata()[0]) for each in ax.lines if each.get_label() == "_stable"}
    assert dots == {float(limit.low) for limit in capacities(DOTS).results if limit.exact}


def test_the_axis_turns_logarithmic_beyond_a_factor_of_twenty() -> None:
    def limit(rate: float) -> Threshold:
        return Threshold(scheduler="rule", low=rate, high=rate, method="", binding="b_max")

    assert not spreads([limit(1.0), limit(20.0)])
    assert spreads([limit(1.0), limit(20.1)])
    nothing_proved = Threshold(scheduler="rule", low=0.0, high=10.0, method="", binding="b_max")
    assert not spreads([nothing_proved, limit(9.0)])


@pytest.mark.parametrize("names", [BARS, DOTS, ("sarathi",), tuple(f"sarathi+target={n}" for n in (128, 256, 384))])
def test_no_text_of_a_capacity_figure_overlaps_another(names: tuple[str, ...]) -> None:
    assert_texts_apart(figure_of(draw_capacity(capacities(names))))
    assert_texts_apart(figure_of(draw_capacity(attrs.evolve(capacities(names), title=""))))


@pytest.mark.parametrize("names", [BARS, DOTS])
def test_every_number_stands_clear_of_its_bar(names: tuple[str, ...]) -> None:
    ax = draw_capacity(capacities(names))
    frame = ax.get_window_extent()
    for text, limit in zip(ax.texts, capacities(names).results, strict=True):
        assert f"{float(limit.high):.4g} ({limit.binding})" in text.get_text()
        box = text.get_window_extent()
        assert box.x0 > ax.transData.transform((float(limit.high), 0))[0]
        assert box.x1 <= frame.x1


@pytest.mark.parametrize("format", MAGIC)
def test_a_capacity_figure_has_the_same_bytes_twice(format: str) -> None:
    first = render_capacity(capacities(DOTS), format)
    assert first.startswith(MAGIC[format])
    assert first == render_capacity(capacities(DOTS), format)


def test_capacities_are_drawn_by_their_answer() -> None:
    ax = Figure().subplots()
    assert capacities(BARS).plot(ax) is ax
