"""The state of one engine at a batch boundary, and how a batch changes it: the model in a dozen lines.

The classifier explores these states; they are small tuples, equal when they are the same state.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from queuetheory_llm.schedulers.policy import Batch, View

#: Prefill and decode tokens left of one request. A decode count below 0 is a code that is not counted down: -1, -2, ...
#: for a length that is not known, of the first, second, ... kind of the law of the lengths; or `ENDLESS`.
Left = tuple[int, int]
#: The decode count of a request that never ends.
ENDLESS = -(2**31)


@attrs.frozen
class State:
    """Unfinished requests by arrival, and which of them have been served, in order of first service.

    Attributes
    ----------
    left : tuple of (prefill, decode)
        Tokens left of each unfinished request, oldest first.
    running : tuple of int
        Positions in ``left``.
    """

    left: tuple[Left, ...] = ()
    running: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Token backlog, where every length is known."""
        return sum(prefill + decode for prefill, decode in self.left)

    def view(self, b_max: int, k_max: int | None = None) -> View:
        """What a rule sees."""
        positions, seated = range(len(self.left)), set(self.running)
        return View(
            b_max=b_max,
            k_max=k_max,
            prefilling=[i for i in positions if self.left[i][0]],
            decoding=[i for i in positions if not self.left[i][0]],
            waiting=[i for i in positions if i not in seated],
            running=list(self.running),
            prefill_left=[prefill for prefill, _ in self.left],
        )

    def after(self, batch: Batch) -> State:
        """The state when the batch has ended and its tokens are credited, before any arrival."""
        return self.followed(batch)[0]

    def followed(self, batch: Batch) -> tuple[State, dict[int, int]]:
        """The state `after` the batch, and the new position of each old one that is still in it."""
        left = [list(tokens) for tokens in self.left]
        for position, tokens in batch.prefill:
            left[position][0] -= tokens
        for position in batch.decode:
            left[position][1] -= left[position][1] > 0
        served = [position for position, _ in batch.prefill] + batch.decode
        started = [*self.running, *sorted(set(served) - set(self.running))]
        kept = [position for position, (prefill, decode) in enumerate(left) if prefill or decode]
        moved = {old: new for new, old in enumerate(kept)}
        state = State(
            tuple((left[old][0], left[old][1]) for old in kept),
            tuple(moved[position] for position in started if position in moved),
        )
        return state, moved

    def joined(self, arrivals: Sequence[Left]) -> State:
        """The state with new requests behind the others."""
        return State((*self.left, *arrivals), self.running)
