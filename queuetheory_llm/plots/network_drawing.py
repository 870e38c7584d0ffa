"""The drawing of a network: boxes for stations, bars for the loads of classes, arrows for routes; axes in inches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.exact.rounding import load_text
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.plots.labels import Canvas
from queuetheory_llm.plots.network_layout import (
    HEAD,
    IN_A_ROW,
    Box,
    Curve,
    Link,
    Stub,
    links_of,
    sampled,
    spline,
    station_columns,
)
from queuetheory_llm.plots.style import (
    EDGE,
    GREY,
    INK,
    LIGHT,
    PALETTE,
    POINT,
    SMALL,
    TINY,
    figure_of,
    paler,
    renderer_of,
    text_size,
)
from queuetheory_llm.stability.networks import NetworkAnswer
from queuetheory_llm.stability.virtual_stations import VirtualStation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import AbstractPathEffect

#: More classes are not named, and routes then join stations.
MOST_NAMED = 24

# Lengths of the drawing, in inches.
_CELL, _THIN = 0.30, 0.07  # a class in a box, a class without a name
_PAD, _NARROW, _WIDE = 0.07, 1.15, 2.3
_GAP, _ABOVE = 0.85, 0.34  # between columns, and between the boxes of a column
_MARGIN = 0.72  # for them and their rates, left and right
_LANE = 0.15  # between routes that pass above or below the boxes

#: Of the time that a station works.
FILL = paler(PALETTE[0], 0.45)
_HATCH = "/////"
_VIOLATED = PALETTE[1]


def violated_stations(answer: NetworkAnswer) -> list[VirtualStation]:
    """Virtual stations with a load above 1."""
    return [each for each in answer.virtual_stations if each.load > 1]


@attrs.define
class NetworkDrawing:
    """Boxes and arrows of a network in inches."""

    answer: NetworkAnswer
    boxes: dict[int, Box] = attrs.field(init=False)
    columns: tuple[tuple[int, ...], ...] = attrs.field(init=False)
    width: float = attrs.field(init=False)
    height: float = attrs.field(init=False)
    lanes: dict[Link, float] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Lay out the boxes, and count the lanes above and below them."""
        if self.circular:
            self._lay_out_circle()
        else:
            self.columns = station_columns(self.model)
            self._lay_out_columns()

    @property
    def model(self) -> FluidModel:
        """What is drawn."""
        return self.answer.model

    @property
    def named(self) -> bool:
        """Whether classes have names and arrows of their own."""
        return len(self.model.classes) <= MOST_NAMED

    @property
    def circular(self) -> bool:
        """Whether stations stand in a circle: many of them feed one another."""
        groups = map(len, self.answer.topology.groups)
        return not self.named and (max(groups) > IN_A_ROW or len(self.answer.topology.groups) > 8)

    @cached_property
    def loads(self) -> list[Fraction]:
        """Of each class, seconds of service a second."""
        return [rate * mean for rate, mean in zip(self.answer.traffic.rates, self.model.service, strict=True)]

    @cached_property
    def violated(self) -> set[str]:
        """Names of the classes of virtual stations with a load above 1."""
        return {name for each in violated_stations(self.answer) for name in each.classes}

    @cached_property
    def links(self) -> list[Link]:
        """Arrows between classes; where these are not named, between stations."""
        found = links_of(self.model)
        if self.named:
            return found
        flows: dict[tuple[int, int], Fraction] = {}
        for link in found:
            ends = self.model.station[link.source], self.model.station[link.to]
            if ends[0] != ends[1]:
                flow = self.answer.traffic.rates[link.source] * link.share
                flows[ends] = flows.get(ends, Fraction(0)) + flow
        return [Link(source=source, to=to, share=flow) for (source, to), flow in flows.items()]

    @cached_property
    def most(self) -> Fraction:
        """The largest share, or flow, of an arrow."""
        return max((link.share for link in self.links), default=Fraction(1))

    @property
    def _shared(self) -> list[Link]:
        """Arrows that a part of the tasks takes."""
        return [link for link in self.links if link.share != 1 and not link.join]

    @cached_property
    def _between(self) -> set[int]:
        """Classes that fork now and then."""
        forks, plain = ({link.source for link in self.links if link.fork is asked} for asked in (True, False))
        return forks & plain

    @property
    def signs(self) -> str:
        """What the marks mean that are drawn."""
        parts = ["bars: share of its time that a station works for a class"]
        if not self.named:
            return f"{parts[0]}; arrows: the more tasks a second, the wider"
        if self._shared:
            parts.append("number at an arrow: share of the tasks that take it")
        if any(link.fork for link in self.links):
            parts.append("filled diamond: fork, a task goes to all")
        if any(link.join for link in self.links):
            parts.append("open diamond: join, waits for its siblings")
        return "; ".join(parts)

    # ------------------------------------------------------------------------------------------------------- places

    def _box_size(self) -> tuple[float, float]:
        """Width of the boxes, height of a cell."""
        from matplotlib.figure import Figure

        probe = Figure()

        def inches(text: str, size: float, **style: Any) -> float:
            return text_size(probe, text, fontsize=size, **style)[0] / probe.dpi

        heads = [
            inches(name, SMALL, fontweight="bold")
            + inches(f"load {load_text(load, 3)}", SMALL, fontweight="bold")
            + 0.22
            for name, load in zip(self.model.stations, self.answer.traffic.loads, strict=True)
        ]
        orders = [inches(self._order(s), TINY) for s in range(len(self.model.stations))]
        cells = [
            inches(name, SMALL) + inches(load_text(load, 3), TINY) + 0.22
            for name, load in zip(self.model.classes, self.loads, strict=True)
        ]
        widest = max(*heads, *orders, *(cells if self.named else ())) + 2 * _PAD
        return min(max(widest, _NARROW), _WIDE), _CELL if self.named else _THIN

    def _box(self, s: int, x: float, top: float, size: tuple[float, float]) -> Box:
        order = self.model.priority[s]
        classes = tuple(self.model.at(s)) if order is None or self.answer.policy != "file" else order
        height = HEAD + len(classes) * size[1] + _PAD
        return Box(station=s, x=x, y=top - height, width=size[0], height=height, cell=size[1], classes=classes)

    def _lay_out_columns(self) -> None:
        size = self._box_size()
        place = {s: c for c, column in enumerate(self.columns) for s in column}
        x, boxes = _MARGIN, {}
        for column in self.columns:
            heights = [self._box(s, 0, 0, size).height for s in column]
            top = (sum(heights) + _ABOVE * (len(column) - 1)) / 2
            for s, height in zip(column, heights, strict=True):
                boxes[s] = self._box(s, x, top, size)
                top -= height + _ABOVE
            x += size[0] + _GAP
        high, low = max(box.top for box in boxes.values()), min(box.y for box in boxes.values())
        for link in self.links:
            step = place[self._station(link.to)] - place[self._station(link.source)]
            if step > 1:
                high = self.lanes[link] = high + _LANE
            elif step < -1:
                low = self.lanes[link] = low - _LANE
        self.width, self.height = x - _GAP + _MARGIN, high - low + 2 * EDGE
        self._move(boxes, EDGE - low)

    def _lay_out_circle(self) -> None:
        import networkx as nx

        size = self._box_size()
        stations = range(len(self.model.stations))
        boxes = {s: self._box(s, 0, 0, size) for s in stations}
        tall = max(box.height for box in boxes.values())
        across = max(2.1 * size[0], len(boxes) * (size[0] + 0.35) / 5.2)
        up = max(1.7 * tall, len(boxes) * (tall + 0.35) / 5.2)
        for s, (x, y) in nx.circular_layout(nx.path_graph(len(boxes))).items():
            turned = (y, x)  # the first station at the top, the next to its right
            boxes[s] = attrs.evolve(
                boxes[s],
                x=across * (1 + turned[0]),
                y=up * (1 + turned[1]) + (tall - boxes[s].height) / 2,
            )
        left = min(box.x for box in boxes.values())
        self.width = max(box.right for box in boxes.values()) - left + 2 * EDGE
        low, high = min(box.y for box in boxes.values()), max(box.top for box in boxes.values())
        self.columns = ()
        self.height = high - low + 2 * EDGE
        self._move({s: attrs.evolve(box, x=box.x - left + EDGE) for s, box in boxes.items()}, EDGE - low)

    def _move(self, boxes: dict[int, Box], up: float) -> None:
        self.boxes = {s: attrs.evolve(box, y=box.y + up) for s, box in boxes.items()}
        self.lanes = {link: lane + up for link, lane in self.lanes.items()}

    def _station(self, end: int) -> int:
        """Of a class, or of what stands for one."""
        return self.model.station[end] if self.named else end

    def _order(self, s: int) -> str:
        """How a station chooses."""
        if self.answer.policy == "back-pressure":
            return "back-pressure"
        if len(self.model.at(s)) == 1:
            return "one class"
        if self.answer.policy == "any":
            return "in any order"
        return "first come, first served" if self.model.priority[s] is None else "highest first"

    # ------------------------------------------------------------------------------------------------------- drawing

    def draw(self, ax: Axes) -> None:
        """Draw on axes whose units are inches."""
        outlines = {s: self._draw_box(ax, box) for s, box in self.boxes.items()}
        if self.circular:
            self._draw_flows(ax, outlines)
            return
        curves = {link: self._curve(link) for link in self.links}
        for link, curve in curves.items():
            self._draw_link(ax, link, curve)
        if not self.named:
            return
        stubs = list(self._stubs())
        for stub in stubs:
            _draw_arrow(ax, stub.curve)
        texts = [(stub.text, stub.anchors) for stub in stubs if stub.text]
        texts += [(load_text(link.share, 3), _near_source(curves[link])) for link in self._shared]
        _write_labels(ax, texts, self.boxes.values(), [*curves.values(), *(stub.curve for stub in stubs)])

    def _draw_box(self, ax: Axes, box: Box) -> Rectangle:
        from matplotlib.patches import Rectangle

        load = self.answer.traffic.loads[box.station]
        over = load > 1
        edge = POINT if over else INK
        outline = Rectangle((box.x, box.y), box.width, box.height, facecolor="white", edgecolor=edge, zorder=3)
        ax.add_patch(outline)
        style: dict[str, Any] = {"fontsize": SMALL, "va": "center", "fontweight": "bold", "color": edge, "zorder": 6}
        middle = box.top - HEAD * 0.33
        _fitted(ax, box.x + _PAD, middle, self.model.stations[box.station], box.width * 0.72, **style)
        ax.text(box.right - _PAD, middle, f"load {load_text(load, 3)}", ha="right", **style)
        ax.text(
            box.x + _PAD,
            box.top - HEAD * 0.74,
            self._order(box.station),
            fontsize=TINY,
            color=GREY,
            va="center",
            zorder=6,
        )
        for k in box.classes:
            self._draw_class(ax, box, k)
        return outline

    def _draw_class(self, ax: Axes, box: Box, k: int) -> None:
        """A cell as wide as all the time of the station, filled as far as the class takes it."""
        from matplotlib.patches import Rectangle

        low, width, name = box.floor(k), box.width - 2 * _PAD, self.model.classes[k]
        inner = box.cell - (0.045 if self.named else 0.02)
        share = min(1.0, float(self.loads[k]))
        bad = name in self.violated
        ax.add_patch(Rectangle((box.x + _PAD, low), width, inner, facecolor=LIGHT, linewidth=0, zorder=4))
        ax.add_patch(
            Rectangle(
                (box.x + _PAD, low),
                width * share,
                inner,
                facecolor=paler(_VIOLATED, 0.45) if bad else FILL,
                edgecolor=_VIOLATED if bad else FILL,
                hatch=_HATCH if bad else None,
                linewidth=0.6,
                label=f"_load of {name}",
                zorder=4,
            )
        )
        if self.named:
            middle = low + inner / 2
            halo = [_halo()]
            _fitted(
                ax, box.x + _PAD + 0.05, middle, name, 0.75 * width,
                fontsize=SMALL, va="center", color=INK, zorder=6, path_effects=halo,
            )  # fmt: skip
            ax.text(
                box.right - _PAD - 0.04, middle, load_text(self.loads[k], 3),
                fontsize=TINY, ha="right", va="center", color=INK, zorder=6, path_effects=halo,
            )  # fmt: skip

    def _draw_flows(self, ax: Axes, outlines: dict[int, Rectangle]) -> None:
        """Arrows between stations in a circle, the wider the more tasks pass."""
        from matplotlib.patches import FancyArrowPatch

        for link in sorted(self.links, key=lambda each: each.share):
            ends = [self.boxes[s] for s in (link.source, link.to)]
            (x0, y0), (x1, y1) = ((box.x + box.width / 2, box.y + box.height / 2) for box in ends)
            size = float(link.share / self.most)
            ax.add_patch(
                FancyArrowPatch(
                    (x0, y0), (x1, y1),
                    connectionstyle="arc3,rad=0.14", arrowstyle="-|>", mutation_scale=5 + 5 * size,
                    linewidth=0.4 + 2.0 * size, color=GREY, alpha=0.35 + 0.5 * size, shrinkA=0, shrinkB=0, zorder=2,
                    patchA=outlines[link.source], patchB=outlines[link.to],
                )
            )  # fmt: skip

    def _draw_link(self, ax: Axes, link: Link, curve: Curve) -> None:
        _draw_arrow(ax, curve, *(() if self.named else (float(link.share / self.most),)))
        for end, drawn, fill in ((curve[0], link.fork, INK), (curve[-1], link.join, "white")):
            if drawn:
                ax.plot(
                    *end, marker="D", markersize=4.5, color=INK, markerfacecolor=fill, markeredgewidth=0.9, zorder=7
                )

    # -------------------------------------------------------------------------------------------------------- arrows

    def _port(self, end: int, *, out: bool, fork: bool = False) -> float:
        """The height at which arrows leave a class, or come in; a fork is below what leaves without one."""
        if self.named:
            share = 0.62 if not out else 0.10 if fork and end in self._between else 0.30
            return self.boxes[self.model.station[end]].floor(end) + share * _CELL
        box = self.boxes[end]
        return box.y + (0.40 if out else 0.60) * box.height

    def _curve(self, link: Link) -> Curve:
        """From the side of one box to the side of another; around the boxes between."""
        source, to = self.boxes[self._station(link.source)], self.boxes[self._station(link.to)]
        y0, y1 = self._port(link.source, out=True, fork=link.fork), self._port(link.to, out=False)
        if source.x == to.x:
            bulge = _GAP * min(0.75, 0.32 + 0.10 * abs(y0 - y1))
            return spline(source.right, y0, to.right, y1, source.right + bulge, to.right + bulge)
        ahead = to.x > source.x
        x0, x1, way = (source.right, to.x, 1) if ahead else (source.x, to.right, -1)
        if link not in self.lanes:
            middle = (x0 + x1) / 2
            return spline(x0, y0, x1, y1, middle, middle)
        lane, turn = self.lanes[link], way * 0.55 * _GAP
        first = spline(x0, y0, x0 + 2 * turn, lane, x0 + turn, x0 + turn)
        last = spline(x1 - 2 * turn, lane, x1, y1, x1 - turn, x1 - turn)
        straight = np.linspace(first[-1], last[0], 4)[1:-1]
        return np.concatenate([first, straight, last])

    def _stubs(self) -> Iterator[Stub]:
        """Arrows from the outside, on the side away from where the tasks go next, and to the outside, ahead."""
        waiting = {link.source for link in self.links if link.join}
        for k, row in enumerate(self.model.routing):
            box = self.boxes[self.model.station[k]]
            onward = [self.boxes[self.model.station[to]].x - box.x for to, _ in row]
            back = [self.boxes[self.model.station[source]].x - box.x for source, _ in self.model.predecessors[k]]
            if self.model.arrival[k]:
                way = -1 if onward and max(onward) < 0 else 1
                yield Stub.into(box, self._port(k, out=False), way, f"{load_text(self.model.arrival[k], 4)}/s")
            leaves = 1 - sum((share for _, share in row), Fraction(0))
            if leaves > 0 and k not in waiting:
                way = -1 if back and min(back) > 0 else 1
                yield Stub.out_of(box, self._port(k, out=True), way, "" if leaves == 1 else load_text(leaves, 3))


