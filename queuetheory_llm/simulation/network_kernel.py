"""The network of `network_reference`, compiled: O(tokens) a batch and O(1) a hop, whatever the backlog.

What makes it fast. Every server has, for each group of tasks that it serves one after another (its classes, or all of
them together), three lists in order of arrival: prompts, decodes that had a prompt, decodes that had none. Prompts end
in the order in which they came, so the second list stays in order by appending; decodes in order of arrival are the two
lists merged. A batch is a prefix of the lists. It is credited when it is formed, except for what others can see (tokens
of the server, who has left), which is credited at its end; whoever has got the last token waits in the list of those
*done*. At a classical server only the first list is used, and the task in service is the head of its group.

The next completion comes from a tree of minima over the servers. All that moves at one instant is a stack, so that the
machine can stop before any move and go on later: it stops where a stream of random numbers is used up, or an array is
full, and Python mends it.

What is called at every hop is inlined: a call would copy the addresses and shapes of all the arrays.

All of it is one module because the machine code kept on disk is known by the date of the file of `advance`; what it
calls from elsewhere, the dispatch rules and the tree of ends, is told to `entry`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from queuetheory_llm.arrays import Floats, Ints
from queuetheory_llm.dispatch.view import DispatchView
from queuetheory_llm.kept import compiled, entry, inlined
from queuetheory_llm.simulation.dispatching import CODE, choose
from queuetheory_llm.simulation.network_run import ENTERS, FINE, LEAVES, STARTS
from queuetheory_llm.simulation.next_ends import earliest, end_of, set_end

# Rules of a station: one group of all tasks; classes in a fixed order; classes by back-pressure.
FIRST_COME, PRIORITY, BACK_PRESSURE = 0, 1, 2
# Why `advance` returned: which stream is used up, what is full, what is wrong.
GO_ON, FINISHED, SERVICES, ROUTES, ENGINES, POOL_FULL, LOG_FULL, OVERFLOW, NO_SIBLING = range(9)
NONE = -1
NEVER_DUE = 2**62

# Entries of ``state.s``: the clock, the next source, the stack of moves, free tasks and forks and their numbers,
NOW, COME, MOVING, FREE, FREE_COUNT, FORK, FORK_COUNT = range(7)
# tasks that have come to a station, tokens present and their maximum, siblings that wait, ticks seen,
ORDER, TOKENS, HIGHEST, WAITING, SEEN = range(7, 12)
# servers to decide for, the class or station whose stream is used up, rows of the log.
CHANGED, ASKED, LOGGED = range(12, 15)
STATE_SIZE = 15

# Columns of a task: class; prompt tokens or ticks left, decodes left; the next of its list, its place in the order of
# arrival, tick of coming to the class, task from outside, fork of which it is a branch, whether it comes to its class.
CLASS, LEFT, DECODE, NEXT, PLACE, CAME, SOURCE, BRANCH, COMES = range(9)
TASK_SIZE = 9
# Columns of a fork: branches left, number of branches, the fork of which it is a branch itself, or the next free one.
BRANCHES, SIZE, OUTER = range(3)
FORK_SIZE = 3
# Columns of a server: group in service, tokens of the batch, begin of it, those done (first, last), those whose prompt
# is done (first, last), whether it must decide; batches or periods begun, ticks it has worked, tokens or ticks of work
# there and ever brought, tasks there.
GROUP, BATCH, SINCE, DONE, LAST_DONE, READY, LAST_READY, MUST_DECIDE, STARTED, BUSY, WORK, BROUGHT, THERE = range(13)
SERVER_SIZE = 13

_FINE_BITS = FINE.bit_length()


class Net(NamedTuple):
    """The network in arrays: S stations, V servers, K classes; ``first_*`` are the starts of rows of flat arrays."""

    classical: Ints
    decode_first: Ints
    rule: Ints
    dispatch: Ints
    tosses: Ints
    seconds: Floats
    nothing: Floats
    shares: Floats
    usual: Floats
    first_server: Ints
    first_order: Ints
    order: Ints
    station: Ints
    first_list: Ints
    budget: Ints
    seats: Ints
    first_ticks: Ints
    batch_ticks: Ints
    at: Ints
    group: Ints
    first_route: Ints
    chance: Floats
    random: Ints
    first_branch: Ints
    branch: Ints
    join_to: Ints
    join_size: Ints
    rate: Floats
    first_flow: Ints
    flow_to: Ints
    flow: Floats


class Load(NamedTuple):
    """Tasks from outside in order of time, and when the last of each has left."""

    ticks: Ints
    classes: Ints
    ended: Ints


class Streams(NamedTuple):
    """Blocks of random numbers, in rows, and how many of each are used: services, routes, engines."""

    first: Ints
    second: Ints
    route: Floats
    engine: Floats
    used_services: Ints
    used_routes: Ints
    used_engines: Ints


class State(NamedTuple):
    """The state. ``lists`` has rows [first, last]; ``ends`` is the tree of the servers' next completions."""

    s: Ints
    tasks: Ints
    forks: Ints
    lists: Ints
    ends: Ints
    servers: Ints
    changed: Ints
    turn: Ints
    present: Ints
    arrived: Ints
    served: Ints
    since: Ints
    area: Floats
    stay: Floats
    bins: Ints
    weight: Floats


