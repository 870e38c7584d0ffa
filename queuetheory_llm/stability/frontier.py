"""How far the arrival rates of a network can grow: the largest scale certified stable, the smallest shown unstable.

All rates are multiplied by one factor. What lies between the two scales is not known; each carries its ground, so that
the gap is visible. With two stations and every non-idling policy the piecewise-linear program is sharp; with three or
more, and under given priorities, it is only sufficient, and so are the quadratic ones. All this is of fluid models;
whether one describes the engines of a network is a question of `network_doubts`, which `verify_stability` asks first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.certificates.certificate import Certificate
from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import plain
from queuetheory_llm.exact.words import enumeration
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.stability.certified import (
    MOST_PROGRAM,
    MOST_SEMIDEFINITE,
    Group,
    LyapunovFunction,
    LyapunovProgram,
    compose,
    first_certificate,
    lyapunov_programs,
    open_groups,
)
from queuetheory_llm.stability.fluid_path import growing_path
from queuetheory_llm.stability.lyapunov import LyapunovPolicy, require_policy
from queuetheory_llm.stability.push_starts import MOST_STARTS, has_more_starts, push_start
from queuetheory_llm.stability.traffic import Traffic, cyclic_joins, load_certificate, traffic
from queuetheory_llm.stability.virtual_stations import virtual_stations
from queuetheory_llm.verdict import Basis

#: The search for the largest certified scale ends when it is known this finely, relative to the scale.
GAP = Fraction(1, 10**8)
#: So finely in groups of more than `MOST_PIECES` classes, where one program takes seconds.
COARSE_GAP = Fraction(1, 200)
#: Two scales so near each other, relative to the smaller, meet.
MET = Fraction(1, 10**7)
#: A scale is reported with so many significant digits.
DIGITS = 10
#: Scales at which a growing fluid path is looked for, between the certified one and the smallest shown unstable.
PATHS = 8
#: Events of a fluid path, and branches of it, that are followed at each.
PATH_EVENTS, PATH_BRANCHES = 200, 8
#: Classes of a group up to which a piece for each class is tried at every scale of the search.
MOST_PIECES = 24
#: Classes of a network up to which growing fluid paths are looked for.
MOST_PATH_CLASSES = 12


#: Is told which share of a search is done, 0 to 1.
Progress = Callable[[float], None]


@attrs.frozen(kw_only=True)
class Bound:
    """A scale of the arrival rates about which something is shown.

    Attributes
    ----------
    scale : Fraction
        Factor on all arrival rates.
    basis : Basis
        Theorem or certificate; fluid where only the fluid model is shown to be unstable.
    reason : str
        One sentence.
    certificate : Certificate or None
        Of the network at that scale; of a bound that only holds above it, just above.
    holds_above : bool
        Of an unstable one: whether all larger scales are shown unstable too, as by loads and virtual stations. A
        growing path shows one scale.
    """

    scale: Fraction
    basis: Basis
    reason: str
    certificate: Certificate | None
    holds_above: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "scale": float(self.scale),
            "exact": plain(self.scale),
            "basis": self.basis.value,
            "reason": self.reason,
            "certificate": None if self.certificate is None else self.certificate.to_dict(),
            "holds_above": self.holds_above,
        }


@attrs.frozen(kw_only=True)
class Frontier:
    """Between stable and unstable.

    Attributes
    ----------
    policy : {"any", "file"}
    certified : Bound or None
        The largest scale at which stability is certified; None where none was found.
    unstable : Bound
        The smallest scale shown unstable, of the network or, for "any", of the network under some non-idling policy:
        every scale above it where it ``holds_above``, else that scale itself.
    note : str
        What the theory allows to conclude from a gap, and what was not looked for.
    """

    policy: LyapunovPolicy
    certified: Bound | None
    unstable: Bound
    note: str

    @property
    def gap(self) -> Fraction | None:
        """unstable / certified - 1; None where nothing is certified."""
        return None if self.certified is None else self.unstable.scale / self.certified.scale - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "policy": self.policy,
            "certified": None if self.certified is None else self.certified.to_dict(),
            "unstable": self.unstable.to_dict(),
            "gap": None if self.gap is None else float(self.gap),
            "note": self.note,
        }


@attrs.frozen(kw_only=True)
class _Question:
    """What an instability test is asked: a scale below ``high``, already shown unstable, and above ``low``."""

    model: FluidModel
    solved: Traffic
    policy: LyapunovPolicy
    low: Fraction
    high: Fraction


def frontier(model: FluidModel, *, policy: LyapunovPolicy, progress: Progress | None = None) -> Frontier:
    """The largest scale of all arrival rates that is certified stable and the smallest that is shown unstable.

    It knows the fluid model alone; of a network ask `verify_stability` with ``max_scale``.

    Parameters
    ----------
    model : FluidModel
        Tasks arrive at some class.
    policy : {"any", "file"}
        Every non-idling policy (certificates are then about the model without priorities), or the priorities of the
        model.
    progress : callable, optional
        Is told from time to time which share of the search is done, 0 to 1.

    Raises
    ------
    InvalidInput
        If the policy is not known.
    InvalidModel
        If tasks do not leave the network, or none arrive.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> found = frontier(load_network("rybko-stolyar").fluid_model, policy="file")
    >>> found.unstable.scale, found.gap < 1e-7
    (Fraction(5, 6), True)
    """
    require_policy(policy)
    subject = model if policy == "file" else model.without_priorities()
    solved = traffic(model)
    if not any(model.arrival):
        raise InvalidModel("arrival: nothing comes from outside; give a class a rate")
    unstable = _overload(model, solved)
    if cyclic_joins(model):
        note = "a join lies inside a cycle, which neither theorem nor program covers: only overload is shown"
        return Frontier(policy=policy, certified=None, unstable=unstable, note=note)
    question = _Question(model=model, solved=solved, policy=policy, low=Fraction(0), high=unstable.scale)
    unstable = _smallest(_EARLY_TESTS, question) or unstable
    certified = _certified(subject, policy, unstable.scale, progress or _nobody)
    low = Fraction(0) if certified is None else certified.scale
    unstable = _smallest(_LATE_TESTS, attrs.evolve(question, low=low, high=unstable.scale)) or unstable
    found = Frontier(policy=policy, certified=certified, unstable=unstable, note="")
    return attrs.evolve(found, note=_note(found, model, solved))


def _smallest(tests: Sequence[_InstabilityTest], question: _Question) -> Bound | None:
    """The smallest bound that tests find, each asked below what those before it found."""
    best = None
    for test in tests:
        found = test(question)
        if found is not None:
            best, question = found, attrs.evolve(question, high=found.scale)
    return best


def load_frontier(model: FluidModel, policy: LyapunovPolicy, theorem: str) -> Frontier:
    """The frontier where a theorem says that loads decide: every scale below 1/(largest load) is stable."""
    unstable = _overload(model, traffic(model))
    certified = Bound(scale=_below(unstable.scale), basis=Basis.THEOREM, reason=theorem, certificate=None)
    return Frontier(policy=policy, certified=certified, unstable=unstable, note="loads decide: the two scales meet")


def _overload(model: FluidModel, solved: Traffic) -> Bound:
    """Above 1/(largest load) no order of service helps."""
    worst = max(range(len(solved.loads)), key=solved.loads_low.__getitem__)
    above = model.scaled(_above(1 / solved.loads_low[worst]))
    return Bound(
        scale=1 / solved.loads_low[worst],
        basis=Basis.THEOREM,
        reason=f"the load of {model.stations[worst]} is then 1; above it every order of service is unstable",
        certificate=load_certificate(above, traffic(above)) if solved.exact else None,
        holds_above=True,
    )


def _virtual_station(question: _Question) -> Bound | None:
    """Above 1/(load of the heaviest virtual station) its priorities are unstable."""
    found = virtual_stations(question.model, question.solved, question.policy)
    if not found or found[0].load * question.high <= 1:
        return None
    scale = 1 / found[0].load
    above = question.model.scaled(_above(scale))
    heaviest = virtual_stations(above, traffic(above), question.policy)[0]
    return Bound(
        scale=scale,
        basis=Basis.CERTIFICATE if heaviest.is_proof else Basis.FLUID,
        reason=f"the virtual station of {enumeration(found[0].classes)} is then full",
        certificate=heaviest.certificate(),
        holds_above=True,
    )


def _push_start(question: _Question) -> Bound | None:
    """Some policy is unstable above the scale at which a push start is full."""
    if question.policy == "file" or question.model.joins:
        return None
    found = push_start(question.model, question.solved, question.high)
    if found is None:
        return None
    return Bound(scale=found.scale, basis=Basis.FLUID, reason=found.text, certificate=None, holds_above=True)


def _growing_path(question: _Question) -> Bound | None:
    """A fluid path under the priorities of the model that grows, just above the certified scale or farther up."""
    model = question.model
    closed = question.high <= question.low * (1 + 10 * GAP)
    if model.joins or not model.is_ordered or closed or len(model.classes) > MOST_PATH_CLASSES:
        return None
    low, high, best = question.low, question.high, None
    scale = _between(low, min(low * (1 + 10 * GAP), high) if low else high)
    for _ in range(PATHS):
        path = growing_path(model.scaled(scale), most_events=PATH_EVENTS, most_paths=PATH_BRANCHES)
        if path is None:
            low = scale
        else:
            high = scale
            best = Bound(
                scale=scale,
                basis=Basis.FLUID,
                reason="at this scale a path of the fluid model under the priorities of the model grows without end",
                certificate=path.certificate(),
            )
        if high <= low * (1 + 100 * GAP):
            break
        scale = _between(low, high)
    return best


def _between(low: Fraction, high: Fraction) -> Fraction:
    """A fraction of few digits in the middle half of an interval: exact paths are the shorter to follow."""
    middle, slack = (low + high) / 2, (high - low) / 4
    candidates = (middle.limit_denominator(10**digits) for digits in range(1, 2 * DIGITS))
    return next((each for each in candidates if abs(each - middle) <= slack), middle)


def _nobody(_: float) -> None:
    """Nobody asks how far the search is."""


def _certified(model: FluidModel, policy: LyapunovPolicy, high: Fraction, progress: Progress) -> Bound | None:
    """The largest scale below ``high`` that every open group certifies."""
    solved = traffic(model)
    if not solved.exact:
        return None
    scale, kinds = _below(high), {}
    groups = open_groups(model, solved)
    for number, group in enumerate(groups):
        function = _farthest(group.model, policy, high, _part_of(progress, number, len(groups)))
        if function is None:
            return None
        kinds[group.stations] = function
        scale = min(scale, _reported(function, group.model, scale))
    return _certificate(model, scale, policy, kinds)


def _certificate(
    model: FluidModel, scale: Fraction, policy: LyapunovPolicy, functions: dict[tuple[int, ...], LyapunovFunction]
) -> Bound | None:
    """The certificate at a scale that every group reaches."""
    at = model.scaled(scale)
    solved = traffic(at)
    parts: list[tuple[Group, Certificate]] = []
    for group in open_groups(at, solved):
        part = functions[group.stations].certify(group.model) or first_certificate(group.model, policy=policy)
        if part is None:
            return None
        parts.append((group, part))
    kinds = sorted({function.kind for function in functions.values()})
    return Bound(
        scale=scale,
        basis=Basis.CERTIFICATE if kinds else Basis.THEOREM,
        reason=" and ".join(kinds) if kinds else "every load is below 1, and no cycle needs more",
        certificate=compose(at, solved, parts),
    )


def _part_of(progress: Progress, number: int, count: int) -> Progress:
    """Progress of one of several parts."""
    return lambda share: progress((number + share) / count)


def _farthest(model: FluidModel, policy: LyapunovPolicy, high: Fraction, progress: Progress) -> LyapunovFunction | None:
    """The function found to reach farthest, program by program: each is only asked to pass those before it."""
    best: LyapunovFunction | None = None
    low = Fraction(0)
    programs = tuple(lyapunov_programs(model, policy=policy, most_pieces=MOST_PIECES))
    for number, program in enumerate(programs):
        found = _farther(program, model, low, high, _part_of(progress, number, len(programs)))
        if found is not None:
            best, low = found, _reported(found, model, high)
    return best


def _gap(model: FluidModel) -> Fraction:
    return GAP if len(model.classes) <= MOST_PIECES else COARSE_GAP


def _farther(
    program: LyapunovProgram, model: FluidModel, low: Fraction, high: Fraction, progress: Progress
) -> LyapunovFunction | None:
    """The function of one program that reaches farthest beyond a scale; None where none does.

    First it must pass that scale at all, then the largest is tried. What is found at one scale reaches farther than it,
    the less so the nearer the end is (Dinkelbach's method for fractional programs): the next trial is a small part of
    that step further on, and a failure there leaves little to halve. A coarse search halves alone.
    """
    best: LyapunovFunction | None = None
    gap, step, least = _gap(model), Fraction(0), high * GAP
    first = [_below(high), *([_above(low * (1 + gap))] if low else [])]
    while high - low > gap * high and high >= least:
        trial = first.pop() if first else _below((low + high) / 2 if step == 0 else min(low + step, (low + high) / 2))
        found = program(model.scaled(trial))
        reached = Fraction(0) if found is None else _reported(found, model, high)
        if reached < trial:
            high, step = trial, Fraction(0)
        else:
            best, low = found, reached
            step = Fraction(0) if first or gap == COARSE_GAP else max(2 * step, (low - trial) / 8, low * gap / 2)
        progress(_closed(low, high, gap))
    return best


def _closed(low: Fraction, high: Fraction, gap: Fraction) -> float:
    """The share of the halvings from 1 to the gap that are done."""
    width = max(float((high - low) / high), float(gap))
    return math.log(width) / math.log(float(gap))


def _reported(function: LyapunovFunction, model: FluidModel, high: Fraction) -> Fraction:
    """A scale strictly below what a function reaches, of few digits."""
    reach = function.reach(model)
    return _below(high if reach is None else min(reach, high))


def _below(scale: Fraction) -> Fraction:
    """The largest number of `DIGITS` significant digits strictly below a positive scale."""
    step = _step(scale)
    return (-(-scale // step) - 1) * step


def _above(scale: Fraction) -> Fraction:
    """The smallest strictly above."""
    step = _step(scale)
    return (scale // step + 1) * step


def _step(scale: Fraction) -> Fraction:
    """The power of ten that leaves `DIGITS` significant digits, or one more."""
    magnitude = len(str(scale.numerator)) - len(str(scale.denominator))
    return Fraction(10) ** (magnitude - DIGITS)


#: Of a growing path.
_ONE_SCALE = "of scales above that of the growing path nothing more is shown"


def _note(found: Frontier, model: FluidModel, solved: Traffic) -> str:
    """What a gap means, and what was not looked for."""
    if not solved.exact:
        return "the traffic equations are enclosed between bounds, not solved exactly: nothing is certified"
    groups = open_groups(model, solved)
    if not groups:
        return "loads decide: there is no cycle through several stations, or every station on one has a single class"
    if found.policy == "any" and all(len(group.stations) == 2 for group in groups):
        return (
            "two stations on each cycle: the piecewise-linear program decides stability under every non-idling policy"
        )
    if found.gap is not None and found.gap < MET:
        return "the two scales meet" if found.unstable.holds_above else f"the two scales meet; {_ONE_SCALE}"
    what = "three or more stations on a cycle" if found.policy == "any" else "under given priorities"
    only = f"{what}: the programs are only sufficient, and what lies between the two scales is not known"
    alone = [] if found.unstable.holds_above else [_ONE_SCALE]
    return "; ".join([only, *alone, *_not_looked_for(found.policy, model, groups)])


def _not_looked_for(policy: LyapunovPolicy, model: FluidModel, groups: Sequence[Group]) -> Iterator[str]:
    """Where a search ended for its length."""
    largest = max(len(group.model.classes) for group in groups)
    if largest > MOST_PIECES:
        yield f"beyond {MOST_PIECES} classes of a group the certified scale is known to {float(COARSE_GAP):g} of it"
    if policy == "file" and largest > MOST_PIECES:
        yield f"functions with a piece for each class were not looked for beyond {MOST_PIECES} classes of a group"
    if largest > MOST_PROGRAM:
        yield f"quadratic functions were not looked for beyond {MOST_PROGRAM} classes of a group"
    elif largest > MOST_SEMIDEFINITE:
        yield f"copositive quadratic functions were not looked for beyond {MOST_SEMIDEFINITE} classes of a group"
    if model.is_ordered and len(model.classes) > MOST_PATH_CLASSES:
        yield f"growing fluid paths were not looked for beyond {MOST_PATH_CLASSES} classes"
    if policy == "any" and not model.joins and has_more_starts(model):
        yield f"push starts were not looked for beyond the first {MOST_STARTS} sets of first steps"


#: Returns a bound below ``question.high`` if it finds one.
_InstabilityTest = Callable[[_Question], Bound | None]

#: What bounds the search for the largest certified scale, and what starts from it.
_EARLY_TESTS: tuple[_InstabilityTest, ...] = (_virtual_station, _push_start)
_LATE_TESTS: tuple[_InstabilityTest, ...] = (_growing_path,)
