"""Figure of an exact chain: the law of the requests present beside a simulation, its tail, the batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.exact.rounding import upper_limit, with_bound
from queuetheory_llm.markov.chain import ExactChain
from queuetheory_llm.plots.style import (
    GREY,
    INK,
    LIGHT,
    LINES,
    PALETTE,
    SMALL,
    TEXT,
    TITLE,
    figure_bytes,
    figure_of,
    framed_axes,
    make_room,
    number_text,
    plain_axes,
)
from queuetheory_llm.plots.words import engine_line
from queuetheory_llm.simulation.present import Present, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (6.5, 5.6)  # inches
_LOWER, _GAP, _BETWEEN = 0.40, 0.72, 0.82  # share of the height of the lower panels; inches above and between them
_EXACT, _TAIL, _BATCH = PALETTE[0], PALETTE[1], PALETTE[2]
_BODY = 1 - 1e-3  # of the law is shown in the upper panel, the rest in the tail
_SEPARATE = 45  # numbers of requests drawn one by one; more are a curve
_FEWEST = 5  # numbers of requests an axis shows at least
_DEEPEST = 1e-9  # tail drawn
_UNBENT = 1e3  # times the refused share: less of the tail is bent by the cut, more by a few per cent at most
_BESIDE = 3.0  # times the tail: where its slope is drawn
_TOP = 1.3  # the axis relative to the largest value: the legend stands above


def render_chain(chain: ExactChain, format: str, *, present: Present | None = None) -> bytes:
    """The figure of `draw_chain` as a file, the same for the same chain.

    Parameters
    ----------
    chain : ExactChain
    format : {"svg", "png", "pdf"}
    present : Present, optional
        Simulated runs to set beside it.
    """
    return figure_bytes(figure_of(draw_chain(chain, present=present)), format)


def draw_chain(chain: ExactChain, ax: Axes | None = None, *, present: Present | None = None) -> Axes:
    """The stationary law of the requests present, and simulated shares of time with 95 % intervals over the runs.

    Parameters
    ----------
    chain : ExactChain
    ax : Axes, optional
        By default the upper axes of a new figure with title and caption, above the tail of the law on a logarithmic
        axis and the law of the tokens of a batch.
    present : Present, optional
        Simulated runs.

    Returns
    -------
    Axes
        Horizontal number of requests, vertical probability.
    """
    if ax is not None:
        ax.set_title(_title(chain), fontsize=TITLE, color=INK, loc="left")
        _draw_law(ax, chain, present)
        return ax
    upper = framed_axes(*_SIZE, title=_title(chain), subtitle=_subtitle(chain, present), caption=_caption(chain))
    figure, place = figure_of(upper), upper.get_position()
    width, height = figure.get_size_inches()
    low = _LOWER * place.height
    half = (place.width - _BETWEEN / width) / 2
    tail = figure.add_axes((place.x0, place.y0, half, low), facecolor="white")
    batches = figure.add_axes((place.x1 - half, place.y0, half, low), facecolor="white")
    start = place.y0 + low + _GAP / height
    upper.set_position((place.x0, start, place.width, place.y1 - start))
    _draw_law(upper, chain, present)
    _draw_tail(tail, chain, present)
    _draw_batches(batches, chain)
    make_room(upper, tail)
    return upper


# ----------------------------------------------------------------------------------------------------------- the panels


def _draw_law(ax: Axes, chain: ExactChain, present: Present | None) -> None:
    law = chain.requests_law
    last = max(int(np.searchsorted(np.cumsum(law), _BODY)), _FEWEST)
    law = _first(law, last)
    top = float(law.max())
    if present is not None:
        shares, reach = _first(present.law, last), _first(spread(present.laws), last)
        top = max(top, float((shares + reach).max()))
        _draw_simulated(ax, shares, reach, _runs(present))
    if law.size <= _SEPARATE:
        ax.plot(law, color=_EXACT, linewidth=0.8, marker="o", markersize=4, label="exact", zorder=3)
    else:
        ax.plot(law, color=_EXACT, linewidth=1.5, label="exact", zorder=3)
    mean = chain.means.requests
    if mean <= last:
        ax.axvline(mean, ymax=1 / _TOP, color=GREY, linewidth=0.8, linestyle=LINES[3], label=f"mean {mean:.4g}")
    _probabilities(ax, top)
    ax.legend(loc="upper right", fontsize=SMALL, frameon=False, ncols=3, borderaxespad=0.2)
    _finish(ax, last, f"requests present, {_where(chain)}")


def _draw_simulated(ax: Axes, shares: Floats, reach: Floats, label: str) -> None:
    """Bars with an interval each; where they are many, the band of the intervals."""
    counts = np.arange(shares.size)
    low, high = np.maximum(shares - reach, 0.0), shares + reach
    if shares.size <= _SEPARATE:
        ax.bar(counts, shares, width=0.8, color=LIGHT, edgecolor=GREY, linewidth=0.5, label=label)
        bars = np.array([shares - low, high - shares])
        ax.errorbar(counts, shares, bars, fmt="none", ecolor=GREY, elinewidth=0.8, capsize=2, zorder=2)
    else:
        ax.fill_between(counts, low, high, color=GREY, alpha=0.35, linewidth=0, label=label)


def _draw_tail(ax: Axes, chain: ExactChain, present: Present | None) -> None:
    """P(more than n present), as far as the cut lets it be known."""
    beyond = _beyond(chain.requests_law)
    floor = max(_DEEPEST, _UNBENT * chain.truncation.mass)
    known = np.flatnonzero(beyond > floor)
    last = max(int(known[-1]) if known.size else 0, _FEWEST)
    if present is not None:
        _draw_simulated_tail(ax, present, last)
    shown = beyond[: last + 1]
    drawn = np.where(shown > floor, shown, np.nan)
    marker = "o" if last <= _SEPARATE else None
    ax.plot(drawn, color=_EXACT, linewidth=1.2, marker=marker, markersize=3, label="exact", zorder=3)
    if chain.tail is not None:
        counts = np.array([chain.tail.start, chain.tail.end])
        line = beyond[chain.tail.end] * chain.tail.decay ** (counts - chain.tail.end)
        label = f"slope: × {chain.tail.decay:.3g} a request"  # beside the curve, which would cover it
        ax.plot(counts, _BESIDE * line, color=_TAIL, linewidth=1.2, linestyle=LINES[1], label=label)
    ax.set_yscale("log")
    ax.set_ylim(floor, 2.0)
    ax.set_ylabel("P(more than n)", fontsize=TEXT)
    ax.legend(loc="lower left", fontsize=SMALL, frameon=False, borderaxespad=0.2)
    _finish(ax, last, "n, requests")


def _draw_simulated_tail(ax: Axes, present: Present, last: int) -> None:
    """Means over the runs with their intervals, where all runs have seen as many requests."""
    every = present.beyond
    seen = np.flatnonzero((every > 0).all(axis=0))
    if not seen.size:
        return
    every = every[:, : min(int(seen[-1]), last) + 1]
    mean, reach = every.mean(axis=0), spread(every)
    low = np.maximum(mean - reach, every.min(axis=0) / 2)  # an interval that reaches 0 has no end on this axis
    counts = np.arange(mean.size)
    ax.fill_between(counts, low, mean + reach, color=GREY, alpha=0.35, linewidth=0, label="simulated, 95 %")


def _draw_batches(ax: Axes, chain: ExactChain) -> None:
    """The law of the tokens of a batch."""
    law = chain.batch_law
    first = int(np.flatnonzero(law > 0)[0])
    counts = np.arange(first, law.size)
    if counts.size <= _SEPARATE:
        ax.bar(counts, law[first:], width=0.6, color=_BATCH)
    else:
        ax.vlines(counts, 0, law[first:], color=_BATCH, linewidth=max(0.5, 140 / counts.size))
    ax.axvline(
        chain.mean_batch_tokens,
        ymax=1 / _TOP,
        color=GREY,
        linewidth=0.8,
        linestyle=LINES[3],
        label=f"mean {chain.mean_batch_tokens:.4g}",
    )
    plain_axes(ax)
    if law.size - 1 <= 12:
        ax.set_xticks(counts)
    ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    _probabilities(ax, float(law.max()))
    ax.set_xlabel("tokens of a batch", fontsize=TEXT)
    ax.legend(loc="upper left", fontsize=SMALL, frameon=False, borderaxespad=0.2)


def _probabilities(ax: Axes, top: float) -> None:
    """The vertical axis of a law whose largest entry is ``top``."""
    ax.set_ylim(0, _TOP * top)
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= min(1.0, _TOP * top)])
    ax.set_ylabel("probability", fontsize=TEXT)


def _finish(ax: Axes, last: int, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    plain_axes(ax)
    ax.set_xlim(-0.6 if last <= _SEPARATE else 0, last + (0.6 if last <= _SEPARATE else 0))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    ax.xaxis.set_major_formatter(lambda value, _: number_text(value))
    ax.set_xlabel(label, fontsize=TEXT)


def _first(law: Floats, last: int) -> Floats:
    """Entries 0..last, zeros where there are none."""
    return np.pad(law[: last + 1], (0, max(0, last + 1 - law.size)))


def _beyond(law: Floats) -> Floats:
    """P(more than n), n = 0, 1, ..., each to a share of itself."""
    return np.asarray(np.append(np.cumsum(law[::-1])[::-1][1:], 0.0))


# ------------------------------------------------------------------------------------------------------------ the words


def _where(chain: ExactChain) -> str:
    return f"at {chain.counted_at}" if chain.slotted else f"over {chain.counted_at}"


def _runs(present: Present) -> str:
    return f"simulated, 95 % over {present.runs} runs"


def _title(chain: ExactChain) -> str:
    judgement = chain.judgement
    ground = "" if judgement.basis is None else f" by {judgement.basis.value}"
    return f"{chain.scheduler}: {judgement.verdict.value}{ground}, {chain.means.requests:.4g} requests on average"


def _subtitle(chain: ExactChain, present: Present | None) -> str:
    return "\n".join(filter(None, [chain.title, engine_line(chain.engine), _agreement(present)]))


def _agreement(present: Present | None) -> str:
    if present is None:
        return ""
    low, high = present.interval(0.95)
    return (
        f"simulated {present.mean:.5g} requests, 95 % interval {low:.5g} to {high:.5g}; {present.runs} runs of "
        f"{present.seconds:g} s"
    )


def _caption(chain: ExactChain) -> str:
    cut = chain.truncation
    mean, error = with_bound(chain.means.requests, cut.bounds["requests"])
    return (
        f"Exact chain of {cut.states:,} states, cut at {cut.level:,.6g} tokens, where a request is refused at "
        f"{upper_limit(cut.mass, 2)} of the boundaries: the mean is {mean}, wrong by at most {error}."
    )
