"""Queries of a workflow that were really run, and the workflow that they suggest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import attrs

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.model.lengths import Empirical
from queuetheory_llm.model.workflow import Retry, Stage, Tenant, Workflow

#: (prefill, decode) tokens of a call.
Call = tuple[int, int]


@attrs.frozen(kw_only=True)
class LoopFit:
    """How often a stage was run in a query, and the law that `WorkflowLog.workflow` takes for it.

    The number of runs is 0 with probability 1 - entered/queries, else geometric with the probability of one more run
    1 - entered/runs: the maximum of the likelihood, and it keeps the mean.

    Attributes
    ----------
    stage : str
    queries, entered, runs : int
        Queries of the log, those with at least one run, all their runs.
    variance : Fraction
        Of the number of runs in a query of the log.
    """

    stage: str
    queries: int
    entered: int
    runs: int
    variance: Fraction

    @property
    def chance(self) -> Fraction:
        """Probability of at least one run."""
        return Fraction(self.entered, self.queries)

    @property
    def again(self) -> Fraction:
        """Probability of one more run after each."""
        return 1 - Fraction(self.entered, self.runs)

    @property
    def fitted_variance(self) -> Fraction:
        """That of the fitted law: E[N^2 | N > 0] = (1 + again)/(1 - again)^2."""
        mean = Fraction(self.runs, self.queries)
        return self.chance * (1 + self.again) / (1 - self.again) ** 2 - mean**2

    @property
    def geometric_variance(self) -> Fraction:
        """That of the geometric law on 0, 1, 2, ... of the same mean: one and the same chance for every run."""
        mean = Fraction(self.runs, self.queries)
        return mean * (1 + mean)


@attrs.frozen(kw_only=True, eq=False)
class WorkflowLog:
    """Queries whose stages run one after another.

    Attributes
    ----------
    stages : tuple of str
        In the order in which they run.
    parallel : frozenset of str
        The stages whose calls in a query run at the same time; those of another stage run one after another.
    queries : tuple of mappings
        Of each query, the (prefill, decode) tokens of the calls of each stage that it ran, in the order of the log.
    source : str
        Where they come from, for messages.
    """

    stages: tuple[str, ...]
    parallel: frozenset[str]
    queries: tuple[Mapping[str, tuple[Call, ...]], ...]
    source: str = "log"

    def __attrs_post_init__(self) -> None:
        """Check names and counts."""
        faults = [
            f"query {number}: {fault}" for number, query in enumerate(self.queries) for fault in self._faults(query)
        ]
        if not self.queries:
            faults.append("queries: there is none; give a log with at least one")
        if faults:
            raise InvalidModel(faults, source=self.source)

    def _faults(self, query: Mapping[str, tuple[Call, ...]]) -> Iterator[str]:
        if not query:
            yield "has no calls; leave it out"
        for stage, calls in query.items():
            if stage not in self.stages:
                yield f"{stage!r} is no stage of the log; name it in stages"
            if not calls or any(min(call) < 0 or sum(call) == 0 for call in calls):
                yield f"{stage!r} has no calls, or one without tokens; give (prefill, decode) of each"

    def __len__(self) -> int:
        """Number of queries."""
        return len(self.queries)

    def calls(self, stage: str) -> list[Call]:
        """All calls of a stage."""
        return [call for query in self.queries for call in query.get(stage, ())]

    def counts(self, stage: str) -> list[int]:
        """The number of calls of a stage in each query."""
        return [len(query.get(stage, ())) for query in self.queries]

    @property
    def loops(self) -> tuple[LoopFit, ...]:
        """The stages that some query ran more than once."""
        return tuple(self._fit(stage) for stage in self.stages if stage not in self.parallel and self._repeats(stage))

    def _repeats(self, stage: str) -> bool:
        return max(self.counts(stage)) > 1

    def _fit(self, stage: str) -> LoopFit:
        counts = self.counts(stage)
        n = len(counts)
        return LoopFit(
            stage=stage,
            queries=n,
            entered=sum(map(bool, counts)),
            runs=sum(counts),
            variance=Fraction(sum(count * count for count in counts), n) - Fraction(sum(counts), n) ** 2,
        )

    def workflow(self, tenants: Sequence[Tenant] = ()) -> Workflow:
        """The workflow of independent chances that has the frequencies of the log.

        A stage is run with the share of queries that ran it; the numbers of parallel calls and all lengths follow their
        empirical laws; a stage that is run again and again is retried as `LoopFit` says. Lost are the dependences: of
        the two lengths of a call, and of the calls of a query.

        Parameters
        ----------
        tenants : sequence of Tenant, optional
            Default: one, without SLO.
        """
        seen = [stage for stage in self.stages if any(self.counts(stage))]
        retries = tuple(Retry(source=fit.stage, to=fit.stage, probability=fit.again) for fit in self.loops)
        stages = tuple(self._stage(stage) for stage in seen)
        return Workflow(stages=stages, retries=retries, tenants=tuple(tenants) or (Tenant(name="all"),))

    def _stage(self, stage: str) -> Stage:
        counts, calls = [count for count in self.counts(stage) if count], self.calls(stage)
        return Stage(
            name=stage,
            prefill=_empirical([prefill for prefill, _ in calls]),
            decode=_empirical([decode for _, decode in calls]),
            calls=_empirical(counts) if stage in self.parallel else 1,
            chance=Fraction(len(counts), len(self)),
        )


def _empirical(values: Sequence[int]) -> Empirical:
    counted = sorted(Counter(values).items())
    return Empirical(values=[value for value, _ in counted], weights=[weight for _, weight in counted])
