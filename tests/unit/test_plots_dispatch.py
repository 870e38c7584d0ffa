"""Figures of clusters carry their numbers: quantiles, limits, curves, tunings; every text is on the figure."""

from __future__ import annotations

import math
from functools import cache

import attrs
import numpy as np
from matplotlib.axes import Axes

from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.plots.cluster_capacity import draw_cluster_capacity, draw_critical_retry, draw_released_shares
from queuetheory_llm.plots.dispatch import draw_comparison, draw_limit
from queuetheory_llm.plots.service_curves import draw_curves, draw_slo_throughput, render_curves
from queuetheory_llm.plots.style import figure_of, renderer_of
from queuetheory_llm.plots.tuning import draw_tuning
from queuetheory_llm.simulation.alpha_tuning import TuningRun, tune_alpha
from queuetheory_llm.simulation.cluster_simulation import ClusterComparison, simulate_cluster
from queuetheory_llm.simulation.dispatch_limits import DispatchLimit
from queuetheory_llm.simulation.query_statistics import Interval
from queuetheory_llm.simulation.slo_throughput import Curve, CurvePoint, ServiceCurves, SloThroughput
from queuetheory_llm.stability.cluster_capacity import cluster_capacity
from queuetheory_llm.stability.critical_retry import critical_retry
from queuetheory_llm.stability.released_rule import released_shares
from queuetheory_llm.verdict import Verdict


@cache
def compared() -> ClusterComparison:
    rules = ("random-lp/fcfs", "hexgen-paper+alpha=0.2/urgency")
    return simulate_cluster(load_workflow("two-servers"), rules, queries=100, replications=3)


@cache
def tuned() -> TuningRun:
    return tune_alpha(load_workflow("two-servers"), "hexgen-paper+alpha=0.9/fcfs", profile=[(300, 1), (300, 2)])


def about(mean: float) -> Interval:
    return Interval(mean=mean, low=0.9 * mean, high=1.1 * mean)


def limit(rule: str = "random-lp/fcfs", low: float = 2.5, high: float = 2.75) -> DispatchLimit:
    return DispatchLimit(
        rule=rule, low=low, high=high, falling=None, growing=None, confidence=0.99, met=True, capacity=3, queries=9
    )


def points(at: tuple[float, ...], p95: tuple[float, ...]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(at=x, p95=about(y), attainment=about(0.5)) for x, y in zip(at, p95, strict=True))


def curves(along: str, names: tuple[str, ...] = ("random-lp/fcfs",), **more: object) -> ServiceCurves:
    at = (0.0, 0.5, 1.0) if along == "alpha" else (1.0, 2.0, 2.5)
    drawn = tuple(Curve(rule=name, points=points(at, (2.0, 1.0, 4.0))) for name in names)
    return ServiceCurves(
        along=along, curves=drawn, capacity=3.0, rate=None if along == "rate" else 2.4, base_seconds=0.75,
        replications=3, queries=100, seed=0, **more,
    )  # fmt: skip


def rates() -> SloThroughput:
    return SloThroughput(
        rule="random-lp/fcfs", share=0.9, rate=about(2.0), points=points((1.0, 2.5), (1.0, 2.0)), capacity=3.0,
        replications=3, queries=100, seed=0,
    )  # fmt: skip


def everything() -> dict[str, Axes]:
    """A figure of each kind."""
    system = load_workflow("hexgen-cluster-1")
    alphas = tuple(limit(low=2 + k / 4, high=2.125 + k / 4) for k in range(3))
    return {
        "comparison": draw_comparison(compared()),
        "comparison with rates": draw_comparison(compared(), limits=[limit()], throughputs=[rates()]),
        "limit": draw_limit(limit()),
        "rate": draw_curves(curves("rate", ("a/fcfs", "b/urgency", "c/vtc"))),
        "slo": draw_curves(curves("slo_scale")),
        "alpha": draw_curves(curves("alpha", limits=alphas)),
        "throughput": draw_slo_throughput(rates()),
        "tuning": draw_tuning(tuned()),
        "capacity": draw_cluster_capacity(cluster_capacity(system)),
        "retry": draw_critical_retry(critical_retry(system)),
        "released": draw_released_shares(released_shares(load_workflow("two-servers"), "0.3")),
    }


