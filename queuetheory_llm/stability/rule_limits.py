"""The largest stable rate of a dispatch rule as far as theory has it; it does not depend on the rate of the system.

*Splits.* A static split at random; turns, stage by stage; the fastest instance only; the released rule of HEXGEN-FLOW;
any rule where each stage has but one instance: their shares are known whatever the queues. (Of the released rule for
one stage, and at alpha = 1. With proportional times and works its limit is known from above, without the shares;
elsewhere they depend on the order in which calls come, and nothing is said: `released_rule`.) A load above 1 is too
much, by the law of large numbers, in every order of service. Whether loads below 1 are enough is the question of a
network, `model.workflow_network`. That network sends calls at random, and its fluid model sees shares alone: of the
number of calls of stage j that an instance has been sent by the time the stage has made n, only that it is f n + o(n),
uniformly in the state at the start. Independent draws have that by the law of large numbers; turns, because they are
never more than one call off; the released rule, because it is a bounded number of calls off (`released_rule`).

*Queues of one stage.* One stage that every instance serves, classical servers of speeds s_m, calls of mean work w,
Poisson arrivals, and a rule that sends a call to the smallest c_m Q_m up to a bounded number of calls, Q_m the calls at
m and c_m > 0: the fewest calls, c = 1; the shortest expected delay, c_m = t_m; the least work, by the law of large
numbers c = w; HEXGEN-FLOW's score at alpha = 0 or where all t_comp are equal, which is the smallest t_queue. All are
stable below the sum of speeds over w (cf. Foss, Chernova, Queueing Systems 29, 1998, for state-dependent routing). In
the fluid model let V = max_m c_m Q_m. Where V is not attained by all servers, nothing is sent to those that attain
it, and V falls at the rate c_m s_m/w of each. Where all attain it, all Q_m = V/c_m are positive, so their sum moves at
the rate at which calls come less that at which they leave for good, which is negative. So V falls at a rate bounded
away from 0 until it is 0, and the chain is positive Harris recurrent (Dai 1995). Every order of service will do that
does not look at the length of a call. A stage may be run again by chance, call by call: what comes back joins what
comes. Not where it makes several calls, whose barrier holds back what returns.

*The score of HEXGEN-FLOW's paper* on two exponential servers: `paper_score_limit`.

Elsewhere a rule that looks at queues has no limit that this package knows but by simulation (`dispatch_limit`).
"""

from __future__ import annotations

import math
from fractions import Fraction

import attrs

from queuetheory_llm.dispatch.registry import packaged_name, to_dispatcher
from queuetheory_llm.dispatch.static_split import Shares, static_split
from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.model.arrivals import ExponentialInterval, PoissonArrivals
from queuetheory_llm.model.cluster import WorkflowSystem, require_cluster
from queuetheory_llm.model.workflow_network import workflow_network
from queuetheory_llm.schedulers.fcfs import FCFS
from queuetheory_llm.schedulers.queue_order import QueueOrder
from queuetheory_llm.schedulers.queue_orders import to_order
from queuetheory_llm.stability.call_work import binding_work
from queuetheory_llm.stability.cluster_capacity import cluster_capacity, lp_shares, unit_loads
from queuetheory_llm.stability.network_answer import NetworkAnswer
from queuetheory_llm.stability.networks import verify_stability
from queuetheory_llm.stability.paper_score_limit import ERROR, paper_score_limit
from queuetheory_llm.stability.released_rule import proportional_loads, proportional_split
from queuetheory_llm.verdict import Basis, Verdict

#: Rules that send to the smallest c_m Q_m.
_LEVELLING = ("least-outstanding", "shortest-expected-delay", "token-queue")
_LEVELLED = (
    "one stage that every server serves, and the longest queue, weighed as the rule weighs it, gets nothing until it "
    "is the shortest: stable below the sum of the speeds (cf. Foss, Chernova 1998; Dai 1995)"
)
_REFUSED = (
    "two exponential servers: the slow one refuses calls once its queue is long, and the fast one has to carry what it "
    "refuses (drift criterion)"
)


@attrs.frozen(kw_only=True)
class LongRunSplit:
    """The shares of calls that a rule comes to, whatever the queues.

    Attributes
    ----------
    shares : tuple of tuple of Fraction
        J rows that sum to 1, an entry a single instance.
    words : str
        Where they come from.
    """

    shares: Shares
    words: str


