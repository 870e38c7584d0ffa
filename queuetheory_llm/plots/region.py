"""Figure of a stability region: the plane of token rates, schedulers as nested shapes, the operating point's margin."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.plots.labels import Canvas, Place
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    LIGHT,
    LINES,
    PALETTE,
    POINT,
    SMALL,
    SPACING,
    TEXT,
    figure_bytes,
    figure_of,
    framed_axes,
    number_text,
    paler,
    plain_axes,
    renderer_of,
    text_size,
)
from queuetheory_llm.plots.words import engine_line, workload_line
from queuetheory_llm.stability.answers import OperatingPoint, RegionAnswer
from queuetheory_llm.stability.region import StabilityRegion, Vertex
from queuetheory_llm.stability.scheduler_region import RayInterval, RayPoint, SchedulerRegion
from queuetheory_llm.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

_SIZE = (6.5, 4.8)  # inches
_LABELLED = 6  # vertices beyond this many would crowd the figure
_SAME = 1e-6  # relative to the largest rate: curves this close are one
_VISIBLE = 0.985  # a bound is drawn apart from R where it takes more than 1.5 % off some ray
_HATCHES = ("///", "\\\\\\", "|||", "---")
_JUMP = 1.1  # ratio of the rate on the prefill axis to what the next two rays lead to
_FAR = 3.0  # load beyond which the operating point would squeeze the region into a corner
_GROUND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
#: How far the axes may reach, relative to the largest rates: horizontally, vertically.
_ROOMS = tuple(itertools.product((1.06, 1.2, 1.35), (1.1, 1.25, 1.5, 1.9, 2.4)))
_EMPTY = 60.0  # cost, in the points of a label's distance, of empty area as large as the shapes
_BROKEN = 6.0  # cost of labels in two lines


def render_region(answer: RegionAnswer, format: str) -> bytes:
    """The figure of `draw_region` as a file, the same for the same answer.

    Parameters
    ----------
    answer : RegionAnswer
    format : {"svg", "png", "pdf"}
    """
    return figure_bytes(figure_of(draw_region(answer)), format)


def draw_region(answer: RegionAnswer, ax: Axes | None = None) -> Axes:
    """The region R with its extreme points and their batches, what is known of each scheduler, and the margin.

    The ray from the origin through the operating point is drawn to the boundary of R; its thick piece between the
    two is the margin, or outside R the excess. The legend has each scheduler's own verdict at that point.

    Parameters
    ----------
    answer : RegionAnswer
    ax : Axes, optional
        By default the only axes of a new figure of 6.5 x 4.8 inches with title and caption. Its limits are set.

    Returns
    -------
    Axes
        Horizontal prefill, vertical decode, both in tokens/s.
    """
    if ax is None:
        ax = _new_axes(answer)
    keys = [_draw_outer(ax, answer.outer)]
    bound = answer.workload_outer
    if bound is not None and _is_visible(bound, answer.outer):
        keys.append(_draw_bound(ax, bound))
    judgements = {name: judgement for name, _, judgement in answer.judgements}
    keys += [_draw_shape(ax, shape, judgements) for shape in nested_shapes(answer.schedulers)]
    labels = _vertex_labels(answer.outer)
    if answer.operating_point is not None:
        key, margin = _draw_point(ax, answer.operating_point)
        keys.append(key)
        labels.insert(0, margin)
    _finish(ax, keys, labels)
    return ax


def draw_outer(region: StabilityRegion, ax: Axes | None = None) -> Axes:
    """One region alone, with its extreme points and their batches.

    Parameters
    ----------
    region : StabilityRegion
    ax : Axes, optional
        By default the only axes of a new figure of 6.5 x 4.8 inches with title and caption. Its limits are set.

    Returns
    -------
    Axes
        Horizontal prefill, vertical decode, both in tokens/s.
    """
    if ax is None:
        ax = framed_axes(*_SIZE, title=engine_line(region.engine), subtitle="", caption=_labels_line(region))
    handle, _ = _draw_outer(ax, region)
    _finish(ax, [(handle, "outside it no scheduler is stable")], _vertex_labels(region))
    return ax


def _finish(ax: Axes, keys: list[Key], labels: list[_Label]) -> None:
    """Axes of token rates, legend and labels."""
    plain_axes(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_xlabel("prefill tokens/s", fontsize=TEXT)
    ax.set_ylabel("decode tokens/s", fontsize=TEXT)
    _write(ax, keys, labels)


def _new_axes(answer: RegionAnswer) -> Axes:
    return framed_axes(
        *_SIZE,
        title=answer.title or engine_line(answer.engine),
        subtitle="" if answer.workload is None else workload_line(answer.workload),
        caption=_caption(answer),
    )


def _caption(answer: RegionAnswer) -> str:
    """What R, its labels, hatches and bands mean."""
    lines = [f"R: Theorem 10 of arXiv 2504.07347. {_labels_line(answer.outer)}"]
    if any(not region.points for region in answer.schedulers):
        lines.append("Hatched: proved stable, undecided from there to R; plain: exact.")
    bands = [f"{region.scheduler}: {words}" for region in answer.schedulers if (words := region.measured(answer.width))]
    if bands:
        lines.append(f"Band: the threshold lies in it; {'; '.join(bands)}.")
    return " ".join(lines)


def _labels_line(region: StabilityRegion) -> str:
    corners = len(_off_origin(region.vertices))
    which = "the extreme points" if corners <= _LABELLED else f"{_LABELLED} of the {corners} extreme points"
    return f"Labels: {which}, batch (prefill, decode tokens) and duration."


def _labelled(region: StabilityRegion) -> list[int]:
    """Which of the extreme points off the origin get a label."""
    return most_separated(_rates(_off_origin(region.vertices)), _LABELLED)


def _vertex_labels(region: StabilityRegion) -> list[_Label]:
    corners = _off_origin(region.vertices)
    return [_Label(_vertex_texts(corners[i]), _rates(corners[i : i + 1])) for i in _labelled(region)]


# ----------------------------------------------------------------------------------------------------- the shapes

#: A handle of the legend (two, one drawn over the other, as a tuple) and its text.
Key = tuple[Any, str]


@attrs.frozen
class Shape:
    """A scheduler's curve from the prefill axis to the decode axis, or that of several which coincide.

    Attributes
    ----------
    schedulers : tuple of str
    curve : float array of shape (n, 2)
        Tokens/s; of a measured boundary the lower ends of its intervals.
    proved : bool
        Whether the boundary is unknown and the curve bounds what is proved stable.
    band : float array of shape (m, 2) or None
        Outline of the intervals that the boundary is measured to lie in, tokens/s.
    beneath : float array of shape (k, 2) or None
        The curve of what is proved stable, beside a boundary that is measured.
    rank : int
        Its place in the order asked for, which gives it colour and line.
    """

    schedulers: tuple[str, ...]
    curve: Floats = attrs.field(eq=False)
    proved: bool
    rank: int
    band: Floats | None = attrs.field(default=None, eq=False)
    beneath: Floats | None = attrs.field(default=None, eq=False)

    @property
    def polygon(self) -> Floats:
        """The curve closed through the origin."""
        return np.vstack([[0.0, 0.0], self.curve])

    @property
    def area(self) -> float:
        """Of the polygon, in (tokens/s)^2."""
        x, y = self.polygon.T
        return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)

    @property
    def label(self) -> str:
        """The shape in words."""
        return self.described("")

    def described(self, remark: str) -> str:
        """Names and what is known of them, a remark on the names between the two."""
        measured = "" if self.band is None else ", simulated; dotted: proved stable"
        return enumeration(self.schedulers) + remark + (", proved stable" if self.proved else measured)

    def coincides(self, other: Shape) -> bool:
        """Whether the two could not be told apart."""
        if self.proved != other.proved or self.curve.shape != other.curve.shape:
            return False
        return bool(np.abs(self.curve - other.curve).max() <= _SAME * np.abs(self.curve).max())


def nested_shapes(schedulers: Sequence[SchedulerRegion]) -> list[Shape]:
    """One shape a scheduler, coinciding ones merged, the largest first."""
    merged: list[Shape] = []
    for region in schedulers:
        proved = not region.points
        known = region.inner if proved else [_at(point, "low") for point in region.points]
        shape = Shape((region.scheduler,), ray_curve(known), proved, len(merged))
        if region.points and region.inner:
            shape = attrs.evolve(shape, band=_band(region.points), beneath=ray_curve(region.inner))
        twin = next((index for index, each in enumerate(merged) if each.coincides(shape)), None)
        if twin is None:
            merged.append(shape)
        else:
            merged[twin] = attrs.evolve(merged[twin], schedulers=(*merged[twin].schedulers, *shape.schedulers))
    return sorted(merged, key=lambda shape: (-shape.area, -float(shape.curve.max())))


def _band(points: Sequence[RayPoint]) -> Floats:
    """Outline of the intervals of neighbouring rays, along their lower ends and back along the upper ones."""
    ends = [[_at(point, end) for point in points] for end in ("low", "high")]
    return np.vstack([ray_curve(ends[0]), ray_curve(ends[1])[::-1]])


def _at(point: RayPoint, end: str) -> RayPoint:
    """The point on the same ray at an end of its interval."""
    rate = getattr(point, end) if isinstance(point, RayInterval) else point.requests_per_s
    scale = rate / point.requests_per_s
    return RayPoint(angle=point.angle, prefill=scale * point.prefill, decode=scale * point.decode, requests_per_s=rate)


def ray_curve(points: Sequence[RayPoint]) -> Floats:
    """The points of neighbouring rays joined, shape (n, 2), in tokens/s.

    What holds on the prefill axis alone (prompts without decodes) can lie far beyond the rays beside it. The curve
    then ends on the axis where those rays lead: a spike without area is no part of a region to be seen.
    """
    curve = np.array([(point.prefill, point.decode) for point in points], dtype=float).reshape(-1, 2)
    if len(curve) < 3 or curve[0, 1] != 0:
        return curve
    (x, y), (u, v) = curve[1], curve[2]
    foot = x + y * (x - u) / (v - y) if v > y else np.inf
    if curve[0, 0] > _JUMP * foot:
        curve[0, 0] = foot
    return curve


def _draw_outer(ax: Axes, region: StabilityRegion) -> Key:
    """R, its outline off the axes and its extreme points, large where they are labelled."""
    from matplotlib.patches import Patch, Polygon

    corners = _rates(region.vertices)
    ax.add_patch(Polygon(corners, closed=True, facecolor=LIGHT, edgecolor="none", zorder=1, label="_R"))
    outline = corners[1:]
    ax.plot(*outline.T, color=INK, linewidth=2.8, solid_joinstyle="miter", zorder=2, label="_outline")
    dots: dict[str, Any] = {"color": INK, "linestyle": "", "marker": "o", "zorder": 5, "clip_on": False}
    ax.plot(*outline.T, **dots, markersize=3, label="_vertices")
    ax.plot(*outline[_labelled(region)].T, **dots, markersize=5, label="_labelled vertices")
    return Patch(facecolor=LIGHT, edgecolor=INK, linewidth=1.6), "R: outside it no scheduler is stable"


def _draw_shape(ax: Axes, shape: Shape, judgements: Mapping[str, Judgement]) -> Key:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Polygon

    colour = PALETTE[shape.rank % len(PALETTE)]
    fill: dict[str, Any] = {"facecolor": (colour, 0.06 if shape.proved else 0.13), "linewidth": 0}
    ax.add_patch(Polygon(shape.polygon, closed=True, zorder=1.5, label=f"_{shape.label}", **fill))
    keys: list[Artist] = [Patch(**fill)]
    if shape.proved:
        # Patches of their own: in SVG the opacity of a face is that of its hatch too.
        hatch: dict[str, Any] = {"facecolor": "none", "edgecolor": paler(colour), "linewidth": 0}
        hatch["hatch"] = _HATCHES[shape.rank % len(_HATCHES)]
        area, key = (
            Polygon(shape.polygon, closed=True, zorder=1.6, label=f"_{shape.label}, hatch", **hatch),
            Patch(**hatch),
        )
        for patch in (area, key):
            patch.set_hatch_linewidth(0.5)
        ax.add_patch(area)
        keys.append(key)
    if shape.band is not None:
        band: dict[str, Any] = {"facecolor": (colour, 0.4), "linewidth": 0}
        ax.add_patch(Polygon(shape.band, closed=True, zorder=2.2, label=f"_{shape.label}, interval", **band))
        keys.append(Patch(**band))
    if shape.beneath is not None:
        dotted: dict[str, Any] = {"color": colour, "linewidth": 1.3, "linestyle": (0, (1, 1.4)), "zorder": 2.3}
        ax.plot(*shape.beneath.T, **dotted, clip_on=False, label=f"_{shape.label}, proved")
    segment = len(shape.curve) == 1
    # A segment lies on the decode axis, beneath the margin ray: wide enough to be seen beside it.
    width = 6.0 if segment else 1.3 if shape.proved else 1.5
    style: dict[str, Any] = {"color": colour, "linestyle": LINES[shape.rank % len(LINES)], "linewidth": width}
    style["solid_capstyle"] = "butt"
    outline = shape.polygon if segment else shape.curve
    if shape.band is not None:  # where the boundary runs in its band is not known: an outline, and no line within
        style["linewidth"] = 0.8
        outline = np.vstack([shape.band, shape.band[:1]])
    # Unclipped and above the axes' own lines: a piece may run along an axis.
    ax.plot(*outline.T, **style, zorder=3, clip_on=False, label=f"_{shape.label}")
    return (*keys, Line2D([], [], **style)), "\n".join(textwrap.wrap(_legend_text(shape, judgements), 40))


def _legend_text(shape: Shape, judgements: Mapping[str, Judgement]) -> str:
    """``sarathi and orca (STABLE, margin 13.5 %)``: what is known of the shape, and of the operating point in it."""
    words = [_judged(judgements[name]) for name in shape.schedulers if name in judgements]
    return shape.described(f" ({'; '.join(dict.fromkeys(words))})" if words else "")


def _judged(judgement: Judgement) -> str:
    verdict, load = judgement.verdict, judgement.load
    if load is None or verdict not in (Verdict.STABLE, Verdict.UNSTABLE):
        return verdict.value
    if verdict is Verdict.STABLE:
        return f"{verdict.value}, margin {_digits(100 * float(1 - load), 100)} %"
    return f"{verdict.value}, load {_digits(float(load), 1)}"


def _draw_bound(ax: Axes, bound: Sequence[RayPoint]) -> Key:
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.2}
    ax.plot(*_ends(bound).T, **style, zorder=2.5, clip_on=False, label="_bound")
    return Line2D([], [], **style), "R, tightened for these prompts"


def _ends(bound: Sequence[RayPoint]) -> Floats:
    """The curve of the bound; a single ray from the origin."""
    curve = ray_curve(bound)
    return curve if len(curve) > 1 else np.vstack([[0.0, 0.0], curve])


def _is_visible(bound: Sequence[RayPoint], region: StabilityRegion) -> bool:
    loads = [region.membership(point.prefill, point.decode).load for point in bound]
    return bool(min(loads) < _VISIBLE)


def _off_origin(vertices: Sequence[Vertex]) -> list[Vertex]:
    return [vertex for vertex in vertices if vertex.prefill or vertex.decode]


def _rates(vertices: Sequence[Vertex]) -> Floats:
    return np.array([(float(vertex.prefill), float(vertex.decode)) for vertex in vertices])


# ------------------------------------------------------------------------------------------------ operating point


class _Label(NamedTuple):
    """Texts to choose from, the preferred first, and the places in tokens/s they may stand at."""

    texts: tuple[str, ...]
    anchors: Floats
    weight: str = "normal"
    colour: str = INK


def _draw_point(ax: Axes, point: OperatingPoint) -> tuple[Key, _Label]:
    """Marker and margin ray; the key of the legend and the annotation to write."""
    from matplotlib.lines import Line2D

    load, rate = float(point.load), f"{float(point.rate):.4g} requests/s"
    place = np.array([float(point.prefill), float(point.decode)])
    edge = place / load
    far = load > _FAR
    end = 1.3 * edge if far else place
    ax.plot(
        *np.array([[0, 0], np.minimum(end, edge)]).T, color=POINT, linewidth=0.8, zorder=4, clip_on=False, label="_ray"
    )
    piece = np.array([end, edge])
    if far:
        ax.annotate(
            "",
            (end[0], end[1]),
            (edge[0], edge[1]),
            arrowprops={"arrowstyle": "-|>", "color": POINT, "linewidth": 2.4, "shrinkA": 0},
        )
        ax.plot(*piece.T, color=POINT, linewidth=0, label="_margin")
        key = Line2D([], [], color=POINT, linewidth=2.4, marker=">", markersize=6), f"towards {rate}"
    else:
        line: dict[str, Any] = {"color": POINT, "linewidth": 2.2, "solid_capstyle": "butt"}
        ax.plot(*piece.T, **line, zorder=4, clip_on=False, label="_margin")
        marker: dict[str, Any] = {"marker": "o", "markersize": 7.5, "markerfacecolor": "white", "color": POINT}
        marker |= {"markeredgewidth": 1.8, "linestyle": ""}
        ax.plot(*place, **marker, zorder=6, clip_on=False, label="_operating point")
        key = Line2D([], [], **marker), f"operating point, {rate}"
    along = np.array([0.5, 0.3, 0.7, 0.15, 0.85, 1.0, 0.0])[:, None]
    return key, _Label((_margin_text(point, far),), piece[0] + along * (piece[1] - piece[0]), "bold", POINT)


def _margin_text(point: OperatingPoint, far: bool) -> str:
    if point.load == 1:
        return "on the boundary of R"
    if point.load > 1:
        return f"load {_digits(float(point.load), 1)}, outside" + (", off the figure" if far else "")
    return f"margin to R {_digits(100 * float(point.margin), 100)} %"


def _digits(value: float, limit: float) -> str:
    """Three digits, or as many more as keep a value that is not at the limit from looking as if it were."""
    return next((text for n in range(3, 17) if float(text := f"{value:.{n}g}") != limit), f"{value}")


# ---------------------------------------------------------------------------------------------------------- texts


def _vertex_texts(vertex: Vertex) -> tuple[str, ...]:
    if vertex.label.endswith("'"):  # on an axis, dominated by the vertex of the same letter
        return (vertex.label,)
    batch, lasts = vertex.batch, f"{float(vertex.batch.seconds) * 1000:.5g} ms"
    name = f"{vertex.label} ({batch.prefill}, {batch.decode})"
    return f"{name} {lasts}", f"{name}\n{lasts}"


def most_separated(points: Floats, count: int) -> list[int]:
    """Indices of ``count`` points: the first, the last, then each time the one furthest from those taken.

    Distances are relative to the largest coordinates.
    """
    if len(points) <= count:
        return list(range(len(points)))
    scaled = points / points.max(axis=0)
    taken = [0, len(points) - 1]
    while len(taken) < count:
        gaps = np.linalg.norm(scaled[:, None] - scaled[taken][None], axis=2).min(axis=1)
        taken.append(int(np.argmax(gaps)))
    return sorted(taken)


class _Written(NamedTuple):
    """A label with the text chosen and its place; the anchor in tokens/s."""

    label: _Label
    text: str
    place: Place
    anchor: Floats


class _Layout(NamedTuple):
    """What came of one try: the limits of the axes, the labels written, how many found no place, and its cost."""

    limits: Floats
    written: list[_Written]
    missing: int
    cost: float


def _write(ax: Axes, keys: list[Key], labels: list[_Label]) -> None:
    """Legend and labels, with as much room beyond the shapes as they need; a label without a free place is left out."""
    figure = figure_of(ax)
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # the engine places the axes
    handles, texts = zip(*keys, strict=True)
    legend = ax.legend(handles, texts, loc="upper right", fontsize=SMALL, framealpha=0, borderaxespad=0.2)
    largest = np.vstack([np.asarray(line.get_xydata()) for line in ax.lines]).max(axis=0)
    tries = [
        (_EMPTY * (x * y - 1) + _BROKEN * form, form, np.array([x, y]) * largest) for x, y in _ROOMS for form in (0, 1)
    ]
    best = _Layout(largest, [], len(labels) + 1, np.inf)
    for cost, form, limits in sorted(tries, key=lambda each: each[:2]):
        if best.missing == 0 and cost >= best.cost:
            break
        best = min(best, _lay_out(ax, legend, labels, limits, form, cost), key=lambda each: (each.missing, each.cost))
    _set_limits(ax, best.limits)
    for written in best.written:
        _annotate(ax, written)


def _set_limits(ax: Axes, limits: Floats) -> None:
    ax.set_xlim(0, limits[0])
    ax.set_ylim(0, limits[1])


def _lay_out(ax: Axes, legend: Legend, labels: list[_Label], limits: Floats, form: int, cost: float) -> _Layout:
    """Try one size of the plane and one form of the texts, which by themselves cost ``cost``."""
    _set_limits(ax, limits)
    canvas = _canvas(ax)
    renderer = renderer_of(figure_of(ax))
    box = legend.get_window_extent(renderer)
    missing = 0 if canvas.is_free((box.x0, box.y0, box.x1, box.y1)) else len(labels) + 1
    canvas.add_box((box.x0, box.y0, box.x1, box.y1))
    written = []
    for label in labels:
        text = label.texts[min(form, len(label.texts) - 1)]
        size = text_size(figure_of(ax), text, fontsize=SMALL, weight=label.weight)
        place = canvas.place(ax.transData.transform(label.anchors), size)
        if place is None:
            missing += 1
        else:
            cost += place.cost
            written.append(_Written(label, text, place, ax.transData.inverted().transform(place.anchor)))
    return _Layout(limits, written, missing, cost)


def _canvas(ax: Axes) -> Canvas:
    """Everything drawn as a line or a marker, as obstacles; labels keep off the axes too."""
    point = figure_of(ax).dpi / 72
    frame = ax.get_window_extent(renderer_of(figure_of(ax)))
    canvas = Canvas((frame.x0 + 3 * point, frame.y0 + 3 * point, frame.x1, frame.y1), point)
    for line in ax.lines:
        points = ax.transData.transform(np.asarray(line.get_xydata()))
        if line.get_linestyle() != "None":
            canvas.add_line(points)
            continue
        reach = (line.get_markersize() / 2 + line.get_markeredgewidth() / 2) * point
        for x, y in points:
            canvas.add_box((x - reach, y - reach, x + reach, y + reach))
    return canvas


def _on_hatch(ax: Axes, place: Place) -> bool:
    x0, y0, x1, y1 = place.box
    corners = ax.transData.inverted().transform([(x0, y0), (x0, y1), (x1, y0), (x1, y1)])
    return any(patch.get_hatch() and patch.get_path().contains_points(corners).any() for patch in ax.patches)


def _annotate(ax: Axes, written: _Written) -> None:
    place, point = written.place, figure_of(ax).dpi / 72
    (x0, y0, x1, y1), (x, y) = place.box, place.anchor
    tie: dict[str, Any] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
    tie["relpos"] = ((place.nearest[0] - x0) / (x1 - x0), (place.nearest[1] - y0) / (y1 - y0))
    ax.annotate(
        written.text,
        (written.anchor[0], written.anchor[1]),
        ((x0 - x) / point, (y0 - y) / point),
        textcoords="offset points",
        ha="left",
        va="bottom",
        fontsize=SMALL,
        weight=written.label.weight,
        color=written.label.colour,
        linespacing=SPACING,
        zorder=7,
        bbox=_GROUND if _on_hatch(ax, place) else None,
        arrowprops=tie if place.tied else None,
    )
