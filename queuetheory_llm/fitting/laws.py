"""Fits of one law to a profile, by the largest relative error.

For a given b0 a staircase, a hinge and an affine law are linear in (c, a). The two are chosen to minimise
max |law(b) - t(b)| / t(b), a linear program. Relative errors weigh a decode batch of a few tokens, where an engine
spends most of its batches, like a full one: least squares in seconds would see the largest batches alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

import attrs
import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats
from queuetheory_llm.exact.numbers import duration_text
from queuetheory_llm.model.batch_time import BatchTime, Hinge, Staircase, Table
from queuetheory_llm.model.profile import Profile

Counts = NDArray[np.int64]

#: Names of the laws that can be fitted, simplest first.
LAWS = ("affine", "hinge", "staircase", "table")

_DENSE = 1024  # every b0 up to here is tried, sparser ones above
_SPARSE = 256  # how many above
_SHORTLIST = 32  # how many b0 the linear program sees, after a ranking by least squares
_NEAR = 1.02  # b0 within 2 % of the best error are as good; the roundest of them is taken
_FLOAT_NOISE = 1e-14  # relative rounding of exact times to floats
_NANOSECOND, _PICOSECOND = Fraction(1, 10**9), Fraction(1, 10**12)


@attrs.frozen(kw_only=True)
class Candidate:
    """A fitted law and how far it is from the points.

    Attributes
    ----------
    name : str
        One of `LAWS`.
    law : BatchTime
        With rounded parameters; the errors are those of the rounded law.
    max_relative_error, mean_relative_error : float
        Of |law(b) - t(b)| / t(b) over the points.
    at_tokens : int
        Where the largest is.
    r2 : float or None
        1 - residual/total sum of squares, in seconds; None where all times are equal.
    """

    name: str
    law: BatchTime
    max_relative_error: float
    mean_relative_error: float
    at_tokens: int
    r2: float | None

    @property
    def formula(self) -> str:
        """The law with its parameters: ``"staircase: c = 11.28 ms, a = 35.47 ms, b0 = 128"``."""
        if not isinstance(self.law, Staircase | Hinge):
            return self.name
        return f"{self.name}: c = {duration_text(self.law.c)}, a = {duration_text(self.law.a)}, b0 = {self.law.b0}"

    @property
    def quality(self) -> str:
        """Its errors in one line, the largest relative error first."""
        r2 = "" if self.r2 is None else f", R^2 {self.r2:.5f}"
        return f"max relative error {100 * self.max_relative_error:.2f} % at {self.at_tokens} tokens{r2}"

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON: parameters in seconds, None where a law has none."""
        smooth = self.law if isinstance(self.law, Staircase | Hinge) else None
        return {
            "law": self.name,
            "c": None if smooth is None else float(smooth.c),
            "a": None if smooth is None else float(smooth.a),
            "b0": None if smooth is None else smooth.b0,
            "max_relative_error": self.max_relative_error,
            "at_tokens": self.at_tokens,
            "mean_relative_error": self.mean_relative_error,
            "r2": self.r2,
        }


def fit_affine(profile: Profile) -> Candidate | None:
    """t = c + a*b; None with fewer than three points or where t does not grow."""
    return _best(profile, "affine", [0], least=3)


def fit_hinge(profile: Profile) -> Candidate | None:
    """t = c + a*max(0, b - b0), b0 >= 1; None with fewer than four points or where t does not grow."""
    return _best(profile, "hinge", _block_candidates(profile, first=1), least=4)


def fit_staircase(profile: Profile) -> Candidate | None:
    """t = c + a*ceil(b/b0), b0 >= 2 with at least two stairs; None with fewer than four points or no growth."""
    return _best(profile, "staircase", _block_candidates(profile, first=2), least=4)


def fit_table(profile: Profile) -> Candidate:
    """The points themselves, to 1 ns."""
    law = Table(tokens=profile.tokens, seconds_at=tuple(_rounded(time, _NANOSECOND) for time in profile.seconds))
    return _judged(profile, "table", law)


#: Law -> its fit.
FITS: dict[str, Callable[[Profile], Candidate | None]] = {
    "affine": fit_affine,
    "hinge": fit_hinge,
    "staircase": fit_staircase,
    "table": fit_table,
}


