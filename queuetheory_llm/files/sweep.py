"""Sweeps over the keys of a model file: the points are read here, run by `simulation.sweep` and kept in a file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import Number, require_whole
from queuetheory_llm.files.locks import locked
from queuetheory_llm.files.model_file import Document, parse_document, read_document
from queuetheory_llm.files.model_writer import model_text
from queuetheory_llm.files.schema import near_word
from queuetheory_llm.files.sweep_store import Header, SweepStore, digest
from queuetheory_llm.files.traces.reader import read_trace
from queuetheory_llm.model.dispatch import RANDOM
from queuetheory_llm.model.system import System
from queuetheory_llm.model.trace import FirstToken, Trace, TraceArrivals
from queuetheory_llm.schedulers.policy import Scheduler
from queuetheory_llm.simulation.grid import Axis, cell
from queuetheory_llm.simulation.sweep import ERROR, Backend, Plan, Row, SweepResult, Task, require_backend, run_points

#: Told the number of finished points and of all points.
Progress = Callable[[int, int], None]

_INDEX = re.compile(r"\[(\d+)\]")
_MOST_FAULTS = 10  # values refused at a time


def sweep(
    model: System | str | Path,
    *,
    grid: Mapping[str, str | Sequence[Any]] | Sequence[Axis] = (),
    schedulers: Iterable[Scheduler | str] | Scheduler | str = "sarathi",
    seeds: int = 1,
    horizon: Number | None = None,
    first_token: FirstToken | None = None,
    engines: int = 1,
    dispatch: str = RANDOM,
    n_jobs: int | None = None,
    backend: Backend = "loky",
    store: str | Path | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Simulate every combination of the values of a grid, every scheduler and every seed.

    Parameters
    ----------
    model : System, path or name
        A system, a model file or the name of a packaged model.
    grid : mapping, or sequence of Axis, optional
        Key of the model file, dotted (``engine.b_max``, ``workload.class.chat.weight``), to its values: a sequence,
        or a text as after ``--grid KEY=``, such as "128,256" or "8:14:0.5".
    schedulers : rules or their names
        A rule of your own must be picklable, and a file knows it by its name alone.
    seeds : int
        Number of seeds 0, 1, ...
    horizon : number or duration, optional
        Simulated seconds of each point; see `simulate`.
    first_token : {"paper", "engine"}, optional
        See `simulate`.
    engines : int
        Number of equal engines at every point, at least 1.
    dispatch : {"random", "round-robin", "token-queue", "least-outstanding"}
        How requests are spread over several engines, see `simulate`.
    n_jobs : int, optional
        Processes of this machine; all its cores by default. The result does not depend on it. A cluster has its own.
    backend : {"loky", "dask", "ray"}
        Processes here, or the cluster of the current `dask.distributed.Client`, or the running Ray.
    store : path, optional
        Finished points are kept in this file as they come. Where it holds points of the same question, the sweep goes
        on after them.
    restart : bool
        Begin anew whatever sweep the file holds; it is replaced when the first point is finished.
    progress : callable, optional
        Told the number of finished points and of all.

    Returns
    -------
    SweepResult
        A point that is bad input (a prompt that a rule can never serve, a combination that is no model) is a row with
        its ``error``; the others go on.

    Raises
    ------
    InvalidInput
        If an argument or the file is bad, another run is writing the file, there is no such cluster, a value of the
        grid can stand in no point, or every point fails.

    Examples
    --------
    >>> result = sweep("codellama-34b-a100", grid={"workload.rate": [8, 16]}, horizon=50, n_jobs=1)
    >>> [row["verdict"] for row in result.rows]
    ['STABLE', 'UNSTABLE']
    """
    rules = [schedulers] if isinstance(schedulers, str) or hasattr(schedulers, "form") else schedulers
    axes = [Axis.of(key, values) for key, values in grid.items()] if isinstance(grid, Mapping) else grid
    plan = Plan.of(
        axes,
        schedulers=cast("Iterable[Scheduler | str]", rules),
        seeds=seeds,
        horizon=horizon,
        first_token=first_token,
        engines=engines,
        dispatch=dispatch,
    )
    workers = _workers(n_jobs, backend)
    models = _Models.of(model, plan)
    notes = models.check()
    with nullcontext() if store is None else locked(store):
        kept = _Kept(store, models.header(), lambda index: plan.point(index).row, restart=restart)
        _run(plan, models, kept, workers, backend, progress or (lambda _, __: None))
    return SweepResult(
        model=models.document.name,
        question=plan.question(),
        points=len(plan),
        rows=tuple(kept.rows[index] for index in range(len(plan))),
        notes=(*notes, *kept.notes),
    )


