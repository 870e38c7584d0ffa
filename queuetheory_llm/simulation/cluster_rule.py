"""A rule for a cluster: where a call goes, and who is served next there, written ``hexgen-paper+alpha=0.2/urgency``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs
import numpy as np

from queuetheory_llm.dispatch.registry import to_dispatcher
from queuetheory_llm.dispatch.view import Dispatcher, DispatchRule
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.words import shown
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.schedulers.queue_orders import to_order
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.cluster_run import ClusterRun
from queuetheory_llm.simulation.queries import Queries

if TYPE_CHECKING:
    from queuetheory_llm.simulation.cluster_runner import ClusterProcess


@attrs.frozen(kw_only=True)
class ClusterRule:
    """A dispatch rule with its parameters, and the queue order of every instance."""

    dispatcher: Dispatcher
    order: QueueOrder

    @property
    def name(self) -> str:
        """How reports call it."""
        return f"{self.dispatcher.name}/{self.order.name}"

    @property
    def settings(self) -> tuple[object, ...]:
        """What it does, however it is written: two rules with the same settings are one."""
        dispatcher = self.dispatcher
        own = (dispatcher.rule.name, dispatcher.rule.choose, self.order.name, self.order.key, self.order.fair)
        return (*own, tuple(dispatcher.parameters.tolist()), dispatcher.reading, dispatcher.shares)

    @property
    def alpha(self) -> float:
        """The weight alpha of a score.

        Raises
        ------
        InvalidInput
            If the dispatch rule has none.
        """
        self.require_alpha()
        return self.dispatcher.values.get("alpha", self.dispatcher.rule.defaults["alpha"])

    def require_alpha(self) -> None:
        """Refuse a rule without alpha.

        Raises
        ------
        InvalidInput
        """
        if "alpha" not in self.dispatcher.rule.defaults:
            name = self.dispatcher.rule.name
            raise InvalidInput(f"alpha: {name} has none; choose a rule that weighs, such as hexgen-paper")

    def with_alpha(self, alpha: float) -> ClusterRule:
        """The same rule with another alpha.

        Raises
        ------
        InvalidInput
            If the dispatch rule has none, or the value is outside 0 .. 1.
        """
        self.require_alpha()
        values = {**self.dispatcher.values, "alpha": alpha}
        return attrs.evolve(self, dispatcher=attrs.evolve(self.dispatcher, values=values, text=""))


def to_cluster_rule(
    rule: ClusterRule | Dispatcher | DispatchRule | str, order: QueueOrder | str = "fcfs"
) -> ClusterRule:
    """A rule as it is; of a dispatch rule with ``order``; of a text by its two names, the second may be missing.

    Raises
    ------
    InvalidInput
        If a name or a flag is unknown.

    Examples
    --------
    >>> to_cluster_rule("hexgen-paper+alpha=1/2/urgency").order.name, to_cluster_rule("round-robin").name
    ('urgency', 'round-robin/fcfs')
    """
    if isinstance(rule, ClusterRule):
        return rule
    if not isinstance(rule, str | Dispatcher | DispatchRule):
        raise InvalidInput(f"rule: {shown(rule)} is no rule; give a text such as round-robin/fcfs, or a Dispatcher")
    if not isinstance(order, str | QueueOrder):
        raise InvalidInput(f"order: {shown(order)} is no queue order; give a name such as fcfs, or a QueueOrder")
    try:
        return _by_names(rule, order)
    except InvalidInput as error:  # the names are read by what reads --dispatch and --order too
        faults = [re.sub(r"^--(dispatch|order): ", lambda found: _SAID[found[1]], fault) for fault in error.faults]
        raise InvalidInput(faults) from None


_SAID = {"dispatch": "rule: ", "order": "order: "}


def _by_names(rule: Dispatcher | DispatchRule | str, order: QueueOrder | str) -> ClusterRule:
    if isinstance(rule, str):
        where, slash, own = rule.rpartition("/")
        if not slash or own[:1].isdigit():  # +alpha=1/2
            where, own = rule, ""
        return ClusterRule(dispatcher=to_dispatcher(where), order=to_order(own if where != rule else order))
    return ClusterRule(dispatcher=to_dispatcher(rule), order=to_order(order))


def to_cluster_rules(rules: Iterable[ClusterRule | Dispatcher | str], order: QueueOrder | str) -> list[ClusterRule]:
    """Several rules, each once.

    Raises
    ------
    InvalidInput
        If there is none, or one comes twice, in other words too; and as `to_cluster_rule`.
    """
    if not isinstance(rules, Iterable):
        raise InvalidInput(f"rules: {shown(rules)} is no list of rules; give one such as ['round-robin/fcfs']")
    found = [to_cluster_rule(rule, order) for rule in ([rules] if isinstance(rules, str) else rules)]
    names = [each.name for each in found]
    if not found:
        raise InvalidInput("rules: none is given; name at least one, such as round-robin/fcfs")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput([f"rules: {name} comes twice; give it once" for name in twice])
    for place, each in enumerate(found):
        for other in found[:place]:
            if each.settings == other.settings:
                raise InvalidInput(f"rules: {each.name} is {other.name} in other words; give it once")
    return found


def process_of(
    system: WorkflowSystem, queries: Queries, rule: ClusterRule, *, rng: np.random.Generator, clock: Clock
) -> ClusterProcess:
    """A rule on a cluster, to be advanced; see `cluster_runner.ClusterProcess`."""
    from queuetheory_llm.simulation.cluster_runner import ClusterProcess  # loads numba

    return ClusterProcess(system, queries, rule.dispatcher, rule.order, rng=rng, clock=clock)


def run_rule(
    system: WorkflowSystem,
    queries: Queries,
    rule: ClusterRule,
    *,
    until: int | None,
    rng: np.random.Generator,
    clock: Clock,
    steps_cut: int = 1,
) -> ClusterRun:
    """Run a rule on a cluster; see `cluster_runner.run_cluster`."""
    from queuetheory_llm.simulation.cluster_runner import run_cluster  # loads numba

    return run_cluster(
        system, queries, rule.dispatcher, rule.order, until=until, rng=rng, clock=clock, steps_cut=steps_cut
    )
