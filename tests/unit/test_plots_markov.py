"""The figure of a chain carries its laws: the exact one, the simulated one with its intervals, tail, batches."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from matplotlib.figure import Figure

import queuetheory_llm as qt
from queuetheory_llm.markov.chain import ExactChain
from queuetheory_llm.plots.markov import draw_chain, render_chain
from queuetheory_llm.plots.style import figure_of, renderer_of
from queuetheory_llm.simulation.present import Present, spread


@cache
def chain(rate="0.45", *, decode=1, b_max=2) -> ExactChain:
    engine = qt.Engine(batch_time=qt.Table(tokens=[b_max], seconds_at=[1]), b_max=b_max)
    arrivals = qt.SlottedArrivals(slot="1 s", law="bernoulli" if b_max == 2 else "poisson", mean=rate)
    return qt.exact_chain(engine, "sarathi", qt.Workload.of(prefill=2, decode=decode, arrivals=arrivals))


def present(found: ExactChain, *, runs=8, noise=0.02) -> Present:
    """Runs whose laws are the exact one, each a little off."""
    rng = np.random.default_rng(1)
    law = found.requests_law[:7]
    laws = law * rng.uniform(1 - noise, 1 + noise, (runs, law.size))
    return Present(laws=laws / laws.sum(axis=1, keepdims=True), seconds=100, warm_up=10, seed=0)


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def test_the_exact_law_is_drawn_as_it_is():
    found = chain()
    upper, tail, batches = figure_of(draw_chain(found)).axes
    drawn = lines(upper)["exact"].get_ydata()
    np.testing.assert_array_equal(drawn, found.requests_law[: len(drawn)])
    assert drawn.sum() > 0.998
    beyond = lines(tail)["exact"].get_ydata()
    kept = ~np.isnan(beyond)
    expected = [found.requests_law[n + 1 :].sum() for n in range(len(beyond))]
    np.testing.assert_allclose(beyond[kept], np.array(expected)[kept])
    assert beyond[kept].min() > 1000 * found.truncation.mass  # what the cut has bent is not shown
    assert tail.get_yscale() == "log"
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in batches.patches}
    assert heights == pytest.approx({1: found.batch_law[1], 2: found.batch_law[2]})


def test_the_slope_of_the_tail_is_its_decay():
    found = chain()
    tail = figure_of(draw_chain(found)).axes[1]
    (label,) = [label for label in lines(tail) if label.startswith("slope")]
    (start, high), (end, low) = lines(tail)[label].get_xydata()
    assert (low / high) ** (1 / (end - start)) == pytest.approx(found.tail.decay)
    assert f"× {found.tail.decay:.3g} a request" in label


def test_simulated_shares_stand_beside_it_with_their_intervals():
    found, runs = chain(), present(chain())
    ax = draw_chain(found, present=runs)
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in ax.patches}
    assert bars == pytest.approx(dict(enumerate([*runs.law, 0][: len(bars)])))
    (segments,) = [each.get_segments() for each in ax.collections]
    for (_, low), (_, high) in segments[:3]:
        assert low < high
    low, high = segments[1][:, 1]
    assert (high - low) / 2 == pytest.approx(spread(runs.laws)[1])
    assert "simulated" in " ".join(text.get_text() for text in figure_of(ax).texts)


def test_many_numbers_are_curves_and_the_simulation_a_band():
    found = chain("60", decode=0, b_max=130)
    ax = draw_chain(found, present=present(found))
    assert not ax.patches
    assert lines(ax)["exact"].get_marker() == "None"
    assert "simulated" in ax.collections[0].get_label()


@pytest.mark.parametrize("rate", ["0.45", "0.001"])
def test_the_caption_says_how_far_the_mean_can_be_trusted(rate):
    found = chain(rate)
    text = " ".join(figure_of(draw_chain(found)).texts[-1].get_text().split())
    assert f"{found.truncation.states:,} states" in text
    mean, error = (float(part.strip(" .")) for part in text.split("the mean is ")[1].split(", wrong by at most "))
    assert abs(mean - found.means.requests) <= error <= 1e-6


@pytest.mark.parametrize("rate", ["0.45", "0.001", "0.66"])
def test_every_text_is_on_the_figure(rate):
    found = chain(rate)
    figure = figure_of(draw_chain(found, present=present(found)))
    box, renderer = figure.bbox, renderer_of(figure)
    for ax in figure.axes:
        seen = ax.get_tightbbox(renderer)
        assert box.x0 <= seen.x0 < seen.x1 <= box.x1
        assert box.y0 <= seen.y0 < seen.y1 <= box.y1
        assert max(tick for tick in ax.get_yticks() if tick <= ax.get_ylim()[1]) <= 1


def test_axes_of_ones_own_and_the_same_bytes():
    own = Figure().subplots()
    assert chain().plot(own) is own
    assert own.get_title(loc="left").startswith("sarathi: STABLE by theorem")
    for kind in ("svg", "png"):
        assert render_chain(chain(), kind) == render_chain(chain(), kind)
