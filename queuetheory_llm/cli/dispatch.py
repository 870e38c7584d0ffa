"""``qt-llm dispatch``: dispatch rules and queue orders on a cluster of unlike instances, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property

import attrs

from queuetheory_llm.certificates.certificate import Certificate
from queuetheory_llm.cli import dispatch_flags as flags
from queuetheory_llm.cli.compiling import compile_note
from queuetheory_llm.cli.dispatch_question import (
    Cluster,
    Runs,
    read_cluster,
    read_rules,
    read_share,
    read_stretches,
    said_of_model,
    score_notes,
    with_alpha,
)
from queuetheory_llm.cli.dispatch_report import Answer, print_answer
from queuetheory_llm.cli.figures import Output, figure_format, write_figure
from queuetheory_llm.cli.inputs import said_of_flags
from queuetheory_llm.cli.output import Certificate as CertificateFlag
from queuetheory_llm.cli.output import Json, print_json, print_notes, print_written
from queuetheory_llm.cli.terminal import progress, progress_bar
from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.exact.rounding import short_fraction
from queuetheory_llm.files.atomic import check_apart
from queuetheory_llm.files.certificates import check_certificate_target, write_certificate
from queuetheory_llm.simulation.alpha_tuning import TuningRun, tune_alpha
from queuetheory_llm.simulation.cluster_rule import ClusterRule
from queuetheory_llm.simulation.cluster_simulation import ClusterComparison, simulate_cluster
from queuetheory_llm.simulation.dispatch_judge import dispatch_limit, judge_rules
from queuetheory_llm.simulation.dispatch_limits import DispatchLimit
from queuetheory_llm.simulation.slo_throughput import (
    ServiceCurves,
    SloThroughput,
    alpha_curve,
    rate_curves,
    scale_curves,
    slo_throughput,
)
from queuetheory_llm.stability.cluster_capacity import ClusterCapacity, cluster_capacity
from queuetheory_llm.stability.critical_retry import CriticalRetry, critical_retry

DEFAULT_MODEL = "hexgen-cluster-1"
_PLACES = 9  # rates of a curve, evenly up to the largest share of the capacity
_HIGHEST = Fraction(9, 10)
_WIDTH = 0.05  # of a limit, its interval by simulation
_MOST_CALLS = 20_000_000  # in the search of a limit
_SCALES = tuple(Fraction(step, 2) for step in range(2, 21))


def dispatch(
    model: str = DEFAULT_MODEL,
    *,
    rule: flags.Rules = None,
    rate: flags.Rate = None,
    slo_scale: flags.SloScale = None,
    log: flags.Log = None,
    queries: flags.Queries = "1000",
    replications: flags.Replications = "10",
    seed: flags.Seed = "0",
    ablations: flags.Ablations = False,
    limit: flags.Limit = False,
    throughput: flags.Throughput = None,
    curves: flags.Curves = None,
    tune: flags.Tune = None,
    profile: flags.Profile = None,
    retry: flags.Retry = False,
    certificate: CertificateFlag = None,
    output: Output = None,
    json: Json = False,
) -> int:
    """Dispatch rules on a cluster side by side: capacity, verdicts, latencies, deadlines met, what each rule carries.

    The figure of -o is that of --tune or --curves where one is asked for, of the online run with --profile, else of the
    rules side by side.

    Parameters
    ----------
    model
        A workflow file or the name of a packaged one; see `qt-llm models`.
    """
    _check_files(model, output=output, certificate=certificate, log=log, profile=profile)
    _check_together(output=output, curves=curves, tune=tune, profile=profile)
    rules = read_rules(rule, ablations)
    weighed = None if tune is None else with_alpha(rules, "--tune")
    runs = Runs.of(queries, replications, seed)
    share = None if throughput is None else read_share(throughput)
    cluster = read_cluster(model, rate=rate, slo_scale=slo_scale, log=log)
    if share is not None:
        cluster.require_slo("--throughput")
    if curves == "slo-scale":
        cluster.require_slo("--curves slo-scale")
    stretches, lasting = ((), ()) if profile is None else read_stretches(profile, cluster.system)
    bench = _Bench(cluster=cluster, rules=rules, runs=runs)
    given = ("queries", "replications", "seed", "profile", *(["rate"] if rate is not None else []))
    with said_of_model(model), said_of_flags(*given), compile_note():
        comparison, limits = bench.compared(), bench.limits() if limit else ()
        answer = Answer(
            capacity=bench.capacity,
            full_batches=cluster_capacity(cluster.system, filling=True).rate_limit,
            comparison=comparison,
            judgements=judge_rules(comparison, rules, log=cluster.log, limits=limits),
            limits=limits,
            throughputs=() if share is None else bench.throughputs(share),
            curves=None if curves is None else bench.curves(curves),
            tuning=None if weighed is None else bench.alphas(weighed, limits=limit),
            online=None if weighed is None or not stretches else bench.online(weighed, stretches),
            retries=bench.retries() if retry else None,
            notes=(*cluster.notes, *lasting, *score_notes(cluster.system, rules)),
        )
    return _give(answer, output=output, certificate=certificate, json=json)


def _check_files(
    model: str, *, output: str | None, certificate: str | None, log: str | None, profile: str | None
) -> None:
    """Refuse files without a name, that cannot be written, or that are two of the command at once."""
    named = {"MODEL": model, "-o": output, "--certificate": certificate, "--log": log, "--profile": profile}
    if empty := [flag for flag, path in named.items() if path is not None and not path.strip()]:
        raise InvalidInput(f"{flag}: is empty; name a file, or leave it out" for flag in empty)
    figure_format(output)
    read = {"the model": model, "--log": log, "--profile": profile}
    check_apart({"-o": output}, read)
    check_certificate_target(certificate, {"-o": output}, read)


def _check_together(*, output: str | None, curves: str | None, tune: str | None, profile: str | None) -> None:
    """Refuse flags that do not go together."""
    if output is not None and curves is not None and tune is not None:
        raise InvalidInput("-o: one figure shows --curves or --tune; ask for one of them")
    if profile is not None and tune is None:
        raise InvalidInput("--profile: the rate changes for the tuning; give --tune alpha with it")


def _give(answer: Answer, *, output: str | None, certificate: str | None, json: bool) -> int:
    """Write the files that were asked for, and print the answer; 1 where there is no proof to write."""
    proof = None if certificate is None else _proof(answer.capacity)
    if certificate is not None and proof is not None:
        write_certificate(certificate, proof)
    if output is not None:
        write_figure(output, answer.render)
    print_notes(answer.all_notes)
    if json:
        print_json("dispatch", answer.to_dict())
    else:
        print_answer(answer)
        print_written(None if proof is None else certificate, output)
    if certificate is not None and proof is None:
        print_notes([f"--certificate: at a load of 1 there is none, so that {certificate} was not written"])
        return 1
    return 0


def _proof(capacity: ClusterCapacity) -> Certificate | None:
    """That no rule is stable, or that no bound excludes the rate; there is none at the edge."""
    try:
        return capacity.certificate()
    except AssumptionViolated:
        return None


@attrs.frozen(kw_only=True)
class _Bench:
    """A cluster, rules, and how to run them."""

    cluster: Cluster
    rules: Sequence[ClusterRule]
    runs: Runs

    @cached_property
    def capacity(self) -> ClusterCapacity:
        """Of the best static split."""
        return cluster_capacity(self.cluster.system)

    def compared(self) -> ClusterComparison:
        """All rules on the same queries."""
        with progress_bar("dispatch: rules side by side") as report:
            return simulate_cluster(
                self.cluster.system, self.rules, log=self.cluster.log, progress=report, **attrs.asdict(self.runs)
            )

    def limits(self) -> tuple[DispatchLimit, ...]:
        """The largest stable rate of each rule."""
        return tuple(map(self.limit, self.rules))

    def limit(self, rule: ClusterRule) -> DispatchLimit:
        """The largest stable rate of a rule."""
        with progress(f"dispatch: limit of {rule.name}") as say:
            return dispatch_limit(
                self.cluster.system,
                rule,
                width=_WIDTH,
                seed=self.runs.seed,
                max_queries=self.most_queries,
                report=_report(say, rule),
            )

    @property
    def most_queries(self) -> int:
        """In the search of a limit."""
        return math.ceil(_MOST_CALLS / float(sum(self.cluster.system.workflow.visits)))

    def throughputs(self, share: float) -> tuple[SloThroughput, ...]:
        """The rate of each rule at which this share meets its SLO."""
        rates = []
        for each in self.rules:
            with progress_bar(f"dispatch: rate within the SLO of {each.name}") as report:
                rates.append(
                    slo_throughput(
                        self.cluster.system,
                        each,
                        share=share,
                        log=self.cluster.log,
                        progress=report,
                        **attrs.asdict(self.runs),
                    )
                )
        return tuple(rates)

    def curves(self, along: str) -> ServiceCurves:
        """P95 and deadlines met of each rule."""
        system, log, runs = self.cluster.system, self.cluster.log, attrs.asdict(self.runs)
        with progress_bar(f"dispatch: curves against {along}") as report:
            if along == "slo-scale":
                return scale_curves(system, self.rules, _SCALES, log=log, progress=report, **runs)
            top = (self.capacity.rate_limit or system.arrivals.rate) * _HIGHEST
            rates = [short_fraction(top * step / _PLACES) for step in range(1, _PLACES + 1)]
            return rate_curves(system, self.rules, rates, log=log, progress=report, **runs)

    def alphas(self, rule: ClusterRule, *, limits: bool) -> ServiceCurves:
        """P95, deadlines met, and limits against alpha."""
        with progress_bar(f"dispatch: alpha of {rule.name}") as report:
            return alpha_curve(
                self.cluster.system,
                rule,
                limits=limits,
                width=_WIDTH,
                max_queries=self.most_queries,
                log=self.cluster.log,
                progress=report,
                **attrs.asdict(self.runs),
            )

    def online(self, rule: ClusterRule, stretches: Sequence[tuple[Fraction, Fraction]]) -> TuningRun:
        """Alpha tuned while the rate changes."""
        with progress(f"dispatch: tuning alpha of {rule.name}"):
            return tune_alpha(self.cluster.system, rule, profile=stretches, seed=self.runs.seed, log=self.cluster.log)

    def retries(self) -> tuple[CriticalRetry, ...]:
        """What each loop can bear."""
        count = len(self.cluster.system.workflow.retries)
        return tuple(critical_retry(self.cluster.system, number) for number in range(count))


def _report(say: Callable[[str], None] | None, rule: ClusterRule) -> Callable[[str], None] | None:
    return None if say is None else lambda line: say(f"dispatch: limit of {rule.name}: {line}")