class Watch(NamedTuple):
    """Ticks of the series and what is seen there; see `network_run.NetworkSeries`."""

    ticks: Ints
    present: Ints
    arrived: Ints
    served: Ints
    area: Floats
    stay: Floats
    work: Ints
    tokens: Ints
    highest: Ints


# --- lists, notes -----------------------------------------------------------------------------------------------------


@inlined
def append(state: State, which: int, task: int) -> None:
    """Put a task at the end of a list."""
    state.tasks[task, NEXT] = NONE
    if state.lists[which, 0] == NONE:
        state.lists[which, 0] = task
    else:
        state.tasks[state.lists[which, 1], NEXT] = task
    state.lists[which, 1] = task


@inlined
def take_out(state: State, which: int, before: int, task: int) -> None:
    """Take a task out of a list in which it follows ``before``, or is the first."""
    after = state.tasks[task, NEXT]
    if before == NONE:
        state.lists[which, 0] = after
    else:
        state.tasks[before, NEXT] = after
    if after == NONE:
        state.lists[which, 1] = before


@inlined
def append_own(state: State, server: int, first: int, last: int, task: int) -> None:
    """Put a task at the end of a list that a server holds in its own columns."""
    state.tasks[task, NEXT] = NONE
    if state.servers[server, first] == NONE:
        state.servers[server, first] = task
    else:
        state.tasks[state.servers[server, last], NEXT] = task
    state.servers[server, last] = task


@inlined
def decide_later(state: State, server: int) -> None:
    """Note that a server must decide at the end of this instant; the list is kept in order."""
    if state.servers[server, MUST_DECIDE]:
        return
    state.servers[server, MUST_DECIDE] = 1
    place = state.s[CHANGED]
    while place > 0 and state.changed[place - 1] > server:
        state.changed[place] = state.changed[place - 1]
        place -= 1
    state.changed[place] = server
    state.s[CHANGED] += 1


@inlined
def count(state: State, k: int, step: int) -> None:
    """Change the number of tasks at a class."""
    now = state.s[NOW]
    state.area[k] += np.float64(state.present[k]) * np.float64(now - state.since[k])
    state.since[k] = now
    state.present[k] += step


@inlined
def note(state: State, log: Ints, kind: int, who: int, what: int) -> None:
    """Log an event; a log without room is none."""
    if log.shape[0] > 0:
        row = state.s[LOGGED]
        log[row, 0], log[row, 1], log[row, 2], log[row, 3] = state.s[NOW], kind, who, what
        state.s[LOGGED] = row + 1


