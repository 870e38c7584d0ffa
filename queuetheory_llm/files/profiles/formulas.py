"""Profiles that are already formulas: DistServe's latency coefficients (ms) and BLIS beta coefficients (us).

Formats of LLMServe/DistServe, simdistserve/estimators/profile_data (Zhong et al., DistServe, OSDI 2024), and of
inference-sim/inference-sim, testdata/goldendataset.json. Neither holds measured
points: points are evaluated from the formula.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.exact.numbers import to_count, to_fraction
from queuetheory_llm.files.profiles.selection import Selection
from queuetheory_llm.files.profiles.table import MICROSECOND, MILLISECOND, Head, read_head
from queuetheory_llm.model.profile import Profile

_DISTSERVE_KEYS = {"prefill", "decoding_smallbs", "decoding_largebs", "decoding_large_small_bs_threshold"}
_BETA = "beta-coeffs"
_DEGREE = re.compile(r"\d{1,9}", re.ASCII)
_MOST_TOKENS = 2**20  # a formula is evaluated up to here, at 2^16 sizes
_DEFAULT_RANGE = 2048  # tokens; the usual token budget, and the context length of the OPT models


def is_distserve(head: Head) -> bool:
    """Whether a file holds DistServe coefficients: model -> degree -> prefill and decoding."""
    return (
        isinstance(head.document, dict)
        and bool(head.document)
        and all(
            isinstance(degrees, dict)
            and bool(degrees)
            and all(isinstance(entry, dict) and set(entry) >= _DISTSERVE_KEYS for entry in degrees.values())
            for degrees in head.document.values()
        )
    )


def is_blis(head: Head) -> bool:
    """Whether a file holds BLIS tests with beta coefficients."""
    tests = head.document.get("tests") if isinstance(head.document, dict) else None
    return isinstance(tests, list) and bool(tests) and all(isinstance(test, dict) and _BETA in test for test in tests)


def read_distserve(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """t(b) of one prompt of b tokens, or of b decodes with --context tokens each.

    Raises
    ------
    InvalidInput
        If the model, degree, phase or context is not decided, or a coefficient is no number.
    """
    path = paths["distserve"][0]
    document = read_head(path).document
    model = str(selection.one_of("model", document, path))
    degrees = {int(degree): entry for degree, entry in document[model].items() if _DEGREE.fullmatch(degree)}
    tp = int(selection.one_of("tp", degrees, path))
    entry, where = degrees[tp], f"{model}.{tp}"
    phase = _require_phase(selection, path)
    if phase == "prefill":
        return _distserve_prefill(path, entry, where, selection)
    return _distserve_decode(path, entry, where, selection)


def _distserve_prefill(path: Path, entry: Mapping[str, Any], where: str, selection: Selection) -> Profile:
    if selection.context is not None:
        raise InvalidInput("--context: only the decode formula has it; leave it out", source=str(path))
    c0, c1, c2 = _coefficients(entry["prefill"], f"{where}.prefill", path)
    points = _evaluate(lambda b: (c0 + c1 * b + c2 * b * b) * MILLISECOND, selection)
    notes = ["prefill = c0 + c1*n + c2*n^2, the quadratic term evaluated for one prompt of n = b tokens a batch"]
    if c2 < 0:
        notes.append("the quadratic coefficient is negative, an artefact of the published fit")
    return _formula(path, "distserve", f"whole prefill iterations of {where}", points, notes)


def _distserve_decode(path: Path, entry: Mapping[str, Any], where: str, selection: Selection) -> Profile:
    if selection.context is None:
        raise InvalidInput(
            "--context: missing; decode time grows with the context: give --context N, the mean context of a request",
            source=str(path),
        )
    context, key = selection.context, "decoding_large_small_bs_threshold"
    try:
        split = to_count(entry[key])
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{key}: {error}", source=str(path)) from None
    small = _coefficients(entry["decoding_smallbs"], f"{where}.decoding_smallbs", path)
    large = _coefficients(entry["decoding_largebs"], f"{where}.decoding_largebs", path)

    def seconds(b: int) -> Fraction:
        c0, c1, c2 = small if b < split else large
        return (c0 + c1 * context * b + c2 * b) * MILLISECOND

    points = _evaluate(seconds, selection, also=(split - 1, split))
    notes = [
        f"decode = c0 + c1*context_tokens + c2*batch with {context} tokens of context a request",
        f"two regimes, of batches below {split} and from {split} on",
    ]
    return _formula(path, "distserve", f"whole decode iterations of {where}", points, notes)


def read_blis(paths: Mapping[str, Sequence[Path]], selection: Selection) -> Profile:
    """The affine law beta0 + beta1*prefill + beta2*decode in the tokens of one phase.

    Raises
    ------
    InvalidInput
        If the test or the phase is not decided, or a coefficient is no number.
    """
    path = paths["blis"][0]
    tests = read_head(path).document["tests"]
    index = _test_index(tests, selection, path)
    test, where = tests[index - 1], f"tests.{index}"
    phase = _require_phase(selection, path)
    beta0, beta1, beta2 = _coefficients(test[_BETA], f"{where}.{_BETA}", path)
    slope, other = (beta1, beta2) if phase == "prefill" else (beta2, beta1)
    points = _evaluate(lambda b: (beta0 + slope * b) * MICROSECOND, selection)
    notes = [
        f"test {index}: {_describe(test)}",
        f"a token costs {float(slope):.4g} us in {phase}, {float(other):.4g} us in the other phase: "
        "a law in tokens alone holds one of them",
        "alpha-coeffs are delays of the host outside the engine and are not part of the batch time",
    ]
    return _formula(path, "blis", f"whole iterations of {phase} tokens", points, notes)


def _test_index(tests: Sequence[Mapping[str, Any]], selection: Selection, path: Path) -> int:
    if selection.test is not None or len(tests) == 1:
        return int(selection.one_of("test", range(1, len(tests) + 1), path))
    listed = "; ".join(f"{number} = {_describe(test)}" for number, test in enumerate(tests, 1))
    raise InvalidInput(f"--test: missing; the file holds {len(tests)} tests: choose one of {listed}", source=str(path))


def _describe(test: Mapping[str, Any]) -> str:
    return f"{test.get('model', 'unnamed')} on {test.get('hardware', 'unknown')}, tp {test.get('tp', 'unknown')}"


def _require_phase(selection: Selection, path: Path) -> str:
    if selection.phase is None:
        raise InvalidInput(
            "--phase: missing; the file has one formula for prefill and one for decode: "
            "give --phase prefill or --phase decode",
            source=str(path),
        )
    return selection.phase


def _coefficients(values: Any, where: str, path: Path) -> tuple[Fraction, Fraction, Fraction]:
    if not isinstance(values, list) or len(values) != 3:
        raise InvalidInput(f"{where}: expected three coefficients", source=str(path))
    try:
        first, second, third = (to_fraction(value) for value in values)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}", source=str(path)) from None
    return first, second, third


def _evaluate(
    seconds: Callable[[int], Fraction], selection: Selection, also: Sequence[int] = ()
) -> dict[int, Fraction]:
    """Points at the powers of two and every 16 tokens up to the budget, and where the formula changes."""
    last = _DEFAULT_RANGE if selection.b_max is None else max(selection.b_max, 1)
    if last > _MOST_TOKENS:
        raise InvalidInput(f"--b-max: {last} is above {_MOST_TOKENS}, up to which a formula is evaluated; lower it")
    grid = {2**power for power in range(last.bit_length())} | set(range(16, last + 1, 16)) | {last} | set(also)
    return {b: seconds(b) for b in sorted(grid) if 1 <= b <= last}


def _formula(path: Path, name: str, includes: str, points: Mapping[int, Fraction], notes: Sequence[str]) -> Profile:
    evaluated = (
        f"evaluated from a formula at {len(points)} sizes up to {max(points)} tokens: errors are against the formula, "
        "not against measurements; the file does not say which sizes were measured"
    )
    return Profile(
        tokens=tuple(points),
        seconds=tuple(points.values()),
        source=str(path),
        format=name,
        includes=includes,
        statistic="formula",
        notes=(evaluated, *notes),
    )
