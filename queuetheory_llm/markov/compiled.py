"""The exploration of a policy, compiled: the cores and moves of `explore.explore_plainly`, in the same order.

A core is written as *runs* of equal requests that follow each other (prompt tokens left, decode tokens left, whether
they hold a seat, how many), so a hundred decodes of one memoryless law are one run. Every policy then does the same
thing: two passes over the runs, each over the runs of one *kind* (in a prompt or past it; or with a seat and without),
and each serves its runs from the front until the batch is full. Behind the last run of their kind stand the requests
that nobody has looked at; a pass that comes that far draws the lengths of the next one, and the batch is formed anew.

The cores are words of one pool, found through a hash table. All arrays are made and grown by `policy_space`: where one
is full the kernel leaves the core it is at, and begins that core again when there is room.

The kernel is one module because the machine code kept on disk is known by the date of the file of `advance` alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.kept import entry, inlined
from queuetheory_llm.markov.space import Small

# Columns of a run; the last says of runs after a batch what there is to draw about them.
PREFILL, DECODE, SEAT, COUNT, DRAWN = range(5)
KNOWN, ENDS, LENGTH = range(3)  # nothing; how many memoryless lengths end; the length of one request
RUN = 4  # words of a run of a core
# How far the kernel is: cores found and done, words of the pool, moves, states, outcomes of batches looked at.
CORES, DONE, WORDS, MOVES, STATES, LOOKED = range(6)
# Why `advance` returned; the first two also say how a batch was formed.
OPEN, SETTLED, FINISHED, PAUSED, BEYOND, TOO_MANY, CORES_FULL, MOVES_FULL, DESK_FULL = range(9)


class Rule(NamedTuple):
    """A policy on an engine; ``first`` is the kind its first pass serves, ``fresh`` the kind of unseen requests.

    ``seated``: a run is of kind 1 with a seat, 0 without; else of kind 1 in its prompt, 0 past it.
    ``hidden`` and ``alike`` are those of `Outcomes`, the latter only where there are no seats. ``endless``: behind
    every core stand as many unseen requests as there can be.
    """

    seated: bool
    first: int
    fresh: int
    mixed: bool
    chunks: bool
    budget: int
    slots: int
    threshold: int
    hidden: bool
    alike: bool
    endless: bool


class Lengths(NamedTuple):
    """Lengths with their chances, the sizes of `Sizes`, and the laws of what is drawn when decodes are served.

    The law for n decodes of kind i is ``law[begin[i, n] : begin[i, n + 1]]``: of how many finish where the kind is
    memoryless; else of the values, n is 1 and ``left`` has the decode tokens left after the first.
    """

    prefill: Ints
    decode: Ints
    chance: Floats
    parts: int
    whole: int
    level: int
    most: int
    means: Floats
    bounds: Floats
    memoryless: NDArray[np.bool_]
    begin: Ints
    law: Floats
    left: Ints


class Found(NamedTuple):
    """Cores: ``words[begin[i] : begin[i + 1]]`` are the runs of core i; ``table`` has their numbers by hash, or -1.

    ``latest`` is the last move to each core; see `write_move`.
    """

    words: Small
    begin: Ints
    latest: Small
    room: Small
    known: Small
    tokens: Floats
    table: Small


class Rows(NamedTuple):
    """Moves; see `space.Moves`. ``high`` has another use while a batch is at work; see `write_move`."""

    source: Small
    target: Small
    low: Small
    high: Small
    taken: Small
    tokens: Small
    chance: Floats


class Desk(NamedTuple):
    """Room to work in.

    ``run``: the runs of the core and of what was drawn, ``served``: how many requests of each get ``need`` tokens, and
    ``rest``: the tokens of one more. ``after``: the runs after the batch, ``gone``: what is drawn about each, as an
    index of its law: how many finish, or which length. ``key``: the words of a core. ``drawn``: indices of the lengths
    drawn, ``path``: the chance of the first i of them.
    """

    run: Ints
    need: Ints
    served: Ints
    rest: Ints
    after: Ints
    gone: Ints
    key: Small
    drawn: Ints
    path: Floats


class Search(NamedTuple):
    """All that the kernel works on; ``at`` says how far it is."""

    rule: Rule
    lengths: Lengths
    found: Found
    rows: Rows
    desk: Desk
    at: Ints


# --- the batch --------------------------------------------------------------------------------------------------------


@inlined
def form(rule: Rule, desk: Desk, runs: int) -> tuple[int, bool]:
    """Form the batch of `Policy.form`: its tokens, and whether it would go on to look at one more unseen request."""
    run, tokens, seats, looks = desk.run, rule.budget, rule.slots, False
    desk.served[:runs] = 0
    desk.rest[:runs] = 0
    for sweep in range(2):
        kind = rule.first if sweep == 0 else 1 - rule.first
        fits = True
        for i in range(runs):
            if kind != (run[i, SEAT] if rule.seated else run[i, PREFILL] > 0):
                continue
            need = max(1, min(run[i, PREFILL], rule.threshold))
            served = min(run[i, COUNT], seats, tokens // need)
            desk.need[i], desk.served[i] = need, served
            tokens -= served * need
            seats -= served
            fits = served == run[i, COUNT] or tokens == 0 or seats == 0
            if not fits and rule.chunks:
                desk.rest[i] = tokens
                tokens, fits = 0, True
            if not fits or tokens == 0 or seats == 0:
                break
        if kind == rule.fresh:
            looks = fits and tokens > 0 and seats > 0
        if not rule.mixed and tokens < rule.budget:
            break
    return rule.budget - tokens, looks


@inlined
def put(after: Ints, size: int, prefill: int, decode: int, seat: int, count: int, drawn: int) -> int:
    """Put requests behind the runs of ``after``, unless they are finished; returns the number of runs."""
    if count == 0 or (prefill == 0 and decode == 0):
        return size
    last = size - 1
    if (
        size > 0
        and drawn != LENGTH
        and after[last, PREFILL] == prefill
        and after[last, DECODE] == decode
        and after[last, SEAT] == seat
        and after[last, DRAWN] == drawn
    ):
        after[last, COUNT] += count
        return size
    after[size, PREFILL], after[size, DECODE], after[size, SEAT] = prefill, decode, seat
    after[size, COUNT], after[size, DRAWN] = count, drawn
    return size + 1


@inlined
def credit(rule: Rule, lengths: Lengths, desk: Desk, runs: int) -> int:
    """The runs after the batch before anything is drawn; returns their number."""
    size = 0
    for i in range(runs):
        prefill, decode, seat = desk.run[i, PREFILL], desk.run[i, DECODE], desk.run[i, SEAT]
        served, rest, count = desk.served[i], desk.rest[i], desk.run[i, COUNT]
        seated = 1 if rule.seated else 0
        if prefill > 0:
            size = put(desk.after, size, prefill - desk.need[i], decode, seated, served, KNOWN)
        elif decode > 0:
            size = put(desk.after, size, 0, decode - 1, seated, served, KNOWN)
        elif lengths.memoryless[-1 - decode]:
            size = put(desk.after, size, 0, decode, seated, served, ENDS)
        else:
            for _ in range(served):
                size = put(desk.after, size, 0, decode, seated, 1, LENGTH)
        if rest > 0:
            size = put(desk.after, size, prefill - rest, decode, seated, 1, KNOWN)
            count -= 1
        size = put(desk.after, size, prefill, decode, seat, count - served, KNOWN)
    return size


# --- the cores --------------------------------------------------------------------------------------------------------


@inlined
def write(lengths: Lengths, desk: Desk, size: int, i: int) -> int:
    """Write what is left of run i behind the first ``size`` words of the key; returns the number of words."""
    key, after, gone = desk.key, desk.after, desk.gone[i]
    prefill, decode, seat, count = after[i, PREFILL], after[i, DECODE], after[i, SEAT], after[i, COUNT]
    if after[i, DRAWN] == LENGTH:
        decode = lengths.left[lengths.begin[-1 - decode, 1] + gone]
        count = min(decode, 1)
    elif after[i, DRAWN] == ENDS:
        count -= gone
    if count == 0:
        return size
    last = size - RUN
    if size > 0 and key[last + PREFILL] == prefill and key[last + DECODE] == decode and key[last + SEAT] == seat:
        key[last + COUNT] += count
        return size
    key[size + PREFILL], key[size + DECODE], key[size + SEAT], key[size + COUNT] = prefill, decode, seat, count
    return size + RUN


@inlined
def canonical(rule: Rule, lengths: Lengths, desk: Desk, runs: int) -> tuple[int, int]:
    """Write the core of `Outcomes.canonical` as the key: its number of words, and the requests as good as unseen."""
    key, after, size = desk.key, desk.after, 0
    for sweep in range(2 if rule.alike else 1):
        for i in range(runs):
            if not rule.alike or (after[i, PREFILL] > 0) == (sweep == 1):
                size = write(lengths, desk, size, i)
    last = size - RUN
    if (
        lengths.prefill.size == 1
        and size > 0
        and key[last + PREFILL] == lengths.prefill[0]
        and key[last + DECODE] == lengths.decode[0]
        and key[last + SEAT] == 0
    ):
        return last, key[last + COUNT]
    return size, 0


@inlined
def hashed(words: Small, begin: int, end: int) -> Any:
    """A hash of an even number of words, from 0."""
    mixed = np.uint64(end - begin)
    for i in range(begin, end, 2):
        pair = np.uint64(words[i]) ^ (np.uint64(words[i + 1]) << np.uint64(32))
        mixed = (mixed ^ pair) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed >> np.uint64(2))


@inlined
def number_of(lengths: Lengths, found: Found, at: Ints, key: Small, size: int) -> int:
    """The number of the core in ``key``, which is added where it is new; -1 where there is no room for it."""
    words, begin, mask = found.words, found.begin, found.table.size - 1
    slot = hashed(key, 0, size) & mask
    while found.table[slot] >= 0:
        core = found.table[slot]
        same = begin[core + 1] - begin[core] == size
        i = 0
        while same and i < size:
            same = words[begin[core] + i] == key[i]
            i += 1
        if same:
            return core
        slot = (slot + 1) & mask
    if at[CORES] == found.room.size or at[WORDS] + size > words.size:
        return -1
    found.table[slot] = at[CORES]
    add(lengths, found, at, key, size)
    return at[CORES] - 1


@inlined
def add(lengths: Lengths, found: Found, at: Ints, key: Small, size: int) -> None:
    """Add the core in ``key``."""
    core = at[CORES]
    taken, known, tokens = 0, 0, 0.0
    for i in range(0, size, RUN):
        decode, count = key[i + DECODE], key[i + COUNT]
        each = key[i + PREFILL] + (lengths.means[-1 - decode] if decode < 0 else float(decode))
        most = key[i + PREFILL] + (lengths.bounds[-1 - decode] if decode < 0 else float(decode))
        taken += count * min(lengths.whole, np.int64(np.rint(most * lengths.parts)))
        known += count
        tokens += count * each
    for i in range(size):
        found.words[at[WORDS] + i] = key[i]
    at[WORDS] += size
    at[CORES] += 1
    found.begin[core + 1] = at[WORDS]
    found.room[core] = min(lengths.most, (lengths.level - taken) // lengths.whole)
    found.known[core], found.tokens[core] = known, tokens
    at[STATES] += found.room[core] + 1


@entry
def rehash(found: Found, cores: int) -> None:
    """Fill an empty table."""
    mask = found.table.size - 1
    for core in range(cores):
        slot = hashed(found.words, found.begin[core], found.begin[core + 1]) & mask
        while found.table[slot] >= 0:
            slot = (slot + 1) & mask
        found.table[slot] = core


# --- the moves --------------------------------------------------------------------------------------------------------


@inlined
def share_of(lengths: Lengths, desk: Desk, runs: int) -> float:
    """The chance of what is drawn."""
    share = 1.0
    for i in range(runs):
        if desk.after[i, DRAWN] != KNOWN:
            share *= lengths.law[lengths.begin[-1 - desk.after[i, DECODE], desk.after[i, COUNT]] + desk.gone[i]]
    return share


@inlined
def next_gone(lengths: Lengths, desk: Desk, runs: int) -> bool:
    """Go on to what may be drawn next, the last run fastest; False behind the last."""
    for i in range(runs - 1, -1, -1):
        if desk.after[i, DRAWN] != KNOWN:
            kind, count = -1 - desk.after[i, DECODE], desk.after[i, COUNT]
            desk.gone[i] += 1
            if desk.gone[i] < lengths.begin[kind, count + 1] - lengths.begin[kind, count]:
                return True
            desk.gone[i] = 0
    return False


@inlined
def write_move(
    found: Found, rows: Rows, at: Ints, start: int, target: int, taken: int, tokens: int, chance: float
) -> bool:
    """Write a move of the batch whose moves begin at ``start``, or add its chance to one alike; False without room.

    Until the batch is done, ``high`` of a move is the one before it to the same core, or -1.
    """
    move, end = found.latest[target], at[MOVES]
    if not start <= move < end or rows.target[move] != target:  # of an earlier batch
        move = -1
    before = move
    while move >= 0:
        if rows.taken[move] == taken and rows.tokens[move] == tokens:
            rows.chance[move] += chance
            return True
        move = rows.high[move]
    if end == rows.source.size:
        return False
    rows.target[end], rows.taken[end], rows.tokens[end], rows.chance[end] = target, taken, tokens, chance
    rows.high[end], found.latest[target] = before, end
    at[MOVES] = end + 1
    return True


@inlined
def finish(search: Search, start: int, last: int, drawn: int, runs: int, tokens: int) -> int:
    """Write the moves of a batch: one for each way in which the decode lengths of a kind go on after it."""
    rule, lengths, found, rows, desk, at = search
    size = credit(rule, lengths, desk, runs)
    desk.gone[:size] = 0
    going = True
    while going:
        share = share_of(lengths, desk, size)
        if share > 0:
            words, back = canonical(rule, lengths, desk, size)
            target = number_of(lengths, found, at, desk.key, words)
            if target < 0:
                return CORES_FULL
            if not write_move(found, rows, at, start, target, drawn - back, tokens, desk.path[drawn] * share):
                return MOVES_FULL
        at[LOOKED] += 1
        if at[LOOKED] > last:
            return TOO_MANY
        going = next_gone(lengths, desk, size)
    return SETTLED


@inlined
def draw(lengths: Lengths, desk: Desk, base: int, place: int, which: int) -> None:
    """Let the unseen request at ``place`` have the lengths ``which``."""
    run = base + place
    desk.run[run, PREFILL], desk.run[run, DECODE] = lengths.prefill[which], lengths.decode[which]
    desk.run[run, SEAT], desk.run[run, COUNT] = 0, 1
    desk.drawn[place] = which
    desk.path[place + 1] = desk.path[place] * lengths.chance[which]


@inlined
def move_batch(search: Search, unseen: int, base: int, most: int) -> int:
    """Write the moves of a core of ``base`` runs with ``unseen`` requests behind it, for all lengths it has to draw.

    Returns SETTLED where no batch looks behind them, so that more of them fare alike; TOO_MANY where there are more
    than ``most`` outcomes.
    """
    rule, lengths, desk, at = search.rule, search.lengths, search.desk, search.at
    drawn, answer, start, last = 0, SETTLED, at[MOVES], at[LOOKED] + most
    desk.path[0] = 1.0
    while True:
        tokens, looks = 0, True
        if rule.hidden or drawn == unseen:
            tokens, looks = form(rule, desk, base + drawn)
        looks = looks or not rule.hidden
        if looks and drawn < unseen:
            draw(lengths, desk, base, drawn, lengths.chance.size - 1)
            drawn += 1
            continue
        if looks:
            answer = OPEN
        code = finish(search, start, last, drawn, base + drawn, tokens)
        if code != SETTLED:
            return code
        while drawn > 0 and desk.drawn[drawn - 1] == 0:
            drawn -= 1
        if drawn == 0:
            return answer
        draw(lengths, desk, base, drawn - 1, desk.drawn[drawn - 1] - 1)


@inlined
def same(rows: Rows, one: int, other: int, end: int) -> bool:
    """Whether the moves from ``one`` to ``other`` and from there to the end are alike."""
    if other - one != end - other:
        return False
    for i in range(other, end):
        j = one + i - other
        if (
            rows.target[i] != rows.target[j]
            or rows.taken[i] != rows.taken[j]
            or rows.tokens[i] != rows.tokens[j]
            or rows.chance[i] != rows.chance[j]
        ):
            return False
    return True


@inlined
def move_line(search: Search, core: int, most: int) -> int:
    """Write the moves of all states of a core; see `explore.ranges`."""
    rule, found, rows, desk, at = search.rule, search.found, search.rows, search.desk, search.at
    begin, room = found.begin[core], found.room[core]
    base = (found.begin[core + 1] - begin) // RUN
    deepest = room if not rule.hidden else min(room, rule.slots + 1)
    if base + deepest > desk.run.shape[0]:
        return DESK_FULL
    for i in range(base):
        for column in range(RUN):
            desk.run[i, column] = found.words[begin + RUN * i + column]
    fewer = -1
    least = room if rule.endless else 0 if base > 0 else 1
    for unseen in range(least, room + 1):
        start = at[MOVES]
        code = move_batch(search, unseen, base, most)
        if code > SETTLED:
            return code
        rows.source[start : at[MOVES]] = core
        rows.low[start : at[MOVES]] = unseen
        rows.high[start : at[MOVES]] = unseen
        alike = fewer >= 0 and same(rows, fewer, start, at[MOVES])
        if alike:
            at[MOVES], start = start, fewer
        if alike or code == SETTLED:
            rows.high[start : at[MOVES]] = room
            break
        fewer = start
    return SETTLED


@entry
def advance(search: Search, limits: tuple[int, int], pause: int) -> int:
    """Explore core after core until there is something to say; a core that found no room is begun again.

    ``limits``: states and moves; ``pause``: outcomes until the caller wants to hear.
    """
    at = search.at
    if at[CORES] == 0:
        number_of(search.lengths, search.found, at, search.desk.key, 0)  # the empty engine
    until = at[LOOKED] + pause
    while at[DONE] < at[CORES]:
        if at[LOOKED] >= until:
            return PAUSED
        start = at[MOVES]
        code = move_line(search, at[DONE], limits[1])
        if code > SETTLED:
            at[MOVES] = start
            return code
        at[DONE] += 1
        if at[STATES] > limits[0] or at[MOVES] > limits[1]:
            return BEYOND
    return FINISHED