@inlined
def bin_of(ticks: int) -> int:
    """See `network_run.bin_of`."""
    if ticks < FINE:
        return ticks
    power, rest = 1 - _FINE_BITS, ticks
    for step in (32, 16, 8, 4, 2, 1):
        if rest >> step > 0:
            rest >>= step
            power += step
    return (power + 1) * FINE + (ticks >> power) - FINE


# --- moves ------------------------------------------------------------------------------------------------------------


@inlined
def new_task(state: State, k: int, source: int, fork: int) -> int:
    """A task that is about to come to class k, on top of the stack of moves."""
    s, tasks = state.s, state.tasks
    task = s[FREE]
    s[FREE] = tasks[task, NEXT]
    s[FREE_COUNT] -= 1
    tasks[task, CLASS], tasks[task, SOURCE], tasks[task, BRANCH] = k, source, fork
    tasks[task, COMES] = 1
    tasks[task, NEXT] = s[MOVING]
    s[MOVING] = task
    return task


@inlined
def free_task(state: State, task: int) -> None:
    """Give back a task that is in no list."""
    state.tasks[task, NEXT] = state.s[FREE]
    state.s[FREE] = task
    state.s[FREE_COUNT] += 1


@inlined
def free_fork(state: State, fork: int) -> None:
    """Give back a fork."""
    state.forks[fork, OUTER] = state.s[FORK]
    state.s[FORK] = fork
    state.s[FORK_COUNT] += 1


@compiled
def dispatch(net: Net, streams: Streams, state: State, k: int) -> int:
    """The engine that a task of class k is sent to."""
    s = net.at[k]
    first, end = net.first_server[s], net.first_server[s + 1]
    chance = 0.0
    if net.tosses[s] != 0:
        chance = streams.engine[s, streams.used_engines[s]]
        streams.used_engines[s] += 1
    view = DispatchView(
        k,
        net.seconds[first:end],
        net.nothing[first:end],
        state.servers[first:end, THERE],
        state.servers[first:end, WORK],
        net.nothing[first:end],
        state.turn[k],
        net.shares[first:end],
        chance,
    )
    state.turn[k] += 1
    return first + choose(net.dispatch[s], view, net.usual)


@inlined
def enter(net: Net, streams: Streams, state: State, log: Ints) -> int:
    """The task on top of the stack comes to its class."""
    s, tasks = state.s, state.tasks
    task = s[MOVING]
    k = tasks[task, CLASS]
    used, station = streams.used_services[k], net.at[k]
    if used == streams.first.shape[1]:
        s[ASKED] = k
        return SERVICES
    first, second = streams.first[k, used], streams.second[k, used]
    classical, server = net.classical[station], net.first_server[station]
    passes = classical == 0 and first + second == 0
    many = net.first_server[station + 1] - server > 1 and not passes
    if many and net.tosses[station] != 0 and streams.used_engines[station] == streams.engine.shape[1]:
        s[ASKED] = station
        return ENGINES
    streams.used_services[k] = used + 1
    count(state, k, 1)
    state.arrived[k] += 1
    tasks[task, CAME] = s[NOW]
    tasks[task, COMES] = 0
    note(state, log, ENTERS, k, tasks[task, SOURCE])
    if passes:
        return GO_ON
    s[MOVING] = tasks[task, NEXT]
    tasks[task, LEFT], tasks[task, DECODE] = first, second
    tasks[task, PLACE] = s[ORDER]
    s[ORDER] += 1
    if many:
        server = dispatch(net, streams, state, k)
    which = 3 * (net.first_list[server] + net.group[k])
    if classical == 0:
        s[TOKENS] += first + second
        s[HIGHEST] = max(s[HIGHEST], s[TOKENS])
        if first == 0:
            which += 2
    append(state, which, task)
    state.servers[server, THERE] += 1
    state.servers[server, WORK] += first + second
    state.servers[server, BROUGHT] += first + second
    if classical != 0 or end_of(state.ends, server) == NEVER_DUE:
        decide_later(state, server)
    return GO_ON


