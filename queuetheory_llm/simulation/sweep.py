"""A sweep: every point of a grid of model keys, under every scheduler, with every seed; one row of a table each.

A point is one call of `simulate`. Its row does not depend on which worker makes it or when, so a sweep gives the same
table whatever computes it. The points of one seed share their random numbers: differences between them are paired.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from fractions import Fraction
from importlib import import_module
from itertools import groupby, islice
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from queuetheory_llm import __version__
from queuetheory_llm.dispatch.registry import require_dispatch
from queuetheory_llm.errors import InvalidInput, QueueTheoryError
from queuetheory_llm.exact.numbers import Number, require_whole, to_seconds
from queuetheory_llm.model.dispatch import RANDOM, require_engines
from queuetheory_llm.model.system import System
from queuetheory_llm.model.trace import FirstToken
from queuetheory_llm.result import Result, html_table
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.schedulers.registry import name_of, to_rule
from queuetheory_llm.simulation.grid import Axis, Cell, cell, require_points
from queuetheory_llm.simulation.judge import Simulation, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

#: One line of the table: column -> value.
Row = dict[str, Cell]

#: What joblib spreads the points over: processes of this machine, or the workers of a cluster.
Backend = Literal["loky", "dask", "ray"]
BACKENDS: tuple[Backend, ...] = ("loky", "dask", "ray")

#: The columns of a point before its results.
SCHEDULER, SEED, ERROR = "scheduler", "seed", "error"

_SHOWN = 100  # rows in a notebook
_IDLE = 30  # seconds after which a process without work ends
_SHARE = 4  # points per worker that go out together where results come back only all at once


@attrs.frozen(kw_only=True)
class Point:
    """One point: what the grid sets, the rule and the seed. ``index`` is its place in the table."""

    index: int
    values: Mapping[str, Any]
    scheduler: Scheduler | str
    seed: int

    @property
    def row(self) -> Row:
        """The columns that say which point it is."""
        cells = {key: cell(value) for key, value in self.values.items()}
        return {**cells, SCHEDULER: name_of(self.scheduler), SEED: self.seed}


@attrs.frozen(kw_only=True)
class Plan:
    """What a sweep asks, the model apart.

    Attributes
    ----------
    axes : tuple of Axis
        The first varies slowest; none for one setting alone.
    schedulers : tuple of Scheduler, or str for an adaptive rule
        A rule is known by its name.
    seeds : int
        Number of seeds 0, 1, ...; they vary fastest.
    horizon : Fraction or None
        Simulated seconds; None for the default of `simulate` at each point.
    first_token : {"paper", "engine"} or None
        None for the default of the model.
    engines : int
        Number of equal engines, at every point.
    dispatch : str
        How requests are spread over them, see `replicas`.
    """

    axes: tuple[Axis, ...]
    schedulers: tuple[Scheduler | str, ...]
    seeds: int
    horizon: Fraction | None
    first_token: FirstToken | None
    engines: int = 1
    dispatch: str = RANDOM

    @classmethod
    def of(
        cls,
        axes: Iterable[Axis],
        *,
        schedulers: Iterable[Scheduler | str],
        seeds: int,
        horizon: Number | None,
        first_token: FirstToken | None,
        engines: int = 1,
        dispatch: str = RANDOM,
    ) -> Plan:
        """From what a user gives.

        Raises
        ------
        InvalidInput
            If a key or a rule comes twice, a number is out of range, or there are too many points.
        """
        axes, rules = tuple(axes), tuple(to_rule(rule) for rule in schedulers)
        _require_distinct("--grid", [axis.key for axis in axes])
        _require_distinct("--scheduler", [name_of(rule) for rule in rules])
        if not rules:
            raise InvalidInput("--scheduler: none is given; name at least one")
        seeds = require_whole("--seeds", seeds, 1, "the number of seeds")
        seconds = None if horizon is None else to_seconds(horizon)
        if seconds is not None and seconds <= 0:
            raise InvalidInput(f"--horizon: {horizon} is not positive; give the seconds to simulate")
        engines = require_engines(engines, "--engines")
        require_dispatch(dispatch)
        plan = cls(
            axes=axes,
            schedulers=rules,
            seeds=seeds,
            horizon=seconds,
            first_token=first_token,
            engines=engines,
            dispatch=dispatch,
        )
        require_points(len(plan), "--grid")
        return plan

    def __len__(self) -> int:
        return self.settings * len(self.schedulers) * self.seeds

    @property
    def settings(self) -> int:
        """Number of combinations of grid values."""
        return prod(len(axis.values) for axis in self.axes)

    def setting(self, index: int) -> dict[str, Any]:
        """Combination ``index`` of grid values, the last axis fastest."""
        chosen: dict[str, Any] = {}
        for axis in reversed(self.axes):
            index, place = divmod(index, len(axis.values))
            chosen[axis.key] = axis.values[place]
        return {axis.key: chosen[axis.key] for axis in self.axes}

    def setting_of(self, point: int) -> int:
        """The combination that a point belongs to."""
        return point // (len(self.schedulers) * self.seeds)

    def point(self, index: int) -> Point:
        """Point ``index`` of the table."""
        rest, seed = divmod(index, self.seeds)
        setting, rule = divmod(rest, len(self.schedulers))
        return Point(index=index, values=self.setting(setting), scheduler=self.schedulers[rule], seed=seed)

    def question(self) -> dict[str, Any]:
        """Plain values that say what is asked: ``grid``, ``schedulers``, ``seeds``, ``engines`` and so on."""
        return {
            "grid": {axis.key: list(axis.cells) for axis in self.axes},
            "schedulers": [name_of(rule) for rule in self.schedulers],
            "seeds": self.seeds,
            "horizon": None if self.horizon is None else float(self.horizon),
            "first_token": self.first_token,
            "engines": self.engines,
            "dispatch": self.dispatch,
        }


def _require_distinct(flag: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"{flag}: {twice} is given twice; leave one out")


@attrs.frozen(kw_only=True)
class Task:
    """A point with all that a worker needs.

    Attributes
    ----------
    point : Point
    system : System or str
        The model of the point, or why it is none.
    horizon : Fraction or None
    first_token : {"paper", "engine"} or None
    engines : int
    dispatch : str
    version : str
        Of the package that asks.
    """

    point: Point
    system: System | str
    horizon: Fraction | None
    first_token: FirstToken | None
    engines: int = 1
    dispatch: str = RANDOM
    version: str = __version__


def run_point(task: Task) -> tuple[int, Row]:
    """The index of a point and its row: its columns, ``error`` (None where there is none), and the flat results.

    Raises
    ------
    InvalidInput
        If this worker has another version of the package; what is wrong with the point is in its row.
    """
    if task.version != __version__:
        raise InvalidInput(
            f"workers: one has version {__version__} of queuetheory_llm, this is {task.version}; install the same there"
        )
    point = task.point
    if isinstance(task.system, str):
        return point.index, {**point.row, ERROR: task.system}
    try:
        result = _simulate(task, task.system)
    except QueueTheoryError as error:
        return point.index, {**point.row, ERROR: "; ".join(str(error).splitlines())}
    return point.index, {**point.row, ERROR: None, **flat(result.to_dict())}


def _simulate(task: Task, system: System) -> Simulation:
    return simulate(
        system.engine,
        task.point.scheduler,
        system.require_workload(),
        engines=task.engines,
        dispatch=task.dispatch,
        horizon=task.horizon,
        seed=task.point.seed,
        first_token=task.first_token,
    )


def flat(content: Mapping[str, Any], prefix: str = "") -> Row:
    """A nested mapping as columns: names joined by dots, lists as one text.

    >>> flat({"latency": {"ttft": {"p95": 0.2}}, "notes": ["a", "b"]})
    {'latency.ttft.p95': 0.2, 'notes': 'a; b'}
    """
    row: Row = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            row |= flat(value, f"{prefix}{key}.")
        else:
            row[f"{prefix}{key}"] = "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return row


def run_points(tasks: Iterable[Task], *, n_jobs: int, backend: Backend) -> Iterator[tuple[int, Row]]:
    """The rows of the tasks, in the order in which they are finished.

    Parameters
    ----------
    tasks : iterable of Task
        Taken as workers become free.
    n_jobs : int
        Processes of this machine; a cluster uses the workers it has.
    backend : {"loky", "dask", "ray"}
        "dask" takes the current `dask.distributed.Client`, "ray" the running Ray.

    Raises
    ------
    InvalidInput
        If there is no cluster, a worker dies, or the package is missing there or has another version.
    """
    from joblib import Parallel, delayed, parallel_config

    tasks = iter(tasks)
    if backend == "loky":  # compiled here once, the runner is on disk when every worker wants it at the same time
        yield from map(run_point, islice(tasks, 1))
    jobs = (delayed(run_point)(task) for task in tasks)
    try:
        if backend == "ray":
            yield from _run_on_ray(jobs)
            return
        with parallel_config(**_options(backend, n_jobs)):
            parallel = Parallel(return_as="generator_unordered")
        with closing(parallel(jobs)) as rows:
            yield from rows
    except BrokenProcessPool:
        raise InvalidInput("--workers: a worker was killed, out of memory perhaps; use fewer workers") from None
    except TimeoutError:
        raise InvalidInput("--cluster: it has no worker; start one") from None


def require_backend(backend: str) -> None:
    """Refuse a backend that is not known or not to be had here; for callers to call before the work.

    Raises
    ------
    InvalidInput
        If the name is none of `BACKENDS`, its library is not installed, or "dask" has no client.
    """
    if backend not in BACKENDS:
        raise InvalidInput(f"backend: {backend!r} is not known; use one of {', '.join(BACKENDS)}")
    if backend == "dask":
        _dask_client()
    if backend == "ray":
        _ray()


def _dask_client() -> Any:
    try:
        from dask.distributed import get_client

        return get_client()
    except ModuleNotFoundError as error:
        raise _missing_on_dask(error) from None
    except ValueError:
        raise InvalidInput("dask: there is no client; make a dask.distributed.Client first") from None


def _missing_on_dask(error: ModuleNotFoundError) -> InvalidInput:
    return InvalidInput(f"dask: no module {error.name}; pip install 'queuetheory-llm[cluster]' here and there")


def _ray() -> Any:
    try:
        ray = import_module("ray")
        import_module("ray.util.joblib").register_ray()
    except ImportError:
        raise InvalidInput("ray: is not installed; pip install 'queuetheory-llm[ray]'") from None
    return ray


def _options(backend: Backend, n_jobs: int) -> dict[str, Any]:
    """The backend as joblib takes it."""
    if backend == "loky":  # its processes outlive a parent that is killed by this long
        return {"backend": backend, "n_jobs": n_jobs, "idle_worker_timeout": _IDLE}
    try:
        _dask_client().run(exec, f"import {__name__}")  # a worker without it would leave joblib waiting for ever
    except ModuleNotFoundError as error:
        raise _missing_on_dask(error) from None
    return {"backend": backend, "n_jobs": -1}


def _run_on_ray(jobs: Iterator[Any]) -> Iterator[tuple[int, Row]]:
    """In shares: joblib hands the results of Ray back only all at once."""
    from joblib import Parallel, effective_n_jobs, parallel_config

    ray = _ray()
    if not ray.is_initialized():
        ray.init(logging_level="error", log_to_driver=False)
    with parallel_config(backend="ray", n_jobs=-1):
        parallel, workers = Parallel(), effective_n_jobs(-1)
    while share := list(islice(jobs, _SHARE * workers)):
        yield from parallel(share)


@attrs.frozen(kw_only=True, eq=False)
class SweepResult(Result):
    """The table of a sweep.

    Attributes
    ----------
    model : str
        Name of the model.
    question : mapping
        See `Plan.question`.
    points : int
        Number of points asked for.
    rows : tuple of dict
        One a finished point, in the order of the grid: the grid values by key, ``scheduler``, ``seed``, ``error``, and
        the results of `Simulation.to_dict` with dotted names, such as ``measured.token_drift.mean`` (tokens/s) and
        ``latency.e2e.p95`` (seconds).
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.sweep:draw_sweep"
    model: str
    question: Mapping[str, Any]
    points: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order in which the rows bring them."""
        return list(dict.fromkeys(column for row in self.rows for column in row))

    @property
    def keys(self) -> list[str]:
        """The keys of the grid."""
        return list(self.question["grid"])

    @property
    def failed(self) -> int:
        """Number of rows that are an error."""
        return sum(row[ERROR] is not None for row in self.rows)

    def groups(self) -> Iterator[tuple[dict[str, Cell], str, list[Row]]]:
        """The grid values, the scheduler and the rows, one a seed, of every setting under every scheduler."""
        for head, rows in groupby(self.rows, key=lambda row: [row[key] for key in (*self.keys, SCHEDULER)]):
            yield dict(zip(self.keys, head, strict=False)), str(head[-1]), list(rows)

    def to_dict(self) -> dict[str, Any]:
        """The object ``qt-llm sweep --json`` prints, without its schema."""
        return {
            "model": self.model,
            **self.question,
            "points": self.points,
            "finished": len(self.rows),
            "failed": self.failed,
            "results": [dict(row) for row in self.rows],
            "notes": list(self.notes),
        }

    def to_jsonl(self) -> str:
        """One JSON object a row."""
        return "".join(json.dumps(row, allow_nan=False) + "\n" for row in self.rows)

    def to_csv(self) -> str:
        """A header and one line a row; empty where there is no value."""
        text = io.StringIO()
        table = csv.DictWriter(text, self.columns, lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        return text.getvalue()

    def to_pandas(self) -> DataFrame:
        """The rows as a `pandas.DataFrame`.

        Raises
        ------
        InvalidInput
            If pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise InvalidInput("pandas: is not installed; pip install 'queuetheory-llm[pandas]'") from None
        return DataFrame(list(self.rows), columns=self.columns)

    def plot(self, ax: Axes | None = None, *, x: str | None = None, y: str | None = None) -> Axes:
        """Draw a column against a key of the grid, a line a scheduler, a point a seed.

        Parameters
        ----------
        ax : Axes, optional
        x : str, optional
            Key of the grid; by default the one that takes most numbers.
        y : str, optional
            Column with numbers; by default the token drift.

        Raises
        ------
        InvalidInput
            If a column is not there, or there are too many lines.
        """
        module, _, function = self.figure.partition(":")
        axes: Axes = getattr(import_module(module), function)(self, ax, x=x, y=y)
        return axes

    def _repr_html_(self) -> str:
        shown = [column for column in (*self.keys, SCHEDULER, SEED, ERROR, "verdict") if column in self.columns]
        return html_table(shown, ([str(row.get(column, "")) for column in shown] for row in self.rows[:_SHOWN]))
