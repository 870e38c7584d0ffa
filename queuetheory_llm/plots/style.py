"""What the figures share: colours, line styles, sizes, texts that fit, and how a figure becomes bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO
from typing import TYPE_CHECKING, Any

from queuetheory_llm.exact.numbers import Real

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

#: Okabe and Ito's colours, told apart by colour-blind readers; their yellow is left out, too light for a line.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: The second channel, for prints without colour. Five and six have no common factor: thirty pairs.
LINES: tuple[Any, ...] = (
    "solid",
    (0, (7, 1.6)),
    (0, (6, 1.6, 1.2, 1.6)),
    (0, (1.2, 1.2)),
    (0, (4, 1.4, 1.2, 1.4, 1.2, 1.4)),
)
INK = "#222222"
GREY = "#6B6B6B"
LIGHT = "#F1F1F1"
#: Of what is said of the operating point; no scheduler has it.
POINT = "#A50026"

#: Font sizes in points.
TITLE, TEXT, SMALL, TINY = 9.5, 9.0, 8.0, 7.0
SPACING = 1.2
#: Inches kept free at the edges of a figure.
EDGE = 0.12

_STAMPS: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def figure_bytes(figure: Figure, format: str) -> bytes:
    """The figure as a file; the same for the same figure: no date, no random identifiers.

    Parameters
    ----------
    figure : Figure
    format : {"svg", "png", "pdf"}
    """
    from matplotlib import rc_context

    buffer = BytesIO()
    with rc_context({"svg.hashsalt": "qt-llm"}):
        figure.savefig(buffer, format=format, dpi=200, metadata=_STAMPS[format])
    return buffer.getvalue()


def renderer_of(figure: Figure) -> RendererAgg:
    """A renderer to measure texts with, in pixels of the figure's own resolution."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    renderer: RendererAgg = canvas.get_renderer()  # type: ignore[no-untyped-call]
    return renderer


def figure_of(artist: Artist) -> Figure:
    """The figure an artist is drawn on, whatever subfigures lie between."""
    figure = artist.get_figure(root=True)
    assert figure is not None
    return figure


def framed_axes(width: float, height: float, *, title: str, subtitle: str, caption: str) -> Axes:
    """Axes of a new figure with a title and a subtitle above and a grey caption below, all at the left edge.

    Parameters
    ----------
    width, height : float
        Inches.
    title, subtitle, caption : str
        Broken into lines where they do not fit; the axes give way. An empty one takes no room. A subtitle may have
        several lines.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    top = height - EDGE
    for text, size, colour in ((title, TITLE, INK), *((line, SMALL, GREY) for line in subtitle.split("\n"))):
        top -= _line_of(figure, text, EDGE, top, size=size, color=colour, va="top")
    bottom = EDGE + _line_of(figure, caption, EDGE, EDGE, size=TINY, color=GREY, va="bottom")
    left, right, room_below, gap = 0.78, 0.30, 0.50, 0.10
    lower = bottom + room_below
    return figure.add_axes(
        (left / width, lower / height, 1 - (left + right) / width, (top - gap - lower) / height), facecolor="white"
    )


def on_axes(ax: Axes | None, width: float, height: float, *, title: str, subtitle: str = "", caption: str = "") -> Axes:
    """The axes given, under the title alone; where there are none, those of a new figure with all its texts.

    Parameters
    ----------
    ax : Axes or None
    width, height : float
        Inches, of a new figure.
    title, subtitle, caption : str
        See `framed_axes`.
    """
    if ax is None:
        return framed_axes(width, height, title=title, subtitle=subtitle, caption=caption)
    ax.set_title(title, fontsize=TITLE, color=INK, loc="left", wrap=True)
    return ax


def _line_of(figure: Figure, text: str, x: float, y: float, **style: Any) -> float:
    """Write a text at (x, y) inches, broken to the width of the figure; its height in inches, spacing included."""
    if not text:
        return 0.0
    width, height = figure.get_size_inches()
    drawn = figure.text(x / width, y / height, text, ha="left", linespacing=SPACING, **style)
    fit_width(drawn, (width - 2 * x) * figure.dpi)
    return float(drawn.get_window_extent(renderer_of(figure)).height / figure.dpi + 0.05)


def make_room(*panels: Axes) -> None:
    """Move the left sides of panels, one above the other, until all their texts are on the figure; labels in line."""
    figure = figure_of(panels[0])
    figure.align_ylabels(panels)
    renderer = renderer_of(figure)
    boxes = [ax.yaxis.get_tightbbox(renderer) for ax in panels]
    reach = min(box.x0 for box in boxes if box is not None)
    missing = max(0.0, EDGE - reach / figure.dpi) / figure.get_size_inches()[0]
    for ax in panels:
        place = ax.get_position()
        ax.set_position((place.x0 + missing, place.y0, place.width - missing, place.height))


def fit_width(drawn: Text, pixels: float) -> None:
    """Break a text into lines no wider than ``pixels``."""
    text = drawn.get_text()
    renderer = renderer_of(figure_of(drawn))
    columns = len(text)
    while columns > 8 and drawn.get_window_extent(renderer).width > pixels:
        columns = min(columns - 1, int(columns * pixels / drawn.get_window_extent(renderer).width))
        drawn.set_text("\n".join(textwrap.wrap(text, columns)))


def text_size(figure: Figure, text: str, **style: Any) -> tuple[float, float]:
    """Width and height of a text in pixels of the figure."""
    from matplotlib.text import Text

    probe = Text(0, 0, text, linespacing=SPACING, **style)
    probe.set_figure(figure)
    extent = probe.get_window_extent(renderer_of(figure))
    return float(extent.width), float(extent.height)


def plain_axes(ax: Axes) -> None:
    """Only the two spines that carry the ticks; small tick labels, thousands apart."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=SMALL)


def paler(colour: str, strength: float = 0.55) -> tuple[float, float, float]:
    """The colour mixed with white, opaque: SVG hatches have no opacity of their own."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def number_text(value: float) -> str:
    """A tick label: ``3,000``, ``0.5``."""
    return f"{value:,.6g}"


def short(value: Real) -> str:
    """A quotient of small numbers as it is, others to four digits or to the unit.

    >>> short(Fraction(27, 8)), short(Fraction(153, 37)), short(Fraction(1234567, 10))
    ('27/8', '4.135', '123,457')
    """
    size = abs(float(value))
    if 1e4 <= size < 1e9:
        return f"{float(value):,.0f}"
    return str(value) if isinstance(value, Fraction) and len(str(value)) <= 4 else f"{float(value):.4g}"


def legend_above(ax: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend above the axes, in as few rows as fit; the axes give way."""
    once = dict(zip(labels, handles, strict=True))
    figure = figure_of(ax)
    renderer = renderer_of(figure)
    place, width = ax.get_position(), ax.get_window_extent(renderer).width
    for columns in range(len(once), 0, -1):
        legend = ax.legend(
            once.values(),
            once.keys(),
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=columns,
            fontsize=SMALL,
            frameon=False,
            borderaxespad=0,
            borderpad=0.1,
            handlelength=2.6,
            columnspacing=1.4,
        )
        box = legend.get_window_extent(renderer)
        if box.width <= width:
            break
    lost = box.height / figure.bbox.height
    ax.set_position((place.x0, place.y0, place.width, place.height - lost))