@inlined
def leave(net: Net, load: Load, streams: Streams, state: State, log: Ints) -> int:
    """The task on top of the stack leaves its class."""
    s, tasks = state.s, state.tasks
    task = s[MOVING]
    k = tasks[task, CLASS]
    route, end = net.first_route[k], net.first_route[k + 1]
    if net.random[k] != 0:
        used = streams.used_routes[k]
        if used == streams.route.shape[1]:
            s[ASKED] = k
            return ROUTES
        chance = streams.route[k, used]
        while route < end and chance >= net.chance[route]:
            route += 1
    branches = 0
    if route < end:
        branches = net.first_branch[route + 1] - net.first_branch[route]
    if branches > 1 and (s[FREE_COUNT] < branches or s[FORK_COUNT] < 1):
        return POOL_FULL
    if net.random[k] != 0:
        streams.used_routes[k] += 1
    s[MOVING] = tasks[task, NEXT]
    count(state, k, -1)
    state.served[k] += 1
    stayed = s[NOW] - tasks[task, CAME]
    state.stay[k] += np.float64(stayed)
    state.bins[k, bin_of(stayed)] += 1
    note(state, log, LEAVES, k, tasks[task, SOURCE])
    if net.join_to[k] != NONE:
        return join(net, state, task)
    if branches == 1:
        tasks[task, CLASS] = net.branch[net.first_branch[route]]
        tasks[task, COMES] = 1
        tasks[task, NEXT] = s[MOVING]
        s[MOVING] = task
    elif branches == 0:
        out(load, state, task)
    else:
        split(net, state, task, route, branches)
    return GO_ON


@compiled
def split(net: Net, state: State, task: int, route: int, branches: int) -> None:
    """Branches of a fork in the place of the task, the first on top of the stack."""
    s, tasks = state.s, state.tasks
    fork = s[FORK]
    s[FORK] = state.forks[fork, OUTER]
    s[FORK_COUNT] -= 1
    state.forks[fork, BRANCHES] = state.forks[fork, SIZE] = branches
    state.forks[fork, OUTER] = tasks[task, BRANCH]
    source = tasks[task, SOURCE]
    free_task(state, task)
    for place in range(net.first_branch[route + 1] - 1, net.first_branch[route] - 1, -1):
        new_task(state, net.branch[place], source, fork)


@compiled
def join(net: Net, state: State, task: int) -> int:
    """The last of the siblings goes on as the task that forked."""
    s, tasks, forks = state.s, state.tasks, state.forks
    k, fork = tasks[task, CLASS], tasks[task, BRANCH]
    if fork == NONE or forks[fork, SIZE] != net.join_size[k]:
        s[ASKED] = k
        return NO_SIBLING
    forks[fork, BRANCHES] -= 1
    s[WAITING] += 1
    if forks[fork, BRANCHES] > 0:
        free_task(state, task)
        return GO_ON
    s[WAITING] -= forks[fork, SIZE]
    tasks[task, CLASS], tasks[task, BRANCH] = net.join_to[k], forks[fork, OUTER]
    free_fork(state, fork)
    tasks[task, COMES] = 1
    tasks[task, NEXT] = s[MOVING]
    s[MOVING] = task
    return GO_ON


@inlined
def out(load: Load, state: State, task: int) -> None:
    """A task from outside has ended when the last of its branches has."""
    fork, source = state.tasks[task, BRANCH], state.tasks[task, SOURCE]
    free_task(state, task)
    while fork != NONE:
        state.forks[fork, BRANCHES] -= 1
        if state.forks[fork, BRANCHES] > 0:
            return
        outer = state.forks[fork, OUTER]
        free_fork(state, fork)
        fork = outer
    load.ended[source] = state.s[NOW]


