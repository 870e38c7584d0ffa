"""``qt-llm fluid``: the path of the fluid model, when it is empty, or by how much it grows."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

from cyclopts import Parameter

from queuetheory_llm.cli.figures import Output, figure_format
from queuetheory_llm.cli.fluid_engines import EngineQuestion, answer_engine
from queuetheory_llm.cli.fluid_networks import NetworkQuestion, answer_network
from queuetheory_llm.cli.inputs import (
    Decode,
    Prefill,
    Rate,
    flag_seconds,
    positive_flag,
    read_question,
    read_rules,
    said_of_flags,
)
from queuetheory_llm.cli.output import Json, Schedulers
from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.files.atomic import check_apart
from queuetheory_llm.files.model_file import read_document
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.files.rate_profile import load_rate_profile

DEFAULT_MODEL = "rybko-stolyar"

Starts = Annotated[
    list[str] | None,
    Parameter(
        name="--start",
        metavar="CLASS=TASKS",
        negative=(),
        help="Fluid at time 0: tasks of a class of a network, or prefill=TOKENS and decode=TOKENS of an engine; may "
        "be repeated. Default: one task of the first class from which a path grows, else where the network is fed; "
        "1000 requests at an engine.",
    ),
]


def fluid(
    model: str = DEFAULT_MODEL,
    *,
    start: Starts = None,
    horizon: Annotated[
        str | None, Parameter(metavar="SECONDS", help="Follow the path so long. Default: until its fate is known.")
    ] = None,
    profile: Annotated[
        str | None,
        Parameter(
            metavar="FILE",
            help="CSV with the header time,factor or time,rate: arrival rates over time. How deep is the overload, and "
            "when is it worked off?",
        ),
    ] = None,
    keep_below: Annotated[
        str | None,
        Parameter(
            metavar="NUMBER",
            help="With --profile: what would keep the backlog below so many tokens (an engine), or seconds of work at "
            "each station (a network)?",
        ),
    ] = None,
    scale: Annotated[
        str | None, Parameter(metavar="NUMBER", help="Multiply all arrival rates of a network by this factor.")
    ] = None,
    simulate: Annotated[
        bool, Parameter(negative=(), help="Set a simulated run of the network beside its path, in the figure too.")
    ] = False,
    seed: Annotated[str | None, Parameter(metavar="INT", help="Of the simulated run. Default: 0.")] = None,
    scheduler: Schedulers = None,
    rate: Rate = None,
    prefill: Prefill = None,
    decode: Decode = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Path of the fluid model: emptying time, or growth factor; how deep and how long an overload is.

    A network under priorities is followed exactly, in fractions, along every solution; first come, first served, joins
    and rates over time are integrated numerically. Of one engine, the two token backlogs of each --scheduler.

    Parameters
    ----------
    model
        A network, workflow or model file, or the name of a packaged one; a workflow is the network of its best split.
    """
    figure_format(output)
    check_apart({"-o": output}, {"the model": model, "--profile": profile})
    begin = _read_start(start)
    seconds = None if horizon is None else positive_flag("--horizon", horizon, flag_seconds)
    rates = None if profile is None else load_rate_profile(profile)
    kept = None if keep_below is None else positive_flag("--keep-below", keep_below)
    if kept is not None and rates is None:
        raise InvalidInput("--keep-below: goes with --profile, the rates over time; give both or neither")
    document = read_document(model)
    if document.is_network or document.is_workflow:
        _refuse({"--scheduler": scheduler, "--rate": rate, "--prefill": prefill, "--decode": decode}, "an engine")
        _refuse_simulation(simulate, seed, profile)
        network = load_network(model)
        network = network if scale is None else network.scaled(positive_flag("--scale", scale))
        question = NetworkQuestion(
            network=network, start=begin, horizon=seconds, profile=rates, keep_below=kept, simulate=simulate, seed=seed
        )
        with said_of_flags("start", "horizon"):
            try:
                answer_network(question, output, json)
            except AssumptionViolated as error:
                raise AssumptionViolated(f"{model}: {error}") from None
        return
    _refuse({"--scale": scale, "--simulate": simulate or None, "--seed": seed}, "a network")
    if rates is not None and seconds is not None:
        raise InvalidInput("--horizon: with --profile an engine is followed until its fate is known; leave it out")
    asked = read_question(model, prefill=prefill, decode=decode, rate=rate)
    rules = tuple(read_rules(scheduler))
    engine = EngineQuestion(
        system=asked.system, rules=rules, start=begin, horizon=seconds, profile=rates, keep_below=kept
    )
    with said_of_flags("start", "horizon"):
        answer_engine(engine, output, json)


def _refuse(flags: dict[str, object], of: str) -> None:
    """Flags that say nothing of this kind of model."""
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise InvalidInput(f"{flag}: is for {of}, which this model is not; leave it out" for flag in given)


def _refuse_simulation(simulate: bool, seed: str | None, profile: str | None) -> None:
    """A run that is not asked for has no seed, and one at rates over time is not made."""
    if simulate and profile is not None:
        raise InvalidInput("--simulate: the runs are at constant rates, without --profile; leave one of them out")
    if seed is not None and not simulate:
        raise InvalidInput("--seed: nothing is simulated; leave it out, or give --simulate without --profile")


def _read_start(given: Sequence[str] | None) -> dict[str, Fraction] | None:
    """``A1=2000`` as a number of tasks of each class."""
    if not given:
        return None
    found: dict[str, Fraction] = {}
    for text in given:
        name, sign, tasks = text.rpartition("=")
        if not sign or not name:
            raise InvalidInput(f"--start: {text!r} names no class; write CLASS=TASKS, such as A1=1")
        if name in found:
            raise InvalidInput(f"--start: {name!r} is given more than once; give each class once")
        try:
            found[name] = to_fraction(tasks)
        except InvalidInput as error:
            raise InvalidInput(f"--start: {name}: {fault}" for fault in error.faults) from None
        if found[name] < 0:
            raise InvalidInput(f"--start: {text} is negative; give 0 or more")
    return found
