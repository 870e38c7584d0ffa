"""``qt-llm sweep``: simulate every combination of model values, schedulers and seeds."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from queuetheory_llm.cli.figures import FORMATS
from queuetheory_llm.cli.inputs import (
    DEFAULT_MODEL,
    FirstTokenFlag,
    count_flag,
    flag_seconds,
    positive_flag,
    read_rules,
)
from queuetheory_llm.cli.output import (
    GROWS,
    Json,
    Schedulers,
    growth_mark,
    latency_cell,
    load,
    number,
    print_json,
    print_notes,
    print_table,
    print_written,
)
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_target, write_atomically
from queuetheory_llm.files.sweep import Progress
from queuetheory_llm.files.sweep import sweep as run_sweep
from queuetheory_llm.files.sweep_store import read_sweep
from queuetheory_llm.model.dispatch import RANDOM
from queuetheory_llm.schedulers.registry import name_of
from queuetheory_llm.simulation.grid import Axis
from queuetheory_llm.simulation.sweep import ERROR, Backend, Row, SweepResult
from queuetheory_llm.verdict import Verdict

_STORE, _TABLE = ".jsonl", ".csv"
_SHOWN = 60  # lines of the table; the files have all
_MAY_LACK = ("load", "measured.token_drift.mean", "latency.ttft.p95", "latency.e2e.p95")
_NUMBER = re.compile(r"\d[\d.e+-]*")  # reasons that differ in their numbers only are one
_UNDECIDED = Verdict.UNDECIDED.value
_ADDRESSES = ("tcp://", "tls://", "ucx://")


def sweep(
    model: str = DEFAULT_MODEL,
    *,
    grid: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="KEY=VALUES: a dotted key of the model file, and values or ranges START:STOP:STEP separated by "
            "commas, as in workload.rate=8:14:0.5; may be repeated.",
        ),
    ] = None,
    scheduler: Schedulers = None,
    seeds: Annotated[str, Parameter(metavar="INT", help="Number of seeds 0, 1, ... at every point.")] = "1",
    horizon: Annotated[
        str | None,
        Parameter(metavar="SECONDS", help="Simulated seconds of each point. Default: 20 000 full batches or more."),
    ] = None,
    first_token: FirstTokenFlag = None,
    engines: Annotated[
        str, Parameter(metavar="INT", help="Number of equal engines behind a dispatcher, at every point.")
    ] = "1",
    dispatch: Annotated[
        str | None,
        Parameter(help="random, round-robin, token-queue (fewest tokens) or least-outstanding (fewest requests)."),
    ] = None,
    workers: Annotated[
        str | None, Parameter(metavar="INT", help="Processes of this machine. Default: one a core.")
    ] = None,
    cluster: Annotated[
        str | None,
        Parameter(help="tcp://HOST:PORT of a Dask scheduler, dask (a local one of --workers), or ray."),
    ] = None,
    output: Annotated[
        list[str] | None,
        Parameter(
            metavar="FILE",
            name=("-o", "--output", "--out"),
            negative=(),
            help="FILE.jsonl keeps the points as they come, and an interrupted sweep goes on; FILE.csv is the table "
            "(its points are kept in FILE.jsonl); .svg .png .pdf a figure; may be repeated.",
        ),
    ] = None,
    restart: Annotated[bool, Parameter(negative=(), help="Begin anew whatever sweep FILE.jsonl holds.")] = False,
    plot: Annotated[
        str | None, Parameter(help="Column of the figure, such as latency.e2e.p95. Default: the token drift.")
    ] = None,
    json: Json = False,
) -> None:
    """Simulate a grid of model values under every scheduler with every seed; one row a point.

    Rows do not depend on the number of workers. A point that is bad input is a row with its error.

    Parameters
    ----------
    model
        A model file or the name of a packaged model.
    """
    axes = [Axis.parse(text) for text in grid or ()]
    rules = read_rules(scheduler)
    count = count_flag("--seeds", seeds, least=1)
    seconds = None if horizon is None else positive_flag("--horizon", horizon, flag_seconds)
    machines = count_flag("--engines", engines, least=1)
    if machines == 1 and dispatch is not None:
        raise InvalidInput("--dispatch: there is one engine only; give --engines N")
    processes = None if workers is None else count_flag("--workers", workers, least=1)
    outputs = _checked_outputs(output or ())
    if any(path.suffix.lower()[1:] in FORMATS for path in outputs):
        from queuetheory_llm.plots.sweep import require_drawable

        require_drawable({axis.key: axis.cells for axis in axes}, [name_of(rule) for rule in rules])
    store = _store(outputs)
    with _cluster(cluster, processes) as backend, _progress_bar(store) as progress:
        result = run_sweep(
            model,
            grid=axes,
            schedulers=rules,
            seeds=count,
            horizon=seconds,
            first_token=first_token,
            engines=machines,
            dispatch=dispatch or RANDOM,
            n_jobs=processes if cluster is None else None,
            backend=backend,
            store=store,
            restart=restart,
            progress=progress,
        )
    written = [] if store is None else [store, *_write(result, [path for path in outputs if path != store], plot)]
    notes = [*result.notes, *_failures(result)]
    if json:
        print_json("sweep", {**result.to_dict(), "notes": notes})
        return
    print_notes(notes)
    _print(result)
    print_written(*written)


def _checked_outputs(outputs: Sequence[str]) -> list[Path]:
    """The files, refused before any work where one cannot be written or two would keep the points."""
    faults: list[str] = []
    for path in outputs:
        try:
            check_target(path, (_STORE[1:], _TABLE[1:], *FORMATS))
        except InvalidInput as error:
            faults += error.faults
    if sum(Path(path).suffix.lower() == _STORE for path in outputs) > 1:
        faults.append("-o: more than one .jsonl; give one file for the points")
    if faults:
        raise InvalidInput(faults)
    return [Path(path) for path in outputs]


def _store(outputs: Sequence[Path]) -> Path | None:
    """Where the points are kept: the file asked for, else beside the first one, with its name."""
    given = [path for path in outputs if path.suffix.lower() == _STORE]
    if given or not outputs:
        return given[0] if given else None
    return outputs[0].with_suffix(_STORE)


def _write(result: SweepResult, outputs: Sequence[Path], plot: str | None) -> list[Path]:
    """Write tables and figures; each is made before the first is written."""
    made: list[bytes] = []
    for path in outputs:
        kind = path.suffix.lower()
        if kind == _TABLE:
            made.append(result.to_csv().encode("utf-8", "surrogateescape"))
        else:
            from queuetheory_llm.plots.sweep import render_sweep

            made.append(render_sweep(result, kind[1:], y=plot))
    for path, data in zip(outputs, made, strict=True):
        write_atomically(path, data)
    return list(outputs)


@contextmanager
def _cluster(name: str | None, workers: int | None) -> Iterator[Backend]:
    """What the points are spread over, for as long as the sweep lasts."""
    if name is None:
        yield "loky"
        return
    if name not in ("dask", "ray") and not name.startswith(_ADDRESSES):
        raise InvalidInput(f"--cluster: {name!r} is not known; give tcp://HOST:PORT of a Dask scheduler, dask, or ray")
    if name != "dask" and workers is not None:
        what = "Ray" if name == "ray" else "a Dask scheduler"
        raise InvalidInput(f"--workers: {what} has its own workers; leave it out")
    if name == "ray":
        yield "ray"
        return
    try:
        from dask.distributed import Client, LocalCluster
    except ImportError:
        raise InvalidInput("--cluster: dask is not installed; pip install 'queuetheory-llm[cluster]'") from None
    if name == "dask":
        local = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        with local, Client(local):
            yield "dask"
        return
    try:
        client = Client(name, timeout=10)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--cluster: {name}: no Dask scheduler answers: {error}; check the address") from None
    with client:
        yield "dask"


@contextmanager
def _progress_bar(store: Path | None) -> Iterator[Progress]:
    """A bar on stderr where that is a terminal; an interruption says where the points are."""
    done = [0, 0]

    def report(finished: int, points: int) -> None:
        done[:] = finished, points
        if bar is not None:
            bar.update(task, completed=finished, total=points)

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("points"), TimeRemainingColumn())
        bar: Bar | None = Bar(*columns, console=Console(stderr=True), transient=True)
    else:
        bar = None
    try:
        if bar is None:
            yield report
        else:
            with bar:
                task = bar.add_task("sweep", total=None)
                yield report
    except KeyboardInterrupt:
        kept = f"are in {store}; the same command goes on from there" if store else "are lost; -o FILE.jsonl keeps them"
        # The file knows best: an interruption may fall between the line of a point and the report of it.
        finished = len(read_sweep(store).rows) if store and done[0] and store.exists() else done[0]
        print_notes([f"interrupted: {finished} of {done[1]} points are finished and {kept}"])
        raise


def _failures(result: SweepResult) -> list[str]:
    if not result.failed:
        return []
    first = next(str(row[ERROR]) for row in result.rows if row[ERROR] is not None)
    return [f"{result.failed} of {result.points} points are bad input, see the column error; the first: {first}"]


def _print(result: SweepResult) -> None:
    groups = list(result.groups())
    seeds = int(result.question["seeds"])
    engines, dispatch = result.question.get("engines", 1), result.question.get("dispatch")
    machines = f", {engines} engines ({dispatch})" if engines > 1 else ""
    length = "default horizon" if result.question["horizon"] is None else f"{result.question['horizon']:g} s"
    print_table(
        [*result.keys, "scheduler", "verdict", "load", "measured", "drift tokens/s", "ttft p95", "e2e p95"],
        [[*map(str, values.values()), scheduler, *_summary(rows)] for values, scheduler, rows in groups[:_SHOWN]],
        title=f"{result.model}: {result.points} points, {seeds} seed{'s' * (seeds > 1)} each, {length}{machines}; "
        "drift and latencies (s) are means over the seeds",
    )
    _print_remarks(result.rows)
    if len(groups) > _SHOWN:
        say(f"{len(groups) - _SHOWN} more lines; -o FILE.csv holds all")


def _print_remarks(rows: Sequence[Row]) -> None:
    """What the stars and dashes mean, and why points are UNDECIDED."""
    if any(growth_mark(row.get("verdict")) for row in rows):
        say(GROWS)
    if any(row.get(column) is None for row in rows for column in _MAY_LACK):
        say("-: no request has finished (ttft, e2e), no drift was measured, or no load is known")
    for words, column in (("verdict", ""), ("measured", "measured.")):
        reasons = [str(row[f"{column}reason"]) for row in rows if row.get(f"{column}verdict") == _UNDECIDED]
        if reasons:
            most = Counter(_NUMBER.sub("N", reason) for reason in reasons).most_common(1)[0][0]
            first = next(reason for reason in reasons if _NUMBER.sub("N", reason) == most)
            say(f"{words} UNDECIDED at {len(reasons)} of {len(rows)} points; commonest reason: {first}")


def _summary(rows: Sequence[Row]) -> list[str]:
    """The seeds of one setting in a line; errors are counted among the verdicts."""
    mark = max(growth_mark(row.get("verdict")) for row in rows)
    return [
        _tally(rows, "verdict"),
        load(_mean(rows, "load")),
        _tally(rows, "measured.verdict"),
        number(_mean(rows, "measured.token_drift.mean"), 4),
        *(latency_cell(_mean(rows, f"latency.{each}.p95"), mark) for each in ("ttft", "e2e")),
    ]


def _tally(rows: Sequence[Row], column: str) -> str:
    """``STABLE``, or ``4 STABLE, 1 UNDECIDED`` where the seeds differ."""
    found = Counter("error" if row[ERROR] is not None else str(row.get(column)) for row in rows)
    return str(next(iter(found))) if len(found) == 1 else ", ".join(f"{n} {word}" for word, n in found.items())


def _mean(rows: Sequence[Row], column: str) -> float | None:
    values = [value for row in rows if isinstance(value := row.get(column), int | float)]
    return sum(values) / len(values) if values else None
