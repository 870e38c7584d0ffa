"""What a dispatch rule may look at, and what a rule is.

A rule is one pure function ``choose(view, parameters) -> int``, the number of an instance. It reads a `DispatchView`,
writes nothing and keeps nothing. It is written in the Python that numba compiles, and calls no function of its own, so
that the same function runs in plain Python, in the compiled kernels and in a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.words import shown


class DispatchView(NamedTuple):
    """A call that is to be sent on, and the M instances as they are at that instant. It is never written.

    Attributes
    ----------
    stage : int
        The stage whose call it is; at a station of a network, its class.
    seconds : float array of shape (M,)
        t_comp: estimated seconds of this call alone on each instance; inf where the stage is not served.
    queued : float array of shape (M,)
        t_queue: seconds of work at each instance, in the reading of `Dispatcher.reading`: the t_comp of all calls there
        ("estimated"), or what is truly left of them, alone ("true").
    outstanding : int64 array of shape (M,)
        Calls at each instance, those in service included.
    tokens : float or int64 array of shape (M,)
        Tokens still to be served at each instance; seconds of work at a classical server.
    assigned : float array of shape (M,)
        W: t_comp of all calls ever sent to each instance.
    turn : int
        Calls of this stage that have been sent before.
    shares : float array of shape (M,)
        Of a rule with a static split: the share of this stage's calls that each instance gets; sums to 1.
    chance : float
        A uniform random number, for rules that toss; 0 for the others.
    """

    stage: int
    seconds: Floats
    queued: Floats
    outstanding: Ints
    tokens: Floats | Ints
    assigned: Floats
    turn: int
    shares: Floats
    chance: float


Choose = Callable[[DispatchView, Floats], int]


@attrs.frozen
class Domain:
    """Where a parameter may lie: from ``low`` to ``high``, the ends included unless it is ``open``.

    >>> 1.0 in Domain(0, 1), 1.0 in Domain(0, 1, open=True), Domain(0, 1).said
    (True, False, '0 to 1')
    """

    low: float
    high: float
    open: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low < value < self.high if self.open else self.low <= value <= self.high

    @property
    def said(self) -> str:
        """In words."""
        if self.high < np.inf:
            return f"{self.low:g} to {self.high:g}" + ", ends left out" * self.open
        return f"above {self.low:g} and finite"


UNIT = Domain(0, 1)
POSITIVE = Domain(0, np.inf, open=True)
FINITE = Domain(-np.inf, np.inf, open=True)


#: Readings of t_queue, see `DispatchView.queued`.
READINGS = ("estimated", "true")


@attrs.frozen(kw_only=True)
class DispatchRule:
    """A rule by its function.

    Parameters
    ----------
    name : str
    choose : callable
        ``choose(view, parameters) -> int``; see the head of the module.
    rule : str
        The rule in one sentence.
    source : str
        Where it is described.
    defaults : mapping of str to float
        Its parameters by name, in the order in which ``choose`` gets them, with their defaults.
    domains : mapping of str to Domain
        Of parameters that are not to be any finite number.
    words : mapping of str to (mapping of str to float)
        Of parameters that are a choice of words: the number that stands for each.
    tosses : bool
        Whether it reads ``view.chance``.
    reads_queued : bool
        Whether it reads ``view.queued``, so that there are two readings of it.
    split : {"", "uniform", "proportional", "lp"}
        Of a rule with a static split: which one `view.shares` holds. Uniform over the instances that serve the stage;
        proportional to their speed for it, 1/t_comp; that of the linear program of `stability.cluster_capacity`.
    oblivious : bool
        Whether its choices do not depend on what is at the instances now: they read no ``queued``, ``outstanding`` or
        ``tokens``.

    Raises
    ------
    InvalidInput
        One line a fault: a ``choose`` that is no function, a default that is out of range.
    """

    name: str
    choose: Choose = attrs.field(eq=False)
    rule: str = "a user's own rule"
    source: str = "a user's own rule"
    defaults: Mapping[str, float] = attrs.field(factory=dict)
    domains: Mapping[str, Domain] = attrs.field(factory=dict)
    words: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    tosses: bool = False
    reads_queued: bool = False
    split: str = ""
    oblivious: bool = False

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot be called, and defaults that are out of range."""
        if not callable(self.choose):
            raise InvalidInput(f"choose: {shown(self.choose)} is no function; give choose(view, parameters) -> int")
        faults = list(_faults(self, self.defaults, READINGS[0]))
        if faults:
            raise InvalidInput(faults)

    def said(self, name: str, value: float) -> str:
        """A value of a parameter as it is written."""
        return next((word for word, number in self.words.get(name, {}).items() if number == value), f"{value:.12g}")


