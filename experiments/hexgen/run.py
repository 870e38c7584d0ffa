"""Do HEXGEN-FLOW's claims hold on its own clusters and queries? See README.md beside this file.

``python experiments/hexgen/run.py LOG`` prints the tables; ``--write`` also keeps expected.json and figure.svg,
``--quick`` is the same with few runs. LOG is the log of CHESS queries that the authors published
(Relaxed-System-Lab/Text2SQL-CHESS, input_file_formula1.json).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import cyclopts
import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

import queuetheory_llm as qt
from queuetheory_llm.simulation.query_statistics import Interval

EXPECTED = Path(__file__).with_name("expected.json")
FIGURE = Path(__file__).with_name("figure.svg")
Floats = NDArray[np.float64]

# --- what is compared -------------------------------------------------------------------------------------------------

#: Instances in the order of the source: round robin deals the two candidates of a query to neighbours.
CLUSTERS = {
    "cluster-1": ("A100", "A100", "A6000", "L40S"),
    "cluster-2": ("A100", "A6000", "A100", "A6000"),
    "homogeneous": ("A100",) * 4,
}
HETEROGENEOUS = ("cluster-1", "cluster-2")
#: Seconds of the source's standard workflow of 15 calls, averaged over the instances: what its SLO scales multiply.
SLO_BASE = {"cluster-1": "58.907", "cluster-2": "60.234", "homogeneous": "47.805"}
#: Multiples of the base by tenant, and the scale k of the source's sweep 3.0 + 0.2 k that throughput is measured at.
TENANTS, SCALE = {"relaxed": 2, "strict": 1}, Fraction(5)
#: Queries/s of the source.
RATES = (0.5, 1.0)
#: Shares of the capacity at which runs long enough to forget their start are compared.
LOADS = (0.3, 0.5, 0.8)
ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
#: Scales of the paper's score that are tried: seconds squared, and multiples of the square of a mean call.
BETAS = {"1 s^2": None, "tbar^2": 1, "10 tbar^2": 10}

BASELINES = {
    "vLLM": "round-robin/fcfs",
    "VTC": "round-robin/vtc",
    "QLM": "round-robin/qlm",
    "least laxity": "round-robin/least-laxity",
    "Ray": "least-outstanding/fcfs",
}
#: Not in the source: rules without a weight to tune, and the static optimum.
OTHERS = {"shortest delay": "shortest-expected-delay/fcfs", "Ray, urgency": "least-outstanding/urgency"}
STATIC = {"static optimum": "random-lp/fcfs"}
NO_BALANCING = "round-robin/urgency"

SETTINGS = {
    "released": "the simulator that the authors released: exclusive prompts, decode steps of one length, KV memory",
    "no-memory": "the same with memory for any number of calls",
    "free-decodes": "the same, and decode steps take the fitted seconds a token, so that nothing is left over",
    "engines": "vLLM's batches with chunked prefill, the batch times of the packaged models",
}

_BYTES_A_TOKEN = 2 * 8 * 128 * 80 / 2  # keys and values, 8 heads of 128, 80 layers, 4 bits
_WEIGHTS = 35.27e9  # bytes of Llama-3.1-70B at 4 bits, as the released simulator counts them
_MEMORY = {"A100": 40e9, "A6000": 48e9, "L40S": 48e9}  # bytes, its table
_USED = 0.95  # of the rest; what a call must leave free when it is admitted there


def seats(log: qt.WorkflowLog) -> dict[str, int]:
    """Calls whose prompts fit into the KV memory of each type, of the mean length of the calls that decode."""
    calls = np.array([call for stage in log.stages for call in log.calls(stage)], dtype=np.float64)
    held = float(calls[:, 0] @ calls[:, 1] / calls[:, 1].sum())
    return {gpu: int(_USED * (size - _WEIGHTS) / _BYTES_A_TOKEN / held) for gpu, size in _MEMORY.items()}


def instance(gpu: str, name: str, setting: str) -> qt.Instance:
    """One instance of a type in a setting."""
    if setting == "engines":
        return qt.Instance(name=name, engine=qt.load_model(f"hexgen-{gpu.lower()}").engine)
    packaged = {each.name: each for kind in (1, 2) for each in qt.load_workflow(f"hexgen-cluster-{kind}").instances}
    found = attrs.evolve(packaged[gpu], name=name, count=1)
    if setting == "released":
        return found
    return attrs.evolve(found, seats=None, **({"step": None} if setting == "free-decodes" else {}))


def system(cluster: str, setting: str, log: qt.WorkflowLog) -> qt.WorkflowSystem:
    """The workflow of the log on a cluster, with two tenants."""
    base = Fraction(SLO_BASE[cluster])
    tenants = [qt.Tenant(name=name, slo=SCALE * times * base) for name, times in TENANTS.items()]
    gpus = CLUSTERS[cluster]
    names = [f"{gpu} {gpus[: place + 1].count(gpu)}" for place, gpu in enumerate(gpus)]
    return qt.WorkflowSystem(
        workflow=log.workflow(tenants),
        instances=[instance(gpu, name, setting) for gpu, name in zip(gpus, names, strict=True)],
        name=f"{cluster}, {setting}",
    )


def halved(cluster: str, alpha: float) -> qt.DispatchRule:
    """The released score as the released code has it: the work assigned to an A6000 or L40S counts half."""
    prices = {f"price_{m}": 1.0 if gpu == "A100" else 0.5 for m, gpu in enumerate(CLUSTERS[cluster])}
    return qt.DispatchRule(
        name="hexgen-halved",
        choose=_halved,
        rule="hexgen-released with W of an A6000 or L40S halved",
        source="Relaxed-System-Lab/Hexgen-Flow, simulator/core/policies/routing/workload_balance.py",
        defaults={"alpha": alpha, **prices},
        oblivious=True,
    )


def _halved(view: Any, parameters: Floats) -> int:
    if view.assigned[0] <= 0:
        return 0
    alpha, prices = parameters[0], parameters[1:]
    speed, work = view.seconds[0] / view.seconds, prices * view.assigned / view.assigned[0]
    return int(np.argmax(alpha * speed - (1 - alpha) * work))


def tbar(of: qt.WorkflowSystem) -> float:
    """Mean seconds of a call that is alone, over calls and single instances."""
    visits = np.array(of.workflow.visits, dtype=np.float64)
    return float(visits @ np.array(of.mean_seconds, dtype=np.float64).mean(axis=1) / visits.sum())


@attrs.frozen
class Weighted:
    """A score of HEXGEN-FLOW with its weights: the scale beta as in `BETAS` ("" where the score has none) and alpha."""

    beta: str
    alpha: float
    rule: str | qt.DispatchRule


def candidates(score: str, cluster: str, of: qt.WorkflowSystem) -> list[Weighted]:
    """The weights among which a score is tuned; at alpha = 0 the paper's is the same for every beta."""
    if score == "hexgen-halved":
        return [Weighted("", alpha, halved(cluster, alpha)) for alpha in ALPHAS]
    if score == "hexgen-released":
        return [Weighted("", alpha, f"{score}+alpha={alpha:g}") for alpha in ALPHAS]
    betas = BETAS if score == FREE else list(BETAS)[:1]
    values = {name: 1.0 if BETAS[name] is None else float(f"{BETAS[name] * tbar(of) ** 2:.3g}") for name in betas}
    return [
        Weighted(name, alpha, f"hexgen-paper+alpha={alpha:g}+beta={value if alpha else 1:g}")
        for name, value in values.items()
        for alpha in ALPHAS
    ]


