"""The kernels of the event engine: lanes post, flows share what they use, results let others go on.

A *lane* is a stream or, behind all streams, the in-order host of a list. A *flow* is what runs: a row alone or all ends of
an exchange, named by its *leader*, the first of them in the program; it has the *slot* of its leader's place in a batch of
its stream, which nothing else can have meanwhile. A *node* is one demand of a flow: it hangs in the list of its resource.
(iteration, row) is the number ``iteration * num_rows + row``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from meshwright.ir.kernel.kernel import part
from meshwright.simulator.event.reference import UNITS

QUEUED, TOUCHED, RUNNING, LATE, REMAINING = range(5)  # places of EventState.counts
ALL_OF, ORDERS_OF, READERS_OF = range(3)  # which successors are told
ISSUED = -1  # instead of the dependencies that a row waits for: its in-order host has reached it


class EventTables(NamedTuple):
    """What stays while a program runs: by stream and place in it, by row, by class of cost, by slot."""

    num_rows: int
    iterations: int
    in_order: int
    stream_ptr: Any
    stream_rows: Any
    batch_size: Any  # by place: of the batch that begins there
    list_ptr: Any
    stream_of_row: Any
    list_of_row: Any
    is_compute: Any
    leader: Any
    num_ends: Any
    next_end: Any
    occupies: Any
    cost_of_row: Any
    slot_of_row: Any
    successor_ptr: Any
    successor: Any
    successor_lag: Any
    is_order: Any  # by successor: it waits until the row has ended, and not until its result is complete
    seconds: Any
    latency_s: Any
    compute_share: Any
    memory_share: Any
    link_ptr: Any
    link: Any
    link_share: Any
    curve: Any  # by class: number of its speed curve; -1: in proportion
    curve_ptr: Any
    granted: Any  # by point of a curve
    speed: Any
    node_ptr: Any


class EventState(NamedTuple):
    """What changes: times and open dependencies by (iteration, row), lanes, flows by slot, nodes, resources, two heaps."""

    posted: Any
    start: Any
    end: Any
    waits: Any
    arrived: Any  # by leader: ends that are posted
    turn: Any  # by lane: iteration
    place: Any  # by lane: place in its stream, row of its list
    is_busy: Any  # by list: its host runs a COMPUTE
    queue: Any
    is_queued: Any
    flow: Any  # by slot: (iteration, leader) that runs; -1: nothing
    left_s: Any  # at full speed, from `since_s` on
    since_s: Any
    rate: Any
    end_s: Any
    heap: Any
    where: Any
    node_end: Any  # by slot
    touched: Any
    is_touched: Any
    resource: Any  # by node
    share: Any
    node_curve: Any
    owner: Any
    following: Any
    before: Any
    total: Any  # by resource: sum of the shares
    first: Any
    late: Any  # heap of (iteration, leader) whose results arrive later
    late_where: Any
    counts: Any
    clock: Any


def run_flows(p: Any, s: Any) -> int:
    """Kernel: from event to event until nothing runs. Returns how many (iteration, row) never ran."""
    for lane in range(len(s.is_queued)):
        _queue(s, lane)
    while True:
        _advance(p, s)
        _set_rates(p, s)
        if s.counts[RUNNING] == 0 and s.counts[LATE] == 0:
            return int(s.counts[REMAINING])
        _pass_time(p, s)


@part
def _queue(s: Any, lane: int) -> None:
    """Let a lane go on before time does."""
    if s.is_queued[lane] == 0:
        s.is_queued[lane] = 1
        s.queue[s.counts[QUEUED]] = lane
        s.counts[QUEUED] += 1


@part
def _advance(p: Any, s: Any) -> None:
    """Let the lanes that may go on go as far as they can now."""
    num_streams = len(p.stream_ptr) - 1
    while s.counts[QUEUED] > 0:
        s.counts[QUEUED] -= 1
        lane = s.queue[s.counts[QUEUED]]
        s.is_queued[lane] = 0
        if lane < num_streams:
            _step_stream(p, s, lane)
        else:
            _step_host(p, s, lane, lane - num_streams)


@part
def _step_stream(p: Any, s: Any, lane: int) -> None:
    """Post the batch at the head of a stream; leave it when all of it has ended."""
    ready = (
        ISSUED if p.in_order else 0
    )  # in order, the host itself runs what is no exchange and never "issued"
    while s.turn[lane] < p.iterations:
        begin = s.turn[lane] * p.num_rows
        first = s.place[lane]
        stop = first + p.batch_size[first]
        if s.posted[begin + p.stream_rows[first]] < 0:
            for k in range(first, stop):
                if s.waits[begin + p.stream_rows[k]] != ready:
                    return
            for k in range(first, stop):
                s.posted[begin + p.stream_rows[k]] = s.clock[0]
            for k in range(first, stop):
                _arrive(p, s, begin, p.stream_rows[k])
        for k in range(first, stop):
            if s.end[begin + p.stream_rows[k]] < 0:
                return
        s.place[lane] = stop
        if stop == p.stream_ptr[lane + 1]:
            s.place[lane] = p.stream_ptr[lane]
            s.turn[lane] += 1
        if p.in_order:
            _queue(s, len(p.stream_ptr) - 1 + p.list_of_row[p.stream_rows[first]])


@part
def _step_host(p: Any, s: Any, lane: int, device: int) -> None:
    """The in-order host of a list: wait until a row is ready, issue it, run COMPUTE itself."""
    while s.is_busy[device] == 0 and s.turn[lane] < p.iterations:
        row = s.place[lane]
        begin = s.turn[lane] * p.num_rows
        if s.waits[begin + row] != 0:
            return
        stream = p.stream_of_row[row]
        if p.is_compute[row] == 0:
            s.waits[begin + row] = ISSUED
            _queue(s, stream)
        elif s.turn[stream] != s.turn[lane] or p.stream_rows[s.place[stream]] != row:
            return
        else:
            s.is_busy[device] = 1
            s.posted[begin + row] = s.clock[0]
            _arrive(p, s, begin, row)
        s.place[lane] = row + 1
        if row + 1 == p.list_ptr[device + 1]:
            s.place[lane] = p.list_ptr[device]
            s.turn[lane] += 1


@part
def _arrive(p: Any, s: Any, begin: int, row: int) -> None:
    """An end is posted; the last one starts the flow."""
    leader = p.leader[row]
    s.arrived[leader] += 1
    if s.arrived[leader] == p.num_ends[leader]:
        s.arrived[leader] = 0
        _start(p, s, begin, leader)


@part
def _start(p: Any, s: Any, begin: int, leader: int) -> None:
    """A flow begins: it takes as long as its slowest end, and what each end demands hangs on its resource."""
    slot = p.slot_of_row[leader]
    node = p.node_ptr[slot]
    seconds = 0.0
    e = leader
    while True:
        s.start[begin + e] = s.clock[0]
        c = p.cost_of_row[e]
        seconds = max(seconds, p.seconds[c])
        device = 2 * p.list_of_row[e]
        if p.compute_share[c] > 0:
            _demand(s, slot, node, device, p.compute_share[c], p.curve[c])
            node += 1
        if p.memory_share[c] > 0:
            _demand(s, slot, node, device + 1, p.memory_share[c], p.curve[c])
            node += 1
        if p.occupies[e]:
            for k in range(p.link_ptr[c], p.link_ptr[c + 1]):
                _demand(s, slot, node, p.link[k], p.link_share[k], p.curve[c])
                node += 1
        e = p.next_end[e]
        if e == leader:
            break
    s.node_end[slot] = node
    s.flow[slot], s.left_s[slot], s.since_s[slot], s.rate[slot] = begin + leader, seconds, s.clock[0], 0.0
    _touch(s, slot)


@part
def _touch(s: Any, slot: int) -> None:
    """Note that the rate of a flow may change."""
    if s.is_touched[slot] == 0:
        s.is_touched[slot] = 1
        s.touched[s.counts[TOUCHED]] = slot
        s.counts[TOUCHED] += 1


@part
def _demand(s: Any, slot: int, node: int, resource: int, share: int, curve: int) -> None:
    """Hang a demand on its resource."""
    first = s.first[resource]
    s.owner[node], s.resource[node], s.share[node], s.node_curve[node] = slot, resource, share, curve
    s.following[node], s.before[node] = first, -1
    if first >= 0:
        s.before[first] = node
    s.first[resource] = node
    _change(s, resource, share)


@part
def _free(s: Any, node: int) -> None:
    """Take a demand off its resource."""
    before, following, resource = s.before[node], s.following[node], s.resource[node]
    if before >= 0:
        s.following[before] = following
    else:
        s.first[resource] = following
    if following >= 0:
        s.before[following] = before
    _change(s, resource, -s.share[node])


@part
def _change(s: Any, resource: int, share: int) -> None:
    """The sum of a resource's demands changes. Rates do only where it is, or was, above the capacity."""
    if max(s.total[resource], s.total[resource] + share) > UNITS:
        node = s.first[resource]
        while node >= 0:
            _touch(s, s.owner[node])
            node = s.following[node]
    s.total[resource] += share


