"""The cluster of `cluster_reference`, compiled: O(log calls) a call and an event, whatever the backlog.

What makes it fast. Batches that would be formed again just as they are, of decodes alone with nobody admitted, are one
event: a *stretch* of rounds of equal length, up to the first end of a call. A call that comes meanwhile cuts it at the
next boundary. What others can see of the stretch (tokens and work left, calls there) is computed when they look.

A call waits, or decodes, in one skew heap at a time (Sleator and Tarjan, SIAM J. Comput. 15 (1986)): by its key among
those that wait at its instance, by the round in which it ends among those that decode; equal ones in the order in which
they came or were admitted. The round is known when the prompt has been scheduled, since every call that runs gets a
token in every batch: a call is admitted only while budget is left, so that never more run than a batch has tokens.

The next completion comes from a tree of minima over the instances. All that is under way at one instant is in the
state, so that the machine can stop before any dispatch, ask a rule that is not compiled, and go on.

Rules and orders of the registries are compiled in from their own functions, which are told to `entry`. All the rest is
one module because the machine code kept on disk is known by the date of the file of `advance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.dispatch.registry import DISPATCH_RULES
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.kept import compiled, entry, inlined
from queuetheory_llm.schedulers.queue_orders import QUEUE_ORDERS
from queuetheory_llm.schedulers.vtc import lifted
from queuetheory_llm.simulation.cluster_run import order_view
from queuetheory_llm.simulation.next_ends import earliest, end_of, set_end

# Kinds of instances.
ENGINE, LATENCY, SERVER = range(3)
# Why `advance` returned: nothing before ``until``, what to ask in Python, what is wrong.
GO_ON, FINISHED, ASK_RULE, ASK_KEY, NO_INSTANCE, OVERFLOW = range(6)
NONE = -1
NEVER_DUE = 2**62

# Entries of ``state.s``: the clock, the next query, steps that begin at this instant (first, end of the queue), calls
# of the step that begins (next, end), the answers to what was asked, instances to decide for, the tick at which they
# last did, calls sent, ticks seen.
NOW, COME, FIRST, END, CALL, CALLS_END, CHOSEN, KEYED, CHANGED, DECIDED, ORDER, SEEN = range(12)
STATE_SIZE = 12

# Columns of a call: where it is, ticks of coming, begin and end; its heap; its place among equals; ticks of the prompt
# or of the work.
INSTANCE, CAME, BEGAN, ENDED, LEFT, RIGHT, PLACE, TICKS = range(8)
CALL_SIZE = 8
# Columns of a step: calls that have not ended, steps it waits for.
CALLS_LEFT, WAITS = range(2)
# Columns of an instance. Of the stretch: begin, ticks a round, rounds, work (ticks, each call alone) and tokens served
# a round. Of the calls there: work and tokens left at its begin, rounds ever, calls that decode, the heap of those, the
# call whose prompt (or work) is in service, tokens left of that prompt, calls ever admitted, begun and not ended,
# waiting. Ticks it has worked; whether it must decide.
SINCE, LENGTH, ROUNDS, DROP, CREDIT, WORK, TOKENS, ROUND, DECODING, ROOT = range(10)
PARTIAL, PARTIAL_LEFT, ADMITTED, BEGUN, WAITING, BUSY, MUST_DECIDE = range(10, 17)
INSTANCE_SIZE = 17


class How(NamedTuple):
    """The rules: places in the registries, -1 of one that Python is asked for; the others are truth values."""

    rule: int
    order: int
    looks: int
    true: int
    fair: int
    rate: float


class Cluster(NamedTuple):
    """M instances, J stages; ticks and seconds. ``first_ticks`` are the starts of rows of t(b)."""

    kind: Ints
    most: Ints
    budget: Ints
    first_ticks: Ints
    batch_ticks: Ints
    step: Ints
    base: Ints
    prefill: Ints
    decode: Ints
    ticks_of_work: Floats
    seconds: Floats
    cost: Floats
    shares: Floats
    average: Floats
    rest: Floats
    mean_prefill: Floats
    mean_decode: Floats
    charge: Floats
    slo: Floats


class Load(NamedTuple):
    """The queries, see `queries.Queries`; the query of each step, the step of each call, the random numbers."""

    arrival: Ints
    tenant: Ints
    first_step: Ints
    stage: Ints
    first_next: Ints
    next: Ints
    first_call: Ints
    prefill: Ints
    decode: Ints
    work: Floats
    query_of: Ints
    step_of: Ints
    chance: Floats


class State(NamedTuple):
    """The state. ``roots``, ``waiting``, ``charged``: of the calls that wait at an instance, by tenant if fair.

    ``there`` and ``sent`` count calls by stage and instance; what a dispatcher sees of the instances is in
    ``estimated`` to ``assigned``, ``answer`` is the key that Python gave.
    """

    s: Ints
    calls: Ints
    key: Floats
    steps: Ints
    begins: Ints
    steps_left: Ints
    finished: Ints
    instances: Ints
    ends: Ints
    changed: Ints
    roots: Ints
    waiting: Ints
    charged: Floats
    there: Ints
    sent: Ints
    turn: Ints
    estimated: Floats
    left: Floats
    outstanding: Ints
    tokens: Floats
    assigned: Floats
    answer: Floats


class Watch(NamedTuple):
    """Ticks of the series, and what is seen there."""

    ticks: Ints
    present: Ints
    work: Floats


# --- the rules --------------------------------------------------------------------------------------------------------


def _known(function: Callable[..., Any]) -> Any:
    """A plain function compiled, with the plain functions that it calls."""
    around = {
        name: _known(value)
        for name in function.__code__.co_names
        if isinstance(value := function.__globals__.get(name), FunctionType)
    }
    return compiled(FunctionType(function.__code__, {**function.__globals__, **around}, function.__name__))


def _switch_rules(functions: Sequence[Any]) -> Any:
    """The function of a number, called with the other arguments."""
    head = functions[0]
    if len(functions) == 1:
        return compiled(lambda code, view, parameters: int(head(view, parameters)))  # noqa: ARG005
    rest = _switch_rules(functions[1:])
    return compiled(lambda code, view, p: int(head(view, p)) if code == 0 else rest(code - 1, view, p))


def _switch_orders(functions: Sequence[Any]) -> Any:
    head = functions[0]
    if len(functions) == 1:
        return compiled(lambda code, view: float(head(view)))  # noqa: ARG005
    rest = _switch_orders(functions[1:])
    return compiled(lambda code, view: float(head(view)) if code == 0 else rest(code - 1, view))


#: Functions of the registries, in the order of the numbers that `How` has.
RULES = [rule.choose for rule in DISPATCH_RULES.values()]
ORDERS = [order.key for order in QUEUE_ORDERS.values()]
choose_by = _switch_rules([_known(function) for function in RULES])
key_by = _switch_orders([_known(function) for function in ORDERS])
order_view_of = _known(order_view)
lift = _known(lifted)


# --- heaps ------------------------------------------------------------------------------------------------------------


@inlined
def before(state: State, one: int, other: int) -> bool:
    """Whether a call is before another in their heap."""
    a, b = state.key[one], state.key[other]
    return a < b or (a == b and state.calls[one, PLACE] < state.calls[other, PLACE])


@compiled
def merge(calls: Ints, state: State, one: int, other: int) -> int:
    """The root of two skew heaps made one; each is a root or `NONE`."""
    if one == NONE:
        return other
    if other == NONE:
        return one
    if before(state, other, one):
        one, other = other, one
    root = one
    while True:
        right = calls[one, RIGHT]
        calls[one, RIGHT] = calls[one, LEFT]
        if right == NONE:
            calls[one, LEFT] = other
            return root
        if before(state, other, right):
            right, other = other, right
        calls[one, LEFT] = right
        one = right


@inlined
def push(state: State, root: int, call: int, key: float) -> int:
    """Put a call into a heap; its new root."""
    state.calls[call, LEFT] = state.calls[call, RIGHT] = NONE
    state.key[call] = key
    return merge(state.calls, state, root, call)


@inlined
def without(state: State, root: int) -> int:
    """The heap without its root."""
    return merge(state.calls, state, state.calls[root, LEFT], state.calls[root, RIGHT])


# --- decisions to take ------------------------------------------------------------------------------------------------


@inlined
def decide_later(state: State, m: int) -> None:
    """Note that an instance must decide at the end of this instant."""
    if state.instances[m, MUST_DECIDE] == 0:
        state.instances[m, MUST_DECIDE] = 1
        state.changed[state.s[CHANGED]] = m
        state.s[CHANGED] += 1


# --- what is seen -----------------------------------------------------------------------------------------------------


@inlined
def rounds_of(state: State, m: int, tick: int) -> int:
    """Rounds of the stretch that have ended at ``tick``, when the stretch itself has not."""
    own = state.instances[m]
    return (tick - own[SINCE]) // own[LENGTH] if own[ROUNDS] > 1 and own[LENGTH] > 0 else 0


@inlined
def seconds_left(how: How, state: State, m: int, tick: int) -> float:
    """Seconds of work at an instance at ``tick``, each call alone."""
    own = state.instances[m]
    if end_of(state.ends, m) == NEVER_DUE or own[LENGTH] == 0:
        return np.float64(own[WORK]) / how.rate
    rounds = rounds_of(state, m, tick)
    share = np.float64(tick - own[SINCE] - rounds * own[LENGTH]) / np.float64(own[LENGTH])
    return (np.float64(own[WORK] - rounds * own[DROP]) - np.float64(own[DROP]) * share) / how.rate


@inlined
def look(how: How, cluster: Cluster, state: State) -> None:
    """Bring up to now what a dispatcher sees of the instances."""
    now = state.s[NOW]
    for m in range(state.left.size):
        own = state.instances[m]
        state.left[m] = seconds_left(how, state, m, now)
        if cluster.kind[m] == SERVER:
            state.tokens[m] = state.left[m]
        elif end_of(state.ends, m) == NEVER_DUE:
            state.tokens[m] = own[TOKENS]
        else:
            state.tokens[m] = own[TOKENS] - rounds_of(state, m, now) * own[CREDIT]


@inlined
def estimate(cluster: Cluster, counts: Ints, m: int) -> float:
    """Estimated seconds of so many calls of each stage at an instance."""
    total = 0.0
    for j in range(counts.shape[0]):
        total += counts[j, m] * cluster.cost[j, m]
    return total


@compiled
def see(how: How, state: State, watch: Watch) -> None:
    """Note the state at the next watched tick."""
    at = state.s[SEEN]
    for m in range(state.left.size):
        watch.present[m, at] = state.outstanding[m]
        watch.work[m, at] = seconds_left(how, state, m, watch.ticks[at])
    state.s[SEEN] = at + 1


# --- ends of calls and steps ------------------------------------------------------------------------------------------


@compiled
def end_call(cluster: Cluster, load: Load, state: State, m: int, call: int) -> None:
    """A call has ended; so may its step and its query."""
    step = load.step_of[call]
    stage = load.stage[step]
    state.calls[call, ENDED] = state.s[NOW]
    state.outstanding[m] -= 1
    state.there[stage, m] -= 1
    state.estimated[m] = estimate(cluster, state.there, m)
    state.steps[step, CALLS_LEFT] -= 1
    if state.steps[step, CALLS_LEFT] > 0:
        return
    query = load.query_of[step]
    state.steps_left[query] -= 1
    if state.steps_left[query] == 0:
        state.finished[query] = state.s[NOW]
    for place in range(load.first_next[step], load.first_next[step + 1]):
        after = load.next[place]
        state.steps[after, WAITS] -= 1
        if state.steps[after, WAITS] == 0:
            state.begins[state.s[END]] = after
            state.s[END] += 1


@compiled
def complete(cluster: Cluster, load: Load, state: State, m: int) -> None:
    """Credit a stretch that ends now; the calls that are due end."""
    own = state.instances[m]
    own[WORK] -= own[ROUNDS] * own[DROP]
    own[TOKENS] -= own[ROUNDS] * own[CREDIT]
    own[BUSY] += state.s[NOW] - own[SINCE]
    set_end(state.ends, m, NEVER_DUE)
    decide_later(state, m)
    call = own[PARTIAL]
    if cluster.kind[m] != ENGINE and call != NONE:
        own[PARTIAL] = NONE
        if cluster.kind[m] == SERVER or load.decode[call] == 0:
            own[BEGUN] -= 1
            end_call(cluster, load, state, m, call)
        else:
            decode_until(state, m, call, own[ROUND] + load.decode[call])
        return
    own[ROUND] += own[ROUNDS]
    while own[ROOT] != NONE and state.key[own[ROOT]] <= own[ROUND]:
        call = own[ROOT]
        own[ROOT] = without(state, call)
        own[DECODING] -= 1
        own[BEGUN] -= 1
        end_call(cluster, load, state, m, call)


@inlined
def decode_until(state: State, m: int, call: int, due: int) -> None:
    """A call decodes, and ends with the round of number ``due``."""
    own = state.instances[m]
    own[ROOT] = push(state, own[ROOT], call, np.float64(due))
    own[DECODING] += 1


# --- dispatch ---------------------------------------------------------------------------------------------------------


@compiled
def choose(how: How, cluster: Cluster, load: Load, state: State, stage: int, parameters: Floats) -> int:
    """The instance that the rule chooses."""
    chance = load.chance[state.s[ORDER]] if load.chance.size > 0 else 0.0
    view = DispatchView(
        stage,
        cluster.seconds[stage],
        state.left if how.true != 0 else state.estimated,
        state.outstanding,
        state.tokens,
        state.assigned,
        state.turn[stage],
        cluster.shares[stage],
        chance,
    )
    return choose_by(how.rule, view, parameters)


@compiled
def key_of(how: How, cluster: Cluster, load: Load, state: State, stage: int, query: int, m: int) -> float:
    """The key that the order gives to a call that comes now."""
    view = order_view_of(
        np.float64(state.s[NOW]),
        np.float64(load.arrival[query]),
        how.rate,
        cluster.slo[load.tenant[query]],
        cluster.seconds[stage, m],
        cluster.average[stage],
        cluster.rest[stage],
        cluster.mean_prefill[stage],
        cluster.mean_decode[stage],
    )
    return key_by(how.order, view)


@inlined
def prompt_ticks(cluster: Cluster, m: int, tokens: int) -> int:
    """Ticks of a prompt that is alone at a batch engine."""
    full = tokens // cluster.budget[m]
    rest = tokens - full * cluster.budget[m]
    first = cluster.first_ticks[m]
    return full * cluster.batch_ticks[first + cluster.budget[m]] + cluster.batch_ticks[first + rest]


@inlined
def work_of(cluster: Cluster, load: Load, state: State, stage: int, m: int, call: int) -> int:
    """Ticks of a call that is alone at an instance; those of its prompt or of its work are noted."""
    prefill, decode = load.prefill[call], load.decode[call]
    if cluster.kind[m] == ENGINE:
        return prompt_ticks(cluster, m, prefill) + decode * cluster.step[m]
    if cluster.kind[m] == SERVER:
        ticks = int(np.rint(load.work[call] * cluster.ticks_of_work[m]))
    else:
        alone = cluster.base[stage, m] + cluster.prefill[stage, m] * prefill + cluster.decode[stage, m] * decode
        ticks = max(0, alone - decode * cluster.step[m])
    state.calls[call, TICKS] = ticks
    return ticks + decode * cluster.step[m]


@inlined
def wait(how: How, cluster: Cluster, load: Load, state: State, m: int, call: int, query: int, key: float) -> None:
    """A call comes to wait at an instance, and cuts the stretch there if it can be begun at the next boundary."""
    own = state.instances[m]
    group = load.tenant[query] if how.fair != 0 else 0
    if how.fair != 0 and state.waiting[m, group] == 0 and own[WAITING] > 0:
        least = np.inf
        for tenant in range(state.waiting.shape[1]):
            if state.waiting[m, tenant] > 0:
                least = min(least, state.charged[m, tenant])
        state.charged[m, group] = lift(state.charged[m, group], least)
    state.roots[m, group] = push(state, state.roots[m, group], call, key)
    state.waiting[m, group] += 1
    own[WAITING] += 1
    if end_of(state.ends, m) == NEVER_DUE:
        decide_later(state, m)
    elif own[ROUNDS] > 1 and own[LENGTH] > 0 and own[BEGUN] < cluster.most[m]:
        # A boundary that is now is still to come for this call, unless its decision has been taken.
        passed = state.s[NOW] - own[SINCE] - (state.s[DECIDED] != state.s[NOW])
        rounds = passed // own[LENGTH] + 1
        if rounds < own[ROUNDS]:
            own[ROUNDS] = rounds
            end = own[SINCE] + rounds * own[LENGTH]
            if end == state.s[NOW]:
                complete(cluster, load, state, m)
            else:
                set_end(state.ends, m, end)


@inlined
def send(how: How, cluster: Cluster, load: Load, state: State, parameters: Floats) -> int:
    """The next call of the step that begins goes to an instance."""
    s, call = state.s, state.s[CALL]
    step = load.step_of[call]
    stage, query = load.stage[step], load.query_of[step]
    if s[CHOSEN] == NONE:
        if how.looks != 0:
            look(how, cluster, state)
        if how.rule == NONE:
            return ASK_RULE
        s[CHOSEN] = choose(how, cluster, load, state, stage, parameters)
    m = s[CHOSEN]
    if m < 0 or m >= cluster.kind.size or cluster.seconds[stage, m] == np.inf:
        return NO_INSTANCE
    passes = cluster.kind[m] == ENGINE and load.prefill[call] + load.decode[call] == 0
    if how.order == NONE and s[KEYED] == 0 and not passes:
        return ASK_KEY
    s[CALL] += 1
    s[CHOSEN] = NONE
    state.sent[stage, m] += 1
    state.turn[stage] += 1
    state.there[stage, m] += 1
    state.outstanding[m] += 1
    state.assigned[m] = estimate(cluster, state.sent, m)
    calls = state.calls
    calls[call, INSTANCE], calls[call, CAME], calls[call, PLACE] = m, s[NOW], s[ORDER]
    s[ORDER] += 1
    if passes:
        calls[call, BEGAN] = s[NOW]
        end_call(cluster, load, state, m, call)
        return GO_ON
    key = state.answer[0]
    if s[KEYED] == 0:
        key = key_of(how, cluster, load, state, stage, query, m)
    s[KEYED] = 0
    state.estimated[m] = estimate(cluster, state.there, m)
    state.instances[m, WORK] += work_of(cluster, load, state, stage, m, call)
    state.instances[m, TOKENS] += load.prefill[call] + load.decode[call]
    wait(how, cluster, load, state, m, call, query, key)
    return GO_ON


@inlined
def begin_step(load: Load, state: State) -> None:
    """The next of the steps that begin now: its calls are to be sent."""
    s = state.s
    step = state.begins[s[FIRST]]
    s[FIRST] += 1
    s[CALL], s[CALLS_END] = load.first_call[step], load.first_call[step + 1]


@inlined
def come(load: Load, state: State) -> None:
    """A query comes: the steps that wait for none are to begin."""
    s, query = state.s, state.s[COME]
    first, last = load.first_step[query], load.first_step[query + 1]
    if first == last:
        state.finished[query] = s[NOW]
    for step in range(first, last):
        if state.steps[step, WAITS] == 0:
            state.begins[s[END]] = step
            s[END] += 1
    s[COME] = query + 1


# --- decisions --------------------------------------------------------------------------------------------------------


@inlined
def admit(how: How, cluster: Cluster, load: Load, state: State, m: int) -> int:
    """Begin the first of the waiting calls: of the tenant charged least, the one of the least key."""
    own, group = state.instances[m], 0
    if how.fair != 0:
        group = NONE
        for tenant in range(state.waiting.shape[1]):
            if state.waiting[m, tenant] > 0 and (group == NONE or state.charged[m, tenant] < state.charged[m, group]):
                group = tenant
    call = state.roots[m, group]
    state.roots[m, group] = without(state, call)
    state.waiting[m, group] -= 1
    state.charged[m, group] += cluster.charge[load.stage[load.step_of[call]]]
    own[WAITING] -= 1
    own[BEGUN] += 1
    state.calls[call, BEGAN] = state.s[NOW]
    state.calls[call, PLACE] = own[ADMITTED]
    own[ADMITTED] += 1
    return call


@inlined
def start(state: State, m: int, length: int, rounds: int, drop: int, credit: int) -> int:
    """An instance works from now on for so many rounds."""
    own, now = state.instances[m], state.s[NOW]
    if length > 0 and rounds > (NEVER_DUE - 1 - now) // length:
        return OVERFLOW
    own[SINCE], own[LENGTH], own[ROUNDS], own[DROP], own[CREDIT] = now, length, rounds, drop, credit
    set_end(state.ends, m, now + rounds * length)
    return GO_ON


@inlined
def serve_prompt(cluster: Cluster, load: Load, state: State, m: int, call: int, tokens: int, room: int) -> int:
    """Serve what a batch has room for of a prompt of which ``tokens`` are left; the work that takes off."""
    own = state.instances[m]
    piece = min(tokens, room)
    own[PARTIAL_LEFT] = tokens - piece
    if piece == tokens:
        own[PARTIAL] = NONE
        decode_until(state, m, call, own[ROUND] + 1 + load.decode[call])
    else:
        own[PARTIAL] = call
    return prompt_ticks(cluster, m, tokens) - prompt_ticks(cluster, m, tokens - piece)


@compiled
def start_batch(how: How, cluster: Cluster, load: Load, state: State, m: int) -> int:
    """A batch: every call that runs, then waiting ones while budget is left."""
    own = state.instances[m]
    room = cluster.budget[m] - own[DECODING]
    drop = own[DECODING] * cluster.step[m]
    again = True  # whether the next batch is the same
    if own[PARTIAL] != NONE:
        again = False
        left = own[PARTIAL_LEFT]
        drop += serve_prompt(cluster, load, state, m, own[PARTIAL], left, room)
        room -= left - own[PARTIAL_LEFT]
    while room > 0 and own[WAITING] > 0 and own[BEGUN] < cluster.most[m]:
        again = False
        call = admit(how, cluster, load, state, m)
        left = load.prefill[call]
        if left == 0:
            room -= 1
            drop += cluster.step[m]
            decode_until(state, m, call, own[ROUND] + load.decode[call])
        else:
            drop += serve_prompt(cluster, load, state, m, call, left, room)
            room -= left - own[PARTIAL_LEFT]
    tokens = cluster.budget[m] - room
    if tokens == 0:
        return GO_ON
    rounds = int(state.key[own[ROOT]]) - own[ROUND] if again else 1
    return start(state, m, cluster.batch_ticks[cluster.first_ticks[m] + tokens], rounds, drop, tokens)


@compiled
def start_alone(how: How, cluster: Cluster, load: Load, state: State, m: int) -> int:
    """A prompt or a work, alone; if there is none, decode steps."""
    own = state.instances[m]
    if own[WAITING] > 0 and own[BEGUN] < cluster.most[m]:
        call = admit(how, cluster, load, state, m)
        own[PARTIAL] = call
        ticks = state.calls[call, TICKS]
        return start(state, m, ticks, 1, ticks, load.prefill[call])
    if own[DECODING] == 0:
        return GO_ON
    rounds = int(state.key[own[ROOT]]) - own[ROUND]
    return start(state, m, cluster.step[m], rounds, own[DECODING] * cluster.step[m], own[DECODING])


@inlined
def decide_all(how: How, cluster: Cluster, load: Load, state: State) -> int:
    """The decisions of an instant; what one instance begins does not depend on another."""
    status = GO_ON
    for place in range(state.s[CHANGED]):
        m = state.changed[place]
        state.instances[m, MUST_DECIDE] = 0
        if end_of(state.ends, m) == NEVER_DUE:
            if cluster.kind[m] == ENGINE:
                status = max(status, start_batch(how, cluster, load, state, m))
            else:
                status = max(status, start_alone(how, cluster, load, state, m))
    state.s[CHANGED] = 0
    state.s[DECIDED] = state.s[NOW]
    return status


# --- the clock --------------------------------------------------------------------------------------------------------


@inlined
def next_tick(how: How, load: Load, state: State, watch: Watch, until: int, through: int) -> int:
    """Go on to the next event before ``until``, with what is watched on the way; `FINISHED` if there is none."""
    s = state.s
    tick = state.ends[1]
    if s[COME] < load.arrival.size:
        tick = min(tick, load.arrival[s[COME]])
    last = tick if tick < until else max(through, until)
    while s[SEEN] < watch.ticks.size and watch.ticks[s[SEEN]] < last:
        see(how, state, watch)
    if tick >= until or tick == NEVER_DUE:
        return FINISHED
    s[NOW] = tick
    return GO_ON


@partial(entry, of=(DispatchView, choose_by, key_by, order_view_of, lift, set_end, earliest, end_of))
def advance(
    how: How,
    cluster: Cluster,
    load: Load,
    state: State,
    watch: Watch,
    parameters: Floats,
    until: int,
    through: int,
) -> int:
    """Run all before ``until`` and note the watched ticks before that or before ``through``; says why it stopped.

    Called again, it goes on where it stopped.
    """
    s = state.s
    while True:
        status = GO_ON
        if s[CALL] < s[CALLS_END]:
            status = send(how, cluster, load, state, parameters)
        elif state.ends[1] == s[NOW]:
            complete(cluster, load, state, earliest(state.ends))
        elif s[FIRST] < s[END]:
            begin_step(load, state)
        elif s[COME] < load.arrival.size and load.arrival[s[COME]] == s[NOW]:
            come(load, state)
        else:
            status = decide_all(how, cluster, load, state)
            if status == GO_ON and state.ends[1] != s[NOW]:
                status = next_tick(how, load, state, watch, until, through)
        if status != GO_ON:
            return status