def test_every_text_is_on_its_figure():
    for name, ax in everything().items():
        figure = figure_of(ax)
        renderer = renderer_of(figure)
        figure.draw(renderer)
        box = figure.bbox
        texts = [*figure.texts, *(text for each in figure.axes for text in _texts(each))]
        for text in texts:
            if text.get_text() and text.get_visible():
                extent = text.get_window_extent(renderer)
                assert extent.x0 >= -1, (name, text)
                assert extent.x1 <= box.x1 + 1, (name, text)
                assert extent.y0 >= -1, (name, text)


def _texts(ax: Axes):
    legend = ax.get_legend()
    return [
        *ax.texts,
        ax.xaxis.label,
        ax.yaxis.label,
        *ax.get_yticklabels(),
        *(legend.get_texts() if legend is not None else ()),
    ]


def marks(ax: Axes, marker: str) -> list[tuple[float, float]]:
    """Single points with a marker."""
    lines = [line for line in ax.get_lines() if line.get_marker() == marker and len(line.get_xdata()) == 1]
    return [tuple(map(float, line.get_xydata()[0])) for line in lines]


def test_the_marks_are_the_quantiles():
    ax = draw_comparison(compared())
    for marker, name in (("o", "p50"), ("D", "p95"), ("s", "p99")):
        means = [getattr(each, name).mean for each in compared().rules]
        assert marks(ax, marker) == list(zip(means, (0, 1), strict=True))


def test_queries_that_never_end_are_marked_at_the_edge_and_rules_that_are_not_stable_are_open():
    first, second = compared().rules
    endless = attrs.evolve(first, p99=Interval(mean=math.inf, low=None, high=None), verdict=Verdict.UNSTABLE)
    ax = draw_comparison(attrs.evolve(compared(), rules=(endless, attrs.evolve(second, verdict=Verdict.STABLE))))
    assert len(marks(ax, ">")) == 1
    assert "UNSTABLE here" in ax.get_yticklabels()[0].get_text()
    faces = {
        line.get_markerfacecolor() for line in ax.get_lines() if line.get_marker() == "o" and line.get_xdata().size
    }
    assert "white" in faces
    assert "had not ended" in " ".join(figure_of(ax).texts[-1].get_text().split())


def test_the_stable_region_lies_below_the_limits_of_each_alpha():
    ax = draw_curves(curves("alpha", limits=tuple(limit(low=2 + k / 4, high=2.125 + k / 4) for k in range(3))))
    lowest = figure_of(ax).axes[0]
    below = lowest.collections[0].get_paths()[0]
    assert below.contains_point((0.5, 2.2))
    assert not below.contains_point((0.5, 2.3))
    (capacity,) = [line for line in lowest.get_lines() if line.get_label() == "_capacity"]
    assert set(capacity.get_ydata()) == {3.0}


def test_the_best_alpha_has_the_least_p95():
    assert curves("alpha").best.at == 0.5
    assert curves("alpha").to_dict()["best_alpha"] == 0.5
    never = Curve(rule="x/fcfs", points=points((0.0,), (math.inf,)))
    assert attrs.evolve(curves("alpha"), curves=(never,)).best is None


def test_the_steps_of_alpha_are_those_of_the_run():
    ax = draw_tuning(tuned())
    rate, alpha = (next(each for each in figure_of(ax).axes if each.get_ylabel() == y) for y in ("queries/s", "alpha"))
    assert rate.patches[0].get_data().values.tolist() == [1, 2]
    assert rate.patches[0].get_data().edges.tolist() == [0, 300, 600]
    assert alpha.patches[0].get_data().values.tolist() == [value for _, value in tuned().alphas]


def test_texts_of_an_svg_can_be_searched_and_the_bytes_are_the_same():
    first = render_curves(curves("rate", ("a/fcfs", "b/urgency")), "svg")
    assert b"b/urgency" in first
    assert first == render_curves(curves("rate", ("a/fcfs", "b/urgency")), "svg")


def test_results_draw_themselves_on_given_axes():
    from matplotlib.figure import Figure

    for result in (compared(), limit(), curves("rate"), rates(), tuned()):
        ax = Figure().add_subplot()
        assert result.plot(ax) is ax
        assert np.isfinite(ax.get_xlim()).all()
