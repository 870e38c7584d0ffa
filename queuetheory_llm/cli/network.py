"""``qt-llm network``: is a network stable, which loads and virtual stations decide, and the proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from cyclopts import Parameter

from queuetheory_llm.cli.figures import Output, figure_format, write_figure
from queuetheory_llm.cli.inputs import positive_flag
from queuetheory_llm.cli.output import (
    Certificate,
    Json,
    load,
    number,
    print_json,
    print_notes,
    print_table,
    print_written,
)
from queuetheory_llm.cli.terminal import progress_bar, say
from queuetheory_llm.cli.words import network_words
from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.files.atomic import check_apart
from queuetheory_llm.files.certificates import check_certificate_target, write_certificate
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.model.network import Network
from queuetheory_llm.stability.frontier import Frontier
from queuetheory_llm.stability.network_levers import OrderLever, order_levers
from queuetheory_llm.stability.networks import NetworkAnswer, Policy, verify_stability
from queuetheory_llm.verdict import Verdict

DEFAULT_MODEL = "rybko-stolyar"


def network(
    model: str = DEFAULT_MODEL,
    *,
    policy: Annotated[
        Policy,
        Parameter(
            help="Who is served: by the orders of the file; by any policy that never idles with work there; by "
            "back-pressure, the class whose queue exceeds most what follows it."
        ),
    ] = "file",
    scale: Annotated[
        str | None, Parameter(metavar="NUMBER", help="Multiply all arrival rates of the file by this factor.")
    ] = None,
    max_scale: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Also the largest factor on all arrival rates certified stable, and the smallest shown unstable.",
        ),
    ] = False,
    certificate: Certificate = None,
    output: Output = None,
    json: Json = False,
) -> int:
    """Verdict on a network of stations: loads, virtual stations, the theorem or certificate that decides, the proof.

    Parameters
    ----------
    model
        A network file or the name of a packaged network; see `qt-llm models`.
    """
    figure_format(output)
    check_apart({"-o": output}, {"the model": model})
    check_certificate_target(certificate, {"-o": output}, {"the model": model})
    system = load_network(model)
    if scale is not None:
        system = system.scaled(positive_flag("--scale", scale))
    with progress_bar("network: the largest scale") as report:
        answer = verify_stability(system, policy=policy, max_scale=max_scale, progress=report)
    levers = _levers(system, answer)
    without = certificate is not None and answer.certificate is None
    if certificate is not None and answer.certificate is not None:
        write_certificate(certificate, answer.certificate)
    if output is not None:
        from queuetheory_llm.plots.network import render_network

        write_figure(output, lambda kind: render_network(answer, kind))
    print_notes(answer.notes)
    if json:
        print_json("network", {**answer.to_dict(), "levers": [lever.to_dict() for lever in levers]})
    else:
        _print(system, answer, levers)
        print_written(None if without else certificate, output)
    if without:
        print_notes([f"--certificate: this verdict has none to check, so that {certificate} was not written"])
    return int(without)


def _levers(system: Network, answer: NetworkAnswer) -> Sequence[OrderLever]:
    """What moves the edge where the orders of the file do not keep a network stable that another order would."""
    open_verdict = answer.judgement.verdict in (Verdict.UNSTABLE, Verdict.UNDECIDED)
    if answer.policy != "file" or not open_verdict or max(answer.traffic.loads_high) >= 1:
        return ()
    return order_levers(system)


def _print(system: Network, answer: NetworkAnswer, levers: Sequence[OrderLever]) -> None:
    judgement = answer.judgement
    basis = "" if judgement.basis is None else f" ({judgement.basis.value})"
    say(f"{answer.title}: {network_words(system)}")
    say(f"{judgement.verdict.value}{basis} {answer.scope}: {judgement.reason}")
    if judgement.load is not None and judgement.margin is not None:
        say(f"load {load(judgement.load)}, margin {number(judgement.margin)}")
    say(f"topology: {answer.topology.sentence}\n")
    model = answer.model
    print_table(
        ["station", "order of service", "load"],
        [[name, _order(answer, s), load(answer.traffic.loads[s])] for s, name in enumerate(model.stations)],
    )
    print_table(
        ["class", "station", "tasks/s", "seconds each", "load"],
        [
            [
                name,
                model.stations[model.station[k]],
                number(answer.traffic.rates[k]),
                number(model.service[k]),
                load(answer.traffic.class_loads[k]),
            ]
            for k, name in enumerate(model.classes)
        ],
    )
    for line in _more(answer, levers):
        say(line)


def _order(answer: NetworkAnswer, station: int) -> str:
    model, order = answer.model, answer.model.priority[station]
    if answer.policy != "file":
        return answer.policy
    if len(model.at(station)) < 2:
        return "one class"
    return "first come, first served" if order is None else " > ".join(model.classes[k] for k in order)


def _more(answer: NetworkAnswer, levers: Sequence[OrderLever]) -> Iterator[str]:
    """What does not fit a table and is not said above: virtual stations, groups, the largest scale, proof, levers."""
    said = answer.judgement.reason
    for each in answer.virtual_stations:
        if each.text not in said:
            yield f"virtual station: {each.text}"
    if len(answer.groups) > 1:
        for group in answer.groups:
            judged = group.judgement
            more = "" if judged.reason in said else f", {judged.reason}"
            yield f"group {group.names}: {judged.verdict.value}{more}"
    if answer.max_scale is not None:
        yield from _scale_lines(answer.max_scale)
    if answer.certificate is not None:
        statement = answer.certificate.statement
        yield f"certificate: {answer.certificate.kind}" + ("" if statement in said else f"; {statement}")
    if levers:
        yield "stable at these rates instead:"
        yield from (f"  {lever.change} ({lever.judgement.basis.value})" for lever in levers if lever.judgement.basis)


def _scale_lines(found: Frontier) -> Iterator[str]:
    """The gap between what is proved stable and what is shown unstable, in factors on all arrival rates."""
    if found.certified is None:
        yield "largest scale certified stable: none found"
    else:
        stable, ground = lower_limit(found.certified.scale, 9), found.certified
        yield f"largest scale certified stable: {stable} ({ground.basis.value}: {ground.reason})"
    unstable = found.unstable
    yield f"smallest scale shown unstable: {upper_limit(unstable.scale, 9)} ({unstable.basis.value}: {unstable.reason})"
    yield found.note
