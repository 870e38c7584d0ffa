"""The two questions asked of an engine: where is its region, and how much does it carry.

Each answer is plain frozen data with its notes; `to_dict` is the content of ``--json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from html import escape
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import InfeasibleRequest, InvalidInput
from queuetheory_llm.exact.numbers import exact_text
from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.model.dispatch import RANDOM
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.result import Result
from queuetheory_llm.schedulers.policy import Policy, Scheduler
from queuetheory_llm.schedulers.registry import scheduler_for, to_policy
from queuetheory_llm.stability.capacity import TokenCapacity, capacity_notes, token_capacity
from queuetheory_llm.stability.parallel import parallel_threshold
from queuetheory_llm.stability.region import Membership, StabilityRegion, outer_region
from queuetheory_llm.stability.scheduler_region import (
    RayPoint,
    SchedulerRegion,
    rays,
    scheduler_region,
    workload_outer_region,
)
from queuetheory_llm.stability.thresholds import Solver, Threshold, threshold
from queuetheory_llm.verdict import Judgement, Verdict


@attrs.frozen(kw_only=True)
class OperatingPoint:
    """The rate a workload comes at, placed in the outer region.

    Attributes
    ----------
    rate : Fraction
        Requests per second.
    place : Membership
        Its token rates, load and proof.
    """

    rate: Fraction
    place: Membership

    @property
    def prefill(self) -> Fraction:
        """Prefill tokens per second."""
        return self.place.point[0]

    @property
    def decode(self) -> Fraction:
        """Decode tokens per second."""
        return self.place.point[1]

    @property
    def inside(self) -> bool:
        """Strictly inside R."""
        return self.place.inside

    @property
    def load(self) -> Fraction:
        """1/(largest scale of the rates that stays in R)."""
        return self.place.load

    @property
    def margin(self) -> Fraction:
        """1 - load."""
        return 1 - self.place.load

    @property
    def verdict(self) -> Verdict:
        """What R alone tells: UNSTABLE outside, CRITICAL on the boundary, UNDECIDED inside."""
        return self.place.verdict

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rate": float(self.rate),
            "prefill": float(self.prefill),
            "decode": float(self.decode),
            **self.place.to_dict(),
            "verdict": self.verdict.value,
        }


@attrs.frozen(kw_only=True)
class RegionAnswer(Result):
    """The region of an engine, what is known of each scheduler in it, and where the workload stands.

    Attributes
    ----------
    title : str
    engine : Engine
    workload : Workload or None
    capacity : TokenCapacity
    outer : StabilityRegion
        R: unstable under every rule outside it.
    workload_outer : tuple of RayPoint or None
        The tighter bound of every rule for the workload's prompts.
    workload_outer_method : str or None
    schedulers : tuple of SchedulerRegion
    operating_point : OperatingPoint or None
    judgements : tuple of (str, Threshold, Judgement)
        Scheduler, threshold and verdict at the operating point; empty without a rate.
    notes : tuple of str
    width : float or None
        Asked of simulated intervals, relative to the rate.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.region:draw_region"
    title: str
    engine: Engine
    workload: Workload | None
    capacity: TokenCapacity
    outer: StabilityRegion
    workload_outer: tuple[RayPoint, ...] | None
    workload_outer_method: str | None
    schedulers: tuple[SchedulerRegion, ...]
    operating_point: OperatingPoint | None
    judgements: tuple[tuple[str, Threshold, Judgement], ...]
    notes: tuple[str, ...]
    width: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content of ``region --json``."""
        found: dict[str, Any] = {
            "title": self.title,
            "capacity": {
                "tokens_per_s": float(self.capacity.tokens_per_s),
                "exact": exact_text(self.capacity.tokens_per_s),
                "batch_tokens": self.capacity.batch_tokens,
                "full_batches_tokens_per_s": float(self.capacity.full_batches_tokens_per_s),
            },
            "outer": self.outer.to_dict(),
            "schedulers": {each.scheduler: each.to_dict() for each in self.schedulers},
            "operating_point": None if self.operating_point is None else self.operating_point.to_dict(),
            "judgements": {
                name: {**_judgement(judgement), "low": float(limit.low), "high": float(limit.high)}
                for name, limit, judgement in self.judgements
            },
            "notes": list(self.notes),
        }
        if self.workload_outer is not None:
            found["workload_outer"] = {
                "points": [point.to_dict() for point in self.workload_outer],
                "method": self.workload_outer_method,
            }
        return found

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{v.label}</td><td>{float(v.prefill):.6g}</td><td>{float(v.decode):.6g}</td>"
            f"<td>({v.batch.prefill}, {v.batch.decode})</td></tr>"
            for v in self.outer.vertices
        )
        head = "<tr><th>vertex</th><th>prefill tokens/s</th><th>decode tokens/s</th><th>batch</th></tr>"
        return f"<p>{escape(self.title)}</p><table>{head}{rows}</table>"


def _judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "verdict": judgement.verdict.value,
        "basis": None if judgement.basis is None else judgement.basis.value,
        "reason": judgement.reason,
        "load": None if judgement.load is None else float(judgement.load),
        "margin": None if judgement.margin is None else float(judgement.margin),
    }


def stability_region(
    engine: Engine,
    workload: Workload | None = None,
    *,
    schedulers: Sequence[Policy | str] = ("sarathi",),
    optional: bool = False,
    solver: Solver | None = None,
    width: float | None = None,
    title: str = "",
) -> RegionAnswer:
    """The outer region, the workload's bound, each scheduler's region and the operating point.

    Parameters
    ----------
    engine : Engine
    workload : Workload, optional
        Without it only the outer region is known; without a rate there is no operating point.
    schedulers : sequence of Policy or str
        Rules, or their names with flags.
    optional : bool
        Leave out, with a note, a scheduler that cannot run the workload, instead of refusing.
    solver : callable, optional
        Finds the threshold of a scheduler where theory has bounds only.
    width : float, optional
        What the solver was asked for, relative to the rate: directions known less closely are counted.
    title : str

    Raises
    ------
    InfeasibleRequest
        If a scheduler can never run some prompt and ``optional`` is false.
    """
    notes = [*capacity_notes(engine), *memory_notes(engine), *(workload.notes if workload else ())]
    outer = outer_region(engine)
    regions, judgements = [], []
    point = None
    if workload is not None and workload.rate is not None:
        rate = workload.rate
        point = OperatingPoint(
            rate=rate, place=outer.membership(rate * workload.mean_prefill, rate * workload.mean_decode)
        )
    along = () if workload is None else rays(workload)
    for policy in map(to_policy, schedulers if workload is not None else ()):
        assert workload is not None
        try:
            limit = threshold(engine, policy, workload)  # first: its refusal names the request
            if solver is not None and not limit.exact:
                limit = solver(engine, policy, workload)
            regions.append(scheduler_region(engine, policy, along, solver))
        except InfeasibleRequest as error:
            if not optional:
                raise
            notes.append(f"{policy.name} is left out: {error}")
            continue
        notes.extend(f"{policy.name}: {note}" for note in limit.notes)
        if measured := regions[-1].measured(width):
            notes.append(f"{policy.name}: simulated region: {measured}")
        if workload.rate is not None:
            judgements.append((policy.name, limit, limit.judge(workload.rate)))
    bound = None if workload is None else workload_outer_region(engine, along)
    return RegionAnswer(
        title=title,
        engine=engine,
        workload=workload,
        capacity=token_capacity(engine),
        outer=outer,
        workload_outer=None if bound is None else bound[0],
        workload_outer_method=None if bound is None else bound[1],
        schedulers=tuple(regions),
        operating_point=point,
        judgements=tuple(judgements),
        notes=tuple(notes),
        width=width,
    )


def memory_notes(engine: Engine) -> tuple[str, ...]:
    """Say so where a limit of the engine plays no part in the answer."""
    if engine.kv_tokens is None:
        return ()
    return (f"kv_tokens = {engine.kv_tokens} plays no part here: KV memory may bind before b_max and k_max do",)


@attrs.frozen(kw_only=True)
class Lever:
    """A knob turned, and the threshold after it."""

    change: str
    after: Threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"change": self.change, "low": float(self.after.low), "high": float(self.after.high)}


@attrs.frozen(kw_only=True)
class CapacityAnswer(Result):
    """The largest stable rate of each scheduler, and what moves it.

    Attributes
    ----------
    title : str
    engines : tuple of Engine
    workload : Workload
    dispatch : str or None
        None for one engine.
    results : tuple of Threshold
    levers : tuple of tuple of Lever
        One tuple a result; empty for several engines.
    notes : tuple of str
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.capacity:draw_capacity"
    title: str
    engines: tuple[Engine, ...]
    workload: Workload
    dispatch: str | None
    results: tuple[Threshold, ...]
    levers: tuple[tuple[Lever, ...], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The content of ``capacity --json``."""
        workload = self.workload
        return {
            "title": self.title,
            "results": [
                {**limit.to_dict(), "levers": [lever.to_dict() for lever in levers]}
                for limit, levers in zip(self.results, self.levers, strict=True)
            ],
            "engines": len(self.engines),
            "dispatch": self.dispatch,
            "workload": {
                "mean_prefill": float(workload.mean_prefill),
                "mean_decode": float(workload.mean_decode),
                "rate": None if workload.rate is None else float(workload.rate),
            },
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(limit.scheduler)}</td><td>{lower_limit(limit.low)}</td><td>{upper_limit(limit.high)}</td>"
            f"<td>{escape(limit.binding)}</td><td>{escape(limit.method)}</td></tr>"
            for limit in self.results
        )
        head = "<tr><th>scheduler</th><th>stable below</th><th>unstable above</th><th>limit</th><th>ground</th></tr>"
        return f"<p>{escape(self.title)}: requests/s</p><table>{head}{rows}</table>"


def capacity(
    engines: Engine | Sequence[Engine],
    workload: Workload,
    *,
    schedulers: Sequence[Scheduler | str] = ("sarathi",),
    dispatch: str | None = None,
    split: Sequence[Fraction] | None = None,
    solver: Solver | None = None,
    title: str = "",
) -> CapacityAnswer:
    """The largest stable requests/s of each scheduler on one engine or on several behind a dispatcher.

    Several engines are dispatched to at random, equally, unless ``dispatch`` (see `parallel_threshold`) and ``split``
    say otherwise. A ``solver`` finds the thresholds in place of `threshold`, on one engine and of any rule, adaptive
    ones by name too; what moves them is then not looked for.

    Examples
    --------
    >>> from queuetheory_llm.files.model_file import load_model
    >>> system = load_model("codellama-34b-a100")
    >>> [round(float(r.low), 3) for r in capacity(system.engine, system.workload).results]
    [13.871]

    Raises
    ------
    InfeasibleRequest
        If a scheduler can never run some prompt.
    InvalidInput
        If there is no engine, the dispatch rule is unknown, or the split does not fit the engines.
    """
    machines = (engines,) if isinstance(engines, Engine) else tuple(engines)
    notes = dict.fromkeys(note for engine in machines for note in (*capacity_notes(engine), *memory_notes(engine)))
    single = len(machines) == 1
    if solver is not None and not single:
        raise InvalidInput("--method: induced and simulate know one engine; leave it out, or ask for one engine alone")
    results: list[Threshold] = []
    levers: list[tuple[Lever, ...]] = []
    for rule in schedulers:
        if solver is not None:
            own = scheduler_for(rule, machines[0], workload) if isinstance(rule, str) else rule
            results.append(solver(machines[0], own, workload))
            levers.append(())
            continue
        policy = to_policy(rule)
        results.append(parallel_threshold(machines, policy, workload, dispatch or RANDOM, split=split))
        levers.append(_levers(machines[0], policy, workload) if single else ())
    return CapacityAnswer(
        title=title,
        engines=machines,
        workload=workload,
        dispatch=None if single else dispatch or RANDOM,
        results=tuple(results),
        levers=tuple(levers),
        notes=(*notes, *workload.notes, *(f"{r.scheduler}: {note}" for r in results for note in r.notes)),
    )


def _levers(engine: Engine, policy: Policy, workload: Workload) -> tuple[Lever, ...]:
    """Each limit of the engine doubled in turn, as far as its batch times are known."""
    longest = engine.batch_time.longest
    budget = 2 * engine.b_max if longest is None else min(longest, 2 * engine.b_max)
    turned = []
    if budget > engine.b_max:
        turned.append((f"b_max {engine.b_max} -> {budget}", attrs.evolve(engine, b_max=budget)))
    if engine.k_max is not None:
        turned.append((f"k_max {engine.k_max} -> {2 * engine.k_max}", attrs.evolve(engine, k_max=2 * engine.k_max)))
    return tuple(Lever(change=change, after=threshold(after, policy, workload)) for change, after in turned)