def _run(plan: Plan, models: _Models, kept: _Kept, workers: int, backend: Backend, told: Progress) -> None:
    """Run the points that are left and keep them."""
    told(len(kept.rows), len(plan))
    left = [index for index in range(len(plan)) if index not in kept.rows]
    for index, row in run_points(models.tasks(left), n_jobs=min(workers, max(1, len(left))), backend=backend):
        kept.add(index, row)
        told(len(kept.rows), len(plan))
    kept.finish(len(plan))


def _workers(n_jobs: int | None, backend: Backend) -> int:
    """Processes of this machine; refuses a backend that is not to be had before anything is read or written."""
    require_backend(backend)
    if backend != "loky" and n_jobs is not None:
        raise InvalidInput(f"--workers: {backend} has its own workers; leave it out")
    if n_jobs is None:
        from joblib import cpu_count

        return int(cpu_count())
    return require_whole("--workers", n_jobs, 1, "the number of processes")


class _Kept:
    """The finished points, in a file where one is given."""

    def __init__(
        self, path: str | Path | None, header: Header, expected: Callable[[int], Row], *, restart: bool
    ) -> None:
        self._store = None if path is None else SweepStore(path, header, expected, restart=restart)
        self.rows: dict[int, Row] = {} if self._store is None else self._store.rows
        self.notes = () if self._store is None else self._store.notes

    def add(self, index: int, row: Row) -> None:
        if self._store is None:
            self.rows[index] = row
        else:
            self._store.add(index, row)

    def finish(self, points: int) -> None:
        """Close the file; refuse a sweep of nothing but errors."""
        if all(row[ERROR] is not None for row in self.rows.values()):
            first = self.rows[0]
            place = ", ".join(f"{key} = {value}" for key, value in first.items() if key != ERROR)
            raise InvalidInput(f"every point fails ({points} of them); the first, {place}: {first[ERROR]}")
        if self._store is not None:
            self._store.finish()


