"""Arrival-driven dispatch: what nodes do when nobody told them an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.kernel.kernel import call
from meshwright.specs.error import ProgramError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# com_sym.py and create_schedule.py
GAP_S, INJECTED_GAP_S = 0.13, 0.09
RETRY_S = 0.1
LOSS_SHARE, BACKWARD_SHARE = 0.25, 1.5  # of a forward
NUM_PASSES = 15
NUM_SECONDS = 10_000
LOST = 1  # status of the kernel
KERNEL_STEPS = 1_000  # of plain Python for a microbatch, about: decides when it pays to compile


@dataclass(frozen=True)
class Injection:
    """A microbatch as it enters.

    Attributes:
        nodes: that it goes through, forward; the first one also has the loss.
        start_s: when it is there.
        opener: number of the microbatch that must not be under way when this one begins; -1: none.
    """

    nodes: tuple[int, ...]
    start_s: float
    opener: int = -1


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes and the messages between them.

    Attributes:
        message_s: ``[source, target]`` seconds of an activation, or of its gradient.
        forward_s: of one microbatch, by node.
        memory: microbatches that a node holds, at most.
    """

    message_s: Floats
    forward_s: Floats
    memory: int

    @property
    def num_nodes(self) -> int:
        """Nodes."""
        return len(self.forward_s)


@dataclass(frozen=True, eq=False)
class Dispatch:
    """What came about. Leg k of a microbatch of L hops: forwards 0 to L-1, the loss L, backwards L+1 to 2L.

    Attributes:
        node, seconds, ready_s, start_s: ``[microbatch, leg]``: where, how long, when it arrived, when it began.
        gap_s: behind it.
    """

    injections: tuple[Injection, ...]
    node: Ints
    seconds: Floats
    ready_s: Floats
    start_s: Floats
    gap_s: Floats

    @property
    def num_hops(self) -> int:
        """Forwards of a microbatch."""
        return (int(self.node.shape[1]) - 1) // 2

    @cached_property
    def span_s(self) -> float:
        """When the last backward ends; the first microbatch is injected at 0."""
        return float((self.start_s + self.seconds)[:, -1].max())


@dataclass(frozen=True, eq=False)
class Legs:
    """Injected microbatches as flat arrays, all legs of one behind those of the other."""

    node: Ints
    seconds: Floats
    message_s: Floats
    opener: Ints
    start_s: Floats
    num_hops: int

    @staticmethod
    def of(network: Network, injections: Sequence[Injection], returns: bool = True) -> Legs:
        """`returns`: the first node has the loss, and else the last one.

        Raises ProgramError where paths differ in length or a node is visited twice.
        """
        lengths = {len(each.nodes) for each in injections}
        if len(lengths) != 1 or any(len(set(each.nodes)) < len(each.nodes) for each in injections):
            raise ProgramError(
                f"paths of {sorted(lengths)} hops; dispatch wants all of one length, each through different nodes"
            )
        paths = np.array([each.nodes for each in injections], dtype=np.int64)
        node = np.concatenate([paths, paths[:, :1] if returns else paths[:, -1:], paths[:, ::-1]], axis=1)
        hops = paths.shape[1]
        share = np.array([1.0] * hops + [LOSS_SHARE] + [BACKWARD_SHARE] * hops)
        message_s = np.zeros(node.shape)
        message_s[:, :-1] = network.message_s[node[:, :-1], node[:, 1:]]
        opener = np.array([each.opener for each in injections], dtype=np.int64)
        start_s = np.array([each.start_s for each in injections])
        return Legs(node, network.forward_s[node] * share, message_s, opener, start_s, hops)


def dispatch(network: Network, injections: Sequence[Injection], returns: bool = True) -> Dispatch:
    """Let the nodes run what is injected; `returns`: to the first node for the loss, which else the last one has.

    Raises:
        ProgramError: a microbatch is never finished, because a node does not get to it in time.
    """
    legs = Legs.of(network, injections, returns)
    status, ready_s, start_s, gap_s = run(network, legs)
    if status == LOST:
        undone = sorted(set(np.argwhere(start_s < 0)[:, 0].tolist()))
        raise ProgramError(
            f"microbatches {undone} are never finished: refused until their second is over",
            next="inject them later, or give nodes more memory",
        )
    return Dispatch(tuple(injections), legs.node, legs.seconds, ready_s, start_s, gap_s)


