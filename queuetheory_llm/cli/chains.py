"""What ``qt-llm markov`` says of a chain: as text with no digit that is not known, or as an object."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from queuetheory_llm.cli.output import load, number, print_table
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.cli.words import engine_words, workload_words
from queuetheory_llm.exact.rounding import upper_limit, with_bound
from queuetheory_llm.markov.chain import ExactChain
from queuetheory_llm.markov.drift import AtLevel, DriftRow, DriftTable
from queuetheory_llm.markov.transient import Transient
from queuetheory_llm.model.system import System
from queuetheory_llm.simulation.present import AGREES, Present
from queuetheory_llm.verdict import Judgement

_SHARES = (0.5, 0.95, 0.99, 0.999)
_UNBENT = 1e3  # times the refused share: a larger tail is right to a few per cent
_DRIFT_LINES = 5


@attrs.frozen(kw_only=True)
class Answer:
    """A chain and what was asked for beside it."""

    chain: ExactChain
    later: Transient | None
    present: Present | None

    @property
    def apart(self) -> float:
        """Standard errors between the simulated mean and the exact one."""
        chain, present = self.chain, self.present
        return 0.0 if present is None else present.apart(chain.means.requests, chain.truncation.bounds["requests"])

    def warn(self) -> None:
        """What nobody must overlook, on stderr."""
        if self.apart > AGREES:
            say(
                f"warning: {self.chain.scheduler}: the simulated mean is {self.apart:.3g} standard errors from the "
                "exact one: run longer, with another seed; if it stays, one of the two is wrong",
                to=sys.stderr,
            )

    def to_dict(self) -> dict[str, Any]:
        """The object of --json."""
        found = self.chain.to_dict()
        if self.later is not None:
            found["after"] = self.later.to_dict()
        if self.present is not None:
            apart = self.apart if math.isfinite(self.apart) else None
            found["simulated"] = {**self.present.to_dict(), "standard_errors_apart": apart}
        return found


@attrs.frozen(kw_only=True)
class WithoutLaw:
    """A scheduler under which no stationary law is promised, beside others."""

    scheduler: str
    judgement: Judgement

    def to_dict(self) -> dict[str, Any]:
        """The object of --json: a verdict and no means."""
        judgement = self.judgement
        return {
            "scheduler": self.scheduler,
            "verdict": judgement.verdict.value,
            "basis": None if judgement.basis is None else judgement.basis.value,
            "reason": judgement.reason,
            "load": None if judgement.load is None else float(judgement.load),
        }


def print_answers(system: System, answers: Sequence[Answer | WithoutLaw]) -> None:
    """All of one chain, a row each of several."""
    say(f"{system.name}: {engine_words(system.engine)}")
    say(f"workload: {workload_words(system.workload)}")
    if len(answers) > 1:
        _print_side_by_side(answers)
    for answer in answers:
        found = answer.chain if isinstance(answer, Answer) else answer
        say(f"{found.scheduler}: {found.judgement.verdict.value}: {found.judgement.reason}")
        if isinstance(answer, Answer):
            if len(answers) == 1:
                _print_chain(answer.chain)
            _print_beside(answer)


_MEANS = ("requests present", "token backlog", "sojourn, s", "P(idle)")
_COLUMNS = ("requests", "backlog", "sojourn s", "P(idle)", "error at most", "p99", "decay", "level")


def _print_side_by_side(answers: Sequence[Answer | WithoutLaw]) -> None:
    chains = [answer.chain for answer in answers if isinstance(answer, Answer)]
    counted = f"counted {_where(chains[0])}: " if chains else ""
    print_table(
        ["scheduler", "verdict", "load", *_COLUMNS],
        [_row(answer) for answer in answers],
        title=f"{counted}requests present, their tokens left; error at most: of a mean as a share of it, of P(idle) as "
        "it is; p99: requests present at most, 99 % of the time; decay: far out, each further request is so many times "
        "as likely; level: tokens at which the chain is cut",
    )


def _row(answer: Answer | WithoutLaw) -> list[str]:
    """A scheduler among others; no digits where there is no law."""
    if isinstance(answer, WithoutLaw):
        judgement = answer.judgement
        return [answer.scheduler, judgement.verdict.value, load(judgement.load, 4), *("-" for _ in _COLUMNS)]
    chain = answer.chain
    shown = [_means(chain)[name] for name in _MEANS]
    errors = (
        Fraction(error) / (1 if name == "P(idle)" else Fraction(mean))
        for name, (mean, error) in zip(_MEANS, shown, strict=True)
    )
    return [
        chain.scheduler,
        chain.judgement.verdict.value,
        load(chain.judgement.load, 4),
        *(mean for mean, _ in shown),
        upper_limit(max(errors), 1),
        _quantile(chain, 0.99),
        number(None if chain.tail is None else chain.tail.decay, 3),
        number(chain.truncation.level, 4),
    ]


def _where(chain: ExactChain) -> str:
    return f"at {chain.counted_at}" if chain.slotted else f"over {chain.counted_at}"


def _means(chain: ExactChain) -> dict[str, tuple[str, str]]:
    """What is known of each mean, with its bound: both as text."""
    means, bounds, rate = chain.means, chain.truncation.bounds, chain.rate
    both = bounds["requests"] + bounds["prompts"]
    return {
        name: with_bound(value, bound)
        for name, value, bound in (
            ("requests present", means.requests, bounds["requests"]),
            ("token backlog", means.backlog, bounds["backlog"]),
            ("sojourn, s", chain.mean_sojourn, bounds["requests"] / rate),
            ("  until the prompt is done, s", chain.mean_prompt_time, bounds["prompts"] / rate),
            ("  from there to the last token, s", chain.mean_decode_time, both / rate),
            ("P(idle)", means.idle, bounds["idle"]),
            ("utilisation", chain.utilisation, bounds["idle"]),
        )
    }


def _quantile(chain: ExactChain, share: float) -> str:
    """A quantile of the requests present; none where what is refused could move it."""
    return "-" if _UNBENT * chain.truncation.mass > 1 - share else str(chain.quantile(share))


def _print_chain(chain: ExactChain) -> None:
    print_table(
        [f"counted {_where(chain)}", "mean", "error at most"],
        [[name, *texts] for name, texts in _means(chain).items()],
    )
    quantiles = [f"{_quantile(chain, share)} ({100 * share:g} %)" for share in _SHARES]
    say(f"requests present, at most, so much of the time: {', '.join(quantiles)}")
    say(f"tail: {_tail(chain)}")
    say(f"batches: {chain.mean_batch_tokens:.4g} tokens on average")
    if not chain.slotted:
        at = chain.law @ chain.space.requests(), chain.law @ chain.space.backlog(), chain.law[0]
        say(
            f"at {chain.boundary} (another law): {at[0]:.6g} requests, {at[1]:.6g} tokens, empty with probability "
            f"{at[2]:.4g}"
        )
    for line in (*_cut_lines(chain), *_drift_lines(chain)):
        say(line)


def _tail(chain: ExactChain) -> str:
    tail = chain.tail
    if tail is None:
        return "not seen far enough to tell how it falls: too few requests are likely, or --tolerance is too coarse"
    return f"from {tail.start} to {tail.end} requests, each further one is {tail.decay:.3g} times as likely"


def _cut_lines(chain: ExactChain) -> Iterator[str]:
    found, recurrence = chain.truncation, chain.recurrence
    yield (
        f"chain: {found.states} states and {found.transitions} transitions, cut at {found.level:.6g} tokens, where a "
        f"request is refused at {upper_limit(found.mass, 2)} of the boundaries; solved by {found.method} to a residual "
        f"of {found.residual:.1g}"
    )
    yield f"errors: from the chain cut at {found.checked_at:.6g} tokens, by what the refused requests would have cost"
    if recurrence.transient:
        yield f"recurrence: {recurrence.transient} of the states are transient: none of them is seen in the long run"
    period = chain.period
    if period > 1:
        yield f"recurrence: period {period}: the law after n batches keeps depending on n; the means are long-run ones"


def _drift_lines(chain: ExactChain) -> Iterator[str]:
    table = chain.drift
    if table.at_level is AtLevel.UNBOUNDED:
        yield (
            "drift: V = token backlog is no Lyapunov function of this scheduler: up to the level there are states with "
            "requests waiting where it does not fall on average; that says nothing against its stability"
        )
    elif table.epsilon is None:
        yield "drift: V = token backlog falls on average in none of the states explored"
    else:
        yield _fall(chain, table, table.epsilon)
        yield f"  {_beyond(table)}"
    for group in _groups(table.rows):
        yield f"  {_drift_line(group)}"


def _fall(chain: ExactChain, table: DriftTable, epsilon: float) -> str:
    one, many = ("slot", "slots") if chain.slotted else ("batch", "batches")
    return (
        f"drift: on the explored states V = token backlog falls by eps = {epsilon:.4g} tokens a {one} on average, or "
        f"more, outside F, the {table.exceptional.size} states with V up to {table.depth:.6g} where it does not; from "
        f"V tokens F is reached within V/eps {many} on average"
    )


def _beyond(table: DriftTable) -> str:
    """What is known of the states beyond those explored."""
    if table.closed:
        return "no request is ever refused: the engine reaches no other states"
    if table.at_level is AtLevel.BOUNDED:
        return "V falls so in every state at the level; where it does beyond the level too, F is all there is"
    return "no state at the level tells whether F ends there: a higher --level may"


def _groups(rows: Sequence[DriftRow]) -> list[Sequence[DriftRow]]:
    """The rows by tokens of the batch, in a few groups of about as many; the idle engine and full batches alone."""
    if len(rows) <= _DRIFT_LINES:
        return [[row] for row in rows]
    cuts = np.linspace(1, len(rows) - 1, _DRIFT_LINES - 1).round().astype(int).tolist()
    edges = [0, *cuts, len(rows)]
    return [rows[low:high] for low, high in pairwise(edges) if high > low]


def _drift_line(rows: Sequence[DriftRow]) -> str:
    first, last = rows[0].tokens, rows[-1].tokens
    chance = sum(row.chance for row in rows)
    drift = sum(row.chance * row.drift for row in rows) / chance if chance else float(np.mean([r.drift for r in rows]))
    what = "engine idle" if last == 0 else f"batch of {first:.4g}" + (f" to {last:.4g}" if last > first else "")
    inside = {row.exceptional for row in rows}
    place = "partly in F" if len(inside) > 1 else "in F" if True in inside else "outside F"
    return f"{what}: V changes by {drift:+.4g} tokens on average; {100 * chance:.3g} % of the boundaries, {place}"


def _print_beside(answer: Answer) -> None:
    """What was asked for beside the chain."""
    chain, later, present = answer.chain, answer.later, answer.present
    if later is not None:
        steps = "slots" if chain.slotted else "batches or idle times"
        say(
            f"after {later.steps} {steps} from the empty engine: {later.requests:.5g} requests and {later.backlog:.5g} "
            f"tokens at {chain.boundary}; distance to the stationary law {later.distance:.2g} (total variation)"
        )
    if present is not None:
        low, high = present.interval(0.95)
        say(
            f"simulation {_compared(answer.apart, present)}: {present.mean:.5g} requests present, "
            f"95 % interval {low:.5g} .. {high:.5g}, against {with_bound(*_requests(chain))[0]}; {present.runs} runs "
            f"of {present.seconds:g} s, the first {present.warm_up:g} s of each left out, seed {present.seed}"
        )


def _compared(apart: float, present: Present) -> str:
    if apart > AGREES:
        return "DISAGREES"
    return "agrees" if present.telling else "is too short to tell"


def _requests(chain: ExactChain) -> tuple[float, float]:
    return chain.means.requests, chain.truncation.bounds["requests"]