@part
def _set_rates(p: Any, s: Any) -> None:
    """New rates, and new times of ending, of flows that share a resource with a change."""
    for k in range(s.counts[TOUCHED]):
        slot = s.touched[k]
        s.is_touched[slot] = 0
        if s.flow[slot] >= 0:
            _set_rate(p, s, slot)
    s.counts[TOUCHED] = 0


@part
def _set_rate(p: Any, s: Any, slot: int) -> None:
    """A flow runs at the speed of the resource that slows it most."""
    rate = 1.0
    for node in range(p.node_ptr[slot], s.node_end[slot]):
        total = s.total[s.resource[node]]
        if total > UNITS:
            rate = min(rate, _speed(p, s.node_curve[node], 1.0 / (total / UNITS)))
    if rate == s.rate[slot]:
        return
    now = s.clock[0]
    s.left_s[slot] = max(0.0, s.left_s[slot] - (now - s.since_s[slot]) * s.rate[slot])
    s.end_s[slot] = now + s.left_s[slot] / rate
    is_new = s.rate[slot] == 0
    s.since_s[slot], s.rate[slot] = now, rate
    if is_new:
        _push(s.heap, s.end_s, s.where, s.counts, RUNNING, slot)
    else:
        _rise(s.heap, s.end_s, s.where, s.where[slot])
        _sink(s.heap, s.end_s, s.where, s.counts[RUNNING], s.where[slot])


