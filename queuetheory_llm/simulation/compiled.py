"""The engine of `reference`, compiled: O(1) amortised per batch, O(log active) per request, whatever the backlog.

What makes it fast. Every rule of the policy space serves decodes as a *prefix in order of arrival*, so a batch is told
by two numbers, m decodes and its pieces of prompts, and the requests in it need not be visited:

* Decodes live on a clock of their own, ``ROUND``, which each batch with decodes moves by one. A request that has v_d
  tokens to decode is due at ROUND + v_d; those left out of a round are due one round later. Due times sit in a segment
  tree over *slots* in order of arrival: a minimum with lazy additions (a batch that stops short adds one to a suffix,
  and equal batches in a row add once), and a count (to find the m-th request). A finish costs one descent.
* A request takes its slot when it is first reached by a decode token, if decodes start in order of arrival; else when
  its prompt starts, or, if prompts may be empty, when it arrives.
* The longest gap between two tokens is the largest of the gaps between the rounds it has seen (a stack of decreasing
  gaps, searched by the first round) and of the gaps it suffered when left out, which are noted on ranges of slots.
* A batch that would be formed again exactly as it is (nothing arrives that it could see, nothing finishes, no prompt
  ends) is run as many times as that holds in one step.

All of it is one module because the machine code kept on disk is known by the date of the file of `advance`; the
dispatch rules, which `join_queues` calls from `dispatching`, are told to `entry`. The functions share the arrays of
`Work`; the numbers of the state are entries of ``work.s``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.kept import compiled, entry, inlined
from queuetheory_llm.simulation import dispatching
from queuetheory_llm.simulation.clock import LAST_TICK
from queuetheory_llm.simulation.dispatching import Engines, choose, view_of

# Orders of a rule's passes.
PREFILL_FIRST, DECODE_FIRST, SEATS_FIRST = 0, 1, 2
# When a request takes its slot.
WHEN_REACHED, WHEN_STARTED, WHEN_ARRIVED = 0, 1, 2
# Why `advance` returned.
GO_ON, FINISHED, STOPPED, PAUSED, LOG_FULL, GAPS_FULL, OVERFLOW, IDLE, QUEUE_FULL = range(9)

NEVER_DUE = 2**62

# Entries of ``work.s``: the clock and the totals,
NOW, ARRIVED, HEAD, STARTED, DONE, SERVED, BATCHES, BUSY, LAST, WATCHED = range(10)
# the prompts under way, requests without a prompt that wait for a seat, whether a new arrival could change the batch,
PARTS, ZEROS, CLOSED = range(10, 13)
# decodes: rounds so far, end of the last, slots in use, width of the tree, requests reached by a decode token and not,
ROUND, ROUND_END, TAIL, WIDTH, REACHED, FRESH, NEXT_FRESH = range(13, 20)
# the last round: slot where it stopped, its decodes, rounds owed to the slots beyond, next request due, does it stand?
CUT, DECODES, OWED, NEXT_DUE, STALE = range(20, 25)
# gaps: entries of the two stacks, whether additions and gaps have been noted inside the tree,
GAPS, LAGS, ADDED, TAGGED = range(25, 29)
# the log, and tokens of the last batch and requests that end with it.
LOGGED, LOGGED_PIECES, LOGGED_DECODES, LAST_TOKENS, LAST_DONE = range(29, 34)
STATE_SIZE = 34

# Columns of a node of the tree.
DUE, ADD, COUNT, TAG = range(4)


class Rule(NamedTuple):
    """A policy on an engine: ``threshold`` and ``seats`` are large numbers where there is no limit."""

    order: int
    mixed: bool
    chunks: bool
    budget: int
    seats: int
    threshold: int
    slots: int
    zeros: bool


class Load(NamedTuple):
    """Requests by arrival, and t(b) in ticks at index b."""

    arrival: Ints
    prefill: Ints
    decode: Ints
    ticks: Ints


class Times(NamedTuple):
    """What is found for each request; see `run.Run`."""

    begin: Ints
    first_decode: Ints
    last_prefill: Ints
    finish: Ints
    longest_gap: Ints


class Watch(NamedTuple):
    """Ticks of the series and what is seen there; see `run.Series.of`."""

    ticks: Ints
    seen: Ints


class Log(NamedTuple):
    """Room for the contents of batches; see `run.BatchLog`. No room for a start: no log."""

    starts: Ints
    durations: Ints
    piece_request: Ints
    piece_tokens: Ints
    piece_end: Ints
    decode_request: Ints
    decode_end: Ints


class Work(NamedTuple):
    """The state, with room for all it may grow to.

    What holds between two steps. ROUND is the number of rounds so far, and no request is due at it or before: those
    that were are gone. Of the slots before TAIL, those with count 1 and a due time below NEVER_DUE are the REACHED
    ones; a request is FRESH from its first right to a decode token until it gets one (in the tree only if it has a slot
    by then). The last round served the slots before CUT, DECODES of them; what lies beyond is due OWED rounds later
    than the tree says, and ``lag`` says since when. NEXT_DUE is the earliest due time before CUT. STALE says that a
    request has finished, or joined at a slot of its own, since: then CUT and NEXT_DUE are found anew.

    ``tree`` has rows [due, add, count, tag], the leaf of slot i at row WIDTH + i. ``fresh`` is a binary heap. ``lag``
    holds (first slot, end of its last round) of the ranges left out of the last round, the nearest range last.
    """

    s: Ints
    tree: Ints
    request_at: Ints
    first_round: Ints
    slot_of: Ints
    fresh: Ints
    part_request: Ints
    part_left: Ints
    piece: Ints
    gap_round: Ints
    gap: Ints
    lag: Ints


# --- the tree ---------------------------------------------------------------------------------------------------------


@inlined
def renew(tree: Ints, node: int) -> None:
    """Due times and counts of the nodes above a leaf."""
    node >>= 1
    while node:
        left, right = 2 * node, 2 * node + 1
        tree[node, DUE] = min(tree[left, DUE], tree[right, DUE]) + tree[node, ADD]
        tree[node, COUNT] = tree[left, COUNT] + tree[right, COUNT]
        node >>= 1


@compiled
def slot_of_rank(tree: Ints, width: int, rank: int) -> int:
    """The slot with ``rank`` requests in the slots before it."""
    node = 1
    while node < width:
        node *= 2
        if rank >= tree[node, COUNT]:
            rank -= tree[node, COUNT]
            node += 1
    return node - width


@compiled
def rank_of_slot(tree: Ints, width: int, slot: int) -> int:
    """Requests in the slots before ``slot``."""
    node, rank = width + slot, 0
    while node > 1:
        if node & 1:
            rank += tree[node - 1, COUNT]
        node >>= 1
    return rank


@compiled
def first_due_before(tree: Ints, width: int, slot: int) -> int:
    """Earliest due time in the slots before ``slot``."""
    if slot >= width:
        return tree[1, DUE]
    node, half, above, due = 1, width, 0, NEVER_DUE
    while node < width:
        above += tree[node, ADD]
        half >>= 1
        node *= 2
        if slot & half:
            due = min(due, above + tree[node, DUE])
            node += 1
    return due


@compiled
def add_from(tree: Ints, width: int, slot: int, rounds: int) -> None:
    """Every request from ``slot`` on is due later."""
    node, half = 1, width
    while node < width:
        half >>= 1
        node *= 2
        if slot & half:
            node += 1
        else:
            tree[node + 1, DUE] += rounds
            tree[node + 1, ADD] += rounds
    tree[node, DUE] += rounds
    renew(tree, node)


@compiled
def tag_range(tree: Ints, width: int, low: int, high: int, gap: int) -> None:
    """Note a gap for every slot of low..high-1."""
    low, high = low + width, high + width
    while low < high:
        if low & 1:
            tree[low, TAG] = max(tree[low, TAG], gap)
            low += 1
        if high & 1:
            high -= 1
            tree[high, TAG] = max(tree[high, TAG], gap)
        low >>= 1
        high >>= 1


@compiled
def push_tags(tree: Ints, width: int, slot: int) -> None:
    """Move the gaps noted above a leaf down, so that a request that takes the slot starts without any."""
    shift = 0
    while width >> shift > 1:
        shift += 1
    while shift:
        node = (width + slot) >> shift
        gap = tree[node, TAG]
        if gap:
            tree[2 * node, TAG] = max(tree[2 * node, TAG], gap)
            tree[2 * node + 1, TAG] = max(tree[2 * node + 1, TAG], gap)
            tree[node, TAG] = 0
        shift -= 1


# --- slots ------------------------------------------------------------------------------------------------------------


@compiled
def settle(work: Work) -> None:
    """Pay the rounds that the slots beyond the cut have been left out of."""
    s = work.s
    if s[OWED]:
        add_from(work.tree, s[WIDTH], s[CUT], s[OWED])
        s[ADDED] = 1
        s[OWED] = 0


@compiled
def repack(work: Work) -> None:
    """Close the gaps between the slots in use and give the tree two to four times as many."""
    settle(work)
    s = work.s
    old, used = s[WIDTH], 0
    push_down(work.tree, old)
    for slot in range(s[TAIL]):
        used += work.request_at[slot] >= 0
    width = 64
    while width < 2 * (used + 1):
        width *= 2
    move_marks(work)
    used = 0
    for slot in range(s[TAIL]):
        if work.request_at[slot] >= 0:
            move_slot(work, old + slot, width, slot, used)
            used += 1
    build(work.tree, width, used)
    s[TAIL], s[WIDTH], s[ADDED] = used, width, 0


@compiled
def push_down(tree: Ints, width: int) -> None:
    """Move what is noted inside the tree down to the leaves."""
    for node in range(1, width):
        for child in (2 * node, 2 * node + 1):
            tree[child, ADD] += tree[node, ADD]
            tree[child, DUE] += tree[node, ADD]
            tree[child, TAG] = max(tree[child, TAG], tree[node, TAG])


@compiled
def build(tree: Ints, width: int, used: int) -> None:
    """The tree over the first ``used`` leaves, the others empty."""
    for leaf in range(width + used, 2 * width):
        tree[leaf, DUE], tree[leaf, COUNT], tree[leaf, TAG] = NEVER_DUE, 0, 0
    for node in range(width - 1, 0, -1):
        tree[node, DUE] = min(tree[2 * node, DUE], tree[2 * node + 1, DUE])
        tree[node, COUNT] = tree[2 * node, COUNT] + tree[2 * node + 1, COUNT]
        tree[node, ADD] = tree[node, TAG] = 0


@compiled
def move_marks(work: Work) -> None:
    """Where the cut and the ranges left out will start when only slots in use are counted."""
    s = work.s
    lag, cut, used = s[LAGS] - 1, -1, 0
    for slot in range(s[TAIL]):
        if cut < 0 and s[CUT] <= slot:
            cut = used
        while lag >= 0 and work.lag[lag, 0] <= slot:
            work.lag[lag, 0] = used
            lag -= 1
        used += work.request_at[slot] >= 0
    s[CUT] = used if cut < 0 else cut


@compiled
def move_slot(work: Work, leaf: int, width: int, slot: int, new: int) -> None:
    """Move one slot to its new place; no place written to is read later (new <= slot, widths are powers of two)."""
    request = work.request_at[slot]
    work.request_at[new] = request
    work.first_round[new] = work.first_round[slot]
    for column in range(4):
        work.tree[width + new, column] = work.tree[leaf, column]
    if work.slot_of.size:
        work.slot_of[request] = new


@inlined
def give_slot(work: Work, request: int) -> int:
    """The next slot, behind all others."""
    s = work.s
    if s[TAIL] == s[WIDTH]:
        repack(work)
    slot = s[TAIL]
    s[TAIL] += 1
    work.request_at[slot] = request
    if work.slot_of.size:
        work.slot_of[request] = slot
    return slot


# --- decodes ----------------------------------------------------------------------------------------------------------


@inlined
def join_decodes(work: Work, request: int) -> None:
    """A request has come to its first decode token."""
    s = work.s
    if work.slot_of.size:
        leaf = s[WIDTH] + work.slot_of[request]
        work.tree[leaf, COUNT] = 1
        renew(work.tree, leaf)
        push_fresh(work.fresh, s[FRESH], request)
        s[STALE] = 1
    s[FRESH] += 1


@compiled
def push_fresh(heap: Ints, size: int, request: int) -> None:
    """Add to a binary heap, the earliest request on top."""
    child = size
    while child:
        parent = (child - 1) >> 1
        if heap[parent] <= request:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = request


@compiled
def pop_fresh(heap: Ints, size: int) -> None:
    """Remove the top of a binary heap of ``size`` requests."""
    size -= 1
    request, parent = heap[size], 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= request:
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = request


@inlined
def reach(load: Load, times: Times, work: Work, request: int, slot: int, now: int, end: int) -> None:
    """The first decode token of a request, in the batch from ``now`` to ``end``."""
    s, tree = work.s, work.tree
    leaf = s[WIDTH] + slot
    due = s[ROUND] + load.decode[request]
    if s[ADDED]:
        node = leaf >> 1
        while node:
            due -= tree[node, ADD]
            node >>= 1
    if s[TAGGED]:
        push_tags(tree, s[WIDTH], slot)
    tree[leaf, DUE], tree[leaf, COUNT], tree[leaf, TAG] = due, 1, 0
    renew(tree, leaf)
    work.first_round[slot] = s[ROUND] + 1
    times.first_decode[request] = end
    if load.prefill[request] == 0:
        times.begin[request] = now
        s[STARTED] += 1
    s[REACHED] += 1
    s[FRESH] -= 1


@inlined
def reach_new(load: Load, times: Times, work: Work, decodes: int, cut: int, now: int, end: int) -> None:
    """Give their first token to the requests of the batch that never had one."""
    s = work.s
    if work.slot_of.size:
        while s[FRESH] and work.slot_of[work.fresh[0]] < cut:
            request = work.fresh[0]
            pop_fresh(work.fresh, s[FRESH])
            reach(load, times, work, request, work.slot_of[request], now, end)
    else:
        while s[REACHED] < decodes:
            request = s[NEXT_FRESH]
            while load.decode[request] == 0:
                request += 1
            s[NEXT_FRESH] = request + 1
            reach(load, times, work, request, give_slot(work, request), now, end)


@compiled
def catch_up(work: Work, cut: int, end: int) -> None:
    """Note the gaps that end now for slots before ``cut`` left out of the last round, and who is left out from now."""
    s, lag = work.s, work.lag
    while s[LAGS] and lag[s[LAGS] - 1, 0] < cut:
        top = s[LAGS] - 1
        high = lag[top - 1, 0] if top else s[TAIL]
        tag_range(work.tree, s[WIDTH], lag[top, 0], min(high, cut), end - lag[top, 1])
        s[TAGGED] = 1
        if high > cut:
            lag[top, 0] = cut
            break
        s[LAGS] = top
    if cut < s[CUT]:
        lag[s[LAGS], 0], lag[s[LAGS], 1] = cut, s[ROUND_END]
        s[LAGS] += 1


@inlined
def push_gap(work: Work, round_: int, gap: int) -> None:
    """Note the gap between two rounds; smaller ones before it are of no consequence any more."""
    s = work.s
    top = s[GAPS]
    while top and work.gap[top - 1] <= gap:
        top -= 1
    work.gap_round[top], work.gap[top] = round_, gap
    s[GAPS] = top + 1


@inlined
def serve_decodes(load: Load, times: Times, work: Work, decodes: int, now: int, end: int) -> None:
    """The decodes of a batch, or of the first of equal batches, that lasts from ``now`` to ``end``."""
    s, tree = work.s, work.tree
    if s[REACHED]:
        push_gap(work, s[ROUND] + 1, end - s[ROUND_END])
    else:
        s[GAPS] = 0
    if decodes == s[DECODES] and not s[STALE]:
        return
    settle(work)
    some_left = decodes < (s[REACHED] + s[FRESH] if work.slot_of.size else s[REACHED])
    cut = slot_of_rank(tree, s[WIDTH], decodes) if some_left else s[TAIL]
    catch_up(work, cut, end)
    reach_new(load, times, work, decodes, cut, now, end)
    if not some_left:
        cut = s[TAIL]
    s[CUT], s[DECODES], s[STALE] = cut, decodes, 0
    s[NEXT_DUE] = first_due_before(tree, s[WIDTH], cut) if some_left else tree[1, DUE]


@inlined
def end_rounds(times: Times, work: Work, repeats: int, length: int, end: int) -> None:
    """Count the rounds of equal batches and take out the requests whose last decode token is in the last of them."""
    s = work.s
    if repeats > 1:
        push_gap(work, s[ROUND] + repeats, length)
    if s[CUT] < s[TAIL]:
        s[OWED] += repeats
    s[ROUND] += repeats
    s[ROUND_END] = end
    if s[NEXT_DUE] == s[ROUND]:
        finish_due(times, work, end)


@inlined
def finish_due(times: Times, work: Work, end: int) -> None:
    """Take out the requests that are due in the round that ends now."""
    s, tree = work.s, work.tree
    settle(work)
    while tree[1, DUE] == s[ROUND]:
        node = 1
        while node < s[WIDTH]:
            node *= 2
            node += tree[node + 1, DUE] < tree[node, DUE]
        slot = node - s[WIDTH]
        request = work.request_at[slot]
        times.finish[request] = end
        times.longest_gap[request] = longest_gap(work, slot)
        tree[node, DUE], tree[node, COUNT] = NEVER_DUE, 0
        renew(tree, node)
        work.request_at[slot] = -1
        s[REACHED] -= 1
        s[DONE] += 1
    s[STALE] = 1


@inlined
def longest_gap(work: Work, slot: int) -> int:
    """Longest gap between tokens of the request in ``slot``."""
    s = work.s
    low, high, first = 0, s[GAPS], work.first_round[slot]
    while low < high:
        middle = (low + high) >> 1
        if work.gap_round[middle] > first:
            high = middle
        else:
            low = middle + 1
    gap = work.gap[low] if low < s[GAPS] else 0
    if s[TAGGED]:
        node = s[WIDTH] + slot
        while node:
            gap = max(gap, work.tree[node, TAG])
            node >>= 1
    return gap


# --- prompts and the batch --------------------------------------------------------------------------------------------


@inlined
def take_parts(rule: Rule, work: Work, taken: int, tokens: int, seats: int) -> tuple[int, int, int]:
    """Go on with the prompts under way, ``taken`` of which have been served already."""
    while taken < work.s[PARTS] and tokens > 0 and seats > 0:
        need = min(work.part_left[taken], rule.threshold, tokens)
        work.piece[taken] = need
        tokens -= need
        seats -= 1
        taken += 1
    return taken, tokens, seats


@inlined
def take_new(
    rule: Rule, load: Load, times: Times, work: Work, taken: int, tokens: int, seats: int, now: int
) -> tuple[int, int, int, int]:
    """Start prompts in order of arrival; requests without one get their decode token if they have waited for a seat."""
    s = work.s
    decodes, head = 0, s[HEAD]
    while tokens > 0 and seats > 0 and head < s[ARRIVED]:
        need = min(load.prefill[head], rule.threshold)
        if need == 0:
            if rule.order == SEATS_FIRST:
                give_slot(work, head)
                join_decodes(work, head)
                s[ZEROS] -= 1
                decodes += 1
                tokens -= 1
                seats -= 1
            head += 1
            continue
        if need > tokens:
            if not rule.chunks:
                s[CLOSED] = 1
                break
            need = tokens
        work.part_request[taken], work.part_left[taken], work.piece[taken] = head, load.prefill[head], need
        times.begin[head] = now
        if rule.slots == WHEN_STARTED:
            give_slot(work, head)
        s[PARTS] += 1
        s[STARTED] += 1
        taken += 1
        tokens -= need
        seats -= 1
        head += 1
    s[HEAD] = head
    return decodes, taken, tokens, seats


@compiled
def take_seated(rule: Rule, work: Work, tokens: int, seats: int) -> tuple[int, int, int, int]:
    """Decodes and prompts under way in one order, that of arrival."""
    s = work.s
    waiting, need = s[REACHED] + s[FRESH], 0
    for part in range(s[PARTS]):
        need += min(work.part_left[part], rule.threshold)
    if s[PARTS] == 0 or rule.slots == WHEN_REACHED or (waiting + need <= tokens and waiting + s[PARTS] <= seats):
        # Without a threshold only the youngest prompt can be under way.
        decodes = min(waiting, tokens, seats)
        taken, tokens, seats = take_parts(rule, work, 0, tokens - decodes, seats - decodes)
        return decodes, taken, tokens, seats
    decodes, taken = 0, 0
    while tokens > 0 and seats > 0 and taken < s[PARTS]:
        older = rank_of_slot(work.tree, s[WIDTH], work.slot_of[work.part_request[taken]])
        more = min(older - decodes, tokens, seats)
        decodes += more
        tokens -= more
        seats -= more
        if tokens > 0 and seats > 0:
            work.piece[taken] = min(work.part_left[taken], rule.threshold, tokens)
            tokens -= work.piece[taken]
            seats -= 1
            taken += 1
    more = min(waiting - decodes, tokens, seats)
    return decodes + more, taken, tokens - more, seats - more


@inlined
def form(rule: Rule, load: Load, times: Times, work: Work, now: int) -> tuple[int, int]:
    """Numbers of decodes and of pieces of prompts in the next batch; the pieces are ``work.piece``."""
    s = work.s
    tokens = rule.budget
    seats = min(rule.seats, tokens)
    decodes, taken, more = s[REACHED] + s[FRESH], 0, 0
    s[CLOSED] = 0
    if rule.order == PREFILL_FIRST:
        taken, tokens, seats = take_parts(rule, work, 0, tokens, seats)
        _, taken, tokens, seats = take_new(rule, load, times, work, taken, tokens, seats, now)
        s[CLOSED] |= tokens == 0 or seats == 0
        decodes = min(decodes, tokens, seats) if rule.mixed or taken == 0 else 0
        return decodes, taken
    if rule.order == DECODE_FIRST:
        decodes = min(decodes, tokens, seats)
        tokens -= decodes
        seats -= decodes
        alone = not rule.mixed and decodes > 0
        if not alone:
            taken, tokens, seats = take_parts(rule, work, 0, tokens, seats)
    else:
        decodes, taken, tokens, seats = take_seated(rule, work, tokens, seats)
        alone = not rule.mixed and decodes + taken > 0
    if not alone:
        more, taken, tokens, seats = take_new(rule, load, times, work, taken, tokens, seats, now)
    s[CLOSED] |= alone or tokens == 0 or seats == 0
    return decodes + more, taken


@inlined
def credit_prompts(load: Load, times: Times, work: Work, taken: int, repeats: int, end: int) -> None:
    """Credit the pieces of prompts; a prompt that ends makes a decode, or a finished request."""
    s = work.s
    ended = False
    for part in range(taken):
        work.part_left[part] -= repeats * work.piece[part]
        ended |= work.part_left[part] == 0
    if not ended:
        return
    kept = 0
    for part in range(s[PARTS]):
        request = work.part_request[part]
        if work.part_left[part]:
            work.part_request[kept], work.part_left[kept] = request, work.part_left[part]
            kept += 1
            continue
        times.last_prefill[request] = end
        if load.decode[request]:
            join_decodes(work, request)
        else:
            times.finish[request] = end
            s[DONE] += 1
            if work.slot_of.size:
                work.request_at[work.slot_of[request]] = -1
    s[PARTS] = kept


@inlined
def repeats_of(
    rule: Rule, load: Load, work: Work, known: int, decodes: int, taken: int, now: int, length: int, until: int
) -> int:
    """How many times the batch would be formed in a row; 0 when not even once before the clock ends."""
    s = work.s
    if length > LAST_TICK - now:
        return 0
    # Nothing that arrives may change the batch: it is full, or the first prompt of the queue does not fit.
    sees = s[ARRIVED] < known and (not s[CLOSED] or rule.zeros)
    if sees and load.arrival[s[ARRIVED]] <= now + length:
        return 1
    most = (LAST_TICK - now) // length
    if decodes:
        most = min(most, s[NEXT_DUE] - s[ROUND])
        if most == 1:
            return 1
    for part in range(taken):
        most = min(most, work.part_left[part] // work.piece[part])
        if most == 1:
            return 1
    if sees:
        most = min(most, (load.arrival[s[ARRIVED]] - 1 - now) // length + 1)
    return min(most, (until - 1 - now) // length + 1)


@inlined
def let_in(rule: Rule, load: Load, work: Work, known: int, now: int) -> None:
    """Let in what has arrived at or before ``now``."""
    s = work.s
    arrived = s[ARRIVED]
    if not rule.zeros:
        while arrived < known and load.arrival[arrived] <= now:
            arrived += 1
        s[ARRIVED] = arrived
        return
    while arrived < known and load.arrival[arrived] <= now:
        if rule.slots == WHEN_ARRIVED:
            give_slot(work, arrived)
        if load.prefill[arrived] == 0:
            if rule.order == SEATS_FIRST:
                s[ZEROS] += 1
            else:
                join_decodes(work, arrived)
        arrived += 1
    s[ARRIVED] = arrived


# --- what is noted ----------------------------------------------------------------------------------------------------


@inlined
def note(
    watch: Watch, work: Work, before: int, served: int, started: int, decoding: int, now: int, length: int
) -> None:
    """Note the state at the watched ticks before ``before``: equal batches of ``length`` follow each other from now."""
    s = work.s
    while s[WATCHED] < watch.ticks.size and watch.ticks[s[WATCHED]] < before:
        index = s[WATCHED]
        tick = watch.ticks[index]
        ended = (tick - now) // length if length else 0
        watch.seen[0, index] = s[SERVED] + ended * served
        watch.seen[1, index] = s[STARTED] if ended else started
        watch.seen[2, index] = decoding
        watch.seen[3, index] = s[BATCHES] + ended
        watch.seen[4, index] = s[BUSY] + (tick - now if length else 0)
        s[WATCHED] += 1


@compiled
def write_log(log: Log, work: Work, decodes: int, taken: int, now: int, length: int) -> None:
    """Write down a batch whose decodes have all been reached."""
    s = work.s
    index = s[LOGGED]
    log.starts[index], log.durations[index] = now, length
    for part in range(taken):
        log.piece_request[s[LOGGED_PIECES]] = work.part_request[part]
        log.piece_tokens[s[LOGGED_PIECES]] = work.piece[part]
        s[LOGGED_PIECES] += 1
    slot = 0
    while decodes:
        if work.tree[s[WIDTH] + slot, COUNT]:
            log.decode_request[s[LOGGED_DECODES]] = work.request_at[slot]
            s[LOGGED_DECODES] += 1
            decodes -= 1
        slot += 1
    log.piece_end[index], log.decode_end[index] = s[LOGGED_PIECES], s[LOGGED_DECODES]
    s[LOGGED] += 1


@compiled
def log_is_full(log: Log, work: Work, most: int) -> bool:
    """Whether another batch, of at most ``most`` requests, might not fit."""
    s = work.s
    return (
        s[LOGGED] == log.starts.size
        or s[LOGGED_PIECES] + most > log.piece_request.size
        or s[LOGGED_DECODES] + most > log.decode_request.size
    )


# --- the run ----------------------------------------------------------------------------------------------------------


@inlined
def boundary(rule: Rule, load: Load, known: int, work: Work, watch: Watch, log: Log, until: int) -> int:
    """Come to the next start of a batch; says why there is none, or GO_ON."""
    s = work.s
    let_in(rule, load, work, known, s[NOW])
    if s[ARRIVED] == s[DONE]:
        if s[ARRIVED] == known:
            return FINISHED
        begin = s[NOW]
        s[NOW] = load.arrival[s[ARRIVED]]
        note(watch, work, s[NOW], 0, s[STARTED], 0, begin, 0)
        let_in(rule, load, work, known, s[NOW])
    if s[NOW] >= until:
        return STOPPED
    if s[GAPS] + 2 > work.gap.size:
        return GAPS_FULL
    if log.starts.size and log_is_full(log, work, min(rule.budget, load.arrival.size)):
        return LOG_FULL
    return GO_ON


@inlined
def run_batch(rule: Rule, load: Load, known: int, times: Times, work: Work, watch: Watch, log: Log, until: int) -> int:
    """Form a batch and run it, as often as it would be formed again; says why it cannot run, or GO_ON."""
    s = work.s
    now, started, decoding = s[NOW], s[STARTED], s[REACHED] + s[FRESH] + s[ZEROS]
    decodes, taken = form(rule, load, times, work, now)
    tokens = decodes
    for part in range(taken):
        tokens += work.piece[part]
    if tokens == 0:
        return IDLE
    length = load.ticks[tokens]
    if decodes:
        serve_decodes(load, times, work, decodes, now, now + length)
    repeats = repeats_of(rule, load, work, known, decodes, taken, now, length, until)
    if repeats == 0:
        return OVERFLOW
    if log.starts.size:
        repeats = 1
        write_log(log, work, decodes, taken, now, length)
    end = now + repeats * length
    note(watch, work, end, tokens, started, decoding, now, length)
    s[SERVED] += repeats * tokens
    s[BATCHES] += repeats
    s[BUSY] += repeats * length
    s[LAST] = s[NOW] = end
    s[LAST_TOKENS] = tokens
    done = s[DONE]
    if decodes:
        end_rounds(times, work, repeats, length, end)
    if taken:
        credit_prompts(load, times, work, taken, repeats, end)
    s[LAST_DONE] = s[DONE] - done
    return GO_ON


@entry
def advance(
    rule: Rule, load: Load, known: int, times: Times, work: Work, watch: Watch, log: Log, until: int, steps: int
) -> int:
    """Run batches that start before ``until``, in at most ``steps`` steps; says why it stopped.

    Only the first ``known`` requests exist. Called again, it goes on where it stopped.
    """
    for _ in range(steps):
        status = boundary(rule, load, known, work, watch, log, until)
        if status == GO_ON:
            status = run_batch(rule, load, known, times, work, watch, log, until)
        if status != GO_ON:
            return status
    return PAUSED


# --- a dispatcher -----------------------------------------------------------------------------------------------------


@compiled
def replica(pool_load: Load, pool_times: Times, pool_work: Work, index: int) -> tuple[Load, Times, Work]:
    """The arrays of one engine of several, whose arrays stand in rows."""
    load = Load(pool_load.arrival[index], pool_load.prefill[index], pool_load.decode[index], pool_load.ticks)
    times = Times(
        pool_times.begin[index],
        pool_times.first_decode[index],
        pool_times.last_prefill[index],
        pool_times.finish[index],
        pool_times.longest_gap[index],
    )
    work = Work(
        pool_work.s[index],
        pool_work.tree[index],
        pool_work.request_at[index],
        pool_work.first_round[index],
        pool_work.slot_of[index],
        pool_work.fresh[index],
        pool_work.part_request[index],
        pool_work.part_left[index],
        pool_work.piece[index],
        pool_work.gap_round[index],
        pool_work.gap[index],
        pool_work.lag[index],
    )
    return load, times, work


@partial(entry, of=dispatching.CODE)
def join_queues(
    dispatch: int,
    usual: Floats,
    seen: Engines,
    chances: Floats,
    rule: Rule,
    load: Load,
    pool_load: Load,
    pool_times: Times,
    pool_work: Work,
    watch: Watch,
    log: Log,
    sent: Ints,
    tokens: Ints,
    engine_of: Ints,
    first: int,
) -> tuple[int, int]:
    """Send each request from ``first`` on to the engine that a dispatch rule chooses.

    A token is present until the batch that serves it ends, a request until that of its last. ``sent`` and ``tokens``
    count what each engine was sent. Returns why it stopped and the request it stopped at.
    """
    for request in range(first, load.arrival.size):
        now = load.arrival[request]
        for engine in range(sent.size):
            s = pool_work.s[engine]
            if sent[engine] == pool_load.arrival.shape[1]:
                return QUEUE_FULL, request
            if s[NOW] < now and s[DONE] < sent[engine]:  # else it is in the middle of a batch, or idle
                queue, times, work = replica(pool_load, pool_times, pool_work, engine)
                status = advance(rule, queue, sent[engine], times, work, watch, log, now, NEVER_DUE)
                if status != FINISHED and status != STOPPED:
                    return status, request
            seen.tokens[engine] = tokens[engine] - s[SERVED]
            seen.outstanding[engine] = sent[engine] - s[DONE]
            if s[LAST] > now:
                seen.tokens[engine] += s[LAST_TOKENS]
                seen.outstanding[engine] += s[LAST_DONE]
        chosen = choose(dispatch, view_of(seen, request, chances[request]), usual)
        place = sent[chosen]
        pool_load.arrival[chosen, place] = now
        pool_load.prefill[chosen, place] = load.prefill[request]
        pool_load.decode[chosen, place] = load.decode[request]
        sent[chosen] += 1
        tokens[chosen] += load.prefill[request] + load.decode[request]
        engine_of[request] = chosen
    return FINISHED, load.arrival.size
