"""From a profile to the law a model should use: all candidates, their errors, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any, ClassVar

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.fitting.laws import FITS, LAWS, Candidate, fit_table
from queuetheory_llm.fitting.steps import TileStep, tile_steps
from queuetheory_llm.model.batch_time import Staircase, Table
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.profile import Profile
from queuetheory_llm.result import Result

#: A law is good enough when no point is further from it than this fraction.
TOLERANCE = 0.10
_MATTERS = 0.01  # a smaller fall of t is left to noise
_SPARSE = 1.25  # ratio of neighbouring sizes, and of their times, from which the padding to the larger one matters


@attrs.frozen(kw_only=True)
class Fit(Result):
    """The laws fitted to a profile and the one to use.

    Attributes
    ----------
    profile : Profile
        The points fitted.
    candidates : tuple of Candidate
        Simplest law first; the table among them when it is offered.
    chosen : Candidate
    reason : str
        Why that one.
    tile_steps : tuple of TileStep
    notes : tuple of str
        Those of the profile, then those of the fit.
    """

    figure: ClassVar[str] = "queuetheory_llm.plots.fit:draw_fit"
    profile: Profile
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    reason: str
    tile_steps: tuple[TileStep, ...]
    notes: tuple[str, ...]

    def engine(self, *, b_max: int | None = None, k_max: int | None = None) -> Engine:
        """An engine with the chosen law.

        Parameters
        ----------
        b_max : int, optional
            Token budget; by default the largest size measured, for a staircase the last end of a stair within it.
        k_max : int, optional

        Raises
        ------
        InvalidModel
            If a table does not reach ``b_max``, or a limit is below 1.
        """
        budget = self._largest_budget() if b_max is None else b_max
        return Engine(batch_time=self.chosen.law, b_max=budget, k_max=k_max)

    def _largest_budget(self) -> int:
        last, law = self.profile.tokens[-1], self.chosen.law
        return last - last % law.b0 if isinstance(law, Staircase) else last

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; seconds and tokens."""
        return {
            "source": self.profile.source,
            "format": self.profile.format,
            "includes": self.profile.includes,
            "statistic": self.profile.statistic,
            "points": len(self.profile),
            "max_relative_error": self.chosen.max_relative_error,
            "r2": self.chosen.r2,
            "chosen": self.chosen.name,
            "reason": self.reason,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "tile_steps": [step.to_dict() for step in self.tile_steps],
            "notes": list(self.notes),
        }

    @property
    def summary(self) -> str:
        """One line: the law, its errors, why it was chosen, from which points."""
        tokens = self.profile.tokens
        return (
            f"{self.chosen.formula}; {self.chosen.quality}; {self.reason}; "
            f"{len(tokens)} points from {tokens[0]} to {tokens[-1]} tokens"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{candidate.name}</td><td>{candidate.max_relative_error:.2%}</td><td>{candidate.at_tokens}</td></tr>"
            for candidate in self.candidates
        )
        return (
            f"<p>{escape(self.profile.source)}: {escape(self.summary)}</p>"
            f"<table><tr><th>law</th><th>max relative error</th><th>at tokens</th></tr>{rows}</table>"
        )


def fit_profile(profile: Profile, *, law: str = "auto") -> Fit:
    """Fit every law and choose one.

    The simplest law within 10 % of every point is chosen, of two equally simple ones (hinge, staircase) the closer;
    where none is, the table of the points, which need not be monotone. The table is offered too whenever the staircase
    misses by more than 10 %.

    Parameters
    ----------
    profile : Profile
    law : {"auto", "affine", "hinge", "staircase", "table"}
        A name takes that law whatever its error.

    Raises
    ------
    InvalidInput
        If the law is unknown or cannot be fitted to these points.
    """
    if law != "auto" and law not in LAWS:
        raise InvalidInput(f"--law: {law!r} is unknown; choose auto, {', '.join(LAWS)}")
    smooth = [candidate for name in LAWS[:-1] if (candidate := FITS[name](profile)) is not None]
    staircase = next((candidate for candidate in smooth if candidate.name == "staircase"), None)
    offered = law == "table" or staircase is None or staircase.max_relative_error > TOLERANCE
    candidates = (*smooth, fit_table(profile)) if offered else tuple(smooth)
    chosen, reason = _choose(candidates, law, profile)
    return Fit(
        profile=profile,
        candidates=candidates,
        chosen=chosen,
        reason=reason,
        tile_steps=tile_steps(profile),
        notes=(*profile.notes, *_remarks(profile, candidates, chosen)),
    )


def _choose(candidates: Sequence[Candidate], law: str, profile: Profile) -> tuple[Candidate, str]:
    by_name = {candidate.name: candidate for candidate in candidates}
    if law != "auto":
        if law not in by_name:
            raise InvalidInput(
                f"--law: no {law} law can be fitted to {len(profile)} points (too few, or no growth); use --law table",
                source=profile.source,
            )
        return by_name[law], "as asked"
    within = "the simplest law within 10 % of every point"
    if "affine" in by_name and by_name["affine"].max_relative_error <= TOLERANCE:
        return by_name["affine"], within
    bent = [by_name[name] for name in ("hinge", "staircase") if name in by_name]
    if bent:
        best = min(bent, key=lambda candidate: candidate.max_relative_error)
        if best.max_relative_error <= TOLERANCE:
            return best, within
    return by_name["table"], "no simpler law is within 10 % of every point"


def _remarks(profile: Profile, candidates: Sequence[Candidate], chosen: Candidate) -> list[str]:
    notes = [
        "c and the times of a table are rounded to 1 ns, a to 1 ns a block or 1 ps a token; "
        "the errors are those of the rounded law"
    ]
    missing = [name for name in LAWS[:-1] if name not in {candidate.name for candidate in candidates}]
    if missing:
        notes.append(f"not fitted, for too few points or no growth: {', '.join(missing)}")
    if isinstance(chosen.law, Table):
        notes.append("the table has no error at its own points; between two points a batch costs the next larger one")
        notes += _gaps(profile)
    for candidate in candidates:
        if candidate.name == "staircase" and candidate.max_relative_error > TOLERANCE:
            notes.append(
                f"a staircase misses by {candidate.max_relative_error:.1%}".replace("%", " %")
                + f" at {candidate.at_tokens} tokens: the table is offered"
            )
    return [*notes, *_falls(profile)]


def _gaps(profile: Profile) -> list[str]:
    """A remark on neighbouring sizes so far apart that padding to the larger one overstates the time."""
    points = list(zip(profile.tokens, profile.seconds, strict=True))
    wide = [(b, c) for (b, x), (c, y) in pairwise(points) if c > _SPARSE * b and y > _SPARSE * x]
    if not wide:
        return []
    before, after = wide[0]
    return [
        f"sparse table: {len(wide)} gaps between sizes (the first from {before} to {after} tokens) over which t "
        f"grows by more than {100 * (_SPARSE - 1):.0f} %: batches inside a gap are overstated"
    ]


def _falls(profile: Profile) -> list[str]:
    """A remark on sizes after which a larger batch is the faster one, whether by a better kernel or by noise."""
    points = list(zip(profile.tokens, profile.seconds, strict=True))
    falls = [(y / x, b, c) for (b, x), (c, y) in pairwise(points) if y < (1 - _MATTERS) * x]
    if not falls:
        return []
    ratio, before, after = min(falls)
    percent = f"{float(1 - ratio):.0%}".replace("%", " %")
    return [
        f"t is not monotone: falls by more than 1 % between neighbouring sizes: {len(falls)}, "
        f"the largest from {before} to {after} tokens ({percent})"
    ]
