"""One engine: a batch-time law, a token budget, a batch size and a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.converters import optional

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import to_count
from queuetheory_llm.model.batch_time import BatchTime, Staircase


def _at_least_one(_: object, field: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidModel(f"{field.name}: {value} is below 1; an engine that can serve needs at least 1")


@attrs.frozen(kw_only=True)
class Engine:
    """A server that runs one batch after another (Dai et al. 2025, section 2).

    Parameters
    ----------
    batch_time : BatchTime
        Duration of a batch of b tokens.
    b_max : int
        Token budget of a batch (vLLM: ``max_num_batched_tokens``).
    k_max : int, optional
        Most requests in a batch (vLLM: ``max_num_seqs``); None is no limit.
    kv_tokens : int, optional
        Tokens of KV memory; kept with the model.
    name : str, optional
    """

    batch_time: BatchTime
    b_max: int = attrs.field(converter=to_count, validator=_at_least_one)
    k_max: int | None = attrs.field(
        default=None, converter=optional(to_count), validator=attrs.validators.optional(_at_least_one)
    )
    kv_tokens: int | None = attrs.field(
        default=None, converter=optional(to_count), validator=attrs.validators.optional(_at_least_one)
    )
    name: str = "engine"

    def __attrs_post_init__(self) -> None:
        """The law must speak of every batch the budget allows."""
        longest = self.batch_time.longest
        if longest is not None and self.b_max > longest:
            raise InvalidModel(
                f"b_max: {self.b_max} is beyond the last measured batch; lower b_max to {longest} or extend the table"
            )

    @property
    def slots(self) -> int:
        """Most requests a batch can hold: min(k_max, b_max), since each brings at least one token."""
        return self.b_max if self.k_max is None else min(self.k_max, self.b_max)

    @property
    def whole_blocks(self) -> bool:
        """Assumption 1 of Dai et al. 2025: a staircase whose b0 divides b_max."""
        return isinstance(self.batch_time, Staircase) and self.b_max % self.batch_time.b0 == 0

    def to_dict(self) -> dict[str, Any]:
        """The engine as the ``[engine]`` table of a model file."""
        limits = {"k_max": self.k_max, "kv_tokens": self.kv_tokens}
        return {
            "b_max": self.b_max,
            **{key: value for key, value in limits.items() if value is not None},
            "batch_time": self.batch_time.to_dict(),
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Engine:
        """The engine in plain values, exactly those of `to_dict`.

        Raises
        ------
        InvalidModel
            ``engine: WHAT``, if something is missing, unknown or contradictory.
        """
        try:
            engine = cls(**{**table, "batch_time": BatchTime.from_dict(table["batch_time"])})
        except (KeyError, TypeError, ValueError) as error:
            what = f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error)
            raise InvalidModel(f"engine: {what}; write it as the package does") from None
        if engine.to_dict() != table:
            raise InvalidModel("engine: is not written as the package writes it")
        return engine
