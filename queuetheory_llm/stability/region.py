"""Outer stability region of one engine in the plane of token rates (Dai et al. 2025, Theorem 10).

R is the down-closed convex hull of (x, y)/t(x + y) over the batches of x prefill and y decode tokens with
x + y <= b_max and y + [x > 0] <= k_max. Outside R the system is unstable under every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import AssumptionViolated, InvalidInput
from queuetheory_llm.exact.hull import DownClosedPolygon, Point, Triple, upper_right
from queuetheory_llm.exact.numbers import Number, common_denominator, exact_text, to_fraction
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.result import Result, html_table
from queuetheory_llm.verdict import Verdict, judge_load


@attrs.frozen(kw_only=True)
class MixedBatch:
    """A batch of ``prefill`` and ``decode`` tokens that lasts ``seconds``."""

    prefill: int
    decode: int
    seconds: Fraction

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {"prefill": self.prefill, "decode": self.decode, "seconds": float(self.seconds)}


@attrs.frozen(kw_only=True)
class Vertex:
    """An extreme point of a region, in tokens per second, and the batch that attains (or dominates) it."""

    prefill: Fraction
    decode: Fraction
    batch: MixedBatch
    label: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; ``exact`` holds the two rates as fractions."""
        return {
            "prefill": float(self.prefill),
            "decode": float(self.decode),
            "exact": [exact_text(self.prefill), exact_text(self.decode)],
            "batch": self.batch.to_dict(),
            "label": self.label,
        }


@attrs.frozen(kw_only=True)
class Membership:
    """Where a pair of token rates lies, with the proof.

    Attributes
    ----------
    point : (Fraction, Fraction)
        Prefill and decode tokens per second.
    load : Fraction
        1/(largest scale of the rates that stays in the region).
    weights : tuple of (Vertex, Fraction)
        Shares of time; running these vertices' batches serves at least ``point``. They sum to ``load``.
    line : (Fraction, Fraction, Fraction)
        (p, d, bound): every batch serves at most ``bound`` of p*prefill + d*decode tokens per second, and the point
        presses on it hardest. It separates a point outside.
    exact : bool
        Whether the point was given by rational numbers; a float is taken at its value, and then nothing printed of
        the load or the weights as a fraction.
    """

    point: Point
    load: Fraction
    weights: tuple[tuple[Vertex, Fraction], ...]
    line: tuple[Fraction, Fraction, Fraction]
    exact: bool = True

    @property
    def inside(self) -> bool:
        """Strictly inside: load < 1."""
        return self.load < 1

    @property
    def verdict(self) -> Verdict:
        """UNSTABLE outside (under every rule), CRITICAL on the boundary, UNDECIDED inside: R is an outer region."""
        return Verdict.UNDECIDED if self.inside else judge_load(self.load)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        p, d, bound = self.line
        share: Callable[[Fraction], str | float] = str if self.exact else float
        return {
            "inside": self.inside,
            "load": float(self.load),
            "load_exact": str(self.load) if self.exact else None,
            "margin": float(1 - self.load),
            "weights": [
                {
                    "batch": vertex.batch.to_dict(),
                    "label": vertex.label,
                    "weight": share(weight),
                }
                for vertex, weight in self.weights
            ],
            "line": {"prefill": str(p), "decode": str(d), "bound": str(bound)},
        }


