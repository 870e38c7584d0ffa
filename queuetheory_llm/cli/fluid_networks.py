"""Fluid paths of networks for ``qt-llm fluid``: exact under priorities, integrated elsewhere, and overloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from queuetheory_llm.cli.compiling import compile_note
from queuetheory_llm.cli.figures import write_figure
from queuetheory_llm.cli.fluid_engines import OF_EVERY_PATH
from queuetheory_llm.cli.inputs import seed_flag
from queuetheory_llm.cli.output import load, number, print_json, print_notes, print_table, print_written
from queuetheory_llm.cli.terminal import progress, say
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Real, to_fraction
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network
from queuetheory_llm.model.rate_profile import RateProfile
from queuetheory_llm.stability.fluid_ode import OdePath, ode_path
from queuetheory_llm.stability.fluid_path import FluidPath, FluidPaths, fluid_paths, search_growth
from queuetheory_llm.stability.network_doubts import fluid_doubt
from queuetheory_llm.stability.networks import verify_stability
from queuetheory_llm.stability.overload import NetworkOverload, network_overload
from queuetheory_llm.stability.traffic import traffic
from queuetheory_llm.verdict import Verdict

if TYPE_CHECKING:
    from queuetheory_llm.simulation.network_simulation import NetworkSimulation

_ROWS = 24  # breakpoints of a path that a report lists
_LEAST_TASKS = 10  # at the start of a run that stands for a fluid
_TASKS = 2000  # there unless --start says otherwise
_PEAKS = 8  # of a run that a line lists
_TIMES = 200  # at which a run is held against several paths


@attrs.frozen(kw_only=True)
class NetworkQuestion:
    """What is asked of a network.

    Attributes
    ----------
    network : Network
    start : mapping of class name to tasks, or None
    horizon : Fraction or None
        Seconds.
    profile : RateProfile or None
    keep_below : Fraction or None
        Seconds of work at each station.
    simulate : bool
    seed : str or None
    """

    network: Network
    start: Mapping[str, Fraction] | None = None
    horizon: Fraction | None = None
    profile: RateProfile | None = None
    keep_below: Fraction | None = None
    simulate: bool = False
    seed: str | None = None

    @property
    def model(self) -> FluidModel:
        """What its fluid obeys."""
        return self.network.fluid_model

    @property
    def exact(self) -> bool:
        """Whether the exact path applies: priorities or one class at each station, constant rates, no joins."""
        return self.model.is_ordered and not self.model.joins

    def begin(self) -> Mapping[str, Fraction]:
        """The start asked for, or one task where the network is fed, enough of them for a run."""
        return self.start or {self.network.arrivals[0].task_class: self.unit}

    @property
    def unit(self) -> Fraction:
        """Tasks of a class at the start where none are asked for; the path is the same on every scale."""
        return Fraction(_TASKS if self.simulate else 1)


def answer_network(question: NetworkQuestion, output: str | None, json: bool) -> None:
    """Answer, draw and print."""
    if question.profile is not None:
        _answer_overload(question, question.profile, output, json)
        return
    paths, left = _exact(question) if question.exact else (_integrated(question), [])
    run = _run(question, paths) if question.simulate else None
    if output is not None:
        write_figure(output, _figure(paths, run))
    grows = isinstance(paths, FluidPaths) and paths.growing is not None
    notes = [*_doubts(question), *([] if grows else _hidden(question)), *left]
    print_notes(notes)
    if json:
        simulated = {} if run is None else {"simulated": run.to_dict()}
        print_json("fluid", {"title": question.network.name, **paths.to_dict(), "notes": notes, **simulated})
        return
    for line in _told(question.network.name, paths):
        say(line)
    if run is not None:
        say(_run_words(run))
    print_written(output)


def _doubts(question: NetworkQuestion) -> list[str]:
    """Where the fluid model may say nothing of the network."""
    doubt = fluid_doubt(question.network)
    return [] if doubt is None else [f"the fluid model may not describe this network: {doubt}"]


def _hidden(question: NetworkQuestion) -> list[str]:
    """A verdict that one path, which does not grow, may hide."""
    judged = verify_stability(question.network).judgement
    if judged.verdict is Verdict.STABLE or fluid_doubt(question.network) is not None:
        return []
    verdict = judged.verdict.value if judged.basis is None else f"{judged.verdict.value} ({judged.basis.value})"
    return [f"whatever this path shows, at constant rates the network is {verdict}: {judged.reason}"]


def _shown(paths: FluidPaths | OdePath) -> FluidPath | OdePath:
    """The path that a run is set beside."""
    return paths if isinstance(paths, OdePath) else paths.worst


def _figure(paths: FluidPaths | OdePath, run: NetworkSimulation | None) -> Callable[[str], bytes]:
    """The path alone, every solution beside the others, or the run with the path over it."""
    if run is not None:
        from queuetheory_llm.plots.network_run import render_network_run

        return lambda kind: render_network_run(run, kind, path=_nearest(run, paths))
    from queuetheory_llm.plots.fluid import render_fluid_path, render_fluid_paths

    if isinstance(paths, FluidPaths) and len(paths) > 1:
        return lambda kind: render_fluid_paths(paths, kind)
    only = paths if isinstance(paths, OdePath) else paths[0]
    return lambda kind: render_fluid_path(only, kind)


def _nearest(run: NetworkSimulation, paths: FluidPaths | OdePath) -> FluidPath | OdePath:
    """Of several solutions the one that the run keeps nearest to."""
    if isinstance(paths, OdePath):
        return paths
    series = run.run.series
    step = max(1, series.ticks.size // _TIMES)
    seconds = [run.run.clock.seconds(int(tick)) for tick in series.ticks[::step]]

    def distance(path: FluidPath) -> float:
        last = float(path.seconds)
        states = np.array([path.at(min(time, last)) for time in seconds], dtype=float)
        return float(np.abs(series.present[:, ::step].T - states).sum())

    return min(paths, key=distance)


def _run(question: NetworkQuestion, paths: FluidPaths | OdePath) -> NetworkSimulation:
    """A run from the start of the path, as long as the path."""
    from queuetheory_llm.simulation.network_simulation import simulate_network

    path = _shown(paths)
    seconds = to_fraction(path.horizon) if isinstance(path, OdePath) else path.seconds
    begin = _whole_tasks(question.begin())
    with compile_note(), _said_of_the_start(question):
        return simulate_network(question.network, horizon=seconds, seed=seed_flag(question.seed), start=begin)


def _whole_tasks(begin: Mapping[str, Fraction]) -> dict[str, int]:
    """The start of a run that stands for a fluid."""
    for name, tasks in begin.items():
        if tasks.denominator != 1 or 0 < tasks < _LEAST_TASKS:
            what = "is no whole number" if tasks.denominator != 1 else "is too few for a run to be near its fluid"
            raise InvalidInput(
                f"--start: {name}={_short(tasks)} {what}; "
                f"give whole numbers from {_LEAST_TASKS} on, such as {name}=2000"
            )
    return {name: int(tasks) for name, tasks in begin.items()}


@contextmanager
def _said_of_the_start(question: NetworkQuestion) -> Iterator[None]:
    """A run is as long as the path, which without --horizon the start alone decides."""
    try:
        yield
    except InvalidInput as error:
        if question.horizon is not None or not error.faults[0].startswith("horizon: "):
            raise
        what = error.faults[0].removeprefix("horizon: ")
        raise InvalidInput(f"--start: of a run as long as the path from there: {what}; or give --horizon") from None


def _run_words(run: NetworkSimulation) -> str:
    """What the run shows; the peaks of one that keeps coming back are noise."""
    burden = run.burden[0]
    ratios = run.peak_ratios()[:_PEAKS].tolist() if run.measured is Verdict.UNSTABLE else []
    grown = ", ".join(f"{ratio:.3g}" for ratio in ratios)
    return f"a run from there: {run.reason}" + (f"; {burden}: each peak over the one before {grown}" if grown else "")


def _answer_overload(question: NetworkQuestion, profile: RateProfile, output: str | None, json: bool) -> None:
    found = network_overload(
        question.model, profile, start=question.start, horizon=question.horizon, keep_below=question.keep_below
    )
    if output is not None:
        from queuetheory_llm.plots.overload import render_overload

        write_figure(output, lambda kind: render_overload(found, kind))
    notes = [*_doubts(question), *_hidden(question)]
    print_notes(notes)
    if json:
        print_json("fluid", {"title": question.network.name, **_end(found.path), **found.to_dict(), "notes": notes})
        return
    say(f"{question.network.name} through the rates over time: {_overload_words(question.model, found)}\n")
    print_table(
        ["station", "largest load", "deepest: seconds of work", "at second"],
        [
            [name, load(rates.largest), number(depth), number(time)]
            for name, rates, (time, depth) in zip(question.model.stations, found.loads, found.depths, strict=True)
        ],
    )
    if found.speed_needed is not None:
        say(f"no station is deeper than {number(found.keep_below)} s if all are {found.speed_needed:.4g} times as fast")
    print_written(output)


def _overload_words(model: FluidModel, found: NetworkOverload) -> str:
    """When it is over; a station behind a slower one may never see its overload."""
    highest, name = max((rates.largest, name) for rates, name in zip(found.loads, model.stations, strict=True))
    if highest <= 1 and not found.depth:
        return f"no overload; the largest load is {load(highest)}, at {name}"
    drained = "not empty by the horizon" if found.drained is None else f"empty from {found.drained:.6g} s on"
    spared = any(rates.largest > 1 and not depth for rates, (_, depth) in zip(found.loads, found.depths, strict=True))
    held = "; deepest counts the work at a station, and stations before it hold back the rest" if spared else ""
    return f"{drained}{held}"


def _end(path: OdePath) -> dict[str, Any]:
    """What every answer of the command has."""
    content = path.to_dict()
    return {key: content[key] for key in OF_EVERY_PATH}


def _exact(question: NetworkQuestion) -> tuple[FluidPaths, list[str]]:
    """The paths, and what was left out of the search for their start and of themselves."""
    begin, left = question.begin(), []
    if question.start is None:
        with progress("fluid: looking for a path that grows ..."):
            search = search_growth(question.model)
        left = [search.left]
        if search.path is not None:
            names = zip(search.path.model.classes, search.path.breakpoints[0].state, strict=True)
            begin = {name: tasks * question.unit for name, tasks in names if tasks}
    paths = fluid_paths(question.model, begin, horizon=question.horizon)
    return paths, [each for each in (*left, paths.left) if each]


def _integrated(question: NetworkQuestion) -> OdePath:
    horizon = question.horizon
    if horizon is None:
        horizon = _enough(question)
    return ode_path(question.model, question.begin(), horizon)


def _enough(question: NetworkQuestion) -> Fraction:
    """Four times the seconds that the work at the start would take at what the loads leave free."""
    model, start = question.model, question.begin()
    solved = traffic(model)
    if max(solved.loads) >= 1:
        raise InvalidInput("--horizon: missing; a load is 1 or more, and nothing drains: give the seconds to follow")
    visits = dict(zip(model.classes, solved.visits, strict=True))
    tasks = sum((amount * visits.get(name, Fraction(1)) for name, amount in start.items()), Fraction(0))
    return 4 * tasks * max(model.service) / (1 - max(solved.loads)) or Fraction(1)


def _told(title: str, paths: FluidPaths | OdePath) -> Iterator[str]:
    if isinstance(paths, OdePath):
        yield from _told_numerically(title, paths)
        return
    for index, path in enumerate(paths, 1):
        which = f", solution {index} of {len(paths)}" if len(paths) > 1 else ""
        yield f"{title} from {_state(path)}{which}: {path.end.value}{_fate(path)}"
        yield f"{path.end.meaning}"
        _print_path(path)
        for each in path.accumulations:
            yield f"infinitely many turns end together: {each.text}"
        if path.envelope is not None:
            line = path.envelope
            yield (
                f"peaks lie on a straight line that rises by {_short(line.slope)} tasks/s and passes "
                f"{_short(line.level)} tasks at {_short(line.time)} s"
            )


def _state(path: FluidPath) -> str:
    return (
        ", ".join(
            f"{name} = {tasks}"
            for name, tasks in zip(path.model.classes, path.breakpoints[0].state, strict=True)
            if tasks
        )
        or "empty"
    )


def _fate(path: FluidPath) -> str:
    if path.emptying_time is not None:
        return f" at {_short(path.emptying_time)} s"
    if path.factor is None or path.cycle_factor is None:
        return ""
    cycle = "" if path.factor == path.cycle_factor else f" (a half cycle; {_short(path.cycle_factor)} each cycle)"
    return f" by {_short(path.factor)} each turn{cycle}"


def _short(value: Real) -> str:
    """The fraction itself while a person can read it, and its decimals where it is none."""
    text = str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if value.denominator == 1:
        return text
    return f"{text} = {float(value):.6g}" if len(text) <= 12 else f"{float(value):.6g}"


def _print_path(path: FluidPath) -> None:
    """The breakpoints as a table: times, totals and tasks of each class."""
    rows = [
        [number(point.time), number(total), *(number(tasks) for tasks in point.state)]
        for point, total in zip(path.breakpoints[:_ROWS], path.totals, strict=False)
    ]
    print_table(["seconds", "total", *path.model.classes], rows)
    if len(path.breakpoints) > _ROWS:
        say(f"... and {len(path.breakpoints) - _ROWS} breakpoints more; --json has them all\n")


def _told_numerically(title: str, path: OdePath) -> Iterator[str]:
    when = "not empty by then" if path.emptying_time is None else f"empty from {path.emptying_time:.6g} s on"
    yield f"{title}, followed numerically for {path.horizon:.6g} s: {when}"
    step = max(1, len(path.times) // _ROWS)
    least = 1e-9 * max(path.totals)  # what the integration leaves of an empty queue
    rows = [
        [number(time), *(number(tasks if tasks > least else 0) for tasks in (total, *state))]
        for time, total, state in zip(path.times[::step], path.totals[::step], path.states[::step], strict=True)
    ]
    print_table(["seconds", "total", *path.model.classes], rows)
    if path.emptying_time is None:
        yield f"at the end it changes by {path.growth:.6g} tasks a second"
