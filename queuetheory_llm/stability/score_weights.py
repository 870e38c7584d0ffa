"""What the queues weigh in the score of HEXGEN-FLOW's paper: 1/seconds against seconds, so beta has the unit s^2.

A call goes to an instance where it takes t_s instead of to one where it takes t_f < t_s only if

    (1 - alpha) beta/q_s - alpha t_s > (1 - alpha) beta/q_f - alpha t_f,   so only if   q_s < theta,
    theta = (1 - alpha) beta/(alpha (t_s - t_f)),

q the seconds that wait there, however long q_f is. Where theta is below t_s, a single call of the kind is enough for
the slow instance to be refused; it gets calls only when (nearly) idle, and the rule is nearly that of the fastest
instance only.
"""

from __future__ import annotations

from fractions import Fraction

import attrs

from queuetheory_llm.dispatch.registry import to_dispatcher
from queuetheory_llm.dispatch.view import Dispatcher
from queuetheory_llm.exact.numbers import to_fraction
from queuetheory_llm.model.cluster import WorkflowSystem


@attrs.frozen(kw_only=True)
class SlowerPlace:
    """A stage at a type of instances that is slower for it than the fastest.

    Attributes
    ----------
    stage, instance : str
    theta : Fraction
        Seconds of queue there from which on it gets no call of the stage.
    seconds : Fraction
        t_s, of such a call there.
    work : Fraction
        Seconds of such calls in a query, were they all sent there.
    """

    stage: str
    instance: str
    theta: Fraction
    seconds: Fraction
    work: Fraction


@attrs.frozen(kw_only=True)
class ScoreWeights:
    """How long a queue at a slower instance may be for it to get a call.

    Attributes
    ----------
    places : tuple of SlowerPlace
        One at least.
    beta : Fraction
        s^2.
    """

    places: tuple[SlowerPlace, ...]
    beta: Fraction

    @property
    def refused(self) -> Fraction:
        """Share of the work of `places` that is refused behind a single call of its kind."""
        total = sum((each.work for each in self.places), Fraction(0))
        return sum((each.work for each in self.places if each.theta < each.seconds), Fraction(0)) / total

    @property
    def heaviest(self) -> SlowerPlace:
        """The place of the most work."""
        return max(self.places, key=lambda each: each.work)

    @property
    def least_beta(self) -> Fraction:
        """The beta, s^2, from which on no place refuses a call behind a single one of its kind."""
        return self.beta * max(each.seconds / each.theta for each in self.places)


def score_weights(system: WorkflowSystem, dispatcher: Dispatcher | str) -> ScoreWeights | None:
    """The thresholds of the paper's score on a cluster.

    Parameters
    ----------
    system : WorkflowSystem
    dispatcher : Dispatcher or str

    Returns
    -------
    ScoreWeights or None
        None of other rules, at alpha = 0 and 1, and where no instance is slower than another.

    Examples
    --------
    >>> from queuetheory_llm.files.workflow_file import load_workflow
    >>> found = score_weights(load_workflow("two-servers"), "hexgen-paper+alpha=0.5")
    >>> found.heaviest.theta, found.refused, found.least_beta
    (Fraction(2, 1), Fraction(0, 1), Fraction(1, 2))
    """
    rule = to_dispatcher(dispatcher)
    if rule.rule.name != "hexgen-paper":
        return None
    alpha, beta = (to_fraction(float(value)) for value in rule.parameters)
    if not 0 < alpha < 1:
        return None
    places = tuple(
        SlowerPlace(
            stage=stage.name,
            instance=each.name,
            theta=(1 - alpha) * beta / (alpha * (seconds - fastest)),
            seconds=seconds,
            work=visits * seconds,
        )
        for stage, visits, row in zip(system.workflow.stages, system.workflow.visits, system.mean_seconds, strict=True)
        for each, seconds in zip(system.instances, row, strict=True)
        if seconds is not None and seconds > (fastest := min(other for other in row if other is not None))
    )
    return ScoreWeights(places=places, beta=beta) if places else None
