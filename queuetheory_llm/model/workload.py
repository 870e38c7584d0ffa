"""What arrives: an arrival process and one or several classes of requests."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidModel
from queuetheory_llm.exact.numbers import Real, to_fraction
from queuetheory_llm.model.arrivals import Arrivals
from queuetheory_llm.model.lengths import Counts, IndependentLengths, LengthLaw, RequestLengths


@attrs.frozen(kw_only=True)
class RequestClass:
    """A kind of request.

    Parameters
    ----------
    lengths : RequestLengths
    weight : number
        Share of the requests, relative to the other classes; positive.
    name : str, optional
    """

    lengths: RequestLengths
    weight: Fraction = attrs.field(default=Fraction(1), converter=to_fraction)
    name: str = "requests"

    @weight.validator
    def _check_weight(self, _: object, value: Fraction) -> None:
        if value <= 0:
            raise InvalidModel(f"weight: {float(value):g} is not positive; leave the class out instead")


@attrs.frozen(kw_only=True)
class Workload(RequestLengths):
    """Classes of requests, mixed by weight, and the process they arrive by.

    A workload is itself the joint law of the lengths of its next request: a mixture.

    Parameters
    ----------
    classes : sequence of RequestClass
    arrivals : Arrivals, optional
        None when only lengths are known: regions and capacities need no rate.
    """

    classes: tuple[RequestClass, ...]
    arrivals: Arrivals | None = None

    @classmethod
    def of(
        cls,
        *,
        prefill: LengthLaw | int,
        decode: LengthLaw | int,
        arrivals: Arrivals | None = None,
    ) -> Workload:
        """One class of independent lengths.

        >>> Workload.of(prefill=129, decode=112).mean_tokens
        Fraction(241, 1)
        """
        return cls(classes=(RequestClass(lengths=IndependentLengths(prefill, decode)),), arrivals=arrivals)

    def __attrs_post_init__(self) -> None:
        """At least one class, names distinct."""
        if not self.classes:
            raise InvalidModel("class: a workload needs at least one class")
        names = [each.name for each in self.classes]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidModel(f"class: the name {twice!r} is used twice; names must differ")

    @cached_property
    def shares(self) -> tuple[Fraction, ...]:
        """Fraction of the requests in each class; sums to 1."""
        total = sum(each.weight for each in self.classes)
        return tuple(each.weight / total for each in self.classes)

    @property
    def rate(self) -> Fraction | None:
        """Requests per second over all classes; None without an arrival process."""
        return None if self.arrivals is None else self.arrivals.rate

    def _mixed(self, attribute: str) -> Real:
        values = [getattr(each.lengths, attribute) for each in self.classes]
        return sum((s * v for s, v in zip(self.shares, values, strict=True)), Fraction(0))

    @cached_property
    def mean_prefill(self) -> Real:
        """m_p over all classes, tokens."""
        return self._mixed("mean_prefill")

    @cached_property
    def mean_decode(self) -> Real:
        """m_d over all classes, tokens."""
        return self._mixed("mean_decode")

    @cached_property
    def mean_tokens(self) -> Real:
        """m_p + m_d, tokens of work a request brings."""
        return self.mean_prefill + self.mean_decode

    @cached_property
    def prefill_probability(self) -> Real:
        """See `RequestLengths.prefill_probability`."""
        return self._mixed("prefill_probability")

    @cached_property
    def constant_prompt(self) -> int | None:
        """See `RequestLengths.constant_prompt`."""
        prompts = {each.lengths.constant_prompt for each in self.classes}
        return prompts.pop() if len(prompts) == 1 else None

    @cached_property
    def longest_prompt(self) -> int | None:
        """See `RequestLengths.longest_prompt`."""
        longest = [each.lengths.longest_prompt for each in self.classes]
        known = [value for value in longest if value is not None]
        return max(known) if len(known) == len(longest) else None

    @cached_property
    def constant_decode(self) -> int | None:
        """See `RequestLengths.constant_decode`."""
        lengths = {each.lengths.constant_decode for each in self.classes}
        return lengths.pop() if len(lengths) == 1 else None

    def decode_survival(self, counts: Counts) -> Floats:
        """See `RequestLengths.decode_survival`."""
        parts = [each.lengths.decode_survival(counts) for each in self.classes]
        shares = [float(share) for share in self.shares]
        return np.asarray(sum(s * p for s, p in zip(shares, parts, strict=True)))

    def decode_cutoff(self) -> int:
        """See `RequestLengths.decode_cutoff`."""
        return max(each.lengths.decode_cutoff() for each in self.classes)

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Counts, Counts]:
        """See `RequestLengths.sample`."""
        if len(self.classes) == 1:
            return self.classes[0].lengths.sample(rng, size)
        prefill, decode = np.empty(size, np.int64), np.empty(size, np.int64)
        member = rng.choice(len(self.classes), size, p=[float(share) for share in self.shares])
        for index, each in enumerate(self.classes):
            rows = np.flatnonzero(member == index)
            prefill[rows], decode[rows] = each.lengths.sample(rng, rows.size)
        return prefill, decode

    @property
    def notes(self) -> tuple[str, ...]:
        """See `RequestLengths.notes`."""
        single = len(self.classes) == 1
        return tuple(
            note if single else f"class {each.name}: {note}" for each in self.classes for note in each.lengths.notes
        )

    def with_mean_decode(self, mean: Real) -> Workload:
        """See `RequestLengths.with_mean_decode`: every class by the same factor."""
        own = self.mean_decode
        classes = (
            attrs.evolve(
                each, lengths=each.lengths.with_mean_decode(each.lengths.mean_decode / own * mean if own else mean)
            )
            for each in self.classes
        )
        return attrs.evolve(self, classes=tuple(classes))

    def with_arrivals(self, arrivals: Arrivals | None) -> Workload:
        """The same classes under another arrival process."""
        return attrs.evolve(self, arrivals=arrivals)