@inlined
def complete(net: Net, state: State, server: int) -> None:
    """Credit what was served; those who have all of it are the next to move."""
    servers, s = state.servers, state.s
    if net.classical[net.station[server]] != 0:
        which = 3 * (net.first_list[server] + servers[server, GROUP])
        task = state.lists[which, 0]
        take_out(state, which, NONE, task)
        state.tasks[task, NEXT] = NONE
        servers[server, THERE] -= 1
        servers[server, WORK] -= state.tasks[task, LEFT]
        servers[server, GROUP] = NONE
        s[MOVING] = task
    else:
        servers[server, WORK] -= servers[server, BATCH]
        s[TOKENS] -= servers[server, BATCH]
        task = s[MOVING] = servers[server, DONE]
        servers[server, DONE] = NONE
        while task != NONE:
            servers[server, THERE] -= 1
            task = state.tasks[task, NEXT]
    servers[server, BUSY] += s[NOW] - servers[server, SINCE]
    set_end(state.ends, server, NEVER_DUE)
    decide_later(state, server)


# --- decisions --------------------------------------------------------------------------------------------------------


@compiled
def weigh(net: Net, state: State, s: int) -> None:
    """The back-pressure of each class of a station, in ``state.weight``; see `BackPressure.weight`."""
    for place in range(net.first_order[s], net.first_order[s + 1]):
        k = net.order[place]
        pressure = np.float64(state.present[k])
        for f in range(net.first_flow[k], net.first_flow[k + 1]):
            pressure -= net.flow[f] * state.present[net.flow_to[f]]
        state.weight[k] = net.rate[k] * pressure


@compiled
def heaviest(net: Net, state: State, s: int) -> int:
    """The class of the largest positive weight at a station, the first of equal ones, or `NONE`; it loses it."""
    best = NONE
    for place in range(net.first_order[s], net.first_order[s + 1]):
        k = net.order[place]
        if state.weight[k] > 0 and (best == NONE or state.weight[k] > state.weight[best]):
            best = k
    if best != NONE:
        state.weight[best] = 0.0
    return best


@inlined
def group_to_serve(net: Net, state: State, server: int) -> int:
    """The group a classical server should serve, or `NONE`."""
    s, lists = net.station[server], net.first_list[server]
    if net.rule[s] == FIRST_COME:
        return 0 if state.lists[3 * lists, 0] != NONE else NONE
    if net.rule[s] == PRIORITY:
        for place in range(net.first_order[s], net.first_order[s + 1]):
            group = net.group[net.order[place]]
            if state.lists[3 * (lists + group), 0] != NONE:
                return group
        return NONE
    weigh(net, state, s)
    k = heaviest(net, state, s)
    return NONE if k == NONE else net.group[k]


@inlined
def turn_to(net: Net, state: State, server: int, log: Ints) -> int:
    """A classical server: the first task of the first class there is."""
    servers, now = state.servers, state.s[NOW]
    current = servers[server, GROUP]
    group = group_to_serve(net, state, server)
    if group == current:
        return GO_ON
    if current != NONE:
        elapsed = now - servers[server, SINCE]
        state.tasks[state.lists[3 * (net.first_list[server] + current), 0], LEFT] -= elapsed
        servers[server, WORK] -= elapsed
        servers[server, BUSY] += elapsed
    servers[server, GROUP] = group
    if group == NONE:
        set_end(state.ends, server, NEVER_DUE)
        return GO_ON
    task = state.lists[3 * (net.first_list[server] + group), 0]
    return start(state, server, state.tasks[task, LEFT], state.tasks[task, CLASS], log)


@inlined
def start(state: State, server: int, ticks: int, what: int, log: Ints) -> int:
    """A server works from now on for so many ticks."""
    servers, now = state.servers, state.s[NOW]
    servers[server, SINCE] = now
    servers[server, STARTED] += 1
    if now + ticks >= NEVER_DUE:
        return OVERFLOW
    set_end(state.ends, server, now + ticks)
    note(state, log, STARTS, server, what)
    return GO_ON