def run(network: Network, legs: Legs) -> tuple[int, Floats, Floats, Floats]:
    """(status, ready, start (-1: never), gap), each ``[microbatch, leg]``: `dispatch` for who tries many."""
    num_microbatches, num_legs = legs.node.shape
    num_tickets, n = num_microbatches * num_legs, network.num_nodes
    due = np.zeros(num_tickets)
    due[::num_legs] = legs.start_s
    ready, start, gap = np.zeros(num_tickets), np.full(num_tickets, -1.0), np.zeros(num_tickets)
    queue, length = np.full(n * num_tickets, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    free, memory = np.zeros(n), np.full(n, network.memory, dtype=np.int64)
    inputs = (
        legs.node.reshape(-1), legs.seconds.reshape(-1), legs.message_s.reshape(-1), legs.opener, num_legs,
        GAP_S, INJECTED_GAP_S, RETRY_S, NUM_PASSES, NUM_SECONDS,
    )  # fmt: skip
    outputs = [due, ready, start, gap, queue, length, free, memory]
    status = call(_run, KERNEL_STEPS * num_microbatches, inputs, outputs)
    shape = legs.node.shape
    return status, ready.reshape(shape), start.reshape(shape), gap.reshape(shape)


def _run(
    node: Any, seconds: Any, message_s: Any, opener: Any, num_legs: int, gap_s: float, injected_gap_s: float,
    retry_s: float, num_passes: int, num_seconds: int, due: Any, ready: Any, start: Any, gap: Any, queue: Any,
    length: Any, free: Any, memory: Any,
) -> int:  # fmt: skip
    """Kernel: fills ready, start and gap of every ticket (a leg of a microbatch); 1 where some are never reached.

    ``queue[n * tickets ...]`` are the ``length[n]`` tickets that wait at node n, ``due`` when each is to be looked at.
    """
    tickets, hops = len(node), (num_legs - 1) // 2
    for t in range(0, tickets, num_legs):
        queue[node[t] * tickets + length[node[t]]] = t
        length[node[t]] += 1
        ready[t] = due[t]
    left = tickets
    for second in range(num_seconds):
        for _ in range(num_passes):
            moved = 0
            for n in range(len(length)):
                base = n * tickets
                for i in range(1, length[n]):  # stable, and nearly sorted already
                    t, k = queue[base + i], i - 1
                    # what is injected here counts as received last
                    while k >= 0:
                        u = queue[base + k]
                        if due[u] < due[t]:
                            break
                        if due[u] == due[t]:
                            if t % num_legs == 0 or (u % num_legs != 0 and ready[u] <= ready[t]):
                                break
                        queue[base + k + 1] = u
                        k -= 1
                    queue[base + k + 1] = t
                for i in range(length[n]):
                    t = queue[base + i]
                    if due[t] < second or due[t] >= second + 1:
                        continue
                    if due[t] < free[n]:
                        due[t] = free[n]
                        moved = 1
                        continue
                    m, leg = t // num_legs, t % num_legs
                    if leg < hops and memory[n] <= 0:
                        due[t] += retry_s
                        moved = 1
                        continue
                    if leg == 0 and opener[m] >= 0:
                        first = opener[m] * num_legs
                        if start[first] >= 0.0 and start[first + num_legs - 1] < 0.0:
                            continue
                    start[t] = due[t]
                    end = due[t] + seconds[t]
                    gap[t] = injected_gap_s if leg == 0 else gap_s
                    free[n] = end + gap[t]
                    if leg < hops:
                        memory[n] -= 1
                    elif leg > hops:
                        memory[n] += 1
                    left -= 1
                    moved = 1
                    if leg + 1 < num_legs:
                        other = node[t + 1]
                        due[t + 1] = end + message_s[t]
                        ready[t + 1] = due[t + 1]
                        queue[other * tickets + length[other]] = t + 1
                        length[other] += 1
                    for k in range(length[n]):
                        u = queue[base + k]
                        if u != t and start[u] < 0.0 and start[t] <= due[u] and due[u] < free[n]:
                            due[u] = free[n]
                kept = 0
                for i in range(length[n]):
                    t = queue[base + i]
                    if start[t] < 0.0:
                        queue[base + kept] = t
                        kept += 1
                length[n] = kept
            if left == 0:
                return 0
            if moved == 0:
                break
        is_lost = 1
        for n in range(len(length)):
            for i in range(length[n]):
                if due[queue[n * tickets + i]] >= second + 1:
                    is_lost = 0
        if is_lost:
            return 1
    return 1


@dataclass(frozen=True)
class PathPlan:
    """Paths of one round, and when microbatches take them.

    Attributes:
        paths: nodes of each path, the first one of stage 0; several of one node are its places, in order.
        spacing_s: between the places of a node.
        num_rounds, round_s: how often all paths are taken, and how long after the round before.
    """

    paths: tuple[tuple[int, ...], ...]
    spacing_s: float
    num_rounds: int = 2
    round_s: float = 2.5

    def injections(self) -> tuple[Injection, ...]:
        """Every path once a round; later rounds wait while the first one's microbatch in their place is under way."""
        places = self.places()
        return tuple(
            Injection(
                path,
                number * self.round_s + places[p] * self.spacing_s,
                p * self.num_rounds if number else -1,
            )
            for p, path in enumerate(self.paths)
            for number in range(self.num_rounds)
        )

    def places(self) -> tuple[int, ...]:
        """Of every path, how many of its node stand before it."""
        homes = [path[0] for path in self.paths]
        return tuple(homes[:p].count(home) for p, home in enumerate(homes))


def repeated(paths: Sequence[tuple[int, ...]], copies: int) -> tuple[tuple[int, ...], ...]:
    """Each path in so many places of its node."""
    return tuple(path for path in paths for _ in range(copies))
