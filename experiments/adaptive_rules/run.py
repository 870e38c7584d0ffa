"""How much of the region under a batch size does a rule hold that looks at the state? See README.md beside this file.

``python experiments/adaptive_rules/run.py`` prints the table; with ``--write`` it also writes expected.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import attrs
import cyclopts

import queuetheory_llm as qt

EXPECTED = Path(__file__).with_name("expected.json")

#: Mean prompt and decode tokens: near vertex C of CodeLlama, the same of short requests, prompts and decodes apart.
DIRECTIONS = ((290, 990), (10, 35), (1000, 500), (10, 1000))
STAIRS = (128, 16, 1)
RULES = ("orca", "sarathi", "sarathi+target=128", "max-weight", "max-pressure")
FRACTIONS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)
#: Length of a run: at least so many requests, and so many decode tokens.
REQUESTS, DECODE_TOKENS = 30_000, 10_500_000
#: Share of the load that the backlog grows by, over the second half of a run, from which on it is said to grow.
GROWS = 0.015


def engine(b0: int, k_max: int = 100) -> qt.Engine:
    """CodeLlama-34B on one A100, its stair of 35.47 ms a 128 tokens cut into stairs of b0 tokens."""
    law = qt.Staircase(c="11.28 ms", a=Fraction(3547, 100_000) * b0 / 128, b0=b0)
    return qt.Engine(batch_time=law, b_max=1024, k_max=k_max)


def workload(law: str, prefill: int, decode: int) -> qt.Workload:
    """Lengths of those means: constant, geometric, or mixed, half of the requests 1/5 as long and half 9/5."""
    if law == "constant":
        return qt.Workload.of(prefill=prefill, decode=decode)
    if law == "geometric":
        return qt.Workload.of(prefill=qt.Geometric(mean=prefill), decode=qt.Geometric(mean=decode))
    classes = (("short", 1), ("long", 9))
    return qt.Workload(
        classes=[
            qt.RequestClass(name=name, lengths=qt.IndependentLengths(prefill * fifths // 5, decode * fifths // 5))
            for name, fifths in classes
        ]
    )


def growth(rule: str, on: qt.Engine, lengths: qt.Workload, rate: Fraction, requests: int) -> float:
    """Growth of the token backlog as a share of the load: second half of a run from empty, Poisson arrivals."""
    arriving = lengths.with_arrivals(qt.PoissonArrivals(rate=rate))
    horizon = Fraction(int(1000 * requests / rate), 1000)
    run = qt.simulate(on, qt.scheduler_for(rule, on, lengths), arriving, horizon=horizon, seed=1).run
    half = run.series.since(run.until // 2)
    return half.slope * run.clock.rate / float(rate * lengths.mean_tokens)


@attrs.frozen(kw_only=True)
class Cell:
    """One rule on one engine under one workload."""

    b0: int
    law: str
    prefill: int
    decode: int
    rule: str

    def growth(self, fraction: float, *, requests: int | None = None) -> float:
        """Growth of the token backlog as a share of the load, at ``fraction`` of the workload's own bound."""
        lengths, on = workload(self.law, self.prefill, self.decode), engine(self.b0)
        bound = qt.workload_bound(on, lengths).requests_per_s
        rate = Fraction(bound).limit_denominator(10**9) * Fraction(str(fraction))
        count = max(REQUESTS, DECODE_TOKENS // self.decode) if requests is None else requests
        return growth(self.rule, on, lengths, rate, count)

    def bracket(self) -> tuple[float | None, float | None]:
        """Largest fraction held and smallest at which the backlog grows, among `FRACTIONS`, by bisection."""
        low, high = -1, len(FRACTIONS)
        middle = high - 1
        while high - low > 1:
            if self.growth(FRACTIONS[middle]) < GROWS:
                low = middle
            else:
                high = middle
            middle = (low + high) // 2
        return (FRACTIONS[low] if low >= 0 else None), (FRACTIONS[high] if high < len(FRACTIONS) else None)

    def row(self) -> dict[str, object]:
        """The cell and its bracket."""
        held, grows = self.bracket()
        return {**attrs.asdict(self), "held": held, "grows": grows}


def cells() -> Iterator[Cell]:
    """Every cell of the table."""
    for b0 in STAIRS:
        for prefill, decode in DIRECTIONS:
            for law in ("constant", "geometric", "mixed"):
                for rule in RULES:
                    yield Cell(b0=b0, law=law, prefill=prefill, decode=decode, rule=rule)


def table(rows: list[dict[str, object]]) -> str:
    """The rows in Markdown, one line a workload: the largest fraction held of each rule."""
    lines = [f"| b0 | lengths | prompt / decode | {' | '.join(RULES)} |", "|---|---|---|" + "---|" * len(RULES)]
    for start in range(0, len(rows), len(RULES)):
        group = rows[start : start + len(RULES)]
        first = group[0]
        held = " | ".join("< .2" if row["held"] is None else f"{row['held']:g}" for row in group)
        lines.append(f"| {first['b0']} | {first['law']} | {first['prefill']} / {first['decode']} | {held} |")
    return "\n".join(lines)


def main(*, write: bool = False) -> None:
    """Print the table; with --write also keep it as expected.json."""
    rows = [cell.row() for cell in cells()]
    print(table(rows))
    if write:
        EXPECTED.write_text(json.dumps({"fractions_of": "workload bound", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    cyclopts.run(main)