@compiled
def serve_decodes(state: State, server: int, which: int, most: int) -> int:
    """One token for each of up to ``most`` decodes of a group, in order of arrival; how many got one."""
    tasks = state.tasks
    here, none = state.lists[which + 1, 0], state.lists[which + 2, 0]
    before_here, before_none = NONE, NONE
    taken = 0
    while taken < most and (here != NONE or none != NONE):
        taken += 1
        if none == NONE or (here != NONE and tasks[here, PLACE] < tasks[none, PLACE]):
            after = tasks[here, NEXT]
            tasks[here, DECODE] -= 1
            if tasks[here, DECODE] == 0:
                take_out(state, which + 1, before_here, here)
                append_own(state, server, DONE, LAST_DONE, here)
            else:
                before_here = here
            here = after
        else:
            after = tasks[none, NEXT]
            tasks[none, DECODE] -= 1
            if tasks[none, DECODE] == 0:
                take_out(state, which + 2, before_none, none)
                append_own(state, server, DONE, LAST_DONE, none)
            else:
                before_none = none
            none = after
    return taken


@compiled
def serve_prompts(state: State, server: int, which: int, room: int, seats: int) -> tuple[int, int]:
    """Prompts of a group in order of arrival, the last one split; what is left of the room and the seats."""
    tasks = state.tasks
    while room > 0 and seats > 0:
        task = state.lists[which, 0]
        if task == NONE:
            break
        piece = min(room, tasks[task, LEFT])
        tasks[task, LEFT] -= piece
        room -= piece
        seats -= 1
        if tasks[task, LEFT] > 0:
            break
        take_out(state, which, NONE, task)
        if tasks[task, DECODE] == 0:
            append_own(state, server, DONE, LAST_DONE, task)
        else:
            append_own(state, server, READY, LAST_READY, task)
    return room, seats


@compiled
def serve(net: Net, state: State, server: int, group: int, room: int, seats: int) -> tuple[int, int]:
    """What a batch takes of one group; what is left of the room and the seats."""
    which = 3 * (net.first_list[server] + group)
    if net.decode_first[net.station[server]] == 0:
        room, seats = serve_prompts(state, server, which, room, seats)
    taken = serve_decodes(state, server, which, min(room, seats))
    room, seats = room - taken, seats - taken
    if net.decode_first[net.station[server]] != 0:
        room, seats = serve_prompts(state, server, which, room, seats)
    ready = state.servers[server, READY]
    if ready != NONE:  # they decode from the next batch on
        if state.lists[which + 1, 0] == NONE:
            state.lists[which + 1, 0] = ready
        else:
            state.tasks[state.lists[which + 1, 1], NEXT] = ready
        state.lists[which + 1, 1] = state.servers[server, LAST_READY]
        state.servers[server, READY] = NONE
    return room, seats


@compiled
def start_batch(net: Net, state: State, server: int, log: Ints) -> int:
    """A batch of what is there, group by group."""
    s = net.station[server]
    room, seats = net.budget[server], net.seats[server]
    if net.rule[s] == FIRST_COME:
        room, seats = serve(net, state, server, 0, room, seats)
    elif net.rule[s] == PRIORITY:
        for place in range(net.first_order[s], net.first_order[s + 1]):
            room, seats = serve(net, state, server, net.group[net.order[place]], room, seats)
            if room == 0 or seats == 0:
                break
    else:
        weigh(net, state, s)
        k = heaviest(net, state, s)
        while k != NONE and room > 0 and seats > 0:
            room, seats = serve(net, state, server, net.group[k], room, seats)
            k = heaviest(net, state, s)
    tokens = net.budget[server] - room
    state.servers[server, BATCH] = tokens
    if tokens == 0:
        return GO_ON
    return start(state, server, net.batch_ticks[net.first_ticks[server] + tokens], tokens, log)


@compiled
def decide(net: Net, state: State, server: int, log: Ints) -> int:
    """A free engine forms a batch, a classical server turns to the class it should serve."""
    if net.classical[net.station[server]] != 0:
        return turn_to(net, state, server, log)
    if end_of(state.ends, server) != NEVER_DUE:
        return GO_ON
    return start_batch(net, state, server, log)