def _near_source(curve: Curve) -> Floats:
    """Points of the first half of an arrow, where arrows to the same class are still apart."""
    points = sampled(curve)
    return points[2 : max(6, len(points) // 3)]


def _draw_arrow(ax: Axes, curve: Curve, size: float = 0.35) -> None:
    """An arrow along a curve, the wider the nearer ``size`` is to 1."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    codes = [Path.MOVETO, *[Path.CURVE4] * (len(curve) - 1)]
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 6 + 6 * size, "linewidth": 0.5 + 1.2 * size}
    ax.add_patch(FancyArrowPatch(path=Path(curve, codes), color=INK, fill=False, zorder=5, **style))


def _write_labels(ax: Axes, texts: Sequence[tuple[str, Floats]], boxes: Iterable[Box], curves: Sequence[Curve]) -> None:
    """Each text near one of its anchors, where it covers nothing; where there is no such place, on its arrow."""
    figure = figure_of(ax)
    ax.apply_aspect()
    to_pixels = ax.transData
    frame = ax.get_window_extent(renderer_of(figure))
    canvas = Canvas((frame.x0, frame.y0, frame.x1, frame.y1), figure.dpi / 72)
    for box in boxes:
        (x0, y0), (x1, y1) = to_pixels.transform([(box.x, box.y), (box.right, box.top)])
        canvas.add_box((x0, y0, x1, y1))
    for curve in curves:
        canvas.add_line(to_pixels.transform(sampled(curve)))
    for text, anchors in texts:
        width, height = text_size(figure, text, fontsize=TINY)
        pixels = to_pixels.transform(anchors)
        middle = pixels[len(pixels) // 2]
        if (beyond := _beyond(pixels, (width, height), figure.dpi / 72)) is not None and canvas.is_free(beyond):
            canvas.add_box(beyond)
            middle = np.array(((beyond[0] + beyond[2]) / 2, (beyond[1] + beyond[3]) / 2))
        elif (place := canvas.place(pixels, (width, height))) is not None:
            middle = np.array(((place.box[0] + place.box[2]) / 2, (place.box[1] + place.box[3]) / 2))
        x, y = map(float, to_pixels.inverted().transform(middle))
        ax.text(x, y, text, fontsize=TINY, color=INK, ha="center", va="center", zorder=8, path_effects=[_halo()])


def _beyond(anchors: Floats, size: tuple[float, float], point: float) -> tuple[float, float, float, float] | None:
    """The box in line with a stub, past its free end: anchors are a point of the stub and that end."""
    if len(anchors) != 2:
        return None
    (before, y), (end, _) = anchors
    near = end + (4 * point if end > before else -4 * point)
    far = near + (size[0] if end > before else -size[0])
    return float(min(near, far)), float(y - size[1] / 2), float(max(near, far)), float(y + size[1] / 2)


def _halo() -> AbstractPathEffect:
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=1.8, foreground="white")


def _fitted(ax: Axes, x: float, y: float, text: str, width: float, **style: Any) -> None:
    """A text no wider than ``width`` inches, cut where it is."""
    figure = figure_of(ax)
    font = {key: value for key, value in style.items() if key in ("fontsize", "fontweight")}
    kept = text
    while len(kept) > 2 and text_size(figure, kept, **font)[0] > width * figure.dpi:
        kept = f"{kept.removesuffix('…')[:-1]}…"
    ax.text(x, y, kept, **style)