@attrs.frozen(kw_only=True)
class StabilityRegion(Result):
    """A down-closed convex polygon of token rates with the batches at its corners.

    Attributes
    ----------
    engine : Engine
    polygon : DownClosedPolygon
    batches : tuple of MixedBatch
        One a corner of the polygon.
    labels : tuple of str
        One a corner.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.region:draw_outer"
    engine: Engine
    polygon: DownClosedPolygon
    batches: tuple[MixedBatch, ...]
    labels: tuple[str, ...]

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """Every extreme point, the origin (an idle engine) first, then from the prefill to the decode axis."""
        idle = MixedBatch(prefill=0, decode=0, seconds=Fraction(0))
        return tuple(
            Vertex(prefill=x, decode=y, batch=idle, label="0")
            if corner is None
            else Vertex(
                prefill=x,
                decode=y,
                batch=self.batches[corner],
                label=self.labels[corner] + ("" if (x, y) == self.polygon.corners[corner] else "'"),
            )
            for (x, y), corner in self.polygon.extreme_points
        )

    def corner(self, index: int) -> Vertex:
        """The vertex at a corner of the polygon."""
        x, y = self.polygon.corners[index]
        return Vertex(prefill=x, decode=y, batch=self.batches[index], label=self.labels[index])

    def membership(self, prefill: Number, decode: Number) -> Membership:
        """Locate a pair of token rates, with weights on batches and the line that bounds it.

        Raises
        ------
        InvalidInput
            If a rate is negative.
        AssumptionViolated
            If the region has no extent in the direction of the point.
        """
        point = to_fraction(prefill), to_fraction(decode)
        exact = not (isinstance(prefill, float) or isinstance(decode, float))
        if min(point) < 0:
            raise InvalidInput(f"token rates: {float(min(point)):g} is negative; a rate is at least 0")
        if not any(point):
            face = self.polygon.faces[0]
            return Membership(point=point, load=Fraction(0), weights=(), line=(face.prefill, face.decode, face.bound))
        try:
            face, load = self.polygon.binding_face(point)
        except ZeroDivisionError:
            raise AssumptionViolated(
                f"the region has no extent towards {float(point[0]):g} prefill and {float(point[1]):g} decode tokens/s"
            ) from None
        shares = self.polygon.weights(point)
        return Membership(
            point=point,
            load=load,
            weights=tuple((self.corner(index), weight) for index, weight in shares.items()),
            line=(face.prefill, face.decode, face.bound),
            exact=exact,
        )

    def request_rate(self, mean_prefill: Number, mean_decode: Number) -> Fraction:
        """Largest requests/s of the given mean lengths that stays in the region (its boundary included)."""
        return 1 / self.membership(mean_prefill, mean_decode).load

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {"vertices": [vertex.to_dict() for vertex in self.vertices]}

    def _repr_html_(self) -> str:
        return html_table(
            ("vertex", "prefill tokens/s", "decode tokens/s", "batch (prefill, decode)"),
            (
                (v.label, f"{float(v.prefill):.6g}", f"{float(v.decode):.6g}", f"({v.batch.prefill}, {v.batch.decode})")
                for v in self.vertices
            ),
        )


def region_from_batches(
    engine: Engine, batches: Iterable[tuple[int, int]], label: Callable[[Sequence[MixedBatch]], Sequence[str]]
) -> StabilityRegion:
    """The region spanned by batches (x, y) of at least one token."""
    pairs = list(batches)
    ticks = law_ticks(engine, {x + y for x, y in pairs})
    points: list[Triple] = [(x, y, ticks[x + y]) for x, y in pairs]
    chosen = [
        MixedBatch(prefill=x, decode=y, seconds=engine.batch_time.seconds(x + y))
        for x, y in (pairs[i] for i in upper_right(points))
    ]
    polygon = DownClosedPolygon(tuple((each.prefill / each.seconds, each.decode / each.seconds) for each in chosen))
    return StabilityRegion(engine=engine, polygon=polygon, batches=tuple(chosen), labels=tuple(label(chosen)))


def law_ticks(engine: Engine, counts: Iterable[int]) -> dict[int, int]:
    """t(b) for each b as integers on one scale, for exact comparisons of rates."""
    seconds = {b: engine.batch_time.seconds(b) for b in counts}
    scale = common_denominator(list(seconds.values()))
    return {b: t.numerator * (scale // t.denominator) for b, t in seconds.items()}


@lru_cache(maxsize=16)
def outer_region(engine: Engine) -> StabilityRegion:
    """R of Theorem 10: no workload outside it is stable under any rule.

    On batches of b tokens the rates lie on a segment, whose ends are b prefill tokens and as many decode tokens as
    the seats allow. Along each of the three families of ends only the corners of the batch-time law can be extreme.

    Examples
    --------
    >>> law = Staircase(c="30 ms", a="5 ms", b0=64)
    >>> [v.batch.decode for v in outer_region(Engine(batch_time=law, b_max=512, k_max=33)).vertices]
    [0, 0, 32, 32, 33]
    """
    law, b_max, seats = engine.batch_time, engine.b_max, engine.slots
    prefill_only = [(b, 0) for b in law.corners(1, b_max)]
    decode_only = [(0, b) for b in law.corners(1, seats)]
    mixed = [(b - seats + 1, seats - 1) for b in law.corners(seats, b_max)]
    return region_from_batches(
        engine, [*prefill_only, *mixed, *decode_only], lambda chosen: _corner_labels(engine, chosen)
    )


def _corner_labels(engine: Engine, chosen: Sequence[MixedBatch]) -> list[str]:
    """A, B, C, D as in Theorem 10 where it applies (Assumption 1, k_max <= b0), else the alphabet in order."""
    law, seats = engine.batch_time, engine.slots
    if isinstance(law, Staircase) and engine.whole_blocks and engine.k_max is not None and seats <= law.b0:
        named = {
            (0, seats): "D",
            (law.b0 - seats + 1, seats - 1): "C",
            (engine.b_max - seats + 1, seats - 1): "B",
            (engine.b_max, 0): "A",
        }
        return [named[each.prefill, each.decode] for each in chosen]
    return ordered_labels(chosen)


def ordered_labels(chosen: Sequence[MixedBatch]) -> list[str]:
    """A, B, C, ... from the prefill axis; V27, V28, ... beyond the alphabet."""
    return [chr(ord("A") + i) if i < 26 else f"V{i + 1}" for i in range(len(chosen))]