def _feature(name: str, tokens: Counts, b0: int) -> Floats:
    """What the slope multiplies: started blocks, or tokens beyond b0."""
    values = -(-tokens // b0) if name == "staircase" else np.maximum(0, tokens - b0)
    return values.astype(np.float64)


def _best(profile: Profile, name: str, blocks: Iterable[int], *, least: int) -> Candidate | None:
    if len(profile) < least:
        return None
    tokens, seconds = profile.token_array, profile.second_array
    ranked = sorted(blocks, key=lambda b0: _least_squares_error(_feature(name, tokens, b0), seconds))
    found = [_candidate(profile, name, b0, _minimax(_feature(name, tokens, b0), seconds)) for b0 in ranked[:_SHORTLIST]]
    fitted = [candidate for candidate in found if candidate is not None]
    if not fitted:
        return None
    bound = _NEAR * min(candidate.max_relative_error for candidate in fitted) + 1e-6
    good = [candidate for candidate in fitted if candidate.max_relative_error <= bound]
    return max(good, key=lambda candidate: (_roundness(candidate.law), -candidate.max_relative_error))


def _block_candidates(profile: Profile, *, first: int) -> list[int]:
    """Block lengths to try, up to half the range: all small ones, powers of two, measured sizes, a geometric grid."""
    limit = profile.tokens[-1] // 2
    if limit < first:
        return []
    candidates = set(range(first, min(limit, _DENSE) + 1)) | set(profile.tokens)
    candidates |= {2**power for power in range(limit.bit_length())}
    candidates |= set(np.geomspace(first, limit, _SPARSE).astype(int).tolist())
    return sorted(b0 for b0 in candidates if first <= b0 <= limit)


def _roundness(law: BatchTime) -> int:
    """How often 2 divides b0: tiles come in powers of two."""
    b0 = law.b0 if isinstance(law, Staircase | Hinge) else 0
    return (b0 & -b0).bit_length()


def _least_squares_error(feature: Floats, seconds: Floats) -> float:
    """Largest relative error of the relative least-squares fit with c, a >= 0: a cheap upper bound of the minimax."""
    from scipy.optimize import nnls

    scale = max(float(feature.max()), 1.0)
    matrix = np.column_stack([1 / seconds, feature / (scale * seconds)])
    parameters, _ = nnls(matrix, np.ones_like(seconds))
    return float(np.abs(matrix @ parameters - 1).max())


def _minimax(feature: Floats, seconds: Floats) -> tuple[float, float]:
    """(c, a), both >= 0, that minimise the largest relative error; a linear program (HiGHS)."""
    from scipy.optimize import linprog

    # Points with equal feature share one value of the law: only the shortest and the longest of them bind.
    values, where = np.unique(feature, return_inverse=True)
    low, high = np.full(values.size, np.inf), np.zeros(values.size)
    np.minimum.at(low, where, seconds)
    np.maximum.at(high, where, seconds)
    scale, unit = max(float(values[-1]), 1.0), float(np.median(seconds))
    columns = unit * np.column_stack([np.ones_like(values), values / scale])
    rows = np.vstack([columns / low[:, None], -columns / high[:, None]])
    bounds = np.concatenate([np.ones_like(low), -np.ones_like(high)])
    answer = linprog(
        [0, 0, 1],
        A_ub=np.column_stack([rows, np.full(len(rows), -1.0)]),
        b_ub=bounds,
        bounds=[(0, None)] * 3,
        method="highs",
    )
    return unit * float(answer.x[0]), unit * float(answer.x[1]) / scale


def _candidate(profile: Profile, name: str, b0: int, parameters: tuple[float, float]) -> Candidate | None:
    """The law with parameters rounded to a finite decimal; None where rounding or the fit leaves no valid law."""
    fixed = _rounded(Fraction(parameters[0]), _NANOSECOND)
    # The slope of a hinge is per token and multiplies thousands of them, hence three digits more.
    slope = _rounded(Fraction(parameters[1]), _NANOSECOND if name == "staircase" else _PICOSECOND)
    if slope <= 0 or (fixed <= 0 and name == "hinge"):
        return None
    law = Staircase(c=fixed, a=slope, b0=b0) if name == "staircase" else Hinge(c=fixed, a=slope, b0=b0)
    return _judged(profile, name, law)


def _judged(profile: Profile, name: str, law: BatchTime) -> Candidate:
    seconds = profile.second_array
    difference = law.seconds_array(profile.token_array) - seconds
    difference[np.abs(difference) <= _FLOAT_NOISE * seconds] = 0.0
    relative = np.abs(difference) / seconds
    worst = int(relative.argmax())
    total = float(((seconds - seconds.mean()) ** 2).sum())
    return Candidate(
        name=name,
        law=law,
        max_relative_error=float(relative[worst]),
        mean_relative_error=float(relative.mean()),
        at_tokens=profile.tokens[worst],
        r2=1 - float((difference**2).sum()) / total if total > 0 else None,
    )


def _rounded(value: Fraction, unit: Fraction) -> Fraction:
    return round(value / unit) * unit
