"""What ``qt-llm dispatch`` has found: its JSON, its figure, and what a person reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.certificates.split_proofs import NO_RULE
from queuetheory_llm.cli.output import GROWS, load, number, print_table
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.cli.words import workflow_words
from queuetheory_llm.exact.numbers import exact_text
from queuetheory_llm.exact.rounding import lower_limit, upper_limit
from queuetheory_llm.model.cluster import WorkflowSystem
from queuetheory_llm.simulation.alpha_tuning import TuningRun
from queuetheory_llm.simulation.cluster_simulation import QUANTILES, ClusterComparison, RuleOutcome
from queuetheory_llm.simulation.dispatch_limits import DispatchLimit
from queuetheory_llm.simulation.query_statistics import Interval, maybe
from queuetheory_llm.simulation.slo_throughput import CurvePoint, ServiceCurves, SloThroughput
from queuetheory_llm.stability.cluster_capacity import ClusterCapacity
from queuetheory_llm.stability.critical_retry import CriticalRetry
from queuetheory_llm.verdict import Judgement, Verdict

_LONGEST = 24  # characters of an exact number that are printed
_ALONG = {"rate": "queries/s", "slo_scale": "SLO in average queries", "alpha": "alpha"}
_ENDLESS = "inf: more queries had not ended when the runs did than that quantile leaves out"


@attrs.frozen(kw_only=True)
class Answer:
    """All that was asked for.

    Attributes
    ----------
    capacity : ClusterCapacity
    full_batches : Fraction or None
        Queries/s that the best static split carries where batch engines fill their batches; None without a limit.
    comparison : ClusterComparison
    judgements : tuple of Judgement
        One a rule, in the order of the comparison.
    limits, throughputs : tuple
        One a rule, in the order of the comparison; none where they were not asked for.
    curves, tuning : ServiceCurves or None
        Of the rules; of one rule against alpha.
    online : TuningRun or None
    retries : tuple of CriticalRetry or None
    notes : tuple of str
        What reading the question changed.
    """

    capacity: ClusterCapacity
    full_batches: Fraction | None
    comparison: ClusterComparison
    judgements: tuple[Judgement, ...]
    limits: tuple[DispatchLimit, ...] = ()
    throughputs: tuple[SloThroughput, ...] = ()
    curves: ServiceCurves | None = None
    tuning: ServiceCurves | None = None
    online: TuningRun | None = None
    retries: tuple[CriticalRetry, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def system(self) -> WorkflowSystem:
        """At the rate that was run."""
        return self.comparison.system

    @property
    def all_notes(self) -> list[str]:
        """Of the question and of every part, each once."""
        parts = [self.comparison, *self.limits, *self.throughputs, self.curves, self.tuning, self.online]
        found = [note for part in parts if part is not None for note in part.notes]
        return list(dict.fromkeys([*self.notes, *found]))

    @property
    def growing(self) -> set[str]:
        """The rules that are UNSTABLE: their quantiles grow with the run, so that no ratio of them is given."""
        pairs = zip(self.comparison.rules, self.judgements, strict=True)
        return {outcome.rule for outcome, judged in pairs if judged.verdict is Verdict.UNSTABLE}

    def to_dict(self) -> dict[str, Any]:
        """The content of ``dispatch --json``."""
        found = self.comparison.to_dict()
        rules = found.pop("rules")
        outcomes = zip(rules, self.comparison.rules, self.judgements, strict=True)
        growing = self.growing
        for k, (row, outcome, judged) in enumerate(outcomes):
            row["measured"] = {key: row.pop(key) for key in ("verdict", "reason", "growth")}
            row |= {
                "verdict": judged.verdict.value,
                "basis": None if judged.basis is None else judged.basis.value,
                "reason": judged.reason,
                "mean": maybe(_mean(outcome, judged)),
                "quantiles_grow": outcome.rule in growing,
                "ratios": _ratios(row["ratios"], without=bool(growing & {outcome.rule, self.comparison.baseline})),
                "limit": self.limits[k].to_dict() if self.limits else None,
                "slo_throughput": self.throughputs[k].to_dict() if self.throughputs else None,
            }
        return {
            "title": self.system.name,
            **found,
            "notes": self.all_notes,
            "capacity": {
                **self.capacity.to_dict(),
                "full_batches_rate_limit": None if self.full_batches is None else float(self.full_batches),
            },
            "rules": rules,
            "curves": _plain(self.curves),
            "tuning": _plain(self.tuning),
            "online": _plain(self.online),
            "retries": None if self.retries is None else [each.to_dict() for each in self.retries],
        }

    def render(self, kind: str) -> bytes:
        """The figure of what was asked for last: the online run, the curve of alpha, the curves, or the rules."""
        if self.online is not None:
            from queuetheory_llm.plots.tuning import render_tuning

            return render_tuning(self.online, kind)
        shown = self.tuning or self.curves
        if shown is not None:
            from queuetheory_llm.plots.service_curves import render_curves

            return render_curves(shown, kind)
        from queuetheory_llm.plots.dispatch import render_comparison

        pairs = zip(self.comparison.rules, self.judgements, strict=True)
        rules = tuple(attrs.evolve(each, verdict=judged.verdict) for each, judged in pairs)
        compared = attrs.evolve(self.comparison, rules=rules)
        return render_comparison(compared, kind, limits=self.limits, throughputs=self.throughputs)


def _ratios(found: dict[str, Any], *, without: bool) -> dict[str, Any]:
    """As they are printed: none of a rule whose queue grows, nor to one."""
    return dict.fromkeys(found) if without else found


def _plain(part: Any) -> dict[str, Any] | None:
    return None if part is None else part.to_dict()


# ---------------------------------------------------------------------------------------------------- for a person


def print_answer(answer: Answer) -> None:
    """Capacity and load, what binds, each rule with its verdict, then the tables."""
    _print_capacity(answer)
    _print_rules(answer)
    _print_tenants(answer.comparison)
    _print_loads(answer.comparison)
    _print_ratios(answer)
    for curves in (answer.curves, answer.tuning):
        if curves is not None:
            _print_curves(curves)
    if answer.online is not None:
        _print_online(answer.online)
    if answer.retries is not None:
        _print_retries(answer.retries)


def _print_capacity(answer: Answer) -> None:
    found, system = answer.capacity, answer.system
    alone = number(system.base_seconds, 4)
    say(f"{system.name}: {workflow_words(system.workflow)}; an average query takes {alone} s alone")
    limit = found.rate_limit
    if limit is None:
        say("capacity: no limit; no call takes up anything of an instance\n")
        return
    said = "" if found.error else _exactly(limit)
    say(f"capacity: {lower_limit(limit)} queries/s{said}; {NO_RULE}")
    if answer.full_batches is not None and answer.full_batches < limit:
        say(f"the best static split carries {lower_limit(answer.full_batches)} queries/s where batches are filled")
    rate, at = number(system.arrivals.rate), found.load
    say(f"load {load(at)} at {rate} queries/s, margin {number(1 - at)}; {_binds(found)}\n")
    print_table(
        ["instance type", "count", "binds", "one more adds queries/s"],
        [
            [each.name, str(each.count), "yes" if each.name in found.binding else "no", number(more, 4)]
            for each, more in zip(found.types, found.one_more, strict=True)
        ],
    )


def _exactly(value: Fraction) -> str:
    """A number as a fraction in brackets, where that is short."""
    text = exact_text(value) or ""
    return f" (exactly {text})" if 0 < len(text) <= _LONGEST else ""


def _binds(found: ClusterCapacity) -> str:
    names = found.binding
    if len(names) == len(found.types):
        return "every instance type binds" if len(names) > 1 else f"{names[0]} binds"
    return f"{', '.join(names)} {'binds' if len(names) == 1 else 'bind'}"


def _print_rules(answer: Answer) -> None:
    compared = answer.comparison
    judged = list(zip(compared.rules, answer.judgements, strict=True))
    print_table(
        ["rule", "verdict", "mean", *map(str.upper, QUANTILES), "within SLO"],
        [_row(outcome, each) for outcome, each in judged],
        title=f"{compared.replications} run{'s' * (compared.replications > 1)} of {compared.queries} queries, "
        f"{compared.around} more before and after them; the same for every rule, seed {compared.seed}; seconds, "
        f"{100 * compared.confidence:.3g} % intervals over the runs",
    )
    for outcome, each in judged:
        basis = "" if each.basis is None else f" ({each.basis.value})"
        say(f"{outcome.rule}: {each.verdict.value}{basis}: {each.reason}")
    if any(each.verdict is Verdict.UNSTABLE for each in answer.judgements):
        say(GROWS)
    if any(math.isinf(getattr(each, name).mean) for each in compared.rules for name in QUANTILES):
        say(_ENDLESS)
    left = [f"{each.unfinished} of {each.rule}" for each in compared.rules if each.unfinished]
    if left:
        say(f"no mean where queries had not ended when the runs did: {', '.join(left)}")
    for limit in answer.limits:
        say(f"limit of {limit.rule}: {_limit_words(limit)}")
    for found in answer.throughputs:
        rate = interval_text(found.rate)
        say(f"{found.rule}: {100 * found.share:.3g} % of the queries within their SLO up to {rate} queries/s")
    say("")


def _mean(outcome: RuleOutcome, judged: Judgement) -> Interval | None:
    """Only where there is one, and all queries ended."""
    mean = outcome.sample_mean
    return mean if judged.verdict is Verdict.STABLE and math.isfinite(mean.mean) else None


def _row(outcome: RuleOutcome, judged: Judgement) -> list[str]:
    mark = "*" if judged.verdict is Verdict.UNSTABLE else ""
    return [
        outcome.rule,
        judged.verdict.value,
        interval_text(_mean(outcome, judged)),
        *(interval_text(getattr(outcome, name)) + mark for name in QUANTILES),
        percent_text(outcome.attainment),
    ]


def _ends(limit: DispatchLimit) -> tuple[str, str]:
    """Rounded so that what is shown of them stays true."""
    return lower_limit(limit.low), upper_limit(limit.high)


def _between(limit: DispatchLimit) -> str:
    return " .. ".join(dict.fromkeys(_ends(limit))) if limit.low < limit.high else lower_limit(limit.low)


def _limit_words(limit: DispatchLimit) -> str:
    """By theory, its ground is said with the verdict; by runs, what is shown at either end."""
    share, (low, high) = f"{100 * limit.share:.3g} % of the capacity", _ends(limit)
    if not limit.shown:
        end = f"by theory unstable above {high}" if limit.growing is None else f"shown unstable from {high}"
        return f"no rate shown stable, {end} queries/s; {limit.method} of {limit.queries} queries"
    if not limit.queries:
        said = _exactly(limit.low) if limit.low == limit.high else ""
        return f"{low} queries/s{said}, {share}; {limit.method}"
    above = f"by theory unstable above {high}" if limit.growing is None else f"shown unstable from {high}"
    confidence = f"{100 * limit.confidence:.3g} % confidence"
    return (
        f"falls from an overload up to {low}, {above} queries/s, {share}; {limit.method} of {limit.queries} queries, "
        f"{confidence}"
    )


def interval_text(value: Interval | None, digits: int = 3) -> str:
    """``123 ± 4``; "inf" of what had no end, "-" of what is not known.

    >>> interval_text(Interval(mean=123.4, low=119.4, high=127.4)), interval_text(None)
    ('123 ± 4', '-')
    """
    if value is None:
        return "-"
    if math.isinf(value.mean):
        return "inf"
    if value.high is None:
        return number(value.mean, digits + 1)
    half = value.high - value.mean
    places = max(0, digits - 1 - _order(value.mean))
    if half > 0:
        places = max(0, min(8, max(places, -_order(half)))) if _order(half) < 0 else min(places, 2)
    return f"{value.mean:.{places}f} ± {half:.{places}f}" if half >= 10**-places / 2 else f"{value.mean:.{places}f}"


def _order(value: float) -> int:
    """The power of ten of a number; 0 of 0."""
    return math.floor(math.log10(abs(value))) if value else 0


def percent_text(value: Interval | None) -> str:
    """``93.1 ± 0.5 %``; ``96.0 % (82.8 .. 100.0)`` where 0 or 100 % cuts it; "-" of what is not known."""
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{100 * value.mean:.1f} %"
    below, above = 100 * (value.mean - value.low), 100 * (value.high - value.mean)
    if abs(below - above) > 0.05:  # cut to 0 .. 1
        return f"{100 * value.mean:.1f} % ({100 * value.low:.1f} .. {100 * value.high:.1f})"
    half = f" ± {above:.1f}"
    return f"{100 * value.mean:.1f}{half} %"


def _print_tenants(compared: ClusterComparison) -> None:
    """Deadlines and what each tenant sees, where there are several."""
    tenants = compared.rules[0].tenants
    if len(tenants) < 2:
        return
    heads = [
        text
        for each in tenants
        for text in (f"{each.name} P95", "-" if each.slo is None else f"within {number(each.slo, 4)} s")
    ]
    print_table(
        ["tenants", *heads],
        [
            [
                each.rule,
                *(text for seen in each.tenants for text in (interval_text(seen.p95), percent_text(seen.attainment))),
            ]
            for each in compared.rules
        ],
    )


def _print_loads(compared: ClusterComparison) -> None:
    """Share of the time in which each instance works, and its share of the calls."""
    print_table(
        ["time with calls (share of calls)", *compared.system.unit_names],
        [
            [
                each.rule,
                *(
                    f"{load.mean:.3f} ({100 * share:.0f} %)"
                    for load, share in zip(each.loads, each.call_shares, strict=True)
                ),
            ]
            for each in compared.rules
        ],
    )


def _print_ratios(answer: Answer) -> None:
    """Paired ratios: both rules got the same queries, and most of the noise of these is in neither."""
    compared, growing = answer.comparison, answer.growing
    if compared.baseline in growing and len(compared.rules) > 1:
        say(f"no ratios: {compared.baseline}, the first rule, is UNSTABLE here; put another --rule first\n")
        return
    others = [each for each in compared.rules if each.rule != compared.baseline and each.rule not in growing]
    if not others:
        return
    print_table(
        [f"ratio to {compared.baseline}", "mean", *map(str.upper, QUANTILES)],
        [[each.rule, *(_ratio(each.ratios[name]) for name in ("mean", *QUANTILES))] for each in others],
    )


def _ratio(value: Interval | None) -> str:
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} ± {max(value.high - value.mean, value.mean - value.low):.3f}"


def _print_curves(curves: ServiceCurves) -> None:
    at = "" if curves.rate is None else f" at {number(curves.rate)} queries/s"
    if curves.along == "alpha":
        _print_alphas(curves, at)
        return
    cell: Callable[[CurvePoint], str] = (
        _both if curves.along == "rate" else lambda point: percent_text(point.attainment)
    )
    what = "P95 in seconds, share within the SLO" if curves.along == "rate" else "share of the queries within the SLO"
    columns = [curve.points for curve in curves.curves]
    print_table(
        [_ALONG[curves.along], *(curve.rule for curve in curves.curves)],
        [[number(points[0].at, 4), *map(cell, points)] for points in zip(*columns, strict=True)],
        title=f"{what}{at}",
    )
    if any(each.unstable for points in columns for each in points):
        say(GROWS + "\n")


def _both(point: CurvePoint) -> str:
    met = "" if point.attainment is None else f", {100 * point.attainment.mean:.1f} %"
    return f"{interval_text(point.p95)}{'*' if point.unstable else ''}{met}"


def _print_alphas(curves: ServiceCurves, at: str) -> None:
    (curve,) = curves.curves
    rows = [
        [f"{each.at:g}", interval_text(each.p95) + "*" * each.unstable, percent_text(each.attainment)]
        for each in curve.points
    ]
    for row, limit in zip(rows, curves.limits, strict=False):
        row.append(_between(limit))
    print_table(
        ["alpha", "P95", "within SLO", *["limit, queries/s"] * bool(curves.limits)], rows, title=f"{curve.rule}{at}"
    )
    best = curves.best
    if best is None:
        say("under every alpha the rule is unstable or 1 query in 20 had not ended: no P95 to choose by\n")
        return
    if any(each.unstable for each in curve.points):
        say(GROWS)
    near = [each.at for each in curve.points if not each.unstable and _overlap(each.p95, best.p95)]
    also = f"; within its interval: {', '.join(f'{each:g}' for each in near)}" if len(near) > 1 else ""
    say(f"best alpha: {best.at:g}, P95 {interval_text(best.p95)} s{also}\n")


def _overlap(one: Interval, other: Interval) -> bool:
    if one.low is None or other.high is None:
        return one.mean == other.mean
    return math.isfinite(one.mean) and one.low <= other.high


def _print_online(run: TuningRun) -> None:
    changes = [each for each in run.decisions if each.after != each.before]
    say(
        f"online, {run.rule}: {run.queries} queries, window {number(run.policy.window, 4)} s: {len(run.decisions)} "
        f"tunings, {len(changes)} changed alpha"
    )
    print_table(
        ["alpha", "P95 after the first window", "within SLO"],
        [
            [
                name,
                number(each.overall, 4),
                "-" if each.overall_attainment is None else f"{100 * each.overall_attainment:.1f} %",
            ]
            for name, each in (("tuned", run.tuned), (f"{run.alphas[0][1]:g} throughout", run.fixed))
        ],
    )
    if run.decisions:
        print_table(
            ["at s", "trigger", "P95 seen", "replayed", "alpha before", "alpha after"],
            [
                [
                    number(each.at, 5),
                    each.trigger,
                    number(each.watched, 4),
                    str(each.replayed),
                    f"{each.before:g}",
                    f"{each.after:g}",
                ]
                for each in run.decisions
            ],
        )


def _print_retries(retries: Sequence[CriticalRetry]) -> None:
    if not retries:
        say("retries: the workflow has none")
    for each in retries:
        said = "" if each.critical is None or each.error else _exactly(each.critical)
        say(f"retry with probability {number(each.probability)}, load {load(each.load)}: {each.bears}{said}")