@attrs.frozen(kw_only=True, eq=False)
class _Models:
    """The model at every setting of the grid, read by the ordinary reader."""

    document: Document
    plan: Plan
    reader: Callable[[Path, str | None], Trace]

    @classmethod
    def of(cls, model: System | str | Path, plan: Plan) -> _Models:
        @cache  # one trace for all the points
        def reader(path: Path, first_token: str | None) -> Trace:
            return read_trace(path, first_token=first_token)

        document = _document_of(model) if isinstance(model, System) else read_document(model)
        return cls(document=document, plan=plan, reader=reader)

    def header(self) -> Header:
        """What the points depend on."""
        content = self.document.content
        paths = [content.get("workload", {}).get("trace"), *self._values_of("workload.trace")]
        traces = [_file_digest(self.document.folder / path) for path in paths if isinstance(path, str)]
        return Header(
            model=self.document.name,
            model_digest=digest({"content": content, "traces": traces}),
            points=len(self.plan),
            question=self.plan.question(),
        )

    def _values_of(self, key: str) -> tuple[Any, ...]:
        return next((axis.values for axis in self.plan.axes if axis.key == key), ())

    def tasks(self, points: Iterable[int]) -> Iterator[Task]:
        """The points for the workers; the model is read once for all points of a setting."""
        known, system = -1, cast("System | str", "")
        for index in points:
            if self.plan.setting_of(index) != known:
                known = self.plan.setting_of(index)
                system = self._system_or_fault(self.plan.setting(known))
            yield Task(
                point=self.plan.point(index),
                system=system,
                horizon=self.plan.horizon,
                first_token=self.plan.first_token,
                engines=self.plan.engines,
                dispatch=self.plan.dispatch,
            )

    def _system_or_fault(self, setting: Mapping[str, Any]) -> System | str:
        try:
            return self.system(setting)
        except InvalidInput as error:
            return "; ".join(error.faults)

    def system(self, setting: Mapping[str, Any]) -> System:
        """The model at one setting; `InvalidInput` where it is none."""
        content = deepcopy(dict(self.document.content))
        for key, value in setting.items():
            _put(content, key, value)
        document = attrs.evolve(self.document, content=content)
        system = document.system(first_token=self.plan.first_token, reader=self.reader)
        if system.require_workload().arrivals is None:
            raise InvalidInput("workload.rate: missing; give the workload a rate, or --grid workload.rate=VALUES")
        return system

    def check(self) -> tuple[str, ...]:
        """Refuse what can stand in no point; what is to be said of the others.

        A value is refused when no setting that differs from a good one in it, and in one other key at most, is a
        model. Without a good setting among the first one and those that differ from it in one key, all is refused.
        """
        first = self.plan.setting(0)
        good = next(self._good(first), None)
        if good is None:
            raise self._refusal([first])
        wrong = (
            {**good, axis.key: value}
            for axis in self.plan.axes
            for value in axis.values
            if next(self._good({**good, axis.key: value}, besides=axis.key), None) is None
        )
        faults = list(islice(wrong, _MOST_FAULTS))
        if faults:
            raise self._refusal(faults)
        workload, plan = self.system(good).workload, self.plan
        random = plan.engines > 1 and plan.dispatch == RANDOM
        replayed = workload is not None and isinstance(workload.arrivals, TraceArrivals)
        if plan.seeds > 1 and replayed and not random:
            return ("a replayed trace has nothing random: its rows are the same for every seed",)
        return ()

    def _good(self, setting: Mapping[str, Any], besides: str | None = None) -> Iterator[dict[str, Any]]:
        """The settings that are models among the one given and those that differ from it in one more key."""
        others = (
            {**setting, axis.key: value} for axis in self.plan.axes if axis.key != besides for value in axis.values
        )
        for near in chain([dict(setting)], others):
            if isinstance(self._system_or_fault(near), System):
                yield near

    def _refusal(self, settings: Iterable[Mapping[str, Any]]) -> InvalidInput:
        """One line a fault, the values it was found with named."""
        lines: dict[str, None] = {}
        for setting in settings:
            place = ", ".join(f"{key} = {cell(value)}" for key, value in setting.items())
            try:
                self.system(setting)
            except InvalidInput as error:
                lines |= dict.fromkeys(f"{fault} (with {place})" if place else fault for fault in error.faults)
        return InvalidInput(lines, source=self.document.path or self.document.name)


def _document_of(system: System) -> Document:
    """The document of a system in memory, through the text of its model file."""
    folder = Path.cwd()
    return Document(content=parse_document(model_text(system, folder), system.name), folder=folder, name=system.name)


def _file_digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # the reader says why, at the points that need it
        return None


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a list of tables is entered by index or by name."""
    *path, last = _INDEX.sub(r".\1", key).split(".")
    table: Any = content
    for depth, step in enumerate(path):
        if isinstance(table, dict):
            table = table.setdefault(step, {})
        elif isinstance(table, list):
            table = table[_place(table, step, ".".join(path[: depth + 1]))]
        if not isinstance(table, dict | list):
            raise InvalidInput(f"{key}: {'.'.join(path[: depth + 1])} is {table}, no table; write it as a table first")
    if isinstance(table, list):
        table[_place(table, last, key)] = value
    else:
        table[last] = value


def _place(tables: Sequence[Any], step: str, key: str) -> int:
    """Index of the table that a step of a key means."""
    names = [table.get("name") if isinstance(table, dict) else None for table in tables]
    if step in names:
        return names.index(step)
    if step.isascii() and step.isdigit() and len(step) < 10 and int(step) < len(tables):
        return int(step)
    known = [str(name) for name in names if name is not None]
    raise InvalidInput(f"{key}: there is no {step!r} here; {near_word(step, [*known, *map(str, range(len(tables)))])}")
