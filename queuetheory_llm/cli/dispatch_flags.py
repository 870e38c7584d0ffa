"""The flags of ``qt-llm dispatch``."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

#: What is compared where nothing else is asked for; the first is the baseline.
DEFAULT_RULES = (
    "round-robin/fcfs",
    "least-outstanding/fcfs",
    "random-lp/fcfs",
    "hexgen-paper/urgency",
    "hexgen-released/urgency",
)

Rules = Annotated[
    list[str] | None,
    Parameter(
        name="--rule",
        metavar="NAME/ORDER",
        negative=(),
        help="A dispatch rule with its flags and a queue order, as in hexgen-paper+alpha=0.2/urgency; without one it "
        f"is fcfs; may be repeated; the first is the baseline of the ratios. Default: {', '.join(DEFAULT_RULES)}.",
    ),
]
Rate = Annotated[str | None, Parameter(metavar="NUMBER", help="Queries per second, in place of those of the file.")]
SloScale = Annotated[
    str | None,
    Parameter(
        metavar="NUMBER",
        help="Deadline of every tenant, in multiples of the seconds that an average query takes alone.",
    ),
]
Log = Annotated[
    str | None,
    Parameter(
        metavar="FILE",
        help="Take the queries from this log of real ones (CHESS), at random with replacement, in place of those "
        "of the workflow; tenants and instances are those of the file.",
    ),
]
Queries = Annotated[str, Parameter(metavar="INT", help="Queries counted in a run, beside its warm-up.")]
Replications = Annotated[
    str, Parameter(metavar="INT", help="Independent runs; every rule gets the same queries in each.")
]
Seed = Annotated[str, Parameter(metavar="INT", help="Whole number; the same seed gives the same answer.")]
Ablations = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Beside the first rule with an alpha: its queue order without its balancing (round-robin), and its "
        "balancing without its queue order (fcfs).",
    ),
]
Limit = Annotated[
    bool, Parameter(negative=(), help="Also the largest stable rate of each rule (of each alpha with --tune).")
]
Throughput = Annotated[
    str | None,
    Parameter(metavar="SHARE", help="Also the largest rate at which this share of the queries meets its SLO."),
]
Curves = Annotated[
    Literal["rate", "slo-scale"] | None,
    Parameter(help="Also P95 and deadlines met of each rule against the rate, or against the SLO."),
]
Tune = Annotated[
    Literal["alpha"] | None,
    Parameter(help="Also P95 and deadlines met of the first rule with an alpha for 0, 0.1, ..., 1, and the best."),
]
Profile = Annotated[
    str | None,
    Parameter(
        metavar="FILE",
        help="With --tune: also alpha tuned online while the rate changes as in this CSV file (time,factor or "
        "time,rate).",
    ),
]
Retry = Annotated[
    bool, Parameter(negative=(), help="Also the probability of each retry at which the cluster is exactly full.")
]