#: The paper's score with beta tuned as well.
FREE = "hexgen-paper, beta tuned"
SCORES = ("hexgen-paper", FREE, "hexgen-released", "hexgen-halved")
NAMED = SCORES[:3]  # those that are texts, and run compiled; the other runs where it is from


@attrs.frozen(kw_only=True)
class Sizes:
    """How much is run.

    Attributes
    ----------
    tuning, measuring : int
        Replications of the source's protocol that choose alpha, and others that measure.
    replications, tries : int
        Of long runs that measure, and of those that choose the weights, on seeds of their own.
    queries, throughput : int
        That are counted in a long run, and in one at a rate tried for throughput.
    width : float
        Of the last interval of rates, relative to the rate.
    settings, long, clusters : tuple of str
        Settings of the protocol and of long runs, and clusters; long runs are on those of `HETEROGENEOUS`.
    """

    tuning: int
    measuring: int
    replications: int
    tries: int
    queries: int
    throughput: int
    width: float
    settings: tuple[str, ...]
    long: tuple[str, ...]
    clusters: tuple[str, ...]


FULL = Sizes(
    tuning=10,
    measuring=20,
    replications=5,
    tries=2,
    queries=400,
    throughput=200,
    width=0.05,
    settings=tuple(SETTINGS),
    long=("released", "engines"),
    clusters=tuple(CLUSTERS),
)
QUICK = Sizes(
    tuning=2,
    measuring=3,
    replications=2,
    tries=2,
    queries=40,
    throughput=40,
    width=0.3,
    settings=("released", "engines"),
    long=("engines",),
    clusters=("cluster-1",),
)
SEED = 1

