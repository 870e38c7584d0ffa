"""Every answer has plain data, a figure and a notebook table; runs are read-only; figures carry the data."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

import attrs
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import queuetheory_llm as qt
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.fitting import fit_profile
from queuetheory_llm.model.profile import Profile
from queuetheory_llm.model.workflow import Tenant
from queuetheory_llm.plots.classification import render_classification
from queuetheory_llm.plots.simulation import render_simulation
from queuetheory_llm.plots.style import figure_of
from queuetheory_llm.result import Result
from queuetheory_llm.simulation.alpha_tuning import tune_alpha
from queuetheory_llm.simulation.cluster_simulation import simulate_cluster
from queuetheory_llm.simulation.dispatch_limits import simulated_limit
from queuetheory_llm.simulation.judge import Simulation
from queuetheory_llm.simulation.slo_throughput import rate_curves, slo_throughput
from queuetheory_llm.simulation.statistics import second_half
from queuetheory_llm.simulation.thresholds import simulated_threshold
from queuetheory_llm.stability.cluster_capacity import cluster_capacity
from queuetheory_llm.stability.region import outer_region
from queuetheory_llm.stability.topologies import judge_topologies

LAW = qt.Staircase(c="11.28 ms", a="35.47 ms", b0=128)
ENGINE = qt.Engine(batch_time=LAW, b_max=512)
WORKLOAD = qt.Workload.of(prefill=129, decode=112, arrivals=qt.PoissonArrivals(rate=12))


SLOTS = qt.Engine(batch_time=qt.Table(tokens=[2], seconds_at=[1]), b_max=2)
SLOTTED = qt.Workload.of(prefill=2, decode=1, arrivals=qt.SlottedArrivals(slot="1 s", law="bernoulli", mean="0.45"))


NETWORK = qt.load_network("lu-kumar")
AGENTS = qt.load_workflow("agents-mixed-gpus")
CROWD = qt.RateProfile(times=[0, 10, 20], values=[1, 2, 1])

CLUSTER = load_workflow("two-servers")
WITH_SLO = attrs.evolve(CLUSTER, workflow=attrs.evolve(CLUSTER.workflow, tenants=[Tenant(name="all", slo_scale=5)]))

MEASURED = Profile(
    tokens=tuple(range(64, 513, 64)),
    seconds=tuple(LAW.seconds(b) for b in range(64, 513, 64)),
    source="made.csv",
    format="plain",
    includes="everything",
    statistic="single",
)

#: An answer of each kind, by the name of its class.
EXAMPLES: dict[str, Callable[[], Result]] = {
    "Threshold": lambda: qt.threshold(ENGINE, "tensorrt-llm", WORKLOAD),
    "InducedThreshold": lambda: qt.induced_threshold(ENGINE, "fastertransformer", WORKLOAD),
    "InducedDrifts": lambda: qt.induced_drifts(ENGINE, "fastertransformer", WORKLOAD, 12),
    "SimulatedThreshold": lambda: simulated_threshold(ENGINE, "sarathi", WORKLOAD, width=0.3),
    "Classification": lambda: qt.classify("fastertransformer"),
    "Simulation": lambda: qt.simulate(ENGINE, "sarathi", WORKLOAD, horizon=60),
    "ExactChain": lambda: qt.exact_chain(SLOTS, "sarathi", SLOTTED),
    "StabilityRegion": lambda: outer_region(ENGINE),
    "RegionAnswer": lambda: qt.stability_region(ENGINE, WORKLOAD),
    "CapacityAnswer": lambda: qt.capacity(ENGINE, WORKLOAD, schedulers=["sarathi", "vllm-vanilla"]),
    "SweepResult": lambda: qt.sweep(qt.System(engine=ENGINE, workload=WORKLOAD), seeds=2, horizon=60, n_jobs=1),
    "Fit": lambda: fit_profile(MEASURED),
    "NetworkAnswer": lambda: qt.verify_stability(NETWORK),
    "NetworkSimulation": lambda: qt.simulate_network(NETWORK, horizon=60, start={"1": 20}),
    "FluidPath": lambda: qt.fluid_path(NETWORK.fluid_model, {"1": 1}),
    "FluidPaths": lambda: qt.fluid_paths(NETWORK.fluid_model, {"1": 1}),
    "OdePath": lambda: qt.ode_path(NETWORK.fluid_model, {"1": 1}, 3),
    "EngineFluidPath": lambda: qt.engine_fluid(ENGINE, "sarathi", WORKLOAD, (1000, 100)),
    "Overload": lambda: qt.engine_overload(ENGINE, CROWD, WORKLOAD),
    "ClusterCapacity": lambda: cluster_capacity(AGENTS),
    "CriticalRetry": lambda: qt.critical_retry(AGENTS),
    "ReleasedShares": lambda: qt.released_shares(qt.load_workflow("two-servers"), 0.5),
    "NetworkOverload": lambda: qt.network_overload(qt.load_network("tandem").fluid_model, CROWD),
    "ClusterComparison": lambda: simulate_cluster(CLUSTER, ["random", "random-lp"], queries=50, replications=2),
    "DispatchLimit": lambda: simulated_limit(CLUSTER, "random-lp", width=0.3, max_queries=1000),
    "SloThroughput": lambda: slo_throughput(WITH_SLO, "random-lp", width=0.3, queries=50, replications=2),
    "ServiceCurves": lambda: rate_curves(CLUSTER, ["random-lp"], [1, 2], queries=50, replications=2),
    "TuningRun": lambda: tune_alpha(CLUSTER, profile=[(100, 1), (100, 2)]),
}


@cache
def example(name: str) -> Result:
    return EXAMPLES[name]()


def simulated() -> Simulation:
    found = example("Simulation")
    assert isinstance(found, Simulation)
    return found


def kinds(of: type[Result]) -> Iterator[type[Result]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_kind_of_answer_has_an_example() -> None:
    for module in pkgutil.walk_packages(qt.__path__, "queuetheory_llm."):
        import_module(module.name)
    package = {kind.__name__ for kind in kinds(Result) if kind.__module__.startswith("queuetheory_llm.")}
    assert package == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_answer_has_data_a_figure_and_a_table(name: str) -> None:
    answer = example(name)
    assert type(answer).__name__ == name
    json.dumps(answer.to_dict(), allow_nan=False)
    assert isinstance(answer.plot(), Axes)
    own = Figure().subplots()
    assert answer.plot(own) is own
    html = answer._repr_html_()
    assert html.count("<tr>") == html.count("</tr>") > 2


def test_the_table_of_an_answer_is_its_scalars_escaped() -> None:
    limit = attrs.evolve(qt.threshold(ENGINE, "sarathi", WORKLOAD), scheduler="<b>&", notes=("not a scalar",))
    html = limit._repr_html_()
    assert "<td>scheduler</td><td>&lt;b&gt;&amp;</td>" in html
    assert f"<td>low</td><td>{float(limit.low):.6g}</td>" in html
    assert "notes" not in html
    assert "<td>work_conserving</td><td>no</td>" in example("Classification")._repr_html_()


def test_the_table_of_a_region_is_its_vertices() -> None:
    region = outer_region(attrs.evolve(ENGINE, k_max=100))
    html = region._repr_html_()
    for vertex in region.vertices:
        assert f"<td>{float(vertex.prefill):.6g}</td><td>{float(vertex.decode):.6g}</td>" in html


def test_a_run_cannot_be_written_to() -> None:
    run = simulated().run
    for array in (run.begin, run.first_decode, run.last_prefill, run.finish, run.longest_gap, run.series.backlog):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(TypeError):
        simulated().latency["e2e"] = None  # type: ignore[index]
    assert type(simulated().to_dict()["latency"]) is dict


def test_the_backlog_and_its_drift_are_drawn_as_measured() -> None:
    found = simulated()
    lines = {line.get_label(): np.asarray(line.get_xydata()) for line in found.plot().lines}
    seconds, level = lines["token backlog"].T
    ticks = np.rint(seconds * found.run.clock.rate).astype(np.int64)
    np.testing.assert_array_equal(ticks, found.run.series.ticks)
    np.testing.assert_array_equal(found.run.series.backlog, level)
    (begin, start), (end, last) = lines["measured drift"]
    middle, close = second_half(found.run)
    assert (begin, end) == (found.run.clock.seconds(middle), found.run.clock.seconds(close))
    half = found.run.series.since(middle)
    assert half.ticks[-1] == close
    np.testing.assert_allclose([start, last], half.backlog[[0, -1]], rtol=1e-9)
    assert found.measured.drift is not None
    assert (last - start) / (end - begin) == pytest.approx(found.measured.drift.mean)


def test_waiting_and_decoding_are_drawn_below_the_backlog() -> None:
    found = simulated()
    upper, lower = figure_of(found.plot()).axes
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in lower.lines}
    np.testing.assert_array_equal(lines["not started"], found.run.series.waiting)
    np.testing.assert_array_equal(lines["past the prompt"], found.run.series.decoding)
    assert lower.get_position().y1 < upper.get_position().y0
    assert lower.get_xlim() == upper.get_xlim()
    assert lower.get_position().x0 == upper.get_position().x0


def test_the_interval_of_the_drift_does_not_stretch_the_axis() -> None:
    ax = simulated().plot()
    assert ax.get_ylim() == (0, pytest.approx(1.3 * simulated().run.series.backlog.max()))
    found = simulated().measured.drift
    assert found is not None
    begin, end = second_half(simulated().run)
    start = float(simulated().run.series.since(begin).backlog[0])
    highest = start + found.high * simulated().run.clock.seconds(end - begin)
    assert highest > ax.get_ylim()[1]  # it would


def test_the_figure_of_a_run_says_what_was_run_and_explains_every_line() -> None:
    ax = attrs.evolve(simulated(), title="codellama: 12 requests/s over 2 engines (random), seed 7").plot()
    assert "codellama: 12 requests/s over 2 engines (random), seed 7" in [t.get_text() for t in figure_of(ax).texts]
    legend = ax.get_legend()
    assert legend is not None
    named = {text.get_text() for text in legend.get_texts()}
    assert {str(line.get_label()) for line in ax.lines} <= named
    assert "second half" in named


def test_the_title_of_a_run_says_verdict_and_basis() -> None:
    own = Figure().subplots()
    simulated().plot(own)
    assert own.get_title(loc="left") == "sarathi: STABLE by theorem"
    assert own.get_xlabel() == "simulated time (s)"
    assert own.get_ylabel() == "token backlog (tokens)"


@pytest.mark.parametrize("rate", ["0.01", "12", "1000"])
def test_every_text_of_a_run_is_on_the_figure(rate: str) -> None:
    workload = qt.Workload.of(prefill=129, decode=112, arrivals=qt.PoissonArrivals(rate=rate))
    ax = qt.simulate(ENGINE, "sarathi", workload, horizon=20).plot()
    figure = figure_of(ax)
    box = figure.get_tightbbox()  # inches
    width, height = figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


@pytest.mark.parametrize("rule", ["sarathi", "fastertransformer", "sarathi+target=2"])
def test_a_classification_is_words_and_colours_above_its_reason(rule: str) -> None:
    found = qt.classify(rule)
    ax = found.plot()
    texts = [text.get_text() for text in ax.texts]
    words = [text.get_text() for text in ax.texts if text.get_bbox_patch()]
    answers = [found.work_conserving, found.overtaken is not None, found.fills, found.throughput_optimal]
    answers += [verdict.optimal for verdict in judge_topologies(found)[1:]]
    assert words == [{True: "yes", False: "no", None: "unknown"}[answer] for answer in answers]
    colours = {text.get_text(): text.get_bbox_patch().get_facecolor() for text in ax.texts if text.get_bbox_patch()}
    assert len(set(colours.values())) == len(colours)
    assert texts[-1].replace("\n", " ") == found.reason
    figure = figure_of(ax)
    width, height = figure.get_size_inches() * figure.dpi
    boxes = [text.get_window_extent() for text in ax.texts]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
    assert not any(one.overlaps(two) for i, one in enumerate(boxes) for two in boxes[:i])


def test_a_classification_that_found_nothing_says_unknown() -> None:
    found = attrs.evolve(qt.classify("fastertransformer"), growth_witness=None)
    assert "unknown" in [text.get_text() for text in found.plot().texts]


@pytest.mark.parametrize("format", ["svg", "png", "pdf"])
def test_figures_have_the_same_bytes_twice(format: str) -> None:
    found = qt.classify("sarathi")
    assert render_simulation(simulated(), format) == render_simulation(simulated(), format)
    assert render_classification(found, format) == render_classification(found, format)
