"""External rates that change over time: a day of arrivals, a flash crowd, an outage upstream.

A profile is deterministic: it is the intensity of the arrivals, or the rate of their fluid.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import attrs

from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import Number, plain, to_fraction
from queuetheory_llm.model.columns import column, name

#: How values are continued from one time to the next.
SHAPES = ("steps", "linear")
#: What the values are: multiples of the rates of a model, or requests (tasks) per second themselves.
QUANTITIES = ("factor", "rate")


@attrs.frozen(kw_only=True)
class Ramp:
    """A stretch of a profile on which the value is a + b (t - start).

    Attributes
    ----------
    start : Fraction
        Seconds.
    end : Fraction or None
        Seconds; None is for ever.
    value, slope : Fraction
        The value at ``start``, and its growth per second.
    """

    start: Fraction
    end: Fraction | None
    value: Fraction
    slope: Fraction

    def at(self, time: Fraction) -> Fraction:
        """The value at a time of the stretch."""
        return self.value + self.slope * (time - self.start)

    def area(self, time: Fraction) -> Fraction:
        """Integral of the value from ``start`` to ``time``."""
        return (self.value + self.at(time)) / 2 * (time - self.start)


def _times(values: Iterable[Number]) -> tuple[Fraction, ...]:
    return column("times", to_fraction, values)


def _values(values: Iterable[Number]) -> tuple[Fraction, ...]:
    return column("values", to_fraction, values)


def _names(values: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if values is None else column("classes", name, values)


@attrs.frozen(kw_only=True)
class RateProfile:
    """Values over time, exact.

    Parameters
    ----------
    times : sequence of numbers
        Seconds, the first 0, increasing.
    values : sequence of numbers
        One for each time, at least 0.
    shape : {"steps", "linear"}
        A value holds until the next time, or is joined to the next one by a line. The last one holds for ever.
    quantity : {"factor", "rate"}
        Multiples of external rates, or tasks per second themselves.
    classes : sequence of str, optional
        Names of the classes whose external rates change; None is all that have any.

    Raises
    ------
    InvalidModel
        One line a fault.

    Examples
    --------
    >>> crowd = RateProfile(times=[0, 60, 120], values=[1, "1.5", 1])
    >>> crowd.at(60), crowd.at(200)
    (Fraction(3, 2), Fraction(1, 1))
    """

    times: tuple[Fraction, ...] = attrs.field(converter=_times)
    values: tuple[Fraction, ...] = attrs.field(converter=_values)
    shape: str = "steps"
    quantity: str = "factor"
    classes: tuple[str, ...] | None = attrs.field(default=None, converter=_names)

    def __attrs_post_init__(self) -> None:
        """All faults at once."""
        faults = list(self._faults())
        if faults:
            raise InvalidModel(faults)

    def _faults(self) -> Iterator[str]:
        for key, word, known in (("shape", self.shape, SHAPES), ("quantity", self.quantity, QUANTITIES)):
            if word not in known:
                yield f"{key}: {word!r} is not known for a profile; write {' or '.join(known)}"
        if len(self.times) != len(self.values):
            yield f"values: {len(self.values)} for {len(self.times)} times; give one a time"
        if not self.times or self.times[0] != 0:
            first = f"begin at {float(self.times[0]):g} s" if self.times else "are none"
            yield f"times: {first}; a profile begins at 0, where the run begins"
        for before, after in zip(self.times, self.times[1:], strict=False):
            if after <= before:
                yield f"times: {float(after):g} s does not follow {float(before):g} s; sort the times, each once"
        for value in self.values:
            if value < 0:
                yield f"values: {float(value):g} is negative; nothing arrives at 0"
        if self.classes is not None and (not self.classes or len(set(self.classes)) < len(self.classes)):
            yield "classes: none, or one twice; name each class once, or leave classes out for all of them"

    @classmethod
    def constant(cls, value: Number = 1, *, quantity: str = "factor") -> RateProfile:
        """One value for ever."""
        return cls(times=(0,), values=(to_fraction(value),), quantity=quantity)

    @property
    def largest(self) -> Fraction:
        """The largest value."""
        return max(self.values)

    @property
    def last(self) -> Fraction:
        """The value that holds for ever in the end."""
        return self.values[-1]

    def ramps(self) -> tuple[Ramp, ...]:
        """The stretches from one time to the next; the last one has no end and slope 0."""
        ends: Iterable[Fraction | None] = (*self.times[1:], None)
        return tuple(self._ramp(i, end) for i, end in enumerate(ends))

    def _ramp(self, index: int, end: Fraction | None) -> Ramp:
        start, value = self.times[index], self.values[index]
        if end is None or self.shape == "steps":
            return Ramp(start=start, end=end, value=value, slope=Fraction(0))
        return Ramp(start=start, end=end, value=value, slope=(self.values[index + 1] - value) / (end - start))

    def at(self, time: Number) -> Fraction:
        """The value at a time >= 0; at a step, the new one."""
        asked = to_fraction(time)
        index = max(bisect_right(self.times, asked) - 1, 0)
        end = self.times[index + 1] if index + 1 < len(self.times) else None
        return self._ramp(index, end).at(asked)

    def area(self, time: Number) -> Fraction:
        """Integral of the value from 0 to ``time`` >= 0."""
        asked = to_fraction(time)
        parts = (ramp.area(asked if ramp.end is None else min(ramp.end, asked)) for ramp in self.ramps()
                 if ramp.start < asked)  # fmt: skip
        return sum(parts, Fraction(0))

    def relative_to(self, rate: Number) -> RateProfile:
        """The profile as factors of a model whose rates sum to ``rate`` tasks per second.

        Raises
        ------
        InvalidModel
            If the values are rates and ``rate`` is 0: no factor makes something of nothing.
        """
        if self.quantity == "factor":
            return self
        base = to_fraction(rate)
        if base <= 0:
            raise InvalidModel("profile: gives rates for classes without external arrivals; give them a rate")
        return attrs.evolve(self, values=tuple(value / base for value in self.values), quantity="factor")

    def rates(self, rate: Number) -> RateProfile:
        """The profile as tasks per second, factors being multiples of ``rate``."""
        if self.quantity == "rate":
            return self
        base = to_fraction(rate)
        return attrs.evolve(self, values=tuple(value * base for value in self.values), quantity="rate")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; numbers exact."""
        return {
            "times": [plain(time) for time in self.times],
            "values": [plain(value) for value in self.values],
            "shape": self.shape,
            "quantity": self.quantity,
            "classes": None if self.classes is None else list(self.classes),
        }