# --- intervals and words: fixed before the full run -------------------------------------------------------------------

#: Where the source makes its claims; in the other settings a claim carries over or does not.
CLAIMED = ("released",)
TRANSIENT = "UNSTABLE, a ratio of transients"
P95_CLAIM, THROUGHPUT_CLAIM = 1.42, 1.49  # the low ends of 1.42-1.56 and 1.49-1.81
MOST_ALPHA = 0.1  # that is tried for throughput
NO_EFFECT = 1.02  # a part that, left out, costs less than this factor of the P95 does nothing
ALPHA_CLAIM = {0.5: (0.1, 0.4), 1.0: (0.0, 0.1)}  # where the authors recorded the best alpha, by rate


def geometric(values: Sequence[float] | Floats, base: Sequence[float] | Floats | float = 1.0) -> Interval | None:
    """Of values, or of values/base by pairs, one a replication; None where one of them is 0 or infinite."""
    own = np.asarray(values, dtype=np.float64)
    return Interval.of_ratio(own, np.broadcast_to(base, own.shape))


def word(cells: Iterable[Interval | None], at_least: float, nothing: float | None = None) -> str:
    """Whether a factor is ``at_least`` so large in every cell.

    "confirmed": every interval lies above it. "refuted": every one lies below it (below ``nothing``, if that is given).
    "not confirmed": anything else, a cell without a finite ratio among it. The cells are the clusters, and the rates
    that some rule can carry, for which the source makes the claim; without one there is nothing but transients.
    """
    found = list(cells)
    if not found:
        return TRANSIENT
    ends = [(cell.low, cell.high) for cell in found if cell is not None and cell.low is not None]
    if len(ends) < len(found):
        return "not confirmed"
    if all(low >= at_least for low, _ in ends):
        return "confirmed"
    below = at_least if nothing is None else nothing
    return "refuted" if all(high < below for _, high in ends) else "not confirmed"


def in_setting(word: str, setting: str) -> str:
    """The word as it is said of a setting for which the source makes no claim."""
    if setting in CLAIMED:
        return word
    return {"confirmed": "carries over", "refuted": "does not carry over"}.get(word, word)


def alpha_word(near_best: Mapping[float, Sequence[float]]) -> str:
    """Whether the alphas that no interval tells from the best lie where the authors recorded the best, by rate."""
    inside = [
        [ALPHA_CLAIM[rate][0] <= alpha <= ALPHA_CLAIM[rate][1] for alpha in alphas]
        for rate, alphas in near_best.items()
    ]
    if all(all(row) for row in inside):
        return "confirmed"
    return "refuted" if any(not any(row) for row in inside) else "not confirmed"