@inlined
def decide_all(net: Net, state: State, everywhere: bool, log: Ints) -> int:
    """The decisions of an instant; those of back-pressure depend on queues elsewhere and are all taken anew."""
    s, status = state.s, GO_ON
    if everywhere:
        for server in range(state.servers.shape[0]):
            if state.servers[server, MUST_DECIDE] != 0 or net.rule[net.station[server]] == BACK_PRESSURE:
                status = max(status, decide(net, state, server, log))
            state.servers[server, MUST_DECIDE] = 0
    else:
        for place in range(s[CHANGED]):
            state.servers[state.changed[place], MUST_DECIDE] = 0
            status = max(status, decide(net, state, state.changed[place], log))
    s[CHANGED] = 0
    return status


# --- the clock --------------------------------------------------------------------------------------------------------


@compiled
def see(net: Net, state: State, watch: Watch) -> None:
    """Note the state at the next watched tick."""
    s, at = state.s, state.s[SEEN]
    tick = watch.ticks[at]
    for k in range(state.present.size):
        watch.present[k, at] = state.present[k]
        watch.arrived[k, at] = state.arrived[k]
        watch.served[k, at] = state.served[k]
        watch.stay[k, at] = state.stay[k]
        watch.area[k, at] = state.area[k] + np.float64(state.present[k]) * np.float64(tick - state.since[k])
    for server in range(state.servers.shape[0]):
        station = net.station[server]
        watch.work[station, at] += state.servers[server, WORK]
        if net.classical[station] != 0 and end_of(state.ends, server) != NEVER_DUE:
            watch.work[station, at] -= tick - state.servers[server, SINCE]
    watch.tokens[at] = s[TOKENS]
    watch.highest[at] = s[HIGHEST]
    s[HIGHEST] = s[TOKENS]
    s[SEEN] = at + 1


@inlined
def next_tick(net: Net, load: Load, state: State, watch: Watch, until: int) -> int:
    """Go on to the next event before ``until``, with what is watched on the way; `FINISHED` if there is none."""
    s = state.s
    tick = min(until, state.ends[1])
    if s[COME] < load.ticks.size:
        tick = min(tick, load.ticks[s[COME]])
    while s[SEEN] < watch.ticks.size and watch.ticks[s[SEEN]] < tick:
        see(net, state, watch)
    if tick >= until:
        while s[SEEN] < watch.ticks.size:
            see(net, state, watch)
        return FINISHED
    s[NOW] = tick
    return GO_ON


@partial(entry, of=(*CODE, set_end, earliest, end_of))
def advance(
    net: Net, load: Load, streams: Streams, state: State, watch: Watch, log: Ints, everywhere: bool, until: int
) -> int:
    """Run up to ``until``, or until Python has to mend something; the status says what."""
    s, servers = state.s, state.servers.shape[0]
    while True:
        if log.shape[0] > 0 and s[LOGGED] + servers + 1 > log.shape[0]:
            return LOG_FULL
        if s[MOVING] != NONE:
            if state.tasks[s[MOVING], COMES] != 0:
                status = enter(net, streams, state, log)
            else:
                status = leave(net, load, streams, state, log)
        elif state.ends[1] == s[NOW]:
            complete(net, state, earliest(state.ends))
            status = GO_ON
        elif s[COME] < load.ticks.size and load.ticks[s[COME]] == s[NOW]:
            if s[FREE_COUNT] < 1:
                return POOL_FULL
            new_task(state, load.classes[s[COME]], s[COME], NONE)
            s[COME] += 1
            status = GO_ON
        else:
            status = decide_all(net, state, everywhere, log)
            if status == GO_ON and state.ends[1] != s[NOW]:
                status = next_tick(net, load, state, watch, until)
        if status != GO_ON:
            return status