@attrs.frozen(kw_only=True)
class LimitByTheory:
    """Between which rates theory has the limit of a rule, in queries/s.

    Attributes
    ----------
    low : Fraction or float
        The rule is stable at every lower rate; 0 where theory has none.
    high : Fraction or float
        It is unstable at every higher rate; infinite where no call takes up anything.
    error : float
        Relative error of both: of works that are sums in floats, or of a root; 0 where they are exact.
    basis : Basis
    reason : str
        Why it is no more than that, without the numbers.
    below : str
        Why lower rates are stable, where ``reason`` does not say it.
    split : LongRunSplit or None
        Of a rule that has one.
    """

    low: Fraction | float
    high: Fraction | float
    error: float
    basis: Basis
    reason: str
    below: str = ""
    split: LongRunSplit | None = None

    @property
    def limit(self) -> Fraction | float | None:
        """The largest stable rate, where theory has it from both sides."""
        return self.high if self.low == self.high else None


def rule_limit(
    system: WorkflowSystem, dispatcher: Dispatcher | str, order: QueueOrder | str | None = FCFS
) -> LimitByTheory | None:
    """The largest stable rate of a dispatch rule on a cluster by theory; the rate of the system plays no part.

    Lengths of calls are taken as independent, as the workflow has them. Queries of a log are none of these: their calls
    depend on one another and on their place, and what turns make of that is for simulation.

    Parameters
    ----------
    system : WorkflowSystem
    dispatcher : Dispatcher or str
        A rule with its parameters, or its name with flags.
    order : QueueOrder, str or None
        Of the queues. A network of several kinds of calls may be stable first come, first served, and not in another
        order. None, and every order but ``fcfs``, asks for what holds in all orders that do not idle.

    Returns
    -------
    LimitByTheory or None
        None where theory knows no limit of the rule itself; that of every rule is `ClusterCapacity.rate_limit`.

    Raises
    ------
    InvalidInput
        If the system, the rule, its own shares or the order do not fit.

    Examples
    --------
    >>> from queuetheory_llm.files.workflow_file import load_workflow
    >>> system = load_workflow("two-servers")
    >>> rules = ("round-robin", "least-outstanding", "hexgen-paper+alpha=0.9")
    >>> [round(float(rule_limit(system, rule).limit), 4) for rule in rules]
    [2.0, 3.0, 2.7321]
    """
    require_cluster(system)
    rule, served = to_dispatcher(dispatcher), None if order is None else to_order(order)
    split = long_run_split(system, rule)
    if split is not None:
        return _of_split(system, split, served)
    if _levels(system, rule):
        bound = cluster_capacity(system).rate_limit
        assert bound is not None  # classical work takes time
        return LimitByTheory(low=bound, high=bound, error=0.0, basis=Basis.THEOREM, reason=_LEVELLED)
    return _of_released(system, rule) or _of_score(system, rule)


def _of_split(system: WorkflowSystem, split: LongRunSplit, order: QueueOrder | None) -> LimitByTheory:
    """From the loads of a split, and from its network where loads decide."""
    types = binding_work(system)
    loads, error = [max(row) for row in unit_loads(system, types, split.shares)], max(each.error for each in types)
    worst = max(range(len(loads)), key=loads.__getitem__)
    half = 1 / (2 * loads[worst]) if loads[worst] else Fraction(1)
    basis: Basis = Basis.THEOREM
    low: Fraction | float = Fraction(0)
    below = ""
    answer = split_answer(system, split, order, half)
    if isinstance(answer, NetworkAnswer):
        judged, topology = answer.judgement, answer.topology
        if judged.verdict is Verdict.STABLE and judged.load:
            low = half / judged.load
            basis = Basis.FLUID if judged.basis is Basis.FLUID else Basis.THEOREM
            below = topology.theorem if topology.loads_decide else judged.reason
    return LimitByTheory(
        low=low,
        high=2 * half if loads[worst] else math.inf,
        error=float(error),
        basis=basis,
        reason=f"{split.words}; the first instance to be full is {system.unit_names[worst]}",
        below=below,
        split=split,
    )


def split_answer(
    system: WorkflowSystem, split: LongRunSplit, order: QueueOrder | None, rate: Fraction
) -> NetworkAnswer | str:
    """What is known of the network of a split at a rate; where there is no such network, why."""
    try:
        network = workflow_network(system, split.shares, rate)
    except InvalidModel as error:
        return error.faults[0]
    return verify_stability(network, policy="file" if order is FCFS else "any")