def _faults(rule: DispatchRule, values: Mapping[str, float], reading: str) -> Iterator[str]:
    """What is wrong with parameters, a line each."""
    for name, value in values.items():
        if not isinstance(value, _REAL):
            yield f"{name}: {shown(value)} is no number; give one"
        elif name not in rule.defaults:
            yield f"{name}: {rule.name} has no such parameter; it has {', '.join(rule.defaults) or 'none'}"
        elif name in rule.words:
            if value not in rule.words[name].values():
                yield f"{name}: {value:g} stands for no word; write one of {', '.join(rule.words[name])}"
        elif value not in rule.domains.get(name, FINITE):
            yield f"{name}: {value:.12g} is out of range; {rule.name} takes {rule.domains.get(name, FINITE).said}"
    if reading not in READINGS:
        yield f"queue: {shown(reading)} is no reading of t_queue; write one of {', '.join(READINGS)}"


def _share_faults(shares: object) -> Iterator[str]:
    """What is wrong with a split of one's own, whatever the cluster; a line each."""
    if shares is None:
        return
    if not isinstance(shares, Sequence) or not all(isinstance(row, Sequence) and len(row) for row in shares):
        yield f"shares: {shown(shares)} is no table; give a row a stage with an entry an instance"
        return
    for stage, row in enumerate(shares):
        if not all(isinstance(share, _REAL) and 0 <= share <= 1 + SHARE_ROUNDING for share in row):
            yield f"shares[{stage}]: {shown(row)} has an entry that is no share; give numbers from 0 to 1"
        elif abs(math.fsum(row) - 1) > SHARE_ROUNDING:
            yield f"shares[{stage}]: sum to {math.fsum(row):.6g}; give shares of sum 1"


#: How far a sum of shares may be from 1.
SHARE_ROUNDING = 1e-6
_REAL = (int, float, Fraction, np.integer, np.floating)


@attrs.frozen(kw_only=True)
class Dispatcher:
    """A rule with its parameters.

    Attributes
    ----------
    rule : DispatchRule
    values : mapping of str to float
        Parameters of the rule; one that is left out has its default.
    reading : {"estimated", "true"}
        Of t_queue, see `DispatchView.queued`.
    shares : tuple of tuple of float, optional
        Of a rule with a static split, one's own split in the place of ``rule.split``: a row a stage, an entry an
        instance; not negative, each row of sum 1.
    text : str
        How it was written, for reports.

    Raises
    ------
    InvalidInput
        One line a fault: no rule, a parameter that the rule does not have or that is out of range, an unknown reading,
        shares that are none.
    """

    rule: DispatchRule
    values: Mapping[str, float] = attrs.field(factory=dict)
    reading: str = "estimated"
    shares: tuple[tuple[float, ...], ...] | None = None
    text: str = ""

    def __attrs_post_init__(self) -> None:
        """Refuse what the rule does not take."""
        if not isinstance(self.rule, DispatchRule):
            raise InvalidInput(f"rule: {shown(self.rule)} is no DispatchRule; make one, or take one of DISPATCH_RULES")
        faults = [*_faults(self.rule, self.values, self.reading), *_share_faults(self.shares)]
        if faults:
            raise InvalidInput(faults)

    @property
    def name(self) -> str:
        """How reports call it: as it was written, or the rule and what differs from its defaults."""
        if self.text:
            return self.text
        changed = [(name, value) for name, value in self.values.items() if value != self.rule.defaults[name]]
        flags = [f"+{name}={self.rule.said(name, value)}" for name, value in changed]
        return self.rule.name + "".join(flags) + "+queue=true" * (self.reading == "true")

    @property
    def parameters(self) -> Floats:
        """What ``rule.choose`` gets: every parameter in the order of the rule's defaults."""
        return np.array([self.values.get(name, usual) for name, usual in self.rule.defaults.items()], dtype=np.float64)
