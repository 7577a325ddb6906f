"""The order that a dispatch brought about, as a program: paths are data, and what its rules made nodes wait are rows.

A node that waits for a message waits by the program's own dependencies. All else that kept it from a work (the gap behind
the one before, refusals, an injection still to come) is a WAIT in front of the work, with its seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from meshwright.costs.cost import Cost, Flow
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.axis import FIRST_AXIS
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Hop, Kind, Microbatch, ValueBytes, Work
from meshwright.ir.vocabulary import NAMES, VALUE_KINDS, register_name
from meshwright.lowering.order import STANDARD_KINDS
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.systems.pipeline.skip_pipe.arrival_dispatch import Dispatch, Floats, Injection

WAIT = register_name(Effect(Kind.COMPUTE, "WAIT"), per="some").effect
NUM_WAITS = 2  # of a hop: one before its forward, one before its backward, by part
TIE_S = 1e-9  # times that differ by less are sums of the same numbers in another order


class _Begun(NamedTuple):
    """A leg of a microbatch, as its node began it."""

    start_s: float
    microbatch: int
    leg: int


@dataclass(frozen=True, eq=False)
class DispatchCosts:
    """Works take the seconds that they carry as their share; messages are latency by pair of nodes, and share no link."""

    message_s: Floats

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Seconds of a work or wait."""
        return FixedCosts({"F": 1.0, "B": 1.0, WAIT.name: 1.0}).cost(work)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """Latency between the two nodes that the exchange names."""
        assert exchange.ends is not None, "messages of a path name their nodes"
        return Cost(0.0, float(self.message_s[exchange.ends]), compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """Nothing: the published simulator shares no link."""
        return ()


def realised_program(
    found: Dispatch, stage_of_node: Mapping[int, int], *, tokens: int = 1, has_waits: bool = True
) -> Program:
    """Every node's works in the order in which it began them, with transfers.

    The first stage's node has the loss as a stage of its own, behind all others: it is the last hop of every path. What a
    forward keeps counts as 1 byte, so memory is in microbatches.

    Args:
        stage_of_node: of every node, numbered from 0.
        tokens: of a microbatch; all weigh the same.
        has_waits: False for who wants the order and not the times: it runs on real nodes.
    """
    num_nodes = len(stage_of_node)
    head = max(stage_of_node.values()) + 1
    paths = [_path(injection, stage_of_node, head) for injection in found.injections]
    distinct = tuple(dict.fromkeys(paths))
    weight = 1.0 / len(paths)
    builder = ProgramBuilder(
        (Axis(FIRST_AXIS, num_nodes),),
        value_kinds=tuple(VALUE_KINDS[name] for name in STANDARD_KINDS),
        microbatches=tuple(Microbatch(tokens, weight, distinct.index(path)) for path in paths),
        paths=distinct,
        duties=(Duty("F"), Duty("B"), *((Duty(WAIT.name, "some", NUM_WAITS),) if has_waits else ())),
        value_bytes=(ValueBytes("saved", tuple([1.0] * found.num_hops + [0.0])),),
    )
    for node in range(num_nodes):
        free_s, gap_s = 0.0, 0.0
        for begun in _begun_by(found, node):
            at = (begun.microbatch, begun.leg)
            wait_s = _wait_s(float(found.start_s[at]), float(found.ready_s[at]), free_s, gap_s, begun.leg)
            _add(builder, node, paths[begun.microbatch], begun, wait_s * has_waits, float(found.seconds[at]))
            free_s, gap_s = float(found.start_s[at] + found.seconds[at]), float(found.gap_s[at])
    return Transfers()(builder.build())


def _path(injection: Injection, stage_of_node: Mapping[int, int], head: int) -> tuple[Hop, ...]:
    hops = tuple(Hop(stage_of_node[node], node) for node in injection.nodes)
    return (*hops, Hop(head, injection.nodes[0]))


def _begun_by(found: Dispatch, node: int) -> Iterator[_Begun]:
    """The legs of a node, as it began them."""
    rows = np.argwhere(found.node == node)
    legs = [_Begun(float(found.start_s[m, leg]), int(m), int(leg)) for m, leg in rows]
    yield from sorted(legs)


def _wait_s(start_s: float, ready_s: float, free_s: float, gap_s: float, leg: int) -> float:
    """Seconds between the end of the work before and this one that no message explains; at least the gap."""
    is_late = start_s > max(free_s + gap_s, ready_s) + TIE_S
    is_injected = leg == 0
    return start_s - free_s if is_late or is_injected else gap_s


def _add(
    builder: ProgramBuilder, node: int, path: tuple[Hop, ...], begun: _Begun, wait_s: float, seconds: float
) -> None:
    """The rows of a leg: a wait where there is one, and the work; the loss is forward and backward of the last hop."""
    last = len(path) - 1
    hop = begun.leg if begun.leg <= last else 2 * last - begun.leg
    names = ("F", "B") if hop == last else ("F",) if begun.leg < last else ("B",)
    add = partial(builder.add, node, stage=path[hop].stage, hop=hop, microbatch=begun.microbatch)
    if wait_s > 0:
        add(WAIT, part=int(begun.leg > last), work=Work(WAIT.name, share=wait_s))
    for place, name in enumerate(names):  # all seconds of the loss are its forward's
        add(NAMES[name].effect, work=Work(name, share=0.0 if place else seconds))
