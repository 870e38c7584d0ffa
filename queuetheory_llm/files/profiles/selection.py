"""What a user says about a profile that its file does not hold, or of which it holds several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs

from queuetheory_llm.errors import InvalidInput

#: Field of `Selection` -> the flag it comes from. ``b_max`` is not among them: it applies to every profile.
FLAGS = {
    "layers": "--layers",
    "tp": "--tp",
    "model": "--model",
    "hardware": "--hardware",
    "phase": "--phase",
    "context": "--context",
    "gemms": "--gemm",
    "dtype": "--dtype",
    "test": "--test",
}


@attrs.frozen(kw_only=True)
class Gemm:
    """A matrix product of one layer: (tokens x k) times (k x n)."""

    n: int
    k: int


@attrs.frozen(kw_only=True)
class Selection:
    """The choices of a user; None (or empty) where none was made.

    Attributes
    ----------
    layers : int
        Transformer layers the model has; per-layer times are multiplied by it.
    tp : int
        Tensor-parallel degree.
    model, hardware, dtype : str
        As the file spells them.
    phase : {"prefill", "decode"}
        Use the times of one phase only.
    context : int
        Tokens of context a decoding request has, for a formula that asks for them.
    gemms : tuple of Gemm
        Matrix products of one layer.
    test : int
        Which entry of a file of test cases, counted from 1.
    b_max : int
        Token budget; bounds the points taken from a formula.
    """

    layers: int | None = None
    tp: int | None = None
    model: str | None = None
    hardware: str | None = None
    phase: str | None = None
    context: int | None = None
    gemms: tuple[Gemm, ...] = ()
    dtype: str | None = None
    test: int | None = None
    b_max: int | None = None

    def __attrs_post_init__(self) -> None:
        """Check the counts."""
        least = {"layers": 1, "tp": 1, "context": 0, "test": 1}
        faults = [
            f"{FLAGS[field]}: {getattr(self, field)} is below {bound}"
            for field, bound in least.items()
            if getattr(self, field) is not None and getattr(self, field) < bound
        ]
        if self.phase not in (None, "prefill", "decode"):
            faults.append(f"--phase: {self.phase!r} is unknown; choose prefill or decode")
        if faults:
            raise InvalidInput(faults)

    def refuse_beyond(self, allowed: frozenset[str], format_name: str, source: str) -> None:
        """Refuse every choice that has no meaning for a format."""
        faults = [
            f"{flag}: does not apply to the {format_name} format; leave it out"
            for field, flag in FLAGS.items()
            if field not in allowed and getattr(self, field) not in (None, ())
        ]
        if faults:
            raise InvalidInput(faults, source=source)

    def require_layers(self, path: Path, what: str) -> int:
        """The number of layers; an error that asks for it where it was not given."""
        if self.layers is None:
            raise InvalidInput(
                f"--layers: missing; {what} is per layer: give --layers N, the number of layers of the model",
                source=str(path),
            )
        return self.layers

    def one_of(self, field: str, available: Iterable[str | int], path: Path) -> str | int:
        """The chosen value among those a file holds; the only one where there is no choice.

        Raises
        ------
        InvalidInput
            If several are there and none was chosen, or the chosen one is not there.
        """
        values = sorted(set(available), key=lambda value: (isinstance(value, str), value))
        chosen, listed = getattr(self, field), ", ".join(map(str, values))
        if chosen is None and len(values) == 1:
            return values[0]
        if chosen is None:
            raise InvalidInput(f"{FLAGS[field]}: missing; the file holds {listed}: choose one", source=str(path))
        if chosen not in values:
            raise InvalidInput(
                f"{FLAGS[field]}: {chosen} is not in the file; it holds {listed or 'none'}", source=str(path)
            )
        return chosen  # type: ignore[no-any-return]