@part
def _speed(p: Any, curve: int, granted: float) -> float:
    """Speed with a part of what is demanded: in proportion, or by lines between the points of a curve."""
    if curve >= 0:
        for k in range(p.curve_ptr[curve] + 1, p.curve_ptr[curve + 1]):
            if granted < p.granted[k]:
                part_of_line = (granted - p.granted[k - 1]) / (p.granted[k] - p.granted[k - 1])
                return p.speed[k - 1] + (p.speed[k] - p.speed[k - 1]) * part_of_line  # type: ignore[no-any-return]
    return granted


@part
def _pass_time(p: Any, s: Any) -> None:
    """Go to the next time at which a flow ends or a result arrives, and take all that do then."""
    is_flow = s.counts[RUNNING] > 0 and (s.counts[LATE] == 0 or s.end_s[s.heap[0]] <= s.end[s.late[0]])
    now = s.end_s[s.heap[0]] if is_flow else s.end[s.late[0]]
    s.clock[0] = now
    while s.counts[RUNNING] > 0 and s.end_s[s.heap[0]] <= now:
        _finish(p, s, _pop(s.heap, s.end_s, s.where, s.counts, RUNNING))
    while s.counts[LATE] > 0 and s.end[s.late[0]] <= now:
        g = _pop(s.late, s.end, s.late_where, s.counts, LATE)
        _tell_all(p, s, g // p.num_rows, g % p.num_rows, READERS_OF)


@part
def _finish(p: Any, s: Any, slot: int) -> None:
    """A flow ends: it frees what it used and its streams; its results are complete now, or its latency later."""
    for node in range(p.node_ptr[slot], s.node_end[slot]):
        _free(s, node)
    turn, leader = s.flow[slot] // p.num_rows, s.flow[slot] % p.num_rows
    s.flow[slot] = -1
    complete = s.clock[0] + _latency(p, leader)
    e = leader
    while True:
        s.end[turn * p.num_rows + e] = complete
        s.counts[REMAINING] -= 1
        _queue(s, p.stream_of_row[e])
        if p.in_order and p.is_compute[e]:
            s.is_busy[p.list_of_row[e]] = 0
            _queue(s, len(p.stream_ptr) - 1 + p.list_of_row[e])
        e = p.next_end[e]
        if e == leader:
            break
    if complete > s.clock[0]:
        _tell_all(p, s, turn, leader, ORDERS_OF)
        _push(s.late, s.end, s.late_where, s.counts, LATE, turn * p.num_rows + leader)
    else:
        _tell_all(p, s, turn, leader, ALL_OF)


@part
def _latency(p: Any, leader: int) -> float:
    """The largest latency of any end."""
    latency = p.latency_s[p.cost_of_row[leader]]
    e = p.next_end[leader]
    while e != leader:
        latency = max(latency, p.latency_s[p.cost_of_row[e]])
        e = p.next_end[e]
    return latency  # type: ignore[no-any-return]


@part
def _tell_all(p: Any, s: Any, turn: int, leader: int, which: int) -> None:
    """Tell those who wait for any end; who waits for nothing more may go on."""
    e = leader
    while True:
        for k in range(p.successor_ptr[e], p.successor_ptr[e + 1]):
            later = turn + p.successor_lag[k]
            if later < p.iterations and (which == ALL_OF or (which == ORDERS_OF) == (p.is_order[k] != 0)):
                row = p.successor[k]
                s.waits[later * p.num_rows + row] -= 1
                if s.waits[later * p.num_rows + row] == 0:
                    host = len(p.stream_ptr) - 1 + p.list_of_row[row]
                    _queue(s, host if p.in_order else p.stream_of_row[row])
        e = p.next_end[e]
        if e == leader:
            break


@part
def _push(heap: Any, key: Any, where: Any, counts: Any, size: int, item: int) -> None:
    """Put an item into a heap of items by their keys; `counts[size]` is its size, `where` each item's place."""
    place = counts[size]
    heap[place] = item
    where[item] = place
    counts[size] += 1
    _rise(heap, key, where, place)


@part
def _pop(heap: Any, key: Any, where: Any, counts: Any, size: int) -> int:
    """Take the item of the least key."""
    item = heap[0]
    counts[size] -= 1
    last = heap[counts[size]]
    heap[0] = last
    where[last] = 0
    _sink(heap, key, where, counts[size], 0)
    return item  # type: ignore[no-any-return]


@part
def _rise(heap: Any, key: Any, where: Any, place: int) -> None:
    """Move an item up to where its key belongs."""
    item = heap[place]
    while place > 0 and key[heap[(place - 1) // 2]] > key[item]:
        above = heap[(place - 1) // 2]
        heap[place] = above
        where[above] = place
        place = (place - 1) // 2
    heap[place] = item
    where[item] = place


@part
def _sink(heap: Any, key: Any, where: Any, size: int, place: int) -> None:
    """Move an item down to where its key belongs."""
    item = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[heap[child]] >= key[item]:
            break
        heap[place] = heap[child]
        where[heap[place]] = place
        place = child
    heap[place] = item
    where[item] = place
