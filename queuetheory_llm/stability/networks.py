"""The verdict on a network: theorem, certificate, fluid model or nothing, group of stations by group.

Stations that feed one another form a group, and groups can be put in an order in which no route leads back. The fluid
model of a network is stable when every group is, fed at its rates of the traffic equations: once the earlier groups are
empty, that is what they send. So each group is judged by itself (Dai 1995; Dai et al. 2025, section 5), by the first of
the grounds in `_GROUNDS` that says something. Under back-pressure, what a station serves depends on the queues behind
it, so that no part stands alone (Tassiulas, Ephremides 1992; Dai, Lin 2005): the network is one group.

A stable network is positive Harris recurrent where interarrival times are unbounded and spread out (Dai 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property

import attrs

from queuetheory_llm.certificates.certificate import Certificate
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.rounding import load_text
from queuetheory_llm.model.fluid_model import FluidModel
from queuetheory_llm.model.network import Network, Station
from queuetheory_llm.stability.arguments import require_network
from queuetheory_llm.stability.certified import MOST_PROGRAM, Group, compose, first_certificate
from queuetheory_llm.stability.fluid_path import FluidPath, GrowthSearch, search_growth
from queuetheory_llm.stability.frontier import Frontier, Progress, frontier, load_frontier
from queuetheory_llm.stability.lyapunov import LyapunovPolicy
from queuetheory_llm.stability.network_answer import POLICIES, GroupVerdict, NetworkAnswer, Policy
from queuetheory_llm.stability.network_doubts import (
    fluid_doubt,
    group_doubt,
    load_binds,
    network_notes,
    recurrence_note,
    taken_as_one,
)
from queuetheory_llm.stability.network_topology import NetworkTopology, needs_proof, network_topology
from queuetheory_llm.stability.traffic import Traffic, components, cyclic_joins, load_certificate, traffic
from queuetheory_llm.stability.virtual_stations import VirtualStation, virtual_stations
from queuetheory_llm.verdict import Basis, Judgement, Verdict, combine

__all__ = ["POLICIES", "GroupVerdict", "NetworkAnswer", "Policy", "verify_stability"]

_BACK_PRESSURE = (
    "every load is below 1, and back-pressure is then stable on any routes (Tassiulas, Ephremides 1992; Dai, Lin 2005)"
)
_INNER_JOIN = (
    "a join lies inside a cycle of stations, which no theorem covers; one whose task has a station "
    "of its own is covered"
)
_FIRST_COME = (
    "every load is below 1, no Lyapunov function was found, and of several classes served first come, first served the "
    "fluid model has no exact path; qt-llm fluid follows one numerically, and lower rates or priorities may be proved"
)
_ENCLOSED = "every load is below 1, and the rates are only known between bounds; a proof needs exact ones"
_NOTHING_FOUND = (
    "every load is below 1, and neither a Lyapunov function nor a growing path of the fluid model was found"
)


def verify_stability(
    network: Network, *, policy: Policy = "file", max_scale: bool = False, progress: Progress | None = None
) -> NetworkAnswer:
    """Whether a network is stable, with the ground and, where there is one, the certificate.

    Parameters
    ----------
    network : Network
    policy : {"file", "any", "back-pressure"}
        Under the orders of service of the network; under every non-idling policy; under back-pressure.
    max_scale : bool
        Also the largest factor on all arrival rates that is certified, and the smallest shown unstable.
    progress : callable, optional
        Is told from time to time which share of the search for these factors is done, 0 to 1.

    Raises
    ------
    InvalidInput
        If the policy is not known, or ``network`` is no `Network`.
    InvalidModel
        If tasks never leave the network, or multiply without end.

    Examples
    --------
    >>> from queuetheory_llm.files.network_file import load_network
    >>> answer = verify_stability(load_network("rybko-stolyar"))
    >>> answer.judgement.verdict.value, answer.certificate.kind
    ('UNSTABLE', 'virtual-station')
    """
    if policy not in POLICIES:
        raise InvalidInput(f"policy: {policy!r} is not known; write one of {', '.join(POLICIES)}")
    require_network(network)
    if not isinstance(max_scale, bool):
        raise InvalidInput(f"max_scale: {max_scale!r} is neither True nor False; write one of them")
    model = network.fluid_model if policy == "file" else network.fluid_model.without_priorities()
    solved = traffic(model)
    questions = tuple(_questions(network, model, solved, policy))
    groups = tuple(map(_judge, questions))
    topology = network_topology(model, in_order=_in_order(network, model, policy))
    judgement = _overall(groups, topology)
    doubt = next((each.doubt for each in questions if each.doubt is not None), None)
    scales = _max_scale(model, policy, topology, questions, progress) if max_scale and doubt is None else None
    return NetworkAnswer(
        title=network.name,
        policy=policy,
        model=model,
        traffic=solved,
        topology=topology,
        judgement=judgement,
        groups=groups,
        certificate=_certificate(network, model, solved, groups, judgement),
        max_scale_asked=max_scale,
        max_scale=scales,
        notes=tuple(_notes(network, solved, judgement, doubt if max_scale else None)),
    )


@attrs.frozen(kw_only=True)
class _Question:
    """A group, and what the grounds ask of it.

    Attributes
    ----------
    group : Group
    stations : tuple of Station
    model : FluidModel
        The whole.
    solved : Traffic
        Of the whole.
    policy : Policy
    doubt : str or None
        Why the fluid model does not describe its engines.
    inner_join : bool
        Whether a join lies inside a cycle in it.
    in_order : bool
        Whether its stations without priorities serve whole tasks in order of arrival.
    """

    group: Group
    stations: tuple[Station, ...]
    model: FluidModel
    solved: Traffic
    policy: Policy
    doubt: str | None
    inner_join: bool
    in_order: bool

    @property
    def orders(self) -> LyapunovPolicy:
        """Of Lyapunov functions and virtual stations."""
        return "file" if self.policy == "file" else "any"

    @property
    def load(self) -> Fraction:
        """The largest of its stations, as far as it is known."""
        return max(self.solved.loads_high[s] for s in self.group.stations)

    @cached_property
    def topology(self) -> NetworkTopology:
        """Of the group alone."""
        return network_topology(self.group.model, in_order=self.in_order)

    @cached_property
    def open(self) -> bool:
        """Whether loads below 1 are not enough, and there are exact rates to prove more with."""
        return self.solved.exact and not self.inner_join and needs_proof(self.model, self.group.stations)

    @cached_property
    def virtual(self) -> tuple[VirtualStation, ...]:
        """Its virtual stations, where the fluid model describes it."""
        if self.doubt is not None or self.policy == "back-pressure" or not self.open:
            return ()
        return virtual_stations(self.group.model, traffic(self.group.model), self.orders)

    @cached_property
    def growth(self) -> GrowthSearch:
        """A path of its fluid model under the orders of the file that grows, as far as one was looked for."""
        return search_growth(self.group.model)

    def says(
        self,
        verdict: Verdict,
        basis: Basis | None,
        reason: str,
        *,
        load: Fraction | None = None,
        certificate: Certificate | None = None,
        by_theorem: bool = False,
    ) -> GroupVerdict:
        """The verdict of a ground."""
        return GroupVerdict(
            group=self.group,
            judgement=Judgement(verdict=verdict, basis=basis, reason=reason, load=load),
            certificate=certificate,
            virtual_stations=self.virtual,
            by_theorem=by_theorem,
        )


def _questions(network: Network, model: FluidModel, solved: Traffic, policy: Policy) -> Iterator[_Question]:
    everything = tuple(range(len(model.stations)))
    whole = policy == "back-pressure"
    inner = {model.station[model.joins[number][1]] for number in cyclic_joins(model)}
    for stations in (everything,) if whole else components(model):
        part = model if whole else model.restricted(stations, solved.rates)
        yield _Question(
            group=Group(stations=stations, model=part),
            stations=tuple(network.stations[s] for s in stations),
            model=model,
            solved=solved,
            policy=policy,
            doubt=fluid_doubt(network, policy) if whole else group_doubt(network, stations, part),
            inner_join=bool(inner & set(stations)),
            in_order=_in_order(network, part, policy),
        )


def _in_order(network: Network, model: FluidModel, policy: Policy) -> bool:
    """Whether the stations without priorities serve whole tasks in order of arrival."""
    classical = {station.name for station in network.stations if station.classical}
    return policy == "file" and classical.issuperset(model.stations)


def _judge(question: _Question) -> GroupVerdict:
    """The verdict of the first ground that has one."""
    grounds = _PRESSURE_GROUNDS if question.policy == "back-pressure" else _GROUNDS
    found = next(said for ground in grounds if (said := ground(question)) is not None)
    pooled = taken_as_one(question.stations, question.group.model)
    if found.judgement.verdict is not Verdict.STABLE or pooled is None:
        return found
    judged = attrs.evolve(found.judgement, basis=Basis.FLUID, reason=f"{found.judgement.reason}; {pooled}")
    return attrs.evolve(found, judgement=judged, certificate=None, by_theorem=False)


def _overload(question: _Question) -> GroupVerdict | None:
    """A load above 1, in every order of service."""
    solved = question.solved
    binding = [
        s
        for s, station in zip(question.group.stations, question.stations, strict=True)
        if solved.loads_low[s] > 1 and load_binds(station)
    ]
    if not binding:
        return None
    worst = max(binding, key=solved.loads.__getitem__)
    station = question.stations[question.group.stations.index(worst)]
    served = "it is served" if station.classical else "full batches serve it"
    dispatched = " behind this dispatcher" if len(station.engines) > 1 else ""
    load = solved.loads[worst]
    reason = f"the load of {station.name} is {load_text(load)}: in every order of service work comes faster than "
    return question.says(Verdict.UNSTABLE, Basis.THEOREM, f"{reason}{served}{dispatched}", load=load)


def _doubt(question: _Question) -> GroupVerdict | None:
    """Engines that neither theorem nor fluid model describes."""
    return None if question.doubt is None else question.says(Verdict.UNDECIDED, None, question.doubt)


def _inner_join(question: _Question) -> GroupVerdict | None:
    """A join inside a cycle."""
    return question.says(Verdict.UNDECIDED, None, _INNER_JOIN) if question.inner_join else None


def _virtual_station(question: _Question) -> GroupVerdict | None:
    """A virtual station with a load above 1: more than the policy, or some policy, can bear.

    Under the orders of the file one that is no proof is left to the paths of the fluid model.
    """
    over = [each for each in question.virtual if each.load > 1 and (question.policy == "any" or each.is_proof)]
    if not over:
        return None
    worst = max(over, key=lambda each: (each.is_proof, each.load))
    basis = Basis.CERTIFICATE if worst.is_proof else Basis.FLUID
    # The proof is about the whole where a join does not stand in its way.
    about = worst if question.model.joins else worst.of_whole(question.model, question.solved)
    certificate = about.certificate()
    return question.says(Verdict.UNSTABLE, basis, worst.text, load=worst.load, certificate=certificate)


def _critical(question: _Question) -> GroupVerdict | None:
    """A load of exactly 1, or of 1 as far as it is known."""
    if question.load < 1:
        return None
    worst = max(question.group.stations, key=question.solved.loads_high.__getitem__)
    name = question.model.stations[worst]
    if question.solved.exact:
        return question.says(
            Verdict.CRITICAL, Basis.THEOREM, f"the load of {name} is exactly 1", load=question.solved.loads[worst]
        )
    reason = f"the load of {name} is 1 as far as the traffic equations could be solved"
    return question.says(Verdict.UNDECIDED, None, reason)


def _simple_group(question: _Question) -> GroupVerdict | None:
    """One station, or one class at each: stable below a load of 1."""
    if needs_proof(question.model, question.group.stations):
        return None
    theorem = question.topology.theorem
    return question.says(Verdict.STABLE, Basis.THEOREM, theorem, load=question.load, by_theorem=True)


def _lyapunov_function(question: _Question) -> GroupVerdict | None:
    """One that is found by convex programming and verified exactly."""
    found = first_certificate(question.group.model, policy=question.orders) if question.open else None
    if found is None:
        return None
    load = question.load if question.topology.loads_decide else None
    return question.says(Verdict.STABLE, Basis.CERTIFICATE, found.statement, load=load, certificate=found)


def _order_theorem(question: _Question) -> GroupVerdict | None:
    """A theorem on the order of service: first or last buffer first, first come first served of Kelly type."""
    if not question.topology.loads_decide:
        return None
    return question.says(Verdict.STABLE, Basis.THEOREM, question.topology.theorem, load=question.load)


def _growing_path(question: _Question) -> GroupVerdict | None:
    """A path of the fluid model under the orders of the file that grows."""
    if question.policy == "any" or not question.open:
        return None
    if not question.group.model.is_ordered:
        return question.says(Verdict.UNDECIDED, None, _FIRST_COME)
    path = question.growth.path
    if path is None:
        return None
    return question.says(Verdict.UNSTABLE, Basis.FLUID, _growth_words(path), certificate=path.certificate())


def _nothing(question: _Question) -> GroupVerdict:
    """What is left to say."""
    if not question.open:
        return question.says(Verdict.UNDECIDED, None, _ENCLOSED)
    return question.says(Verdict.UNDECIDED, None, "; ".join([_NOTHING_FOUND, *_not_looked_for(question)]))


def _not_looked_for(question: _Question) -> Iterator[str]:
    """Where the searches ended for their length."""
    if len(question.group.model.classes) > MOST_PROGRAM:
        yield f"functions with a part for each class were not looked for beyond {MOST_PROGRAM} classes"
    if question.policy == "file" and question.growth.left is not None:
        yield question.growth.left


def _back_pressure(question: _Question) -> GroupVerdict:
    """Stable below a load of 1."""
    return question.says(Verdict.STABLE, Basis.THEOREM, _BACK_PRESSURE, load=question.load)


_Ground = Callable[[_Question], GroupVerdict | None]

#: What is asked of a group, in this order; the first that has a verdict gives it.
_GROUNDS: tuple[_Ground, ...] = (
    _overload,
    _doubt,
    _inner_join,
    _virtual_station,
    _critical,
    _simple_group,
    _lyapunov_function,
    _order_theorem,
    _growing_path,
    _nothing,
)
_PRESSURE_GROUNDS: tuple[_Ground, ...] = (_overload, _doubt, _critical, _back_pressure)


def _growth_words(path: FluidPath) -> str:
    """A growing path in a sentence."""
    if path.factor is None:
        return "a path of the fluid model under these priorities runs off to infinity; no proof for the network itself"
    return (
        f"a path of the fluid model under these priorities grows by {float(path.factor):.4g} in each turn; "
        "no proof for the network itself"
    )


def _overall(groups: Sequence[GroupVerdict], topology: NetworkTopology) -> Judgement:
    """Of the groups together: the verdict of all, the ground and the reason of those that decide it."""
    verdict = combine(group.judgement.verdict for group in groups)
    deciding = [group for group in groups if group.judgement.verdict is verdict]
    if len(groups) == 1:
        return groups[0].judgement
    if verdict is not Verdict.STABLE:
        worst = max(deciding, key=lambda group: group.judgement.load or Fraction(0))
        return attrs.evolve(worst.judgement, reason=_said_of(worst))
    loads = [group.judgement.load for group in groups]
    load = max((each for each in loads if each is not None), default=None) if None not in loads else None
    basis = max((group.judgement.basis for group in groups if group.judgement.basis), key=list(Basis).index)
    if basis is not Basis.THEOREM:
        reason = "; ".join(_said_of(group) for group in groups if group.judgement.basis is not Basis.THEOREM)
    elif topology.loads_decide:
        reason = topology.theorem
    else:
        reason = "; ".join(dict.fromkeys(group.judgement.reason for group in groups))
    return Judgement(verdict=verdict, basis=basis, reason=reason, load=load)


def _said_of(group: GroupVerdict) -> str:
    reason = group.judgement.reason
    return reason if reason.startswith(f"{group.names}: ") else f"{group.names}: {reason}"


def _certificate(
    network: Network, model: FluidModel, solved: Traffic, groups: Sequence[GroupVerdict], judgement: Judgement
) -> Certificate | None:
    """The proof of the verdict on the whole; None where it rests on a theorem that no certificate expresses."""
    if not solved.exact or judgement.verdict not in (Verdict.STABLE, Verdict.UNSTABLE):
        return None
    if judgement.verdict is Verdict.UNSTABLE:
        worst = max(range(len(solved.loads)), key=solved.loads.__getitem__)
        if solved.loads[worst] > 1 and load_binds(network.stations[worst]):
            return load_certificate(model, solved)
        unstable = (group for group in groups if group.judgement.verdict is Verdict.UNSTABLE)
        return next((group.certificate for group in unstable if group.certificate is not None), None)
    if not all(group.by_theorem or group.certificate is not None for group in groups):
        return None
    parts = [(group.group, group.certificate) for group in groups if group.certificate is not None]
    return compose(model, solved, parts)


def _max_scale(
    model: FluidModel,
    policy: Policy,
    topology: NetworkTopology,
    questions: Sequence[_Question],
    progress: Progress | None,
) -> Frontier:
    """How far all rates can grow, where the fluid model describes the network."""
    if policy == "back-pressure":
        found = load_frontier(model, "file", _BACK_PRESSURE)
    elif topology.loads_decide:
        found = load_frontier(model, policy, topology.theorem)
    else:
        found = frontier(model, policy=policy, progress=progress)
    pooled = [said for each in questions if (said := taken_as_one(each.stations, each.group.model)) is not None]
    if found.certified is None or not pooled:
        return found
    reason = "; ".join([found.certified.reason, *pooled])
    certified = attrs.evolve(found.certified, basis=Basis.FLUID, reason=reason, certificate=None)
    return attrs.evolve(found, certified=certified)


def _notes(network: Network, solved: Traffic, judgement: Judgement, unknown: str | None) -> Iterator[str]:
    """What the verdict rests on; ``unknown`` is why nothing is known of the scale that was asked for."""
    if unknown is not None:
        yield f"max_scale: nothing is known of how far the rates can grow; {unknown}"
    if not solved.exact:
        yield "the traffic equations are enclosed between bounds, not solved exactly: no certificate is issued"
    note = recurrence_note(network) if judgement.verdict is Verdict.STABLE else None
    if note is not None:
        yield note
    yield from network_notes(network)
