"""A query of an agent: LLM calls that depend on one another, some in parallel, some repeated, with one deadline.

A query passes its *stages*. A stage begins when all the stages that it comes after have ended, makes one call or
several in parallel, and ends with the last of them (a barrier). A stage may be left out by chance, and a *retry* sends
the query back to an earlier stage, or to the same one, by chance. Scheduling sees the calls; the tenant sees the query
(HEXGEN-FLOW, arXiv 2505.05286, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import attrs

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.exact.numbers import optional_seconds, to_fraction
from queuetheory_llm.exact.reading import decimal
from queuetheory_llm.model.arrivals import IntervalLaw
from queuetheory_llm.model.columns import keyed, listed, names, of_type, text, tuple_of
from queuetheory_llm.model.lengths import Constant, LengthLaw, to_law
from queuetheory_llm.model.workflow_faults import workflow_faults
from queuetheory_llm.model.workflow_plan import Plan, plan_of


def _law(value: LengthLaw | int) -> LengthLaw:
    """A law, or a number as the constant law; what that refuses is said of the field, not of its ``value``."""
    try:
        return to_law(value)
    except InvalidInput as error:
        raise InvalidInput([fault.removeprefix("value: ") for fault in error.faults]) from None


def _chance(_: object, field: attrs.Attribute[Fraction], value: Fraction) -> None:
    if not 0 < value <= 1:
        raise InvalidModel(f"{field.name}: {decimal(value)} is outside 0 < {field.name} <= 1; leave out what never is")


def _positive(_: object, field: attrs.Attribute[Fraction], value: Fraction | None) -> None:
    if value is not None and value <= 0:
        raise InvalidModel(f"{field.name}: {decimal(value)} is not positive")


@keyed
@attrs.frozen(kw_only=True)
class Stage:
    """One step of a query: calls of one kind, in parallel.

    Parameters
    ----------
    name : str
    prefill, decode : LengthLaw, optional
        Tokens of a call; what LLM engines and isolated-latency instances serve.
    work : IntervalLaw, optional
        Seconds of a call at a classical server of speed 1, in the place of tokens.
    calls : LengthLaw
        Number of calls in parallel, 1 or more and bounded; the stage ends with the last.
    chance : Fraction
        Probability that the stage is run when the query comes to it; else it is passed at once, and so are the retries
        of this stage alone.
    after : tuple of str, optional
        The stages that must have ended; None is the stage listed before it, () none.
    """

    name: str = attrs.field(validator=text)
    prefill: LengthLaw | None = attrs.field(default=None, converter=attrs.converters.optional(_law))
    decode: LengthLaw | None = attrs.field(default=None, converter=attrs.converters.optional(_law))
    work: IntervalLaw | None = attrs.field(default=None, validator=attrs.validators.optional(of_type(IntervalLaw)))
    calls: LengthLaw = attrs.field(factory=lambda: Constant(1), converter=_law)
    chance: Fraction = attrs.field(default=Fraction(1), converter=to_fraction, validator=_chance)
    after: tuple[str, ...] | None = attrs.field(
        default=None, converter=listed, validator=attrs.validators.optional(names)
    )

    @property
    def classical(self) -> bool:
        """Whether its calls are seconds of work instead of tokens."""
        return self.work is not None


@keyed
@attrs.frozen(kw_only=True)
class Retry:
    """After stage ``source`` the query goes back to stage ``to`` with this probability, each time anew.

    All between the two is run again. The number of passes is geometric, of mean 1/(1 - probability). Both ends are
    stages of one series that are run in every pass. Of several retries from one stage the shorter is asked first, the
    longer only when the query does not take it.

    ``to`` may be ``source`` itself. The chance of such a stage is asked once, on the way in: the number of its runs is
    0 with probability 1 - chance, else geometric, and chance/(1 - probability) in the mean.
    """

    source: str = attrs.field(validator=text)
    to: str = attrs.field(validator=text)
    probability: Fraction = attrs.field(converter=to_fraction, validator=_chance)


@keyed
@attrs.frozen(kw_only=True)
class Tenant:
    """Whose queries they are: a share of the arrivals, and the seconds from arrival to the end of each query.

    Parameters
    ----------
    name : str
    share : Fraction
        Weight among the tenants.
    slo : Fraction, optional
        Seconds (or "90 s"); None: no deadline is given in seconds.
    slo_scale : Fraction, optional
        The deadline as a multiple of an average query alone, see `cluster.WorkflowSystem.base_seconds`.
    """

    name: str = attrs.field(validator=text)
    share: Fraction = attrs.field(default=Fraction(1), converter=to_fraction, validator=_positive)
    slo: Fraction | None = attrs.field(default=None, converter=optional_seconds, validator=_positive)
    slo_scale: Fraction | None = attrs.field(
        default=None, converter=attrs.converters.optional(to_fraction), validator=_positive
    )


@keyed
@attrs.frozen(kw_only=True)
class Workflow:
    """What the queries of one kind do.

    Attributes
    ----------
    stages : tuple of Stage
        In an order in which each comes after those it depends on.
    retries : tuple of Retry
    tenants : tuple of Tenant
        At least one.
    source : mapping of str to str
        Free text: title, url, section.
    name : str

    Raises
    ------
    InvalidModel
        One line a fault, ``KEY PATH: WHAT, and how to mend it``; all the faults there are.
    """

    stages: tuple[Stage, ...] = attrs.field(converter=listed, validator=tuple_of(Stage))
    retries: tuple[Retry, ...] = attrs.field(default=(), converter=listed, validator=tuple_of(Retry))
    tenants: tuple[Tenant, ...] = attrs.field(
        factory=lambda: (Tenant(name="all"),), converter=listed, validator=tuple_of(Tenant)
    )
    source: Mapping[str, str] = attrs.field(factory=dict, validator=of_type(Mapping))
    name: str = attrs.field(default="workflow", validator=text)

    def __attrs_post_init__(self) -> None:
        """Check that the parts fit together."""
        faults = list(workflow_faults(self))
        if faults:
            raise InvalidModel(faults)

    @cached_property
    def plan(self) -> Plan:
        """The stages as a series-parallel plan with loops."""
        return plan_of(self)

    @cached_property
    def visits(self) -> tuple[Fraction, ...]:
        """Expected calls of each stage in a query, a mean number of calls that is no fraction taken as it is."""
        return tuple(
            Fraction(each.calls.mean) * runs
            for each, runs in zip(self.stages, self.plan.runs(len(self.stages)), strict=True)
        )

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each comes after, by number."""
        number = {each.name: j for j, each in enumerate(self.stages)}
        return tuple(
            (() if j == 0 else (j - 1,)) if each.after is None else tuple(number[name] for name in each.after)
            for j, each in enumerate(self.stages)
        )