# --- the protocol of the source: 100 queries from empty, the middle 50 count ------------------------------------------

QUERIES, COUNTED = 100, slice(25, 75)


@attrs.frozen(kw_only=True)
class Bench:
    """A system at a rate, with queries taken from the log at random; every rule gets the same."""

    system: qt.WorkflowSystem
    log: qt.WorkflowLog
    rate: float

    def measures(self, where: str | qt.DispatchRule, order: str, replication: int) -> tuple[float, float]:
        """P95 of the queries that count, seconds, and queries/s until the last has ended."""
        clock = qt.cluster_clock(self.system)
        rng = np.random.default_rng([SEED, replication])
        times = np.cumsum(rng.exponential(size=QUERIES)) / self.rate
        queries = qt.queries_of_log(self.log, self.system.workflow, np.rint(times * clock.rate).astype(np.int64), rng)
        run = qt.run_cluster(self.system, queries, where, order, rng=replication)
        return float(np.quantile(run.responses[COUNTED], 0.95)), QUERIES * clock.rate / int(run.finished.max())

    def columns(self, where: str | qt.DispatchRule, order: str, replications: Sequence[int]) -> Floats:
        """`measures` of replications, shape (2, R)."""
        jobs = (delayed(self.measures)(where, order, each) for each in replications)
        return np.array(Parallel(n_jobs=2, prefer="threads")(jobs)).T


def parted(text: str) -> tuple[str, str]:
    """Dispatch rule and order of a rule as it is written."""
    where, _, order = text.partition("/")
    return where, order