def long_run_split(system: WorkflowSystem, dispatcher: Dispatcher) -> LongRunSplit | None:
    """The shares that a rule comes to in the long run; None of one whose shares depend on the queues.

    Raises
    ------
    InvalidInput
        If shares of the dispatcher's own do not fit the system.
    """
    name = packaged_name(dispatcher.rule)
    if all(max(row) == 1 for row in system.even_shares):
        return LongRunSplit(shares=system.even_shares, words="each stage has one instance, whatever the rule")
    if name is not None and dispatcher.rule.split:
        lp = dispatcher.rule.split == "lp" and dispatcher.shares is None
        shares = lp_shares(system) if lp else static_split(system, dispatcher)
        assert shares is not None
        return LongRunSplit(shares=shares, words="its split at random")
    if name == "round-robin":
        words = "turns, stage by stage, which are equal shares in the long run"
        return LongRunSplit(shares=system.even_shares, words=words)
    weight = dispatcher.parameters[0] if name in ("hexgen-paper", "hexgen-released") else None
    if name == "fastest" or weight == 1:
        return LongRunSplit(shares=_fastest(system), words="each stage to its fastest instance")
    if name == "hexgen-released" and len(system.workflow.stages) == 1:
        found = proportional_split(system, to_fraction(float(dispatcher.parameters[0])))
        words = "the split that the released rule comes to, in closed form"
        return None if found is None else LongRunSplit(shares=(found.shares,), words=words)
    return None


def _fastest(system: WorkflowSystem) -> Shares:
    found = []
    for row in system.unit_seconds:
        least = min(seconds for seconds in row if seconds is not None)
        found.append(tuple(Fraction(m == row.index(least)) for m in range(len(row))))
    return tuple(found)


def _of_released(system: WorkflowSystem, dispatcher: Dispatcher) -> LimitByTheory | None:
    """The loads of several kinds of calls under the released rule, where they do not depend on the order of calls.

    Below, the network is that of no split: the shares of each stage do depend on it.
    """
    if packaged_name(dispatcher.rule) != "hexgen-released":
        return None
    loads = proportional_loads(system, to_fraction(float(dispatcher.parameters[0])))
    if loads is None:
        return None
    worst = max(range(len(loads)), key=loads.__getitem__)
    return LimitByTheory(
        low=Fraction(0),
        high=1 / loads[worst] if loads[worst] else math.inf,
        error=0.0,
        basis=Basis.THEOREM,
        reason=(
            "the division of the work that the released rule comes to, in closed form; the first instance to be full "
            f"is {system.unit_names[worst]}"
        ),
    )


def _levels(system: WorkflowSystem, dispatcher: Dispatcher) -> bool:
    """Whether the rule sends to the smallest c_m Q_m, at one stage that every classical server serves."""
    (stage, *others), retries = system.workflow.stages, system.workflow.retries
    classical = all(each.speed is not None for each in system.instances)
    if others or not classical or not isinstance(system.arrivals, PoissonArrivals):
        return False
    if retries and stage.calls.constant != 1:
        return False
    name = packaged_name(dispatcher.rule)
    if name == "hexgen-paper":
        return dispatcher.parameters[0] == 0 or (dispatcher.parameters[0] < 1 and len(set(system.unit_seconds[0])) == 1)
    return name in _LEVELLING


def _of_score(system: WorkflowSystem, dispatcher: Dispatcher) -> LimitByTheory | None:
    """The limit of the paper's score in closed form: single calls at two unlike exponential servers."""
    stage, workflow = system.workflow.stages[0], system.workflow
    speeds = [speed for kind in system.units if (speed := system.instances[kind].speed) is not None]
    single = len(workflow.stages) == 1 and not workflow.retries and stage.chance == stage.calls.constant == 1
    poisson = isinstance(system.arrivals, PoissonArrivals) and isinstance(stage.work, ExponentialInterval)
    if packaged_name(dispatcher.rule) != "hexgen-paper" or not (single and poisson):
        return None
    if not len(speeds) == len(system.units) == len(set(speeds)) == 2:
        return None
    assert stage.work is not None
    slow, fast = (speed / stage.work.mean for speed in sorted(speeds))
    alpha, beta = (to_fraction(float(value)) for value in dispatcher.parameters)
    found = paper_score_limit(fast, slow, alpha=alpha, beta=beta, reading=dispatcher.reading)
    return LimitByTheory(low=found, high=found, error=ERROR, basis=Basis.THEOREM, reason=_REFUSED)