def protocol(cluster: str, setting: str, rate: float, log: qt.WorkflowLog, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """A row a score: weights by tuning on runs of their own, then ratios to every other rule on the same queries."""
    bench = Bench(system=system(cluster, setting, log), log=log, rate=rate)
    seen: dict[tuple[str, str, range], Floats] = {}

    def columns(rule: str | qt.DispatchRule, order: str, which: range) -> Floats:
        key = (str(rule), order, which)
        if key not in seen:
            seen[key] = bench.columns(rule, order, which)
        return seen[key]

    load = rate / float(qt.cluster_capacity(bench.system).rate_limit)
    tuning, measuring = range(sizes.measuring, sizes.measuring + sizes.tuning), range(sizes.measuring)
    others = {name: columns(*parted(rule), measuring) for name, rule in (BASELINES | OTHERS).items()}
    best_baseline = min(BASELINES, key=lambda name: _typical(columns(*parted(BASELINES[name]), tuning)[0]))
    unbalanced = columns(*parted(NO_BALANCING), measuring)
    heterogeneous = setting == "released" and cluster in HETEROGENEOUS
    for score in SCORES if heterogeneous else NAMED:
        weights = candidates(score, cluster, bench.system)
        tuned = [_typical(columns(each.rule, "urgency", tuning)[0]) for each in weights]
        found = [columns(each.rule, "urgency", measuring) for each in weights]
        chosen = int(np.argmin(tuned))
        own = found[chosen]
        unordered = columns(weights[chosen].rule, "fcfs", measuring)
        yield {
            "setting": setting,
            "cluster": cluster,
            "rate": rate,
            "load": load,
            "score": score,
            "alpha": weights[chosen].alpha,
            "beta": weights[chosen].beta,
            "best_baseline": best_baseline,
            "p95": plain(geometric(own[0])),
            "p95_ratio": {name: plain(geometric(each[0], own[0])) for name, each in others.items()},
            "throughput_ratio": {name: plain(geometric(own[1], each[1])) for name, each in others.items()},
            "single_run_deviation": float(np.log(others["vLLM"][0] / own[0]).std(ddof=1)),
            "without_balancing": plain(geometric(unbalanced[0], own[0])),
            "without_queue_order": plain(geometric(unordered[0], own[0])),
            "by_beta": _by_beta(weights, tuned, [each[0] for each in found], own[0]),
        }


def _typical(values: Floats) -> float:
    return float(np.log(values).mean())


def _by_beta(
    weights: Sequence[Weighted], tuned: Sequence[float], found: Sequence[Floats], own: Floats
) -> dict[str, dict[str, Any]]:
    """By beta: the alpha that tuning chose, the alphas not told from it, P95 of each alpha in that of the score."""
    table: dict[str, dict[str, Any]] = {}
    for beta in dict.fromkeys(each.beta for each in weights):
        places = [i for i, each in enumerate(weights) if each.beta == beta]
        best = min(places, key=lambda i: tuned[i])
        near = [geometric(found[i], found[best]) for i in places]
        table[beta] = {
            "alpha": weights[best].alpha,
            "near_best": [alpha for alpha, each in zip(ALPHAS, near, strict=True) if each is None or each.low <= 1],
            "by_alpha": [plain(geometric(found[i], own)) for i in places],
        }
    return table


def plain(value: Interval | None) -> dict[str, Any] | None:
    """An interval as plain values."""
    return None if value is None else attrs.asdict(value)


# --- long runs: shares of the capacity, and the largest rate within the deadlines -------------------------------------


def recorded(of: qt.WorkflowSystem, log: qt.WorkflowLog) -> qt.Queries:
    """Every query of the log once for each tenant."""
    size = len(log)
    rows = qt.queries_of_log(
        log, of.workflow, np.zeros(2 * size, dtype=np.int64), np.random.default_rng(0), in_order=True
    )
    return attrs.evolve(rows, tenant=np.repeat([0, 1], size))


def _alpha_by_beta(weights: Sequence[Weighted], tried: Mapping[str, float]) -> dict[str, float]:
    """The alpha of the least P95 in tuning, by beta."""
    rows: dict[str, dict[float, float]] = {}
    for each in weights:
        rows.setdefault(each.beta, {})[each.alpha] = tried[f"{each.rule}/urgency"]
    return {beta: min(row, key=row.__getitem__) for beta, row in rows.items()}


def stationary(cluster: str, setting: str, load: float, log: qt.WorkflowLog, sizes: Sizes) -> dict[str, Any]:
    """Rules at a share of the capacity: verdict, P95 and its ratio to least outstanding; weights as in `protocol`."""
    at = system(cluster, setting, log)
    rate = qt.cluster_capacity(at).rate_limit * Fraction(str(load))
    common: dict[str, Any] = {"rate": rate.limit_denominator(10**6), "queries": sizes.queries, "log": recorded(at, log)}
    weights = {score: [f"{each.rule}/urgency" for each in candidates(score, cluster, at)] for score in NAMED}
    every = list(dict.fromkeys(rule for rules in weights.values() for rule in rules))
    looked = qt.rate_curves(
        at, every, [common["rate"]], queries=sizes.queries, replications=sizes.tries, seed=SEED + 1, log=common["log"]
    )
    tried = {each.rule: each.points[0].p95.mean for each in looked.curves}
    chosen = {score: min(rules, key=tried.__getitem__) for score, rules in weights.items()}
    rules = [*chosen.values(), *BASELINES.values(), *OTHERS.values(), *STATIC.values(), NO_BALANCING]
    rules += [f"{parted(rule)[0]}/fcfs" for rule in chosen.values()]
    found = qt.simulate_cluster(
        at,
        list(dict.fromkeys(rules)),
        replications=sizes.replications,
        seed=SEED,
        baseline=BASELINES["Ray"],
        **common,
    )
    return {
        "setting": setting,
        "cluster": cluster,
        "load": load,
        "rate": float(rate),
        "around": found.around,
        "chosen": chosen,
        "alpha_by_beta": _alpha_by_beta(candidates(FREE, cluster, at), tried),
        "rules": [
            {
                "rule": each.rule,
                "verdict": each.verdict.value,
                "p50": each.p50.to_dict(),
                "p95": each.p95.to_dict(),
                "p95_in_least_outstanding": plain(each.ratios["p95"]),
                "attainment": None if each.attainment is None else each.attainment.to_dict(),
            }
            for each in found.rules
        ],
    }


def throughputs(cluster: str, setting: str, log: qt.WorkflowLog, sizes: Sizes) -> dict[str, Any]:
    """The largest rate at which 95 % of the queries end in time, by rule, and paired ratios.

    Every replication has a search of its own, on the same queries for every rule. The weights, and the best baseline,
    are those of the largest rates on other seeds.
    """
    at = system(cluster, setting, log)
    common: dict[str, Any] = {"width": sizes.width, "queries": sizes.throughput, "replications": 1}
    rows = recorded(at, log)

    def rates(rule: str, seeds: Iterable[int]) -> Floats:
        jobs = (delayed(qt.slo_throughput)(at, rule, seed=seed, log=rows, workers=1, **common) for seed in seeds)
        return np.array([each.rate.mean for each in Parallel(n_jobs=2, prefer="threads")(jobs)])

    measuring = range(SEED, SEED + sizes.replications)
    tuning = range(SEED + sizes.replications, SEED + sizes.replications + sizes.tries)
    weights = {
        score: [f"{each.rule}/urgency" for each in candidates(score, cluster, at) if each.alpha <= MOST_ALPHA]
        for score in NAMED
    }
    every = dict.fromkeys([*BASELINES.values(), *(rule for rules in weights.values() for rule in rules)])
    tried = {rule: float(rates(rule, tuning).mean()) for rule in every}
    chosen = {score: max(rules, key=tried.__getitem__) for score, rules in weights.items()}
    rules = [*BASELINES.values(), *OTHERS.values(), *chosen.values()]
    found = {rule: rates(rule, measuring) for rule in dict.fromkeys(rules)}
    return {
        "setting": setting,
        "cluster": cluster,
        "capacity": float(qt.cluster_capacity(at).rate_limit),
        "chosen": chosen,
        "best_baseline": max(BASELINES, key=lambda name: tried[BASELINES[name]]),
        "rates": {rule: plain(Interval.of(values)) for rule, values in found.items()},
        "ratios": {
            score: {name: plain(geometric(found[own], found[rule])) for name, rule in BASELINES.items()}
            for score, own in chosen.items()
        },
    }


def capacities(cluster: str, setting: str, log: qt.WorkflowLog) -> dict[str, Any]:
    """Largest queries/s of any rule and of round robin, what a little more of a type adds, loads at `RATES`."""
    found = qt.cluster_capacity(system(cluster, setting, log))
    limit = found.rate_limit
    return {
        "setting": setting,
        "cluster": cluster,
        "capacity": float(limit),
        "round_robin": float(qt.rule_limit(found.system, "round-robin").high),
        "one_more_adds": {
            each.name.split()[0]: float(more) for each, more in zip(found.types, found.derivative, strict=True)
        },
        "loads": {f"{rate:g}": rate / float(limit) for rate in RATES},
    }


# --- the claims -------------------------------------------------------------------------------------------------------


def claims(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every claim by setting and score: the word, the cells it rests on, and those of loads above 1 beside them."""
    rows: list[dict[str, Any]] = []
    for setting, score in product(SETTINGS, SCORES):
        own = [
            row
            for row in found["protocol"]
            if (row["setting"], row["score"]) == (setting, score) and row["cluster"] in HETEROGENEOUS
        ]
        rows += _of_protocol(own, setting, score) if own else ()
        within = [row for row in found["throughput"] if row["setting"] == setting and score in row["ratios"]]
        for name in ("vLLM", "the best baseline") if within else ():
            cells = [_read(row["ratios"][score][name if name in BASELINES else row["best_baseline"]]) for row in within]
            claim = f"1.49 times the queries/s of {name} within the SLO"
            rows.append(_claim(claim, setting, score, cells, [], (THROUGHPUT_CLAIM,)))
    return rows


def _claim(
    claim: str,
    setting: str,
    score: str,
    cells: Sequence[Interval | None],
    transients: Sequence[Interval | None],
    bounds: tuple[float, ...],
) -> dict[str, Any]:
    return {
        "claim": claim,
        "setting": setting,
        "score": score,
        "word": in_setting(word(cells, *bounds), setting),
        "cells": [plain(cell) for cell in cells],
        "transients": [plain(cell) for cell in transients],
    }


def _of_protocol(own: Sequence[Mapping[str, Any]], setting: str, score: str) -> Iterator[dict[str, Any]]:
    """Claims on runs from empty: words rest on the rates that some rule can carry."""
    needed = (1.0, NO_EFFECT)
    kinds: tuple[tuple[str, Callable[[Any], Any], tuple[float, ...]], ...] = (
        ("P95 1.42 times lower than vLLM", lambda row: row["p95_ratio"]["vLLM"], (P95_CLAIM,)),
        (
            "P95 1.42 times lower than the best baseline",
            lambda row: row["p95_ratio"][row["best_baseline"]],
            (P95_CLAIM,),
        ),
        (
            "1.49 times the queries/s of vLLM until all end",
            lambda row: row["throughput_ratio"]["vLLM"],
            (THROUGHPUT_CLAIM,),
        ),
        ("without balancing it is worse", lambda row: row["without_balancing"], needed),
        ("without the queue order it is worse", lambda row: row["without_queue_order"], needed),
    )
    for claim, of, bounds in kinds:
        cells, transients = ([_read(of(row)) for row in own if (row["load"] < 1) is stable] for stable in (True, False))
        yield _claim(claim, setting, score, cells, transients, bounds)
    first = {row["rate"]: row for row in own if row["cluster"] == "cluster-1"}
    overloaded = any(row["load"] >= 1 for row in first.values())
    for beta in first[RATES[0]]["by_beta"]:
        near = {rate: row["by_beta"][beta]["near_best"] for rate, row in first.items()}
        yield {
            "claim": "best alpha .1 to .4 at .5 queries/s, 0 to .1 at 1",
            "setting": setting,
            "score": f"hexgen-paper, beta = {beta}" if score == FREE else score,
            "word": TRANSIENT if overloaded else in_setting(alpha_word(near), setting),
            "near_best": {f"{rate:g}": list(alphas) for rate, alphas in near.items()},
        }


def _read(value: Mapping[str, Any] | None) -> Interval | None:
    return None if value is None else Interval(**value)


def cell_text(cell: Mapping[str, Any] | None) -> str:
    """A factor and its interval; where queries had not ended there is none."""
    return "-" if cell is None else f"{cell['mean']:.2f} [{cell['low']:.2f}, {cell['high']:.2f}]"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The claims in Markdown; factors at loads above 1 are in brackets."""
    lines = ["| claim | setting | score | cells | here |", "|---|---|---|---|---|"]
    for row in rows:
        if "cells" in row:
            shown = [cell_text(cell) for cell in row["cells"]] + [f"({cell_text(cell)})" for cell in row["transients"]]
            cells = ", ".join(shown)
        else:
            cells = "; ".join(f"{rate}: {', '.join(map(str, alphas))}" for rate, alphas in row["near_best"].items())
        lines.append(f"| {row['claim']} | {row['setting']} | {row['score']} | {cells} | {row['word']} |")
    return "\n".join(lines)


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Left: P95 of the other rules in that of the tuned score, by setting. Right: P95 by alpha."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hexgen"
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.4), width_ratios=(3, 2), layout="constrained")
    rows = [row for row in found["protocol"] if row["cluster"] == "cluster-1" and row["score"] == FREE]
    names = list(BASELINES | OTHERS)
    places = np.arange(len(rows))
    for k, name in enumerate(names):
        cells = [Interval(**row["p95_ratio"][name]) for row in rows]  # runs to the end: all are finite
        mean = np.array([cell.mean for cell in cells])
        ends = np.array([[cell.mean - cell.low, cell.high - cell.mean] for cell in cells]).T
        left.errorbar(places + (k - 3) / 10, mean, ends, fmt="os^vDP*"[k], ms=5, capsize=2, label=name)
    left.axhspan(1.42, 1.56, color="0.85", label="claimed, 1.42-1.56")
    left.axhline(1, color="0.4", lw=0.8)
    left.set_xticks(
        places, [f"{row['setting']}\n{row['rate']:g}/s\nload {row['load']:.2g}" for row in rows], fontsize=7
    )
    left.set_ylabel("P95 of the rule / of hexgen-paper, tuned")
    left.set_title("cluster 1, 100 queries from empty, the middle 50", fontsize=10)
    left.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=4)
    colors = {"released": "C0", "no-memory": "C1", "engines": "C2"}
    styles = {FREE: ("-", "--", ":"), "hexgen-released": ("-.",)}
    for row in found["protocol"]:
        if (row["cluster"], row["rate"]) != ("cluster-1", 0.5) or not (
            row["setting"] in colors and row["score"] in styles
        ):
            continue
        for (beta, each), style in zip(row["by_beta"].items(), styles[row["score"]], strict=True):
            curve = row["p95"]["mean"] * np.array([cell["mean"] for cell in each["by_alpha"]])
            label = f"{row['setting']}, {f'beta = {beta}' if beta else row['score']}"
            right.plot(ALPHAS, curve, style, color=colors[row["setting"]], label=label)
    right.set_xlabel("alpha")
    right.set_ylabel("P95, seconds")
    right.set_title("cluster 1, 0.5 queries/s", fontsize=10)
    right.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=2)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def experiment(log: qt.WorkflowLog, sizes: Sizes, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Everything, as plain values."""
    found: dict[str, Any] = {
        "seed": SEED,
        "sizes": attrs.asdict(sizes),
        "log": {"queries": len(log), "calls": sum(len(log.calls(stage)) for stage in log.stages)},
        "seats": seats(log),
        "capacity": [capacities(cluster, setting, log) for setting, cluster in product(sizes.settings, sizes.clusters)],
        "protocol": [],
        "stationary": [],
        "throughput": [],
    }
    for setting, cluster in product(sizes.settings, sizes.clusters):
        say(f"{setting}, {cluster}: 100 queries")
        for rate in RATES:
            found["protocol"] += protocol(cluster, setting, rate, log, sizes)
    for setting, cluster in product(sizes.long, [each for each in sizes.clusters if each in HETEROGENEOUS]):
        say(f"{setting}, {cluster}: long runs")
        found["stationary"] += [stationary(cluster, setting, load, log, sizes) for load in LOADS]
        found["throughput"].append(throughputs(cluster, setting, log, sizes))
    found = rounded(found)
    return found | {"claims": claims(found)}


def rounded(value: Any) -> Any:
    """Plain values with five significant digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def text(found: Mapping[str, Any]) -> str:
    """JSON, a line a row."""
    parts = [
        "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if isinstance(value, list) else json.dumps(value)
        for value in found.values()
    ]
    lines = (f" {json.dumps(key)}: {part}" for key, part in zip(found, parts, strict=True))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(log: Path, *, quick: bool = False, write: bool = False) -> None:
    """Run the comparison on the queries of ``log``; with --quick few and short runs, with --write keep the results."""
    found = experiment(qt.read_workflow_log(log), QUICK if quick else FULL)
    print(table(found["claims"]))
    if write:
        EXPECTED.write_text(text(found))
        draw(found, FIGURE)


if __name__ == "__main__":
    cyclopts.run(main)
